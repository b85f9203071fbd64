"""Goodput files: useful training time under failures, checkpoints, restarts, spares and slow
nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, TypeAlias

import msgspec

from simcoll.errors import ConfigError, blamed_on, nearest
from simcoll.files.output import csv_bytes
from simcoll.files.paths import shipped_files
from simcoll.files.strict import convert_table, read_file
from simcoll.files.text import parse_toml
from simcoll.planning.costs import HOURS_OF_YEAR
from simcoll.planning.grids.grid import Point, PointGrid, Row
from simcoll.planning.reliability.design_job import DesignJob, time_design_job
from simcoll.planning.reliability.failures import PPM, Cause, Slowness, TrainingJob, simulate
from simcoll.planning.reliability.renewal import renewal, young_daly
from simcoll.units import (
    MAX_SPAN_US,
    UBPS_PER_BPS,
    format_span,
    number_of,
    parse_rate,
    parse_span,
)

__all__ = [
    "Goodput",
    "GoodputFile",
    "goodput_csv",
    "goodput_grid",
    "goodput_of",
    "job_of",
    "simulate_point",
]

MAX_BYTES = 2**20
MAX_CASES, MAX_SEEDS = 10_000, 100_000
MAX_FAILURES = 10**6
"""Failures of a job in one simulation: half a minute."""
HOUR_US = 3600 * 10**6
UBPS_PER_GBPS = UBPS_PER_BPS * 10**9
SWEPT = ("job", "checkpoint", "storage", "restart", "spares")
"""Tables whose lists are swept."""
SPENT = ("useful", "slow", "checkpoint", "lost", "detect", "restart", "waiting")


class _JobTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    design: str = ""
    gpus: int = 0
    gpus_per_node: int = 0
    replica_gpus: int = 0
    tokens_per_second: float = 0.0
    usd_per_gpu_hour: float = 0.0


class _Checkpoint(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    save: str = ""
    blocking: str = ""
    interval: str = "young"


class _CheckpointStorage(
    msgspec.Struct,
    forbid_unknown_fields=True,
    frozen=True,
    kw_only=True,
    rename={"write_rate": "write", "read_rate": "read"},
):
    write_rate: str = ""
    read_rate: str = ""
    usd_per_gb_per_s: float = 0.0
    depreciation_years: float = 4.0


class _Restart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    load: str
    detect: str = "0"


class _Spares(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    nodes: int = 0
    repair: str = "0"


Part: TypeAlias = Literal["gpu", "node", "nic", "switch", "cable"]


class _Failure(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    cause: str
    gpu_hours: float | None = None
    part: Part = "gpu"
    hours: float | None = None
    count: int = 1
    shape: float = 1.0
    nodes: int = 0
    repair: str = ""
    repair_shape: float = 0.0


class _Straggler(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    gpu_hours: float
    longer: float
    noticed: str
    repair: str = "0"


class _FailureTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    failure: list[_Failure]


class GoodputFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A goodput file with one case."""

    title: str
    job: _JobTable
    restart: _Restart
    days: float = 0.0
    tokens: str = ""
    checkpoint: _Checkpoint = _Checkpoint()
    storage: _CheckpointStorage = _CheckpointStorage()
    failures: str = ""
    failure: list[_Failure] = []
    straggler: _Straggler | None = None
    spares: _Spares = _Spares()
    seeds: int = 20


@dataclass(frozen=True, slots=True)
class _JobCase:
    """A case of a file with what its design says: the tables, and the job's facts."""

    content: GoodputFile
    design: DesignJob | None
    gpus: int
    node_size: int
    tokens_per_second: float
    usd_per_hour: float


