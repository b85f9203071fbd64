"""Record a run as a workload: the operations of each rank and their dependencies.

An operation is recorded when its rank issues it, and depends on everything that the issuing task
has waited for. The recording thus keeps the program's order but not its times, and can be replayed
on other machines. A task's knowledge is a vector clock: for each stream, the last operation known
to have finished. Waitables carry it from the task that finishes them to those that wait.
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
from simcoll.distributed.runtime.calls import CollectiveCall, End, matrix
from simcoll.distributed.runtime.rank_classes import RankClasses
from simcoll.distributed.runtime.tasks import Arrival, Meeting, Task, Waitable, current_task
from simcoll.distributed.runtime.work import Work
from simcoll.errors import ConfigError
from simcoll.libraries.choices import Choice, Plans
from simcoll.traces.gathering import gather_traces
from simcoll.traces.rank_traces import Together, Traces, TraceStep
from simcoll.workload.stream_names import LAUNCHES
from simcoll.workload.workload import Rules, Workload

__all__ = ["Recording"]

Past = dict[str, int]
"""For each stream of a rank, the number of its last finished operation."""


class _RecordedGroup(Protocol):
    """A recorded group: key and description, global ranks, algorithm."""

    key: str
    desc: str
    members: tuple[int, ...]
    algorithm: Choice


@dataclass(slots=True, eq=False)
class _Noted:
    """A recorded operation of a rank, with its dependencies and the ``gate`` of its accelerator's
    stream.

    ``together`` and the lane of a message are filled in once its partners are known.
    """

    stream: str
    predecessors: tuple[int, ...]
    name: str = ""
    time_fs: int = 0
    scope: str = ""
    is_request: bool = False
    together: Together | None = None
    sends: tuple[int, ...] | None = None
    gate: tuple[int, ...] = ()
    passed: int = 0
    lane: str = ""


@dataclass(slots=True, eq=False)
class _RankRecording:
    """The operations and waits of a rank, in order, and the last message on each of its lanes."""

    noted: list[_Noted] = field(default_factory=list)
    past: Past = field(default_factory=dict)
    waited: dict[int, int] = field(default_factory=dict)
    lanes: list[int] = field(default_factory=list)
    tasks: dict[int, str] = field(default_factory=dict)


class Recording:
    """The recording of a run in progress."""

    def __init__(self, nranks: int, plans: Plans) -> None:
        self.plans = plans
        self.ranks = [_RankRecording() for _ in range(nranks)]
        self.groups: dict[str, _RecordedGroup] = {}
        self.unsaid: dict[str, None] = {}
        self._messages = 0

    # What tasks know

    def note_resumption(self, task: Task, waitable: Waitable) -> None:
        """Record that a task continues after a waitable."""
        # Invariant: a past holds the last operation on each stream that everything later depends
        # on, and none that another one of it implies. Operations of a stream are in order, so the
        # highest number stands for all before it. An operation that implies an entry of the past
        # replaces it; otherwise each operation would name a predecessor on every stream that its
        # rank has used so far.
        rank = task.owner.number
        history = self.ranks[rank]
        causes = history.past if waitable.causes is None else waitable.causes.get(rank, {})
        for past in (task.past, history.past):
            for stream, number in causes.items():
                past[stream] = max(past.get(stream, -1), number)
                for implied in (*history.noted[number].predecessors, *history.noted[number].gate):
                    if past.get(history.noted[implied].stream) == implied:
                        del past[history.noted[implied].stream]
        for number in causes.values():
            history.waited.setdefault(number, len(history.waited))

    def _note(self, rank: int, stream: str, extra: Iterable[int] = (), **traits: Any) -> int:
        """Add an operation that depends on the running task's past and ``extra``; returns its
        number.
        """
        task = current_task()
        history = self.ranks[rank]
        past = (
            task.past.values()
            if task is not None and task.owner.number == rank
            else history.past.values()
        )
        history.noted.append(
            _Noted(stream, tuple(past), gate=tuple(extra), passed=len(history.waited), **traits)
        )
        return len(history.noted) - 1

    # What ranks do

    def work(self, task: Task, duration_fs: int, name: str, pause: Waitable) -> None:
        """Record that a rank computes through ``pause``, and waits for it."""
        rank, scope = task.owner.number, task.owner.scope
        names = self.ranks[rank].tasks
        stream = names.setdefault(task.order[1], f"host {len(names) + 1}" if names else "host")
        number = self._note(rank, stream, name=name, time_fs=duration_fs, scope=scope)
        pause.causes = {rank: {stream: number}}

    def launch(self, rank: int, duration_fs: int) -> Past:
        """Record that a rank launches an operator; returns what its end implies."""
        return {LAUNCHES: self._note(rank, LAUNCHES, name="launch", time_fs=duration_fs)}

    def enqueue(
        self, rank: int, stream: str, duration_fs: int, name: str, tail: Past, scope: str
    ) -> Past:
        """Record an operator on an accelerator's stream whose tail implies the past ``tail``;
        returns what the new tail implies.
        """
        traits = {"name": name, "time_fs": duration_fs, "scope": scope}
        return {stream: self._note(rank, stream, tail.values(), **traits)}

    def begin(self, work: Work) -> None:
        """Record that a rank issues an operation, or posts a send or receive."""
        rank = work.rank.number
        gate = (
            {} if work.gate is None or work.gate.causes is None else work.gate.causes.get(rank, {})
        )
        number = self._note(
            rank,
            f"operation {len(self.ranks[rank].noted)}",
            gate.values(),
            name=work.name,
            scope=work.rank.scope,
            is_request=True,
        )
        work.causes = {rank: {self.ranks[rank].noted[number].stream: number}}

    def call(self, rank: int, group: _RecordedGroup, call: CollectiveCall, work: Work) -> None:
        """Record the call of a collective."""
        self.groups[group.key] = group
        noted, number = self._of(rank, work)
        noted.stream = f"group {group.key}"
        work.causes = {rank: {noted.stream: number}}
        noted.together = _together(group, call, work.entry.sequence, self.plans)
        noted.sends = None if call.splits is None else call.splits[0]

    def message(self, group: _RecordedGroup, send: End, receive: End) -> None:
        """Record that a send and a receive have matched."""
        pair = (group.members[send.rank], group.members[receive.rank])
        size = send.size * parse_dtype(send.dtype).itemsize
        if pair[0] == pair[1] or not size:
            self.unsaid[
                f"rank {pair[0]} sends "
                f"{'to itself' if pair[0] == pair[1] else 'a message without bytes'}"
            ] = None
            return
        self._messages += 1
        together = Together(
            ("message", self._messages), pair, "send", "messages", size, at_once=True
        )
        ends = [
            (rank, *self._of(rank, end.local_work))
            for rank, end in zip(pair, (send, receive), strict=True)
        ]
        lane = next(
            lane
            for lane in range(self._messages)
            if all(self._is_free(rank, noted, lane) for rank, noted, _ in ends)
        )
        for rank, noted, number in ends:
            lanes = self.ranks[rank].lanes
            lanes += [-1] * (lane + 1 - len(lanes))
            lanes[lane] = number
            noted.together, noted.lane = together, f"messages {lane}" if lane else "messages"

    def _is_free(self, rank: int, noted: _Noted, lane: int) -> bool:
        """Whether a rank had waited for the last message on a lane before it posted this one."""
        history = self.ranks[rank]
        last = history.lanes[lane] if lane < len(history.lanes) else -1
        return last < 0 or history.waited.get(last, noted.passed) < noted.passed

    def meet(self, rank: int, arrival: Arrival, meeting: Meeting) -> None:
        """Record that a rank arrives at a meeting."""
        if meeting.causes is None:
            meeting.causes = {}
        expected = () if arrival.expected is None else tuple(sorted(arrival.expected))
        if len(expected) < 2 or rank not in expected:
            return
        together = Together(("meeting", arrival.key), expected, "meeting", "meetings", 0)
        number = self._note(rank, "meetings", name=arrival.event, together=together)
        meeting.causes[rank] = {"meetings": number}

    def waits_for_key(self, rank: int, now_fs: int) -> None:
        """Record that a rank waits for a key of a store, unless no time has passed, when the wait
        orders nothing.
        """
        if now_fs > 0:
            self.unsaid[
                f"rank {rank} waits for a key of a store after the program has begun to take time"
            ] = None

    def _of(self, rank: int, work: Work) -> tuple[_Noted, int]:
        number = next(iter((work.causes or {})[rank].values()))
        return self.ranks[rank].noted[number], number

    # The workload

    def workload(self, rank_classes: RankClasses | None) -> Workload:
        """The recording as a workload.

        Raises
        ------
        ConfigError
            For operations that a workload cannot express: messages to oneself or without bytes,
            waits for store keys, calls on registered backends, protocols and algorithms not given
            by name.
        """
        if self.unsaid:
            raise ConfigError(
                f"the run cannot be recorded as a workload: {'; '.join(list(self.unsaid)[:8])}"
            )
        if not isinstance(self.plans.protocol, str):
            raise ConfigError(
                "the run cannot be recorded as a workload: its protocol "
                f"{self.plans.protocol.name!r} has no name that finds it again"
            )
        names, rows = self._names(), self._rows()
        traces = [self._steps(rank, names, rows) for rank in range(len(self.ranks))]
        if rank_classes is not None:
            traces = [
                traces[rank] if leader == rank else _follow(rank, traces[leader], rank_classes)
                for rank, leader in enumerate(rank_classes.leader)
            ]
        rules = Rules(protocol=self.plans.protocol, library=self.plans.library or "")
        return gather_traces(_without_idle_meetings(traces), rules=rules)

    def _names(self) -> dict[str, str]:
        """A name for each group; corresponding disjoint groups share one."""
        members_of: dict[str, set[int]] = {}
        names = {}
        for key, group in self.groups.items():
            base = (
                group.desc
                if group.desc not in {"", "undefined"}
                else f"group of {len(group.members)}"
            )
            number = 1
            while not members_of.setdefault(
                name := base if number == 1 else f"{base} ({number})", set()
            ).isdisjoint(group.members):
                number += 1
            members_of[name] |= set(group.members)
            names[f"group {key}"] = name
        return names

    def _steps(
        self,
        rank: int,
        names: Mapping[str, str],
        rows: Mapping[Hashable, dict[int, tuple[int, ...]]],
    ) -> list[TraceStep]:
        """The operations of a rank, without unmatched sends and receives."""
        steps: list[TraceStep] = []
        place: dict[int, tuple[int, ...]] = {}
        for number, noted in enumerate(self.ranks[rank].noted):
            called = tuple(
                dict.fromkeys(step for cause in noted.predecessors for step in place[cause])
            )
            predecessors = tuple(
                dict.fromkeys((*called, *(step for cause in noted.gate for step in place[cause])))
            )
            together = noted.together
            if noted.is_request and together is None:
                place[number] = predecessors
                continue
            stream = noted.lane or names.get(noted.stream, noted.stream)
            if together is not None and noted.stream in names:
                together = replace(together, group=stream)
                # No rank begins before all have called: only then are the blocks known.
                if noted.sends is not None:
                    together = replace(together, **_all_to_all_sizes(together, rows[together.key]))
                    meeting = Together(
                        ("called", together.key), together.ranks, "meeting", "meetings", 0
                    )
                    steps.append(
                        TraceStep(f"calls of {stream}", called, noted.name, together=meeting)
                    )
                    predecessors = (len(steps) - 1, *predecessors)
            place[number] = (len(steps),)
            steps.append(
                TraceStep(
                    stream,
                    predecessors,
                    noted.name,
                    noted.time_fs,
                    together=together,
                    scope=noted.scope,
                )
            )
        return steps

    def _rows(self) -> dict[Hashable, dict[int, tuple[int, ...]]]:
        """The sizes that each rank sends in an all_to_all with splits."""
        rows: dict[Hashable, dict[int, tuple[int, ...]]] = defaultdict(dict)
        for rank, history in enumerate(self.ranks):
            for noted in history.noted:
                if noted.sends is not None and noted.together is not None:
                    rows[noted.together.key][rank] = noted.sends
        return rows


def _together(group: _RecordedGroup, call: CollectiveCall, sequence: int, plans: Plans) -> Together:
    """A collective in the terms of a workload; the blocks of an all_to_all with splits are added
    later.
    """
    n = len(group.members)
    dtype = "uint8" if call.dtype.kind == "b" else call.dtype.name
    collective = Collective(call.kind, n, root=call.root)
    key = ("call", group.key, sequence)
    algorithm = _algorithm(group, call, plans)
    if isinstance(call.sizes, int):
        size = (
            call.sizes * call.dtype.itemsize * max(collective.input_slots, collective.output_slots)
        )
        sizes: tuple[tuple[int, ...], ...] = () if size else ((0,),)
    else:
        size, sizes = sum(call.sizes) * call.dtype.itemsize, (call.sizes,)
    return Together(
        key, group.members, call.kind, "", size, dtype, call.root or 0, sizes, algorithm
    )


def _all_to_all_sizes(together: Together, rows: dict[int, tuple[int, ...]]) -> dict[str, Any]:
    """Size and blocks of an all_to_all from the sizes that each rank sends."""
    sizes = matrix([rows[rank] for rank in together.ranks])
    n, itemsize = len(together.ranks), parse_dtype(together.dtype).itemsize
    if isinstance(sizes, int):
        return {"size_bytes": sizes * n * itemsize, "sizes": () if sizes else ((0,),)}
    largest = max(
        *(sum(row) for row in sizes), *(sum(row[column] for row in sizes) for column in range(n))
    )
    return {"size_bytes": largest * itemsize, "sizes": sizes}


def _algorithm(group: _RecordedGroup, call: CollectiveCall, plans: Plans) -> str:
    """The name of the algorithm that a program chose; empty where it does not apply.

    Raises
    ------
    ConfigError
        For a schedule or a selecting function: a workload holds only names.
    """
    for position, option in enumerate((call.algorithm, group.algorithm, plans.algorithm)):
        choice = option.get(call.kind) if isinstance(option, Mapping) else option
        if choice is None:
            continue
        if not isinstance(choice, str):
            raise ConfigError(
                f"{call.name}: recorded programs name their algorithms; got a "
                f"{'schedule' if isinstance(choice, Schedule) else 'function'}"
            )
        if position == 0 or any(
            algorithm.name == choice
            for algorithm in ALGORITHMS
            if algorithm.collective == call.kind
        ):
            return choice
    return ""


def _follow(rank: int, steps: list[TraceStep], rank_classes: RankClasses) -> list[TraceStep]:
    """The steps of a follower: its leader's, in the follower's own groups."""
    followed_steps = []
    for step in steps:
        shared = step.together
        if shared is None or rank in shared.ranks:
            followed_steps.append(step)
            continue
        message = shared.kind == "send"
        counterparts: Iterable[tuple[int, ...]] = (
            rank_classes.pairs_like(*shared.ranks) if message else rank_classes.like(shared.ranks)
        )
        own_ranks = next((ranks for ranks in counterparts if rank in ranks), None)
        if own_ranks is not None:
            followed_steps.append(
                replace(
                    step, together=replace(shared, key=(shared.key, own_ranks), ranks=own_ranks)
                )
            )
            continue
        raise ConfigError(
            f"the run cannot be recorded as a workload: rank {rank} has no {shared.kind} like that "
            f"of {list(shared.ranks)[:8]}"
        )
    return followed_steps


def _without_idle_meetings(traces: Traces) -> Traces:
    """Drop meetings of ranks without earlier operations, which order nothing."""
    late = {
        step.together.key
        for steps in traces
        for step in steps
        if step.together is not None and step.together.kind == "meeting" and step.after
    }
    remaining_traces = []
    for steps in traces:
        place: dict[int, tuple[int, ...]] = {}
        remaining_steps: list[TraceStep] = []
        for number, step in enumerate(steps):
            predecessors = tuple(
                dict.fromkeys(dependency for cause in step.after for dependency in place[cause])
            )
            idle = (
                step.together is not None
                and step.together.kind == "meeting"
                and step.together.key not in late
            )
            place[number] = () if idle else (len(remaining_steps),)
            if not idle:
                remaining_steps.append(replace(step, after=predecessors))
        remaining_traces.append(remaining_steps)
    return remaining_traces
