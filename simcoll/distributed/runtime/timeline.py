"""The timeline of a run: when each rank computed, communicated and waited, and the share of communication that was exposed."""

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
    """Time that a rank spent computing, or waiting for something."""

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
        Until its program, and the last of its operations, had ended.
    compute_fs, communication_fs
        Time in which it computed, and in which at least one of its operations was in flight; the two may overlap.
    exposed_fs
        By group: time in which an operation of the group was in flight and the rank did not compute.
    idle_fs
        Time in which it did neither.
    peak_bytes
        The most bytes of arrays or tensors that it held at once.
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
        """Everything but the rank as text, in the order of ``HEAD``."""
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
    """Everything that happened in a run, as it happened.

    Attributes
    ----------
    computed, waited
        Time that ranks spent in ``compute``, and blocked in a call, with what they waited for.
    operations
        Every call of a collective and every end of a message, with the rank that made it.
    messages
        The two ends of every message of send and receive.
    played
        Every plan that was played, with its begin and end.
    finish_fs, peak_bytes
        When each rank's program ended, and the most bytes that it held.
    leader
        Whose program each rank ran: its own, or that of the rank that it is like.
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
        """The time of a rank, by what it did."""
        leader = self.leader[rank]
        spans = [span for span in self.computed if span.rank == leader]
        return self._summary(rank, spans, [entry for owner, entry in self.operations if owner == leader])

    def table(self) -> str:
        """The summaries of all ranks, a line for those that are alike; no more than 16 lines."""
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
    """Numbers in ascending order for people: those that follow each other as one range.

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
    """The time in any of some intervals, as disjoint intervals in order.

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
    """The time that two lists of disjoint intervals have in common.

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
