"""The data plane: every rank's numpy buffers, and the slices that steps read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcoll.arrays import Array
from simcoll.core.plan import INPUT, OUTPUT, Plan, PlanStep
from simcoll.core.reduction import combine
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, SYNC
from simcoll.core.switches import switch_groups
from simcoll.errors import ConfigError

__all__ = ["Place", "Storage", "unwritten"]


class Place:
    """Source and destination of a transfer, as views of the buffers."""

    __slots__ = ("op", "reduce", "source", "staged", "target")

    def __init__(self, source: Array, target: Array, staged: bool, op: str, reduce: bool) -> None:
        self.source = source
        self.target = target
        self.staged = staged
        self.op = op
        self.reduce = reduce

    def write(self, value: Array) -> None:
        """Copy or combine a value into the destination."""
        if self.reduce:
            combine(self.op, self.target, value)
        else:
            self.target[...] = value


class FoldedPlace(Place):
    """A place that several reductions of one step write; each waits for its predecessors in the fold."""

    __slots__ = ("before", "behind", "early", "value")

    def __init__(self, source: Array, target: Array, staged: bool, op: str, reduce: bool) -> None:
        super().__init__(source, target, staged, op, reduce)
        self.before = self.early = 0
        self.behind: list[FoldedPlace] = []
        self.value: Array | None = None

    def follow(self, other: FoldedPlace) -> None:
        """Come after another place in the fold."""
        self.before = self.early = self.before + 1
        other.behind.append(self)

    def write(self, value: Array) -> None:
        """Copy or combine a value into the destination as soon as all predecessors have done so."""
        if self.early:
            self.value = value.copy()
            return
        super().write(value)
        self.early = self.before  # a step can be replayed
        for place in self.behind:
            place.early -= 1
            if not place.early and place.value is not None:
                held, place.value = place.value, None
                place.write(held)


class Storage:
    """The buffers of all ranks during a run.

    Out of place, inputs are used without a copy, behind read-only views. All other memory starts with a pattern (NaN, or odd integers)
    that reveals reads of unwritten memory.

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
        for rank, (given, elements) in enumerate(zip(inputs, sizes, strict=True)):
            buffer, offset, length = plan.view(rank, INPUT)
            whole = buffer == INPUT and not plan.collective.in_place
            store = [
                unwritten(0 if whole and which == INPUT else count, plan.dtype) for which, count in enumerate(elements)
            ]
            if length:
                array = _checked(given, rank, length, plan.dtype)
                if plan.collective.spec.reduces:
                    array = plan.reduction.prepared(array)
                if whole:
                    store[INPUT] = array.view()
                    store[INPUT].setflags(write=False)
                else:
                    store[buffer][offset : offset + length] = array
            self._buffers.append(store)

    @classmethod
    def around(cls, plan: Plan, buffers: list[list[Array]]) -> Storage:
        """Storage on existing buffers: input, output and scratch of every rank."""
        made = cls.__new__(cls)
        made._plan, made._buffers = plan, buffers  # noqa: SLF001  # its own
        return made

    def places(self, step: PlanStep) -> list[Place | None]:
        """The views of every transfer of a step; ``None`` for those without data."""
        buffers, op = self._buffers, self._plan.op
        # A switch reduction ignores the old content of its destination: the first of its transfers copies, the others combine.
        combines = (step.op == REDUCE) | (step.op == SWITCH_REDUCE)
        for group in switch_groups(step):
            combines[group[0]] = False
        columns = (
            step.src_rank, step.src_buffer, step.src_offset, step.dst_rank, step.dst_buffer, step.dst_offset,
            step.elements, step.op, step.staged, combines,
        )  # fmt: skip
        rows = zip(*(column.tolist() for column in columns), strict=True)
        followed = self._followed(step)
        kind = FoldedPlace if followed else Place
        places = [
            None
            if code == SYNC
            else kind(buffers[src][sb][so : so + n], buffers[dst][db][do : do + n], staged, op, combining)
            for src, sb, so, dst, db, do, n, code, staged, combining in rows
        ]
        for later, earlier in followed:
            after, before = places[later], places[earlier]
            if isinstance(after, FoldedPlace) and isinstance(before, FoldedPlace):
                after.follow(before)
        return places

    def _followed(self, step: PlanStep) -> list[tuple[int, int]]:
        """Pairs (later, earlier) of rows of a step that write the same elements, in fold order."""
        if not self._plan.schedule.known.folds:
            return []
        rows = np.flatnonzero((step.op == REDUCE) | (step.op == COPY))
        start = step.dst_rank * self._plan.schedule.layout.size + step.dst_chunk
        order = rows[np.lexsort((rows, start[rows]))].tolist()
        begin, end = start.tolist(), (start + step.count).tolist()
        found: list[tuple[int, int]] = []
        reaching: list[int] = []
        for row in order:
            reaching = [other for other in reaching if end[other] > begin[row]]
            found += [(max(row, other), min(row, other)) for other in reaching]
            reaching.append(row)
        return sorted(found)

    def play(self) -> None:
        """Move all data in step order, without a clock.

        Every order that the plan allows yields the same bits, since the plan orders all transfers that share a chunk.
        """
        for step in self._plan.steps():
            pairs = [
                (place, place.source.copy() if place.staged else place.source) for place in self.places(step) if place
            ]
            for place, value in pairs:
                place.write(value)

    def outputs(self) -> tuple[Array | None, ...]:
        """Output of each rank after the run; ``None`` where the collective gives it none. Call it once."""
        has = self._plan.collective.has_output(np.arange(self._plan.nranks)).tolist()
        result: list[Array | None] = []
        for rank, store in enumerate(self._buffers):
            buffer, offset, length = self._plan.view(rank, OUTPUT)
            seen = store[buffer][offset : offset + length]
            if has[rank] and self._plan.collective.spec.reduces:
                self._plan.reduction.finish(seen, self._plan.nranks)
            result.append(seen if has[rank] else None)
        return tuple(result)


def _checked(given: Array | None, rank: int, length: int, dtype: np.dtype[Any]) -> Array:
    if given is None:
        raise ConfigError(f"rank {rank} needs {length} elements of {dtype.name} as input; got none")
    array = np.asarray(given)
    if array.dtype != dtype or array.size != length:
        raise ConfigError(
            f"rank {rank} needs {length} elements of {dtype.name} as input; got {array.size} of {array.dtype.name}"
        )
    return array.reshape(-1)


def unwritten(count: int, dtype: np.dtype[Any]) -> Array:
    """Memory filled with a pattern (NaN, or odd integers) that reveals reads of unwritten elements."""
    array = np.empty(count, dtype)
    if dtype.kind in "iu":
        array.view(np.uint8)[:] = 0xA5
    else:
        array[:] = True if dtype.kind == "b" else float("nan")
    return array
