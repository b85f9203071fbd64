"""Record a run as a workload: the operations of each rank and their dependencies.

An operation is recorded when its rank issues it, and depends on everything that the issuing task has waited for. The recording thus
keeps the program's order but not its times, and can be replayed on other machines. A task's knowledge is a vector clock: for each
stream, the last operation known to have finished. Waitables carry it from the task that finishes them to those that wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import Collective
from simcoll.core.reduction import parse_dtype
from simcoll.core.schedule import Schedule
from simcoll.distributed.runtime.calls import Call, End, matrix
from simcoll.distributed.runtime.rank_classes import Alike
from simcoll.distributed.runtime.tasks import Arrival, Meeting, Task, Waitable, current_task
from simcoll.distributed.runtime.work import Work
from simcoll.errors import ConfigError
from simcoll.libraries.choices import Choice, Plans
from simcoll.traces.gathering import gathered
from simcoll.traces.rank_traces import Step, Together, Traces
from simcoll.workload.workload import Rules, Workload

__all__ = ["Recording"]

Past = dict[str, int]
"""For each stream of a rank, the number of its last finished operation."""


class _Group(Protocol):
    """A recorded group: key and description, global ranks, algorithm."""

    key: str
    desc: str
    members: tuple[int, ...]
    algorithm: Choice


@dataclass(slots=True, eq=False)
class _Noted:
    """A recorded operation of a rank, with its dependencies and the ``gate`` of its accelerator's stream.

    ``together`` and the lane of a message are filled in once its partners are known.
    """

    stream: str
    after: tuple[int, ...]
    name: str = ""
    time_fs: int = 0
    asked: bool = False
    together: Together | None = None
    sends: tuple[int, ...] | None = None
    gate: tuple[int, ...] = ()
    passed: int = 0
    lane: str = ""


@dataclass(slots=True, eq=False)
class _Rank:
    """The operations and waits of a rank, in order, and the last message on each of its lanes."""

    noted: list[_Noted] = field(default_factory=list)
    seen: Past = field(default_factory=dict)
    waited: dict[int, int] = field(default_factory=dict)
    lanes: list[int] = field(default_factory=list)
    tasks: dict[int, str] = field(default_factory=dict)


class Recording:
    """The recording of a run in progress."""

    def __init__(self, nranks: int, plans: Plans) -> None:
        self.plans = plans
        self.ranks = [_Rank() for _ in range(nranks)]
        self.groups: dict[str, _Group] = {}
        self.unsaid: dict[str, None] = {}
        self._messages = 0

    # What tasks know

    def passed(self, task: Task, waitable: Waitable) -> None:
        """Record that a task continues after a waitable."""
        rank = task.owner.number
        own = self.ranks[rank]
        causes = own.seen if waitable.causes is None else waitable.causes.get(rank, {})
        for past in (task.past, own.seen):
            for stream, number in causes.items():
                past[stream] = max(past.get(stream, -1), number)
                for before in (*own.noted[number].after, *own.noted[number].gate):
                    if past.get(own.noted[before].stream) == before:
                        del past[own.noted[before].stream]
        for number in causes.values():
            own.waited.setdefault(number, len(own.waited))

    def _note(self, rank: int, stream: str, extra: Iterable[int] = (), **traits: Any) -> int:
        """Add an operation that depends on the running task's past and ``extra``; returns its number."""
        task = current_task()
        own = self.ranks[rank]
        past = task.past.values() if task is not None and task.owner.number == rank else own.seen.values()
        own.noted.append(_Noted(stream, tuple(past), gate=tuple(extra), passed=len(own.waited), **traits))
        return len(own.noted) - 1

    # What ranks do

    def work(self, task: Task, duration_fs: int, name: str, over: Waitable) -> None:
        """Record that a rank computes until ``over``, and waits for it."""
        rank = task.owner.number
        names = self.ranks[rank].tasks
        stream = names.setdefault(task.order[1], f"host {len(names) + 1}" if names else "host")
        number = self._note(rank, stream, name=name, time_fs=duration_fs)
        over.causes = {rank: {stream: number}}

    def enqueued(self, rank: int, stream: str, duration_fs: int, name: str, known: Past) -> Past:
        """Record an operator on an accelerator's stream whose tail implies ``known``; returns what the new tail implies."""
        return {stream: self._note(rank, stream, known.values(), name=name, time_fs=duration_fs)}

    def begin(self, work: Work) -> None:
        """Record that a rank issues an operation, or posts a send or receive."""
        rank = work.rank.number
        gate = {} if work.gate is None or work.gate.causes is None else work.gate.causes.get(rank, {})
        number = self._note(rank, f"operation {len(self.ranks[rank].noted)}", gate.values(), name=work.name, asked=True)
        work.causes = {rank: {self.ranks[rank].noted[number].stream: number}}

    def call(self, rank: int, group: _Group, call: Call, work: Work) -> None:
        """Record the call of a collective."""
        self.groups[group.key] = group
        noted, number = self._of(rank, work)
        noted.stream = f"group {group.key}"
        work.causes = {rank: {noted.stream: number}}
        noted.together = _together(group, call, work.entry.sequence, self.plans)
        noted.sends = None if call.splits is None else call.splits[0]

    def message(self, group: _Group, send: End, receive: End) -> None:
        """Record that a send and a receive have matched."""
        pair = (group.members[send.rank], group.members[receive.rank])
        size = send.size * parse_dtype(send.dtype).itemsize
        if pair[0] == pair[1] or not size:
            self.unsaid[f"rank {pair[0]} sends {'to itself' if pair[0] == pair[1] else 'a message without bytes'}"] = (
                None
            )
            return
        self._messages += 1
        together = Together(("message", self._messages), pair, "send", "messages", size, at_once=True)
        ends = [(rank, *self._of(rank, end.posted)) for rank, end in zip(pair, (send, receive), strict=True)]
        lane = next(
            lane for lane in range(self._messages) if all(self._is_free(rank, noted, lane) for rank, noted, _ in ends)
        )
        for rank, noted, number in ends:
            lanes = self.ranks[rank].lanes
            lanes += [-1] * (lane + 1 - len(lanes))
            lanes[lane] = number
            noted.together, noted.lane = together, f"messages {lane}" if lane else "messages"

    def _is_free(self, rank: int, noted: _Noted, lane: int) -> bool:
        """Whether a rank had waited for the last message on a lane before it posted this one."""
        own = self.ranks[rank]
        last = own.lanes[lane] if lane < len(own.lanes) else -1
        return last < 0 or own.waited.get(last, noted.passed) < noted.passed

    def meet(self, rank: int, arrival: Arrival, meeting: Meeting) -> None:
        """Record that a rank arrives at a meeting."""
        if meeting.causes is None:
            meeting.causes = {}
        expected = () if arrival.expected is None else tuple(sorted(arrival.expected))
        if len(expected) < 2 or rank not in expected:
            return
        together = Together(("meeting", arrival.key), expected, "meeting", "meetings", 0)
        number = self._note(rank, "meetings", name=arrival.what, together=together)
        meeting.causes[rank] = {"meetings": number}

    def waits_for_key(self, rank: int, now_fs: int) -> None:
        """Record that a rank waits for a key of a store, unless no time has passed, when the wait orders nothing."""
        if now_fs > 0:
            self.unsaid[f"rank {rank} waits for a key of a store after the program has begun to take time"] = None

    def _of(self, rank: int, work: Work) -> tuple[_Noted, int]:
        number = next(iter((work.causes or {})[rank].values()))
        return self.ranks[rank].noted[number], number

    # The workload

    def workload(self, alike: Alike | None) -> Workload:
        """The recording as a workload.

        Raises
        ------
        ConfigError
            For operations that a workload cannot express: messages to oneself or without bytes, waits for store keys, calls on
            registered backends, protocols and algorithms not given by name.
        """
        if self.unsaid:
            raise ConfigError(f"the run cannot be recorded as a workload: {'; '.join(list(self.unsaid)[:8])}")
        if not isinstance(self.plans.protocol, str):
            raise ConfigError(
                f"the run cannot be recorded as a workload: its protocol {self.plans.protocol.name!r} has no name that finds it again"
            )
        named, rows = self._names(), self._rows()
        traces = [self._steps(rank, named, rows) for rank in range(len(self.ranks))]
        if alike is not None:
            traces = [
                traces[rank] if leader == rank else _followed(rank, traces[leader], alike)
                for rank, leader in enumerate(alike.leader)
            ]
        rules = Rules(protocol=self.plans.protocol, library=self.plans.library or "")
        return gathered(_without_idle_meetings(traces), rules=rules)

    def _names(self) -> dict[str, str]:
        """A name for each group; corresponding disjoint groups share one."""
        taken: dict[str, set[int]] = {}
        found = {}
        for key, group in self.groups.items():
            base = group.desc if group.desc not in {"", "undefined"} else f"group of {len(group.members)}"
            number = 1
            while not taken.setdefault(name := base if number == 1 else f"{base} ({number})", set()).isdisjoint(
                group.members
            ):
                number += 1
            taken[name] |= set(group.members)
            found[f"group {key}"] = name
        return found

    def _steps(
        self, rank: int, named: Mapping[str, str], rows: Mapping[Hashable, dict[int, tuple[int, ...]]]
    ) -> list[Step]:
        """The operations of a rank, without unmatched sends and receives."""
        made: list[Step] = []
        place: dict[int, tuple[int, ...]] = {}
        for number, noted in enumerate(self.ranks[rank].noted):
            called = tuple(dict.fromkeys(each for one in noted.after for each in place[one]))
            after = tuple(dict.fromkeys((*called, *(each for one in noted.gate for each in place[one]))))
            together = noted.together
            if noted.asked and together is None:
                place[number] = after
                continue
            stream = noted.lane or named.get(noted.stream, noted.stream)
            if together is not None and noted.stream in named:
                together = replace(together, group=stream)
                if noted.sends is not None:  # no rank begins before all have called: only then are the blocks known
                    together = replace(together, **_uneven(together, rows[together.key]))
                    here = Together(("called", together.key), together.ranks, "meeting", "meetings", 0)
                    made.append(Step(f"calls of {stream}", called, noted.name, together=here))
                    after = (len(made) - 1, *after)
            place[number] = (len(made),)
            made.append(Step(stream, after, noted.name, noted.time_fs, together=together))
        return made

    def _rows(self) -> dict[Hashable, dict[int, tuple[int, ...]]]:
        """The sizes that each rank sends in an all_to_all with splits."""
        rows: dict[Hashable, dict[int, tuple[int, ...]]] = defaultdict(dict)
        for rank, own in enumerate(self.ranks):
            for noted in own.noted:
                if noted.sends is not None and noted.together is not None:
                    rows[noted.together.key][rank] = noted.sends
        return rows


