"""NCCL's cost formula with corrections from measurements.

Each correction has a cause: achievable link rates, the latency of a fabric, the time that a
protocol's pipeline needs to fill, LL messages that take longer as they grow, and reductions in
switches with a separate start. The numbers are in the library file, per class of GPU and per
fabric.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import inf, log2
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Floats
from simcoll.core.vocabulary import NcclAlgorithm, NcclProtocol
from simcoll.libraries.collnet import collnet_costs
from simcoll.libraries.formula import (
    ONE_WAY,
    PROTOCOLS,
    Buses,
    Cost,
    Terms,
    bus_ratio,
    ll_limit,
    search_channels,
    stated_terms,
)
from simcoll.libraries.nccl.communicator import call_channels
from simcoll.libraries.one_way import one_way_costs
from simcoll.libraries.question import Question
from simcoll.libraries.rccl_choice import msccl_costs

if TYPE_CHECKING:
    from simcoll.libraries.library import Library

__all__ = ["costs", "measured_buses", "send_choices"]

BYTES = ("int8", "uint8")
"""Element types whose reduction takes longer than copying."""
BLOCK_BYTES = 16
"""Least bytes of a block of a ring."""
MOST_RISEN_BYTES = 2**34
"""Greatest size at which published tables show how the rate of rings rises."""
VERBS = ("ib", "roce")
"""Fabrics on which NCCL needs no plugin."""
NVLS_CHANNELS = 16
"""Number of channels that NCCL uses for reduction in switches on Hopper."""


def measured_buses(question: Question) -> Buses:
    """Channels as NCCL's search finds them, and the measured rates of links."""
    machine, constants, s = question.machine, question.constants, question.shape
    stated, max_channels = search_channels(machine, constants), question.environment.max_channels
    gpu_class = question.gpu_class
    gpu = machine.gpu_uBps / 1e15 or inf
    ring = gpu * constants.number(f"{gpu_class}.ring_share")
    nvls = gpu * constants.number(f"{gpu_class}.nvls_share", 0.0)
    graphs = question.communicator.graphs if question.communicator else None
    if machine.inside == "host" and graphs and graphs.ring.carries_inside_GBps:
        ring = graphs.ring.carries_inside_GBps * constants.number(f"{gpu_class}.carried_share")
    ring = min(ring, _cpu_rate(question))
    kernels = max(ring, stated.kernel_GBps)
    if max_channels:  # NCCL's own limit of one channel under Simple
        channel_rates = constants.numbers(f"generation.{machine.generation}.tree_rate")
        kernels = min(kernels, max_channels * channel_rates[s.column])
        ring = min(ring, kernels)
    if question.environment.max_ctas:  # the other limit does not hold for reduction in switches
        nvls *= min(1.0, question.environment.max_ctas / NVLS_CHANNELS)
    if s.domains == 1:
        return Buses(stated.channels, ring, ring, nvls, 0.0, kernels)
    fabric = question.fabric
    communicator = question.communicator
    channels = call_channels(communicator) if communicator else 2 * stated.channels
    net = _nic_rate(question, constants.number(f"{fabric}.share"), channels)
    tree = 2 * net if s.domains == 2 else net * constants.number(f"{fabric}.tree_share", 1.0)
    return Buses(stated.channels, min(ring, net), min(ring, tree), nvls, net, kernels)


def _nic_rate(question: Question, share: float, channels: float = inf) -> float:
    """The total rate of the NICs of a domain; of sockets, at most what the threads of the host
    copy, and what the network gives the sockets that the channels open; ``inf``: calls made of
    sends, which open some to every peer.
    """
    machine, constants, fabric = question.machine, question.constants, question.fabric
    rate = machine.nic_uBps / 1e15 * share
    if machine.fabric != "socket":
        return rate
    transports = question.environment.transports
    if transports.flow_Gbps:
        rate = min(rate, channels * transports.sockets * transports.flow_Gbps / 8)
    threads = max(1, transports.socket_threads)
    by_threads = threads * constants.number(f"{fabric}.thread_rate")
    by_host = constants.number(f"{fabric}.host_rate")
    return min(rate, machine.nics * min(by_threads, by_host))


