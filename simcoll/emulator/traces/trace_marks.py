"""Trace annotations beside the spans: send-receive arrows, link utilisation, and the critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from simcoll.topology import Topology

__all__ = ["MOST_LINKS", "RED", "arrows", "counters", "critical_messages", "link_counters", "path_back", "summary"]

Piece = TypeVar("Piece", bound="tuple[Any, ...]")
Row = tuple[int, ...]
"""A transfer as an observer receives it: message, step, src, dst, channel, op, size, ready, start, end, done."""
FS_PER_US = 10**9
RED = "terrible"
"""A red in the viewers' palette."""
MOST_LINKS = 32
"""Number of links shown: those that carry the most bytes."""


def critical_messages(rows: Sequence[Row]) -> list[int]:
    """The critical path: transfers each of which waited for the previous one, up to the last to end, in order of time.

    A transfer waits for one that ended on a rank of its own at the moment when it became ready; of several, the lowest number counts.
    """
    by_done: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in sorted(rows):
        for rank in {row[2], row[3]}:
            by_done[rank, row[10]].append(row)
    last = max(rows, key=lambda row: (row[10], -row[0]), default=None)
    path = path_back(last, lambda row: (each for rank in row[2:4] for each in by_done[rank, row[7]]))
    return [row[0] for row in path]


def path_back(last: Piece | None, before: Callable[[Piece], Iterable[Piece]]) -> list[Piece]:
    """Pieces of time each of which waited for the previous one, up to ``last``, in order of time.

    ``before`` lists the possible predecessors of a piece; the least one counts, and none is visited twice.
    """
    path: dict[Piece, None] = {}
    while last is not None:
        path[last] = None
        last = min((each for each in before(last) if each not in path), default=None)
    return list(path)[::-1]


def arrows(spans: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Flow events from the end of each send to its receive."""
    sends = {span["args"]["message"]: span for span in spans if span.get("cat") == "send"}
    for span in spans:
        if span.get("cat") != "receive":
            continue
        message = span["args"]["message"]
        send = sends[message]
        shared = {"cat": "message", "name": "message", "id": message}
        yield {"ph": "s", **shared, "pid": send["pid"], "tid": send["tid"], "ts": send["ts"]}
        yield {"ph": "f", "bp": "e", **shared, "pid": span["pid"], "tid": span["tid"], "ts": span["ts"] + span["dur"]}


def link_counters(
    rows: Sequence[Row], topology: Topology, ranks: Sequence[int], process: int
) -> Iterator[dict[str, Any]]:
    """Counters of the payload of the busiest links over time, each message at its mean rate, in GB/s."""
    moving = [row for row in sorted(rows) if row[2] != row[3] and row[9] > row[8] and row[6]]
    if not moving:
        return
    ends = np.array([[ranks[row[2]], ranks[row[3]]] for row in moving], np.int64)
    routes = topology.route(ends[:, 0], ends[:, 1]).links
    carried: dict[int, int] = defaultdict(int)
    for row, route in zip(moving, routes.tolist(), strict=True):
        for link in route:
            if link >= 0:
                carried[link] += row[6]
    shown = sorted(carried, key=lambda link: (-carried[link], link))[:MOST_LINKS]
    changes: dict[int, dict[int, float]] = {link: defaultdict(float) for link in shown}
    for row, route in zip(moving, routes.tolist(), strict=True):
        rate = row[6] * 10**6 / (row[9] - row[8])  # bytes per nanosecond
        for link in route:
            if link in changes:
                changes[link][row[8]] += rate
                changes[link][row[9]] -= rate
    yield from counters(changes, topology, process)


def counters(changes: Mapping[int, Mapping[int, float]], topology: Topology, process: int) -> Iterator[dict[str, Any]]:
    """Counters of links from their rate changes, in GB/s, by link and femtosecond."""
    if not changes:
        return
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": "links"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    for link in sorted(changes):
        level = 0.0
        for when, change in sorted(changes[link].items()):
            level += change
            value = round(max(level, 0.0), 6)
            yield {
                "ph": "C",
                "name": topology.link_name(link),
                "pid": process,
                "ts": when / FS_PER_US,
                "args": {"GB/s": value},
            }


def summary(path: Sequence[int], rows: Sequence[Row], time_fs: int) -> dict[str, Any]:
    """The critical path in numbers: its transfers, and their share of the run time."""
    chosen = {row[0]: row for row in rows}
    covered = sum(chosen[message][10] - chosen[message][7] for message in path)
    return {"messages": len(path), "share": round(covered / time_fs, 4) if time_fs else 0.0}
