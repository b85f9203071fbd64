"""Measured tables of collectives, and what can be inferred from their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from simcoll.core.collective import bus_factor
from simcoll.formats.logs.nccl_tuning import Chosen, TuningTable
from simcoll.formats.logs.run_facts import FactReader, RunFacts

__all__ = [
    "ITEMSIZES",
    "Log",
    "MeasuredRow",
    "MeasuredRun",
    "MeasuredTable",
    "finish_table",
    "version_text",
]

ITEMSIZES = {
    "int8": 1,
    "uint8": 1,
    "char": 1,
    "int32": 4,
    "uint32": 4,
    "int": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float16": 2,
    "float": 4,
    "float32": 4,
    "double": 8,
    "float64": 8,
    "bfloat16": 2,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
}
"""Bytes of an element, by all type names that the programs print."""
RATIO_DIGITS = 0.02
"""Error of a ratio of two bandwidths of few digits."""
_NAMES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One row of a table; times in femtoseconds, 0 if absent.

    Attributes
    ----------
    size_bytes, count, dtype, op, root
        As printed; ``op`` is empty and ``root`` -1 if absent.
    out_of_place_fs, in_place_fs
        The measured times.
    library_fs
        In realcoll's reports: the time of the library's own collective.
    bus_ratio
        Bus over algorithm bandwidth; 0 if they are printed too coarsely.
    checked_in_place
        Whether the in-place result was checked.
    line
        Line of the file, from 1.
    """

    size_bytes: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place_fs: int
    in_place_fs: int = 0
    library_fs: int = 0
    bus_ratio: float = 0.0
    checked_in_place: bool = True
    line: int = 0

    @property
    def time_fs(self) -> int:
        """The time to compare with: the library's own if present, else out of place, else in
        place.
        """
        return self.library_fs or self.out_of_place_fs or self.in_place_fs


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """Measured rows of one collective on one number of ranks.

    Attributes
    ----------
    collective
        simcoll's name, or the printed one of an unknown collective; empty if undetermined.
    nranks, nnodes
        0 if undetermined.
    devices
        Names of the GPUs, without duplicates.
    library, version
        ``nccl``, ``rccl`` or ``realcoll``, and the version, if printed; for realcoll the transport,
        such as ``(nccl)``.
    environment
        Variables of NCCL in the log, with their values; ``LAUNCHER`` is ``one-process`` where one
        process drives all GPUs of a node.
    rows
        In the order of the log.
    guessed
        Whether the collective was inferred from the columns.
    facts
        What else the log says of the run.
    situation
        ``"in situ"`` or ``"in situ, beside computation"`` for services of collectives of a job,
        which have no launch; empty for benchmarks.
    """

    collective: str
    nranks: int
    nnodes: int
    devices: tuple[str, ...]
    library: str
    version: str
    environment: tuple[tuple[str, str], ...]
    rows: tuple[MeasuredRow, ...]
    guessed: bool = False
    facts: RunFacts = field(default_factory=RunFacts)
    situation: str = ""

    def __str__(self) -> str:
        ranks = f"{self.nranks} ranks" if self.nranks else "an unknown number of ranks"
        nodes = f" on {self.nnodes} node{'s' * (self.nnodes != 1)}" if self.nnodes else ""
        by = f", {self.library} {self.version}".rstrip() if self.library else ""
        situation = f", {self.situation}" if self.situation else ""
        return (
            f"{self.collective or 'unknown collective'}, {ranks}{nodes}, {len(self.rows)} "
            f"row{'s' * (len(self.rows) != 1)}{by}{situation}"
        )


