"""nccl-tests' table and JSON file, extended by the library's own time and the prediction."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from realcoll.measure.timed_sizes import Line, TimedRuns, TimingRequest
from simcoll.errors import ConfigError
from simcoll.files.output import write_file
from simcoll.planning.sweeps.nccl_tests_table import (
    DATA,
    TIMES,
    Column,
    gigabytes,
    microseconds,
    table_line,
    titles,
)

__all__ = ["footer", "header", "json_document", "row", "write_new"]

GB = 1e9
JSON_VERSION = 3


def _columns(*, predicts: bool) -> tuple[Column, ...]:
    """The 13 columns of nccl-tests, the library's own time, our bandwidth over the library's, and
    the prediction.
    """
    prediction = (("predicted", "(us)", 10),) if predicts else ()
    return (*DATA, *TIMES, *TIMES, ("time", "(us)", 10), ("ratio", "", 8), *prediction)


def header(*, predicts: bool) -> Iterator[str]:
    """Title lines of the table."""
    data_width, times_width = (sum(width for _, _, width in columns) for columns in (DATA, TIMES))
    places = f"{'out-of-place':^{times_width}}{'in-place':^{times_width}}"
    yield f"#{'':>{data_width - 1}}{places}{'library':>18}"
    yield from titles(_columns(predicts=predicts))


def _cells(line: Line, measured: TimedRuns | None) -> tuple[object, ...]:
    if measured is None:
        return ("N/A",) * len(TIMES)
    algbw = measured.algbw(line.plan.total_bytes)
    wrong = "N/A" if measured.wrong is None else measured.wrong
    return (
        microseconds(measured.time_s * 1e6),
        gigabytes(algbw),
        gigabytes(algbw * line.factor),
        wrong,
    )


def row(line: Line, *, predicts: bool) -> str:
    """The row of one size."""
    library_time = microseconds(line.baseline.time_s * 1e6) if line.baseline else "-"
    cells = [*line.data, *_cells(line, line.out_of_place), *_cells(line, line.in_place)]
    cells += [library_time, f"{line.ratio:.2f}" if line.ratio else "-"]
    if predicts:
        cells.append(microseconds(line.predicted_s * 1e6) if line.predicted_s is not None else "-")
    return table_line(_columns(predicts=predicts), cells)


def _totals(lines: Sequence[Line]) -> tuple[int, float]:
    measurements = [
        (line, m) for line in lines for m in (line.out_of_place, line.in_place) if m is not None
    ]
    wrong = sum(m.wrong or 0 for _, m in measurements)
    return wrong, sum(
        m.algbw(line.plan.total_bytes) * line.factor for line, m in measurements
    ) / max(1, len(measurements)) / GB


def footer(lines: Sequence[Line]) -> Iterator[str]:
    """The summary lines of nccl-tests."""
    wrong, average = _totals(lines)
    yield f"# Out of bounds values : {wrong} {'OK' if not wrong else 'FAILED'}"
    yield f"# Avg bus bandwidth    : {average:g}"


def _entry(line: Line, measured: TimedRuns | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    algbw = measured.algbw(line.plan.total_bytes) / GB
    result: dict[str, Any] = {
        "time": measured.time_s * 1e6,
        "alg_bw": algbw,
        "bus_bw": algbw * line.factor,
    }
    if measured.wrong is not None:
        result["nwrong"] = measured.wrong
    return result


def json_document(
    request: TimingRequest, lines: Sequence[Line], config: Mapping[str, Any], begun: float
) -> bytes:
    """nccl-tests' result file (version 3: booleans and the root are text), extended by ``baseline``
    and ``predicted``.
    """
    wrong, average = _totals(lines)
    results = []
    for line in lines:
        data = line.data
        entry = {
            "size": data.size_bytes,
            "count": data.elements,
            "type": data.dtype,
            "redop": data.op,
            "root": str(data.root),
            "out_of_place": _entry(line, line.out_of_place),
            "in_place": _entry(line, line.in_place),
        }
        if line.baseline is not None:
            entry["baseline"] = {"time": line.baseline.time_s * 1e6, "ratio": line.ratio}
        if line.predicted_s is not None:
            entry["predicted"] = {"time": line.predicted_s * 1e6}
        results.append(entry)
    document = {
        "version": JSON_VERSION,
        "start_time": _stamp(begun),
        "args": sys.argv,
        "env": [
            f"{key}={value}"
            for key, value in sorted(os.environ.items())
            if key.startswith(("NCCL_", "MPICH_", "CUDA_VISIBLE"))
        ],
        "config": {
            "collective": request.collective,
            "nranks": request.nranks,
            "algorithm": str(request.choice),
            "minimum_bytes": min((line.plan.total_bytes for line in lines), default=0),
            "maximum_bytes": max((line.plan.total_bytes for line in lines), default=0),
            "warmup_iters": request.warmup,
            "iterations": request.iterations,
            "validation": str(request.check).lower(),
            "hostname": platform.node(),
            **config,
        },
        "results": results,
        "out_of_bounds": {"count": wrong, "okay": str(not wrong).lower()},
        "average_bus_bandwidth": {"bandwidth": average, "okay": "true"},
        "errors": [],
        "end_time": _stamp(time.time()),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def write_new(path: Path, content: bytes) -> Path:
    """Write a new file; as in nccl-tests, append .0, .1, ... to a name that is taken."""
    for attempt in range(1000):
        target = path if not attempt else path.with_name(f"{path.name}.{attempt - 1}")
        try:
            target.touch(exist_ok=False)  # an empty file holds the name, also against a link
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"cannot be written: {error.strerror or error}", file=str(target)
            ) from None
        try:
            write_file(target, content)
        except ConfigError:
            target.unlink(missing_ok=True)
            raise
        return target
    raise ConfigError("a thousand files with this name and a number exist already", file=str(path))
