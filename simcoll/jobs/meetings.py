"""Match the collectives of a job over its ranks, and divide their times into network and waiting.

A kernel of a collective runs from the arrival of its rank to the end of the collective. The service
is the time from the last arrival to the end; what precedes it is waiting, for the rank that came
last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple, cast

import numpy as np

from simcoll.core.vocabulary import TogetherKind
from simcoll.errors import ConfigError, listed
from simcoll.jobs.comm_records import CommRecord, GroupRecord, RecordKind, kind_of_kernel
from simcoll.jobs.message_exchanges import (
    MessageEnd,
    MessageExchange,
    match_messages,
    pair_of,
)
from simcoll.jobs.work_graph import CollectivePart
from simcoll.units import counted, format_size

__all__ = ["Matching", "TracedCall", "TracedMeeting", "call_of", "calls_of", "match_calls"]

_SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives that end on all ranks within the latency of the fabric."""
_UNEVEN = {"all_to_all", "all_gather", "reduce_scatter"}
"""Collectives in which sizes of ranks may differ."""
SAME_CLOCK_NS = 20_000
"""Ends that differ by less, in the median, are of one clock."""
MOST_RESIDUE_NS = 1_000_000
MOST_OFFSET_NS = 1_000_000_000
"""Clocks of nodes are set by a network, to milliseconds; traces further apart are of two runs."""
_MOST_SHIFT = 1000
_JITTER_NS = 5_000


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A collective or message of one rank.

    Attributes
    ----------
    kind
        As in a workload; ``"send"``, ``"recv"``; ``"messages"`` for a group of both; empty if it is
        not recorded.
    size_bytes
        As nccl-tests counts it; -1 if it is not recorded.
    dtype, group, sequence, peers
        As in a :class:`~simcoll.jobs.comm_records.CommRecord`.
    size_source
        Where the size was: ``"kernel"``, ``"host"``, ``"dimensions"``, or empty.
    stream
        Of the kernel, for groups that have no name.
    begin_ns, end_ns
        Arrival and end.
    messages
        The sends and receives of a group of them, in the order of their calls.
    """

    kind: RecordKind
    size_bytes: int
    dtype: str
    group: GroupRecord
    sequence: int
    peers: tuple[int, int]
    size_source: str
    stream: str | int
    begin_ns: int
    end_ns: int
    messages: tuple[CommRecord, ...] = ()

    def __str__(self) -> str:
        size = f" of {format_size(self.size_bytes)}" if self.size_bytes >= 0 else ""
        return f"{self.kind or 'collective'}{size}"


@dataclass(frozen=True, slots=True)
class TracedMeeting:
    """A collective or message with all its ranks.

    Attributes
    ----------
    kind, size_bytes
        As in a :class:`TracedCall`; ``"send"`` for a message, ``"messages"`` for groups of messages
        that wait for each other, with the most bytes that a rank sends or receives.
    ranks
        The members, in the order of the group; source and target of a message.
    calls
        By graph, the number of its call.
    arrivals_ns, ends_ns
        By graph.
    last
        The graph whose rank came last.
    group
        Name or description of the group, for people.
    partners
        By graph, those whose ranks it exchanges messages with, if these are not all.
    """

    kind: TogetherKind | Literal["messages", ""]
    size_bytes: int
    ranks: tuple[int, ...]
    calls: Mapping[int, int]
    arrivals_ns: Mapping[int, int]
    ends_ns: Mapping[int, int]
    last: int
    group: str
    partners: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def service_ns(self) -> int:
        """From the last arrival to the end; of messages, the longest of the ranks."""
        if not self.partners:
            return max(0, max(self.ends_ns.values()) - self.arrivals_ns[self.last])
        return max(0, *(end - self._last_ns(place) for place, end in self.ends_ns.items()))

    def waiting_ns(self, place: int) -> int:
        """Waiting of the rank of a graph for the last one, or the last of its partners."""
        return max(0, self._last_ns(place) - self.arrivals_ns[place])

    def _last_ns(self, place: int) -> int:
        """The last arrival that the rank of a graph waits for."""
        if not self.partners:
            return self.arrivals_ns[self.last]
        return max(self.arrivals_ns[partner] for partner in (place, *self.partners[place]))


@dataclass(frozen=True, slots=True)
class Matching:
    """The meetings of a job, and what remains.

    Attributes
    ----------
    meetings
        In the order of their last arrivals.
    alone
        By graph, calls that met no others: of groups with ranks that were not traced, or groups of
        messages.
    cut
        Number of calls that were left out because a rank's trace begins later or ends earlier.
    assumed
        Whether groups are not recorded, and are taken for all ranks.
    """

    meetings: tuple[TracedMeeting, ...]
    alone: Mapping[int, tuple[int, ...]]
    cut: int
    assumed: bool


def calls_of(parts: Sequence[CollectivePart], nranks: int) -> list[TracedCall]:
    """The calls of the collectives of a rank."""
    used: set[int] = set()
    return [call_of(part, nranks, used) for part in parts]


def call_of(part: CollectivePart, nranks: int, used: set[int]) -> TracedCall:
    """Combine what the kernel and the host's events around its launch say.

    ``used`` holds the events that were another kernel's: the size of a host's event is that of all
    its kernels together, so only the first one may have it, and only if it has it alone.
    """
    kernel = part.work.record or CommRecord()
    events = [event for event in reversed(part.events) if event.record.kind != "wait"]
    if len(part.batch) > 1:
        return _batch_of(part)
    events = [*part.batch, *events]
    hosts = [event.record for event in events if id(event) not in used]
    shared = len(hosts) < len(events)
    used.update(id(event) for event in events)
    stated = [record for record in hosts if record.stated]
    candidates = [("kernel", kernel), *(("host", record) for record in (*stated, *hosts))]
    records = [kernel, *(event.record for event in events)]
    kind: RecordKind = next((record.kind for record in records if record.kind), "")
    kind = kind or kind_of_kernel(part.work.name)
    group = next((record.group for record in records if record.group.ranks), None)
    group = group or next(
        (record.group for record in records if record.group != GroupRecord()), GroupRecord()
    )
    size_bytes, source, dtype = -1, "", ""
    for place, record in candidates:
        if record.size_bytes >= 0 and not (shared and place == "host"):
            size_bytes, dtype = record.size_bytes, record.dtype
            if kind == "all_gather" and not record.stated:
                size_bytes *= group.size or len(group.ranks) or nranks
            source = place if record.stated else "dimensions"
            break
    return TracedCall(
        kind,
        size_bytes,
        dtype,
        group,
        next((record.sequence for record in records if record.sequence >= 0), -1),
        next((record.peers for record in records if max(record.peers) >= 0), (-1, -1)),
        source,
        part.work.stream,
        part.work.begin_ns,
        part.work.end_ns,
    )


def _batch_of(part: CollectivePart) -> TracedCall:
    """The call of a kernel of several messages: its size is the most that it sends or receives."""
    messages = tuple(event.record for event in part.batch)
    totals = {
        kind: sum(record.size_bytes for record in messages if record.kind == kind)
        for kind in ("send", "recv")
    }
    sized = all(record.size_bytes >= 0 for record in messages)
    stated = all(record.stated for record in messages)
    return TracedCall(
        "messages",
        max(totals.values()) if sized else -1,
        messages[0].dtype,
        messages[0].group,
        -1,
        (-1, -1),
        ("host" if stated else "dimensions") if sized else "",
        part.work.stream,
        part.work.begin_ns,
        part.work.end_ns,
        messages,
    )


@dataclass(frozen=True, slots=True)
class _CallSequence:
    """The calls of one rank in one group, in order: numbers of the rank's calls."""

    place: int
    numbers: list[int]


