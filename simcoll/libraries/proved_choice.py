"""A library's choice as a proved schedule, and the protocol that gives its messages their costs.

The formula has sequential steps and one rate; a schedule has messages, lanes and links. The
protocol built here matches the formula's latency and bytes per second on free links, so the
emulated time equals the formula's. On shared, degraded or oversubscribed links the emulated time is
longer, which the formula cannot predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simcoll.algorithms.double_tree import binary_tree
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import Repeat, Schedule, Step
from simcoll.core.step import concurrent
from simcoll.core.vocabulary import CollectiveKind, LinkKind, NcclProtocol
from simcoll.emulator.engine_choice import DEEPEST_FIFO
from simcoll.errors import ConfigError
from simcoll.libraries.collnet import is_collnet
from simcoll.libraries.formula import Cost, MachineShape, ring_steps, shape
from simcoll.topology.routing import graph_router
from simcoll.tuning import collective_on, schedule_on
from simcoll.units import MAX_RATE_UBPS

if TYPE_CHECKING:
    from simcoll.topology import Topology
    from simcoll.topology.machine import Machine

__all__ = ["LibraryPlay", "play"]

FIFO_SLOTS = 8
"""Number of slots of NCCL's buffers between two GPUs (NCCL_STEPS)."""
MOST_MESSAGES = 80_000
"""Limit of messages of a schedule that cannot be folded; beyond, the formula's time is used."""
MOST_SENDS = 32 * 8
"""Limit of a GPU's simultaneous sends: on 32 channels, each with up to 8
(NCCL_MAX_DEV_WORK_P2P_PER_BATCH of NCCL 2.27.5).
"""
MOST_OF_A_DOMAIN = 10_000
"""Limit of messages of a tree per domain: on two domains these take 50 ms."""
MOST_ON_A_SWITCH = 32
"""Limit of GPUs per domain for playing a reduction in its switches, which would otherwise take
seconds.
"""
SETTLED = 8
"""Number of a tree's pieces from which the children of a rank send simultaneously; with fewer, they
send one after the other.
"""
SLIGHT = 0.001
"""Change of time accepted for rounding the bytes so that all chunks are equal."""
FREE = 0.98
"""Share of a link that the rates made here may use, so that a free link does not slow them down."""
_US = 10**9
_INSIDE = ("nvlink", "link", "pcie", "cpu")


@dataclass(frozen=True, slots=True)
class LibraryPlay:
    """A schedule and its protocol.

    Attributes
    ----------
    schedule, protocol
        What the emulator plays.
    topology
        The machine with NCCL's routes, if they differ from its own; otherwise None.
    slight_bytes
        Change of the size that is too small to matter: :data:`SLIGHT` of what flows in the
        formula's time.
    """

    schedule: Schedule
    protocol: Protocol
    topology: Topology | None = None
    slight_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class _SizedCandidate:
    """One size of one way to run a collective: times in microseconds, rates in GB/s."""

    collective: CollectiveKind
    size_bytes: int
    topology: Topology
    machine: Machine
    shape: MachineShape
    protocol: NcclProtocol
    channels: int
    start_us: float
    hops: int
    hop_us: float
    nets: int
    net_us: float
    rate_GBps: float


