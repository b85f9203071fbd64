"""Send and receive. Data moves when both ends are posted: a send waits for its receive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcoll.distributed.api.arguments import root_of
from simcoll.distributed.api.arrays import as_array
from simcoll.distributed.api.groups import ProcessGroup, get_rank, member_of
from simcoll.distributed.runtime.issuing import begin
from simcoll.distributed.runtime.world import current_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simcoll.core.memory import Array
    from simcoll.distributed.runtime.work import Work

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


def _post(
    found: ProcessGroup, name: str, array: Array, peer: int | None, tag: int, tensor: Any, *, guard: bool
) -> Work:
    """Post one end of a message; ``name`` is send or recv."""
    group = found.communicator
    mailbox = group.world.mailbox(found)
    work = begin(group, current_rank(), name, ([array], []) if name == "send" else ([], [array]), p2p=True)
    work.results = [tensor]
    other = "any rank" if peer is None else f"rank {group.members[peer]}"
    where = f"{'to' if name == 'send' else 'from'} {other}, tag {tag}, on {group} ({work.entry.site})"
    work.reason = lambda: (
        f"{name} {where} waits for {'its' if name == 'send' else 'a'} {'recv' if name == 'send' else 'send'}"
    )
    if guard and group.world.debug:
        work.guard()
    if name == "send" and peer is not None:
        mailbox.post_send(found.rank(), peer, tag, array, work)
    else:
        mailbox.post_receive(found.rank(), peer, tag, array, work)
    return work


def _buffer(tensor: Any, *, receives: bool = False) -> Array:
    """The memory of a tensor to send or to receive into."""
    array = as_array(tensor)
    if not array.flags.c_contiguous:
        raise RuntimeError("input tensor has to be contiguous")
    if receives and not array.flags.writeable:
        raise RuntimeError("the tensor of a receive is read-only")
    return array


def _source(found: ProcessGroup, src: int | None, group_src: int | None) -> int | None:
    """The group rank that a receive names; None for any."""
    return None if src is None and group_src is None else root_of(found, src, group_src)


def isend(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """Start to send. A rank may send to itself."""
    array = _buffer(tensor)
    found = member_of(group, "isend")
    if found is None:
        return None
    work = _post(found, "send", array, root_of(found, dst, group_dst), tag, tensor, guard=True)
    work.rank.open_works[work] = None
    return work


def irecv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """Start to receive, from any rank when neither ``src`` nor ``group_src`` is given."""
    array = _buffer(tensor, receives=True)
    found = member_of(group, "irecv")
    if found is None:
        return None
    work = _post(found, "recv", array, _source(found, src, group_src), tag, tensor, guard=True)
    work.rank.open_works[work] = None
    return work


def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send, and wait until the receiver has the data.

    Raises
    ------
    ValueError
        When a rank sends to itself, or to a rank outside the group.
    """
    array = _buffer(tensor)
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
    """Receive into the tensor, and return the global rank of the sender; -1 outside the group.

    Raises
    ------
    ValueError
        When a rank receives from itself, or from a rank outside the group.
    """
    array = _buffer(tensor, receives=True)
    found = member_of(group, "recv")
    if found is None:
        return -1
    peer = _source(found, src, group_src)
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
        The other rank, by its global rank and its group rank.
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
    """Start several operations, and return one Work for each, in order.

    Raises
    ------
    ValueError
        For anything but a non-empty list of P2POp of one group.
    """
    if not isinstance(p2p_op_list, list) or not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError(
            "Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``."
            " Expected a list with at least one."
        )
    if any(op.group is not p2p_op_list[0].group for op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    get_rank(p2p_op_list[0].group)
    return [
        op.op(op.tensor, group=op.group, tag=op.tag, **{"group_dst" if op.op is isend else "group_src": op.group_peer})
        for op in p2p_op_list
    ]
