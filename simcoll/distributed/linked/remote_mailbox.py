"""Messages between processes: the sender announces, the receiver matches and answers, then the data
follows.

As on the emulator, a send waits for its receive and both ends report a mismatch. The data moves as
a plan of two ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from simcoll.arrays import Array
from simcoll.distributed.linked.process_links import ControlMessages
from simcoll.distributed.runtime.calls import End
from simcoll.distributed.runtime.mailbox import (
    MatchingMailbox,
    deliver_message,
    message_name,
    plan_of_message,
)
from simcoll.distributed.runtime.tasks import Task
from simcoll.distributed.runtime.world import Communicator, Rank, World

__all__ = ["RemoteMailbox"]


class _ProcessWorld(World, Protocol):
    """The part of a process's world that its mailboxes use."""

    me: Rank
    control: ControlMessages
    ended: dict[int, str]

    def new_stream(self) -> int:
        """A number that no rank of the run uses twice, nor two ranks."""


class _SendNotice(NamedTuple):
    """The control message by which a sender announces a send."""

    rank: int
    tag: int
    size: int
    dtype: str
    stream: int


class RemoteMailbox(MatchingMailbox):
    """The sends and receives that one rank has posted on a group, and the sends announced to it."""

    def __init__(self, group: Communicator, world: _ProcessWorld) -> None:
        super().__init__(group)
        self._world = world
        self._announced: dict[int, End] = {}

    def post(self, end: End) -> None:
        """Announce a send to its receiver; a receive fails at once if its sender has ended."""
        if not end.sends or end.peer == end.rank or end.peer is None or end.work is None:
            super().post(end)
            self.settle()
            return
        end.number = self._world.new_stream()
        self._announced[end.number] = end
        notice = _SendNotice(end.rank, end.tag, end.size, end.dtype, end.number)
        self._world.control.send([self.group.members[end.peer]], "send", self.group.key, *notice)

    def handle(self, sender: int, kind: str, content: list[Any]) -> None:
        """Handle a control message: an announced send, or the answer to a send of this rank."""
        own_rank = self.group.group_rank[self._world.me.number]
        if kind == "send":
            notice = _SendNotice(*content)
            self.post(
                End(
                    True,
                    notice.rank,
                    own_rank,
                    notice.tag,
                    notice.size,
                    notice.dtype,
                    None,
                    notice.stream,
                )
            )
            return
        stream, error = content
        end = self._announced.pop(stream)
        if error:
            end.local_work.over(error)
        else:
            receive = End(
                False, self.group.group_rank[sender], own_rank, end.tag, end.size, end.dtype, None
            )
            self._start(end, receive)

    def _match(self, send: End, receive: End) -> None:
        if send.work is None:
            self._answer(send, self._misfit(send, receive) or "")
        super()._match(send, receive)

    def _answer(self, send: End, error: str) -> None:
        """Answer a sender: accept its data, or refuse it with the reason."""
        to = self.group.members[send.rank]
        self._world.control.send([to], "clear", self.group.key, send.number, error)

    def _start(self, send: End, receive: End) -> None:
        """Play this rank's part of a message."""
        world, group = self._world, self.group
        plan = plan_of_message(group, send, receive)
        begin_fs = world.now
        for end in (send, receive):
            if end.work is not None:
                end.work.entry.started_fs = begin_fs

        def body() -> Array | None:
            data = (
                np.zeros(0, plan.dtype) if send.work is None else send.work.sources[0].reshape(-1)
            )
            part = 0 if send.work is not None else 1
            return world.control.link.execute(plan, part, data, send.number, world.poll)

        def over(task: Task) -> None:
            error = None if task.failure is None else str(task.failure)
            if send.work is not None:
                send.work.over(error or send.work.violation())
                name, sequence = message_name(group, send, receive), send.work.entry.sequence
                world.history.add(group.name, sequence, name, plan, (begin_fs, world.now))
            if receive.work is not None and error is not None:
                receive.work.over(error)
            elif receive.work is not None:
                deliver_message(receive, send.rank, task.value)

        world.tasks.launch(world.me, body, over)

    def settle(self) -> None:
        """Fail the receives from ranks that have ended; after this rank's own end, refuse new
        arrivals.
        """
        world, members = self._world, self.group.members
        own_rank = world.me.number
        for waiting in self._receives.values():
            for end in list(waiting):
                peers = members if end.peer is None else (members[end.peer],)
                if all(peer in world.ended for peer in peers if peer != own_rank) and (
                    own_rank in world.ended or peers != (own_rank,)
                ):
                    waiting.remove(end)
                    end.local_work.over(
                        f"{world.ended.get(peers[0], 'all other ranks have ended')}\n"
                        f"  {end.local_work.waits_for()}"
                    )
        if own_rank in world.ended:
            for waiting in self._sends.values():
                while waiting:
                    end = waiting.popleft()
                    if end.work is None:
                        self._answer(end, world.ended[own_rank])
                    else:
                        end.work.over(world.ended[own_rank])