def play(
    cost: Cost, collective: CollectiveKind, size_bytes: int, topology: Topology, machine: Machine
) -> LibraryPlay | str:
    """The schedule and protocol of a candidate whose cost is of this one size, or the reason why
    the emulator cannot play it.
    """
    hop_us, net_us = (
        float(np.broadcast_to(us, cost.latency_us.shape)[0]) for us in (cost.hop_us, cost.net_us)
    )
    start_us = float(cost.latency_us[0]) - cost.hops * hop_us - cost.nets * net_us
    candidate = _SizedCandidate(
        collective=collective,
        size_bytes=size_bytes,
        topology=topology,
        machine=machine,
        shape=shape(machine),
        protocol=cost.protocol,
        channels=2 * cost.channels,
        start_us=max(start_us, 0.0),
        hops=cost.hops,
        hop_us=hop_us,
        nets=cost.nets,
        net_us=net_us,
        rate_GBps=float(cost.rate_GBps[0]),
    )
    if len(set(machine.domain_ranks)) > 1:
        return "domains of different sizes"
    builders = {"ring": _ring, "tree": _tree, "nvls": _switch, "grouped": _grouped_sends}
    if cost.algorithm == "nvls" and collective != "all_reduce":
        return f"switches are played for an all_reduce, not for {collective}"
    if is_collnet(cost.algorithm, machine.domains):
        return "reduction in the network is known as a whole only, not message by message"
    if cost.algorithm == "symmetric":
        return "kernels for registered buffers are known as a whole only, not message by message"
    if cost.algorithm in {"all_pairs", "mscclpp"}:
        name = "MSCCL++" if cost.algorithm == "mscclpp" else "MSCCL's all-pairs algorithm"
        return f"{name} is known as a whole only, not message by message"
    if cost.algorithm == "pat":
        return "PAT is known as a whole only, not message by message"
    if cost.algorithm not in builders:
        return (
            f"{cost.algorithm} over several nodes is known as a whole only, not message by message"
        )
    build = _chain if collective in {"broadcast", "reduce"} else builders[cost.algorithm]
    try:
        playable = build(candidate)
    except ConfigError as error:  # for example, the topology has no such rings or nodes
        return error.message
    if isinstance(playable, str):
        return playable
    flowing_us = float(cost.time_us(np.array([float(size_bytes)]))[0])
    depth = min(playable.protocol.fifo_depth, DEEPEST_FIFO)  # it holds the flow of one latency
    return replace(
        playable,
        protocol=replace(playable.protocol, fifo_depth=depth),
        slight_bytes=SLIGHT * 1000 * candidate.rate_GBps * flowing_us,
    )


@lru_cache(maxsize=256)
def _schedule(
    collective: CollectiveKind,
    algorithm: str,
    topology: Topology,
    params: tuple[tuple[str, int], ...],
) -> Schedule:
    schedule = schedule_on(
        collective_on(collective, topology.nranks), algorithm, topology, dict(params)
    )
    return replace(schedule, source=lambda: _blocks(schedule) or schedule.source())


@lru_cache(maxsize=4)
def _blocks(schedule: Schedule) -> list[Step | Repeat]:
    """The materialised steps of a schedule whose first proof and run iterate over them six times;
    empty for large schedules.
    """
    blocks: list[Step | Repeat] = []
    rows = 0
    for block in map(concurrent, schedule.source()):
        blocks.append(block)
        rows += sum(map(len, block.steps)) if isinstance(block, Repeat) else len(block)
        if rows > MOST_MESSAGES:
            return []
    return blocks


def _protocol(
    candidate: _SizedCandidate,
    hop_us: float,
    net_us: float,
    channel_GBps: float,
    start_us: float | None = None,
) -> Protocol:
    """Convert times and rates to the units of the engine."""
    hop, net = round(hop_us * _US), round(net_us * _US)
    return Protocol(
        candidate.protocol,
        launch_fs=round((candidate.start_us if start_us is None else start_us) * _US),
        hop_latency_fs=(*((kind, hop) for kind in _INSIDE), ("net", net)),
        fifo_depth=_depth(candidate),
        channel_rate_uBps=min(round(channel_GBps * 1e15), MAX_RATE_UBPS),
    )


