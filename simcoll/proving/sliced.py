"""The full proof of large rings, some chunks of all ranks at a time.

Every chunk is followed, as in :mod:`simcoll.proving.data`; but where transfers never mix chunks, a slice of them can be followed alone, so
that the memory stays small and near, and a repeat is checked once for all of its turns. Many ranks take compiled loops (numba), which
need a slice of a few chunks only. This serves all-reduces that are made of copies
into the output and of repeats in which each chunk of a window moves once a turn. For anything else, and for anything that is
wrong, the answer is None: then the plain proof does it, or says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.compiled import COMPILED
from simcoll.core.hashing import mix_in_place, token_at
from simcoll.core.proof import Proof
from simcoll.core.schedule import COPY, REDUCE, Repeat, Step
from simcoll.errors import ScheduleError
from simcoll.proving.symmetry import lanes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.core.schedule import Schedule

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["verify_sliced"]

FEWEST_RANKS = 512
"""Below, the plain proof is as quick."""
COMPILED_RANKS = 2048
"""From here on compiled loops are worth loading."""
SLICE_CELLS = 2**25
"""Cells of the input and output that are held at a time; some 16 bytes each in the end, and three times that while they are made."""
NEAR_CHUNKS = 16
"""Chunks of a slice of compiled loops: a cache line or two of each rank."""


def verify_sliced(
    schedule: Schedule, *, fewest_ranks: int = FEWEST_RANKS, cells: int = SLICE_CELLS, compiled: bool | None = None
) -> Proof | None:
    """The full proof, or None when the schedule is not of the kind that is served here, or wrong.

    With ``compiled`` the loops run as machine code; by default where they can, for many ranks.
    """
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
    compiled = COMPILED and n >= COMPILED_RANKS if compiled is None else compiled
    width = NEAR_CHUNKS if compiled else max(cells // (2 * n), 1)
    trees: list[Words] = []
    for first in range(0, layout.chunks, width):
        tree = _follow(schedule, turns, first, min(first + width, layout.chunks), compiled=compiled)
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
    """For every window of a repeat of one step: sources and destinations by place, and whether it reduces."""
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
                      step.src_rank[here], step.dst_rank[here], reduces))  # fmt: skip
    return found


def _follow(
    schedule: Schedule,
    turns: list[tuple[Repeat, Ints, Ints, bool] | Step],
    first: int,
    last: int,
    *,
    compiled: bool,
) -> Words | None:
    """Follow chunks ``first .. last - 1``; the tree of each, or None when one comes out wrong."""
    n, width, per_rank = schedule.nranks, last - first, schedule.layout.output_base
    tree, everyone = np.zeros((n, width), np.uint64), np.arange(n)
    leaf = token_at(everyone, 2)
    if compiled:
        from simcoll.proving.loops import fill_tokens

        given, wanted = np.empty((n, width), np.uint64), np.empty(width, np.uint64)
        fill_tokens(given, wanted, first, per_rank, 1)
    else:
        given = np.stack([token_at(rank * per_rank + np.arange(first, last), 1) for rank in range(n)])
        wanted = given.sum(axis=0, dtype=np.uint64)
    held = np.zeros_like(given)
    for turn in turns:
        if isinstance(turn, Step):
            begin, end = np.clip([turn.src_chunk - first, turn.src_chunk + turn.count - first], 0, width)
            whole = turn.src_rank[end - begin == width]
            held[whole], tree[whole] = given[whole], leaf[whole, None]
            some = (begin < end) & (end - begin < width)
            for rank, a, b in zip(turn.src_rank[some].tolist(), begin[some].tolist(), end[some].tolist(), strict=True):
                held[rank, a:b], tree[rank, a:b] = given[rank, a:b], leaf[rank]
        elif not _play(turn, held, tree, first, last, compiled=compiled):
            return None
    right = (held == wanted).all() and (tree == tree[0]).all() and tree[0].all()
    return tree[0].copy() if right else None


def _play(
    turn: tuple[Repeat, Ints, Ints, bool], held: Words, tree: Words, first: int, last: int, *, compiled: bool
) -> bool:
    """All turns of a repeat on the chunks of one window that lie in the slice; False when one reads what holds nothing."""
    block, sources, targets, reduces = turn
    low, high = max(first, block.base), min(last, block.base + block.modulus)
    if low >= high:
        return True
    size, at, stride = high - low, low - block.base, block.stride % block.modulus
    if compiled:
        from simcoll.proving.loops import play_turns

        return bool(play_turns(held, tree, sources, targets, low - first, size, at, stride, block.count, reduces))
    width, column = last - first, np.arange(low - first, high - first)
    sources, targets = np.tile(sources, 2) * width, np.tile(targets, 2) * width
    held, tree = held.reshape(-1), tree.reshape(-1)
    for _ in range(block.count):
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
        held[dst], tree[dst] = value, made
        at = (at - stride) % block.modulus
    return True
