"""Point-to-point messages: matching of sends and receives; data moves once both are posted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simcoll.arrays import Array
from simcoll.core.collective import Collective
from simcoll.core.plan import Plan
from simcoll.core.reduction import parse_dtype
from simcoll.distributed.runtime.calls import End
from simcoll.distributed.runtime.followers import AlikeCalls, Followers
from simcoll.distributed.runtime.plans_in_flight import Emulator, Playing
from simcoll.distributed.runtime.world import Communicator
from simcoll.libraries.choices import plan_for

__all__ = [
    "EmulatedMailbox",
    "MatchingMailbox",
    "deliver_message",
    "message_name",
    "plan_of_message",
]


class MatchingMailbox:
    """The unmatched sends and receives of a group by destination and tag, in posting order."""

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self._sends: dict[tuple[int | None, int], deque[End]] = {}
        self._receives: dict[tuple[int | None, int], deque[End]] = {}

    def post(self, end: End) -> None:
        """Post a send or receive, and match it with the first counterpart that fits."""
        key = (end.peer if end.sends else end.rank, end.tag)
        mine, counterparts = (
            (self._sends, self._receives) if end.sends else (self._receives, self._sends)
        )
        for counterpart in counterparts.get(key, ()):
            send, receive = (end, counterpart) if end.sends else (counterpart, end)
            if receive.peer is None or receive.peer == send.rank:
                counterparts[key].remove(counterpart)
                self._match(send, receive)
                return
        mine.setdefault(key, deque()).append(end)

    def _match(self, send: End, receive: End) -> None:
        """Start the message if both ends fit, or fail them."""
        error = self._misfit(send, receive)
        if error is None:
            self._start(send, receive)
            return
        for work in (send.work, receive.work):
            if work is not None:
                work.over(error)

    def _misfit(self, send: End, receive: End) -> str | None:
        """The reason why a send and a receive cannot match, if any. Only debug mode refuses
        receives that are too long.
        """
        shorter = send.size < receive.size and not self.group.world.debug
        members = self.group.members
        if send.fake != receive.fake:
            fake, real = (send, receive) if send.fake else (receive, send)
            return (
                f"the tensor of rank {members[fake.rank]} is fake, that of rank "
                f"{members[real.rank]} has data"
            )
        if send.dtype == receive.dtype and (send.size == receive.size or shorter):
            return None
        return (
            f"rank {members[send.rank]} sends {send.size} elements of {send.dtype} with tag "
            f"{send.tag}; "
            f"rank {members[receive.rank]} receives {receive.size} of {receive.dtype}"
        )

    def _start(self, send: End, receive: End) -> None:
        """Move the data of a matched message."""
        raise NotImplementedError


class EmulatedMailbox(MatchingMailbox):
    """The mailbox of a group on the emulator; both ends of every message are in this process."""

    def __init__(
        self, group: Communicator, emulator: Emulator, calls: AlikeCalls | None = None
    ) -> None:
        super().__init__(group)
        self._emulator = emulator
        self._alike_calls = calls
        self._moving: dict[End, End] = {}  # receives and their sends

    def fail(self, error: str, ranks: Sequence[int]) -> None:
        """Fail the messages, waiting or moving, that involve any of some group ranks."""
        for queues in (self._sends, self._receives):
            for queue in queues.values():
                for end in [
                    end
                    for end in queue
                    if end.peer in ranks or end.rank in ranks or end.peer is None
                ]:
                    queue.remove(end)
                    if end.work is not None:
                        end.work.over(error)
        for receive, send in list(self._moving.items()):
            if receive.rank in ranks or send.rank in ranks:
                del self._moving[receive]
                for end in (receive, send):
                    end.local_work.over(error)

    def _start(self, send: End, receive: End) -> None:
        plan = plan_of_message(self.group, send, receive)
        last = plan.nranks - 1
        work = send.local_work
        work.entry.started_fs = receive.local_work.entry.started_fs = self._emulator.calendar.now
        if self._emulator.history.recording is not None:
            self._emulator.history.recording.message(self.group, send, receive)
        timeline = self._emulator.history.timeline
        if timeline is not None:
            ends = ((self.group.members[end.rank], end.local_work.entry) for end in (send, receive))
            timeline.messages.append((next(ends), next(ends)))

        def leave(rank: int, values: Array | None) -> None:
            if rank == 0:
                work.over(work.violation())
            if rank == last:
                self._moving.pop(receive, None)
                deliver_message(receive, send.rank, values)

        self._moving[receive] = send
        label = (self.group.name, work.entry.sequence, message_name(self.group, send, receive))
        ranks, calls = range(plan.nranks), self._alike_calls
        if calls is None:
            playing = Playing(self._emulator, plan, label, leave, fake=send.fake)
            for rank in ranks:
                playing.enter(rank, work.sources)
            return
        pair = (self.group.members[send.rank], self.group.members[receive.rank])
        family = calls.family(
            plan,
            calls.rank_classes.pairs_like(*pair),
            lambda members: plan_of_pair(self.group, members, send),
        )
        followers = Followers(calls, {rank: (rank,) for rank in ranks}, leave)
        followers.play(family, label, fake=send.fake)
        for rank in ranks:
            followers.enter(rank, work.sources)


def message_name(group: Communicator, send: End, receive: End) -> str:
    """The name of a message in the trace."""
    return f"send {group.members[send.rank]} -> {group.members[receive.rank]} tag {send.tag}"


def deliver_message(receive: End, sender: int, values: Array | None) -> None:
    """Finish a receive with the arrived message, which may be shorter than the tensor."""
    work = receive.local_work
    error = work.violation()
    if values is not None and error is None:
        work.fill(values)
        for watcher in work.rank.watched_works:
            watcher.received_beside(work)
    work.sender = sender
    work.over(error)


def plan_of_message(group: Communicator, send: End, receive: End) -> Plan:
    """The plan of a message between two ranks, or of one to the rank itself."""
    return plan_of_pair(group, (group.members[send.rank], group.members[receive.rank]), send)


def plan_of_pair(group: Communicator, pair: tuple[int, ...], send: End) -> Plan:
    """The plan of a message like ``send`` between two global ranks."""
    to_itself = pair[0] == pair[1]
    endpoints = pair[:1] if to_itself else pair
    collective = Collective(
        "send_recv", len(endpoints), pairs=((0, 0),) if to_itself else ((0, 1),)
    )
    return plan_for(
        group.world.plans, collective, send.size, parse_dtype(send.dtype), "sum", endpoints, (None,)
    )
