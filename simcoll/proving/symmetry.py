"""Proof by symmetry: follow a few chunks on all ranks, and certify that the others are their images.

A symmetry is a renumbering of the cells (rank, chunk) of the whole cluster. It is certified when it maps the transfers of every
step, the initial contents and the required outputs onto themselves. Then the memory
after every step is its own image, so a correct chunk makes all its images correct. The candidates are rotations: of the
ring that the first messages run on, or of the rank numbers. A repeat is checked once: the symmetry must commute with its shift.

Transfers never leave the connected chunks that they relate, so one set of connected chunks per orbit is followed, on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from simcoll.core.proof import Proof
from simcoll.core.schedule import COPY, REDUCE, Repeat, Schedule, Step, joined
from simcoll.core.step import expanded, spread
from simcoll.errors import ScheduleError, expect
from simcoll.proving.columns import follow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["Symmetry", "certify", "find_symmetry", "verify_by_symmetry"]

UNITS = 2**24
"""A step is not expanded to more transfers of single chunks than this."""


@dataclass(frozen=True, slots=True, eq=False)
class Symmetry:
    """Maps the cell ``(r, c)`` to ``(rank[lane[c], r], chunk[c])``.

    Attributes
    ----------
    rank
        A permutation of the ranks for every lane: ``[lanes, nranks]``.
    lane, chunk
        Lane and image of every chunk address.
    """

    rank: Ints
    lane: Ints
    chunk: Ints

    def ranks(self, rank: Ints, chunk: Ints) -> Ints:
        """Rank of the image of each cell."""
        return self.rank[self.lane[chunk], rank]


def verify_by_symmetry(schedule: Schedule) -> Proof:
    """Prove a schedule by following one chunk of every orbit under a certified symmetry.

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
    chunks = _representatives(schedule, symmetry)
    order = follow(schedule, chunks, symmetry.ranks)
    steps = transfers = 0
    for _, block in _blocks(schedule):
        turns, inner = (block.count, block.steps) if isinstance(block, Repeat) else (1, (block,))
        steps += turns * len(inner)
        transfers += turns * sum(len(step) for step in inner)
    return Proof("by symmetry", "fingerprint", order, steps, transfers, shared_chunks=False)


def find_symmetry(schedule: Schedule) -> Symmetry:
    """A certified symmetry of a schedule.

    Raises
    ------
    ScheduleError
        When no candidate passes; the reason is that of the last one.
    """
    collective = schedule.collective
    if collective.root is not None or collective.kind in ("barrier", "send_recv"):
        raise _refuse(schedule, f"the ranks of {collective.kind} are not alike")
    lane = _lanes(schedule)
    plain = np.tile((np.arange(schedule.nranks) + 1) % schedule.nranks, (schedule.nchannels, 1))
    first = _first_neighbours(schedule)
    refusal = None
    for rank in (plain,) if first is None or np.array_equal(first, plain) else (first, plain):
        for way in (1, -1):
            symmetry = Symmetry(rank, lane, _images(schedule, rank, lane, way))
            try:
                certify(schedule, symmetry)
            except ScheduleError as error:
                refusal = refusal or error
            else:
                return symmetry
    raise refusal or ScheduleError(f"{schedule} has no symmetry")


def _refuse(schedule: Schedule, reason: str, **where: int) -> ScheduleError:
    return ScheduleError(f"{schedule}: no proof by symmetry: {reason}", **where)


def _blocks(schedule: Schedule) -> Iterator[tuple[int, Step | Repeat]]:
    """Blocks with the number of their first step; chunks at their one address."""
    number = 0
    for block in schedule.blocks():
        if isinstance(block, Repeat) or not schedule.collective.in_place:
            yield number, block
        else:
            yield number, schedule.layout.one_address(block)
        number += block.count * len(block.steps) if isinstance(block, Repeat) else 1


def _windows(block: Repeat, step: Step) -> Ints:
    """Every chunk of the windows that a step of a repeat touches."""
    chunk = np.unique(np.concatenate([step.src_chunk, step.dst_chunk]))
    starts = np.unique(chunk - (chunk - block.base) % block.modulus)
    result: Ints = (starts[:, None] + np.arange(block.modulus)).reshape(-1)
    return result


