"""Per-rank programs: the instructions of each rank's lanes, lowered from a plan or imported from a
file.

A lane (a thread block, a stream) executes its instructions in order. Lanes of a rank wait for each
other only where an instruction says so. Ranks interact only through messages, which are matched by
their order on a connection (source, destination, channel).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.immutable import by_constructor, freeze, without_subclasses
from simcoll.core.numbers import LARGEST, whole_number
from simcoll.core.schedule import Layout
from simcoll.core.vocabulary import InstructionName
from simcoll.errors import ConfigError, ScheduleError, nearest
from simcoll.terminal import printable

__all__ = [
    "NAMES",
    "OPS",
    "Code",
    "Instruction",
    "Lane",
    "Lanes",
    "Op",
    "RankProgram",
    "place",
]


@dataclass(frozen=True, slots=True)
class Op:
    """The effect of an operation on its rank's memory, and its messages.

    ``reads`` and ``writes`` refer to ``src`` and ``dst`` of the instruction; ``updates``: it also
    reads ``dst``.
    """

    receives: bool = False
    sends: bool = False
    reads: bool = False
    writes: bool = False
    updates: bool = False


OPS: dict[InstructionName, Op] = {
    "nop": Op(),
    "send": Op(sends=True, reads=True),
    "recv": Op(receives=True, writes=True),
    "recv_copy_send": Op(receives=True, sends=True, writes=True),
    "recv_reduce_send": Op(receives=True, sends=True, reads=True),
    "recv_reduce_copy": Op(receives=True, reads=True, writes=True),
    "recv_reduce_copy_send": Op(receives=True, sends=True, reads=True, writes=True),
    "copy": Op(reads=True, writes=True),
    "reduce": Op(reads=True, writes=True, updates=True),
}
"""``recv_reduce_*`` computes received (op) ``src``; the result is sent on, written to ``dst``, or
both. ``reduce``: dst = dst (op) src.
"""

NAMES: tuple[InstructionName, ...] = tuple(OPS)
"""Operation names, indexed by their numbers in :class:`Code`."""


@without_subclasses
@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a lane.

    Attributes
    ----------
    op
        A key of ``OPS``.
    src, dst
        First chunk read and first chunk written in its rank's memory, with aliases resolved; -1 for
        none.
    count
        Number of consecutive chunks; 0 for a message without data.
    recv_from, send_to
        Ranks at the other end of its messages; -1 for none.
    waits
        ``(lane, position)`` of instructions of the same rank that must complete before it starts.
    """

    op: InstructionName
    src: int = -1
    dst: int = -1
    count: int = 1
    recv_from: int = -1
    send_to: int = -1
    waits: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        # Narrow integers of numpy would wrap in sums.
        for name in ("src", "dst", "count", "recv_from", "send_to"):
            if type(getattr(self, name)) is not int:
                number = whole_number(f"{name} of an instruction", getattr(self, name), -LARGEST)
                object.__setattr__(self, name, number)
        if self.waits:
            try:
                pairs = [(lane, position) for lane, position in self.waits]
            except (TypeError, ValueError):
                message = (
                    "waits of an instruction are pairs of a lane and a position, got "
                    f"{self.waits!r:.60}"
                )
                raise ConfigError(message) from None
            waits = tuple(
                tuple(whole_number("a wait", number, -LARGEST) for number in pair) for pair in pairs
            )
            object.__setattr__(self, "waits", waits)


