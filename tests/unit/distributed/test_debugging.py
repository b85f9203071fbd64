"""What is found that real backends leave undefined, monitored barriers, the flight record."""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta

import numpy as np
import pytest

import simcoll.distributed as dist


def run(program, nprocs=4, **kw):
    return dist.spawn(program, nprocs, **kw).returns


def test_monitored_barrier_passes():
    """MB-01: None when all arrive, late ones too."""

    def program(rank, world_size):
        dist.compute(rank * 0.1)
        assert dist.monitored_barrier(timeout=timedelta(seconds=2)) is None
        return dist.emulated_time() >= 0.3

    assert run(program) == (True,) * 4


def verdicts(missing, *, ranks=None, **kw):
    """What every rank is told when some do not come."""

    def program(rank, world_size):
        group = dist.new_group(ranks) if ranks else None
        if rank in missing or (ranks and rank not in ranks):
            return None
        with pytest.raises(RuntimeError) as caught:
            dist.monitored_barrier(group, timedelta(seconds=2), **kw)
        assert dist.emulated_time() == 2.0
        return str(caught.value).splitlines()[0]

    return run(program)


def reached(rank):
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0."
        " Please check rank 0 logs for faulty rank."
    )


def test_monitored_barrier_names_the_missing():
    """MB-03 MB-04 MB-05 MB-06 DB-05: rank 0 names the first or all missing ranks, the others point
    to rank 0.
    """
    assert verdicts([1]) == (
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms",
        None,
        reached(2),
        reached(3),
    )
    assert verdicts([1, 3]) == (
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms",
        None,
        reached(2),
        None,
    )
    both = "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms"
    assert verdicts([1, 3], wait_all_ranks=True) == (both, None, reached(2), None)
    one = "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 2000 ms"
    assert verdicts([2], wait_all_ranks=True) == (one, reached(1), None, reached(3))


def test_monitored_barrier_without_rank_0():
    """MB-07: all others fail."""
    assert verdicts([0]) == (None, reached(1), reached(2), reached(3))


def test_monitored_barrier_of_a_group():
    """MB-08: numbers in its messages are group ranks."""
    first = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms"
    assert verdicts([3], ranks=[1, 2, 3]) == (None, first, reached(1), None)


def test_timeout_of_a_monitored_barrier():
    """MB-09 MB-10: 30 minutes when none is given, whatever the group's; a float is seconds, with a
    warning.
    """

    def program(rank, world_size):
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank == 1:
            return None
        with (
            pytest.warns(UserWarning, match="timedelta"),
            pytest.raises(RuntimeError, match=r"in 500 ms|successfully reached"),
        ):
            dist.monitored_barrier(group, 0.5)
        with pytest.raises(RuntimeError, match=r"in 1800000 ms|successfully reached"):
            dist.monitored_barrier(group)
        return dist.emulated_time()

    assert run(program, 2)[0] == 1800.5


def test_debug_levels(monkeypatch):
    """DB-01: OFF, INFO or DETAIL, in any case."""
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)
    assert dist.get_debug_level() == dist.DebugLevel.OFF
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL

    def program(rank, world_size):
        dist.set_debug_level(dist.DebugLevel.INFO)
        before = dist.get_debug_level()
        dist.set_debug_level_from_env()
        return before, dist.get_debug_level()

    assert run(program, 1) == ((dist.DebugLevel.INFO, dist.DebugLevel.DETAIL),)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "LOUD")
    with pytest.raises(ValueError, match="must be OFF, INFO, or DETAIL"):
        dist.get_debug_level()


