"""The memory of all ranks during a proof: the contents of every chunk, and their expressions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcoll.arrays import Ints, Words
from simcoll.core.hashing import token_at
from simcoll.core.layout import Layout
from simcoll.core.memory_limits import check_room
from simcoll.core.schedule import Schedule
from simcoll.core.step import Step

__all__ = ["PART", "Memory", "in_groups", "start"]

PART = 2**16
"""Number of chunks followed at a time, few enough for a processor's cache."""


@dataclass(slots=True)
class Memory:
    """Every chunk of every rank during a proof, flat: chunk ``c`` of rank ``r`` is row ``r * strides[0] + c * strides[1]``.

    If one vector is cut into chunks, consecutive chunks are adjacent, since they move together; otherwise one chunk of all ranks is.
    """

    layout: Layout
    strides: tuple[int, int]
    held: Words  # fingerprints [rows], or counts of contributions [rows, tokens] in exact mode
    tree: Words  # hash of the expression tree; 0: holds nothing yet
    lane: Ints  # channel that touches a chunk address, on any rank; -1: none yet
    mixed: bool = False  # two channels touch one address
    beside: bool = False  # a step has two channels
    folds: bool = False  # a step has several reductions into one chunk
    switched: bool = False  # a switch reduced something, in unspecified order

    def rows(self, rank: Ints, chunk: Ints) -> Ints:
        """Row of each chunk."""
        return rank * self.strides[0] + chunk * self.strides[1]

    def of_step(self, step: Step) -> tuple[Ints, Ints]:
        """Rows of every chunk that a step reads and writes, in the order of :func:`simcoll.core.step.expanded`."""
        src, dst = self.rows(step.src_rank, step.src_chunk), self.rows(step.dst_rank, step.dst_chunk)
        if (step.count == 1).all():
            return src, dst
        count = np.maximum(step.count, 1)
        before = (np.cumsum(count) - count) * self.strides[1]
        offset = np.arange(int(count.sum())) * self.strides[1]
        return np.repeat(src - before, count) + offset, np.repeat(dst - before, count) + offset


def start(schedule: Schedule, *, exact: bool) -> Memory:
    """The memory before the first step: the contents of the inputs."""
    layout, collective, n = schedule.layout, schedule.collective, schedule.nranks
    rows, per_rank = n * layout.size, layout.output_base
    words = rows * ((n * per_rank if exact else 1) + 1) + layout.size
    check_room(
        8 * words, f"proving a schedule with {layout.size} chunks on each of {n} ranks", "cut its blocks into fewer"
    )
    memory = Memory(
        layout,
        (layout.size, 1) if collective.nblocks == 1 else (1, n),
        np.zeros((rows, n * per_rank) if exact else rows, np.uint64),
        np.zeros(rows, np.uint64),
        np.full(layout.size, -1, np.int64),
    )
    leaf = token_at(np.arange(n), 2)
    for ranks in in_groups(np.flatnonzero(collective.has_input(np.arange(n))), per_rank):
        rank, chunk = np.tile(ranks, per_rank), np.repeat(np.arange(per_rank), len(ranks))
        at, token = memory.rows(rank, layout.canonical(rank, chunk)), rank * per_rank + chunk
        if exact:
            memory.held[at, token] = 1
        else:
            memory.held[at] = token_at(token, 1)
        memory.tree[at] = leaf[rank]
    return memory


def in_groups(ranks: Ints, each: int) -> list[Ints]:
    """Split ranks into groups with few chunks, if each rank has ``each``."""
    return np.array_split(ranks, max(1, min(len(ranks), len(ranks) * each // PART)))
