"""A job as its ranks' traces show it: read, matched, and replayed against itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from simcoll.errors import ConfigError, ranks_listed, shown
from simcoll.files.reader_arguments import FilePath
from simcoll.jobs.meetings import Matching, TracedCall, calls_of, clock_offsets, match_calls
from simcoll.jobs.rank_trace import RankTrace, load_rank_trace
from simcoll.jobs.replay import JobChange, JobOrder, Replay
from simcoll.jobs.work_graph import NodeKind, WorkGraph, build_work_graph
from simcoll.units import counted

__all__ = [
    "MOST_REPLAY_ERROR",
    "MOST_UNEXPLAINED",
    "Job",
    "job_of_files",
    "refuse_different_jobs",
    "traced_job",
]

MOST_REPLAY_ERROR = 0.05
"""Above it a replay does not describe the job, and questions about changes are refused."""
MOST_UNEXPLAINED = 0.25


@dataclass(frozen=True, eq=False)
class Job:
    """A job that was traced.

    Attributes
    ----------
    traces, graphs
        By place: the traces in the order of their ranks, and their graphs.
    nranks
        Number of ranks of the job, of which some may not have been traced.
    steps
        Number of steps of the profiler in the window; 0 without a schedule of the profiler.
    calls, matching
        Collectives by place, and how they belong together.
    notes
        What was unusual.
    """

    traces: tuple[RankTrace, ...]
    graphs: tuple[WorkGraph, ...]
    nranks: int
    steps: int
    calls: tuple[tuple[TracedCall, ...], ...]
    matching: Matching
    notes: tuple[str, ...]

    @property
    def ranks(self) -> list[int]:
        """The ranks that were traced."""
        return [trace.rank for trace in self.traces]

    @property
    def missing(self) -> list[int]:
        """The ranks that were not traced."""
        return sorted(set(range(self.nranks)) - set(self.ranks))

    @cached_property
    def order(self) -> JobOrder:
        """The graphs with their meetings."""
        meetings = self.matching.meetings
        return JobOrder(
            self.graphs,
            [meeting.calls for meeting in meetings],
            {
                number: meeting.partners
                for number, meeting in enumerate(meetings)
                if meeting.partners
            },
        )

    @cached_property
    def measured_ns(self) -> int:
        """From the first beginning to the last end."""
        end = max(graph.end_of(node) for graph in self.graphs for node in range(len(graph)))
        return end - min(graph.begin_ns for graph in self.graphs)

    @cached_property
    def baseline(self) -> Replay:
        """The replay of the job as it was."""
        return self.order.replay()

    def replay_with(self, change: JobChange) -> int:
        """Nanoseconds of the job with a change."""
        return self.order.replay(change).time_ns

    @property
    def replay_error(self) -> float:
        """Relative error of the replay."""
        return self.baseline.time_ns / max(1, self.measured_ns) - 1

    @cached_property
    def unexplained_share(self) -> float:
        """Share of the time in which device work begins later than all that it waits for, in the
        mean over the ranks.
        """
        shares = [_late_ns(graph) / max(1, self.measured_ns) for graph in self.graphs]
        return sum(shares) / len(shares)

    def refuse_changes(self) -> None:
        """Refuse questions about changes of a job that its replay does not describe.

        Raises
        ------
        ConfigError
            For a replay error above 5 %, or a quarter of the time unexplained.
        """
        error = self.replay_error
        hints = self.graph_launches()
        reason = f"; {hints}" if hints else ""
        if abs(error) > MOST_REPLAY_ERROR:
            raise ConfigError(
                f"the time of the replayed job differs by {error:+.1%} from the measured one; "
                f"expected at most {MOST_REPLAY_ERROR:.0%} to ask what changes would do{reason}"
            )
        if self.unexplained_share > MOST_UNEXPLAINED:
            raise ConfigError(
                f"for {self.unexplained_share:.0%} of the time the traces do not explain why work "
                f"begins so late; expected at most {MOST_UNEXPLAINED:.0%} to ask what changes "
                f"would do{reason}"
            )

    def graph_launches(self) -> str:
        """Words about CUDA graphs, whose inner order a trace does not have; empty without them."""
        several = Counter(
            (place, work.correlation)
            for place, trace in enumerate(self.traces)
            for work in trace.device_work
            if work.correlation >= 0
        )
        launches = [number for number in several.values() if number > 4]
        if not launches:
            return ""
        return (
            f"{sum(launches):,} kernels come from {len(launches):,} CUDA graph"
            f"{'s' * (len(launches) > 1)}, whose inner order is not recorded"
        )


def _late_ns(graph: WorkGraph) -> int:
    """Nanoseconds in which some device work is late, each counted once."""
    intervals = sorted(
        (graph.starts_ns[node] - late, graph.starts_ns[node])
        for node, kind in enumerate(graph.kinds)
        if kind in {NodeKind.WORK, NodeKind.ARRIVAL} and (late := graph.unexplained_ns(node)) > 0
    )
    total, until = 0, 0
    for begin, end in intervals:
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def job_of_files(paths: Sequence[FilePath]) -> Job:
    """Read the traces of a job's ranks, a file each.

    Raises
    ------
    ConfigError
        For a file that cannot be read, two files of one rank, traces of different jobs, and traces
        without device work.

    Examples
    --------
    >>> import tempfile
    >>> from simcoll.jobs.example_traces import write_example_traces
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     known = write_example_traces(folder)
    ...     job = job_of_files([f"{folder}/rank{rank}.json.gz" for rank in range(4)])
    >>> job.matching.meetings[0].service_ns / 1000, known[0].service_us
    (61.0, 61.0)
    >>> f"{job.replay_error:+.2%}"
    '+0.14%'
    """
    return traced_job([load_rank_trace(path) for path in paths])


def traced_job(traces: Sequence[RankTrace]) -> Job:
    """Combine the traces of a job's ranks."""
    if not traces:
        raise ConfigError("expected the traces of one or more ranks")
    ordered = tuple(sorted(traces, key=lambda trace: trace.rank))
    refuse_different_jobs(ordered)
    idle = [trace for trace in ordered if not trace.device_work]
    if idle:
        raise ConfigError(
            "no device work in this trace, so nothing of it can be replayed or timed; expected a "
            "profile with the activity CUDA",
            file=idle[0].file,
        )
    notes = [f"{trace.file}: {note}" for trace in ordered for note in trace.notes]
    notes += [
        f"{trace.file}: rank {trace.rank} by its name"
        for trace in ordered
        if trace.rank_source == "its name"
    ]
    nranks = max(*(trace.ranks for trace in ordered), ordered[-1].rank + 1, len(ordered))
    _join_bases(ordered, notes)
    windows, steps = _windows(ordered, notes)
    graphs = tuple(
        build_work_graph(trace, window) for trace, window in zip(ordered, windows, strict=True)
    )
    for graph in graphs:
        if not len(graph):
            raise ConfigError(
                "no call and no device work in its steps, so nothing of it can be replayed",
                file=graph.trace.file,
            )
    calls = [calls_of(graph.parts, nranks) for graph in graphs]
    ranks = [trace.rank for trace in ordered]
    _refuse_custom_communication(ordered)
    matching = match_calls(ranks, calls, nranks)
    if len(ordered) > 1:
        offsets, clock_notes = clock_offsets(ranks, matching.meetings)
        notes += clock_notes
        if any(offsets.values()):
            for place, graph in enumerate(graphs):
                graph.move(-offsets[place])
            calls = [calls_of(graph.parts, nranks) for graph in graphs]
            matching = match_calls(ranks, calls, nranks)
        _refuse_other_times(graphs, ranks)
    missing = sorted(set(range(nranks)) - set(ranks))
    if len(ordered) > 1 and missing:
        if any(calls) and not matching.meetings:
            raise ConfigError(
                f"{len(ordered)} of {nranks} ranks, and no collective has all of its ranks among "
                f"them ({ranks_listed(missing)} missing); expected the traces of all ranks, or of "
                "one rank for what one can tell"
            )
        notes.append(
            f"{len(ordered)} of {nranks} ranks: {ranks_listed(missing)} missing; collectives with "
            "them are not divided into network and waiting"
        )
    return Job(ordered, graphs, nranks, steps, tuple(map(tuple, calls)), matching, tuple(notes))