def _cpu_rate(question: Question) -> float:
    """The rate at which a CPU passes data from one PCIe port to another; no limit for GPUs below
    one switch.
    """
    machine, constants = question.machine, question.constants
    if not machine.through_cpu:
        return inf
    vendor = machine.cpu if machine.cpu in constants.tables("cpu") else "other"
    return constants.number(f"cpu.{vendor}.p2p_rate")


def costs(question: Question, size_bytes: Floats) -> list[Cost]:
    """The corrected estimate of every algorithm and protocol, for every size.

    Raises
    ------
    ConfigError
        When the library has no numbers for the GPUs or the fabric of the machine.
    """
    calibration = question.calibration
    calibrated = _costs_at_one_rate(question, size_bytes)
    if calibration is None or not (calibration.rate_scatter or calibration.rate_algorithm):
        return calibrated
    shares = calibration.rate_shares(size_bytes)
    plain = _costs_at_one_rate(_at_full_rate(question), size_bytes)
    return [
        _blend_costs(cost, full, shares)
        if calibration.rate_algorithm in {"", cost.algorithm}
        else cost
        for cost, full in zip(plain, calibrated, strict=True)
    ]


@lru_cache(maxsize=256)
def _at_full_rate(question: Question) -> Question:
    """A question without the rate of its calibration; the same one again for an equal question."""
    if question.calibration is None:
        return question
    return replace(question, calibration=replace(question.calibration, rate=Fraction(1)))


def _blend_costs(plain: Cost, full: Cost, shares: Floats) -> Cost:
    """A cost without and with the rate of a calibration, of which a share holds by size."""

    def blend(without: Floats | float, with_rate: Floats | float) -> Floats:
        return without + shares * (with_rate - without)

    return replace(
        plain,
        latency_us=blend(plain.latency_us, full.latency_us),
        rate_GBps=plain.rate_GBps * (full.rate_GBps / plain.rate_GBps) ** shares,
        hop_us=blend(plain.hop_us, full.hop_us),
        net_us=blend(plain.net_us, full.net_us),
    )


def _costs_at_one_rate(question: Question, size_bytes: Floats) -> list[Cost]:
    """The same with the whole rate of a calibration at every size."""
    if question.is_p2p:
        return [_with_start(_grouped_cost(question, size_bytes), question)]
    buses, offered_terms = _offered_terms(question)
    corrected = []
    for terms in offered_terms:
        if terms.algorithm.startswith("nvls"):
            cost = _switch_cost(terms, question, size_bytes, buses)
        else:
            cost = _link_cost(terms, question, size_bytes, buses)
        corrected.append(_with_start(cost, question))
    further_costs = [
        *one_way_costs(question, size_bytes, buses),
        *msccl_costs(question, size_bytes),
    ]
    if question.environment.collnet:
        further_costs += collnet_costs(question, size_bytes, *_domain_rates(question, buses))
    return [*corrected, *(_with_start(cost, question) for cost in further_costs)]


@lru_cache(maxsize=256)
def _offered_terms(question: Question) -> tuple[Buses, tuple[Terms, ...]]:
    """The channels of a question, and the terms of what its machine offers, which no size
    changes.
    """
    buses = measured_buses(question)
    all_terms = stated_terms(question.machine, question.collective, question.constants, buses)
    full = _with_full_nics(all_terms, question, buses)
    return buses, tuple(terms for terms in full if _offers(question, terms))


def _domain_rates(question: Question, buses: Buses) -> tuple[float, float]:
    """Rates of rings and of reduction in switches within a domain of several."""
    constants, ranks = question.constants, question.shape.per_domain
    ring = question.machine.gpu_uBps / 1e15 or inf
    ring *= constants.number(f"{question.gpu_class}.ring_share")
    return ring, float(_switched_rate(np.array(buses.nvls_GBps), ranks))


def _switched_rate(bus_GBps: Floats, ranks: int) -> Floats:
    """Bytes of an all_reduce per time in the switches of a domain."""
    if ranks >= 8:
        return bus_GBps * ranks / (2 * (ranks - 1))
    return bus_GBps * 8 / 14 * 1.125 / (1 + 1 / ranks)


