"""Timelines in Trace Event Format, with the field names of PyTorch's profiler.

Perfetto and chrome://tracing show them; holistic trace analysis reads a folder with one file per
rank.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simcoll.arrays import Floats
from simcoll.core.plan import Plan
from simcoll.distributed.runtime.records import Entry
from simcoll.distributed.runtime.run_timeline import RankSpan, RunTimeline
from simcoll.distributed.start.results import RunResult
from simcoll.distributed.start.timeline_path import COMPUTE, Piece, critical_pieces
from simcoll.emulator.traces.scope_rows import MODULES, PHASES, scope_slices
from simcoll.emulator.traces.trace_marks import RED
from simcoll.errors import ConfigError
from simcoll.files.output import write_files
from simcoll.topology import Topology
from simcoll.topology.chosen_paths import chosen_routes

Event = dict[str, Any]

__all__ = ["write_timeline"]

FS_PER_US = 10**9
COMPUTE_STREAM = 7
"""Stream number of computation, as in CUDA traces; the streams of groups follow."""
DEFAULT_STREAM = "stream 0"
WAITS = 0
ROWS = {PHASES: 1, MODULES: 2}
"""Tracks that tell where in its program a rank computes; viewers show them first."""
LINKS = -1
"""The process of the counters."""
BUSIEST = 16
"""Number of links with a counter: those that carried most bytes."""
POINTS = 1000
"""Values of a counter over the run."""
WHOLE_US_FROM_FS = 1000 * FS_PER_US
"""Length of a run from which files of ranks have whole microseconds: holistic trace analysis cuts
fractions off events.
"""


def write_timeline(path: str | Path, result: RunResult, topology: Topology) -> None:
    """Write the timeline of a run: a file, compressed if it ends in ``.gz``; or a folder of
    ``rank-N.json.gz``.

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
    by_rank = {rank: _Events(timeline, rank, critical, tick_fs).events for rank in result.own_ranks}
    shared = [*_arrows(timeline, by_rank.values()), *_counters(timeline, topology, result.time_fs)]
    covered = (
        sum(piece.end_fs - piece.begin_fs for piece in critical) / result.time_fs
        if result.time_fs
        else 0.0
    )
    about = {
        "topology": result.topology,
        "time_us": result.time_fs / FS_PER_US,
        "trace_hash": result.trace_hash,
        "critical_path": {"operations": len(critical), "share": round(covered, 4)},
    }
    if one_file:
        events = [
            *(event for rank in by_rank for event in _names(topology, rank)),
            *(event for rank_events in by_rank.values() for event in rank_events),
            *shared,
        ]
        content = _encode_document(
            {"otherData": about, "traceEvents": events}, compressed=target.suffix == ".gz"
        )
        write_files(target.parent, {target.name: content})
        return
    target.mkdir(parents=True, exist_ok=True)
    files = {}
    for rank, events in by_rank.items():
        info = {"rank": rank, "world_size": len(timeline.finish_fs), "backend": "nccl"}
        document = {
            "distributedInfo": info,
            "otherData": about,
            "traceEvents": [*_names(topology, rank), *events],
        }
        files[f"rank-{rank}.json.gz"] = _encode_document(document, compressed=True)
    write_files(target, files)


def _encode_document(document: dict[str, Any], *, compressed: bool) -> bytes:
    text = json.dumps({"displayTimeUnit": "ns", **document}, separators=(",", ": ")).encode()
    if not compressed:
        return text
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream:
        stream.write(text)
    return buffer.getvalue()


def _names(topology: Topology, rank: int) -> list[Event]:
    """The name of a rank's process, and its place in the viewer."""
    vertex = topology.node_names[int(topology.rank_nodes[rank])]
    return _process(rank, f"rank {rank} ({vertex})", rank)


def _process(number: int, name: str, place: int) -> list[Event]:
    return [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": place}},
    ]


class _Slice(NamedTuple):
    """An interval on a track of the trace."""

    begin_fs: int
    end_fs: int
    name: str
    category: str
    arguments: Event


