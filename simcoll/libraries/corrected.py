"""NCCL's cost formula with corrections from measurements.

Each correction has a cause: achievable link rates, the latency of a fabric, the time that a protocol's pipeline needs to fill, LL messages
that take longer as they grow, and reductions in switches with a separate start. The numbers are in the library file, per class of GPU
and per fabric.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, log2
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Floats
from simcoll.errors import ConfigError, nearest
from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.formula import (
    ONE_WAY,
    PROTOCOLS,
    Buses,
    Cost,
    Shape,
    Terms,
    searched,
    shape,
    stated_terms,
    tree_correction,
)

if TYPE_CHECKING:
    from simcoll.libraries.library import Library
    from simcoll.topology.machine import Machine

__all__ = ["P2P", "class_of", "costs", "fabric_of", "measured"]

P2P = ("all_to_all", "gather", "scatter", "send_recv")
"""Collectives that NCCL implements as grouped sends and receives."""

NVLS_CHANNELS = 16
"""Number of channels that NCCL uses for reduction in switches on Hopper."""


def class_of(machine: Machine, library: Library) -> str:
    """The class of GPU whose measured numbers apply: by GPU interconnect, by model, else by generation.

    Raises
    ------
    ConfigError
        When the library has no numbers for it.
    """
    classes = library.tables("class")
    by_model = [name for name in classes if machine.gpu in library.texts(f"class.{name}.gpus")]
    found = machine.inside if machine.inside in {"pcie", "host"} else (by_model or [machine.generation])[0]
    if found not in classes:
        shown = machine.gpu or machine.generation or "unnamed"
        raise ConfigError(f"{library} has no measured numbers for {shown} GPUs; {nearest(shown, classes)}")
    return f"class.{found}"


def fabric_of(machine: Machine, library: Library) -> str:
    """The fabric whose measured numbers apply; empty within one domain.

    Raises
    ------
    ConfigError
        When the topology states no fabric, or one for which the library has no numbers.
    """
    if machine.domains == 1:
        return ""
    known = library.tables("fabric")
    if machine.fabric not in known:
        given = f"fabric {machine.fabric!r}" if machine.fabric else "a topology without the trait 'fabric'"
        raise ConfigError(f"{library} has no numbers for {given}; {nearest(machine.fabric, known)}")
    return f"fabric.{machine.fabric}"


def measured(machine: Machine, library: Library, environment: Environment = DEFAULT) -> Buses:
    """Channels as NCCL's search finds them, and the measured rates of links."""
    found, s, kind = searched(machine, library), shape(machine), class_of(machine, library)
    gpu = machine.gpu_uBps / 1e15 or inf
    ring, nvls = gpu * library.number(f"{kind}.ring_share"), gpu * library.number(f"{kind}.nvls_share", 0.0)
    if environment.max_channels:  # NCCL's own limit of one channel under Simple
        ring = min(
            ring, environment.max_channels * library.numbers(f"generation.{machine.generation}.tree_rate")[s.column]
        )
        nvls *= min(1.0, environment.max_channels / NVLS_CHANNELS)
    if s.domains == 1:
        return replace(found, ring_GBps=ring, tree_GBps=ring, nvls_GBps=nvls)
    fabric = fabric_of(machine, library)
    net = machine.nic_uBps / 1e15 * library.number(f"{fabric}.share")
    tree = 2 * net if s.domains == 2 else net * library.number(f"{fabric}.tree_share", 1.0)
    return Buses(found.channels, min(ring, net), min(ring, tree), nvls, net)


def costs(
    machine: Machine, collective: str, size_bytes: Floats, library: Library, environment: Environment = DEFAULT
) -> list[Cost]:
    """The corrected estimate of every algorithm and protocol, for every size.

    Raises
    ------
    ConfigError
        When the library has no numbers for the GPUs or the fabric of the machine.
    """
    if collective in P2P:
        return [_started(_grouped(machine, collective, size_bytes, library, environment), machine, library)]
    found, s, fabric = measured(machine, library, environment), shape(machine), fabric_of(machine, library)
    found_costs = []
    for each in _paired(stated_terms(machine, collective, library, found), machine, collective, library, found):
        if not _offered(each, machine, collective, library, fabric, environment):
            continue
        if each.algorithm.startswith("nvls"):
            found_costs.append(_switched(each, machine, size_bytes, library, found, s))
        else:
            found_costs.append(_linked(each, machine, collective, size_bytes, library, found, s))
    return [_started(cost, machine, library) for cost in found_costs]


