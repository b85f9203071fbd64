"""Compare measured tables with a library's predictions: ratios, and ranges that deviate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from simcoll.errors import ConfigError, nearest
from simcoll.files.strict import read_start
from simcoll.formats.logs.measured import Log, MeasuredRow, MeasuredTable
from simcoll.formats.logs.nccl_tests import WRONG
from simcoll.formats.recognise import TITLES, recognise
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import (
    Environment,
    element_names,
    from_settings,
    parse_environment,
)
from simcoll.libraries.fitting import WARM_UP, LibraryFormula, formula
from simcoll.libraries.library import Library, library_for
from simcoll.libraries.prediction import COLLECTIVES, Prediction, predict
from simcoll.libraries.variables import unknown_variable
from simcoll.planning.measured.log_parameters import LogParameters
from simcoll.planning.measured.log_variables import effective_variables
from simcoll.planning.sweeps.nccl_tests_table import Column, microseconds, table_line, titles
from simcoll.terminal import printable
from simcoll.topology import Topology, load_topology, topology_of_job
from simcoll.topology.file_layers import layers_of, refuse_other_nodes
from simcoll.units import counted, format_size

__all__ = [
    "BANDS",
    "CORRUPT",
    "BandError",
    "Compared",
    "Setting",
    "band_errors",
    "band_lines",
    "blame_log",
    "check_request",
    "compare",
    "comparison_lines",
    "deviations",
    "other_generation",
    "settings_for",
    "within_line",
]

BANDS = (
    ("below 64 KiB", 0, 2**16),
    ("64 KiB to 64 MiB", 2**16, 2**26),
    ("from 64 MiB", 2**26, 2**62),
)
"""Size bands, dominated by latency, protocol and bandwidth."""
DEVIATES = 1.25
"""Ratio of predicted and measured time above which a row is reported."""
CORRUPT = (
    "find out why first: PCIe ACS or the IOMMU between GPUs (NCCL_P2P_DISABLE=1 tells), NICs and "
    "GPUDirect RDMA (NCCL_NET_GDR_LEVEL=LOC tells), a link or memory with errors (dmesg, ECC)"
)
"""Where to look when a collective computes wrong results."""
_OF_LOGS = {"nccl-tests", "nccl-tests-json", "osu", "text", "json", "in-situ"}
"""Kinds of files of which nothing is said where they have no row."""
_GPU = re.compile(r"\b(?:A|V|L|G?[BH])[0-9]{2,3}\b|\bMI[0-9]{3}X?\b")
"""Names of data-center GPUs."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A measured table, and the inputs of its prediction."""

    table: MeasuredTable
    topology: Topology
    library: Library
    environment: Environment

    def __str__(self) -> str:
        elements = [name for name in (self.environment.dtype, self.environment.op) if name]
        elements_text = f", {' '.join(elements)}" if elements else ""
        return f"{self.table}{elements_text} on {self.topology.name}"

    def formula(
        self, library: Library | None = None, environment: Environment | None = None
    ) -> LibraryFormula:
        """The library's formula for the table, optionally with another library or environment."""
        collective = self.table.collective
        return formula(
            collective, self.topology, library or self.library, environment or self.environment
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured row and its prediction."""

    row: MeasuredRow
    prediction: Prediction

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.prediction.time_fs / self.row.time_fs

    @property
    def within(self) -> Literal["50%", "90%", "outside"]:
        """The interval of the prediction that the measured time is in: ``"50%"`` or ``"90%"``;
        ``"outside"`` if in neither.
        """
        prediction, time_fs = self.prediction, self.row.time_fs
        if prediction.low50_fs <= time_fs <= prediction.high50_fs:
            return "50%"
        return "90%" if prediction.low90_fs <= time_fs <= prediction.high90_fs else "outside"


def check_request(topology: str, environment: str) -> None:
    """Refuse an unknown topology or variable before a log is read, which is not to blame for it."""
    layers_of(topology)
    parse_environment(environment)


@contextmanager
def blame_log(log: Log, file: str | Path) -> Iterator[None]:
    """Add the log's file name, and the first notes on skipped content, to errors."""
    try:
        yield
    except ConfigError as error:
        kind = None if log.tables else recognise(read_start(file))
        of_another_kind = [] if kind is None or kind in _OF_LOGS else [f"this is {TITLES[kind]}"]
        message = "; ".join([*of_another_kind, error.message, *log.notes[:3]])
        raise (error if error.file else ConfigError(message, file=str(file))) from None


def _notes_on_times(table: MeasuredTable) -> Iterator[str]:
    """What sets a table's times apart from those of a library's collective alone."""
    if table.library == "realcoll" and not all(row.library_fs for row in table.rows):
        yield " times schedules of realcoll's own, not those that the library would choose"
    elif (table.library == "realcoll" and table.version != "(nccl)") or table.library == "mpi":
        yield " has the times of another library's collectives, not NCCL's"
    if table.library == "simcoll":
        yield " is a prediction of simcoll perf; nothing was measured"
    if table.situation:
        yield (
            f": measured {table.situation}, from the last arrival on and so without a launch; the "
            "prediction is of a collective alone, with its launch"
        )


def settings_for(
    log: Log,
    topology: str,
    parameters: LogParameters = LogParameters(),  # noqa: B008 - it cannot change
) -> tuple[list[Setting], list[str]]:
    """The settings to predict a log's tables with, and notes on tables without a prediction.

    Parameters
    ----------
    topology
        As for :func:`~simcoll.topology.load_topology`.
    parameters
        What the log does not say, or what replaces it; tables of other collectives than the one
        named here are skipped.

    Raises
    ------
    ConfigError
        When no table remains.
    """
    collective, nodes, library = parameters.collective, parameters.nodes, parameters.library
    environment = parameters.environment
    if collective is not None and collective not in COLLECTIVES:
        raise ConfigError(
            f"no library model for collective {collective!r}; {nearest(collective, COLLECTIVES)}"
        )
    chosen_environment = parse_environment(environment)
    settings, notes = [], []
    if (alone := _single_ranks(log)) is not None:
        raise ConfigError(alone)
    tables = [part for table in log.tables for part in _of_one_type(table)]
    for number, table in enumerate(tables, 1):
        subject = f"table {number} ({table})" if len(tables) > 1 else f"the table ({table})"
        open_to = table.guessed or not table.collective
        resolved_table = replace(table, collective=collective) if collective and open_to else table
        if collective not in {None, resolved_table.collective}:
            notes.append(f"{subject} is left out: --collective asks for {collective}")
            continue
        if resolved_table.collective not in COLLECTIVES:
            reason = (
                f"simcoll has no model of {resolved_table.collective!r}"
                if resolved_table.collective
                else "--collective says which one it is"
            )
            notes.append(f"{subject} is left out: {reason}")
            continue
        variables, contradicted = effective_variables(dict(table.environment), table.facts)
        notes += [f"{subject}: {contradiction}" for contradiction in contradicted]
        resolved_table = replace(resolved_table, environment=tuple(variables.items()))
        table_environment, ignored = (
            _environment(variables) if not environment else (chosen_environment, [])
        )
        table_environment = _with_elements(table_environment, table)
        notes += [f"{subject}: {variable} in the log is ignored" for variable in ignored]
        notes += [
            f"{subject}: {wrong}"
            for name, _ in table.environment
            if (wrong := unknown_variable(name)) is not None
        ]
        notes += [f"{subject}{note}" for note in _notes_on_times(table)]
        if nodes is not None and table.nnodes not in {0, nodes}:
            notes.append(
                f"{subject} is of {counted(table.nnodes, 'node')} in the log; predicted for "
                f"--nodes {nodes}"
            )
        machine = _machine(resolved_table, topology, nodes)
        if fabric := _fabric_of_log(table, machine):
            machine = replace(machine, traits={**machine.traits, "fabric": fabric})
            notes.append(f"{subject}: fabric {fabric}, by the NICs in the log")
        if (other_gpu := _other_gpu(table.devices, machine)) is not None:
            notes.append(
                f"{subject} is of {other_gpu}, topology {machine.name!r} has "
                f"{machine.traits['gpu']}"
            )
        boxes = len(set(machine.groups["box"].tolist())) if "box" in machine.groups else 0
        if nodes is None and 0 < table.nnodes < boxes:
            notes.append(
                f"{subject} is of {counted(table.nnodes, 'node')} in the log, and on topology "
                f"{machine.name!r} its ranks need {boxes}: is it another machine?"
            )
        model = library_for(library or ("rccl" if table.library == "rccl" else None), machine)
        settings.append(
            Setting(
                replace(resolved_table, nranks=machine.nranks),
                machine,
                model,
                table_environment,
            )
        )
    if not log.tables and any(WRONG in note for note in log.notes):
        raise ConfigError(
            f"all rows have wrong results, so their times count for nothing; {CORRUPT}"
        )
    if not settings:
        raise ConfigError(
            "; ".join(notes)
            if notes
            else "there is no row of nccl-tests' table in it, of its JSON or of OSU's table, nor a "
            "table with titles that name a size and a time or algorithm bandwidth"
        )
    return settings, notes


def _of_one_type(table: MeasuredTable) -> list[MeasuredTable]:
    """The parts of a table with one element type and reduction each, as of nccl-tests' -d all."""
    parts: dict[tuple[str, str], list[MeasuredRow]] = {}
    for row in table.rows:
        parts.setdefault((row.dtype, row.op), []).append(row)
    return [replace(table, rows=tuple(rows)) for rows in parts.values()]


def _with_elements(environment: Environment, table: MeasuredTable) -> Environment:
    """The environment with the element type and the reduction of a table, where it names none."""
    if table.situation:  # rows in situ count bytes, of whatever type
        return environment
    dtype, op = element_names(table.rows[0].dtype, table.rows[0].op)
    return replace(environment, dtype=environment.dtype or dtype, op=environment.op or op)


def _single_ranks(log: Log) -> str | None:
    """Why a log has tables of one rank only, which move nothing; None for other logs."""
    tables = len(log.tables)
    # Tables after the first have no devices where all processes print theirs at the beginning.
    ranks = {table.nranks for table in log.tables}
    if not ranks or not ranks <= {0, 1} or 1 not in ranks:
        return None
    if tables == 1:
        return (
            "a table of one rank, which moves nothing: nccl-tests runs on the GPUs of -g and -t, "
            "and on several processes of mpirun only if it was built with make MPI=1"
        )
    return (
        f"{tables} tables of a single rank each, which move nothing: nccl-tests was built without "
        "MPI, so that each process ran alone; rebuild it with make MPI=1"
    )


def _other_gpu(devices: tuple[str, ...], machine: Topology) -> str | None:
    """A device of a log whose name is of another GPU than the machine's."""
    machine_models = _GPU.findall(machine.traits.get("gpu", "").upper())
    return next(
        (
            name
            for name in devices
            if machine_models and (of := _GPU.findall(name.upper())) and machine_models[0] not in of
        ),
        None,
    )


def other_generation(devices: tuple[str, ...], machine: Topology) -> str | None:
    """A device of a log whose GPU is of another generation than the machine's, as a H800 beside a
    H100 is not.
    """
    name = _other_gpu(devices, machine)
    if name is None:
        return None
    log_letters, machine_letters = (
        {model.removeprefix("G")[0] for model in _GPU.findall(text.upper())}
        for text in (name, machine.traits.get("gpu", ""))
    )
    return None if log_letters & machine_letters else name


def _fabric_of_log(table: MeasuredTable, machine: Topology) -> str:
    """The fabric that a log's NICs name, for a topology of several nodes without one."""
    if machine.traits.get("fabric") or table.nnodes < 2:
        return ""
    devices = " ".join(table.facts.values("NICs"))
    if "/RoCE" in devices:
        return "roce"
    return "ib" if "/IB" in devices else ""


def _environment(settings: dict[str, str]) -> tuple[Environment, list[str]]:
    """NCCL's variables in a log's environment."""
    ignored = []
    for name in list(settings):
        try:
            from_settings({name: settings[name]})
        except ConfigError:
            ignored.append(f"{name}={settings.pop(name)}")
    return from_settings(settings), ignored


def _machine(table: MeasuredTable, name: str, nodes: int | None) -> Topology:
    """The topology with the table's number of nodes and ranks."""
    if nodes is not None:
        refuse_other_nodes(name, nodes)
    if not table.nranks:
        return load_topology(name, nodes=nodes or table.nnodes or None)
    if nodes is None and table.nnodes:
        try:
            return topology_of_job(name, table.nranks, nodes=table.nnodes)
        except ConfigError:  # hosts of one name, or a topology whose number of nodes is fixed
            pass
    try:
        return topology_of_job(name, table.nranks, nodes=nodes)
    except ConfigError as error:
        if "ranks were requested" not in error.message:
            raise
        raise ConfigError(
            f"{error.message}, as in the log; choose --nodes or another topology"
        ) from None


def compare(
    setting: Setting,
    calibration: Calibration | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Compared]:
    """Predict every row; calls ``progress(sizes done, total sizes, next size)``."""
    of_size = partial(
        predict,
        setting.table.collective,
        topology=setting.topology,
        library=setting.library,
        calibration=calibration,
        environment=setting.environment,
    )
    sizes = sorted({row.size_bytes for row in setting.table.rows})
    predictions = {}
    for number, size in enumerate(sizes):
        if progress is not None:
            progress(number, len(sizes), format_size(size))
        predictions[size] = of_size(size)
    return [Compared(row, predictions[row.size_bytes]) for row in setting.table.rows]


class BandError(NamedTuple):
    """Relative errors of the rows in a band of sizes.

    Attributes
    ----------
    band, rows
        Name of the band, and number of its rows.
    median, ninth
        Median and 90th percentile.
    """

    band: str
    rows: int
    median: float
    ninth: float


def band_errors(ratios: Iterable[tuple[int, float]]) -> list[BandError]:
    """Number of rows, median and 90th percentile of the relative error of each non-empty band, from
    sizes and ratios.

    >>> band_errors([(8, 1.1), (16, 0.8)])
    [BandError(band='below 64 KiB', rows=2, median=0.15, ninth=0.2)]
    """
    pairs = list(ratios)
    bands: list[BandError] = []
    for name, low, high in BANDS:
        errors = sorted(abs(ratio - 1) for size, ratio in pairs if low <= size < high)
        if errors:
            ninth = errors[min(len(errors) - 1, 9 * len(errors) // 10)]
            bands.append(BandError(name, len(errors), round(median(errors), 6), round(ninth, 6)))
    return bands


def deviations(rows: Sequence[Compared], *, limited: bool = False) -> list[str]:
    """Describe ranges of sizes with errors above a quarter, and rows faster than the lower bound.

    Parameters
    ----------
    limited
        Whether rows are predicted with causes that the log names, whose cost is partly assumed.
    """
    ordered = sorted(rows, key=lambda row: row.row.size_bytes)
    remarks = []
    if len(ordered) > 1 and ordered[0].row.time_fs > WARM_UP * ordered[1].row.time_fs:
        times = ordered[0].row.time_fs / ordered[1].row.time_fs
        remarks.append(
            f"{format_size(ordered[0].row.size_bytes)} took {times:.1f} times the next size: "
            "probably warm-up"
        )
    run: list[Compared] = []
    for row in [*ordered, None]:
        side = 0 if row is None else (row.ratio > DEVIATES) - (row.ratio < 1 / DEVIATES)
        last = 0 if not run else (1 if run[0].ratio > 1 else -1)
        if run and side != last:
            remarks.append(_range(run))
            run = []
        if side and row is not None:
            run.append(row)
    fast = [row for row in rows if row.row.time_fs < row.prediction.bound_fs]
    if fast:
        names = ", ".join(format_size(row.row.size_bytes) for row in fast[:4]) + (
            ", ..." if len(fast) > 4 else ""
        )
        reason = (
            "the machine as the log describes it: what the log names costs less than assumed"
            if limited
            else "this topology: the machine is another one, or the time is wrong"
        )
        remarks.append(f"{names}: measured is less than the bound of {reason}")
    return remarks


def _range(run: Sequence[Compared]) -> str:
    """Describe a range that deviates to one side."""
    sizes = format_size(run[0].row.size_bytes)
    if run[-1].row.size_bytes != run[0].row.size_bytes:  # several rows may have one size
        sizes += f" to {format_size(run[-1].row.size_bytes)}"
    factors = sorted(1 / row.ratio for row in run)
    low, high = f"{factors[0]:.2f}", f"{factors[-1]:.2f}"
    return f"{sizes}: measured is {low if low == high else f'{low} to {high}'} times the prediction"


_COLUMNS: tuple[Column, ...] = (
    ("size", "(B)", 13),
    ("measured", "(us)", 11),
    ("predicted", "(us)", 11),
    ("pred/meas", "", 10),
    ("within", "", 9),
    ("bound", "(us)", 11),
)


def comparison_lines(rows: Sequence[Compared]) -> Iterator[str]:
    """The lines of the table of measured time, predicted time and lower bound.

    Of a size that was measured several times, one line has the median.
    """
    numbers = Counter(row.row.size_bytes for row in rows)
    if len(numbers) < len(rows):
        yield f"# measured is the median of the rows of a size, {_numbers_text(numbers)}"
        rows = _medians(rows)
    names, units = titles(_COLUMNS)
    chosen = [f"{row.prediction.algorithm} {row.prediction.protocol}" for row in rows]
    width = max(map(len, chosen), default=0)
    yield f"{names}  {'predicted is':<{width}}  bottleneck of the bound"
    yield units
    for row, choice in zip(rows, chosen, strict=True):
        times = (row.row.time_fs, row.prediction.time_fs, row.prediction.bound_fs)
        measured, predicted, bound = (microseconds(time / 1e9) for time in times)
        cells = (row.row.size_bytes, measured, predicted, f"{row.ratio:.2f}", row.within, bound)
        bottleneck = printable(row.prediction.bottleneck)
        yield f"{table_line(_COLUMNS, cells)}  {choice:<{width}}  {bottleneck}".rstrip()


def _medians(rows: Sequence[Compared]) -> list[Compared]:
    """One row of each size, with the median of its times."""
    of_size: dict[int, list[Compared]] = {}
    for row in rows:
        of_size.setdefault(row.row.size_bytes, []).append(row)
    medians = []
    for size_rows in of_size.values():
        time_fs = round(median(row.row.time_fs for row in size_rows))
        sample = size_rows[0]
        middle = replace(sample.row, out_of_place_fs=time_fs, in_place_fs=0, library_fs=0)
        medians.append(replace(sample, row=middle))
    return medians


def _numbers_text(numbers: Counter[int]) -> str:
    """How many rows each size has, such as ``"2 to 14 of each"``."""
    low, high = min(numbers.values()), max(numbers.values())
    return f"{low} of each" if low == high else f"{low} to {high} of each"


def within_line(rows: Sequence[Compared]) -> str:
    """How many measured times are within the intervals of their predictions."""
    half = sum(row.within == "50%" for row in rows)
    within_90 = half + sum(row.within == "90%" for row in rows)
    return f"within 90 %: {within_90} of {counted(len(rows), 'row')}, within 50 %: {half}"


def band_lines(ratios: Iterable[tuple[int, float]]) -> Iterator[str]:
    """Lines with median and 90th percentile of the error by band."""
    for error in band_errors(ratios):
        rows = f"{error.rows} row{'s' * (error.rows != 1)}"
        quantiles = f"median {error.median:.0%}, 90th percentile {error.ninth:.0%}"
        yield f"{error.band}: {quantiles} of {rows}"
