"""Diagnosis of a hung job from the flight records of its ranks: who stopped, and who waits for it.

A rank is at the first operation that it has called and that has not ended. It waits for the members
of that group that have not called the operation, or are at an earlier one. The causes are where the
waiting ends: at a rank that waits for nothing, in an operation in which all its ranks are, or in a
circle.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from simcoll.errors import listed, ranks_listed
from simcoll.formats.reports.flight_record import FlightEntry, FlightRecord
from simcoll.units import counted

__all__ = ["findings", "wrong_rank"]

UNEVEN = ("all_to_all", "send", "recv", "gather", "scatter", "reduce_scatter", "all_gather")
"""Operations whose input or output sizes may differ between ranks."""
_MESSAGE = re.compile(r"\b(send|recv) (\d{1,9})(->|<-)(\d{1,9})")
MOST_WAITS = 6
"""Largest number of waiting ranks that a line of consequences lists."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A process group; several may have one name, on other ranks."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _FlightCall:
    """A collective of a group, or a message between two of its ranks."""

    group: _Group
    number: int
    operation: str
    sender: int = -1
    receiver: int = -1

    @property
    def is_message(self) -> bool:
        return self.sender >= 0

    def __str__(self) -> str:
        operation = f" ({self.operation})" if self.operation else ""
        kind = "message" if self.is_message else "collective"
        return f"group {self.group.name!r}, {kind} {self.number}{operation}"


@dataclass(slots=True)
class _GroupProgress:
    """What a rank has done in a group: its collectives by number, and the last called and ended."""

    collectives: dict[int, FlightEntry] = field(default_factory=dict)
    called: int = -1
    ended: int = -1

    def reaches(self, number: int) -> bool:
        return self.called >= number

    def is_past(self, number: int) -> bool:
        entry = self.collectives.get(number)
        return number <= self.ended or (entry is not None and entry.state == "completed")


@dataclass(frozen=True, slots=True)
class _Wait:
    """A rank, the operation that it is at, and the ranks that it waits for there."""

    rank: int
    call: _FlightCall
    on: tuple[int, ...]


def findings(records: Mapping[int, FlightRecord]) -> list[str]:
    """Diagnose the records of some ranks.

    Causes come first: ranks that run different operations or sizes, ranks that stopped, operations
    that hang although all their ranks are in them, and circles of ranks that wait for each other.
    An indented line after them folds what follows from them.

    Examples
    --------
    >>> vector = (((4,), "Float"),)
    >>> entry = FlightEntry("0", 1, "nccl:all_reduce", vector, vector, "scheduled")
    >>> groups = (("0", (0, 1)),)
    >>> findings({0: FlightRecord("2.4", groups, (entry,)), 1: FlightRecord("2.4", groups, ())})
    ["group '0', collective 1 (nccl:all_reduce): rank 1 never came; ...; waiting: rank 0"]
    """
    return list(_Diagnosis(records).lines())


def wrong_rank(rank: int, record: FlightRecord) -> str | None:
    """Why a record cannot be that of a rank: it has done operations of groups or messages of other
    ranks. None if it can.

    Examples
    --------
    >>> vector = (((4,), "Float"),)
    >>> entry = FlightEntry("7", 1, "nccl:all_reduce", vector, vector, "completed")
    >>> wrong_rank(5, FlightRecord("2.4", (("7", (2, 3)),), (entry,)))
    "it has done operations of group '7', which has ranks 2, 3"
    """
    for name, members in record.groups:
        entries = [entry for entry in record.entries if entry.group == name]
        if entries and rank not in members:
            return f"it has done operations of group {name!r}, which has {ranks_listed(members)}"
        for entry in entries:
            match = _MESSAGE.search(entry.operation)
            place = int(match[2]) if match else 0
            ranks = sorted(members)
            if match and place < len(ranks) and ranks[place] != rank:
                return f"{entry.operation} of group {name!r} is a message of rank {ranks[place]}"
    return None