MISMATCHES = {
    "function": (lambda: dist.all_reduce(np.ones(2)), lambda: dist.reduce(np.ones(2), 0)),
    "number of elements": (
        lambda: dist.all_reduce(np.ones(2)),
        lambda: dist.all_reduce(np.ones(3)),
    ),
    "dtype": (lambda: dist.all_reduce(np.ones(2)), lambda: dist.all_reduce(np.ones(2, int))),
    "op": (
        lambda: dist.all_reduce(np.ones(2)),
        lambda: dist.all_reduce(np.ones(2), dist.ReduceOp.MAX),
    ),
    "root": (lambda: dist.broadcast(np.ones(2), 0), lambda: dist.broadcast(np.ones(2), 1)),
    "algorithm": (dist.barrier, lambda: dist.barrier(algorithm="linear")),
}


@pytest.mark.parametrize("aspect", MISMATCHES)
@pytest.mark.parametrize("odd", [0, 2])
def test_mismatches(aspect, odd):
    """AR-10 DB-02 DB-03 DB-04 DB-09: another kind, size, dtype, op, root or algorithm raises on
    every rank, with all calls.
    """
    usual, other = MISMATCHES[aspect]

    def program(rank, world_size):
        with pytest.raises(RuntimeError) as caught:
            (other if rank == odd else usual)()
        return str(caught.value)

    texts = set(run(program))
    assert len(texts) == 1
    text = texts.pop()
    assert text.startswith(
        "Detected mismatch between collectives on ranks: call 0 on group 0 (default_pg): they "
        "differ in "
    )
    assert aspect in text.splitlines()[0]
    assert [line.split(":")[0] for line in text.splitlines()[1:]] == [
        f"  rank {r}" for r in range(4)
    ]
    assert "test_debugging.py" in text


def test_mismatch_of_order():
    """DB-06: ranks that call in another order are told; a Work says so when it is waited for."""

    def program(rank, world_size):
        if rank:
            dist.barrier()
            dist.all_reduce(np.ones(1))
        else:
            work = dist.all_reduce(np.ones(1), async_op=True)
            with pytest.raises(
                RuntimeError, match=r"rank 0: all_reduce \[1\] float64 SUM .*\n  rank 1: barrier"
            ):
                work.wait()
            with pytest.raises(RuntimeError, match="Detected mismatch"):
                dist.barrier()

    with pytest.raises(RuntimeError, match="they differ in function"):
        run(program)


@pytest.mark.parametrize(
    ("sizes", "dissent"),
    [
        ((1, 2), ""),
        ((1, 1, 2), "; all but rank 2 agree"),
        ((1, 2, 2, 2), "; all but rank 0 agree"),
        ((1, 2, 1, 2), ""),
        ((3, 2, 1, 1, 1), "; all but rank 0, 1 agree"),
    ],
)
def test_a_mismatch_names_those_who_differ_from_most(sizes, dissent):
    def program(rank, world_size):
        dist.all_reduce(np.ones(sizes[rank]))

    with pytest.raises(RuntimeError) as caught:
        run(program, len(sizes))
    headline = str(caught.value).splitlines()[0]
    assert headline.endswith(f"they differ in number of elements{dissent}")


def test_what_was_issued_before_a_mismatch_ends_well():
    def program(rank, world_size):
        x, late = np.ones(1 << 16), np.ones(1 << 16)
        first = dist.all_reduce(x, async_op=True)
        second = dist.all_reduce(
            late, async_op=True, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM
        )
        for call in (lambda: dist.barrier(async_op=True).wait(), second.wait):
            with pytest.raises(RuntimeError, match=r"call 1 on group 0 .* they differ in op"):
                call()
        first.wait()
        group = dist.new_group()
        dist.all_reduce(x, group=group)
        return set(x.tolist())

    assert run(program, 3) == ({9.0},) * 3


def test_a_mismatch_that_is_found_while_others_have_begun():
    # A chain: rank 0 sends to 1 and is through before rank 2 calls something else.
    def program(rank, world_size):
        if rank == 2:
            dist.compute(1.0)
            with pytest.raises(RuntimeError, match="they differ in function"):
                dist.barrier()
            return None
        if rank == 0:
            dist.broadcast(np.ones(10), 0, algorithm="chain")
        else:
            with pytest.raises(
                RuntimeError,
                match="they differ in function, number of elements, dtype, root, algorithm",
            ):
                dist.broadcast(np.ones(10), 0, algorithm="chain")
        before = dist.emulated_time()
        if rank == 0:
            dist.compute(2.0)
        with pytest.raises(RuntimeError, match="rank 2: barrier"):
            dist.barrier()
        return before

    assert run(program, 3)[0] < 1e-3


