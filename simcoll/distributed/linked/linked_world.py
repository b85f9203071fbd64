"""The world of a rank in a separate process: control messages, a real clock, and the ranks that it
waits for.

Every event that needs all ranks (a collective, a new group, a barrier, the end) is a
:class:`Meeting`: each arriving rank notifies the others, and continues when all have arrived. So
each process knows by itself which ranks are missing, have called something else or have ended.

There is one thread. While a program waits, the world reads control messages and advances the
operations in flight in turn; while the program computes, nothing progresses.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np

from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.distributed.linked.process_links import ControlMessages
from simcoll.distributed.linked.remote_mailbox import RemoteMailbox
from simcoll.distributed.runtime.calls import CollectiveCall
from simcoll.distributed.runtime.collective_calls import execute
from simcoll.distributed.runtime.history import History
from simcoll.distributed.runtime.objects import encode
from simcoll.distributed.runtime.rank_classes import RankClasses
from simcoll.distributed.runtime.tasks import Arrival, Meeting, Task, Tasks, current_task
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.runtime.world import Buffers, Communicator, GroupHandle, OwnStore, Rank
from simcoll.distributed.stores import Store
from simcoll.distributed.stores.rendezvous import rendezvous
from simcoll.errors import InternalError
from simcoll.libraries.choices import Plans

__all__ = ["Ending", "LinkedWorld"]

_END = "end"
EAGER_ROUNDS = 200
"""Idle polling rounds before the process starts to sleep."""
REST_S = 5e-5
LONG_REST_S = 1e-3
PATIENCE_FS = 5 * 10**15
"""Grace period for operations in flight after a failure."""


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """A rank's report to the others when its program ends.

    Attributes
    ----------
    text
        For operations that wait for it.
    error_type, message
        Name and text of the error; without one, ``message`` is the type of a return value that
        cannot be sent.
    value
        The return value, encoded.
    after_failure
        Whether another rank had already failed.
    peak_bytes
        Peak bytes of arrays held.
    """

    text: str
    error_type: str
    message: str
    finish_fs: int
    value: bytes | None
    after_failure: bool
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class _LinkExecutor:
    """Plays the plans of one group over the link of this process.

    ``stream`` is equal on all ranks of the group, and different for every group.
    """

    world: LinkedWorld
    stream: int

    def execute(self, plan: Plan, rank: int, data: Array) -> Array | None:
        """Play one rank's part of a plan."""
        return self.world.control.link.execute(plan, rank, data, self.stream, self.world.poll)


