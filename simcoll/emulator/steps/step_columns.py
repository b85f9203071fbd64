"""The columns of a plan's steps that determine its time, with repeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints
from simcoll.core.facts import FactStore
from simcoll.core.folds import in_fold_order
from simcoll.core.immutable import SLIM_ROWS
from simcoll.core.plan import Plan, PlanStep
from simcoll.core.schedule import OP_NAMES, REDUCE, SYNC, Repeat, Schedule, Step
from simcoll.core.step import spread
from simcoll.core.switches import switch_leaders
from simcoll.core.transit import Transits, same_transits
from simcoll.emulator.steps.equal_copies import EqualCopies, equal_copies

Group = tuple[tuple["Moves", ...], int]

__all__ = [
    "EVEN",
    "Moves",
    "PlanSummary",
    "Spinning",
    "bytes_by_op",
    "cache_key",
    "drop_groups",
    "forget_unequal",
    "moves_of",
    "same_moves",
    "spinning",
    "summaries_of",
    "summary",
    "turns",
]

KEPT_ROWS = 1 << 21
"""Up to this number of rows, the first pass over a plan is kept for the second (33 bytes a row)."""
UNROLLED_ROWS = 1 << 14
"""Up to this number of rows, iterations that differ in their payloads are kept one by one."""
REMEMBERED_ROWS = 1 << 19
"""Up to this number of rows, steps are remembered with the schedule; beyond, only their counts."""
FEW_FILLED = 8
"""Transfers are looked up by their filled chunks where these are fewer by this factor. A run with
as many as half or as few as a thirtieth of its chunks filled takes the same time either way, within
a tenth (ring of 1,024 ranks); far fewer are what this is for.
"""
EVEN = (-1, 1)
"""The cache key of equal chunks, for chunks of one byte; other keys are a count and the bytes of an
element.
"""


class Moves(NamedTuple):
    """The columns of a step that determine its time."""

    src_rank: Ints
    dst_rank: Ints
    channel: Ints
    size_bytes: Ints
    op: NDArray[np.int8]
    operands: Ints
    leader: Ints | None  # row of the leader of its switch operation; -1 for others
    paths: Transits | None = None  # the paths that the schedule chooses, if any

    @property
    def rows(self) -> int:
        """The number of transfers."""
        return len(self.src_rank)

    def some(self, rows: Array) -> Moves:
        """A subset of the transfers, none of which belongs to a switch operation."""
        src, dst, channel = self.src_rank[rows], self.dst_rank[rows], self.channel[rows]
        costs = self.size_bytes[rows], self.op[rows], self.operands[rows]
        paths = None if self.paths is None else self.paths.rows(rows)
        return Moves(src, dst, channel, *costs, None, paths)


class Spinning(NamedTuple):
    """Steps that repeat between the same ranks with rotating payloads.

    In iteration t, row r of step i has the payload
    ``payloads[window[(places[i][r] + t * stride) % m]]``, where ``window`` holds the m places of a
    window twice over.
    """

    steps: tuple[Moves, ...]  # with the payloads of the first iteration
    places: tuple[Ints, ...]
    payloads: Ints
    window: Ints
    times: int
    stride: int

    def sizes(self, turn: int, step: int) -> Ints:
        """Payload of every row of a step in one iteration."""
        shift = turn * self.stride % (len(self.window) // 2)
        return self.payloads[self.window[self.places[step] + shift]]

    def bytes_by_op(self, step: int) -> tuple[int, ...]:
        """Payload of a step over all iterations, by operation."""
        m, totals = len(self.window) // 2, [0] * len(OP_NAMES)
        shifts = np.arange(self.times) * self.stride % m
        windows = np.lib.stride_tricks.sliding_window_view(self.payloads[self.window], m)
        op, place = self.steps[step].op, self.places[step]
        for number in np.unique(op).tolist():
            by_shift = windows @ np.bincount(place[op == number], minlength=m)
            totals[number] = sum(by_shift[shifts].tolist())
        return tuple(totals)

    def unroll(self) -> Iterator[Moves]:
        """The steps one by one; equal ones share one object while they are few."""
        m = len(self.window) // 2
        period = _period(self.window[None, :m])
        recent: dict[tuple[int, int], Moves] = {}
        recent_rows = 0
        for turn in range(self.times):
            for number, step in enumerate(self.steps):
                key = number, turn * self.stride % period
                moves = recent.get(key)
                if moves is None:
                    moves = step._replace(size_bytes=self.sizes(turn, number))
                    recent_rows += step.rows
                    if recent_rows <= REMEMBERED_ROWS:
                        recent[key] = moves
                yield moves


@dataclass(frozen=True, slots=True, eq=False)
class PlanSummary:
    """Counts from a first pass over a plan.

    ``rows`` counts the transfers of distinct steps, ``largest`` those of the largest step;
    ``groups`` keeps the :func:`turns` if they are few, and ``copy_groups`` those of one copy if the
    plan consists of equal ones; ``switched``: some transfers between ranks are switch operations.
    """

    lane_steps: Ints
    steps: int
    messages: int
    rows: int
    largest: int
    bytes_by_op: tuple[int, ...]
    switched: bool
    groups: list[Group] | None
    copy_groups: list[Group] | None = None

    def without_groups(self) -> PlanSummary:
        """The counts alone."""
        return replace(self, groups=None, copy_groups=None)


summaries_of: FactStore[Schedule, dict[tuple[int, int], PlanSummary]] = FactStore(lambda _: {})
"""The first passes over plans of a schedule, by :func:`cache_key`: with equal chunks, and with the
latest other sizes.
"""


def forget_unequal(schedule: Schedule) -> None:
    """Forget the passes with unequal chunks, which hold for one size."""
    summaries = summaries_of(schedule)
    for key in [key for key in list(summaries) if key != EVEN]:
        summaries.pop(key, None)


def drop_groups(schedule: Schedule) -> None:
    """Drop the steps of all passes, which only runs that are not loaded need."""
    summaries = summaries_of(schedule)
    for key, kept in list(summaries.items()):
        summaries[key] = kept.without_groups()


def _even(plan: Plan) -> bool:
    """Whether all chunks have one size, on their way as well."""
    if not isinstance(plan.sizes, int) or plan.sizes % plan.schedule.layout.chunks:
        return False
    return not plan.schedule.wire_formats


def _is_steady(plan: Plan, block: Step | Repeat) -> bool:
    """Whether all iterations of a repeat take the same time: equal chunks, and no transfer that an
    alias can remove.
    """
    if not isinstance(block, Repeat) or not _even(plan):
        return False
    return not (
        plan.collective.in_place
        and any((step.src_rank == step.dst_rank).any() for step in block.steps)
    )


def moves_of(plan: Plan, step: PlanStep) -> Moves:
    """The columns of a step that time depends on."""
    fixed = (
        step.src_rank,
        step.dst_rank,
        step.channel,
        step.size_bytes,
        step.op,
        _operands(plan, step),
    )
    return Moves(*fixed, _leaders(step), _paths(step))


def _paths(step: Step | PlanStep) -> Transits | None:
    """The paths of a step, if it chooses any."""
    return None if step.transits is None else step.transits.paths()


def _leaders(step: Step | PlanStep) -> Ints | None:
    """Leaders of the switch operations, if any."""
    return switch_leaders(step) if (step.op > SYNC).any() else None


def _moves(plan: Plan, blocks: Iterable[Step | Repeat]) -> Iterator[Moves]:
    """The steps of some blocks as in the plan, without empty transfers and steps."""
    schedule, positions = plan.schedule, None if _even(plan) else plan.positions()
    for block in blocks:
        if positions is not None and isinstance(block, Repeat) and _turns_alone(plan, block):
            yield from _moving_turns(plan, block, np.diff(positions))
            continue
        for block_step in block.unrolled() if isinstance(block, Repeat) else (block,):
            step = schedule.layout.one_address(block_step)
            if schedule.known.folds:
                step = in_fold_order(step, schedule.layout.size)
            yield from _without_empty(plan, step, plan.bytes_of(step, plan.elements(step)))


def _without_empty(plan: Plan, step: Step, size_bytes: Ints) -> Iterator[Moves]:
    """A step whose transfers have these sizes, without empty ones; nothing if all are empty."""
    keep = (size_bytes > 0) | (step.op == SYNC)
    if not keep.all():
        step, size_bytes = step.rows(keep), size_bytes[keep]
    if len(step):
        channel, size_bytes = _slim(step.channel), _slim(size_bytes)
        fixed = (step.src_rank, step.dst_rank, channel, size_bytes, step.op, _operands(plan, step))
        yield Moves(*fixed, _leaders(step), _paths(step))


def _moves_of_copies(plan: Plan, copies: EqualCopies) -> Iterator[Moves]:
    """The steps of a plan of equal copies as in the plan, without empty transfers and steps.

    Those of one copy are generated, and what is not empty is copied: at small sizes most transfers
    are empty.
    """
    part = copies.plan
    for step in part.schedule.steps():
        size_bytes = part.bytes_of(step, part.elements(step))
        rows = np.flatnonzero((size_bytes > 0) | (step.op == SYNC))
        if not len(rows):
            continue
        row, place = copies.order(step, rows)
        moving = step.rows(row)
        channel = moving.channel + place * part.nchannels
        yield Moves(
            moving.src_rank,
            moving.dst_rank,
            _slim(channel),
            _slim(size_bytes[row]),
            moving.op,
            _operands(plan, moving),
            _leaders(replace(moving, channel=channel)) if (moving.op > SYNC).any() else None,
            _paths(moving),
        )


def _slim(column: Ints) -> Ints:
    """The column, which takes no memory if it is long and all its values are equal."""
    return (
        np.broadcast_to(column[0], column.shape)
        if len(column) > SLIM_ROWS and (column == column[0]).all()
        else column
    )


def _turns_alone(plan: Plan, block: Repeat) -> bool:
    """Whether the transfers of a repeat are single chunks in every iteration: no fold, no alias
    that could remove one.
    """
    separate = not plan.schedule.known.folds and not plan.collective.in_place
    return separate and all(
        (step.count == 1).all() and (step.op < SYNC).all() and step.transits is None
        for step in block.steps
    )


def _moving_turns(plan: Plan, block: Repeat, lengths: Ints) -> Iterator[Moves]:
    """The non-empty transfers of each iteration, from the elements of every chunk; equal steps
    share one object while they are few.
    """
    full = [
        Moves(
            step.src_rank,
            step.dst_rank,
            step.channel,
            step.count,
            step.op,
            _operands(plan, step),
            None,
        )
        for step in block.steps
    ]
    places = [_turning(block, step.src_chunk, lengths) for step in block.steps]
    periods = [
        _period(table.reshape(-1, 2 * block.modulus)[:, : block.modulus]) for table, _ in places
    ]
    moving = [_MovingRows(*turning) for turning in places]
    recent: dict[tuple[int, int], Moves] = {}
    recent_rows = 0
    for turn in range(block.count):
        shift = turn * block.stride % block.modulus
        for number, (table, place) in enumerate(places):
            key = number, shift % periods[number]
            step = recent.get(key)
            if step is None:
                rows = moving[number].at(shift)
                elements = table[place[rows] + shift]
                step = full[number] if len(rows) == len(place) else full[number].some(rows)
                step = step._replace(size_bytes=elements * plan.dtype.itemsize)
                recent_rows += len(rows)
                if recent_rows <= REMEMBERED_ROWS:
                    recent[key] = step
            if step.rows:
                yield step


class _MovingRows:
    """Which transfers of an iteration are not empty, by the shift of the iteration.

    Of a small size few chunks have an element, so their transfers are looked up, in the order of
    their places, instead of looking at all: 8 bytes on 8,192 ranks have two of 65,536 chunks.
    """

    def __init__(self, table: Ints, place: Ints) -> None:
        self.table = table
        self.place = place
        self.filled = np.flatnonzero(table)
        self.few = FEW_FILLED * len(self.filled) < len(place)
        self.order = np.argsort(place, kind="stable") if self.few else place[:0]
        self.sorted = place[self.order]

    def at(self, shift: int) -> Ints:
        """The transfers that move something, ascending."""
        if not self.few:
            return np.flatnonzero(self.table[self.place + shift])
        begin, end = (
            np.searchsorted(self.sorted, self.filled - shift, side) for side in ("left", "right")
        )
        row, offset = spread(end - begin)
        return np.sort(self.order[begin[row] + offset])


def _turning(block: Repeat, chunk: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Elements of chunks, and each transfer's place there for a shift of 0; every window is stored
    twice in a row.
    """
    start, place = block.window(chunk)
    starts, window = np.unique(start, return_inverse=True)
    windows = block.chunk_at(starts[:, None] + np.arange(block.modulus))
    # A window may leave the buffers where no transfer does.
    table = lengths.take(windows, mode="clip")
    return np.tile(table, 2).reshape(-1), 2 * block.modulus * window + place