def test_mismatch_with_a_rank_that_never_calls():
    def program(rank, world_size):
        if rank < 2:
            with pytest.raises(RuntimeError, match="rank 2: has not called"):
                dist.all_reduce(np.ones(1 + rank))

    run(program, 3)


def test_point_to_point_does_not_disturb_the_count():
    """DB-07: sends between two ranks do not make a later collective of all look different."""

    def program(rank, world_size):
        if rank == 0:
            dist.send(np.ones(1), 1)
        if rank == 1:
            dist.recv(np.ones(1), 0)
        dist.barrier()

    run(program, 3)


def test_hang():
    def program(rank, world_size):
        if rank == 3:
            return
        if rank == 2:
            dist.recv(np.ones(1), 0, tag=5)
        dist.all_reduce(np.ones(2))

    with pytest.raises(RuntimeError) as caught:
        run(program)
    lines = str(caught.value).splitlines()
    assert "no event is left, and 3 ranks wait" in lines[0]
    assert [line.split(" (")[0] for line in lines[1:4]] == [
        "  rank 0: all_reduce [2] float64 SUM",
        "  rank 1: all_reduce [2] float64 SUM",
        "  rank 2: recv from rank 0, tag 5, on group 0",
    ]
    assert lines[1].endswith("waits for rank 2, 3")
    assert lines[4] == "  ended: rank 3"


def test_sends_that_wait_for_each_other():
    def program(rank, world_size):
        dist.send(np.ones(1), 1 - rank)
        dist.recv(np.ones(1), 1 - rank)

    with pytest.raises(
        RuntimeError, match=r"rank 0: send to rank 1.*waits for its recv\n  rank 1: send to rank 0"
    ):
        run(program, 2)


def test_a_program_that_ignores_hangs_is_stopped():
    def program(rank, world_size):
        while rank == 0:
            with contextlib.suppress(RuntimeError):
                dist.barrier()

    with pytest.raises(RuntimeError, match="stopped after it caught this 100 times"):
        run(program, 2)


@pytest.mark.parametrize("which", ["input", "output", "in place"])
def test_buffers_changed_in_flight(which):
    """PP-17: writing to a buffer of an operation in flight is found at wait."""

    def program(rank, world_size):
        x, out = np.ones(3), np.zeros(3 * world_size)
        if which == "in place":
            work = dist.all_reduce(x, async_op=True)
            x[1] = 5
        else:
            work = dist.all_gather_into_tensor(out, x, async_op=True)
            (x if which == "input" else out)[1] = 5
        with pytest.raises(
            RuntimeError,
            match=f"the {'input' if which == 'input' else 'output'} buffer .*test_debugging.py.* "
            "was changed",
        ):
            work.wait()

    run(program, 2)


def test_a_send_buffer_changed_in_flight():
    def program(rank, world_size):
        x = np.ones(3)
        if rank:
            dist.compute(1.0)
            dist.recv(x, 0)
            return
        work = dist.isend(x, 1)
        x[0] = 2
        with pytest.raises(RuntimeError, match="the input buffer of send"):
            work.wait()

    run(program, 2)


def test_outputs_read_too_early_show():
    def program(rank, world_size):
        x, y, z = np.ones(2), np.ones(2, np.int16), np.zeros(2)
        works = [dist.all_reduce(x, async_op=True), dist.all_reduce(y, async_op=True)]
        works.append(dist.irecv(z, 1 - rank))
        early = np.isnan(x).all(), y.view(np.uint16).tolist(), np.isnan(z).all()
        works.append(dist.isend(np.ones(2), 1 - rank))
        for work in works:
            work.wait()
        return *early, x.tolist(), y.tolist(), z.tolist()

    assert run(program, 2) == ((True, [0xA5A5] * 2, True, [2, 2], [2, 2], [1, 1]),) * 2
    off = run(program, 2, debug=False)
    assert off[0][0] is np.False_


