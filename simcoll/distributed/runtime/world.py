"""Ranks as greenlets under one clock: who runs, who waits for what, timeouts, and what happens when nobody can go on.

Rank programs run one at a time. At one timestamp the fabric's events come first, then the ranks that they woke, lowest
rank first, until none is left; then the fabric settles its rates. So a run depends on nothing but its program.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import greenlet  # type: ignore[import-untyped]
import numpy as np
import simpy
from simpy.events import EventPriority

from simcoll.emulator.fabric import Calendar, Fabric
from simcoll.emulator.model import effective_capacities
from simcoll.units import MAX_TIME_FS

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcoll.core.protocol import Protocol as Costs
    from simcoll.distributed.linked.linked import LinkedWorld
    from simcoll.topology import Topology

__all__ = ["NOT_INITIALIZED", "Rank", "Task", "Waitable", "World", "current", "current_or_none", "wait_until"]

NOT_INITIALIZED = "Default process group has not been initialized, please make sure to call init_process_group."
PROGRAMS = EventPriority(5)
"""After the events of a timestamp, before the fabric settles its rates (priority 10)."""

REPEATED_HANGS = 100
"""A program that catches this many reports of the same hang is stopped."""


class Waitable:
    """Something that will be over: a Work, a future, a rendezvous of ranks."""

    __slots__ = ("done", "error", "watchers")

    def __init__(self) -> None:
        self.done = False
        self.error: str | None = None
        self.watchers: list[Callable[[], None]] = []

    def finish(self, error: str | None = None) -> None:
        """It is over; all who wait go on."""
        if self.done:
            return
        self.done = True
        self.error = error
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()

    def waits_for(self) -> str:
        """What it is, and which ranks keep it from being over."""
        return "an event"

    def give_up(self, reason: str) -> None:
        """The ranks that it needs cannot come any more."""
        self.finish(reason)

    def expired(self, waited_fs: int) -> str:
        """What to tell who waited for too long."""
        return f"Timed out waiting {waited_fs // 10**12}ms for {self.waits_for()}"


class Rank:
    """What a world knows of one rank: a number and what belongs to it alone."""

    __slots__ = (
        "created",
        "default",
        "failure",
        "finish_fs",
        "flight",
        "local",
        "number",
        "open_works",
        "value",
        "world",
    )

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.world = world
        self.default: Any = None
        self.created: dict[Any, int] = {}
        self.flight: Any = None
        self.open_works: dict[Any, None] = {}
        self.local: dict[str, Any] = {}
        self.value: Any = None
        self.failure: BaseException | None = None
        self.finish_fs = -1


class Task(greenlet.greenlet):  # type: ignore[misc]
    """The program of a rank, or a callback of it, that runs until it waits."""

    def __init__(self, rank: Rank, number: int, body: Callable[[], Any], over: Callable[[Task], None]) -> None:
        super().__init__(parent=rank.world.hub)
        self.rank = rank
        self.order = (rank.number, number)
        self.waiting: Waitable | None = None
        self.deadline_fs = -1
        self.explicit = False
        self.waited_from_fs = 0
        self.interrupt: str | None = None
        self.hangs = 0
        self.value: Any = None
        self.failure: BaseException | None = None
        self._body = body
        self._over = over

    def run(self) -> None:
        """Run the program; what it raises is kept."""
        try:
            self.value = self._body()
        except Exception as error:  # noqa: BLE001  # the program's own; the world reports it
            self.failure = error
        self._over(self)

    def close(self) -> None:
        """Account for a task that was stopped from outside."""
        self._over(self)


class World:
    """The ranks of one run, their clock and the links that they share."""

    horizon_fs: float = MAX_TIME_FS
    """No wait ends later than this by itself."""

    def __init__(self, nranks: int, topology: Topology, protocol: str | Costs, costs: Costs, *, debug: bool) -> None:
        self.hub = greenlet.getcurrent()
        self.topology = topology
        self.protocol = protocol
        self.debug = debug
        self.env = simpy.Environment()
        self.calendar = Calendar(self.env)
        self.fabric = Fabric(self.calendar, effective_capacities(topology, costs), topology.link_name)
        self.ranks = [Rank(number, self) for number in range(nranks)]
        self.shared: dict[Any, Any] = {}
        self.unsettled: dict[Any, None] = {}  # operations that will fail as soon as no more calls can come
        self._tasks: dict[Task, None] = {}
        self._ready: list[Task] = []
        self._asked = False
        self._number = 0
        self._deadline: float = math.inf

    @property
    def now(self) -> int:
        """Femtoseconds."""
        return self.calendar.now

    @property
    def linked(self) -> LinkedWorld | None:
        """The world itself when its ranks are in processes of their own; None on the emulator."""
        return None

    def launch(self, rank: Rank, body: Callable[[], Any], over: Callable[[Task], None]) -> Task:
        """Let a program start now."""
        self._number += 1

        def finished(task: Task) -> None:
            del self._tasks[task]
            over(task)

        task = Task(rank, self._number, body, finished)
        self._tasks[task] = None
        self.wake(task)
        return task

    def wake(self, task: Task) -> None:
        """Let a task go on at this timestamp."""
        self._ready.append(task)
        if not self._asked:
            self._asked = True
            event = simpy.Event(self.env)
            event.callbacks.append(self._run_ready)
            event._ok = True  # noqa: SLF001  # as SimPy's own events that are triggered when they are made
            event._value = None  # noqa: SLF001
            self.env.schedule(event, priority=PROGRAMS)

    def _run_ready(self, _event: simpy.Event | None = None) -> None:
        self._asked = False
        ready, self._ready = self._ready, []
        for task in sorted(ready, key=lambda task: task.order):
            if not task.dead:
                task.waiting = None
                task.switch()

    def after(self, delay_fs: int, action: Callable[[], None]) -> None:
        """Do something when a time has passed."""
        self.calendar.at(self.now + delay_fs, lambda _: action(), None)

    def glance(self) -> None:
        """Somebody looks whether something is over. Here nothing happens between two looks."""

    def watch_deadline(self, deadline_fs: int) -> None:
        """Somebody will have waited for too long at this time."""
        self._deadline = min(self._deadline, deadline_fs)

    def run(self) -> None:
        """Run all tasks to their ends."""
        try:
            with np.errstate(all="ignore"):  # arithmetic of reductions is IEEE's and wraps, as on a GPU
                while True:
                    upcoming = self.env.peek()
                    if upcoming == math.inf and self.unsettled:
                        self._settle()
                    elif upcoming == math.inf and not self._tasks:
                        return
                    elif upcoming >= self._deadline < math.inf:
                        self._plan_expiry(upcoming)
                    elif upcoming < math.inf:
                        self.env.step()
                    else:
                        self._unstick()
        finally:
            for task in list(self._tasks):
                task.throw()

    def _plan_expiry(self, upcoming: float) -> None:
        """The next deadline comes before the next event, unless who waited is gone: then look again."""
        times = [task.deadline_fs for task in self._tasks if task.waiting is not None and task.deadline_fs >= 0]
        first = min(times, default=math.inf)
        self._deadline = first
        if first > upcoming or first == math.inf:
            return
        if upcoming == math.inf and not any(task.explicit for task in self._tasks if task.waiting is not None):
            self._deadline = math.inf
            return
        later = [time for time in times if time > first]
        self._deadline = min(later, default=math.inf)
        self.calendar.at(int(first), self._expire, None)

    def _expire(self, _nothing: None) -> None:
        for task in list(self._tasks):
            waiting = task.waiting
            if waiting is not None and 0 <= task.deadline_fs <= self.now:
                task.interrupt = waiting.expired(self.now - task.waited_from_fs)
                self.wake(task)

    def _settle(self) -> None:
        operations, self.unsettled = list(self.unsettled), {}
        for operation in operations:
            operation.settle()

    def _unstick(self) -> None:
        """No event is left, but tasks wait: let the next timeout come, or report the hang."""
        waiting = [task for task in sorted(self._tasks, key=lambda task: task.order) if task.waiting is not None]
        if any(task.explicit for task in waiting):
            self._deadline = min(task.deadline_fs for task in waiting if task.explicit)
            return
        report = self._hang_report(waiting)
        for task in waiting:
            task.hangs += 1
            if task.hangs > REPEATED_HANGS:
                task.throw()
                task.failure = RuntimeError(f"stopped after it caught this {REPEATED_HANGS} times: {report}")
                task.close()
                continue
            task.interrupt = report
            self.wake(task)

    def _hang_report(self, waiting: list[Task]) -> str:
        gone = [rank for rank in self.ranks if rank.failure is not None]
        ended = [str(rank.number) for rank in self.ranks if rank.finish_fs >= 0 and rank.failure is None]
        lines = []
        if gone:
            first = gone[0]
            lines.append(
                f"Connection closed by peer: rank {first.number} ended with {type(first.failure).__name__}: {first.failure}"
            )
        else:
            lines.append(f"Hang at {self.now} fs: no event is left, and {len(waiting)} ranks wait.")
        shown = [f"  rank {task.rank.number}: {task.waiting.waits_for()}" for task in waiting[:64] if task.waiting]
        lines += shown
        if len(waiting) > len(shown):
            lines.append(f"  ... and {len(waiting) - len(shown)} more")
        if ended:
            lines.append(f"  ended: rank {', '.join(ended[:64])}")
        return "\n".join(lines)


def current_or_none() -> Task | None:
    """The task that runs, if this code runs in one.

    The greenlet itself carries its rank: there is no global table of ranks, so that worlds can be nested and run in
    several threads.
    """
    here: greenlet.greenlet | None = greenlet.getcurrent()
    while here is not None:
        if isinstance(here, Task):
            return here
        here = here.parent
    return None


def current() -> Task:
    """The task that runs.

    Raises
    ------
    ValueError
        Outside of rank programs.
    """
    task = current_or_none()
    if task is None:
        raise ValueError(f"{NOT_INITIALIZED} (This code is not in a rank program: start those with spawn.)")
    return task


def wait_until(waitable: Waitable, timeout_fs: int | None = None, *, explicit: bool = False) -> None:
    """Let the running task wait until something is over.

    Raises
    ------
    RuntimeError
        When it failed, when it takes longer than the timeout, or when it can never be.
    """
    if not waitable.done:
        task = current()
        _block(task, waitable, timeout_fs, explicit=explicit)
    if waitable.error is not None:
        raise RuntimeError(waitable.error)


def _block(task: Task, waitable: Waitable, timeout_fs: int | None, *, explicit: bool) -> None:
    world = task.rank.world
    task.waited_from_fs = world.now
    deadline = -1 if timeout_fs is None else world.now + timeout_fs
    task.deadline_fs = deadline if deadline <= world.horizon_fs else -1
    task.explicit = explicit and task.deadline_fs >= 0
    if task.deadline_fs >= 0:
        world.watch_deadline(task.deadline_fs)

    def wake() -> None:
        world.wake(task)

    waitable.watchers.append(wake)
    while not waitable.done:
        task.waiting = waitable
        world.hub.switch()
        message, task.interrupt = task.interrupt, None
        if message is not None and not waitable.done:
            waitable.watchers.remove(wake)
            raise RuntimeError(message)
