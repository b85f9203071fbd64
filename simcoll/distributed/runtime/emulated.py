"""The world of emulated ranks: greenlets under one simulated clock.

Rank programs run one at a time. At each timestamp the fabric's events are handled first, then the
ranks that they woke, in ascending order, until none can continue; then the fabric computes its
rates. So a run is a function of its program alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import simpy
from simpy.events import EventPriority

from simcoll.core.protocol import IDEAL
from simcoll.distributed.runtime.calls import CollectiveCall
from simcoll.distributed.runtime.collective_calls import execute
from simcoll.distributed.runtime.followers import AlikeCalls
from simcoll.distributed.runtime.history import History
from simcoll.distributed.runtime.mailbox import EmulatedMailbox
from simcoll.distributed.runtime.matched_calls import Streams
from simcoll.distributed.runtime.plans_in_flight import Emulator
from simcoll.distributed.runtime.rank_classes import RankClasses
from simcoll.distributed.runtime.recording import Recording
from simcoll.distributed.runtime.records import waiting_site
from simcoll.distributed.runtime.run_events import Faults
from simcoll.distributed.runtime.run_timeline import RankSpan
from simcoll.distributed.runtime.tasks import (
    Arrival,
    Meeting,
    Task,
    Tasks,
    Waitable,
    current_task,
    offer_turn,
    wait_until,
)
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.runtime.world import Buffers, Communicator, GroupHandle, OwnStore, Rank
from simcoll.distributed.stores import HashStore, Store
from simcoll.distributed.stores.rendezvous import rendezvous
from simcoll.emulator.events import Timeline as EventTimeline
from simcoll.emulator.model import effective_capacities, shared_capacities
from simcoll.emulator.reference.fabric import Calendar, Fabric, OverdueError
from simcoll.libraries.choices import Plans
from simcoll.tuning import costs
from simcoll.units import MAX_TIME_FS, format_time

__all__ = ["PEER_ENDED", "EmulatedWorld", "RankWaiter"]

PROGRAMS = EventPriority(5)
"""After the events of a timestamp, before the fabric computes its rates (priority 10)."""

REPEATED_HANGS = 100
"""Reports of one hang that a program may catch, and idle polls that its threads may make meanwhile,
before it is stopped.
"""

SHOWN_RANKS = 64

PEER_ENDED = "Connection closed by peer"
"""Start of the error raised on ranks that wait for a failed rank."""


class _Pause(Waitable):
    """The end of a time that a rank spends computing."""


class EmulatedWorld:
    """The ranks of one run, their clock and the links that they share.

    Parameters
    ----------
    plans
        With the topology and protocol of the run; a protocol's name is that of the pattern of each
        schedule.
    timed
        Whether the run is only timed, and moves no data.
    rank_classes
        Classes of symmetric ranks; every other rank forms its own class.
    alone
        Whether only one rank runs in this process, and its registered backend reaches the others.
    events
        Faults and background traffic during the run.
    """

    home: str | None = None

    def __init__(
        self,
        nranks: int,
        plans: Plans,
        *,
        debug: bool,
        timed: bool = False,
        rank_classes: RankClasses | None = None,
        history: History | None = None,
        alone: bool = False,
        events: EventTimeline | None = None,
    ) -> None:
        topology = plans.topology
        self.debug = debug
        self.timed = timed
        self.rank_classes = rank_classes
        self.plans = plans
        self.history = History() if history is None else history
        self.groups: dict[str, list[Communicator]] = {}
        self.env = simpy.Environment()
        self.calendar = Calendar(self.env)
        # A library's own protocols say which share of a link they use.
        protocol = IDEAL if plans.library else costs(plans.protocol, topology)
        capacities = effective_capacities(topology, protocol)
        patience = None if events is None else events.policy.limit_fs
        fabric = Fabric(self.calendar, capacities, topology.link_name, patience_fs=patience)
        self.everyone = tuple(range(nranks))
        self.ranks = [Rank(number, self) for number in self.everyone]
        self.emulator = Emulator(
            topology,
            self.calendar,
            fabric,
            self.history,
            shared_capacities(topology, protocol),
            steady=events is None,
        )
        self._alike_calls = (
            None if rank_classes is None else AlikeCalls(rank_classes, self.emulator)
        )
        self._alone = alone
        self._streams: dict[Communicator, Streams] = {}
        self._mailboxes: dict[Communicator, EmulatedMailbox] = {}
        self._meetings: dict[str, Meeting] = {}
        self._store = HashStore()
        self._own_stores: dict[int, OwnStore] = {}
        self.tasks = Tasks(MAX_TIME_FS)
        if self.history.timeline is not None:
            self.tasks.on_waited = self._note_wait
        if self.history.recording is not None:
            self.tasks.on_passed = self.history.recording.note_resumption
        self._asked = False
        self._blocked: set[int] = set()
        self._idle_rounds = 0
        self.stopped = False
        """Whether a rank has stopped; group timeouts then expire for the ranks that wait for it."""
        self._faults = None if events is None else Faults(self, events, capacities)

    # What rank programs ask

    def meet(self, me: Rank, arrival: Arrival) -> Meeting:
        """Arrive at a meeting; the first rank opens it, the last one closes it."""
        offer_turn()
        key, expected = arrival.key, arrival.expected
        tell = arrival.tell
        if self.rank_classes is not None:
            expected = None if expected is None else self.rank_classes.leaders_of(expected)
            tell = None if tell is None else self.rank_classes.leaders_of(tell)
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = Meeting()
            meeting.event, meeting.expected = (
                arrival.event,
                () if expected is None or self._alone else tuple(expected),
            )
        if self.history.recording is not None:
            self.history.recording.meet(me.number, arrival, meeting)
        meeting.arrive(me.number, arrival.subject, arrival.value)
        meeting.settle({})
        if len(meeting.subjects) == len(meeting.expected if tell is None else tell):
            del self._meetings[key]
        return meeting

    def issue(
        self, group: GroupHandle, me: Rank, call: CollectiveCall, buffers: Buffers, *, guard: bool
    ) -> Work:
        """Start a call on the emulator, or on the registered backend of its group."""
        starts = guard
        guard = guard and self.debug
        if group.executor is not None:
            return execute(group, group.executor, me, call, buffers, guard=guard, announce=False)
        streams = self._streams.get(group.communicator)
        if streams is None:
            streams = Streams(group.communicator, self.emulator, self._alike_calls)
            self._streams[group.communicator] = streams
        work = streams.issue(me, call, buffers, guard=guard)
        if starts and self.tasks.turns is not None:
            offer_turn()  # the program may look at its buffers before it waits
        return work

    def mailbox(self, group: GroupHandle) -> EmulatedMailbox:
        """The group's mailbox, which matches sends with receives; registered backends have none."""
        communicator = group.communicator
        if group.executor is not None:
            raise RuntimeError(
                f"backend {communicator.backend!r} has no point-to-point operations here"
            )
        if communicator not in self._mailboxes:
            self._mailboxes[communicator] = EmulatedMailbox(
                communicator, self.emulator, self._alike_calls
            )
        return self._mailboxes[communicator]

    def executor(self, meeting: Meeting | None) -> None:
        """None: the emulator plays."""

    def default_store(self) -> Store:
        """A store that all ranks share."""
        return self._store

    def open_store(self, me: Rank, url: str, timeout: timedelta | None) -> OwnStore:
        """The store of a URL, made by the first rank that asks and shared."""
        own_store = self._own_stores.get(me.generation)
        if own_store is None:
            store = rendezvous(url, rank=0, world_size=1, timeout=timeout).store
            own_store = self._own_stores[me.generation] = OwnStore(store)
        own_store.users[me.number] = None
        return own_store

    # The clock

    @property
    def now(self) -> int:
        """Femtoseconds."""
        # As the calendar's own, on every call.
        return self.env._now  # type: ignore[return-value]  # noqa: SLF001

    def _schedule_tasks(self) -> None:
        """Let the ready tasks run after the other events of this timestamp."""
        self._asked = True
        event = simpy.Event(self.env)
        event.callbacks.append(self._run_ready)
        # As SimPy's own events that are triggered when they are made.
        event._ok = True  # noqa: SLF001
        event._value = None  # noqa: SLF001
        self.env.schedule(event, priority=PROGRAMS)

    def _run_ready(self, _event: simpy.Event) -> None:
        self._asked = False
        tasks = self.tasks
        if tasks.turns is None:
            tasks.run_ready()
        else:
            # No wait may expire because a rank that could go on is held.
            tasks.run_in_turns(
                tasks.turns, may_hold=lambda: self.env.peek() < min(tasks.deadline_fs, math.inf)
            )
        if self.emulator.rounds:
            self.emulator.break_up()

    def pause(self, duration_fs: int, name: str) -> None:
        """Block the running rank for a duration."""
        pause, task = _Pause(name), current_task()
        if self.history.recording is not None and task is not None and duration_fs:
            self.history.recording.work(task, duration_fs, name, pause)
        end_fs: int | None = self.now + duration_fs
        if self._faults is not None and task is not None:
            end_fs = self._faults.worked_fs(task.owner.number, duration_fs)
        if end_fs is not None:
            self.later(end_fs, pause.finish)
        wait_until(pause)

    def hindrances(self) -> str:
        """Describe stopped ranks, and messages stalled at links that are down."""
        lines = (
            [] if self._faults is None else [*self._faults.stop_notices(), *self._faults.waiting()]
        )
        return "".join(f"; {line}" for line in lines[:SHOWN_RANKS])

    def later(self, time_fs: int, action: Callable[[], None]) -> None:
        """Schedule an action."""
        self.calendar.at(time_fs, lambda _: action(), None)

    def _note_wait(self, task: Task, waitable: Waitable, reason: str, begin_fs: int) -> None:
        """Record a wait of a rank in the timeline."""
        timeline = self.history.timeline
        if timeline is not None and self.now > begin_fs:
            spans = timeline.computed if isinstance(waitable, _Pause) else timeline.waited
            rank = task.owner
            spans.append(RankSpan(rank.number, reason, begin_fs, self.now, scope=rank.scope))

    def fail_group(self, group: Communicator, error: str, *ranks: int) -> None:
        """Fail all present and future operations of a group that need the failed ranks."""
        group.failure = group.failure or error
        if group in self._streams:
            self._streams[group].fail(error, 0)
        if group in self._mailboxes:
            self._mailboxes[group].fail(error, [group.group_rank[rank] for rank in ranks])

    def poll(self) -> None:
        """No simulated time passes between two polls, but other ranks may go on."""
        offer_turn()

    def run(self) -> None:
        """Run all tasks to their ends."""
        tasks, unsettled = self.tasks, self.emulator.unsettled
        try:
            # Arithmetic of reductions is IEEE's and wraps, as on a GPU.
            with np.errstate(all="ignore"):
                while True:
                    if tasks.hold_size and self.env.peek() >= tasks.deadline_fs:
                        tasks.hold_size = 0  # nothing arrives any more
                    if len(tasks.ready) > tasks.hold_size and not self._asked:
                        tasks.hold_size = 0
                        self._schedule_tasks()
                    upcoming = self.env.peek()
                    if upcoming == math.inf and unsettled:
                        settling = list(unsettled)
                        unsettled.clear()
                        for settle in settling:
                            settle()
                    elif upcoming == math.inf and not tasks.live:
                        return
                    elif upcoming >= tasks.deadline_fs < math.inf:
                        self._plan_expiry(upcoming)
                    elif upcoming < math.inf:
                        self._step()
                    else:
                        self._unstick()
        finally:
            tasks.stop()

    def _step(self) -> None:
        """Handle the next event."""
        try:
            self.env.step()
        except OverdueError as late:
            if self._faults is None:
                raise
            self._faults.overdue(late)

    def _plan_expiry(self, upcoming: float) -> None:
        """Schedule the next deadline if it comes before the next event and a task still waits for
        it.
        """
        # Only the earliest deadline is ever on the calendar, and only if nothing else comes before
        # it. With an event for every wait, the calendar would not be empty before the longest
        # timeout, and an empty calendar is how a hang is seen at once. Then a deadline is no reason
        # to go on, unless a program has asked for this timeout (_may_expire).
        tasks = self.tasks
        self.emulator.break_up(in_flight=True)
        waiting = [task for task in tasks.live if task.waiting is not None]
        times = [task.deadline_fs for task in waiting if task.deadline_fs >= 0]
        deadline = min(times, default=math.inf)
        tasks.deadline_fs = deadline
        if deadline > upcoming or deadline == math.inf:
            return
        if upcoming == math.inf and not self._may_expire(waiting):
            tasks.deadline_fs = math.inf
            return
        tasks.deadline_fs = min((time for time in times if time > deadline), default=math.inf)
        if upcoming == math.inf:  # a hang that only this timeout ends
            self.history.stuck = int(deadline), self._hang_report(waiting)
        self.calendar.at(int(deadline), self._expire, None)

    def _expire(self, _nothing: None) -> None:
        """Interrupt the waits whose deadlines are now."""
        self.emulator.break_up(in_flight=True)
        self.tasks.interrupt(self.now)

    def _may_expire(self, waiting: list[Task]) -> bool:
        """Whether an explicit timeout will end a wait, other than the endlessly repeated ones of
        idle waits.
        """
        busy = _busy(waiting)
        blocked = {id(task.waiting) for task in busy}
        self._idle_rounds, self._blocked = (
            (self._idle_rounds + 1 if blocked == self._blocked else 0),
            blocked,
        )
        return any(
            self._expires(task)
            for task in (busy if self._idle_rounds > REPEATED_HANGS else waiting)
        )

    def _expires(self, task: Task) -> bool:
        """Whether a wait may time out although no other event is left."""
        return task.explicit or (self.stopped and task.deadline_fs >= 0)

    def _unstick(self) -> None:
        """Resolve a deadlock: let the next explicit timeout expire, or report the hang."""
        live = sorted(self.tasks.live, key=lambda task: task.order)
        waiting = [task for task in live if task.waiting is not None]
        if self._may_expire(waiting):
            self.tasks.deadline_fs = min(
                task.deadline_fs for task in waiting if self._expires(task)
            )
            return
        report = self._hang_report(waiting)
        for task in _busy(waiting) or waiting:
            task.hangs += 1
            if task.hangs > REPEATED_HANGS:
                task.throw()
                task.failure = RuntimeError(
                    f"stopped after it caught this {REPEATED_HANGS} times: {report}"
                )
                task.close()
                continue
            task.interrupt = report
            self.tasks.wake(task)

    def _hang_report(self, waiting: list[Task]) -> str:
        gone = next((rank for rank in self.ranks if rank.failure is not None), None)
        ended = [
            str(rank.number) for rank in self.ranks if rank.finish_fs >= 0 and rank.failure is None
        ]
        if gone is None:
            stuck = len({task.owner.number for task in waiting})
            who = "1 rank waits" if stuck == 1 else f"{stuck} ranks wait"
            lines = [f"Hang at {format_time(self.now)}: no event is left, and {who}."]
        else:
            name, text = type(gone.failure).__name__, _message(gone.failure)
            lines = [f"{PEER_ENDED}: rank {gone.number} ended with {name}: {text}"]
        lines += (
            []
            if self._faults is None
            else [f"  {line}" for line in self._faults.waiting()[:SHOWN_RANKS]]
        )
        sample = waiting[:SHOWN_RANKS]
        lines += [f"  rank {task.owner.number}: {_reason(task)}" for task in sample]
        if len(waiting) > len(sample):
            lines.append(f"  ... and {len(waiting) - len(sample)} more")
        if ended:
            lines.append(f"  ended: rank {', '.join(ended[:SHOWN_RANKS])}")
        return "\n".join(lines)


