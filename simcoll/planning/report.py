"""A sweep as text: the nccl-tests table with bound, headroom and bottleneck, and the result files."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from simcoll.core.collective import KINDS
from simcoll.planning.sweep import best_rows, bound_rows
from simcoll.planning.table import DATA, TIMES, gigabytes, microseconds, table_line, titles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simcoll.emulator import Result
    from simcoll.planning.sweep import Row, Sweep
    from simcoll.topology import Topology

__all__ = ["engine_lines", "results_csv", "results_json", "row_columns", "sweep_hash", "table_lines"]

FORMAT, VERSION = "simcoll-results", 1


def sweep_hash(rows: Sequence[Row]) -> str:
    """One hash (hex) over the trace hashes of all runs, in order; empty if some run is too large to have one."""
    hashes = [row.result.trace_hash for row in rows]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:32] if all(hashes) else ""


_BOUND = (("bound", "(us)", 10), ("headroom", "", 9))


def _root(sweep: Sweep) -> int:
    """The root column of nccl-tests: -1 where there is none."""
    return (sweep.root or 0) if KINDS[sweep.collective].rooted else -1


def table_lines(sweep: Sweep, rows: Sequence[Row]) -> Iterator[str]:
    """The table of the best run of every size, line by line.

    The columns of nccl-tests come first, then algorithm, bound, headroom and bottleneck.
    """
    best = best_rows(rows)
    width = max((len(str(row)) for row in best), default=4) + 2
    for left, right, name, last in zip(
        titles((*DATA, *TIMES)), titles(_BOUND), ("best", ""), ("bottleneck", ""), strict=True
    ):
        yield f"{left}  {name:<{width}} {right[1:]}  {last}".rstrip()
    op = sweep.op if KINDS[sweep.collective].reduces else "none"
    for row, bound in zip(best, bound_rows(rows), strict=True):
        wrong = "-" if row.result.wrong is None else row.result.wrong
        data = (row.size_bytes, row.count, sweep.dtype, op, _root(sweep))
        times = (microseconds(row.time_fs / 1e9), gigabytes(row.algbw), gigabytes(row.busbw), wrong)
        headroom = f"{row.time_fs / bound.bound_fs:.2f}x" if bound.bound_fs else "-"
        right = table_line(_BOUND, (microseconds(bound.bound_fs / 1e9), headroom))
        yield f"{table_line((*DATA, *TIMES), (*data, *times))}  {row!s:<{width}}{right}  {bound.result.bottleneck}"
    if any(row.result.wrong is None for row in best):
        yield "# '-' under #wrong: timing only above the size to which data is moved; the proofs hold for every size"


def engine_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Engine, share, time and reason of the runs: one line for every reason, of its largest run."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in (row.result for row in rows):
        groups.setdefault((result.engine, re.sub(r"\d+", "", result.path)), []).append(result)
    for (engine, _), alike in groups.items():
        largest = max(alike, key=lambda result: result.messages)
        runs = f"{len(alike)} run{'s' * (len(alike) > 1)}"
        messages, wall = sum(result.messages for result in alike), sum(result.wall_s for result in alike)
        why = re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", largest.path)
        yield f"# engine {engine}: {runs}, {messages:,} messages, {wall:.2f} s ({why})"


def row_columns(row: Row) -> dict[str, Any]:
    """The columns of a run in files; they leave out the seconds it took here."""
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
        "wrong": result.wrong,
        "bound_fs": row.bound_fs,
        "bound_kind": bound.kind if bound else "",
        "bottleneck": result.bottleneck,
        "messages": result.messages,
        "trace_hash": result.trace_hash,
        "engine": result.engine,
        "path": result.path,
        "classes": result.classes,
        "headroom": result.headroom,
    }


def results_csv(rows: Sequence[Row], run: str) -> str:
    """Every run as one line of CSV; the last column names the results that it is of."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*row_columns(rows[0]), "run"] if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row_columns(row) | {"run": run})
    return stream.getvalue()


def _summary(row: Row, bound: Row) -> dict[str, Any]:
    """The best run of a size beside the bound for all runs of that size."""
    return {
        "size_bytes": row.size_bytes,
        "choice": str(row.choice),
        "protocol": row.protocol,
        "time_fs": row.time_fs,
        "bound_fs": bound.bound_fs,
        "headroom": row.time_fs / bound.bound_fs if bound.bound_fs else None,
        "bottleneck": bound.result.bottleneck,
    }


def results_json(
    title: str, sweep: Sweep, topology: Topology, rows: Sequence[Row], proofs: Sequence[str]
) -> tuple[bytes, str]:
    """Everything about a sweep as JSON, and its hash, which the file has as ``run``. The same input gives the same bytes."""
    document: dict[str, Any] = {
        "title": title,
        "topology": {
            "name": topology.name,
            "nranks": topology.nranks,
            "description": topology.description,
            "sources": dict(topology.sources),
        },
        "sweep": {**asdict(sweep), "choices": [str(choice) for choice in sweep.choices]},
        "proofs": list(proofs),
        "trace_hash": sweep_hash(rows),
        "runs": [row_columns(row) for row in rows],
        "best": [_summary(row, bound) for row, bound in zip(best_rows(rows), bound_rows(rows), strict=True)],
    }
    run = hashlib.sha256(msgspec.json.encode(document)).hexdigest()[:16]
    document = {"format": FORMAT, "version": VERSION, "run": run, **document}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n", run
