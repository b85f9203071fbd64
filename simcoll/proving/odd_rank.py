"""The rank that differs where all others do the same, for the first line of a counter-example.

In a schedule that treats all ranks alike, a step is one rule: rank r sends a place that depends on
r alone to rank r + k. A step of which all transfers but one follow a rule points to the fault
before any chunk does, since the fault spreads to the outputs of all ranks.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.schedule import OP_NAMES, SYNC, Schedule, Step, transfer_text
from simcoll.core.step import by_chunk

__all__ = ["odd_rank"]

MOST_TRANSFERS = 1 << 15
"""Of larger schedules the other parts of the message come at once."""
FEWEST = 3
"""Of fewer transfers, no majority follows a rule."""


class _TransferRule(NamedTuple):
    """A transfer relative to its ranks: equal for all transfers of a symmetric step."""

    distance: int
    source: tuple[int, int, int]
    target: tuple[int, int, int]
    operation: int


def odd_rank(schedule: Schedule) -> str:
    """A line about the only transfer that differs from all others of its step, or the only rank
    that lacks one; empty if there is none, or more.

    Examples
    --------
    >>> import simcoll
    >>> layout = simcoll.Layout(simcoll.Collective("all_gather", 4))
    >>> def steps():
    ...     yield simcoll.transfers([0, 1, 2, 3], 0, [1, 2, 1, 0], [1, 2, 3, 4])
    ...
    >>> print(odd_rank(simcoll.Schedule("shift", layout, steps)))
    rank 2 differs from all others: in step 0 it sends to rank 1, the others to rank r + 1, ...
    """
    return _search(schedule, xor=False) or _search(schedule, xor=True)


def _search(schedule: Schedule, *, xor: bool) -> str:
    """The same for rules that add a number to a rank, or (``xor``) flip bits of it, as recursive
    doubling does.
    """
    total = 0
    complete: set[_TransferRule] = set()
    lacking: list[tuple[int, int, _TransferRule]] = []
    for number, compact in enumerate(schedule.steps()):
        total += int(compact.count.sum())
        if total > MOST_TRANSFERS:
            return ""
        step = by_chunk(compact)
        if len(step) < FEWEST or (step.op == SYNC).any():
            continue
        for rows in _per_channel(step):
            senders = set(step.src_rank[rows].tolist())
            moves = step.rows(rows)
            if len(moves) > schedule.nranks or len(senders) < schedule.nranks - 1:
                continue
            # Rules are compared where distances are: most schedules of other kinds end here.
            if np.bincount(_distances(schedule, moves, xor=xor)).max() < len(moves) - 1:
                continue
            rules = _rules(schedule, moves, xor=xor)
            rule, count = Counter(rules).most_common(1)[0]
            everyone = len(rules) == schedule.nranks <= len(senders) + 1
            if everyone and count == len(rules) - 1:
                row = rows[
                    next(place for place, candidate in enumerate(rules) if candidate != rule)
                ]
                wrong = step.rows(np.array([row]))
                return _difference(schedule, number, wrong, rule, xor=xor)
            if count == len(rules) == len(senders) == schedule.nranks:
                complete.add(rule._replace(source=(0, 0, 0), target=(0, 0, 0)))
            if count == len(rules) == len(senders) == schedule.nranks - 1:
                absent = next(rank for rank in range(schedule.nranks) if rank not in senders)
                lacking.append((number, absent, rule))
    for number, rank, rule in lacking:
        # Pairs are symmetric: one of them without its other half is never meant.
        if xor or rule._replace(source=(0, 0, 0), target=(0, 0, 0)) in complete:
            return (
                f"rank {rank} differs from all others: in step {number} it sends nothing, the "
                f"others send to {_peer(rule, xor=xor)}"
            )
    return ""


def _per_channel(step: Step) -> list[Ints]:
    """The rows of each channel, without those of ranks to themselves."""
    moving = np.flatnonzero(step.src_rank != step.dst_rank)
    return [
        moving[step.channel[moving] == channel]
        for channel in np.unique(step.channel[moving]).tolist()
    ]


def _distances(schedule: Schedule, step: Step, *, xor: bool) -> Ints:
    """How far each transfer goes, as a number to add to its rank or bits to flip."""
    return (
        step.src_rank ^ step.dst_rank if xor else (step.dst_rank - step.src_rank) % schedule.nranks
    )


def _rules(schedule: Schedule, step: Step, *, xor: bool) -> list[_TransferRule]:
    """Each transfer relative to its ranks."""
    distance = _distances(schedule, step, xor=xor)
    ends = [_places(schedule, *end, relative=not xor) for end in step.ends]
    return [
        _TransferRule(*row)
        for row in zip(distance.tolist(), ends[0], ends[1], step.op.tolist(), strict=True)
    ]


def _places(
    schedule: Schedule, rank: Ints, chunk: Ints, *, relative: bool
) -> list[tuple[int, int, int]]:
    """Buffer, slot and piece of chunks; if ``relative``, to their ranks where there are as many as
    ranks.
    """
    layout, n = schedule.layout, schedule.nranks
    region = layout.region(chunk)
    width = np.where(region == 2, layout.scratch_chunks, layout.chunks)
    slot, piece = np.divmod(chunk - layout.bases()[region], width)
    collective = schedule.collective
    slots = np.array([collective.input_slots, collective.output_slots, layout.scratch_slots])
    if relative:
        slot = np.where(slots[region] == n, (slot - rank) % n, slot)
    if relative and layout.chunks % n == 0:
        pieces = layout.chunks // n
        piece = np.where(width == layout.chunks, (piece - rank * pieces) % layout.chunks, piece)
    return list(zip(region.tolist(), slot.tolist(), piece.tolist(), strict=True))


def _peer(rule: _TransferRule, *, xor: bool) -> str:
    """The receiver of rank r by a rule."""
    return f"rank r {'xor' if xor else '+'} {rule.distance}"


def _difference(
    schedule: Schedule, number: int, step: Step, rule: _TransferRule, *, xor: bool
) -> str:
    """The only transfer of a step, which follows no rule, and what it would be."""
    source, target = int(step.src_rank[0]), int(step.dst_rank[0])
    actual = _rules(schedule, step, xor=xor)[0]
    if actual.distance != rule.distance:
        due = source ^ rule.distance if xor else (source + rule.distance) % schedule.nranks
        return (
            f"rank {source} differs from all others: in step {number} it sends to rank {target}, "
            f"the others to {_peer(rule, xor=xor)}, which would be rank {due}"
        )
    if actual.operation != rule.operation:
        return (
            f"rank {source} differs from all others: in step {number} its transfer is a "
            f"{OP_NAMES[actual.operation]}, theirs are {OP_NAMES[rule.operation]}"
        )
    end = "sends from" if actual.source != rule.source else "writes to"
    return (
        f"rank {source} differs from all others: in step {number} it {end} another place than "
        f"they do, relative to its rank:\n      {transfer_text(schedule.layout, step, 0)}"
    )
