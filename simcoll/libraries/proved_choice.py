"""A library's choice as a proved schedule, and the protocol that gives its messages their costs.

The formula has sequential steps and one rate; a schedule has messages, lanes and links. The protocol built here matches the formula's
latency and bytes per second on free links, so the emulated time equals the formula's. On shared, degraded or oversubscribed links the
emulated time is longer, which the formula cannot predict.
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
from simcoll.errors import ConfigError
from simcoll.libraries.formula import Cost, Shape, ring_steps, shape
from simcoll.topology.routing import graph_router
from simcoll.tuning import collective_on, schedule_on
from simcoll.units import MAX_RATE_UBPS

if TYPE_CHECKING:
    from simcoll.topology import Topology
    from simcoll.topology.machine import Machine

__all__ = ["Play", "play"]

FIFO_SLOTS = 8
"""Number of slots of NCCL's buffers between two GPUs (NCCL_STEPS)."""
MOST_MESSAGES = 80_000
"""Limit of messages of a schedule that cannot be folded; beyond, the formula's time is used."""
MOST_SENDS = 32 * 8
"""Limit of a GPU's simultaneous sends: on 32 channels, each with up to 8 (NCCL_MAX_DEV_WORK_P2P_PER_BATCH of NCCL 2.27.5)."""
MOST_OF_A_DOMAIN = 10_000
"""Limit of messages of a tree per domain: on two domains these take 50 ms."""
MOST_ON_A_SWITCH = 32
"""Limit of GPUs per domain for playing a reduction in its switches, which would otherwise take seconds."""
SETTLED = 8
"""Number of a tree's pieces from which the children of a rank send simultaneously; with fewer, they send one after the other."""
FREE = 0.98
"""Share of a link that the rates made here may use, so that a free link does not slow them down."""
_US = 10**9
_INSIDE = ("nvlink", "link", "pcie", "cpu")


@dataclass(frozen=True, slots=True)
class Play:
    """A schedule and its protocol; ``topology`` is set if NCCL's routes differ from those of the machine."""

    schedule: Schedule
    protocol: Protocol
    topology: Topology | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """One size of one way to run a collective: times in microseconds, rates in GB/s."""

    collective: str
    size_bytes: int
    topology: Topology
    machine: Machine
    shape: Shape
    protocol: str
    channels: int
    start_us: float
    hops: int
    hop_us: float
    nets: int
    net_us: float
    rate_GBps: float


def play(cost: Cost, place: int, collective: str, size_bytes: int, topology: Topology, machine: Machine) -> Play | str:
    """The schedule and protocol of a candidate at one of its sizes, or the reason why the emulator cannot play it."""
    hop, net = (np.broadcast_to(each, cost.latency_us.shape)[place] for each in (cost.hop_us, cost.net_us))
    latency = float(cost.latency_us[place])
    start = latency - cost.hops * float(hop) - cost.nets * float(net)
    asked = _Asked(
        collective, size_bytes, topology, machine, shape(machine), cost.protocol, 2 * cost.channels, max(start, 0.0), cost.hops, float(hop),
        cost.nets, float(net), float(cost.rate_GBps[place]),
    )  # fmt: skip
    if len(set(machine.domain_ranks)) > 1:
        return "domains of different sizes"
    builders = {"ring": _ring, "tree": _tree, "nvls": _switch, "grouped": _grouped}
    if cost.algorithm not in builders:
        return f"{cost.algorithm} over several nodes is known as a whole only, not message by message"
    try:
        return (_chain if collective in {"broadcast", "reduce"} else builders[cost.algorithm])(asked)
    except ConfigError as error:  # for example, the topology has no such rings or nodes
        return error.message


@lru_cache(maxsize=256)
def _schedule(collective: str, algorithm: str, topology: Topology, params: tuple[tuple[str, int], ...]) -> Schedule:
    made = schedule_on(collective_on(collective, topology.nranks), algorithm, topology, dict(params))
    return replace(made, source=lambda: _blocks(made) or made.source())


@lru_cache(maxsize=4)
def _blocks(schedule: Schedule) -> list[Step | Repeat]:
    """The materialised steps of a schedule whose first proof and run iterate over them six times; empty for large schedules."""
    kept: list[Step | Repeat] = []
    rows = 0
    for block in schedule.source():
        kept.append(block)
        rows += sum(map(len, block.steps)) if isinstance(block, Repeat) else len(block)
        if rows > MOST_MESSAGES:
            return []
    return kept


