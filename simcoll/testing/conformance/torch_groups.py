"""Statements on groups, on calls from outside of a group, and on meshes."""

from __future__ import annotations

import warnings
from typing import Any

from simcoll.testing.conformance.torch_session import TorchSession, states


def _first(s: TorchSession) -> Any:
    """A group of all ranks but the last; needs two ranks."""
    s.needs(2)
    return s.dist.new_group(list(range(s.size - 1)))


@states("GR-02", "GR-03", "GR-04", "GR-05", "GR-13")
def group_of_some(s: TorchSession) -> None:
    """A group as its members and as others see it."""
    group = _first(s)
    member = s.rank < s.size - 1
    rank, size = (s.rank, s.size - 1) if member else (-1, -1)
    s.same(s.dist.get_rank(group), rank)
    s.same(s.dist.get_world_size(group), size)
    if member:
        s.same(s.dist.get_backend(group), s.dist.get_backend())
    else:
        s.same(group is s.dist.GroupMember.NON_GROUP_MEMBER, True)
        s.raises(ValueError, s.dist.get_backend, group)


@states("GR-06")
def group_of_all(s: TorchSession) -> None:
    """A group of all ranks is not the world."""
    group = s.dist.new_group()
    s.same(group is s.dist.group.WORLD, False)
    s.same(s.dist.get_process_group_ranks(group), list(range(s.size)))


@states("GR-09", "GR-10", "GR-11", "GR-12")
def wrong_ranks(s: TorchSession) -> None:
    """Ranks that no group can have."""
    for ranks in ([0, 0], [s.size], list(range(s.size + 1))):
        s.raises(ValueError, s.dist.new_group, ranks)
    s.raises(Exception, s.dist.new_group, [])


@states("GR-14")
def local_synchronisation(s: TorchSession) -> None:
    """Only members call."""
    s.needs(2)
    if s.rank == s.size - 1:
        return
    ranks = list(range(s.size - 1))
    group = s.dist.new_group(ranks, use_local_synchronization=True)
    vector = s.numbers()
    s.dist.all_reduce(vector, group=group)
    s.same(vector, sum(s.numbers(rank=rank) for rank in ranks))


@states("GR-16")
def descriptions(s: TorchSession) -> None:
    """Descriptions of groups."""
    group = s.dist.new_group(group_desc="mine")
    s.same(group.group_desc, "mine")
    group = s.dist.new_group()
    s.same(group.group_desc, "undefined")
    world = s.dist.group.WORLD
    s.same(world.group_desc, "default_pg")


@states("GR-17", "GR-18", "GR-21")
def translation(s: TorchSession) -> None:
    """Ranks of a group and of the world."""
    s.needs(2)
    group = s.dist.new_group([0, s.size - 1])
    if s.rank not in (0, s.size - 1):
        return
    last = s.size - 1
    refusals = (ValueError, RuntimeError)
    to_group, to_world = s.dist.get_group_rank, s.dist.get_global_rank
    s.same(to_group(group, last), 1)
    s.same(to_world(group, 1), last)
    ranks = s.dist.get_process_group_ranks(group)
    s.same(ranks, [0, last])
    s.raises(refusals, to_group, group, s.size)
    s.raises(refusals, to_world, group, 2)


@states("GR-19", "GR-20")
def translation_in_the_world(s: TorchSession) -> None:
    """The world translates nothing, and None is refused."""
    for translate in (s.dist.get_group_rank, s.dist.get_global_rank):
        rank = translate(s.dist.group.WORLD, s.rank)
        s.same(rank, s.rank)
        s.raises(ValueError, translate, None, 0)


@states("GR-25")
def subgroups(s: TorchSession) -> None:
    """Subgroups divide the world."""
    s.raises(ValueError, s.dist.new_subgroups, s.size + 1)
    group, groups = s.dist.new_subgroups(1)
    s.same((len(groups), s.dist.get_world_size(group)), (s.size, 1))
    if s.size > 1:
        lists = [[0, 1], [0]]
        s.raises(ValueError, s.dist.new_subgroups_by_enumeration, lists)


@states("NM-01", "NM-02", "NM-03", "NM-08")
def collectives_outside(s: TorchSession) -> None:
    """Calls of one that is no member do nothing."""
    group = _first(s)
    if s.rank < s.size - 1:
        return
    vector = s.numbers()
    expected = s.numbers()
    objects = ["mine"]
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        s.same(s.dist.all_reduce(vector, group=group), None)
    s.same(len(messages) > 0, True)
    s.same(s.dist.all_reduce(vector, group=group, async_op=True), None)
    s.same(s.dist.broadcast(vector, 0, group=group), None)
    s.same(s.dist.reduce(vector, 0, group=group), None)
    s.same(s.dist.all_gather([vector], vector, group=group), None)
    s.same(s.dist.all_gather_object(objects, "other", group=group), None)
    s.same(s.dist.broadcast_object_list(objects, 0, group=group), None)
    s.same(s.dist.barrier(group=group), None)
    s.same((vector.tolist(), objects), (expected.tolist(), ["mine"]))


