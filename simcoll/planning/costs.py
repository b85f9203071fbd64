"""What a design costs and draws: rent or capital, power of nodes and network, people, spares.

Prices are those of the plan file; nothing here has a price of its own. Watts are those of the plan
file, else of the GPU's file, else assumed on the high side.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from simcoll.core.facts import FactStore
from simcoll.errors import ConfigError
from simcoll.topology import LINK_KINDS, Topology

if TYPE_CHECKING:
    from simcoll.training.design import Design
    from simcoll.training.gpu import Gpu

__all__ = [
    "ClusterCost",
    "ClusterPower",
    "CostPart",
    "Hardware",
    "changed_keys",
    "gpus_per_node",
    "hardware",
    "has_prices",
    "hourly_cost",
    "node_watts",
    "power_kw",
    "price_rows",
    "watts_of",
]

HOURS_OF_YEAR = 8766
"""365.25 days."""
NODE_SHARE = 2.04
"""Watts of a node over those of its GPUs where the GPU's file has none: the highest of the shipped
ones, DGX A100's 6.5 kW for eight GPUs of 400 W."""
SWITCH_WATTS = 1720.0
SWITCH_SOURCE = "NVIDIA QM9700 (64 ports of 400 Gb/s), at most, with active cables; unverified"
SWITCH_PORTS = 64
_NO_PRICES = {"depreciation_years", "sources"}
_WATTS = re.compile(r"(\d+(?:\.\d+)?)\s*([kM]?)W")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6}