def _expand(document: Mapping[str, Any], file: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Expand a file to its cases, with the values that differ between them."""
    axes = {
        f"{table}.{key}": value
        for table in SWEPT
        if isinstance(document.get(table), dict)
        for key, value in document[table].items()
        if isinstance(value, list)
    }
    if any(not values for values in axes.values()):
        empty = next(name for name, values in axes.items() if not values)
        raise ConfigError("an empty list; give at least one value", file=file, path=f"$.{empty}")
    if math.prod(map(len, axes.values())) > MAX_CASES:
        raise ConfigError(f"more than {MAX_CASES:,} cases; split the file", file=file)
    cases = []
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        case = {
            key: dict(value) if key in SWEPT and isinstance(value, dict) else value
            for key, value in document.items()
        }
        for place, value in chosen.items():
            table, _, key = place.partition(".")
            case[table][key] = value
        cases.append((case, chosen))
    return cases


def goodput_grid(path: Path) -> tuple[str, PointGrid]:
    """The title of a goodput file, and its cases with every seed as points.

    Raises
    ------
    ConfigError
        When it cannot be read, does not fit the format, or has invalid values.
    """
    file = str(path)
    points: list[Point] = []
    title = ""
    for tables, chosen in _expand(parse_toml(read_file(path, MAX_BYTES), file), file):
        with blamed_on(file):
            case = _case_of(convert_table(tables, GoodputFile), path.parent)
            content = case.content
            title, job = content.title, _training_job(case)
            tokens = number_of(content.tokens, "$.tokens") if content.tokens else 0
            span_us = _span_us(content, tokens, case.tokens_per_second)
            _refuse_too_many(job, span_us)
        interval = None
        if case.design is not None and not content.job.tokens_per_second:
            interval = case.design.interval
        shared = {
            "case": chosen,
            "job": asdict(job),
            "span_us": span_us,
            "gpus": case.gpus,
            "tokens": tokens,
            "tokens_per_second": case.tokens_per_second,
            "usd_per_hour": case.usd_per_hour,
            "interval": None if interval is None else interval.to_row(),
        }
        points += [{**shared, "seed": seed} for seed in range(content.seeds)]
    return title, PointGrid(simulate_point, tuple(points))


def _case_of(content: GoodputFile, folder: Path) -> _JobCase:
    """A case with the facts of its design."""
    _check_numbers(content)
    job = content.job
    design = time_design_job((folder / job.design).resolve()) if job.design else None
    if design is None and not job.gpus:
        raise ConfigError("missing; expected gpus, or a design", path="$.job.gpus")
    if design is not None and job.gpus not in {0, design.gpus}:
        raise ConfigError(
            f"{job.gpus} GPUs, but the design has {design.gpus}; leave gpus out",
            path="$.job.gpus",
        )
    gpus = job.gpus if design is None else design.gpus
    node_size = job.gpus_per_node or (8 if design is None else design.gpus_per_node)
    for place, value in (("gpus", gpus), ("replica_gpus", job.replica_gpus)):
        if value % node_size:
            raise ConfigError(
                f"{value} GPUs are no whole number of nodes of {node_size}", path=f"$.job.{place}"
            )
    spare_gpus = content.spares.nodes * node_size
    price = job.usd_per_gpu_hour * (gpus + spare_gpus)
    if design is not None and not price:
        price = design.usd_per_hour(spare_gpus)
    price += _storage_usd_per_hour(content.storage)
    rate = job.tokens_per_second or (0.0 if design is None else design.tokens_per_second)
    return _JobCase(content, design, gpus, node_size, rate, price)


def _storage_usd_per_hour(storage: _CheckpointStorage) -> float:
    """Dollars for an hour of storage that is priced by the rate at which it can be written."""
    price, years = storage.usd_per_gb_per_s, storage.depreciation_years
    if not price:
        return 0.0
    rate_uBps = parse_rate(storage.write_rate or "0 GB/s", path="$.storage.write")
    if not rate_uBps:
        raise ConfigError(
            'a price by rate needs storage.write, such as "50 GB/s"',
            path="$.storage.usd_per_gb_per_s",
        )
    return price * rate_uBps / UBPS_PER_GBPS / (years * HOURS_OF_YEAR)


def _span_us(content: GoodputFile, tokens: int, tokens_per_second: float) -> int:
    """The simulated time: as stated, or what the tokens take without failures."""
    if content.days or not tokens:
        return _whole_us(content.days, 86400 * 10**6, "days", "$.days")
    if not tokens_per_second:
        raise ConfigError(
            "tokens need the job's speed: give job.tokens_per_second, or a design", path="$.tokens"
        )
    return _whole_us(tokens / tokens_per_second / 86400, 86400 * 10**6, "days", "$.tokens")


def _whole_us(value: float, unit_us: int, name: str, path: str) -> int:
    if not 0 < value * unit_us <= MAX_SPAN_US:
        raise ConfigError(
            f"{name}: expected a number above 0 and at most a hundred years, got {value}", path=path
        )
    return max(1, int(Fraction(repr(value)) * unit_us))


def job_of(content: GoodputFile, folder: Path = Path()) -> TrainingJob:
    """The job of a file; ``folder`` is that of the file, for a design that it names.

    Raises
    ------
    ConfigError
        With the path of an invalid number.
    """
    return _training_job(_case_of(content, folder))


def _check_numbers(content: GoodputFile) -> None:
    """Refuse numbers out of range."""
    job = content.job
    for place, value, minimum in (
        ("gpus", job.gpus, 0 if job.design else 1),
        ("gpus_per_node", job.gpus_per_node, 0),
        ("replica_gpus", job.replica_gpus, 0),
    ):
        if not minimum <= value < 2**31:
            raise ConfigError(
                f"expected a whole number from {minimum} to {2**31 - 1}, got {value}",
                path=f"$.job.{place}",
            )
    for place in ("tokens_per_second", "usd_per_gpu_hour"):
        if not 0 <= getattr(job, place) < math.inf:
            raise ConfigError(
                f"expected a number of at least 0, got {getattr(job, place)}", path=f"$.job.{place}"
            )
    storage = content.storage
    if not 0 <= storage.usd_per_gb_per_s < math.inf:
        raise ConfigError(
            f"expected dollars of at least 0, got {storage.usd_per_gb_per_s}",
            path="$.storage.usd_per_gb_per_s",
        )
    if not 0 < storage.depreciation_years < math.inf:
        raise ConfigError(
            f"expected years above 0, got {storage.depreciation_years}",
            path="$.storage.depreciation_years",
        )
    if job.replica_gpus and job.gpus and job.gpus % job.replica_gpus:
        raise ConfigError(
            f"{job.gpus} GPUs are no whole number of replicas of {job.replica_gpus}",
            path="$.job.replica_gpus",
        )
    if not 0 <= content.spares.nodes < 2**31:
        raise ConfigError(
            f"expected a number of nodes, got {content.spares.nodes}", path="$.spares.nodes"
        )
    if not 1 <= content.seeds <= MAX_SEEDS:
        raise ConfigError(f"expected 1 to {MAX_SEEDS:,} seeds, got {content.seeds}", path="$.seeds")


def _training_job(case: _JobCase) -> TrainingJob:
    """The job of a case."""
    content = case.content
    nodes = case.gpus // case.node_size
    causes = tuple(_cause(failure, case, place) for place, failure in _failures(content))
    saving, blocking = _checkpoint_us(case)
    load = parse_span(content.restart.load, path="$.restart.load")
    if content.storage.read_rate:
        load += _transfer_us(case, "read")
    slow = content.straggler
    return TrainingJob(
        nodes=nodes,
        interval_us=_interval(content.checkpoint.interval, blocking, saving, causes),
        blocking_us=blocking,
        saving_us=saving,
        detect_us=parse_span(content.restart.detect, path="$.restart.detect"),
        load_us=load,
        causes=causes,
        slowness=None if slow is None else _slowness(slow, case.gpus),
        spares=content.spares.nodes,
        replica_nodes=content.job.replica_gpus // case.node_size,
    )


def _failures(content: GoodputFile) -> Iterator[tuple[str, _Failure]]:
    """The causes of a file and of the table that it names, each with its place."""
    for number, failure in enumerate(content.failure):
        yield f"$.failure[{number}]", failure
    if not content.failures:
        return
    shipped = shipped_files("scenarios/failures")
    name = content.failures
    if name not in shipped:
        raise ConfigError(f"unknown table {name!r}; {nearest(name, shipped)}", path="$.failures")
    table = convert_table(parse_toml(read_file(shipped[name], MAX_BYTES), name), _FailureTable)
    for failure in table.failure:
        yield "$.failures", failure


def _checkpoint_us(case: _JobCase) -> tuple[int, int]:
    """Microseconds until a checkpoint is safe, and for which it stops training."""
    checkpoint = case.content.checkpoint
    if checkpoint.save:
        saving = parse_span(checkpoint.save, path="$.checkpoint.save")
    elif case.content.storage.write_rate:
        saving = _transfer_us(case, "write")
    else:
        raise ConfigError(
            "missing; expected a time, or storage.write and a design", path="$.checkpoint.save"
        )
    blocking = saving
    if checkpoint.blocking == "copy":
        if case.design is None:
            raise ConfigError(
                "'copy' needs a design, whose GPUs copy their share to their hosts; or give a time",
                path="$.checkpoint.blocking",
            )
        blocking = case.design.copy_us
    elif checkpoint.blocking:
        blocking = parse_span(checkpoint.blocking, path="$.checkpoint.blocking")
    if blocking > saving:
        raise ConfigError(
            f"a checkpoint cannot stop training for longer ({format_span(blocking)}) than it "
            f"takes ({format_span(saving)})",
            path="$.checkpoint.blocking",
        )
    return saving, blocking


def _transfer_us(case: _JobCase, direction: str) -> int:
    """Microseconds to write or read a checkpoint of the design."""
    if case.design is None:
        raise ConfigError("needs a design, for the size of a checkpoint", path="$.storage")
    text = getattr(case.content.storage, f"{direction}_rate")
    rate_uBps = parse_rate(text, path=f"$.storage.{direction}")
    if not rate_uBps:
        raise ConfigError("expected a rate above 0", path=f"$.storage.{direction}")
    return max(1, case.design.checkpoint_bytes * UBPS_PER_BPS * 10**6 // rate_uBps)


def _refuse_too_many(job: TrainingJob, span_us: int) -> None:
    """Refuse a job that fails more often than can be simulated."""
    means = [cause.mean_us for cause in job.causes] + (
        [job.slowness.mean_us] if job.slowness else []
    )
    expected = sum(span_us // mean_us for mean_us in means)
    if expected > MAX_FAILURES:
        raise ConfigError(
            f"{expected:,} failures in all, one every {span_us / expected / 1e6:.3g} s: more than "
            f"{MAX_FAILURES:,}",
            path="$.failure",
        )


def _cause(failure: _Failure, case: _JobCase, place: str) -> Cause:
    for name, value in (("shape", failure.shape), ("repair_shape", failure.repair_shape or 1.0)):
        if not 0.1 <= value <= 20:
            raise ConfigError(
                f"expected the shape of a Weibull distribution, 0.1 to 20, got {value}",
                path=f"{place}.{name}",
            )
    if failure.count < 1 or failure.nodes < 0:
        raise ConfigError(
            f"expected a count of at least 1 and no fewer than 0 nodes, got {failure.count} and "
            f"{failure.nodes}",
            path=place,
        )
    if (failure.gpu_hours is None) == (failure.hours is None):
        raise ConfigError("expected either gpu_hours, or hours of a part", path=place)
    repair_us = (
        parse_span(failure.repair, path=f"{place}.repair")
        if failure.repair
        else parse_span(case.content.spares.repair, path="$.spares.repair")
    )
    key = "gpu_hours" if failure.hours is None else "hours"
    parts = case.gpus if failure.hours is None else _parts(failure, case, place)
    hours = getattr(failure, key) / failure.count / parts
    mean_us = _whole_us(hours, HOUR_US, key, f"{place}.{key}")
    return Cause(
        failure.cause, mean_us, failure.shape, failure.nodes, repair_us, failure.repair_shape
    )


def _parts(failure: _Failure, case: _JobCase, place: str) -> int:
    """How many parts can fail from a cause."""
    nodes = case.gpus // case.node_size
    if case.design is not None:
        return max(1, case.design.parts(failure.part, nodes))
    # Without a design, every GPU has its NIC; switches and cables are unknown.
    counts = {"gpu": case.gpus, "node": nodes, "nic": case.gpus}
    if failure.part not in counts:
        raise ConfigError(
            f"failures of a {failure.part} need a design, whose network is counted",
            path=f"{place}.part",
        )
    return counts[failure.part]


def _slowness(straggler: _Straggler, gpus: int) -> Slowness:
    if not 0 < straggler.longer <= 100:
        raise ConfigError(
            f"expected by how much a step is longer, such as 0.1, got {straggler.longer}",
            path="$.straggler.longer",
        )
    return Slowness(
        _whole_us(straggler.gpu_hours / gpus, HOUR_US, "gpu_hours", "$.straggler.gpu_hours"),
        round(straggler.longer * PPM),
        parse_span(straggler.noticed, path="$.straggler.noticed"),
        parse_span(straggler.repair, path="$.straggler.repair"),
    )


def _interval(text: str, blocking_us: int, saving_us: int, causes: Sequence[Cause]) -> int:
    """Training time between checkpoints, never shorter than the write of the previous one."""
    place = "$.checkpoint.interval"
    if text in {"young", "daly"}:
        if not causes:
            raise ConfigError(
                f"interval {text!r} follows from failures, and there are none", path=place
            )
        mtbf_us = int(1 / sum(Fraction(1, cause.mean_us) for cause in causes))
        interval_us = young_daly(blocking_us, mtbf_us, higher_order=text == "daly")
        return max(1, interval_us, saving_us - blocking_us)
    try:
        interval_us = parse_span(text, what="interval", path=place)
    except ConfigError as error:
        raise ConfigError(f"{error.message}; or 'young' or 'daly'", path=place) from None
    least_us = max(1, saving_us - blocking_us)
    if interval_us < least_us:
        raise ConfigError(
            f"{text}: the checkpoint before would still be written; expected at least "
            f"{format_span(least_us)}",
            path=place,
        )
    return interval_us


def _job_of_point(described: Mapping[str, Any]) -> TrainingJob:
    """The job of a point."""
    slow = described["slowness"]
    causes = tuple(Cause(**cause) for cause in described["causes"])
    return TrainingJob(
        **{**described, "causes": causes, "slowness": None if slow is None else Slowness(**slow)}
    )


def simulate_point(point: Point) -> dict[str, Any]:
    """Simulate one case with one seed, as a point of the grid."""
    spent = simulate(_job_of_point(point["job"]), point["span_us"], point["seed"])
    return {
        "goodput": spent.useful / point["span_us"],
        **asdict(spent),
        "causes": dict(sorted(spent.causes.items())),
    }


@dataclass(frozen=True, slots=True)
class Goodput:
    """A case over its seeds.

    Attributes
    ----------
    case
        The values that differ between cases.
    interval_us
        Training time between checkpoints.
    mean, error, low, high
        Share of useful training time: mean over seeds, its standard error, and the 5th and 95th
        percentile of the seeds.
    formula
        Result of :func:`renewal`, where it holds.
    shares
        Breakdown of the time in shares, by the fields of
        :class:`~simcoll.planning.reliability.failures.Spent`.
    interruptions
        Number over the whole time, mean over seeds.
    tokens_per_second, usd_per_mtoken
        Of retained training; 0 if the file lacks the job's speed or price.
    days, usd
        To train the file's tokens: median, 5th and 95th percentile of the seeds; empty without
        tokens, or prices.
    step_error
        How far predictions of steps of the class of the job's design were from published ones, as
        :meth:`~simcoll.training.step_intervals.StepInterval.to_row` gives it; empty for a job whose
        speed is stated.
    ideal_tokens_per_second
        Of the job without failures.
    """

    case: Mapping[str, Any]
    interval_us: int
    mean: float
    error: float
    low: float
    high: float
    formula: float | None
    shares: Mapping[str, float]
    interruptions: float
    tokens_per_second: float = 0.0
    usd_per_mtoken: float = 0.0
    days: tuple[float, ...] = ()
    usd: tuple[float, ...] = ()
    step_error: Mapping[str, Any] = field(default_factory=dict)
    ideal_tokens_per_second: float = 0.0


def goodput_of(rows: Sequence[Row]) -> list[Goodput]:
    """The cases of the rows of a grid, in its order."""
    cases: dict[bytes, list[Row]] = {}
    for row in rows:
        cases.setdefault(msgspec.json.encode(row["point"]["case"], order="sorted"), []).append(row)
    return [_case(case_rows) for case_rows in cases.values()]


def _case(rows: Sequence[Row]) -> Goodput:
    point = rows[0]["point"]
    job = _job_of_point(point["job"])
    goodputs = sorted(row["result"]["goodput"] for row in rows)
    count, average = len(goodputs), mean(goodputs)
    useful_rate = point["tokens_per_second"] * average
    dollars = point["usd_per_hour"] / 3600
    fifth, last = (count - 1) // 20, count - 1
    quantiles = [goodputs[place] for place in (last // 2, last - fifth, fifth)]
    ideal_days = point["tokens"] / (point["tokens_per_second"] or 1) / 86400
    days = tuple(ideal_days / share if share else math.inf for share in quantiles)
    return Goodput(
        case=point["case"],
        interval_us=job.interval_us,
        mean=average,
        error=stdev(goodputs) / math.sqrt(count) if count > 1 else 0.0,
        low=goodputs[fifth],
        high=goodputs[last - fifth],
        formula=renewal(job),
        shares={
            name: mean(row["result"][name] for row in rows) / point["span_us"] for name in SPENT
        },
        interruptions=mean(row["result"]["interruptions"] for row in rows),
        tokens_per_second=useful_rate,
        usd_per_mtoken=dollars / useful_rate * 1e6 if useful_rate else 0.0,
        days=days if point["tokens"] else (),
        usd=tuple(dollars * 86400 * span for span in days) if point["tokens"] and dollars else (),
        step_error=point["interval"] or {},
        ideal_tokens_per_second=point["tokens_per_second"],
    )


def goodput_csv(cases: Sequence[Goodput]) -> bytes:
    """The cases as CSV."""
    columns = (
        "interval_us",
        "low",
        "high",
        "formula",
        "interruptions",
        "tokens_per_second",
        "usd_per_mtoken",
    )
    rows = [
        {**case.case, "goodput": case.mean, "standard_error": case.error, **case.shares}
        | {name: getattr(case, name) for name in columns}
        | _quantiles(case)
        for case in cases
    ]
    axes = list(cases[0].case) if cases else []
    heads = [*axes, columns[0], "goodput", "standard_error", *columns[1:], *SPENT]
    return csv_bytes([*heads, *(_quantiles(cases[0]) if cases else ())], rows)


def _quantiles(case: Goodput) -> dict[str, float]:
    """Days and dollars by column: median, 5th and 95th percentile; and the factors of a step's
    time between which nine of ten published steps of its class are.
    """
    ends = case.step_error.get("90", ())
    return {
        f"{figure}_{percent}": value
        for figure, values in (("days", case.days), ("usd", case.usd))
        for percent, value in zip((50, 5, 95), values, strict=False)
    } | dict(zip(("step_factor_5", "step_factor_95"), ends, strict=False))
