"""The graph of one rank's work: what its host does, what its device does, and what waits for what.

A node has a measured duration and needs: nodes that must have ended, and a lag after them. The host
is a chain of gaps and calls for each thread; device work comes after its launch, after earlier work
of its stream, and after what its stream waits for. Traces name neither streams nor events of waits,
so these follow from positions: inside a collective's launch, its stream waits for the stream that
computes; elsewhere the stream that computes waits for another. Measured times choose which work is
waited for, and never how long a node takes.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median

from simcoll.jobs.comm_records import kind_of_kernel
from simcoll.jobs.rank_trace import CommEvent, DeviceWork, HostCall, RankTrace

__all__ = ["CollectivePart", "NodeKind", "WorkGraph", "build_work_graph"]

Lane = str | int

_BLOCKS = re.compile(
    r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize|^(?:cuda|hip)Memcpy$|(?:cuda|hip)MemcpyWithStream"
)
_WAITS = re.compile(r"StreamWaitEvent")
_COPIES = re.compile(r"[mM]emcpy")
_RECORDS = re.compile(r"EventRecord")
_MESSAGES = ("send", "recv")
_LONG_CALL_NS = 100_000
"""From here on a call may wait for the device, such as cudaFree: then work ends shortly before."""
_HANDOVER_NS = 100_000
"""A thread that was idle for longer continues when another one has handed over to it."""
_SHORTLY_NS = 60_000
_BLOCKING_LAUNCH_NS = 3_000
"""What remains of a blocking call without its wait."""
_TOLERANCE_NS = 1_000
_LATE_NS = 20_000
_NEAR_NS = 10_000
"""Work that starts late, and shortly after the end of earlier launched work elsewhere, waits for
it.
"""
_BETWEEN_STREAMS_NS = 1_500
_USUAL_LATENCY_NS = 5_000
_MOST_LATENCY_NS = 40_000
_USUAL_GAP_NS = 1_000
_MOST_GAP_NS = 6_000


class NodeKind(IntEnum):
    """What a node is."""

    GAP = 0
    CALL = 1
    WAIT = 2
    WORK = 3
    ARRIVAL = 4
    COLLECTIVE = 5
    QUEUED = 6


@dataclass(slots=True)
class CollectivePart:
    """A rank's part of a collective: the node of its arrival, that of its end, and the kernel.

    ``events`` are the host's records around its launch, the innermost last; ``order`` is the number
    of the launch in the rank. ``batch`` are the records of sends and receives that were called
    before one launch of them all.
    """

    arrival: int
    end: int
    work: DeviceWork
    events: tuple[CommEvent, ...]
    order: int
    batch: tuple[CommEvent, ...] = ()


@dataclass(slots=True, eq=False)
class WorkGraph:
    """The graph of a rank; times in nanoseconds, nodes in an order in which needs come first.

    Attributes
    ----------
    trace
        The trace.
    begin_ns, end_ns
        The window.
    kinds, lanes, names, starts_ns, durations_ns
        By node: its kind, its thread or stream, its name, and the measured times.
    needs
        By node: the nodes that it comes after, each with a lag.
    parts
        The collectives.
    latency_ns, gap_ns
        Medians of the trace: from a call to its work on an idle stream, and between two kernels of
        a busy stream.
    queued
        Number of device work that was launched before the window.
    guesses
        Number of calls that are taken for blocking by their times.
    """

    trace: RankTrace
    begin_ns: int
    end_ns: int
    kinds: list[NodeKind] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    starts_ns: list[int] = field(default_factory=list)
    durations_ns: list[int] = field(default_factory=list)
    needs: list[list[tuple[int, int]]] = field(default_factory=list)
    parts: list[CollectivePart] = field(default_factory=list)
    latency_ns: int = _USUAL_LATENCY_NS
    gap_ns: int = _USUAL_GAP_NS
    queued: int = 0
    guesses: int = 0

    def __len__(self) -> int:
        return len(self.kinds)

    def add(
        self,
        kind: NodeKind,
        lane: Lane,
        name: str,
        times_ns: tuple[int, int],
        needs: list[tuple[int, int]],
    ) -> int:
        """Add a node with its measured start and duration; returns its number."""
        self.kinds.append(kind)
        self.lanes.append(lane)
        self.names.append(name)
        self.starts_ns.append(times_ns[0])
        self.durations_ns.append(max(0, times_ns[1]))
        self.needs.append(needs)
        return len(self.kinds) - 1

    def move(self, shift_ns: int) -> None:
        """Add a time to all times, as to those of a clock that was wrong."""
        self.begin_ns += shift_ns
        self.end_ns += shift_ns
        self.starts_ns = [start + shift_ns for start in self.starts_ns]
        for part in self.parts:
            part.work.begin_ns += shift_ns
            part.work.end_ns += shift_ns

    def end_of(self, node: int) -> int:
        """Measured end of a node."""
        return self.starts_ns[node] + self.durations_ns[node]

    def unexplained_ns(self, node: int) -> int:
        """Measured start of device work after the last of its needs had ended."""
        if not self.needs[node]:
            return 0
        ready = max(self.end_of(need) + lag for need, lag in self.needs[node])
        return self.starts_ns[node] - ready


@dataclass(slots=True)
class _Launch:
    """A call of the host with those nested in it, its device work, and the comms around it."""

    begin_ns: int
    end_ns: int
    thread: Lane
    calls: list[HostCall]
    work: list[DeviceWork]
    events: tuple[CommEvent, ...] = ()
    batch: tuple[CommEvent, ...] = ()

    @property
    def name(self) -> str:
        return self.calls[0].name


def build_work_graph(trace: RankTrace, window: tuple[int, int]) -> WorkGraph:
    """Build the graph of what a rank's host begins in a window of nanoseconds.

    Device work that runs in the window and was launched before it keeps its measured times.
    """
    graph = WorkGraph(trace, *window)
    launches, orphans = _launches(trace, window)
    graph.latency_ns, graph.gap_ns = _latencies(launches)
    builder = _GraphBuilder(graph)
    for work in orphans:
        builder.queue(work)
    launching = {
        id(event)
        for launch in launches
        if any(work.record is not None for work in launch.work)
        for event in launch.events
    }
    begun = [comm for comm in trace.comms if comm.begin_ns >= window[0]]
    _add_batches(begun, launches, launching)
    for launch in launches:
        builder.launch(launch, launching)
    _explain_late_work(graph)
    return graph


def _launches(trace: RankTrace, window: tuple[int, int]) -> tuple[list[_Launch], list[DeviceWork]]:
    """The outer calls of all threads in order, and device work without a call among them."""
    by_correlation: dict[int, list[DeviceWork]] = defaultdict(list)
    for work in trace.device_work:
        if work.correlation >= 0:
            by_correlation[work.correlation].append(work)
    outer: dict[Lane, _Launch] = {}
    launches: list[_Launch] = []
    for call in trace.calls:
        if not window[0] <= call.begin_ns < window[1]:
            continue
        earlier = outer.get(call.thread)
        if earlier is not None and call.end_ns <= earlier.end_ns:
            earlier.calls.append(call)
            launch = earlier
        else:
            launch = _Launch(call.begin_ns, call.end_ns, call.thread, [call], [])
            outer[call.thread] = launch
            launches.append(launch)
        launch.work += by_correlation.pop(call.correlation, ())
    enclosing = _Enclosing(trace.comms)
    for launch in launches:
        launch.events = enclosing.at(launch.thread, launch.begin_ns)
    orphans = [
        work
        for work in trace.device_work
        if (work.correlation < 0 or work.correlation in by_correlation)
        and work.end_ns > window[0]
        and work.begin_ns < window[1]
    ]
    return launches, orphans


def _add_batches(
    comms: Sequence[CommEvent], launches: Sequence[_Launch], launching: set[int]
) -> None:
    """Give launches of grouped messages the sends and receives that precede them.

    PyTorch launches a batch when its group ends, after the records of its messages.
    """
    waiting: dict[Lane, list[CommEvent]] = defaultdict(list)
    for comm in reversed(comms):
        if comm.parameters and comm.record.kind in _MESSAGES and id(comm) not in launching:
            waiting[comm.thread].append(comm)
    for launch in launches:
        messages = waiting.get(launch.thread)
        if not messages or not any(_is_batch(work) for work in launch.work):
            continue
        if any(event.record.kind not in {"", "wait"} for event in launch.events):
            continue
        batch = []
        while messages and messages[-1].begin_ns <= launch.begin_ns:
            batch.append(messages.pop())
        launch.batch = tuple(batch)


def _is_batch(work: DeviceWork) -> bool:
    """Whether a kernel may be of several messages: RCCL's kernels have no names of their own."""
    return (
        work.record is not None
        and not work.record.kind
        and kind_of_kernel(work.name) in {"messages", ""}
    )


