"""Rank programs as greenlets: tasks that run until they block on a waitable, with a deadline."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import greenlet  # type: ignore[import-untyped]
import msgspec

from simcoll.distributed.runtime.rank_memory import RankMemory
from simcoll.distributed.runtime.records import Site, calling_site
from simcoll.distributed.runtime.turn_order import MESSAGES, TurnOrder

__all__ = [
    "OF_PROGRAM",
    "Arrival",
    "Meeting",
    "Outpost",
    "Owner",
    "Task",
    "TaskClock",
    "Tasks",
    "Waitable",
    "current_task",
    "limit_wait",
    "list_ranks",
    "offer_turn",
    "past_of",
    "place_of_call",
    "wait_until",
]

OF_PROGRAM = "simcoll_of_program"
"""Attribute of a KeyboardInterrupt that a program has raised, and not Ctrl-C."""
SHOWN_RANKS = 16
MOST_TURNS = 100
"""Turns that a task may take one after the other while others can go on: it may wait for them in a
loop.
"""
_order = operator.attrgetter("order")


# Every call of a rank makes one: C makes it in a third of the time.
class Waitable(msgspec.Struct, eq=False, weakref=True):
    """Something that will finish: a Work, a future, a meeting of ranks, or the event named by
    ``label``.

    ``raises`` is the class of its errors. ``idle`` marks waits that may last for ever (a worker
    thread's, for example), which do not count as hanging. ``causes`` (recorded runs): by rank and
    stream, the last operations that its completion implies; None: unknown.
    """

    label: str = "an event"
    raises: type[RuntimeError] = RuntimeError
    idle: bool = False
    causes: dict[int, dict[str, int]] | None = None
    done: bool = False
    error: str | None = None
    watchers: list[Callable[[], None]] = msgspec.field(default_factory=list)

    def finish(self, error: str | None = None) -> None:
        """Mark it finished, and wake all waiting tasks."""
        if self.done:
            return
        self.done = True
        self.error = error
        watchers = self.watchers
        if watchers:
            self.watchers = []
            for watcher in watchers:
                watcher()

    def when_done(self, action: Callable[[], None]) -> None:
        """Run an action when it is finished, or now if it is."""
        if self.done:
            action()
        else:
            self.watchers.append(action)

    def waits_for(self) -> str:
        """Its name, and the ranks that it still needs."""
        return self.label

    def timeout_message(self, waited_fs: int) -> str:
        """The error message for a wait that timed out."""
        return f"Timed out waiting {waited_fs // 10**12}ms for {self.waits_for()}"


class TaskClock(Protocol):
    """The clock of a world."""

    tasks: Tasks

    @property
    def now(self) -> int:
        """Femtoseconds since the start of the run."""

    def poll(self) -> None:
        """Called on each completion poll; a no-op on the emulator."""


class Owner(Protocol):
    """The rank whose program a task runs: its number and world, its open asynchronous operations,
    those with watched buffers, its memory, and where its program is.
    """

    @property
    def number(self) -> int: ...  # noqa: D102

    @property
    def world(self) -> TaskClock: ...  # noqa: D102

    @property
    def open_works(self) -> dict[Any, None]: ...  # noqa: D102

    @property
    def watched_works(self) -> dict[Any, None]: ...  # noqa: D102

    @property
    def memory(self) -> RankMemory: ...  # noqa: D102

    @property
    def scope(self) -> str: ...  # noqa: D102


class Outpost(Protocol):
    """A thread other than the clock's, in which calls of tasks are carried out, one at a time,
    while the clock's waits: the attribute ``outpost`` of the greenlet that runs there.
    """

    task: Task | None
    """The task whose call is being carried out."""

    def pause(self) -> None:
        """Let others go on until the task is to go on."""

    def goes_on(self, task: Task) -> bool:
        """Whether this task is the one to go on here, as soon as it is ready."""


class Task(greenlet.greenlet):  # type: ignore[misc]
    """A rank's program or callback, which runs until it blocks.

    Attributes
    ----------
    outpost_of_call
        The thread that carries out its call, while it is paused there.
    site_of_call
        The line of the program that made its last call in another thread.
    """

    # Close together, as tasks take turns, and each finds its own in memory.
    __slots__ = (
        "_body",
        "_on_end",
        "deadline_fs",
        "explicit",
        "failure",
        "hangs",
        "hub",
        "interrupt",
        "offers",
        "order",
        "outpost_of_call",
        "owner",
        "past",
        "site",
        "site_of_call",
        "value",
        "waited_from_fs",
        "waiting",
    )

    def __init__(
        self,
        hub: greenlet.greenlet,
        owner: Owner,
        number: int,
        body: Callable[[], Any],
        on_end: Callable[[Task], None],
    ) -> None:
        super().__init__(parent=hub)
        self.hub = hub
        self.owner = owner
        self.order = (owner.number, number)
        self.waiting: Waitable | None = None
        self.deadline_fs = -1
        self.explicit = False
        self.waited_from_fs = 0
        self.interrupt: str | None = None
        self.offers = False
        self.site: Site | None = None
        self.hangs = 0
        self.past: dict[str, int] = {}
        self.value: Any = None
        self.failure: BaseException | None = None
        self.outpost_of_call: Outpost | None = None
        self.site_of_call: Site | None = None
        self._body = body
        self._on_end = on_end

    def run(self) -> None:
        """Run the program and keep its exception, if it raises one."""
        try:
            self.value = self._body()
        except greenlet.GreenletExit:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not hasattr(error, OF_PROGRAM):
                raise  # it ends the run, not the program
            self.failure = error  # the program's own; the world reports it
        self.close()

    def close(self) -> None:
        """Report the end of the task, stopped from outside or not."""
        self._on_end(self)

    def pause(self) -> None:
        """Let others go on until this one is to go on: the task whose turn is next at once, where
        nobody else has the turn.
        """
        tasks = self.owner.world.tasks
        batch = tasks.batch
        # A task that begins is started by the hub, as it would stand on the stack of this one.
        if not batch or not bool(batch[-1]) or tasks.caller is not None:
            self.hub.switch()
            return
        task = batch.pop()
        task.waiting = None
        task.switch()


@dataclass(slots=True, eq=False)
class Tasks:
    """The scheduler of a world's tasks: live tasks, ready tasks, and the next deadline.

    Parameters
    ----------
    horizon_fs
        No wait expires later than this.
    on_waited
        Called after every wait with the task, the waitable, its description when the wait began,
        and that time.
    on_passed
        Called whenever a task continues after a waitable, whether it had to block or not.
    turns
        The order of turns; None: lowest rank first, each until it blocks.
    hold_size
        How many ready tasks stay where they are until another one is ready, or no message is left.
    caller
        The task that another thread has asked for as it gave the turn back.
    batch
        The ready tasks whose turns come next, the first one last.
    """

    horizon_fs: float = math.inf
    on_waited: Callable[[Task, Waitable, str, int], None] | None = None
    on_passed: Callable[[Task, Waitable], None] | None = None
    turns: TurnOrder | None = None
    hold_size: int = 0
    hub: greenlet.greenlet = field(default_factory=greenlet.getcurrent)
    live: dict[Task, None] = field(default_factory=dict)
    ready: list[Task] = field(default_factory=list)
    deadline_fs: float = math.inf
    caller: Task | None = None
    batch: list[Task] = field(default_factory=list)
    _number: int = 0

    def launch(
        self,
        owner: Owner,
        body: Callable[[], Any],
        on_end: Callable[[Task], None],
        past: Mapping[str, int] | None = None,
    ) -> None:
        """Start a program now; ``on_end`` is called when it ends. ``past`` is its recorded past
        (default: its starter's).
        """
        self._number += 1

        def retire(task: Task) -> None:
            del self.live[task]
            on_end(task)

        task = Task(self.hub, owner, self._number, body, retire)
        task.past = past_of(owner) if past is None else dict(past)
        self.live[task] = None
        self.wake(task)

    def wake(self, task: Task) -> None:
        """Make a task ready."""
        self.ready.append(task)

    def run_ready(self) -> None:
        """Run all ready tasks, lowest rank first."""
        self.batch = batch = sorted(self.ready, key=_order, reverse=True)
        self.ready.clear()
        while batch:
            task = batch.pop()
            if not task.dead:
                task.waiting = None
                task.switch()
            while self.caller is not None:
                task, self.caller = self.caller, None
                task.switch()

    def next_outpost(self) -> Outpost | None:
        """The thread that takes the next turn, if a task paused there has it; that task has gone on
        then, without the clock's thread.
        """
        if not self.batch:
            return None
        task = self.batch[-1]
        place = task.outpost_of_call
        if place is None or not place.goes_on(task):
            return None
        self.batch.pop()
        task.waiting = None
        return place

    def run_in_turns(self, turns: TurnOrder, *, may_hold: Callable[[], bool]) -> None:
        """Run ready tasks as an order of turns has it; option 0 is always as :meth:`run_ready`."""
        batch = sorted(self.ready, key=_order)
        self.ready.clear()
        running, repeated = None, 0
        while batch := [task for task in batch if not task.dead]:
            woken = sorted((task for task in self.ready if not task.dead), key=_order)
            choices = [*batch, *woken]
            goers = [task.order for task in choices] + [MESSAGES] * may_hold()
            option = turns.choose(goers) if len(goers) > 1 else 0
            if option and turns.explained:
                turns.notes.append(_deviation(choices, option))
            if option == len(choices):
                self.ready[:] = choices
                self.hold_size = len(choices)
                return
            task = choices[option]
            (batch if option < len(batch) else self.ready).remove(task)
            running, repeated = task, repeated + 1 if task is running else 1
            task.waiting = None
            task.switch()
            if task.offers:
                task.offers = False
                if repeated < MOST_TURNS:
                    batch.insert(0, task)
                else:
                    self.ready.append(task)

    def interrupt(self, now: int, lost: str = "") -> None:
        """Interrupt waits past their deadlines, which then raise; all waits, if a process has
        died.
        """
        for task in list(self.live):
            waiting = task.waiting
            if waiting is not None and not waiting.done and (lost or 0 <= task.deadline_fs <= now):
                task.interrupt = lost or waiting.timeout_message(now - task.waited_from_fs)
                self.wake(task)

    def stop(self) -> None:
        """Unwind all tasks."""
        for task in list(self.live):
            task.throw()


def _deviation(tasks: Sequence[Task], option: int) -> str:
    """An option other than 0 in words."""

    def place(task: Task) -> str:
        location = "" if task.site is None else f" (at {task.site})"
        return f"rank {task.order[0]}{location}"

    delayed = place(tasks[0])
    if option == len(tasks):
        return f"messages arrive before {delayed} goes on"
    return f"{place(tasks[option])} goes on before {delayed}"


def offer_turn() -> None:
    """Let other ranks go on first, where an order of turns is played."""
    place = _place()
    task = place if place is None or isinstance(place, Task) else place.task
    if place is None or task is None:
        return
    tasks = task.owner.world.tasks
    if tasks.turns is None:
        return
    if tasks.turns.explained:
        task.site = calling_site(above=2)
    task.offers = True
    place.pause()


def current_task() -> Task | None:
    """The running task, if any.

    The greenlet carries its rank, so that worlds can be nested and run in several threads.
    """
    place = _place()
    return place if place is None or isinstance(place, Task) else place.task


def _place() -> Task | Outpost | None:
    """Where this code runs: the running task, or a thread that carries out calls of tasks; None
    elsewhere.
    """
    caller: greenlet.greenlet | None = greenlet.getcurrent()
    while caller is not None:
        if type(caller) is Task:
            return caller
        outpost: Outpost | None = getattr(caller, "outpost", None)
        if outpost is not None:
            return outpost
        caller = caller.parent
    return None


def past_of(owner: Owner) -> dict[str, int]:
    """The recorded past of the running task, if it belongs to this rank."""
    task = current_task()
    return dict(task.past) if task is not None and task.owner is owner else {}


def wait_until(
    waitable: Waitable,
    timeout_fs: int | None = None,
    *,
    explicit: bool = False,
    deadline_fs: int | None = None,
) -> None:
    """Block the running task until a waitable has finished, at most for a timeout or until a
    deadline.

    Raises
    ------
    RuntimeError
        When it failed, exceeds the timeout, or can never finish.
    ValueError
        When no rank program runs here.
    """
    task: Task | None = None
    blocks = not waitable.done
    if blocks:
        place, task = place_of_call()
        world = task.owner.world
        tasks, begin_fs = world.tasks, world.now
        if timeout_fs is not None:
            deadline_fs = begin_fs + timeout_fs
        limit_wait(task, begin_fs, deadline_fs, explicit=explicit)
        wake = functools.partial(tasks.ready.append, task)
        waitable.watchers.append(wake)
        on_waited = tasks.on_waited
        reason = "" if on_waited is None else waitable.waits_for()
        while not waitable.done:
            if task.interrupt is None:
                task.waiting = waitable
                place.pause()
            message, task.interrupt = task.interrupt, None
            if message is not None and not waitable.done:
                waitable.watchers.remove(wake)
                raise waitable.raises(message)
        if on_waited is not None:
            on_waited(task, waitable, reason, begin_fs)
    if waitable.error is not None:
        raise waitable.raises(waitable.error)
    if task is None:
        task = current_task()
    if task is not None:
        on_passed = task.owner.world.tasks.on_passed
        if on_passed is not None:
            on_passed(task, waitable)


def place_of_call() -> tuple[Task | Outpost, Task]:
    """Where the running task can be paused, and the task; a ValueError where none runs."""
    caller = greenlet.getcurrent()
    if type(caller) is Task:
        return caller, caller
    place = getattr(caller, "outpost", None) or _place()
    task = place if place is None or isinstance(place, Task) else place.task
    if place is None or task is None:
        raise ValueError("only a rank program can wait: start one with spawn")
    return place, task


def limit_wait(task: Task, begin_fs: int, deadline_fs: int | None, *, explicit: bool) -> None:
    """Let a wait of a task, which begins now, end at a deadline, if there is one."""
    tasks = task.owner.world.tasks
    task.waited_from_fs = begin_fs
    if deadline_fs is None or deadline_fs > tasks.horizon_fs:
        task.deadline_fs, task.explicit = -1, False
        return
    deadline_fs = max(begin_fs, deadline_fs)
    task.deadline_fs, task.explicit = deadline_fs, explicit
    tasks.deadline_fs = min(tasks.deadline_fs, deadline_fs)


def list_ranks(ranks: Iterable[int]) -> str:
    """Format ranks for messages: the first few, then an ellipsis."""
    every = list(ranks)
    return ", ".join(map(str, every[:SHOWN_RANKS])) + (", ..." if len(every) > SHOWN_RANKS else "")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank's arrival at a meeting.

    Attributes
    ----------
    key
        Identifies the meeting: equal on all ranks, and used once.
    event
        The purpose, for messages.
    expected
        The ranks to wait for; None to wait only until two subjects can be compared.
    subject
        Must be equal on all ranks.
    value
        This rank's contribution, as plain data.
    tell
        The ranks to notify; None: the expected ranks.
    """

    key: str
    event: str
    expected: Sequence[int] | None
    subject: Any = ""
    value: Any = None
    tell: Sequence[int] | None = None


class Meeting(Waitable):
    """A synchronisation point of ranks, which takes no simulated time, since nothing crosses the
    network.

    Attributes
    ----------
    event, expected
        From the first arrival in this process; empty before.
    subjects, values
        By rank, in order of arrival.
    clash
        The first two ranks with different subjects.
    """

    event: str = ""
    expected: tuple[int, ...] = ()
    subjects: dict[int, Any] = msgspec.field(default_factory=dict)
    values: dict[int, Any] = msgspec.field(default_factory=dict)
    clash: tuple[int, int] | None = None

    def arrive(self, rank: int, subject: Any, value: Any) -> None:
        """Record the arrival of a rank."""
        self.subjects[rank] = subject
        self.values[rank] = value
        first_rank = next(iter(self.subjects))
        if self.clash is None and self.subjects[first_rank] != subject:
            self.clash = (first_rank, rank)

    def missing(self) -> list[int]:
        """Expected ranks that have not arrived."""
        return [rank for rank in self.expected if rank not in self.subjects]

    def waits_for(self) -> str:
        """The missing ranks."""
        missing = self.missing()
        return (
            f"{self.event} waits for rank {list_ranks(missing)}"
            if missing
            else f"{self.event} waits for data"
        )

    def settle(self, ended: Mapping[int, str]) -> None:
        """Finish if all ranks have arrived, if they disagree, or if one never can: ``ended`` says
        why.
        """
        if not self.event:
            return
        if self.clash is not None:
            a, b = self.clash
            difference = f"rank {a} asked for {self.subjects[a]}, rank {b} for {self.subjects[b]}"
            text = f"{self.event} differs between ranks: {difference}"
            self.finish(text)
            self.error = text  # also for ranks that come after the others have gone on
        elif (
            ended and not self.done and (gone := [rank for rank in self.missing() if rank in ended])
        ):
            self.finish(f"{ended[gone[0]]}\n  {self.waits_for()}")
        elif len(self.subjects) >= len(self.expected) and not self.missing():
            self.finish()

    def check(self) -> None:
        """Raise if the ranks' subjects differ, or one of the ranks has ended."""
        if self.error is not None:
            raise RuntimeError(self.error)