def test_a_work_that_is_never_waited_for():
    def program(rank, world_size):
        dist.all_reduce(np.ones(2), async_op=True)

    with pytest.warns(
        UserWarning,
        match=r"rank \d: the Work of all_reduce issued at .*test_debugging.py:\d+ was never waited "
        r"for",
    ):
        result = dist.spawn(program, 2)
    assert len(result.findings) == 2

    def wrong(rank, world_size):
        dist.all_reduce(np.ones(2 + rank), async_op=True)

    with pytest.raises(RuntimeError, match="Detected mismatch"):
        dist.spawn(wrong, 2)


def test_the_lines_of_calls_in_code_that_is_compiled_anew():
    def program(rank, world_size):
        for number in range(20):
            exec(
                compile("\n" * number + "dist.barrier()", f"cell{number}.py", "exec"),
                {"dist": dist},
            )
        return [entry["frames"][0] for entry in dist.flight_record()["entries"]]

    for frames in dist.spawn(program, 2).returns:
        assert [(each["filename"], each["line"]) for each in frames] == [
            (f"cell{n}.py", n + 1) for n in range(20)
        ]


def test_flight_record(tmp_path):
    def program(rank, world_size):
        group = dist.new_group([0, 1], group_desc="pair")
        dist.all_reduce(np.ones((2, 3), np.float32), group=group)
        if rank == 0:
            dist.send(np.ones(1), 1)
        else:
            dist.recv(np.ones(1), 0)
        return dist.flight_record()

    result = dist.spawn(program, 2)
    record = result.flight_record(1)
    assert record == result.returns[1]
    assert record["pg_config"]["1"] == {"name": "1", "desc": "pair", "ranks": "[0, 1]"}
    assert record["pg_status"]["1"] == {
        "last_enqueued_collective": 1,
        "last_started_collective": 1,
        "last_completed_collective": 1,
    }
    first, second = record["entries"]
    assert (
        first["profiling_name"],
        first["input_sizes"],
        first["input_dtypes"],
        first["state"],
    ) == (
        "simcoll:all_reduce",
        [[2, 3]],
        ["Float"],
        "completed",
    )
    assert first["process_group"] == ["1", "pair"]
    assert first["frames"][0]["name"] == "program"
    assert (second["profiling_name"], second["is_p2p"], second["output_dtypes"]) == (
        "simcoll:recv",
        True,
        ["Double"],
    )
    # The fields of an entry in PyTorch's Flight Recorder tutorial, version 2.4.
    assert set(first) >= {
        "frames",
        "record_id",
        "pg_id",
        "process_group",
        "collective_seq_id",
        "p2p_seq_id",
        "op_id",
        "profiling_name",
        "time_created_ns",
        "input_sizes",
        "input_dtypes",
        "output_sizes",
        "output_dtypes",
        "state",
        "time_discovered_started_ns",
        "time_discovered_completed_ns",
        "retired",
        "timeout_ms",
        "is_p2p",
    }
    result.write_flight_record(1, tmp_path / "flight.json")
    assert json.loads((tmp_path / "flight.json").read_text()) == record


def test_breakpoint(monkeypatch):
    """DB-10 SIG-28: one rank gets the debugger, the others wait in a barrier."""
    import pdb  # noqa: T100  # what is tested is a debugger

    seen = []
    monkeypatch.setattr(
        pdb.Pdb, "set_trace", lambda _, frame: seen.append((dist.get_rank(), frame.f_code.co_name))
    )

    def program(rank, world_size):
        for _ in range(2):
            dist.breakpoint(1, skip=1)

    run(program, 3)
    assert seen == [(1, "program")]