class _Enclosing:
    """The comms of a thread around a time, for times that do not decrease."""

    def __init__(self, comms: Iterable[CommEvent]) -> None:
        self._waiting: dict[Lane, list[CommEvent]] = defaultdict(list)
        for comm in reversed(list(comms)):
            self._waiting[comm.thread].append(comm)
        self._open: dict[Lane, list[CommEvent]] = defaultdict(list)

    def at(self, thread: Lane, time_ns: int) -> tuple[CommEvent, ...]:
        """Those that have begun and not ended, the innermost last."""
        waiting = self._waiting.get(thread)
        current = self._open[thread]
        while waiting and waiting[-1].begin_ns <= time_ns:
            current.append(waiting.pop())
        current[:] = [comm for comm in current if comm.end_ns >= time_ns]
        return tuple(current)


def _latencies(launches: Sequence[_Launch]) -> tuple[int, int]:
    """Medians of the delay of a launch on an idle stream, and of the gap on a busy one."""
    latencies: list[int] = []
    gaps: list[int] = []
    stream_ends: dict[Lane, int] = {}
    for launch in launches:
        for work in launch.work:
            busy_until = stream_ends.get(work.stream, 0)
            delay = work.begin_ns - launch.begin_ns
            if busy_until < launch.begin_ns and 0 <= delay < _MOST_LATENCY_NS:
                latencies.append(delay)
            elif busy_until > launch.end_ns + _MOST_LATENCY_NS:
                gaps.append(work.begin_ns - busy_until)
            stream_ends[work.stream] = max(busy_until, work.end_ns)
    gaps = [gap for gap in gaps if 0 <= gap <= _MOST_GAP_NS]
    return (
        round(median(latencies)) if latencies else _USUAL_LATENCY_NS,
        round(median(gaps)) if gaps else _USUAL_GAP_NS,
    )


