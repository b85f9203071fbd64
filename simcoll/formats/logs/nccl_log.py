"""Read the channels of NCCL's communicators from a log with ``NCCL_DEBUG=INFO``: rings, trees, and
paths of connections.

Ranks print concurrently, each its own part: rank 0 the rings (``Channel 00/24 : 0 1 2 ...``,
truncated after 20 to 200 ranks), every rank its position in them (``Ring 00 : 7 -> 0 -> 1``, with
``NCCL_DEBUG_SUBSYS`` including GRAPH), its parent and children in every tree
(``Trees [0] 1/-1/-1->0->-1``), and its connections (``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``).
With GRAPH it also prints the results of its search
(``Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from simcoll.errors import ConfigError, listed
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.formats.logs.log_lines import Skipped, log_lines
from simcoll.formats.logs.nccl_graph import PATTERNS

__all__ = ["NcclCommunicator", "NcclSearch", "load_nccl_log"]

MAX_RANKS, MAX_CHANNELS = 1 << 16, 64
MAX_COMMUNICATORS, MAX_PARTS = 1000, 100_000
MAX_CONNECTIONS = 1_000_000
_FAMILIES = {
    "balanced tree": "tree",
    "split tree": "tree",
    "tree": "tree",
    "ring": "ring",
    "nvls": "nvls",
    "collnet direct": "collnet",
}

_INFO = re.compile(r"(\S{1,200}):(\d{1,10}:\d{1,10}) \[-?\d{1,4}\] NCCL INFO (.*)")
_RANK = re.compile(r"\bcomm 0x[0-9a-f]{1,16} rank (\d{1,6}) n[rR]anks (\d{1,6})\b")
_ID = re.compile(r"\bcommId (0x[0-9a-f]{1,16})\b")
_DEVICE = re.compile(r"\bnvmlDev (\d{1,3})\b")
_NODES = re.compile(r"\bnNodes (\d{1,6})\b")
_RING = re.compile(r"Channel (\d{1,3})/(\d{1,3}) :((?: +\d{1,6})+)\s*(\S?)")
_PLACE = re.compile(r"Ring (\d{1,3}) : (\d{1,6}) -> (\d{1,6}) -> (\d{1,6})\s*$")
_TREE = re.compile(
    r"\[(?P<channel>\d{1,3})\] "
    r"(?:-?\d{1,6}(?:/-?\d{1,6})+->(?P<rank>\d{1,6})->(?P<parent>-?\d{1,6})(?![\d/])"
    r"|(?P<old_parent>-?\d{1,6})->(?P<old_rank>\d{1,6})->-?\d{1,6}/)"
)
_VIA = re.compile(
    r"(?:Channel|Ring) \d{1,3}(?:/\d{1,3})? : (\d{1,6})(?:\[\w{1,16}\])? -> "
    r"(\d{1,6})(?:\[\w{1,16}\])? (?:\[\w+\] )?"
    r"via ([\w/()-]{1,60})"
)
_PATTERN = re.compile(
    r"Pattern (\d{1,2}), crossNic \d{1,2}, nChannels (\d{1,3}), (?:bw|speed) "
    r"(\d{1,6}(?:\.\d{1,9})?)/(\d{1,6}(?:\.\d{1,9})?)"
    r"(?:, type (\w{1,8})/(\w{1,8}))?"
)
_NUMBERS = re.compile(r"/\d+(?=/|$)|\(\d+\)")


@dataclass(frozen=True, slots=True)
class NcclSearch:
    """NCCL's search result for one family of algorithms on a node (``NCCL_DEBUG_SUBSYS`` including
    GRAPH).

    Attributes
    ----------
    pattern
        One of ``PATTERNS`` of :mod:`simcoll.formats.logs.nccl_graph`.
    count
        Number of channels; NCCL may use each twice with half the bandwidth.
    intra_GBps, inter_GBps
        Bandwidth of a channel inside the node and between nodes.
    type_intra, type_inter
        Slowest kind of path, such as NVL; empty in old logs.
    """

    pattern: str
    count: int
    intra_GBps: float
    inter_GBps: float
    type_intra: str
    type_inter: str


@dataclass(frozen=True, slots=True)
class NcclCommunicator:
    """The channels of one communicator found in a log.

    Attributes
    ----------
    name
        NCCL's ``commId``, or a number if the log has none.
    nranks, nnodes
        Its size; ``nnodes`` is 0 if unknown.
    places
        ``(host, device)`` of every rank; empty if unknown for some.
    rings
        Ranks of each channel in ring order.
    trees
        Parent of each rank for each channel; -1 for the root.
    connections
        ``(source, destination, path)`` without duplicates: ``P2P/CUMEM``, ``SHM/direct/direct``,
        ``NET/IB/GDRDMA``, without numbers.
    notes
        Parts missing in the log.
    searches
        Search results by family (``ring``, ``tree``, ``collnet``, ``nvls``), from the first rank
        that has them.
    """

    name: str
    nranks: int
    nnodes: int
    places: tuple[tuple[str, int], ...]
    rings: tuple[tuple[int, ...], ...]
    trees: tuple[tuple[int, ...], ...]
    connections: tuple[tuple[int, int, str], ...]
    notes: tuple[str, ...]
    searches: Mapping[str, NcclSearch] = field(default_factory=dict)

    def ways(self) -> dict[str, int]:
        """Number of connections by path."""
        return dict(sorted(Counter(path for _, _, path in self.connections).items()))


@dataclass(slots=True)
class _RankOutput:
    """One rank's output about one communicator."""

    host: str
    rank: int = -1
    nranks: int = 0
    nnodes: int = 0
    name: str = ""
    device: int = -1
    channels: int = 0  # as the number of each ring says
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    successors: dict[int, int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    ways: dict[tuple[int, int, str], None] = field(default_factory=dict)
    searches: dict[str, NcclSearch] = field(default_factory=dict)
    complete: bool = False

    @property
    def empty(self) -> bool:
        return not (self.rings or self.successors or self.parents or self.ways)


def load_nccl_log(path: FilePath) -> list[NcclCommunicator]:
    """Read the communicators of a log, largest first, then in order of appearance; other lines are
    ignored.

    Raises
    ------
    ConfigError
        When the file cannot be read, or has no channels.
    """
    path = path_of(path, "load_nccl_log")
    skipped = Skipped()
    parts: dict[str, _RankOutput] = {}
    finished: list[_RankOutput] = []
    connections = 0
    for number, text in log_lines(path):
        if "NCCL INFO" not in text or (line := _INFO.search(text)) is None:
            continue
        host, thread, message = line.groups()
        part = parts.get(f"{host}:{thread}")
        if part is None or (part.complete and "Init START" in message):
            if len(parts) + len(finished) >= MAX_PARTS:
                skipped.add(number, "too many ranks and communicators; it is left out")
                continue
            if part is not None:
                finished.append(part)
            part = parts[f"{host}:{thread}"] = _RankOutput(host)
        nways = len(part.ways)
        _feed(part, message, connections < MAX_CONNECTIONS)
        connections += len(part.ways) - nways
    complete = [*finished, *parts.values()]
    communicators = [
        _join(name, group) for name, group in _group(part for part in complete if not part.empty)
    ]
    if not communicators:
        raise ConfigError(
            "has no channels of NCCL; run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH on all "
            "ranks",
            file=path,
        )
    return sorted(communicators, key=lambda communicator: -communicator.nranks)[:MAX_COMMUNICATORS]


def _feed(part: _RankOutput, message: str, with_connections: bool) -> None:
    """Extract from a line its information about a rank."""
    if match := _RANK.search(message):
        part.rank, part.nranks = int(match[1]), min(int(match[2]), MAX_RANKS)
        for pattern, name in ((_ID, "name"), (_DEVICE, "device"), (_NODES, "nnodes")):
            if fact := pattern.search(message):
                setattr(part, name, fact[1] if name == "name" else int(fact[1]))
        part.complete |= "Init COMPLETE" in message
    elif match := _VIA.search(message):
        if with_connections:
            part.ways[int(match[1]), int(match[2]), _NUMBERS.sub("", match[3])] = None
    elif match := _RING.search(message):
        if int(match[1]) < MAX_CHANNELS:
            part.channels = max(part.channels, int(match[2]))
            part.rings[int(match[1])] = () if match[4] else tuple(map(int, match[3].split()))
    elif match := _PLACE.search(message):
        if int(match[1]) < MAX_CHANNELS:
            part.successors[int(match[1])] = int(match[4])
            part.rank = int(match[3]) if part.rank < 0 else part.rank
    elif match := _PATTERN.match(message):
        kind = PATTERNS.get(int(match[1]))
        if kind is not None and int(match[2]):
            search = NcclSearch(
                kind,
                int(match[2]),
                float(match[3]),
                float(match[4]),
                match[5] or "",
                match[6] or "",
            )
            part.searches.setdefault(_FAMILIES[kind], search)
    elif message.startswith("Trees"):
        for tree in _TREE.finditer(message):
            channel = int(tree["channel"])
            if channel < MAX_CHANNELS:
                part.parents[channel] = int(
                    tree["old_parent"] if tree["parent"] is None else tree["parent"]
                )
                part.rank = int(tree["rank"] or tree["old_rank"]) if part.rank < 0 else part.rank


def _group(parts: Iterator[_RankOutput]) -> Iterator[tuple[str, dict[int, _RankOutput]]]:
    """Group the parts by communicator: by ID, else into the first of that size that lacks the
    rank.
    """
    communicators: dict[str, dict[int, _RankOutput]] = {}
    for part in parts:
        numbered = (
            f"number {number}, {part.nranks or 'unknown number of'} ranks" for number in count()
        )
        name = part.name or next(
            candidate for candidate in numbered if part.rank not in communicators.get(candidate, {})
        )
        communicators.setdefault(name, {})[part.rank] = part
    yield from communicators.items()


def _join(name: str, parts: dict[int, _RankOutput]) -> NcclCommunicator:
    """Combine the parts of one communicator."""
    printed_rings = [ring for part in parts.values() for ring in part.rings.values()]
    nranks = max(part.nranks for part in parts.values()) or max(
        1, *map(len, printed_rings), *(rank + 1 for rank in parts)
    )
    notes: list[str] = []
    rings = _rings(parts, nranks, notes)
    trees = _trees(parts, nranks, notes)
    places = [
        (parts[rank].host, parts[rank].device) if rank in parts else ("", -1)
        for rank in range(nranks)
    ]
    unique_places = all(device >= 0 for _, device in places) and len(set(places)) == nranks
    connections = dict.fromkeys(connection for part in parts.values() for connection in part.ways)
    searches = {
        family: search
        for rank in sorted(parts, reverse=True)
        for family, search in parts[rank].searches.items()
    }
    return NcclCommunicator(
        name,
        nranks,
        max(part.nnodes for part in parts.values()),
        tuple(places) if unique_places else (),
        rings,
        trees,
        tuple(connections),
        tuple(notes),
        searches,
    )


def _rings(
    parts: dict[int, _RankOutput], nranks: int, notes: list[str]
) -> tuple[tuple[int, ...], ...]:
    """Every ring: as printed, or assembled from each rank's successor."""
    printed = {channel: ring for part in parts.values() for channel, ring in part.rings.items()}
    channels = sorted(
        printed.keys() | {channel for part in parts.values() for channel in part.successors}
    )
    total = min(max((part.channels for part in parts.values()), default=0), MAX_CHANNELS)
    absent = sorted(set(range(total)) - set(channels))
    if absent:
        notes.append(
            f"{len(channels)} of {total} channels are in the log; missing: "
            f"{listed(f'{channel:02d}' for channel in absent)}"
        )
    rings = []
    for channel in channels:
        ring = printed.get(channel, ())
        if len(ring) != nranks:
            ring = _follow(
                {
                    rank: part.successors[channel]
                    for rank, part in parts.items()
                    if channel in part.successors
                }
            )
        if len(ring) == nranks == len(set(ring)) and max(ring) < nranks:
            rings.append(ring)
    if len(rings) < len(channels):
        notes.append(
            f"{len(channels) - len(rings)} of {len(channels)} rings are not whole; "
            "NCCL_DEBUG_SUBSYS=INIT,GRAPH on all ranks has them"
        )
    return tuple(rings)


def _follow(successors: dict[int, int]) -> tuple[int, ...]:
    """Follow successors from rank 0; a ring that does not close is cut off."""
    order, rank = [0], successors.get(0, 0)
    while rank != 0 and rank in successors and len(order) < len(successors):
        order.append(rank)
        rank = successors[rank]
    return tuple(order) if rank == 0 else ()


def _trees(
    parts: dict[int, _RankOutput], nranks: int, notes: list[str]
) -> tuple[tuple[int, ...], ...]:
    """The parents of every tree that is complete in the log."""
    channels = sorted({channel for part in parts.values() for channel in part.parents})
    trees = []
    for channel in channels:
        parents = [
            parts[rank].parents.get(channel, -2) if rank in parts else -2 for rank in range(nranks)
        ]
        if min(parents, default=-2) >= -1 and max(parents) < nranks and parents.count(-1) == 1:
            trees.append(tuple(parents))
    if len(trees) < len(channels):
        notes.append(
            f"{len(channels) - len(trees)} of {len(channels)} trees are not whole; the logs of all "
            "ranks have them"
        )
    return tuple(trees)
