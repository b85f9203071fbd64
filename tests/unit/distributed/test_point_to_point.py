"""Send and receive."""

from __future__ import annotations

from datetime import timedelta

import ml_dtypes
import numpy as np
import pytest

import simcoll.distributed as dist


def run(program, nprocs=2, **kw):
    return dist.spawn(program, nprocs, **kw).returns


def test_send_and_recv():
    """PP-01 PP-02 PP-06 SIG-12: recv fills in place and returns the sender's global rank, also in a
    group and by group rank.
    """

    def program(rank, world_size):
        group = dist.new_group([1, 3])
        if rank == 1:
            assert dist.send(np.arange(3), 3, group) is None
            dist.send(np.arange(3) + 1, group=group, group_dst=1)
        if rank == 3:
            x, y, z = np.zeros(3, int), np.zeros(3, int), np.zeros(3, int)
            senders = [dist.recv(x, 1, group), dist.recv(y, group=group, group_src=0)]
            work = dist.irecv(z, group=group)
            dist.send(np.zeros(1), 1)
            work.wait()
            return x.tolist(), y.tolist(), senders, z.tolist()
        if rank == 1:
            dist.recv(np.zeros(1))
            dist.send(np.arange(3) + 2, 3, group)
        return None

    assert run(program, 4)[3] == ([0, 1, 2], [1, 2, 3], [1, 1], [2, 3, 4])


def test_naming_the_peer():
    """PP-03 PP-04 PP-10 PP-11: both or neither, or a rank that is not in the group, is a ValueError
    at once.
    """

    def program(rank, world_size):
        x, group = np.zeros(1), dist.new_group([1])
        for call in (dist.send, dist.isend):
            with pytest.raises(ValueError, match="Can't specify both group_rank and global_rank"):
                call(x, 1, group_dst=1)
            with pytest.raises(ValueError, match="Must specify global_rank or group_rank"):
                call(x)
        for call in (dist.recv, dist.irecv):
            with pytest.raises(ValueError, match="Can't specify both group_rank and global_rank"):
                call(x, 1, group_src=1)
        with pytest.raises(ValueError, match="Must specify global_rank or group_rank"):
            dist.P2POp(dist.isend, x)
        with pytest.raises(ValueError, match="Must specify global_rank or group_rank"):
            dist.send_object_list([1])
        for dst in (9, -1):
            with pytest.raises(ValueError, match=f"Global rank {dst} is not part of group"):
                dist.send(x, dst)
        if rank == 1:
            with pytest.raises(ValueError, match="Global rank 0 is not part of group"):
                dist.send(x, 0, group)

    run(program)


def test_receive_from_any():
    """PP-05 PP-19: the first that was sent; the Work knows the sender's group rank, others have
    none.
    """

    def program(rank, world_size):
        if rank == 2:
            x = np.zeros(1)
            seen = [(dist.recv(x), float(x[0])) for _ in range(2)]
            work = dist.irecv(x)
            work.wait()
            return [*seen, work.source_rank()]
        dist.compute((2 - rank) * 1e-3)
        dist.send(np.array([rank + 10.0]), 2)
        if rank == 1:
            dist.compute(1.0)
            work = dist.isend(np.zeros(1), 2)
            work.wait()
            with pytest.raises(RuntimeError, match=r"sourceRank\(\) may only be called"):
                work.source_rank()
        return None

    assert run(program, 3)[2] == [(1, 11.0), (0, 10.0), 1]


def test_to_itself():
    """PP-07 PP-08 PP-09: send and recv refuse, isend and irecv do it."""

    def program(rank, world_size):
        x, y = np.array([5.0]), np.zeros(1)
        with pytest.raises(ValueError, match="Invalid destination rank"):
            dist.send(x, rank)
        with pytest.raises(ValueError, match="Invalid source rank"):
            dist.recv(x, rank)
        works = [dist.irecv(y, rank), dist.isend(x, rank)]
        for work in works:
            work.wait()
        return float(y[0])

    assert run(program, 1) == (5.0,)


def test_tags_and_order():
    """PP-12 PP-13: tags match; messages of one tag keep their order."""

    def program(rank, world_size):
        if rank == 0:
            works = [dist.isend(np.array([i]), 1, tag=i % 2) for i in range(4)]
            for work in works:
                work.wait()
            return None
        got = []
        for tag in (1, 0, 0, 1):
            x = np.zeros(1, int)
            dist.recv(x, 0, tag=tag)
            got.append(int(x[0]))
        return got

    assert run(program)[1] == [1, 0, 2, 3]


