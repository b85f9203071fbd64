"""What a sweep is shown as: the nccl-tests table with bound, headroom and bottleneck, and the result files."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simcoll.planning.sweep import Row, Sweep
    from simcoll.topology import Topology

__all__ = ["engine_lines", "results_csv", "results_json", "sweep_hash", "table_lines"]

FORMAT, VERSION = "simcoll-results", 1
GB = 1e9


def sweep_hash(rows: Sequence[Row]) -> str:
    """One hash (hex) over the trace hashes of all runs, in order; empty if some run is too large to have one."""
    if not all(row.trace_hash for row in rows):
        return ""
    return hashlib.sha256("".join(row.trace_hash for row in rows).encode()).hexdigest()[:32]


def _us(time_fs: int) -> str:
    us = time_fs / 1e9
    return f"{us:.2f}" if us < 1e4 else f"{us:.0f}"


def _gb(rate: float) -> str:
    return f"{rate / GB:.2f}"


_COLUMNS = (
    ("size", "(B)", 12), ("count", "(elements)", 12), ("type", "", 9), ("redop", "", 8), ("root", "", 5),
    ("time", "(us)", 10), ("algbw", "(GB/s)", 8), ("busbw", "(GB/s)", 8), ("#wrong", "", 7),
)  # fmt: skip
_MORE = (("bound", "(us)", 10), ("headroom", "", 9))


def _root(sweep: Sweep) -> int:
    """The root column of nccl-tests: -1 where there is none."""
    return (sweep.root or 0) if KINDS[sweep.collective].rooted else -1


def table_lines(sweep: Sweep, rows: Sequence[Row]) -> Iterator[str]:
    """The table of the best run of every size, line by line.

    The columns of nccl-tests come first, then algorithm, bound, headroom and bottleneck.
    """
    best = best_rows(rows)
    width = max((len(f"{row.choice} {row.protocol}") for row in best), default=4) + 2
    for line in range(2):
        left = "".join(f"{column[line]:>{column[2]}}" for column in _COLUMNS)
        right = "".join(f"{column[line]:>{column[2]}}" for column in _MORE)
        yield f"#{left[1:]}  {('best', '')[line]:<{width}}{right}  {('bottleneck', '')[line]}".rstrip()
    reduces = KINDS[sweep.collective].reduces
    for row, bound in zip(best, bound_rows(rows), strict=True):
        cells = (
            row.size_bytes, row.count, sweep.dtype, sweep.op if reduces else "none", _root(sweep),
            _us(row.time_fs), _gb(row.algbw), _gb(row.busbw), "-" if row.wrong is None else row.wrong,
        )  # fmt: skip
        left = "".join(f" {cell:>{column[2] - 1}}" for cell, column in zip(cells, _COLUMNS, strict=True))
        headroom = f"{row.time_fs / bound.bound_fs:.2f}x" if bound.bound_fs else "-"
        right = f"{_us(bound.bound_fs):>10}{headroom:>9}"
        yield f"{left}  {row.choice + ' ' + row.protocol:<{width}}{right}  {bound.bottleneck}"
    if any(row.wrong is None for row in best):
        yield "# '-' under #wrong: timing only above the size to which data is moved; the proofs hold for every size"


def engine_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Which engine played how much, in what time, and why it did: a line for every reason, of its largest run."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.engine, re.sub(r"\d+", "", row.path)), []).append(row)
    for (engine, _), alike in groups.items():
        largest = max(alike, key=lambda row: row.messages)
        runs = f"{len(alike)} run{'s' * (len(alike) > 1)}"
        messages, wall = sum(row.messages for row in alike), sum(row.wall_s for row in alike)
        why = re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", largest.path)
        yield f"# engine {engine}: {runs}, {messages:,} messages, {wall:.2f} s ({why})"


def _columns(row: Row) -> dict[str, Any]:
    """What files say of a run."""
    columns = {**asdict(row), "headroom": row.headroom}
    del columns["wall_s"]
    return columns


def results_csv(rows: Sequence[Row]) -> str:
    """Every run as one line of CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(_columns(rows[0])) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(_columns(row))
    return stream.getvalue()


def _summary(row: Row, bound: Row) -> dict[str, Any]:
    """The best run of a size beside the bound for all runs of that size."""
    return {
        "size_bytes": row.size_bytes,
        "choice": row.choice,
        "protocol": row.protocol,
        "time_fs": row.time_fs,
        "bound_fs": bound.bound_fs,
        "headroom": row.time_fs / bound.bound_fs if bound.bound_fs else None,
        "bottleneck": bound.bottleneck,
    }


def results_json(title: str, sweep: Sweep, topology: Topology, rows: Sequence[Row], proofs: Sequence[str]) -> bytes:
    """Everything about a sweep as JSON. The same input gives the same bytes."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
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
        "runs": [_columns(row) for row in rows],
        "best": [_summary(row, bound) for row, bound in zip(best_rows(rows), bound_rows(rows), strict=True)],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
