"""Data movement of a plan without a clock, one whole step at a time.

For checks of many ranks, and for plans that are played often.

The buffers of all ranks form one array. A step first reads everything that it sends, then writes
it. Transfers that write the same elements are written in several passes, in the order of the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.core.plan import INPUT, OUTPUT, Plan
from simcoll.core.reduction import combine
from simcoll.core.reference import count_wrong, exact_inputs, expected_outputs
from simcoll.core.schedule import REDUCE, SWITCH_REDUCE, lowered
from simcoll.core.step import Step, distinct
from simcoll.core.switches import switch_groups
from simcoll.core.wire_format import WireFormat
from simcoll.emulator.data.dataplane import blank_memory

__all__ = ["BufferPool", "data_errors", "move_inputs"]

LOCATED = 1 << 18
"""Transfers of a step to locate at a time: their places in the plan take ten further columns."""
COMBINED = 1 << 18
"""Elements to combine at a time, outside their buffers."""


def data_errors(plan: Plan, seed: int = 0) -> int:
    """Move generated data through a plan; count the output elements that differ from the
    collective's definition.
    """
    inputs = exact_inputs(plan, seed)
    # What copies are expected to leave is as large as all outputs, and waits until the moves are
    # over: to generate the inputs again takes less than a tenth of the time.
    reduces = plan.collective.spec.reduces
    expected = expected_outputs(plan, inputs) if reduces else None
    inputs.reverse()  # they are freed when all have been copied
    outputs = move_inputs(plan, (inputs.pop() for _ in range(plan.nranks)))
    if expected is None:
        expected = expected_outputs(plan, exact_inputs(plan, seed))
    return count_wrong(outputs, expected)


def move_inputs(plan: Plan, inputs: Iterable[Array]) -> tuple[Array | None, ...]:
    """Output of each rank; ``None`` where the collective gives it none.

    Every engine yields these bits, since the plan orders all transfers that share a chunk.
    """
    pool, reduces = BufferPool(plan), plan.collective.spec.reduces
    pool.fill(inputs)
    for moves in pool.steps():
        pool.move(moves)
        del moves
    outputs: list[Array | None] = []
    has = plan.collective.has_output(np.arange(plan.nranks)).tolist()
    for output, receives in zip(pool.visible(OUTPUT), has, strict=True):
        if receives and reduces:
            plan.reduction.finish(output, plan.summands)
        outputs.append(output if receives else None)
    return tuple(outputs)


class _TransferGroup(NamedTuple):
    """Similar transfers of one step: of equal length, and all copied or all combined.

    ``sources`` and ``targets`` are their first elements; no two write the same element. Kept
    targets may be a slice. All have one ``wire`` format, if not that of the buffers.
    """

    sources: Ints
    targets: Any
    length: int
    combines: bool
    wire: WireFormat | None = None


class BufferPool:
    """The buffers of all ranks of a plan as one array.

    Attributes
    ----------
    buffers
        Views of the array: input, output and scratch of every rank. They start with a pattern that
        reveals reads of unwritten memory.
    """

    __slots__ = ("_array", "_first", "_plan", "_steps_in_place", "_views", "buffers")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        sizes = plan.buffer_elements()
        ends = np.cumsum(sizes.reshape(-1))
        self._first = (ends - sizes.reshape(-1)).reshape(sizes.shape)
        self._array = blank_memory(int(ends[-1]), plan.dtype)
        self._steps_in_place: list[list[_TransferGroup]] | None = None
        self._views: dict[int, Array] = {}
        pieces = np.split(self._array, ends[:-1])
        self.buffers = [pieces[rank : rank + 3] for rank in range(0, len(pieces), 3)]

    def visible(self, kind: int) -> list[Array]:
        """Every rank's visible input (0) or output (1); empty for a rank without one."""
        places = [self._plan.view(rank, kind) for rank in range(self._plan.nranks)]
        return [
            buffers[buffer][start : start + size]
            for buffers, (buffer, start, size) in zip(self.buffers, places, strict=True)
        ]

    def fill(self, inputs: Iterable[Array]) -> None:
        """Copy the input of every rank, prepared for a reduction."""
        reduces = self._plan.collective.spec.reduces
        for values, place in zip(inputs, self.visible(INPUT), strict=True):
            if place.size:
                place[...] = self._plan.reduction.prepared(values) if reduces else values

    def play(self) -> None:
        """Move all data; the moves are derived on the first call and kept."""
        if self._steps_in_place is None:
            self._steps_in_place = [list(map(_in_place, moves)) for moves in self.steps()]
        for moves in self._steps_in_place:
            self.move(moves)

    def steps(self) -> Iterator[list[_TransferGroup]]:
        """Stream the moves of every step, in an order in which they can be written."""
        by_number = groupby(lowered(self._plan.schedule, portioned=True), itemgetter(0))
        for _, portions in by_number:
            moves = [group for _, portion in portions for group in self._moves(portion)]
            if moves:
                yield moves
            del moves

    def move(self, moves: list[_TransferGroup]) -> None:
        """Perform one step: read everything, then write it."""
        windows = [self._windows(group.length) for group in moves]
        values = [window[group.sources] for group, window in zip(moves, windows, strict=True)]
        values = [
            value if group.wire is None else group.wire.round_trip(value)
            for group, value in zip(moves, values, strict=True)
        ]
        for group, window, value in zip(moves, windows, values, strict=True):
            if not group.combines:
                window[group.targets] = value
            elif isinstance(group.targets, slice):
                combine(self._plan.op, window[group.targets], value)
            else:
                count = max(1, COMBINED // group.length)
                for begin in range(0, len(value), count):
                    rows = slice(begin, begin + count)
                    total = window[group.targets[rows]]
                    combine(self._plan.op, total, value[rows])
                    window[group.targets[rows]] = total

    def _windows(self, length: int) -> Array:
        """Windows of ``length`` elements at every offset, as views: ``[offset, length]``."""
        windows = self._views.get(length)
        if windows is None:
            array = self._array
            shape, strides = (array.size - length + 1, length), array.strides * 2
            windows = self._views[length] = np.lib.stride_tricks.as_strided(array, shape, strides)
        return windows

    def _elements(self, step: Step) -> tuple[Ints, Ints, Ints]:
        """First source and target element of every transfer of a step, and its length."""
        plan, layout, starts = self._plan, self._plan.schedule.layout, self._first
        regions = layout.region(step.src_chunk), layout.region(step.dst_chunk)
        src_offset, dst_offset, length = plan.ranges(step, *regions)
        source = starts[step.src_rank, regions[0]] + src_offset
        target = starts[step.dst_rank, regions[1]] + dst_offset
        return source, target, length

    def _moves(self, step: Step) -> list[_TransferGroup]:
        """The transfers of a step that move something, as groups.

        A part of a long step at a time, which leaves only the places of its data: those of a step
        of a million transfers take less than the step, and ten further columns take more.
        """
        switched = bool((step.op == SWITCH_REDUCE).any())
        combines = step.op == REDUCE
        # The first transfer of a switch reduction copies: the old content does not count.
        if switched:
            followers = step.op == SWITCH_REDUCE
            followers[[group[0] for group in switch_groups(step)]] = False
            combines |= followers
        # Only these write an element twice in a step.
        if switched or self._plan.schedule.known.folds:
            return self._moves_in_turn(step, combines)
        kind = np.int32 if self._array.size < 2**31 else np.int64  # half the memory of a step
        groups: list[_TransferGroup] = []
        for begin in range(0, len(step), LOCATED):
            rows = slice(begin, begin + LOCATED)
            part = step if len(step) <= LOCATED else step.rows(rows)
            source, target, length = self._elements(part)
            moving = np.flatnonzero(length)
            source, target = source[moving].astype(kind), target[moving].astype(kind)
            columns = source, target, length[moving], combines[rows][moving]
            groups += _groups(*columns, *_wires(part, moving, len(moving)))
        return groups

    def _moves_in_turn(self, step: Step, combines: Array) -> list[_TransferGroup]:
        """The same for a step that may write an element several times."""
        source, target, length = self._elements(step)
        rows = np.flatnonzero(length)
        source, target, length, combines = source[rows], target[rows], length[rows], combines[rows]
        if not len(length):
            return []
        if step.transits is not None:  # what is converted is not cut
            turn = _turns_of_ranges(target, length)
        else:
            if _overlap(target, length):
                row = np.repeat(np.arange(len(length)), length)
                offset = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
                source, target, combines = source[row] + offset, target[row] + offset, combines[row]
                length = np.ones_like(row)
            turn = _turns(target)
        number, wires = _wires(step, rows, len(length))
        return _groups(source, target, length, combines, number, wires, turn)


def _groups(
    source: Ints,
    target: Ints,
    length: Ints,
    combines: Array,
    number: Ints,
    wires: list[WireFormat | None],
    turn: Ints | None = None,
) -> list[_TransferGroup]:
    """Transfers as groups, by their turns; ``number`` is that of their wire formats."""
    if not len(length):
        return []
    kind = combines * (int(length.max()) + 1) + length
    if turn is not None:
        kind += turn * 2 * (int(length.max()) + 1)
    kind = kind * len(wires) + number
    groups: list[Any] = (
        [np.flatnonzero(kind == value) for value in distinct(kind)]
        if (kind != kind[0]).any()
        else [slice(None)]
    )
    return [
        _TransferGroup(
            source[mine],
            target[mine],
            int(length[mine][0]),
            bool(combines[mine][0]),
            wires[number[mine][0]],
        )
        for mine in groups
    ]


def _wires(step: Step, rows: Any, size: int) -> tuple[Ints, list[WireFormat | None]]:
    """For each moving transfer the number of its wire format, and the formats; 0 is none."""
    number, wires = np.zeros(len(step), np.int64), list[WireFormat | None]([None])
    if step.transits is None:
        return np.zeros(size, np.int64), wires
    for wire, converted in step.transits.by_format():
        number[converted] = len(wires)
        wires.append(wire)
    return number[rows], wires


def _turns_of_ranges(target: Ints, length: Ints) -> Ints:
    """For every transfer, a turn after all earlier ones that write some of its elements."""
    turn = np.zeros(len(target), np.int64)
    for row in range(1, len(target)):
        begin, end = target[row], target[row] + length[row]
        meets = (target[:row] < end) & (target[:row] + length[:row] > begin)
        turn[row] = turn[:row][meets].max(initial=-1) + 1
    return turn


def _in_place(moves: _TransferGroup) -> _TransferGroup:
    """The same transfers with a slice as targets, if these are at equal distances: they are then
    written without a copy.
    """
    order = np.argsort(moves.targets)
    targets = moves.targets[order]
    gaps = np.diff(targets)
    if not len(gaps) or (gaps != gaps[0]).any():
        return moves
    every = slice(int(targets[0]), int(targets[-1]) + 1, int(gaps[0]))
    return moves._replace(sources=moves.sources[order], targets=every)


def _overlap(target: Ints, length: Ints) -> bool:
    """Whether some transfers write overlapping ranges that are not identical."""
    order = np.lexsort((length, target))
    begin, size = target[order], length[order]
    reach = np.maximum.accumulate(begin + size)[:-1]
    differs = (begin[1:] != begin[:-1]) | (size[1:] != size[:-1])
    return bool(((begin[1:] < reach) & differs).any())


def _turns(places: Ints) -> Ints:
    """For every transfer, the number of earlier ones with the same destination."""
    order = np.argsort(places, kind="stable")
    new = np.append(True, np.diff(places[order]) != 0)
    begin = np.flatnonzero(new)[np.cumsum(new) - 1]
    turn = np.empty(len(places), np.int64)
    turn[order] = np.arange(len(places)) - begin
    return turn