def _paired(terms: list[Terms], machine: Machine, collective: str, library: Library, found: Buses) -> list[Terms]:
    """Trees over two nodes at the rate of the NICs, where NCCL expects more of them than of rings.

    Every NIC then sends the data once, half up one tree and half down the other. NCCL's factor for their pattern and its rate of a
    channel, of which twice as many run, decide its choice only; on V100 they hold.
    """
    if machine.domains != 2 or machine.generation == "volta" or collective != "all_reduce":
        return terms
    simple = ("tree", "Simple")
    own = {
        (each.algorithm, each.protocol): each.rate_GBps
        for each in stated_terms(machine, collective, library, searched(machine, library))
    }
    if own[simple] <= own["ring", "Simple"]:
        return terms
    rate = found.tree_GBps / 2 * library.numbers("share.tree")[0]
    return [replace(each, rate_GBps=rate) if (each.algorithm, each.protocol) == simple else each for each in terms]


def _started(cost: Cost, machine: Machine, library: Library) -> Cost:
    """A cost with the start-up time of typical machines over nodes beyond NCCL's constants, which describe an idle one."""
    fabric = fabric_of(machine, library)
    return replace(cost, latency_us=cost.latency_us + library.number(f"{fabric}.launch", 0.0))


def _offered(
    each: Terms, machine: Machine, collective: str, library: Library, fabric: str, environment: Environment
) -> bool:
    """Whether the machine offers an algorithm and protocol; the environment's choice takes precedence over the fabric's defaults."""
    if each.protocol == "LL128" and machine.inside in {"pcie", "host"}:
        return False
    protocols, algorithms = library.texts(f"{fabric}.protocols"), library.texts(f"{fabric}.algorithms")
    usual = not protocols or each.protocol in protocols or environment.names_protocols(collective)
    return usual and (not algorithms or each.algorithm in algorithms or environment.names_algorithms(collective))


def _ramp(size_bytes: Floats, library: Library) -> Floats:
    """The growth of LL's latency, from 0 to 1, by powers of two of the size."""
    table = np.array(library.numbers("correction.ll_growth_factor"))
    place = np.floor(np.log2(np.maximum(size_bytes, 1.0))).astype(np.int64)
    return table[np.minimum(place, len(table) - 1)]


def _over_fabric(net_us: Floats | float, protocol: str, library: Library, fabric: str) -> Floats:
    """The latency of a message over the network; a calibration may lower it to 0."""
    latency = library.number(f"{fabric}.latency") * (2 if protocol == "Simple" else 1)
    factor = library.numbers("correction.net_hop_factor")[PROTOCOLS.index(protocol)]
    return np.maximum(net_us + latency, 0.0) * factor


