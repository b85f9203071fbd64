"""Jobs whose traces have no device work: collectives on the host are matched, and nothing is timed.

Such are jobs on CPUs (gloo), and profiles of the host alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from simcoll.errors import ConfigError, listed
from simcoll.jobs.comm_records import GroupRecord
from simcoll.jobs.job import refuse_different_jobs
from simcoll.jobs.meetings import TracedCall, TracedMeeting, match_calls
from simcoll.jobs.rank_trace import CommEvent, RankTrace
from simcoll.units import counted, format_size

__all__ = ["host_calls", "host_lines"]


def host_calls(trace: RankTrace, nranks: int) -> list[TracedCall]:
    """The collectives that a rank's host called, by kind; waits are none.

    Threads of a library run in no order between them, so the order of one kind is all that ranks
    share: calls are numbered by kind.
    """
    around: dict[object, CommEvent] = {}
    positions: Counter[GroupRecord] = Counter()
    calls = []
    for event in trace.comms:
        if event.parameters:
            around[event.thread] = event
            continue
        outer = around.get(event.thread)
        record = event.record
        if outer is not None and outer.end_ns >= event.end_ns and outer.record.stated:
            record = outer.record
        size_bytes = record.size_bytes
        if size_bytes >= 0 and record.kind == "all_gather" and not record.stated:
            size_bytes *= record.group.size or nranks
        kind = event.record.kind or record.kind
        members = record.group.ranks or tuple(range(nranks))
        group = GroupRecord(f"{record.group.name} {kind}".strip(), "", members, len(members))
        positions[group] += 1
        calls.append(
            TracedCall(
                kind,
                size_bytes,
                record.dtype,
                group,
                positions[group],
                record.peers,
                "host" if record.stated else "dimensions",
                "host",
                event.begin_ns,
                event.end_ns,
            )
        )
    return sorted(calls, key=lambda call: (call.kind, call.begin_ns))


def host_lines(traces: Sequence[RankTrace]) -> list[str]:
    """Describe a job without device work: its collectives, how they match, and their sizes.

    Raises
    ------
    ConfigError
        For traces of different jobs, and for traces without collectives.
    """
    ordered = sorted(traces, key=lambda trace: trace.rank)
    refuse_different_jobs(ordered)
    nranks = max(*(trace.ranks for trace in ordered), ordered[-1].rank + 1, len(ordered))
    calls = [host_calls(trace, nranks) for trace in ordered]
    if not any(calls):
        raise ConfigError(
            "neither device work nor a collective in this trace; expected a profile with the "
            "activity CUDA, or of a job with collectives",
            file=ordered[0].file,
        )
    ranks = [trace.rank for trace in ordered]
    matching = match_calls(ranks, calls, nranks)
    backends = sorted({trace.backend for trace in ordered if trace.backend})
    number = max(map(len, calls))
    lines = [
        f"{len(ordered)} of {counted(nranks, 'rank')}, {counted(number, 'collective')} a rank"
        + (f" by {listed(backends)}" if backends else "")
        + ", no device work"
    ]
    lines += _rows(matching.meetings, calls)
    alone = sum(map(len, matching.alone.values()))
    if matching.meetings:
        lines.append(f"# {counted(len(matching.meetings), 'collective')} matched over the ranks")
    if alone:
        lines.append(f"# {counted(alone, 'call')} without their other ranks")
    lines.append(
        "# no times: what a host records of a collective is not its time on a network, which needs "
        "the kernels of a device"
    )
    return lines


def _rows(meetings: Sequence[TracedMeeting], calls: Sequence[Sequence[TracedCall]]) -> list[str]:
    """Collectives by kind and size: those that match, else those of the ranks."""
    counts: Counter[tuple[str, int]] = Counter()
    matched: dict[tuple[str, int], int] = defaultdict(int)
    for meeting in meetings:
        matched[meeting.kind, meeting.size_bytes] += 1
    for rank_calls in calls:
        counts.update((call.kind, call.size_bytes) for call in rank_calls)
    lines = [f"{'collective':<15}{'size':>12}{'calls':>8}{'matched':>9}"]
    for kind, size_bytes in sorted(counts, key=lambda row: (row[0], row[1])):
        size = format_size(size_bytes) if size_bytes >= 0 else "-"
        meetings_of = matched.get((kind, size_bytes), 0)
        number = counts[kind, size_bytes]
        lines.append(f"{kind or 'unknown':<15}{size:>12}{number:>8}{meetings_of:>9}")
    return lines
