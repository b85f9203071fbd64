"""Time and compare designs of training steps: all in tier 1, the best and the Pareto front in tier
2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from simcoll.errors import ConfigError, blamed_on
from simcoll.files.output import csv_bytes
from simcoll.planning.designs.decision import interval_of, typical_best
from simcoll.planning.designs.figures import FIGURES, better_of, pareto_front
from simcoll.planning.designs.mapping_search import MachineSearch, MappingSearch, machine_of
from simcoll.planning.designs.merit import Bill, bill_of, figures_of
from simcoll.planning.designs.nearest_fit import alternative_name, missing_alternatives
from simcoll.planning.designs.row_cache import cached_result
from simcoll.planning.designs.space import Space, errors_of_alternative
from simcoll.planning.grids.grid import GridRun, Point, PointGrid, Row
from simcoll.topology.machine import beyond_pcie
from simcoll.training.design import Design, design_from
from simcoll.training.evidence import evidence_by_rate
from simcoll.training.memory import memory_by_stage
from simcoll.training.step_result import StepResult
from simcoll.training.steps import step
from simcoll.workload.class_clock import Clock
from simcoll.workload.workload import Workload

__all__ = [
    "Bar",
    "bars_of",
    "best_of",
    "design_of",
    "designs_csv",
    "distinct",
    "exact_grid",
    "exposure_grid",
    "firsts",
    "front_figures",
    "latest",
    "notes_of",
    "open_search",
    "search_grid",
    "space_grid",
    "tight_of",
    "time_design",
]

MOST_BARS = 2500
_NUMBERS = re.compile(r"[\d.,]+")
"""What differs between the reasons of designs that exceed the same limit."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval on a lane of a timeline, in femtoseconds."""

    lane: str
    name: str
    begin_fs: int
    end_fs: int


def space_grid(space: Space, search: MappingSearch | None = None) -> PointGrid:
    """The designs that a space lists, and the first ones of its search, as a grid."""
    searched_points = search.next_points(()) if search else ()
    return PointGrid(time_design, (*space.points(1), *searched_points))


def open_search(space: Space, budget: int = 0) -> MappingSearch | None:
    """Enumerate the mappings of the machines of a space; None if it lists all designs.

    Parameters
    ----------
    budget
        The most designs to time. Default: the file's.

    Raises
    ------
    ConfigError
        When a machine is invalid.
    """
    if not space.machines:
        return None
    by_memory = space.objective.figure == "memory_gib"
    with blamed_on(space.file):
        machines = tuple(_machine_of(point, by_memory=by_memory) for point in space.machines)
    return MappingSearch(machines, budget or space.budget)


def _machine_of(point: Point, *, by_memory: bool) -> MachineSearch:
    with errors_of_alternative(point["case"].get("alternative", "")):
        return machine_of(point, by_memory=by_memory)


def search_grid(rows: Sequence[Row], search: MappingSearch | None) -> PointGrid | None:
    """The designs that a search times next; None at its end."""
    points = search.next_points(rows) if search else ()
    return PointGrid(time_design, points) if points else None


def exposure_grid(rows: Sequence[Row], space: Space, count: int) -> PointGrid:
    """The best designs again in tier 1, with the exposed time of each axis."""
    best, front = best_of(rows, space)
    typical = typical_best(best, space.objective.figure)
    chosen = {row["key"]: row for row in (*best[:count], *front, *firsts(best), typical)}
    return PointGrid(
        time_design, tuple({**row["point"], "exposed": True} for row in chosen.values())
    )


