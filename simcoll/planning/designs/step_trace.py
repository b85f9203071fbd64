"""Timelines of training steps and other workloads, for Perfetto and chrome://tracing."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from simcoll.emulator.traces.scope_rows import MODULES, PHASES, scope_slices
from simcoll.emulator.traces.trace_marks import MOST_LINKS, RED, counters, path_back
from simcoll.workload.class_clock import Clock, Span
from simcoll.workload.traffic import LinkLoads, Traffic, alike
from simcoll.workload.workload import ComputeOperation, Operation, SendOperation, Workload

if TYPE_CHECKING:
    from simcoll.workload.lower import WorkloadPlans

__all__ = ["critical_spans", "step_trace"]

MOST_CHANGES = 200_000
"""Limit over all counters; steps with more operations show fewer links."""


def step_trace(workload: Workload, clock: Clock, title: str, plans: WorkloadPlans) -> bytes:
    """The timeline, compressed, with a process per class and a track per stream, and rows of the
    phases and modules that computations belong to; deterministic to the byte.
    """
    operations = workload.unroll()
    classes = {name: number for number, name in enumerate(workload.classes)}
    streams = {
        name: number
        for number, name in enumerate(dict.fromkeys(span.stream for span in clock.spans))
    }
    path = critical_spans(workload, clock)
    red = {id(span) for span in path}
    events: list[dict[str, Any]] = []
    for name, number in classes.items():
        label = {"name": f"{name}: {len(workload.classes[name])} ranks"}
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": label})
    for on, stream in dict.fromkeys((span.on, span.stream) for span in clock.spans):
        events.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": classes[on],
                "tid": streams[stream],
                "args": {"name": stream},
            }
        )
    for span in clock.spans:
        if span.end_fs == span.begin_fs:
            continue
        operation = operations[span.operation]
        critical = id(span) in red
        about = _about(operation)
        if critical:
            about["critical"] = True
        event: dict[str, Any] = {
            "ph": "X",
            "name": operation.name or operation.id,
            "pid": classes[span.on],
            "tid": streams[span.stream],
            "ts": span.begin_fs / 1e9,
            "dur": (span.end_fs - span.begin_fs) / 1e9,
            "args": about,
        }
        if critical:
            event["cname"] = RED
        events.append(event)
    events += _scopes(operations, clock, classes, len(streams))
    events += _arrows(workload, clock, classes, streams)
    events += counters(_changes(workload, clock, plans), plans.topology, len(classes))
    covered = sum(span.end_fs - span.begin_fs for span in path)
    share = round(covered / clock.time_fs, 4) if clock.time_fs else 0.0
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "critical_path": {"operations": len(path), "share": share}},
        "traceEvents": events,
    }
    return gzip.compress(msgspec.json.encode(document), mtime=0)


class _SpanPiece(NamedTuple):
    """A span of an operation on one class: their numbers in the workload and in the clock."""

    operation: int
    place: int


def critical_spans(workload: Workload, clock: Clock) -> list[Span]:
    """The critical path: a chain of operations, each started by the end of its predecessor, up to
    the last to end.

    An operation waits for its dependencies and for its predecessors on its streams; a message also
    at its other end. If the ranks of a class differ, the class has the times of its first and its
    last rank, and the path may begin late.
    """
    operations = workload.unroll()
    number = {operation.id: place for place, operation in enumerate(operations)}
    pieces = [_SpanPiece(span.operation, place) for place, span in enumerate(clock.spans)]
    pieces_by_end: dict[tuple[str, int], list[_SpanPiece]] = defaultdict(list)
    for piece, span in zip(pieces, clock.spans, strict=True):
        pieces_by_end[span.on, span.end_fs].append(piece)

    def predecessors(piece: _SpanPiece) -> Iterator[_SpanPiece]:
        span, operation = clock.spans[piece.place], operations[piece.operation]
        dependencies = {number[name] for name in operation.after if name in number}
        for on in workload.classes_of(operation):
            for candidate in pieces_by_end[on, span.begin_fs]:
                same_stream = clock.spans[candidate.place].stream == span.stream
                if candidate.operation != piece.operation and (
                    same_stream or candidate.operation in dependencies
                ):
                    yield candidate

    def end(piece: _SpanPiece) -> tuple[int, int]:
        return clock.spans[piece.place].end_fs, -piece.operation

    last = max(pieces, key=end, default=None)
    path = [clock.spans[piece.place] for piece in path_back(last, predecessors)]
    return [span for span in path if span.end_fs > span.begin_fs]


def _scopes(
    operations: Sequence[Operation], clock: Clock, classes: dict[str, int], first_track: int
) -> Iterator[dict[str, Any]]:
    """Rows of phases and modules for each class, by its stream that computes longest."""
    computed: dict[str, dict[str, list[tuple[int, int, str]]]] = {name: {} for name in classes}
    for span in clock.spans:
        operation = operations[span.operation]
        if isinstance(operation, ComputeOperation):
            on_stream = computed[span.on].setdefault(span.stream, [])
            on_stream.append((span.begin_fs, span.end_fs, operation.scope))
    for on, streams in computed.items():
        lengths = {
            stream: sum(end - begin for begin, end, scope in spans if scope)
            for stream, spans in streams.items()
        }
        if not any(lengths.values()):
            continue
        slices = scope_slices(streams[max(lengths, key=lambda stream: lengths[stream])])
        for place, row in enumerate((PHASES, MODULES)):
            track = {"pid": classes[on], "tid": first_track + place}
            parts = [part for part in slices if part.row == row and part.end_fs > part.begin_fs]
            if not parts:
                continue
            above_streams = {"sort_index": place - 2}
            yield {"ph": "M", "name": "thread_name", **track, "args": {"name": row}}
            yield {"ph": "M", "name": "thread_sort_index", **track, "args": above_streams}
            for part in parts:
                times = {"ts": part.begin_fs / 1e9, "dur": (part.end_fs - part.begin_fs) / 1e9}
                arguments = {"args": {"scope": part.scope}}
                yield {"ph": "X", "name": part.name, **track, **times, **arguments}


def _about(operation: Operation) -> dict[str, Any]:
    details: dict[str, Any] = {"operation": operation.id}
    if operation.scope:
        details["scope"] = operation.scope
    size = getattr(operation, "size_bytes", None)
    return details if size is None else {**details, "bytes": size}


def _arrows(
    workload: Workload, clock: Clock, classes: dict[str, int], streams: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """An arrow from the source of each message to its target."""
    place = {(span.operation, span.on): span for span in clock.spans}
    for number, operation in enumerate(workload.unroll()):
        if not isinstance(operation, SendOperation):
            continue
        sent, received = (place.get((number, on)) for on in (operation.source, operation.target))
        if sent is None or received is None or received.end_fs == received.begin_fs:
            continue
        shared = {
            "cat": "message",
            "name": "message",
            "id": number,
            "tid": streams[operation.stream],
        }
        yield {"ph": "s", **shared, "pid": classes[operation.source], "ts": sent.begin_fs / 1e9}
        yield {
            "ph": "f",
            "bp": "e",
            **shared,
            "pid": classes[operation.target],
            "ts": received.end_fs / 1e9,
        }


def _changes(workload: Workload, clock: Clock, plans: WorkloadPlans) -> dict[int, dict[int, float]]:
    """Changes of the busiest links' rates in GB/s, by link and time, with each operation's bytes
    spread evenly over its duration.
    """
    traffic = Traffic(workload, plans)
    operations = workload.unroll()
    loads: dict[tuple[object, ...], LinkLoads] = {}
    carried = np.zeros(plans.topology.nlinks, np.int64)
    lasts: dict[int, tuple[int, int]] = {}
    for span in clock.spans:
        begin, end = lasts.get(span.operation, (span.begin_fs, span.end_fs))
        lasts[span.operation] = min(begin, span.begin_fs), max(end, span.end_fs)
    moving = []
    for number, (begin, end) in lasts.items():
        key = alike(operations[number])
        if key not in loads:
            loads[key] = traffic.link_loads(operations[number])
        if end > begin and len(loads[key].links):
            moving.append((begin, end, key))
            carried[loads[key].links] += loads[key].size_bytes
    link_count = max(1, min(MOST_LINKS, MOST_CHANGES // (2 * len(moving) or 1)))
    busiest = [
        link for link in np.argsort(-carried, kind="stable")[:link_count].tolist() if carried[link]
    ]
    changes: dict[int, dict[int, float]] = {link: defaultdict(float) for link in busiest}
    on_busiest = {key: load.at(busiest) for key, load in loads.items()}
    for begin, end, key in moving:
        for link, size_bytes in zip(busiest, on_busiest[key], strict=True):
            rate = size_bytes * 10**6 / (end - begin)
            if rate:
                changes[link][begin] += rate
                changes[link][end] -= rate
    return changes
