"""Loops, given times and messages within a class: the same times as without them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.topology import crossbar
from simcoll.workload.class_clock import play_classes
from simcoll.workload.playing import alone_on, run_workload
from simcoll.workload.timing import WorkloadTimes
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    RepeatOperation,
    SendOperation,
    Workload,
    read_workload,
    write_workload,
)

CLASSES = {"first": np.array([0, 1]), "second": np.array([2, 3])}
GROUPS = {"pair": np.array([[0, 1], [2, 3]]), "all": np.array([[0, 1, 2, 3]])}
STREAMS = ("compute", "side")


@st.composite
def parts(draw, prefix="", visible=(), depth=0):
    """Operations and loops that name what may be named."""
    made, names = [], list(visible)
    for place in range(draw(st.integers(1, 3))):
        name = f"{prefix}{place}"
        after = (
            tuple(draw(st.lists(st.sampled_from(names), max_size=2, unique=True))) if names else ()
        )
        stream = draw(st.sampled_from(STREAMS))
        kind = draw(
            st.sampled_from(["compute", "call", "send", "loop" if depth < 2 else "compute"])
        )
        if kind == "loop":
            inner = draw(parts(f"{name}.", tuple(names), depth + 1))
            made.append(RepeatOperation(id=name, count=draw(st.integers(1, 5)), operations=inner))
        elif kind == "compute":
            on = draw(st.sampled_from(["first", "second"]))
            time = draw(st.integers(0, 5)) * 10**9
            made.append(ComputeOperation(id=name, on=on, time_fs=time, stream=stream, after=after))
        elif kind == "call":
            group = draw(st.sampled_from(["pair", "all"]))
            service = draw(st.sampled_from([0, 2 * 10**9, 3 * 10**9]))
            made.append(
                CallOperation(
                    id=name,
                    kind="all_reduce",
                    group=group,
                    size_bytes=8,
                    stream=stream,
                    after=after,
                    service_fs=service,
                )
            )
        else:
            made.append(
                SendOperation(
                    id=name,
                    source="first",
                    target="second",
                    size_bytes=0,
                    stream=stream,
                    after=after,
                )
            )
        names.append(name)
    return tuple(made)


@pytest.mark.slow
@given(parts())
@settings(max_examples=200, deadline=None)
def test_a_loop_plays_as_its_iterations_do(operations):
    topology = crossbar(4, "50 GB/s", "1 us")
    looped = Workload(4, CLASSES, GROUPS, operations)
    plain = Workload(4, CLASSES, GROUPS, looped.unroll())
    alone = alone_on(topology, uniform=False)
    clock = play_classes(looped, WorkloadTimes(looped, alone))
    assert clock == play_classes(plain, WorkloadTimes(plain, alone))
    assert play_classes(looped, WorkloadTimes(looped, alone), spans=False).time_fs == clock.time_fs


def _layers(count, *, service_fs=None):
    return RepeatOperation(
        id="layers",
        count=count,
        operations=(
            ComputeOperation(id="layer", on="all", time_fs=10**12, name="layer", flops=5.0),
            CallOperation(
                id="sum",
                kind="all_reduce",
                group="tp",
                size_bytes=2**20,
                after=("layer",),
                service_fs=service_fs,
            ),
        ),
    )


def _workload(*operations):
    return Workload(4, {"all": np.arange(4)}, {"tp": np.arange(4)[None]}, operations)


@pytest.mark.parametrize("tier", [1, 2])
def test_a_loop_has_the_results_of_its_iterations(tier):
    topology = crossbar(4, "50 GB/s", "1 us")
    after = ComputeOperation(id="head", on="all", time_fs=3, after=("layers",))
    looped = _workload(_layers(7), after)
    result = run_workload(looped, topology, tier=tier)
    unrolled = run_workload(_workload(*looped.unroll()), topology, tier=tier)
    for name in ("time_fs", "compute_fs", "axes", "bound_fs", "calls", "trace_hash", "clock"):
        assert getattr(result, name) == getattr(unrolled, name), name
    assert result.axes["tp"].bytes == 7 * 2**20


@pytest.mark.slow
def test_loops_of_any_length_take_no_time_to_play():
    inner = _layers(10**6)
    outer = RepeatOperation(id="steps", count=10**6, operations=(inner,))
    result = run_workload(_workload(outer), crossbar(4, "50 GB/s", "1 us"), tier=1)
    alone = run_workload(_workload(_layers(1)), crossbar(4, "50 GB/s", "1 us"), tier=1)
    assert result.compute_fs == 10**24
    assert result.clock.spans == ()
    # The all_reduce of a layer runs beside the next layer.
    assert result.time_fs == 10**12 * (10**12 - 1) + alone.time_fs
    with pytest.raises(ConfigError, match=r"unroll to 2,000,000,000,000 operations"):
        run_workload(_workload(outer), crossbar(4, "50 GB/s", "1 us"), tier=2)


def test_a_loop_survives_its_file():
    workload = _workload(_layers(3, service_fs=5))
    copy = read_workload(write_workload(workload))
    assert copy.operations == workload.operations


@pytest.mark.parametrize("tier", [1, 2])
def test_a_given_time_begins_with_the_last_rank(tier):
    late = ComputeOperation(id="late", on="second", time_fs=70, stream="communication")
    call = CallOperation(id="c", kind="all_reduce", group="all", size_bytes=2**20, service_fs=11)
    result = run_workload(
        Workload(4, CLASSES, GROUPS, (late, call)), crossbar(4, "50 GB/s", "1 us"), tier=tier
    )
    assert result.time_fs == 81
    assert result.axes["all"].total_fs == 11
    assert result.axes["all"].exposed_fs == 11
    assert result.calls[0].time_fs == 11


def test_a_given_time_is_met_group_by_group():
    late = ComputeOperation(id="late", on="second", time_fs=70, stream="communication")
    call = CallOperation(id="c", kind="all_reduce", group="pair", size_bytes=2**20, service_fs=11)
    result = run_workload(
        Workload(4, CLASSES, GROUPS, (late, call)), crossbar(4, "50 GB/s", "1 us"), tier=2
    )
    ends = {span.on: span.end_fs for span in result.clock.spans if span.operation == 1}
    assert ends == {"first": 11, "second": 81}


@pytest.mark.parametrize("tier", [1, 2])
def test_a_permute_within_a_class_is_a_shift(tier):
    ring = tuple((rank, (rank + 1) % 4) for rank in range(4))
    shift = CallOperation(id="p", kind="send_recv", group="tp", size_bytes=10**9, pairs=ring)
    result = run_workload(_workload(shift), crossbar(4, "50 GB/s", "1 us"), tier=tier)
    # 1 GB at 50 GB/s, and the protocol's share of the wire
    assert 0.020 < result.seconds < 0.027
    half = CallOperation(id="p", kind="send_recv", group="tp", size_bytes=10**9, pairs=((0, 2),))
    one = run_workload(_workload(half), crossbar(4, "50 GB/s", "1 us"), tier=tier)
    assert one.time_fs <= result.time_fs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pairs": ((0, 4),)}, "pairs: expected group ranks, 0 to 3, got 4"),
        ({"pairs": ((0, 1), (0, 2))}, "pairs: rank 0 is the source of two messages"),
        ({"pairs": ((1, 1),)}, "pairs: rank 1 sends to itself"),
        ({"pairs": ((0, 1),), "kind": "all_reduce"}, "pairs are for send_recv; got a all_reduce"),
        ({}, "unknown collective 'send_recv'"),
        ({"kind": "all_reduce", "service_fs": -1}, "service_fs: expected at least 0, got -1"),
    ],
)
def test_wrong_calls_are_refused(change, message):
    fields = {"id": "p", "kind": "send_recv", "group": "tp", "size_bytes": 8}
    with pytest.raises(ConfigError, match=message):
        _workload(CallOperation(**(fields | change)))


def test_wrong_loops_are_refused():
    work = ComputeOperation(id="w", on="all", time_fs=1)
    with pytest.raises(ConfigError, match="'l': expected a count of at least 1"):
        _workload(RepeatOperation(id="l", count=0, operations=(work,)))
    with pytest.raises(ConfigError, match="'w' is a duplicate"):
        _workload(work, RepeatOperation(id="l", count=2, operations=(work,)))
    late = ComputeOperation(id="late", on="all", time_fs=1, after=("w",))
    with pytest.raises(ConfigError, match="after 'w', which is inside a loop; expected the loop"):
        _workload(RepeatOperation(id="l", count=2, operations=(work,)), late)
