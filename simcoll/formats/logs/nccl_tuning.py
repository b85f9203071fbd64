"""NCCL's own tuning table, and its choices, from a log with
``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING``.

NCCL prints, for every function, algorithm and protocol, the latency (us) and algorithm bandwidth
(GB/s) of its cost model for the communicator: before 2.19 in one block with columns
``Tree/    LL``, later in blocks of three algorithms with a line of protocols. Newer versions also
print the choice for every call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from simcoll.formats.logs.log_lines import Skipped

__all__ = ["Chosen", "TunedCost", "TuningReader", "TuningTable"]

COLLECTIVES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
}
"""NCCL's functions in lower case, by simcoll's names."""
ALGORITHMS = {
    "tree": "tree",
    "ring": "ring",
    "collnet": "collnet_direct",
    "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain",
    "nvls": "nvls",
    "nvlstree": "nvls_tree",
    "pat": "pat",
}
PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
_NUMBERED = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""Algorithms by NCCL's numbers, which older versions print instead of names."""

MAX_TABLES = 1000
MAX_CHOICES = 10_000
MAX_THREADS = 10_000

_INFO = re.compile(r"(\S{1,200}:\d{1,10}:\d{1,10}) \[\d{1,4}\] NCCL INFO ")
_RANKS = re.compile(r"\b[nN][rR]anks (\d{1,7})\b")
_NODES = re.compile(r"\bnNodes (\d{1,7})\b")
_CELL = re.compile(r"\s*(\d{1,12}\.\d)/\s*(\d{1,12}\.\d)\s*")
_CHOICE = re.compile(
    r"\b(?P<function>\w{4,20}): (?P<size>\d{1,18}) Bytes -> Algo (?P<algorithm>\w{1,20}) proto "
    r"(?P<protocol>\w{1,10})"
)


@dataclass(frozen=True, slots=True)
class TunedCost:
    """NCCL's cost model of one choice: ``time = latency + bytes / bandwidth``."""

    collective: str
    algorithm: str
    protocol: str
    latency_fs: int
    bandwidth_uBps: int


@dataclass(frozen=True, slots=True)
class TuningTable:
    """The tuning table of one communicator.

    Attributes
    ----------
    nranks, nnodes
        Its size; 0 if unknown.
    rows
        All choices that NCCL may make; others have bandwidth 0 and are dropped.
    """

    nranks: int
    nnodes: int
    rows: tuple[TunedCost, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """NCCL's choice for one call."""

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str


@dataclass(slots=True)
class _Thread:
    """The output of one thread of one process so far."""

    nranks: int = 0
    nnodes: int = 0
    algorithms: list[str] = field(default_factory=list)
    columns: list[tuple[str, str]] = field(default_factory=list)
    rows: dict[tuple[str, str, str], TunedCost] = field(default_factory=dict)


class TuningReader:
    """Incremental reader of tuning tables and choices in a log."""

    __slots__ = ("_choices", "_skipped", "_tables", "_threads")

    def __init__(self, skipped: Skipped) -> None:
        self._threads: dict[str, _Thread] = {}
        self._tables: dict[TuningTable, None] = {}
        self._choices: dict[Chosen, None] = {}
        self._skipped = skipped

    def feed(self, number: int, text: str) -> None:
        """Process a line."""
        if "Bytes ->" in text:
            self._choose(text)
        if "|" not in text and "anks " not in text:
            return
        info = _INFO.search(text)
        thread = self._thread(info[1] if info else "")
        message = text[info.end() :] if info else text
        if "|" in message:
            self._row(thread, message, number)
        elif info:
            ranks, nodes = _RANKS.search(message), _NODES.search(message)
            if ranks and thread.rows:
                self._finish(thread)  # another communicator of this thread
            thread.nranks = int(ranks[1]) if ranks else thread.nranks
            thread.nnodes = int(nodes[1]) if nodes else thread.nnodes

    def tables(self) -> tuple[TuningTable, ...]:
        """All distinct tables, in order."""
        for thread in self._threads.values():
            self._finish(thread)
        return tuple(self._tables)

    def choices(self) -> tuple[Chosen, ...]:
        """All distinct choices, in order."""
        return tuple(self._choices)

    def _thread(self, name: str) -> _Thread:
        if name not in self._threads and len(self._threads) >= MAX_THREADS:
            name = ""
        return self._threads.setdefault(name, _Thread())

    def _finish(self, thread: _Thread) -> None:
        if thread.rows and len(self._tables) < MAX_TABLES:
            self._tables[TuningTable(thread.nranks, thread.nnodes, tuple(thread.rows.values()))] = (
                None
            )
        thread.rows = {}

    def _row(self, thread: _Thread, message: str, number: int) -> None:
        head, *cells = message.split("|")
        title = head.split()[-1] if head.split() else ""
        cells = [cell for cell in cells if cell.strip()]
        if title == "Latency/AlgBw":
            self._finish(thread)
            pairs = [cell.strip().lower().partition("/") for cell in cells]
            thread.columns = [
                (ALGORITHMS.get(a.strip(), ""), PROTOCOLS.get(p.strip(), "")) for a, _, p in pairs
            ]
        elif title == "Algorithm":
            thread.algorithms = [ALGORITHMS.get(cell.strip().lower(), "") for cell in cells]
        elif title == "Protocol" and thread.algorithms:
            # All protocols for each algorithm of the line above; the last block names some more.
            names = [PROTOCOLS.get(cell.strip().lower(), "") for cell in cells]
            nprotocols = len(dict.fromkeys(names))
            thread.columns = [(a, names[p]) for a in thread.algorithms for p in range(nprotocols)]
        elif title.lower() in COLLECTIVES and thread.columns:
            self._function(thread, COLLECTIVES[title.lower()], cells, number)

    def _function(self, thread: _Thread, collective: str, cells: list[str], number: int) -> None:
        """Process a line of latencies and bandwidths."""
        matches = [_CELL.fullmatch(cell) for cell in cells]
        if len(matches) != len(thread.columns) or not all(matches):
            nreadable = sum(match is not None for match in matches)
            self._skipped.add(
                number,
                f"tuning table: {nreadable} of {len(thread.columns)} cells of {collective} can be "
                "read; left out",
            )
            return
        if any((collective, *column) in thread.rows for column in thread.columns):
            self._finish(thread)  # the same function again: the next communicator
        for cell, (algorithm, protocol) in zip(matches, thread.columns, strict=True):
            if cell is not None and algorithm and protocol and float(cell[2]):
                latency, rate = (
                    round(float(cell[1]) * 10) * 10**8,
                    round(float(cell[2]) * 10) * 10**14,
                )
                thread.rows[collective, algorithm, protocol] = TunedCost(
                    collective, algorithm, protocol, latency, rate
                )

    def _choose(self, text: str) -> None:
        match = _CHOICE.search(text)
        if not match or len(self._choices) >= MAX_CHOICES:
            return
        collective = COLLECTIVES.get(match["function"].lower().replace("_", ""), "")
        algorithm = _by_number(match["algorithm"], _NUMBERED) or ALGORITHMS.get(
            match["algorithm"].lower().replace("_", ""), ""
        )
        protocol = _by_number(match["protocol"], tuple(PROTOCOLS.values())) or PROTOCOLS.get(
            match["protocol"].lower(), ""
        )
        if collective and algorithm and protocol:
            self._choices[Chosen(collective, int(match["size"]), algorithm, protocol)] = None


def _by_number(text: str, names: tuple[str, ...]) -> str:
    return (
        names[int(text)]
        if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) < len(names)
        else ""
    )
