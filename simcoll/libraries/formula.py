"""NCCL's cost formula: latency and rate of every algorithm and protocol, as NCCL computes them at
start-up.

    time = latency + size / rate latency = base + hops * hop + nets * net rate = bus * ratio

``hop`` is one message inside a domain, ``net`` one over the network; ``bus`` is the rate of all
channels together. The constants come from a library file. :func:`stated_costs` is the formula as it
is; :mod:`simcoll.libraries.corrected` adds what measurements show. Times are in microseconds and
rates in GB/s (10**9 bytes per second).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.vocabulary import CollectiveKind, NcclAlgorithm, NcclProtocol, PredictedAlgorithm
from simcoll.errors import ConfigError, nearest

if TYPE_CHECKING:
    from simcoll.libraries.library import Library
    from simcoll.topology.machine import Machine


__all__ = [
    "PROTOCOLS",
    "Buses",
    "Cost",
    "Terms",
    "bus_ratio",
    "ll_limit",
    "search_channels",
    "shape",
    "stated_costs",
    "stated_terms",
    "tree_correction",
]

PROTOCOLS: tuple[NcclProtocol, ...] = ("LL", "LL128", "Simple")
LL_DATA = 0.5
"""Share of the bytes of LL that are data; the others are flags."""
ONE_WAY = ("all_gather", "reduce_scatter")
ROOTED = ("broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of one way to run a collective: latency in microseconds and rate in GB/s, for every
    size.

    The latency contains ``hops`` sequential messages within a domain of ``hop_us`` each, and
    ``nets`` over the network of ``net_us`` each.
    """

    algorithm: PredictedAlgorithm
    protocol: NcclProtocol
    channels: int
    latency_us: Floats
    rate_GBps: Floats
    hops: int = 0
    hop_us: Floats | float = 0.0
    nets: int = 0
    net_us: Floats | float = 0.0

    def time_us(self, size_bytes: Floats) -> Floats:
        """The time for every size."""
        return self.latency_us + size_bytes / (1000 * self.rate_GBps)


@dataclass(frozen=True, slots=True)
class Terms:
    """The parts of the formula for one algorithm and protocol.

    ``floor_us`` is the time of posting a message to the network, the least duration of a ring's
    step over nodes.
    """

    algorithm: NcclAlgorithm
    protocol: NcclProtocol
    channels: int
    base_us: float
    hop_us: float
    hops: int
    net_us: float
    nets: int
    floor_us: float
    rate_GBps: float


@dataclass(frozen=True, slots=True)
class Buses:
    """The result of the channel search: the number of channels, their total rate by algorithm, and
    what their kernels carry where no link is slower.
    """

    channels: int
    ring_GBps: float
    tree_GBps: float
    nvls_GBps: float
    net_GBps: float
    kernel_GBps: float


@dataclass(frozen=True, slots=True)
class MachineShape:
    """Counts in the formula: ranks, domains, ranks per domain, and the table column for the number
    of domains.
    """

    ranks: int
    domains: int
    per_domain: int
    column: int


