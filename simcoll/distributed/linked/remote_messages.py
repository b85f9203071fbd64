"""Send and receive between processes: a letter announces a send, the receiver matches it and answers, then the data goes.

So a send waits for its receive, and both ends hear of what does not fit, as on the emulator. The data is a plan of two ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.distributed.api.point_to_point import End, Mailbox, deliver, plan_of_message
from simcoll.distributed.runtime.operations import Record, record_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.distributed.linked.linked import LinkedWorld
    from simcoll.distributed.runtime.operations import Communicator
    from simcoll.distributed.runtime.work import Work
    from simcoll.distributed.runtime.world import Task

    Array = NDArray[Any]

__all__ = ["RemoteMailbox"]


class RemoteMailbox(Mailbox):
    """What one rank has posted on a group, and what others have announced to it."""

    def __init__(self, group: Communicator, world: LinkedWorld) -> None:
        super().__init__(group)
        self._world = world
        self._announced: dict[int, End] = {}

    def post_send(self, rank: int, dst: int, tag: int, array: Array, work: Work) -> None:
        """Announce a send; one to the rank itself takes its receive here."""
        if rank == dst:
            super().post_send(rank, dst, tag, array, work)
            return
        stream = self._world.new_stream()
        end = self._announced[stream] = End(rank, dst, tag, array.size, array.dtype.name, stream, work)
        to = self.group.members[dst]
        self._world.post.send([to], "send", self.group.key, rank, tag, end.size, end.dtype, stream)

    def post_receive(self, rank: int, src: int | None, tag: int, array: Array, work: Work) -> None:
        """A receive; it takes the first send that fits, and fails at once when there can be none any more."""
        super().post_receive(rank, src, tag, array, work)
        self.look()

    def read(self, sender: int, kind: str, content: list[Any]) -> None:
        """A letter: another rank sends something, or what this rank announced is expected (or cannot be)."""
        here = self.group.group_rank[self._world.me.number]
        if kind == "send":
            rank, tag, size, dtype, stream = content
            self._offer(End(rank, here, tag, size, dtype, stream, None), here)
            self.look()
            return
        stream, error = content
        end = self._announced.pop(stream)
        if error:
            end.posted.over(error)
        else:
            receive = End(self.group.group_rank[sender], here, end.tag, end.size, end.dtype, stream, None)
            self._start(end, receive)

    def _match(self, send: End, receive: End) -> None:
        error = self.misfit(send, receive)
        if send.work is None:
            to = self.group.members[send.rank]
            self._world.post.send([to], "clear", self.group.key, send.number, error or "")
        if error is None:
            self._start(send, receive)
            return
        for work in (send.work, receive.work):
            if work is not None:
                work.over(error)

    def _start(self, send: End, receive: End) -> None:
        """Play this rank's part of a message."""
        world, group = self._world, self.group
        plan = plan_of_message(group, send, receive)
        works = [end.work for end in (send, receive) if end.work is not None]
        for work in works:
            work.entry.started_fs = world.now

        def body() -> Array | None:
            empty = np.zeros(0, plan.dtype)
            data = empty if send.work is None else send.work.sources[0].reshape(-1)
            part = 0 if send.work is not None else 1
            return world.post.link.execute(plan, part, data, send.number, world.pause)

        begin_fs = world.now

        def over(task: Task) -> None:
            error = None if task.failure is None else str(task.failure)
            if send.work is not None:
                send.work.over(error or send.work.guarded())
                members = group.members
                name = f"send {members[send.rank]} -> {members[receive.rank]} tag {send.tag}"
                sequence, title, size = send.work.entry.sequence, plan.schedule.title, plan.total_bytes
                record_run(
                    world,
                    Record(group.name, sequence, name, title, plan.protocol.name, size, 0, begin_fs, world.now, ""),
                )
            if receive.work is not None and error is not None:
                receive.work.over(error)
            elif receive.work is not None:
                deliver(receive, send.rank, task.value)

        world.launch(world.me, body, over)

    def look(self) -> None:
        """Give up the receives from ranks that have ended, and turn away what comes after this rank's own end."""
        world, members = self._world, self.group.members
        here = world.me.number
        for waiting in self._receives.values():
            for end in list(waiting):
                peers = members if end.peer is None else (members[end.peer],)
                if all(peer in world.ended for peer in peers if peer != here) and (
                    here in world.ended or peers != (here,)
                ):
                    waiting.remove(end)
                    end.posted.over(
                        f"{world.ended.get(peers[0], 'all other ranks have ended')}\n  {end.posted.waits_for()}"
                    )
        if here in world.ended:
            for waiting in self._sends.values():
                while waiting:
                    end = waiting.popleft()
                    if end.work is None:
                        world.post.send([members[end.rank]], "clear", self.group.key, end.number, world.ended[here])
                    else:
                        end.work.over(world.ended[here])