def _lanes(schedule: Schedule) -> Ints:
    """Channel that touches each chunk address on any rank; 0 for untouched ones."""
    layout = schedule.layout
    lane = np.full(layout.size, -1, np.int64)

    def claim(number: int, chunk: Ints, channel: Ints) -> None:
        for _ in range(2):  # the second comparison finds two channels in one call
            if ((lane[chunk] >= 0) & (lane[chunk] != channel)).any():
                raise _refuse(schedule, f"step {number}: two channels touch the same chunks", step=number)
            lane[chunk] = channel

    for number, block in _blocks(schedule):
        for step in block.steps if isinstance(block, Repeat) else (block,):
            if isinstance(block, Repeat):
                for channel in np.unique(step.channel).tolist():
                    on = step.channel == channel
                    chunk = _windows(block, step.rows(on))
                    if chunk[0] < 0 or chunk[-1] >= layout.size:
                        raise _refuse(schedule, f"step {number}: a repeat shifts chunks out of the memory", step=number)
                    claim(number, chunk, np.full(len(chunk), channel))
            else:
                for start in (step.src_chunk, step.dst_chunk):
                    rows = np.unique(np.stack([start, step.count, step.channel]), axis=1)
                    row, offset = spread(rows[1])
                    claim(number, rows[0, row] + offset, rows[2, row])
    # Of two names of one chunk, only the one that transfers use has a channel so far.
    home = layout.canonical(np.zeros(layout.size, np.int64), np.arange(layout.size))
    return np.maximum(np.where(lane < 0, lane[home], lane), 0)


def _first_neighbours(schedule: Schedule) -> Ints | None:
    """The ring formed by the first messages of every channel, if they form one."""
    n, found = schedule.nranks, np.full((schedule.nchannels, schedule.nranks), -1, np.int64)
    for _, block in _blocks(schedule):
        for step in block.steps if isinstance(block, Repeat) else (block,):
            away = step.src_rank != step.dst_rank
            if away.any():
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
            return None
    return found