def test_requests():
    """PP-15 PP-16 PP-18: not complete before there is a partner, complete after wait; no future, no
    result.
    """

    def program(rank, world_size):
        x = np.zeros(2)
        if rank:
            dist.compute(1.0)
            dist.isend(np.ones(2), 0).wait()
            return None
        work = dist.irecv(x, 1)
        before = work.is_completed()
        assert work.wait() is True
        with pytest.raises(RuntimeError, match="Work::getFuture not implemented"):
            work.get_future()
        with pytest.raises(RuntimeError, match="not implemented"):
            work.result()
        return before, work.is_completed(), x.tolist()

    assert run(program)[0] == (False, True, [1.0, 1.0])


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(0),
        np.array([True, False]),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([1 + 2j]),
        np.array(3.0),
        np.arange(6).reshape(2, 3),
        bytearray(b"abc"),
    ],
    ids=["empty", "bool", "bfloat16", "complex", "0-d", "2-d", "bytearray"],
)
def test_what_is_sent(value):
    """PP-20 PP-24: any dtype and size; shapes may differ if the number of elements does not."""

    def program(rank, world_size):
        if rank == 0:
            dist.send(value, 1)
            return None
        array = np.asarray(value)
        x = np.zeros(array.size, array.dtype)
        dist.recv(x, 0)
        return x.tolist() == array.reshape(-1).tolist()

    assert run(program)[1]


@pytest.mark.parametrize(
    ("size", "dtype", "debug", "text"),
    [
        (
            5,
            "float64",
            True,
            "rank 0 sends 3 elements of float64 with tag 0; rank 1 receives 5 of float64",
        ),
        (5, "float64", False, None),
        (2, "float64", False, "sends 3 elements .* receives 2"),
        (3, "float32", False, "of float64 .* of float32"),
    ],
)
def test_buffers_that_do_not_fit(size, dtype, debug, text):
    """PP-21 PP-22 PP-23: shorter or of another dtype is an error at both ends; longer is one unless
    debug=False.
    """

    def program(rank, world_size):
        x = np.ones(3) if rank == 0 else np.zeros(size, dtype)
        call = (lambda: dist.send(x, 1)) if rank == 0 else (lambda: dist.recv(x, 0))
        if text is None:
            call()
        else:
            with pytest.raises(RuntimeError, match=text):
                call()
        return x.tolist()

    got = run(program, debug=debug)[1]
    assert text is not None or got == [1, 1, 1, 0, 0]


def test_wrong_tensors():
    """PP-25 PP-26: arrays must be contiguous, and arrays."""

    def program(rank, world_size):
        with pytest.raises(RuntimeError, match="input tensor has to be contiguous"):
            dist.send(np.zeros((4, 4))[:, 1], 1)
        with pytest.raises(
            TypeError,
            match=r"Expected parameter `tensor` of type torch.Tensor but got <class 'list'> "
            r"instead",
        ):
            dist.send([1, 2], 1)
        with pytest.raises(RuntimeError, match="read-only"):
            dist.recv(np.frombuffer(b"abcd", np.uint8), 1)

    run(program, 1)


def test_timeout_of_a_receive():
    """PP-27: wait gives up after its timeout, on the emulated clock."""

    def program(rank, world_size):
        if rank == 0:
            work = dist.irecv(np.zeros(1), 1)
            with pytest.raises(
                RuntimeError, match="Timed out waiting 500ms for recv operation to complete"
            ):
                work.wait(timedelta(milliseconds=500))
            return dist.emulated_time()
        return None

    assert run(program)[0] == 0.5


def test_p2p_ops():
    """PP-28 PP-29: op is isend or irecv; attributes."""

    def program(rank, world_size):
        x, group = np.zeros(1), dist.new_group([1, 2])
        with pytest.raises(ValueError, match="Invalid ``op``"):
            dist.P2POp(dist.send, x, 1)
        if rank == 0:
            return None
        op = dist.P2POp(dist.isend, x, 2, group, 7)
        assert (op.op, op.peer, op.tag, op.group_peer) == (dist.isend, 2, 7, 1)
        assert op.tensor is x
        assert op.group is group
        return dist.P2POp(dist.irecv, x, group=group, group_peer=0).peer

    assert run(program, 3) == (None, 1, 1)


