"""Statements on messages between two ranks, on works, and on objects."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from simcoll.testing.conformance.torch_session import TorchSession, states


def _neighbours(s: TorchSession) -> tuple[int, int]:
    """The ranks that this one receives from, and sends to, in a ring."""
    s.needs(2)
    return (s.rank - 1) % s.size, (s.rank + 1) % s.size


@states("PP-03", "PP-04")
def peers_named_wrongly(s: TorchSession) -> None:
    """A peer is named once."""
    s.raises(ValueError, s.dist.send, s.numbers(), s.rank, group_dst=s.rank)
    s.raises(ValueError, s.dist.recv, s.numbers(), s.rank, group_src=s.rank)
    s.raises(ValueError, s.dist.isend, s.numbers())


@states("PP-05")
def receive_from_any(s: TorchSession) -> None:
    """A receive without a source."""
    s.needs(2)
    if s.rank == 0:
        for _ in range(1, s.size):
            vector = s.numbers()
            source = s.dist.recv(vector)
            s.same(vector, s.numbers(rank=source))
    else:
        s.dist.send(s.numbers(), 0)


@states("PP-06")
def receive_from_any_in_a_group(s: TorchSession) -> None:
    """The source of a message in a subgroup is a global rank."""
    s.needs(3)
    group = s.dist.new_group([1, 2])
    if s.rank == 1:
        s.same(s.dist.recv(s.numbers(), group=group), 2)
    elif s.rank == 2:
        s.dist.send(s.numbers(), 1, group=group)


@states("PP-07", "PP-08", "PP-39")
def messages_to_itself(s: TorchSession) -> None:
    """Blocking messages to the rank itself are refused."""
    s.raises(ValueError, s.dist.send, s.numbers(), s.rank)
    s.raises((ValueError, RuntimeError), s.dist.recv, s.numbers(), s.rank)
    s.raises(ValueError, s.dist.send_object_list, ["a"], s.rank)
    s.raises(ValueError, s.dist.recv_object_list, ["a"], s.rank)


@states("PP-10")
def destination_outside(s: TorchSession) -> None:
    """A destination that is no member."""
    s.needs(2)
    group = s.dist.new_group([0])
    if s.rank == 0:
        s.raises(ValueError, s.dist.send, s.numbers(), 1, group=group)


@states("PP-16")
def pending_receive(s: TorchSession) -> None:
    """A receive is not complete before its partner exists."""
    source, target = _neighbours(s)
    vector = s.numbers()
    work = s.dist.irecv(vector, source)
    s.dist.barrier()
    s.same(work.is_completed(), False)
    s.dist.barrier()
    s.dist.send(s.numbers(), target)
    work.wait()
    s.same((work.is_completed(), vector.tolist()), (True, s.numbers(rank=source).tolist()))


@states("PP-19")
def source_of_a_receive(s: TorchSession) -> None:
    """A receive knows its source."""
    source, target = _neighbours(s)
    works = [s.dist.isend(s.numbers(), target), s.dist.irecv(s.numbers(), source)]
    for work in works:
        work.wait()
    s.same(works[1].source_rank(), source)


@states("PP-20")
def shapes_of_messages(s: TorchSession) -> None:
    """Shapes may differ where the numbers of elements agree."""
    source, target = _neighbours(s)
    vector = s.numbers(6).reshape(2, 3)
    works = [s.dist.isend(s.numbers(6), target), s.dist.irecv(vector, source)]
    for work in works:
        work.wait()
    s.same(vector, s.numbers(6, source).reshape(2, 3))


@states("PP-25", "PP-26")
def wrong_tensors(s: TorchSession) -> None:
    """Tensors that are not contiguous, and what is no tensor."""
    s.needs(2)
    peer = (s.rank + 1) % s.size
    s.raises((ValueError, RuntimeError), s.dist.send, s.numbers(6)[::2], peer)
    s.raises(TypeError, s.dist.send, [1, 2], peer)


@states("PP-28", "PP-29", "PP-34")
def wrong_batches(s: TorchSession) -> None:
    """Operations of a batch."""
    s.needs(2)
    peer = (s.rank + 1) % s.size
    s.raises(ValueError, s.dist.P2POp, s.dist.broadcast, s.numbers(), peer)
    operation = s.dist.P2POp(s.dist.isend, s.numbers(), peer, tag=3)
    s.members(operation, "op tensor peer group tag group_peer")
    s.raises((ValueError, TypeError), s.dist.batch_isend_irecv, ["send"])


@states("PP-30", "PP-32")
def batches(s: TorchSession) -> None:
    """A batch in any order, with a request for each operation."""
    source, target = _neighbours(s)
    for order in (1, -1):
        vector = s.numbers()
        operations = [
            s.dist.P2POp(s.dist.isend, s.numbers(), target),
            s.dist.P2POp(s.dist.irecv, vector, source),
        ][::order]
        works = s.dist.batch_isend_irecv(operations)
        s.same(len(works), 2)
        for work in works:
            work.wait()
        s.same(vector, s.numbers(rank=source))


@states("PP-36", "PP-37", "OB-11")
def lists_of_objects(s: TorchSession) -> None:
    """Lists of objects between two ranks."""
    s.needs(2)
    objects: list[Any] = ["foo", 12, {1: 2}]
    if s.rank == 0:
        s.dist.send_object_list([*objects, s.numbers(rank=5)], 1)
    elif s.rank == 1:
        received: list[Any] = [None] * 4
        s.same(s.dist.recv_object_list(received, 0), 0)
        s.same(received[:3], objects)
        s.same(received[3], s.numbers(rank=5))


@states("PP-38")
def objects_from_any(s: TorchSession) -> None:
    """Lists of objects from any rank."""
    s.needs(2)
    if s.rank == 0:
        received: list[Any] = [None]
        for _ in range(1, s.size):
            source = s.dist.recv_object_list(received)
            s.same(received, [source])
    else:
        s.dist.send_object_list([s.rank], 0)


@states("PP-40")
def objects_without_pickle(s: TorchSession) -> None:
    """Objects that no pickle has."""
    s.needs(2)
    s.raises(Exception, s.dist.send_object_list, [lambda: 0], (s.rank + 1) % s.size)


@states("WK-03", "WK-04", "WK-15")
def waits_twice(s: TorchSession) -> None:
    """wait() returns True, also again."""
    work = s.dist.all_reduce(s.numbers(), async_op=True)
    s.same((work.wait(), work.wait(), work.is_completed()), (True, True, True))
    s.same(isinstance(work, s.dist.Work), True)


@states("WK-05", "WK-06")
def futures(s: TorchSession) -> None:
    """Futures of works."""
    vector = s.numbers()
    future = s.dist.all_reduce(vector, async_op=True).get_future()
    chained = future.then(lambda future: future.value()[0] + 1)
    total = sum(s.everyone())
    s.same(future.wait()[0], total)
    s.same(chained.wait(), total + 1)


@states("WK-08")
def results_of_works(s: TorchSession) -> None:
    """What a work tells afterwards."""
    vector = s.numbers()
    work = s.dist.all_reduce(vector, async_op=True)
    work.wait()
    s.same(work.result()[0], vector)
    s.same((work.is_success(), work.exception(), work.synchronize()), (True, None, None))


@states("WK-09")
def boxes_of_works(s: TorchSession) -> None:
    """boxed() and unbox() undo each other."""
    work = s.dist.all_reduce(s.numbers(), async_op=True)
    s.same(s.dist.Work.unbox(work.boxed()).wait(), True)


@states("WK-10", "WK-11", "PP-27")
def waits_in_vain(s: TorchSession) -> None:
    """A receive without a sender raises after the timeout."""
    s.needs(2)
    group = s.dist.new_group(list(range(s.size)), timeout=timedelta(seconds=1))
    begin = time.monotonic()
    if s.rank == 0:
        work = s.dist.irecv(s.numbers(), 1, group=group)
        s.raises(RuntimeError, work.wait, timedelta(milliseconds=200))
        s.same(time.monotonic() - begin < 5, True)
    # The timeout has closed connections, also of other groups.
    s.dist.destroy_process_group()
    s.backend.initialise()


@states("OB-01", "OB-10")
def gathers_objects(s: TorchSession) -> None:
    """Every rank gets all objects."""
    objects: list[Any] = [None] * s.size
    s.same(s.dist.all_gather_object(objects, {"rank": s.rank}), None)
    s.same(objects, [{"rank": rank} for rank in range(s.size)])


@states("OB-02")
def longer_lists_of_objects(s: TorchSession) -> None:
    """Further entries stay."""
    objects: list[Any] = [None] * s.size + ["stays"]
    s.dist.all_gather_object(objects, s.rank)
    s.same(objects, [*range(s.size), "stays"])


@states("OB-03", "OB-04")
def gathers_objects_at_a_root(s: TorchSession) -> None:
    """The destination alone gets the objects."""
    objects: list[Any] | None = [None] * s.size if s.rank == 0 else None
    s.dist.gather_object(s.rank, objects)
    s.same(objects, list(range(s.size)) if s.rank == 0 else None)
    s.raises(ValueError, s.dist.gather_object, 1, objects, 0, group_dst=0)


@states("OB-05", "OB-06")
def broadcasts_objects(s: TorchSession) -> None:
    """Every rank gets the source's objects."""
    root = s.size - 1
    for source in ({"src": root}, {"group_src": root}):
        objects = ["foo", 12, {1: 2}] if s.rank == root else [None] * 3
        s.dist.broadcast_object_list(objects, **source)
        s.same(objects, ["foo", 12, {1: 2}])
    s.raises(ValueError, s.dist.broadcast_object_list, [1], src=0, group_src=0)


@states("OB-07", "OB-09")
def scatters_objects(s: TorchSession) -> None:
    """Each rank gets its object into the first place."""
    source = [f"to {rank}" for rank in range(s.size)] if s.rank == 0 else None
    objects = [None, "stays"]
    s.dist.scatter_object_list(objects, source, src=0)
    s.same(objects, [f"to {s.rank}", "stays"])


@states("OB-08")
def scatters_objects_nowhere(s: TorchSession) -> None:
    """The output list has a place."""
    s.raises(ValueError, s.dist.scatter_object_list, [], [0] * s.size, src=0)
