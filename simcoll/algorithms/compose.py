"""Combinators: functions from schedules to schedules.

An algorithm is written once, for one channel and whole blocks; combinators add channels, pieces,
other numberings of the ranks, and concurrent schedules. A chunk keeps its place in its slot: the
part of a slot that a copy works on is called a share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import chain, groupby

import numpy as np
from numpy.typing import ArrayLike

from simcoll.algorithms.combinable import abreast, checked_cuts, checked_lanes, first_of
from simcoll.algorithms.numberings import addresses, checked_numberings
from simcoll.arrays import Array, Ints
from simcoll.core.immutable import constant, without_subclasses
from simcoll.core.numbers import whole_number
from simcoll.core.schedule import COPY, SYNC, Layout, Repeat, Schedule, Step, joined
from simcoll.core.step import LongStep, concurrent, moving_part, spread
from simcoll.core.transit import Transits
from simcoll.errors import ConfigError, expect

__all__ = [
    "EqualShares",
    "channels",
    "in_channels",
    "in_pieces",
    "in_shares",
    "in_stages",
    "pieces",
    "pipelined",
    "relabelled",
    "single_steps",
    "staggered",
    "together",
    "within_slots",
]

WRITTEN_ROWS = 1 << 18
"""Number of transfers of which a column of copies is written at a time."""


def _local(step: Step) -> bool:
    """Whether ranks copy only their own data."""
    return bool(((step.src_rank == step.dst_rank) & (step.op == COPY)).all())


def _blocks(schedule: Schedule) -> Iterator[Step | Repeat]:
    """The blocks of a part, without the check against earlier passes, which the resulting schedule
    makes.
    """
    blocks = map(concurrent, schedule.source())
    return (moving for block in blocks if (moving := moving_part(block)) is not None)


def single_steps(schedule: Schedule) -> Iterator[Step]:
    """The steps of a part, with repeats unrolled.

    >>> import simcoll
    >>> len(list(single_steps(simcoll.schedule("all_gather", "ring", nranks=3))))
    3
    """
    for block in _blocks(schedule):
        yield from block.unrolled() if isinstance(block, Repeat) else (block,)


def _map(block: Step | Repeat, change: Callable[[Step], list[Step]]) -> list[Step]:
    steps = block.steps if isinstance(block, Repeat) else (block,)
    return [new for step in steps for new in change(step)]


# -- pieces
# ------------------------------------------------------------------------


def _whole(step: Step, count: int) -> Step:
    """The step on chunks that are cut into pieces, moving all of them."""
    return Step(
        step.src_rank,
        step.src_chunk * count,
        step.dst_rank,
        step.dst_chunk * count,
        step.count * count,
        step.op,
        step.channel,
        step.transits,
    )


def _piece_step(steps: Sequence[Step], count: int, numbers: Sequence[int]) -> Step:
    """Concurrent steps, each on one of the pieces of every chunk that it moves."""
    concurrent = joined(steps)
    if (concurrent.count != 1).any():
        raise ConfigError("only transfers of single chunks can be cut into pieces")
    piece = np.repeat(np.array(numbers, np.int64), [len(step) for step in steps])
    src, dst = (chunk * count + piece for chunk in (concurrent.src_chunk, concurrent.dst_chunk))
    return Step(
        concurrent.src_rank,
        src,
        concurrent.dst_rank,
        dst,
        concurrent.count,
        concurrent.op,
        concurrent.channel,
        concurrent.transits,
    )


def _finer(layout: Layout, count: int) -> Layout:
    """The layout with every chunk cut into pieces."""
    if layout.scratch_pieces is not None:
        raise ConfigError("scratch slots of single chunks cannot be cut into pieces")
    return Layout(layout.collective, layout.chunks * count, layout.scratch)


def pieces(schedule: Schedule, count: int) -> Schedule:
    """Cut every chunk into pieces, one step each; a rank's copies to itself stay whole.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> [len(list(schedule.steps())) for schedule in (ring, pieces(ring, 4))]
    [3, 9]
    """
    expect(schedule, Schedule, "pieces takes a schedule")
    if checked_cuts("pieces", count) == 1:
        return schedule

    def split_step(step: Step) -> list[Step]:
        if _local(step):
            return [_whole(step, count)]
        return [_piece_step([step], count, [piece]) for piece in range(count)]

    def steps() -> Iterator[Step | Repeat]:
        for block in _blocks(schedule):
            new = _map(block, split_step)
            if isinstance(block, Repeat):
                order = block.order
                if order is not None:
                    order = (order[:, None] * count + np.arange(count)).reshape(-1)
                yield replace(
                    block,
                    steps=tuple(new),
                    stride=count * block.stride,
                    base=count * block.base,
                    modulus=count * block.modulus,
                    order=order,
                )
            else:
                yield from new

    return replace(schedule, layout=_finer(schedule.layout, count), source=steps)


def pipelined(
    schedule: Schedule, count: int, *, newest_first: bool = False, drained: bool = True
) -> Schedule:
    """Cut every chunk into pieces that follow one step apart, so that successive steps overlap.

    The pipeline is ``drained`` where the operation changes; a rank's copies to itself stay whole.
    ``newest_first`` is the order of the pieces in a step.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> [len(step) for step in pipelined(ring, 4).steps()]
    [3, 3, 6, 6, 6, 3]
    """
    expect(schedule, Schedule, "pipelined takes a schedule")
    if checked_cuts("pieces", count) == 1:
        return schedule

    def steps() -> Iterator[Step | Repeat]:
        for (local, _), phase in groupby(
            single_steps(schedule), lambda step: (_local(step), drained and int(step.op[0]))
        ):
            rounds = list(phase)
            if local:
                yield from (_whole(step, count) for step in rounds)
                continue
            # Steps with a piece in every round differ only in their pieces.
            full = max(count - len(rounds) + 1, 1)
            for time in chain(
                range(len(rounds)), range(len(rounds) + full - 1, len(rounds) + count - 1)
            ):
                under_way = range(max(0, time - len(rounds) + 1), min(time + 1, count))
                ordered = under_way[::-1] if newest_first else under_way
                step = _piece_step([rounds[time - piece] for piece in ordered], count, ordered)
                again = time == len(rounds) - 1 and full > 1
                yield Repeat((step,), full, 1, 0, count) if again else step

    return replace(schedule, layout=_finer(schedule.layout, count), source=steps)


# -- shares of the data, numberings of the ranks
# -----------------------------------------------------------------------------------


def within_slots(step: Step, layout: Layout) -> Step:
    """The step with transfers that cross the end of a slot split by slot.

    >>> import simcoll
    >>> layout = Layout(simcoll.Collective("all_to_all", 2))
    >>> crossing = simcoll.transfers(0, layout.input(), 1, layout.output(), count=2)
    >>> within_slots(crossing, layout).count.tolist()
    [1, 1]
    """
    if (step.count == 1).all():
        return step
    widths, bases = np.array([layout.chunks, layout.chunks, layout.scratch_chunks]), layout.bases()
    crosses = np.zeros(len(step), np.bool_)
    for chunk in (step.src_chunk, step.dst_chunk):
        region = layout.region(chunk)
        crosses |= (chunk - bases[region]) % widths[region] + step.count > widths[region]
    if not crosses.any():
        return step
    width = layout.chunks if layout.scratch_pieces is None else 1
    if ((step.count[crosses] % width) != 0).any():
        width = 1
    row, number = spread(np.where(crosses, step.count // width, 1))
    order = np.argsort(number, kind="stable")
    row, offset = row[order], number[order] * width
    new = step.rows(row)
    count = np.where(crosses[row], width, new.count)
    return replace(
        new, src_chunk=new.src_chunk + offset, dst_chunk=new.dst_chunk + offset, count=count
    )


def _shared_layout(layout: Layout, copies: int) -> Layout:
    """The layout in which every slot has a share for each copy."""
    if not layout.size:
        raise ConfigError(
            f"{layout.collective} moves no data, of which {copies} copies could have shares"
        )
    if layout.scratch_pieces is None:
        return Layout(layout.collective, layout.chunks * copies, layout.scratch)
    number = np.tile(np.arange(copies), layout.scratch.shape[-1])
    scratch, part = (
        np.repeat(values, copies, axis=-1) for values in (layout.scratch, layout.scratch_pieces)
    )
    return Layout(layout.collective, layout.chunks * copies, scratch, part + number * layout.chunks)


def _homes(old: Layout, new: Layout) -> tuple[Ints, Ints]:
    """Place of each chunk in the first share of its slot, and the distance to the next share."""
    chunk = np.arange(old.size)
    region, copies = old.region(chunk), new.chunks // old.chunks
    width = np.where(region == 2, old.scratch_chunks, old.chunks)
    slot, place = np.divmod(chunk - old.bases()[region], width)
    return new.bases()[region] + slot * copies * width + place, width


def _in_share(step: Step, share: Ints | int, homes: tuple[Ints, Ints], lanes: int = 0) -> Step:
    """A step on a share of every slot, with ``lanes`` channels for each share."""
    home, width = homes
    src, dst = (home[chunk] + share * width[chunk] for chunk in (step.src_chunk, step.dst_chunk))
    fixed = step.count, step.op, step.channel + share * lanes, step.transits
    return Step(step.src_rank, src, step.dst_rank, dst, *fixed)


def _copies(step: Step, copies: int, run: int | None, homes: tuple[Ints, Ints], lanes: int) -> Step:
    """A step on every share of every slot: share by share, or alternating with ``run`` transfers of
    each.

    Each column is written once, in parts. A step of a million transfers in eight shares has columns
    of 67 MB, and every further copy of one costs as much as the rest of a pass.
    """
    rows = len(step)
    run = rows if run is None else min(run, rows)
    cut = rows - rows % run
    home, width = homes

    def in_order(column: Array, spacing: Array | int) -> Array:
        """The column in each share, where its values are ``spacing`` apart from the last one's."""
        spaced = np.broadcast_to(spacing, column.shape)
        memory = BytesIO()
        for start, stop, size in ((0, cut, run), (cut, rows, rows - cut)):
            # Some runs of all copies, or one of one copy.
            together = max(1, WRITTEN_ROWS // max(1, copies * size)) * max(1, size)
            at_once = copies if copies * size <= WRITTEN_ROWS else 1
            for begin in range(start, stop, together):
                part = slice(begin, min(begin + together, stop))
                values, spaces = (of[part].reshape(-1, 1, size) for of in (column, spaced))
                for share in range(0, copies, at_once):
                    shares = np.arange(share, share + at_once)[:, None]
                    memory.write((values + shares * spaces).astype(column.dtype).data)
        return np.frombuffer(memory.getvalue(), column.dtype)

    def alike(column: Array) -> Array:
        """The column of values that do not depend on the share."""
        if (column == column[0]).all():
            return constant(int(column[0]), rows * copies, column.dtype)
        if run == rows:
            return np.frombuffer(column.tobytes() * copies, column.dtype)
        return in_order(column, column.dtype.type(0))

    src_rank = alike(step.src_rank)
    local = np.array_equal(step.src_rank, step.dst_rank)
    transits = step.transits
    if transits is not None:
        transits = Transits(alike(transits.number), transits.table)
    return Step(
        src_rank,
        in_order(home[step.src_chunk], width[step.src_chunk]),
        src_rank if local else alike(step.dst_rank),
        in_order(home[step.dst_chunk], width[step.dst_chunk]),
        alike(step.count),
        alike(step.op),
        in_order(step.channel, lanes),
        transits,
    )


def _portions(
    step: Step, copies: int, run: int | None, homes: tuple[Ints, Ints], lanes: int
) -> Iterator[Step]:
    """The transfers of :func:`_copies` in portions."""
    rows = len(step)
    if run is None or run >= rows:
        for share in range(copies):
            for begin in range(0, rows, WRITTEN_ROWS):
                part = step.rows(slice(begin, begin + WRITTEN_ROWS))
                yield _in_share(part, share, homes, lanes)
        return
    together = max(1, WRITTEN_ROWS // (copies * run)) * run
    for begin in range(0, rows, together):
        yield _copies(step.rows(slice(begin, begin + together)), copies, run, homes, lanes)


@without_subclasses
@dataclass(frozen=True, slots=True, eq=False)
class EqualShares:
    """The source of a schedule of concurrent copies of one schedule.

    Each copy has an equal share of every block, and channels of its own. The copies can therefore
    be told from the source, without looking at a step.

    Attributes
    ----------
    schedule
        The schedule of which all are copies; none of its transfers crosses the end of a slot.
    copies
        How many there are.
    run
        Number of transfers of one copy that follow each other in a step; ``None``: all.

    Examples
    --------
    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> both = in_shares([ring, ring])
    >>> both.source.copies, both.source.schedule.nchannels
    (2, 1)
    """

    schedule: Schedule
    copies: int
    run: int | None = None

    def __call__(self) -> Iterator[Step | LongStep | Repeat]:
        """The steps of all copies."""
        return _concurrent_steps([self.schedule] * self.copies, None, self.run)


def _side_by_side(
    schedules: Sequence[Schedule],
    change: Callable[[Step, Ints, Ints], Step] | None,
    run: int | None,
    moved: Ints | None = None,
) -> Schedule:
    """Concurrent schedules, each on its share, as :func:`_concurrent_steps` orders their
    transfers.
    """
    model, copies = schedules[0], len(schedules)
    layout = _shared_layout(model.layout, copies)
    lanes = max(schedule.nchannels for schedule in schedules)
    copied = change is None and all(schedule is model for schedule in schedules)

    def steps() -> Iterator[Step | LongStep | Repeat]:
        return _concurrent_steps(schedules, change, run, moved)

    source = EqualShares(_in_slots(model), copies, run) if copied else steps
    return replace(model, layout=layout, source=source, nchannels=copies * lanes)


def _in_slots(schedule: Schedule) -> Schedule:
    """The schedule with transfers that cross the end of a slot split by slot."""
    layout = schedule.layout
    one_slot = _one_slot(layout)

    def steps() -> Iterator[Step | Repeat]:
        for block in _blocks(schedule):
            if not isinstance(block, Repeat):
                yield within_slots(block, layout)
            elif one_slot or all((step.count == 1).all() for step in block.steps):
                yield block
            else:  # other transfers cross the end of a slot in each iteration
                yield from (within_slots(step, layout) for step in block.unrolled())

    return replace(schedule, source=steps)


def _concurrent_steps(
    schedules: Sequence[Schedule],
    change: Callable[[Step, Ints, Ints], Step] | None,
    run: int | None,
    moved: Ints | None = None,
) -> Iterator[Step | LongStep | Repeat]:
    """The steps of concurrent schedules, each on its share; ``change``, if any, maps their
    transfers, given each transfer's schedule and place in it.

    It maps the addresses of each schedule to those in ``moved``.

    In a step the transfers are ordered schedule by schedule, or alternating with ``run`` of each; a
    rank's copies to itself slot by slot.
    """
    # Every slot is cut into one share per schedule, so that the copies touch disjoint chunks and
    # use disjoint channels: whatever each of them proves alone holds for all of them together, and
    # concurrent transfers cannot meet in memory.
    #
    # A repeat stays a repeat wherever its windows stay one arithmetic progression inside a share,
    # or can be listed: proofs and foldings of long rings depend on that. Unrolling all of them
    # would be a dozen lines here, but a ring of 1,024 ranks has 2,046 steps in two repeats.
    model, copies = schedules[0], len(schedules)
    old, n = model.layout, model.nranks
    layout = _shared_layout(old, copies)
    bases, homes, one_slot = layout.bases(), _homes(old, layout), _one_slot(old)
    copied = all(schedule is model for schedule in schedules)
    lanes = max(schedule.nchannels for schedule in schedules)

    def change_steps(steps: Sequence[Step]) -> Step:
        within = [within_slots(step, old) for step in (steps[:1] if copied else steps)]
        if copied and change is None and len(within[0]):
            local_run = n if run is None and _local(within[0]) else run
            return _copies(within[0], copies, local_run, homes, lanes)
        lengths = np.array([len(step) for step in within])
        copy, row = spread(lengths.repeat(copies) if copied else lengths)
        new = joined(within).rows(row) if copied else joined(within)
        if change is not None:
            new = change(new, copy, row)
        every = n if run is None and _local(new) else run
        new = _in_share(new, copy, homes, lanes)
        if every is None or int(row.max(initial=0)) < every:
            return new
        return new.rows(np.lexsort((copy, row // every)))

    def by_portions(steps: Sequence[Step]) -> Step | LongStep:
        """The same, as a long step where it is one: of copies, without operations of switches."""
        long = copied and change is None and len(steps[0]) * copies > WRITTEN_ROWS
        if not long or (steps[0].op > SYNC).any():
            return change_steps(steps)
        within = within_slots(steps[0], old)
        local_run = n if run is None and _local(within) else run
        copying = within, copies, local_run, homes, lanes
        return LongStep(partial(_copies, *copying), partial(_portions, *copying))

    def repeat(blocks: Sequence[Step | Repeat]) -> Repeat | None:
        """The blocks as one repeat, if they are the same one; its windows follow each other in a
        share, or are listed.
        """
        turns = [block for block in blocks if isinstance(block, Repeat)]
        heads = {
            (turn.count, turn.stride, turn.base, turn.modulus, len(turn.steps)) for turn in turns
        }
        if len(turns) < copies or len(heads) != 1:
            return None
        turn, starts, base, order = turns[0], old.bases().tolist(), 0, None
        in_share = one_slot and all(turn.order is None for turn in turns)
        if in_share and old.chunks % turn.modulus == 0 and turn.base in starts:
            base = int(bases[starts.index(turn.base)])
        elif copied and not any((step.count != 1).any() or _local(step) for step in turn.steps):
            order = window_chunks(turn)
        else:
            return None
        steps = tuple(map(change_steps, zip(*(turn.steps for turn in turns), strict=True)))
        return replace(turn, steps=steps, base=base, order=order)

    def window_chunks(turn: Repeat) -> Ints:
        """The chunks of all windows of a repeat, in each share."""
        start = turn.base % turn.modulus
        chunk = (
            np.arange(start, old.size - (old.size - start) % turn.modulus)
            if turn.order is None
            else turn.order
        )
        addresses = np.tile(chunk, (copies, 1)) if moved is None else moved[:, chunk]
        home, width = homes
        return (home[addresses] + np.arange(copies)[:, None] * width[addresses]).reshape(-1)

    # The passes over a schedule that is copied are compared with each other, as it may be played
    # in place of all copies.
    every = (
        ((block,) * copies for block in model.blocks())
        if copied
        else abreast(schedules, map(_blocks, schedules))
    )
    for blocks in every:
        turn = repeat(blocks)
        if turn is not None:
            yield turn
        else:
            unrolled = (
                block.unrolled() if isinstance(block, Repeat) else (block,) for block in blocks
            )
            yield from map(by_portions, abreast(schedules, unrolled))


def _one_slot(layout: Layout) -> bool:
    return (
        max(layout.collective.input_slots, layout.collective.output_slots, layout.scratch_slots)
        == 1
    )


def in_shares(schedules: Sequence[Schedule], *, run: int | None = None) -> Schedule:
    """Concurrent schedules of one collective, each with an equal share of every block and separate
    channels.

    They must have one layout and the same number of steps. Within a step the transfers are ordered
    schedule by schedule, or alternating with ``run`` of each; a rank's copies to itself are ordered
    slot by slot.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> both = in_shares([ring, ring])
    >>> both.nchannels, both.layout.chunks
    (2, 2)
    """
    model = first_of(schedules, "in_shares")
    checked_cuts("schedules", len(schedules))
    run = None if run is None else whole_number("run", run, 1)
    if len(schedules) == 1:
        return model
    return _side_by_side(schedules, None, run)


def channels(
    schedule: Schedule, orders: Sequence[ArrayLike] | Ints, *, by_rank: bool = False
) -> Schedule:
    """Concurrent copies, each with a separate share of the data, channels, and numbering of the
    ranks, including blocks.

    Local copies of ranks are ordered by chunk or, ``by_rank``, by rank.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    >>> both_ways = channels(ring, [[0, 1, 2, 3], [3, 2, 1, 0]])
    >>> print(simcoll.verify(both_ways))
    proved (full, exact): 56 transfers in 7 steps, reduction order run-consistent
    """
    expect(schedule, Schedule, "channels takes a schedule")
    ranks = checked_numberings(schedule, orders)
    natural = (ranks == np.arange(schedule.nranks)).all(axis=1)
    if natural.all():
        return in_shares([schedule] * len(ranks))
    chunks = np.arange(schedule.layout.size)
    moved = np.array(
        [
            chunks if is_natural else addresses(schedule, order)
            for is_natural, order in zip(natural, ranks, strict=True)
        ]
    )

    def change(step: Step, copy: Ints, row: Ints) -> Step:
        src, dst = (ranks[copy, rank] for rank in (step.src_rank, step.dst_rank))
        src_chunk, dst_chunk = (moved[copy, chunk] for chunk in (step.src_chunk, step.dst_chunk))
        fixed = step.count, step.op, step.channel, step.transits
        new = Step(src, src_chunk, dst, dst_chunk, *fixed)
        if not _local(new):
            return new
        return new.rows(
            np.lexsort((np.where(natural[copy], row, src if by_rank else src_chunk), copy))
        )

    return _side_by_side([schedule] * len(ranks), change, None, moved)


def relabelled(schedule: Schedule, order: ArrayLike, *, by_rank: bool = False) -> Schedule:
    """The same schedule with rank ``order[r]`` in the place of rank r, including blocks; see
    :func:`channels`.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> list(relabelled(ring, [2, 0, 1]).steps())[1].dst_rank.tolist()
    [0, 1, 2]
    """
    return channels(schedule, [order], by_rank=by_rank)


def in_channels(schedule: Schedule, *, channels: int = 1) -> Schedule:
    """Copies with equal shares of the data: the parameter ``channels`` of most algorithms.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> in_channels(ring, channels=4).nchannels
    4
    """
    return in_shares([schedule] * checked_cuts("channels", channels))


def in_pieces(schedule: Schedule, *, channels: int = 1, pieces: int = 1) -> Schedule:
    """Copies with equal shares of the data, each cut into pieces that follow one another.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> parts = in_pieces(ring, channels=2, pieces=3)
    >>> parts.nchannels, parts.layout.chunks
    (2, 6)
    """
    return pipelined(in_channels(schedule, channels=channels), pieces)


# -- concurrent schedules
# ------------------------------------------------------------------------


def together(first: Schedule, *others: Schedule) -> Schedule:
    """Concurrent schedules of one layout, step by step; the transfers of the first come first.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> doubled = together(ring, ring)  # correct only where the two write different chunks
    >>> [len(step) for step in doubled.steps()]
    [6, 6, 6]
    """
    schedules = (first, *others)
    first_of(schedules, "together")

    def steps() -> Iterator[Step]:
        sources = [single_steps(schedule) for schedule in schedules]
        while concurrent := [
            step for source in sources if (step := next(source, None)) is not None
        ]:
            yield joined(concurrent)

    return replace(first, source=steps, nchannels=max(schedule.nchannels for schedule in schedules))


def staggered(
    stages: Sequence[Schedule], count: int, lanes: Sequence[int] | None = None
) -> Schedule:
    """Stages of one layout in sequence, for example first within every node, then on every rail.

    The data is cut into pieces; each performs a stage while its predecessor performs the next, on a
    channel per stage, or those in ``lanes``.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> [len(step) for step in staggered([ring], 2).steps()]  # its only stage, piece by piece
    [3, 3, 3, 3, 3, 3]
    """
    model = first_of(stages, "staggered")
    if checked_cuts("pieces", count) == 1:
        lane, layout = [0] * len(stages), model.layout
    else:
        lane, layout = checked_lanes(lanes, len(stages)), _shared_layout(model.layout, count)
    homes = _homes(model.layout, layout)

    def steps() -> Iterator[Step]:
        for time in range(count + len(stages) - 1):
            for number, stage in enumerate(stages):
                if 0 <= time - number < count:
                    for step in single_steps(stage):
                        new = step
                        if count > 1:
                            new = _in_share(within_slots(step, model.layout), time - number, homes)
                        if lane[number]:
                            new = replace(new, channel=new.channel + lane[number])
                        yield new

    nchannels = max(number + stage.nchannels for number, stage in zip(lane, stages, strict=True))
    return replace(model, layout=layout, source=steps, nchannels=nchannels)


def in_stages(
    stages: Sequence[Schedule],
    lanes: Sequence[int] | None = None,
    *,
    channels: int = 1,
    pieces: int = 1,
) -> Schedule:
    """The stages in sequence, in copies with equal shares of the data.

    Each piece runs one stage behind its predecessor.

    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> stages = in_stages([ring], channels=2, pieces=3)
    >>> print(simcoll.verify(stages))
    proved (full, exact): 54 transfers in 9 steps
    """
    staged = staggered(stages, pieces, lanes)
    return in_shares([staged] * checked_cuts("channels", channels), run=staged.nranks)