def _period(windows: Ints) -> int:
    """The smallest shift that leaves all windows unchanged."""
    width = windows.shape[1]
    return next(
        k
        for k in range(1, width + 1)
        if width % k == 0 and (np.roll(windows, k, axis=1) == windows).all()
    )


def _operands(plan: Plan, step: Step | PlanStep) -> Ints:
    """:meth:`Plan.operands` as a column, which takes no memory if nothing folds."""
    return np.broadcast_to(np.asarray(plan.operands(step), np.int64), (len(step),))


def turns(plan: Plan) -> Iterator[Group]:
    """The steps of a plan in order, as groups of steps with their repetitions."""
    for group in spinning(plan):
        if isinstance(group, Spinning):
            yield from (((step,), 1) for step in group.unroll())
        else:
            yield group


def spinning(plan: Plan) -> Iterator[Group | Spinning]:
    """The same, but with repeats whose chunks differ by an element as one object."""
    copies = None if _even(plan) or _reorders(plan) else equal_copies(plan)
    if copies is not None:
        yield from _merge_runs(_moves_of_copies(plan, copies))
        return
    for steady, blocks in groupby(plan.schedule.blocks(), lambda block: _is_steady(plan, block)):
        if steady:
            for block in blocks:
                if isinstance(block, Repeat):
                    steps = tuple(_moves(plan, block.steps))
                    if steps and block.count:
                        yield steps, block.count
            continue
        for block_spins, stretch in groupby(
            blocks, lambda block: isinstance(block, Repeat) and not _even(plan)
        ):
            if not block_spins:
                yield from _merge_runs(_moves(plan, stretch))
                continue
            for block in stretch:
                spins = _spins(plan, block) if isinstance(block, Repeat) else None
                if spins is None:
                    yield from _merge_runs(_moves(plan, (block,)))
                else:
                    yield spins