def shape(machine: Machine) -> MachineShape:
    """Count ranks and domains; the formula distinguishes one, two, and more domains."""
    ranks, domains = sum(machine.domain_ranks), machine.domains
    return MachineShape(ranks, domains, max(1, ranks // domains), min(domains, 3) - 1)


def _generation(machine: Machine, library: Library) -> str:
    generations = library.tables("generation")
    if library.name == "rccl":  # its other constants are NCCL's, but it runs on no GPU of NVIDIA
        generations = tuple(
            name for name in generations if f"generation.{name}.channels" not in library.borrowed
        )
    if machine.generation not in generations:
        description = (
            f"of generation {machine.generation!r}"
            if machine.generation
            else "whose generation the topology does not name"
        )
        raise ConfigError(
            f"{library} has no constants for GPUs {description}; "
            f"{nearest(machine.generation, generations)}"
        )
    return f"generation.{machine.generation}"


def search_channels(machine: Machine, library: Library) -> Buses:
    """Channels and rates as NCCL's search finds them: a speed per channel from its list, one
    channel per NIC that rings can fill.
    """
    generation, s = _generation(machine, library), shape(machine)
    channels = int(library.number(f"{generation}.channels"))
    kernel_rate = channels * library.numbers(f"{generation}.ring_rate")[0]
    domain_rate = min(kernel_rate, machine.gpu_uBps / 1e15 or inf)
    nvls = library.number(f"{generation}.nvls_rate", 0.0)
    if s.domains == 1:
        return Buses(channels, domain_rate, domain_rate, nvls, 0.0, kernel_rate)
    nic = machine.nic_uBps / 1e15 / max(machine.nics, 1)
    speed = next(
        (speed for speed in library.numbers(f"{generation}.inter_speeds") if speed <= nic), nic
    )
    channels = max(machine.ring_nics, 1)
    # In each ring, one GPU of a domain sends to the network instead of its neighbour.
    net = min(channels * speed, domain_rate * s.per_domain / max(s.per_domain - 1, 1))
    # A small number of fast channels is split in two.
    if speed >= 25 and not (
        machine.generation in {"hopper", "blackwell"} and speed < 50 and channels > 4
    ):
        channels *= 2
    tree = min(2 * net, machine.gpu_uBps / 1e15 or inf) if s.domains == 2 else net
    return Buses(channels, net, max(tree, net), nvls, net, max(kernel_rate, net))


def bus_ratio(
    algorithm: NcclAlgorithm, collective: CollectiveKind, n: int, library: Library
) -> float:
    """Bytes of the collective per byte on the bus."""
    if algorithm == "ring":
        return n / ring_steps(collective, n)
    return library.number("share.nvls") if algorithm.startswith("nvls") else 0.5


def ring_steps(collective: CollectiveKind, n: int) -> int:
    """Number of steps of a ring, as NCCL counts them."""
    return {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.get(
        collective, n
    )


def ll_limit(machine: Machine, library: Library) -> float:
    """NCCL's highest bus rate of LL: of a GPU in one domain, and over several of the host, whose
    memory every message passes.
    """
    s = shape(machine)
    if s.domains == 1:
        return library.number(f"{_generation(machine, library)}.ll_rate")
    cpu = machine.cpu if machine.cpu in library.tables("cpu") else "other"
    return library.numbers(f"cpu.{cpu}.ll_rate")[s.column - 1]


def _bus(
    algorithm: NcclAlgorithm, kind: int, machine: Machine, library: Library, buses: Buses
) -> float:
    """The total rate of all channels under a protocol."""
    s, generation = shape(machine), _generation(machine, library)
    share = library.numbers
    ll_rate = ll_limit(machine, library)
    if algorithm == "ring":
        bus = buses.ring_GBps
        if kind == 0:
            ll_share = library.number("share.ring_ll")
            if s.domains > 1:
                ll_share = library.number("share.ring_ll_over_nodes", ll_share)
            return min(ll_rate, buses.kernel_GBps * ll_share, bus * LL_DATA)
        if kind == 1:
            per_channel = library.numbers(f"{generation}.ring_ll128_rate")[s.column]
            return min(bus * share("share.ring_ll128")[0], buses.channels * per_channel)
        return bus
    if algorithm == "tree":
        cap = buses.channels * library.numbers(f"{generation}.tree_rate")[s.column]
        bus = min(buses.tree_GBps * share("share.tree")[0], cap)
        if kind == 0:
            ll_share = library.number("share.tree_ll", 0.0)
            bus = min(bus / 3.8, ll_rate)
            bus = min(bus, buses.kernel_GBps * ll_share) if ll_share else bus
        elif kind == 1:
            per_channel = library.numbers(f"{generation}.tree_ll128_rate")[s.column]
            share_key = "share.tree_ll128_inside" if s.domains == 1 else "share.tree_ll128"
            bus = min(bus * share(share_key)[0], buses.channels * per_channel)
        return bus * (share("share.tree_pattern")[0] if s.domains > 1 else 1.0)
    return (
        buses.nvls_GBps
        if s.domains == 1
        else min(buses.nvls_GBps, buses.net_GBps / (1 if s.domains == 2 else 2))
    )


def algorithms_of(machine: Machine, collective: CollectiveKind) -> tuple[NcclAlgorithm, ...]:
    """NCCL's algorithms for a collective on a machine."""
    if collective != "all_reduce":
        return ("ring",)
    if not machine.switch_reduce or shape(machine).per_domain == 1:
        return ("ring", "tree")
    return ("ring", "tree", "nvls" if machine.domains == 1 else "nvls_tree")


def stated_terms(
    machine: Machine, collective: CollectiveKind, library: Library, buses: Buses
) -> list[Terms]:
    """The parts of the formula for every algorithm and protocol of a collective with its own NCCL
    kernels.
    """
    s = shape(machine)
    link = "nvlink" if machine.inside in {"nvlink", "xgmi", ""} else "pcie"
    levels = s.domains.bit_length() - 1
    cpu = machine.cpu if machine.cpu in library.tables("cpu") else "other"
    overhead = library.number(f"cpu.{cpu}.net_overhead")
    terms = []
    for algorithm in algorithms_of(machine, collective):
        for kind, protocol in enumerate(PROTOCOLS):
            if algorithm.startswith("nvls") and protocol != "Simple":
                continue
            kind_of = 0 if algorithm.startswith("nvls") else kind
            base = library.numbers(f"base.{algorithm}")[kind_of]
            hop = library.numbers(f"hop.{link}.{algorithm}")[kind_of]
            net = library.numbers("hop.net.tree" if s.per_domain == 1 else f"hop.net.{algorithm}")[
                kind if s.per_domain == 1 else kind_of
            ]
            floor = 0.0
            if algorithm == "ring":
                steps, nets = _ring_counts(collective, s)
                hops = steps - nets
                floor = overhead * (3 if protocol == "Simple" else 1) if s.domains > 1 else 0.0
            elif algorithm == "tree":
                hops, nets = 2 * (s.per_domain - 1), 2 * levels
            else:
                hops, nets = 1, 2 * levels
            rate = _bus(algorithm, kind, machine, library, buses) * bus_ratio(
                algorithm, collective, s.ranks, library
            )
            if collective in ROOTED and protocol == "LL" and s.domains == 1:
                rate *= library.number("share.rooted_ll", 1.0)
            terms.append(
                Terms(algorithm, protocol, buses.channels, base, hop, hops, net, nets, floor, rate)
            )
    return terms


def _ring_counts(collective: CollectiveKind, s: MachineShape) -> tuple[int, int]:
    """Number of sequential steps of a ring, and how many of them cross the network."""
    if collective in ROOTED:
        return s.ranks - 1, s.domains - 1
    return ring_steps(collective, s.ranks), (2 if collective == "all_reduce" else 1) * (
        s.domains - 1
    )


def tree_correction(size_bytes: Floats, protocol: NcclProtocol, library: Library) -> Floats:
    """NCCL's table of the shortfall of trees below their rate, by powers of two of the size from 64
    B on.
    """
    table = np.array(library.numbers(f"tree_correction.{protocol}"))
    row = np.floor(np.log2(np.maximum(size_bytes, 1.0) / 64)).astype(np.int64)
    in_table = (row >= 0) & (row < len(table))
    return np.where(in_table, table[np.clip(row, 0, len(table) - 1)], 1.0)


def stated_costs(
    machine: Machine,
    collective: CollectiveKind,
    size_bytes: Floats,
    library: Library,
    *,
    by_size: bool = True,
) -> list[Cost]:
    """NCCL's own estimate of every algorithm and protocol.

    Without ``by_size``, these are the numbers of its tuning log, before corrections for the size.

    Raises
    ------
    ConfigError
        When the library has no constants for the GPUs of the machine.
    """
    buses, s = search_channels(machine, library), shape(machine)
    costs = []
    for terms in stated_terms(machine, collective, library, buses):
        latency = np.full(
            len(size_bytes),
            terms.base_us
            + terms.hops * max(terms.hop_us, terms.floor_us)
            + terms.nets * terms.net_us,
        )
        rate = np.full(len(size_bytes), terms.rate_GBps)
        if by_size and terms.algorithm == "tree":
            rate = rate * tree_correction(size_bytes, terms.protocol, library)
        if (
            by_size
            and s.domains > 1
            and (terms.algorithm, terms.protocol, collective) == ("ring", "Simple", "all_reduce")
        ):
            crowded = size_bytes // (terms.channels * s.ranks) >= 64
            latency = np.where(
                crowded,
                latency * library.number(f"{_generation(machine, library)}.plateau"),
                latency,
            )
        costs.append(Cost(terms.algorithm, terms.protocol, terms.channels, latency, rate))
    return costs