def _together(group: _Group, call: Call, sequence: int, plans: Plans) -> Together:
    """A collective in the terms of a workload; the blocks of an all_to_all with splits are added later."""
    n = len(group.members)
    dtype = "uint8" if call.dtype.kind == "b" else call.dtype.name
    collective = Collective(call.kind, n, root=call.root)
    key = ("call", group.key, sequence)
    algorithm = _algorithm(group, call, plans)
    if isinstance(call.sizes, int):
        size = call.sizes * call.dtype.itemsize * max(collective.input_slots, collective.output_slots)
        sizes: tuple[tuple[int, ...], ...] = () if size else ((0,),)
    else:
        size, sizes = sum(call.sizes) * call.dtype.itemsize, (call.sizes,)
    return Together(key, group.members, call.kind, "", size, dtype, call.root or 0, sizes, algorithm)


def _uneven(together: Together, rows: dict[int, tuple[int, ...]]) -> dict[str, Any]:
    """Size and blocks of an all_to_all from the sizes that each rank sends."""
    found = matrix([rows[rank] for rank in together.ranks])
    n, itemsize = len(together.ranks), parse_dtype(together.dtype).itemsize
    if isinstance(found, int):
        return {"size_bytes": found * n * itemsize, "sizes": () if found else ((0,),)}
    most = max(*(sum(row) for row in found), *(sum(row[at] for row in found) for at in range(n)))
    return {"size_bytes": most * itemsize, "sizes": found}


