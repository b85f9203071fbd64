"""Combinators: what they make of schedules, and that every result is proved."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.algorithms import ALGORITHMS, compose
from simcoll.core.collective import KINDS, Collective
from simcoll.core.schedule import REDUCE, Layout, Repeat, Schedule, transfers
from simcoll.errors import ConfigError

# One algorithm of every kind whose ranks can be numbered anew.
PLAIN = (
    ("all_reduce", "ring"),
    ("all_reduce", "recursive_multiplying"),
    ("all_gather", "bruck"),
    ("all_gather", "recursive_doubling"),
    ("reduce_scatter", "ring"),
    ("reduce_scatter", "recursive_halving"),
    ("broadcast", "tree"),
    ("reduce", "chain"),
    ("gather", "linear"),
    ("scatter", "linear"),
    ("all_to_all", "pairwise"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), PLAIN)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_copies_with_any_numbering_are_right(kind, name, data):
    n = data.draw(st.integers(2, 6))
    root = 0 if KINDS[kind].rooted else None
    place = data.draw(st.booleans()) and KINDS[kind].alias is not None
    plain = simcoll.schedule(Collective(kind, n, root=root, in_place=place), name)
    rest = st.permutations(range(1 if root == 0 else 0, n))
    orders = [
        ([0] if root == 0 else []) + list(data.draw(rest))
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    made = compose.channels(plain, orders)
    assert made.nchannels == len(orders) * plain.nchannels
    simcoll.verify(made, exact=True)
    assert sum(int(s.count.sum()) for s in made.steps()) == len(orders) * sum(
        int(s.count.sum()) for s in plain.steps()
    )


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(("n", "count"), [(2, 2), (2, 5), (4, 2), (4, 3), (4, 4), (4, 9), (7, 5)])
def test_a_pipeline_has_each_piece_one_round_behind_the_one_before(n, count, newest_first):
    local, *rounds = simcoll.schedule("broadcast", "chain", nranks=n).steps()
    plain = simcoll.schedule("broadcast", "chain", nranks=n)
    made = compose.pipelined(plain, count, newest_first=newest_first)
    steps = list(made.steps())
    assert steps[0].count.tolist() == (count * local.count).tolist()
    expected = []
    for time in range(len(rounds) + count - 1):
        pieces = [piece for piece in range(count) if 0 <= time - piece < len(rounds)]
        moved = [
            (rounds[time - piece], piece)
            for piece in (reversed(pieces) if newest_first else pieces)
        ]
        expected.append(
            [
                [
                    int(end[0]) * (count if which % 2 else 1) + (piece if which % 2 else 0)
                    for which, end in enumerate(
                        (step.src_rank, step.src_chunk, step.dst_rank, step.dst_chunk)
                    )
                ]
                for step, piece in moved
            ]
        )
    assert [np.stack(step.columns[:4], axis=1).tolist() for step in steps[1:]] == expected
    turns = [block.count for block in made.blocks() if isinstance(block, Repeat)]
    assert turns == ([count - len(rounds) + 1] if count > len(rounds) else [])


@pytest.mark.parametrize(
    ("kind", "name"),
    [("all_reduce", "ring"), ("all_reduce", "tree"), ("all_gather", "ring"), ("reduce", "chain")],
)
@pytest.mark.parametrize("cut", [compose.pieces, compose.pipelined])
def test_pieces_are_right_and_carry_the_same_data(kind, name, cut):
    for n in (1, 2, 5, 8):
        plain = simcoll.schedule(kind, name, nranks=n)
        made = cut(plain, 3)
        simcoll.verify(made, exact=True)
        assert made.layout.chunks == 3 * plain.layout.chunks
        assert sum(int(s.count.sum()) for s in made.steps()) == 3 * sum(
            int(s.count.sum()) for s in plain.steps()
        )


def test_repeats_pass_through():
    ring = simcoll.schedule("all_reduce", "ring", nranks=64)
    made = compose.channels(compose.pieces(ring, 2), [np.arange(64), np.arange(64)[::-1]])
    assert [isinstance(block, Repeat) for block in made.blocks()] == [False, True, True]


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_repeats_of_blocks_pass_through(kind):
    ring = simcoll.schedule(kind, "ring", nranks=6)
    plain = replace(ring, source=ring.steps)  # the same steps one by one
    orders = [np.arange(6), np.arange(6)[::-1], [2, 0, 1, 5, 3, 4]]
    for change in (
        lambda s: compose.channels(compose.pieces(s, 2), orders),
        lambda s: compose.in_channels(s, channels=3),
    ):
        made = change(ring)
        assert any(isinstance(block, Repeat) for block in made.blocks())
        assert made.content_hash() == change(plain).content_hash()


def test_steps_side_by_side():
    layout = Layout(Collective("all_reduce", 2), 2)

    def half(chunk):
        def steps():
            yield transfers([0, 1], layout.input(0, chunk), [0, 1], layout.output(0, chunk))
            yield transfers(
                [0, 1], layout.output(0, chunk), [1, 0], layout.output(0, chunk), op=REDUCE
            )

        return Schedule("half", layout, steps)

    both = compose.together(half(0), half(1))
    assert [len(step) for step in both.steps()] == [4, 4]
    simcoll.verify(both)
    with pytest.raises(simcoll.ScheduleError):
        simcoll.verify(half(0))


def test_stages_follow_each_other():
    plain = simcoll.schedule("all_reduce", "hierarchical", nranks=8, box=4)
    cut = simcoll.schedule("all_reduce", "hierarchical", nranks=8, box=4, pieces=3)
    assert (plain.nchannels, cut.nchannels) == (1, 3)
    assert cut.layout.chunks == 3 * plain.layout.chunks
    assert len(list(cut.steps())) == 3 * len(list(plain.steps()))


def test_stages_keep_their_channels():
    plain = simcoll.schedule("all_reduce", "ring", nranks=4, channels=2)
    made = compose.staggered(
        [plain, simcoll.schedule("all_reduce", "ring", nranks=4, channels=2)], 2, (0, 3)
    )
    assert made.nchannels == 5
    assert {int(channel) for step in made.steps() for channel in step.channel} == {0, 1, 3, 4}


def test_schedules_with_different_numbers_of_channels_side_by_side():
    one = simcoll.schedule("all_reduce", "tree", nranks=3)
    two = Schedule(
        "two",
        one.layout,
        lambda: (replace(s, channel=s.channel + s.src_rank % 2) for s in one.steps()),
        2,
    )
    made = compose.in_shares([one, two])
    assert made.nchannels == 4
    simcoll.verify(made)
    short = Schedule("short", one.layout, lambda: list(one.steps())[:-1])
    with pytest.raises(
        ConfigError, match="short has fewer steps or repeats than the schedules beside it"
    ):
        list(compose.in_shares([one, short]).steps())


@cache
def shipped():
    """Every shipped algorithm of every collective on some numbers of ranks, where it serves
    them.
    """
    schedules = []
    for n, params in ((1, {}), (2, {}), (3, {"channels": 2}), (4, {}), (6, {})):
        for algorithm in ALGORITHMS:
            # Refused: another number of ranks, a parameter that it lacks, or a topology.
            with suppress(ConfigError):
                schedules.append(
                    simcoll.schedule(algorithm.collective, algorithm.name, nranks=n, **params)
                )
    return schedules


RENUMBERED = {
    "relabelled": compose.relabelled,
    "channels": lambda plain, order: compose.channels(plain, [range(plain.nranks), order]),
    "channels by rank": lambda plain, order: compose.channels(plain, [order, order], by_rank=True),
}
CUT = {
    "pieces": lambda plain: compose.pieces(plain, 3),
    "pipelined": lambda plain: compose.pipelined(plain, 3, newest_first=True, drained=False),
    "in_channels": lambda plain: compose.in_channels(plain, channels=3),
    "in_pieces": lambda plain: compose.in_pieces(plain, channels=2, pieces=2),
    "in_shares": lambda plain: compose.in_shares([plain, plain], run=2),
    "staggered": lambda plain: compose.staggered([plain], 2),
    "in_stages": lambda plain: compose.in_stages([plain], channels=2, pieces=2),
}


def proved(make):
    """Whether a schedule is made and proved; a wrong one, or an error that is no refusal in words,
    ends the test.
    """
    try:
        simcoll.verify(make())
    except ConfigError as error:
        words = "would change its root|cannot be relabelled|moves no data|single chunks"
        assert re.search(words, str(error))  # noqa: PT017
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("combined", CUT.values(), ids=CUT)
def test_every_algorithm_is_cut_or_refused(combined):
    outcomes = [proved(partial(combined, plain)) for plain in shipped()]
    assert outcomes.count(True) > 4 * outcomes.count(False) > 0


@pytest.mark.slow
@pytest.mark.parametrize("combined", RENUMBERED.values(), ids=RENUMBERED)
def test_every_algorithm_is_renumbered_or_refused(combined):
    outcomes = []
    for plain in shipped():
        n = plain.nranks
        orders = (np.arange(n)[::-1], np.roll(np.arange(n), 1), [0, *range(n - 1, 0, -1)])
        outcomes += [proved(partial(combined, plain, order)) for order in orders]
    assert outcomes.count(True) > 2 * outcomes.count(False) > 0


def test_equal_blocks_can_be_relabelled_whatever_the_scratch():
    bruck = simcoll.schedule("all_to_all", "bruck", nranks=5)
    made = compose.relabelled(bruck, [3, 1, 4, 0, 2])
    simcoll.verify(made, exact=True)
    assert {
        (int(src), int(dst))
        for step in made.steps()
        for src, dst in zip(step.src_rank, step.dst_rank, strict=True)
    } == {
        ([3, 1, 4, 0, 2][src], [3, 1, 4, 0, 2][dst])
        for step in bruck.steps()
        for src, dst in zip(step.src_rank.tolist(), step.dst_rank.tolist(), strict=True)
    }


RING = simcoll.schedule("all_reduce", "ring", nranks=3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compose.pieces(RING, 0), "pieces must be a whole number from 1 to 65536, got 0"),
        (lambda: compose.pieces("ring", 2), "pieces takes a schedule; got 'ring'"),
        (
            lambda: compose.pipelined(RING, 1.5),
            "pieces must be a whole number from 1 to 65536, got 1.5",
        ),
        (lambda: compose.pipelined(None, 2), "pipelined takes a schedule; got None"),
        (
            lambda: compose.in_channels(RING, channels=0),
            "channels must be a whole number from 1 to 65536, got 0",
        ),
        (
            lambda: compose.in_stages([RING], channels="2"),
            "channels must be a whole number from 1 to 65536, got '2'",
        ),
        (lambda: compose.in_shares([]), "in_shares takes at least one schedule; got none"),
        (lambda: compose.in_shares(RING), "in_shares takes a list of schedules; got <Schedule: "),
        (lambda: compose.in_shares([RING, 1]), "in_shares takes schedules; got 1"),
        (lambda: compose.in_shares([RING, RING], run=0), "run must be a whole number from 1"),
        (
            lambda: compose.in_shares([RING, simcoll.schedule("all_reduce", "ring", nranks=4)]),
            "ring(channels=1, pieces=1) and ring(channels=1, pieces=1) have no layout in common",
        ),
        (lambda: compose.together(RING, None), "together takes schedules; got None"),
        (lambda: compose.staggered([], 2), "staggered takes at least one schedule; got none"),
        (
            lambda: compose.staggered([RING] * 2, 2, (0,)),
            "lanes=(0,): expected a channel for each of the 2 stages",
        ),
        (
            lambda: compose.staggered([RING] * 2, 2, (0, -1)),
            "lanes=(0, -1): expected a channel for each",
        ),
        (
            lambda: compose.channels(RING, []),
            "orders=[]: expected an order of the ranks for each copy",
        ),
        (
            lambda: compose.channels(RING, 3),
            "orders=3: expected a list of orders, each with every rank once",
        ),
        (lambda: compose.relabelled(RING, [0, 1]), "order=[0, 1]: expected every rank 0..2 once"),
        (
            lambda: compose.relabelled(RING, [[0, 1, 2]]),
            "order=[[0, 1, 2]]: expected every rank 0..2 once",
        ),
        (
            lambda: compose.relabelled(RING, [0.5, 1.5, 2.5]),
            "order must be whole numbers of 64 bits",
        ),
        (
            lambda: compose.relabelled(RING, "012"),
            "order must be whole numbers of 64 bits, got '012'",
        ),
    ],
)
def test_arguments_that_cannot_be(call, words):
    with pytest.raises(ConfigError) as error:
        call()
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(("order", "words"), [([0, 0, 1], "every rank"), ([1, 0, 2], "root")])
def test_numberings_that_cannot_be(order, words):
    with pytest.raises(ConfigError, match=words):
        compose.relabelled(simcoll.schedule("broadcast", "tree", nranks=3), order)


@pytest.mark.parametrize("rows", [1, 7, 50])
def test_columns_of_copies_are_the_same_in_parts(monkeypatch, rows):
    def columns():
        schedules = [
            simcoll.schedule("all_to_all", "hierarchical", nranks=8, channels=3, box=4),
            simcoll.schedule("all_gather", "direct", nranks=4, channels=2),
        ]
        return [
            [column.tolist() for column in step.columns]
            for schedule in schedules
            for step in schedule.steps()
        ]

    whole = columns()
    monkeypatch.setattr(compose, "WRITTEN_ROWS", rows)
    assert columns() == whole
