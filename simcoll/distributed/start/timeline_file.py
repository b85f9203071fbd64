"""Timelines in Trace Event Format, with the field names of PyTorch's profiler.

Perfetto and chrome://tracing show them; holistic trace analysis reads a folder with one file per rank.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.records import Entry
from simcoll.distributed.runtime.run_timeline import Timeline
from simcoll.distributed.start.results import RunResult
from simcoll.distributed.start.timeline_path import COMPUTE, Piece, critical_pieces
from simcoll.emulator.traces.trace_marks import RED
from simcoll.errors import ConfigError
from simcoll.files.output import write_files
from simcoll.topology import Topology

Event = dict[str, Any]

__all__ = ["write_timeline"]

FS_PER_US = 10**9
COMPUTE_STREAM = 7
"""Stream number of computation, as in CUDA traces; the streams of groups follow."""
WAITS = 0
BUSIEST = 16
"""Number of links with a counter: those that carried most bytes."""
POINTS = 1000
"""Values of a counter over the run."""
WHOLE_US_FROM_FS = 1000 * FS_PER_US
"""Length of a run from which files of ranks have whole microseconds: holistic trace analysis cuts fractions off events."""


def write_timeline(path: str | Path, result: RunResult, topology: Topology) -> None:
    """Write the timeline of a run: a file, compressed if it ends in ``.gz``; or a folder of ``rank-N.json.gz``.

    Raises
    ------
    ConfigError
        When there is no timeline, or it cannot be written, which keeps old files.
    """
    timeline, target = result.timeline, Path(path)
    if timeline is None:
        raise ConfigError("this run has no timeline: call spawn with trace=True or a path")
    critical = critical_pieces(timeline)
    one_file = target.suffix in {".json", ".gz"}
    tick_fs = 1 if one_file or result.time_fs < WHOLE_US_FROM_FS else FS_PER_US
    by_rank = {rank: _Events(timeline, rank, critical, tick_fs).found for rank in result.own_ranks}
    shared = [*_arrows(timeline, by_rank.values()), *_counters(timeline, topology, result.time_fs)]
    covered = sum(piece.end_fs - piece.begin_fs for piece in critical) / result.time_fs if result.time_fs else 0.0
    about = {
        "topology": result.topology, "time_us": result.time_fs / FS_PER_US, "trace_hash": result.trace_hash,
        "critical_path": {"operations": len(critical), "share": round(covered, 4)},
    }  # fmt: skip
    if one_file:
        events = [*_names(topology, by_rank), *(event for found in by_rank.values() for event in found), *shared]
        content = _encoded({"otherData": about, "traceEvents": events}, compressed=target.suffix == ".gz")
        write_files(target.parent, {target.name: content})
        return
    target.mkdir(parents=True, exist_ok=True)
    files = {}
    for rank, events in by_rank.items():
        info = {"rank": rank, "world_size": len(timeline.finish_fs), "backend": "nccl"}
        document = {"distributedInfo": info, "otherData": about, "traceEvents": events}
        files[f"rank-{rank}.json.gz"] = _encoded(document, compressed=True)
    write_files(target, files)


def _encoded(document: dict[str, Any], *, compressed: bool) -> bytes:
    text = json.dumps({"displayTimeUnit": "ns", **document}, separators=(",", ": ")).encode()
    if not compressed:
        return text
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream:
        stream.write(text)
    return buffer.getvalue()


def _names(topology: Topology, ranks: Iterable[int]) -> Iterable[Event]:
    nodes = topology.rank_nodes.tolist()
    for rank in ranks:
        name = f"rank {rank} ({topology.node_names[nodes[rank]]})"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}


class _Events:
    """The events of one rank: a track for compute, one for waits, and one for each group; more where operations overlap.

    Times are rounded to ticks.
    """

    def __init__(self, timeline: Timeline, rank: int, critical: Sequence[Piece], tick_fs: int) -> None:
        self.rank, self._tick_fs = rank, tick_fs
        own = [piece for piece in critical if piece.rank == rank]
        self._critical = {(each.operation, each.begin_fs if each.operation == COMPUTE else 0) for each in own}
        self.found: list[Event] = []
        self._tracks: dict[int, list[int]] = {}  # until when each track of a stream is taken
        self._next = COMPUTE_STREAM
        computed = [(span.begin_fs, span.end_fs, span.name) for span in timeline.computed if span.rank == rank]
        self._add(self._stream("compute"), [(*span, "kernel", {}) for span in computed])
        groups: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        for owner, entry in timeline.operations:
            if owner == rank and entry.completed_fs >= 0:
                groups[entry.group].append(entry)
        for group, entries in groups.items():
            rows = [
                (entry.started_fs, entry.completed_fs, f"ncclDevKernel_{entry.name}", "kernel", _arguments(entry, rank))
                for entry in entries
            ]
            self._add(self._stream(": ".join(dict.fromkeys(("group " + group[0], group[1])))), rows)
        waits = [(span.begin_fs, span.end_fs, span.name) for span in timeline.waited if span.rank == rank]
        self._name(WAITS, "waits")
        for begin, end, name in waits:
            self.found.append(self._event(WAITS, begin, end, name, "user_annotation", {}))

    def _stream(self, name: str) -> int:
        stream, self._next = self._next, self._next + 100
        self._name(stream, name)
        return stream

    def _name(self, track: int, name: str) -> None:
        self.found.append({"ph": "M", "name": "thread_name", "pid": self.rank, "tid": track, "args": {"name": name}})

    def _add(self, stream: int, rows: Iterable[tuple[int, int, str, str, Event]]) -> None:
        taken: list[int] = []
        for begin, end, name, category, arguments in sorted(rows, key=lambda row: row[:2]):
            track = next((track for track, free in enumerate(taken) if free <= begin), len(taken))
            taken[track : track + 1] = [end]
            own = {"stream": stream + track, "device": self.rank, **arguments}
            self.found.append(self._event(stream + track, begin, end, name, category, own))

    def _event(self, track: int, begin: int, end: int, name: str, category: str, arguments: Event) -> Event:
        where = {"ph": "X", "cat": category, "name": name, "pid": self.rank, "tid": track}
        operation = arguments.get("External id", COMPUTE)
        if category == "kernel" and (operation, begin if operation == COMPUTE else 0) in self._critical:
            where["cname"], arguments = RED, {**arguments, "critical": True}
        start, stop = ((time + self._tick_fs // 2) // self._tick_fs * self._tick_fs for time in (begin, end))
        return {**where, "ts": start / FS_PER_US, "dur": (stop - start) / FS_PER_US, "args": arguments}


def _elements(buffers: Sequence[tuple[tuple[int, ...], str]]) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) for shape, _ in buffers)


def _arguments(entry: Entry, rank: int) -> Event:
    """The arguments that PyTorch's profiler records for a collective, and the ID for its flow arrows."""
    buffers = entry.inputs or entry.outputs
    return {
        "Collective name": entry.name,
        "dtype": buffers[0][1] if buffers else "",
        "In msg nelems": _elements(entry.inputs),
        "Out msg nelems": _elements(entry.outputs),
        "Process Group Name": entry.group[0],
        "Process Group Description": entry.group[1],
        "Seq": entry.sequence,
        "Rank": rank,
        "External id": entry.number,
        "site": str(entry.site),
    }


