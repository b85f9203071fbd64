"""Calls that are handled together have the times, hashes, records and errors of single ones."""

from datetime import timedelta

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.distributed.runtime import matched_calls
from simcoll.distributed.runtime.rounds import Round
from simcoll.distributed.start.spawning import flight_record

N = 8
LATE = "3 us"


@pytest.fixture
def counted(monkeypatch):
    """How many rounds ended for all ranks at once, and how many broke up."""
    counts = {"together": 0, "broken up": 0}
    leave, break_up = Round._leave, Round._break_up

    def count_leave(self, outputs):
        counts["together"] += 1
        leave(self, outputs)

    def count_break_up(self, playing):
        counts["broken up"] += 1
        break_up(self, playing)

    monkeypatch.setattr(Round, "_leave", count_leave)
    monkeypatch.setattr(Round, "_break_up", count_break_up)
    return counts


def both(monkeypatch, program, **options):
    """What a run returns or raises, which is the same without rounds."""
    outcomes = []
    for most in (matched_calls.MOST_ROUNDS, 0):
        with monkeypatch.context() as patched:
            patched.setattr(matched_calls, "MOST_ROUNDS", most)
            try:
                result = dist.spawn(program, N, **options)
            except RuntimeError as error:
                outcomes.append(str(error))
            else:
                records = [str(record) for record in result.records]
                outcomes.append(
                    (result.returns, result.trace_hash, result.finish_fs, sorted(records))
                )
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def repeated(x, calls=4):
    for _ in range(calls):
        dist.all_reduce(x)


def test_repeated_calls_are_handled_together(monkeypatch, counted):
    def program(rank, _n):
        x = np.arange(6, dtype=np.float32).reshape(2, 3) + rank
        repeated(x)
        for _ in range(4):
            dist.all_reduce(x, dist.ReduceOp.AVG)
            dist.all_reduce(x.T.copy(), dist.ReduceOp.MAX)
        return x.tolist(), flight_record()

    returns, *_ = both(monkeypatch, program)
    assert returns[0][0][0][0] == N**3 * sum(range(N))
    # Two calls are single: one is played, and one repeats it; a mean has the plan of a sum.
    assert counted == {"together": 2 + 3 + 2, "broken up": 0}


def late(rank, _n):
    x = np.ones(4, np.float32)
    repeated(x)
    if rank == 3:
        dist.compute(LATE)
    repeated(x)
    return x.tolist(), flight_record()


def first_late(rank, _n):
    x = np.ones(4, np.float32)
    repeated(x)
    if rank == 0:
        dist.compute(LATE)
    repeated(x)
    return x.tolist(), flight_record()


def message_between(rank, _n):
    x, message = np.ones(4, np.float32), np.full(3, rank)
    repeated(x)
    for _ in range(4):
        if rank == 2:
            dist.send(message, 4)
        if rank == 4:
            dist.recv(message, 2)
        dist.all_reduce(x)
    return x.tolist(), message.tolist(), flight_record()


def started_before(rank, _n):
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    repeated(x)
    for _ in range(4):
        work = dist.all_reduce(y, async_op=True) if rank != 1 else None
        dist.all_reduce(x if rank != 1 else y)
        if rank == 1:
            dist.all_reduce(x)
        else:
            work.wait()
    return x.tolist(), y.tolist(), flight_record()


def strided_groups(rank, _n):
    groups = [dist.new_group([0, 2, 4, 6]), dist.new_group([1, 3, 5, 7])]
    x = np.ones(4, np.float32)
    for _ in range(6):
        dist.all_reduce(x, group=groups[rank % 2])
    return x.tolist(), flight_record()


def of_several_sizes(_rank, _n):
    arrays = [np.ones(size, np.float32) for size in (1, 4, 1000)]
    for _ in range(5):
        for x in arrays:
            dist.all_reduce(x)
            dist.broadcast(x, 1)
            dist.barrier()
    return [x.tolist() for x in arrays], flight_record()


def callback_in_flight(rank, _n):
    x, y = np.ones(1 << 16, np.float32), np.ones(1, np.float32)
    repeated(x)
    dist.barrier()
    future = dist.all_reduce(y, async_op=True).get_future()
    z = np.ones(2, np.float32)
    future.then(lambda _: dist.all_reduce(z))
    repeated(x, 3)
    dist.barrier()
    return x[0], y.tolist(), z.tolist(), rank, flight_record()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        late,
        first_late,
        message_between,
        started_before,
        strided_groups,
        of_several_sizes,
        callback_in_flight,
    ],
)
def test_what_else_happens_breaks_them_up_unseen(monkeypatch, counted, program):
    both(monkeypatch, program)
    assert counted["together"] > 0


def test_late_ranks_break_rounds_up(monkeypatch, counted):
    both(monkeypatch, late)
    assert counted["broken up"] > 0


def other_call(rank, _n):
    x = np.ones(4, np.float32)
    repeated(x)
    dist.all_reduce(x if rank != 3 else x[:2])


def no_call(rank, _n):
    x = np.ones(4, np.float32)
    repeated(x)
    if rank != 3:
        dist.all_reduce(x)


def failure(rank, _n):
    x = np.ones(4, np.float32)
    repeated(x)
    if rank == 3:
        raise ValueError("stop")
    dist.all_reduce(x)


def short_timeout(rank, _n):
    group = dist.new_group(timeout=timedelta(microseconds=1))
    x, caught = np.ones(4, np.float32), []
    for _ in range(6):
        try:
            dist.all_reduce(x, group=group)
        except RuntimeError as error:
            caught.append(str(error))
    return rank, caught, flight_record()


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (other_call, "Detected mismatch between collectives"),
        (no_call, "waits for rank 3"),
        (failure, "rank 3 ended with ValueError: stop"),
    ],
)
def test_errors_are_those_of_single_calls(monkeypatch, program, text):
    def caught(rank, n):
        try:
            program(rank, n)
        except RuntimeError as error:
            return str(error), flight_record()
        return None

    if program is failure:
        with pytest.raises(ValueError, match="stop"):
            dist.spawn(program, N)
        both(monkeypatch, lambda rank, n: caught(rank, n) if rank != 3 else None)
        return
    returns, *_ = both(monkeypatch, caught)
    assert text in returns[0][0]


def test_timeouts_expire_while_all_ranks_wait(monkeypatch):
    both(monkeypatch, short_timeout)


def test_ctrl_c_of_a_program_ends_the_run(monkeypatch):
    def program(rank, _n):
        x = np.ones(4, np.float32)
        repeated(x)
        if rank == 0:
            raise KeyboardInterrupt
        repeated(x)

    with pytest.raises(KeyboardInterrupt):
        both(monkeypatch, program)
