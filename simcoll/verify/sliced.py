"""The full proof of large rings, some chunks of all ranks at a time.

Every chunk is followed, as in :mod:`simcoll.verify.data`; but where transfers never mix chunks, a slice of them can be followed alone, so
that the memory stays small and near, and a repeat is checked once for all of its turns. This serves all-reduces that are made of copies
into the output and of repeats in which each chunk of a window moves once a turn. For anything else, and for anything that is
wrong, the answer is None: then the plain proof does it, or says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.errors import ScheduleError
from simcoll.schedule import COPY, REDUCE, Repeat, Step
from simcoll.verify.data import Proof
from simcoll.verify.symmetry import lanes_of
from simcoll.verify.tokens import mix_in_place, token_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.schedule import Schedule

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["verify_sliced"]

FEWEST_RANKS = 512
"""Below, the plain proof is as quick."""
SLICE_CELLS = 2**26
"""Cells of the input and output that are held at a time; 16 bytes each, and twice that while they are made."""


def verify_sliced(schedule: Schedule, *, fewest_ranks: int = FEWEST_RANKS, cells: int = SLICE_CELLS) -> Proof | None:
    """The full proof, or None when the schedule is not of the kind that is served here, or wrong."""
    collective, layout, n = schedule.collective, schedule.layout, schedule.nranks
    if collective.kind != "all_reduce" or collective.in_place or n < fewest_ranks or layout.scratch_slots:
        return None
    turns: list[tuple[Repeat, Ints, Ints, bool] | Step] = []
    steps = transfers = 0
    for block in schedule.blocks():  # other kinds of schedules are known by one of their first blocks
        found = _turn(schedule, block) if isinstance(block, Repeat) else _copies(schedule, block)
        if found is None:
            return None
        turns += found
        turn, inner = (block.count, block.steps) if isinstance(block, Repeat) else (1, (block,))
        steps += turn * len(inner)
        transfers += turn * sum(len(step) for step in inner)
    try:
        lanes_of(schedule)  # checks every block, and that channels share no chunk
    except ScheduleError:
        return None
    width = max(cells // (2 * n), 1)
    trees: list[Words] = []
    for first in range(0, layout.chunks, width):
        tree = _follow(schedule, turns, first, min(first + width, layout.chunks))
        if tree is None:
            return None
        trees.append(tree)
    every = np.concatenate(trees)
    order = "position-independent" if (every == every[0]).all() else "run-consistent"
    return Proof("full", "fingerprint", order, steps, transfers, shared_chunks=False)


def _copies(schedule: Schedule, step: Step) -> list[tuple[Repeat, Ints, Ints, bool] | Step] | None:
    """The step, if it copies ranges of the input to the same ranges of the output of the same rank."""
    base = schedule.layout.output_base
    copies = (
        (step.op == COPY).all()
        and (step.src_rank == step.dst_rank).all()
        and (step.src_chunk + step.count <= base).all()
        and (step.dst_chunk == step.src_chunk + base).all()
    )
    start = step.dst_rank * schedule.layout.size + step.dst_chunk
    order = np.argsort(start)
    disjoint = (start[order][1:] >= (start + step.count)[order][:-1]).all()
    return [step] if copies and disjoint else None


def _turn(schedule: Schedule, block: Repeat) -> list[tuple[Repeat, Ints, Ints, bool] | Step] | None:
    """For every window of a repeat of one step: sources and destinations by place, twice over, and whether it reduces."""
    layout = schedule.layout
    if len(block.steps) != 1:
        return None
    step = block.steps[0]
    reduces = bool((step.op == REDUCE).all())
    place = (step.src_chunk - block.base) % block.modulus
    window = step.src_chunk - place
    if (
        not (step.src_chunk == step.dst_chunk).all()
        or not (step.count == 1).all()
        or not (reduces or (step.op == COPY).all())
        or int(window.min()) < layout.output_base
        or int(window.max()) + block.modulus > layout.scratch_base
    ):
        return None
    found: list[tuple[Repeat, Ints, Ints, bool] | Step] = []
    for start in np.unique(window).tolist():
        here = np.flatnonzero(window == start)
        here = here[np.argsort(place[here])]
        if not np.array_equal(place[here], np.arange(block.modulus)):
            return None
        found.append((Repeat((), block.count, block.stride, start - layout.output_base, block.modulus),
                      np.tile(step.src_rank[here], 2), np.tile(step.dst_rank[here], 2), reduces))  # fmt: skip
    return found


def _follow(
    schedule: Schedule, turns: list[tuple[Repeat, Ints, Ints, bool] | Step], first: int, last: int
) -> Words | None:
    """Follow chunks ``first .. last - 1``; the tree of each, or None when one comes out wrong."""
    n, width, per_rank = schedule.nranks, last - first, schedule.layout.output_base
    held, tree = np.zeros((n, width), np.uint64), np.zeros((n, width), np.uint64)
    wanted = np.zeros(width, np.uint64)
    chunk, everyone = np.arange(first, last), np.arange(n)
    for turn in turns:
        if isinstance(turn, Step):
            begin, end = (
                np.clip(turn.src_chunk - first, 0, width),
                np.clip(turn.src_chunk + turn.count - first, 0, width),
            )
            for rank, a, b in zip(turn.src_rank.tolist(), begin.tolist(), end.tolist(), strict=True):
                if a < b:
                    held[rank, a:b] = token_at(rank * per_rank + chunk[a:b], 1)
                    tree[rank, a:b] = token_at(everyone[rank : rank + 1], 2)
        elif not _play(turn, held.reshape(-1), tree.reshape(-1), first, last):
            return None
    for rank in range(n):
        wanted += token_at(rank * per_rank + chunk, 1)
    right = (held == wanted).all() and (tree == tree[0]).all() and tree[0].all()
    return tree[0].copy() if right else None


def _play(turn: tuple[Repeat, Ints, Ints, bool], held: Words, tree: Words, first: int, last: int) -> bool:
    """All turns of a repeat on the chunks of one window that lie in the slice; False when one reads what holds nothing."""
    block, sources, targets, reduces = turn
    low, high = max(first, block.base), min(last, block.base + block.modulus)
    if low >= high:
        return True
    width, size = last - first, high - low
    column = np.arange(low - first, high - first)
    sources, targets = sources * width, targets * width
    for number in range(block.count):
        at = (low - block.base - number * block.stride) % block.modulus
        src, dst = sources[at : at + size] + column, targets[at : at + size] + column
        value, made = held.take(src), tree.take(src)
        if not made.all():
            return False
        if reduces:
            there = tree.take(dst)
            if not there.all():
                return False
            value += held.take(dst)
            made += there
            mix_in_place(made, there)
        held[dst] = value
        tree[dst] = made
    return True
