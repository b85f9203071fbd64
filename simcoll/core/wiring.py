"""A program with matched messages: the n-th send of a connection meets the n-th receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.rank_program import OPS, Code, RankProgram, place
from simcoll.errors import ScheduleError

__all__ = ["Connection", "Wiring", "op_where", "wire"]


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """All messages from one rank to another on one channel: the n-th send goes to the n-th receive.

    ``sender`` and ``receiver`` are lane numbers, ``sends`` and ``recvs`` instruction numbers of the
    wiring.
    """

    src: int
    dst: int
    channel: int
    sender: int
    receiver: int
    sends: Ints
    recvs: Ints

    def __str__(self) -> str:
        return f"rank {self.src} -> {self.dst} channel {self.channel}"


def op_where(code: Code, trait: str) -> NDArray[np.bool_]:
    """Mask of the instructions whose operation receives, sends, reads, writes or updates, as
    ``trait`` says.
    """
    return np.array([getattr(op, trait) for op in OPS.values()])[code.op]


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """A program with lanes and instructions numbered over all ranks, and with matched messages.

    Attributes
    ----------
    program, code
        The program that was wired, and its instructions.
    lane, position
        Lane of every instruction, and its position there.
    first_lane
        Number of the first lane of every rank.
    connections
        All connections.
    sends, recvs, connection, ordinal
        Both ends of every message, its connection, and the number of earlier messages on that.
    incoming, outgoing
        For every instruction, the message that it receives and the message that it sends; -1 for
        none.
    """

    program: RankProgram
    code: Code
    lane: Ints
    position: Ints
    first_lane: Ints
    connections: tuple[Connection, ...]
    sends: Ints
    recvs: Ints
    connection: Ints
    ordinal: Ints
    incoming: Ints
    outgoing: Ints

    def rank_of(self, number: int) -> int:
        """The rank of an instruction."""
        return int(self.code.rank[self.lane[number]])

    def fault(self, number: int, message: str, **overrides: int) -> ScheduleError:
        """The error for an instruction."""
        lane = self.lane[number]
        location = {
            "step": int(self.position[number]),
            "rank": int(self.code.rank[lane]),
            "channel": int(self.code.channel[lane]),
        }
        return ScheduleError(f"{self.program}: {message}", **{**location, **overrides})

    def where(self, number: int) -> str:
        """An instruction in words: ``rank 0 lane 2 step 5 (recv output[3] from rank 1)``."""
        lane, rank = int(self.lane[number]), self.rank_of(number)
        instruction = self.code.instruction(number)
        op = OPS[instruction.op]
        parts: list[str] = [instruction.op]
        if op.reads:
            parts.append(place(self.program, instruction.src))
        if op.writes and not (op.reads and instruction.src == instruction.dst):
            parts.append(f"{'to ' if op.reads else ''}{place(self.program, instruction.dst)}")
        if op.receives:
            parts.append(f"from rank {instruction.recv_from}")
        if op.sends:
            parts.append(f"to rank {instruction.send_to}")
        return (
            f"rank {rank} lane {lane - self.first_lane[rank]} step {self.position[number]} "
            f"({' '.join(parts)})"
        )


def wire(program: RankProgram) -> Wiring:
    """Number the lanes and match sends with receives.

    Raises
    ------
    ScheduleError
        When two lanes share an end of a connection (their order would be undefined), when a message
        has no other end, or when its ends differ in size.
    """
    code = program.code
    total, lane = len(code.op), np.repeat(np.arange(len(code.rank)), np.diff(code.start))
    position, first_lane = (
        np.arange(total) - code.start[lane],
        np.searchsorted(code.rank, np.arange(program.nranks)),
    )
    rank, channel = code.rank[lane], code.channel[lane]
    lowest_channel = int(channel.min(initial=0))
    channels = int(channel.max(initial=0)) + 1 - lowest_channel
    sends, recvs = (np.flatnonzero(op_where(code, trait)) for trait in ("sends", "receives"))
    keys = [
        (src * program.nranks + dst) * channels + channel[ends] - lowest_channel
        for ends, src, dst in (
            (sends, rank[sends], code.send_to[sends]),
            (recvs, code.recv_from[recvs], rank[recvs]),
        )
    ]
    ends = []
    for numbers, key in zip((sends, recvs), keys, strict=True):
        order = np.argsort(key, kind="stable")
        ends.append((numbers[order], key[order]))
    for (numbers, key), direction, peers in zip(
        ends, ("to", "from"), (code.send_to, code.recv_from), strict=True
    ):
        split = np.flatnonzero((key[1:] == key[:-1]) & (lane[numbers[1:]] != lane[numbers[:-1]]))
        if len(split):
            earlier, later = numbers[split[0]], numbers[split[0] + 1]
            owner = int(rank[earlier])
            lanes = [lane[number] - first_lane[owner] for number in (earlier, later)]
            raise ScheduleError(
                f"{program}: lanes {lanes[0]} and {lanes[1]} of rank {owner} share the connection "
                f"{direction} rank {peers[earlier]} on channel {channel[earlier]}: the order of "
                "their messages is undefined",
                rank=owner,
                channel=int(channel[earlier]),
            )
    (sends, send_keys), (recvs, recv_keys) = ends
    every = np.union1d(send_keys, recv_keys)
    edges = [np.searchsorted(key, [every, every + 1]) for key in (send_keys, recv_keys)]
    connections = []
    for key, send_span, recv_span in zip(
        every.tolist(), *(edge.T.tolist() for edge in edges), strict=True
    ):
        src, dst = divmod(key // channels, program.nranks)
        offset = key % channels
        outs, ins = sends[slice(*send_span)], recvs[slice(*recv_span)]
        sender, receiver = (
            int(lane[numbers[0]]) if len(numbers) else -1 for numbers in (outs, ins)
        )
        connections.append(
            Connection(src, dst, offset + lowest_channel, sender, receiver, outs, ins)
        )
    unmatched = [c for c in connections if len(c.sends) != len(c.recvs)]
    incoming, outgoing = np.full(total, -1), np.full(total, -1)
    connection = np.searchsorted(every, send_keys)
    ordinal = np.arange(len(sends)) - edges[0][0][connection]
    if not unmatched:
        outgoing[sends] = incoming[recvs] = np.arange(len(sends))
    wiring = Wiring(
        program,
        code,
        lane,
        position,
        first_lane,
        tuple(connections),
        sends,
        recvs,
        connection,
        ordinal,
        incoming,
        outgoing,
    )
    if unmatched:
        _unmatched_message(wiring, unmatched[0])
    differ = np.flatnonzero(code.count[sends] != code.count[recvs])
    if len(differ):
        _size_mismatch(wiring, int(differ[0]))
    return wiring


def _unmatched_message(wiring: Wiring, connection: Connection) -> NoReturn:
    """Raise the error for a message without its other end."""
    sends, recvs = len(connection.sends), len(connection.recvs)
    send_is_left = sends > recvs
    number = int(connection.sends[recvs] if send_is_left else connection.recvs[sends])
    complaint = "this message is never received" if send_is_left else "this message is never sent"
    message = (
        f"unmatched message, {connection}: {sends} sends but {recvs} receives\n"
        f"  {complaint}: {wiring.where(number)}"
    )
    raise wiring.fault(number, message)


def _size_mismatch(wiring: Wiring, message: int) -> NoReturn:
    """Raise the error for a message whose ends differ in size."""
    send, recv = int(wiring.sends[message]), int(wiring.recvs[message])
    connection = wiring.connections[wiring.connection[message]]
    sent_chunks, received_chunks = wiring.code.count[[send, recv]]
    summary = (
        f"{connection}: a message of {sent_chunks} chunks meets a receive of {received_chunks}"
    )
    raise wiring.fault(recv, f"{summary}\n  {wiring.where(send)}\n  {wiring.where(recv)}")
