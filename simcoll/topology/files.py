"""Topology files: a family, its parameters with units in the values, and a source for every number.

The decoder is strict: an unknown key, a wrong type or a missing unit is an error that names the
place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from simcoll.core.numbers import check_seed
from simcoll.errors import ConfigError, blamed_on, nearest, shown
from simcoll.files.sourced import FactRows, FactSchema, Kind, text
from simcoll.topology import direct_networks as direct
from simcoll.topology import ecmp, families
from simcoll.topology.cluster import Tier
from simcoll.topology.file_layers import (
    ASTRA_NETWORK,
    IB_LISTING,
    MARKED,
    FileLayer,
    layers_of,
    refuse_other_nodes,
    shipped_topologies,
)
from simcoll.topology.graph import LINK_KINDS, Topology
from simcoll.topology.host_layout import BoxFacts, HostFacts, host_of_box
from simcoll.topology.machine import TRAIT_VALUES
from simcoll.topology.placement import place
from simcoll.topology.readers.link_speeds import SLOTS
from simcoll.topology.values import count, duration_fs, factor, parse_capacity

__all__ = ["load_topology", "one_node", "shipped_topologies", "topology_of_job"]

_DUMP = "NCCL dump"
_GRAPH = "graph"
_MATRIX = "nvidia-smi matrix"
_FABRIC = "InfiniBand listing"
_ASTRA = "network.yml of ASTRA-sim"
_RATES = ("nvlink", "pcie", "nic", "cpu")
_OWN = ("name", "description")  # never taken from a base
_FAMILIES: dict[str, Callable[..., Topology]] = {
    "crossbar": families.crossbar,
    "fat_tree": families.fat_tree,
    "torus": families.torus,
    "boxes": families.boxes,
    "hypercube": direct.hypercube,
    "hybrid_cube_mesh": direct.hybrid_cube_mesh,
    "hyperx": direct.hyperx,
    "dragonfly": direct.dragonfly,
    "clos": ecmp.clos,
}
# A key is a parameter of the family's function, except for these of boxes, which are in tables.
_TABLES = {
    "gpus_per_node": "gpu.count",
    "nodes_per_domain": "gpu.nodes_per_domain",
    "interconnect": "gpu.interconnect",
    "links": "gpu.links",
    "nics": "nic.count",
    "gpus_per_pcie_switch": "pcie.gpus_per_switch",
    "cpus": "cpu.count",
    "boxes_per_leaf": "network.boxes_per_leaf",
    "oversubscription": "network.oversubscription",
    "spine_latency": "network.spine_latency",
    "tiers": "network.tiers",
    **{
        f"{part}_{quantity}": f"{part}.{quantity}"
        for part in ("gpu", "nic", "pcie", "cpu")
        for quantity in ("bandwidth", "latency")
    },
}


def _rate(value: Any, subject: str) -> int:
    return parse_capacity(
        _expect(value, str, subject, "text with a unit such as '50 GB/s'"), subject
    )


def _time(value: Any, subject: str) -> int:
    return (
        0
        if value == 0
        else duration_fs(_expect(value, str, subject, "text with a unit such as '1.5 us'"), subject)
    )


def _share(value: Any, subject: str) -> Fraction:
    share = factor(value, subject)
    if share > 1:
        raise ConfigError(f"{subject}: expected at most 1, got {shown(value)}")
    return share


def _flags(value: Any, subject: str) -> Any:
    flags = value if isinstance(value, list) else [value]
    if not flags or not all(isinstance(flag, bool) for flag in flags):
        raise ConfigError(f"{subject}: expected true or false, got {shown(value)}")
    return value


def _seed(value: Any, _subject: str) -> int:
    return check_seed(value)


def _counts(value: Any, subject: str) -> list[int]:
    return [
        count(number, subject)
        for number in _expect(value, list, subject, "a list of whole numbers such as [4, 4]")
    ]


def _gpu_numbers(value: Any, subject: str) -> list[int]:
    return [
        count(number, subject, minimum=0)
        for number in _expect(value, list, subject, "a list of GPU numbers")
    ]


def _gpu_links(value: Any, subject: str) -> list[tuple[int, int, int]]:
    rows = _expect(
        value, list, subject, "a list such as [[0, 1, 2]]: GPU, GPU, number of parallel links"
    )
    for row in rows:
        if not isinstance(row, list) or [type(number) for number in row] != [int, int, int]:
            raise ConfigError(
                f"{subject}: expected [GPU, GPU, number of parallel links], got {shown(row)}"
            )
    return [tuple(row) for row in rows]


def _expect(value: Any, kind: type, subject: str, expected: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"{subject}: expected {expected}, got {shown(value)}")
    return value


_from_zero = partial(count, minimum=0)
_TIERS = FactRows(
    {
        "name": text,
        "boxes": count,
        "rail_only": _flags,
        "latency": _time,
        "oversubscription": factor,
    },
    required=("name",),
    labels=("a tier", "tables [[network.tiers]]"),
    make=Tier,
)
_KINDS: dict[str, Kind | FactRows] = {
    "dims": _counts,
    "wrap": _flags,
    "seed": _seed,
    "oversubscription": factor,
    "links": _gpu_links,
    "tiers": _TIERS,
    **dict.fromkeys(("nics", "nvlinks"), _from_zero),
    **dict.fromkeys(("link_kind", "interconnect", "ecmp"), text),
}
"""Kinds of parameters; of others, the last word of the name says it, or they are counts."""
_ENDINGS: dict[str, Kind] = {"bandwidth": _rate, "latency": _time}


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a family: the parameter that it sets, the kind of its value, and whether it is
    required.
    """

    parameter: str
    kind: Kind | FactRows
    required: bool = False