def time_design(point: Point) -> dict[str, Any]:
    """Time one design.

    A design that exceeds the memory or a limit of its size is not timed, and one that exceeds a
    limit of days or dollars is; ``fits`` gives the reason.

    Raises
    ------
    ConfigError
        For an invalid design: a mesh that does not fill the cluster, a batch that does not divide.
    """
    try:
        design = design_from(point["design"], file="plan")
    except ConfigError as error:
        raise ConfigError(error.message, path=error.path) from None
    memory = memory_by_stage(design)
    worst = max(memory, key=lambda stage: stage.total)
    parts = {
        part: getattr(worst, part)
        for part in ("weights", "gradients", "optimizer", "activations", "buffers")
    }
    bill = bill_of(design, point["terms"])
    excess = _excess(design, worst.total, bill, point["terms"]["limits"])
    shared = {
        "fits": "yes" if excess is None else str(excess),
        "memory_bytes": worst.total,
        "memory": parts,
        "gpus": design.topology.nranks,
    }
    if excess is not None:
        return {**shared, "excess": excess.share}
    exposed = point.get("exposed", point["tier"] == 2)
    if point["tier"] == 1:  # which takes a millisecond or two, not much longer than to find a file
        outcome = _outcome(design, 1, exposed=exposed)
    else:
        tables = (point["design"], exposed)
        outcome = cached_result(tables, design, lambda: _outcome(design, 2, exposed=exposed))
    speed = {**outcome["speed"], "memory_gib": worst.total / 2**30, "gpus": design.mesh.nranks}
    figures = figures_of(speed, bill, point["terms"])
    timed = {**shared, **figures, "cost": bill.parts, **outcome["breakdown"]}
    return _within_limits(timed, point["terms"]["limits"])


def _outcome(design: Design, tier: int, *, exposed: bool) -> dict[str, Any]:
    """Speed and breakdown of a design's step, for a row."""
    result = step(design, tier=tier, exposed=exposed)
    speed = {
        "tokens_per_second": result.tokens_per_second,
        "step_s": result.seconds,
        "mfu": result.mfu,
    }
    return {"speed": speed, "breakdown": _breakdown(design, result)}