class _GraphBuilder:
    """Adds the nodes of a rank in the order of its calls."""

    def __init__(self, graph: WorkGraph) -> None:
        self.graph = graph
        self.last_on_thread: dict[Lane, int] = {}
        self.last_on_stream: dict[Lane, int] = {}
        self.current_stream: dict[Lane, Lane] = {}
        self.computing: Lane | None = None
        self.unmet_waits: dict[Lane, int] = defaultdict(int)
        self.stream_waits: dict[Lane, list[int]] = defaultdict(list)
        self.recorded: dict[int, dict[Lane, int]] = {}

    def queue(self, work: DeviceWork) -> None:
        """Device work that was launched before the window, at its measured time."""
        graph = self.graph
        graph.queued += 1
        times = (work.begin_ns, work.end_ns - work.begin_ns)
        node = graph.add(NodeKind.QUEUED, work.stream, work.name, times, [])
        self.last_on_stream[work.stream] = node

    def launch(self, launch: _Launch, launching: set[int]) -> None:
        """A call: the gap before it, itself, its device work, and what it waits for."""
        gap = self._gap(launch)
        duration = launch.end_ns - launch.begin_ns
        node = self.graph.add(
            NodeKind.CALL, launch.thread, launch.name, (launch.begin_ns, duration), [(gap, 0)]
        )
        self.last_on_thread[launch.thread] = node
        for call in launch.calls:
            if _WAITS.search(call.name):
                self._stream_wait(call, launch, launching)
            elif _RECORDS.search(call.name) and self.graph.trace.waits:
                self.recorded[call.correlation] = dict(self.last_on_stream)
        for work in launch.work:
            self._device_work(work, launch, (gap, node))
        self._block(launch, node)

    def _gap(self, launch: _Launch) -> int:
        """What the host does before a call, after its previous one or a handover."""
        graph, thread = self.graph, launch.thread
        previous = self.last_on_thread.get(thread)
        elsewhere = [
            node
            for lane, node in self.last_on_thread.items()
            if lane != thread and graph.end_of(node) <= launch.begin_ns
        ]
        giver = max(elsewhere, key=graph.end_of, default=None)
        needs, since = [], graph.begin_ns
        if previous is not None:
            needs, since = [(previous, 0)], graph.end_of(previous)
        if (
            giver is not None
            and graph.end_of(giver) > since
            and (previous is None or launch.begin_ns - since > _HANDOVER_NS)
        ):
            needs, since = [*needs, (giver, 0)], graph.end_of(giver)
        times = (since, launch.begin_ns - since)
        return graph.add(NodeKind.GAP, thread, "host", times, needs)

    def _stream_wait(self, call: HostCall, launch: _Launch, launching: set[int]) -> None:
        wait = self.graph.trace.waits.get(call.correlation)
        if wait is not None:
            latest = self.recorded.get(wait.record, self.last_on_stream)
            if wait.awaited in latest:
                self.stream_waits[wait.stream].append(latest[wait.awaited])
        elif not any(id(event) in launching for event in launch.events):
            self.unmet_waits[launch.thread] += 1

    def _device_work(self, work: DeviceWork, launch: _Launch, host: tuple[int, int]) -> None:
        """A kernel or copy; ``host`` are the nodes of its launch, gap and call."""
        graph, stream = self.graph, work.stream
        gap, call = host
        # A long call has loaded a module, or waited for a place in the queue, before it launched.
        late = launch.end_ns - launch.begin_ns > _LONG_CALL_NS and (
            work.begin_ns > launch.end_ns - _MOST_LATENCY_NS
        )
        needs = [(call, 0) if late else (gap, graph.latency_ns)]
        previous = self.last_on_stream.get(stream)
        if previous is not None and graph.end_of(previous) <= work.begin_ns + _TOLERANCE_NS:
            needs.append((previous, graph.gap_ns))
        needs += [(node, _BETWEEN_STREAMS_NS) for node in self.stream_waits.pop(stream, ())]
        times = (work.begin_ns, work.end_ns - work.begin_ns)
        if work.record is None:
            if self.unmet_waits.pop(launch.thread, 0):
                needs += self._ended_elsewhere(work)
            self.current_stream[launch.thread] = self.computing = stream
            node = graph.add(NodeKind.WORK, stream, work.name, times, needs)
        else:
            current = self.current_stream.get(launch.thread, self.computing)
            awaited = None if current is None else self.last_on_stream.get(current)
            if (
                awaited is not None
                and current != stream
                and graph.end_of(awaited) <= work.begin_ns + _TOLERANCE_NS
            ):
                needs.append((awaited, _BETWEEN_STREAMS_NS))
            arrival = graph.add(NodeKind.ARRIVAL, stream, work.name, (work.begin_ns, 0), needs)
            node = graph.add(NodeKind.COLLECTIVE, stream, work.name, times, [(arrival, 0)])
            order = len(graph.parts)
            graph.parts.append(
                CollectivePart(arrival, node, work, launch.events, order, launch.batch)
            )
        self.last_on_stream[stream] = node

    def _ended_elsewhere(self, work: DeviceWork) -> list[tuple[int, int]]:
        """The latest work of other streams that has ended when this begins."""
        ends = [
            (self.graph.end_of(node), node)
            for stream, node in self.last_on_stream.items()
            if stream != work.stream and self.graph.end_of(node) <= work.begin_ns + _TOLERANCE_NS
        ]
        return [(max(ends)[1], _BETWEEN_STREAMS_NS)] if ends else []

    def _block(self, launch: _Launch, node: int) -> None:
        """Split a blocking call into its launch and its wait, which comes after device work."""
        graph = self.graph
        begin, end = launch.begin_ns, launch.end_ns
        whole_device = "Device" in launch.name
        sure = bool(_BLOCKS.search(launch.name)) or self._copies_pageable(launch)
        candidates = [
            last
            for last in self.last_on_stream.values()
            if graph.end_of(last) <= end + _TOLERANCE_NS * (5 if whole_device else 1)
            and (whole_device or graph.end_of(last) > begin)
        ]
        if not sure and end - begin > _LONG_CALL_NS:
            candidates = [last for last in candidates if last < node]  # not its own
            sure = any(end - graph.end_of(last) < _SHORTLY_NS for last in candidates)
            graph.guesses += sure
        if not sure or not candidates:
            return
        latest = max(candidates, key=graph.end_of)
        awaited = candidates if whole_device else [latest]
        lead = max(graph.end_of(latest), begin)
        graph.durations_ns[node] = min(
            graph.durations_ns[node],
            _BLOCKING_LAUNCH_NS if lead > begin + _BLOCKING_LAUNCH_NS else end - begin,
        )
        wait_times = (min(end, lead), end - lead)
        if lead <= begin:  # nothing to wait for: the call took its own time
            graph.durations_ns[node] = 0
        wait = graph.add(
            NodeKind.WAIT,
            launch.thread,
            launch.name,
            wait_times,
            [(node, 0), *((last, 0) for last in awaited)],
        )
        self.last_on_thread[launch.thread] = wait

    @staticmethod
    def _copies_pageable(launch: _Launch) -> bool:
        return bool(_COPIES.search(launch.name)) and any(
            "DtoH" in work.name and "Pageable" in work.name for work in launch.work
        )


def _explain_late_work(graph: WorkGraph) -> None:
    """Let late device work wait for earlier work of another stream that ended just before it."""
    device = (NodeKind.WORK, NodeKind.COLLECTIVE, NodeKind.QUEUED)
    ended = sorted((graph.end_of(node), node) for node in _nodes(graph, device))
    ends = [end for end, _ in ended]
    for node in _nodes(graph, (NodeKind.WORK, NodeKind.ARRIVAL)):
        if graph.unexplained_ns(node) <= _LATE_NS:
            continue
        begin = graph.starts_ns[node]
        low = bisect_left(ends, begin - _NEAR_NS)
        high = bisect_right(ends, begin + _TOLERANCE_NS)
        candidates = [
            earlier
            for _, earlier in ended[low:high]
            if earlier < node and graph.lanes[earlier] != graph.lanes[node]
        ]
        if candidates:
            graph.needs[node].append((candidates[-1], _BETWEEN_STREAMS_NS))


def _nodes(graph: WorkGraph, kinds: tuple[NodeKind, ...]) -> Iterator[int]:
    return (node for node, kind in enumerate(graph.kinds) if kind in kinds)
