"""What strangers and broken clients do to a server: a store's and that of a meeting keep the same
promises.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from realcoll.meeting import host
from realcoll.meeting.meeting_messages import Join, Meet
from simcoll.distributed.server.frames import encode
from simcoll.distributed.server.server import LIGHT_BYTES, Server
from simcoll.distributed.stores import DistStoreError, wire
from simcoll.distributed.stores.store_table import StoreTable
from simcoll.distributed.stores.tcp import service
from simcoll.distributed.stores.wire import Verb
from tests.support import hostile_doors
from tests.support.hostile_doors import DOORS, MeetingDoor, StoreDoor, next_body

HUGE = (0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 1 << 28)
NESTED = struct.pack(">I", 1100) + b"\x91" * 1100
DEEP_VALUE = struct.pack(">I", 1103) + b"\x93\x01\x90" + b"\x91" * 1100


@pytest.fixture(params=DOORS)
def door(request):
    """A server, a client that uses it, and ways to knock at it."""
    with request.param() as opened:
        yield opened


@pytest.fixture(params=DOORS)
def kind(request):
    return request.param


def knock(door):
    return socket.create_connection(door.address, 10)


def sent(sock, data):
    """Send what the other side takes; it may hang up in the middle."""
    with contextlib.suppress(OSError):
        sock.sendall(data)


def hung_up(sock, limit_s):
    """Whether the other side ends the connection in time."""
    sock.settimeout(limit_s)
    try:
        while sock.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.slow
@pytest.mark.parametrize("opener", ["stranger", "introduced"])
def test_random_bytes(door, opener):
    chance = random.Random(20_260)
    for i in range(300):
        data = chance.randbytes(chance.randrange(1, 300))
        if i % 2:  # a plausible length before them
            data = struct.pack(">I", chance.randrange(len(data) + 3)) + data
        with knock(door) if opener == "stranger" else door.introduced() as sock:
            sent(sock, data)
            if i % 5 == 0:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
                assert hung_up(sock, 10)
    assert door.works()


@pytest.mark.parametrize("opener", ["stranger", "introduced"])
@pytest.mark.parametrize("length", HUGE)
def test_a_huge_length_costs_the_connection(door, opener, length):
    with knock(door) if opener == "stranger" else door.introduced() as sock:
        sent(sock, struct.pack(">I", length) + b"x" * 1000)
        assert hung_up(sock, 10)
    assert door.works()


@pytest.mark.parametrize("opener", ["stranger", "introduced"])
@pytest.mark.parametrize("data", [NESTED, DEEP_VALUE])
def test_deep_nesting_costs_the_connection(door, opener, data):
    with knock(door) if opener == "stranger" else door.introduced() as sock:
        sent(sock, data)
        assert hung_up(sock, 10)
    assert door.works()


@pytest.mark.slow
def test_half_a_frame_and_silence_cost_the_connection(kind):
    with kind(handshake_s=0.3, request_s=0.3) as door:
        with knock(door) as silent, knock(door) as begun, door.introduced() as half:
            sent(begun, door.request[:2])
            sent(half, door.request[:-1])
            assert all(hung_up(sock, 10) for sock in (silent, begun, half))
        assert door.works()


@pytest.mark.slow
def test_dripping_does_not_help(kind):
    with (
        kind(handshake_s=0.3, request_s=0.3) as door,
        knock(door) as hello,
        door.introduced() as request,
    ):
        limit = time.monotonic() + 10
        open_ones = [hello, request]
        while open_ones and time.monotonic() < limit:
            for sock in list(open_ones):
                try:
                    sock.sendall(b"\0")
                    sock.settimeout(0.01)
                    if sock.recv(65_536) == b"":
                        open_ones.remove(sock)
                except TimeoutError:
                    pass
                except OSError:
                    open_ones.remove(sock)
            time.sleep(0.02)
        assert open_ones == []
        assert door.works()


@pytest.mark.slow
def test_silent_strangers_keep_nobody_out(kind):
    with kind(max_connections=20) as door:
        strangers = [knock(door) for _ in range(60)]
        time.sleep(0.2)
        assert door.works()
        with door.introduced() as late:
            assert door.answers(late)
        for sock in strangers:
            sock.close()


@pytest.mark.slow
def test_thousands_of_clients(kind):
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(1500, most // 2 - 100)  # both ends are in this process
    with kind() as door:
        began = time.monotonic()
        socks = [door.introduced() if i % 3 == 0 else knock(door) for i in range(count)]
        assert door.works()
        for i, sock in enumerate(socks[::7]):
            sent(sock, random.Random(i).randbytes(20))
        assert door.works()
        assert time.monotonic() - began < 60
        for sock in socks:
            sock.close()
        assert door.works()


@pytest.mark.slow
def test_a_client_killed_in_the_middle(door):
    script = (
        "import os, signal, socket, struct, sys\n"
        "sock = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "sock.sendall(struct.pack('>I', 400) + b'x' * 200)\n"
        "os.write(1, b'sent')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(3):
        command = [sys.executable, "-c", script, str(door.address[1])]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"sent")
    for cut in (1, 3, 5, len(door.request) - 1):
        with door.introduced() as sock:
            sent(sock, door.request[:cut])
            # A reset, as of a process that died with bytes unread.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert door.works()


@pytest.mark.slow
def test_a_client_that_takes_no_answers(kind):
    with kind(request_s=0.5) as door, door.introduced() as greedy:
        greedy.setblocking(False)
        limit = time.monotonic() + 2
        while time.monotonic() < limit:
            try:
                greedy.send(door.request * 100)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        assert door.works()


def test_requests_sent_ahead_wait_for_the_turns_of_others():
    with StoreDoor() as door, door.introduced() as greedy, door.store.clone() as other:
        other.set("big", b"x" * (1 << 20))
        work = encode(wire.StoreRequest(Verb.APPEND, keys=("big",), values=(b"y",))) * 2000
        last = encode(wire.StoreRequest(Verb.ADD, 1, keys=("done",)))
        greedy.sendall(
            encode(wire.StoreRequest(Verb.WAIT, wait_ms=60_000, keys=("go",))) + work + last
        )
        other.set("go", "1")
        assert other.add("done", 0) == 0
        other.wait(["done"])  # all are served


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "values"),
    [
        (Verb.GET, ()),
        (Verb.APPEND, (b"y",)),
        (Verb.COMPARE_SET, (b"a", b"b")),
        (Verb.SET, (b"z" * 20_000,)),
    ],
)
def test_what_moves_much_waits_until_small_requests_are_served(monkeypatch, verb, values):
    """All that arrived while the server was busy: of ten that want much, one comes before the small
    one that came last.
    """
    with StoreDoor() as door, door.store.clone() as other, contextlib.ExitStack() as inside:
        other.set("big", b"x" * 40_000)
        greedy = [inside.enter_context(door.introduced()) for _ in range(10)]
        small = inside.enter_context(door.introduced())
        served, apply = [], StoreTable.apply
        monkeypatch.setattr(
            StoreTable,
            "apply",
            lambda table, asked: (served.append(asked.keys[0]), apply(table, asked))[1],
        )
        (server,) = [thread for thread in threading.enumerate() if isinstance(thread, Server)]
        server.loop.call_soon_threadsafe(time.sleep, 0.3)
        time.sleep(0.1)
        for sock in greedy:
            sock.sendall(encode(wire.StoreRequest(verb, keys=("big",), values=values)))
        small.sendall(encode(wire.StoreRequest(Verb.SET, keys=("small",), values=(b"1",))))
        assert all(next_body(sock) for sock in [small, *greedy])
        assert served.index("small") <= 1
        assert served.count("big") == 10


@pytest.mark.slow
def test_small_requests_have_half_of_the_servers_time(monkeypatch):
    with StoreDoor() as door, door.store.clone() as other, contextlib.ExitStack() as inside:
        other.set("big", b"x" * 40_000)
        begun, apply = threading.Event(), StoreTable.apply
        big = []

        def slow(table, asked):
            if asked.code is Verb.GET:
                begun.set()
                time.sleep(0.2)
                big.append(asked)
            return apply(table, asked)

        monkeypatch.setattr(StoreTable, "apply", slow)
        for sock in [inside.enter_context(door.introduced()) for _ in range(20)]:
            sock.sendall(encode(wire.StoreRequest(Verb.GET, keys=("big",))))
        assert begun.wait(10)
        for _ in range(8):
            other.set("small", b"1")
        assert len(big) <= 4  # not one before each


@pytest.mark.parametrize("verb", [Verb.WAIT, Verb.MULTI_GET, Verb.CHECK])
def test_looking_for_many_keys_is_much(verb):
    table = StoreTable()
    few, many = (
        wire.StoreRequest(verb, keys=tuple(map(str, range(count)))) for count in (64, 1000)
    )
    assert table.moved_bytes(few) <= LIGHT_BYTES < table.moved_bytes(many)


def test_appending_does_not_copy_what_is_there():
    table = StoreTable()
    table.apply(wire.StoreRequest(Verb.SET, keys=("k",), values=(b"x" * (1 << 20),)))
    first = table.apply(wire.StoreRequest(Verb.GET, keys=("k",)))
    append = wire.StoreRequest(Verb.APPEND, keys=("k",), values=(b"y",))
    moved = []
    for _ in range(3):
        moved.append(table.moved_bytes(append))
        table.apply(append)
    assert moved == [1 << 20, 0, 0]
    assert first == b"x" * (1 << 20)
    assert table.apply(wire.StoreRequest(Verb.GET, keys=("k",))) == first + b"yyy"
    assert table.moved_bytes(append) > 1 << 20  # whoever got the value keeps it


def test_more_keys_than_fit_are_not_sorted_for_a_list(monkeypatch):
    monkeypatch.setattr(service, "MAX_ITEMS", 2)
    with StoreDoor() as door:
        door.store.multi_set(["a", "b"], ["1", "2"])
        assert door.store.list_keys() == ["a", "b"]
        door.store.set("c", "3")
        with pytest.raises(DistStoreError, match="there are 3 keys; this server lists at most 2"):
            door.store.list_keys()


@pytest.mark.parametrize(
    "said",
    [
        lambda i: Meet(f"{i}", (3, 4), b"v" * 9000, 1e7),
        lambda i: Meet(f"{i}" + "x" * 9000, (3, 4), b"", 0.0),
        lambda i: Meet(f"{i}", (3,) * 9000, b"", 1e7),
        lambda _: Meet("same", (3, 4), b"", 1e7),
    ],
    ids=["open", "given up", "members", "again"],
)
def test_a_process_cannot_make_a_meeting_hold_more_and_more(monkeypatch, said):
    monkeypatch.setattr(host, "MAX_HELD_BYTES", 1 << 16)
    with MeetingDoor() as door, door.introduced() as sock:
        sent(sock, encode(Join(3)))
        for i in range(100):
            sent(sock, encode(said(i)))
        assert hung_up(sock, 10)
        assert door.works()


def test_meetings_that_are_over_hold_nothing(monkeypatch):
    monkeypatch.setattr(host, "MAX_HELD_BYTES", 4096)
    with MeetingDoor() as door:
        assert all(door.works() for _ in range(20))


def test_a_wrong_secret_is_refused(kind):
    with kind(secret="of this job") as door:
        with pytest.raises(OSError, match="secret"):
            door.introduced(secret=b"a guess")
        assert door.works()


def test_a_stopped_server_leaves_no_thread_and_no_socket(kind):
    def open_files():
        return set(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before, threads = open_files(), threading.active_count()
    with kind() as door:
        socks = [knock(door), door.introduced()]
        address = door.address
        began = time.monotonic()
    assert time.monotonic() - began < 5
    for sock in socks:
        assert hung_up(sock, 5)
        sock.close()
    assert threading.active_count() == threads
    assert open_files() == before
    with pytest.raises(ConnectionError):
        socket.create_connection(address, 5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "end", [lambda: os._exit(0), lambda: sys.exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL)]
)
def test_a_forked_child_disturbs_no_server(door, end):
    child = os.fork()
    if child == 0:
        try:
            end()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert door.works()


@pytest.mark.slow
def test_the_death_of_the_servers_process_is_noticed_at_once(kind, tmp_path):
    script = tmp_path / "server.py"
    script.write_text(
        "import signal, sys, time\n"
        # Whoever runs the tests may have it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.path.insert(0, {str(Path(hostile_doors.__file__).parents[2])!r})\n"
        "from tests.support import hostile_doors\n"
        f"with hostile_doors.{kind.__name__}() as door:\n"
        "    print(door.address[1], flush=True)\n"
        "    time.sleep(600)\n"
    )
    for number in (signal.SIGKILL, signal.SIGINT):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen([sys.executable, str(script)], **pipes)
        port = int(server.stdout.readline())
        with kind.introduced_at(("127.0.0.1", port)) as sock:
            server.send_signal(number)
            assert hung_up(sock, 20)
        assert server.wait(30) != 0
        server.stdout.close()
