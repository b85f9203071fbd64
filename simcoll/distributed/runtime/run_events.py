"""Events in a run of rank programs: links that change, ranks that slow down or stop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simcoll.distributed.runtime.history import History
from simcoll.distributed.runtime.plans_in_flight import Emulator
from simcoll.distributed.runtime.tasks import Meeting, Tasks
from simcoll.distributed.runtime.world import Communicator, Rank
from simcoll.emulator.events import Timeline
from simcoll.emulator.events.capacities import CapacityTimeline
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.reference.fabric import OverdueError
from simcoll.emulator.reference.link_changes import LinkChanges
from simcoll.emulator.reference.messages import Bundle, Message
from simcoll.emulator.reference.player import links_now
from simcoll.units import format_time

__all__ = ["Faults"]


class Emulated(Protocol):
    """The part of the emulated world that events act on."""

    emulator: Emulator
    tasks: Tasks
    ranks: list[Rank]
    groups: dict[str, list[Communicator]]
    history: History
    stopped: bool

    @property
    def now(self) -> int:
        """Femtoseconds."""
        ...

    def later(self, time_fs: int, action: Callable[[], None]) -> None:
        """Schedule an action."""
        ...

    def fail_group(self, group: Communicator, error: str, *ranks: int) -> None:
        """Fail the operations of a group that need the failed ranks."""
        ...


class Faults:
    """The events of a world of emulated ranks.

    A rank that stops ends where it is. In groups with a backend other than nccl the other ranks
    notice at once, as through gloo's closed connections: operations with the stopped rank raise.
    Under nccl they wait until the group's timeout.
    """

    def __init__(self, world: Emulated, timeline: Timeline, whole_uBps: Sequence[int]) -> None:
        self._world, self._timeline = world, timeline
        self._stopped: dict[int, int] = {}  # ranks, with the time
        emulator = world.emulator
        emulator.pace = timeline.pace
        emulator.detours = detours = Detours(timeline.topology) if timeline.detours else None
        ways: tuple[Any, ...] = (
            ([detours], functools.partial(links_now, detours)) if detours else ()
        )
        course = CapacityTimeline(timeline, whole_uBps)
        LinkChanges(course, emulator.fabric, lambda: not world.tasks.live, *ways).start()
        for rank, at_fs in timeline.pace.stops() if timeline.pace else []:
            if rank < len(world.ranks):
                world.later(at_fs, functools.partial(self._stop, rank))

    def worked_fs(self, rank: int, work_fs: int) -> int | None:
        """When work that a rank begins now finishes; ``None``: never."""
        now = self._world.now
        pace = self._timeline.pace
        return now + work_fs if pace is None else pace.end(rank, now, work_fs)

    def _stop(self, number: int) -> None:
        """Stop a rank where it is."""
        world, rank = self._world, self._world.ranks[number]
        self._stopped[number] = world.now
        # Its program had ended; operations that it began wait for it for ever.
        if rank.finish_fs >= 0:
            return
        rank.finish_fs = world.now
        rank.failure = RuntimeError(f"it stopped at {format_time(world.now)}")
        world.history.findings.append(
            f"rank {number} stopped at {format_time(world.now)}, as an event says"
        )
        for task in [task for task in world.tasks.live if task.owner is rank]:
            task.throw()
            world.tasks.live.pop(task, None)
        world.stopped = True
        error = f"Connection closed by peer: rank {number} stopped at {format_time(world.now)}"
        for group in [group for namesakes in world.groups.values() for group in namesakes]:
            if number in group.group_rank and not group.is_nccl:
                world.fail_group(group, error, number)
        for task in list(world.tasks.live):
            waiting = task.waiting
            if isinstance(waiting, Meeting) and not waiting.done and number in waiting.missing():
                task.interrupt = error
                world.tasks.wake(task)

    def overdue(self, late: OverdueError) -> None:
        """Fail the groups whose messages have stalled at a dead link for too long."""
        world = self._world
        verdict = f"was given up at {format_time(world.now)}"
        groups = [group for namesakes in world.groups.values() for group in namesakes]
        for links, ends in [stalled for flow in late.items for stalled in self._each(flow)]:
            for group in groups:
                if group.failure is None and all(end in group.group_rank for end in ends):
                    error = (
                        f"the message of rank {ends[0]} to rank {ends[1]} {verdict}: down: {links}"
                    )
                    world.fail_group(group, error, *ends)

    def stop_notices(self) -> list[str]:
        """The ranks that have stopped, in words."""
        return [
            f"rank {number} stopped at {format_time(at_fs)}"
            for number, at_fs in self._stopped.items()
        ]

    def waiting(self) -> list[str]:
        """The messages stalled at links that are down, in words."""
        return [
            f"down: {links}: a message of rank {ends[0]} to rank {ends[1]} waits"
            for flow in self._world.emulator.fabric.waiting()
            for links, ends in self._each(flow)
        ]

    def _each(self, flow: Message | Bundle) -> list[tuple[str, tuple[int, int]]]:
        """Dead links and ends of the messages of a flow."""
        fabric = self._world.emulator.fabric
        links = ", ".join(sorted(map(fabric.link_name, fabric.down(flow.links))))
        messages = flow.messages if isinstance(flow, Bundle) else [flow]
        return [(links, (message.sender.place, message.receiver.place)) for message in messages]
