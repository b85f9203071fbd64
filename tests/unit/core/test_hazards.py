"""Waits between channels, against a finder that looks at every pair of transfers."""

from __future__ import annotations

import random

import pytest

import simcoll
from simcoll.binding import bind
from simcoll.core.collective import Collective
from simcoll.core.hazards import check_orderable, derive_waits, overwrites_across, wait_pairs
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import COPY, REDUCE, SYNC, Layout, Schedule, transfers
from simcoll.emulator.run import emulate
from simcoll.errors import ScheduleError
from simcoll.proving import check_lowering
from simcoll.topology.families import crossbar

LAYOUT = Layout(Collective("all_reduce", 3), 2, [0])


def waits_of(plan):
    return derive_waits(plan.transfers, plan.nranks, plan.schedule.layout.size)


def random_steps(rng, channels=3):
    steps = []
    for _ in range(rng.randint(1, 6)):
        rows, written = [], set()
        for _ in range(rng.randint(1, 4)):
            count = rng.randint(1, 2)
            src, dst = rng.randrange(3), rng.randrange(3)
            a, b = (
                2 * rng.randrange(3) + (0 if count == 2 else rng.randrange(2)) for _ in range(2)
            )
            cells = {(dst, b + i) for i in range(count)}
            if not cells & written:
                written |= cells
                rows.append(
                    (
                        src,
                        a,
                        dst,
                        b,
                        count,
                        rng.choice([COPY, COPY, REDUCE, SYNC]),
                        rng.randrange(channels),
                    )
                )
        steps.append(rows)
    return steps


def schedule_of(steps, channels=3, layout=LAYOUT):
    blocks = [
        transfers(src, a, dst, b, count=count, op=op, channel=channel)
        for src, a, dst, b, count, op, channel in (zip(*rows, strict=True) for rows in steps)
    ]
    return Schedule("random", layout, lambda: iter(blocks), channels)


def facts(steps):
    """Per transfer: step, lanes, cells read, cells written."""
    result = []
    for number, rows in enumerate(steps):
        for src, a, dst, b, count, op, channel in rows:
            reads, writes = set(), set()
            if op != SYNC:
                reads, writes = (
                    {(src, a + i) for i in range(count)},
                    {(dst, b + i) for i in range(count)},
                )
                if op == REDUCE:
                    reads |= writes
            result.append((number, {(src, channel), (dst, channel)}, reads, writes, channel))
    return result


def hazards(steps):
    """Every pair of transfers of different channels whose order matters, found by looking at all
    pairs.
    """
    known = facts(steps)
    pairs = set()
    for i, (step_i, _, reads_i, writes_i, channel_i) in enumerate(known):
        for j, (step_j, _, reads_j, writes_j, channel_j) in enumerate(known):
            if i == j or channel_i == channel_j:
                continue
            if step_i < step_j and (writes_i & (reads_j | writes_j) or reads_i & writes_j):
                pairs.add((i, j))
            if step_i == step_j and reads_i & writes_j:
                pairs.add((i, j))
    return pairs


def ordered(steps, waits):
    """All pairs that lanes and waits put in order."""
    known, after = facts(steps), {}
    for j, (step_j, lanes_j, *_) in enumerate(known):
        after[j] = set(waits.get(j, ())) | {
            i
            for i, (step_i, lanes_i, *_) in enumerate(known)
            if step_i < step_j and lanes_i & lanes_j
        }
    pairs = set()
    for start in after:
        seen, todo = set(), [start]
        while todo:
            for before in after[todo.pop()] - seen:
                seen.add(before)
                todo.append(before)
        pairs |= {(before, start) for before in seen}
    return pairs


def read_in_time(known, order, reader, writer):
    """Whether everything a transfer reads is overwritten, before a later write, by transfers of its
    own step and channel.

    It was read before those were written, when its lane entered the step: what comes after them
    comes after the read.
    """
    step, _, reads, writes, channel = known[reader]
    later = known[writer][3]
    between = set()
    for k, (step_k, _, _, writes_k, channel_k) in enumerate(known):
        if (step_k, channel_k) == (step, channel) and (k, writer) in order:
            between |= writes_k
    return not writes & (later | known[writer][2]) and reads & later <= between


