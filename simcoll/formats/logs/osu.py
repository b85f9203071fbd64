"""Read tables of the OSU micro-benchmarks: a title with library and collective, then rows of size
and mean time.

Sizes are OSU's: the bytes of one block for an allgather, alltoall, gather or scatter. The number of
ranks is only in the command line (``mpirun -n 16``), if the log has it.
"""

from __future__ import annotations

import re

from simcoll.formats.logs.log_lines import Skipped
from simcoll.formats.logs.measured import (
    ITEMSIZES,
    MeasuredRow,
    MeasuredRun,
    MeasuredTable,
    finish_table,
)
from simcoll.terminal import printable

__all__ = ["OsuReader"]

MAX_ROWS = 10_000
MAX_TABLES = 10_000
MOST_US = 1e10
_COLLECTIVES = {
    "Allreduce": "all_reduce",
    "Allgather": "all_gather",
    "All-to-All Personalized Exchange": "all_to_all",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "Reduce_scatter": "reduce_scatter",
    "Reduce Scatter": "reduce_scatter",
    "Gather": "gather",
    "Scatter": "scatter",
}
_OF_BLOCKS = frozenset({"all_gather", "all_to_all", "gather", "scatter"})
_TITLE = re.compile(r"# OSU (?:(MPI|NCCL|RCCL)(?:-\w{1,20})? (.{1,60}?) Latency Test\b|.{1,60})")
_TYPE = re.compile(r"# Datatype: MPI_(\w{1,20})")
_LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|srun|prterun)\b")
_RANKS = re.compile(r"\s(?:-np|-n|--n|--ntasks)[ =](\d{1,6})\b")
_ROW = re.compile(r"(?:^|[\s:>\]])(\d{1,18})\s+(\d{1,12}\.\d{1,6})(?=\s|$)")


class OsuReader:
    """Incremental reader of OSU tables in a log."""

    __slots__ = ("_dtype", "_nranks", "_run", "_skipped", "_tables")

    def __init__(self, skipped: Skipped) -> None:
        self._run: MeasuredRun | None = None
        self._nranks = 0
        self._dtype = ""
        self._tables: list[MeasuredTable] = []
        self._skipped = skipped

    def feed(self, number: int, text: str) -> None:
        """Process a line."""
        if (launcher := _LAUNCHER.search(text)) and (ranks := _RANKS.search(text, launcher.end())):
            self._nranks = int(ranks[1])
        elif title := _TITLE.search(text) if "# OSU " in text else None:
            self._begin(number, title)
        elif self._run is None:
            return
        elif kind := _TYPE.search(text):
            self._dtype = kind[1].lower() if kind[1].lower() in ITEMSIZES else ""
        elif row := _ROW.search(text):
            self._row(number, int(row[1]), float(row[2]))

    def tables(self) -> list[MeasuredTable]:
        """All tables, in order."""
        self._end()
        return self._tables

    def _begin(self, number: int, title: re.Match[str]) -> None:
        self._end()
        collective = _COLLECTIVES.get(title[2], "")
        if not collective:
            self._skipped.add(
                number, f"{printable(title[0][2:])} is not of a collective known here; left out"
            )
        elif collective in _OF_BLOCKS and not self._nranks:
            self._skipped.add(
                number,
                f"sizes of {title[0][2:]} are those of a block, and no command line such as "
                "'mpirun -n 16' before it says how many there "
                "are; left out",
            )
        elif len(self._tables) < MAX_TABLES:
            self._run = MeasuredRun(collective, self._nranks, library=title[1].lower())
            self._dtype = ""

    def _row(self, number: int, size: int, time_us: float) -> None:
        run = self._run
        if run is None or len(run.rows) >= MAX_ROWS or not size or not 0 < time_us < MOST_US:
            return
        size_bytes = size * run.nranks if run.collective in _OF_BLOCKS else size
        op = "sum" if "reduce" in run.collective else ""
        rooted = run.collective in {"broadcast", "reduce", "gather", "scatter"}
        count = size // ITEMSIZES.get(self._dtype, 1)
        run.rows.append(
            MeasuredRow(
                size_bytes,
                count,
                self._dtype,
                op,
                0 if rooted else -1,
                round(time_us * 10**9),
                line=number,
            )
        )

    def _end(self) -> None:
        run, self._run = self._run, None
        if run is None or not run.rows:
            return
        if run.nranks:
            table, notes = finish_table(run)
        else:  # its columns do not tell them
            table = MeasuredTable(run.collective, 0, 0, (), run.library, "", (), tuple(run.rows))
            notes = ("the number of ranks is not named, and its columns do not tell it",)
        for note in notes:
            self._skipped.add(0, note)
        self._tables.append(table)