class _Diagnosis:
    """The progress of each rank in each group, and who waits for whom."""

    def __init__(self, records: Mapping[int, FlightRecord]) -> None:
        self.records = records
        self.progress: dict[_Group, dict[int, _GroupProgress]] = {}
        self.groups: dict[int, dict[str, _Group]] = {}
        for rank in records:
            self._add(rank)
        self.at = {rank: self._at(rank) for rank in records}
        self.waits = [
            _Wait(rank, call, self._late_ranks(rank, call))
            for rank, calls in self.at.items()
            for call in calls
        ]

    def _add(self, rank: int) -> None:
        record = self.records[rank]
        groups: dict[str, _Group] = {}
        for name in dict.fromkeys(
            [*(entry.group for entry in record.entries), *(s.group for s in record.statuses)]
        ):
            groups[name] = _Group(name, self._members(rank, name))
        # A rank that has called nothing of a group is a member all the same.
        for name, members in record.groups:
            if rank in members:
                groups.setdefault(name, _Group(name, tuple(sorted(members))))
        self.groups[rank] = groups
        for group in groups.values():
            self.progress.setdefault(group, {})[rank] = _GroupProgress()
        for entry in record.entries:
            if not entry.p2p:
                progress = self.progress[groups[entry.group]][rank]
                progress.collectives[entry.sequence] = entry
                progress.called = max(progress.called, entry.sequence)
                if entry.state == "completed":
                    progress.ended = max(progress.ended, entry.sequence)
        for status in record.statuses:
            progress = self.progress[groups[status.group]][rank]
            progress.called = max(progress.called, status.called)
            progress.ended = max(progress.ended, status.ended)

    def _members(self, rank: int, name: str) -> tuple[int, ...]:
        """The ranks of a group: as its record lists them, or another's, or those that have done
        something in it.
        """
        for record in (self.records[rank], *self.records.values()):
            for group, members in record.groups:
                if group == name and members and (rank in members or record is self.records[rank]):
                    return tuple(sorted(members))
        return tuple(
            sorted(
                holder
                for holder, record in self.records.items()
                if name == "0" or any(entry.group == name for entry in record.entries)
            )
        )

    def _at(self, rank: int) -> list[_FlightCall]:
        """The operation that a rank is at; of messages, all that it has posted before the next
        collective, as they run side by side.
        """
        calls: list[_FlightCall] = []
        for entry in self.records[rank].entries:
            group = self.groups[rank][entry.group]
            if entry.state == "completed" or (calls and not entry.p2p):
                if calls and not entry.p2p and entry.state != "completed":
                    break
                continue
            if not entry.p2p:
                return [_FlightCall(group, entry.sequence, entry.operation)]
            if (message := self._message(entry, group)) is not None:
                calls.append(message)
        if calls:
            return calls
        for group in self.groups[rank].values():
            progress = self.progress[group][rank]
            if progress.called > max(progress.ended, -1) and progress.ended >= 0:
                number = progress.ended + 1
                return [_FlightCall(group, number, self._operation(group, number))]
        return []

    @staticmethod
    def _message(entry: FlightEntry, group: _Group) -> _FlightCall | None:
        match = _MESSAGE.search(entry.operation)
        if match is None or max(int(match[2]), int(match[4])) >= len(group.members):
            return None
        ranks = group.members[int(match[2])], group.members[int(match[4])]
        sender, receiver = ranks if match[1] == "send" else reversed(ranks)
        return _FlightCall(group, entry.sequence, entry.operation, sender, receiver)

    def _operation(self, group: _Group, number: int) -> str:
        """The name of a collective, from any rank that has kept it."""
        for progress in self.progress[group].values():
            if number in progress.collectives:
                return progress.collectives[number].operation
        return ""

    def _for_both_ends(self, call: _FlightCall) -> _FlightCall:
        """A call under one name for both ends of a message: that of its sender, if it has one."""
        if not call.is_message:
            return _FlightCall(call.group, call.number, call.operation)
        sent = (
            posted.number
            for posted in self.at.get(call.sender, ())
            if (posted.group, posted.sender, posted.receiver)
            == (call.group, call.sender, call.receiver)
        )
        sender, receiver = (call.group.members.index(rank) for rank in (call.sender, call.receiver))
        backend = _MESSAGE.sub("", call.operation)
        return _FlightCall(
            call.group,
            next(sent, call.number),
            f"{backend}send {sender}->{receiver}",
            call.sender,
            call.receiver,
        )

    def _late_ranks(self, rank: int, call: _FlightCall) -> tuple[int, ...]:
        """The ranks that have not come to a call: those with a record or, if all these have come,
        those without.
        """
        members = (call.sender, call.receiver) if call.is_message else call.group.members
        peers = [member for member in members if member != rank]
        late = [
            peer for peer in peers if peer in self.records and not self._is_at_or_past(peer, call)
        ]
        return tuple(late) or tuple(peer for peer in peers if peer not in self.records)

    def _is_at_or_past(self, peer: int, call: _FlightCall) -> bool:
        """Whether a rank is at a call, or past it."""
        calls = self.at[peer]
        if call.is_message:
            return any(
                (posted.group, posted.sender, posted.receiver)
                == (call.group, call.sender, call.receiver)
                for posted in calls
            )
        progress = self.progress[call.group].get(peer, _GroupProgress())
        if progress.is_past(call.number):
            return True
        if not progress.reaches(call.number):
            return False
        return not calls or any(
            (begun.group, begun.number) == (call.group, call.number) for begun in calls
        )

    def lines(self) -> Iterator[str]:
        """Causes, then what follows from them, then what is not known."""
        causes: list[str] = []
        blamed: set[int] = set()
        for group, by_rank in self.progress.items():
            if (mismatch := _mismatch(group, by_rank)) is not None:
                number, text = mismatch
                causes.append(text)
                blamed |= {
                    wait.rank
                    for wait in self.waits
                    if wait.call.group == group and wait.call.number >= number
                }
        for text, ranks in (*self._message_sizes(), *self._idle_ranks(), *self._stuck_operations()):
            if not ranks <= blamed:
                causes.append(text)
                blamed |= ranks
        while circle := self._circle(blamed):
            causes.append(_circle_line(circle))
            blamed |= {wait.rank for wait in circle}
        yield from causes
        yield from self._consequences(blamed, causes)
        yield from self._absent()

    def _idle_ranks(self) -> Iterator[tuple[str, set[int]]]:
        """Ranks that others wait for and that wait for nothing: the longest idle first."""
        by_call: dict[_FlightCall, list[_Wait]] = defaultdict(list)
        for wait in self.waits:
            if any(not self.at.get(rank) for rank in wait.on):
                by_call[self._for_both_ends(wait.call)].append(wait)
        reported: set[int] = set()
        for call, waits in sorted(by_call.items(), key=lambda entry: self._last_act(entry[1])):
            idle = sorted({rank for w in waits for rank in w.on if not self.at.get(rank)})
            new = [rank for rank in idle if rank not in reported]
            if new:
                reported |= set(new)
                waiting = [wait.rank for wait in waits if set(new) & set(wait.on)]
                yield (
                    f"{call}: {self._absence(call, new)}; waiting: {ranks_listed(waiting)}",
                    {*new, *waiting},
                )

    def _last_act(self, waits: Sequence[_Wait]) -> int:
        """The time of the last call of the ranks that are waited for."""
        idle = {rank for wait in waits for rank in wait.on if not self.at.get(rank)}
        return max(
            (
                entry.created_ns
                for rank in idle & self.records.keys()
                for entry in self.records[rank].entries
            ),
            default=0,
        )

    def _absence(self, call: _FlightCall, ranks: Sequence[int]) -> str:
        if ranks[0] not in self.records:
            return f"no record of {ranks_listed(ranks)}, and all others are in it"
        if call.is_message:
            deed = "sent" if ranks[0] == call.sender else "received"
            return f"{ranks_listed(ranks)} has not {deed} it"
        latest = max(
            (self.progress[call.group].get(rank, _GroupProgress()).called for rank in ranks),
            default=0,
        )
        has = "it has" if len(ranks) == 1 else "they have"
        up_to = "" if len(ranks) == 1 else "up to "
        return f"{ranks_listed(ranks)} never came; {has} done {up_to}{max(latest, 0)} of this group"

    def _stuck_operations(self) -> Iterator[tuple[str, set[int]]]:
        """Operations that do not end although all their ranks are in them, or have ended them."""
        by_call: dict[_FlightCall, list[_Wait]] = defaultdict(list)
        for wait in self.waits:
            by_call[self._for_both_ends(wait.call)].append(wait)
        busy = {wait.rank for wait in self.waits if wait.on}
        for call, waits in by_call.items():
            if any(wait.on for wait in waits):
                continue
            ranks = [wait.rank for wait in waits]
            if call.is_message and busy & {call.sender, call.receiver}:
                continue  # it may be behind a message that waits
            if call.is_message:
                yield f"{call}: sent and received, and not ended; {ranks_listed(ranks)}", {*ranks}
                continue
            by_rank = self.progress[call.group]
            entries = [by_rank[rank].collectives.get(call.number) for rank in ranks]
            states = Counter(entry.state if entry else "called" for entry in entries)
            summary = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            idle = [
                rank
                for rank, entry in zip(ranks, entries, strict=True)
                if entry and entry.state == "scheduled"
            ]
            if states["started"] and idle:
                has = "its GPU has" if len(idle) == 1 else "their GPUs have"
                running = ranks_listed(sorted({*ranks} - {*idle}))
                behind = f"{ranks_listed(idle)} did not start it: {has} not ended earlier work"
                yield f"{call}: {behind}; waiting: {running}", {*ranks}
                continue
            ended = len(by_rank) - len(ranks)
            tail = f"{ended} did"
            if len(call.group.members) == 1:
                tail = "and nothing is known of other ranks of this group"
            yield f"{call}: {ranks_listed(ranks)} did not end it ({summary}), {tail}", set(ranks)

    def _message_sizes(self) -> Iterator[tuple[str, set[int]]]:
        """Messages that are sent and received with other sizes."""
        for rank, calls in self.at.items():
            for call in calls:
                if call.sender != rank or not call.is_message:
                    continue
                sent, received = (
                    self._tensors(peer, call) for peer in (call.sender, call.receiver)
                )
                if sent and received and sent != received:
                    ends = (
                        f"rank {call.sender} sends {_texts(sent)}, "
                        f"rank {call.receiver} receives {_texts(received)}"
                    )
                    yield f"{call}: {ends}", {call.sender, call.receiver}

    def _tensors(self, rank: int, call: _FlightCall) -> Tensors:
        """The tensors of a rank's first unfinished message of a direction."""
        for entry in self.records[rank].entries if rank in self.records else ():
            if entry.p2p and entry.state != "completed" and entry.group == call.group.name:
                message = self._message(entry, call.group)
                if message and (message.sender, message.receiver) == (call.sender, call.receiver):
                    return entry.inputs if rank == call.sender else entry.outputs
        return ()

    def _circle(self, blamed: set[int]) -> list[_Wait]:
        """Waits that lead from a rank back to itself, among ranks that wait for no cause."""
        waits = {wait.rank: wait for wait in self.waits if wait.on}
        explained = set(blamed)
        grown = True
        while grown:
            new = {
                rank
                for rank, wait in waits.items()
                if rank not in explained and explained & set(wait.on)
            }
            explained |= new
            grown = bool(new)
        rank = next((rank for rank in waits if rank not in explained), None)
        path: list[_Wait] = []
        while rank is not None and rank in waits:
            if rank in [wait.rank for wait in path]:
                return path[[wait.rank for wait in path].index(rank) :]
            path.append(waits[rank])
            rank = next((peer for peer in waits[rank].on if peer in waits), None)
        return []

    def _consequences(self, blamed: set[int], causes: Sequence[str]) -> Iterator[str]:
        """The other waiting ranks, in one line."""
        folded = [wait for wait in self.waits if wait.rank not in blamed and wait.on]
        ranks = {wait.rank: wait for wait in reversed(folded)}
        if not ranks or not causes:
            return
        texts = [
            f"rank {rank} for {ranks_listed(wait.on)} ({wait.call})"
            for rank, wait in sorted(ranks.items())
        ]
        verb = "waits" if len(ranks) == 1 else "wait"
        yield f"  so {ranks_listed(sorted(ranks))} {verb}: {listed(texts, MOST_WAITS)}"

    def _absent(self) -> Iterator[str]:
        """Members of groups without a record, and messages that name no peer."""
        unchecked = [
            rank
            for rank, record in self.records.items()
            for entry in record.entries
            if entry.p2p and entry.state != "completed"
            if self._message(entry, self.groups[rank][entry.group]) is None
        ]
        if unchecked:
            yield (
                f"{counted(len(unchecked), 'unfinished message')} of "
                f"{ranks_listed(sorted(set(unchecked)))} not checked: the records do not name both "
                "ranks"
            )
        groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for group in self.progress:
            absent = tuple(rank for rank in group.members if rank not in self.records)
            if absent:
                groups[absent].append(group.name)
        for absent, names in groups.items():
            title = ", ".join(map(repr, names[:MOST_WAITS]))
            tail = f" and {len(names) - MOST_WAITS} more" if len(names) > MOST_WAITS else ""
            groups_named = f"group{'s' * (len(names) > 1)} {title}{tail}"
            yield f"{groups_named}: no record of {ranks_listed(absent)}"


