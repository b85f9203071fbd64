"""Combinators: functions from schedules to schedules.

An algorithm is written once, for one channel and whole blocks; these give it channels, pieces, other numberings of the ranks, and company.
A chunk keeps its place in its slot: the part of a slot that a copy works on is called a share.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.schedule import COPY, Layout, Repeat, Schedule, Step, joined
from simcoll.core.step import moving_part, spread
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from simcoll.core.collective import Collective

    Ints = NDArray[np.int64]

__all__ = [
    "channels",
    "in_channels",
    "in_pieces",
    "in_shares",
    "in_stages",
    "pieces",
    "pipelined",
    "relabelled",
    "staggered",
    "together",
]


def _local(step: Step) -> bool:
    """Whether ranks only copy their own data."""
    return bool(((step.src_rank == step.dst_rank) & (step.op == COPY)).all())


def _blocks(schedule: Schedule) -> Iterator[Step | Repeat]:
    """The blocks of a part, not compared with those of the last time: the schedule that it becomes part of is."""
    return (moving for block in schedule.source() if (moving := moving_part(block)) is not None)


def _steps(schedule: Schedule) -> Iterator[Step]:
    """The steps of a part, repeats unrolled."""
    for block in _blocks(schedule):
        yield from block.unrolled() if isinstance(block, Repeat) else (block,)


def _map(block: Step | Repeat, change: Callable[[Step], list[Step]]) -> list[Step]:
    steps = block.steps if isinstance(block, Repeat) else (block,)
    return [new for step in steps for new in change(step)]


# -- pieces --------------------------------------------------------------------------------------------------------------------


def _piece(step: Step, count: int, piece: int) -> Step:
    """One of the pieces of every chunk that a step moves; -1: all of them."""
    if piece < 0:
        return replace(
            step, src_chunk=step.src_chunk * count, dst_chunk=step.dst_chunk * count, count=step.count * count
        )
    if (step.count != 1).any():
        raise ConfigError("only transfers of single chunks can be cut into pieces")
    return replace(step, src_chunk=step.src_chunk * count + piece, dst_chunk=step.dst_chunk * count + piece)


def _finer(layout: Layout, count: int) -> Layout:
    """The layout with every chunk cut into pieces."""
    if layout.scratch_pieces is not None:
        raise ConfigError("scratch slots of single chunks cannot be cut into pieces")
    return Layout(layout.collective, layout.chunks * count, layout.scratch)


def pieces(schedule: Schedule, count: int) -> Schedule:
    """Cut every chunk into pieces, one step each; a rank's copies to itself stay whole.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> [len(list(made.steps())) for made in (ring, pieces(ring, 4))]
    [3, 9]
    """
    if count == 1:
        return schedule

    def cut(step: Step) -> list[Step]:
        return [_piece(step, count, piece) for piece in ([-1] if _local(step) else range(count))]

    def steps() -> Iterator[Step | Repeat]:
        for block in _blocks(schedule):
            new = _map(block, cut)
            if isinstance(block, Repeat):
                yield Repeat(tuple(new), block.count, block.stride * count, block.base * count, block.modulus * count)
            else:
                yield from new

    return replace(schedule, layout=_finer(schedule.layout, count), source=steps)


def pipelined(schedule: Schedule, count: int, *, newest_first: bool = False, drained: bool = True) -> Schedule:
    """Cut every chunk into pieces that follow one step apart, so that successive steps overlap.

    A pipeline is ``drained`` where the operation changes; a rank's copies to itself stay whole. ``newest_first`` is the order of
    the pieces in a step.
    """
    if count == 1:
        return schedule

    def steps() -> Iterator[Step]:
        for (local, _), found in groupby(_steps(schedule), lambda step: (_local(step), drained and int(step.op[0]))):
            rounds = list(found)
            if local:
                yield from (_piece(step, count, -1) for step in rounds)
                continue
            for time in range(len(rounds) + count - 1):
                under_way = range(max(0, time - len(rounds) + 1), min(time + 1, count))
                yield joined(
                    [
                        _piece(rounds[time - piece], count, piece)
                        for piece in (under_way[::-1] if newest_first else under_way)
                    ]
                )

    return replace(schedule, layout=_finer(schedule.layout, count), source=steps)


# -- numberings of the ranks -----------------------------------------------------------------------------------------------------


def _renamed(collective: Collective, order: Ints, block: Ints) -> Ints:
    """The block that a block becomes when rank r becomes ``order[r]``."""
    n = collective.nranks
    if collective.nblocks <= 1:
        return block
    return order[block] if collective.nblocks == n else order[block // n] * n + order[block % n]


def relabelled(schedule: Schedule, order: ArrayLike, *, by_rank: bool = False) -> Schedule:
    """The same schedule with rank ``order[r]`` in the place of rank r, blocks included.

    What ranks copy for themselves comes in the order of its chunks, or ``by_rank`` in that of the ranks.
    """
    ranks, layout, collective = np.asarray(order, np.int64), schedule.layout, schedule.collective
    n = collective.nranks
    if np.array_equal(ranks, np.arange(n)):
        return schedule
    if not np.array_equal(np.sort(ranks), np.arange(n)):
        raise ConfigError(f"order={ranks.tolist()!s:.80}: expected every rank 0..{n - 1} once")
    if collective.pairs or (collective.root is not None and ranks[collective.root] != collective.root):
        raise ConfigError(f"{collective}: relabelling would change its root or pairs")
    if layout.scratch.ndim != 1 or len(np.unique(layout.scratch)) not in {
        len(layout.scratch),
        min(len(layout.scratch), 1),
    }:
        raise ConfigError(f"{schedule.title}: ranks with different scratch cannot be relabelled")
    inputs, outputs = (np.arange(slots) for slots in (collective.input_slots, collective.output_slots))
    slot_of = [ranks[slots] if len(slots) == n > 1 else slots for slots in (inputs, outputs)]
    blocks = _renamed(collective, ranks, layout.scratch)
    home = {block: slot for slot, block in enumerate(layout.scratch.tolist())}
    alike = collective.nblocks <= 1
    slot_of.append(np.array([slot if alike else home[block] for slot, block in enumerate(blocks.tolist())], np.int64))
    bases, widths = layout.bases(), (layout.chunks, layout.chunks, layout.scratch_chunks)
    to = np.concatenate([base + slots.repeat(width) * width + np.tile(np.arange(width), len(slots))
                         for base, slots, width in zip(bases.tolist(), slot_of, widths, strict=False)])  # fmt: skip
    moves = not all(np.array_equal(slots, np.arange(len(slots))) for slots in slot_of)

    def change(step: Step) -> list[Step]:
        one = _within_slots(step, layout) if moves else step
        new = replace(
            one,
            src_rank=ranks[one.src_rank],
            src_chunk=to[one.src_chunk],
            dst_rank=ranks[one.dst_rank],
            dst_chunk=to[one.dst_chunk],
        )
        if _local(new):
            new = new.rows(np.argsort(new.src_rank if by_rank else new.src_chunk, kind="stable"))
        return [new]

    def steps() -> Iterator[Step | Repeat]:
        for block in _blocks(schedule):
            if isinstance(block, Repeat) and not moves:
                yield replace(block, steps=tuple(_map(block, change)))
            else:
                unrolled = block.unrolled() if isinstance(block, Repeat) else (block,)
                yield from chain.from_iterable(map(change, unrolled))

    return replace(schedule, source=steps)


# -- shares of the data ------------------------------------------------------------------------------------------------------------


def _within_slots(step: Step, layout: Layout) -> Step:
    """The step with no transfer that reaches over the end of a slot: those that do go slot by slot."""
    if (step.count == 1).all():
        return step
    widths, bases = np.array([layout.chunks, layout.chunks, layout.scratch_chunks]), layout.bases()
    over = np.zeros(len(step), np.bool_)
    for chunk in (step.src_chunk, step.dst_chunk):
        region = layout.region(chunk)
        over |= (chunk - bases[region]) % widths[region] + step.count > widths[region]
    if not over.any():
        return step
    width = layout.chunks if layout.scratch_pieces is None else 1
    if ((step.count[over] % width) != 0).any():
        width = 1
    row, number = spread(np.where(over, step.count // width, 1))
    order = np.argsort(number, kind="stable")
    row, offset = row[order], number[order] * width
    new = step.rows(row)
    count = np.where(over[row], width, new.count)
    return replace(new, src_chunk=new.src_chunk + offset, dst_chunk=new.dst_chunk + offset, count=count)


def _shared(layout: Layout, copies: int) -> Layout:
    """The layout in which every slot has a share for each copy."""
    if layout.scratch_pieces is None:
        return Layout(layout.collective, layout.chunks * copies, layout.scratch)
    number = np.tile(np.arange(copies), layout.scratch.shape[-1])
    scratch, part = (np.repeat(values, copies, axis=-1) for values in (layout.scratch, layout.scratch_pieces))
    return Layout(layout.collective, layout.chunks * copies, scratch, part + number * layout.chunks)


def _homes(old: Layout, new: Layout) -> tuple[Ints, Ints]:
    """Place of each chunk in the first share of its slot, and the distance to the next share."""
    chunk = np.arange(old.size)
    region, copies = old.region(chunk), new.chunks // old.chunks
    width = np.where(region == 2, old.scratch_chunks, old.chunks)
    slot, place = np.divmod(chunk - old.bases()[region], width)
    return new.bases()[region] + slot * copies * width + place, width


def _placed(steps: Sequence[Step], shares: Sequence[int], old: Layout, homes: tuple[Ints, Ints]) -> Step:
    """Steps side by side, each on one share of every slot."""
    inside = [_within_slots(step, old) for step in steps]
    one, (home, width) = joined(inside), homes
    share = np.repeat(np.array(shares, np.int64), [len(step) for step in inside])
    src, dst = (home[chunk] + share * width[chunk] for chunk in (one.src_chunk, one.dst_chunk))
    return replace(one, src_chunk=src, dst_chunk=dst)


def _alternating(step: Step, copy: Ints, row: Ints, run: int) -> Step:
    """The transfers of copies, whose numbers and rows are given, ``run`` of each at a time."""
    return step if int(row.max(initial=0)) < run else step.rows(np.lexsort((copy, row // run)))


def in_shares(schedules: Sequence[Schedule], *, run: int | None = None) -> Schedule:
    """Schedules of one collective side by side, each with an equal share of every block and channels of its own.

    They must have one layout, and as many steps each. In a step the transfers come schedule by schedule, or alternately ``run`` of each;
    a rank's copies to itself go slot by slot.
    """
    first, copies = schedules[0], len(schedules)
    if copies == 1:
        return first
    old, n, width = first.layout, first.nranks, first.nchannels
    layout = _shared(old, copies)
    bases, homes = layout.bases(), _homes(old, layout)

    def placed(steps: Sequence[Step]) -> Step:
        inside = [_within_slots(step, old) for step in steps]
        copy, row = spread(np.array([len(step) for step in inside]))
        new = _placed(inside, range(copies), old, homes)
        new = replace(new, channel=new.channel + copy * width)
        every = n if run is None and _local(new) else run
        return new if every is None else _alternating(new, copy, row, every)

    def repeats(blocks: Sequence[Step | Repeat]) -> list[Repeat]:
        """The blocks, if they are the same repeat, whose windows lie one behind the other in a share."""
        turns = [block for block in blocks if isinstance(block, Repeat)]
        heads = {(turn.count, turn.stride, turn.base, turn.modulus, len(turn.steps)) for turn in turns}
        if len(turns) < copies or len(heads) != 1:
            return []
        one_slot = max(old.collective.input_slots, old.collective.output_slots, old.scratch_slots) == 1
        return turns if one_slot and old.chunks % turns[0].modulus == 0 and turns[0].base in old.bases() else []

    def steps() -> Iterator[Step | Repeat]:
        alike = all(made is first for made in schedules)
        every = ((block,) * copies for block in _blocks(first)) if alike else zip(*map(_blocks, schedules), strict=True)
        for blocks in every:
            turns = repeats(blocks)
            if turns:
                new = tuple(map(placed, zip(*(turn.steps for turn in turns), strict=True)))
                yield replace(turns[0], steps=new, base=int(bases[old.bases().tolist().index(turns[0].base)]))
            else:
                unrolled = (block.unrolled() if isinstance(block, Repeat) else (block,) for block in blocks)
                yield from map(placed, zip(*unrolled, strict=True))

    return replace(first, layout=layout, source=steps, nchannels=copies * width)


def channels(schedule: Schedule, orders: Sequence[ArrayLike] | Ints, *, by_rank: bool = False) -> Schedule:
    """Copies side by side, each with its own share of the data, channels and numbering of the ranks.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    >>> both_ways = channels(ring, [[0, 1, 2, 3], [3, 2, 1, 0]])
    >>> print(simcoll.verify(both_ways))
    proved (full, error 2^-64): 56 transfers in 7 steps, reduction order run-consistent
    """
    return in_shares([relabelled(schedule, order, by_rank=by_rank) for order in orders])


def in_channels(schedule: Schedule, *, channels: int = 1) -> Schedule:
    """Copies with equal shares of the data, as the parameter ``channels`` of most algorithms asks."""
    return in_shares([schedule] * channels)


def in_pieces(schedule: Schedule, *, channels: int = 1, pieces: int = 1) -> Schedule:
    """Copies with equal shares of the data, each cut into pieces that follow one another."""
    return pipelined(in_channels(schedule, channels=channels), pieces)


# -- company -----------------------------------------------------------------------------------------------------------------------


def together(first: Schedule, *others: Schedule) -> Schedule:
    """Schedules of one layout at the same time, step beside step; the first one's transfers come first."""
    made = (first, *others)
    if any(other.layout is not first.layout for other in others):
        raise ConfigError(f"{first.title} and {others[0].title} have no layout in common")

    def steps() -> Iterator[Step]:
        sources = [_steps(one) for one in made]
        while now := [step for source in sources if (step := next(source, None)) is not None]:
            yield joined(now)

    return replace(first, source=steps, nchannels=max(one.nchannels for one in made))


