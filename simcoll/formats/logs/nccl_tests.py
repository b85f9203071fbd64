"""Read the output of nccl-tests, rccl-tests, realcoll and the OSU benchmarks: text of any version,
or JSON.

Columns moved over the years, and launchers prefix lines. So a row is recognised by its content: two
integers, a dtype, optionally a reduction and a root, then groups of time, two bandwidths and a
count of wrong elements. Time, size and bandwidth must agree; a row that is truncated or wrong is
skipped with a note.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.formats.logs.in_situ import HEADER, in_situ_tables
from simcoll.formats.logs.log_lines import Skipped, log_lines
from simcoll.formats.logs.measured import (
    ITEMSIZES,
    Log,
    MeasuredRow,
    MeasuredRun,
    MeasuredTable,
    finish_table,
    version_text,
)
from simcoll.formats.logs.nccl_tests_json import MAX_JSON, tables_of_json
from simcoll.formats.logs.nccl_tuning import TuningReader
from simcoll.formats.logs.osu import OsuReader
from simcoll.formats.logs.row_pieces import RowPieces
from simcoll.formats.logs.titled_tables import TitledReader
from simcoll.terminal import printable

__all__ = ["WRONG", "load_log"]

OPS = frozenset(
    [
        "sum",
        "prod",
        "product",
        "min",
        "max",
        "avg",
        "mulsum",
        "premul_sum",
        "none",
        "all",
        "band",
        "bor",
        "bxor",
    ]
)
MAX_ROWS = 100_000
MAX_RANKS = 100_000
MAX_VARIABLES = 100
MOST_US = 1e10
WRONG = "wrong elements"
"""What notes say of rows whose results are wrong."""
ROUNDING = 0.011
"""Tolerance between time and algorithm bandwidth, besides one in their last printed place."""
LARGEST_ERROR = 0.01
"""Limit on the largest relative error, a column until 2021, which half precision may reach by
rounding.
"""

_HEADER = re.compile(r"#?\s*(?:size|bytes)\s+(?:count|N)\s+(?:\(elements\)\s+)?type\s+(.*)")
_RANK = re.compile(
    r"\bRank\s+(\d{1,7})\s+(?:Group\s+\d{1,7}\s+)?(?:Pid\s+(\d{1,10})\s+)?on\s+(\S{1,256})\s+"
    r"device\s+\d{1,4}\s+\[[^\]]{1,40}\]\s*(.*)"
)
_GPUS = re.compile(r"\bnGpus (\d{1,6})\b")
_PERF = re.compile(r"\b([a-z_]{4,20})_perf(?:_mpi)?\b")
_STARTING = re.compile(r"Collective test starting:\s*(\w{1,40})")
_COLD = re.compile(r"\bwarmup iters:? 0\b")
_REGISTERED = re.compile(r"\s(?:-R|--local_register)[ =]?2\b")
_CPU_TIMES = re.compile(r"\s(?:-C|--report_cputime)[= ]?1\b")
_VERSION = re.compile(r"\b([NR]CCL)[ _][vV]ersion\s*:?\s*(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_LIBRARY = re.compile(r"nccl-library=(\d{4,6})\b")
_SET = re.compile(r"\b(NCCL_[A-Z0-9_]{1,60}) set (?:by environment )?to (\S{1,200})")
_GIVEN = re.compile(
    r"\b(NCCL_[A-Z0-9_]{1,60})=(\"[^\"]{0,200}\"|'[^']{0,200}'|"
    r"[^\s\"',;](?:(?!,(?:\w+=|[A-Z][A-Z0-9]*_))\S){0,199})"
)
"""A variable and its value, which may stand in a list such as --export=ALL,NCCL_ALGO=Ring,PATH."""
_COMMENTED = re.compile(
    r"^\s*#+\s*(?:export|setenv|declare|env|mpirun|mpiexec|srun|-x|--env|-genv)\b"
)
"""A line of a script that does not run; a scheduler's ``#SBATCH`` does."""
_UNSET = re.compile(r"\bunset\b((?:\s+(?:-v\s+)?NCCL_[A-Z0-9_]{1,60})+)")
_ONE_RUN = re.compile(
    r"_perf\b| set by environment to |(?:^|\s)(?:-x|--env|-genv|--export=)|\\\s*$"
)
"""A line whose variables are those of one command, and not of later ones in the log."""
_TELLING = re.compile(r"NCCL|\b(?:FI|HSA|CUDA|OFI)_|NET/")
"""A line that may state a fact besides times."""
_BEGINS = re.compile(r"NCCL version|Bootstrap ?:|cudaDriverVersion|NET/\w+ ?:|Using network")
"""A line that NCCL prints when it starts."""
_REALCOLL = re.compile(r"# realcoll: (\w{1,40}) with (.{1,200}?) on (\w{1,40}): (\d{1,7}) ranks")
_FAILURE = re.compile(r"\b(?:Test )?(?:NCCL|CUDA|RCCL|HIP) failure\b.{0,200}")
_COUNT = re.compile(r"[0-9]{1,18}|[0-9](?:\.[0-9]{1,9})?e\+?[0-9]{1,2}")  # copies round it
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")


