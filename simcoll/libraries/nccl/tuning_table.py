"""NCCL's tuning table: latency and rate of every algorithm and protocol, before corrections.

As in NCCL 2.27 to 2.30, src/graph/tuning.cc. Times are in microseconds, rates in GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf, log2

from simcoll.core.vocabulary import CollectiveKind, NcclAlgorithm, NcclProtocol
from simcoll.libraries.formula import ONE_WAY, PROTOCOLS, ROOTED, ring_steps
from simcoll.libraries.nccl.communicator import CommunicatorFacts
from simcoll.libraries.nccl.graphs import ChannelGraph
from simcoll.libraries.path_types import PATH_TYPES, PathType

__all__ = ["TuningEntry", "tuning_table"]

ALGORITHMS: tuple[NcclAlgorithm, ...] = (
    "tree",
    "ring",
    "collnet",
    "collnet_chain",
    "nvls",
    "nvls_tree",
    "pat",
)
"""In NCCL's order: of equal times, the first wins."""
_SWITCHED = ("nvls", "nvls_tree")
_MAX_THREADS = {"LL": 512, "LL128": 640, "Simple": 512}
_THREAD_BYTES = {"LL": 8, "LL128": 8, "Simple": 64}
"""Least number of bytes of a thread, below which NCCL uses fewer channels and threads."""
COLLNET_PEER_US = 0.4
"""Latency of each GPU of a node beside the first."""
MAX_COLLNET_RANKS = 8
"""Highest number of ranks of a node that CollNet joins directly."""
MAX_NVLS_RANKS = 32
"""Highest number of ranks of a node whose all_gather and reduce_scatter go by switches
(NCCL_MAX_NVLS_ARITY).
"""
_PCIE_GBps = 12.0
"""Rate of all rings up to which half the threads are enough."""


@dataclass(frozen=True, slots=True)
class TuningEntry:
    """NCCL's numbers of one algorithm and protocol for one collective.

    Attributes
    ----------
    latency_us, rate_GBps
        The time of a call is the latency and the size over the rate, before corrections by size.
    threads
        The most threads of a block.
    thread_bytes
        Least number of bytes of a thread.
    """

    algorithm: NcclAlgorithm
    protocol: NcclProtocol
    latency_us: float
    rate_GBps: float
    threads: int
    thread_bytes: int


@lru_cache(maxsize=4096)
def tuning_table(
    communicator: CommunicatorFacts, collective: CollectiveKind
) -> tuple[TuningEntry, ...]:
    """The permitted algorithms and protocols of a collective, in NCCL's order.

    Empty if the environment leaves none: NCCL then refuses the call.
    """
    return tuple(
        TuningEntry(
            algorithm,
            protocol,
            _latency_us(communicator, collective, algorithm, protocol),
            rate,
            _threads(communicator, algorithm, protocol),
            _thread_bytes(communicator, algorithm, protocol),
        )
        for algorithm in ALGORITHMS
        for protocol in PROTOCOLS
        if _permits(communicator, collective, algorithm, protocol)
        and (rate := _rate(communicator, collective, algorithm, protocol)) > 0
    )


def _permits(
    communicator: CommunicatorFacts,
    collective: CollectiveKind,
    algorithm: NcclAlgorithm,
    protocol: NcclProtocol,
) -> bool:
    environment, graphs = communicator.environment, communicator.graphs
    if not environment.allows(collective, algorithm, protocol):
        return False
    if algorithm not in {"ring", "tree"} and protocol != "Simple":
        return False
    if protocol == "LL128" and not (
        environment.names_protocols(collective) or _carries_ll128(communicator, algorithm)
    ):
        return False
    if algorithm == "ring":
        return True
    if collective in ROOTED:
        return False
    if algorithm == "tree":
        return collective == "all_reduce"
    if algorithm == "pat":
        one_per_node = graphs.nodes == communicator.ranks
        return collective in ONE_WAY and bool(
            environment.pat == 1 or (environment.pat and one_per_node)
        )
    is_reduced = environment.collnet and graphs.nodes > 1 and collective == "all_reduce"
    if algorithm in {"collnet", "collnet_chain"}:
        few = communicator.ranks_per_node <= MAX_COLLNET_RANKS
        return is_reduced and (few or algorithm == "collnet_chain")
    if not communicator.has_nvls:
        return False
    if algorithm == "nvls":  # over nodes it needs a network that reduces
        if is_reduced:
            return True
        few = communicator.ranks_per_node <= MAX_NVLS_RANKS
        return graphs.nodes == 1 and (few or collective == "all_reduce")
    return graphs.nodes > 1 and collective == "all_reduce"


