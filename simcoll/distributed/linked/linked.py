"""The world of a rank that runs in a process of its own: letters, a real clock, and who is waited for.

Everything that ranks must come to together (a collective, a new group, a barrier, the end) is a :class:`Gathering`: each rank
that comes writes to the others, and goes on when it has heard of all. So every process itself knows who is missing, who
called something else and who has ended, and nobody needs to ask.

One thread does everything. While a program waits, the world takes letters and lets the operations in flight go on in turn;
while it computes, nothing happens.
"""

from __future__ import annotations

import heapq
import math
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from simcoll.distributed.linked.remote_messages import RemoteMailbox
from simcoll.distributed.runtime.world import Task, Waitable, World, current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from simcoll.core.plan import Plan
    from simcoll.core.protocol import Protocol as Costs
    from simcoll.distributed.linked.links import Post
    from simcoll.distributed.runtime.operations import Communicator
    from simcoll.topology import Topology

    Array = NDArray[Any]

__all__ = ["END", "Gathering", "LinkedWaiter", "LinkedWorld", "Part"]

END = "end"
EAGER_ROUNDS = 200
"""Rounds without news before the processor is left to others for longer."""
REST_S = 5e-5
LONG_REST_S = 1e-3
PATIENCE_FS = 5 * 10**15
"""After a failure: how long what is in flight may take to end."""


class Gathering(Waitable):
    """Something that several ranks come to. Each brings a value whose first entry must be the same for all.

    Attributes
    ----------
    came
        What each rank brought.
    differs
        Whether the first entries differ.
    """

    __slots__ = ("came", "clash", "differs", "expected", "what")

    def __init__(self) -> None:
        super().__init__()
        self.what = ""
        self.came: dict[int, list[Any]] = {}
        self.differs = False
        self.expected: tuple[int, ...] | None = None  # not known before this rank itself comes
        self.clash: Callable[[Gathering], str] | None = None

    @property
    def stream(self) -> int:
        """The number that the lowest rank of a meeting proposed."""
        number: int = self.came[min(self.expected or self.came)][1]
        return number

    def missing(self) -> list[int]:
        """Ranks that have not come."""
        return [rank for rank in self.expected or () if rank not in self.came]

    def waits_for(self) -> str:
        """Who is missing."""
        missing = self.missing()
        listed = ", ".join(map(str, missing[:16])) + (", ..." if len(missing) > 16 else "")
        return f"{self.what} waits for rank {listed}" if missing else f"{self.what} waits for data"

    def look(self, ended: Mapping[int, str]) -> None:
        """See whether all have come, came for different things, or never will."""
        if self.done or self.expected is None:
            return
        first = next(iter(self.came.values()))[0]
        gone = [rank for rank in self.missing() if rank in ended]
        if any(value[0] != first for value in self.came.values()):
            self.differs = True
            self.finish(None if self.clash is None else self.clash(self))
        elif gone:
            self.finish(f"{ended[gone[0]]}\n  {self.waits_for()}")
        elif not self.missing():
            self.finish()


def _different_subjects(gathering: Gathering) -> str:
    (one, mine), (other, theirs) = (
        next((rank, value[0]) for rank, value in gathering.came.items() if value[0] == subject)
        for subject in list(dict.fromkeys(value[0] for value in gathering.came.values()))[:2]
    )
    return f"{gathering.what} differs between ranks: rank {one} asked for {mine}, rank {other} for {theirs}"


class Part:
    """The executor of a group in this process."""

    __slots__ = ("stream", "world")

    def __init__(self, world: LinkedWorld, stream: int) -> None:
        self.world = world
        self.stream = stream

    def execute(self, plan: Plan, rank: int, data: Array) -> Array | None:
        """Play one rank's part of a plan."""
        return self.world.post.link.execute(plan, rank, data, self.stream, self.world.pause)