def _keys(family: str) -> dict[str, _Key]:
    """The keys of a family by their paths in the file, from the parameters of its function."""
    if family in {_GRAPH, _ASTRA}:
        return {}
    if family in {_DUMP, _MATRIX, _FABRIC}:
        rates = {_MATRIX: _RATES, _FABRIC: ("nvlink", "pcie")}.get(family, ())
        keys = {f"{part}.bandwidth": _Key(f"{part}_bandwidth", _rate) for part in rates}
        keys |= _FACTS if family == _DUMP else {}
        return keys | {"nodes": _Key("nodes", count)}
    keys = {}
    for name, parameter in inspect.signature(_FAMILIES[family]).parameters.items():
        kind = _KINDS.get(name) or _ENDINGS.get(name.rpartition("_")[2], count)
        place = _TABLES.get(name, name) if family == "boxes" else name
        keys[place] = _Key(name, kind, parameter.default is parameter.empty)
    del keys["name"]
    return keys


_FACTS = {
    "gpu.sm": _Key("sm", count),
    "gpu.links": _Key("links", _gpu_links),
    "nvlink.count": _Key("nvlinks", _from_zero),
    "nic.bandwidth": _Key("nic_bandwidth", _rate),
    "nic.latency": _Key("nic_latency", _time),
}
"""Facts that files for NCCL_TOPO_FILE omit."""
_PLACEMENT = {
    "placement.order": _Key("order", text),
    "placement.ranks": _Key("nranks", count),
    "placement.level": _Key("level", text),
    "placement.seed": _Key("seed", _seed),
    "placement.gpus": _Key("gpus", _gpu_numbers),
}


_HOST = {
    "host.sockets": _Key("sockets", count),
    "host.gpus_per_switch": _Key("gpus_per_switch", _from_zero),
    "host.cpu_family": _Key("cpu_family", count),
    "host.cpu_model": _Key("cpu_model", count),
    "host.pcie_transfers": _Key("pcie_transfers", count),
    "host.pcie_lanes": _Key("pcie_lanes", count),
    "host.cpu_link": _Key("cpu_link_uBps", _rate),
    "host.ports_per_nic": _Key("ports_per_nic", count),
    "host.nics_per_device": _Key("nics_per_device", count),
    "host.nic_latency": _Key("nic_latency_fs", _time),
}
"""Facts about the PCIe devices of a node."""


def _box_facts(arguments: Mapping[str, Any]) -> BoxFacts:
    """What the arguments of the family say of one node."""

    def rate(name: str) -> int:
        return 0 if arguments.get(name) is None else parse_capacity(arguments[name], name)

    return BoxFacts(
        gpus=arguments["gpus_per_node"],
        nics=arguments.get("nics", 0),
        interconnect=arguments.get("interconnect", "switch"),
        links=arguments.get("links", ()),
        gpu_uBps=rate("gpu_bandwidth"),
        nic_uBps=rate("nic_bandwidth"),
        pcie_uBps=rate("pcie_bandwidth"),
        gpus_per_switch=arguments.get("gpus_per_pcie_switch"),
        sockets=arguments.get("cpus"),
        cpu_uBps=rate("cpu_bandwidth"),
    )


def load_topology(name: str | Path, *, nodes: int | None = None, **overrides: object) -> Topology:
    """Load a shipped topology by name, a topology file, or an NCCL topology dump.

    Parameters
    ----------
    name
        ``"dgx-h100"``, or the path of a file; further values may follow after colons,
        ``"dgx-h100:nic.bandwidth=100 Gbps"``.
    nodes
        Number of nodes, for the family boxes and for dumps; default: the file's.
    overrides
        Values that override those of the file, with ``__`` for the dot:
        ``nic__bandwidth="200 Gbps"``, ``network__oversubscription=2``, ``traits__fabric="roce"``.

    Raises
    ------
    ConfigError
        States the file, the place in it, and the nearest valid choice.

    Examples
    --------
    >>> topology = load_topology("dgx-h100", nodes=2)
    >>> topology.nranks, topology.path(0, 1)
    (16, ['box0.gpu0 -> box0.nvswitch', 'box0.nvswitch -> box0.gpu1'])
    """
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    if nodes is not None:
        changes["nodes"] = nodes
        refuse_other_nodes(str(name), nodes)
    return _decode(layers_of(str(name)), changes)


