"""The timeline of a run: each rank's computation, communication and waits, and its exposed communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from simcoll.core.plan import Plan
from simcoll.distributed.runtime.records import Entry
from simcoll.units import format_memory, format_time

Interval = tuple[int, int]
HEAD = ("ranks", "total", "compute", "communication", "idle", "memory", "exposed communication")
MAX_ROWS, MAX_RANGES = 16, 8

__all__ = ["Span", "Summary", "Timeline", "covered", "overlap"]


@dataclass(frozen=True, slots=True)
class Span:
    """An interval in which a rank computed or waited."""

    rank: int
    name: str
    begin_fs: int
    end_fs: int


@dataclass(frozen=True, slots=True)
class Summary:
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
        exposed = ", ".join(f"{format_time(time)} of {group}" for group, time in self.exposed_fs.items() if time)
        return *map(format_time, times), format_memory(self.peak_bytes), exposed or "none"

    def __str__(self) -> str:
        total, compute, communication, idle, memory, exposed = self.cells
        return (
            f"rank {self.rank}: {total}, compute {compute}, communication {communication} (exposed: {exposed}), "
            f"idle {idle}, memory {memory}"
        )


@dataclass(slots=True)
class Timeline:
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

    computed: list[Span] = field(default_factory=list)
    waited: list[Span] = field(default_factory=list)
    operations: list[tuple[int, Entry]] = field(default_factory=list)
    messages: list[tuple[tuple[int, Entry], tuple[int, Entry]]] = field(default_factory=list)
    played: list[tuple[Plan, Interval]] = field(default_factory=list)
    finish_fs: tuple[int, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    leader: Sequence[int] = ()

    def summary(self, rank: int) -> Summary:
        """Break down the time of a rank."""
        leader = self.leader[rank]
        spans = [span for span in self.computed if span.rank == leader]
        return self._summary(rank, spans, [entry for owner, entry in self.operations if owner == leader])

    def table(self) -> str:
        """The summaries of all ranks, one line for equal ones; at most 16 lines."""
        spans: defaultdict[int, list[Span]] = defaultdict(list)
        entries: defaultdict[int, list[Entry]] = defaultdict(list)
        for span in self.computed:
            spans[span.rank].append(span)
        for owner, entry in self.operations:
            entries[owner].append(entry)
        cells = {rank: self._summary(rank, spans[rank], entries[rank]).cells for rank in dict.fromkeys(self.leader)}
        alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for rank, leader in enumerate(self.leader):
            alike[cells[leader]].append(rank)
        rows = [HEAD, *((_ranges(ranks), *row) for row, ranks in alike.items())][: MAX_ROWS + 1]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        left = sum(len(ranks) for ranks in [*alike.values()][MAX_ROWS:])
        return "\n".join([*lines, *([f"and {left} ranks more"] if left else [])])

    def _summary(self, rank: int, spans: Sequence[Span], entries: Sequence[Entry]) -> Summary:
        compute = covered((span.begin_fs, span.end_fs) for span in spans)
        groups: defaultdict[str, list[Interval]] = defaultdict(list)
        for entry in entries:
            if entry.completed_fs >= 0:
                groups[": ".join(dict.fromkeys(entry.group))].append((entry.started_fs, entry.completed_fs))
        flying = {name: covered(intervals) for name, intervals in groups.items()}
        every = covered(interval for intervals in flying.values() for interval in intervals)
        total = max(self.finish_fs[rank], every[-1][1] if every else 0)
        busy = covered([*compute, *every])
        return Summary(
            rank,
            total,
            _length(compute),
            _length(every),
            {name: _length(intervals) - overlap(intervals, compute) for name, intervals in flying.items()},
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
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:MAX_RANGES]]
    return ", ".join(shown) + (f", ... ({len(ranks)} ranks)" if len(runs) > MAX_RANGES else "")


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)


def covered(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, as disjoint intervals in order.

    >>> covered([(5, 7), (0, 2), (1, 3)])
    [(0, 3), (5, 7)]
    """
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def overlap(one: list[Interval], other: list[Interval]) -> int:
    """The length of the intersection of two lists of disjoint intervals.

    >>> overlap([(0, 3), (5, 7)], [(2, 6)])
    2
    """
    return sum(end - begin for begin, end in _common(one, other))


def _common(one: list[Interval], other: list[Interval]) -> Iterator[Interval]:
    i = j = 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            yield begin, end
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
