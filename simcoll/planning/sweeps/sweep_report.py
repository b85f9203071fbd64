"""Reports of sweeps: nccl-tests' table with bound, headroom and bottleneck, and result files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from simcoll.emulator import Result
from simcoll.files.output import csv_bytes
from simcoll.planning.sweeps.nccl_tests_table import (
    DATA,
    TIMES,
    gigabytes,
    microseconds,
    table_line,
    titles,
)
from simcoll.planning.sweeps.sweep import Sweep, SweepRow, best_rows, bound_rows
from simcoll.topology import Topology
from simcoll.units import format_size

if TYPE_CHECKING:
    from simcoll.planning.sweeps.goal_programs import ProgramRun

__all__ = [
    "cells",
    "engine_lines",
    "foot_lines",
    "head_lines",
    "results_csv",
    "results_json",
    "row_columns",
    "size_line",
    "sweep_hash",
    "titles_of",
]

FORMAT, VERSION = "simcoll-results", 1


def sweep_hash(rows: Sequence[SweepRow | ProgramRun]) -> str:
    """Hash (hex) of the trace hashes of all runs, in order; empty if a run is too large to have
    one.
    """
    hashes = [row.result.trace_hash for row in rows]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:32] if all(hashes) else ""


_BOUND = (("bound", "(us)", 10), ("headroom", "", 9))


def titles_of() -> tuple[tuple[str, str], ...]:
    """Title and unit of every column: those of nccl-tests, then algorithm, bound, headroom and
    bottleneck.
    """
    parts = ((*DATA, *TIMES), (("best", "", 0),), _BOUND, (("bottleneck", "", 0),))
    return tuple((title, unit) for part in parts for title, unit, _ in part)


class SizeCells(NamedTuple):
    """The cells of one size: nccl-tests' columns, then the best run, the bound, the headroom and
    the bottleneck.
    """

    size: int
    elements: int
    dtype: str
    op: str
    root: int
    time: str
    algbw: str
    busbw: str
    wrong: int | str
    best: str
    bound: str
    headroom: str
    bottleneck: str


def cells(sweep: Sweep, rows: Sequence[SweepRow]) -> SizeCells:
    """The cells of one size: its best run, and the bound over all runs."""
    (row,), (bound,) = best_rows(rows), bound_rows(rows)
    cut, bound_fs = row.result.cut, bound.bound_fs
    collective = row.result.plan.collective.spec
    return SizeCells(
        row.size_bytes,
        row.count,
        sweep.dtype,
        sweep.op if collective.reduces else "none",
        (sweep.root or 0) if collective.rooted else -1,  # nccl-tests' column
        microseconds(row.time_fs / 1e9) if cut is None else cut.kind,
        gigabytes(row.algbw),
        gigabytes(row.busbw),
        "-" if row.wrong is None else row.wrong,
        str(row),
        microseconds(bound_fs / 1e9),
        f"{row.time_fs / bound_fs:.2f}x" if bound_fs and cut is None else "-",
        bound.result.bottleneck,
    )


def _width(sweep: Sweep) -> int:
    """Width for all algorithms and protocols, since lines are printed before all runs are done."""
    return 2 + max(
        (len(f"{choice} {name}") for choice in sweep.choices for name in sweep.protocols), default=4
    )


def _request(sweep: Sweep) -> dict[str, Any]:
    """The request as a dictionary, with the disturbance if there is one."""
    request = {**asdict(sweep), "choices": [str(choice) for choice in sweep.choices]}
    if not sweep.disturbed:
        del request["disturbed"]
    elif not sweep.disturbed.faults:
        del request["disturbed"]["faults"], request["disturbed"]["policy"]
    return request


def head_lines(sweep: Sweep) -> Iterator[str]:
    """The two header lines."""
    heads = (("best", "bottleneck"), ("", ""))
    for figures_title, bound_title, (name, last) in zip(
        titles((*DATA, *TIMES)), titles(_BOUND), heads, strict=True
    ):
        yield f"{figures_title}  {name:<{_width(sweep)}} {bound_title[1:]}  {last}".rstrip()


def size_line(sweep: Sweep, rows: Sequence[SweepRow]) -> str:
    """The line of one size."""
    numbers = len((*DATA, *TIMES))
    values = cells(sweep, rows)
    figures = table_line((*DATA, *TIMES), values[:numbers])
    name, *bound, last = values[numbers:]
    return f"{figures}  {name:<{_width(sweep)}}{table_line(_BOUND, bound)}  {last}"


def foot_lines(rows: Sequence[SweepRow]) -> Iterator[str]:
    """The footnotes on ``#wrong``."""
    checks = {row.choice: row.data_check for row in rows if row.data_check}
    counts = [check.count for check in checks.values() if check.wrong is not None]
    if counts:
        low, high = min(counts), max(counts)
        elements = f"{low:,} elements" if low == high else f"{low:,} to {high:,} elements"
        subject = "the algorithm" if len(checks) == 1 else "every algorithm"
        yield (
            f"# #wrong: real data ({elements}) moved once through {subject}; "
            "the proofs hold for every size"
        )
    for reason in dict.fromkeys(check.reason for check in checks.values() if check.reason):
        yield f"# '-' under #wrong: {reason}"
    for row in rows:
        if row.result.cut:
            yield f"# {row}, {format_size(row.size_bytes)}: {row.result.cut}"