def refuse_different_jobs(traces: Sequence[RankTrace]) -> None:
    """Refuse two traces of one rank, traces without a rank, and traces of different jobs.

    The traces are in the order of their ranks.
    """
    reference = traces[0]
    unnamed = [trace for trace in traces if not trace.rank_source]
    if unnamed and len(traces) > 1:
        raise ConfigError(
            "neither its content nor its name says which rank this is; expected "
            "distributedInfo.rank, or a name such as rank3.json",
            file=unnamed[0].file,
        )
    for earlier, trace in pairwise(traces):
        if earlier.rank == trace.rank:
            raise ConfigError(
                f"a second file of rank {trace.rank}; the first one is {earlier.file}",
                file=trace.file,
            )
    for trace in traces[1:]:
        for title, value, expected in (
            ("number of ranks", trace.ranks, reference.ranks),
            ("backend", trace.backend, reference.backend),
        ):
            if value and expected and value != expected:
                raise ConfigError(
                    f"a trace of another job: its {title} is {value}, that of {reference.file} "
                    f"{expected}",
                    file=trace.file,
                )


def _refuse_custom_communication(traces: Sequence[RankTrace]) -> None:
    """Refuse jobs whose communication is by no library that is known here."""
    names = Counter(name for trace in traces for name in trace.custom_kernels.elements())
    if not names or any(trace.collectives for trace in traces):
        return
    name, number = names.most_common(1)[0]
    raise ConfigError(
        f"no collectives known: {counted(names.total(), 'kernel')} communicate without NCCL or "
        f"RCCL (the most, {number}, are {shown(name)}), and what they move is not recorded",
        file=traces[0].file,
    )


