"""Combinators: what they make of schedules, and that every result is proved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.algorithms import compose
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


@pytest.mark.parametrize(("kind", "name"), PLAIN)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_copies_with_any_numbering_are_right(kind, name, data):
    n = data.draw(st.integers(2, 6))
    root = 0 if KINDS[kind].rooted else None
    place = data.draw(st.booleans()) and KINDS[kind].alias is not None
    plain = simcoll.schedule(Collective(kind, n, root=root, in_place=place), name)
    rest = st.permutations(range(1 if root == 0 else 0, n))
    orders = [([0] if root == 0 else []) + list(data.draw(rest)) for _ in range(data.draw(st.integers(1, 3)))]
    made = compose.channels(plain, orders)
    assert made.nchannels == len(orders) * plain.nchannels
    simcoll.verify(made, exact=True)
    assert sum(int(s.count.sum()) for s in made.steps()) == len(orders) * sum(int(s.count.sum()) for s in plain.steps())


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
        moved = [(rounds[time - piece], piece) for piece in (reversed(pieces) if newest_first else pieces)]
        expected.append([[int(end[0]) * (count if which % 2 else 1) + (piece if which % 2 else 0)
                          for which, end in enumerate((step.src_rank, step.src_chunk, step.dst_rank, step.dst_chunk))]
                         for step, piece in moved])  # fmt: skip
    assert [np.stack(step.columns[:4], axis=1).tolist() for step in steps[1:]] == expected
    turns = [block.count for block in made.blocks() if isinstance(block, Repeat)]
    assert turns == ([count - len(rounds) + 1] if count > len(rounds) else [])


@pytest.mark.parametrize(
    ("kind", "name"), [("all_reduce", "ring"), ("all_reduce", "tree"), ("all_gather", "ring"), ("reduce", "chain")]
)
@pytest.mark.parametrize("cut", [compose.pieces, compose.pipelined])
def test_pieces_are_right_and_carry_the_same_data(kind, name, cut):
    for n in (1, 2, 5, 8):
        plain = simcoll.schedule(kind, name, nranks=n)
        made = cut(plain, 3)
        simcoll.verify(made, exact=True)
        assert made.layout.chunks == 3 * plain.layout.chunks
        assert sum(int(s.count.sum()) for s in made.steps()) == 3 * sum(int(s.count.sum()) for s in plain.steps())


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
            yield transfers([0, 1], layout.output(0, chunk), [1, 0], layout.output(0, chunk), op=REDUCE)

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


@pytest.mark.parametrize(("order", "words"), [([0, 0, 1], "every rank"), ([1, 0, 2], "root")])
def test_numberings_that_cannot_be(order, words):
    with pytest.raises(ConfigError, match=words):
        compose.relabelled(simcoll.schedule("broadcast", "tree", nranks=3), order)