def _message(error: BaseException | None) -> str:
    """The text of a program's error, whose ``__str__`` may itself fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # as Python's tracebacks say it
        return "<exception str() failed>"


def _reason(task: Task) -> str:
    """What a task waits for, with the line unless it is that of the operation."""
    reason, site = "" if task.waiting is None else task.waiting.waits_for(), waiting_site(task)
    return reason if site.file in reason else f"{reason} ({site})"


def _busy(waiting: list[Task]) -> list[Task]:
    return [task for task in waiting if task.waiting and not task.waiting.idle]


class RankWaiter:
    """The :class:`simcoll.distributed.stores.Waiter` of emulated ranks; timeouts count on the
    emulated clock.
    """

    __slots__ = ("_recording", "_waiting")

    def __init__(self, recording: Recording | None = None) -> None:
        self._recording = recording
        self._waiting: list[Waitable] = []

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Retry after every change of a store; False after the timeout."""
        task = current_task()
        if task is None:
            return ready()
        begin_fs, limit_fs = task.owner.world.now, round(timeout_s * 1e15)
        while not ready():
            remaining_fs = limit_fs - (task.owner.world.now - begin_fs)
            if remaining_fs <= 0:
                return False
            change = Waitable("a key of a store that no rank has set")
            self._waiting.append(change)
            if self._recording is not None:
                self._recording.waits_for_key(task.owner.number, task.owner.world.now)
            try:
                wait_until(change, remaining_fs, explicit=True)
            except RuntimeError:
                return ready()
        return True

    def notify(self) -> None:
        """Wake the ranks that wait: a store has changed."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            change.finish()
