"""Finds the pieces of a vector that are images of each other, of which a proof follows one.

Butterflies halve and double the range of pieces that ranks exchange. No two pieces go the same way,
but a renumbering of the ranks, such as r xor 4, together with one of the pieces, maps the transfers
of every step onto themselves. The memory after every step is then its own image, as the inputs of
an all_reduce and what its outputs must hold are: a piece that ends right implies that its image
does.

A renumbering of the ranks follows from the image of rank 0, along the messages: the partner of an
image is the image of the partner. That of the pieces follows from a step in which each rank
receives another range. Both are guesses, which :func:`maps_onto_itself` checks on every transfer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.schedule import SYNC, Repeat, Schedule, Step, lowered
from simcoll.core.step import spread
from simcoll.proving.copied_shares import MANY_CELLS

__all__ = ["Renumbering", "maps_onto_itself", "one_of_images", "renumberings"]

SAVED = 4
"""Least number of pieces for each that is followed."""
MOST_TRANSFERS = 1 << 22
"""Limit of the transfers of all steps: 300 MB."""
MOST_PLACES = 1 << 24
"""Limit of the lengths of all ranges of a step."""


@dataclass(frozen=True, slots=True, eq=False)
class Renumbering:
    """Maps piece ``p`` on rank ``r`` to piece ``piece[p]`` on rank ``rank[r]``.

    Both are permutations.
    """

    rank: Ints
    piece: Ints


class _MovedRanges(NamedTuple):
    """The distinct ranges of pieces that the transfers of a step move."""

    start: Ints
    length: Ints
    of_row: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _StepRanges:
    """The transfers of a step whose ends have one range of pieces.

    Attributes
    ----------
    kind
        One number for all that a renumbering keeps: buffers, operation and channel.
    """

    step: Step
    ranges: _MovedRanges
    kind: Ints


def one_of_images(schedule: Schedule) -> tuple[list[Schedule], int, int]:
    """The schedule of one piece of every orbit, and of its images under each renumbering; the
    numbers of steps and transfers of the whole.

    No schedule if that would not save much, or a transfer changes its piece. The images show
    whether reductions have one order: if a piece has the brackets of its images, so has its whole
    orbit.
    """
    layout = schedule.layout
    collective = schedule.collective
    if (
        collective.kind != "all_reduce"
        or collective.in_place
        or layout.scratch.size
        or schedule.nranks * layout.size <= MANY_CELLS
    ):
        return [], 0, 0
    steps = _transfers(schedule)
    if steps is None:
        return [], 0, 0
    orbit = np.arange(layout.chunks)
    images = []
    for renumbering in renumberings(schedule, steps):
        images.append(renumbering.piece)
        orbit = _joined_orbits(orbit, renumbering.piece)
    leaders = np.unique(orbit)
    pieces = np.unique(np.concatenate([leaders, *(image[leaders] for image in images)]))
    if SAVED * len(pieces) > layout.chunks:
        return [], 0, 0
    return [_restrict(schedule, steps, pieces)], len(steps), sum(len(moves.step) for moves in steps)


def _transfers(schedule: Schedule) -> list[_StepRanges] | None:
    """The transfers of every step; None if one changes its piece, or they are many."""
    chunks = schedule.layout.chunks
    if any(isinstance(block, Repeat) for block in schedule.blocks()):
        return None
    steps = []
    transfers = 0
    for _, step in lowered(schedule, as_given=True):
        transfers += len(step)
        to_buffer, place = np.divmod(step.dst_chunk, chunks)
        from_buffer, from_place = np.divmod(step.src_chunk, chunks)
        if transfers > MOST_TRANSFERS or (step.op >= SYNC).any():
            return None
        if not np.array_equal(place, from_place) or (place + step.count > chunks).any():
            return None
        key, of_row = np.unique(place * (chunks + 1) + step.count, return_inverse=True)
        start, length = np.divmod(key, chunks + 1)
        if int(length.sum()) > MOST_PLACES:
            return None
        kind = ((step.channel * 2 + from_buffer) * 2 + to_buffer) * SYNC + step.op
        steps.append(_StepRanges(step, _MovedRanges(start, length, of_row.reshape(-1)), kind))
    return steps


def renumberings(schedule: Schedule, steps: list[_StepRanges]) -> Iterator[Renumbering]:
    """Checked renumberings that map rank 0 to ranks 1, 2, 4, ..., as far as each is needed to
    reach its rank.
    """
    n = schedule.nranks
    partners = _partners(n, steps)
    homes = _homes(n, schedule.layout.chunks, steps)
    if not partners or homes is None:
        return
    orbit = np.arange(n)
    for image in (1 << bit for bit in range((n - 1).bit_length())):
        if orbit[image] == orbit[0]:
            continue
        rank = _along(partners, image)
        piece = None if rank is None else _pieces_of(homes, rank)
        if rank is None or piece is None:
            continue
        renumbering = Renumbering(rank, piece)
        if maps_onto_itself(renumbering, steps):
            orbit = _joined_orbits(orbit, rank)
            yield renumbering


def _partners(nranks: int, steps: list[_StepRanges]) -> list[Ints]:
    """For every step with messages, the only rank to which each rank sends, and the only one from
    which it receives; -1 if there is none.
    """
    partners = []
    for moves in steps:
        away = moves.step.src_rank != moves.step.dst_rank
        src, dst = moves.step.src_rank[away], moves.step.dst_rank[away]
        for ends, peers in ((src, dst), (dst, src)):
            if len(ends) and len(np.unique(ends)) == len(ends):
                partner = np.full(nranks, -1, np.int64)
                partner[ends] = peers
                partners.append(partner)
    return partners


def _along(partners: list[Ints], image: int) -> Ints | None:
    """The renumbering of the ranks that maps rank 0 to ``image`` and partners to partners; None if
    there is none.
    """
    n = len(partners[0])
    rank = np.full(n, -1, np.int64)
    rank[0] = image
    reached, previous = 1, 0
    while reached > previous:
        for partner in partners:
            ranks = np.flatnonzero((rank >= 0) & (partner >= 0))
            images = partner[rank[ranks]]
            if (images < 0).any():
                return None
            rank[partner[ranks]] = images
        reached, previous = int((rank >= 0).sum()), reached
    return rank if np.array_equal(np.sort(rank), np.arange(n)) else None


class _Homes(NamedTuple):
    """Ranges that partition the vector, one received by each of some ranks."""

    rank: Ints
    start: Ints
    length: Ints
    of_rank: Ints


def _homes(nranks: int, chunks: int, steps: list[_StepRanges]) -> _Homes | None:
    """The ranges of the step that partitions the vector most finely; None if none does."""
    finest: _Homes | None = None
    for moves in steps:
        start, length, of_row = moves.ranges
        away = moves.step.src_rank != moves.step.dst_rank
        once = len(start) == len(moves.step) and bool(away.all())
        follow = np.array_equal(np.cumsum(length), np.append(start[1:], chunks))
        ranks = moves.step.dst_rank
        if not once or not follow or len(np.unique(ranks)) < len(ranks):
            continue
        if finest is None or len(ranks) > len(finest.rank):
            of_rank = np.full(nranks, -1, np.int64)
            of_rank[ranks] = np.arange(len(ranks))
            finest = _Homes(ranks, start[of_row], length[of_row], of_rank)
    return finest


def _pieces_of(homes: _Homes, rank: Ints) -> Ints | None:
    """The renumbering of the pieces that moves ranges with the ranks that receive them."""
    image = homes.of_rank[rank[homes.rank]]
    if (image < 0).any() or not np.array_equal(homes.length[image], homes.length):
        return None
    row, offset = spread(homes.length)
    piece = np.empty(len(row), np.int64)
    piece[homes.start[row] + offset] = homes.start[image][row] + offset
    return piece


def maps_onto_itself(renumbering: Renumbering, steps: list[_StepRanges]) -> bool:
    """Whether a renumbering maps the transfers of every step onto themselves, each range of pieces
    onto a range.
    """
    for permutation in (renumbering.rank, renumbering.piece):
        if not np.array_equal(np.sort(permutation), np.arange(len(permutation))):
            return False
    return all(_maps_step(renumbering, moves) for moves in steps)


def _maps_step(renumbering: Renumbering, moves: _StepRanges) -> bool:
    start, length, of_row = moves.ranges
    nonempty = length > 0
    if not nonempty.all():
        return False
    if not len(start):
        return True
    row, offset = spread(length)
    begin = np.cumsum(length) - length
    image = renumbering.piece[start[row] + offset]
    low = np.minimum.reduceat(image, begin)
    # A permutation maps a range to as many pieces, which are a range if they lie as close.
    if (np.maximum.reduceat(image, begin) - low + 1 != length).any():
        return False
    step = moves.step
    columns = moves.kind, step.count, start[of_row], step.dst_rank, step.src_rank
    images = (
        moves.kind,
        step.count,
        low[of_row],
        renumbering.rank[step.dst_rank],
        renumbering.rank[step.src_rank],
    )
    order, image_order = np.lexsort(columns), np.lexsort(images)
    return all(
        np.array_equal(column[order], values[image_order])
        for column, values in zip(columns, images, strict=True)
    )


def _joined_orbits(orbit: Ints, image: Ints) -> Ints:
    """The least member of the orbit of every number, given those without one more permutation."""
    while True:
        lower, distant = orbit, image
        for _ in range(len(orbit).bit_length()):  # each turn doubles the distance looked ahead
            lower, distant = np.minimum(lower, lower[distant]), distant[distant]
        # Members of one orbit share what each has found.
        lowest = np.arange(len(orbit))
        np.minimum.at(lowest, orbit, lower)
        shared = lowest[orbit]
        if np.array_equal(shared, orbit):
            return orbit
        orbit = shared


def _restrict(schedule: Schedule, steps: list[_StepRanges], pieces: Ints) -> Schedule:
    """The schedule of some pieces, ascending."""
    chunks, width = schedule.layout.chunks, len(pieces)
    few = []
    for moves in steps:
        step = moves.step
        start, length, of_row = moves.ranges
        low = np.searchsorted(pieces, start)
        count = (np.searchsorted(pieces, start + length) - low)[of_row]
        rows = np.flatnonzero(count)
        if not len(rows):
            continue
        chosen = step.rows(rows)
        src, dst = (chunk // chunks * width + low[of_row][rows] for _, chunk in chosen.ends)
        few.append(replace(chosen, src_chunk=src, dst_chunk=dst, count=count[rows]))
    part = replace(schedule, layout=replace(schedule.layout, chunks=width), source=lambda: few)
    part.skip_checks()  # the whole schedule has been checked
    return part