@states("NM-04")
def monitored_barrier_outside(s: TorchSession) -> None:
    """A monitored barrier of one that is no member."""
    group = _first(s)
    if s.rank == s.size - 1:
        s.same(s.dist.monitored_barrier(group=group), None)


@states("NM-05", "NM-06")
def messages_outside(s: TorchSession) -> None:
    """Messages of one that is no member."""
    group = _first(s)
    if s.rank < s.size - 1:
        return
    vector = s.numbers()
    source = s.dist.recv(vector, 0, group=group)
    s.same(source, -1)
    for name in ("isend", "irecv"):
        work = getattr(s.dist, name)(vector, 0, group=group)
        s.same(work, None)
    s.raises(ValueError, s.dist.send, vector, 0, group=group)


def _mesh(shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=names)


@states("DM-01", "DM-09", "DM-16", "DM-22", "DM-12")
def mesh_of_one_dimension(s: TorchSession) -> None:
    """Positions in a mesh of all ranks."""
    mesh = _mesh((s.size,), ("all",))
    s.same(mesh.mesh.tolist(), list(range(s.size)))
    s.same(list(mesh.get_coordinate()), [s.rank])
    s.same((mesh.get_rank(), mesh.get_local_rank()), (s.rank, s.rank))
    s.same(s.dist.get_process_group_ranks(mesh.get_group()), list(range(s.size)))
    s.same(mesh.get_group("all") is mesh.get_group(0), True)


@states("DM-02", "DM-03", "DM-04", "DM-05")
def wrong_meshes(s: TorchSession) -> None:
    """Meshes that cannot be."""
    from torch.distributed.device_mesh import init_device_mesh

    s.raises(RuntimeError, _mesh, (s.size,), ("a", "b"))
    s.raises(RuntimeError, _mesh, (s.size, 1), ("a", "a"))
    s.raises(RuntimeError, init_device_mesh, "cpu:0", (s.size,))
    s.raises(RuntimeError, _mesh, (s.size + 1,))


@states("DM-07", "DM-08", "DM-13", "DM-14", "DM-15", "DM-23")
def mesh_of_two_dimensions(s: TorchSession) -> None:
    """Groups along the dimensions of a mesh."""
    if s.size % 2:
        _mesh((s.size, 1), ("rows", "columns"))
        s.needs(s.size + 1)
    mesh = _mesh((2, s.size // 2), ("rows", "columns"))
    width = s.size // 2
    column = [s.rank % width, s.rank % width + width]
    ranks = s.dist.get_process_group_ranks(mesh.get_group("rows"))
    s.same(ranks, column)
    row = mesh.get_local_rank("rows")
    s.same(row, s.rank // width)
    place = mesh.get_local_rank(1)
    s.same(place, s.rank % width)
    s.raises(RuntimeError, mesh.get_local_rank)
    s.raises(KeyError, mesh.get_group, "depth")
    s.raises(IndexError, mesh.get_local_rank, 5)
    s.same(len(mesh.get_all_groups()), 2)
    s.same(mesh["rows"].mesh.tolist(), column)
    s.raises(KeyError, lambda: mesh["depth"])


@states("DM-10", "DM-11")
def outside_of_a_mesh(s: TorchSession) -> None:
    """A rank that a mesh does not have."""
    from torch.distributed.device_mesh import DeviceMesh

    s.needs(2)
    mesh = DeviceMesh("cpu", list(range(s.size - 1)))
    if s.rank == s.size - 1:
        s.same(mesh.get_coordinate(), None)
        s.raises(Exception, mesh.get_local_rank, 0)


@states("DM-17", "DM-18", "DM-19", "DM-21")
def meshes_of_groups(s: TorchSession) -> None:
    """Meshes from groups that exist."""
    from torch.distributed.device_mesh import DeviceMesh

    group = s.dist.new_group()
    mesh = DeviceMesh.from_group(group, "cpu")
    s.same(mesh.mesh.tolist(), list(range(s.size)))
    s.same(s.dist.get_process_group_ranks(mesh.get_group()), list(range(s.size)))
    s.raises(ValueError, DeviceMesh.from_group, [group, group], "cpu")
    s.raises(ValueError, DeviceMesh.from_group, [], "cpu")
    s.raises(ValueError, DeviceMesh.from_group, group, "cpu", mesh=[s.size])


@states("DM-24")
def equal_meshes(s: TorchSession) -> None:
    """Meshes are equal when their ranks and names are."""
    s.same(_mesh((s.size,), ("a",)) == _mesh((s.size,), ("a",)), True)
    s.same(_mesh((s.size,), ("a",)) == _mesh((s.size,), ("b",)), False)