class LinkedWorld(World):
    """One rank here, the others in other processes. Time is that of this process's clock since the ranks started together.

    The topology is what algorithms that look at boxes look at; nothing is emulated.
    """

    horizon_fs = math.inf

    def __init__(self, post: Post, topology: Topology, protocol: str | Costs, costs: Costs, *, debug: bool) -> None:
        super().__init__(post.link.world_size, topology, protocol, costs, debug=debug)
        post.open()
        self.post = post
        self.me = self.ranks[post.link.rank]
        self.everyone = tuple(range(post.link.world_size))
        self.ended: dict[int, str] = {}
        self.mailboxes: dict[str, RemoteMailbox] = {}
        self.failed = False
        self._ends = Gathering()
        self._gatherings: dict[str, Gathering] = {END: self._ends}
        self._early: dict[str, list[tuple[int, list[Any]]]] = {}
        self._paused: list[Task] = []
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._quiet = 0
        self._begin_ns = time.monotonic_ns()

    @property
    def linked(self) -> LinkedWorld:
        """Itself."""
        return self

    @property
    def now(self) -> int:
        """Femtoseconds since the start of the programs."""
        return (time.monotonic_ns() - self._begin_ns) * 10**6

    def start_clock(self) -> None:
        """The programs start now."""
        self._begin_ns = time.monotonic_ns()

    def after(self, delay_fs: int, action: Callable[[], None]) -> None:
        """Do something when a time has passed."""
        self._numbers += 1
        heapq.heappush(self._timers, (self.now + delay_fs, self._numbers, action))

    def wake(self, task: Task) -> None:
        """Let a task go on in this round."""
        self._ready.append(task)

    def glance(self) -> None:
        """Let one round pass."""
        self.pause()

    def pause(self) -> None:
        """Let the others go on for a round.

        Raises
        ------
        RuntimeError
            When a process has died, so that what is waited for may never come.
        """
        self._paused.append(current())
        self.hub.switch()
        lost = self.post.link.lost()
        if lost:
            raise RuntimeError(lost)

    def run(self) -> None:
        """Go round until all tasks are over; after a failure, what is in flight gets a few seconds."""
        limit: float = math.inf
        try:
            with np.errstate(all="ignore"):
                while self._tasks and self.now < limit:
                    self._round()
                    if self.failed and limit == math.inf and self.me.finish_fs >= 0:
                        limit = self.now + PATIENCE_FS
        finally:
            if self._tasks:
                self.post.link.give_up("its program stopped while operations were in flight")
            for task in list(self._tasks):
                task.throw()

    def _round(self) -> None:
        """Take letters, let time pass, and let every task go on that can."""
        news = self.post.receive()
        for sender, (kind, *content) in news:
            self._read(sender, kind, content)
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
        lost = self.post.link.lost()
        if lost or self.now >= self._deadline:
            self._interrupt(lost)
        busy = bool(news or self._ready)
        self._run_ready()
        paused, self._paused = self._paused, []
        for task in paused:
            if not task.dead:
                task.switch()
        self._rest(busy=busy or bool(self._ready))

    def _interrupt(self, lost: str) -> None:
        """End the waits that have lasted too long; all of them, when a process has died."""
        for task in list(self._tasks):
            waiting = task.waiting
            if waiting is None or waiting.done:
                continue
            if lost or 0 <= task.deadline_fs <= self.now:
                task.interrupt = lost or waiting.expired(self.now - task.waited_from_fs)
                self.wake(task)
        woken = dict.fromkeys(self._ready)
        waits = [task for task in self._tasks if task.waiting is not None and task not in woken]
        self._deadline = min((task.deadline_fs for task in waits if task.deadline_fs >= 0), default=math.inf)

    def _rest(self, *, busy: bool) -> None:
        """Leave the processor to others, for longer when nothing has happened for long."""
        self._quiet = 0 if busy else self._quiet + 1
        if self._quiet > EAGER_ROUNDS:
            time.sleep(LONG_REST_S if self._quiet > 20 * EAGER_ROUNDS else REST_S)
        elif self._quiet:
            os.sched_yield()

    def _read(self, sender: int, kind: str, content: list[Any]) -> None:
        key, *rest = content
        if kind == "gather":
            self._come(key, sender, rest[0])
        elif key in self.mailboxes:
            self.mailboxes[key].read(sender, kind, rest)
        else:
            self._early.setdefault(key, []).append((sender, [kind, *rest]))
            self._turn_away()

    def new_stream(self) -> int:
        """A number that no rank of the run gives twice, nor two ranks."""
        self._numbers += 1
        return self._numbers * len(self.ranks) + self.me.number

    def gather(
        self,
        key: str,
        what: str,
        value: list[Any],
        expected: Iterable[int],
        tell: Iterable[int] | None = None,
        clash: Callable[[Gathering], str] | None = None,
    ) -> Gathering:
        """Come to a gathering.

        Parameters
        ----------
        key
            The same on all ranks, and used once.
        what
            What it is, for people.
        value
            What this rank brings: plain data. The first entry must be equal on all ranks.
        expected
            Whom to wait for.
        tell
            Whom to tell; default: whom to wait for.
        clash
            Makes an error of values that differ; without, the gathering is over and ``differs``.
        """
        gathering = self._gatherings.setdefault(key, Gathering())
        gathering.what, gathering.expected, gathering.clash = what, tuple(expected), clash
        others = gathering.expected if tell is None else tell
        self.post.send((rank for rank in others if rank != self.me.number), "gather", key, value)
        self._come(key, self.me.number, msgspec.msgpack.decode(msgspec.msgpack.encode(value)))
        return gathering

    def _come(self, key: str, rank: int, value: list[Any]) -> None:
        gathering = self._gatherings.setdefault(key, Gathering())
        gathering.came[rank] = value
        if key == END:
            self.ended[rank] = value[1]
            self.failed = self.failed or value[2] != ""
            for each in list(self._gatherings.values()):
                each.look(self.ended)
            for mailbox in self.mailboxes.values():
                mailbox.look()
            self._turn_away()
        gathering.look(self.ended)
        if gathering.done and not gathering.missing():
            self._gatherings.pop(key, None)

    def outcomes(self) -> Mapping[int, list[Any]]:
        """What each rank said at its end, of those that have ended."""
        return self._ends.came

    def meet(self, key: Any, what: str, expected: tuple[int, ...], subject: Any) -> Gathering:
        """Arrive at a meeting of the ranks that make a group or the like; none expected: all.

        Raises
        ------
        RuntimeError
            When the ranks do not come for the same thing.
        """
        value = [str(subject), self.new_stream()]
        meeting = self.gather(
            str(key), what, value, expected or self.everyone, tell=self.everyone, clash=_different_subjects
        )
        if meeting.error is not None:
            raise RuntimeError(meeting.error)
        return meeting

    def part(self, stream: int) -> Part:
        """What plays the plans of a group here."""
        return Part(self, stream)

    def mailbox(self, group: Communicator) -> RemoteMailbox:
        """The mailbox of a group, with the letters that came before it was made."""
        mailbox = self.mailboxes[group.key] = RemoteMailbox(group, self)
        for sender, (kind, *rest) in self._early.pop(group.key, []):
            mailbox.read(sender, kind, rest)
        return mailbox

    def _turn_away(self) -> None:
        """The program is over, so what was sent to groups on which it never received will not be."""
        if self.me.number in self.ended:
            for key, letters in self._early.items():
                for sender, (_, *rest) in letters:
                    self.post.send([sender], "clear", key, rest[-1], self.ended[self.me.number])
            self._early.clear()


class LinkedWaiter:
    """How stores wait in the program of a linked rank: what is in flight goes on meanwhile."""

    __slots__ = ("_world",)

    def __init__(self, world: LinkedWorld) -> None:
        self._world = world

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Try again after every round; False after the timeout."""
        limit = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() >= limit:
                return False
            self._world.pause()
        return True

    def notify(self) -> None:
        """A store has changed; who waits looks again anyway."""
