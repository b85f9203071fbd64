"""The data plane: every rank's numpy buffers, and the slices that steps read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.core.plan import INPUT, OUTPUT, Plan, PlanStep
from simcoll.core.reduction import combine
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, SYNC
from simcoll.core.switches import switch_groups
from simcoll.core.vocabulary import PairReduction
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.core.wire_format import WireFormat

__all__ = ["BufferPlace", "Storage", "blank_memory"]


class BufferPlace:
    """Source and destination of a transfer, as views of the buffers.

    ``wire`` is the format in which it carries its data, if not that of the buffers.
    """

    __slots__ = ("op", "reduce", "source", "staged", "target", "wire")

    def __init__(
        self,
        source: Array,
        target: Array,
        staged: bool,
        op: PairReduction,
        reduce: bool,
        wire: WireFormat | None = None,
    ) -> None:
        self.source = source
        self.target = target
        self.staged = staged
        self.op = op
        self.reduce = reduce
        self.wire = wire

    def write(self, value: Array) -> None:
        """Convert a value as its message does, and copy or combine it into the destination."""
        self.store(value if self.wire is None else self.wire.round_trip(value))

    def store(self, value: Array) -> None:
        """Copy or combine a converted value."""
        if self.reduce:
            combine(self.op, self.target, value)
        else:
            self.target[...] = value


class FoldedPlace(BufferPlace):
    """A place that several reductions of one step write; each waits for its predecessors in the
    fold.

    Floating-point sums depend on the order of their terms. The plan therefore fixes the order of a
    fold, and the bits of a result are the same on every machine, although messages arrive in an
    order that depends on its speed. A value that arrives early is set aside as a copy (its source
    may change meanwhile). The alternative, to make the message itself wait, would let data decide
    about time.

    Invariant: ``early`` is the number of predecessors that have not been written, and a place has a
    ``value`` only while it is above 0.
    """

    __slots__ = ("before", "behind", "early", "value")

    def __init__(
        self,
        source: Array,
        target: Array,
        staged: bool,
        op: PairReduction,
        reduce: bool,
        wire: WireFormat | None = None,
    ) -> None:
        super().__init__(source, target, staged, op, reduce, wire)
        self.before = self.early = 0
        self.behind: list[FoldedPlace] = []
        self.value: Array | None = None

    def follow(self, predecessor: FoldedPlace) -> None:
        """Come after another place in the fold."""
        self.before = self.early = self.before + 1
        predecessor.behind.append(self)

    def store(self, value: Array) -> None:
        """Copy or combine a value into the destination as soon as all predecessors have done so."""
        if self.early:
            self.value = value.copy()
            return
        super().store(value)
        self.early = self.before  # a step can be replayed
        for place in self.behind:
            place.early -= 1
            if not place.early and place.value is not None:
                late_value, place.value = place.value, None
                place.store(late_value)


class Storage:
    """The buffers of all ranks during a run.

    Out of place, inputs are used without a copy, behind read-only views. All other memory starts
    with a pattern (NaN, or odd integers) that reveals reads of unwritten memory.

    Parameters
    ----------
    plan
        The plan to run.
    inputs
        One input array per rank; ignored for a rank without input.

    Raises
    ------
    ConfigError
        When number, dtype or length of the arrays do not fit.
    """

    __slots__ = ("_buffers", "_plan")

    def __init__(self, plan: Plan, inputs: Sequence[Array | None]) -> None:
        if len(inputs) != plan.nranks:
            raise ConfigError(f"data for {len(inputs)} ranks was given; the plan has {plan.nranks}")
        self._plan = plan
        sizes = plan.buffer_elements().tolist()
        self._buffers: list[list[Array]] = []
        for rank, (values, elements) in enumerate(zip(inputs, sizes, strict=True)):
            buffer, offset, length = plan.view(rank, INPUT)
            unbuffered = buffer == INPUT and not plan.collective.in_place
            store = [
                blank_memory(0 if unbuffered and number == INPUT else count, plan.dtype)
                for number, count in enumerate(elements)
            ]
            if length:
                array = _check_input(values, rank, length, plan.dtype)
                if plan.collective.spec.reduces:
                    array = plan.reduction.prepared(array)
                if unbuffered:
                    store[INPUT] = array.view()
                    store[INPUT].setflags(write=False)
                else:
                    store[buffer][offset : offset + length] = array
            self._buffers.append(store)

    @classmethod
    def around(cls, plan: Plan, buffers: list[list[Array]]) -> Storage:
        """Storage on existing buffers: input, output and scratch of every rank."""
        storage = cls.__new__(cls)
        storage._plan, storage._buffers = plan, buffers  # noqa: SLF001  # its own
        return storage

    def places(self, step: PlanStep) -> list[BufferPlace | None]:
        """The views of every transfer of a step; ``None`` for those without data."""
        op = self._plan.op
        # A switch reduction ignores the old content of its destination: the first of its transfers
        # copies, the others combine.
        combines = (step.op == REDUCE) | (step.op == SWITCH_REDUCE)
        for group in switch_groups(step):
            combines[group[0]] = False
        pairs = self._fold_pairs(step)
        kind = FoldedPlace if pairs else BufferPlace
        sources = self._slices(step.src_rank, step.src_buffer, step.src_offset, step.elements)
        targets = self._slices(step.dst_rank, step.dst_buffer, step.dst_offset, step.elements)
        codes, staged, combining = step.op.tolist(), step.staged.tolist(), combines.tolist()
        wires: dict[int, WireFormat] = {}
        for wire, rows in () if step.transits is None else step.transits.by_format():
            wires |= dict.fromkeys(rows.tolist(), wire)
        places = [
            None
            if code == SYNC
            else kind(sources[row], targets[row], staged[row], op, combining[row], wires.get(row))
            for row, code in enumerate(codes)
        ]
        for later_row, earlier_row in pairs:
            later_place, earlier_place = places[later_row], places[earlier_row]
            if isinstance(later_place, FoldedPlace) and isinstance(earlier_place, FoldedPlace):
                later_place.follow(earlier_place)
        return places

    def _slices(self, rank: Ints, buffer: Array, offset: Ints, elements: Ints) -> list[Array]:
        """The views of one end of every transfer."""
        stores = [
            self._buffers[name][number]
            for name, number in zip(rank.tolist(), buffer.tolist(), strict=True)
        ]
        bounds = zip(stores, offset.tolist(), (offset + elements).tolist(), strict=True)
        return [store[begin:end] for store, begin, end in bounds]

    def _fold_pairs(self, step: PlanStep) -> list[tuple[int, int]]:
        """Pairs (later, earlier) of rows of a step that write the same elements, in fold order."""
        if not self._plan.schedule.known.folds:
            return []
        rows = np.flatnonzero((step.op == REDUCE) | (step.op == COPY))
        start = step.dst_rank * self._plan.schedule.layout.size + step.dst_chunk
        order = rows[np.lexsort((rows, start[rows]))].tolist()
        begin, end = start.tolist(), (start + step.count).tolist()
        pairs: list[tuple[int, int]] = []
        reaching: list[int] = []
        for row in order:
            reaching = [earlier for earlier in reaching if end[earlier] > begin[row]]
            pairs += [(max(row, earlier), min(row, earlier)) for earlier in reaching]
            reaching.append(row)
        return sorted(pairs)

    def play(self) -> None:
        """Move all data in step order, without a clock.

        Every order that the plan allows yields the same bits, since the plan orders all transfers
        that share a chunk.
        """
        for step in self._plan.steps():
            self._play_step(step)  # whose copies are freed before those of the next are made

    def _play_step(self, step: PlanStep) -> None:
        """Read everything that a step sends, then write it."""
        pairs = [
            (place, place.source.copy() if place.staged else place.source)
            for place in self.places(step)
            if place
        ]
        for place, value in pairs:
            place.write(value)

    def outputs(self) -> tuple[Array | None, ...]:
        """Output of each rank after the run; ``None`` where the collective gives it none. Call it
        once.
        """
        has = self._plan.collective.has_output(np.arange(self._plan.nranks)).tolist()
        result: list[Array | None] = []
        for rank, store in enumerate(self._buffers):
            buffer, offset, length = self._plan.view(rank, OUTPUT)
            output = store[buffer][offset : offset + length]
            if has[rank] and self._plan.collective.spec.reduces:
                self._plan.reduction.finish(output, self._plan.summands)
            result.append(output if has[rank] else None)
        return tuple(result)


def _check_input(values: Array | None, rank: int, length: int, dtype: np.dtype[Any]) -> Array:
    if values is None:
        raise ConfigError(f"rank {rank} needs {length} elements of {dtype.name} as input; got none")
    array = np.asarray(values)
    if array.dtype != dtype or array.size != length:
        raise ConfigError(
            f"rank {rank} needs {length} elements of {dtype.name} as input; got {array.size} of "
            f"{array.dtype.name}"
        )
    return array.reshape(-1)


def blank_memory(count: int, dtype: np.dtype[Any]) -> Array:
    """Memory filled with a pattern (NaN, or odd integers) that reveals reads of unwritten
    elements.
    """
    array = np.empty(count, dtype)
    if dtype.kind in "iu":
        array.view(np.uint8)[:] = 0xA5
    else:
        array[:] = True if dtype.kind == "b" else float("nan")
    return array
