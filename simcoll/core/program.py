"""Per-rank programs: what each rank's lanes do. What a plan lowers to and what imported files bring.

A lane (a thread block, a stream) does its instructions in order. Lanes of a rank wait for each other only where an
instruction says so; ranks meet only in messages, which are matched by their order on a connection (source,
destination, channel).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.schedule import Layout
from simcoll.errors import ScheduleError, nearest

if TYPE_CHECKING:
    from simcoll.core.collective import Collective

__all__ = ["OPS", "Connection", "Instruction", "Lane", "Op", "Program", "Wiring", "place", "wire"]


@dataclass(frozen=True, slots=True)
class Op:
    """What an operation does with the memory of its own rank, and which messages it takes part in.

    ``reads`` and ``writes`` are about ``src`` and ``dst`` of the instruction; ``updates``: it also reads ``dst``.
    """

    receives: bool = False
    sends: bool = False
    reads: bool = False
    writes: bool = False
    updates: bool = False


OPS: dict[str, Op] = {
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
"""The value of a ``recv_reduce_*`` is what arrived (op) ``src``; it is sent on, written to ``dst``, or both.
``reduce``: dst = dst (op) src."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a lane.

    Attributes
    ----------
    op
        A key of ``OPS``.
    src, dst
        First chunk of its own rank's memory that it reads and writes, aliases resolved; -1 where it has none.
    count
        Consecutive chunks; 0 for a message without data.
    recv_from, send_to
        Ranks at the other end of its messages, -1 for none.
    waits
        ``(lane, position)`` of instructions of the same rank that must be done before it starts.
    """

    op: str
    src: int = -1
    dst: int = -1
    count: int = 1
    recv_from: int = -1
    send_to: int = -1
    waits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Lane:
    """Instructions that run one after the other, with all messages on one channel."""

    channel: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank does.

    Parameters
    ----------
    name
        Shown in messages.
    nranks
        World size.
    lanes
        For each rank its lanes.
    buffers
        Chunks of input, output and scratch of every rank. A rank's memory is addressed by chunk: first the input,
        then the output, then scratch.
    collective
        What it implements; None when it is not known (then only races, deadlock and matching can be checked).
    chunks
        Chunks per block of the collective.
    in_place
        Output and input share memory; chunk addresses are those that are left after that.
    protocol
        Name, for messages.
    fifo_depth
        Messages that a sender may run ahead of its receiver on one connection; 0 is rendezvous, None unbounded.
    min_bytes, max_bytes
        Message sizes it is meant for; ``max_bytes`` 0 is no limit.

    Raises
    ------
    ScheduleError
        For unknown operations, ranks, chunks or waits that do not exist; names rank, lane and step.
    """

    name: str
    nranks: int
    lanes: tuple[tuple[Lane, ...], ...]
    buffers: tuple[int, int, int]
    collective: Collective | None = None
    chunks: int = 1
    in_place: bool = False
    protocol: str = ""
    fifo_depth: int | None = None
    min_bytes: int = 0
    max_bytes: int = 0

    def __post_init__(self) -> None:
        if len(self.lanes) != self.nranks:
            raise ScheduleError(f"{self.name}: {self.nranks} ranks, but lanes for {len(self.lanes)}")
        for rank, lanes in enumerate(self.lanes):
            for number, lane in enumerate(lanes):
                for position, instruction in enumerate(lane.instructions):
                    fault = self._fault(rank, number, position, instruction)
                    if fault:
                        where = f"rank {rank} lane {number} step {position}"
                        raise ScheduleError(
                            f"{self.name}: {where}: {fault}", step=position, rank=rank, channel=lane.channel
                        )

    def _fault(self, rank: int, lane: int, position: int, instruction: Instruction) -> str:
        """What is wrong with an instruction by itself."""
        if instruction.op not in OPS:
            return f"unknown operation {instruction.op!r}; {nearest(instruction.op, OPS)}"
        op, size = OPS[instruction.op], sum(self.buffers)
        ends = ((op.receives, instruction.recv_from, "receives from"), (op.sends, instruction.send_to, "sends to"))
        for wanted, peer, verb in ends:
            if wanted and not 0 <= peer < self.nranks:
                return f"{verb} rank {peer}, which does not exist; ranks are 0..{self.nranks - 1}"
            if wanted and peer == rank:
                return f"{verb} its own rank {rank}; use copy or reduce"
        if instruction.count < 0:
            return f"count {instruction.count} is negative"
        for used, chunk, verb in ((op.reads, instruction.src, "reads"), (op.writes, instruction.dst, "writes")):
            if used and instruction.count and not 0 <= chunk <= size - instruction.count:
                return f"{verb} {instruction.count} chunks from {chunk}; a rank has {size} chunks"
        for other, step in instruction.waits:
            if not (0 <= other < len(self.lanes[rank]) and 0 <= step < len(self.lanes[rank][other].instructions)):
                return f"waits for lane {other} step {step}, which does not exist"
            if other == lane and step >= position:
                return f"waits for step {step} of its own lane"
        return ""

    @property
    def layout(self) -> Layout | None:
        """Chunk addresses of the collective; None when that is not known."""
        if self.collective is None:
            return None
        return Layout(self.collective, self.chunks, np.zeros(-(-self.buffers[2] // self.chunks), np.int64))

    @property
    def steps(self) -> int:
        """Instructions of all ranks."""
        return sum(len(lane.instructions) for lanes in self.lanes for lane in lanes)

    def __str__(self) -> str:
        what = f"{self.collective}" if self.collective else f"custom n={self.nranks}"
        return f"{self.name} {what}"


def place(program: Program, chunk: int) -> str:
    """A chunk in a person's words.

    >>> place(Program("two", 1, ((),), (4, 4, 0)), 6)
    'output[2]'
    """
    inputs, outputs, _ = program.buffers
    if chunk < inputs:
        return f"input[{chunk}]"
    return f"output[{chunk - inputs}]" if chunk < inputs + outputs else f"scratch[{chunk - inputs - outputs}]"


@dataclass(frozen=True, slots=True)
class Connection:
    """All messages from one rank to another on one channel: the n-th send goes to the n-th receive.

    ``sender`` and ``receiver`` are lanes of the wiring, ``sends`` and ``recvs`` the positions in them.
    """

    src: int
    dst: int
    channel: int
    sender: int
    receiver: int
    sends: tuple[int, ...]
    recvs: tuple[int, ...]

    def __str__(self) -> str:
        return f"rank {self.src} -> {self.dst} channel {self.channel}"


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """A program with its lanes numbered over all ranks and its messages joined.

    Attributes
    ----------
    program
        What was wired.
    ranks
        Rank of every lane.
    first
        Number of the first lane of every rank.
    code
        Instructions of every lane.
    connections
        All connections.
    incoming, outgoing
        For every lane and position the connection it receives from and sends to, -1 for none.
    """

    program: Program
    ranks: tuple[int, ...]
    first: tuple[int, ...]
    code: tuple[tuple[Instruction, ...], ...]
    connections: tuple[Connection, ...]
    incoming: tuple[tuple[int, ...], ...]
    outgoing: tuple[tuple[int, ...], ...]

    def where(self, lane: int, position: int) -> str:
        """An instruction in words: ``rank 0 lane 2 step 5 (recv output[3] from rank 1)``."""
        rank = self.ranks[lane]
        instruction = self.code[lane][position]
        op, parts = OPS[instruction.op], [instruction.op]
        if op.reads:
            parts.append(place(self.program, instruction.src))
        if op.writes and not (op.reads and instruction.src == instruction.dst):
            parts.append(f"{'to ' if op.reads else ''}{place(self.program, instruction.dst)}")
        if op.receives:
            parts.append(f"from rank {instruction.recv_from}")
        if op.sends:
            parts.append(f"to rank {instruction.send_to}")
        return f"rank {rank} lane {lane - self.first[rank]} step {position} ({' '.join(parts)})"


@dataclass(slots=True)
class _Ends:
    """A connection while its messages are collected."""

    sender: int = -1
    receiver: int = -1
    sends: list[int] = field(default_factory=list)
    recvs: list[int] = field(default_factory=list)


def wire(program: Program) -> Wiring:
    """Number the lanes and join sends with receives.

    Raises
    ------
    ScheduleError
        When two lanes share an end of a connection (their order would be undefined), when a message has no other end,
        or when its ends differ in size.
    """
    ranks = tuple(rank for rank, lanes in enumerate(program.lanes) for _ in lanes)
    first = tuple(sum(len(lanes) for lanes in program.lanes[:rank]) for rank in range(program.nranks))
    flat = [lane for lanes in program.lanes for lane in lanes]
    ends: dict[tuple[int, int, int], _Ends] = {}
    for number, (rank, lane) in enumerate(zip(ranks, flat, strict=True)):
        for position, instruction in enumerate(lane.instructions):
            op = OPS[instruction.op]
            if op.receives:
                end = ends.setdefault((instruction.recv_from, rank, lane.channel), _Ends())
                _join(program, first[rank], end.receiver, number, (rank, lane.channel, "from", instruction.recv_from))
                end.receiver = number
                end.recvs.append(position)
            if op.sends:
                end = ends.setdefault((rank, instruction.send_to, lane.channel), _Ends())
                _join(program, first[rank], end.sender, number, (rank, lane.channel, "to", instruction.send_to))
                end.sender = number
                end.sends.append(position)
    code = tuple(lane.instructions for lane in flat)
    incoming = [[-1] * len(instructions) for instructions in code]
    outgoing = [[-1] * len(instructions) for instructions in code]
    connections = []
    for number, (key, end) in enumerate(sorted(ends.items())):
        connection = Connection(*key, end.sender, end.receiver, tuple(end.sends), tuple(end.recvs))
        connections.append(connection)
        for position in connection.sends:
            outgoing[end.sender][position] = number
        for position in connection.recvs:
            incoming[end.receiver][position] = number
    wiring = Wiring(
        program, ranks, first, code, tuple(connections), tuple(map(tuple, incoming)), tuple(map(tuple, outgoing))
    )  # fmt: skip
    for connection in connections:
        _check_matched(wiring, connection)
    return wiring


def _join(program: Program, first: int, known: int, lane: int, end: tuple[int, int, str, int]) -> None:
    if known not in (-1, lane):
        rank, channel, direction, peer = end
        raise ScheduleError(
            f"{program}: lanes {known - first} and {lane - first} of rank {rank} share the connection {direction} rank "
            f"{peer} on channel {channel}: the order of their messages is undefined",
            rank=rank,
            channel=channel,
        )


def _check_matched(wiring: Wiring, connection: Connection) -> None:
    sends, recvs = len(connection.sends), len(connection.recvs)
    if sends != recvs:
        send_is_left = sends > recvs
        lane = connection.sender if send_is_left else connection.receiver
        position = connection.sends[recvs] if send_is_left else connection.recvs[sends]
        left = "this message is never received" if send_is_left else "this message is never sent"
        raise ScheduleError(
            f"{wiring.program}: unmatched message, {connection}: {sends} sends but {recvs} receives\n"
            f"  {left}: {wiring.where(lane, position)}",
            step=position,
            rank=wiring.ranks[lane],
            channel=connection.channel,
        )
    for send, recv in zip(connection.sends, connection.recvs, strict=True):
        given, taken = wiring.code[connection.sender][send], wiring.code[connection.receiver][recv]
        if given.count != taken.count:
            raise ScheduleError(
                f"{wiring.program}: {connection}: a message of {given.count} chunks meets a receive of {taken.count}\n"
                f"  {wiring.where(connection.sender, send)}\n  {wiring.where(connection.receiver, recv)}",
                step=recv,
                rank=connection.dst,
                channel=connection.channel,
            )