def _linked(
    each: Terms, machine: Machine, collective: str, size_bytes: Floats, library: Library, found: Buses, s: Shape
) -> Cost:
    """The cost of a ring or a tree over links."""
    kind, fabric, number = class_of(machine, library), fabric_of(machine, library), library.number
    protocol = PROTOCOLS.index(each.protocol)
    one = np.ones(len(size_bytes))
    hop, net, rate = each.hop_us * one, each.net_us * one, each.rate_GBps * one
    if s.domains > 1:
        net = _over_fabric(net, each.protocol, library, fabric)
    if each.protocol == "LL":
        hop = hop * number(f"{kind}.ll_hop_factor", 1.0)
        grown, own = _ramp(size_bytes, library), number(f"{kind}.ll_growth", 0.0)
        if s.domains > 1:
            net = net + number(f"{fabric}.ll_growth", 0.0) * grown
            if each.algorithm == "ring":  # trees reach NCCL's rate
                rate = rate * number("correction.net_ll_share", 1.0)
        else:
            rate = rate * number(f"{kind}.ll_factor", 1.0)
            if (
                own
            ):  # a channel's first bytes take this long, and all channels the size over their rate: the longer counts
                grown = np.maximum(grown - size_bytes / (1000 * rate * each.hops * own), 0.0)
        hop = hop + (own or number("correction.ll_growth")) * grown
    elif each.protocol == "LL128":
        rate, hop = rate * number(f"{kind}.ll128_factor", 1.0), hop * number(f"{kind}.ll128_hop_factor", 1.0)
        if s.domains > 1 and each.algorithm == "ring":
            rate = rate * number(f"{kind}.net_ll128_share", 1.0)
    if collective in ONE_WAY and s.domains == 1:
        # A rank copies its own block, and does not send meanwhile.
        rate = rate * (s.ranks - 1) / (s.ranks - 1 + number("correction.copy_share", 0.0))
    if each.algorithm == "tree":
        power = library.numbers("correction.tree_power_factor")[protocol]
        rate = rate * tree_correction(size_bytes, each.protocol, library) ** power
    base = each.base_us * library.numbers("correction.base_factor")[protocol]
    hop = np.maximum(hop, library.numbers("correction.net_post")[protocol] if s.domains > 1 else 0.0)
    latency = base + each.hops * hop + each.nets * net
    crossings = log2(s.domains) if each.algorithm == "tree" else s.domains - 1
    if each.protocol == "Simple":
        latency = _filled(latency, each, machine, collective, size_bytes, library, s)
    elif s.domains > 1:
        steps = library.numbers(f"{fabric}.steps")
        if steps:
            latency = (
                latency + np.interp(np.log2(np.maximum(size_bytes, 1.0)), 11 + np.arange(len(steps)), steps) * crossings
            )
        rate = np.minimum(rate, number(f"{fabric}.ll_rate", inf))
    return Cost(each.algorithm, each.protocol, found.channels, latency, rate, each.hops, hop, each.nets, net)


def _filled(
    latency: Floats, each: Terms, machine: Machine, collective: str, size_bytes: Floats, library: Library, s: Shape
) -> Floats:
    """The latency of Simple plus the time that its pipeline needs to fill."""
    number, kind = library.number, class_of(machine, library)
    if s.domains == 1:
        one_way = number("correction.one_way_share") if collective != "all_reduce" else 1.0
        return latency + number(f"{kind}.simple_start", 0.0) * one_way
    if each.algorithm == "ring" and collective == "all_reduce":
        crowded = size_bytes // (each.channels * s.ranks) >= 64
        latency = np.where(crowded, latency * number(f"generation.{machine.generation}.plateau"), latency)
    fabric, times = fabric_of(machine, library), log2(s.domains) if each.algorithm == "tree" else 1.0
    return latency + number("correction.net_start") + number(f"{fabric}.simple_start", 0.0) * times


def _switched(each: Terms, machine: Machine, size_bytes: Floats, library: Library, found: Buses, s: Shape) -> Cost:
    """The cost of a reduction in the switches of a domain and, over domains, a tree of them."""
    number, kind = library.number, class_of(machine, library)
    gpu = machine.gpu_uBps / 1e15
    large = gpu * number(f"{kind}.nvls_large_share", number(f"{kind}.nvls_share"))
    bus = np.where(size_bytes > number("correction.nvls_large_bytes"), large, found.nvls_GBps)
    p = s.per_domain
    inside = bus * p / (2 * (p - 1)) if p >= 8 else bus * 8 / 14 * 1.125 / (1 + 1 / p)
    if s.domains == 1:
        return Cost(
            each.algorithm, each.protocol, found.channels, number(f"{kind}.nvls_start") + 0 * size_bytes, inside
        )
    net = found.net_GBps * (1.0 if s.domains == 2 else 0.5)
    rate = np.minimum(inside * number("correction.nvls_tree_share"), net)
    hop = _over_fabric(each.net_us, each.protocol, library, fabric_of(machine, library))
    latency = (
        number("correction.nvls_tree_start") + each.nets * hop * library.numbers("correction.nvls_tree_hop_factor")[0]
    )
    return Cost(each.algorithm, each.protocol, found.channels, latency + 0 * size_bytes, rate)