def _reorders(plan: Plan) -> bool:
    """Whether transfers may be left out of a step, or come in another order, for what they do."""
    return plan.schedule.known.folds or plan.collective.in_place


def _merge_runs(steps: Iterable[Moves]) -> Iterator[Group]:
    """Steps one by one; runs of steps that differ only in chunks (as in a ring with numbered
    blocks) become one repeated step.
    """
    last, times = None, 0
    for step in steps:
        if last is not None and same_moves(step, last):
            times += 1
            continue
        if last is not None:
            yield (last,), times
        last, times = step, 1
    if last is not None:
        yield (last,), times


def _spins(plan: Plan, block: Repeat) -> Spinning | None:
    """A repeat whose single chunks have one of two non-zero sizes; ``None`` for others."""
    # A count that is no multiple of the chunks makes some chunks one element larger. A repeat moves
    # along its chunks, so no two iterations have the same sizes, and unrolling it costs as many
    # columns as it has iterations: a ring of 1,024 ranks has 2,046. But the sizes only rotate: in
    # iteration t a transfer moves the chunk at (place + t * stride) mod m of a window of m chunks.
    # If every transfer sees the same sizes in its window, one window and each row's place in it
    # describe all iterations. Each None below is a case in which an iteration is more than a
    # rotation.
    layout = plan.schedule.layout
    listed = layout.scratch_pieces is not None or block.order is not None
    if not isinstance(plan.sizes, int) or listed or plan.sizes < layout.chunks:
        return None
    smaller, piece = plan.sizes // layout.chunks, np.arange(layout.chunks)
    larger = (
        (piece + 1) * plan.sizes // layout.chunks - piece * plan.sizes // layout.chunks - smaller
    )
    payloads = np.array([smaller, smaller + 1], np.int64) * plan.dtype.itemsize
    window: Ints | None = None
    steps, places = [], []
    for step in block.steps:
        if (
            (step.src_rank == step.dst_rank).any()
            or (step.count != 1).any()
            or (step.op > REDUCE).any()
            or step.transits is not None
        ):
            return None
        plain = layout.one_address(step)
        if plan.schedule.known.folds and in_fold_order(plain, layout.size) is not plain:
            return None
        place = (step.src_chunk - block.base) % block.modulus
        start = np.unique(step.src_chunk - place)
        region = layout.region(start)
        if start.min() < 0 or (layout.region(start + block.modulus - 1) != region).any():
            return None
        pieces = (start - layout.bases()[region])[:, None] + np.arange(block.modulus)
        windows = larger[pieces % layout.chunks]
        window = windows[0] if window is None else window
        if (windows != window).any():
            return None
        size = payloads[window[place]]
        steps.append(
            Moves(
                step.src_rank,
                step.dst_rank,
                step.channel,
                size,
                step.op,
                np.broadcast_to(1, size.shape),
                None,
            )
        )
        places.append(place)
    if window is None:
        return None
    return Spinning(
        tuple(steps), tuple(places), payloads, np.tile(window, 2), block.count, block.stride
    )


