"""What the traces of a job say, as lines for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from simcoll.core.collective import bus_factor
from simcoll.jobs.comm_records import RecordKind
from simcoll.jobs.job import MOST_REPLAY_ERROR, MOST_UNEXPLAINED, Job
from simcoll.jobs.meetings import TracedCall, TracedMeeting
from simcoll.jobs.replay import JobChange
from simcoll.units import counted, format_size, format_time

__all__ = ["effect", "format_ns", "job_lines"]

_NS = 10**6
"""Femtoseconds."""
_BINDING = 0.1
"""Share of the longest chain from which on a part is named."""
_MOST_ROWS = 40


def format_ns(time_ns: float) -> str:
    """A time in nanoseconds for people.

    >>> format_ns(20_723_000)
    '20.7 ms'
    """
    return format_time(round(time_ns * _NS))


def effect(job: Job, changed_ns: int) -> str | None:
    """By how much a change alters the replayed time; None if by less than the replay error."""
    relative = changed_ns / max(1, job.baseline.time_ns) - 1
    return None if abs(relative) <= abs(job.replay_error) else f"{relative:+.2%}"


def job_lines(job: Job) -> list[str]:
    """Describe a job: what it is, what its communication waits for, and what bounds it."""
    lines = [_title(job), *_communication(job)]
    trusted = (
        abs(job.replay_error) <= MOST_REPLAY_ERROR and job.unexplained_share <= MOST_UNEXPLAINED
    )
    if trusted:
        lines += _bounds(job)
    else:
        hints = job.graph_launches()
        lines.append(
            "the replay does not describe this job"
            + (f": {hints}" if hints else "")
            + "; questions about changes are refused"
        )
    lines += _table(job)
    lines += [f"# {note}" for note in (*job.notes, *_gaps(job))]
    return lines


def _title(job: Job) -> str:
    number = max(1, job.steps)
    measured = job.measured_ns
    if job.steps:
        span = f"{counted(job.steps, 'step')} of {format_ns(measured / number)}"
    else:
        span = f"{format_ns(measured)} without steps of the profiler's schedule"
    parts = max(len(calls) for calls in job.calls)
    titles = {_group_of(call) for calls in job.calls for call in calls}
    groups = f" on {counted(len(titles), 'group')}" if titles else ""
    ranks = counted(job.nranks, "rank")
    if len(job.traces) < job.nranks:
        only = job.traces[0].rank
        ranks = (
            f"rank {only} of {job.nranks}"
            if len(job.traces) == 1
            else f"{len(job.traces)} of {job.nranks} ranks"
        )
    return (
        f"{ranks}, {span}, {counted(parts, 'collective')} a rank{groups}; replay "
        f"{format_ns(job.baseline.time_ns / number)} ({job.replay_error:+.2%}), "
        f"{job.unexplained_share:.1%} unexplained"
    )


def _group_of(call: TracedCall) -> object:
    return (call.group.name, call.group.ranks) if call.group.ranks else call.stream


def _communication(job: Job) -> list[str]:
    """How much time the kernels of communication take, and how it divides."""
    number = len(job.traces)
    kernels = sum(call.end_ns - call.begin_ns for calls in job.calls for call in calls)
    if not kernels:
        return [_without_collectives(job)]
    lines = []
    meetings = job.matching.meetings
    mean = format_ns(kernels / number)
    if meetings:
        waiting = sum(meeting.waiting_ns(place) for meeting in meetings for place in meeting.calls)
        alone = sum(
            job.calls[place][call].end_ns - job.calls[place][call].begin_ns
            for place, numbers in job.matching.alone.items()
            for call in numbers
        )
        network = kernels - waiting - alone
        text = (
            f"communication {mean} a rank in kernels: {format_ns(network / number)} network, "
            f"{format_ns(waiting / number)} waiting"
        )
        last: dict[int, int] = defaultdict(int)
        for meeting in meetings:
            if any(meeting.waiting_ns(place) for place in meeting.calls):
                last[job.traces[meeting.last].rank] += 1
        order = sorted(last, key=lambda rank: (-last[rank], rank))
        if order:
            text += " for " + ", ".join(f"rank {rank} ({last[rank]})" for rank in order[:4])
            if len(order) > 4:
                text += f" and {counted(len(order) - 4, 'rank')} more"
        if alone:
            text += f", {format_ns(alone / number)} not divided"
        lines.append(text)
    else:
        lines.append(
            f"communication {mean} in kernels; arrival of the other ranks unknown: waiting and "
            "network not separable"
        )
    return lines


def _without_collectives(job: Job) -> str:
    return "no collectives" if job.nranks > 1 else "a job of one rank: no collectives"


def _free(job: Job) -> int:
    """Nanoseconds of the job with collectives that take no time after the last arrival."""
    alone = {
        (place, number): 0 for place, numbers in job.matching.alone.items() for number in numbers
    }
    meetings = dict.fromkeys(range(len(job.matching.meetings)), 0)
    return job.replay_with(JobChange(services_ns=meetings, lone_services_ns=alone))


def _bounds(job: Job) -> list[str]:
    lines = []
    if any(job.calls):
        free = effect(job, _free(job))
        if job.matching.meetings:
            change = free or f"no effect above the replay error ({job.replay_error:+.2%})"
            lines.append(f"free collectives: {change}")
        else:
            exposed = free and free.lstrip("-")
            change = f"at most {exposed}" if exposed else "less than the replay error"
            lines.append(f"exposed communication: {change}")
    times = job.order.critical_path(job.baseline)
    total = max(1, sum(times.values()))
    by_title: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for (title, rank), time in times.items():
        by_title[title].append((time / total, rank))
    ordered = sorted(
        ((sum(share for share, _ in shares), title, shares) for title, shares in by_title.items()),
        reverse=True,
    )
    words = []
    for share, title, shares in ordered:
        if share < _BINDING:
            continue
        ranks = sorted(rank for part, rank in shares if part >= _BINDING / 2)
        words.append(f"{_bound_words(title, ranks, len(job.traces))} ({share:.0%})")
    chain = f"bound by {', '.join(words)} of the longest chain"
    return [f"{lines[0]}; {chain}"] if lines else [chain]


def _bound_words(title: str, ranks: Sequence[int], traced: int) -> str:
    several = "s" * (len(ranks) > 1)
    number = "the rank" if traced == 1 else f"rank{several} {_and(ranks)}"
    return {
        "host": f"the host{several} of {number}",
        "computation": f"the GPU{several} of {number}",
        "network": "collectives",
        "launch": "launches",
        "start": f"the late start of {number}",
        "queued": f"work of {number} that was queued before",
    }[title]


def _and(ranks: Sequence[int]) -> str:
    texts = [str(rank) for rank in ranks[:5]] + (["others"] if len(ranks) > 5 else [])
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


@dataclass(frozen=True, slots=True)
class _CallRow:
    """Equal collectives of a job: services, and waiting in the mean over ranks."""

    kind: RecordKind
    size_bytes: int
    ranks: int
    number: int
    service_ns: tuple[float, float, float]
    waiting_ns: float


def _rows(meetings: Iterable[TracedMeeting]) -> list[_CallRow]:
    equal: dict[tuple[RecordKind, int, int], list[TracedMeeting]] = defaultdict(list)
    for meeting in meetings:
        equal[meeting.kind, meeting.size_bytes, len(meeting.ranks)].append(meeting)
    rows = []
    for (kind, size_bytes, ranks), some in equal.items():
        services = [meeting.service_ns for meeting in some]
        waiting = [
            sum(map(meeting.waiting_ns, meeting.calls)) / len(meeting.calls) for meeting in some
        ]
        rows.append(
            _CallRow(
                kind,
                size_bytes,
                ranks,
                len(some),
                (median(services), min(services), max(services)),
                sum(waiting) / len(waiting),
            )
        )
    return sorted(rows, key=lambda row: -row.number * row.service_ns[0])


def _table(job: Job) -> list[str]:
    """Services of the matched collectives, or durations of those of one rank, by kind and size."""
    if not any(job.calls):
        return []
    matched = bool(job.matching.meetings)
    rows = _rows(job.matching.meetings) if matched else _lone_rows(job)
    title = "service (least to most)" if matched else "kernel (least to most)"
    head = f"{'collective':<15}{'size':>12}{'ranks':>7}{'calls':>7}  {title:<36}"
    lines = [(head + (f"{'busbw':>12}  {'waiting':>10}" if matched else "")).rstrip()]
    for row in rows[:_MOST_ROWS]:
        size = format_size(row.size_bytes) if row.size_bytes >= 0 else "unknown"
        middle, low, high = map(format_ns, row.service_ns)
        span = f"{middle} ({low} to {high})"
        line = f"{row.kind or 'unknown':<15}{size:>12}{row.ranks or '?':>7}{row.number:>7}  "
        line += f"{span:<36}"
        if matched:
            line += f"{_bandwidth(row):>12}  {format_ns(row.waiting_ns):>10}"
        lines.append(line.rstrip())
    if len(rows) > _MOST_ROWS:
        lines.append(f"and {counted(len(rows) - _MOST_ROWS, 'row')} more; --rows writes all")
    return lines


def _bandwidth(row: _CallRow) -> str:
    if row.size_bytes <= 0 or row.service_ns[0] <= 0 or row.kind in {"", "barrier"}:
        return "-"
    kind = "send_recv" if row.kind in {"send", "messages"} else row.kind
    return f"{row.size_bytes * bus_factor(kind, row.ranks) / row.service_ns[0]:.1f} GB/s"


def _lone_rows(job: Job) -> list[_CallRow]:
    equal: dict[tuple[RecordKind, int, int], list[int]] = defaultdict(list)
    for calls in job.calls:
        for call in calls:
            ranks = call.group.size or len(call.group.ranks)
            equal[call.kind, call.size_bytes, ranks].append(call.end_ns - call.begin_ns)
    rows = [
        _CallRow(kind, size, ranks, len(times), (median(times), min(times), max(times)), 0.0)
        for (kind, size, ranks), times in equal.items()
    ]
    return sorted(rows, key=lambda row: -row.number * row.service_ns[0])


def _gaps(job: Job) -> list[str]:
    """What the traces do not say."""
    notes = []
    unsized = sum(
        call.size_bytes < 0 and call.kind != "barrier" for calls in job.calls for call in calls
    )
    total = sum(map(len, job.calls))
    if unsized:
        notes.append(f"{unsized} of {counted(total, 'call')} have no recorded size")
    dimensions = sum(call.size_source == "dimensions" for calls in job.calls for call in calls)
    if dimensions:
        notes.append(f"the sizes of {counted(dimensions, 'call')} are those of recorded inputs")
    lone = sum(
        job.calls[place][number].kind in {"send", "recv", "messages"}
        for place, numbers in job.matching.alone.items()
        for number in numbers
    )
    if lone and len(job.traces) > 1:
        notes.append(
            f"{counted(lone, 'call')} of messages are not divided into network and waiting: "
            "their other ends are not recorded, not traced, or not equally many"
        )
    if job.matching.assumed and job.nranks > 1:
        notes.append(
            f"groups are not recorded: a stream of collectives is taken for a group of all "
            f"{job.nranks} ranks"
        )
    if job.matching.cut:
        notes.append(
            f"{counted(job.matching.cut, 'call')} left out at the ends, where not all ranks were "
            "traced"
        )
    queued = sum(graph.queued for graph in job.graphs)
    if queued:
        notes.append(
            f"{queued:,} kernels and copies were queued before the window and keep their measured "
            "times"
        )
    custom: dict[str, int] = defaultdict(int)
    for trace in job.traces:
        for name, number in trace.custom_kernels.items():
            custom[name.removeprefix("void ").split("(anonymous namespace)::")[-1][:40]] += number
    if custom:
        name, number = max(custom.items(), key=lambda entry: entry[1])
        notes.append(
            f"{counted(sum(custom.values()), 'kernel')} of custom communication ({name} ...: "
            f"{number}) are no collectives known here and count as computation"
        )
    guesses = sum(graph.guesses for graph in job.graphs)
    if guesses:
        notes.append(f"{counted(guesses, 'long call')} taken for waits, by their times")
    return notes
