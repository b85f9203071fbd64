"""ASTRA-sim's ``network.yml`` of its analytical backend: dimensions of rings, switches and full
connections.

Such a file is YAML restricted to lines ``key: [value, ...]``, or lines ``- value`` below a key, and
comments; only these are read, so no YAML library is needed. The first dimension varies fastest. A
GB/s is 2^30 bytes per second, as ASTRA-sim computes (its ``NetworkFunction.cpp``); latencies are
per link, in nanoseconds; a switch has one link up and one down for each NPU. Routes are shortest by
latency.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from math import prod
from typing import NoReturn

import networkx as nx
import numpy as np

from simcoll.errors import ConfigError, blamed_on, nearest, shown
from simcoll.files.reader_arguments import Content, content_of
from simcoll.topology.graph import Topology
from simcoll.topology.networkx_graph import from_networkx

__all__ = ["parse_astra_network"]

BLOCKS = ("Ring", "FullyConnected", "Switch")
KEYS = ("topology", "npus_count", "bandwidth", "latency")
MAX_NPUS = 4096
MAX_LINKS = 1 << 18
MAX_DIMENSIONS = 8
_LINE = re.compile(r"(\w{1,40})[ \t]*:[ \t]*\[([^\[\]#]{0,4000})\][ \t]*(?:#.*)?")
_OPENED = re.compile(r"(\w{1,40})[ \t]*:[ \t]*(?:#.*)?")
_ITEM = re.compile(r"-[ \t]+([^\s#]{1,40})[ \t]*(?:#.*)?")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?(?:[eE][+-]?\d)?")


def parse_astra_network(content: Content, file: str | None = None) -> Topology:
    """A topology from the content of a ``network.yml``.

    Raises
    ------
    ConfigError
        With the line, for a line that is not such a list, lists of different lengths, and numbers
        out of range.

    Examples
    --------
    >>> shape = ("topology: [ Ring ]", "npus_count: [ 4 ]")
    >>> lines = (*shape, "bandwidth: [ 50.0 ]  # GB/s", "latency: [ 500 ]")
    >>> topology = parse_astra_network(chr(10).join(lines).encode())
    >>> topology.path(0, 3), int(topology.link_capacity_uBps[0]) == 50 * 2**30 * 10**6
    (['npu0 -> npu3'], True)
    """
    content = content_of(content, "parse_astra_network")

    def refuse(message: str, path: str | None = None) -> NoReturn:
        raise ConfigError(message, file=file, path=path)

    lists = _lists(content, refuse)
    for key in KEYS:
        if key not in lists:
            refuse("missing", f"$.{key}")
    blocks = lists["topology"]
    for number, name in enumerate(blocks):
        if name not in BLOCKS:
            refuse(f"unknown {shown(name)}; {nearest(name, BLOCKS)}", f"$.topology[{number}]")
    if not 1 <= len(blocks) <= MAX_DIMENSIONS:
        refuse(f"{len(blocks)} dimensions; expected 1 to {MAX_DIMENSIONS}", "$.topology")
    numbers = {
        key: [Fraction(text) if _NUMBER.fullmatch(text) else None for text in lists[key]]
        for key in KEYS[1:]
    }
    for key, values in numbers.items():
        if len(values) != len(blocks):
            refuse(f"{len(values)} values, for {len(blocks)} dimensions", f"$.{key}")
        for number, value in enumerate(values):
            counts = key == "npus_count"
            if (
                value is None
                or (key != "latency" and not value)
                or (counts and (value < 2 or value.denominator != 1))
            ):
                expected = (
                    "a whole number of at least 2"
                    if counts
                    else "a number above 0"
                    if key == "bandwidth"
                    else "a number"
                )
                refuse(
                    f"expected {expected}, got {shown(lists[key][number])}", f"$.{key}[{number}]"
                )
    sizes = [int(value) for value in numbers["npus_count"] if value is not None]
    npus = prod(sizes)
    links = sum(
        npus * (size - 1 if block == "FullyConnected" else 2)
        for block, size in zip(blocks, sizes, strict=True)
    )
    if npus > MAX_NPUS or links > MAX_LINKS:
        refuse(
            f"{npus} NPUs and {links} links; expected at most {MAX_NPUS} and {MAX_LINKS}",
            "$.npus_count",
        )
    rates = [
        (round((rate or 0) * 2**30 * 10**6), round((delay or 0) * 10**6))
        for rate, delay in zip(numbers["bandwidth"], numbers["latency"], strict=True)
    ]
    with blamed_on(file):
        return from_networkx(
            _graph(blocks, sizes, rates), name="astra-sim network", gpus_forward=True
        )


def _lists(content: bytes, refuse: Callable[..., NoReturn]) -> dict[str, list[str]]:
    """The lists of a file, by key."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        refuse("not a text")
    lists: dict[str, list[str]] = {}
    block: list[str] | None = None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#") or text == "---":
            continue
        value, opened = _ITEM.fullmatch(text), _OPENED.fullmatch(text)
        if value and block is not None:
            block.append(value[1])
            continue
        match = opened or _LINE.fullmatch(text)
        if match is None:
            refuse(
                f"expected a line such as 'bandwidth: [ 50.0 ]', got {shown(text[:60])}",
                f"line {number}",
            )
        if match[1] not in KEYS:
            refuse(f"unknown key {match[1]!r}; {nearest(match[1], KEYS)}", f"line {number}")
        if match[1] in lists:
            refuse(f"{match[1]} is a duplicate", f"line {number}")
        values = "" if opened else match[2]
        lists[match[1]] = [part.strip() for part in values.split(",")] if values.strip() else []
        block = lists[match[1]] if opened else None
    return lists


def _graph(blocks: list[str], sizes: list[int], rates: list[tuple[int, int]]) -> nx.Graph:
    """NPUs, the switches of each dimension, and their links."""
    graph = nx.Graph()
    npus = prod(sizes)
    graph.add_nodes_from((f"npu{npu}", {"kind": "gpu"}) for npu in range(npus))
    stride = 1
    for dimension, (block, size, (capacity, latency)) in enumerate(
        zip(blocks, sizes, rates, strict=True)
    ):
        costs = {"capacity_uBps": capacity, "latency_fs": latency}
        firsts = np.arange(npus)[np.arange(npus) // stride % size == 0].tolist()
        for number, origin in enumerate(firsts):
            line = [f"npu{origin + place * stride}" for place in range(size)]
            if block == "Switch":
                pairs = [(npu, f"switch{dimension}.{number}") for npu in line]
            elif block == "Ring":
                pairs = list(zip(line, line[1:] + (line[:1] if size > 2 else []), strict=False))
            else:
                pairs = [
                    (npu, neighbour)
                    for position, npu in enumerate(line)
                    for neighbour in line[position + 1 :]
                ]
            graph.add_edges_from((*pair, costs) for pair in pairs)
        stride *= size
    return graph
