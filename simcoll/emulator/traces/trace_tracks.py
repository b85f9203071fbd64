"""The common part of all traces: tracks without overlaps, annotations, and the file."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from simcoll.emulator.traces.trace_marks import (
    RED,
    TraceRow,
    arrows,
    critical_messages,
    link_counters,
    summary,
)
from simcoll.topology import Topology

__all__ = ["FS_PER_US", "compress", "trace_document"]

FS_PER_US = 10**9

Lane = tuple[int, str]
"""The track group of a rank's transfers: its sort order and name."""


class _TrackSpan(NamedTuple):
    """A stretch of time on a track, in femtoseconds."""

    begin: int
    end: int
    name: str
    args: dict[str, Any]


def trace_document(
    rows: Sequence[TraceRow],
    topology: Topology,
    ranks: Sequence[int],
    time_fs: int,
    about: dict[str, Any],
    describe: Callable[[TraceRow], tuple[Lane, str, dict[str, Any]]],
    vias: Mapping[int, str],
) -> dict[str, Any]:
    """A trace as a JSON object.

    Parameters
    ----------
    rows
        Transfers, and work with equal source and destination.
    ranks
        Topology endpoint of each rank.
    time_fs
        Duration of the run.
    about
        Entries of ``otherData`` beside the critical path.
    describe
        Returns lane, name of local work, and arguments of a row.
    vias
        The path that each message chooses, by its number; a message that is not there takes the
        route of the topology.
    """
    spans: dict[tuple[int, int, str], list[_TrackSpan]] = {}
    path = critical_messages(rows)
    critical = set(path)
    for row in sorted(rows):
        (lane, name), work, details = describe(row)
        args = {
            "message": row.message,
            **details,
            "bytes": row.size_bytes,
            "flow_start_us": _us(row.start_fs),
            "flow_end_us": _us(row.end_fs),
        }
        if row.message in vias:
            args["via"] = vias[row.message]
        if row.message in critical:
            args["critical"] = True
        if row.src == row.dst:
            local = spans.setdefault((row.src, lane, f"{name} local".strip()), [])
            local.append(_TrackSpan(row.ready_fs, row.done_fs, work, args))
            continue
        sends = spans.setdefault((row.src, lane, f"{name} send".strip()), [])
        sends.append(_TrackSpan(row.ready_fs, row.end_fs, f"send -> {row.dst}", args))
        receives = spans.setdefault((row.dst, lane, f"{name} receive".strip()), [])
        receives.append(_TrackSpan(row.start_fs, row.done_fs, f"receive <- {row.src}", args))
    tracks = _tracks(spans)
    counters = link_counters(rows, topology, ranks, len(ranks), vias)
    return {
        "displayTimeUnit": "ns",
        "otherData": about | {"critical_path": summary(path, rows, time_fs)},
        "traceEvents": [*_processes(topology, ranks), *tracks, *arrows(tracks), *counters],
    }


def compress(document: dict[str, Any]) -> bytes:
    """A trace as file contents: compressed JSON. Equal documents yield equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream:
        stream.write(json.dumps(document, separators=(",", ":")).encode())
    return buffer.getvalue()


def _us(time_fs: int) -> float:
    return time_fs / FS_PER_US


def _processes(topology: Topology, ranks: Sequence[int]) -> Iterable[dict[str, Any]]:
    for rank, end in enumerate(ranks):
        name = f"rank {rank} ({topology.node_names[int(topology.rank_nodes[end])]})"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}


def _tracks(spans: dict[tuple[int, int, str], list[_TrackSpan]]) -> list[dict[str, Any]]:
    """Complete events, each on the first free track of its lane, so that events of a track never
    overlap.
    """
    events: list[dict[str, Any]] = []
    next_track: dict[int, int] = {}
    for (rank, _, lane), group in sorted(spans.items(), key=lambda entry: entry[0]):
        free_at: list[int] = []
        base = next_track.get(rank, 0)
        for span in sorted(group, key=lambda span: (span.begin, span.args["message"])):
            row = next(
                (row for row, free in enumerate(free_at) if free <= span.begin), len(free_at)
            )
            place = {"pid": rank, "tid": base + row}
            if row == len(free_at):
                free_at.append(span.end)
                label = {"name": lane + (f" ({row + 1})" if row else "")}
                events.append({"ph": "M", "name": "thread_name", **place, "args": label})
            free_at[row] = span.end
            event = {"ph": "X", "name": span.name, "cat": lane.rpartition(" ")[2], **place}
            if span.args.get("critical"):
                event["cname"] = RED
            times = {"ts": _us(span.begin), "dur": _us(span.end - span.begin)}
            events.append({**event, **times, "args": span.args})
        next_track[rank] = base + len(free_at)
    return events