def _algorithm(group: _Group, call: Call, plans: Plans) -> str:
    """The name of the algorithm that a program chose; empty where it does not apply.

    Raises
    ------
    ConfigError
        For a schedule or a selecting function: a workload holds only names.
    """
    for position, given in enumerate((call.algorithm, group.algorithm, plans.algorithm)):
        choice = given.get(call.kind) if isinstance(given, Mapping) else given
        if choice is None:
            continue
        if not isinstance(choice, str):
            raise ConfigError(
                f"{call.name}: recorded programs name their algorithms; got a {'schedule' if isinstance(choice, Schedule) else 'function'}"
            )
        if position == 0 or any(each.name == choice for each in ALGORITHMS if each.collective == call.kind):
            return choice
    return ""


def _followed(rank: int, steps: list[Step], alike: Alike) -> list[Step]:
    """The steps of a follower: its leader's, in the follower's own groups."""
    made = []
    for step in steps:
        asked = step.together
        if asked is None or rank in asked.ranks:
            made.append(step)
            continue
        message = asked.kind == "send"
        others: Iterable[tuple[int, ...]] = alike.pairs_like(*asked.ranks) if message else alike.like(asked.ranks)
        own = next((ranks for ranks in others if rank in ranks), None)
        if own is not None:
            made.append(replace(step, together=replace(asked, key=(asked.key, own), ranks=own)))
            continue
        raise ConfigError(
            f"the run cannot be recorded as a workload: rank {rank} has no {asked.kind} like that of {list(asked.ranks)[:8]}"
        )
    return made


def _without_idle_meetings(traces: Traces) -> Traces:
    """Drop meetings of ranks without earlier operations, which order nothing."""
    late = {
        step.together.key
        for steps in traces
        for step in steps
        if step.together is not None and step.together.kind == "meeting" and step.after
    }
    found = []
    for steps in traces:
        place: dict[int, tuple[int, ...]] = {}
        made: list[Step] = []
        for number, step in enumerate(steps):
            after = tuple(dict.fromkeys(each for one in step.after for each in place[one]))
            idle = step.together is not None and step.together.kind == "meeting" and step.together.key not in late
            place[number] = () if idle else (len(made),)
            if not idle:
                made.append(replace(step, after=after))
        found.append(made)
    return found
