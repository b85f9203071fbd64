"""Reader of NCCL graph files (``NCCL_GRAPH_DUMP_FILE``): the channels that NCCL's search found on
one node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn
from xml.etree.ElementTree import Element

from simcoll.errors import ConfigError
from simcoll.files.reader_arguments import Content, content_of
from simcoll.files.xml import XmlLimits, parse_xml

__all__ = ["NcclGraph", "parse_nccl_graphs"]

LIMITS = XmlLimits(depth=8, elements=100_000)
MAX_BYTES = 1 << 24
NAMES = ("ring", "tree", "collnet", "nvls")
PATTERNS = {
    1: "balanced tree",
    2: "split tree",
    3: "tree",
    4: "ring",
    5: "nvls",
    6: "collnet direct",
}


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """NCCL's channels for one family of algorithms.

    Attributes
    ----------
    name
        ``ring``, ``tree``, ``collnet`` or ``nvls``.
    pattern
        One of ``PATTERNS``.
    channels
        GPUs of each channel in order, by their ``dev``.
    intra_GBps, inter_GBps
        NCCL's intended bandwidth of a channel inside the node and between nodes, in GB/s.
    type_intra
        The slowest kind of path between two GPUs of a channel: NVL, PIX, PXB, PHB, SYS, ...
    """

    name: str
    pattern: str
    channels: tuple[tuple[int, ...], ...]
    intra_GBps: float
    inter_GBps: float
    type_intra: str


def parse_nccl_graphs(content: Content, file: str = "graph") -> list[NcclGraph]:
    """Read the graphs of a file; empty ones are skipped.

    Raises
    ------
    ConfigError
        With the graph and channel, for an invalid file.
    """
    content = content_of(content, "parse_nccl_graphs")
    if len(content) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
    root = parse_xml(content, LIMITS, file)
    if root.tag != "graphs":
        raise ConfigError(f"expected <graphs>, found <{str(root.tag)[:40]}>", file=file)
    graphs = [
        _graph(element, f"graph {number}", file)
        for number, element in enumerate(root)
        if element.tag == "graph"
    ]
    return [graph for graph in graphs if graph.channels]


def _graph(element: Element, place: str, file: str) -> NcclGraph:
    def refuse(message: str) -> NoReturn:
        raise ConfigError(message, file=file, path=place)

    def number(name: str, maximum: int) -> int:
        text = element.get(name, "")
        if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) > maximum:
            refuse(f"{name}={text[:30]!r}: expected a whole number from 0 to {maximum}")
        return int(text)

    def rate(name: str) -> float:
        text = element.get(name, "")
        if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,9})?", text):
            refuse(f"{name}={text[:30]!r}: expected GB/s, such as 12")
        return float(text)

    pattern = number("pattern", 9)
    if pattern not in PATTERNS:
        refuse(f"pattern {pattern} is not known; known: {', '.join(map(str, PATTERNS))}")
    channels: list[tuple[int, ...]] = []
    for channel in element:
        if channel.tag != "channel":
            continue
        order = []
        for gpu in (element for element in channel if element.tag == "gpu"):
            text = gpu.get("dev", "")
            if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,4}", text):
                refuse(
                    f"channel {len(channels)}: dev={text[:30]!r}: expected a number in hexadecimal"
                )
            order.append(int(text, 16))
        if not order or len(set(order)) != len(order):
            refuse(f"channel {len(channels)}: GPUs {order[:8]}: expected some, each once")
        channels.append(tuple(order))
    return NcclGraph(
        NAMES[number("id", len(NAMES) - 1)],
        PATTERNS[pattern],
        tuple(channels),
        rate("speedintra"),
        rate("speedinter"),
        element.get("typeintra", "")[:20],
    )
