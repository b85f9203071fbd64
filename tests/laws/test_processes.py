"""Runs in threads and in forked processes give what one process gives; memory stays flat."""

import os
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import msgspec
import numpy as np
import pytest

import simcoll
import simcoll.distributed as dist
from simcoll.distributed.linked.process_links import ControlMessages
from simcoll.emulator import emulate
from simcoll.topology import boxes
from tests.laws.memory_flat import MOST_KIB, grown
from tests.support.hostile_doors import MeetingDoor
from tests.support.memory import KINDS


@cache
def shared():
    """A plan and a machine."""
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=8), count=999)
    machine = boxes(2, 4, "400 GB/s", "1 us", nics=4, nic_bandwidth="50 GB/s", nic_latency="3 us")
    return plan, machine.degrade("box0.nic1", 0)


def hashes(number):
    """Trace hashes of runs that share a plan and a machine, by the reference, by what is chosen,
    and of a rank program.
    """

    def program(rank, _world_size):
        x = np.full(7, rank)
        dist.all_reduce(x)
        dist.barrier()
        return int(x[0])

    events = [f"t={number % 3 + 1}us box0.nic0 = 1/2 for 5us"]
    ran = dist.spawn(program, 4)
    return (
        emulate(*shared(), engine="simpy").trace_hash,
        emulate(*shared(), data="none", engine="auto", events=events).trace_hash,
        emulate(*shared(), data="none", quotient=True).time_fs,
        ran.trace_hash,
        ran.returns,
    )


@pytest.mark.slow
def test_threads():
    expected = [hashes(number) for number in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(hashes, range(12)))
    finally:
        sys.setswitchinterval(before)
    assert found == [expected[number % 3] for number in range(12)]


def in_a_child(work):
    """What ``work`` returns in a forked process, as text."""
    there, back = os.pipe()
    with warnings.catch_warnings():
        # Of fork beside threads, which is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            said = repr(work())
        except BaseException as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}"
        os.write(back, said.encode())
        os._exit(0)
    os.close(back)
    with os.fdopen(there, "rb") as stream:
        said = stream.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return said


@pytest.mark.slow
def test_forked_processes():
    expected = repr(hashes(1))
    assert in_a_child(lambda: hashes(1)) == expected
    # Also with a thread of the parent in the middle of a run.
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            hashes(1)

    worker = threading.Thread(target=busy)
    worker.start()
    try:
        assert [in_a_child(lambda: hashes(1)) for _ in range(3)] == [expected] * 3
    finally:
        stop.set()
        worker.join()


class _NoLink:
    """Must not be asked for anything by a child."""

    def send_control(self, rank, message):
        """Take it."""

    def receive_control(self):
        return [(1, msgspec.msgpack.encode([0, "hello"]))]


def test_control_messages_do_not_go_with_a_fork():
    messages = ControlMessages(_NoLink())
    said = "RuntimeError: the link to the other ranks belongs to the process that forked this one"
    assert in_a_child(lambda: messages.send([0], "hello")) == said
    assert in_a_child(messages.receive) == said
    messages.send([0], "hello")
    assert messages.receive() == [(1, ["hello"])]


def test_a_seat_does_not_go_with_a_fork():
    with MeetingDoor() as door:
        seat = door.seats[1]
        assert "it belongs to the process that forked this one" in in_a_child(seat.check_usable)
        assert in_a_child(seat.close) == "None"
        seat.check_usable()
        assert door.works()


def test_a_connection_does_not_go_with_a_fork():
    store = dist.TCPStore("127.0.0.1", 0, world_size=1, is_master=True)
    try:
        store.set("key", "value")
        assert "belongs to the process that forked this one; use clone()" in in_a_child(
            lambda: store.get("key")
        )
        assert in_a_child(lambda: store.clone().get("key")) == "b'value'"
        assert store.get("key") == b"value"
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_flat(kind):
    sizes, more = grown(kind, 200)
    assert len(sizes) == 10
    assert more <= MOST_KIB, sizes