class _Events:
    """The events of one rank: tracks for phases and modules, waits, the computation of each stream,
    and each group; more where operations overlap.

    Times are rounded to ticks.
    """

    def __init__(
        self, timeline: RunTimeline, rank: int, critical: Sequence[Piece], tick_fs: int
    ) -> None:
        self.rank, self._tick_fs = rank, tick_fs
        own_pieces = [piece for piece in critical if piece.rank == rank]
        self._critical = {
            (piece.operation, piece.begin_fs if piece.operation == COMPUTE else 0)
            for piece in own_pieces
        }
        self.events: list[Event] = []
        self._tracks: dict[int, list[int]] = {}  # until when each track of a stream is taken
        self._next = COMPUTE_STREAM
        streams: defaultdict[str, list[RankSpan]] = defaultdict(list, {"compute": []})
        for span in timeline.computed:
            if span.rank == rank:
                default = span.stream in {"", DEFAULT_STREAM}
                streams["compute" if default else f"compute: {span.stream}"].append(span)
        self._add_scopes(streams["compute"])
        for name, spans in sorted(streams.items()):
            self._add(name, [_computation(span) for span in spans])
        groups: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        for owner, entry in timeline.operations:
            if owner == rank and entry.completed_fs >= 0:
                groups[entry.group].append(entry)
        for group, entries in groups.items():
            rows = [
                _Slice(
                    entry.started_fs,
                    entry.completed_fs,
                    f"ncclDevKernel_{entry.name}",
                    "kernel",
                    _arguments(entry, rank),
                )
                for entry in entries
            ]
            self._add(": ".join(dict.fromkeys(("group " + group[0], group[1]))), rows)
        self._name(WAITS, "waits")
        for span in timeline.waited:
            if span.rank == rank:
                wait = _Slice(span.begin_fs, span.end_fs, span.name, "user_annotation", {})
                self.events.append(self._event(WAITS, wait))

    def _add_scopes(self, computed: Iterable[RankSpan]) -> None:
        """Add the rows of phases and modules, if the places of computations are known."""
        slices = scope_slices((span.begin_fs, span.end_fs, span.scope) for span in computed)
        present = {part.row for part in slices}
        for row, track in ROWS.items():
            if row in present:
                self._name(track, row)
                place = {"sort_index": track - len(ROWS) - 1}
                track_event = {"ph": "M", "name": "thread_sort_index", "pid": self.rank}
                self.events.append({**track_event, "tid": track, "args": place})
        for part in slices:
            if part.end_fs > part.begin_fs:
                arguments = {"scope": part.scope}
                interval = _Slice(
                    part.begin_fs, part.end_fs, part.name, "user_annotation", arguments
                )
                self.events.append(self._event(ROWS[part.row], interval))

    def _name(self, track: int, name: str) -> None:
        self.events.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": self.rank,
                "tid": track,
                "args": {"name": name},
            }
        )

    def _add(self, name: str, slices: Iterable[_Slice]) -> None:
        """Add a stream: a track, and further ones where its slices overlap."""
        stream, self._next = self._next, self._next + 100
        self._name(stream, name)
        busy_until: list[int] = []
        for interval in sorted(slices, key=lambda interval: (interval.begin_fs, interval.end_fs)):
            track = next(
                (track for track, free_fs in enumerate(busy_until) if free_fs <= interval.begin_fs),
                len(busy_until),
            )
            if track and track == len(busy_until):
                self._name(stream + track, f"{name} ({track + 1})")
            busy_until[track : track + 1] = [interval.end_fs]
            details = {"stream": stream + track, "device": self.rank, **interval.arguments}
            self.events.append(self._event(stream + track, interval._replace(arguments=details)))

    def _event(self, track: int, interval: _Slice) -> Event:
        event = {
            "ph": "X",
            "cat": interval.category,
            "name": interval.name,
            "pid": self.rank,
            "tid": track,
        }
        arguments = interval.arguments
        operation = arguments.get("External id", COMPUTE)
        begin_fs = interval.begin_fs if operation == COMPUTE else 0
        if interval.category == "kernel" and (operation, begin_fs) in self._critical:
            event["cname"] = RED
            arguments = {**arguments, "critical": True}
        start_fs = self._round(interval.begin_fs)
        stop_fs = self._round(interval.end_fs)
        return {
            **event,
            "ts": start_fs / FS_PER_US,
            "dur": (stop_fs - start_fs) / FS_PER_US,
            "args": arguments,
        }

    def _round(self, time_fs: int) -> int:
        """The nearest tick."""
        return (time_fs + self._tick_fs // 2) // self._tick_fs * self._tick_fs


def _computation(span: RankSpan) -> _Slice:
    arguments = {"scope": span.scope} if span.scope else {}
    return _Slice(span.begin_fs, span.end_fs, span.name, "kernel", arguments)


def _elements(buffers: Sequence[tuple[tuple[int, ...], str]]) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) for shape, _ in buffers)


def _arguments(entry: Entry, rank: int) -> Event:
    """The arguments that PyTorch's profiler records for a collective, and the ID for its flow
    arrows.
    """
    buffers = entry.inputs or entry.outputs
    scope = {"scope": entry.scope} if entry.scope else {}
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
        **scope,
    }


def _arrows(timeline: RunTimeline, by_rank: Iterable[list[Event]]) -> Iterable[Event]:
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
            yield {
                **arrow,
                "ph": "f",
                "bp": "e",
                "pid": target,
                "tid": end["tid"],
                "ts": end["ts"] + end["dur"],
            }


def _counters(timeline: RunTimeline, topology: Topology, time_fs: int) -> Iterable[Event]:
    """Utilisation counters of the busiest links, with each plan's bytes spread evenly over its time
    in flight.
    """
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
    yield from _process(LINKS, "links", len(timeline.finish_fs))
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
                counter = {
                    "ph": "C",
                    "name": name,
                    "pid": LINKS,
                    "ts": time_fs / FS_PER_US * point / POINTS,
                }
                yield {**counter, "args": {"share in use": value}}
            last = value


def _link_bytes(plan: Plan, topology: Topology) -> Floats:
    """The bytes that a plan sends over each link."""
    link_bytes, place = np.zeros(topology.nlinks), np.asarray(plan.ranks)
    for step in plan.steps():
        ends = place[step.src_rank], place[step.dst_rank]
        paths = None if step.transits is None else step.transits.paths()
        links = chosen_routes(topology, *ends, paths).links
        sizes = np.broadcast_to(step.size_bytes[:, None], links.shape)
        np.add.at(link_bytes, links[links >= 0], sizes[links >= 0])
    return link_bytes