def _carries_ll128(communicator: CommunicatorFacts, algorithm: NcclAlgorithm) -> bool:
    """Whether all paths of an algorithm's graph deliver 128 bytes at once."""
    graph = _graph(communicator, algorithm)
    farthest: PathType = "PXN" if communicator.capability >= 90 else "PXB"
    return (
        _rank(graph.path_to_nic) <= _rank(farthest)
        and _rank(graph.path_inside) <= _rank("NVB")
        and communicator.capability >= 70
    )


def _rank(path: PathType) -> int:
    return PATH_TYPES.index(path)


def _graph(communicator: CommunicatorFacts, algorithm: NcclAlgorithm) -> ChannelGraph:
    graphs = communicator.graphs
    if algorithm == "ring":
        return graphs.ring
    return (graphs.nvls or graphs.tree) if algorithm in _SWITCHED else graphs.tree


def _latency_us(
    communicator: CommunicatorFacts,
    collective: CollectiveKind,
    algorithm: NcclAlgorithm,
    protocol: NcclProtocol,
) -> float:
    library, graph, kind = (
        communicator.library,
        _graph(communicator, algorithm),
        PROTOCOLS.index(protocol),
    )
    ranks, nodes = communicator.ranks, communicator.nodes
    link = "nvlink" if graph.path_inside == "NVL" else "pcie"

    def constant(place: str) -> float:
        if place == "hop.pcie.tree" and protocol == "Simple" and communicator.cpu == "ppc64":
            place = "hop.pcie.ring"  # NCCL prefers trees on POWER
        numbers = library.numbers(place)
        return numbers[kind if len(numbers) > 1 else 0]

    base = 0.0 if algorithm.startswith("collnet") else constant(f"base.{algorithm}")
    hop = constant(f"hop.{link}.{algorithm}")
    # One GPU per node exposes the whole latency of the network.
    net = constant("hop.net.tree" if ranks == nodes else f"hop.net.{algorithm}")
    net += graph.net_latency_us * (2 if protocol == "Simple" else 1)
    levels = int(log2(nodes))
    if algorithm == "tree":
        return base + 2 * ((ranks // nodes - 1) * hop + levels * net)
    if algorithm == "nvls":
        return hop + (net if nodes > 1 else 0.0)
    per_node = ranks // nodes
    if algorithm == "collnet":
        return 2 * (min(1, per_node - 1) * hop + (per_node - 1) * COLLNET_PEER_US) + net
    if algorithm == "collnet_chain":
        return 2 * (per_node - 1) * hop + net
    if algorithm == "nvls_tree":
        return base + hop + 2 * levels * net
    if algorithm == "pat":
        return base + levels * net / 3.5 + ranks * 2.8
    if collective in ROOTED:
        place = link if nodes == 1 else "net"
        if graph.same_channels:
            return base + constant(f"hop.{place}.ring")
        chunk = "tree" if protocol == "Simple" else "ring"
        return base + ranks * constant(f"hop.{place}.{chunk}")
    steps = ring_steps(collective, ranks)
    crossings = (2 if collective == "all_reduce" else 1) * (nodes - 1)
    if nodes > 1:
        post = library.number(f"cpu.{_cpu(communicator)}.net_overhead")
        hop = max(hop, post * (3 if protocol == "Simple" else 1))
    return base + (steps - crossings) * hop + crossings * net


def _cpu(communicator: CommunicatorFacts) -> str:
    return communicator.cpu if communicator.cpu in communicator.library.tables("cpu") else "other"


def _rate(
    communicator: CommunicatorFacts,
    collective: CollectiveKind,
    algorithm: NcclAlgorithm,
    protocol: NcclProtocol,
) -> float:
    """Bytes of the collective per time, from the rate of all channels together."""
    library, graph = communicator.library, _graph(communicator, algorithm)
    ranks, column, generation = communicator.ranks, communicator.column, communicator.generation

    def cap(name: str) -> float:
        numbers = library.numbers(f"generation.{generation}.{name}")
        return graph.channels * numbers[column] if numbers else inf

    if communicator.nodes == 1:
        ll_rate = library.number(f"generation.{generation}.ll_rate")
    else:
        ll_rate = library.numbers(f"cpu.{_cpu(communicator)}.ll_rate")[column - 1]
    speed = graph.speed_inside if communicator.nodes <= 2 else graph.speed_between
    bus = graph.channels * speed
    if algorithm == "ring":
        if protocol == "LL":
            bus = min(ll_rate, bus * library.number("share.ring_ll"))
        elif protocol == "LL128":
            bus = min(bus * library.number("share.ring_ll128"), cap("ring_ll128_rate"))
        return bus * ranks / ring_steps(collective, ranks)
    if algorithm == "tree":
        bus = min(bus * library.number("share.tree"), cap("tree_rate"))
        if protocol == "LL":
            bus = min(bus / 3.8, ll_rate)
        elif protocol == "LL128":
            share = "share.tree_ll128_inside" if communicator.nodes == 1 else "share.tree_ll128"
            bus = min(bus * library.number(share), cap("tree_ll128_rate"))
        pattern = library.number("share.tree_pattern") if graph.pattern == "tree" else 1.0
        return bus * pattern * 0.5
    if algorithm == "pat":
        return bus * library.number("share.pat")
    if algorithm in {"collnet", "collnet_chain"}:
        return graph.channels * graph.speed_inside * 0.5
    return _switched_rate(communicator, collective, algorithm, graph, cap("nvls_tree_rate"))


def _switched_rate(
    communicator: CommunicatorFacts,
    collective: CollectiveKind,
    algorithm: NcclAlgorithm,
    graph: ChannelGraph,
    cap_GBps: float,
) -> float:
    """Rate of reduction in switches, by the share (2.27) or the efficiency of a generation."""
    library, ranks, nodes = communicator.library, communicator.ranks, communicator.nodes
    per_node, channels = communicator.ranks_per_node, graph.channels
    all_reduce = collective == "all_reduce"
    if library.text("rules.nvls_rate") == "share":
        between = graph.speed_between
        if algorithm == "nvls_tree" and nodes > 2:
            between /= 2
        if all_reduce:
            return channels * min(graph.speed_inside, between) * library.number("share.nvls")
        return channels * min(graph.speed_inside * (per_node - 1) / per_node, between * 0.9)
    if channels < 2:
        return 0.0
    efficiency = library.number(f"generation.{communicator.generation}.nvls_efficiency", 0.0)
    switched = graph.speed_inside * efficiency * (channels - 1) / channels
    if not all_reduce:
        return channels * min(switched * (per_node - 1) / per_node, graph.speed_between)
    if algorithm == "nvls":
        bus = channels * min(2 * switched, graph.speed_between)
    else:
        between = graph.speed_between * (2 if nodes <= 2 else 1)
        bus = min(channels * min(2 * switched, between), cap_GBps)
    return bus * ranks / ring_steps(collective, ranks)


def _threads(
    communicator: CommunicatorFacts, algorithm: NcclAlgorithm, protocol: NcclProtocol
) -> int:
    if algorithm in _SWITCHED:
        return 640
    environment, limit = communicator.environment, _MAX_THREADS[protocol]
    if protocol == "LL128":
        return _thread_limit(environment.ll128_threads, limit // 4, limit) or limit
    default, ring = limit, communicator.graphs.ring
    if algorithm == "pat":
        return 512 if protocol != "Simple" else 0
    if (algorithm, protocol) == ("ring", "Simple") and (
        ring.speed_inside * ring.channels <= _PCIE_GBps
    ):
        default = 256
    return _thread_limit(environment.threads, 64, limit) or default


def _thread_limit(threads: int, lowest: int, limit: int) -> int:
    """A number of threads as NCCL accepts it from a variable: whole warps within limits."""
    if threads <= 0:
        return 0
    return limit if threads % 32 else min(max(threads, lowest), limit)


def _thread_bytes(
    communicator: CommunicatorFacts, algorithm: NcclAlgorithm, protocol: NcclProtocol
) -> int:
    by_variable = dict(communicator.environment.thread_bytes).get((algorithm, protocol))
    if by_variable is not None:
        return by_variable
    per_rank = communicator.ranks if (algorithm, protocol) == ("ring", "LL") else 1
    return _THREAD_BYTES[protocol] * per_rank
