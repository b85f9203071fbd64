"""Tables of pages and CSV files with columns of their own: titles, then rows of a size and a time
or a bandwidth, as in issues, wikis and blogs.

They lack type and count, and so are not rows of nccl-tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from simcoll.formats.logs.log_lines import Skipped
from simcoll.formats.logs.measured import MeasuredRow, MeasuredRun, MeasuredTable, finish_table

__all__ = ["TitledReader"]

MAX_ROWS, MAX_TABLES = 10_000, 1000
MOST_US = 1e10
LONGEST_LINE = 400
DISAGREES = 0.05
"""Largest relative difference between a time and a bandwidth of one row."""
_TITLES = {
    "size": re.compile(r"(?:message |msg |data |buffer )?(?:size|bytes|nbytes)"),
    "time": re.compile(r"(?:avg |mean |average )?(?:time|latency)|lat|t"),
    "algbw": re.compile(r"alg.*|bandwidth|bw"),
    "busbw": re.compile(r"bus.*"),
    "type": re.compile(r"(?:data ?)?type|dtype"),
}
_UNIT = re.compile(r"[(\[]([^)\]]{0,20})[)\]]|_(us|ms|s|gbps|gb/s)$")
_COLLECTIVES = {
    name.replace("_", ""): name
    for name in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "send_recv",
        "gather",
        "scatter",
        "reduce",
    )
}
_COLLECTIVE = re.compile(
    r"(?<![a-z])(all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|broadcast|"
    r"send[_-]?recv|gather|scatter|reduce)(?![a-z])",
    re.IGNORECASE,
)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_VALUE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(us|µs|ms|s|GB/s|GBps)?", re.IGNORECASE)
_TIMES_FS = {"us": 10**9, "µs": 10**9, "usec": 10**9, "ms": 10**12, "s": 10**15}


class TitledReader:
    """Incremental reader of tables with titles.

    Examples
    --------
    >>> reader = TitledReader(Skipped())
    >>> for number, line in enumerate(["AllReduce", "| Size | Time (us) |", "| 1 MB | 25.1 |"]):
    ...     reader.feed(number, line)
    >>> (table,) = reader.tables()
    >>> table.collective, table.rows[0].size_bytes, table.rows[0].time_fs
    ('all_reduce', 1048576, 25100000000)
    """

    __slots__ = ("_collective", "_columns", "_nranks", "_rows", "_skipped", "_tables", "_units")

    def __init__(self, skipped: Skipped) -> None:
        self._collective = ""
        self._nranks = 0
        self._columns: dict[str, int] = {}
        self._units: dict[str, str] = {}
        self._rows: list[MeasuredRow] = []
        self._tables: list[MeasuredRun] = []
        self._skipped = skipped

    def feed(self, number: int, text: str) -> None:
        """Process a line."""
        if len(text) > LONGEST_LINE or "NCCL " in text:
            return
        cells = _cells(text) if any(mark in text for mark in _MARKS) else []
        if len(cells) > 1 and self._begins(cells):
            return
        if self._columns and len(cells) > 1:
            self._row(number, cells)
        elif text.strip():
            self._end()
            if name := _COLLECTIVE.search(text):
                self._collective = _COLLECTIVES[re.sub(r"[_-]", "", name[0].lower())]
            self._nranks = _stated_ranks(text) or self._nranks

    def tables(self) -> list[MeasuredTable]:
        """All tables, in order; notes on what they do not say are added to the skipped content."""
        self._end()
        tables = []
        for run in self._tables:
            table, notes = finish_table(run)
            for note in notes:
                self._skipped.add(0, note)
            tables.append(table)
        return tables

    def _begins(self, cells: Sequence[str]) -> bool:
        """Whether cells are the titles of such a table."""
        columns: dict[str, int] = {}
        units: dict[str, str] = {}
        for place, cell in enumerate(cells):
            unit = _UNIT.search(cell)
            title = _UNIT.sub("", cell).strip().lower().replace("_", " ").strip()
            name = next((name for name, form in _TITLES.items() if form.fullmatch(title)), "")
            if name and name not in columns:
                columns[name] = place
                units[name] = ((unit[1] or unit[2]) if unit else "").strip().lower()
        # A table with types is one of nccl-tests.
        if "size" not in columns or len(columns) < 2 or "type" in columns:
            return False
        self._end()
        self._columns, self._units = columns, units
        return True

    def _row(self, number: int, cells: Sequence[str]) -> None:
        if all(set(cell) <= set(":- ") for cell in cells):
            return
        size_bytes = self._size(cells)
        if not size_bytes or len(self._rows) >= MAX_ROWS:
            return
        time_fs = self._time(cells)
        algbw, busbw = (self._bandwidth(cells, name) for name in ("algbw", "busbw"))
        if not time_fs and algbw:
            time_fs = round(size_bytes / algbw * 1e6)
        if not time_fs:
            self._skipped.add(
                number, f"{size_bytes} B: neither a time nor an algorithm bandwidth; left out"
            )
            return
        expected = size_bytes / time_fs * 1e6
        if algbw and abs(expected / algbw - 1) > DISAGREES and algbw > 1:
            self._skipped.add(number, f"{size_bytes} B: time and bandwidth do not agree; left out")
            return
        rate = algbw or expected
        ratio = busbw / rate if rate >= 1 else 0.0
        self._rows.append(
            MeasuredRow(size_bytes, 0, "", "", -1, time_fs, bus_ratio=ratio, line=number)
        )

    def _size(self, cells: Sequence[str]) -> int:
        text = self._cell(cells, "size")
        match = _SIZE.fullmatch(text.replace(",", ""))
        if match is None:
            return 0
        letter = match[2].upper() or self._units["size"][:1].upper()
        power = "KMGT".find(letter) + 1 if letter in {"K", "M", "G", "T"} else 0
        scale: int = 1024**power
        return round(float(match[1]) * scale)

    def _time(self, cells: Sequence[str]) -> int:
        match = _VALUE.fullmatch(self._cell(cells, "time"))
        if match is None:
            return 0
        unit = (match[2] or self._units.get("time") or "us").lower()
        value_fs = float(match[1]) * _TIMES_FS.get(unit, 10**9)
        return round(value_fs) if 0 < value_fs < MOST_US * 10**9 else 0

    def _bandwidth(self, cells: Sequence[str], name: str) -> float:
        match = _VALUE.fullmatch(self._cell(cells, name))
        return float(match[1]) if match else 0.0

    def _cell(self, cells: Sequence[str], name: str) -> str:
        place = self._columns.get(name, len(cells))
        return cells[place] if place < len(cells) else ""

    def _end(self) -> None:
        if self._rows and len(self._tables) < MAX_TABLES:
            has_ratios = any(row.bus_ratio for row in self._rows)
            nranks = 0 if has_ratios else self._nranks
            self._tables.append(MeasuredRun(self._collective, nranks, rows=self._rows))
        self._columns, self._units, self._rows = {}, {}, []


_MARKS = ("|", "\t", ";", ",")
_RANKS = re.compile(r"(?<![\d.x])(\d{1,6})\s*(?:ranks|gpus?)\b", re.IGNORECASE)


def _stated_ranks(text: str) -> int:
    """The number of ranks that a line above a table states; 0 if none, or by nodes."""
    match = _RANKS.search(text)
    return int(match[1]) if match and "node" not in text.lower() else 0


def _cells(text: str) -> list[str]:
    """The cells of a line, by the mark that separates them; beside semicolons a comma is that of a
    decimal.
    """
    mark = next(mark for mark in _MARKS if mark in text)
    cells = [cell.strip().strip("\"'*`").strip() for cell in text.strip().strip("|").split(mark)]
    if mark == ";":
        cells = [re.sub(r"^(\d+),(\d+)$", r"\1.\2", cell) for cell in cells]
    return [cell for cell in cells if cell] if mark == "\t" else cells
