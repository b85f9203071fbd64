"""Rewrites that preserve the meaning of a schedule and change its form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import (
    COPY,
    REDUCE,
    SWITCH_REDUCE,
    SYNC,
    Layout,
    Schedule,
    Step,
    joined,
    lowered,
    transfers,
)
from simcoll.core.step import by_chunk

__all__ = ["detour", "merge", "relabel_channels", "relabel_ranks", "split", "tree_schedule"]


def _steps(schedule: Schedule) -> list[Step]:
    """All steps, with one row for each chunk, at canonical addresses."""
    return [by_chunk(step) for _, step in lowered(schedule)]


def _like(schedule: Schedule, steps: list[Step], layout: Layout | None = None) -> Schedule:
    frozen = tuple(steps)
    return Schedule(
        schedule.name,
        layout or schedule.layout,
        lambda: frozen,
        schedule.nchannels,
        divisible=schedule.divisible,
    )


def _reads(layout: Layout, step: Step) -> Ints:
    """Chunks that a step reads, flat over the ranks, including the targets of its reductions."""
    target = step.dst_rank * layout.size + step.dst_chunk
    data = step.op != SYNC
    reads: Ints = np.concatenate(
        [(step.src_rank * layout.size + step.src_chunk)[data], target[step.op == REDUCE]]
    )
    return reads


def _writes(layout: Layout, step: Step) -> Ints:
    writes: Ints = (step.dst_rank * layout.size + step.dst_chunk)[step.op != SYNC]
    return writes


def relabel_ranks(schedule: Schedule, permutation: Sequence[int]) -> Schedule:
    """Rename rank r to ``permutation[r]``, also in the collective (root, blocks, pairs)."""
    old = schedule.collective
    new = np.asarray(permutation, np.int64)
    n = old.nranks
    chunks = schedule.layout.chunks
    collective = replace(
        old,
        root=None if old.root is None else int(new[old.root]),
        pairs=tuple((int(new[src]), int(new[dst])) for src, dst in old.pairs),
    )
    scratch = _relabelled_blocks(old, schedule.layout.scratch, new)
    pieces = schedule.layout.scratch_pieces
    if scratch.ndim == 2:
        inverse = np.argsort(new)
        scratch = scratch[inverse]
        if pieces is not None:
            pieces = pieces[inverse]
    layout = Layout(collective, chunks, scratch, pieces)

    def move(chunk: Ints) -> Ints:
        region = layout.region(chunk)
        base = layout.bases()[region]
        slot = (chunk - base) // chunks
        piece = chunk % chunks
        slots = np.array([old.input_slots, old.output_slots, 0])[region]
        # A buffer with a slot per rank is ordered by rank.
        renamed = base + new[np.minimum(slot, n - 1)] * chunks + piece
        return np.where((slots == n) & (n > 1), renamed, chunk)

    steps = [
        transfers(
            new[step.src_rank],
            move(step.src_chunk),
            new[step.dst_rank],
            move(step.dst_chunk),
            op=step.op,
            channel=step.channel,
        )
        for step in _steps(schedule)
    ]
    return _like(schedule, steps, layout)


def _relabelled_blocks(collective: Collective, blocks: Ints, new: Ints) -> Ints:
    n = collective.nranks
    if collective.nblocks <= 1 or n == 1:
        return blocks
    if collective.nblocks == n * n:
        pairs: Ints = new[blocks // n] * n + new[blocks % n]
        return pairs
    renamed: Ints = new[blocks]
    return renamed


def relabel_channels(schedule: Schedule, permutation: Sequence[int]) -> Schedule:
    """Rename channel c to ``permutation[c]``."""
    new = np.asarray(permutation, np.int64)
    return _like(schedule, [replace(step, channel=new[step.channel]) for step in _steps(schedule)])


def split(schedule: Schedule, index: int, mask: Sequence[bool]) -> Schedule:
    """Split step ``index`` in two: the transfers marked in ``mask``, then the others.

    ``mask`` repeats if it is too short. A step stays whole if it has switch operations, or if its
    later part would read a chunk that the first part writes.
    """
    steps = _steps(schedule)
    selection = np.resize(np.asarray(mask, np.bool_), len(steps[index]))
    early = steps[index].rows(selection)
    later = steps[index].rows(~selection)
    conflict = np.isin(_writes(schedule.layout, early), _reads(schedule.layout, later)).any()
    if conflict or (steps[index].op > SYNC).any():
        return _like(schedule, steps)
    return _like(schedule, [*steps[:index], early, later, *steps[index + 1 :]])


def merge(schedule: Schedule, index: int) -> Schedule:
    """Merge steps ``index`` and ``index + 1``, unless the second depends on the first."""
    steps = _steps(schedule)
    layout = schedule.layout
    if index + 1 >= len(steps):
        return _like(schedule, steps)
    early = steps[index]
    later = steps[index + 1]
    needed = np.concatenate([_reads(layout, later), _writes(layout, later)])
    dependent = np.isin(_writes(layout, early), needed).any()
    # The meaning of a barrier is the order of its messages; a switch joins operations that share a
    # step.
    if dependent or (early.op >= SYNC).any() or (later.op >= SYNC).any():
        return _like(schedule, steps)
    return _like(schedule, [*steps[:index], joined([early, later]), *steps[index + 2 :]])


def detour(schedule: Schedule, index: int, row: int) -> Schedule:
    """Send a transfer of step ``index`` through a new scratch slot at its destination, one step
    earlier.

    ``row`` selects the transfer, modulo the number of transfers: in place, some transfers of the
    step may have been dropped.
    """
    steps = _steps(schedule)
    old = schedule.layout
    step = steps[index]
    if len(step) == 0:
        return _like(schedule, steps)
    row %= len(step)
    if step.op[row] in (SYNC, SWITCH_REDUCE):
        return _like(schedule, steps)
    src = int(step.src_rank[row])
    src_chunk = int(step.src_chunk[row])
    dst = int(step.dst_rank[row])
    dst_chunk = int(step.dst_chunk[row])
    remaining = np.arange(len(step)) != row
    same_target = (
        (step.op == REDUCE) & (step.dst_rank == dst) & (step.dst_chunk == dst_chunk) & remaining
    )
    # A fold takes one operand of each rank.
    if step.op[row] == REDUCE and (step.src_rank[same_target] == dst).any():
        return _like(schedule, steps)
    cell = np.array([dst]), np.array([dst_chunk])
    block = int(old.block(*cell)[0])
    piece = int(old.piece(*cell)[0])

    def longer(values: Ints, last: int) -> Ints:
        return np.concatenate([values, np.full((*values.shape[:-1], 1), last)], axis=-1)

    pieces = None if old.scratch_pieces is None else longer(old.scratch_pieces, piece)
    layout = Layout(schedule.collective, old.chunks, longer(old.scratch, block), pieces)
    stop = int(layout.scratch_at(old.scratch_slots, piece if pieces is None else 0))
    channel = int(step.channel[row])
    op = int(step.op[row])
    arrive = transfers(
        dst, stop, dst, dst_chunk, op=REDUCE if op == REDUCE else COPY, channel=channel
    )
    steps[index : index + 1] = [
        transfers(src, src_chunk, dst, stop, channel=channel),
        joined([step.rows(remaining), arrive]),
    ]
    return _like(schedule, steps, layout)


def tree_schedule(collective: Collective, parents: Sequence[int], order: Sequence[int]) -> Schedule:
    """Broadcast, reduce or all_reduce over any tree, with one message per step.

    Parameters
    ----------
    parents
        For each position of ``order`` except the first, the earlier position of its parent.
    order
        The ranks, the root first.
    """
    layout = Layout(collective)
    rank = np.array([order[0]]) if collective.kind == "broadcast" else np.arange(collective.nranks)
    edges = [(order[parent], order[child]) for child, parent in enumerate(parents, start=1)]
    result = layout.output()
    steps = [transfers(rank, layout.input(), rank, result)]
    if collective.kind != "broadcast":
        steps += [
            transfers(child, result, parent, result, op=REDUCE) for parent, child in reversed(edges)
        ]
    if collective.kind != "reduce":
        steps += [transfers(parent, result, child, result) for parent, child in edges]
    return Schedule("random tree", layout, lambda: iter(steps))
