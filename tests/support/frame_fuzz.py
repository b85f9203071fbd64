"""Damaged frames for every server, while another client uses it."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from realcoll.meeting.meeting_messages import Bye, Fail, Join, Meet
from realcoll.start.pmi import Board
from simcoll.distributed.server.frames import Hello, encode
from simcoll.distributed.stores.wire import StoreRequest, Verb
from tests.support.hostile_doors import MeetingDoor, StoreDoor

__all__ = ["SERVERS", "Watch", "fuzz"]

HUGE = (
    0,
    1,
    511,
    512,
    513,
    1 << 16,
    1 << 20,
    (1 << 20) + 1,
    1 << 26,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
)
PIECES = (
    b"\x91" * 300,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xcb\x7f\xf8" + b"\0" * 6,
    b"\xcb\x7f\xf0" + b"\0" * 6,
    b"\xcf" + b"\xff" * 8,
    b"\xd3" + b"\x80" + b"\0" * 7,
    b"\xc1",
    b"\x80",
    b"\x00",
    b"\xff" * 40,
)
"""Nested, without end, not a number, infinite, too large, and not MessagePack at all."""
HELLO = bytes(encode(Hello("simcoll-store/2", b"n" * 32, b"p" * 32)))


def _sound(verb):
    keys = ("k",) * (2 if verb.keys is None else verb.keys)
    return bytes(encode(StoreRequest(verb, -1, 50, keys, (b"v",) * (verb.values or 0))))


REQUESTS = [_sound(verb) for verb in Verb]
SAYINGS = [
    bytes(encode(each))
    for each in (
        Join(3),
        Join(0),
        Meet("a", (3, 4), b"v", 0.01),
        Meet("b", (0, 3), b"", 1e8),
        Fail("x"),
        Bye(),
    )
]
LINES = [
    b"cmd=put kvsname=j key=a value=b\n",
    b"cmd=get kvsname=j key=a\n",
    b"cmd=barrier_in\n",
    b"cmd=init pmi_version=1 pmi_subversion=1\n",
    b"cmd=finalize\n",
    b"cmd=get_maxes\n",
    b"cmd=abort\n",
    b"=\n",
    b"cmd\n",
    b" value=\n",
]


def starved_s():
    """For each thread of this process, how long it was ready to run while others had the processors
    (run_delay of the kernel).
    """
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return found


@dataclass
class Watch:
    """A client of a server that asks for something all the time, and the longest it had to wait.

    ``own_s`` is the longest without the time for which one of our threads waited for a processor:
    that which waited most.
    """

    works: object
    longest_s: float = 0.0
    own_s: float = 0.0
    asked: int = 0
    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self):
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.is_set():
            before, begin = starved_s(), time.monotonic()
            try:
                fine = self.works()
            except Exception as error:  # noqa: BLE001  any is a failure of the server
                fine = False
                self.failed.append(repr(error))
            took_s = time.monotonic() - begin
            idle_s = max(
                (most - before[thread] for thread, most in starved_s().items() if thread in before),
                default=0.0,
            )
            self.longest_s, self.own_s = (
                max(self.longest_s, took_s),
                max(self.own_s, took_s - idle_s),
            )
            self.asked += 1
            if not fine:
                self.failed.append("wrong answer")
                return
            self._stop.wait(0.005)


class BoardDoor:
    """A board of three processes: two of them behave."""

    def __init__(self):
        self.board = Board(200_000)
        self.turn, self.seats = 0, 2
        self.good = [self.board.seat(i)[0] for i in range(2)]
        for sock in self.good:
            sock.settimeout(10)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._lock = threading.Lock()

    def _serve(self):
        while not self._over.is_set():
            with self._lock:
                self.board.serve(0.001)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self.board.close()
        for sock in self.good:
            sock.close()

    def opened(self):
        """A seat for one who does not behave."""
        self.seats += 1
        with self._lock:
            return self.board.seat(self.seats)[0]

    def works(self):
        """One puts, the other gets."""
        self.turn += 1
        key = f"k{self.turn % 50}"
        for sock, line, answer in (
            (self.good[0], f"cmd=put kvsname=j key={key} value=v{self.turn}\n", b"put_result rc=0"),
            (self.good[1], f"cmd=get kvsname=j key={key}\n", f"value=v{self.turn}\n".encode()),
        ):
            sock.sendall(line.encode())
            said = b""
            while not said.endswith(b"\n"):
                said += sock.recv(4096)
            if answer not in said:
                return False
        return True


def _frames(door, chance, seeds):
    """Strangers and those who know the secret take turns."""
    known = chance.random() < 0.5
    sock = door.introduced() if known else socket.create_connection(door.address, 10)
    return sock, seeds if known else [HELLO, *seeds[:2]]


def _lines(door, chance, seeds):
    return door.opened(), seeds


SERVERS = {
    "store": (lambda: StoreDoor(secret="s"), _frames, REQUESTS),
    "meeting": (MeetingDoor, _frames, SAYINGS),
    "board": (BoardDoor, _lines, LINES),
}


def _damaged(data, chance):
    data = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        way = chance.randrange(6)
        at = chance.randrange(len(data)) if data else 0
        if way == 0 and data:
            data[at] = chance.randrange(256)
        elif way == 1:
            del data[at : at + chance.randrange(1, 9)]
        elif way == 2:
            data[at:at] = chance.choice(PIECES)
        elif way == 3 and len(data) >= 4:
            data[:4] = struct.pack(">I", chance.choice(HUGE))
        elif way == 4:
            data += data[: chance.randrange(200)]
        else:
            data[4:] = chance.choice(PIECES)
    return bytes(data)


def fuzz(name, count, seed):
    """Send so many damaged frames; the watch over the other clients. A connection gets few: the
    first that makes no sense ends it.
    """
    make, opened, seeds = SERVERS[name]
    chance = random.Random(f"{seed} {name}")
    with make() as door, Watch(door.works) as watch:
        sent = 0
        while sent < count and not watch.failed:
            sock, own = opened(door, chance, seeds)
            with sock:
                for _ in range(min(chance.choice((1, 1, 2, 3)), count - sent)):
                    sent += 1
                    with contextlib.suppress(OSError):
                        sock.settimeout(0.05)
                        sock.sendall(
                            _damaged(chance.choice(own), chance)
                            if chance.random() < 0.9
                            else chance.choice(own)
                        )
    return watch