class _Reader:
    """Finds the tables in the lines of a log."""

    __slots__ = (
        "_beside",
        "_columns",
        "_complete",
        "_in_ms",
        "_lines",
        "_of_one_run",
        "_run",
        "_skipped",
        "_tables",
    )

    def __init__(self, skipped: Skipped) -> None:
        self._run = MeasuredRun()
        self._of_one_run: set[str] = set()  # names of its variables
        self._columns: list[str] = []  # after type, redop and root
        self._in_ms = False
        self._complete = False
        self._beside = False
        self._tables: list[MeasuredTable] = []
        self._skipped = skipped
        self._lines = 0

    def feed(self, number: int, text: str) -> None:
        """Process a line."""
        self._lines = number
        if _TELLING.search(text):
            if self._complete and _BEGINS.search(text):
                self._next()
            self._run.facts.feed(number, text)
        words = text.split()
        if not _DTYPES.isdisjoint(words) and self._row(number, words):
            return
        if "Rank" in text and (device := _RANK.search(text)):
            if len(self._run.devices) < MAX_RANKS:
                self._run.devices[int(device[1])] = (
                    device[3],
                    device[2] or "",
                    printable(device[4].strip())[:80],
                )
        elif "nThread" in text:
            self._next()
            self._run.gpus_per_thread = int(gpus[1]) if (gpus := _GPUS.search(text)) else 0
            if _COLD.search(text):
                self._skipped.add(
                    number,
                    "no warm-up iterations: times have the setting up of connections and buffers",
                )
        elif "bus bandwidth" in text:
            self._complete = True
        elif " time " in text and (header := _HEADER.search(text)):
            if self._run.rows:
                self._next()
            self._columns = [
                name for name in header[1].split() if name not in {"redop", "op", "root"}
            ]
            self._in_ms = "bytes" in words
        else:
            self._about(number, text)

    def tables(self) -> list[MeasuredTable]:
        """All tables, in order."""
        self._next()
        return self._tables

    def _next(self) -> None:
        """Finish a table, and carry over common information such as the version."""
        run = self._run
        if not run.rows:
            return
        if not self._complete:
            table_place = f"the table of {len(run.rows)} rows before line {self._lines}"
            self._skipped.add(
                0,
                f"{table_place} has no last line '# Avg bus bandwidth': the log is cut off or a "
                "copy",
            )
        table, notes = finish_table(run)
        for note in notes:
            self._skipped.add(0, note)
        self._tables.append(table)
        self._run = MeasuredRun(
            environment=run.environment, library=run.library, version=run.version
        )
        if not self._complete:  # still the same run
            self._run.facts = run.facts
        else:
            self._run.environment = {
                name: value
                for name, value in run.environment.items()
                if name not in self._of_one_run
            }
            self._of_one_run.clear()
        self._columns, self._in_ms, self._complete = [], False, False

    def _about(self, number: int, text: str) -> None:
        """Process a line with information about the run."""
        run = self._run
        if "_perf" in text and "concluded" not in text and (name := _PERF.search(text)):
            self._command(name[1])
            if _REGISTERED.search(text):
                self._run.environment["REGISTERED"] = "1"
            if _CPU_TIMES.search(text):
                self._run.facts.add("times", "of the CPU (-C 1)", number)
                self._skipped.add(
                    number,
                    "times of the CPU (-C 1), which launches an operation and does not wait for it",
                )
        if "Collective test" in text and (name := _STARTING.search(text)):
            self._command(name[1].removesuffix("_perf"))
        if "ersion" in text and (version := _VERSION.search(text)):
            run.library, run.version = version[1].lower(), version[2]
        elif "nccl-library=" in text and not run.version and (library := _LIBRARY.search(text)):
            run.version = version_text(int(library[1]))
        if "NCCL_" in text:
            self._variables(text)
        if "failure" in text and (failure := _FAILURE.search(text)):
            self._run.facts.add("failure", failure[0], number)
            self._skipped.add(number, printable(failure[0]))
        if "realcoll" in text and (report := _REALCOLL.search(text)):
            self._next()
            self._run.collective, self._run.nranks = report[1], int(report[4])
            self._run.library, self._run.version = "realcoll", f"({report[3]})"
        if "Out of bounds" in text and (bounds := _BOUNDS.search(text)) and int(bounds[1]):
            self._skipped.add(number, f"{bounds[1]} values out of bounds in this run")
        if "rccl-tests" in text:
            run.library = "rccl"

    def _command(self, collective: str) -> None:
        """Process a command line, which starts a new table after a complete one, or if its
        collective differs from the rows'.
        """
        if self._run.rows and (self._complete or self._run.collective not in {"", collective}):
            self._next()
        if not self._run.rows:
            self._run.collective = collective

    def _variables(self, text: str) -> None:
        if _COMMENTED.search(text):
            return
        if "unset" in text and (unset := _UNSET.search(text)):
            for name in unset[1].split():
                self._run.environment.pop(name, None)
            return
        settings = [*_SET.findall(text), *_GIVEN.findall(text)]
        if not settings:
            return
        if self._complete:
            self._next()
            self._run.environment = {}
        is_of_one_run = _ONE_RUN.search(text) is not None
        for name, value in settings:
            if len(self._run.environment) < MAX_VARIABLES:
                self._run.environment[name] = printable(value.strip("\"'").rstrip("."))
                (self._of_one_run.add if is_of_one_run else self._of_one_run.discard)(name)

    def _row(self, number: int, words: Sequence[str]) -> bool:
        """Read a row; False for a line that merely mentions a dtype."""
        place = next((p for p in range(2, min(len(words), 40)) if words[p] in _DTYPES), 0)
        if not place or not (_is_whole(words[place - 2]) and _COUNT.fullmatch(words[place - 1])):
            return False
        size, count = int(words[place - 2]), int(float(words[place - 1]))
        cells = list(words[place + 1 :])
        if not self._beside and _begins_row(cells):
            self._beside = True
            self._skipped.add(
                number,
                "another row stands beside this one: two tables side by side, of which the left "
                "one is read; give each table in a file of its own",
            )
        op = cells.pop(0) if cells and cells[0] in OPS else ""
        if not size:
            return True
        if len(self._run.rows) >= MAX_ROWS:
            self._skipped.add(
                number, f"{size} B: beyond the first {MAX_ROWS:,} rows of a table; left out"
            )
            return True
        measurement = self._groups(cells, size, number)
        if isinstance(measurement, str):
            self._skipped.add(number, f"{size} B: {measurement}; left out")
        else:
            self._run.rows.append(MeasuredRow(size, count, words[place], op, *measurement, number))
        return True

    def _groups(
        self, cells: Sequence[str], size: int, number: int
    ) -> tuple[int, int, int, int, float, bool] | str:
        """Parse root, times out of place, in place and of the library, and bus ratio; or return the
        reason for failure.
        """
        tail = self._columns
        times = [column for column, name in enumerate(tail) if name == "time"]
        starts = (*times, *(0, 4, 8)[len(times) :])
        units = (10**12,) if self._in_ms else (10**9,) if tail else (10**9, 10**12)
        for begin in (1, 0) if cells and _is_whole(cells[0].removeprefix("-")) else (0,):
            groups = [cells[begin + start : begin + start + 4] for start in starts[:3]]
            for unit in units:
                time = _time(groups[0], size, unit)
                if not time:
                    continue
                if wrong := _wrong(groups[0]):
                    self._run.facts.add("wrong", "elements", number)
                    return f"{wrong} {WRONG}"
                in_place_fs = _time(groups[1], size, unit)
                if in_place_fs and (wrong := _wrong(groups[1])):
                    self._run.facts.add("wrong", "elements", number)
                    self._skipped.add(
                        number, f"{size} B: {wrong} {WRONG} in place; that time is left out"
                    )
                    in_place_fs = 0
                library_fs = _plain(groups[2][:1], unit) if len(times) > 2 else 0
                algbw, busbw = float(groups[0][1]), float(groups[0][2])
                ratio = busbw / algbw if algbw >= 1 else 0.0
                root = int(cells[0]) if begin else -1
                return root, time, in_place_fs, library_fs, ratio, groups[1][3:4] != ["N/A"]
        return "cut off" if len(cells) < 4 else "size, time and bandwidth do not agree"