def _within_limits(timed: dict[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a design that was timed, held against the limits of days and dollars.

    One within a limit that the slow end of its interval exceeds has a note.
    """
    notes = []
    for name in ("days", "usd"):
        limit = limits.get(name, 0)
        if not limit:
            continue
        if timed[name] > limit:
            excess = f"needs {_amount(name, timed[name])}, limit {_amount(name, limit)}"
            return {**timed, "fits": excess, "excess": timed[name] / limit}
        span = interval_of(timed, name)
        if span and span[1] > limit:
            slow = _amount(name, float(f"{span[1]:.3g}"))
            notes.append(
                f"within the limit of {_amount(name, limit)}, but its 90 % interval ends at {slow}"
            )
    return {**timed, "notes": [*timed["notes"], *notes]}


def _amount(name: str, value: float) -> str:
    """Days or dollars, with their unit.

    >>> _amount("days", 41.234), _amount("usd", 5e6)
    ('41.2 days', '$5,000,000')
    """
    text = FIGURES[name].text(value)
    return f"${text}" if name == "usd" else f"{text} {FIGURES[name].unit}"


@dataclass(frozen=True, slots=True)
class _Excess:
    """A limit that a design exceeds."""

    value: float
    limit: float
    unit: str

    @property
    def share(self) -> float:
        """The value, relative to its limit."""
        return self.value / self.limit

    def __str__(self) -> str:
        return f"{self.value:,.1f} of {self.limit:,.1f} {self.unit}"


def _excess(
    design: Design, memory_bytes: int, bill: Bill, limits: Mapping[str, Any]
) -> _Excess | None:
    """The first limit that a design exceeds, or None."""
    totals = (
        _Excess(memory_bytes / 2**30, design.memory_limit / 2**30, "GiB"),
        _Excess(design.mesh.nranks, limits["gpus"], "GPUs"),
        _Excess(bill.usd_per_hour, limits["usd_per_hour"], "$ an hour"),
        _Excess(bill.kilowatts, limits["kilowatts"], "kW"),
    )
    return next((total for total in totals if total.limit and total.value > total.limit), None)


def _breakdown(design: Design, result: StepResult) -> dict[str, Any]:
    """The breakdown of a step for a row."""
    return {
        "tier": result.tier,
        "time_fs": result.time_fs,
        "compute_fs": result.compute_fs,
        "bubble_fs": result.bubble_fs,
        "slower_fs": result.slower_fs,
        "axes": {
            name: {"total_fs": axis.total_fs, "exposed_fs": axis.exposed_fs, "bytes": axis.bytes}
            for name, axis in result.axes.items()
        },
        "hfu": result.hfu,
        "bound_fs": result.bound_fs,
        "limit": result.limit,
        "link_use": dict(result.link_use),
        "design_hash": result.design_hash,
        "calibration": result.calibration,
        "trace_hash": result.trace_hash,
        "lacks": list(result.lacks),
        "gpu": result.gpu,
        "rates": evidence_by_rate(result.rates),
        "interval": result.interval.to_row() if result.interval else None,
        "notes": [*result.notes, *filter(None, [beyond_pcie(design.topology)])],
    }


def best_of(rows: Sequence[Row], space: Space) -> tuple[list[Row], list[Row]]:
    """The rows that ran, best first, and those on the Pareto front.

    Raises
    ------
    ConfigError
        When no design ran.
    """
    ran = [row for row in rows if row.get("result", {}).get("fits") == "yes"]
    if not ran:
        wrong = sum("error" in row for row in rows)
        reasons = "".join(
            f"; {missing.name}{': ' * bool(missing.name)}{missing.reason}"
            for missing in missing_alternatives(rows)
        )
        counts = [tight_of(rows)] if tight_of(rows) else []
        if wrong:
            counts.append(f"{wrong:,} {'is' if wrong == 1 else 'are'} impossible")
        raise ConfigError(
            f"none of {len(rows):,} designs ran: {'; '.join(counts)}{reasons}",
            file=space.file,
        )
    figures = front_figures(space, ran[0]["result"])
    results = [row["result"] for row in ran]
    front = [ran[place] for place in pareto_front(results, figures)]
    key = better_of(space.objective.figure)
    leading = {row["key"] for row in front}

    def rank(row: Row) -> tuple[float, bool, float, int, str]:
        """Of equals, first what is on the front, then what needs less memory, then what splits the
        model less.
        """
        parallel = row["point"].get("design", {}).get("parallel", {})
        parts = prod(int(parallel.get(axis) or 1) for axis in ("tp", "cp", "pp", "virtual"))
        memory_gib = float(row["result"].get("memory_gib", 0))
        return key(row["result"]), row["key"] not in leading, memory_gib, parts, row["key"]

    return sorted(ran, key=rank), sorted(front, key=rank)


def distinct(best: Sequence[Row]) -> list[Row]:
    """Designs without those that a better one of the same machine equals in time and memory: their
    mappings differ in what makes no difference there.
    """
    unequal: dict[tuple[object, ...], Row] = {}
    for row in best:
        result = row["result"]
        outcome = (result["tier"], result["time_fs"], result["memory_bytes"])
        unequal.setdefault((alternative_name(row["point"]["case"]), *outcome), row)
    return list(unequal.values())


def tight_of(rows: Sequence[Row]) -> str:
    """How many designs exceed each limit, with the first of them; empty if all fit."""
    units: dict[str, list[str]] = {}
    for row in rows:
        fits = row.get("result", {}).get("fits", "yes")
        if fits != "yes":
            units.setdefault(_NUMBERS.sub("", fits), []).append(fits)
    return ", ".join(
        f"1 does not fit: {reasons[0]}"
        if len(reasons) == 1
        else f"{len(reasons):,} do not fit (the first: {reasons[0]})"
        for reasons in units.values()
    )


def firsts(best: Sequence[Row]) -> list[Row]:
    """The best design of every alternative, or machine of a list."""
    best_of_alternative: dict[str, Row] = {}
    for row in best:
        best_of_alternative.setdefault(alternative_name(row["point"]["case"]), row)
    return list(best_of_alternative.values())


def front_figures(space: Space, result: Mapping[str, Any]) -> tuple[str, ...]:
    """The figures of the Pareto front: as requested; else the objective with cost or memory, or
    with speed for an efficiency.
    """
    if space.objective.pareto:
        return space.objective.pareto
    chosen = space.objective.figure
    if any(word in chosen for word in ("usd", "dollar", "per_gpu", "mfu")):
        return (chosen, "tokens_per_second")
    return (chosen, "usd_per_mtoken" if "usd_per_mtoken" in result else "memory_gib")


def exact_grid(rows: Sequence[Row], space: Space, exact: int) -> PointGrid | None:
    """The designs to time in tier 2 next: of the best overall, the best by typical errors, the best
    of each alternative and the Pareto front, those in tier 1.

    None when all of them are in tier 2: no design leads only because tier 1 overrates it.
    """
    best, front = best_of(rows, space)
    typical = typical_best(best, space.objective.figure)
    chosen = {
        row["key"]: row
        for row in (*best[:exact], *front, *firsts(best), typical)
        if row["result"]["tier"] == 1
    }
    return (
        PointGrid(time_design, tuple({**row["point"], "tier": 2} for row in chosen.values()))
        if chosen
        else None
    )


def latest(runs: Sequence[GridRun]) -> list[Row]:
    """Each design once, as the last run timed it."""
    return list({_of(row): row for run in runs for row in run.rows}.values())


def notes_of(rows: Sequence[Row]) -> list[str]:
    """The notes on some designs; one that is not on all of them names its first."""
    about: dict[str, list[Row]] = {}
    for row in rows:
        for note in row["result"]["notes"]:
            about.setdefault(note, []).append(row)
    return [
        note if len(on) == len(rows) else f"{_short_name(on[0], rows, len(on) - 1)}: {note}"
        for note, on in about.items()
    ]


def _short_name(row: Row, rows: Sequence[Row], further: int) -> str:
    """A design by what tells it from others, and the number of further ones."""
    case = row["point"]["case"]
    differ = [
        name for name in case if len({str(rival["point"]["case"].get(name)) for rival in rows}) > 1
    ]
    return ", ".join(f"{name} {case[name]}" for name in differ) + (
        f" and {further} more" if further else ""
    )


def _of(row: Row) -> str:
    return repr(row["point"]["case"])


def design_of(row: Row) -> Design:
    """The design of a row."""
    return design_from(row["point"]["design"], file="plan")


def bars_of(workload: Workload, clock: Clock) -> list[Bar]:
    """The first part of a step, with consecutive repetitions merged to one bar."""
    bars: list[Bar] = []
    last: dict[str, int] = {}
    order: dict[str, tuple[int, str]] = {}
    classes = {name: place for place, name in enumerate(workload.classes)}
    operations = workload.unroll()
    for span in sorted(clock.spans, key=lambda span: (span.begin_fs, span.on, span.stream)):
        if span.end_fs == span.begin_fs:
            continue
        lane, name = (
            f"{span.on} {span.stream}",
            operations[span.operation].name or span.stream,
        )
        order[lane] = classes[span.on], span.stream
        previous = last.get(lane)
        if (
            previous is not None
            and bars[previous].name == name
            and bars[previous].end_fs == span.begin_fs
        ):
            bars[previous] = replace(bars[previous], end_fs=span.end_fs)
            continue
        if len(bars) == MOST_BARS:
            break
        last[lane] = len(bars)
        bars.append(Bar(lane, name, span.begin_fs, span.end_fs))
    return sorted(bars, key=lambda bar: (order[bar.lane], bar.begin_fs))


def designs_csv(rows: Sequence[Row]) -> bytes:
    """Designs as CSV, one line each, with the reason why a design does not fit or is invalid."""
    axes = list(dict.fromkeys(name for row in rows for name in row["point"]["case"]))
    figures = ("time_fs", "compute_fs", "slower_fs", "bubble_fs", "bound_fs")
    parts = (*figures, "hfu", "limit", "design_hash")
    exposed = list(
        dict.fromkeys(name for row in rows for name in row.get("result", {}).get("axes", ()))
    )
    names = [
        *axes,
        "tier",
        "fits",
        *FIGURES,
        *parts,
        *(f"{name}_exposed_fs" for name in exposed),
        "error",
    ]
    return csv_bytes(names, map(_columns, rows))


def _columns(row: Row) -> dict[str, object]:
    result = row.get("result", {})
    tier2 = {
        f"{name}_exposed_fs": axis["exposed_fs"]
        for name, axis in result.get("axes", {}).items()
        if result["tier"] == 2
    }
    tier = {"tier": result.get("tier", ""), "error": row.get("error", "")}
    memory = {"memory_gib": result["memory_bytes"] / 2**30} if "memory_bytes" in result else {}
    return {**row["point"]["case"], **memory, **result, **tier2, **tier}