def match_calls(
    ranks: Sequence[int], calls: Sequence[Sequence[TracedCall]], nranks: int
) -> Matching:
    """Match the calls of the graphs whose ranks are given; ``nranks`` is the job's number.

    Raises
    ------
    ConfigError
        When the ranks of a group call different collectives: traces of different programs or jobs.
    """
    place_of = {rank: place for place, rank in enumerate(ranks)}
    alone: dict[int, list[int]] = {place: [] for place in place_of.values()}
    exchanges = match_messages(_message_ends(ranks, calls))
    meetings = [_exchange(exchange, calls, ranks) for exchange in exchanges]
    exchanged = {part for exchange in exchanges for part in exchange.calls.items()}
    lines, assumed = _lines(ranks, calls, nranks, alone, exchanged)
    cut = 0
    for (members, title, message), group_lines in lines.items():
        missing = [rank for rank in members if rank not in place_of]
        if missing or len(members) < 2:
            for line in group_lines:
                alone[line.place] += line.numbers
            continue
        _refuse_absent(members, place_of, group_lines, title)
        # Messages are numbered by rank, not by pair, so their numbers do not match.
        matched = None if message else _by_sequence(group_lines, calls)
        if matched is None:
            matched = _align(group_lines, calls, ranks, title)
        for numbers in matched:
            _refuse_unlike(numbers, calls, ranks, title)
        total = sum(len(line.numbers) for line in group_lines)
        left_out = total - sum(len(numbers) for numbers in matched)
        cut += left_out
        meetings += [
            _meeting(numbers, calls, members, title, message=message) for numbers in matched
        ]
        met = {(place, number) for numbers in matched for place, number in numbers.items()}
        for line in group_lines:
            alone[line.place] += [
                number for number in line.numbers if (line.place, number) not in met
            ]
    meetings.sort(key=lambda meeting: meeting.arrivals_ns[meeting.last])
    return Matching(
        tuple(meetings),
        {place: tuple(sorted(numbers)) for place, numbers in alone.items()},
        cut,
        assumed,
    )


