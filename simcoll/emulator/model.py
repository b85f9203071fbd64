"""The timing model, complete and in one place; every engine follows it to the last femtosecond.

Units: time int64 femtoseconds, rates int64 micro-bytes per second, sizes int64 bytes. Only a flow's
remaining bytes are float64.

**Order.** A *lane* is a (rank, channel). The transfers of a step that touch a lane may start when
every transfer of the lane's previous step has finished; they overlap each other. A step is not a
barrier: each lane enters its steps independently. A *message* is a transfer between two ranks.

* Rendezvous (``fifo_depth`` 0): a message is ready when both its lanes have entered its step and
  the earlier messages that it waits for are done. It is finished for both lanes when it is done.
* ``fifo_depth`` d: it is ready when its sender's lane has entered its step, the messages that it
  waits for are done, and message j - d of the same connection (source, destination, channel; j
  counts in schedule order) has been consumed. It is finished for the sender when its flow has ended
  and ``busy`` has passed since it was ready. The receiver consumes it once it has arrived and the
  receiver's lane has entered the step; it is finished for the receiver when it is done.

**Cost.** ``busy`` is the send overhead plus the occupancy of the slowest kind of link on the path.
The latency is that of the path, or of this kind of link, or both, plus jitter.

* Rendezvous: once ready, a message waits ``busy`` and the latency, then flows, then waits ``post``;
  then it is done.
* FIFO: it flows once ready, arrives the latency after its flow has ended, and is done ``post``
  after it was consumed. So overhead occupies a lane, latency belongs to the message and bytes to
  the links: LogGP's split.

``post`` is the receive overhead plus the reduction of the received data. A flow has
``ceil(payload * wire_factor) + header_bytes`` bytes on the links of its route, and on one more link
per end for each rate (of a channel, of a rank) that the protocol caps. A transfer inside a rank
takes the time of its copy (and reduction) and uses no link. Switch operations follow the rules of
rendezvous whatever the FIFO depth. All lanes enter their first step at ``launch_fs``.

**Rates.** At any time the flows have the max-min fair rates: of all links, take the lowest share
``resid // n`` of a link with n flows that have no rate yet; all such flows on *every* link at that
share get it; repeat. The result is a function of the set of flows. Equivalently it is the only
fixpoint of a rule per link: its level is :func:`water_level` of its capacity and, for each of its
flows, the lowest level among the flow's other links. (No computed level is below the lowest share
``L`` of all, so once each stale level has been recomputed, the links with share L stay at L; the
same then holds for the next share, and so on. Updates in any order therefore end, and end in the
same integers.)

**Slack.** A link as wide as all links that feed it together, or that it feeds, need never bind. But
shares are rounded down, so it could take a micro-byte per second from some flow. It therefore gets
``SLACK`` more, which has no other effect.

**Rounding.** All events of a timestamp, with their zero-delay consequences, come first; then rates
are settled, once. A flow's remaining bytes are updated only when its integer rate changes
(:func:`remaining_bytes`); its end is then ``now`` plus :func:`flow_delay_fs`. A flow that ends in
no time does so at the same timestamp, after which rates are settled again.

**Events.** At the time of an event, before rates are settled, a link's capacity is multiplied by
the event's share and rounded down. The lowest of several shares applies, and background traffic
takes its own shares, added up, of that. A flow on a link that is down has the rate 0 and waits; a
rate of 0 elsewhere remains an error. If a flow has waited for the policy's full time when rates are
settled, the run ends there, with the timestamp completed. To re-route, whenever links go down or
come back, the remaining bytes of every flow that does not end at that moment move to the current
route between its ends (the planned one if that is intact); new flows take it as well. Delays stay
those of the planned route, and switch operations keep their links.

A slow rank's own work (overhead and occupancy of sending, overhead of receiving, copies,
reductions, computation) takes ``up / down`` times as long, in femtoseconds rounded up. When its
pace changes meanwhile, the work done is the elapsed time times ``down / up``, rounded down, and the
rest continues at the new pace. From its stop time on, a rank enters no step, has no message ready,
consumes none, and completes no work; its bytes in flight continue. Latency and launch are
independent of pace.

Nothing here depends on the order of events, flows or links: there are no tie-breaks and no random
generator. Jitter is a function of (seed, message number).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.hashing import mix
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import REDUCE, SYNC
from simcoll.errors import ConfigError, nearest
from simcoll.topology import LINK_KINDS, Routes, Topology
from simcoll.units import MAX_TIME_FS

__all__ = [
    "FS_PER_SECOND_UBPS",
    "JITTER",
    "ROUNDING",
    "SLACK",
    "UNLIMITED",
    "Costs",
    "checked_time",
    "effective_capacities",
    "flow_delay_fs",
    "jitter_fs",
    "latency_fs",
    "message_costs",
    "remaining_bytes",
    "send_busy_fs",
    "shared_capacities",
    "water_level",
    "wire_bytes",
    "with_slack",
]

JITTER = 0x6A09E667F3BCC909
"""Separates jitter from other uses of one seed (fraction of the square root of 2)."""

UNLIMITED = 2**63 - 1
"""Level of a link that limits none of its flows."""

SLACK = 2**31
"""More than the number of flows at any time, in micro-bytes per second: some 2 kB/s."""

LOW = 0xFFFFFFFF
"""Mask of the low 32-bit word."""

FS_PER_SECOND_UBPS = 1e21
"""Femtoseconds per second times micro-bytes per byte; exact in float64."""

ROUNDING = 0.3819660112501051
"""Added before rounding down. It is far from 0, 1/2 and 1/3, so that floating-point noise does not
split simple fractions of a tick.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Fixed delays and wire bytes of an array of transfers.

    With rendezvous ``delay_fs`` precedes the flow (``busy_fs`` included); with a FIFO it follows
    it.
    """

    delay_fs: Ints
    busy_fs: Ints
    wire_bytes: Ints
    post_fs: Ints


def water_level(capacity_uBps: int, limits_uBps: Sequence[int]) -> int:
    """The highest rate that a link leaves to flows limited elsewhere to ``limits_uBps``;
    ``UNLIMITED`` if it limits none.

    >>> water_level(90, [UNLIMITED, UNLIMITED, 10]), water_level(90, [10, 20])
    (40, 9223372036854775807)
    """
    limits = list(limits_uBps)
    spare = capacity_uBps
    while limits:
        level = spare // len(limits)
        higher = [limit for limit in limits if limit >= level]
        if len(higher) == len(limits):
            return level
        spare -= sum(limits) - sum(higher)
        limits = higher
    return UNLIMITED


def remaining_bytes(size_bytes: float, rate_uBps: int, elapsed_fs: int) -> float:
    """Remaining bytes of a flow after some time at one rate; used only when the rate changes."""
    return size_bytes - float(rate_uBps) * float(elapsed_fs) / FS_PER_SECOND_UBPS


def flow_delay_fs(size_bytes: float, rate_uBps: int) -> int:
    """Time that ``size_bytes`` bytes take at a rate.

    >>> flow_delay_fs(65536.0, 12_500_000_000 * 10**6)
    5242880000
    """
    return max(0, floor(size_bytes * FS_PER_SECOND_UBPS / float(rate_uBps) + ROUNDING))


def checked_time(time_fs: int) -> int:
    """The time, if it is within the range of the clock.

    Raises
    ------
    ConfigError
        Beyond 2**63 - 1 fs, about 2.56 hours.
    """
    if time_fs > MAX_TIME_FS:
        raise ConfigError(
            f"the emulated time reaches {time_fs / 1e15:.6g} s; the clock ends at "
            f"{MAX_TIME_FS / 1e15:.6g} s"
        )
    return time_fs


def wire_bytes(size_bytes: Ints, protocol: Protocol) -> Ints:
    """Bytes on the wire: payload times the wire factor, rounded up, plus the header.

    Raises
    ------
    ConfigError
        When they do not fit in 63 bits.
    """
    up, down = protocol.wire_factor.numerator, protocol.wire_factor.denominator
    if int(size_bytes.max(initial=0)) * up + protocol.header_bytes > MAX_TIME_FS:
        raise ConfigError(
            f"a message of {size_bytes.max()} bytes is too large for protocol {protocol.name!r}"
        )
    return (size_bytes if up == down else -(-size_bytes * up // down)) + protocol.header_bytes


def _kind_number(kind: str, kinds: tuple[str, ...]) -> int:
    """The number of a kind of link.

    Raises
    ------
    ConfigError
        For a kind that no link can have.
    """
    if kind not in kinds:
        raise ConfigError(f"the protocol names links of kind {kind!r}; {nearest(kind, kinds)}")
    return kinds.index(kind)


def _by_kind(values: tuple[tuple[str, int], ...], routes: Routes, otherwise: Ints) -> Ints:
    """For each route, a value by the slowest kind of link on it."""
    for kind, value in values:
        otherwise = np.where(routes.kind == _kind_number(kind, routes.kinds), value, otherwise)
    return otherwise


def latency_fs(routes: Routes, protocol: Protocol) -> Ints:
    """Latency of a message on each route, without jitter."""
    path = routes.latency_fs.astype(np.int64)
    if not protocol.add_path_latency:
        return _by_kind(protocol.hop_latency_fs, routes, path)
    by_kind = _by_kind(protocol.hop_latency_fs, routes, np.zeros_like(path))
    checked_time(int(path.max(initial=0)) + int(by_kind.max(initial=0)))
    return path + by_kind


def send_busy_fs(routes: Routes, protocol: Protocol) -> Ints:
    """Time for which a message on each route occupies its sender: send overhead plus occupancy."""
    occupancy = _by_kind(protocol.occupancy_fs, routes, np.zeros(len(routes.kind), np.int64))
    checked_time(int(occupancy.max(initial=0)) + protocol.send_overhead_fs)
    return occupancy + protocol.send_overhead_fs


def jitter_fs(first_message: int, count: int, protocol: Protocol) -> Ints:
    """Extra delays of ``count`` consecutive messages: 0 to ``protocol.jitter_fs``, as a hash of
    (seed, message).

    Raises
    ------
    ConfigError
        When the protocol's jitter is negative or beyond the clock.
    """
    if not 0 <= protocol.jitter_fs < MAX_TIME_FS:
        raise ConfigError(
            f"jitter_fs of protocol {protocol.name!r} must be 0 to {MAX_TIME_FS - 1}, got "
            f"{protocol.jitter_fs}"
        )
    seed = mix(np.array([(protocol.seed + JITTER) % 2**64], np.uint64))
    number = np.arange(first_message, first_message + count, dtype=np.int64).astype(np.uint64)
    return (mix(number ^ seed) % np.uint64(protocol.jitter_fs + 1)).astype(np.int64)


def message_costs(
    size_bytes: Ints,
    op: NDArray[np.int8],
    local: NDArray[np.bool_],
    routes: Routes,
    protocol: Protocol,
    first_message: int = 0,
    operands: Ints | int = 1,
) -> Costs:
    """Delays and wire bytes of transfers.

    Transfers inside a rank (``local``) have no delay, and transfers without links no wire bytes.
    ``first_message`` is the number of the first, which only jitter uses. The ``operands`` of a fold
    are added when all have arrived: each takes as long as all of these reductions.

    Raises
    ------
    ConfigError
        When a size or time does not fit in 63 bits.
    """
    slowest_as = protocol.reduce_as_per_byte + protocol.copy_as_per_byte
    checked_time(int(size_bytes.max(initial=0)) * slowest_as * int(np.max(operands, initial=1)))
    post = np.where(
        local, size_bytes * protocol.copy_as_per_byte // 1000, protocol.receive_overhead_fs
    )
    if protocol.reduce_as_per_byte:
        post = post + np.where(
            op == REDUCE, size_bytes * protocol.reduce_as_per_byte // 1000 * operands, 0
        )
    delay, busy = latency_fs(routes, protocol), send_busy_fs(routes, protocol)
    checked_time(int(delay.max(initial=0)) + int(busy.max(initial=0)) + protocol.jitter_fs)
    if protocol.jitter_fs:
        delay = delay + jitter_fs(first_message, len(size_bytes), protocol)
    precedes = op > SYNC if protocol.fifo_depth else True  # switch operations use rendezvous
    delay, busy = np.where(local, 0, delay + np.where(precedes, busy, 0)), np.where(local, 0, busy)
    linked = (
        routes.links[:, 0] >= 0 if routes.links.shape[1] else np.zeros(len(size_bytes), np.bool_)
    )
    return Costs(delay, busy, np.where(linked, wire_bytes(size_bytes, protocol), 0), post)


def shared_capacities(topology: Topology, protocol: Protocol) -> Ints:
    """Capacity of every link that a protocol leaves to data: raw, or times the share of its kind,
    rounded down.
    """
    shares = dict(topology.efficiency) if protocol.use_efficiency else {}
    shares |= protocol.link_shares
    capacity = topology.link_capacity_uBps
    if not shares:
        return capacity
    for kind in shares:
        _kind_number(kind, LINK_KINDS)
    result = capacity.copy()
    for number, kind in enumerate(LINK_KINDS):
        of_kind = topology.link_kind == number
        if kind in shares and of_kind.any():
            raw, place = np.unique(capacity[of_kind], return_inverse=True)
            result[of_kind] = np.array(
                [int(raw_uBps * shares[kind]) for raw_uBps in raw.tolist()], np.int64
            )[place]
    return result


def with_slack(topology: Topology, capacity: Ints) -> Ints:
    """Capacities, with ``SLACK`` more for each link as wide as all links that its flows come from,
    or go to, together.

    All flows of a link that does not begin at a rank come from the links that lead to its
    beginning, except the link's own reverse; likewise at its end. One of those links must be
    narrower, so that of two links as wide as each other one keeps its capacity.
    """
    src, dst = topology.link_src, topology.link_dst
    nodes = len(topology.node_names)
    ranks = np.zeros(nodes, np.bool_)
    ranks[topology.rank_nodes] = True
    pairs, place = np.unique(src * nodes + dst, return_inverse=True)
    reverse = np.searchsorted(pairs, dst * nodes + src)
    reverse = np.where(np.append(pairs, -1)[reverse] == dst * nodes + src, reverse, len(pairs))
    # Of the other links that meet at each end of a link: high and low words of the sum of
    # capacities, which may exceed 63 bits, and the number of links.
    begin_sums, end_sums = [], []
    for part in (capacity >> 32, capacity & LOW, (capacity > 0).astype(np.int64)):
        into, out, joined = (np.zeros(size, np.int64) for size in (nodes, nodes, len(pairs) + 1))
        for total, owner in ((into, dst), (out, src), (joined, place)):
            np.add.at(total, owner, part)
        begin_sums.append(into[src] - joined[reverse])
        end_sums.append(out[dst] - joined[reverse])
    wide = np.zeros(len(capacity), np.bool_)
    for end, (high, low, links) in ((src, begin_sums), (dst, end_sums)):
        top, low_word = high + (low >> 32), low & LOW
        equal = (top == capacity >> 32) & (low_word == capacity & LOW)
        less = (top < capacity >> 32) | ((top == capacity >> 32) & (low_word < capacity & LOW))
        wide |= (less | (equal & (links > 1))) & ~ranks[end]
    return np.where(wide & (capacity <= UNLIMITED - SLACK), capacity + SLACK, capacity)


def effective_capacities(topology: Topology, protocol: Protocol) -> list[int]:
    """Capacity of every link under the protocol, with slack for those that never bind."""
    capacities: list[int] = with_slack(topology, shared_capacities(topology, protocol)).tolist()
    return capacities
