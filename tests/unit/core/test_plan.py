"""Plans: offsets, sizes, staging, in-place storage."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.binding import bind
from simcoll.core.collective import KINDS, Collective
from simcoll.core.hazards import derive_waits, overwritten_sources
from simcoll.core.plan import INPUT, OUTPUT, SCRATCH
from simcoll.core.schedule import COPY, REDUCE, SYNC, Layout, Schedule, lowered, transfers
from simcoll.errors import ConfigError

COUNTS = (0, 1, 2, 3, 4, 5, 17, 1000)
UNEVEN = ("all_gather", "reduce_scatter", "gather", "scatter", "send_recv", "all_to_all")


def touching_everything(layout):
    """One step in which every chunk of every rank is a transfer."""
    n = layout.collective.nranks
    rank, chunk = np.repeat(np.arange(n), layout.size), np.tile(np.arange(layout.size), n)
    return Schedule("all", layout, lambda: iter([transfers(rank, chunk, rank, chunk)]))


def sizes_of(collective, rank, which, given):
    """Elements of each slot of a rank's input (0) or output (1), from the words of the
    definition.
    """
    kind = collective.kind
    if kind == "all_to_all":
        return given[rank].tolist() if which == INPUT else given[:, rank].tolist()
    if kind == "send_recv":
        source = {dst: src for src, dst in collective.pairs}.get(rank, rank)
        return [int(given[rank if which == INPUT else source])]
    whole = given.tolist()
    per_rank = [int(given[rank])]
    by_kind = {
        "all_gather": (per_rank, whole),
        "gather": (per_rank, whole),
        "reduce_scatter": (whole, per_rank),
        "scatter": (whole, per_rank),
    }
    return by_kind[kind][which]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_chunks_tile_the_buffers_for_uneven_sizes(data):
    kind = data.draw(st.sampled_from(UNEVEN))
    n, k = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 4))
    pairs = ((0, n - 1),) if kind == "send_recv" else ()
    collective = Collective(kind, n, pairs=pairs)
    shape = (n, n) if kind == "all_to_all" else (n,)
    given_sizes = np.array(
        data.draw(
            st.lists(st.integers(0, 9), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
        )
    ).reshape(shape)
    layout = Layout(collective, k, np.arange(2) % collective.nblocks)
    plan = bind(touching_everything(layout), given_sizes.tolist(), "int16", unproved=True)
    held = plan.buffer_elements()
    steps = list(plan.steps())
    for rank in range(n):
        for which in (INPUT, OUTPUT, SCRATCH):
            rows = [
                (int(s.src_offset[i]), int(s.elements[i]))
                for s in steps
                for i in np.flatnonzero((s.src_rank == rank) & (s.src_buffer == which))
            ]
            if which == SCRATCH:
                slots = [int(given_sizes.ravel()[b]) for b in layout.scratch]
            else:
                slots = sizes_of(collective, rank, which, given_sizes)
            lengths = [(p + 1) * s // k - p * s // k for s in slots for p in range(k)]
            starts = np.concatenate([[0], np.cumsum(lengths)])
            assert rows == [
                (int(a), length) for a, length in zip(starts, lengths, strict=False) if length
            ]
            visible = (
                which == SCRATCH or (collective.has_input(rank), collective.has_output(rank))[which]
            )
            if visible:
                assert held[rank, which] == sum(slots)
            if visible and which != SCRATCH and sum(slots):
                assert plan.view(rank, which) == (which, 0, sum(slots))
    assert all((s.size_bytes == 2 * s.elements).all() for s in steps)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_a_joined_transfer_covers_its_chunks(count, k):
    layout = Layout(Collective("all_reduce", 2), k)
    for first in range(k):
        for many in range(1, k - first + 1):
            step = transfers(0, first, 1, k + first, count=many)
            plan = bind(Schedule("x", layout, lambda step=step: iter([step])), count, unproved=True)
            begin, end = first * count // k, (first + many) * count // k
            found = [
                (s.src_offset.tolist(), s.dst_offset.tolist(), s.elements.tolist())
                for s in plan.steps()
            ]
            assert found == ([([begin], [begin], [end - begin])] if end > begin else [])


def test_empty_transfers_go_and_messages_without_data_stay():
    layout = Layout(Collective("all_reduce", 2), 4)
    steps = [
        transfers([0, 0, 1], [0, 1, 0], 1, [4, 5, 0], op=[COPY, COPY, SYNC]),
        transfers(0, 2, 1, 6),
        transfers(0, 1, 1, 5),
    ]
    # Pieces [0,0) [0,1) [1,1) [1,2).
    plan = bind(Schedule("x", layout, lambda: iter(steps)), 2, unproved=True)
    assert [
        (s.step, s.op.tolist(), s.elements.tolist(), s.size_bytes.tolist()) for s in plan.steps()
    ] == [
        (0, [COPY, SYNC], [1, 0], [4, 0]),
        (2, [COPY], [1], [4]),
    ]
    assert [len(s) for s in plan.steps()] == [len(s) for s in plan.steps()]


# Bytes that nccl-tests calls the size, for 3 float32 per block and 4 ranks.
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("broadcast", 12),
        ("reduce", 12),
        ("all_reduce", 12),
        ("all_gather", 48),
        ("reduce_scatter", 48),
        ("gather", 48),
        ("scatter", 48),
        ("all_to_all", 48),
        ("send_recv", 12),
        ("barrier", 0),
    ],
)
def test_total_bytes(kind, size):
    assert (
        bind(touching_everything(Layout(Collective(kind, 4))), 3, unproved=True).total_bytes == size
    )


def test_total_bytes_of_uneven_blocks():
    def total(kind, counts, **extra):
        return bind(
            touching_everything(Layout(Collective(kind, 3, **extra))), counts, "int8", unproved=True
        ).total_bytes

    assert total("all_gather", [1, 2, 4]) == 7
    assert total("send_recv", [1, 2, 4], pairs=((0, 1),)) == 4
    assert total("all_to_all", [[1, 2, 3], [0, 0, 9], [1, 1, 1]]) == 13


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_staged_is_what_the_same_step_overwrites(data):
    layout = Layout(Collective("all_reduce", 2), 6)
    m = data.draw(st.integers(1, 6))
    rows, written = [], set()
    for _ in range(m):
        count = data.draw(st.integers(1, 3))
        src, dst, a, b = (data.draw(st.integers(0, hi)) for hi in (1, 1, 12 - count, 12 - count))
        cells = {(dst, b + i) for i in range(count)}
        if cells & written:
            continue
        written |= cells
        rows.append((src, a, dst, b, count, data.draw(st.sampled_from([COPY, REDUCE, SYNC]))))
    live = {(d, b + i) for (_, _, d, b, c, op) in rows if op != SYNC for i in range(c)}
    expected = [
        op != SYNC and any((s, a + i) in live for i in range(c)) for s, a, _, _, c, op in rows
    ]
    src, a, dst, b, count, op = zip(*rows, strict=True)
    assert (
        overwritten_sources(layout, transfers(src, a, dst, b, count=count, op=op)).tolist()
        == expected
    )


def test_staged_reaches_the_plan():
    schedule = simcoll.schedule("all_reduce", "recursive_doubling", nranks=4)
    assert [bool(s.staged.all()) for s in simcoll.bind(schedule, 5).steps() if len(s)] == [
        False,
        True,
        True,
    ]
    assert not any(
        s.staged.any()
        for s in simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 5).steps()
    )


@pytest.mark.parametrize("kind", [k for k in KINDS if KINDS[k].alias])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_in_place_storage(kind, n):
    # The rank's smaller buffer lies inside its larger one, where NCCL puts it; nothing else
    # changes.
    out, here = (
        bind(touching_everything(Layout(Collective(kind, n, in_place=p), 3)), 7, unproved=True)
        for p in (False, True)
    )
    for rank in range(n):
        both = here.collective.has_input(rank) and here.collective.has_output(rank)
        views = [here.view(rank, which) for which in (INPUT, OUTPUT)]
        held = here.buffer_elements()[rank]
        assert [v[2] for v in views] == [out.view(rank, which)[2] for which in (INPUT, OUTPUT)]
        if not both:
            assert held.tolist() == out.buffer_elements()[rank].tolist()
            continue
        assert held[:2].sum() == max(v[2] for v in views)
        assert views[0][0] == views[1][0]
        inner, outer = sorted(views, key=lambda v: v[2])
        inside = 7 * rank if kind in ("all_gather", "gather", "reduce_scatter", "scatter") else 0
        assert inner[1] - outer[1] == inside
        for step in here.steps():
            mine = step.src_rank == rank
            assert ((step.src_offset + step.elements)[mine] <= held[step.src_buffer[mine]]).all()


@pytest.mark.parametrize("kind", ["all_to_all", "send_recv"])
def test_in_place_without_alias_keeps_both_buffers(kind):
    pairs = ((0, 1), (1, 2), (2, 0)) if kind == "send_recv" else ()
    plan = bind(
        touching_everything(Layout(Collective(kind, 3, pairs=pairs, in_place=True))),
        4,
        unproved=True,
    )
    for rank in range(3):
        for which in (INPUT, OUTPUT):
            buffer, offset, length = plan.view(rank, which)
            assert offset + length <= plan.buffer_elements()[rank, buffer]


def test_in_place_lowering_drops_what_moves_a_chunk_to_itself():
    for kind, algorithm, n in (
        ("all_reduce", "ring", 4),
        ("all_gather", "ring", 4),
        ("broadcast", "tree", 5),
        ("reduce", "tree", 5),
    ):
        out = simcoll.schedule(kind, algorithm, nranks=n)
        here = simcoll.schedule(kind, algorithm, nranks=n, in_place=True)
        for (_, a), (_, b) in zip(lowered(out), lowered(here), strict=True):
            gone = len(a) - len(b)
            local = (a.src_rank == a.dst_rank).sum()
            assert gone == (local if kind != "reduce" else min(local, 1))
    # A reduction of a chunk into itself does something and stays.
    layout = Layout(Collective("all_reduce", 2, in_place=True))
    assert [
        len(s)
        for _, s in lowered(
            Schedule("x", layout, lambda: iter([transfers([0, 0], 0, 0, 1, op=[COPY, REDUCE])]))
        )
    ] == [1]


def test_settings_reach_the_plan():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=3, channels=2)
    plan = simcoll.bind(
        schedule, np.int64(10), "bfloat16", "max", ranks=[5, 0, 2], protocol="LL128"
    )
    assert (
        plan.count,
        plan.sizes,
        plan.dtype.name,
        plan.op,
        str(plan.reduction),
        plan.ranks.tolist(),
        plan.protocol.name,
        plan.nranks,
        plan.nchannels,
    ) == (
        10,
        10,
        "bfloat16",
        "max",
        "max",
        [5, 0, 2],
        "LL128",
        3,
        2,
    )
    assert "proved (full)" in str(plan)
    assert "unproved" in str(simcoll.bind(schedule, 1, unproved=True))
    assert plan.waits == {}


def test_divisible_schedules():
    schedule = Schedule(
        "imported", Layout(Collective("all_gather", 3), 4), lambda: iter(()), divisible=True
    )
    assert bind(schedule, 8, unproved=True).count == 8
    with pytest.raises(
        ConfigError, match="cuts blocks into 4 equal chunks; count 6 is not a multiple"
    ):
        bind(schedule, 6, unproved=True)
    with pytest.raises(ConfigError, match="needs equal blocks"):
        bind(schedule, [4, 4, 4], unproved=True)


def test_empty_steps_are_left_out():
    schedule = simcoll.schedule("all_reduce", "recursive_doubling", nranks=4)
    assert all(len(step) for step in simcoll.bind(schedule, 5).steps())


def test_a_list_of_counts_for_one_rank():
    assert simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=1), [5]).total_bytes == 20


def test_offsets_of_large_buffers_do_not_wrap():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 2**40 + 3, "float64")
    ends = [int((s.src_offset + s.elements).max()) for s in plan.steps()]
    assert max(ends) == 2**40 + 3
    assert all(b >= 0 for b in ends)
    assert all(a <= b for a, b in pairwise(sorted(ends)))


def test_waits_are_those_of_the_schedule_where_no_chunk_is_empty():
    schedule = simcoll.schedule("all_reduce", "hierarchical", nranks=4, box=2, pieces=3)
    large, larger, small = (simcoll.bind(schedule, count=count) for count in (64, 100, 5))
    assert large.waits
    assert large.waits is larger.waits
    for plan in (larger, small):
        assert plan.waits == derive_waits(plan.transfers, plan.nranks, schedule.layout.size)
    assert small.waits != large.waits