def staggered(stages: Sequence[Schedule], count: int, lanes: Sequence[int] | None = None) -> Schedule:
    """Stages of one layout in sequence: first in every node, say, then on every rail.

    The data is cut into pieces; each does a stage while the one before does the next, on a channel for every stage, or those in ``lanes``.
    """
    first = stages[0]
    lane = [0] * len(stages) if count == 1 else list(lanes or range(len(stages)))
    layout = _shared(first.layout, count) if count > 1 else first.layout
    homes = _homes(first.layout, layout)

    def steps() -> Iterator[Step]:
        for time in range(count + len(stages) - 1):
            for number, stage in enumerate(stages):
                if 0 <= time - number < count:
                    for step in _steps(stage):
                        new = _placed([step], [time - number], first.layout, homes) if count > 1 else step
                        yield replace(new, channel=new.channel + lane[number]) if lane[number] else new

    return replace(first, layout=layout, source=steps, nchannels=max(lane) + 1)


def in_stages(
    stages: Sequence[Schedule], lanes: Sequence[int] | None = None, *, channels: int = 1, pieces: int = 1
) -> Schedule:
    """The stages in sequence, in copies with equal shares of the data; each piece runs one stage behind the one before."""
    staged = staggered(stages, pieces, lanes)
    return in_shares([staged] * channels, run=staged.nranks)