def _with_full_nics(all_terms: list[Terms], question: Question, buses: Buses) -> list[Terms]:
    """Trees over two nodes at the rate of the NICs, where NCCL expects more of them than of rings.

    Every NIC then sends the data once, half up one tree and half down the other. NCCL's factor for
    their pattern and its rate of a channel, of which twice as many run, decide its choice only; on
    V100 they hold.
    """
    machine, collective, constants = question.machine, question.collective, question.constants
    if machine.domains != 2 or machine.generation == "volta" or collective != "all_reduce":
        return all_terms
    tree: tuple[NcclAlgorithm, NcclProtocol] = ("tree", "Simple")
    ring: tuple[NcclAlgorithm, NcclProtocol] = ("ring", "Simple")
    nccl_rates = {
        (terms.algorithm, terms.protocol): terms.rate_GBps
        for terms in stated_terms(
            machine, collective, constants, search_channels(machine, constants)
        )
    }
    if nccl_rates[tree] <= nccl_rates[ring]:
        return all_terms
    rate = buses.tree_GBps / 2 * constants.numbers("share.tree")[0]
    return [
        replace(terms, rate_GBps=rate) if (terms.algorithm, terms.protocol) == tree else terms
        for terms in all_terms
    ]


def _with_start(cost: Cost, question: Question) -> Cost:
    """A cost with the start-up time of typical machines over nodes beyond NCCL's constants, which
    describe an idle one.
    """
    start = question.constants.number(f"{question.fabric}.launch", 0.0)
    return replace(cost, latency_us=cost.latency_us + start)


def _offers(question: Question, terms: Terms) -> bool:
    """Whether the machine offers an algorithm and protocol; the environment's choice takes
    precedence over the fabric's defaults.
    """
    fabric, collective, environment = question.fabric, question.collective, question.environment
    on_pcie = question.machine.inside in {"pcie", "host"}
    if terms.protocol == "LL128" and on_pcie and not environment.names_protocols(collective):
        return False
    protocols = question.constants.texts(f"{fabric}.protocols")
    algorithms = question.constants.texts(f"{fabric}.algorithms")
    if (
        protocols
        and terms.protocol not in protocols
        and not environment.names_protocols(collective)
    ):
        return False
    return (
        not algorithms or terms.algorithm in algorithms or environment.names_algorithms(collective)
    )


def _ramp(size_bytes: Floats, constants: Library) -> Floats:
    """The growth of LL's latency, from 0 to 1, by powers of two of the size."""
    table = np.array(constants.numbers("correction.ll_growth_factor"))
    row = np.floor(np.log2(np.maximum(size_bytes, 1.0))).astype(np.int64)
    return table[np.minimum(row, len(table) - 1)]


def _over_fabric(
    net_us: Floats | float, protocol: NcclProtocol, factor: float, question: Question
) -> Floats:
    """The latency of a message over the network; a calibration may lower it to 0."""
    latency = question.constants.number(f"{question.fabric}.latency")
    latency *= 2 if protocol == "Simple" else 1
    return np.maximum(net_us + latency, 0.0) * factor