def engine_lines(rows: Sequence[SweepRow]) -> Iterator[str]:
    """Engine, share, time and reason of the runs: one line per reason, for its largest run."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in (row.result for row in rows):
        groups.setdefault((result.engine, re.sub(r"\d+", "", result.path)), []).append(result)
    for (engine, _), results in groups.items():
        largest = max(results, key=lambda result: result.messages)
        runs = f"{len(results)} run{'s' * (len(results) > 1)}"
        messages, wall = (
            sum(result.messages for result in results),
            sum(result.wall_s for result in results),
        )
        why = re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", largest.path)
        yield f"# engine {engine}: {runs}, {messages:,} messages, {wall:.2f} s ({why})"


def row_columns(row: SweepRow) -> dict[str, Any]:
    """The columns of a run in files, without its wall-clock time."""
    result, bound = row.result, row.result.bound
    return {
        "size_bytes": row.size_bytes,
        "count": row.count,
        "choice": str(row.choice),
        "schedule": result.schedule,
        "protocol": row.protocol,
        "proof": result.proof,
        "time_fs": row.time_fs,
        "algbw": row.algbw,
        "busbw": row.busbw,
        "wrong": row.wrong,
        "checked_count": row.data_check.count if row.data_check else None,
        "bound_fs": row.bound_fs,
        "bound_kind": bound.kind if bound else "",
        "bottleneck": result.bottleneck,
        "messages": result.messages,
        "trace_hash": result.trace_hash,
        "engine": result.engine,
        "path": result.path,
        "classes": result.classes,
        "headroom": result.headroom,
        **({"cut": str(result.cut)} if result.cut else {}),
    }


def results_csv(rows: Sequence[SweepRow], run: str, programs: Sequence[ProgramRun] = ()) -> bytes:
    """Every run as a line of CSV; the last column identifies the results."""
    lines = [*map(row_columns, rows), *(program.columns() for program in programs)]
    names = dict.fromkeys(name for line in lines for name in line)
    return csv_bytes([*names, "run"] if lines else [], (line | {"run": run} for line in lines))


def _summary(row: SweepRow, bound: SweepRow) -> dict[str, Any]:
    """The best run of a size, with the bound over all its runs."""
    return {
        "size_bytes": row.size_bytes,
        "choice": str(row.choice),
        "protocol": row.protocol,
        "time_fs": row.time_fs,
        "bound_fs": bound.bound_fs,
        "headroom": row.time_fs / bound.bound_fs if bound.bound_fs and not row.result.cut else None,
        "bottleneck": bound.result.bottleneck,
    }


def results_json(
    title: str,
    sweep: Sweep,
    topology: Topology,
    rows: Sequence[SweepRow],
    proofs: Sequence[str],
    programs: Sequence[ProgramRun] = (),
) -> tuple[bytes, str]:
    """A sweep as JSON, deterministic to the byte, and its hash, which the file has as ``run``."""
    import msgspec

    document: dict[str, Any] = {
        "title": title,
        "topology": {
            "name": topology.name,
            "nranks": topology.nranks,
            "description": topology.description,
            "sources": dict(topology.sources),
        },
        "sweep": _request(sweep),
        "proofs": list(proofs),
        "trace_hash": sweep_hash([*rows, *programs]),
        "runs": [row_columns(row) for row in rows],
        "best": [
            _summary(row, bound)
            for row, bound in zip(best_rows(rows), bound_rows(rows), strict=True)
        ],
        **({"programs": [program.columns() for program in programs]} if programs else {}),
    }
    run = hashlib.sha256(msgspec.json.encode(document)).hexdigest()[:16]
    document = {"format": FORMAT, "version": VERSION, "run": run, **document}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n", run
