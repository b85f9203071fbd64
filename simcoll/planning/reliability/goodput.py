"""Goodput files: useful training time under failures, checkpoints, restarts, spares and slow
nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import msgspec

from simcoll.errors import ConfigError, blamed_on
from simcoll.files.output import csv_bytes
from simcoll.files.strict import convert_table, read_file
from simcoll.files.text import parse_toml
from simcoll.planning.grids.grid import Point, PointGrid, Row
from simcoll.planning.reliability.failures import PPM, Cause, Slowness, TrainingJob, simulate
from simcoll.planning.reliability.renewal import renewal, young_daly
from simcoll.units import MAX_SPAN_US, format_span, parse_span

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
SWEPT = ("job", "checkpoint", "restart", "spares")
"""Tables whose lists are swept."""
SPENT = ("useful", "slow", "checkpoint", "lost", "detect", "restart", "waiting")


class _JobTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    gpus: int
    gpus_per_node: int = 8
    replica_gpus: int = 0
    tokens_per_second: float = 0.0
    usd_per_gpu_hour: float = 0.0


class _Checkpoint(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    save: str
    blocking: str = ""
    interval: str = "young"


class _Restart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    load: str
    detect: str = "0"


class _Spares(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    nodes: int = 0


class _Failure(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    cause: str
    gpu_hours: float
    count: int = 1
    shape: float = 1.0
    nodes: int = 0
    repair: str = "0"
    repair_shape: float = 0.0


class _Straggler(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    gpu_hours: float
    longer: float
    noticed: str
    repair: str = "0"


class GoodputFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A goodput file with one case."""

    title: str
    days: float
    job: _JobTable
    checkpoint: _Checkpoint
    restart: _Restart
    failure: list[_Failure] = []
    straggler: _Straggler | None = None
    spares: _Spares = _Spares()
    seeds: int = 20


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
    for case, chosen in _expand(parse_toml(read_file(path, MAX_BYTES), file), file):
        with blamed_on(file):
            content = convert_table(case, GoodputFile)
            title, job = content.title, job_of(content)
            span_us = _whole_us(content.days, 86400 * 10**6, "days", "$.days")
            _refuse_too_many(job, span_us)
        shared = {
            "case": chosen,
            "job": asdict(job),
            "span_us": span_us,
            "gpus": content.job.gpus,
            "tokens_per_second": content.job.tokens_per_second,
            "usd_per_gpu_hour": content.job.usd_per_gpu_hour,
        }
        points += [{**shared, "seed": seed} for seed in range(content.seeds)]
    return title, PointGrid(simulate_point, tuple(points))


def _whole_us(value: float, unit_us: int, name: str, path: str) -> int:
    if not 0 < value * unit_us <= MAX_SPAN_US:
        raise ConfigError(
            f"{name}: expected a number above 0 and at most a hundred years, got {value}", path=path
        )
    return max(1, int(Fraction(repr(value)) * unit_us))


def job_of(content: GoodputFile) -> TrainingJob:
    """The job of a file.

    Raises
    ------
    ConfigError
        With the path of an invalid number.
    """
    job = content.job
    for place, value, minimum in (
        ("gpus", job.gpus, 1),
        ("gpus_per_node", job.gpus_per_node, 1),
        ("replica_gpus", job.replica_gpus, 0),
    ):
        if not minimum <= value < 2**31:
            raise ConfigError(
                f"expected a whole number, at least {minimum}, got {value}", path=f"$.job.{place}"
            )
    for place in ("tokens_per_second", "usd_per_gpu_hour"):
        if not 0 <= getattr(job, place) < math.inf:
            raise ConfigError(
                f"expected a number of at least 0, got {getattr(job, place)}", path=f"$.job.{place}"
            )
    for place, value in (("gpus", job.gpus), ("replica_gpus", job.replica_gpus)):
        if value % job.gpus_per_node:
            raise ConfigError(
                f"{value} GPUs are no whole number of nodes of {job.gpus_per_node}",
                path=f"$.job.{place}",
            )
    if job.replica_gpus and job.gpus % job.replica_gpus:
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
    causes = tuple(
        _cause(failure, job.gpus, f"$.failure[{number}]")
        for number, failure in enumerate(content.failure)
    )
    saving = parse_span(content.checkpoint.save, path="$.checkpoint.save")
    blocking = (
        parse_span(content.checkpoint.blocking, path="$.checkpoint.blocking")
        if content.checkpoint.blocking
        else saving
    )
    if blocking > saving:
        raise ConfigError(
            f"a checkpoint cannot stop training for longer ({content.checkpoint.blocking}) than it "
            f"takes ({content.checkpoint.save})",
            path="$.checkpoint.blocking",
        )
    slow = content.straggler
    return TrainingJob(
        nodes=job.gpus // job.gpus_per_node,
        interval_us=_interval(content.checkpoint.interval, blocking, saving, causes),
        blocking_us=blocking,
        saving_us=saving,
        detect_us=parse_span(content.restart.detect, path="$.restart.detect"),
        load_us=parse_span(content.restart.load, path="$.restart.load"),
        causes=causes,
        slowness=None if slow is None else _slowness(slow, job.gpus),
        spares=content.spares.nodes,
        replica_nodes=job.replica_gpus // job.gpus_per_node,
    )


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


def _cause(failure: _Failure, gpus: int, place: str) -> Cause:
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
    repair_us = parse_span(failure.repair, path=f"{place}.repair")
    mean_us = _whole_us(
        failure.gpu_hours / failure.count / gpus, HOUR_US, "gpu_hours", f"{place}.gpu_hours"
    )
    return Cause(
        failure.cause, mean_us, failure.shape, failure.nodes, repair_us, failure.repair_shape
    )


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
    paid = point["gpus"] * Fraction(job.nodes + job.spares, job.nodes)
    dollars = point["usd_per_gpu_hour"] * float(paid) / 3600
    return Goodput(
        case=point["case"],
        interval_us=job.interval_us,
        mean=average,
        error=stdev(goodputs) / math.sqrt(count) if count > 1 else 0.0,
        low=goodputs[(count - 1) // 20],
        high=goodputs[-1 - (count - 1) // 20],
        formula=renewal(job),
        shares={
            name: mean(row["result"][name] for row in rows) / point["span_us"] for name in SPENT
        },
        interruptions=mean(row["result"]["interruptions"] for row in rows),
        tokens_per_second=useful_rate,
        usd_per_mtoken=dollars / useful_rate * 1e6 if useful_rate else 0.0,
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
        for case in cases
    ]
    axes = list(cases[0].case) if cases else []
    return csv_bytes([*axes, columns[0], "goodput", "standard_error", *columns[1:], *SPENT], rows)
