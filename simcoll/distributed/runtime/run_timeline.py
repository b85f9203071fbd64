"""The timeline of a run: each rank's computation, communication and waits, and its exposed
communication.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from simcoll.core.plan import Plan
from simcoll.distributed.runtime.records import Entry
from simcoll.units import format_memory, format_time

Interval = tuple[int, int]
HEAD = ("ranks", "total", "compute", "communication", "idle", "memory", "exposed communication")
MAX_ROWS, MAX_RANGES = 16, 8

__all__ = ["PlayedPlans", "RankSpan", "RankSummary", "RunTimeline", "overlap", "union_of"]


@dataclass(frozen=True, slots=True)
class RankSpan:
    """An interval in which a rank computed or waited.

    ``stream`` is that of an accelerator which computed, and ``scope`` the place in the program, as
    in a :class:`~simcoll.workload.workload.ComputeOperation`; both may be empty.
    """

    rank: int
    name: str
    begin_fs: int
    end_fs: int
    stream: str = ""
    scope: str = ""


class PlayedPlans:
    """Plans in the order in which they ended, each with its start and end.

    Columns, as a large run has some 100,000, which collections of garbage would look through.
    """

    __slots__ = ("_begins_fs", "_ends_fs", "_plans")

    def __init__(self) -> None:
        self._plans: list[Plan] = []
        self._begins_fs, self._ends_fs = array("q"), array("q")

    def add(self, plan: Plan, interval_fs: Interval) -> None:
        """Add a plan at its end."""
        self._plans.append(plan)
        self._begins_fs.append(interval_fs[0])
        self._ends_fs.append(interval_fs[1])

    def __iter__(self) -> Iterator[tuple[Plan, Interval]]:
        times = zip(self._begins_fs, self._ends_fs, strict=True)
        return zip(self._plans, times, strict=True)


@dataclass(frozen=True, slots=True)
class RankSummary:
    """The time of one rank, in femtoseconds.

    Attributes
    ----------
    total_fs
        Until the end of its program and of its last operation.
    compute_fs, communication_fs
        Time computing, and time with at least one operation in flight; the two may overlap.
    exposed_fs
        By group: time with an operation of the group in flight while the rank did not compute.
    idle_fs
        Time with neither.
    peak_bytes
        Peak bytes of arrays or tensors held.
    """

    rank: int
    total_fs: int
    compute_fs: int
    communication_fs: int
    exposed_fs: dict[str, int]
    idle_fs: int
    peak_bytes: int

    @property
    def cells(self) -> tuple[str, ...]:
        """All columns except the rank as text, in the order of ``HEAD``."""
        times = (self.total_fs, self.compute_fs, self.communication_fs, self.idle_fs)
        return *map(format_time, times), format_memory(self.peak_bytes), self._exposure_text

    def __str__(self) -> str:
        return (
            f"rank {self.rank}: {format_time(self.total_fs)}, compute "
            f"{format_time(self.compute_fs)}, "
            f"communication {format_time(self.communication_fs)} (exposed: {self._exposure_text}), "
            f"idle {format_time(self.idle_fs)}, memory {format_memory(self.peak_bytes)}"
        )

    @property
    def _exposure_text(self) -> str:
        """The exposed time of each group as text."""
        return (
            ", ".join(
                f"{format_time(time)} of {group}" for group, time in self.exposed_fs.items() if time
            )
            or "none"
        )


@dataclass(slots=True)
class RunTimeline:
    """The recorded events of a run, in order.

    Attributes
    ----------
    computed, waited
        Intervals that ranks spent in ``compute``, and blocked in a call, with the reason.
    operations
        Each collective call, send and receive, with its rank.
    messages
        The send and the receive of each message.
    played
        Each plan played, with its start and end.
    finish_fs, peak_bytes
        When each rank's program ended, and its peak memory.
    leader
        The rank whose program each rank ran: itself, or the leader of its class.
    """

    computed: list[RankSpan] = field(default_factory=list)
    waited: list[RankSpan] = field(default_factory=list)
    operations: list[tuple[int, Entry]] = field(default_factory=list)
    messages: list[tuple[tuple[int, Entry], tuple[int, Entry]]] = field(default_factory=list)
    played: PlayedPlans = field(default_factory=PlayedPlans)
    finish_fs: tuple[int, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    leader: Sequence[int] = ()

    def summary(self, rank: int) -> RankSummary:
        """Break down the time of a rank."""
        leader = self.leader[rank]
        spans = [span for span in self.computed if span.rank == leader]
        return self._summary(
            rank, spans, [entry for owner, entry in self.operations if owner == leader]
        )

    def table(self) -> str:
        """The summaries of all ranks, one line for equal ones; at most 16 lines."""
        spans: defaultdict[int, list[RankSpan]] = defaultdict(list)
        entries: defaultdict[int, list[Entry]] = defaultdict(list)
        for span in self.computed:
            spans[span.rank].append(span)
        for owner, entry in self.operations:
            entries[owner].append(entry)
        cells = {
            rank: self._summary(rank, spans[rank], entries[rank]).cells
            for rank in dict.fromkeys(self.leader)
        }
        classes: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for rank, leader in enumerate(self.leader):
            classes[cells[leader]].append(rank)
        rows = [HEAD, *((_ranges(ranks), *row) for row, ranks in classes.items())][: MAX_ROWS + 1]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        hidden = sum(len(ranks) for ranks in [*classes.values()][MAX_ROWS:])
        return "\n".join([*lines, *([f"and {hidden} ranks more"] if hidden else [])])

    def _summary(
        self, rank: int, spans: Sequence[RankSpan], entries: Sequence[Entry]
    ) -> RankSummary:
        compute = union_of((span.begin_fs, span.end_fs) for span in spans)
        groups: defaultdict[str, list[Interval]] = defaultdict(list)
        for entry in entries:
            if entry.completed_fs >= 0:
                groups[": ".join(dict.fromkeys(entry.group))].append(
                    (entry.started_fs, entry.completed_fs)
                )
        flying = {name: union_of(intervals) for name, intervals in groups.items()}
        every = union_of(interval for intervals in flying.values() for interval in intervals)
        total = max(self.finish_fs[rank], every[-1][1] if every else 0)
        busy = union_of([*compute, *every])
        return RankSummary(
            rank,
            total,
            _length(compute),
            _length(every),
            {
                name: _length(intervals) - overlap(intervals, compute)
                for name, intervals in flying.items()
            },
            total - _length(busy),
            self.peak_bytes[rank],
        )


def _ranges(ranks: Sequence[int]) -> str:
    """Format ascending numbers, with consecutive ones as a range.

    >>> _ranges([0, 1, 2, 5, 8, 9])
    '0-2, 5, 8-9'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(begin) if begin == end else f"{begin}-{end}" for begin, end in runs[:MAX_RANGES]]
    return ", ".join(parts) + (f", ... ({len(ranks)} ranks)" if len(runs) > MAX_RANGES else "")


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)


def union_of(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, as disjoint intervals in order.

    >>> union_of([(5, 7), (0, 2), (1, 3)])
    [(0, 3), (5, 7)]
    """
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def overlap(one_list: list[Interval], other_list: list[Interval]) -> int:
    """The length of the intersection of two lists of disjoint intervals.

    >>> overlap([(0, 3), (5, 7)], [(2, 6)])
    2
    """
    return sum(end - begin for begin, end in _common(one_list, other_list))


def _common(a: list[Interval], b: list[Interval]) -> Iterator[Interval]:
    i = j = 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            yield begin, end
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