def _link_cost(terms: Terms, question: Question, size_bytes: Floats, buses: Buses) -> Cost:
    """The cost of a ring or a tree over links."""
    constants, number, s = question.constants, question.constants.number, question.shape
    gpu_class, fabric = question.gpu_class, question.fabric
    protocol = PROTOCOLS.index(terms.protocol)
    ones = np.ones(len(size_bytes))
    hop, net, rate = terms.hop_us * ones, terms.net_us * ones, terms.rate_GBps * ones
    if s.domains > 1:
        kind = "tree" if terms.algorithm == "tree" else "net"
        factor = constants.numbers(f"correction.{kind}_hop_factor")[protocol]
        net = _over_fabric(net, terms.protocol, factor, question)
    if terms.protocol == "LL":
        hop = hop * number(f"{gpu_class}.ll_hop_factor", 1.0)
        if terms.algorithm == "ring" and s.domains == 1:
            hop = hop * _full_share(question, size_bytes)
        # A ring fills a channel with 4 KiB for each rank before it opens the next.
        per_eight = 8 / s.ranks if s.domains == 1 and terms.algorithm == "ring" else 1.0
        growth = _ramp(size_bytes * per_eight, constants)
        growth *= number(f"{gpu_class}.ll_growth", number("correction.ll_growth"))
        if s.domains > 1:
            net = net + number(f"{fabric}.ll_growth", 0.0) * _ramp(size_bytes, constants)
            rate = np.minimum(rate, _net_ll_rate(terms, question))
        else:
            rate = rate * number(f"{gpu_class}.ll_factor", 1.0)
            # A channel's first bytes take this long, and all channels the size over their rate: the
            # longer counts.
            growth = np.maximum(growth - size_bytes / (1000 * rate * terms.hops), 0.0)
        hop = hop + growth
    elif terms.protocol == "LL128":
        rate = rate * number(f"{gpu_class}.ll128_factor", 1.0)
        hop = hop * number(f"{gpu_class}.ll128_hop_factor", 1.0)
        if s.domains > 1 and terms.algorithm == "ring":
            rate = rate * number(f"{gpu_class}.net_ll128_share", 1.0)
    if s.domains == 1:
        rate = rate * _own_step(question, terms.hops)
    if terms.algorithm == "tree":
        power = constants.numbers("correction.tree_power_factor")[protocol]
        rate = rate * _tree_share(size_bytes, terms.protocol, constants) ** power
    base = terms.base_us * constants.numbers("correction.base_factor")[protocol]
    if s.domains == 1:  # over nodes, the start of a fabric has it
        base *= number(f"{gpu_class}.{terms.protocol.lower()}_base_factor", 1.0)
    hop = np.maximum(
        hop, constants.numbers("correction.net_post")[protocol] if s.domains > 1 else 0.0
    )
    latency = base + terms.hops * hop + terms.nets * net
    if terms.protocol == "Simple":
        latency = _with_fill(latency, terms, question, size_bytes)
        rate = rate * _buffered_share(question, buses, np.maximum(hop, net))
        if terms.algorithm == "ring" and s.domains == 1:
            rate = rate * _risen_share(question, size_bytes)
            hops_us = terms.hops * hop * number(f"{gpu_class}.simple_hop_factor", 1.0)
            hidden_us = _hidden_hops(hops_us, size_bytes / (1000 * rate), question)
            latency = latency - hidden_us
            hop = hop * (1 - hidden_us / hops_us)
    elif s.domains > 1:
        steps = constants.numbers(f"{fabric}.steps")
        if steps:
            powers = np.log2(np.maximum(size_bytes, 1.0))
            latency = (
                latency + np.interp(powers, 11 + np.arange(len(steps)), steps) * terms.nets / 2
            )
    return Cost(
        terms.algorithm,
        terms.protocol,
        buses.channels,
        latency,
        rate,
        terms.hops,
        hop,
        terms.nets,
        net,
    )


def _net_ll_rate(terms: Terms, question: Question) -> float:
    """The highest rate of LL over nodes: that of a fabric, and the share of NCCL's limit that rings
    reach where tables measure it; trees reach all of it.

    The limit is that of hosts, whose memory all messages pass, and not of links, of which LL uses
    half. Hopper and Blackwell, whose hosts have PCIe 5, reach it over InfiniBand and RoCE; A100 and
    plugins reach less than half of it. No table measures a broadcast or reduce over nodes. NCCL's
    own limit decides there when a ring leaves LL, and half of it would make the size before take
    twice the time of the next.
    """
    machine, collective, constants = question.machine, question.collective, question.constants
    limit = constants.number(f"{question.fabric}.ll_rate", inf)
    if terms.algorithm == "ring" and collective not in {"broadcast", "reduce"}:
        share = constants.number("correction.net_ll_share", 1.0)
        if machine.fabric in VERBS:
            share = constants.number(f"{question.gpu_class}.net_ll_share", share)
        limit = min(limit, share * ll_limit(machine, constants))
    return limit * bus_ratio(terms.algorithm, collective, question.nranks, constants)


