"""Ranks that behave alike: one program for a class, every transfer played."""

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.distributed.runtime.rank_classes import RankClasses
from simcoll.errors import ConfigError
from simcoll.topology import crossbar


def grid(rank, world_size):
    """Steps of collectives on the rows and columns of a grid, and on all ranks."""
    x, width = dist.fake_array(1 << 16), 4
    rows = [
        dist.new_group(list(range(first, first + width))) for first in range(0, world_size, width)
    ]
    columns = [dist.new_group(list(range(first, world_size, width))) for first in range(width)]
    for _ in range(2):
        dist.compute("5 us")
        work = dist.all_gather_into_tensor(
            dist.fake_array(4 << 16), x, group=rows[rank // width], async_op=True
        )
        dist.all_reduce(x, group=columns[rank % width])
        work.wait()
        dist.all_to_all_single(x, x)


def pipeline(rank, world_size):
    """Activations from one half of the ranks to the other, and gradients back."""
    half, x = world_size // 2, dist.fake_array(1 << 20)
    for _ in range(3):
        if rank >= half:
            dist.recv(x, rank - half)
        dist.compute("50 us")
        if rank < half:
            dist.send(x, rank + half)
            dist.recv(x, rank + half)
        else:
            dist.send(x, rank - half)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "alike", "topology"),
    [
        (grid, "all", crossbar(16, "50 GB/s", "1 us")),
        (pipeline, [range(8), range(8, 16)], "dgx-h100"),
        (grid, [range(16)], crossbar(16, "3 GB/s", "0 us")),
    ],
)
def test_what_is_exactly_alike_takes_exactly_the_same_time(program, alike, topology):
    every, led = (
        dist.spawn(program, 16, topology=topology, alike=classes) for classes in (None, alike)
    )
    assert led.skew_fs == 0
    assert led.finish_fs == every.finish_fs
    assert (led.messages, led.operations) == (every.messages, every.operations)


def test_ranks_that_are_not_quite_alike_wait_for_the_last_and_it_is_said():
    def program(rank, world_size):
        dist.broadcast(dist.fake_array(1 << 20), src=0, algorithm="chain")
        dist.compute("1 us")

    every, led = (dist.spawn(program, 8, alike=classes) for classes in (None, "all"))
    assert led.skew_fs > 0
    assert led.time_fs == every.time_fs
    assert len(set(led.finish_fs)) == 1


def test_followers_contribute_what_their_leader_does():
    def program(rank, world_size):
        x = np.full(4, 1.0 + rank)
        dist.all_reduce(x)
        objects = [None] * world_size
        dist.all_gather_object(objects, f"rank {rank}")
        return x.tolist(), objects

    result = dist.spawn(program, 4, alike=[[1, 2, 3]])
    # Rank 0 has 1; ranks 1 to 3 have what rank 1 has.
    assert result.returns == (([7.0] * 4, ["rank 0", "rank 1", "rank 1", "rank 1"]),) * 4
    assert result.own_ranks == (0, 1)


def test_groups_of_one_dimension_are_found():
    alike = RankClasses([0] * 8)
    rows, columns = [(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 2), (1, 3), (4, 6), (5, 7)]
    for group in rows + columns:
        alike.note_group(group)
    assert alike.like((0, 1)) == rows[1:]
    assert alike.like((0, 2)) == columns[1:]
    assert alike.like((0, 1, 2, 3)) == []


@pytest.mark.parametrize(
    ("alike", "said"),
    [
        ("every", 'expected "all"'),
        ([[0, 4]], "rank 4 of class 0 does not exist; expected 0 to 3"),
        ([[0, 1], [1, 2]], "rank 1 is in classes 0 and 1"),
    ],
)
def test_classes_that_cannot_be_are_refused(alike, said):
    with pytest.raises(ConfigError, match=said):
        dist.spawn(grid, 4, alike=alike)


def test_a_group_without_the_leader_of_a_member_is_refused():
    def program(rank, world_size):
        group = dist.new_group([0, 3])
        if rank == 0:
            dist.all_reduce(dist.fake_array(4), group=group)

    with pytest.raises(
        RuntimeError, match="rank 3 does what rank 1 does, which is not in the group"
    ):
        dist.spawn(program, 4, alike=[[1, 2, 3]])