def inherited(steps, needed):
    """The hazards, and those of every reader for whoever overwrites its source in the same step and
    channel.
    """
    known, pairs = facts(steps), set(needed)
    overwriters = [
        (r, w)
        for r, (step_r, _, reads_r, _, channel_r) in enumerate(known)
        for w, (step_w, _, _, writes_w, channel_w) in enumerate(known)
        if r != w and (step_r, channel_r) == (step_w, channel_w) and reads_r & writes_w
    ]
    while True:
        more = {(i, w) for r, w in overwriters for i, j in pairs if j == r and i != w} - pairs
        if not more:
            return pairs
        pairs |= more


@pytest.mark.slow
def test_waits_cover_every_hazard_and_nothing_else():
    seen = [0, 0]
    for seed in range(400):
        steps = random_steps(random.Random(seed))
        waits = waits_of(bind(schedule_of(steps), 7, unproved=True))
        needed = hazards(steps)
        assert {(i, j) for j, earlier in waits.items() for i in earlier} <= inherited(
            steps, needed
        ), seed
        known, order = facts(steps), ordered(steps, waits)
        assert [pair for pair in needed - order if not read_in_time(known, order, *pair)] == [], (
            seed
        )
        assert all(list(earlier) == sorted(set(earlier)) for earlier in waits.values())
        seen[bool(needed)] += 1
    assert min(seen) > 10


def test_numbers_skip_empty_transfers():
    # One element in two chunks: the first chunk is empty, so its transfer is not in the plan and
    # has no number.
    steps = [[(0, 0, 0, 2, 1, COPY, 0), (0, 1, 0, 3, 1, COPY, 0)], [(0, 3, 1, 3, 1, COPY, 1)]]
    assert waits_of(bind(schedule_of(steps), 1, unproved=True)) == {1: (0,)}
    assert waits_of(bind(schedule_of(steps), 2, unproved=True)) == {2: (1,)}


def test_waits_are_the_same_rank_by_rank_and_without_tables(monkeypatch):
    plans = [
        bind(schedule_of(random_steps(random.Random(seed))), 7, unproved=True) for seed in range(30)
    ]
    plans.append(
        simcoll.bind(simcoll.schedule("all_reduce", "hierarchical", nranks=8, box=4, pieces=3), 100)
    )
    together = [waits_of(plan) for plan in plans]
    monkeypatch.setattr("simcoll.core.hazards.MOST", 1)
    assert together == [waits_of(plan) for plan in plans]
    assert len(together[-1]) > 50


def test_a_vector_of_very_many_chunks_has_waits_too():
    many = 2**30
    layout = Layout(Collective("all_reduce", 2), many)
    steps = [
        [(0, 0, 0, many, many, COPY, 0), (1, 0, 1, many, many, COPY, 0)],
        [(0, 2 * many - 1, 1, 2 * many - 1, 1, REDUCE, 1)],
        [(1, 2 * many - 2, 0, 2 * many - 2, 2, COPY, 2)],
    ]
    assert waits_of(bind(schedule_of(steps, layout=layout), many, unproved=True)) == {
        2: (0, 1),
        3: (0, 1, 2),
    }


def test_one_channel_needs_no_waits():
    for seed in range(50):
        assert (
            waits_of(
                bind(
                    schedule_of(random_steps(random.Random(seed), channels=1), 1), 5, unproved=True
                )
            )
            == {}
        )


def test_shipped_schedules_keep_their_channels_apart():
    for kind, name, extra in (
        ("all_reduce", "ring", {}),
        ("all_reduce", "tree", {"pieces": 2}),
        ("all_reduce", "rabenseifner", {}),
        ("all_to_all", "direct", {}),
        ("all_reduce", "hierarchical", {"box": 2}),
    ):
        schedule = simcoll.schedule(kind, name, nranks=4, channels=3, **extra)
        assert not simcoll.verify(schedule).shared_chunks
        assert waits_of(simcoll.bind(schedule, 50)) == {}