def _full_share(question: Question, size_bytes: Floats) -> Floats:
    """Share of a ring's latency that is left where a few bytes leave most blocks empty."""
    saved = question.constants.number("correction.empty_share", 0.0)
    if not saved or question.collective != "all_reduce":
        return np.ones(len(size_bytes))
    ranks = question.nranks
    blocks = np.minimum(np.ceil(size_bytes / BLOCK_BYTES), ranks)
    return 1 - saved * (ranks - blocks) / (ranks - 1)


def _buffered_share(question: Question, buses: Buses, message_us: Floats) -> Floats:
    """Share of the rate that a small buffer leaves: a channel has at most a buffer of data on its
    way, and the sender learns after a message's way back that it is free.
    """
    environment, communicator = question.environment, question.communicator
    if not environment.buffer_bytes:
        return np.ones(len(message_us))
    channels = call_channels(communicator) if communicator else 2 * buses.channels
    limit = channels * environment.buffer_bytes / (2000 * message_us)
    return np.minimum(1.0, limit / buses.ring_GBps)


def _risen_share(question: Question, size_bytes: Floats) -> Floats:
    """Share of the rate of 1 GiB that rings through NVSwitches reach under Simple at a size.

    It grows alike on A100, Hopper and Blackwell, up to the greatest sizes that were measured.
    """
    machine = question.machine
    if machine.inside != "nvlink" or machine.peer_uBps < machine.gpu_uBps:
        return np.ones(len(size_bytes))
    rise = question.constants.number("correction.ring_rise", 0.0)
    return (np.minimum(size_bytes, MOST_RISEN_BYTES) / 2**30) ** rise


def _hidden_hops(hops_us: Floats, transfer_us: Floats, question: Question) -> Floats | float:
    """The part of the latency of a ring's hops that its transfer hides."""
    power = question.constants.number(f"{question.gpu_class}.ring_overlap", 1.0)
    if power == 1:
        return 0.0
    return hops_us + transfer_us - (hops_us**power + transfer_us**power) ** (1 / power)


def _tree_share(size_bytes: Floats, protocol: str, constants: Library) -> Floats:
    """NCCL's table of the shortfall of trees, without its steps: by these NCCL judges, and times
    would fall at each power of two, but trees have none.
    """
    table = constants.numbers(f"tree_correction.{protocol}")
    powers = np.log2(np.maximum(size_bytes, 1.0) / 64)
    return np.interp(powers, np.arange(-1, len(table) + 1), [1.0, *table, 1.0])


def _own_step(question: Question, steps: int) -> float:
    """Share of a ring's rate that is left by the step in which a rank only copies or reduces its
    own chunk, and sends nothing.
    """
    if question.collective not in {"all_reduce", *ONE_WAY}:
        return 1.0
    number, gpu_class = question.constants.number, question.gpu_class
    own_step = number(f"{gpu_class}.own_step", number("correction.own_step"))
    if question.environment.dtype in BYTES and question.collective != "all_gather":
        own_step += number(f"{gpu_class}.own_step_bytes", number("correction.own_step_bytes"))
    return steps / (steps + own_step)


def _with_fill(latency: Floats, terms: Terms, question: Question, size_bytes: Floats) -> Floats:
    """The latency of Simple plus the time that its pipeline needs to fill."""
    number, machine, s = question.constants.number, question.machine, question.shape
    if s.domains == 1:
        one_way = number("correction.one_way_share") if question.collective != "all_reduce" else 1.0
        latency = latency + terms.hops * terms.hop_us * (
            number(f"{question.gpu_class}.simple_hop_factor", 1.0) - 1
        )
        return latency + number(f"{question.gpu_class}.simple_start", 0.0) * one_way
    if terms.algorithm == "ring" and question.collective == "all_reduce":
        crowded = size_bytes // (terms.channels * s.ranks) >= 64
        latency = np.where(
            crowded, latency * number(f"generation.{machine.generation}.plateau"), latency
        )
    levels = log2(s.domains) if terms.algorithm == "tree" else 1.0
    return (
        latency
        + number("correction.net_start")
        + number(f"{question.fabric}.simple_start", 0.0) * levels
    )


