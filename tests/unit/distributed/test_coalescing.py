"""Blocks of coalesced calls, groups that are split, and meshes that are flattened."""

from __future__ import annotations

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.distributed import distributed_c10d


def test_calls_that_are_alike_become_one_operation():
    def program(rank, world_size):
        a, b, c = np.ones(2), np.full(3, rank, np.int32), np.full(2, float(rank))
        with dist._coalescing_manager():
            dist.all_reduce(a)
            dist.all_reduce(b)
            dist.all_reduce(c)
            assert a.tolist() == [1, 1]  # nothing has run
        wide = [np.zeros(2 * world_size), np.zeros(2 * world_size)]
        with distributed_c10d._coalescing_manager(async_ops=True) as both:
            dist.all_gather_into_tensor(wide[0], c + rank)
            dist.all_gather_into_tensor(wide[1], a)
        both.wait()
        parts = [np.zeros(2), np.zeros(2)]
        with distributed_c10d._coalescing_manager():
            dist.reduce_scatter_tensor(parts[0], wide[0])
            dist.reduce_scatter_tensor(parts[1], wide[1])
            dist.broadcast(c, rank * 0 + 1)
        with (
            distributed_c10d._coalescing_manager(),
            pytest.raises(ValueError, match="cannot be nested"),
            distributed_c10d._coalescing_manager(),
        ):
            pass
        return [each.tolist() for each in (a, b, c, *wide, *parts)]

    result = dist.spawn(program, 3)
    for rank, (a, b, c, first, second, one, other) in enumerate(result.returns):
        assert (a, b, c) == ([3, 3], [3, 3, 3], [3, 3])
        assert (first, second) == ([3, 3, 4, 4, 5, 5], [3] * 6)
        assert (one, other) == ([9 + 3 * rank] * 2, [9, 9])
    assert sorted(record.name for record in result.records) == [
        "all_gather_coalesced",
        "all_reduce",
        "all_reduce_coalesced",
        "broadcast",
        "reduce_scatter_coalesced",
    ]


def test_groups_are_split_by_their_members():
    def program(rank, world_size):
        half = dist.split_group(split_ranks=[[2, 0, 1], [3, 4]], group_desc="half")
        if half is None:
            return None
        # Ranks of the group, of which each half has its own.
        part = dist.split_group(half, [[1, 0]])
        x = np.array([rank])
        if part is not None:
            dist.all_reduce(x, group=part)
        return dist.get_process_group_ranks(half), half.group_desc, x.item()

    whole, rest = ([0, 1, 2], "half"), ([3, 4], "half")
    assert dist.spawn(program, 6).returns == (
        (*whole, 1),
        (*whole, 1),
        (*whole, 2),
        (*rest, 7),
        (*rest, 7),
        None,
    )


@pytest.mark.parametrize(
    ("lists", "text"),
    [
        (None, "cannot be None or empty"),
        ([[]], "cannot be empty"),
        ([[0, 0]], "duplicate ranks"),
        ([[0], [1, 0]], "duplicate ranks"),
        ([[2]], r"expected ranks of the group, 0\.\.1"),
    ],
)
def test_splits_that_are_none(lists, text):
    with pytest.raises(ValueError, match=text):
        dist.spawn(lambda *_: dist.split_group(split_ranks=lists), 2)


def test_subgroups_of_a_group():
    def program(rank, world_size):
        if rank == 4:
            dist.new_group([0, 1, 2, 3])
            return None
        four = dist.new_group([0, 1, 2, 3])
        if four is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        mine, every = dist.new_subgroups(2, group=four)
        return dist.get_process_group_ranks(mine), len(every)

    assert dist.spawn(program, 6).returns == (
        ([0, 1], 2),
        ([0, 1], 2),
        ([2, 3], 2),
        ([2, 3], 2),
        None,
        None,
    )


def test_meshes_are_flattened():
    def program(rank, world_size):
        mesh = dist.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
        flat = mesh["b", "c"]._flatten()
        assert mesh["b", "c"]._flatten() is flat
        assert mesh["b_c"] is flat
        every = mesh._flatten("all")
        assert every.get_group() is dist.group.WORLD
        assert mesh["a"]._flatten() == mesh["a"]
        with pytest.raises(ValueError, match="'a' already exists"):
            mesh._flatten("a")
        with pytest.raises(RuntimeError, match="without mesh_dim_names"):
            dist.init_device_mesh("cpu", (2, 4))._flatten()
        x = np.array([rank])
        dist.all_reduce(x, group=flat.get_group())
        return flat.mesh.tolist(), flat.get_local_rank(), x.item()

    for rank, (ranks, local, total) in enumerate(dist.spawn(program, 8).returns):
        assert ranks == ([0, 1, 2, 3], [4, 5, 6, 7])[rank // 4]
        assert (local, total) == (rank % 4, (6, 22)[rank // 4])


def test_a_flight_record_goes_to_a_path_of_any_kind(tmp_path):
    result = dist.spawn(lambda *_: dist.barrier(), 2)
    result.write_flight_record(0, str(tmp_path / "text.json"))
    result.write_flight_record(0, tmp_path / "path.json")
    assert (tmp_path / "text.json").read_bytes() == (tmp_path / "path.json").read_bytes()
