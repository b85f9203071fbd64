"""Proof by symmetry: follow a few places of the vector on all ranks, and certify that the others
are their images.

A symmetry renumbers ranks and places. It is certified if it maps the transfers of every step onto
themselves, and blocks that belong to ranks as it maps these; inputs and required outputs are then
mapped onto themselves, too. So the memory after every step is its own image, and a correct place
implies that all its images are correct. The candidates are rotations of the ring along which the
first messages travel. A repeat is checked only once: the symmetry must commute with its shift.

Transfers keep their place (:mod:`simcoll.proving.vector`), so one of every orbit is followed,
together with its image, on every rank (:mod:`simcoll.proving.columns`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.proof import Proof
from simcoll.core.schedule import COPY, REDUCE, SYNC, Repeat, Schedule, Step, joined
from simcoll.core.step import by_chunk, distinct, spread
from simcoll.errors import ScheduleError, expect
from simcoll.proving.kernel import SALT_BYTES, by_fingerprints
from simcoll.proving.vector import Vector, vector_of

__all__ = [
    "Symmetry",
    "certify",
    "find_symmetry",
    "likely",
    "prove_by_symmetry",
    "verify_by_symmetry",
]

UNITS = 2**24
"""Limit of single-chunk transfers to which a step is expanded."""
SYMMETRIC_RANKS = 64
"""From this many ranks on, certifying the symmetry of a ring is faster than following all chunks:
the proof of an all_reduce takes the same time either way with 48 ranks, and by symmetry three
quarters with 64 and half with 128.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Symmetry:
    """Maps place ``p`` on rank ``r``, in every buffer, to place ``place[p]`` on rank
    ``rank[lane[p], r]``.

    Attributes
    ----------
    rank
        A permutation of the ranks for every lane: ``[lanes, nranks]``.
    lane, place
        Lane and image of every place of the vector.
    """

    rank: Ints
    lane: Ints
    place: Ints

    def ranks(self, rank: Ints, place: Ints) -> Ints:
        """Rank of the image of each cell."""
        return self.rank[self.lane[place], rank]


def verify_by_symmetry(schedule: Schedule) -> Proof:
    """Prove a schedule by following a place of every orbit under a certified symmetry.

    Returns
    -------
    Proof
        Of kind ``by symmetry``.

    Raises
    ------
    ScheduleError
        When the schedule is wrong or no candidate symmetry fits; the message names the step that
        breaks it. The full proof (:func:`simcoll.proving.verify`) needs no symmetry.

    Examples
    --------
    >>> import simcoll
    >>> print(verify_by_symmetry(simcoll.schedule("all_reduce", "ring", nranks=1000)))
    proved (by symmetry, error 2^-50): 1,999,000 transfers in 1,999 steps, reduction order ...
    """
    expect(
        schedule,
        Schedule,
        "verify_by_symmetry takes a schedule, made by schedule(collective, algorithm)",
    )
    return prove_by_symmetry(schedule, os.urandom(SALT_BYTES))


def prove_by_symmetry(schedule: Schedule, salt: bytes) -> Proof:
    """The same with a given salt."""
    from simcoll.proving.columns import follow

    schedule.check()
    vector, symmetry = _vector(schedule), find_symmetry(schedule)
    representative, image = np.arange(vector.size), symmetry.place
    # The least place of every orbit; each turn doubles the distance looked ahead.
    for _ in range(len(representative).bit_length()):
        representative, image = np.minimum(representative, representative[image]), image[image]
    chosen = np.unique(representative)
    # A place and its image show whether their reductions have the same order; if so, the whole
    # orbit has.
    order = follow(schedule, vector, np.union1d(chosen, symmetry.place[chosen]), salt)
    steps = transfers = 0
    for number, inner, repeat in _blocks(schedule):
        turns = repeat.count if repeat else 1
        steps = number + turns * len(inner)
        transfers += turns * sum(len(step) for step in inner)
    return by_fingerprints(
        schedule, "by symmetry", order, (steps, transfers), salt, shared_chunks=False, folds=False
    )


