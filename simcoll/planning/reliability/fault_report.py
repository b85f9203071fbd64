"""Outcomes of faults as lines, rows and a picture."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simcoll.files.output import csv_bytes
from simcoll.planning.reliability.faults import KINDS, FaultKind, Outcome, Replanned, percentile
from simcoll.units import format_time

Outcomes = Mapping[FaultKind, Sequence[Outcome]]

__all__ = [
    "PERCENTILES",
    "fault_lines",
    "faults_csv",
    "faults_svg",
    "replanned_lines",
    "results_hash",
    "worst",
]

PERCENTILES = (50, 95, 99)


def fault_lines(outcomes: Outcomes, whole_fs: int) -> Iterator[str]:
    """A line for each kind: number of runs that finish with their largest slow-down, and that raise
    with the latest time.
    """
    heads = "".join(f"{f'p{share}':>9}" for share in PERCENTILES)
    yield (
        f"# {'fault':<8}{'runs':>6}{'finish':>8}{heads}{'most':>9}{'raise':>7}"
        f"  {'within':>10}  seed of the worst"
    )
    for kind, runs in outcomes.items():
        finished = [run for run in runs if not run.raised]
        raised = [run for run in runs if run.raised]
        times = [run.time_fs for run in finished]
        longer = (
            [_times(percentile(times, share), whole_fs) for share in (*PERCENTILES, 100)]
            if times
            else ["-"] * 4
        )
        within = format_time(max(run.time_fs for run in raised)) if raised else "-"
        cells = "".join(f"{cell:>9}" for cell in longer)
        yield (
            f"  {kind:<8}{len(runs):>6}{len(finished):>8}{cells}{len(raised):>7}"
            f"  {within:>10}  {worst(runs).seed}"
        )


def worst(runs: Sequence[Outcome]) -> Outcome:
    """The run that raises last, or the slowest if all finish."""
    return max([run for run in runs if run.raised] or runs, key=lambda run: run.time_fs)


def _times(time_fs: int, whole_fs: int) -> str:
    return f"{time_fs / whole_fs:.3f}x"


def replanned_lines(
    kind: str, seed: int, attempts: Sequence[Replanned], whole_fs: int, *, reasons: bool
) -> Iterator[str]:
    """Lines with the times of schedules re-planned for the rest of the machine, and the ``reasons``
    why others have none.
    """
    fits = [
        f"{attempt.name} {_times(attempt.time_fs, whole_fs)}"
        for attempt in attempts
        if not attempt.why_not
    ]
    yield f"# after {kind} {seed}, re-planned: {', '.join(fits) or 'nothing'}"
    for attempt in attempts:
        if attempt.why_not and reasons:
            yield f"#   not {attempt.name}: {attempt.why_not}"


def _columns(run: Outcome, whole_fs: int) -> dict[str, Any]:
    return {
        "kind": run.kind,
        "seed": run.seed,
        "finished": "no" if run.raised else "yes",
        "time_fs": run.time_fs,
        "undisturbed_fs": whole_fs,
        "fault": run.text,
        "raised": run.raised,
    }


def results_hash(outcomes: Outcomes, whole_fs: int) -> str:
    """A hash of all outcomes, which identifies their files."""
    rows = [list(_columns(run, whole_fs).items()) for runs in outcomes.values() for run in runs]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def faults_csv(outcomes: Outcomes, whole_fs: int, name: str) -> bytes:
    """Every run as a line of CSV; the last column identifies the results."""
    rows = [_columns(run, whole_fs) | {"run": name} for runs in outcomes.values() for run in runs]
    return csv_bytes(rows[0], rows)


def faults_svg(title: str, outcomes: Outcomes, whole_fs: int, name: str) -> bytes:
    """Draw the share of runs of each kind that have finished over time, relative to the undisturbed
    time.
    """
    from simcoll.planning.sweeps.chart import shares_svg

    curves = {
        f"{kind}: {KINDS[kind]}": (
            sorted(run.time_fs / whole_fs for run in runs if not run.raised),
            len(runs),
        )
        for kind, runs in outcomes.items()
    }
    return shares_svg(title, "time / undisturbed time", curves, run=name)