def _depth(candidate: _SizedCandidate) -> int:
    """Number of slots of one emulated channel, which stands for several of the library's."""
    return FIFO_SLOTS * max(1, candidate.channels // _rails(candidate))


def _raw(candidate: _SizedCandidate) -> tuple[float, float]:
    """Peak rates of a GPU's links and of a domain's NICs, in GB/s."""
    return candidate.machine.gpu_uBps / 1e15 or inf, candidate.machine.nic_uBps / 1e15 or inf


def _rails(candidate: _SizedCandidate) -> int:
    """Number of channels: over domains one per NIC, so that all are used."""
    if candidate.shape.domains == 1:
        return 1
    # Members that share a NIC alternate at the ends.
    return max(candidate.machine.nics, candidate.shape.per_domain)


@lru_cache(maxsize=16)
def _direct(topology: Topology) -> NDArray[np.bool_]:
    """Mask of the links that join two GPUs that are ranks."""
    ranks = [node for node in topology.rank_nodes.tolist() if topology.node_kinds[node] == "gpu"]
    mask: NDArray[np.bool_] = np.isin(topology.link_src, ranks) & np.isin(topology.link_dst, ranks)
    return mask


def _least_direct(topology: Topology) -> float:
    """The least capacity of a link between two GPUs."""
    return float(topology.link_capacity_uBps[_direct(topology)].min() / 1e15)


@lru_cache(maxsize=16)
def _between_neighbours(topology: Topology, size: int) -> float:
    """The least capacity of the routes between the first GPUs, each to the next, in GB/s."""
    rank = np.arange(size)
    links = topology.route(rank, (rank + 1) % size).links
    return float(topology.link_capacity_uBps[links[links >= 0]].min() / 1e15)


def _direct_pairs(topology: Topology) -> int:
    """Number of pairs of GPUs with links to each other instead of to a switch."""
    return len(
        np.unique(np.stack([topology.link_src, topology.link_dst])[:, _direct(topology)], axis=1).T
    )


@lru_cache(maxsize=16)
def _over_gpus(topology: Topology) -> Topology:
    """The topology with routes over links between GPUs and the memory of intermediate GPUs, by
    width, instead of over the host.

    These are NCCL's ``NVB`` paths: both ends access a buffer in the GPU between them (a maintainer
    in github.com/NVIDIA/nccl, issue 819).
    """
    src, dst, capacity = topology.link_src, topology.link_dst, topology.link_capacity_uBps
    length = np.where(_direct(topology), capacity.max() // np.maximum(capacity, 1), 10**6)
    about = topology.name, topology.node_names, topology.node_kinds, topology.rank_nodes
    router = graph_router(*about, src, dst, length, gpus_forward=True)
    return replace(
        topology, router=router, gpus_forward=True, rank_endpoints=np.arange(topology.nranks)
    )


def _net_latency(candidate: _SizedCandidate, hops: int, nets: int) -> float:
    """Latency of a message over the network such that these hops and crossings take the formula's
    time.
    """
    total = candidate.hops * candidate.hop_us + candidate.nets * candidate.net_us
    return max(total - hops * candidate.hop_us, 0.0) / nets if nets else 0.0


def _ring(candidate: _SizedCandidate) -> LibraryPlay | str:
    """A segment goes around the ring once or twice; NCCL counts fewer crossings of the network than
    a segment makes.
    """
    n, domains, g = candidate.shape.ranks, candidate.shape.domains, candidate.shape.per_domain
    steps = ring_steps(candidate.collective, n)
    bus = candidate.rate_GBps * steps / n
    if g > 1 and _direct_pairs(candidate.topology):
        if domains > 1 and candidate.machine.inside == "xgmi":
            return "no rings along direct links were found that share the NICs evenly"
        schedule = _schedule(candidate.collective, "nvlink_ring", candidate.topology, ())
        if bus > schedule.nchannels * _least_direct(candidate.topology):
            return f"the {schedule.nchannels} rings found along direct links carry less than NCCL's"
    else:
        schedule = _schedule(
            candidate.collective, "ring", candidate.topology, (("channels", _rails(candidate)),)
        )
    turns = 2 if candidate.collective == "all_reduce" else 1
    crossings = (
        steps
        if g == 1
        else turns * domains - (1 if g == 2 and turns == 2 else 0)
        if domains > 1
        else 0
    )
    net_us = _net_latency(candidate, steps - crossings, crossings)
    return LibraryPlay(
        schedule, _protocol(candidate, candidate.hop_us, net_us, bus / schedule.nchannels)
    )


def _slots(candidate: _SizedCandidate) -> int:
    """Most pieces that follow each other at full rate: the slots of a connection must hold the flow
    during the latency of one piece.
    """
    latency = max(candidate.hop_us, candidate.net_us, 1e-3)
    return max(
        1,
        int(
            0.75 * _depth(candidate) * candidate.size_bytes / (1000 * candidate.rate_GBps) / latency
        ),
    )


def _round(pieces: int) -> int:
    """Round down to one of four numbers of pieces per doubling, so that similar sizes share a
    schedule and its proof.

    >>> [_round(pieces) for pieces in (7, 9, 71, 211, 256)]
    [7, 8, 64, 192, 256]
    """
    step = max(1, (1 << pieces.bit_length()) // 8)
    return pieces // step * step


def _flowing(candidate: _SizedCandidate) -> float:
    """Share of the formula's time during which bytes flow."""
    flowing_us = candidate.size_bytes / (1000 * candidate.rate_GBps)
    latency_us = (
        candidate.start_us + candidate.hops * candidate.hop_us + candidate.nets * candidate.net_us
    )
    return flowing_us / (flowing_us + latency_us)


def _too_fast(
    candidate: _SizedCandidate, gpu_GBps: float, nic_GBps: float, slack: float = 0.04
) -> bool:
    """Whether links limit rates that compensate for filling a pipeline, by more than a share of the
    time.
    """
    gpu, nic = _raw(candidate)
    beyond = (
        max(
            gpu_GBps / (FREE * gpu), nic_GBps / (FREE * nic) if candidate.shape.domains > 1 else 0.0
        )
        - 1
    )
    return beyond * _flowing(candidate) > slack


def _chain(candidate: _SizedCandidate) -> LibraryPlay | str:
    """Pieces follow each other along the chain, as few as links allow; the rate compensates for the
    first and last pieces.
    """
    n, domains = candidate.shape.ranks, candidate.shape.domains
    most_pieces = _round(
        max(
            1, min((4 if domains == 1 else 16) * n, candidate.size_bytes // 4096, _slots(candidate))
        )
    )
    for pieces in (*(few for few in (32, 64, 128) if few < most_pieces), most_pieces):
        rate = candidate.rate_GBps * (1 + (n - 2) / pieces)
        fast = _too_fast(candidate, rate, rate, 0.04 if pieces == most_pieces else 0.0)
        if not fast:
            break
    channels = _rails(candidate)
    if n * pieces * channels > MOST_MESSAGES or fast:
        return "a chain of this many ranks needs more pieces than can be played"
    if candidate.shape.per_domain > 1 and _direct_pairs(candidate.topology):
        schedule = _schedule(
            candidate.collective, "nvlink_ring", candidate.topology, (("pieces", pieces),)
        )
        share = _raw(candidate)[0] / (schedule.nchannels * _least_direct(candidate.topology))
        if _too_fast(candidate, rate * share, 0.0):
            return f"the {schedule.nchannels} rings found along direct links carry less than NCCL's"
    else:
        params = (("channels", channels), ("pieces", pieces))
        schedule = _schedule(candidate.collective, "chain", candidate.topology, params)
    # The root is inside its node's part of the ring, which therefore ends where it began.
    crossings = domains - (candidate.shape.per_domain == 1) if domains > 1 else 0
    net_us = _net_latency(candidate, n - 1 - crossings, crossings)
    return LibraryPlay(
        schedule, _protocol(candidate, candidate.hop_us, net_us, rate / schedule.nchannels)
    )


def _tree(candidate: _SizedCandidate) -> LibraryPlay | str:
    """Up and down the trees in pieces, as few as links allow; the rate compensates for filling the
    pipeline.
    """
    s, slots = candidate.shape, _slots(candidate)
    depth, fan, stages = _levels(s.domains, s.per_domain)
    crossing = candidate.rate_GBps * (1 if s.domains == 2 else 2)
    domain_GBps = 2 * candidate.rate_GBps
    if s.per_domain > 1 and _direct_pairs(candidate.topology):
        # Of a GPU's direct links the chain takes only those to its neighbours.
        domain_GBps *= max(
            1.0, _raw(candidate)[0] / _between_neighbours(candidate.topology, s.per_domain)
        )
    fewest_pieces = SETTLED if _flowing(candidate) > 0.25 else 1
    for pieces in (1, 2, 4, 8, 16, 32):
        lead = 1 + (2 * stages - 1) / pieces
        fast = _too_fast(candidate, domain_GBps * lead, crossing * lead)
        if (pieces >= fewest_pieces and not fast) or 2 * pieces > slots:
            break
    rails = _rails(candidate)
    pairs = next(
        (
            c
            for c in (1, 2, 4, 8)
            if c < rails and crossing * lead * rails <= c * FREE * _raw(candidate)[1]
        ),
        rails,
    )
    if domain_GBps > 2 * candidate.rate_GBps and _too_fast(candidate, domain_GBps, 0.0):
        return (
            "the direct links between neighbours carry less than NCCL's trees, which follow "
            "other links"
        )
    if 4 * s.ranks * pairs * pieces > min(MOST_MESSAGES, MOST_OF_A_DOMAIN * s.domains) or _too_fast(
        candidate, domain_GBps * lead, crossing * lead
    ):
        return "a tree this deep needs more pieces than can be played"
    # Even of one GPU: a chain of all would be deeper.
    node = (("box", s.per_domain),) if s.domains > 1 else ()
    params = (("channels", pairs), ("pieces", pieces), *node)
    schedule = _schedule(candidate.collective, "nccl_tree", candidate.topology, params)
    net_us = candidate.nets * candidate.net_us / (2 * depth) if depth else 0.0
    channel_GBps = fan * candidate.rate_GBps * lead / (2 * pairs)
    return LibraryPlay(schedule, _protocol(candidate, candidate.hop_us, net_us, channel_GBps))


@cache
def _levels(domains: int, per_domain: int) -> tuple[int, int, float]:
    """Levels of the tree over domains, the most children of a rank, and the stages of a piece on
    its way up.

    The children of a rank share its rate: with the maximum number of children a message takes a
    whole stage, alone only a part of it.
    """
    parent = np.array(binary_tree(domains)).tolist()
    level, children = [0] * domains, [int(per_domain > 1)] * domains
    for up in parent:
        if up >= 0:
            children[up] += 1
    fan = max(1, *children)
    for _ in range(domains.bit_length() + 1):
        level = [0 if up < 0 else level[up] + 1 for up in parent]
    stages = [
        (per_domain - 2) / fan + children[d] / fan if per_domain > 1 else 0.0
        for d in range(domains)
    ]
    for d in sorted(range(domains), key=lambda d: -level[d]):
        if parent[d] >= 0:
            stages[parent[d]] = max(stages[parent[d]], stages[d] + children[parent[d]] / fan)
    return max(level), fan, stages[parent.index(-1)]


def _switch(candidate: _SizedCandidate) -> LibraryPlay | str:
    """Reduction in the switches of one domain: shares are fetched and multicast in pieces, both
    simultaneously.
    """
    n, pieces = candidate.shape.ranks, 2
    if n > MOST_ON_A_SWITCH:
        return "too many GPUs share a switch to be played share by share"
    schedule = _schedule(
        candidate.collective, "nvls", candidate.topology, (("channels", 1), ("pieces", pieces))
    )
    # Up: all pieces except the first share the links with the multicast.
    load = ((pieces - 1) * (1 + 1 / n) + 1 + (n - 1) / n) / pieces
    share = min(
        Fraction(1), Fraction(round(candidate.rate_GBps * load / _raw(candidate)[0] * 10**6), 10**6)
    )
    start = candidate.start_us + candidate.hops * candidate.hop_us
    base = _protocol(candidate, 0.0, 0.0, 0.0, start)
    return LibraryPlay(schedule, _with_share(base, "nvlink", share))


def _grouped_sends(candidate: _SizedCandidate) -> LibraryPlay | str:
    """All sends at once, each GPU and each NIC at the measured rate of grouped sends."""
    n, domains = candidate.shape.ranks, candidate.shape.domains
    unconnected = 0 < _direct_pairs(candidate.topology) < n * (candidate.shape.per_domain - 1)
    if unconnected and domains > 1:
        return (
            "GPUs without a link to each other send through the memory of one between them, "
            "which routes over nodes do not"
        )
    if domains > 1 and candidate.collective != "all_to_all":
        return "one rank's sends use the NICs of its neighbours, which a route does not"
    if n * n > MOST_MESSAGES:
        return "too many pairs of ranks"
    away = (n - 1) / n if candidate.collective != "send_recv" else 1.0
    if candidate.collective == "send_recv":
        schedule = _schedule(candidate.collective, "direct", candidate.topology, ())
    else:
        channels = (("channels", min(MOST_SENDS, n - 1)),)
        schedule = _schedule(candidate.collective, "grouped", candidate.topology, channels)
    start = candidate.start_us + candidate.hops * candidate.hop_us
    bus = candidate.rate_GBps * away
    protocol = _protocol(candidate, 0.0, 0.0, 0.0, start)
    if domains == 1:
        limited = replace(protocol, rank_rate_uBps=round(bus * 1e15))
        return LibraryPlay(
            schedule, limited, _over_gpus(candidate.topology) if unconnected else None
        )
    share = (
        candidate.rate_GBps
        * (n - candidate.shape.per_domain)
        / n
        * candidate.shape.per_domain
        / _raw(candidate)[1]
    )
    return LibraryPlay(
        schedule,
        _with_share(protocol, "net", min(Fraction(1), Fraction(round(share * 10**6), 10**6))),
    )


def _with_share(protocol: Protocol, kind: LinkKind, share: Fraction) -> Protocol:
    return replace(protocol, link_shares=((kind, share),))
