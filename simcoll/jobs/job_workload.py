"""A traced job as a workload: computation and hosts as measured, collectives to be predicted.

Gaps and calls of a thread that nothing but the thread waits for become one operation. Kernels come
after the call that launched them, and last a gap of their stream longer, since a workload has
neither launch latencies nor gaps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from simcoll.errors import ConfigError
from simcoll.jobs.job import Job
from simcoll.jobs.meetings import TracedMeeting
from simcoll.jobs.work_graph import NodeKind, WorkGraph
from simcoll.traces.gathering import gather_traces
from simcoll.traces.rank_traces import Together, TraceStep
from simcoll.units import MAX_TIME_FS, counted
from simcoll.workload.workload import Workload

__all__ = ["job_workload"]

_FS = 10**6
"""Femtoseconds of a nanosecond."""
_LONGEST_NAME = 60
_NAMED_KERNELS = 10
"""Kernels that keep their names in tables and timelines, which have a colour for each."""
_HOST = (NodeKind.GAP, NodeKind.CALL, NodeKind.WAIT)


def job_workload(job: Job, *, measured: bool = False) -> tuple[Workload, list[str]]:
    """The workload of a job, and notes.

    Parameters
    ----------
    job
        A job whose replay describes it.
    measured
        Whether collectives keep their measured services; otherwise those with a size are left to be
        predicted.

    Raises
    ------
    ConfigError
        For a replay error above 5 %, or a job of more than 2.5 hours.
    """
    job.refuse_changes()
    if job.measured_ns * _FS > MAX_TIME_FS:
        raise ConfigError("the job takes longer than the 2.5 hours that a workload may take")
    names = _kernel_names(job)
    place_of = {rank: place for place, rank in enumerate(job.ranks)}
    origin_ns = min(graph.begin_ns for graph in job.graphs)
    steps = []
    fixed = 0
    for place, graph in enumerate(job.graphs):
        meetings = {
            meeting.calls[place]: (number, meeting)
            for number, meeting in enumerate(job.matching.meetings)
            if place in meeting.calls
        }
        rank = _RankSteps(graph, origin_ns, meetings, place_of, names, measured)
        rank.build()
        steps.append(rank.steps)
        fixed += rank.fixed
    notes = []
    messages = sum(
        len(meeting.calls) for meeting in job.matching.meetings if meeting.kind == "messages"
    )
    fixed -= messages
    if messages and not measured:
        notes.append(f"{counted(messages, 'call')} of several messages keep their measured times")
    if fixed and not measured:
        notes.append(
            f"{counted(fixed, 'call')} without a size or without all ranks keep their measured "
            "times"
        )
    title = f"a traced job of {counted(len(job.graphs), 'rank')}"
    return gather_traces(steps, title=title), notes


def _kernel_names(job: Job) -> dict[str, str]:
    """A short name for every kernel: its own for those that take most of the time."""
    times: Counter[str] = Counter()
    for graph in job.graphs:
        for node, kind in enumerate(graph.kinds):
            if kind in {NodeKind.WORK, NodeKind.QUEUED}:
                times[graph.names[node]] += graph.durations_ns[node]
    short = {name: _short_name(name) for name in times}
    totals: Counter[str] = Counter()
    for name, time_ns in times.items():
        totals[short[name]] += time_ns
    longest = {name for name, _ in totals.most_common(_NAMED_KERNELS)}
    return {name: title if title in longest else "other kernels" for name, title in short.items()}


def _short_name(kernel: str) -> str:
    """The name of a kernel without namespaces, template arguments and parameters.

    >>> _short_name("void at::native::vectorized_elementwise_kernel<4, Fill>(int, Fill)")
    'vectorized_elementwise_kernel'
    """
    bare = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    bare = re.split(r"[<(]", bare, maxsplit=1)[0].strip()
    return bare.rpartition("::")[2][:_LONGEST_NAME] or "kernel"


@dataclass(eq=False)
class _RankSteps:
    """Builds the steps of a rank from its graph.

    ``step_of`` has the number of the step at whose end a node has ended. ``pending`` is, by thread,
    what has not become a step yet: the steps it comes after, and its nanoseconds.
    """

    graph: WorkGraph
    origin_ns: int
    meetings: Mapping[int, tuple[int, TracedMeeting]]
    place_of: Mapping[int, int]
    names: Mapping[str, str]
    measured: bool
    steps: list[TraceStep] = field(default_factory=list)
    fixed: int = 0
    step_of: dict[int, int] = field(default_factory=dict)
    pending: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    queued_until_ns: dict[str, int] = field(default_factory=dict)

    def build(self) -> None:
        """Add all steps."""
        graph = self.graph
        self.awaited = self._awaited_host_nodes()
        self.part_of = {part.end: number for number, part in enumerate(graph.parts)}
        self.begin: tuple[int, ...] = ()
        skew_ns = graph.begin_ns - self.origin_ns
        if skew_ns > 0:
            self.begin = (self._add("start", (), "later start", skew_ns),)
        for node, kind in enumerate(graph.kinds):
            if kind in _HOST:
                self._host(node)
            elif kind is NodeKind.QUEUED:
                self._queued_work(node)
            elif kind is NodeKind.WORK:
                duration = graph.durations_ns[node] + graph.gap_ns
                lane = f"stream {graph.lanes[node]}"
                awaited_steps = self._after(node)
                name = self.names[graph.names[node]]
                self.step_of[node] = self._add(lane, awaited_steps, name, duration)
            elif kind is NodeKind.COLLECTIVE:
                self._collective(node)
        for lane in list(self.pending):
            self._flush(lane)

    def _add(
        self,
        lane: str,
        awaited_steps: tuple[int, ...],
        name: str,
        time_ns: int,
        together: Together | None = None,
    ) -> int:
        number = len(self.steps)
        self.steps.append(TraceStep(lane, awaited_steps, name, time_ns * _FS, together=together))
        return number

    def _awaited_host_nodes(self) -> set[int]:
        """Nodes of the host that something else than their own thread waits for."""
        graph = self.graph
        awaited: set[int] = set()
        for node, needs in enumerate(graph.needs):
            host = graph.kinds[node] in _HOST
            for need, _ in needs:
                if graph.kinds[need] not in _HOST:
                    continue
                if not host or graph.lanes[need] != graph.lanes[node]:
                    # A launch is at the beginning of its call, so the call stands for its gap.
                    awaited.add(need + 1 if graph.kinds[need] is NodeKind.GAP else need)
        return awaited

    def _after(self, node: int) -> tuple[int, ...]:
        """The steps of what a node needs."""
        graph = self.graph
        numbers = []
        for need, _ in graph.needs[node]:
            place = need + 1 if graph.kinds[need] is NodeKind.GAP else need
            if place in self.step_of:
                numbers.append(self.step_of[place])
        return tuple(sorted(set(numbers)))

    def _host(self, node: int) -> None:
        """Add a node of the host to what its thread does without being waited for."""
        graph = self.graph
        lane = f"host {graph.lanes[node]}"
        elsewhere = tuple(
            self.step_of[need]
            for need, _ in graph.needs[node]
            if need in self.step_of
            and (graph.kinds[need] not in _HOST or graph.lanes[need] != graph.lanes[node])
        )
        if lane not in self.pending:
            self.pending[lane] = (self.begin, 0)
        if elsewhere:  # what came before does not wait for it
            self._flush(lane)
            self.pending[lane] = (elsewhere, 0)
        awaited_steps, time_ns = self.pending[lane]
        self.pending[lane] = (awaited_steps, time_ns + graph.durations_ns[node])
        if node in self.awaited:
            self.step_of[node] = self._flush(lane)

    def _flush(self, lane: str) -> int:
        """Make a step of what a thread has done."""
        awaited_steps, time_ns = self.pending.pop(lane)
        self.pending[lane] = ((), 0)
        return self._add(lane, awaited_steps, "host", time_ns)

    def _queued_work(self, node: int) -> None:
        """Work that was launched before: it ends at its measured time."""
        graph = self.graph
        lane = f"stream {graph.lanes[node]}"
        since = self.queued_until_ns.get(lane, self.origin_ns)
        end = max(graph.end_of(node), since)
        self.queued_until_ns[lane] = end
        self.step_of[node] = self._add(lane, (), self.names[graph.names[node]], end - since)

    def _collective(self, node: int) -> None:
        graph = self.graph
        number = self.part_of[node]
        part = graph.parts[number]
        awaited_steps = self._after(part.arrival)
        if number not in self.meetings:
            self.fixed += 1
            lane = f"stream {graph.lanes[node]}"
            duration = graph.durations_ns[node]
            name = _short_name(graph.names[node])
            self.step_of[node] = self._add(lane, awaited_steps, name, duration)
            return
        key, meeting = self.meetings[number]
        sized = meeting.size_bytes >= 0 or meeting.kind == "barrier"
        keeps = self.measured or not sized
        kind, size_bytes = meeting.kind or "all_reduce", max(0, meeting.size_bytes)
        if kind == "messages":  # several of several sizes, which no operation has
            kind, size_bytes, keeps, sized = "barrier", 0, True, False
        self.fixed += not sized
        together = Together(
            ("meeting", key),
            tuple(self.place_of[rank] for rank in meeting.ranks),
            kind,
            meeting.group,
            size_bytes,
            service_fs=meeting.service_ns * _FS if keeps and kind != "send" else None,
        )
        name = meeting.kind or "unknown collective"
        lane = f"group {meeting.group}"
        self.step_of[node] = self._add(lane, awaited_steps, name, 0, together)