def _images(schedule: Schedule, rank: Ints, lane: Ints, way: int) -> Ints:
    """Image of every chunk: slots that stand for ranks move like ranks, and a lane's part of a single slot moves by one n-th."""
    layout, collective, n = schedule.layout, schedule.collective, schedule.nranks
    chunk = np.arange(layout.size)
    image = chunk.copy()
    named = layout.scratch.ndim == 1 and np.array_equal(layout.scratch, np.arange(n))
    slots = (collective.input_slots, collective.output_slots, layout.scratch_slots)
    split = max(slots[:2]) == 1
    for region, (start, end) in enumerate(zip(layout.bases()[:-1].tolist(), layout.bases()[1:].tolist(), strict=True)):
        here = chunk[start:end]
        slot, piece = (here - start) // layout.chunks, (here - start) % layout.chunks
        if slots[region] == n > 1 and (region < 2 or named):
            image[start:end] = start + rank[lane[here], slot] * layout.chunks + piece
        elif split:
            for one in range(slots[region]):
                part = here[slot == one]
                edges = np.flatnonzero(np.diff(lane[part])) + 1
                for run in np.split(part, edges):
                    if len(run) % n == 0:
                        image[run] = np.roll(run, -way * len(run) // n)
    return image


def certify(schedule: Schedule, symmetry: Symmetry) -> None:
    """Check that a renumbering of cells maps a schedule, its inputs and its outputs onto themselves.

    Raises
    ------
    ScheduleError
        Naming the step that it does not map onto itself.
    """
    layout, collective, n = schedule.layout, schedule.collective, schedule.nranks
    everyone, chunk = np.arange(n), np.arange(layout.size)
    if collective.root is not None or collective.kind in ("barrier", "send_recv"):
        raise _refuse(schedule, f"the ranks of {collective.kind} are not alike")
    if layout.scratch.ndim > 1 or layout.scratch_pieces is not None:
        raise _refuse(schedule, "scratch differs from rank to rank")
    for permutation in (*symmetry.rank, symmetry.chunk):
        if not np.array_equal(np.sort(permutation), np.arange(len(permutation))):
            raise _refuse(schedule, "the candidate is no permutation")
    if not np.array_equal(layout.region(chunk), layout.region(symmetry.chunk)) or not np.array_equal(
        symmetry.lane, symmetry.lane[symmetry.chunk]
    ):
        raise _refuse(schedule, "the candidate mixes buffers or channels")
    # The required contents of these outputs do not depend on the rank, so one rank suffices.
    ranks = everyone[:1] if collective.kind in ("all_reduce", "all_gather") else everyone
    _check_meaning(schedule, symmetry, ranks)
    for number, block in _blocks(schedule):
        steps = block.steps if isinstance(block, Repeat) else (block,)
        for inner, step in enumerate(steps):
            if not np.isin(step.op, (COPY, REDUCE)).all():
                raise _refuse(schedule, f"step {number + inner}: switches do a part of it", step=number + inner)
            if isinstance(block, Repeat):
                _check_repeat(schedule, symmetry, number + inner, block, step)
            _check_step(schedule, symmetry, number + inner, step)


def _check_meaning(schedule: Schedule, symmetry: Symmetry, ranks: Ints) -> None:
    """Check that the required outputs, and the places of inputs, map onto themselves."""
    layout, collective = schedule.layout, schedule.collective

    def wanted(rank: Ints, chunk: Ints) -> tuple[Ints, Ints]:
        slot, piece = np.divmod(chunk - layout.output_base, layout.chunks)
        source, source_slot = collective.source(rank, slot)
        return source, layout.input(source_slot, piece)

    outputs = np.arange(layout.output_base, layout.scratch_base)
    rank, chunk = (cells.reshape(-1) for cells in np.meshgrid(ranks, outputs, indexing="ij"))
    source, held = wanted(rank, chunk)
    image_source, image_held = wanted(symmetry.ranks(rank, chunk), symmetry.chunk[chunk])
    moved = np.where(source < 0, source, symmetry.ranks(np.maximum(source, 0), held))
    if not np.array_equal(image_source, moved) or not np.array_equal(image_held, symmetry.chunk[held]):
        raise _refuse(schedule, "the candidate changes what the outputs must hold")
    if collective.in_place:
        inputs = np.arange(layout.output_base)
        rank, chunk = (cells.reshape(-1) for cells in np.meshgrid(ranks, inputs, indexing="ij"))
        home = layout.canonical(rank, chunk)
        image = layout.canonical(symmetry.ranks(rank, chunk), symmetry.chunk[chunk])
        if not np.array_equal(image, symmetry.chunk[home]):
            raise _refuse(schedule, "the candidate moves inputs away from the outputs that they share memory with")


def _check_repeat(schedule: Schedule, symmetry: Symmetry, number: int, block: Repeat, step: Step) -> None:
    """Check that the symmetry commutes with the shift of a repeat, so that its first turn decides for all."""
    layout = schedule.layout
    chunk = _windows(block, step)
    shifted = block._shifted(chunk, block.stride)  # noqa: SLF001
    places = [(c - block.base) % block.modulus for c in (step.src_chunk, step.dst_chunk)]
    own = (
        layout.canonical(rank, c) == c for rank, c in ((step.src_rank, step.src_chunk), (step.dst_rank, step.dst_chunk))
    )
    image = symmetry.chunk[chunk]
    if (
        not all(each.all() for each in own)
        or not (step.count == 1).all()
        or not np.array_equal(places[0], places[1])
        or schedule.collective.nblocks > 1
        or not np.array_equal(layout.region(chunk), layout.region(shifted))
        or not np.array_equal(symmetry.lane[chunk], symmetry.lane[shifted])
        or not np.isin(image, chunk).all()
        or not np.array_equal(symmetry.chunk[shifted], block._shifted(image, block.stride))  # noqa: SLF001
    ):
        raise _refuse(schedule, f"step {number}: the repeat does not shift all chunks alike", step=number)


def _check_step(schedule: Schedule, symmetry: Symmetry, number: int, step: Step) -> None:
    """Check that the transfers of a step are their own image; a range that maps onto itself stays one row."""
    if not schedule.divisible and not schedule.layout.same_size(step).all():
        raise ScheduleError(f"{schedule}: step {number}: moves chunks of different sizes", step=number)
    whole = _whole_ranges(symmetry, step)
    if not whole.all():
        if int(step.count[~whole].sum()) > UNITS:
            raise _refuse(schedule, f"step {number} is too large to follow chunk by chunk", step=number)
        single = expanded(step.rows(~whole))
        kept = step.rows(whole)
        whole = np.repeat([True, False], [len(kept), len(single)])
        step = joined([kept, single])
    size = schedule.layout.size
    tag = (step.count * 8 + step.op) * schedule.nchannels + step.channel
    src = step.src_rank * size + step.src_chunk
    dst = step.dst_rank * size + step.dst_chunk
    src_chunk = np.where(whole, step.src_chunk, symmetry.chunk[step.src_chunk])
    dst_chunk = np.where(whole, step.dst_chunk, symmetry.chunk[step.dst_chunk])
    src_image = symmetry.ranks(step.src_rank, step.src_chunk) * size + src_chunk
    dst_image = symmetry.ranks(step.dst_rank, step.dst_chunk) * size + dst_chunk
    here, there = np.lexsort((tag, src, dst)), np.lexsort((tag, src_image, dst_image))
    differs = (src[here] != src_image[there]) | (dst[here] != dst_image[there]) | (tag[here] != tag[there])
    if differs.any():
        row = int(here[np.flatnonzero(differs)[0]])
        rank, chunk = int(step.src_rank[row]), int(step.src_chunk[row])
        where = f"rank {rank} {schedule.layout.name(chunk)} to rank {step.dst_rank[row]}"
        reason = f"step {number}: not every transfer like that of {where} is there"
        raise _refuse(schedule, reason, step=number, rank=rank, chunk=chunk, channel=int(step.channel[row]))


def _whole_ranges(symmetry: Symmetry, step: Step) -> NDArray[np.bool_]:
    """Mask of the transfers of many chunks whose source and destination ranges map onto themselves alike."""
    result = np.zeros(len(step), np.bool_)
    many = np.flatnonzero(step.count > 1)
    if len(many):
        rows = np.stack([step.src_chunk[many], step.dst_chunk[many], step.count[many]])
        kinds, kind = np.unique(rows, axis=1, return_inverse=True)
        keeps = np.zeros(kinds.shape[1], np.bool_)
        for k, (src, dst, count) in enumerate(kinds.T.tolist()):
            inside = symmetry.chunk[src : src + count] - src
            lanes = symmetry.lane[[*range(src, src + count), *range(dst, dst + count)]]
            alike = np.array_equal(inside, symmetry.chunk[dst : dst + count] - dst) and (lanes == lanes[0]).all()
            keeps[k] = alike and inside.min() >= 0 and inside.max() < count
        result[many] = keeps[kind.reshape(-1)]
    return result


def _representatives(schedule: Schedule, symmetry: Symmetry) -> Ints:
    """Connected chunks, one set for every orbit of sets."""
    size = schedule.layout.size
    pairs = [np.zeros((2, 0), np.int64)]
    for _, block in _blocks(schedule):
        for step in block.steps if isinstance(block, Repeat) else (block,):
            rows = np.unique(np.stack([step.src_chunk, step.dst_chunk, step.count]), axis=1)
            if isinstance(block, Repeat):  # the same place in two windows, at every shift
                start = rows[:2] - (rows[:2] - block.base) % block.modulus
                start = np.unique(start[:, start[0] != start[1]], axis=1)
                pairs.append((start[:, :, None] + np.arange(block.modulus)).reshape(2, -1))
                continue
            row, offset = spread(rows[2])
            pairs.append(rows[:2, row] + offset)
    related = np.unique(np.concatenate(pairs, axis=1), axis=1)
    if schedule.collective.in_place:  # two names of one chunk
        chunk = np.arange(size)
        for rank in (0,) if schedule.collective.kind == "all_reduce" else range(schedule.nranks):
            home = schedule.layout.canonical(np.full_like(chunk, rank), chunk)
            related = np.concatenate([related, np.stack([chunk, home])], axis=1)
    _, part = connected_components(
        coo_array((np.ones(related.shape[1]), (related[0], related[1])), shape=(size, size)), directed=False
    )
    parts = int(part.max()) + 1
    edges = (part, part[symmetry.chunk])
    _, orbit = connected_components(coo_array((np.ones(size), edges), shape=(parts, parts)), directed=False)
    _, first = np.unique(orbit, return_index=True)
    chosen: Ints = np.flatnonzero(np.isin(part, first))
    return chosen