_DTYPES = frozenset(ITEMSIZES)


def _begins_row(words: Sequence[str]) -> bool:
    """Whether a row begins in some words: size, count and type."""
    return any(
        words[place] in _DTYPES
        and _is_whole(words[place - 2])
        and _COUNT.fullmatch(words[place - 1]) is not None
        for place in range(2, min(len(words), 60))
    )


def _is_whole(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 19


def _plain(words: Sequence[str], unit: int) -> int:
    """Parse a time to femtoseconds; 0 if invalid."""
    try:
        value = float(words[0]) if words else 0.0
    except ValueError:
        return 0
    return round(value * unit) if 0 < value < MOST_US else 0


def _time(words: Sequence[str], size: int, unit: int) -> int:
    """The time of a group of time, algbw, busbw; 0 if they contradict the size."""
    if len(words) < 3 or not (time := _plain(words, unit)):
        return 0
    try:
        algbw, busbw = float(words[1]), float(words[2])
    except ValueError:
        return 0
    expected = size * 1e6 / time
    coarse = 0.0006 * unit / time if unit > 10**9 else 0.0  # three decimals of a millisecond
    agrees = abs(expected - algbw) <= ROUNDING / 2 + (ROUNDING + coarse) * expected
    return time if agrees and 0 <= busbw <= 2.1 * algbw + ROUNDING else 0


def _wrong(words: Sequence[str]) -> str:
    """The count of wrong elements of a group (in old versions, the error); empty if correct or
    unchecked.
    """
    word = words[3] if len(words) > 3 else "N/A"
    try:
        fine = int(word) == 0 if _is_whole(word) else float(word) <= LARGEST_ERROR
    except ValueError:  # N/A, or a time stamp where no column is
        return ""
    return "" if fine else word[:20]


def load_log(path: FilePath) -> Log:
    """Read all measurements, tuning tables and choices in a log, in one pass and constant memory.

    Raises
    ------
    ConfigError
        When it cannot be read, or is JSON of another kind.
    """
    path = path_of(path, "load_log")
    skipped = Skipped()
    reader, osu, tuning = _Reader(skipped), OsuReader(skipped), TuningReader(skipped)
    titled = TitledReader(skipped)
    pieces = RowPieces(_DTYPES, OPS)
    commented = True
    lines = log_lines(path)
    for number, text in lines:
        if number == 1 and text.strip() == HEADER:
            return Log(in_situ_tables((row for _, row in lines), str(path)), (), (), ())
        if commented and text.lstrip()[:1] == "{" and _is_document(text):
            return Log(tables_of_json(path, MAX_JSON, skipped), (), (), skipped.texts())
        commented = commented and (not text.strip() or text.lstrip().startswith(("//", "/*", "*")))
        titled.feed(number, text)
        for origin, line in pieces.feed(number, text):
            for line_reader in (reader, osu, tuning):
                line_reader.feed(origin, line)
    for origin, line in pieces.end():
        reader.feed(origin, line)
    tables = (*reader.tables(), *osu.tables()) or tuple(titled.tables())
    return Log(tables, tuning.tables(), tuning.choices(), skipped.texts())


def _is_document(first_line: str) -> bool:
    """Whether the first line starts a JSON document; one that also ends it is JSON lines, unless it
    is complete.
    """
    begins = re.match(r'\s*\{\s*("|$)', first_line) is not None
    return begins and ('"results"' in first_line or not first_line.rstrip().endswith("}"))