def likely(schedule: Schedule) -> bool:
    """Whether a proof by symmetry is worth a try: there are many ranks, and one of the first steps
    repeats, with no switches before it.

    Without repeats, certifying step by step takes longer than following the chunks.
    """
    # Copies repeat where the schedule does of which they are copies, and its steps are smaller.
    model = getattr(schedule.source, "schedule", None)
    return (type(model) is not Schedule or _repeats_early(model)) and _repeats_early(schedule)


def _repeats_early(schedule: Schedule) -> bool:
    if schedule.nranks < SYMMETRIC_RANKS or vector_of(schedule.layout) is None:
        return False
    for block in islice(schedule.blocks(), 4):
        if isinstance(block, Repeat) or (block.op > SYNC).any():
            return isinstance(block, Repeat)
    return False


def find_symmetry(schedule: Schedule) -> Symmetry:
    """A certified symmetry of a schedule.

    Raises
    ------
    ScheduleError
        When no candidate passes; the reason is that for the first.
    """
    vector = _vector(schedule)
    lane, ring = _lanes(schedule, vector), _ring(schedule)
    refusals = []
    for image in _images(vector, lane, ring):
        symmetry = Symmetry(ring, lane, image)
        try:
            certify(schedule, symmetry)
        except ScheduleError as error:
            refusals.append(error)
        else:
            return symmetry
    raise refusals[0]


