"""Groups, ranks in them, and what ranks outside of them get."""

from __future__ import annotations

import numpy as np
import pytest

import simcoll.distributed as dist


def run(program, nprocs=4, **kw):
    return dist.spawn(program, nprocs, **kw).returns


def test_ranks_and_sizes():
    """GR-01 GR-02 GR-03 GR-05 GR-13 SIG-07: ranks count from 0; outside of a group rank and size
    are -1, get_backend raises.
    """

    def program(rank, world_size):
        group = dist.new_group([1, 2])
        if rank in (1, 2):
            return (
                dist.get_rank(),
                dist.get_rank(group),
                dist.get_world_size(group),
                dist.get_backend(group),
            )
        assert group is dist.GroupMember.NON_GROUP_MEMBER
        with pytest.raises(ValueError, match="Invalid process group specified"):
            dist.get_backend(group)
        return dist.get_rank(), dist.get_rank(group), dist.get_world_size(group)

    assert run(program) == ((0, -1, -1), (1, 0, 2, "emulator"), (2, 1, 2, "emulator"), (3, -1, -1))


def test_new_group_is_called_by_all():
    """GR-04: members wait for each other, others go on at once."""

    def program(rank, world_size):
        if rank == 2:
            dist.compute(1e-3)
        dist.new_group([1, 2])
        return dist.emulated_time()

    assert run(program) == (0.0, 1e-3, 1e-3, 0.0)


def test_groups_of_all_are_new_and_independent():
    """GR-06 GR-07 GR-16: ranks=None makes a new group; equal members make another; descriptions."""

    def program(rank, world_size):
        a, b = dist.new_group(), dist.new_group(group_desc="second")
        assert a is not dist.group.WORLD
        x, y = np.array([1.0]), np.array([10.0])
        first = dist.all_reduce(x, group=a if rank % 2 else b, async_op=True)
        second = dist.all_reduce(y, group=b if rank % 2 else a, async_op=True)
        first.wait(), second.wait()
        return float(x[0]), float(y[0]), dist.group.WORLD.group_desc, a.group_desc, b.group_desc

    texts = ("default_pg", "undefined", "second")
    assert run(program) == ((22.0, 22.0, *texts),) * 4


def test_order_of_ranks():
    """GR-08: group ranks rise with global ranks, unless sort_ranks=False."""

    def program(rank, world_size):
        return dist.get_rank(dist.new_group([3, 1])), dist.get_rank(
            dist.new_group([3, 1], sort_ranks=False)
        )

    assert run(program) == ((-1, -1), (0, 1), (-1, -1), (1, 0))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([1, 1], "ranks list must not contain duplicate entries"),
        ([9], r"Rank 9 is out of range. Valid ranks are 0 to 3 \(world_size=4\)"),
        ([0, 1, 2, 3, 4], "the new group's world size should be less or equal"),
        ([], "ranks is empty"),
    ],
)
def test_wrong_ranks(ranks, text):
    """GR-09 GR-10 GR-11 GR-12: repeated, missing, too many or no ranks are a ValueError."""

    def program(rank, world_size):
        with pytest.raises(ValueError, match=text):
            dist.new_group(ranks)

    run(program)


def test_local_synchronization():
    """GR-14: only the members call; others that call get None."""

    def program(rank, world_size):
        if rank == 3:
            return None
        group = dist.new_group([1, 2], use_local_synchronization=True)
        if group is None:
            return None
        x = np.array([rank])
        dist.all_reduce(x, group=group)
        return int(x[0])

    assert run(program) == (None, 3, 3, None)


def test_translation():
    """GR-17 GR-18 GR-19 GR-20 GR-21 GR-22 SIG-10: group and global ranks; ValueError for who is not
    in the group.
    """

    def program(rank, world_size):
        group = dist.new_group([1, 3])
        world = dist.group.WORLD
        assert dist.get_group_rank(world, 7) == dist.get_global_rank(world, 7) == 7
        for function in (dist.get_group_rank, dist.get_global_rank):
            with pytest.raises(ValueError, match="Group None is not registered"):
                function(None, 0)
        assert dist.get_process_group_ranks(None) == [0, 1, 2, 3]
        if rank not in (1, 3):
            with pytest.raises(ValueError, match="Invalid process group"):
                dist.get_process_group_ranks(group)
            return
        with pytest.raises(ValueError, match="Global rank 0 is not part of group"):
            dist.get_group_rank(group, 0)
        with pytest.raises(ValueError, match="Group rank 2 is not part of group"):
            dist.get_global_rank(group, 2)
        assert [dist.get_group_rank(group, r) for r in (1, 3)] == [0, 1]
        assert [dist.get_global_rank(group, r) for r in (0, 1)] == [1, 3]
        assert dist.get_process_group_ranks(group) == [1, 3]

    run(program)


def test_groups_made_in_different_order():
    """GR-23: ranks that ask for different groups at the same time are told."""

    def program(rank, world_size):
        dist.new_group([0, 1] if rank != 1 else [1, 2])

    with pytest.raises(
        RuntimeError, match=r"differs between ranks: rank 0 asked for \(0, 1\), rank 1 for \(1, 2\)"
    ):
        run(program)


def test_a_late_rank_that_asks_for_another_group_is_told():
    """Ranks that are not in a group do not wait for it, but still learn that they asked for another
    one.
    """

    def program(rank, world_size):
        if rank < 2:
            return dist.new_group([0, 1]).size()
        dist.compute("1 ms")
        with pytest.raises(RuntimeError, match=r"rank 0 asked for \(0, 1\), rank 2 for \(0, 3\)"):
            dist.new_group([0, 3])
        return 0

    assert run(program) == (2, 2, 0, 0)