def bytes_by_op(step: Moves) -> tuple[int, ...]:
    """Payload of a step by operation."""
    only = int(step.op[0])
    if (step.op == only).all():
        total = int(step.size_bytes.sum())
        return tuple(total if op == only else 0 for op in range(len(OP_NAMES)))
    return tuple(int(step.size_bytes[step.op == op].sum()) for op in range(len(OP_NAMES)))


def cache_key(plan: Plan) -> tuple[tuple[int, int] | None, int]:
    """The cache key for facts about a plan's steps (``None``: not cached), and the bytes per chunk
    for which they hold.

    Equal chunks share one key for all sizes, which are multiples of those of one-byte chunks.
    """
    if not isinstance(plan.sizes, int):
        return None, 1
    chunk_bytes = (
        plan.sizes // plan.schedule.layout.chunks * plan.dtype.itemsize if _even(plan) else 0
    )
    return (EVEN, chunk_bytes) if chunk_bytes else ((plan.sizes, plan.dtype.itemsize), 1)


def summary(plan: Plan) -> PlanSummary:
    """Pass once over a plan, or recall the result for the same schedule.

    With equal chunks, the results are those of one-byte chunks, scaled; with others, only the
    latest sizes are remembered.
    """
    key, chunk_bytes = cache_key(plan)
    if key is None:
        return _count(plan)
    summaries = summaries_of(plan.schedule)
    counts = summaries.get(key)
    if counts is None:
        plan.expect_waits()
        unit = (
            replace(plan, sizes=plan.schedule.layout.chunks, dtype=np.dtype(np.int8))
            if key == EVEN
            else plan
        )
        counts = _count(unit)
        forget_unequal(plan.schedule)
        summaries[key] = counts if counts.rows <= REMEMBERED_ROWS else counts.without_groups()
    return _scale(counts, chunk_bytes) if chunk_bytes > 1 else counts