def _images(vector: Vector, lane: Ints, ring: Ints) -> list[Ints]:
    """Candidates for the image of every place: the block of a rank moves with it; a whole vector
    rotates, one way or the other.
    """
    if vector.by_block:
        return [_with_ranks(vector, lane, ring)]
    n, images = ring.shape[1], []
    for direction in (1, -1):
        image = np.arange(len(lane))
        for run in np.split(image.copy(), np.flatnonzero(np.diff(lane)) + 1):
            if len(run) % n == 0:  # the symmetry moves a lane's part of the vector by one n-th
                image[run] = np.roll(run, -direction * len(run) // n)
        images.append(image)
    return images


def _with_ranks(vector: Vector, lane: Ints, rank: Ints) -> Ints:
    """The image of every place if blocks are renumbered as their ranks are."""
    block, piece = np.divmod(np.arange(vector.size), vector.layout.chunks)
    return rank[lane, block] * vector.layout.chunks + piece


def _refuse(schedule: Schedule, reason: str, **location: int) -> ScheduleError:
    return ScheduleError(f"{schedule}: no proof by symmetry: {reason}", **location)


def _vector(schedule: Schedule) -> Vector:
    vector = vector_of(schedule.layout)
    if vector is None:
        raise _refuse(
            schedule, f"the ranks, blocks or scratch of {schedule.collective} are not symmetric"
        )
    return vector


def _blocks(schedule: Schedule) -> Iterator[tuple[int, tuple[Step, ...], Repeat | None]]:
    """Every step and repeat, with the number of its first step and with resolved aliases."""
    number = 0
    for block in schedule.blocks():
        repeat = block if isinstance(block, Repeat) else None
        steps = block.steps if isinstance(block, Repeat) else (schedule.layout.one_address(block),)
        yield number, steps, repeat
        number += len(steps) * (repeat.count if repeat else 1)


def _windows(schedule: Schedule, vector: Vector, number: int, repeat: Repeat, step: Step) -> Ints:
    """The places of every window that a repeated step touches, ``[windows, modulus]``; all its
    transfers must keep their place.
    """
    layout = schedule.layout
    (src, src_at), (dst, dst_at) = (
        repeat.window(chunk) for chunk in (step.src_chunk, step.dst_chunk)
    )
    starts = distinct(src, dst)
    chunks = repeat.chunk_at(np.maximum(starts[:, None], 0) + np.arange(repeat.modulus))
    region = layout.region(chunks)
    lowest = layout.output_base if schedule.collective.in_place else 0  # inputs may be aliases
    uniform = starts[0] >= 0 and chunks.min() >= lowest and chunks.max() < layout.size
    uniform = (
        uniform and not vector.own_block[region].any() and bool((region == region[:, :1]).all())
    )
    if uniform and (step.count == 1).all() and np.array_equal(src_at, dst_at):
        windows = vector.at(np.zeros_like(chunks), chunks)[1]
        first_window, like = np.unique(windows[:, 0], return_index=True, return_inverse=True)[1:]
        from_window, to_window = (like[np.searchsorted(starts, start)] for start in (src, dst))
        if np.array_equal(windows, windows[first_window[like]]) and np.array_equal(
            from_window, to_window
        ):
            return windows[first_window]
    raise _refuse(
        schedule, f"step {number}: the repeat does not shift all chunks equally", step=number
    )


def _lanes(schedule: Schedule, vector: Vector) -> Ints:
    """Channel that touches each place on any rank; 0 for untouched places."""
    lane = np.full(vector.size, -1, np.int64)

    def claim(number: int, place: Ints, channel: Ints) -> None:
        for _ in range(2):  # the second comparison finds two channels in one call
            if ((lane[place] >= 0) & (lane[place] != channel)).any():
                raise _refuse(
                    schedule, f"step {number}: two channels touch the same chunks", step=number
                )
            lane[place] = channel

    for number, steps, repeat in _blocks(schedule):
        for step in steps:
            src, dst = (vector.at(*end)[1] for end in step.ends)
            if not np.array_equal(src, dst):
                raise _refuse(
                    schedule,
                    f"step {number}: a transfer changes its place in the vector",
                    step=number,
                )
            if repeat:
                for channel in np.unique(step.channel).tolist():
                    place = _windows(
                        schedule, vector, number, repeat, step.rows(step.channel == channel)
                    ).reshape(-1)
                    claim(number, place, np.full(len(place), channel))
            else:
                rows = np.unique(np.stack([dst, step.count, step.channel]), axis=1)
                row, offset = spread(rows[1])
                claim(number, rows[0, row] + offset, rows[2, row])
    return np.maximum(lane, 0)


def _ring(schedule: Schedule) -> Ints:
    """The successor of every rank on the ring formed by the first messages of every channel."""
    n, successor = schedule.nranks, np.full((schedule.nchannels, schedule.nranks), -1, np.int64)
    for _, steps, _ in _blocks(schedule):
        for step in steps:
            away = step.src_rank != step.dst_rank
            successor[step.channel[away], step.src_rank[away]] = step.dst_rank[away]
        if (successor >= 0).any():
            break
    for following in successor:
        rank, visited = 0, 0
        while visited < n and following[rank] >= 0:
            rank, visited = int(following[rank]), visited + 1
            if rank == 0:
                break
        if visited != n or rank != 0:
            raise _refuse(schedule, "the first messages do not form a ring")
    return successor


def certify(schedule: Schedule, symmetry: Symmetry) -> None:
    """Check that a renumbering of ranks and places maps a schedule onto itself.

    Raises
    ------
    ScheduleError
        Names the step that is not mapped onto itself.
    """
    vector = _vector(schedule)
    for permutation in (*symmetry.rank, symmetry.place):
        if not np.array_equal(np.sort(permutation), np.arange(len(permutation))):
            raise _refuse(schedule, "the candidate is not a permutation")
    if not np.array_equal(symmetry.lane, symmetry.lane[symmetry.place]):
        raise _refuse(schedule, "the candidate mixes channels")
    if vector.by_block and not np.array_equal(
        symmetry.place, _with_ranks(vector, symmetry.lane, symmetry.rank)
    ):
        raise _refuse(schedule, "the candidate separates blocks from their ranks")
    for number, steps, repeat in _blocks(schedule):
        for inner, step in enumerate(steps, number):
            if not np.isin(step.op, (COPY, REDUCE)).all():
                raise _refuse(schedule, f"step {inner}: it has switch operations", step=inner)
            if repeat:
                _check_repeat(schedule, vector, symmetry, inner, repeat, step)
            _check_step(schedule, vector, symmetry, inner, step)


def _check_repeat(
    schedule: Schedule, vector: Vector, symmetry: Symmetry, number: int, repeat: Repeat, step: Step
) -> None:
    """Check that the symmetry commutes with the shift of a repeat, so that the first iteration
    decides for all.
    """
    place = _windows(schedule, vector, number, repeat, step)
    shifted = np.roll(place, -(repeat.stride % repeat.modulus), axis=1)
    next_place = np.full(vector.size, -1)
    next_place[place] = shifted
    same_lane = np.array_equal(symmetry.lane[place], symmetry.lane[shifted])
    one_shift = np.array_equal(next_place[place], shifted)
    if not (
        same_lane
        and one_shift
        and np.array_equal(next_place[symmetry.place[place]], symmetry.place[shifted])
    ):
        raise _refuse(
            schedule, f"step {number}: the repeat does not shift all chunks equally", step=number
        )


def _check_step(
    schedule: Schedule, vector: Vector, symmetry: Symmetry, number: int, step: Step
) -> None:
    """Check that the transfers of a step are their own image; a range that maps onto itself stays
    one row.
    """
    size = schedule.layout.size
    if (step.dst_chunk < schedule.layout.output_base).any():
        raise _refuse(schedule, f"step {number}: it writes to an input", step=number)
    intact = _whole_ranges(symmetry, step, vector)
    if not intact.all():
        if int(step.count[~intact].sum()) > UNITS:
            raise _refuse(
                schedule, f"step {number} is too large to follow chunk by chunk", step=number
            )
        intact_rows, single = step.rows(intact), by_chunk(step.rows(~intact))
        intact, step = (
            np.repeat([True, False], [len(intact_rows), len(single)]),
            joined([intact_rows, single]),
        )
    tag = (step.count * 8 + step.op) * schedule.nchannels + step.channel
    cells, images = [], []
    for ranks, chunks in step.ends:
        region, place = vector.at(ranks, chunks)
        moved = np.where(intact | vector.own_block[region], 0, symmetry.place[place] - place)
        cells.append(ranks * size + chunks)
        images.append(symmetry.ranks(ranks, place) * size + chunks + moved)
    (src, dst), (src_image, dst_image) = cells, images
    order, image_order = np.lexsort((tag, src, dst)), np.lexsort((tag, src_image, dst_image))
    differs = (
        (src[order] != src_image[image_order])
        | (dst[order] != dst_image[image_order])
        | (tag[order] != tag[image_order])
    )
    if differs.any():
        row = int(order[np.flatnonzero(differs)[0]])
        rank, chunk = int(step.src_rank[row]), int(step.src_chunk[row])
        example = f"rank {rank} {schedule.layout.name(chunk)} to rank {step.dst_rank[row]}"
        reason = f"step {number}: some transfer like that of {example} has no image"
        raise _refuse(
            schedule, reason, step=number, rank=rank, chunk=chunk, channel=int(step.channel[row])
        )


def _whole_ranges(symmetry: Symmetry, step: Step, vector: Vector) -> NDArray[np.bool_]:
    """Mask of the transfers of several chunks whose places belong to one lane and map onto
    themselves.
    """
    result, long_rows = np.zeros(len(step), np.bool_), np.flatnonzero(step.count > 1)
    if len(long_rows):
        place = vector.at(step.dst_rank[long_rows], step.dst_chunk[long_rows])[1]
        kinds, kind = np.unique(
            np.stack([place, step.count[long_rows]]), axis=1, return_inverse=True
        )
        keeps = np.zeros(kinds.shape[1], np.bool_)
        for k, (start, count) in enumerate(kinds.T.tolist()):
            image, lane = (
                values[start : start + count] for values in (symmetry.place, symmetry.lane)
            )
            keeps[k] = (
                image.min() >= start and image.max() < start + count and (lane == lane[0]).all()
            )
        result[long_rows] = keeps[kind.reshape(-1)]
    return result