def _protocol(
    asked: _Asked, hop_us: float, net_us: float, channel_GBps: float, start_us: float | None = None
) -> Protocol:
    """Convert times and rates to the units of the engine."""
    hop, net = round(hop_us * _US), round(net_us * _US)
    return Protocol(
        asked.protocol,
        launch_fs=round((asked.start_us if start_us is None else start_us) * _US),
        hop_latency_fs=(*((kind, hop) for kind in _INSIDE), ("net", net)),
        fifo_depth=_depth(asked),
        channel_rate_uBps=min(round(channel_GBps * 1e15), MAX_RATE_UBPS),
    )


def _depth(asked: _Asked) -> int:
    """Number of slots of one emulated channel, which stands for several of the library's."""
    return FIFO_SLOTS * max(1, asked.channels // _rails(asked))


def _raw(asked: _Asked) -> tuple[float, float]:
    """Peak rates of a GPU's links and of a domain's NICs, in GB/s."""
    return asked.machine.gpu_uBps / 1e15 or inf, asked.machine.nic_uBps / 1e15 or inf


def _rails(asked: _Asked) -> int:
    """Number of channels: over domains one per NIC, so that all are used."""
    if asked.shape.domains == 1:
        return 1
    return max(asked.machine.nics, asked.shape.per_domain)  # members that share a NIC alternate at the ends


@lru_cache(maxsize=16)
def _direct(topology: Topology) -> NDArray[np.bool_]:
    """Mask of the links that join two GPUs that are ranks."""
    ranks = [node for node in topology.rank_nodes.tolist() if topology.node_kinds[node] == "gpu"]
    both: NDArray[np.bool_] = np.isin(topology.link_src, ranks) & np.isin(topology.link_dst, ranks)
    return both


def _least_direct(topology: Topology) -> float:
    """The least capacity of a link between two GPUs."""
    return float(topology.link_capacity_uBps[_direct(topology)].min() / 1e15)


@lru_cache(maxsize=16)
def _between_neighbours(topology: Topology, size: int) -> float:
    """The least capacity of the routes between the first GPUs, each to the next, in GB/s."""
    rank = np.arange(size)
    links = topology.route(rank, (rank + 1) % size).links
    return float(topology.link_capacity_uBps[links[links >= 0]].min() / 1e15)


def _linked(topology: Topology) -> int:
    """Number of pairs of GPUs with links to each other instead of to a switch."""
    return len(np.unique(np.stack([topology.link_src, topology.link_dst])[:, _direct(topology)], axis=1).T)


@lru_cache(maxsize=16)
def _over_gpus(topology: Topology) -> Topology:
    """The topology with routes over links between GPUs and the memory of intermediate GPUs, by width, instead of over the host.

    These are NCCL's ``NVB`` paths: both ends access a buffer in the GPU between them (a maintainer in github.com/NVIDIA/nccl, issue 819).
    """
    src, dst, capacity = topology.link_src, topology.link_dst, topology.link_capacity_uBps
    length = np.where(_direct(topology), capacity.max() // np.maximum(capacity, 1), 10**6)
    about = topology.name, topology.node_names, topology.node_kinds, topology.rank_nodes
    router = graph_router(*about, src, dst, length, gpus_forward=True)
    return replace(topology, router=router, gpus_forward=True, rank_endpoints=np.arange(topology.nranks))


def _net_latency(asked: _Asked, hops: int, nets: int) -> float:
    """Latency of a message over the network such that these hops and crossings take the formula's time."""
    total = asked.hops * asked.hop_us + asked.nets * asked.net_us
    return max(total - hops * asked.hop_us, 0.0) / nets if nets else 0.0


def _ring(asked: _Asked) -> Play | str:
    """A segment goes around the ring once or twice; NCCL counts fewer crossings of the network than a segment makes."""
    n, domains, g = asked.shape.ranks, asked.shape.domains, asked.shape.per_domain
    steps = ring_steps(asked.collective, n)
    bus = asked.rate_GBps * steps / n
    if g > 1 and _linked(asked.topology):
        if domains > 1 and asked.machine.inside == "xgmi":
            return "no rings along direct links were found that share the NICs evenly"
        schedule = _schedule(asked.collective, "nvlink_ring", asked.topology, ())
        if bus > schedule.nchannels * _least_direct(asked.topology):
            return f"the {schedule.nchannels} rings found along direct links carry less than NCCL's"
    else:
        schedule = _schedule(asked.collective, "ring", asked.topology, (("channels", _rails(asked)),))
    turns = 2 if asked.collective == "all_reduce" else 1
    crossings = steps if g == 1 else turns * domains - (1 if g == 2 and turns == 2 else 0) if domains > 1 else 0
    net_us = _net_latency(asked, steps - crossings, crossings)
    return Play(schedule, _protocol(asked, asked.hop_us, net_us, bus / schedule.nchannels))


def _slots(asked: _Asked) -> int:
    """Most pieces that follow each other at full rate: the slots of a connection must hold the flow during the latency of one piece."""
    latency = max(asked.hop_us, asked.net_us, 1e-3)
    return max(1, int(0.75 * _depth(asked) * asked.size_bytes / (1000 * asked.rate_GBps) / latency))


def _round(pieces: int) -> int:
    """Round down to one of four numbers of pieces per doubling, so that similar sizes share a schedule and its proof.

    >>> [_round(pieces) for pieces in (7, 9, 71, 211, 256)]
    [7, 8, 64, 192, 256]
    """
    step = max(1, (1 << pieces.bit_length()) // 8)
    return pieces // step * step


def _flowing(asked: _Asked) -> float:
    """Share of the formula's time during which bytes flow."""
    flowing = asked.size_bytes / (1000 * asked.rate_GBps)
    return flowing / (flowing + asked.start_us + asked.hops * asked.hop_us + asked.nets * asked.net_us)


def _too_fast(asked: _Asked, gpu_GBps: float, nic_GBps: float, slack: float = 0.04) -> bool:
    """Whether links limit rates that compensate for filling a pipeline, by more than a share of the time."""
    gpu, nic = _raw(asked)
    beyond = max(gpu_GBps / (FREE * gpu), nic_GBps / (FREE * nic) if asked.shape.domains > 1 else 0.0) - 1
    return beyond * _flowing(asked) > slack


def _chain(asked: _Asked) -> Play | str:
    """Pieces follow each other along the chain, as few as links allow; the rate compensates for the first and last pieces."""
    n, domains = asked.shape.ranks, asked.shape.domains
    most = _round(max(1, min((4 if domains == 1 else 16) * n, asked.size_bytes // 4096, _slots(asked))))
    for pieces in (*(few for few in (32, 64, 128) if few < most), most):
        rate = asked.rate_GBps * (1 + (n - 2) / pieces)
        fast = _too_fast(asked, rate, rate, 0.04 if pieces == most else 0.0)
        if not fast:
            break
    channels = _rails(asked)
    if n * pieces * channels > MOST_MESSAGES or fast:
        return "a chain of this many ranks needs more pieces than can be played"
    if asked.shape.per_domain > 1 and _linked(asked.topology):
        schedule = _schedule(asked.collective, "nvlink_ring", asked.topology, (("pieces", pieces),))
        if _too_fast(asked, rate * _raw(asked)[0] / (schedule.nchannels * _least_direct(asked.topology)), 0.0):
            return f"the {schedule.nchannels} rings found along direct links carry less than NCCL's"
    else:
        schedule = _schedule(asked.collective, "chain", asked.topology, (("channels", channels), ("pieces", pieces)))
    # The root is inside its node's part of the ring, which therefore ends where it began.
    crossings = domains - (asked.shape.per_domain == 1) if domains > 1 else 0
    net_us = _net_latency(asked, n - 1 - crossings, crossings)
    return Play(schedule, _protocol(asked, asked.hop_us, net_us, rate / schedule.nchannels))


def _tree(asked: _Asked) -> Play | str:
    """Up and down the trees in pieces, as few as links allow; the rate compensates for filling the pipeline."""
    s, slots = asked.shape, _slots(asked)
    depth, fan, stages = _levels(s.domains, s.per_domain)
    crossing = asked.rate_GBps * (1 if s.domains == 2 else 2)
    inside = 2 * asked.rate_GBps
    if s.per_domain > 1 and _linked(asked.topology):
        # Of a GPU's direct links the chain takes only those to its neighbours.
        inside *= max(1.0, _raw(asked)[0] / _between_neighbours(asked.topology, s.per_domain))
    least = SETTLED if _flowing(asked) > 0.25 else 1
    for pieces in (1, 2, 4, 8, 16, 32):
        lead = 1 + (2 * stages - 1) / pieces
        fast = _too_fast(asked, inside * lead, crossing * lead)
        if (pieces >= least and not fast) or 2 * pieces > slots:
            break
    rails = _rails(asked)
    pairs = next((c for c in (1, 2, 4, 8) if c < rails and crossing * lead * rails <= c * FREE * _raw(asked)[1]), rails)
    if inside > 2 * asked.rate_GBps and _too_fast(asked, inside, 0.0):
        return "the direct links between neighbours carry less than NCCL's trees, which follow other links"
    if 4 * s.ranks * pairs * pieces > min(MOST_MESSAGES, MOST_OF_A_DOMAIN * s.domains) or _too_fast(
        asked, inside * lead, crossing * lead
    ):
        return "a tree this deep needs more pieces than can be played"
    node = (("box", s.per_domain),) if s.domains > 1 else ()  # even of one GPU: a chain of all would be deeper
    params = (("channels", pairs), ("pieces", pieces), *node)
    schedule = _schedule(asked.collective, "nccl_tree", asked.topology, params)
    net_us = asked.nets * asked.net_us / (2 * depth) if depth else 0.0
    return Play(schedule, _protocol(asked, asked.hop_us, net_us, fan * asked.rate_GBps * lead / (2 * pairs)))


@cache
def _levels(domains: int, per_domain: int) -> tuple[int, int, float]:
    """Levels of the tree over domains, the most children of a rank, and the stages of a piece on its way up.

    The children of a rank share its rate: with the maximum number of children a message takes a whole stage, alone only a part of it.
    """
    parent = np.array(binary_tree(domains)).tolist()
    level, children = [0] * domains, [int(per_domain > 1)] * domains
    for up in parent:
        if up >= 0:
            children[up] += 1
    fan = max(1, *children)
    for _ in range(domains.bit_length() + 1):
        level = [0 if up < 0 else level[up] + 1 for up in parent]
    way = [(per_domain - 2) / fan + children[d] / fan if per_domain > 1 else 0.0 for d in range(domains)]
    for d in sorted(range(domains), key=lambda d: -level[d]):
        if parent[d] >= 0:
            way[parent[d]] = max(way[parent[d]], way[d] + children[parent[d]] / fan)
    return max(level), fan, way[parent.index(-1)]


def _switch(asked: _Asked) -> Play | str:
    """Reduction in the switches of one domain: shares are fetched and multicast in pieces, both simultaneously."""
    n, pieces = asked.shape.ranks, 2
    if n > MOST_ON_A_SWITCH:
        return "too many GPUs share a switch to be played share by share"
    schedule = _schedule(asked.collective, "nvls", asked.topology, (("channels", 1), ("pieces", pieces)))
    # Up: all pieces except the first share the links with the multicast.
    load = ((pieces - 1) * (1 + 1 / n) + 1 + (n - 1) / n) / pieces
    share = min(Fraction(1), Fraction(round(asked.rate_GBps * load / _raw(asked)[0] * 10**6), 10**6))
    start = asked.start_us + asked.hops * asked.hop_us
    base = _protocol(asked, 0.0, 0.0, 0.0, start)
    return Play(schedule, _with_share(base, "nvlink", share))


def _grouped(asked: _Asked) -> Play | str:
    """All sends at once, each GPU and each NIC at the measured rate of grouped sends."""
    n, domains = asked.shape.ranks, asked.shape.domains
    apart = 0 < _linked(asked.topology) < n * (asked.shape.per_domain - 1)
    if apart and domains > 1:
        return "GPUs without a link to each other send through the memory of one between them, which routes over nodes do not"
    if domains > 1 and asked.collective != "all_to_all":
        return "one rank's sends use the NICs of its neighbours, which a route does not"
    if n * n > MOST_MESSAGES:
        return "too many pairs of ranks"
    away = (n - 1) / n if asked.collective != "send_recv" else 1.0
    name, params = (
        ("direct", ()) if asked.collective == "send_recv" else ("grouped", (("channels", min(MOST_SENDS, n - 1)),))
    )
    schedule = _schedule(asked.collective, name, asked.topology, params)
    start = asked.start_us + asked.hops * asked.hop_us
    bus = asked.rate_GBps * away
    protocol = _protocol(asked, 0.0, 0.0, 0.0, start)
    if domains == 1:
        limited = replace(protocol, rank_rate_uBps=round(bus * 1e15))
        return Play(schedule, limited, _over_gpus(asked.topology) if apart else None)
    share = asked.rate_GBps * (n - asked.shape.per_domain) / n * asked.shape.per_domain / _raw(asked)[1]
    return Play(schedule, _with_share(protocol, "net", min(Fraction(1), Fraction(round(share * 10**6), 10**6))))


def _with_share(protocol: Protocol, kind: str, share: Fraction) -> Protocol:
    return replace(protocol, link_shares=((kind, share),))