@without_subclasses
@dataclass(frozen=True, slots=True)
class Lane:
    """Instructions that run in order and send all their messages on one channel."""

    channel: int
    instructions: tuple[Instruction, ...]

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "channel", whole_number("channel of a lane", self.channel, -LARGEST)
        )
        object.__setattr__(self, "instructions", tuple(self.instructions))


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """All instructions of a program as parallel arrays, ordered by rank and lane.

    Attributes
    ----------
    rank, channel
        Rank and channel of every lane; ranks ascend.
    start
        First instruction of every lane, and the total.
    op
        Number of each operation in :data:`NAMES`.
    src, dst, count, recv_from, send_to
        As in :class:`Instruction`.
    waiter, awaited
        Waiting instructions, in ascending order, and the instruction that each waits for.
    """

    rank: Ints
    channel: Ints
    start: Ints
    op: Ints
    src: Ints
    dst: Ints
    count: Ints
    recv_from: Ints
    send_to: Ints
    waiter: Ints
    awaited: Ints

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def lanes_of(self, rank: int) -> tuple[int, int]:
        """Half-open range of a rank's lanes."""
        low, high = np.searchsorted(self.rank, [rank, rank + 1]).tolist()
        return low, high

    def instruction(self, number: int) -> Instruction:
        """One instruction as a record."""
        lane = int(np.searchsorted(self.start, number, "right")) - 1
        first_lane = self.lanes_of(int(self.rank[lane]))[0]
        low, high = np.searchsorted(self.waiter, [number, number + 1])
        awaited = self.awaited[low:high]
        lanes = np.searchsorted(self.start, awaited, "right") - 1
        spots = zip(
            (lanes - first_lane).tolist(), (awaited - self.start[lanes]).tolist(), strict=True
        )
        return Instruction(
            NAMES[self.op[number]],
            int(self.src[number]),
            int(self.dst[number]),
            int(self.count[number]),
            int(self.recv_from[number]),
            int(self.send_to[number]),
            tuple(sorted(spots)),
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lanes(Sequence[tuple[Lane, ...]]):
    """The lanes of every rank, as records created on access."""

    code: Code
    nranks: int

    def __len__(self) -> int:
        return self.nranks

    @overload
    def __getitem__(self, rank: int) -> tuple[Lane, ...]: ...
    @overload
    def __getitem__(self, rank: slice) -> tuple[tuple[Lane, ...], ...]: ...
    def __getitem__(self, rank: int | slice) -> tuple[Any, ...]:
        """The lanes of one rank, or of a slice of ranks."""
        if isinstance(rank, slice):
            return tuple(self[index] for index in range(*rank.indices(self.nranks)))
        code, edges = self.code, range(self.nranks)[rank]
        return tuple(
            Lane(
                int(code.channel[lane]),
                tuple(map(code.instruction, range(*code.start[lane : lane + 2].tolist()))),
            )
            for lane in range(*code.lanes_of(edges))
        )


def _code(lanes: Sequence[Sequence[Lane]]) -> Code:
    """Convert records to arrays."""
    flat = [lane for rank_lanes in lanes for lane in rank_lanes]
    rank = np.repeat(np.arange(len(lanes)), [len(rank_lanes) for rank_lanes in lanes])
    start = np.concatenate(
        [[0], np.cumsum([len(lane.instructions) for lane in flat], dtype=np.int64)]
    )
    instructions = [instruction for lane in flat for instruction in lane.instructions]
    number = {name: index for index, name in enumerate(NAMES)}
    rows = [(number[i.op], i.src, i.dst, i.count, i.recv_from, i.send_to) for i in instructions]
    first_lane = np.searchsorted(rank, rank)
    waits = [
        (position, start[base + awaited_lane] + awaited_position)
        for base, (begin, end) in zip(first_lane.tolist(), pairwise(start.tolist()), strict=True)
        for position in range(begin, end)
        for awaited_lane, awaited_position in instructions[position].waits
    ]
    channel = np.array([lane.channel for lane in flat], np.int64)
    columns, pairs = (
        np.array(rows, np.int64).reshape(-1, 6).T,
        np.array(waits, np.int64).reshape(-1, 2).T,
    )
    return Code(rank, channel, start, *columns, *pairs)


@without_subclasses
@dataclass(frozen=True, slots=True, repr=False)
class RankProgram:
    """The instructions of every rank.

    Parameters
    ----------
    name
        Shown in messages.
    nranks
        World size.
    lanes
        The lanes of each rank; for a lowering, :class:`Lanes`.
    buffers
        Number of chunks of input, output and scratch on every rank. A rank's memory is addressed by
        chunk: first the input, then the output, then scratch.
    collective
        The collective that the program implements; None if unknown (then only races, deadlocks and
        matching can be checked).
    chunks
        Chunks per block of the collective.
    in_place
        Output and input share memory; chunk addresses have aliases resolved.
    protocol
        Protocol name, for messages.
    fifo_depth
        Messages that a sender may be ahead of its receiver on one connection; 0 is rendezvous, None
        unbounded.
    min_bytes, max_bytes
        Range of message sizes that the program is meant for; ``max_bytes`` 0 means no limit.

    Raises
    ------
    ScheduleError
        For unknown operations, and ranks, chunks or waits that do not exist; names rank, lane and
        step. For ranks, buffers or a place that are not those of the collective.
    """

    name: str
    nranks: int
    lanes: Sequence[Sequence[Lane]]
    buffers: tuple[int, int, int]
    collective: Collective | None = None
    chunks: int = 1
    in_place: bool = False
    protocol: str = ""
    fifo_depth: int | None = None
    min_bytes: int = 0
    max_bytes: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.lanes, Lanes):
            object.__setattr__(self, "lanes", tuple(map(tuple, self.lanes)))
        try:
            sizes = tuple(
                whole_number("chunks of a buffer", size, -LARGEST) for size in self.buffers
            )
        except TypeError:
            sizes = ()
        if len(sizes) != 3:
            raise ConfigError(
                f"{self.name}: buffers are the chunks of input, output and scratch, got "
                f"{self.buffers!r:.60}"
            )
        object.__setattr__(self, "buffers", sizes)
        if len(self.lanes) != self.nranks:
            raise ScheduleError(
                f"{self.name}: {self.nranks} ranks, but lanes for {len(self.lanes)}"
            )
        self._check_buffers()
        for rank, lanes in () if isinstance(self.lanes, Lanes) else enumerate(self.lanes):
            for number, lane in enumerate(lanes):
                if type(lane) is not Lane:
                    raise ScheduleError(
                        f"{self.name}: rank {rank} lane {number}: expected a Lane, got {lane!r:.60}"
                    )
                for position, instruction in enumerate(lane.instructions):
                    fault = self._fault(rank, number, position, instruction)
                    if fault:
                        location = f"rank {rank} lane {number} step {position}"
                        raise ScheduleError(
                            f"{self.name}: {location}: {fault}",
                            step=position,
                            rank=rank,
                            channel=lane.channel,
                        )

    def _check_buffers(self) -> None:
        """Refuse buffers elsewhere than where the proof looks for the collective's data."""
        if min(self.buffers) < 0:
            raise ScheduleError(
                f"{self.name}: buffers of {self.buffers} chunks: a buffer has at least 0"
            )
        collective = self.collective
        if collective is None:
            return
        actual = self.nranks, tuple(self.buffers[:2]), self.in_place
        expected = (
            collective.nranks,
            (collective.input_slots * self.chunks, collective.output_slots * self.chunks),
            collective.in_place,
        )
        subjects = "ranks", "input and output chunks", "in place"
        for subject, value, required in zip(subjects, actual, expected, strict=True):
            if value != required:
                raise ScheduleError(
                    f"{self.name}: {subject}: {value}, but {collective} with {self.chunks} chunks "
                    f"has {required}"
                )

    def _fault(self, rank: int, lane: int, position: int, instruction: Instruction) -> str:
        """What is wrong with an instruction taken by itself; empty if nothing."""
        if type(instruction) is not Instruction:
            return f"expected an Instruction, got {instruction!r:.60}"
        if instruction.op not in OPS:
            return f"unknown operation {instruction.op!r}; {nearest(instruction.op, OPS)}"
        op, size = OPS[instruction.op], sum(self.buffers)
        ends = (
            (op.receives, instruction.recv_from, "receives from"),
            (op.sends, instruction.send_to, "sends to"),
        )
        for needed, peer, verb in ends:
            if needed and not 0 <= peer < self.nranks:
                return f"{verb} rank {peer}, which does not exist; ranks are 0..{self.nranks - 1}"
            if needed and peer == rank:
                return f"{verb} its own rank {rank}; use copy or reduce"
        if instruction.count < 0:
            return f"count {instruction.count} is negative"
        for used, chunk, verb in (
            (op.reads, instruction.src, "reads"),
            (op.writes, instruction.dst, "writes"),
        ):
            if used and instruction.count and not 0 <= chunk <= size - instruction.count:
                return f"{verb} {instruction.count} chunks from {chunk}; a rank has {size} chunks"
        for awaited_lane, step in instruction.waits:
            if not (
                0 <= awaited_lane < len(self.lanes[rank])
                and 0 <= step < len(self.lanes[rank][awaited_lane].instructions)
            ):
                return f"waits for lane {awaited_lane} step {step}, which does not exist"
            if awaited_lane == lane and step >= position:
                return f"waits for step {step} of its own lane"
        return ""

    @property
    def layout(self) -> Layout | None:
        """Chunk addresses of the collective; None if the collective is unknown."""
        if self.collective is None:
            return None
        return Layout(
            self.collective, self.chunks, np.zeros(-(-self.buffers[2] // self.chunks), np.int64)
        )

    @property
    def steps(self) -> int:
        """Number of instructions of all ranks."""
        return len(self.code.op)

    @property
    def code(self) -> Code:
        """The instructions as arrays."""
        return self.lanes.code if isinstance(self.lanes, Lanes) else _code(self.lanes)

    def __str__(self) -> str:
        subject = f"{self.collective}" if self.collective else f"custom n={self.nranks}"
        return f"{self.name} {subject}"

    def __repr__(self) -> str:
        return printable(f"<RankProgram: {self}, {self.steps:,} instructions>")


def place(program: RankProgram, chunk: int) -> str:
    """A chunk in words.

    >>> place(RankProgram("two", 1, ((),), (4, 4, 0)), 6)
    'output[2]'
    """
    inputs, outputs, _ = program.buffers
    if chunk < inputs:
        return f"input[{chunk}]"
    return (
        f"output[{chunk - inputs}]"
        if chunk < inputs + outputs
        else f"scratch[{chunk - inputs - outputs}]"
    )
