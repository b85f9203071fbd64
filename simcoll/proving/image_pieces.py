"""Finds the pieces of a vector that are images of each other, of which a proof follows one.

Butterflies halve and double the range of pieces that ranks exchange. No two pieces go the same way,
but a renumbering of the ranks, such as r xor 4, together with one of the pieces, maps the transfers
of every step onto themselves. The memory after every step is then its own image, as the inputs of
an all_reduce and what its outputs must hold are: a piece that ends right implies that its image
does.

A renumbering of the ranks follows from the image of rank 0, along the messages: the partner of an
image is the image of the partner. That of the pieces follows from a step in which every rank
receives a range of its own. Both are guesses, which :func:`maps_onto_itself` checks on every
transfer. The steps may be many, so each pass looks at one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.schedule import SYNC, Schedule, Step
from simcoll.core.step import spread
from simcoll.proving.copied_shares import MANY_CELLS, steps_without_repeats

__all__ = ["Renumbering", "StepRanges", "maps_onto_itself", "one_of_images", "ranges_of_steps"]

SAVED = 4
"""Least number of pieces for each that is followed."""
MOST_PLACES = 1 << 24
"""Limit of the lengths of all ranges of a step."""
MOST_PARTNERS = 64
"""Limit of the different pairings from which the renumberings of the ranks are guessed."""
WORD_BITS = 62


@dataclass(frozen=True, slots=True, eq=False)
class Renumbering:
    """Maps piece ``p`` on rank ``r`` to piece ``piece[p]`` on rank ``rank[r]``.

    Both are permutations.
    """

    rank: Ints
    piece: Ints


@dataclass(frozen=True, slots=True, eq=False)
class StepRanges:
    """The transfers of a step, and the ranges of pieces that they move.

    Attributes
    ----------
    start, length
        The different ranges, ascending.
    of_row
        Which of these a transfer moves.
    kind
        One number for all that a renumbering keeps: buffers, operation and channel.
    """

    step: Step
    start: Ints
    length: Ints
    of_row: Ints
    kind: Ints


class _Outline(NamedTuple):
    """What a first pass over the steps shows.

    Attributes
    ----------
    partners
        Different pairings: the rank to which each rank sends, or from which it receives; -1 for
        ranks without one.
    homes
        The ranges of the step that partitions the vector most finely; none if no step does.
    """

    steps: int
    transfers: int
    partners: list[Ints]
    homes: _Homes | None


class _Homes(NamedTuple):
    """Ranges that partition the vector: which rank receives each, on which channel.

    ``number``: of the range of every rank on every channel; -1 if there is none.
    """

    rank: Ints
    channel: Ints
    start: Ints
    length: Ints
    number: Ints


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
    outline = _outline(schedule)
    if outline is None or outline.homes is None or not outline.partners:
        return [], 0, 0
    orbit = np.arange(layout.chunks)
    images = []
    for renumbering in _renumberings(schedule, outline.partners, outline.homes):
        images.append(renumbering.piece)
        orbit = _merge_orbits(orbit, renumbering.piece)
    leaders = np.unique(orbit)
    pieces = np.unique(np.concatenate([leaders, *(image[leaders] for image in images)]))
    if SAVED * len(pieces) > layout.chunks:
        return [], 0, 0
    return [_restrict(schedule, pieces)], outline.steps, outline.transfers


def ranges_of_steps(schedule: Schedule) -> Iterator[StepRanges | None]:
    """The ranges that every step moves; a None, and the end, at a repeat, at a transfer that
    changes its piece, and at one that is not a copy or reduction.
    """
    chunks = schedule.layout.chunks
    for step in steps_without_repeats(schedule):
        if step is None or (step.op >= SYNC).any():
            yield None
            return
        to_buffer, place = np.divmod(step.dst_chunk, chunks)
        from_buffer, from_place = np.divmod(step.src_chunk, chunks)
        key, of_row = np.unique(place * (chunks + 1) + step.count, return_inverse=True)
        start, length = np.divmod(key, chunks + 1)
        keeps_places = np.array_equal(place, from_place) and not (start + length > chunks).any()
        if not keeps_places or (length < 1).any() or int(length.sum()) > MOST_PLACES:
            yield None
            return
        kind = ((step.channel * 2 + from_buffer) * 2 + to_buffer) * SYNC + step.op
        yield StepRanges(step, start, length, of_row.reshape(-1), kind)


def _outline(schedule: Schedule) -> _Outline | None:
    """A first pass; None for schedules whose transfers do not keep their pieces."""
    partners: dict[bytes, Ints] = {}
    homes: _Homes | None = None
    steps = transfers = 0
    for moves in ranges_of_steps(schedule):
        if moves is None:
            return None
        steps, transfers = steps + 1, transfers + len(moves.step)
        if len(partners) < MOST_PARTNERS:
            partners |= {partner.tobytes(): partner for partner in _partners(schedule, moves.step)}
        finer = homes is None or len(moves.step) > len(homes.rank)
        homes = (_homes(schedule, moves) if finer else None) or homes
    return _Outline(steps, transfers, list(partners.values()), homes)


def _partners(schedule: Schedule, step: Step) -> Iterator[Ints]:
    """For every channel of a step, the only rank to which each rank sends, and the only one from
    which it receives.
    """
    away = step.src_rank != step.dst_rank
    for channel in np.unique(step.channel[away]).tolist():
        rows = np.flatnonzero(away & (step.channel == channel))
        src, dst = step.src_rank[rows], step.dst_rank[rows]
        for ends, peers in ((src, dst), (dst, src)):
            partner = np.full(schedule.nranks, -1, np.int64)
            partner[ends] = peers
            if np.count_nonzero(partner >= 0) == len(ends):
                yield partner


def _homes(schedule: Schedule, moves: StepRanges) -> _Homes | None:
    """The ranges of a step in which each rank receives another one on each channel, and that
    partition the vector.
    """
    step, start, length = moves.step, moves.start, moves.length
    edges = np.append(start[1:], schedule.layout.chunks)
    if len(start) != len(step) or start[0] or not np.array_equal(start + length, edges):
        return None
    if (step.src_rank == step.dst_rank).any():
        return None
    number = np.full((schedule.nranks, schedule.nchannels), -1, np.int64)
    number[step.dst_rank, step.channel] = np.arange(len(step))
    if np.count_nonzero(number >= 0) < len(step):
        return None
    row = moves.of_row
    return _Homes(step.dst_rank, step.channel, start[row], length[row], number)


def _renumberings(schedule: Schedule, partners: list[Ints], homes: _Homes) -> Iterator[Renumbering]:
    """Checked renumberings that map rank 0 to ranks 1, 2, 4, ..., as far as each is needed to
    reach its rank.

    Each is first assumed to be right, so that one pass checks several.
    """
    orbit = np.arange(schedule.nranks)
    guesses = []
    for image in (1 << bit for bit in range((schedule.nranks - 1).bit_length())):
        if orbit[image] == orbit[0]:
            continue
        rank = _along(partners, image)
        piece = None if rank is None else _pieces_of(homes, rank)
        if rank is not None and piece is not None:
            guesses.append(Renumbering(rank, piece))
            orbit = _merge_orbits(orbit, rank)
    yield from maps_onto_itself(guesses, ranges_of_steps(schedule))


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


def _pieces_of(homes: _Homes, rank: Ints) -> Ints | None:
    """The renumbering of the pieces that moves ranges with the ranks that receive them."""
    image = homes.number[rank[homes.rank], homes.channel]
    if (image < 0).any() or not np.array_equal(homes.length[image], homes.length):
        return None
    row, offset = spread(homes.length)
    piece = np.empty(len(row), np.int64)
    piece[homes.start[row] + offset] = homes.start[image][row] + offset
    return piece


def maps_onto_itself(
    guesses: Iterable[Renumbering], steps: Iterable[StepRanges | None]
) -> list[Renumbering]:
    """Those renumberings that map the transfers of every step onto themselves, each range of pieces
    onto a range.
    """
    right = [
        guess
        for guess in guesses
        if all(
            np.array_equal(np.sort(permutation), np.arange(len(permutation)))
            for permutation in (guess.rank, guess.piece)
        )
    ]
    for moves in steps:
        if moves is None or not right:
            return []
        src, dst = (rank for rank, _ in moves.step.ends)
        order = _ascending(moves, len(right[0].rank), src, dst, moves.of_row)
        right = [guess for guess in right if _maps_step(guess, moves, order)]
    return right


def _maps_step(renumbering: Renumbering, moves: StepRanges, order: tuple[Ints, ...]) -> bool:
    """Whether a renumbering maps the transfers of a step, in ascending order, onto themselves."""
    row, offset = spread(moves.length)
    begin = np.cumsum(moves.length) - moves.length
    image = renumbering.piece[moves.start[row] + offset]
    low = np.minimum.reduceat(image, begin)
    # A permutation maps a range to as many pieces, which are a range if they lie as close.
    if (np.maximum.reduceat(image, begin) - low + 1 != moves.length).any():
        return False
    number = np.searchsorted(moves.start, low)
    number = np.minimum(number, len(low) - 1)
    if (np.diff(moves.start) == 0).any():  # ranges of several lengths begin at one piece
        size = int(moves.length.max()) + 1
        number = np.searchsorted(moves.start * size + moves.length, low * size + moves.length)
        number = np.minimum(number, len(low) - 1)
    exists = (moves.start[number] == low) & (moves.length[number] == moves.length)
    if not exists.all():
        return False
    src, dst = (renumbering.rank[rank] for rank, _ in moves.step.ends)
    images = _ascending(moves, len(renumbering.rank), src, dst, number[moves.of_row])
    return all(
        np.array_equal(column, of_images) for column, of_images in zip(order, images, strict=True)
    )


def _ascending(
    moves: StepRanges, nranks: int, src: Ints, dst: Ints, number: Ints
) -> tuple[Ints, ...]:
    """The ends, ranges and kinds of transfers in ascending order, in as few numbers as hold
    them.
    """
    columns = src, dst, number, moves.kind
    limits = nranks, nranks, len(moves.start), int(moves.kind.max()) + 1
    if sum(limit.bit_length() for limit in limits) > WORD_BITS:
        order = np.lexsort(columns)
        return tuple(column[order] for column in columns)
    key = src
    for column, limit in zip(columns[1:], limits[1:], strict=True):
        key = key * limit + column
    return (np.sort(key),)


def _merge_orbits(orbit: Ints, image: Ints) -> Ints:
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


def _restrict(schedule: Schedule, pieces: Ints) -> Schedule:
    """The schedule of some pieces, ascending."""
    chunks, width = schedule.layout.chunks, len(pieces)

    def steps() -> Iterator[Step]:
        for step in steps_without_repeats(schedule):
            if step is None:
                return
            place = step.dst_chunk % chunks
            low = np.searchsorted(pieces, place)
            count = np.searchsorted(pieces, place + step.count) - low
            rows = np.flatnonzero(count)
            chosen = step.rows(rows)
            src, dst = (chunk // chunks * width + low[rows] for _, chunk in chosen.ends)
            yield replace(chosen, src_chunk=src, dst_chunk=dst, count=count[rows])

    part = replace(schedule, layout=replace(schedule.layout, chunks=width), source=steps)
    part.skip_checks()  # the whole schedule has been checked
    return part
