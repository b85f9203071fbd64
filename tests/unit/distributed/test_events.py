"""Events in rank programs: a rank that stops, slow ranks, links that go down."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.errors import ConfigError
from simcoll.types import Slow, Stop

MS = 10**12

pytestmark = pytest.mark.filterwarnings("ignore:rank 1 stopped")


def rounds(rank, world_size, backend, timeout=None):
    """Three rounds of a millisecond of work and an all_reduce; when each ended, and how it
    failed.
    """
    dist.init_process_group(backend, timeout=timeout)
    x, told = np.ones(1000), []
    for _ in range(3):
        dist.compute(1e-3)
        try:
            dist.all_reduce(x)
        except RuntimeError as error:
            return [*told, (dist.emulated_time(), type(error).__name__, str(error))]
        told.append(dist.emulated_time())
    return told


def run(backend, *events, timeout=None, **how):
    return dist.spawn(rounds, 3, (backend, timeout), init=False, events=events, **how)


def test_an_error_tells_what_the_run_had_found():
    def program(rank, world_size):
        dist.all_reduce(np.ones(2), async_op=True)  # the error cuts it short: no finding
        dist.compute(1e-3)
        dist.barrier()

    with pytest.raises(RuntimeError) as caught:
        dist.spawn(program, 3, events=["t=0.5ms rank 1 stops"])
    assert caught.value.__notes__[-1] == "simcoll: rank 1 stopped at 500 us, as an event says"
    assert not any("never waited" in note for note in caught.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "emulator"])
def test_the_others_learn_at_once_that_a_rank_has_stopped(backend):
    result = run(backend, "t=1.5ms rank 1 stops")
    assert result.returns[1] is None
    assert result.finish_fs[1] == 3 * MS // 2
    assert result.findings == ("rank 1 stopped at 1.5 ms, as an event says",)
    for told in (result.returns[0], result.returns[2]):
        first, (when, kind, error) = told
        # It stops while all compute: the next call fails as soon as it is made.
        assert when == pytest.approx(first + 1e-3, abs=1e-12)
        assert (kind, error) == (
            "RuntimeError",
            "Connection closed by peer: rank 1 stopped at 1.5 ms",
        )


def test_who_waits_for_a_rank_that_stops_fails_then():
    """Rank 1 is late, and the others are in their first call when it stops."""
    result = run("gloo", Slow(1, 3), Stop(1, 2 * MS))
    for told in (result.returns[0], result.returns[2]):
        ((when, kind, _),) = told
        assert (when, kind) == (2e-3, "RuntimeError")


@pytest.mark.slow
def test_under_nccl_the_others_wait_until_the_timeout():
    result = run("nccl", "t=1.5ms rank 1 stops", timeout=timedelta(seconds=30))
    for told in (result.returns[0], result.returns[2]):
        first, (when, kind, error) = told
        assert when == pytest.approx(first + 1e-3 + 30, abs=1e-9)
        assert kind == "DistBackendError"
        assert "waits for rank 1" in error
    # The default timeout passes, too: nothing hangs.
    assert run("nccl", Stop(1, MS // 2)).returns[0][0][1] == "DistBackendError"


def test_a_message_to_a_rank_that_stops():
    def program(rank, world_size):
        x = np.ones(4)
        try:
            if rank == 0:
                dist.recv(x, 1)
            elif rank == 2:
                dist.compute(2e-3)
                dist.send(x, 1)
            else:
                dist.compute(1)
        except RuntimeError as error:
            return dist.emulated_time(), str(error)
        return "through"

    result = dist.spawn(program, 3, events=["t=1ms rank 1 stops"])
    said = "Connection closed by peer: rank 1 stopped at 1 ms"
    assert result.returns == ((1e-3, said), None, (2e-3, said))


@pytest.mark.parametrize("slow", [0, 1])
def test_a_message_under_way_comes_after_its_sender_or_receiver_has_stopped(slow):
    def program(rank, world_size):
        x = np.ones(4)
        try:
            if rank == 2:
                dist.compute(1e-2)
            else:
                (dist.isend if rank == slow else dist.irecv)(x, 1 - rank).wait()
        except RuntimeError as error:
            return str(error)
        return "through"

    events = [f"t=0 gpu{slow} -> switch = 0 for 5ms", "t=1ms rank 1 stops"]
    result = dist.spawn(program, 3, events=events)
    assert result.returns == ("Connection closed by peer: rank 1 stopped at 1 ms", None, "through")


@pytest.mark.slow
def test_slow_ranks_and_links_take_their_time():
    plain = run("gloo").returns[0]
    slow = run("gloo", "t=0 rank 2 slower 2").returns[0]
    # Less what the others send meanwhile.
    assert [b - a for a, b in zip(plain, slow, strict=True)] == pytest.approx(
        [1e-3, 2e-3, 3e-3], abs=1e-5
    )
    down = run("gloo", "t=1ms gpu0 -> switch = 0 for 5ms").returns[0]
    # Its latency passes meanwhile.
    assert [b - a for a, b in zip(plain, down, strict=True)] == pytest.approx(
        [4.999e-3] * 3, abs=1e-9
    )


@pytest.mark.slow
def test_a_link_that_stays_down_ends_in_words():
    for told in run("gloo", "t=1ms gpu0 -> switch = 0", policy="stall 1ms x 1").returns:
        ((when, kind, error),) = told
        assert when == pytest.approx(3.001e-3, abs=1e-9)
        assert (kind, error) == (
            "RuntimeError",
            "the message of rank 0 to rank 1 was given up at 3 ms: down: gpu0 -> switch",
        )
    assert (
        run("nccl", "t=1ms gpu0 -> switch = 0", policy="abort").returns[0][0][1]
        == "DistBackendError"
    )
    for told in run("gloo", "t=1ms gpu0 -> switch = 0").returns:
        assert "  down: gpu0 -> switch: a message of rank 0 to rank 1 waits" in told[0][2]


@pytest.mark.slow
def test_another_way_is_taken():
    from simcoll.topology import torus

    ring = torus([3], "50 GB/s", "1 us")
    events, one = ["t=0 gpu0 -> gpu1 = 0"], {"topology": ring}
    assert len(run("gloo", *events, policy="re-route", **one).returns[0]) == 3
    assert "Hang" in run("gloo", *events, **one).returns[0][0][2]


def test_events_are_for_the_emulator():
    with pytest.raises(ConfigError, match="the run has ranks 0 to 2"):
        run("gloo", Stop(3, 0))
    with pytest.raises(ConfigError, match="expected a time first"):
        run("gloo", "rank 1 stops")


@pytest.mark.slow
def test_a_timeout_names_what_keeps_the_data_away():
    """All ranks have called; then a link goes down for good, or a rank stops in the middle."""

    def program(rank, world_size):
        dist.init_process_group("nccl", timeout=timedelta(seconds=30))
        try:
            dist.all_reduce(np.ones(10**6))
        except RuntimeError as error:
            return str(error)
        return "through"

    def said(event):
        return dist.spawn(program, 3, init=False, events=[event]).returns[0]

    cut = said("t=10us gpu0 -> switch = 0")
    assert "waits for data; down: gpu0 -> switch: a message of rank 0 to rank 1 waits" in cut
    assert "waits for data; rank 1 stopped at 10 us" in said("t=10us rank 1 stops")


@pytest.mark.slow
def test_a_timeout_in_the_middle_of_an_operation_names_the_rank_that_called_last():
    def program(rank, world_size):
        dist.init_process_group("nccl", timeout=timedelta(milliseconds=10))
        dist.compute(9.99e-3 if rank == 2 else 1e-3 * rank)
        try:
            dist.all_reduce(np.ones(10**6))
        except RuntimeError as error:
            return str(error)
        return "through"

    assert (
        "waits for data; rank 2 called last, 10 us ago"
        in dist.spawn(program, 3, init=False).returns[0]
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:rank 1. the Work of all_reduce")
def test_a_rank_that_stops_after_its_program_is_named_too():
    """Its program ends while an operation that it began still needs it."""

    def program(rank, world_size):
        dist.init_process_group("nccl", timeout=timedelta(seconds=30))
        work = dist.all_reduce(np.ones(10**6), async_op=True)
        if rank == 1:
            return "left"
        try:
            work.wait()
        except RuntimeError as error:
            return str(error)
        return "through"

    told = dist.spawn(program, 3, init=False, events=["t=10us rank 1 stops"]).returns
    assert told[1] == "left"
    assert "waits for data; rank 1 stopped at 10 us" in told[0]
