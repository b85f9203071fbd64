"""Send and receive. A message goes when both ends are there: a send waits for its receive."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcoll.core.collective import Collective
from simcoll.core.reduction import parse_dtype
from simcoll.distributed.api.arguments import root_of
from simcoll.distributed.api.arrays import as_array
from simcoll.distributed.api.groups import ProcessGroup, get_rank, member_of
from simcoll.distributed.runtime.flight import Entry
from simcoll.distributed.runtime.operations import Communicator, Record, record_run
from simcoll.distributed.runtime.plans import Stage, give_back, plan_for, stage_for
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.runtime.world import current
from simcoll.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from simcoll.core.plan import Plan
    from simcoll.emulator.engine import Player

    Array = NDArray[Any]

__all__ = [
    "End", "Mailbox", "P2POp", "batch_isend_irecv", "deliver", "irecv", "isend", "plan_of_message", "recv", "send",
]  # fmt: skip


@dataclass(slots=True, eq=False)
class End:
    """One end of a message: ``rank`` posted it; ``peer`` is None for a receive from any.

    ``number`` tells apart what this rank posted; ``work`` is None when the rank is in another process.
    """

    rank: int
    peer: int | None
    tag: int
    size: int
    dtype: str
    number: int
    work: Work | None

    @property
    def posted(self) -> Work:
        """The Work of an end that was posted here."""
        if self.work is None:
            raise InternalError(f"the end of a message at rank {self.rank} is in another process")
        return self.work


class Mailbox:
    """The sends and receives of a group that have no partner yet, in the order in which they were posted."""

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self._sends: dict[tuple[int, int], deque[End]] = {}  # by destination and tag
        self._receives: dict[tuple[int, int], deque[End]] = {}
        self._posted = 0
        self._sequence = [0] * len(group.members)

    def next_sequence(self, rank: int) -> int:
        """Number of operations that a group rank posted before."""
        self._sequence[rank] += 1
        return self._sequence[rank] - 1

    def post_send(self, rank: int, dst: int, tag: int, array: Array, work: Work) -> None:
        """A send from here."""
        self._offer(self._end(rank, dst, tag, array, work), dst)

    def _offer(self, end: End, dst: int) -> None:
        """A send takes the first receive that fits."""
        waiting = self._receives.get((dst, end.tag), ())
        found = next((other for other in waiting if other.peer is None or other.peer == end.rank), None)
        if found is None:
            self._sends.setdefault((dst, end.tag), deque()).append(end)
        else:
            self._receives[dst, end.tag].remove(found)
            self._match(end, found)

    def post_receive(self, rank: int, src: int | None, tag: int, array: Array, work: Work) -> None:
        """A receive; it takes the first send that fits."""
        end = self._end(rank, src, tag, array, work)
        waiting = self._sends.get((rank, tag), ())
        found = next((other for other in waiting if src is None or other.rank == src), None)
        if found is None:
            self._receives.setdefault((rank, tag), deque()).append(end)
        else:
            self._sends[rank, tag].remove(found)
            self._match(found, end)

    def _match(self, send: End, receive: End) -> None:
        """Both ends are there: check that they fit, and let the message go."""
        error = self.misfit(send, receive)
        if error is None:
            Transfer(self.group, send, receive).start()
        else:
            send.posted.over(error)
            receive.posted.over(error)

    def misfit(self, send: End, receive: End) -> str | None:
        """Why two ends cannot be one message, if so. Receives that are too long are refused in debug mode only."""
        shorter = send.size < receive.size and not self.group.world.debug
        if send.dtype == receive.dtype and (send.size == receive.size or shorter):
            return None
        members = self.group.members
        return (
            f"rank {members[send.rank]} sends {send.size} elements of {send.dtype} with tag {send.tag}; "
            f"rank {members[receive.rank]} receives {receive.size} of {receive.dtype}"
        )

    def _end(self, rank: int, peer: int | None, tag: int, array: Array, work: Work) -> End:
        self._posted += 1
        return End(rank, peer, tag, array.size, array.dtype.name, self._posted, work)


def mailbox_of(group: Communicator) -> Mailbox:
    """The group's mailbox."""
    if group.mailbox is None:
        linked = group.world.linked
        group.mailbox = Mailbox(group) if linked is None else linked.mailbox(group)
    return group.mailbox


