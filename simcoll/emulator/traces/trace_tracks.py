"""The common part of all traces: tracks without overlaps, annotations, and the file."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simcoll.emulator.traces.trace_marks import RED, Row, arrows, critical_messages, link_counters, summary
from simcoll.topology import Topology

__all__ = ["FS_PER_US", "packed", "trace_document"]

FS_PER_US = 10**9

Lane = tuple[int, str]
"""The track group of a rank's transfers: its sort order and name."""
_Span = tuple[int, int, str, dict[str, Any]]


def trace_document(
    rows: Sequence[Row],
    topology: Topology,
    ranks: Sequence[int],
    time_fs: int,
    about: dict[str, Any],
    described: Callable[[Row], tuple[Lane, str, dict[str, Any]]],
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
    described
        Returns lane, name of local work, and arguments of a row.
    """
    spans: dict[tuple[int, int, str], list[_Span]] = {}
    path = critical_messages(rows)
    critical = set(path)
    for row in sorted(rows):
        message, _, src, dst, _, _, size, ready, start, end, done = row
        (lane, name), work, more = described(row)
        args = {"message": message, **more, "bytes": size, "flow_start_us": _us(start), "flow_end_us": _us(end)}
        if message in critical:
            args["critical"] = True
        if src == dst:
            spans.setdefault((src, lane, f"{name} local".strip()), []).append((ready, done, work, args))
            continue
        spans.setdefault((src, lane, f"{name} send".strip()), []).append((ready, end, f"send -> {dst}", args))
        spans.setdefault((dst, lane, f"{name} receive".strip()), []).append((start, done, f"receive <- {src}", args))
    tracks = _tracks(spans)
    counters = link_counters(rows, topology, ranks, len(ranks))
    return {
        "displayTimeUnit": "ns",
        "otherData": about | {"critical_path": summary(path, rows, time_fs)},
        "traceEvents": [*_processes(topology, ranks), *tracks, *arrows(tracks), *counters],
    }


def packed(document: dict[str, Any]) -> bytes:
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


def _tracks(spans: dict[tuple[int, int, str], list[_Span]]) -> list[dict[str, Any]]:
    """Complete events, each on the first free track of its lane, so that events of a track never overlap."""
    events: list[dict[str, Any]] = []
    next_track: dict[int, int] = {}
    for (rank, _, lane), group in sorted(spans.items(), key=lambda entry: entry[0]):
        free_at: list[int] = []
        base = next_track.get(rank, 0)
        for begin, end, name, args in sorted(group, key=lambda span: (span[0], span[3]["message"])):
            row = next((row for row, free in enumerate(free_at) if free <= begin), len(free_at))
            if row == len(free_at):
                free_at.append(end)
                label = {"name": lane + (f" ({row + 1})" if row else "")}
                events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": base + row, "args": label})
            free_at[row] = end
            shown = {"ph": "X", "name": name, "cat": lane.rpartition(" ")[2], "pid": rank, "tid": base + row}
            if args.get("critical"):
                shown["cname"] = RED
            events.append({**shown, "ts": _us(begin), "dur": _us(end - begin), "args": args})
        next_track[rank] = base + len(free_at)
    return events