Tensors = tuple[tuple[tuple[int, ...], str], ...]


def _circle_line(circle: Sequence[_Wait]) -> str:
    parts = [
        f"rank {wait.rank} for rank {following.rank} in {wait.call}"
        for wait, following in zip(circle, [*circle[1:], circle[0]], strict=True)
    ]
    return f"ranks wait for each other in a circle: {listed(parts, MOST_WAITS)}"


def _mismatch(group: _Group, by_rank: Mapping[int, _GroupProgress]) -> tuple[int, str] | None:
    """The first collective of a group in which ranks run different operations or sizes."""
    # A record is a ring buffer: before the latest first entry nothing is known of some rank.
    collectives = {rank: progress.collectives for rank, progress in by_rank.items()}
    earliest = max((min(entries) for entries in collectives.values() if entries), default=0)
    numbers = {
        number for entries in collectives.values() for number in entries if number >= earliest
    }
    for number in sorted(numbers):
        present = {
            rank: entries[number] for rank, entries in collectives.items() if number in entries
        }
        operations = {rank: entry.operation for rank, entry in present.items()}
        call = _FlightCall(group, number, "")
        if len(set(operations.values())) > 1:
            return number, f"{call}: ranks run different operations: {_by_value(operations)}"
        call = _FlightCall(group, number, next(iter(operations.values())))
        for side in ("inputs", "outputs"):
            tensors: dict[int, Tensors] = {
                rank: getattr(entry, side) for rank, entry in present.items()
            }
            kinds = {
                rank: ", ".join(kind for _, kind in sides) or "none"
                for rank, sides in tensors.items()
            }
            if len(set(kinds.values())) > 1:
                return number, f"{call}: types of {side} differ: {_by_value(kinds, 'with ')}"
            shapes = {rank: _texts(sides) for rank, sides in tensors.items()}
            even = not any(word in call.operation for word in UNEVEN)
            if even and len(set(shapes.values())) > 1:
                return number, f"{call}: shapes of {side} differ: {_by_value(shapes, 'with ')}"
    return None


def _by_value(values: Mapping[int, str], verb: str = "") -> str:
    """Ranks grouped by what they have."""
    return "; ".join(
        f"{ranks_listed([rank for rank in values if values[rank] == value])} {verb}{value}"
        for value in sorted(set(values.values()))
    )


def _texts(tensors: Iterable[tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(map(_tensor, tensors)) or "none"


def _tensor(tensor: tuple[tuple[int, ...], str]) -> str:
    shape, kind = tensor
    return f"{'x'.join(map(str, shape)) or 'scalar'} {kind}"