@pytest.mark.parametrize("receive_first", [True, False])
def test_batch(receive_first):
    """PP-30 PP-31 PP-32 PP-33 SIG-14: the documentation's ring; one request per op, in any order,
    matching in list order.
    """

    def program(rank, world_size):
        sent, got, more = np.arange(2) + 2 * rank, np.zeros(2, int), np.zeros(2, int)
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        ops = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.isend, sent + 10, right)]
        back = [dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.irecv, more, left)]
        works = dist.batch_isend_irecv(back + ops if receive_first else ops + back)
        assert len(works) == 4
        for work in works:
            work.wait()
        return got.tolist(), more.tolist()

    assert run(program) == (([2, 3], [12, 13]), ([0, 1], [10, 11]))


def test_wrong_batches():
    """PP-34: no list, no ops, other things, several groups."""

    def program(rank, world_size):
        op, group = dist.P2POp(dist.isend, np.zeros(1), 0), dist.new_group()
        for wrong in (op, [], [op, 1]):
            with pytest.raises(ValueError, match="Invalid ``p2p_op_list``"):
                dist.batch_isend_irecv(wrong)
        with pytest.raises(ValueError, match="All ops need to use the same group"):
            dist.batch_isend_irecv([op, dist.P2POp(dist.isend, np.zeros(1), 0, group)])

    run(program, 1)


def test_object_lists():
    """PP-36 PP-37 PP-38 PP-39 SIG-13: lists of equal length, from a rank or any, not to itself."""

    def program(rank, world_size):
        things = ["foo", 12, {1: 2}]
        with pytest.raises(ValueError, match="Invalid destination rank"):
            dist.send_object_list(things, rank)
        with pytest.raises(ValueError, match="Invalid source rank"):
            dist.recv_object_list(things, rank)
        if rank == 0:
            dist.send_object_list(things, 1)
            dist.send_object_list(things, 1)
            with pytest.raises(RuntimeError, match="sends 3 elements"):
                dist.send_object_list(things, 1)
            return None
        got, more = [None] * 3, [None] * 3
        senders = dist.recv_object_list(got, 0), dist.recv_object_list(more)
        with pytest.raises(RuntimeError, match="receives 2"):
            dist.recv_object_list([None] * 2, 0)
        return got == more == things, senders

    assert run(program)[1] == (True, (0, 0))


def test_objects_that_need_pickle():
    """PP-40: what cannot be encoded raises on the sender, and says how to opt in."""

    def program(rank, world_size):
        if rank == 0:
            with pytest.raises(Exception, match="trusted=True"):
                dist.send_object_list([print], 1)
            dist.send_object_list([print], 1, trusted=True)
            return None
        got = [None]
        dist.recv_object_list(got, 0, trusted=True)
        return got[0] is print

    assert run(program)[1]


def test_a_message_takes_its_time():
    # Crossbar, 50 GB/s and 1 us: 50 kB take 2 us. The receiver comes 5 us late.
    def program(rank, world_size):
        if rank == 0:
            dist.send(np.zeros(50_000, np.uint8), 1)
        else:
            dist.compute("5 us")
            dist.recv(np.zeros(50_000, np.uint8), 0)
        return dist.emulated_time()

    assert run(program) == (7e-6, 7e-6)


def test_two_receives_may_share_a_tensor():
    """PyTorch's pipelines make their connections so; the message that comes last stays, and a
    change by the program is still found.
    """

    def program(rank, world_size, late, first):
        if rank != 1:
            dist.compute(f"{1 + rank} us")
            dist.send(np.full(2, float(rank)), 1)
            return None
        x = np.zeros(2)
        works = [dist.irecv(x, 0), dist.irecv(x, 2)]
        works[first].wait()
        if late:
            x[0] = 5
        works[1 - first].wait()
        return x.tolist()

    for first in (0, 1):
        assert dist.spawn(program, 3, args=(False, first)).returns[1] == [2, 2]
    with pytest.raises(RuntimeError, match=r"the output buffer of recv .* was changed while"):
        dist.spawn(program, 3, args=(True, 0))
