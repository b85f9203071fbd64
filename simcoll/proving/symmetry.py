"""Proof of an all_reduce by symmetry: follow a few pieces on all ranks, and certify that the others are their images.

A symmetry renumbers ranks and pieces of the vector. It is certified if it maps the transfers of every step onto themselves; inputs and
required outputs of an all_reduce are the same everywhere. Then the memory after every step is its own image, so a correct piece
implies that all its images are correct. The candidates are rotations of the ring along which the first messages travel. A repeat is
checked only once: the symmetry must commute with its shift.

Transfers keep their piece, so one piece of every orbit is followed, together with its image, on every rank
(:mod:`simcoll.proving.columns`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.proof import Proof
from simcoll.core.schedule import COPY, REDUCE, Repeat, Schedule, Step, joined
from simcoll.core.step import expanded, spread
from simcoll.errors import ScheduleError, expect
from simcoll.proving.columns import follow

__all__ = ["Symmetry", "certify", "find_symmetry", "verify_by_symmetry"]

UNITS = 2**24
"""Limit of single-chunk transfers to which a step is expanded."""


@dataclass(frozen=True, slots=True, eq=False)
class Symmetry:
    """Maps piece ``p`` on rank ``r``, in every buffer, to piece ``piece[p]`` on rank ``rank[lane[p], r]``.

    Attributes
    ----------
    rank
        A permutation of the ranks for every lane: ``[lanes, nranks]``.
    lane, piece
        Lane and image of every piece.
    """

    rank: Ints
    lane: Ints
    piece: Ints

    def ranks(self, rank: Ints, piece: Ints) -> Ints:
        """Rank of the image of each cell."""
        return self.rank[self.lane[piece], rank]


def verify_by_symmetry(schedule: Schedule) -> Proof:
    """Prove an all_reduce by following a piece of every orbit under a certified symmetry.

    Returns
    -------
    Proof
        Of kind ``by symmetry``.

    Raises
    ------
    ScheduleError
        When the schedule is wrong or no candidate symmetry fits; the message names the step that breaks it. The full proof
        (:func:`simcoll.proving.verify`) needs no symmetry.

    Examples
    --------
    >>> import simcoll
    >>> print(verify_by_symmetry(simcoll.schedule("all_reduce", "ring", nranks=1000)))
    proved (by symmetry, error 2^-64): 1,999,000 transfers in 1,999 steps, reduction order run-consistent
    """
    expect(schedule, Schedule, "verify_by_symmetry takes a schedule, made by schedule(collective, algorithm)")
    schedule.check()
    symmetry = find_symmetry(schedule)
    least, image = np.arange(schedule.layout.chunks), symmetry.piece
    for _ in range(
        len(least).bit_length()
    ):  # the least piece of every orbit; each turn doubles the distance looked ahead
        least, image = np.minimum(least, least[image]), image[image]
    chosen = np.unique(least)
    # A piece and its image show whether their reductions have the same order; if so, the whole orbit has.
    order = follow(schedule, np.union1d(chosen, symmetry.piece[chosen]))
    steps = transfers = 0
    for number, inner, repeat in _blocks(schedule):
        turns = repeat.count if repeat else 1
        steps = number + turns * len(inner)
        transfers += turns * sum(len(step) for step in inner)
    return Proof("by symmetry", "fingerprint", order, steps, transfers, shared_chunks=False)


def find_symmetry(schedule: Schedule) -> Symmetry:
    """A certified symmetry of a schedule.

    Raises
    ------
    ScheduleError
        When no candidate passes; the reason is that for the first.
    """
    _check_served(schedule)
    n, lane, ring = schedule.nranks, _lanes(schedule), _ring(schedule)
    refusals = []
    for way in (1, -1):
        image = np.arange(len(lane))
        for run in np.split(image.copy(), np.flatnonzero(np.diff(lane)) + 1):
            if len(run) % n == 0:  # the symmetry moves a lane's part of the vector by one n-th
                image[run] = np.roll(run, -way * len(run) // n)
        symmetry = Symmetry(ring, lane, image)
        try:
            certify(schedule, symmetry)
        except ScheduleError as error:
            refusals.append(error)
        else:
            return symmetry
    raise refusals[0]


def _refuse(schedule: Schedule, reason: str, **where: int) -> ScheduleError:
    return ScheduleError(f"{schedule}: no proof by symmetry: {reason}", **where)


def _check_served(schedule: Schedule) -> None:
    if schedule.collective.kind != "all_reduce":
        raise _refuse(schedule, f"the ranks or blocks of {schedule.collective.kind} are not symmetric")
    if schedule.layout.scratch.size:
        raise _refuse(schedule, "it uses scratch")


def _blocks(schedule: Schedule) -> Iterator[tuple[int, tuple[Step, ...], Repeat | None]]:
    """Every step and repeat, with the number of its first step and with resolved aliases."""
    number = 0
    for block in schedule.blocks():
        repeat = block if isinstance(block, Repeat) else None
        steps = block.steps if isinstance(block, Repeat) else (schedule.layout.one_address(block),)
        yield number, steps, repeat
        number += len(steps) * (repeat.count if repeat else 1)


def _windows(schedule: Schedule, number: int, repeat: Repeat, step: Step) -> Ints:
    """First piece of every window that a repeated step touches; all its transfers must keep their piece."""
    chunks, modulus, in_place = schedule.layout.chunks, repeat.modulus, schedule.collective.in_place
    src, dst = (chunk - (chunk - repeat.base) % modulus for chunk in (step.src_chunk, step.dst_chunk))
    inside = (start // chunks == (start + modulus - 1) // chunks for start in (src, dst))
    if (
        not all(each.all() for each in inside)
        or min(src.min(), dst.min()) < chunks * in_place
        or ((src - dst) % chunks != 0).any()
        or (step.count != 1).any()
    ):
        raise _refuse(schedule, f"step {number}: the repeat does not shift all chunks equally", step=number)
    return np.unique(dst % chunks)


def _lanes(schedule: Schedule) -> Ints:
    """Channel that touches each piece on any rank; 0 for untouched pieces."""
    chunks = schedule.layout.chunks
    lane = np.full(chunks, -1, np.int64)

    def claim(number: int, piece: Ints, channel: Ints) -> None:
        for _ in range(2):  # the second comparison finds two channels in one call
            if ((lane[piece] >= 0) & (lane[piece] != channel)).any():
                raise _refuse(schedule, f"step {number}: two channels touch the same chunks", step=number)
            lane[piece] = channel

    for number, steps, repeat in _blocks(schedule):
        for step in steps:
            if ((step.src_chunk - step.dst_chunk) % chunks != 0).any():
                raise _refuse(schedule, f"step {number}: a transfer changes its piece", step=number)
            if repeat:
                for channel in np.unique(step.channel).tolist():
                    first = _windows(schedule, number, repeat, step.rows(step.channel == channel))
                    piece = (first[:, None] + np.arange(repeat.modulus)).reshape(-1)
                    claim(number, piece, np.full(len(piece), channel))
            else:
                rows = np.unique(np.stack([step.dst_chunk % chunks, step.count, step.channel]), axis=1)
                row, offset = spread(rows[1])
                claim(number, rows[0, row] + offset, rows[2, row])
    return np.maximum(lane, 0)


def _ring(schedule: Schedule) -> Ints:
    """The successor of every rank on the ring formed by the first messages of every channel."""
    n, found = schedule.nranks, np.full((schedule.nchannels, schedule.nranks), -1, np.int64)
    for _, steps, _ in _blocks(schedule):
        for step in steps:
            away = step.src_rank != step.dst_rank
            found[step.channel[away], step.src_rank[away]] = step.dst_rank[away]
        if (found >= 0).any():
            break
    for following in found:
        at, seen = 0, 0
        while seen < n and following[at] >= 0:
            at, seen = int(following[at]), seen + 1
            if at == 0:
                break
        if seen != n or at != 0:
            raise _refuse(schedule, "the first messages do not form a ring")
    return found


def certify(schedule: Schedule, symmetry: Symmetry) -> None:
    """Check that a renumbering of ranks and pieces maps a schedule onto itself.

    Raises
    ------
    ScheduleError
        Names the step that is not mapped onto itself.
    """
    _check_served(schedule)
    for permutation in (*symmetry.rank, symmetry.piece):
        if not np.array_equal(np.sort(permutation), np.arange(len(permutation))):
            raise _refuse(schedule, "the candidate is not a permutation")
    if not np.array_equal(symmetry.lane, symmetry.lane[symmetry.piece]):
        raise _refuse(schedule, "the candidate mixes channels")
    for number, steps, repeat in _blocks(schedule):
        for inner, step in enumerate(steps, number):
            if not np.isin(step.op, (COPY, REDUCE)).all():
                raise _refuse(schedule, f"step {inner}: it has switch operations", step=inner)
            if repeat:
                _check_repeat(schedule, symmetry, inner, repeat, step)
            _check_step(schedule, symmetry, inner, step)


def _check_repeat(schedule: Schedule, symmetry: Symmetry, number: int, repeat: Repeat, step: Step) -> None:
    """Check that the symmetry commutes with the shift of a repeat, so that the first iteration decides for all."""
    first, place = _windows(schedule, number, repeat, step)[:, None], np.arange(repeat.modulus)
    piece, shifted = first + place, first + (place + repeat.stride) % repeat.modulus
    after = np.full(schedule.layout.chunks, -1)
    after[piece] = shifted
    same_lane = np.array_equal(symmetry.lane[piece], symmetry.lane[shifted])
    if not same_lane or not np.array_equal(after[symmetry.piece[piece]], symmetry.piece[shifted]):
        raise _refuse(schedule, f"step {number}: the repeat does not shift all chunks equally", step=number)


def _check_step(schedule: Schedule, symmetry: Symmetry, number: int, step: Step) -> None:
    """Check that the transfers of a step are their own image; a range that maps onto itself stays one row."""
    chunks, size = schedule.layout.chunks, schedule.layout.size
    if (step.dst_chunk < chunks).any():
        raise _refuse(schedule, f"step {number}: it writes to an input", step=number)
    whole = _whole_ranges(symmetry, step, chunks)
    if not whole.all():
        if int(step.count[~whole].sum()) > UNITS:
            raise _refuse(schedule, f"step {number} is too large to follow chunk by chunk", step=number)
        kept, single = step.rows(whole), expanded(step.rows(~whole))
        whole, step = np.repeat([True, False], [len(kept), len(single)]), joined([kept, single])
    tag = (step.count * 8 + step.op) * schedule.nchannels + step.channel
    piece = step.dst_chunk % chunks
    moved = np.where(whole, piece, symmetry.piece[piece]) - piece
    src, dst = (rank * size + chunk for rank, chunk in step.ends)
    src_image, dst_image = (symmetry.ranks(rank, piece) * size + chunk + moved for rank, chunk in step.ends)
    here, there = np.lexsort((tag, src, dst)), np.lexsort((tag, src_image, dst_image))
    differs = (src[here] != src_image[there]) | (dst[here] != dst_image[there]) | (tag[here] != tag[there])
    if differs.any():
        row = int(here[np.flatnonzero(differs)[0]])
        rank, chunk = int(step.src_rank[row]), int(step.src_chunk[row])
        where = f"rank {rank} {schedule.layout.name(chunk)} to rank {step.dst_rank[row]}"
        reason = f"step {number}: some transfer like that of {where} has no image"
        raise _refuse(schedule, reason, step=number, rank=rank, chunk=chunk, channel=int(step.channel[row]))


def _whole_ranges(symmetry: Symmetry, step: Step, chunks: int) -> NDArray[np.bool_]:
    """Mask of the transfers of several chunks whose pieces belong to one lane and map onto themselves."""
    result, many = np.zeros(len(step), np.bool_), np.flatnonzero(step.count > 1)
    if len(many):
        kinds, kind = np.unique(
            np.stack([step.dst_chunk[many] % chunks, step.count[many]]), axis=1, return_inverse=True
        )
        keeps = np.zeros(kinds.shape[1], np.bool_)
        for k, (first, count) in enumerate(kinds.T.tolist()):
            image, lane = (values[first : first + count] for values in (symmetry.piece, symmetry.lane))
            keeps[k] = image.min() >= first and image.max() < first + count and (lane == lane[0]).all()
        result[many] = keeps[kind.reshape(-1)]
    return result