class LinkedWorld:
    """The world of one rank whose peers are other processes; time is this process's clock since the
    common start.

    The topology only serves algorithms that depend on it; nothing is emulated.
    """

    def __init__(
        self, control: ControlMessages, plans: Plans, *, debug: bool, history: History | None = None
    ) -> None:
        control.open()
        self.control = control
        self.debug = debug
        self.timed = False
        self.rank_classes: RankClasses | None = None
        self.plans = plans
        self.history = History() if history is None else history
        self.groups: dict[str, list[Communicator]] = {}
        self.everyone = tuple(range(control.link.world_size))
        self.ranks = [Rank(number, self) for number in self.everyone]
        self.home: str | None = control.link.name
        self.me = self.ranks[control.link.rank]
        self.ended: dict[int, str] = {}
        self.endings: dict[int, Ending] = {}
        self._meetings: dict[str, Meeting] = {}
        self._mailboxes: dict[str, RemoteMailbox] = {}
        self._early: dict[
            str, list[tuple[int, list[Any]]]
        ] = {}  # sends to mailboxes that are not made yet
        self.tasks = Tasks()
        self._polling: list[Task] = []
        self._numbers = 0
        self._quiet = 0
        self._begin_ns = time.monotonic_ns()

    # What rank programs ask

    def meet(self, me: Rank, arrival: Arrival) -> Meeting:
        """Arrive at a meeting and notify the other ranks; a rank without a message of its own
        proposes a stream.
        """
        meeting = self._meetings.setdefault(arrival.key, Meeting())
        meeting.event = arrival.event
        meeting.expected = self.everyone if arrival.expected is None else tuple(arrival.expected)
        subject = arrival.subject if isinstance(arrival.subject, list) else str(arrival.subject)
        message = msgspec.msgpack.encode(
            [subject, self.new_stream() if arrival.value is None else arrival.value]
        )
        recipients = meeting.expected if arrival.tell is None else arrival.tell
        self.control.send(
            (rank for rank in recipients if rank != me.number), "meet", arrival.key, message
        )
        self._arrive(arrival.key, me.number, message)
        return meeting

    def _arrive(self, key: str, rank: int, message: bytes) -> None:
        meeting = self._meetings.setdefault(key, Meeting())
        meeting.arrive(rank, *msgspec.msgpack.decode(message))
        if key == _END:
            ending = self.endings[rank] = msgspec.convert(meeting.values[rank], Ending)
            self.ended[rank] = ending.text
            for pending in list(self._meetings.values()):
                pending.settle(self.ended)
            for mailbox in self._mailboxes.values():
                mailbox.settle()
            self._refuse_early()
        meeting.settle(self.ended)
        if meeting.done and not meeting.missing():
            self._meetings.pop(key, None)

    @property
    def has_failures(self) -> bool:
        """Whether the program of some rank has failed."""
        return any(ending.error_type for ending in self.endings.values())

    def issue(
        self, group: GroupHandle, me: Rank, call: CollectiveCall, buffers: Buffers, *, guard: bool
    ) -> Work:
        """Play a call over the group's executor; the ranks compare calls in debug mode, and where
        sizes may differ.
        """
        if group.executor is None:
            raise InternalError(f"{group!r} has no executor between processes")
        if call.fake:
            raise RuntimeError(
                f"{call}: fake tensors are for the emulator; here ranks are processes, which move "
                "data"
            )
        announce = self.debug or call.splits is not None
        return execute(
            group, group.executor, me, call, buffers, guard=guard and self.debug, announce=announce
        )

    def mailbox(self, group: GroupHandle) -> RemoteMailbox:
        """The mailbox of a group, with the control messages that arrived before it existed."""
        communicator = group.communicator
        mailbox = self._mailboxes.get(communicator.key)
        if mailbox is None:
            mailbox = self._mailboxes[communicator.key] = RemoteMailbox(communicator, self)
            for sender, (kind, *content) in self._early.pop(communicator.key, []):
                mailbox.handle(sender, kind, content)
        return mailbox

    def executor(self, meeting: Meeting | None) -> _LinkExecutor:
        """The executor over the link; its stream is the number proposed by the meeting's lowest
        rank.
        """
        return _LinkExecutor(self, 0 if meeting is None else meeting.values[min(meeting.expected)])

    def default_store(self) -> Store:
        """Refuse: processes share no store by default."""
        raise RuntimeError(
            "there is no default store: call init_process_group with a store, or "
            "init_method='tcp://...' or 'file://...'"
        )

    def open_store(self, me: Rank, url: str, timeout: timedelta | None) -> OwnStore:
        """The store of a URL, made for this rank alone."""
        store = rendezvous(
            url, rank=me.number, world_size=len(self.everyone), timeout=timeout
        ).store
        return OwnStore(store, {me.number: None})

    def new_stream(self) -> int:
        """A number unique within the run."""
        self._numbers += 1
        return self._numbers * len(self.ranks) + self.me.number

    def end(self) -> Meeting:
        """Announce to all ranks how this rank's program ended."""
        me, error_type, message = self.me, "", ""
        value: bytes | None = None
        text = f"rank {me.number} has ended its program"
        if me.failure is not None:
            error_type, message = type(me.failure).__name__, str(me.failure)
            text = f"Connection closed by peer: rank {me.number} ended with {error_type}: {message}"
        else:
            try:
                value = encode(me.value)
            # pickle may raise anything; the others learn that it could not be sent.
            except Exception:  # noqa: BLE001
                message = type(me.value).__name__
        ending = Ending(
            text,
            error_type,
            message,
            max(0, me.finish_fs),
            value,
            self.has_failures,
            me.memory.peak_bytes,
        )
        return self.meet(me, Arrival(_END, "the end of the programs", None, value=ending))

    def _refuse_early(self) -> None:
        """Refuse sends to groups on which this rank has never received, once its program has
        ended.
        """
        if self.me.number in self.ended:
            for key, messages in self._early.items():
                for sender, (_, *content) in messages:
                    self.control.send(
                        [sender], "clear", key, content[-1], self.ended[self.me.number]
                    )
            self._early.clear()

    # The clock

    @property
    def now(self) -> int:
        """Femtoseconds since the start of the programs."""
        return (time.monotonic_ns() - self._begin_ns) * 10**6

    def start_clock(self) -> None:
        """Count time from now: the programs start."""
        self._begin_ns = time.monotonic_ns()

    def hindrances(self) -> str:
        """None: other processes announce their ends."""
        return ""

    # The signature is that of the emulator.
    def later(self, time_fs: int, action: Callable[[], None]) -> None:  # noqa: ARG002
        """Refuse: real time does not wait."""
        raise InternalError("streams of simulated devices are for the emulator")

    # There is no timeline of a real run.
    def pause(self, duration_fs: int, name: str) -> None:  # noqa: ARG002
        """Let the running rank spend real time; operations in flight proceed meanwhile."""
        until_fs = self.now + duration_fs
        while self.now < until_fs:
            self.poll()

    def poll(self) -> None:
        """Advance the other tasks by one round; a RuntimeError if a process has died, since the
        wait might never end.
        """
        task = current_task()
        if task is None:
            raise InternalError("poll outside of a rank program")
        self._polling.append(task)
        self.tasks.hub.switch()
        lost = self.control.link.death_notice()
        if lost:
            raise RuntimeError(lost)

    def run(self) -> None:
        """Run rounds until all tasks have ended; after a failure, operations in flight get a few
        seconds.
        """
        limit: float = math.inf
        try:
            with np.errstate(all="ignore"):
                while self.tasks.live and self.now < limit:
                    self._round()
                    if self.has_failures and limit == math.inf and self.me.finish_fs >= 0:
                        limit = self.now + PATIENCE_FS
        finally:
            if self.tasks.live:
                self.control.link.give_up("its program stopped while operations were in flight")
            self.tasks.stop()

    def _round(self) -> None:
        """Read control messages, and advance every task that can progress."""
        news = self.control.receive()
        for sender, (kind, key, *content) in news:
            if kind == "meet":
                self._arrive(key, sender, content[0])
            elif key in self._mailboxes:
                self._mailboxes[key].handle(sender, kind, content)
            else:
                self._early.setdefault(key, []).append((sender, [kind, *content]))
                self._refuse_early()
        lost = self.control.link.death_notice()
        if lost or self.now >= self.tasks.deadline_fs:
            tasks = self.tasks
            tasks.interrupt(self.now, lost)
            waits = [
                task for task in tasks.live if task.waiting is not None and task not in tasks.ready
            ]
            tasks.deadline_fs = min(
                (task.deadline_fs for task in waits if task.deadline_fs >= 0), default=math.inf
            )
        busy = bool(news or self.tasks.ready)
        self.tasks.run_ready()
        polling, self._polling = self._polling, []
        for task in polling:
            if not task.dead:
                task.switch()
        self._quiet = 0 if busy or self.tasks.ready else self._quiet + 1
        # Leave the processor to others, for longer when nothing has happened for long.
        if self._quiet > EAGER_ROUNDS:
            time.sleep(LONG_REST_S if self._quiet > 20 * EAGER_ROUNDS else REST_S)
        elif self._quiet:
            os.sched_yield()
