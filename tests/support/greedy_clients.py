"""Clients that know the secret and want as much of a store's server as they can get, while another
one uses it.

Each plays in a process of its own: ``python -m tests.support.greedy_clients PORT ATTACK BYTES``
says that it is ready, and goes on.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

from simcoll.distributed.stores import TCPStore
from simcoll.distributed.stores.wire import MAX_ITEMS, StoreRequest, Verb
from tests.support.frame_fuzz import Watch
from tests.support.hostile_doors import StoreDoor, encode

__all__ = ["ATTACKS", "attack"]

MANY = tuple(f"k{i}" for i in range(MAX_ITEMS - 1))


def _frame(*asked, **more):
    return bytes(encode(StoreRequest(*asked, **more)))


def _flood(port, data, clients):
    """Send the same again and again on each of so many connections, and take what comes."""

    def drain(sock):
        with contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                pass

    def send(sock):
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(data)

    for sock in [StoreDoor.introduced_at(("127.0.0.1", port)) for _ in range(clients)]:
        sock.settimeout(None)
        for action in (drain, send):
            threading.Thread(target=action, args=(sock,), daemon=True).start()


def _waits(port, store, _):
    waiting = [StoreDoor.introduced_at(("127.0.0.1", port)) for _ in range(60)]
    for sock in waiting:
        sock.sendall(_frame(Verb.WAIT, wait_ms=10**9, keys=(*MANY, "never")))
    yield
    while True:
        store.multi_set(list(MANY), [b""] * len(MANY))
        for key in MANY[::7]:
            store.delete_key(key)


def _appends(port, store, size_bytes):
    store.set("big", b"x" * size_bytes)
    read = _frame(Verb.GET, keys=("big",))
    _flood(port, _frame(Verb.APPEND, keys=("big",), values=(b"y",)) + read + read, 6)
    yield


def _sets(port, _, size_bytes):
    _flood(port, _frame(Verb.SET, keys=("big",), values=(b"x" * size_bytes,)), 4)
    yield


def _reads(port, store, size_bytes):
    store.multi_set(list(MANY), [b"x" * (size_bytes // len(MANY))] * len(MANY))
    _flood(port, _frame(Verb.MULTI_GET, keys=MANY), 8)
    yield


ATTACKS = {"waits": _waits, "appends": _appends, "sets": _sets, "reads": _reads}


def attack(name, seconds, size_bytes=50 << 20):
    """The watch over another client of the server for so many seconds of an attack with values of
    so many bytes.
    """
    with StoreDoor() as door:
        command = [sys.executable, "-m", __name__, str(door.address[1]), name, str(size_bytes)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
            try:
                assert attacker.stdout.readline() == b"ready\n"
                with Watch(door.works) as watch:
                    time.sleep(seconds)
                assert attacker.poll() is None
            finally:
                attacker.kill()
    return watch


def main(port, name, size_bytes):
    """Attack until killed."""
    store = TCPStore("127.0.0.1", int(port), is_master=False)
    doing = ATTACKS[name](int(port), store, int(size_bytes))
    next(doing)
    print("ready", flush=True)
    next(doing, None)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