_GroupKey = tuple[tuple[int, ...], str, bool]


def _lines(
    ranks: Sequence[int],
    calls: Sequence[Sequence[TracedCall]],
    nranks: int,
    alone: Mapping[int, list[int]],
    exchanged: set[tuple[int, int]],
) -> tuple[dict[_GroupKey, list[_CallSequence]], bool]:
    """The calls by group (members, title, whether of messages), and whether groups are assumed."""
    everyone = tuple(range(nranks))
    lines: dict[_GroupKey, list[_CallSequence]] = defaultdict(list)
    assumed = False
    for place, (rank, rank_calls) in enumerate(zip(ranks, calls, strict=True)):
        sequences: dict[Hashable, list[int]] = defaultdict(list)
        streams: list[Hashable] = []
        for number, call in enumerate(rank_calls):
            if (place, number) in exchanged:
                continue
            members = call.group.ranks
            if call.kind in {"send", "recv"} and members:
                pair = pair_of(call.kind, call.peers, members, rank)
                if pair is not None:
                    sequences[pair, f"{pair[0]} to {pair[1]}", True].append(number)
                    continue
            if call.kind in {"send", "recv", "messages"} or (
                not members and 0 < call.group.size < nranks
            ):
                alone[place].append(number)
                continue
            if members:
                title = call.group.description or call.group.name
                sequences[members, _title(title, call.group.name), False].append(number)
                continue
            if call.stream not in streams:
                streams.append(call.stream)
            assumed = True
            sequences[everyone, f"stream {streams.index(call.stream) + 1}", False].append(number)
        for key, numbers in sequences.items():
            lines[key].append(_CallSequence(place, numbers))  # type: ignore[index]
    return lines, assumed


def _title(description: str, name: str) -> str:
    return description if not name or description == name else f"{description} ({name})"


def _refuse_absent(
    members: Iterable[int], place_of: Mapping[int, int], lines: Sequence[_CallSequence], title: str
) -> None:
    present = {line.place for line in lines}
    absent = [rank for rank in members if place_of[rank] not in present]
    if absent:
        raise ConfigError(
            f"rank {absent[0]} has no collective of group {title!r}, which has it as a member and "
            "others use: these are traces of different jobs, or of different times"
        )


def _align(
    lines: Sequence[_CallSequence],
    calls: Sequence[Sequence[TracedCall]],
    ranks: Sequence[int],
    title: str,
) -> list[dict[int, int]]:
    """Calls that belong together, by graph, by their order."""
    reference = lines[0]
    shifts = [0] + [_shift(reference, line, calls, ranks, title) for line in lines[1:]]
    matched = []
    for index in range(len(reference.numbers)):
        places = [index + shift for shift in shifts]
        parts = list(zip(places, lines, strict=True))
        if all(0 <= place < len(line.numbers) for place, line in parts):
            matched.append({line.place: line.numbers[place] for place, line in parts})
    return matched


def _by_sequence(
    lines: Sequence[_CallSequence], calls: Sequence[Sequence[TracedCall]]
) -> list[dict[int, int]] | None:
    """Match by recorded numbers; None if they are absent or repeat."""
    by_line = []
    for line in lines:
        numbered = {calls[line.place][number].sequence: number for number in line.numbers}
        if -1 in numbered or len(numbered) < len(line.numbers):
            return None
        by_line.append(numbered)
    shared = set(by_line[0]).intersection(*by_line[1:])
    return [
        {line.place: numbered[sequence] for line, numbered in zip(lines, by_line, strict=True)}
        for sequence in sorted(shared)
    ]


