"""Files of a sweep: its picture, a timeline, and the JSON of nccl-tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from simcoll.core.collective import bus_factor
from simcoll.emulator import Trace
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.sweep import SweepRow, best_rows, bound_rows, play
from simcoll.planning.sweeps.sweep_report import cells
from simcoll.topology import Topology

if TYPE_CHECKING:
    from simcoll.libraries.prediction import Prediction
    from simcoll.planning.sweeps.running import SweepTable

__all__ = ["nccl_tests_json", "picture", "predictions_json", "predictions_picture", "timeline"]

NCCL_TESTS_VERSION = 3


def predictions_picture(predictions: Sequence[Prediction], topology: Topology) -> bytes:
    """Draw a library's predictions with the band of their 90 % intervals, as SVG."""
    from simcoll.planning.sweeps.chart import busbw_svg

    kind = predictions[0].collective
    title = f"{kind} of {predictions[0].library} on {topology.name}"
    return busbw_svg(title, kind, topology.nranks, (), predictions)


def picture(
    title: str,
    table: SweepTable,
    topology: Topology,
    run: str,
    predictions: Sequence[Prediction] = (),
) -> bytes:
    """Draw the curves of a sweep, and a library's predictions, as SVG; ``run`` identifies the
    results.
    """
    from simcoll.planning.sweeps.chart import busbw_svg

    if not table.rows:
        raise ConfigError(
            "a picture shows bandwidth over sizes, and a GOAL program has one size of its own; its "
            "timeline shows it"
        )
    # Of the others there is nothing to draw.
    through = [row for row in table.rows if row.result.cut is None]
    kind, rows = table.sweep.collective, through or table.rows
    return busbw_svg(title, kind, topology.nranks, rows, predictions, run=run)


def timeline(table: SweepTable, topology: Topology, size_bytes: int, run: str) -> bytes:
    """The timeline of the best run at the size nearest to ``size_bytes``; without runs, of the
    fastest program.
    """
    if not table.rows:
        return min(table.programs, key=lambda program: program.result.time_fs).timeline(run)
    traced = min(best_rows(table.rows), key=lambda row: abs(row.size_bytes - size_bytes))
    trace = Trace(traced.result.plan, topology)
    return trace.content(play(table.sweep, traced.result.plan, topology, observer=trace), run=run)


def nccl_tests_json(table: SweepTable, run: str) -> bytes:
    """The best run of each size in nccl-tests' JSON, without fields of measurements only (times of
    day, hosts).

    Besides nccl-tests' fields each result has ``best``, ``bound`` (microseconds) and
    ``bottleneck``; ``cut`` if a fault cut the run off, which then has no time. ``programs`` holds
    runs without a size. Booleans and the root are text, rates are in GB/s.
    """
    best, bounds = best_rows(table.rows), bound_rows(table.rows)
    results: list[dict[str, Any]] = []
    for row, bound in zip(best, bounds, strict=True):
        line = cells(table.sweep, [row])
        timed = {"time": row.time_fs / 1e9, "alg_bw": row.algbw / 1e9, "bus_bw": row.busbw / 1e9}
        figures = timed if row.wrong is None else {**timed, "nwrong": row.wrong}
        results.append(
            {
                "size": line.size,
                "count": line.elements,
                "type": line.dtype,
                "redop": line.op,
                "root": str(line.root),
                "out_of_place": None if row.result.cut else figures,
                "in_place": None,
                "best": str(row),
                "bound": bound.bound_fs / 1e9,
                "bottleneck": bound.result.bottleneck,
                **({"cut": str(row.result.cut)} if row.result.cut else {}),
            }
        )
    through = [row for row in best if not row.result.cut]
    wrong = sum(row.wrong or 0 for row in through)
    average = sum(row.busbw for row in through) / max(1, len(through)) / 1e9
    config = {
        "collective": table.sweep.collective,
        "topology": table.topology,
        **_extent(best, table.sweep.sizes),
    }
    document = {
        "version": NCCL_TESTS_VERSION,
        "run": run,
        "args": [f"{table.sweep.collective}_perf"],
        "config": config,
        "results": results,
        "out_of_bounds": {"count": wrong, "okay": str(not wrong).lower()},
        "average_bus_bandwidth": {"bandwidth": average, "okay": "true"},
        "errors": [],
        **(
            {"programs": [program.columns() for program in table.programs]}
            if table.programs
            else {}
        ),
    }
    return _json_bytes(document)


def predictions_json(predictions: Sequence[Prediction], topology: Topology) -> bytes:
    """A library's predicted choice at each size, in nccl-tests' JSON.

    Besides nccl-tests' fields each result has the choice, the timing method, ``bound``
    (microseconds), ``bottleneck``, and numbers ``assumed`` because they are unknown.
    """
    factor = float(bus_factor(predictions[0].collective, topology.nranks))
    results = []
    for prediction in predictions:
        rate = prediction.size_bytes / (prediction.time_fs / 1e6)
        timed = {"time": prediction.time_us, "alg_bw": rate, "bus_bw": rate * factor}
        results.append(
            {
                "size": prediction.size_bytes,
                "out_of_place": timed,
                "in_place": None,
                "algorithm": prediction.algorithm,
                "protocol": prediction.protocol,
                "channels": prediction.channels,
                "timed_by": prediction.timed_by,
                "note": prediction.note,
                "bound": prediction.bound_fs / 1e9,
                "bottleneck": prediction.bottleneck,
                "assumed": prediction.assumed.split("; ") if prediction.assumed else [],
                "formula": prediction.formula_fs / 1e9,
                "within_50": list(prediction.interval(0.5)),
                "within_90": list(prediction.interval(0.9)),
                "errors_of": prediction.errors_of,
            }
        )
    config = {
        "collective": predictions[0].collective,
        "topology": topology.name,
        "nranks": topology.nranks,
    }
    config |= {"library": predictions[0].library, "calibration": predictions[0].calibration}
    document = {
        "version": NCCL_TESTS_VERSION,
        "args": [f"{predictions[0].collective}_perf"],
        "config": config,
    }
    return _json_bytes({**document, "results": results})


def _json_bytes(document: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _extent(best: Sequence[SweepRow], sizes: Sequence[int]) -> dict[str, int]:
    if not best:
        return {}
    factors = {later // size if later % size == 0 else 0 for size, later in pairwise(sizes)}
    return {
        "nranks": best[0].result.nranks,
        "minimum_bytes": best[0].size_bytes,
        "maximum_bytes": best[-1].size_bytes,
        **({"step_factor": factors.pop()} if len(factors) == 1 and 0 not in factors else {}),
    }