def test_an_exchange_across_channels_in_one_step_is_refused():
    load = [(r, 0, r, 2, 2, COPY, 0) for r in range(3)]
    swap = [(0, 2, 1, 2, 1, REDUCE, 0), (1, 2, 0, 2, 1, REDUCE, 1)]
    schedule = schedule_of([load, swap], 2)
    with pytest.raises(
        ScheduleError,
        match=r"step 1: transfers of different channels overwrite what each other read",
    ) as error:
        check_orderable(schedule)
    assert error.value.step == 1
    assert (
        "rank 0 output chunk 0 -> rank 1 output chunk 0 (reduce, channel 0), "
        "rank 1 output chunk 0 -> rank 0 output chunk 0 (reduce, channel 1)" in str(error.value)
    )
    check_orderable(schedule_of([load, [(*row[:6], 0) for row in swap]], 2))
    check_orderable(schedule_of([load, swap[:1], swap[1:]], 2))


@pytest.mark.slow
def test_steps_in_which_a_channel_overwrites_what_another_reads():
    rng, across = random.Random(7), 0
    for _ in range(2000):
        rows = next(rows for rows in random_steps(rng) if rows)
        data = [row for row in rows if row[5] != SYNC]
        expected = any(
            reader[6] != writer[6] and (reader[0], reader[1] + i) == (writer[2], writer[3] + j)
            for reader in data
            for writer in data
            for i in range(reader[4])
            for j in range(writer[4])
        )
        step = next(schedule_of([rows]).source())
        assert overwrites_across(LAYOUT, step) == expected, rows
        across += expected
    assert 200 < across < 1800
    # A fold of channel 1 writes what channel 0 reads, but for its last chunk.
    fold = [(1, 0, 0, 0, 2, REDUCE, 1), (2, 0, 0, 0, 2, REDUCE, 1)]
    for first, expected in ((0, True), (1, True), (2, False)):
        rows = [*fold, (0, first, 1, 4, 1, COPY, 0)]
        assert overwrites_across(LAYOUT, next(schedule_of([rows]).source())) == expected


def test_two_first_readers_on_two_channels_share_a_chunk():
    # In place rank 0's vector is read by both channels at once, then written by one: it must wait
    # for the other.
    layout = Layout(Collective("all_reduce", 2, in_place=True), 1, [0, 0])
    out = layout.output()
    steps = [
        [
            (0, out, 1, layout.scratch_at(0), 1, COPY, 0),
            (0, out, 1, layout.scratch_at(1), 1, COPY, 1),
        ],
        [(1, out, 0, out, 1, REDUCE, 1)],
        [(1, layout.scratch_at(1), 1, out, 1, REDUCE, 1)],
    ]
    schedule = schedule_of(steps, 2, layout)
    assert simcoll.verify(schedule).shared_chunks
    plan = simcoll.bind(schedule, 4)
    assert plan.waits == {2: (0,)}
    check_lowering(plan)


def crossing(load_channel):
    """Ranks exchange and add vectors on channel 0; one rank's vector was copied to its output on
    another channel.
    """
    layout = Layout(Collective("all_reduce", 2))
    steps = [
        [(0, 0, 0, 1, 1, COPY, load_channel), (1, 0, 1, 1, 1, COPY, 0)],
        [(0, 1, 1, 1, 1, REDUCE, 0), (1, 1, 0, 1, 1, REDUCE, 0)],
    ]
    return schedule_of(steps, 2, layout)


def runs_right(schedule):
    slow_copies = Protocol("slow copies", copy_as_per_byte=10**9)
    return (
        emulate(
            simcoll.bind(schedule, 100, "int64", protocol=slow_copies),
            crossbar(2, "1 GB/s", "1 us"),
            bound=False,
        ).wrong
        == 0
    )


def test_an_exchange_on_one_channel_runs_right():
    assert runs_right(crossing(0))


def test_an_exchange_of_what_another_channel_wrote_runs_right_or_is_refused():
    try:
        schedule = crossing(1)
        simcoll.verify(schedule)
    except ScheduleError:
        return
    assert runs_right(schedule)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_beyond_32_bits_have_the_same_waits(seed):
    schedule = schedule_of(random_steps(random.Random(seed)))
    plan = bind(schedule, 12, unproved=True)
    size = schedule.layout.size
    narrow = wait_pairs(plan.transfers, plan.nranks, size)
    far = wait_pairs(plan.transfers, plan.nranks, 2**31)
    assert [column.tolist() for column in far] == [column.tolist() for column in narrow]