def _switch_cost(terms: Terms, question: Question, size_bytes: Floats, buses: Buses) -> Cost:
    """The cost of a reduction in the switches of a domain and, over domains, a tree of them."""
    constants, number, gpu_class, s = (
        question.constants,
        question.constants.number,
        question.gpu_class,
        question.shape,
    )
    share = number(f"{gpu_class}.nvls_share")
    growth = max(1.0, number(f"{gpu_class}.nvls_large_share", share) / share)
    # The rate grows within one doubling, so that the time never falls.
    octaves = np.log2(np.maximum(size_bytes, 1.0) / number("correction.nvls_large_bytes"))
    bus = buses.nvls_GBps * np.interp(octaves, [-0.5, 0.5], [1.0, growth])
    domain_rate = _switched_rate(bus, s.per_domain)
    if s.domains == 1:
        filled = 1 - np.exp(-size_bytes / number("correction.nvls_fill_bytes"))
        latency = number(f"{gpu_class}.nvls_start") + number(f"{gpu_class}.nvls_fill") * filled
        return Cost(terms.algorithm, terms.protocol, buses.channels, latency, domain_rate)
    net = buses.net_GBps * (1.0 if s.domains == 2 else 0.5)
    rate = np.minimum(domain_rate * number("correction.nvls_tree_share"), net)
    hop_factor = constants.numbers("correction.nvls_tree_hop_factor")[0]
    hop = _over_fabric(terms.net_us, terms.protocol, hop_factor, question)
    filled = 1 - np.exp(-size_bytes / number("correction.nvls_tree_fill_bytes"))
    start = number("correction.nvls_tree_start") + number("correction.nvls_tree_fill") * filled
    latency = start + terms.nets * hop
    return Cost(terms.algorithm, terms.protocol, buses.channels, latency, rate)


def _grouped_cost(question: Question, size_bytes: Floats) -> Cost:
    """The cost of concurrent sends and receives of all pairs."""
    machine, collective, number, s = (
        question.machine,
        question.collective,
        question.constants.number,
        question.shape,
    )
    gpu_class, fabric = question.gpu_class, question.fabric
    shift = collective == "send_recv"
    gpu = (((shift and machine.peer_uBps) or machine.gpu_uBps) / 1e15 or inf) * number(
        f"{gpu_class}.p2p_share"
    )
    gpu = min(gpu, _cpu_rate(question))
    peers = 1 if shift else s.ranks - 1
    start = number(f"{gpu_class}.p2p_start", number("correction.p2p_start"))
    start += number(f"{gpu_class}.p2p_peer", number("correction.p2p_peer")) * peers
    piece = size_bytes / (1 if shift else s.ranks)
    sent = 1.0 if shift else (s.ranks - 1) / s.ranks  # share of the size sent by one GPU
    channels, uses_ll, _ = _send_channels(question, piece, peers)
    if s.domains > 1:
        channel_rate = np.full(len(piece), number("correction.p2p_net_rate"))
    else:
        simple_rate = number(f"{gpu_class}.p2p_channel_rate", inf)
        channel_rate = np.where(
            uses_ll & (simple_rate < inf), number("correction.p2p_ll_rate"), simple_rate
        )
    # A GPU then reaches its NIC over the links to its neighbours, and cannot reach another GPU's
    # NIC.
    own_nic_only = machine.inside in {"pcie", "host"}
    over_links = (
        (s.per_domain - 1) / s.ranks if collective == "all_to_all" and not own_nic_only else sent
    )
    if not shift:  # a rank also copies its own block
        over_links *= 1 + number("correction.p2p_own_step") / peers
    seconds_per_GB = np.maximum(over_links / gpu, sent / (channels * channel_rate))
    latency = start + np.where(uses_ll, 0.0, number("correction.p2p_simple_start"))
    if not shift and s.domains == 1 and simple_rate < inf:
        # The last slot of each channel leaves the buffer after it has arrived.
        slot = np.minimum(piece * peers / channels, number("correction.p2p_slot_bytes"))
        fill = number("correction.p2p_fill") * slot / (1000 * simple_rate)
        latency = latency + np.where(uses_ll, 0.0, fill)
    if s.domains > 1:
        remote = 1 if shift else s.ranks - s.per_domain
        latency = np.maximum(
            latency + number(f"{fabric}.latency") + number("correction.p2p_net"), latency
        )
        latency = latency + number(f"{fabric}.p2p_peer", 0.0) * remote
        all_nics = _nic_rate(question, number(f"{fabric}.p2p_share"))
        one_nic = all_nics / machine.nics
        if shift:  # to the next rank: one rank of a domain sends over the network
            net = 1 / one_nic
        elif collective == "all_to_all":
            net = remote / s.ranks * s.per_domain / all_nics
        # NCCL receives on a GPU's own NIC, and sends, over NVLink, on the NIC of the receiver's
        # place in its node.
        else:
            net = (
                remote / s.ranks / (one_nic if own_nic_only or collective == "gather" else all_nics)
            )
        seconds_per_GB = np.maximum(seconds_per_GB, net)
    stated = search_channels(machine, question.constants)
    return Cost("grouped", "Simple", stated.channels, latency, 1 / seconds_per_GB)


