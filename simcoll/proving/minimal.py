"""The minimal counter-example: the transfers that a wrong chunk depends on, and the first fault
among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from simcoll.core.schedule import REDUCE, SWITCH_REDUCE, SYNC, Schedule, Step, lowered

__all__ = ["Move", "Trail", "history", "original_inputs", "trail"]

Cell = tuple[int, int]  # (rank, chunk)


@dataclass(frozen=True, slots=True)
class Move:
    """One chunk of a transfer, with the contributions that its destination holds afterwards.

    ``contents`` counts ``(rank, input chunk)``; ``operands`` holds the largest count of each among
    the operands.
    """

    step: int
    src: Cell
    dst: Cell
    op: int
    channel: int
    contents: Counter[Cell]
    operands: Counter[Cell]

    @property
    def duplicates(self) -> list[Cell]:
        """Contributions that the transfer counts more often than any of its operands does."""
        return sorted(
            cell for cell, times in self.contents.items() if times > max(1, self.operands[cell])
        )


@dataclass(frozen=True, slots=True)
class Trail:
    """End of a contribution: the last transfer that brings it to a chunk, and the step that
    overwrites it there.
    """

    last: Move | None
    overwritten: int | None


def _moves(
    schedule: Schedule, number: int, step: Step, cells: set[Cell], *, reads: bool
) -> list[Move]:
    """Chunks of a step that write to (or read from) some cells."""
    size = schedule.layout.size
    rank, chunk = step.ends[0 if reads else 1]
    start = rank * size + chunk
    targets = np.array(sorted(rank * size + chunk for rank, chunk in cells), np.int64)
    # A row matters if some wanted cell lies in first .. first + count - 1.
    hits = np.searchsorted(targets, start) < np.searchsorted(targets, start + step.count)
    moves = []
    for row in np.flatnonzero(hits & (step.op != SYNC)).tolist():
        source, destination = ((int(ranks[row]), int(chunks[row])) for ranks, chunks in step.ends)
        op, channel = int(step.op[row]), int(step.channel[row])
        for offset in range(int(step.count[row])):
            src = source[0], source[1] + offset
            dst = destination[0], destination[1] + offset
            if (src if reads else dst) in cells:
                moves.append(Move(number, src, dst, op, channel, Counter(), Counter()))
    return moves


def original_inputs(schedule: Schedule) -> dict[Cell, Cell]:
    """``(rank, stored chunk) -> (rank, input chunk)`` for every input chunk."""
    layout, collective = schedule.layout, schedule.collective
    names = {}
    for rank in np.flatnonzero(collective.has_input(np.arange(schedule.nranks))).tolist():
        chunks = np.arange(layout.output_base)
        stored = layout.canonical(np.full(len(chunks), rank), chunks)
        names.update({(rank, place): (rank, chunk) for chunk, place in enumerate(stored.tolist())})
    if collective.definition is None:
        return names
    return {
        cell: origin for cell in names if (origin := _first_holder(schedule, *cell)) is not None
    }


def _first_holder(schedule: Schedule, rank: int, chunk: int) -> Cell | None:
    """The first input chunk that holds the same contribution; None for a slot that a rank does not
    have.
    """
    definition, chunks = schedule.collective.definition, schedule.layout.chunks
    if definition is None:
        return rank, chunk
    slots = definition.inputs[rank]
    slot, piece = divmod(chunk, chunks)
    if slot >= len(slots):
        return None
    owner, place = definition.holders(slots[slot])[0]
    return owner, place * chunks + piece


def _storage_cell(schedule: Schedule, rank: int, chunk: int) -> Cell:
    return rank, int(schedule.layout.canonical(np.array([rank]), np.array([chunk]))[0])


HELD = 2**22
"""Number of transfers held at a time during the backward walk."""
MOST_MOVES = 2**15
"""Limit of transfers in a chunk's history; a longer one would be unreadable, and each transfer
takes a kibibyte.
"""


def _backwards(schedule: Schedule) -> Iterator[tuple[int, Step]]:
    """The steps from the last to the first; a large schedule regenerates them for each part."""
    sizes = [len(step) for _, step in lowered(schedule)]
    end = len(sizes)
    while end:
        begin, total = end - 1, sizes[end - 1]
        while begin and total + sizes[begin - 1] <= HELD:
            begin -= 1
            total += sizes[begin]
        yield from reversed(list(islice(lowered(schedule), begin, end)))
        end = begin


def history(schedule: Schedule, rank: int, chunk: int) -> tuple[list[Move], Counter[Cell]] | None:
    """Final contents of a chunk, and all transfers that it depends on, in order.

    ``None`` for more than :data:`MOST_MOVES`.

    Walks back from the chunk to collect the transfers (a backward slice: Weiser, ICSE 1981), then
    plays only these.
    """
    target = _storage_cell(schedule, rank, chunk)
    needed, slices, count = {target}, [], 0
    for number, step in _backwards(schedule):
        moves = _moves(schedule, number, step, needed, reads=False)
        if moves:
            needed -= {move.dst for move in moves if move.op != REDUCE}
            needed |= {move.src for move in moves}
            slices.append(moves)
            count += len(moves)
            if count > MOST_MOVES:
                return None
    originals = original_inputs(schedule)
    contents = {cell: Counter([originals[cell]]) for cell in sorted(needed) if cell in originals}
    played: list[Move] = []
    for moves in reversed(slices):
        played.extend(_play_moves(moves, contents))
    return played, contents.get(target, Counter())


def _play_moves(moves: list[Move], contents: dict[Cell, Counter[Cell]]) -> Iterator[Move]:
    """Play the transfers of one step; return the result of each."""
    old = {cell: contents.get(cell, Counter()) for move in moves for cell in (move.src, move.dst)}
    new: dict[Cell, Counter[Cell]] = {}
    for move in moves:
        base = old[move.dst] if move.op == REDUCE else Counter()
        if move.op in (REDUCE, SWITCH_REDUCE) and move.dst in new:
            base = new[move.dst]
        value = new[move.dst] = base + old[move.src]
        yield Move(
            move.step, move.src, move.dst, move.op, move.channel, value, base | old[move.src]
        )
    contents.update(new)


def trail(schedule: Schedule, contribution: Cell) -> Trail:
    """Follow a contribution forward from its input chunk to the last chunk that it reaches."""
    holders = {_storage_cell(schedule, *contribution)}
    last: Move | None = None
    overwritten: int | None = None
    for number, step in lowered(schedule):
        carried = _moves(schedule, number, step, holders, reads=True)
        reached = {move.dst for move in carried}
        writes = _moves(schedule, number, step, holders, reads=False)
        spoiled = {move.dst for move in writes if move.op != REDUCE} - reached
        holders = (holders - spoiled) | reached
        fresh = [move for move in carried if move.src != move.dst]
        if fresh:
            last, overwritten = fresh[-1], None
        if last is not None and last.dst in spoiled:
            overwritten = number
    return Trail(last, overwritten)