def _scale(counts: PlanSummary, chunk_bytes: int) -> PlanSummary:
    """The summary with chunks of ``chunk_bytes`` bytes instead of one."""
    return replace(
        counts,
        bytes_by_op=tuple(moved * chunk_bytes for moved in counts.bytes_by_op),
        groups=_groups_of_chunks(counts.groups, chunk_bytes),
        copy_groups=_groups_of_chunks(counts.copy_groups, chunk_bytes),
    )


def _groups_of_chunks(groups: list[Group] | None, chunk_bytes: int) -> list[Group] | None:
    """The same steps with chunks of ``chunk_bytes`` bytes instead of one."""
    if groups is None:
        return None
    large: dict[int, Moves] = {}
    for group, _ in groups:
        for step in group:
            if id(step) not in large:
                large[id(step)] = step._replace(size_bytes=step.size_bytes * chunk_bytes)
    return [(tuple(large[id(step)] for step in group), times) for group, times in groups]


def _facts(plan: Plan, step: Moves) -> tuple[Ints, tuple[int, ...], bool]:
    """Lanes that take part in a step, its payload by operation, and whether it has switch
    operations.
    """
    part = np.zeros(plan.nranks * plan.nchannels, np.bool_)
    for rank in (step.src_rank, step.dst_rank):
        part[rank * plan.nchannels + step.channel] = True
    by_switch = ((step.op > SYNC) & (step.src_rank != step.dst_rank)).any()
    return np.flatnonzero(part), bytes_by_op(step), bool(by_switch)


