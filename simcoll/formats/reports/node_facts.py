"""Facts of the nodes of one job, from their topology dumps and logs, and where nodes differ.

NCCL assumes that the nodes of a job are alike. With unequal NICs or variables it may hang without a
word (github.com/NVIDIA/nccl/issues/2428), with an unequal PCIe tree it becomes slow.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from simcoll.errors import ConfigError, listed
from simcoll.files.reader_arguments import Content, content_of
from simcoll.files.xml import XmlLimits, parse_xml
from simcoll.units import counted

__all__ = ["NodeFacts", "consequence", "facts_of_dump", "facts_of_log", "node_differences"]

LIMITS = XmlLimits(depth=64, elements=100_000)
MOST_NODES = 4096
MOST_VALUES = 256
"""Largest number of values of one fact of a node."""
_INFO = re.compile(r"(\S{1,200}):\d{1,10}:\d{1,10} \[-?\d{1,4}\] NCCL (?:INFO|WARN) (.*)")
_VERSION = re.compile(r"NCCL version ([\w.+-]{1,40})")
_VARIABLE = re.compile(r"((?:NCCL|RCCL)_[A-Z0-9_]{1,60}) set (?:by environment )?to (\S{1,200})")
_NETWORK = re.compile(r"Using network (\S{1,60})")
_NICS = re.compile(r"\[\d{1,3}\]([\w.-]{1,60}:\d{1,3}(?:/\w{1,12})?)")
_DRIVER = re.compile(r"cudaDriverVersion (\d{1,8})")
_PLUGIN = re.compile(r"Loaded (net|tuner|collnet) plugin (\S{1,60})", re.IGNORECASE)
_DEVICE = re.compile(r"\bcomm 0x[0-9a-f]{1,16} rank \d{1,6} n[rR]anks \d{1,6}\b.*?busId (\w{1,16})")

_OF_A_NODE = frozenset(
    [
        "NCCL_COMM_ID",
        "NCCL_DEBUG_FILE",
        "NCCL_GRAPH_DUMP_FILE",
        "NCCL_HOSTID",
        "NCCL_TOPO_DUMP_FILE",
    ]
)
"""Variables that may differ between nodes that are alike."""


@dataclass(slots=True)
class NodeFacts:
    """What is known of a node: for each fact its values, in order."""

    name: str
    values: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, fact: str, value: str) -> None:
        """Add a value, once."""
        if len(self.values[fact]) < MOST_VALUES:
            self.values[fact][value] = None


def facts_of_dump(content: Content, name: str) -> list[NodeFacts]:
    """The facts of a topology dump; a dump of several hosts has several nodes.

    Parameters
    ----------
    content, name
        The dump, and the name of its node.

    Raises
    ------
    ConfigError
        For a file that is no dump.

    Examples
    --------
    >>> dump = b'<system><cpu numaid="0"><pci busid="1"><gpu sm="90"/></pci></cpu></system>'
    >>> for fact, values in facts_of_dump(dump, "node-0")[0].values.items():
    ...     print(fact, list(values))
    CPUs ['1 cpu']
    GPUs ['1 of sm90']
    PCIe tree ['cpu[gpu]']
    """
    root = parse_xml(content_of(content, "facts_of_dump"), LIMITS, name)
    if root.tag != "system":
        raise ConfigError(f"expected <system>, found <{str(root.tag)[:40]}>", file=name)
    hosts: dict[str, list[Element]] = defaultdict(list)
    for element in root:
        hosts[element.get("host_hash", "") if len(root) > 1 else ""].append(element)
    several = len(hosts) > 1
    return [
        _facts_of_host(elements, f"{name} host {number}" if several else name)
        for number, elements in enumerate(hosts.values())
    ]


def _facts_of_host(elements: Sequence[Element], name: str) -> NodeFacts:
    facts = NodeFacts(name)
    for text in _counts(
        " ".join(
            filter(None, (cpu.get("vendor") or cpu.get("arch") or "cpu", cpu.get("modelid", "")))
        )
        for cpu in elements
        if cpu.tag == "cpu"
    ):
        facts.add("CPUs", text)
    gpus = [gpu for element in elements for gpu in element.iter("gpu")]
    kinds = Counter(gpu.get("gcn") or f"sm{gpu.get('sm', '?')}" for gpu in gpus)
    for kind, count in sorted(kinds.items()):
        facts.add("GPUs", f"{count} of {kind}")
    bundles = [
        sum(_number(link.get("count", "1")) for link in gpu if link.tag in {"nvlink", "xgmi"})
        for gpu in gpus
    ]
    for text in _counts(f"GPU with {links} NVLinks" for links in bundles if links):
        facts.add("NVLinks", text)
    ports = Counter(map(_port, (net for element in elements for net in element.iter("net"))))
    for text, count in ports.items():
        facts.add("NICs", text if count == 1 else f"{count} {text}")
    for text in _counts(
        f"{_kind(device)} at {device.get('link_speed', '?')} x{device.get('link_width', '?')}"
        for element in elements
        for device in element.iter("pci")
        if device.get("link_speed")
    ):
        facts.add("PCIe links", text)
    facts.add("PCIe tree", " ".join(_tree(element) for element in elements))
    return facts


def _port(port: Element) -> str:
    """A port of a NIC: name, number, rate."""
    direct = "" if port.get("gdr", "1") == "1" else ", no GPUDirect"
    speed = _number(port.get("speed", "0")) / 1000
    return f"{port.get('name', '?')}:{port.get('port', '1')} {speed:g} Gb/s{direct}"


def _counts(texts: Iterable[str]) -> Iterator[str]:
    for text, count in sorted(Counter(texts).items()):
        yield f"{count} {text}"


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isascii() and text.lstrip("-").isdecimal() else 0


def _kind(device: Element) -> str:
    return next((child.tag for child in device if child.tag in {"gpu", "nic"}), "switch")


def _tree(element: Element) -> str:
    """The shape of a PCIe tree: each device by its kind, those below it in brackets."""
    name = element.tag if element.tag in {"cpu", "nic"} else _kind(element)
    if name in {"gpu", "nic"}:
        return name
    below = sorted(_tree(child) for child in element if child.tag in {"pci", "nic"})
    return f"{name}[{' '.join(below)}]" if below else name


def facts_of_log(lines: Iterable[str]) -> list[NodeFacts]:
    """The facts of each host in a log with ``NCCL_DEBUG=INFO``.

    Examples
    --------
    >>> facts = facts_of_log(["n0:7:7 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0."])
    >>> facts[0].name, dict(facts[0].values)
    ('n0', {'NCCL_IB_HCA': {'mlx5_0': None}})
    """
    hosts: dict[str, NodeFacts] = {}
    for line in lines:
        match = _INFO.search(line) if "NCCL " in line else None
        if match is None:
            continue
        host, message = match.groups()
        if host not in hosts and len(hosts) == MOST_NODES:
            continue
        facts = hosts.setdefault(host, NodeFacts(host))
        for fact, pattern in (
            ("NCCL", _VERSION),
            ("network", _NETWORK),
            ("CUDA driver", _DRIVER),
            ("ranks", _DEVICE),
        ):
            if (value := pattern.search(message)) is not None:
                facts.add(fact, value[1])
        if (variable := _VARIABLE.search(message)) is not None:
            facts.add(variable[1], variable[2].rstrip("."))
        if (plugin := _PLUGIN.search(message)) is not None:
            facts.add(f"{plugin[1].lower()} plugin", plugin[2])
        if ": Using [" in message:
            for nic in _NICS.findall(message):
                facts.add("NICs", nic)
    for facts in hosts.values():
        # Addresses differ between nodes that are alike; their number does not.
        if "ranks" in facts.values:
            facts.values["ranks"] = {str(len(facts.values["ranks"])): None}
    return list(hosts.values())


def node_differences(nodes: Sequence[NodeFacts]) -> list[str]:
    """The facts in which nodes differ, those that are known of at least two nodes.

    A variable that is set on some nodes only is a difference; other facts that a node's log does
    not have are not.

    Examples
    --------
    >>> nodes = [NodeFacts(f"n{number}", {"NICs": {"mlx5_0:1": None}}) for number in range(3)]
    >>> nodes[1].add("NICs", "mlx5_1:1")
    >>> node_differences(nodes)
    ['NICs: n1 has also mlx5_1:1; n0, n2 have mlx5_0:1']
    """
    facts = dict.fromkeys(fact for node in nodes for fact in node.values)
    lines = []
    for fact in facts:
        if fact in _OF_A_NODE:
            continue
        is_variable = fact.startswith(("NCCL_", "RCCL_"))
        values = {
            node.name: tuple(node.values.get(fact, ()))
            for node in nodes
            if is_variable or node.values.get(fact)
        }
        if len({tuple(sorted(value)) for value in values.values()}) > 1:
            lines.append(f"{fact}: {_difference(values)}")
    return lines


_CONSEQUENCES = {
    "NICs": "NCCL pairs NICs by their place in the list: with unequal ones a job hangs without a "
    "message, or has the rate of the fewest (nccl#2428). Repair the node, or list in NCCL_IB_HCA "
    "only the NICs that all nodes have",
    "NCCL": "one job needs one version of NCCL on all nodes",
    "PCIe links": "with a device less, or a narrower or slower link, all channels go at the pace "
    "of that node; reseat the device, or take the node out",
    "PCIe tree": "with another PCIe tree NCCL may find other channels and paths to NICs there",
    "NVLinks": "all channels go at the pace of the node with the fewest NVLinks; take it out",
}


def consequence(line: str) -> str:
    """What follows from a difference, and what to do; empty where nothing more can be said.

    >>> consequence("NCCL_ALGO: n1 has Ring; n0, n2 have none")
    'variables decide on every node for itself: set them alike on all, or a job hangs or slows down'
    """
    fact = line.partition(":")[0]
    if fact.startswith(("NCCL_", "RCCL_")):
        return (
            "variables decide on every node for itself: set them alike on all, or a job hangs or "
            "slows down"
        )
    return _CONSEQUENCES.get(fact, "")


def _difference(values: Mapping[str, tuple[str, ...]]) -> str:
    """The nodes with other values than most, and what these have."""
    names: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, value in values.items():
        names[tuple(sorted(value))].append(name)
    common, *rare = sorted(names, key=lambda value: -len(names[value]))
    parts = []
    for value in rare:
        missing = [text for text in common if text not in value]
        extra = [text for text in value if text not in common]
        verb = "has" if len(names[value]) == 1 else "have"
        if not value:
            fact = f"{verb} none"
        elif missing and extra:
            fact = f"{verb} {listed(extra)} instead of {listed(missing)}"
        elif missing:
            fact = f"{'lacks' if verb == 'has' else 'lack'} {listed(missing)}"
        else:
            fact = f"{verb} also {listed(extra)}"
        parts.append(f"{listed(names[value])} {fact}")
    verb = "has" if len(names[common]) == 1 else "have"
    rest_of_nodes = (
        listed(names[common]) if len(names[common]) < 9 else f"the {len(names[common])} others"
    )
    size = counted(len(common), "value") if len(common) > 8 else listed(common)
    return f"{'; '.join(parts)}; {rest_of_nodes} {verb} {size if common else 'none'}"