def _join_bases(traces: Sequence[RankTrace], notes: list[str]) -> None:
    """Count the times of all traces from one origin."""
    bases = {trace.base_time_ns for trace in traces if trace.base_time_ns}
    if len(bases) < 2:
        return
    origin = min(bases)
    for trace in traces:
        shift_ns = max(0, trace.base_time_ns - origin)
        trace.move(shift_ns)
    notes.append("the traces count their times from different origins, which were joined")


def _windows(traces: Sequence[RankTrace], notes: list[str]) -> tuple[list[tuple[int, int]], int]:
    """The windows of the ranks, and the number of steps in them."""
    numbers = [{step.number for step in trace.steps} for trace in traces]
    shared = set.intersection(*numbers)
    if not shared:
        if all(numbers):
            ranges = [f"{min(steps)} to {max(steps)}" for steps in numbers]
            raise ConfigError(
                f"the ranks share no step of the profiler: rank {traces[0].rank} has steps "
                f"{ranges[0]}, rank {traces[-1].rank} {ranges[-1]}"
            )
        return [_whole(trace) for trace in traces], 0
    left_out = len(set.union(*numbers)) - len(shared)
    if left_out:
        notes.append(f"{counted(left_out, 'step')} left out that not all ranks have")
    windows = [
        (
            min(step.begin_ns for step in trace.steps if step.number in shared),
            max(step.end_ns for step in trace.steps if step.number in shared) + 1,
        )
        for trace in traces
    ]
    return windows, len(shared)


def _whole(trace: RankTrace) -> tuple[int, int]:
    times = [(call.begin_ns, call.end_ns) for call in trace.calls]
    times += [(work.begin_ns, work.end_ns) for work in trace.device_work]
    if not times:
        return 0, 1
    return min(begin for begin, _ in times), max(end for _, end in times) + 1


def _refuse_other_times(graphs: Sequence[WorkGraph], ranks: Sequence[int]) -> None:
    """Refuse traces of which one ends before another begins."""
    latest = max(range(len(graphs)), key=lambda place: graphs[place].begin_ns)
    earliest = min(range(len(graphs)), key=lambda place: graphs[place].end_ns)
    pause_ns = graphs[latest].begin_ns - graphs[earliest].end_ns
    if pause_ns > 0:
        raise ConfigError(
            f"rank {ranks[latest]} begins {pause_ns / 1e6:.3f} ms after rank {ranks[earliest]} has "
            "ended: these are traces of different times"
        )