def _count(plan: Plan) -> PlanSummary:
    """Pass once over a plan, or over one of the equal copies of which it consists."""
    copies = equal_copies(plan)
    if copies is None:
        return _count_all(plan)
    counts, times = _count_all(copies.plan), len(copies.places)
    return PlanSummary(
        copies.lanes_of_all(counts.lane_steps),
        counts.steps,
        times * counts.messages,
        times * counts.rows,
        times * counts.largest,
        tuple(times * moved for moved in counts.bytes_by_op),
        counts.switched,
        None,
        counts.groups,
    )


class _LaneSteps:
    """Counts the steps of every lane. Steps that recur share one array of lanes, and are added
    together: a ring of 8,192 ranks has 16,382 steps of up to 65,536 lanes, of which few differ.
    """

    def __init__(self, lanes: int) -> None:
        self.steps = np.zeros(lanes, np.int64)
        self.later: dict[int, tuple[Ints, int]] = {}
        self.rows = 0

    def add(self, lanes: Ints, times: int) -> None:
        """Count a step ``times`` times for some lanes."""
        if id(lanes) in self.later:
            times += self.later[id(lanes)][1]
        else:
            self.rows += len(lanes)
        self.later[id(lanes)] = lanes, times
        if self.rows > KEPT_ROWS:
            self.close()

    def close(self) -> None:
        """Add what is left."""
        for lanes, times in self.later.values():
            self.steps[lanes] += times
        self.later, self.rows = {}, 0


def _count_all(plan: Plan) -> PlanSummary:
    groups: list[Group] | None = []
    facts_of: dict[int, tuple[Ints, tuple[int, ...], bool]] = {}
    lane_steps = _LaneSteps(plan.nranks * plan.nchannels)
    steps = messages = rows = largest = 0
    moved = [0] * len(OP_NAMES)
    switched = False
    for group in spinning(plan):
        spins = isinstance(group, Spinning)
        steps_of_group, times = (group.steps, group.times) if isinstance(group, Spinning) else group
        fresh = {}
        for number, step in enumerate(steps_of_group):
            step_facts = facts_of.get(id(step))
            if step_facts is None:
                step_facts = fresh[id(step)] = _facts(plan, step)
                rows += step.rows * (times if spins else 1)
                largest = max(largest, step.rows)
            lanes, payload, by_switch = step_facts
            lane_steps.add(lanes, times)
            steps += times
            messages += step.rows * times
            added = (
                group.bytes_by_op(number)
                if isinstance(group, Spinning)
                else [times * nbytes for nbytes in payload]
            )
            moved = [sum(pair) for pair in zip(moved, added, strict=True)]
            switched = switched or by_switch
        if rows > KEPT_ROWS or (spins and rows > UNROLLED_ROWS):
            groups, facts_of = None, {}
        elif isinstance(group, Spinning):
            groups = (
                None if groups is None else [*groups, *(((step,), 1) for step in group.unroll())]
            )
        elif groups is not None:
            groups.append(group)
            facts_of |= fresh  # as long as groups keep them
    lane_steps.close()
    return PlanSummary(
        lane_steps.steps, steps, messages, rows, largest, tuple(moved), switched, groups
    )


def same_moves(a: Moves, b: Moves) -> bool:
    """Whether two steps take the same time."""
    if not same_transits(a.paths, b.paths):
        return False
    return all(
        getattr(a, name) is getattr(b, name) or np.array_equal(getattr(a, name), getattr(b, name))
        for name in Moves._fields[:-1]
    )