def test_collectives_on_two_groups_in_any_order():
    """GR-24: asynchronous operations of two groups may be issued in different orders."""

    def program(rank, world_size):
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        if rank > 1:
            return None
        x = [np.array([rank + 1.0]), np.array([10.0 * (rank + 1)])]
        order = [0, 1] if rank else [1, 0]
        works = [dist.all_reduce(x[i], group=groups[i], async_op=True) for i in order]
        for work in works:
            work.wait()
        return x[0].tolist() + x[1].tolist()

    assert run(program)[:2] == ([3.0, 30.0], [3.0, 30.0])


def test_subgroups():
    """GR-25: new_subgroups cuts the world evenly; by enumeration, a rank is in one list at most."""

    def program(rank, world_size):
        with pytest.raises(ValueError, match=r"must be divisible by 'group_size=3'"):
            dist.new_subgroups(3)
        with pytest.raises(ValueError, match="not exceed the world size"):
            dist.new_subgroups(5)
        with pytest.raises(ValueError, match="has appeared in both subgroup 0 and 1"):
            dist.new_subgroups_by_enumeration([[0, 1], [1, 2]])
        mine, every = dist.new_subgroups(2)
        other, _ = dist.new_subgroups_by_enumeration([[0, 3]])
        return dist.get_process_group_ranks(mine), len(every), other is None

    assert run(program) == (
        ([0, 1], 2, False),
        ([0, 1], 2, True),
        ([2, 3], 2, True),
        ([2, 3], 2, False),
    )


def outside(call, name):
    with pytest.warns(
        UserWarning,
        match=f"Running {name} on global rank 0 which does not belong to the given group",
    ) as warned:
        found = call()
    assert [warning.filename for warning in warned] == [__file__]
    return found


def test_collectives_outside_of_the_group():
    """NM-01 NM-02 NM-03 NM-04 NM-08: a warning, None, nothing is touched and nobody waits."""

    def program(rank, world_size):
        group = dist.new_group([1])
        if rank:
            return
        x, y, objects = np.ones(2), np.ones(4), ["keep", "keep"]
        calls = {
            "broadcast": lambda **kw: dist.broadcast(x, 1, group, **kw),
            "all_reduce": lambda **kw: dist.all_reduce(x, group=group, **kw),
            "reduce": lambda **kw: dist.reduce(x, 1, group=group, **kw),
            "all_gather": lambda **kw: dist.all_gather([x], x, group, **kw),
            "all_gather_into_tensor": lambda **kw: dist.all_gather_into_tensor(y, x, group, **kw),
            "gather": lambda **kw: dist.gather(x, None, 1, group, **kw),
            "scatter": lambda **kw: dist.scatter(x, None, 1, group, **kw),
            "reduce_scatter": lambda **kw: dist.reduce_scatter(x, [x], group=group, **kw),
            "reduce_scatter_tensor": lambda **kw: dist.reduce_scatter_tensor(
                x, y, group=group, **kw
            ),
            "all_to_all_single": lambda **kw: dist.all_to_all_single(x, y, group=group, **kw),
            "all_to_all": lambda **kw: dist.all_to_all([x], [x], group, **kw),
            "barrier": lambda **kw: dist.barrier(group, **kw),
        }
        for name, call in calls.items():
            assert outside(call, name) is None
            assert outside(lambda call=call: call(async_op=True), name) is None
        objects_calls = {
            "all_gather_object": lambda: dist.all_gather_object(objects, 1, group),
            "gather_object": lambda: dist.gather_object(1, objects, 1, group),
            "broadcast_object_list": lambda: dist.broadcast_object_list(objects, 1, group),
            "scatter_object_list": lambda: dist.scatter_object_list(objects, [1], 1, group),
            "monitored_barrier": lambda: dist.monitored_barrier(group),
        }
        for name, call in objects_calls.items():
            assert outside(call, name) is None
        assert (x.tolist(), y.tolist(), objects) == ([1, 1], [1] * 4, ["keep", "keep"])

    run(program, 2)


def test_point_to_point_outside_of_the_group():
    """NM-05 NM-06 NM-07: recv gives -1, isend and irecv None, send raises, object lists None and
    -1.
    """

    def program(rank, world_size):
        group = dist.new_group([1])
        if rank:
            return
        x = np.ones(2)
        assert outside(lambda: dist.recv(x, 1, group), "recv") == -1
        assert outside(lambda: dist.isend(x, 1, group), "isend") is None
        assert outside(lambda: dist.irecv(x, 1, group), "irecv") is None
        with (
            pytest.warns(UserWarning, match="Running send"),
            pytest.raises(ValueError, match="Invalid process group specified"),
        ):
            dist.send(x, 1, group)
        assert outside(lambda: dist.send_object_list([1], 1, group), "send_object_list") is None
        assert outside(lambda: dist.recv_object_list([1], 1, group), "recv_object_list") == -1

    run(program, 2)


def test_a_handle_of_another_rank():
    def program(rank, world_size, seen):
        group = dist.new_group([0, 1])
        seen.append(group)
        dist.barrier()
        other = next(each for each in seen if each.global_rank != rank)
        with pytest.raises(ValueError, match=f"handle of rank {1 - rank}, used on rank {rank}"):
            dist.all_reduce(np.ones(1), group=other)
        with pytest.raises(ValueError, match="expected what new_group returned"):
            dist.all_reduce(np.ones(1), group="all")

    run(program, 2, args=([],))
