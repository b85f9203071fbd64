"""Grids of ranks."""

from __future__ import annotations

import numpy as np
import pytest

import simcoll.distributed as dist

GRID = [[0, 1, 2, 3], [4, 5, 6, 7]]


def run(program, nprocs=8, **kw):
    return dist.spawn(program, nprocs, **kw).returns


def test_shapes():
    """DM-01 SIG-03: init_device_mesh numbers the ranks in order."""

    def program(rank, world_size):
        one = dist.init_device_mesh("cuda", (8,))
        two = dist.init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        return one.mesh.tolist(), two.mesh.tolist(), two.shape, two.ndim, two.size(), two.size(0)

    assert run(program) == ((list(range(8)), GRID, (2, 4), 2, 8, 2),) * 8


@pytest.mark.parametrize(
    ("arguments", "kw", "text"),
    [
        (
            ("cpu", (2, 4)),
            {"mesh_dim_names": ("a",)},
            r"should have same length! Found len\(mesh_dim_names\): 1 and len\(mesh_shape\):2",
        ),
        (("cpu", (2, 4)), {"mesh_dim_names": ("a", "a")}, "Each mesh_dim_name must be unique"),
        (("cpu:0", (8,)), {}, "Device type with index is not supported but got cpu:0"),
        (
            ("cpu", (4, 4)),
            {},
            "Mesh should not be bigger than default world size 8, but found 16 ranks!",
        ),
    ],
)
def test_wrong_arguments(arguments, kw, text):
    """DM-02 DM-03 DM-04 DM-05: names that do not fit, devices with an index, meshes that are too
    large are a RuntimeError.
    """

    def program(rank, world_size):
        with pytest.raises(RuntimeError, match=text):
            dist.init_device_mesh(*arguments, **kw)

    run(program)


def test_mesh_initializes():
    """DM-06: without a default group the mesh makes one."""

    def program(rank, world_size):
        dist.init_device_mesh("cpu", (2, 4))
        return dist.is_initialized(), dist.get_backend()

    assert run(program, init=False) == ((True, "undefined"),) * 8