def deliver(receive: End, sender: int, values: Array | None) -> None:
    """End a receive with what came; a message may be shorter than the tensor."""
    work = receive.posted
    error = work.guarded()
    if values is not None and error is None:
        target = work.targets[0]
        if values.size == target.size:
            target[...] = values.reshape(target.shape)
        else:
            target.reshape(-1)[: values.size] = values
    work.sender = sender
    work.over(error)


def plan_of_message(group: Communicator, send: End, receive: End) -> Plan:
    """The plan of a message between two ranks, or of one to the rank itself."""
    same = send.rank == receive.rank
    endpoints = (group.members[send.rank],) if same else (group.members[send.rank], group.members[receive.rank])
    collective = Collective("send_recv", len(endpoints), pairs=((0, 0),) if same else ((0, 1),))
    return plan_for(group.world, collective, send.size, parse_dtype(send.dtype), "sum", endpoints, (None,))


class Transfer:
    """A message whose both ends are there."""

    def __init__(self, group: Communicator, send: End, receive: End) -> None:
        self.group = group
        self.send = send
        self.receive = receive
        self._stage: Stage | None = None
        self._player: Player | None = None
        self._left = 0
        self._begin_fs = 0

    def start(self) -> None:
        """Let the message go."""
        send, receive, world = self.send, self.receive, self.group.world
        plan = plan_of_message(self.group, send, receive)
        self._stage = stage_for(world, plan)
        source = self._stage.inputs[0]
        if source is not None:
            source[...] = send.posted.sources[0].reshape(-1)
        self._begin_fs = send.posted.entry.started_fs = receive.posted.entry.started_fs = world.now
        self._player = self._stage.player(world, self._leave)
        for rank in range(plan.nranks):
            self._player.enter(rank)

    def _leave(self, rank: int) -> None:
        last = len(self._player.plan.ranks) - 1 if self._player is not None else 0
        if rank == 0:
            self.send.posted.over(self.send.posted.guarded())
        if rank == last and self._stage is not None:
            deliver(self.receive, self.send.rank, self._stage.outputs[last])
        self._left += 1
        if self._left == last + 1:
            self.group.world.calendar.at(self.group.world.now, self._close, None)

    def _close(self, _nothing: None) -> None:
        player, stage, world = self._player, self._stage, self.group.world
        if player is None or stage is None:
            return
        player.check()
        members, plan = self.group.members, player.plan
        name = f"send {members[self.send.rank]} -> {members[self.receive.rank]} tag {self.send.tag}"
        record = Record(
            self.group.name, self.send.posted.entry.sequence, name, plan.schedule.title, plan.protocol.name,
            plan.total_bytes, player.messages, self._begin_fs, player.time_fs, player.hash.hexdigest(),
        )  # fmt: skip
        record_run(world, record)
        give_back(world, stage)


def _post(
    found: ProcessGroup, name: str, array: Array, peer: int | None, tag: int, tensor: Any, *, guard: bool
) -> Work:
    """Post one end; ``name`` is send or recv."""
    group, rank = found.communicator, current().rank
    if group.failure is not None:
        raise RuntimeError(group.failure)
    if found.executor is not None and group.world.linked is None:
        raise RuntimeError(f"backend {group.backend!r} has no point-to-point operations here")
    here, mailbox = found.rank(), mailbox_of(group)
    arrays = ([array], []) if name == "send" else ([], [array])
    sequence = mailbox.next_sequence(here)
    entry = Entry((group.name, group.desc), name, sequence, *arrays, group.timeout_fs, group.world.now, p2p=True)
    rank.flight.add(entry)
    work = Work(rank, name, *arrays, entry)
    work.results = [tensor]
    work.deadline_fs = group.world.now + group.timeout_fs
    work.explicit = group.explicit
    other = "any rank" if peer is None else f"rank {group.members[peer]}"
    where = f"{'to' if name == 'send' else 'from'} {other}, tag {tag}, on {group} ({entry.site})"
    work.reason = lambda: (
        f"{name} {where} waits for {'its' if name == 'send' else 'a'} {'recv' if name == 'send' else 'send'}"
    )
    if guard and group.world.debug:
        work.guard()
    if name == "send" and peer is not None:
        mailbox.post_send(here, peer, tag, array, work)
    else:
        mailbox.post_receive(here, peer, tag, array, work)
    return work