class _ShiftFit(NamedTuple):
    """How well the ends of two ranks agree under a shift, best first."""

    score: float
    offset_ns: float
    spread_ns: float
    shift: int


def _shift(
    reference: _CallSequence,
    line: _CallSequence,
    calls: Sequence[Sequence[TracedCall]],
    ranks: Sequence[int],
    title: str,
) -> int:
    """The place in a rank's calls of the first call of the reference.

    Of the shifts under which kinds and sizes agree, that one whose ends differ least, and least
    from a constant: a shift by a step differs by a step, and by the jitter of steps. If clocks
    differ and steps do not jitter, the ranks are taken to begin with the same call, as they do in
    steps of the same number.
    """
    names: dict[Hashable, int] = {}
    signs, ends = [], []
    origin_ns = calls[reference.place][reference.numbers[0]].end_ns
    for part in (reference, line):
        sequence = [calls[part.place][number] for number in part.numbers]
        signs.append(np.array([names.setdefault(_sign(call), len(names)) for call in sequence]))
        ends.append(np.array([float(call.end_ns - origin_ns) for call in sequence]))
    shortest = min(map(len, signs))
    candidates: list[_ShiftFit] = []
    # Almost always the ranks begin with the same call, so that shift comes first, and may suffice.
    shifts = range(-min(_MOST_SHIFT, len(signs[0])), min(_MOST_SHIFT, len(signs[1])) + 1)
    for shift in (0, *(shift for shift in shifts if shift)):
        begin = max(0, -shift)
        end = min(len(signs[0]), len(signs[1]) - shift)
        if end - begin < min(shortest, max(2, (shortest + 1) // 2)):
            continue
        if (signs[0][begin:end] != signs[1][begin + shift : end + shift]).any():
            continue
        late = ends[1][begin + shift : end + shift] - ends[0][begin:end]
        middle = float(np.median(late))
        spread = float(np.median(np.abs(late - middle)))
        score = spread + min(abs(middle), 5 * SAME_CLOCK_NS)
        candidates.append(_ShiftFit(score, abs(middle), spread, shift))
        if shift == 0 and len(signs[0]) == len(signs[1]) and score <= SAME_CLOCK_NS:
            return 0
    if candidates:
        best = min(candidates)
        unshifted = [fit for fit in candidates if fit.shift == 0]
        if (
            unshifted
            and best.offset_ns > SAME_CLOCK_NS
            and unshifted[0].spread_ns <= 2 * best.spread_ns + _JITTER_NS
        ):
            return 0
        return best.shift
    for number, partner in zip(reference.numbers, line.numbers, strict=False):
        _refuse_unlike({reference.place: number, line.place: partner}, calls, ranks, title)
    raise ConfigError(
        f"the collectives of group {title!r} on rank {ranks[line.place]} do not follow in the "
        f"order of rank {ranks[reference.place]}: these are traces of different programs"
    )


def _sign(call: TracedCall) -> Hashable:
    """What is equal for the parts of one collective or message."""
    kind = "message" if call.kind in {"send", "recv"} else call.kind
    return kind, -1 if kind in _UNEVEN else call.size_bytes


def _refuse_unlike(
    numbers: Mapping[int, int],
    calls: Sequence[Sequence[TracedCall]],
    ranks: Sequence[int],
    title: str,
) -> None:
    places = list(numbers)
    example = calls[places[0]][numbers[places[0]]]
    for place in places[1:]:
        call = calls[place][numbers[place]]
        kinds = {example.kind, call.kind}
        sizes = {example.size_bytes, call.size_bytes} - {-1}
        uneven = kinds & _UNEVEN
        if (len(kinds) > 1 and kinds != {"send", "recv"}) or (len(sizes) > 1 and not uneven):
            raise ConfigError(
                f"ranks {ranks[places[0]]} and {ranks[place]} call {example} and {call} at the "
                f"same place of group {title!r}: these are traces of different programs or jobs"
            )


def _meeting(
    numbers: Mapping[int, int],
    calls: Sequence[Sequence[TracedCall]],
    members: tuple[int, ...],
    title: str,
    *,
    message: bool,
) -> TracedMeeting:
    parts = {place: calls[place][number] for place, number in numbers.items()}
    arrivals = {place: call.begin_ns for place, call in parts.items()}
    ends = {place: call.end_ns for place, call in parts.items()}
    example = next(iter(parts.values()))
    return TracedMeeting(
        # Messages in groups and waits are no meetings of several ranks.
        "send" if message else cast("TogetherKind | Literal['']", example.kind),
        max(call.size_bytes for call in parts.values()),
        members,
        dict(numbers),
        arrivals,
        ends,
        max(arrivals, key=lambda place: (arrivals[place], -place)),
        title,
    )


def _message_ends(ranks: Sequence[int], calls: Sequence[Sequence[TracedCall]]) -> list[MessageEnd]:
    """The ends of all messages of a job that has groups of them; of others none."""
    if not any(call.messages for rank_calls in calls for call in rank_calls):
        return []
    ends = []
    for place, rank in enumerate(ranks):
        for number, call in enumerate(calls[place]):
            kernel = place, number
            if call.kind in {"send", "recv"}:
                pair = pair_of(call.kind, call.peers, call.group.ranks, rank)
                ends.append(MessageEnd(kernel, call.kind, pair, call.size_bytes))
            for record in call.messages:
                members = record.group.ranks or call.group.ranks
                pair = pair_of(record.kind, record.peers, members, rank)
                ends.append(MessageEnd(kernel, record.kind, pair, record.size_bytes))
    return ends


def _exchange(
    exchange: MessageExchange, calls: Sequence[Sequence[TracedCall]], ranks: Sequence[int]
) -> TracedMeeting:
    """The meeting of groups of messages that wait for each other."""
    parts = {place: calls[place][number] for place, number in exchange.calls.items()}
    arrivals = {place: call.begin_ns for place, call in parts.items()}
    members = tuple(sorted(ranks[place] for place in parts))
    example = next(iter(parts.values())).group
    return TracedMeeting(
        "messages",
        max(call.size_bytes for call in parts.values()),
        members,
        dict(exchange.calls),
        arrivals,
        {place: call.end_ns for place, call in parts.items()},
        max(arrivals, key=lambda place: (arrivals[place], -place)),
        _title(example.description or example.name, example.name),
        exchange.partners,
    )


def clock_offsets(
    ranks: Sequence[int], meetings: Sequence[TracedMeeting]
) -> tuple[dict[int, int], list[str]]:
    """Offsets of the ranks' clocks by graph, in nanoseconds, from the ends of collectives; notes.

    Raises
    ------
    ConfigError
        When the ends of a rank do not agree with any offset within a millisecond, or only with one
        of more than a second.
    """
    late: dict[tuple[int, int], list[int]] = defaultdict(list)
    for meeting in meetings:
        if meeting.kind in _SYMMETRIC:
            reference, *places = meeting.ends_ns
            for place in places:
                difference = meeting.ends_ns[place] - meeting.ends_ns[reference]
                late[reference, place].append(difference)
    offsets: dict[int, int] = {}
    notes: list[str] = []
    for start in range(len(ranks)):
        if start in offsets:
            continue
        offsets[start] = 0
        queue = [start]
        for place in queue:
            for (reference, compared), differences in late.items():
                if place not in {reference, compared}:
                    continue
                partner, sign = (compared, 1) if place == reference else (reference, -1)
                middle = round(median(differences))
                residue = median(abs(difference - middle) for difference in differences)
                if residue > MOST_RESIDUE_NS:
                    raise ConfigError(
                        f"the clocks of ranks {ranks[reference]} and {ranks[compared]} disagree by "
                        f"varying times: {counted(len(differences), 'collective')} end "
                        f"{residue / 1e6:.1f} ms (median) from the constant offset that fits best; "
                        "expected less than 1 ms, so these are no traces of one run"
                    )
                if abs(middle) > MOST_OFFSET_NS:
                    raise ConfigError(
                        f"the collectives of ranks {ranks[reference]} and {ranks[compared]} end "
                        f"{abs(middle) / 1e9:,.1f} s apart, more than clocks differ: these are "
                        "traces of different runs"
                    )
                if partner not in offsets:
                    step = sign * middle if abs(middle) > SAME_CLOCK_NS else 0
                    offsets[partner] = offsets[place] + step
                    queue.append(partner)
    corrections = [
        f"rank {ranks[place]} by {offset / 1e6:+.3f} ms"
        for place, offset in sorted(offsets.items())
        if offset
    ]
    if corrections:
        notes.append(f"clocks corrected by the ends of collectives: {listed(corrections)}")
    return offsets, notes
