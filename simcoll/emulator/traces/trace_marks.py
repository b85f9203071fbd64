"""Trace annotations beside the spans: send-receive arrows, link utilisation, and the critical
path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from simcoll.core.plan import Plan
from simcoll.core.transit import transits_from
from simcoll.topology import Topology
from simcoll.topology.chosen_paths import chosen_routes

__all__ = [
    "MOST_LINKS",
    "RED",
    "arrows",
    "counters",
    "critical_messages",
    "link_counters",
    "path_back",
    "paths_of",
    "summary",
]

Piece = TypeVar("Piece", bound="tuple[Any, ...]")
FS_PER_US = 10**9
RED = "terrible"
"""A red in the viewers' palette."""
MOST_LINKS = 32
"""Number of links shown: those that carry the most bytes."""


class TraceRow(NamedTuple):
    """A transfer as an observer receives it."""

    message: int
    step: int
    src: int
    dst: int
    channel: int
    op: int
    size_bytes: int
    ready_fs: int
    start_fs: int
    end_fs: int
    done_fs: int


def critical_messages(rows: Sequence[TraceRow]) -> list[int]:
    """The critical path: transfers each of which waited for the previous one, up to the last to
    end, in order of time.

    A transfer waits for one that ended on a rank of its own at the moment when it became ready; of
    several, the lowest number counts.
    """
    by_done: dict[tuple[int, int], list[TraceRow]] = defaultdict(list)
    for row in sorted(rows):
        for rank in {row.src, row.dst}:
            by_done[rank, row.done_fs].append(row)

    def predecessors(row: TraceRow) -> Iterator[TraceRow]:
        for rank in (row.src, row.dst):
            yield from by_done[rank, row.ready_fs]

    last = max(rows, key=lambda row: (row.done_fs, -row.message), default=None)
    return [row.message for row in path_back(last, predecessors)]


def path_back(last: Piece | None, predecessors: Callable[[Piece], Iterable[Piece]]) -> list[Piece]:
    """Pieces of time each of which waited for the previous one, up to ``last``, in order of time.

    ``predecessors`` lists the possible predecessors of a piece; the least one counts, and none is
    visited twice.
    """
    path: dict[Piece, None] = {}
    while last is not None:
        path[last] = None
        last = min((piece for piece in predecessors(last) if piece not in path), default=None)
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
        yield {
            "ph": "f",
            "bp": "e",
            **shared,
            "pid": span["pid"],
            "tid": span["tid"],
            "ts": span["ts"] + span["dur"],
        }


def paths_of(plan: Plan) -> list[str]:
    """What each message of a plan goes via, in order; empty if no path is chosen."""
    vias: list[str] = []
    if any(transit.via for transit in plan.schedule.transits):
        for step in plan.steps():
            vias += [""] * len(step) if step.transits is None else step.transits.columns()[0]
    return vias


def link_counters(
    rows: Sequence[TraceRow],
    topology: Topology,
    ranks: Sequence[int],
    process: int,
    vias: Mapping[int, str],
) -> Iterator[dict[str, Any]]:
    """Counters of the payload of the busiest links over time, each message at its mean rate, in
    GB/s; ``vias`` has the paths that messages choose.
    """
    moving = [
        row
        for row in sorted(rows)
        if row.src != row.dst and row.end_fs > row.start_fs and row.size_bytes
    ]
    if not moving:
        return
    ends = np.array([[ranks[row.src], ranks[row.dst]] for row in moving], np.int64)
    paths = transits_from([vias.get(row.message, "") for row in moving], "", len(moving))
    routes = chosen_routes(topology, ends[:, 0], ends[:, 1], paths).links
    carried: dict[int, int] = defaultdict(int)
    for row, route in zip(moving, routes.tolist(), strict=True):
        for link in route:
            if link >= 0:
                carried[link] += row.size_bytes
    busiest = sorted(carried, key=lambda link: (-carried[link], link))[:MOST_LINKS]
    changes: dict[int, dict[int, float]] = {link: defaultdict(float) for link in busiest}
    for row, route in zip(moving, routes.tolist(), strict=True):
        rate = row.size_bytes * 10**6 / (row.end_fs - row.start_fs)  # bytes per nanosecond
        for link in route:
            if link in changes:
                changes[link][row.start_fs] += rate
                changes[link][row.end_fs] -= rate
    yield from counters(changes, topology, process)


def counters(
    changes: Mapping[int, Mapping[int, float]], topology: Topology, process: int
) -> Iterator[dict[str, Any]]:
    """Counters of links from their rate changes, in GB/s, by link and femtosecond."""
    if not changes:
        return
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": "links"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    for link in sorted(changes):
        name, level = topology.link_name(link), 0.0
        for when, change in sorted(changes[link].items()):
            level += change
            value = round(max(level, 0.0), 6)
            yield {
                "ph": "C",
                "name": name,
                "pid": process,
                "ts": when / FS_PER_US,
                "args": {"GB/s": value},
            }


def summary(path: Sequence[int], rows: Sequence[TraceRow], time_fs: int) -> dict[str, Any]:
    """The critical path in numbers: its transfers, and their share of the run time."""
    by_message = {row.message: row for row in rows}
    covered = sum(by_message[message].done_fs - by_message[message].ready_fs for message in path)
    return {"messages": len(path), "share": round(covered / time_fs, 4) if time_fs else 0.0}