def _arrows(timeline: Timeline, by_rank: Iterable[list[Event]]) -> Iterable[Event]:
    """An arrow from every send to its receive."""
    place = {
        (event["pid"], event["args"]["External id"]): event
        for events in by_rank
        for event in events
        if "External id" in event.get("args", {})
    }
    for number, ((source, sent), (target, received)) in enumerate(timeline.messages):
        begin, end = place.get((source, sent.number)), place.get((target, received.number))
        if begin is not None and end is not None:
            arrow = {"name": "message", "cat": "message", "id": number}
            yield {**arrow, "ph": "s", "pid": source, "tid": begin["tid"], "ts": begin["ts"]}
            yield {**arrow, "ph": "f", "bp": "e", "pid": target, "tid": end["tid"], "ts": end["ts"] + end["dur"]}


def _counters(timeline: Timeline, topology: Topology, time_fs: int) -> Iterable[Event]:
    """Utilisation counters of the busiest links, with each plan's bytes spread evenly over its time in flight."""
    loads: dict[int, Floats] = {}
    for plan, _ in timeline.played:
        if id(plan) not in loads:
            loads[id(plan)] = _link_bytes(plan, topology)
    if not loads or not time_fs:
        return
    total = np.zeros(topology.nlinks)
    for plan, _ in timeline.played:
        total += loads[id(plan)]
    busiest = np.argsort(-total, kind="stable")[:BUSIEST]
    busiest = busiest[total[busiest] > 0]
    edges = np.linspace(0, time_fs, POINTS + 1)
    moved = np.zeros((len(busiest), POINTS))
    for plan, (begin, end) in timeline.played:
        share = np.clip((edges[1:] - begin) / max(end - begin, 1), 0, 1) - np.clip(
            (edges[:-1] - begin) / max(end - begin, 1), 0, 1
        )
        moved += loads[id(plan)][busiest, None] * share
    room = topology.link_capacity_uBps[busiest] / 10**21 * (time_fs / POINTS)
    for link, used in zip(busiest.tolist(), moved / room[:, None], strict=True):
        last = -1.0
        for point, value in enumerate(np.append(np.round(used, 4), 0).tolist()):
            if value != last:
                name = f"link {topology.link_name(link)}"
                where = {"ph": "C", "name": name, "pid": -1, "ts": time_fs / FS_PER_US * point / POINTS}
                yield {**where, "args": {"share in use": value}}
            last = value


def _link_bytes(plan: Plan, topology: Topology) -> Floats:
    """The bytes that a plan sends over each link."""
    found, place = np.zeros(topology.nlinks), np.asarray(plan.ranks)
    for step in plan.steps():
        links = topology.route(place[step.src_rank], place[step.dst_rank]).links
        sizes = np.broadcast_to(step.size_bytes[:, None], links.shape)
        np.add.at(found, links[links >= 0], sizes[links >= 0])
    return found