def _with_nodes(name: str | Path, nodes: int | None) -> Topology:
    """A topology with another number of nodes than its name may state."""
    return _decode(layers_of(str(name)), {} if nodes is None else {"nodes": nodes})


def one_node(name: str | Path) -> Topology:
    """Load one node of a topology; load a graph or network without known nodes unchanged."""
    return _with_nodes(name, 1 if "nodes" in _keys(_family(layers_of(str(name)))) else None)


def topology_of_job(name: str | Path, nranks: int, *, nodes: int | None = None) -> Topology:
    """Load a topology of nodes for a job, with the job's ranks.

    Parameters
    ----------
    name
        As in :func:`load_topology`.
    nranks
        Number of ranks of the job. They occupy the first GPUs of every node, equally many on each
        if possible.
    nodes
        Number of nodes of the job; default: the fewest that hold the ranks.

    Raises
    ------
    ConfigError
        When the nodes have too few GPUs, or as in :func:`load_topology`.

    Examples
    --------
    >>> topology_of_job("dgx-h100", 4, nodes=2).groups["box"].tolist()
    [0, 0, 1, 1]
    """
    whole_job = count(nranks, "number of ranks")
    if "nodes" not in _keys(_family(layers_of(str(name)))):
        return load_topology(name, nodes=nodes).take(whole_job)
    per_node = _with_nodes(name, 1).nranks
    on = -(-whole_job // per_node) if nodes is None else count(nodes, "nodes")
    topology = _with_nodes(name, on)
    if whole_job > topology.nranks or whole_job % on:
        return topology.take(whole_job)
    return topology.with_ranks(
        [node * per_node + gpu for node in range(on) for gpu in range(whole_job // on)]
    )


def _family(layers: list[FileLayer]) -> str:
    """The family of the base file, which all files that extend it share."""
    base = layers[0]
    if base.dump is not None:
        root = base.dump.lstrip()[:1]
        if root != b"<" and not base.file.endswith(".xml"):
            if ASTRA_NETWORK.search(base.dump[:MARKED]):
                return _ASTRA
            return _FABRIC if IB_LISTING.search(base.dump[:MARKED]) else _MATRIX
        marks = (b"<graphml", b"<platform")
        return _GRAPH if any(mark in base.dump[:4096] for mark in marks) else _DUMP
    family = base.document.get("family")
    if not isinstance(family, str) or family not in _FAMILIES:
        problem = "missing" if family is None else f"unknown family {shown(family)}"
        wrong = f"{problem}; {nearest(str(family), _FAMILIES)}"
        raise ConfigError(wrong, file=base.file, path="$.family")
    return family


def _decode(layers: list[FileLayer], changes: Mapping[str, object]) -> Topology:
    """A topology from a file and its bases; values of later files replace those of earlier ones."""
    family, file = _family(layers), layers[-1].file
    keys = _keys(family)
    valid = keys | _PLACEMENT | (_HOST if family == "boxes" else {})
    kinds: dict[str, Kind | FactRows] = {path: key.kind for path, key in valid.items()}
    kinds |= dict.fromkeys(("name", "description", "family"), text)
    kinds |= {f"efficiency.{link}": _share for link in LINK_KINDS}
    facts = FactSchema(kinds, ignored=("traits", "extends"), bare=True)
    values, sources, traits = _merge(layers, facts, family)
    for path, value in changes.items():
        if path.startswith("traits."):
            traits |= _traits({path.partition(".")[2]: value}, None)
            continue
        if path not in valid:
            family_of_file = f"family {shown(family)} of {file} has no {path!r}"
            raise ConfigError(
                f"{family_of_file}; "
                f"{nearest(path, [*valid, *(f'traits.{name}' for name in TRAIT_VALUES)])}"
            )
        values[path] = facts.value(value, path, None, sources)
        sources[path] = "argument"
    is_of_another_nic = "nic.bandwidth" in changes or any(map(_has_nic_bandwidth, layers[1:]))
    if is_of_another_nic and "pcie.bandwidth" in keys and "pcie.bandwidth" not in values:
        values |= _slot(values["nic.bandwidth"], traits, sources)
    arguments = {keys[path].parameter: value for path, value in values.items() if path in keys}
    for path, key in keys.items():
        if key.required and path not in values:
            raise ConfigError(
                f"missing; family {shown(family)} needs it", file=file, path=f"$.{path}"
            )
    title = str(values.get("name", Path(file).stem))
    with blamed_on(file):
        topology = _build(family, layers[0], title, arguments)
        placement = {
            _PLACEMENT[path].parameter: value
            for path, value in values.items()
            if path in _PLACEMENT
        }
        if placement:
            topology = place(topology, **placement)
    if family == "boxes":
        facts_of_host = {
            key.parameter: values[path] for path, key in _HOST.items() if path in values
        }
        host = host_of_box(_box_facts(arguments), HostFacts(**facts_of_host), traits)
        topology = replace(topology, host=host)
    shares = {
        path.partition(".")[2]: value
        for path, value in values.items()
        if path.startswith("efficiency.")
    }
    return replace(
        topology,
        efficiency={**topology.efficiency, **shares},
        traits={**topology.traits, **traits},
        sources={**topology.sources, **{f"$.{place}": source for place, source in sources.items()}},
        description=str(values.get("description", topology.description)),
    )


def _has_nic_bandwidth(layer: FileLayer) -> bool:
    """Whether a file, or the values after a name, state the bandwidth of a NIC."""
    nic = layer.document.get("nic")
    return isinstance(nic, dict) and "bandwidth" in nic


def _slot(nic: str | int, traits: Mapping[str, str], sources: dict[str, str]) -> dict[str, object]:
    """The PCIe bandwidth of the GPU's generation, if the overriding NIC is faster than that;
    otherwise nothing.
    """
    slot = SLOTS.get(traits.get("generation", ""))
    if slot is None or parse_capacity(nic, "nic.bandwidth") <= parse_capacity(
        slot, "pcie.bandwidth"
    ):
        return {}
    sources["pcie.bandwidth"] = f"16 lanes of the PCIe of {traits['generation']}"
    return {"pcie.bandwidth": slot}


def _build(family: str, base: FileLayer, title: str, arguments: dict[str, Any]) -> Topology:
    """The topology of a family's function, or of a dump."""
    if base.dump is None:
        return _FAMILIES[family](name=title, **arguments)
    if family == _MATRIX:
        from simcoll.topology.readers.smi_matrix import parse_smi_matrix

        return replace(parse_smi_matrix(base.dump, file=base.file, **arguments), name=title)
    if family == _FABRIC:
        from simcoll.topology.readers.ib_fabric import parse_ib_fabric

        return replace(parse_ib_fabric(base.dump, file=base.file, **arguments), name=title)
    if family == _ASTRA:
        from simcoll.topology.readers.astra_network import parse_astra_network

        return replace(parse_astra_network(base.dump, base.file), name=title)
    if family == _GRAPH:
        from simcoll.topology.readers.graph_files import parse_graphml, parse_simgrid

        parse = parse_graphml if b"<graphml" in base.dump[:4096] else parse_simgrid
        return replace(parse(base.dump, base.file), name=title)
    from simcoll.topology.readers.nccl_xml import parse_nccl_xml

    return replace(parse_nccl_xml(base.dump, file=base.file, **arguments), name=title)


def _merge(
    layers: list[FileLayer], facts: FactSchema, family: str
) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Values, sources and traits of all files."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    traits: dict[str, str] = {}
    for layer in layers:
        if layer.document.get("family", family) != family:
            wrong = (
                f"{shown(layer.document['family'])} is not the family of {layers[0].file}; "
                f"expected {shown(family)}, or no family here"
            )
            raise ConfigError(wrong, file=layer.file, path="$.family")
        new, new_sources = facts.read(layer.document, layer.file)
        older = {
            place: source for place, source in sources.items() if place.partition("[")[0] not in new
        }
        sources = older | new_sources
        values = {path: value for path, value in values.items() if path not in _OWN} | new
        traits |= _traits(layer.document.get("traits", {}), layer.file)
    return values, sources, traits


def _traits(table: object, file: str | None) -> dict[str, str]:
    """Facts by name, all text; names are free, and some have a fixed choice of values."""
    if not isinstance(table, dict):
        raise ConfigError(
            f"expected a table [traits], got {shown(table)}", file=file, path="$.traits"
        )
    for key, value in table.items():
        if not isinstance(value, str):
            raise ConfigError(
                f"expected text, got {shown(value)}", file=file, path=f"$.traits.{key}"
            )
        if value not in TRAIT_VALUES.get(key, (value,)):
            wrong = f"unknown {key} {shown(value)}; {nearest(value, TRAIT_VALUES[key])}"
            raise ConfigError(wrong, file=file, path=f"$.traits.{key}")
    return dict(table)
