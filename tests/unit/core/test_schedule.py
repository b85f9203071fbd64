"""Layouts, steps, repeats, hashes, and what a schedule refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simcoll
from simcoll.core.collective import KINDS, Collective
from simcoll.core.schedule import (
    COPY,
    REDUCE,
    SYNC,
    Layout,
    Repeat,
    Schedule,
    Step,
    joined,
    transfers,
)
from simcoll.errors import ConfigError, ScheduleError

COLUMNS = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")


def lists(step):
    return {name: getattr(step, name).tolist() for name in COLUMNS}


def unrolled(schedule):
    return [lists(step) for step in schedule.steps()]


def test_transfers_broadcast_and_flatten():
    step = transfers([[0], [1]], [[5, 6]], [2, 3], 7, count=2, op=REDUCE, channel=[[0], [1]])
    assert lists(step) == {
        "src_rank": [0, 0, 1, 1],
        "src_chunk": [5, 6, 5, 6],
        "dst_rank": [2, 3, 2, 3],
        "dst_chunk": [7] * 4,
        "count": [2] * 4,
        "op": [REDUCE] * 4,
        "channel": [0, 0, 1, 1],
    }
    assert {name: getattr(step, name).dtype.name for name in COLUMNS} == {
        n: "int8" if n == "op" else "int64" for n in COLUMNS
    }
    assert len(transfers([], 0, [], 0)) == 0
    two = transfers(1, 2, 3, 4)
    assert lists(joined([step, two, transfers([], 0, [], 0)])) == {
        n: lists(step)[n] + lists(two)[n] for n in COLUMNS
    }
    assert joined([two]) is two


@pytest.mark.slow
@given(st.data())
def test_a_repeat_is_its_unrolling(data):
    base, modulus = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 7))
    windows, count, stride = (
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(0, 6)),
        data.draw(st.integers(-9, 9)),
    )
    chunks = st.lists(st.integers(base, base + windows * modulus - 1), min_size=3, max_size=3)
    src, dst = data.draw(chunks), data.draw(chunks)
    ranks = np.arange(3)
    repeat = Repeat(
        (transfers(ranks, src, ranks + 1, dst), transfers(ranks, dst, ranks, src, op=REDUCE)),
        count,
        stride,
        base,
        modulus,
    )

    def shifted(chunk, turn):  # inside its own window of ``modulus`` chunks
        window, place = divmod(chunk - base, modulus)
        return base + window * modulus + (place + turn * stride) % modulus

    expected = []
    for turn in range(count):
        a, b = ([shifted(c, turn) for c in side] for side in (src, dst))
        expected += [(a, b), (b, a)]
    found = list(repeat.unrolled())
    assert [(s.src_chunk.tolist(), s.dst_chunk.tolist()) for s in found] == expected
    assert [s.op.tolist() for s in found] == [[COPY] * 3, [REDUCE] * 3] * count


@pytest.mark.slow
@given(st.data())
def test_a_repeat_in_an_order_is_one_of_renumbered_chunks(data):
    modulus, windows, stride = (data.draw(st.integers(*ends)) for ends in ((1, 5), (1, 3), (-9, 9)))
    order = np.array(data.draw(st.permutations(range(modulus * windows)))) * 2
    place = st.lists(st.integers(0, len(order) - 1), min_size=3, max_size=3)
    src, dst = np.array(data.draw(place)), np.array(data.draw(place))
    plain = Repeat((transfers(0, src, 1, dst),), 4, stride, 0, modulus)
    listed = Repeat((transfers(0, order[src], 1, order[dst]),), 4, stride, 0, modulus, order)
    for told, expected in zip(listed.unrolled(), plain.unrolled(), strict=True):
        assert np.array_equal(told.src_chunk, order[expected.src_chunk])
        assert np.array_equal(told.dst_chunk, order[expected.dst_chunk])


@pytest.mark.parametrize(("channels", "pieces"), [(1, 1), (2, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_a_ring_given_as_repeats_is_the_textbook_ring(n, channels, pieces):
    # In turn k rank r passes on segment r - k (reducing), then segment r + 1 - k (copying), of
    # every channel.
    schedule = simcoll.schedule("all_reduce", "ring", nranks=n, channels=channels, pieces=pieces)
    segment, out, found = n * pieces, n * channels * pieces, unrolled(schedule)[1:]
    expected = []
    for lead, op in ((0, REDUCE), (1, COPY)):
        for turn in range(n - 1):
            for piece in range(pieces):
                rows = [
                    (
                        r,
                        out + c * segment + (r + lead - turn) % n * pieces + piece,
                        (r + 1) % n,
                        op,
                        c,
                    )
                    for c in range(channels)
                    for r in range(n)
                ]
                expected.append(rows)
    assert [
        list(zip(s["src_rank"], s["src_chunk"], s["dst_rank"], s["op"], s["channel"], strict=True))
        for s in found
    ] == expected
    assert all(s["src_chunk"] == s["dst_chunk"] for s in found)


def test_steps_are_made_anew():
    calls = []

    def source():
        calls.append(1)
        yield transfers(0, 0, 1, 1)

    schedule = Schedule("x", Layout(Collective("broadcast", 2)), source)
    assert not calls
    assert len(list(schedule.steps())) == len(list(schedule.steps())) == 1
    assert len(calls) == 2


def layouts():
    for kind in KINDS:
        for n in (1, 2, 5):
            for chunks in (1, 3):
                for in_place in (False, True):
                    pairs = ((0, n - 1),) if kind == "send_recv" else ()
                    scratch = np.arange(n) if KINDS[kind].nblocks(n) >= n else np.zeros(2, np.int64)
                    yield Layout(
                        Collective(kind, n, pairs=pairs, in_place=in_place), chunks, scratch
                    )


def test_addresses_tile_the_memory_of_a_rank():
    for layout in layouts():
        collective = layout.collective
        named = [
            layout.input(s, p) for s in range(collective.input_slots) for p in range(layout.chunks)
        ]
        named += [
            layout.output(s, p)
            for s in range(collective.output_slots)
            for p in range(layout.chunks)
        ]
        named += [
            layout.scratch_at(s, p)
            for s in range(layout.scratch_slots)
            for p in range(layout.chunks)
        ]
        assert named == list(range(layout.size))
        regions = layout.region(np.arange(layout.size)).tolist()
        assert [regions.count(which) for which in range(3)] == np.diff(layout.bases()).tolist()
        assert regions == sorted(regions)
        assert len({layout.name(chunk) for chunk in range(layout.size)}) == layout.size


def test_in_place_merges_exactly_the_two_names_of_the_same_memory():
    for layout in layouts():
        collective, n = layout.collective, layout.collective.nranks
        kind = KINDS[collective.kind]
        for rank in range(n):
            chunks = np.arange(layout.size)
            stored = layout.canonical(np.full(len(chunks), rank), chunks)
            merged = [(int(c), int(s)) for c, s in zip(chunks, stored, strict=True) if c != s]
            both = collective.has_input(rank) and collective.has_output(rank)
            if not collective.in_place or kind.alias is None or not both:
                assert merged == []
                continue
            smaller = min(collective.input_slots, collective.output_slots)
            assert len(merged) == smaller * layout.chunks
            # One address, reached at once.
            assert np.array_equal(layout.canonical(np.full(len(chunks), rank), stored), stored)
            for chunk, place in merged:
                at = np.array([rank])
                assert chunk % layout.chunks == place % layout.chunks
                assert layout.block(at, np.array([chunk])) == layout.block(at, np.array([place]))
                assert {int(layout.region(np.array(c))) for c in (chunk, place)} == {0, 1}


def test_inputs_are_read_only_unless_they_are_the_output():
    layout = Layout(Collective("reduce_scatter", 3, in_place=True), 2)
    writable = [
        [bool(layout.writable(np.array([r]), np.array([c]))[0]) for c in range(layout.size)]
        for r in range(3)
    ]
    assert writable == [[c // 2 == r or c >= 6 for c in range(8)] for r in range(3)]
    layout = Layout(Collective("reduce_scatter", 3), 2)
    assert [bool(layout.writable(np.array([0]), np.array([c]))[0]) for c in range(8)] == [
        False
    ] * 6 + [True] * 2


def test_names():
    layout = Layout(Collective("all_gather", 3), 2, np.zeros(1, np.int64))
    assert [layout.name(c) for c in (0, 1, 2, 5, 8, 9)] == [
        "input chunk 0",
        "input chunk 1",
        "output slot 0 chunk 0",
        "output slot 1 chunk 1",
        "scratch chunk 0",
        "scratch chunk 1",
    ]


# SHA-256 of the meaning of a schedule, as first published: a change breaks what users stored.
GOLDEN = {
    ("all_reduce", "ring", 4): "c1977a48aa426cc147c6ab7a21d86205f2df2831c39a4caed740d4cfed975f64",
    ("broadcast", "tree", 5): "a0670088a8c15e2d82a5ad0e993856efe41445029a1a5998cd69eb1249479e99",
    (
        "all_to_all",
        "pairwise",
        3,
    ): "4cc98f8589afa5dd26be978d4cdd64ad5d5a9ed8052db0163e6d88934bb30a5e",
    (
        "barrier",
        "dissemination",
        6,
    ): "73edc54a8415549902d85f4bd9f4a3eb0f7cb2951886a48696c42f8893c8ee6e",
}


@pytest.mark.parametrize("case", GOLDEN)
def test_content_hash_is_stable(case):
    kind, algorithm, n = case
    assert simcoll.schedule(kind, algorithm, nranks=n).content_hash() == GOLDEN[case]


def test_content_hash_sees_every_column_and_setting():
    layout = Layout(Collective("broadcast", 3, root=1), 2, np.zeros(1, np.int64))
    step = transfers([0, 1], [2, 3], [1, 2], [2, 3], count=1)

    def digest(layout=layout, steps=(step,), **extra):
        return Schedule("x", layout, lambda: iter(steps), **extra).content_hash()

    base = digest()
    assert digest() == base
    assert (
        Schedule("other name", layout, lambda: iter((step,)), params=(("a", 1),)).content_hash()
        == base
    )
    changed = [Step(**{n: getattr(step, n) + (n == name) for n in COLUMNS}) for name in COLUMNS]
    others = [digest(steps=(one,)) for one in changed]
    others += [
        digest(steps=(step, step)),
        digest(steps=()),
        digest(nchannels=2),
        digest(divisible=True),
    ]
    others += [
        digest(
            steps=(
                Step(*(getattr(step, n)[:1] for n in COLUMNS)),
                Step(*(getattr(step, n)[1:] for n in COLUMNS)),
            )
        )
    ]
    others += [
        digest(layout=Layout(c, k, np.zeros(s, np.int64)))
        for c, k, s in (
            (Collective("broadcast", 3, root=0), 2, 1),
            (Collective("broadcast", 4, root=1), 2, 1),
            (Collective("broadcast", 3, root=1), 3, 1),
            (Collective("broadcast", 3, root=1), 2, 2),
            (Collective("broadcast", 3, root=1, in_place=True), 2, 1),
        )
    ]
    assert len({base, *others}) == 1 + len(others)


def test_a_repeat_has_the_hash_of_its_unrolling():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=5, pieces=2)
    flat = list(schedule.steps())
    assert any(isinstance(block, Repeat) for block in schedule.source())
    assert (
        Schedule("flat", schedule.layout, lambda: iter(flat)).content_hash()
        == schedule.content_hash()
    )


@pytest.mark.parametrize(
    ("step", "says", "where"),
    [
        (transfers(3, 0, 1, 2), "source rank 3 does not exist; ranks are 0..2", {"rank": 3}),
        (transfers([0, -1], 0, 1, 2), "source rank -1 does not exist", {"rank": -1}),
        (transfers(0, 0, 3, 2), "destination rank 3 does not exist", {"rank": 0}),
        (
            transfers(0, -1, 1, 2),
            "source chunks -1..-1 on rank 0 do not lie in one buffer",
            {"chunk": -1},
        ),
        (transfers(0, 0, 1, 4), "destination chunks 4..4 on rank 1", {"rank": 0}),
        (
            transfers(0, 1, 1, 2, count=2),
            "source chunks 1..2 on rank 0 do not lie in one buffer",
            {"chunk": 1},
        ),
        (transfers(0, 0, 1, 3, count=2), "destination chunks 3..4", {}),
        (transfers(0, 0, 1, 2, count=0), "count must be at least 1, got 0", {"chunk": 0}),
        (transfers(0, 0, 1, 2, count=-1), "count must be at least 1, got -1", {"chunk": 0}),
        (
            transfers(0, 0, 1, 2, channel=1),
            "channel 1 does not exist; channels are 0..0",
            {"channel": 1},
        ),
        (transfers(0, 0, 1, 2, channel=-1), "channel -1 does not exist", {"channel": -1}),
    ],
)
def test_steps_that_are_refused(step, says, where):
    schedule = Schedule(
        "mine", Layout(Collective("broadcast", 3), 2), lambda: iter([transfers(0, 0, 0, 2), step])
    )
    with pytest.raises(ScheduleError) as error:
        simcoll.verify(schedule)
    assert says in str(error.value)
    assert "mine" in str(error.value)
    assert error.value.step == 1
    assert {name: getattr(error.value, name) for name in where} == where


def test_sync_has_no_chunks_to_check():
    schedule = Schedule(
        "mine",
        Layout(Collective("barrier", 2)),
        lambda: iter([transfers([0, 1], 99, [1, 0], 0, op=SYNC)]),
    )
    assert simcoll.verify(schedule).transfers == 2


def test_a_barrier_moves_no_data():
    for step in (transfers([0, 1], 0, [1, 0], 0), transfers([0, 1], 0, [1, 0], 0, op=[SYNC, COPY])):
        schedule = Schedule("mine", Layout(Collective("barrier", 2)), lambda step=step: [step])
        with pytest.raises(
            ScheduleError, match=r"step 0.*a barrier has no data; its transfers are sync"
        ):
            simcoll.verify(schedule)


def test_text_and_limits():
    schedule = simcoll.schedule("broadcast", "tree", nranks=4, root=3, channels=2)
    assert "channels=2" in schedule.title
    assert str(schedule).startswith("tree(")
    assert str(schedule).endswith("broadcast n=4 root=3")
    with pytest.raises(ConfigError, match="at least 1 chunk, got 0"):
        Layout(Collective("broadcast", 2), 0)


def test_the_proof_is_made_once():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=4)
    assert simcoll.verify(schedule) is simcoll.verify(schedule)
    assert simcoll.bind(schedule, 8).proof is simcoll.verify(schedule)
    assert simcoll.bind(schedule, 8, unproved=True).proof is None


def test_steps_without_transfers_do_not_count():
    none = np.zeros(0, np.int64)
    layout = Layout(Collective("all_gather", 2))
    load = transfers([0, 1], layout.input(), [0, 1], layout.output(np.arange(2)))
    swap = transfers([0, 1], layout.output(np.arange(2)), [1, 0], layout.output(np.arange(2)))
    empty = transfers(none, none, none, none)
    plain = Schedule("s", layout, lambda: iter([load, swap]))
    padded = Schedule(
        "s",
        layout,
        lambda: iter(
            [empty, load, Repeat((empty, swap), 1, 0, 0, 1), Repeat((swap,), 0, 0, 0, 1), empty]
        ),
    )
    assert len(list(padded.steps())) == 2
    assert padded.content_hash() == plain.content_hash()
    assert simcoll.verify(padded).steps == 2