def _sendable(tensor: Any) -> Array:
    array = as_array(tensor)
    if not array.flags.c_contiguous:
        raise RuntimeError("input tensor has to be contiguous")
    return array


def _receivable(tensor: Any) -> Array:
    array = _sendable(tensor)
    if not array.flags.writeable:
        raise RuntimeError("the tensor of a receive is read-only")
    return array


def isend(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """Start to send; to itself is allowed."""
    array = _sendable(tensor)
    found = member_of(group, "isend")
    if found is None:
        return None
    work = _post(found, "send", array, root_of(found, dst, group_dst), tag, tensor, guard=True)
    work.rank.open_works[work] = None
    return work


def irecv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """Start to receive; from any rank when neither ``src`` nor ``group_src`` is given."""
    array = _receivable(tensor)
    found = member_of(group, "irecv")
    if found is None:
        return None
    peer = None if src is None and group_src is None else root_of(found, src, group_src)
    work = _post(found, "recv", array, peer, tag, tensor, guard=True)
    work.rank.open_works[work] = None
    return work


def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send, and wait until the receiver has it.

    Raises
    ------
    ValueError
        To itself, or to a rank that is not in the group.
    """
    array = _sendable(tensor)
    found = member_of(group, "send")
    if found is None:
        raise ValueError("Invalid process group specified: this rank is not in the group that it sends on")
    peer = root_of(found, dst, group_dst)
    if peer == found.rank():
        raise ValueError(
            "Invalid destination rank: destination rank should not be the same as the rank of the current process."
        )
    _post(found, "send", array, peer, tag, tensor, guard=False).wait()


def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """Receive into the tensor; returns the global rank of the sender, -1 outside of the group.

    Raises
    ------
    ValueError
        From itself, or from a rank that is not in the group.
    """
    array = _receivable(tensor)
    found = member_of(group, "recv")
    if found is None:
        return -1
    peer = None if src is None and group_src is None else root_of(found, src, group_src)
    if peer == found.rank():
        raise ValueError("Invalid source rank: source rank should not be the same as the rank of the current process.")
    work = _post(found, "recv", array, peer, tag, tensor, guard=False)
    work.wait()
    return found.communicator.members[work.source_rank()]


class P2POp:
    """One operation of :func:`batch_isend_irecv`.

    Attributes
    ----------
    op
        ``isend`` or ``irecv``.
    peer, group_peer
        The other rank: its global number, and that in the group.
    """

    __slots__ = ("group", "group_peer", "op", "peer", "tag", "tensor")

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Any,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or ``torch.distributed.irecv``."
            )
        as_array(tensor)
        self.op = op
        self.tensor = tensor
        self.group = group
        self.tag = tag
        found = member_of(group, "P2POp")
        if found is None:
            raise ValueError("Invalid process group specified: this rank is not in the group of a P2POp")
        self.group_peer = root_of(found, peer, group_peer)
        self.peer = found.communicator.members[self.group_peer]


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Start many operations at once; returns one Work for each, in order.

    Raises
    ------
    ValueError
        When it is not a list of P2POp of one group, or empty.
    """
    if not isinstance(p2p_op_list, list) or not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError(
            "Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``."
            " Expected a list with at least one."
        )
    if any(op.group is not p2p_op_list[0].group for op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    get_rank(p2p_op_list[0].group)
    works = []
    for op in p2p_op_list:
        ends = {"group_dst": op.group_peer} if op.op is isend else {"group_src": op.group_peer}
        work = op.op(op.tensor, group=op.group, tag=op.tag, **ends)
        works.append(work)
    return works
