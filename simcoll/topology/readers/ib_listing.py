"""Listings of an InfiniBand fabric as vertices and cables: the output of ``ibnetdiscover`` and
``iblinkinfo``, and net files of ``ibsim``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NoReturn, TypeAlias

from simcoll.core.vocabulary import NodeKind
from simcoll.errors import ConfigError
from simcoll.files.reader_arguments import Content, content_of

__all__ = ["Cable", "Listing", "parse_listing"]

FabricNode: TypeAlias = NodeKind | Literal["router"]
"""A vertex of a listing; routers become switches."""

MAX_BYTES = 64 << 20
MAX_PORTS = 1 << 18

# Data rate of a lane in Mbit/s: by name, and by the signalling rate in Gbit/s. SDR to QDR encode 8
# bits in 10, later ones 64 in 66.
_LANES = {
    "SDR": 2000,
    "DDR": 4000,
    "QDR": 8000,
    "FDR10": 10000,
    "FDR": 13636,
    "EDR": 25000,
    "HDR": 50000,
    "NDR": 100000,
    "XDR": 200000,
}
_SIGNALLED = {
    "2.5": "SDR",
    "5.0": "DDR",
    "10.0": "QDR",
    "14.0625": "FDR",
    "25.78125": "EDR",
    "53.125": "HDR",
    "106.25": "NDR",
    "212.5": "XDR",
}

_NODE = re.compile(
    r'\s*(Switch|Ca|Hca|Rt)\s+\d{1,4}\s+"([^"\n]{1,64})"(?:\s*#\s*"([^"]{0,200})")?', re.IGNORECASE
)
_PORT = re.compile(
    r"\s*\[(\d{1,3})\](?:\[[^\]]{0,40}\])?(?:\([0-9a-fA-F]{1,16}\))?\s+"
    r'"([^"\n]{1,64})"\s*\[(\d{1,3})\]'
)
_SIMULATED = re.compile(r"(width|speed|speedext)\s+(\d{1,3})\s*$", re.IGNORECASE)
"""Settings of ibsim for the ports that follow: sums of what a port can do."""
_SIMULATED_VALUES = {
    "width": {1: "1", 16: "2", 2: "4", 4: "8", 8: "12"},
    "speed": {1: "SDR", 2: "DDR", 4: "QDR"},
    "speedext": {1: "FDR", 2: "EDR", 4: "HDR", 8: "NDR"},
}
"""Widths and speeds by ibsim's numbers, the least first."""
_COMPAT = re.compile(r"\b(\d{1,2})x([A-Z]{3}(?:10)?)\b")
_HEAD = re.compile(r"(Switch|CA|Router):?\s+(?:0x[0-9a-fA-F]{1,16}\s+)?(.{1,200}?):$")
_LINED = re.compile(r'(0x[0-9a-fA-F]{1,16})\s+"([^"]{0,200})"\s+(\d{1,6}\s+(\d{1,3})\[.*)')
"""A line of ``iblinkinfo --line``: GUID and name of the vertex before the port."""
_LINK = re.compile(
    r"(?:0x[0-9a-fA-F]{1,16}\s+)?(\d{1,6})\s+(\d{1,3})\[[^\]]{0,10}\]\s+"
    r"==\(\s*(\d{1,2})X\s+([0-9.]{1,9}) Gbps(?: \((FDR10)\))?\s+Active/\s*LinkUp\)"
    r'==>\s+(?:0x[0-9a-fA-F]{1,16}\s+)?(\d{1,6})\s+(\d{1,3})\[[^\]]{0,10}\]\s+"'
)


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two vertices, by number, with its data rate in Mbit/s."""

    a: int
    b: int
    Mbps: int


@dataclass(slots=True)
class Listing:
    """Names and kinds (``switch``, ``nic``, ``router``) of the vertices, and the cables between
    them.
    """

    names: list[str] = field(default_factory=list)
    kinds: list[FabricNode] = field(default_factory=list)
    cables: list[Cable] = field(default_factory=list)


_KINDS: dict[str, FabricNode] = {
    "switch": "switch",
    "ca": "nic",
    "hca": "nic",
    "rt": "router",
    "router": "router",
}


def parse_listing(content: Content, file: str | None = None) -> Listing:
    """Read a listing, in which each cable is listed at both ends; the two entries must agree.

    Raises
    ------
    ConfigError
        For text that is not a listing, an unknown rate, and cables whose ends disagree or of which
        one is missing.
    """
    content = content_of(content, "parse_listing")
    if len(content) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
    lines = content.decode("utf-8", "replace").split("\n")
    listing = Listing()
    ports = (_ibnetdiscover_ports if any(map(_NODE.match, lines)) else _iblinkinfo_ports)(
        lines, listing, file
    )
    if not ports:
        raise ConfigError(
            "has no cables; expected what ibnetdiscover or iblinkinfo prints, or a net file of "
            "ibsim",
            file=file,
        )
    _join(ports, listing, file)
    return listing


_Ports = dict[tuple[int, int], tuple[tuple[int, int], int, int]]
"""``(vertex, port)`` to the other end, the rate in Mbit/s, and the line number."""


def _ibnetdiscover_ports(lines: list[str], listing: Listing, file: str | None) -> _Ports:
    """Ports in the output of ibnetdiscover and in net files of ibsim: vertices by GUID or ID.

    In a net file a cable may be listed at one end, and has the width and speed set before, by
    default those of ibsim.
    """
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if match := _NODE.match(line):
            if match[2] in numbers:
                _refuse(f"{match[2]!r} is listed twice", file, number)
            numbers[match[2]] = _vertex(listing, match[1], match[3] or match[2])
    simulated = not any(map(_COMPAT.search, lines))
    width, speed = "4", "SDR"
    ports: dict[tuple[int, int], tuple[tuple[int, int], int, int]] = {}
    vertex = -1
    for number, line in enumerate(lines, 1):
        if match := _NODE.match(line):
            vertex = numbers[match[2]]
        elif simulated and (match := _SIMULATED.match(line.strip())):
            setting, mask = match[1].lower(), int(match[2])
            values = [text for bit, text in _SIMULATED_VALUES[setting].items() if mask & bit]
            if not values:
                bits = ", ".join(map(str, _SIMULATED_VALUES[setting]))
                _refuse(f"{setting} {mask}: expected a sum of {bits}", file, number)
            width, speed = (values[-1], speed) if setting == "width" else (width, values[-1])
        elif (match := _PORT.match(line)) and vertex >= 0:
            if match[2] not in numbers:
                _refuse(f"port {match[1]} leads to {match[2]}, which is not listed", file, number)
            widths = [(width, speed)] if simulated else _COMPAT.findall(line)
            if not widths:
                _refuse("no width and speed at the end, such as 4xHDR", file, number)
            lanes, lane_speed = widths[-1]
            rate = _rate(lanes, lane_speed, file, number)
            end, peer = (vertex, int(match[1])), (numbers[match[2]], int(match[3]))
            ports[end] = (peer, rate, number)
            if simulated:
                ports.setdefault(peer, (end, rate, number))
            if len(ports) > MAX_PORTS:
                _refuse(f"more than {MAX_PORTS:,} ports", file, number)
    return ports


class _PrintedPort(NamedTuple):
    """A port of iblinkinfo's output: its vertex and number, the LID and port that it leads to, its
    rate and line.
    """

    end: tuple[int, int]
    peer_lid: int
    peer_port: int
    rate: int
    line: int


def _iblinkinfo_ports(lines: list[str], listing: Listing, file: str | None) -> _Ports:
    """Ports in the output of iblinkinfo, with or without ``--line``: the other end is identified by
    its LID.
    """
    of_lid: dict[int, int] = {}
    printed: list[_PrintedPort] = []
    owner, lined = -1, _line_vertices(lines, listing)
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if head := _HEAD.fullmatch(text):
            owner = _vertex(listing, head[1], head[2])
            continue
        if match := _LINED.match(text):
            owner, text = lined[match[1]], match[3]
        if (match := _LINK.match(text)) and owner >= 0:
            lid = int(match[1])
            if of_lid.setdefault(lid, owner) != owner:
                _refuse(
                    f"LID {lid} is that of {listing.names[of_lid[lid]]} and of "
                    f"{listing.names[owner]}",
                    file,
                    number,
                )
            rate = _rate(match[3], match[5] or _SIGNALLED.get(match[4], match[4]), file, number)
            printed.append(
                _PrintedPort((owner, int(match[2])), int(match[6]), int(match[7]), rate, number)
            )
            if len(printed) > MAX_PORTS:
                _refuse(f"more than {MAX_PORTS:,} ports", file, number)
    ports = {}
    for port in printed:
        if port.peer_lid not in of_lid:
            _refuse(
                f"port {port.end[1]} leads to LID {port.peer_lid}, which is not listed",
                file,
                port.line,
            )
        ports[port.end] = ((of_lid[port.peer_lid], port.peer_port), port.rate, port.line)
    return ports


def _line_vertices(lines: list[str], listing: Listing) -> dict[str, int]:
    """Vertices of ``iblinkinfo --line`` by GUID.

    Their kinds are inferred: a switch has all its ports under one GUID, an adapter each port under
    a separate one.
    """
    names: dict[str, str] = {}
    ports: dict[str, set[int]] = {}
    for line in lines:
        if match := _LINED.match(line.strip()):
            names[match[1]] = match[2]
            ports.setdefault(match[1], set()).add(int(match[4]))
    return {
        guid: _vertex(
            listing, "Switch" if len(ports[guid]) > 1 or max(ports[guid]) > 2 else "CA", name
        )
        for guid, name in names.items()
    }


def _vertex(listing: Listing, word: str, name: str) -> int:
    kind = _KINDS[word.lower()]
    listing.kinds.append(kind)
    listing.names.append(name.strip().strip("'") or f"{kind} {len(listing.names)}")
    return len(listing.names) - 1


def _rate(lanes: str, speed: str, file: str | None, line: int) -> int:
    if speed not in _LANES or not 1 <= int(lanes) <= 12:
        speeds = ", ".join(_LANES)
        _refuse(
            f"{lanes} lanes of {speed[:20]}: expected 1 to 12 of {speeds} (or their Gbps)",
            file,
            line,
        )
    return int(lanes) * _LANES[speed]


def _join(ports: _Ports, listing: Listing, file: str | None) -> None:
    """Join the two ends of every cable."""
    for end, (peer, rate, line) in ports.items():
        returned = ports.get(peer)
        if returned is None or returned[0] != end:
            _refuse(
                f"{_describe(listing, end)} leads to {_describe(listing, peer)}, which does not "
                "lead back",
                file,
                line,
            )
        if returned[1] != rate:
            _refuse(
                f"the cable has {rate} Mbit/s at this end, and {returned[1]} at "
                f"{_describe(listing, peer)}",
                file,
                line,
            )
        if end < peer:
            listing.cables.append(Cable(end[0], peer[0], rate))


def _describe(listing: Listing, end: tuple[int, int]) -> str:
    return f"port {end[1]} of {listing.names[end[0]]!r}"


def _refuse(message: str, file: str | None, line: int) -> NoReturn:
    raise ConfigError(message, file=file, path=f"line {line}")
