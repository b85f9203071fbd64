"""Send and receive with rendezvous: data moves once both ends are posted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simcoll.arrays import MaybeNone
from simcoll.distributed.api.arguments import as_array, contiguous, root_of
from simcoll.distributed.api.groups import get_rank, member_of
from simcoll.distributed.runtime.calls import End
from simcoll.distributed.runtime.collective_calls import begin
from simcoll.distributed.runtime.fake import is_fake
from simcoll.distributed.runtime.tasks import offer_turn
from simcoll.distributed.runtime.work import Work
from simcoll.distributed.runtime.world import Buffers, GroupHandle, current_rank

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


_ITSELF = {
    "send": "Invalid destination rank: destination rank should not be the same as the rank of the "
    "current process.",
    "recv": "Invalid source rank: source rank should not be the same as the rank of the current "
    "process.",
}


def _post(
    called: str, tensor: Any, ranks: tuple[int | None, int | None], group: Any, tag: int
) -> tuple[GroupHandle, Work] | None:
    """Post a send or a receive, unless outside the group; ``ranks`` gives the peer by its global
    rank or its group rank.
    """
    array, sends, blocks = as_array(tensor), called in {"send", "isend"}, called in {"send", "recv"}
    fake = is_fake([array], timed=current_rank().world.timed)
    if not contiguous(array):
        raise RuntimeError("input tensor has to be contiguous")
    if not sends and not array.flags.writeable:
        raise RuntimeError("the tensor of a receive is read-only")
    if (process_group := member_of(group, called, 4)) is None:
        return None
    peer = None if ranks == (None, None) and not sends else root_of(process_group, *ranks)
    if blocks and peer == process_group.rank():
        raise ValueError(_ITSELF[called])
    shared = process_group.communicator
    mailbox = shared.world.mailbox(process_group)
    name = "send" if sends else "recv"
    buffers: Buffers = ([array], []) if sends else ([], [array])
    work = begin(shared, current_rank(), name, buffers, p2p=True)
    work.results = [tensor]
    partner = "any rank" if peer is None else f"rank {shared.members[peer]}"
    direction = f"to {partner}" if sends else f"from {partner}"
    counterpart = "its recv" if sends else "a send"
    work.reason = lambda _: (
        f"{name} {direction}, tag {tag}, on {shared} ({work.entry.site}) waits for {counterpart}"
    )
    if not blocks:
        work.rank.open_works[work] = None
        if shared.world.debug and not fake:
            work.guard()
    end = End(sends, process_group.rank(), peer, tag, array.size, array.dtype.name, work, fake=fake)
    if work.gate is None:
        mailbox.post(end)
    else:
        work.gate.when_done(lambda: mailbox.post(end))
    if not blocks:
        offer_turn()  # the program may look at the tensor before it waits
    return process_group, work


def isend(
    tensor: Any,
    dst: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | MaybeNone:
    """Start a send. A rank may send to itself."""
    posted = _post("isend", tensor, (dst, group_dst), group, tag)
    return None if posted is None else posted[1]


def irecv(
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | MaybeNone:
    """Start a receive, from any rank if neither ``src`` nor ``group_src`` is given."""
    posted = _post("irecv", tensor, (src, group_src), group, tag)
    return None if posted is None else posted[1]


def send(
    tensor: Any,
    dst: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send, and wait until the receiver has the data.

    Raises
    ------
    ValueError
        When a rank sends to itself, or to a rank outside the group.
    """
    posted = _post("send", tensor, (dst, group_dst), group, tag)
    if posted is None:
        raise ValueError(
            "Invalid process group specified: this rank is not in the group that it sends on"
        )
    posted[1].wait()


def recv(
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive into the tensor, and return the global rank of the sender; -1 outside the group.

    Raises
    ------
    ValueError
        When a rank receives from itself, or from a rank outside the group.
    """
    posted = _post("recv", tensor, (src, group_src), group, tag)
    if posted is None:
        return -1
    process_group, work = posted
    work.wait()
    return process_group.communicator.members[work.source_rank()]


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
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                "``torch.distributed.irecv``."
            )
        as_array(tensor)
        self.op = op
        self.tensor = tensor
        self.group = group
        self.tag = tag
        if (process_group := member_of(group, "P2POp")) is None:
            raise ValueError(
                "Invalid process group specified: this rank is not in the group of a P2POp"
            )
        self.group_peer = root_of(process_group, peer, group_peer)
        self.peer = process_group.communicator.members[self.group_peer]

    def __repr__(self) -> str:
        end = "from" if self.op is irecv else "to"
        return f"<P2POp: {self.op.__name__} {end} rank {self.peer}, tag {self.tag}>"


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Start several sends and receives, and return one Work for each, in order.

    Raises
    ------
    ValueError
        For anything but a non-empty list of P2POp of one group.
    """
    if (
        not isinstance(p2p_op_list, list)
        or not p2p_op_list
        or not all(isinstance(op, P2POp) for op in p2p_op_list)
    ):
        raise ValueError(
            "Invalid ``p2p_op_list``. Each op is expected to to be of type "
            "``torch.distributed.P2POp``."
            " Expected a list with at least one."
        )
    if any(op.group is not p2p_op_list[0].group for op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    get_rank(p2p_op_list[0].group)
    return [
        op.op(
            op.tensor,
            group=op.group,
            tag=op.tag,
            **{"group_dst" if op.op is isend else "group_src": op.group_peer},
        )
        for op in p2p_op_list
    ]