@dataclass(frozen=True, slots=True)
class Log:
    """The comparable content of a log, with notes on skipped content and assumptions."""

    tables: tuple[MeasuredTable, ...]
    tuning: tuple[TuningTable, ...]
    choices: tuple[Chosen, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class MeasuredRun:
    """A table under construction; devices are host, process and name by rank."""

    collective: str = ""
    nranks: int = 0
    devices: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    rows: list[MeasuredRow] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    library: str = ""
    version: str = ""
    gpus_per_thread: int = 0
    facts: FactReader = field(default_factory=FactReader)


def finish_table(run: MeasuredRun) -> tuple[MeasuredTable, tuple[str, ...]]:
    """Complete the table of a run, with notes on values inferred from its columns."""
    notes = []
    collective, guessed = _NAMES.get(run.collective, run.collective), not run.collective
    listed = max(run.devices, default=-1) + 1  # copies leave out devices in the middle
    if guessed:
        collective = _collective(run.rows)
        evidence = (
            f"taken for {collective} by its columns"
            if collective
            else "and its columns fit several"
        )
        notes.append(f"the collective is not named, {evidence}")
    inferred = 0 if run.nranks else _nranks(collective, run.rows)
    nranks = run.nranks or max(listed, inferred)
    if not run.nranks and not listed:
        evidence = (
            f"taken for {nranks} by its columns" if nranks else "and its columns do not tell it"
        )
        notes.append(f"the number of ranks is not named, {evidence}")
    elif inferred > listed:
        notes.append(
            f"devices up to rank {listed - 1} are listed, taken for {nranks} ranks by its columns"
        )
    hosts = {host for host, _, _ in run.devices.values()}
    processes = {(host, process) for host, process, _ in run.devices.values()}
    names = tuple(dict.fromkeys(name for _, (_, _, name) in sorted(run.devices.items()) if name))
    amd = any("AMD" in name or "Instinct" in name for name in names)
    library = run.library or ("rccl" if amd else "nccl" if run.version else "")
    environment = tuple(sorted(run.environment.items()))
    # Containers may number processes alike; then a thread still has one GPU.
    shared = run.gpus_per_thread != 1 and all(process for _, process in processes)
    if shared and len(processes) == len(hosts) < len(run.devices):
        environment = (("LAUNCHER", "one-process"), *environment)
    rows = tuple(run.rows)
    table = MeasuredTable(
        collective,
        nranks,
        len(hosts) if inferred <= listed else 0,
        names,
        library,
        run.version,
        environment,
        rows,
        guessed,
        run.facts.facts(),
    )
    return table, tuple(notes)


def _collective(rows: Sequence[MeasuredRow]) -> str:
    """The collective with such columns; empty if ambiguous."""
    largest = max(rows, key=lambda row: row.size_bytes)
    counts_everything = largest.count * ITEMSIZES.get(largest.dtype, 1) >= largest.size_bytes
    rooted = largest.root >= 0
    ratios = [row.bus_ratio for row in rows if row.bus_ratio]
    if not largest.op and not largest.count and ratios and median(ratios) > 1 + RATIO_DIGITS:
        return "all_reduce"  # the only one whose bus bandwidth exceeds the algorithm's
    if largest.op not in {"", "none"}:
        return ("reduce" if rooted else "all_reduce") if counts_everything else "reduce_scatter"
    if counts_everything:
        return "broadcast" if rooted else ""
    if rooted:
        return ""
    # nccl-tests cannot check an all-to-all in place.
    return "all_gather" if largest.in_place_fs and largest.checked_in_place else ""


def _nranks(collective: str, rows: Sequence[MeasuredRow]) -> int:
    """Infer the number of ranks from a rank's share of the size, or from bus over algorithm
    bandwidth.
    """
    largest = max(rows, key=lambda row: row.size_bytes)
    part = largest.count * ITEMSIZES.get(largest.dtype, 1)
    shared = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}
    if collective in shared and part:
        return round(largest.size_bytes / part)
    exact = [row for row in rows if row.bus_ratio]
    if collective not in {"all_reduce", *shared} or not exact:
        return 0
    ratio = median(row.bus_ratio for row in exact)
    candidates = [n for n in range(2, 129) if abs(bus_factor(collective, n) - ratio) < 0.3 / n**2]
    return candidates[0] if len(candidates) == 1 else 0


def version_text(version: int) -> str:
    """Format NCCL's version number.

    >>> version_text(22703), version_text(2408)
    ('2.27.3', '2.4.8')
    """
    base = 10_000 if version >= 10_000 else 1000
    return f"{version // base}.{version % base // 100}.{version % 100}"