class ClusterCost(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``[cost]``: dollars; 0 where something is not paid for apart.

    Attributes
    ----------
    gpu_hour
        Rent of a GPU for an hour, with all that it includes.
    gpu, node, nic, switch, cable, storage
        Capital: of a GPU, of a node without what is listed apart (a node is all GPUs that NVLink or
        its like joins: a rack of NVL72), of a NIC, of a switch, of a cable with its transceivers,
        and of all storage.
    depreciation_years
        Time over which capital is written off.
    people
        Of a year.
    sources
        Where a price comes from, by key; ``"yours"`` without an entry.
    """

    gpu_hour: float = 0.0
    gpu: float = 0.0
    node: float = 0.0
    nic: float = 0.0
    switch: float = 0.0
    cable: float = 0.0
    storage: float = 0.0
    depreciation_years: float = 4.0
    people: float = 0.0
    sources: dict[str, str] = {}


class ClusterPower(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """``[power]``: watts of a node and of a switch, the overhead of the building, and energy.

    Attributes
    ----------
    node, switch
        Most watts, such as ``"10.2 kW"``; default: from the GPU's file, and of a QM9700.
    switch_ports
        Ports of a switch at the rate of a NIC.
    pue
        Power of the building over that of nodes and network.
    usd_per_kwh
        Price of energy; 0: not paid for apart.
    sources
        As those of ``[cost]``.
    """

    node: str = ""
    switch: str = ""
    switch_ports: int = SWITCH_PORTS
    pue: float = 1.0
    usd_per_kwh: float = 0.0
    sources: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a design needs of a cluster, counted on its topology.

    Attributes
    ----------
    gpus, nodes, nics
        With the spare nodes.
    switches
        Ports of each tier over those of a switch, rounded up.
    cables
        From NICs to switches, and between switches, each at the rate of a NIC.
    gpus_per_node
        GPUs that NVLink or its like joins.
    """

    gpus: int
    nodes: int
    nics: int
    switches: int
    cables: int
    gpus_per_node: int


@dataclass(frozen=True, slots=True)
class CostPart:
    """A part of the cost of an hour, in dollars."""

    part: str
    usd_per_hour: float


def hardware(design: Design, power: ClusterPower, spares: int = 0) -> Hardware:
    """Count what a design uses of its cluster.

    Parameters
    ----------
    spares
        Nodes that wait for failures.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> design = design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 64},
    ...     "topology": {"name": "superpod-h100", "nodes": 64}, "parallel": {"tp": 8},
    ... })
    >>> hardware(design, ClusterPower())
    Hardware(gpus=512, nodes=64, nics=512, switches=24, cables=1024, gpus_per_node=8)
    """
    cluster = _parts_of(design.topology)
    size = cluster.gpus_per_node
    nodes = -(-design.mesh.nranks // size) + spares
    share = nodes * size / cluster.gpus
    switches = sum(ceil(round(count * share, 6) / power.switch_ports) for count in cluster.ports)
    return Hardware(
        gpus=design.mesh.nranks + spares * size,
        nodes=nodes,
        nics=ceil(round(cluster.nics * share, 6)),
        switches=switches,
        cables=ceil(round((cluster.nics + cluster.trunks) * share, 6)),
        gpus_per_node=size,
    )


def gpus_per_node(topology: Topology) -> int:
    """GPUs of the largest domain that fast links join; 1 where all GPUs are equally far.

    >>> from simcoll.topology import load_topology
    >>> rack, torus = load_topology("gb200-nvl72", nodes=36), load_topology("tpu-v4")
    >>> gpus_per_node(rack), gpus_per_node(torus)
    (72, 1)
    """
    if "box" not in topology.groups:
        return 1
    # By all vertices: ranks may be only some of a domain's GPUs.
    domains = Counter(
        name.partition(".")[0]
        for name, kind in zip(topology.node_names, topology.node_kinds, strict=True)
        if kind == "gpu"
    )
    return max(domains.values())


@dataclass(frozen=True, slots=True)
class _ClusterParts:
    """What a whole cluster has, of which a design uses a share.

    Attributes
    ----------
    gpus, gpus_per_node
        GPUs of the cluster, and of a domain.
    ports
        Ports of leaves and of spines.
    nics, trunks
        NICs on switches, and cables between switches; ports and cables have the rate of a NIC.
    """

    gpus: int
    gpus_per_node: int
    ports: tuple[int, int]
    nics: int
    trunks: float


def _count_parts(topology: Topology) -> _ClusterParts:
    gpus, size = topology.node_kinds.count("gpu"), gpus_per_node(topology)
    net = topology.link_kind == LINK_KINDS.index("net")
    is_nic = np.array([kind in {"nic", "gpu"} for kind in topology.node_kinds])
    up = net & is_nic[topology.link_src]
    if not up.any():
        return _ClusterParts(gpus, size, (0, 0), 0, 0.0)
    trunk = net & ~is_nic[topology.link_src] & ~is_nic[topology.link_dst]
    rate = int(np.median(topology.link_capacity_uBps[up]))
    nics = int(up.sum())
    # Each cable between switches is two links, one for each direction.
    trunks = float(topology.link_capacity_uBps[trunk].sum(dtype=np.float64)) / rate / 2
    return _ClusterParts(gpus, size, (nics + round(trunks), round(trunks)), nics, trunks)


_parts_of: FactStore[Topology, _ClusterParts] = FactStore(_count_parts)


def node_watts(gpu: Gpu) -> tuple[float, str]:
    """Watts of a GPU with its share of the node, and where they come from; 0 where no file knows.

    >>> from simcoll.training.gpu import load_gpu
    >>> node_watts(load_gpu("h100"))[0], node_watts(load_gpu("mi300x"))
    (1275.0, (1530.0, 'assumed: 2.04 times the GPU, as in DGX A100, the highest that is published'))
    """
    if "power.with_node" in gpu.values:
        return gpu.values["power.with_node"], gpu.sources["power.with_node"]
    watts = gpu.values.get("power.watts", 0.0) * NODE_SHARE
    if not watts:
        return 0.0, f"unknown for {gpu.name}"
    return watts, (
        f"assumed: {NODE_SHARE} times the GPU, as in DGX A100, the highest that is published"
    )


def power_kw(design: Design, power: ClusterPower, parts: Hardware) -> float:
    """Kilowatts of nodes and network at their most, with the building's overhead.

    Examples
    --------
    Four DGX H100 draw 40.8 kW, and their 32 NICs need a leaf and a spine:

    >>> from simcoll.training.design import design_from
    >>> design = design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 64},
    ...     "topology": {"name": "dgx-h100", "nodes": 4}, "parallel": {"tp": 8},
    ... })
    >>> plain = ClusterPower()
    >>> round(power_kw(design, plain, hardware(design, plain)), 2)
    44.24
    """
    node = watts_of(power.node, "$.power.node")
    nodes = node * parts.nodes
    if not node:
        spare_gpus = parts.gpus - design.mesh.nranks
        nodes = node_watts(design.gpu)[0] * spare_gpus
        nodes += sum(node_watts(gpu)[0] * count for gpu, count in design.gpu_counts)
    switch = watts_of(power.switch, "$.power.switch") or SWITCH_WATTS
    return (nodes + switch * parts.switches) * power.pue / 1000


def watts_of(text: str, path: str) -> float:
    """Parse watts, such as ``"10.2 kW"``; 0 for empty text."""
    if not text:
        return 0.0
    match = _WATTS.fullmatch(text.strip())
    watts = float(match[1]) * _PREFIXES[match[2]] if match else 0.0
    if not 0 < watts < 1e12:
        raise ConfigError(f"{text!r}: expected a power such as '10.2 kW'", path=path)
    return watts


def hourly_cost(
    cost: ClusterCost, power: ClusterPower, parts: Hardware, kilowatts: float
) -> list[CostPart]:
    """The cost of an hour by part, without parts that cost nothing.

    Examples
    --------
    Capital of 8 nodes for 280,000 $ over four years, and 80 kW at 0.10 $ a kWh:

    >>> parts = Hardware(gpus=64, nodes=8, nics=64, switches=2, cables=128, gpus_per_node=8)
    >>> cost, power = ClusterCost(node=280_000), ClusterPower(usd_per_kwh=0.1)
    >>> bill = hourly_cost(cost, power, parts, kilowatts=80)
    >>> [(item.part, round(item.usd_per_hour, 3)) for item in bill]
    [('nodes', 63.883), ('energy', 8.0)]
    """
    hours = cost.depreciation_years * HOURS_OF_YEAR
    amounts = {
        "rent": cost.gpu_hour * parts.gpus,
        "GPUs": cost.gpu * parts.gpus / hours,
        "nodes": cost.node * parts.nodes / hours,
        "NICs": cost.nic * parts.nics / hours,
        "switches": cost.switch * parts.switches / hours,
        "cables": cost.cable * parts.cables / hours,
        "storage": cost.storage / hours,
        "energy": power.usd_per_kwh * kilowatts,
        "people": cost.people / HOURS_OF_YEAR,
    }
    return [CostPart(part, amount) for part, amount in amounts.items() if amount]


def has_prices(terms: Mapping[str, Any]) -> bool:
    """Whether anything has a price."""
    prices = (value for key, value in terms["cost"].items() if key not in _NO_PRICES)
    return any(prices) or terms["power"]["usd_per_kwh"] > 0


def price_rows(terms: Mapping[str, Any], gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    """The prices, watts, limits and failures of a plan, with their sources, for its report."""
    cost, power = ClusterCost(**terms["cost"]), ClusterPower(**terms["power"])
    for table, record in (("cost", cost), ("power", power)):
        for field in msgspec.structs.fields(record):
            value = getattr(record, field.name)
            if field.name != "sources" and value:
                source = "default" if value == field.default else "yours"
                yield f"{table}.{field.name}", _text(value), record.sources.get(field.name, source)
    if not power.node:
        watts, source = node_watts(gpu)
        yield "watts of a GPU with its share of the node", f"{watts:,.0f} W", source
    if not power.switch:
        yield "watts of a switch", f"{SWITCH_WATTS:,.0f} W", SWITCH_SOURCE
    for table in ("limits", "failures"):
        for key, value in (terms[table] or {}).items():
            if value:
                yield f"{table}.{key}", _text(value), "yours"


def changed_keys(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ``[cost]`` or ``[power]`` that differ from their defaults.

    >>> changed_keys("cost", {"gpu_hour": 2.0, "people": 0.0, "sources": {}})
    {'gpu_hour': 2.0}
    """
    record = {"cost": ClusterCost, "power": ClusterPower}[table]()
    return {key: value for key, value in values.items() if value != getattr(record, key)}


def _text(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, (int, float)) else str(value)