def _grouped(machine: Machine, collective: str, size_bytes: Floats, library: Library, environment: Environment) -> Cost:
    """The cost of concurrent sends and receives of all pairs."""
    number, s, kind, fabric = library.number, shape(machine), class_of(machine, library), fabric_of(machine, library)
    links = (collective == "send_recv" and machine.peer_uBps) or machine.gpu_uBps
    gpu = (links / 1e15 or inf) * number(f"{kind}.p2p_share")
    peers = 1 if collective == "send_recv" else s.ranks - 1
    start = number("correction.p2p_start") + number("correction.p2p_peer") * peers
    piece = size_bytes / (1 if collective == "send_recv" else s.ranks)
    sent = 1.0 if collective == "send_recv" else (s.ranks - 1) / s.ranks  # share of the size sent by one GPU
    channels, short = _sending(machine, piece, peers, library, environment)
    if s.domains > 1:
        each = np.full(len(piece), number("correction.p2p_net_rate"))
    else:
        one = number(f"{kind}.p2p_channel_rate", inf)
        each = np.where(short & (one < inf), number("correction.p2p_ll_rate"), one)
    # A GPU then reaches its NIC over the links to its neighbours, and cannot reach another GPU's NIC.
    beside = machine.inside in {"pcie", "host"}
    near = (s.per_domain - 1) / s.ranks if collective == "all_to_all" and not beside else sent
    seconds_per_GB = np.maximum(near / gpu, sent / (channels * each))
    latency = start + np.where(short, 0.0, number("correction.p2p_simple_start"))
    if s.domains > 1:
        remote = 1 if collective == "send_recv" else s.ranks - s.per_domain
        latency = np.maximum(latency + number(f"{fabric}.latency") + number("correction.p2p_net"), latency)
        latency = latency + number(f"{fabric}.p2p_peer", 0.0) * remote
        nic = machine.nic_uBps / 1e15 * number(f"{fabric}.p2p_share")
        own = nic / machine.nics
        if collective == "send_recv":  # to the next rank: one rank of a domain sends over the network
            net = 1 / own
        elif collective == "all_to_all":
            net = remote / s.ranks * s.per_domain / nic
        else:  # NCCL receives on a GPU's own NIC, and sends, over NVLink, on the NIC of the receiver's place in its node
            net = remote / s.ranks / (own if beside or collective == "gather" else nic)
        seconds_per_GB = np.maximum(seconds_per_GB, net)
    return Cost("grouped", "Simple", searched(machine, library).channels, latency, 1 / seconds_per_GB)


def _sending(
    machine: Machine, piece: Floats, peers: int, library: Library, environment: Environment
) -> tuple[Floats, NDArray[np.bool_]]:
    """Number of channels on which a GPU sends pieces to its peers, and a mask of the sizes that use LL.

    As in NCCL's ``ncclTopoComputeP2pChannels`` and ``addP2pToPlan``, a message has few channels, so that messages to different ranks
    have separate channels; the number doubles while a channel's part of a message is too long.
    """
    s = shape(machine)
    found = 2 * searched(machine, library).channels
    found = max(min(found, environment.max_channels or found), environment.min_channels)
    total = 1 << (found - 1).bit_length()
    links = machine.peer_uBps / 1e15 / library.number(f"generation.{machine.generation}.link_rate", inf)
    most = 2 * max(1, int(links)) if s.per_domain > 1 else total
    if s.domains > 1:
        most = min(most, 1 if 2 * s.ranks > 4 * total else 2)
    most = min(1 << (most - 1).bit_length(), total)
    few = max(1, min(most, 1 << max(0, (total // s.ranks).bit_length() - 1)))
    long = library.number(f"correction.{'p2p_net_slot' if s.domains > 1 or not links else 'p2p_slot'}_bytes")
    short = piece <= most * library.number("correction.p2p_ll_bytes") if s.domains == 1 else piece < 0
    slot = np.where(short, library.number("correction.p2p_ll_slot_bytes"), long)
    least, longest = (slot / 2, slot) if s.domains > 1 else (slot / 8, slot * 32)
    channels = np.minimum(few, np.ceil(piece / least))
    while (more := (np.ceil(piece / channels) > longest) & (channels <= most // 2)).any():
        channels = np.where(more, 2 * channels, channels)
    return np.minimum(total, peers * channels), short
