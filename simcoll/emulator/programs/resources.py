"""Lanes and links shared by the operations of a program.

Streams and their lanes, link capacities, and the links that protocols add.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.protocol import Protocol
from simcoll.emulator.model import shared_capacities, with_slack
from simcoll.emulator.programs.operations import Call, Operation, Send
from simcoll.emulator.programs.program import Program
from simcoll.emulator.steps.plan_placement import Caps, Placement
from simcoll.errors import ConfigError
from simcoll.topology import Topology

__all__ = ["Resources", "call_of", "calls_of"]


def call_of(operation: Operation) -> Call | None:
    """An operation as a collective; ``None`` for a computation."""
    if isinstance(operation, Send):
        return operation.call
    return operation if isinstance(operation, Call) else None


def calls_of(program: Program) -> Iterator[tuple[int, Call]]:
    """The collectives of a program, and the numbers of their operations."""
    for number, operation in enumerate(program.operations):
        call = call_of(operation)
        if call is not None:
            yield number, call


class Resources:
    """Lanes and links of a program on a topology.

    A stream has as many lanes on a rank as its collective with the most channels. Calls with one
    protocol on one stream share their FIFOs and the links that cap their rates. Protocols may leave
    different shares of a link to data: the link's capacity is then the largest, and the calls with
    a smaller share cross one more link with that share's capacity. Protocols with equal shares
    cross the same one.

    Attributes
    ----------
    channels, offset
        For every stream, its lanes per rank, and the number of its first lane within a rank.
    stride
        Lanes per rank.
    capacity
        Capacities of all links: those of the topology, then those that the protocols add.
    queued, fifo
        Protocols with FIFOs, and whether there are any.

    Raises
    ------
    ConfigError
        When the topology has too few ranks.
    """

    def __init__(self, program: Program, topology: Topology) -> None:
        if program.nranks > topology.nranks:
            raise ConfigError(
                f"the program has {program.nranks} ranks; topology {topology.name!r} has "
                f"{topology.nranks}"
            )
        self.program, self.topology = program, topology
        self.channels: dict[str, int] = {}
        calls: dict[tuple[str, Protocol], None] = {}
        uses: set[tuple[str, int]] = set()
        for operation in program.operations:
            call, stream = call_of(operation), operation.stream
            use = stream, 0 if call is None else id(call.plan)
            if use in uses:
                continue
            uses.add(use)
            channels = 1 if call is None else call.plan.nchannels
            self.channels[stream] = max(self.channels.get(stream, 1), channels)
            if call is not None:
                calls[stream, call.plan.protocol] = None
        widths = list(self.channels.values())
        self.offset = dict(
            zip(self.channels, [sum(widths[:number]) for number in range(len(widths))], strict=True)
        )
        self.stride = sum(widths)
        protocols = dict.fromkeys(protocol for _, protocol in calls)
        self.queued = [protocol for protocol in protocols if protocol.fifo_depth]
        self.fifo = bool(self.queued)
        self.added: list[tuple[int, str | Caps]] = []
        self._link(protocols, list(calls))

    def _link(self, protocols: dict[Protocol, None], calls: list[tuple[str, Protocol]]) -> None:
        """Compute the capacities of all links."""
        topology, nranks = self.topology, self.program.nranks
        left_to_data = {protocol: shared_capacities(topology, protocol) for protocol in protocols}
        capacity = (
            np.max(list(left_to_data.values()), axis=0)
            if left_to_data
            else topology.link_capacity_uBps
        )
        capacities, base = [with_slack(topology, capacity)], topology.nlinks
        self.shares: dict[Protocol, Shorts] = {}
        by_shares: dict[bytes, Shorts] = {}
        for protocol, less in left_to_data.items():
            lower = np.flatnonzero(less < capacity)
            if len(lower) and less.tobytes() in by_shares:
                self.shares[protocol] = by_shares[less.tobytes()]
            elif len(lower):
                self.shares[protocol] = np.full(topology.nlinks, -1, np.int32)
                self.shares[protocol][lower] = np.arange(base, base + len(lower))
                self.added += [
                    (base + position, f"{topology.link_name(link)} ({protocol.name})")
                    for position, link in enumerate(lower.tolist())
                ]
                by_shares[less.tobytes()] = self.shares[protocol]
                capacities.append(less[lower])
                base += len(lower)
        self.caps: dict[tuple[str, Protocol], Caps] = {}
        for stream, protocol in calls:
            caps = Caps(protocol, nranks, self.channels[stream], base)
            if caps.rates:
                self.caps[stream, protocol] = caps
                self.added.append((base, caps))
                capacities.append(np.array(caps.rates, np.int64))
                base += len(caps.rates)
        self.capacity = np.concatenate(capacities)

    def companions(self) -> dict[int, list[int]]:
        """For links of the topology, the links that stand for shares of them, which an event
        changes as well.
        """
        by_link: dict[int, dict[int, None]] = {}
        for shares in self.shares.values():
            for link in np.flatnonzero(shares >= 0).tolist():
                by_link.setdefault(link, {})[int(shares[link])] = None
        return {link: list(theirs) for link, theirs in by_link.items()}

    def link_name(self, link: int) -> str:
        """The name of a link."""
        if link < self.topology.nlinks:
            return self.topology.link_name(link)
        base, name = next(entry for entry in reversed(self.added) if entry[0] <= link)
        return name if isinstance(name, str) else name.name(link - base)

    @property
    def lanes(self) -> int:
        """Number of lanes of all ranks."""
        return self.program.nranks * self.stride

    def lane(self, ranks: Ints, stream: str, channel: Ints | int = 0) -> Ints:
        """The lanes of a channel of a stream."""
        return ranks * self.stride + self.offset[stream] + channel

    def world_placement(self, stream: str, protocol: Protocol) -> Placement:
        """Placement of all ranks of the program, for calls on a stream."""
        turn = self.queued.index(protocol) if protocol.fifo_depth else 0
        return Placement(
            np.arange(self.program.nranks),
            self.stride,
            self.offset[stream],
            self.caps.get((stream, protocol)),
            None,
            self.shares.get(protocol),
            (self.lanes, turn * self.lanes**2) if protocol.fifo_depth else None,
        )

    def placement(self, stream: str, group: Ints, protocol: Protocol, channels: int) -> Placement:
        """Placement of the ranks of one group, for a separate player."""
        caps = self.caps.get((stream, protocol))
        return Placement(group, channels, 0, caps, group, self.shares.get(protocol))

    def records(self, ranks: Ints, stream: str, peer: str) -> Ints:
        """Numbers of the connections by which one stream signals another on the same rank."""
        names = list(self.channels)
        pair = names.index(stream) * len(names) + names.index(peer)
        return len(self.queued) * self.lanes**2 + ranks * len(names) ** 2 + pair
