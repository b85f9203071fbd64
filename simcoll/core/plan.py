"""Plans: schedules bound to sizes, dtype, reduction, ranks and protocol.

The verifier, the emulator, every executor and every exporter consume only a plan, or the proved
schedule behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from simcoll.arrays import Array, Ints
from simcoll.core.collective import Collective
from simcoll.core.folds import operands
from simcoll.core.immutable import immutable, without_subclasses
from simcoll.core.known import Known
from simcoll.core.numbers import whole_numbers
from simcoll.core.plan_step import PlanStep
from simcoll.core.schedule import SYNC, Schedule, Step, lowered
from simcoll.core.vocabulary import PairReduction
from simcoll.errors import ConfigError
from simcoll.notebook_forms import facts_table
from simcoll.terminal import printable
from simcoll.units import format_size

if TYPE_CHECKING:
    from simcoll.core.proof import Proof
    from simcoll.core.protocol import Protocol
    from simcoll.core.reduction import Reduction


__all__ = ["INPUT", "OUTPUT", "SCRATCH", "Plan", "PlanStep"]

INPUT, OUTPUT, SCRATCH = 0, 1, 2
NO_NUMBERS = immutable(np.zeros(0, np.int64))
MOST_POSITIONS = 1 << 18
"""Chunk positions are tabulated up to this number of chunks per rank."""
MOST_KEPT = 1 << 10
"""Up to this number of transfers, the steps of a plan are kept."""


def _starts(slot_sizes: Ints) -> Ints:
    """Offsets of the slots of a buffer, per rank, from their sizes: ``[nranks, slots + 1]``."""
    result = np.zeros((slot_sizes.shape[0], slot_sizes.shape[1] + 1), np.int64)
    np.cumsum(slot_sizes, axis=1, out=result[:, 1:])
    return result


class PlanFacts:
    """Derived facts about a plan, each computed once, neither pickled nor copied; ``steps`` are
    kept if they have few transfers. No dataclass, for the reason of :class:`Known`.
    """

    __slots__ = ("positions", "starts", "steps", "views", "wait_pairs", "waits")

    def __init__(self) -> None:
        self.steps: tuple[PlanStep, ...] | None = None
        self.starts: list[Ints | int] | None = None
        self.positions: Ints | None = None
        self.waits: Mapping[int, tuple[int, ...]] | None = None
        self.wait_pairs: tuple[Array, Array] | None = None
        self.views: dict[int, Ints] = {}

    def __reduce__(self) -> tuple[type[PlanFacts], tuple[()]]:
        return PlanFacts, ()

    def __dask_tokenize__(self) -> str:
        return "derived facts"


@without_subclasses
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, repr=False)
class Plan:
    """A schedule bound to sizes, made by :func:`simcoll.bind`.

    Attributes
    ----------
    schedule
        The schedule that was bound.
    sizes
        Elements of every block: one number, or one per block.
    dtype, reduction
        Element type, and how contributions are reduced.
    ranks
        Endpoint of the topology for every rank of the schedule.
    protocol
        Cost parameters.
    proof
        Proof of the schedule; ``None`` when bound with ``unproved=True``. No proof is pickled: a
        plan that had one proves its schedule anew where it is unpickled, or raises ScheduleError.

    Examples
    --------
    >>> import simcoll
    >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
    >>> plan.collective.kind, plan.nranks, plan.nchannels, plan.total_bytes
    ('all_gather', 3, 1, 60)
    >>> print(plan)
    ring(channels=1, pieces=1) all_gather n=3 count=5 float32 ideal, proved (full)
    """

    schedule: Schedule
    sizes: Ints | int
    count: int
    dtype: np.dtype[Any]
    reduction: Reduction
    ranks: Ints
    protocol: Protocol
    proof: Proof | None

    if TYPE_CHECKING:

        def __init__(
            self,
            schedule: Schedule,
            sizes: ArrayLike,
            count: int,
            dtype: np.dtype[Any],
            reduction: Reduction,
            ranks: ArrayLike,
            protocol: Protocol,
            proof: Proof | None,
        ) -> None: ...

    # Not copied by dataclasses.replace: derived facts do not hold for a changed plan.
    known: PlanFacts = field(default_factory=PlanFacts, repr=False, init=False)

    def __post_init__(self) -> None:
        if type(self.schedule) is not Schedule:
            raise ConfigError(f"a plan needs a Schedule, got {self.schedule!r:.60}")
        single = isinstance(self.sizes, (int, np.integer))
        object.__setattr__(
            self, "sizes", int(self.sizes) if single else whole_numbers("sizes", self.sizes)
        )
        object.__setattr__(self, "ranks", whole_numbers("ranks", self.ranks))
        if self.proof is not None and self.proof.of is not self.schedule.known:
            raise ConfigError(
                f"this proof is not of {self.schedule}; bind(schedule, count) proves a schedule "
                "and makes its plan"
            )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # Without its proof: simcoll.binding, which can prove, registers how a plan with one
        # travels.
        arguments = (
            self.schedule,
            self.sizes,
            self.count,
            self.dtype,
            self.reduction,
            self.ranks,
            self.protocol,
        )
        return Plan, (*arguments, None)

    def __copy__(self) -> Plan:
        return replace(self)

    def __deepcopy__(self, memo: Any) -> Plan:
        return replace(self)

    @property
    def collective(self) -> Collective:
        """The collective that the plan implements."""
        return self.schedule.collective

    @property
    def nranks(self) -> int:
        """World size."""
        return self.schedule.nranks

    @property
    def op(self) -> PairReduction:
        """The pairwise reduction, for :func:`simcoll.core.reduction.combine`.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_reduce", "ring", nranks=3)
        >>> simcoll.bind(ring, count=5, op="avg").op
        'sum'
        """
        return self.reduction.pairwise

    @property
    def nchannels(self) -> int:
        """Number of channels, which are ``0 .. nchannels - 1``."""
        return self.schedule.nchannels

    def _slot_starts(self) -> list[Ints | int]:
        """Slot offsets of input, output and scratch; a single number if all slots have one size."""
        if self.known.starts is None:
            collective, layout, sizes = self.collective, self.schedule.layout, self.sizes
            rank = np.arange(self.nranks, dtype=np.int64)[:, None]
            scratch = np.broadcast_to(layout.scratch, (self.nranks, layout.scratch_slots))
            blocks = (
                collective.input_block(rank, np.arange(collective.input_slots)),
                collective.output_block(rank, np.arange(collective.output_slots)),
                scratch,
            )
            starts = [
                sizes if isinstance(sizes, int) else _starts(sizes[block]) for block in blocks
            ]
            if layout.scratch_pieces is not None:
                piece = np.broadcast_to(layout.scratch_pieces, scratch.shape)
                size = sizes if isinstance(sizes, int) else sizes[scratch]
                starts[SCRATCH] = _starts(
                    (piece + 1) * size // layout.chunks - piece * size // layout.chunks
                )
            self.known.starts = starts
        return self.known.starts

    def positions(self) -> Ints | None:
        """Number of elements before each chunk of a rank, all buffers in a row, with the total;
        None if ranks differ or chunks are many.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> plan.positions().tolist()
        [0, 5, 10, 15, 20]
        """
        layout, sizes, facts = self.schedule.layout, self.sizes, self.known
        pieces = layout.scratch_pieces
        if (
            not isinstance(sizes, int)
            or layout.size > MOST_POSITIONS
            or (pieces is not None and pieces.ndim > 1)
        ):
            return None
        if facts.positions is None:
            lengths = np.diff(np.arange(layout.chunks + 1, dtype=np.int64) * sizes // layout.chunks)
            visible = np.tile(lengths, layout.scratch_base // layout.chunks)
            scratch = np.tile(lengths, layout.scratch_slots) if pieces is None else lengths[pieces]
            facts.positions = immutable(
                np.concatenate([[0], np.cumsum(np.concatenate([visible, scratch]))])
            )
        return facts.positions

    def _address(self, rank: Ints, chunk: Ints, region: Ints) -> Ints:
        """Element offset of the start of each chunk; a buffer's end counts as one more chunk."""
        layout = self.schedule.layout
        relative = chunk - layout.bases()[region]
        pieces = layout.scratch_pieces is not None
        slot_chunks: Ints | int = (
            np.where(region == SCRATCH, 1, layout.chunks) if pieces else layout.chunks
        )
        slot, piece = relative // slot_chunks, relative % slot_chunks
        if isinstance(self.sizes, int) and not pieces:
            return slot * self.sizes + piece * self.sizes // layout.chunks
        result = np.zeros(chunk.shape, np.int64)
        for buffer, starts in enumerate(self._slot_starts()):
            rows = np.flatnonzero(region == buffer)
            if isinstance(starts, int):
                result[rows] = slot[rows] * starts + piece[rows] * starts // layout.chunks
            elif len(rows):
                # The end of a buffer, where ranges may end, lies in no slot.
                slots, last = slot[rows], starts.shape[1] - 1
                begin = starts[rank[rows], np.minimum(slots, last)]
                size = starts[rank[rows], np.minimum(slots + 1, last)] - begin
                result[rows] = begin + piece[rows] * size // layout.chunks
        return result

    def ranges(self, step: Step, src_region: Ints, dst_region: Ints) -> tuple[Ints, Ints, Ints]:
        """Source and destination offsets of each transfer of a step with resolved aliases, and its
        elements; a message without data has none.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> step, region = next(plan.schedule.steps()), plan.schedule.layout.region
        >>> places = plan.ranges(step, region(step.src_chunk), region(step.dst_chunk))
        >>> [values.tolist() for values in places]
        [[0, 0, 0], [0, 5, 10], [5, 5, 5]]
        """
        positions = self.positions()
        # A message without data may have any chunk.
        if positions is None or (step.op == SYNC).any():
            src_offset = self._address(step.src_rank, step.src_chunk, src_region)
            elements = (
                self._address(step.src_rank, step.src_chunk + step.count, src_region) - src_offset
            )
            elements[step.op == SYNC] = 0
            return src_offset, self._address(step.dst_rank, step.dst_chunk, dst_region), elements
        bases = positions[self.schedule.layout.bases()]
        begin = positions[step.src_chunk]
        elements = positions[step.src_chunk + step.count] - begin
        return begin - bases[src_region], positions[step.dst_chunk] - bases[dst_region], elements

    def elements(self, step: Step) -> Ints:
        """Number of elements of each transfer of a step with resolved aliases.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> step = next(plan.schedule.steps())
        >>> plan.elements(step).tolist()
        [5, 5, 5]
        """
        layout, sizes = self.schedule.layout, self.sizes
        if isinstance(sizes, int) and sizes % layout.chunks == 0:
            return np.where(step.op == SYNC, 0, step.count * (sizes // layout.chunks))
        if isinstance(sizes, int) and (step.op != SYNC).all():
            positions = self.positions()
            if positions is not None:
                lengths: Ints = positions[step.src_chunk + step.count] - positions[step.src_chunk]
                return lengths
            if (step.count == 1).all():
                cuts = np.arange(layout.chunks + 1, dtype=np.int64) * sizes // layout.chunks
                return np.diff(cuts)[layout.piece(step.src_rank, step.src_chunk)]
        return self.ranges(step, layout.region(step.src_chunk), layout.region(step.dst_chunk))[2]

    def bytes_of(self, step: Step, elements: Ints) -> Ints:
        """Bytes of transfers of so many elements: of a message in its wire format, in that format.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> plan.bytes_of(simcoll.transfers(0, 0, 1, 0, wire="float16"), np.array([5])).tolist()
        [10]
        """
        sizes: Ints = elements * self.dtype.itemsize
        if step.transits is None:
            return sizes
        for wire, rows in step.transits.by_format():
            sent = rows[step.src_rank[rows] != step.dst_rank[rows]]  # a rank's own copies are whole
            sizes[sent] = wire.size_bytes(elements[sent])
        return sizes

    def steps(self, *, staged: bool = True) -> Iterator[PlanStep]:
        """Stream the steps with offsets and sizes, without empty steps; each call starts over.

        Without ``staged``, that column is all False and not computed.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> [step.size_bytes.tolist() for step in plan.steps()]
        [[20, 20, 20], [20, 20, 20], [20, 20, 20]]
        """
        from simcoll.core.hazards import overwritten_sources

        layout, facts = self.schedule.layout, self.known
        if facts.steps is not None:
            yield from facts.steps
            return
        records: list[PlanStep] = []
        room = MOST_KEPT if staged and self.schedule.known.kept is not None else -1
        for number, step in lowered(self.schedule):
            src_region, dst_region = layout.region(step.src_chunk), layout.region(step.dst_chunk)
            src_offset, dst_offset, elements = self.ranges(step, src_region, dst_region)
            keep = (elements > 0) | (step.op == SYNC)
            if not keep.any():
                continue
            columns: tuple[Any, ...] = (
                step.src_rank,
                src_region.astype(np.int8),
                src_offset,
                step.dst_rank,
                dst_region.astype(np.int8),
                dst_offset,
                elements,
                self.bytes_of(step, elements),
                step.src_chunk,
                step.dst_chunk,
                step.count,
                step.op,
                step.channel,
                overwritten_sources(layout, step) if staged else np.zeros(len(step), np.bool_),
            )
            transits = step.transits
            if not keep.all():
                columns = tuple(column[keep] for column in columns)
                transits = None if transits is None else transits.rows(keep)
            record = PlanStep(number, *(*columns, transits))
            room -= len(record)
            if room >= 0:
                records.append(record)
            yield record
        if room >= 0:
            facts.steps = tuple(records)

    def operands(self, step: Step | PlanStep) -> Ints | int:
        """Length of the fold that each transfer of a step belongs to; a fold's reductions are
        sequential.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> plan.operands(next(plan.steps()))
        1
        """
        if not self.schedule.known.folds:
            return 1
        return operands(
            step.dst_rank, step.dst_chunk, step.count, step.op, self.schedule.layout.size
        )

    def transfers(self) -> Iterator[tuple[int, Step]]:
        """Stream the same steps, numbered, in chunks of the schedule.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> [(number, len(step)) for number, step in plan.transfers()]
        [(0, 3), (1, 3), (2, 3)]
        """
        for step in self.steps(staged=False):
            yield (
                step.step,
                Step(
                    step.src_rank,
                    step.src_chunk,
                    step.dst_rank,
                    step.dst_chunk,
                    step.count,
                    step.op,
                    step.channel,
                ),
            )

    @property
    def waits(self) -> Mapping[int, tuple[int, ...]]:
        """Transfers that must wait for earlier ones beyond the order of their channels.

        Keys and values are running numbers over :meth:`steps`. Empty unless two channels touch the
        same chunk.

        >>> import simcoll
        >>> layout = simcoll.Layout(simcoll.Collective("broadcast", 3))
        >>> def steps():
        ...     yield simcoll.transfers(0, layout.input(), [0, 1], layout.output())
        ...     yield simcoll.transfers(1, layout.output(), 2, layout.output(), channel=1)
        ...
        >>> plan = simcoll.bind(simcoll.Schedule("relay", layout, steps, nchannels=2), count=5)
        >>> dict(plan.waits)  # the relay sends what it has received
        {2: (1,)}
        """
        facts = self._of_waits()
        if facts.waits is None:
            from simcoll.core.hazards import by_transfer

            facts.waits = MappingProxyType(by_transfer(*self.wait_pairs))
        return facts.waits

    @property
    def wait_pairs(self) -> tuple[Array, Array]:
        """The same as two columns: waiting transfers, in order, and the transfers that they wait
        for.

        >>> import simcoll
        >>> layout = simcoll.Layout(simcoll.Collective("broadcast", 3))
        >>> def steps():
        ...     yield simcoll.transfers(0, layout.input(), [0, 1], layout.output())
        ...     yield simcoll.transfers(1, layout.output(), 2, layout.output(), channel=1)
        ...
        >>> plan = simcoll.bind(simcoll.Schedule("relay", layout, steps, nchannels=2), count=5)
        >>> [column.tolist() for column in plan.wait_pairs]
        [[2], [1]]
        """
        if not self._may_wait:
            return NO_NUMBERS, NO_NUMBERS
        facts = self._of_waits()
        if facts.wait_pairs is None:
            from simcoll.core.hazards import wait_pairs

            of_schedule = facts is self.schedule.known
            steps = (lambda: lowered(self.schedule)) if of_schedule else self.transfers
            waiting, awaited = wait_pairs(steps, self.nranks, self.schedule.layout.size)
            facts.wait_pairs = immutable(waiting), immutable(awaited)
            self.schedule.release()
        return facts.wait_pairs

    def expect_waits(self) -> None:
        """Have the next pass over the steps kept if waits are still to be derived, which takes
        another.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> plan.expect_waits()
        >>> dict(plan.waits)
        {}
        """
        if self._may_wait and self._of_waits().wait_pairs is None:
            self.schedule.hold()

    @property
    def _may_wait(self) -> bool:
        return self.nchannels > 1 and (self.proof is None or self.proof.shared_chunks)

    def _of_waits(self) -> PlanFacts | Known:
        """Where to keep the waits: with the schedule, if the plan has all of its transfers."""
        return self.schedule.known if self.whole else self.known

    @property
    def whole(self) -> bool:
        """Whether no chunk is empty, and the plan therefore has all transfers of the schedule.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_reduce", "ring", nranks=3)
        >>> simcoll.bind(ring, count=3).whole, simcoll.bind(ring, count=2).whole
        (True, False)
        """
        sizes = self.block_sizes
        chunks = self.schedule.layout.chunks
        return sizes >= chunks if isinstance(sizes, int) else bool((sizes >= chunks).all())

    @property
    def block_sizes(self) -> Ints | int:
        """Elements of the blocks that hold something: without slots that ranks do not have.

        >>> import simcoll
        >>> pair = simcoll.Collective.custom("pair", inputs=[[0], [1]], outputs=[[0, 1], [0]])
        >>> plan = simcoll.bind(simcoll.schedule(pair, "direct"), count=5)
        >>> plan.sizes.tolist(), plan.block_sizes.tolist()
        ([5, 0], [5])
        """
        definition = self.collective.definition
        if definition is None or not definition.has_gaps or isinstance(self.sizes, int):
            return self.sizes
        return self.sizes[:-1]

    @property
    def summands(self) -> int:
        """Number of contributions that an average is taken over.

        >>> import simcoll
        >>> ring = simcoll.schedule("all_reduce", "ring", nranks=3)
        >>> simcoll.bind(ring, count=5, op="avg").summands
        3
        """
        return self.collective.summands or self.nranks

    def buffer_elements(self) -> Ints:
        """Elements of the input, output and scratch storage of every rank: ``[nranks, 3]``.

        A workspace output that the caller does not see (at the leaves of a reduce, for example)
        counts. In place, a buffer that lies inside the other has no storage of its own.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> plan.buffer_elements()[0].tolist()
        [5, 15, 0]
        """
        collective = self.collective
        rank = np.arange(self.nranks, dtype=np.int64)
        result = self._slot_elements()
        result[~collective.has_input(rank), INPUT] = 0
        if collective.kind == "send_recv":
            result[~collective.has_output(rank), OUTPUT] = 0
        if collective.in_place and collective.spec.alias is not None:
            aliased = collective.has_input(rank) & collective.has_output(rank)
            inner = INPUT if collective.output_slots >= collective.input_slots else OUTPUT
            result[aliased, inner] = 0
        return result

    def visible_elements(self) -> Ints:
        """Number of elements of each rank's input and visible output: ``[nranks, 2]``.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> plan.visible_elements()[0].tolist()
        [5, 15]
        """
        rank = np.arange(self.nranks, dtype=np.int64)
        visible = np.stack(
            [self.collective.has_input(rank), self.collective.has_output(rank)], axis=1
        )
        return np.where(visible, self._slot_elements()[:, :2], 0)

    def _slot_elements(self) -> Ints:
        """Number of elements of all slots of input, output and scratch: ``[nranks, 3]``."""
        collective, layout = self.collective, self.schedule.layout
        result = np.zeros((self.nranks, 3), np.int64)
        for buffer, starts in enumerate(self._slot_starts()):
            slots = (collective.input_slots, collective.output_slots, layout.scratch_slots)[buffer]
            result[:, buffer] = slots * starts if isinstance(starts, int) else starts[:, -1]
        return result

    def has(self, rank: int, which: int) -> bool:
        """Whether the caller supplies a rank's input (0) or sees its output (1).

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("gather", "linear", nranks=3), count=5)
        >>> [plan.has(rank, 1) for rank in range(3)]
        [True, False, False]
        """
        ranks = np.array([rank], np.int64)
        return bool(
            (
                self.collective.has_input(ranks)
                if which == INPUT
                else self.collective.has_output(ranks)
            )[0]
        )

    def view(self, rank: int, which: int) -> tuple[int, int, int]:
        """Place of a rank's visible input (0) or output (1) in storage:
        ``(buffer, offset, elements)``.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("gather", "linear", nranks=3), count=5)
        >>> plan.view(0, 1), plan.view(1, 1)
        ((1, 0, 15), (1, 0, 0))
        """
        if which not in self.known.views:
            self.known.views[which] = self._views(which)
        buffer, offset, elements = self.known.views[which][:, rank].tolist()
        return buffer, offset, elements

    def _views(self, side: int) -> Ints:
        """The places of the visible inputs or outputs of all ranks: ``[3, nranks]``."""
        collective, layout = self.collective, self.schedule.layout
        slots = (collective.input_slots, collective.output_slots)[side]
        rank, region = np.arange(self.nranks, dtype=np.int64), np.full(self.nranks, side, np.int64)
        has = collective.has_input(rank) if side == INPUT else collective.has_output(rank)
        if slots == 0 or not has.any():
            return np.stack([region, 0 * region, 0 * region])
        start = np.full(self.nranks, layout.input() if side == INPUT else layout.output(), np.int64)
        elements = self._address(rank, start + slots * layout.chunks, region) - self._address(
            rank, start, region
        )
        place = layout.canonical(rank, start)
        stored = layout.region(place)
        return np.stack(
            [np.where(has, stored, side), has * self._address(rank, place, stored), has * elements]
        )

    @property
    def total_bytes(self) -> int:
        """Bytes of the larger of a rank's input and output: the ``size`` of nccl-tests.

        >>> import simcoll
        >>> plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), count=5)
        >>> plan.total_bytes  # 3 blocks of 5 numbers of 4 bytes
        60
        """
        collective = self.collective
        slots = max(collective.input_slots, collective.output_slots)
        if collective.definition is not None:
            return int(self._slot_elements()[:, :2].max()) * self.dtype.itemsize
        if isinstance(self.sizes, int):
            return slots * self.sizes * self.dtype.itemsize
        if slots <= 1:
            return int(self.sizes.max(initial=0)) * self.dtype.itemsize
        if collective.kind == "all_to_all":
            matrix = self.sizes.reshape(self.nranks, self.nranks)
            return int(max(matrix.sum(0).max(), matrix.sum(1).max())) * self.dtype.itemsize
        return int(self.sizes.sum()) * self.dtype.itemsize

    def __repr__(self) -> str:
        return printable(f"<Plan: {self}>")

    def _repr_html_(self) -> str:
        single = isinstance(self.sizes, int)
        sizes = f"{self.sizes} elements" if single else f"{self.count} elements at most"
        facts = [
            ("schedule", self.schedule),
            ("sizes", f"{sizes} of {self.dtype.name} a block, {format_size(self.total_bytes)}"),
            ("reduction", self.reduction if self.collective.spec.reduces else "none"),
            ("protocol", self.protocol.name),
            ("proof", "unproved" if self.proof is None else self.proof),
        ]
        return facts_table(facts)

    def __str__(self) -> str:
        status = "unproved" if self.proof is None else f"proved ({self.proof.kind})"
        return (
            f"{self.schedule} count={self.count} {self.dtype.name} {self.protocol.name}, {status}"
        )