def test_reductions_along_dimensions():
    """DM-07 DM-08 DM-09 DM-15 DM-16: groups of dimension 0 are columns, of dimension 1 rows;
    coordinates and local ranks.
    """

    def program(rank, world_size):
        mesh = dist.DeviceMesh("cpu", GRID)
        sums = []
        for group in mesh.get_all_groups():
            x = np.array([rank])
            dist.all_reduce(x, group=group)
            sums.append(int(x[0]))
        assert (
            mesh.get_coordinate()
            == (mesh.get_local_rank(0), mesh.get_local_rank(1))
            == (rank // 4, rank % 4)
        )
        assert mesh.get_rank() == rank
        return sums

    assert run(program) == tuple([[4, 6, 8, 10][r % 4], 6 if r < 4 else 22] for r in range(8))


def test_rank_outside_of_the_mesh():
    """DM-10 DM-11: no coordinate there; group and local rank are a RuntimeError."""

    def program(rank, world_size):
        mesh = dist.DeviceMesh("cpu", [0, 2])
        if rank in (0, 2):
            return mesh.get_coordinate()
        assert mesh.get_coordinate() is None
        for call in (mesh.get_group, mesh.get_local_rank):
            with pytest.raises(RuntimeError, match=f"rank {rank} is not in the mesh"):
                call()
        return None

    assert run(program, 3) == ((0,), None, (1,))


def test_naming_a_dimension():
    """DM-12 DM-13 DM-14: by name or index; it may be left out in 1-D only; KeyError and IndexError
    for what is not there.
    """

    def program(rank, world_size):
        mesh = dist.init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        assert mesh.get_group("tp") is mesh.get_group(1)
        assert dist.init_device_mesh("cpu", (8,)).get_local_rank() == rank
        for call in (mesh.get_group, mesh.get_local_rank):
            with pytest.raises(RuntimeError, match="Found the DeviceMesh have 2 dimensions"):
                call()
            with pytest.raises(KeyError, match="Mesh dimension 'zz' does not exist"):
                call("zz")
            with pytest.raises(IndexError, match="out of range"):
                call(2)

    run(program)


def test_from_group():
    """DM-17 DM-18 DM-19 DM-20 DM-21 SIG-11: one group makes a 1-D mesh, several need mesh and names
    that fit.
    """

    def program(rank, world_size):
        rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        row, column = rows[rank // 2], columns[rank % 2]
        one = dist.DeviceMesh.from_group(row, "cpu")
        assert one.get_group() is row
        assert one.mesh.tolist() == dist.get_process_group_ranks(row)
        grid = [[0, 1], [2, 3]]
        two = dist.DeviceMesh.from_group([column, row], "cpu", grid, mesh_dim_names=("a", "b"))
        assert two.get_all_groups() == [column, row]
        for groups, mesh, names, text in (
            ([], None, None, "Expects at least one ProcessGroup to be passed"),
            ([column, row], None, ("a", "b"), "Must pass mesh if passing multiple ProcessGroups"),
            (
                [column, row],
                grid,
                None,
                "Must pass mesh_dim_names if passing multiple ProcessGroups",
            ),
            (
                [column, row],
                [0, 1, 2, 3],
                ("a",),
                "Expects mesh with ndim equal to number of ProcessGroups",
            ),
            (row, [0, 7], None, r"Invalid mesh \[0, 7\] for ProcessGroup with ranks"),
        ):
            with pytest.raises(ValueError, match=text):
                dist.DeviceMesh.from_group(groups, "cpu", mesh, mesh_dim_names=names)

    run(program, 4)


def test_world_is_used_again():
    """DM-22: a 1-D mesh of all ranks has the default group."""
    assert (
        run(lambda _, n: dist.init_device_mesh("cpu", (n,)).get_group() is dist.group.WORLD, 3)
        == (True,) * 3
    )


def test_slices():
    """DM-23: parts by name, in order; KeyError for other names or orders, RuntimeError without
    names.
    """

    def program(rank, world_size):
        mesh = dist.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        assert mesh["tp"].mesh.tolist() == [rank // 2 * 2, rank // 2 * 2 + 1]
        part = mesh["dp", "tp"]
        assert part.get_group("tp") is mesh.get_group("tp")
        assert part.mesh.tolist() == (np.arange(4).reshape(2, 2) + rank // 4 * 4).tolist()
        with pytest.raises(KeyError, match="does not exist"):
            mesh["zz"]
        with pytest.raises(KeyError, match="should be in ascending order"):
            mesh["tp", "dp"]
        with pytest.raises(RuntimeError, match="Cannot slice a DeviceMesh without mesh_dim_names!"):
            dist.init_device_mesh("cpu", (2, 4))["a"]

    run(program)


def test_equality():
    """DM-24: by device, ranks and names."""

    def program(rank, world_size):
        a, b = (dist.init_device_mesh("cpu", (2,), mesh_dim_names=("x",)) for _ in range(2))
        c = dist.init_device_mesh("cpu", (2,))
        return a == b, hash(a) == hash(b), a == c

    assert run(program, 2) == ((True, True, False),) * 2


def test_ranks_that_new_group_refuses():
    """DM-25: repeated ranks, and ranks that do not exist."""

    def program(rank, world_size):
        for mesh in ([0, 0], [0, 5]):
            with pytest.raises(ValueError, match=r"duplicate|out of range"):
                dist.DeviceMesh("cpu", mesh)

    run(program, 2)


def test_different_meshes():
    """DM-26: ranks that ask for different meshes are told, where torch hangs."""

    def program(rank, world_size):
        dist.DeviceMesh("cpu", [0, 1] if rank else [1, 0])

    with pytest.raises(RuntimeError, match=r"DeviceMesh .* differs between ranks"):
        run(program, 2)