def send_choices(question: Question, size_bytes: Floats) -> NDArray[np.int64]:
    """A number for NCCL's choice for the sends of a collective at every size: LL or not, and how
    often it has doubled the channels to a peer because the part of one was too long.

    It changes these at sizes of a piece, whatever that costs, so that times may fall there.
    """
    shift = question.collective == "send_recv"
    pieces = size_bytes / (1 if shift else question.nranks)
    peers = 1 if shift else question.nranks - 1
    _, uses_ll, doublings = _send_channels(question, pieces, peers)
    return 2 * doublings + uses_ll


def _send_channels(
    question: Question, piece: Floats, peers: int
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.int64]]:
    """Number of channels on which a GPU sends pieces to its peers, a mask of the sizes that use LL,
    and how often the number of channels to a peer is doubled.

    As in NCCL's ``ncclTopoComputeP2pChannels`` and ``addP2pToPlan``, a message has few channels, so
    that messages to different ranks have separate channels; the number doubles while a channel's
    part of a message is too long.
    """
    machine, constants, environment, s = (
        question.machine,
        question.constants,
        question.environment,
        question.shape,
    )
    limit = 2 * search_channels(machine, constants).channels
    limit = max(min(limit, environment.max_channels or limit), environment.min_channels)
    total = 1 << (limit - 1).bit_length()
    links = (
        machine.peer_uBps
        / 1e15
        / constants.number(f"generation.{machine.generation}.link_rate", inf)
    )
    per_peer = 2 * max(1, int(links)) if s.per_domain > 1 else total
    if s.domains > 1:
        per_peer = min(per_peer, 1 if 2 * s.ranks > 4 * total else 2)
    per_peer = min(1 << (per_peer - 1).bit_length(), total)
    few = max(1, min(per_peer, 1 << max(0, (total // s.ranks).bit_length() - 1)))
    slot_key = "p2p_net_slot" if s.domains > 1 or not links else "p2p_slot"
    ll_channels = per_peer if constants.number("rules.p2p_ll_by_channel") else 1
    ll_bytes = ll_channels * constants.number("correction.p2p_ll_bytes") if s.domains == 1 else -1.0
    uses_ll = piece <= ll_bytes
    simple_slot = constants.number(f"correction.{slot_key}_bytes")
    slot = np.where(uses_ll, constants.number("correction.p2p_ll_slot_bytes"), simple_slot)
    shortest, longest = (slot / 2, slot) if s.domains > 1 else (slot / 8, slot * 32)
    # A part is never below the shortest, so that the last of several may be short.
    channels = np.clip(piece / shortest, 1, few)
    doublings = np.zeros(len(piece), dtype=np.int64)
    while (too_long := (np.ceil(piece / channels) > longest) & (channels <= per_peer // 2)).any():
        channels = np.where(too_long, 2 * channels, channels)
        doublings += too_long
    return np.minimum(total, peers * channels), uses_ll, doublings
