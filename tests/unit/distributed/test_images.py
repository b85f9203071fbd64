"""Groups that are images of each other: one is played for all, with the same results as if all
were.
"""

import math
import random
from collections import Counter

import pytest

import simcoll.distributed as dist
from simcoll.distributed.runtime import followers
from simcoll.distributed.runtime.followers import AlikeCalls, Followers
from simcoll.emulator.reference import fabric
from simcoll.topology import crossbar, fat_tree, torus


@pytest.fixture
def counted(monkeypatch):
    """Counts the groups that were played, those that were not, those that joined late, and the
    replays, of which some had to go on rank by rank.
    """
    count = Counter()
    begin, catch_up = AlikeCalls.begin, followers.Emulator.catch_up
    replay, go_on = Followers._replay, Followers.go_on_by_ranks

    def count_groups(self, operation):
        players = begin(self, operation)
        count["played"] += len(set(players))
        count["images"] += len(players) - len(set(players))
        return players

    def count_joins(self, joining=(), ended=()):
        count["joined"] += len(joining)
        count["ended"] += len(ended)
        catch_up(self, joining, ended)

    def count_replays(self):
        replays = replay(self)
        count["replays"] += replays
        return replays

    def count_breaks(self):
        count["gave up"] += 1
        go_on(self)

    monkeypatch.setattr(Followers, "_replay", count_replays)
    monkeypatch.setattr(Followers, "go_on_by_ranks", count_breaks)
    monkeypatch.setattr(AlikeCalls, "begin", count_groups)
    monkeypatch.setattr(followers.Emulator, "catch_up", count_joins)
    return count


def mesh_groups(rank, world_size, sizes):
    """The rank's groups in the dimensions of a mesh, the innermost first."""
    groups, stride = [], 1
    for size in reversed(sizes):
        span = stride * size
        dimension = [
            [first + offset + stride * place for place in range(size)]
            for first in range(0, world_size, span)
            for offset in range(stride)
        ]
        made = {tuple(members): dist.new_group(members) for members in dimension}
        groups.append(next(group for members, group in made.items() if rank in members))
        stride = span
    return groups


def mesh_program(rank, world_size, sizes, seed):
    """Calls on the dimensions of a mesh, and on all ranks, some of them side by side."""
    draw = random.Random(seed)
    groups = [*mesh_groups(rank, world_size, sizes), None]
    works = []
    for _ in range(14):
        group = draw.choice(groups)
        size = dist.get_world_size(group)
        x = dist.fake_array(size * draw.choice([64, 1 << 14, 1 << 18]))
        kind = draw.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
        if kind == "all_reduce":
            work = dist.all_reduce(x, group=group, async_op=True)
        elif kind == "all_gather":
            whole = dist.fake_array(size * x.size)
            work = dist.all_gather_into_tensor(whole, x, group=group, async_op=True)
        elif kind == "reduce_scatter":
            part = dist.fake_array(x.size // size)
            work = dist.reduce_scatter_tensor(part, x, group=group, async_op=True)
        else:
            work = dist.all_to_all_single(x, x, group=group, async_op=True)
        works.append(work)
        if draw.random() < 0.3:
            dist.compute(f"{draw.choice([1, 7, 40])} us")
        while works and draw.random() < 0.5:
            works.pop(draw.randrange(len(works))).wait()
    for work in works:
        work.wait()


def summary(result):
    """What must not depend on the groups that are played."""
    return (
        result.finish_fs,
        result.trace_hash,
        result.messages,
        result.operations,
        result.skew_fs,
        sorted(str(record) for record in result.records),
    )


MACHINES = [
    (crossbar(16, "50 GB/s", "1 us"), (2, 2, 4), {}),
    (torus((4, 4), "50 GB/s", "1 us"), (4, 4), {}),
    (fat_tree(4, 4, "50 GB/s", "1 us"), (4, 4), {}),
    ("dgx-h100", (2, 8), {"library": "nccl"}),
    ("dgx-h100", (2, 2, 4), {}),
]


def both(monkeypatch, program, machine, sizes, *args, **options):
    """A run that plays one group for its images, and one that plays all."""
    options |= {"args": (sizes, *args), "topology": machine, "alike": "all"}
    images = dist.spawn(program, math.prod(sizes), **options)
    with monkeypatch.context() as patch:
        patch.setattr(followers, "is_small", lambda _: False)
        patch.setattr(Followers, "_replay", lambda _: False)
        return images, dist.spawn(program, math.prod(sizes), **options)


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "sizes", "options"), MACHINES)
def test_random_programs(counted, monkeypatch, machine, sizes, options):
    for seed in range(3):
        images, every = both(monkeypatch, mesh_program, machine, sizes, seed, **options)
        assert summary(images) == summary(every), seed
    assert counted["images"]
    assert counted["joined"]


def one_after_another(rank, world_size, sizes):
    """A long call, a short one beside it, and, once that has ended, one that joins all islands."""
    inner, middle, outer = mesh_groups(rank, world_size, sizes)
    large, small = dist.fake_array(1 << 20), dist.fake_array(1 << 10)
    long = dist.all_reduce(large, group=inner, async_op=True)
    dist.all_reduce(small, group=middle)
    dist.compute("1 us")
    dist.all_reduce(small, group=outer)
    long.wait()
    dist.all_reduce(large, group=inner)


@pytest.mark.slow
def test_what_has_ended_beside_a_group_is_played_again_when_it_joins(counted, monkeypatch):
    machine = crossbar(16, "50 GB/s", "1 us")
    images, every = both(monkeypatch, one_after_another, machine, (2, 2, 4))
    assert summary(images) == summary(every)
    assert counted["joined"]
    assert counted["ended"]


def test_a_group_that_is_no_image_is_played(counted, monkeypatch):
    # Ranks 0 to 3 are below one leaf, 4 to 7 below two.
    def program(rank, _n, _sizes):
        groups = [dist.new_group(range(first, first + 4)) for first in (0, 4)]
        dist.all_reduce(dist.fake_array(1 << 20), group=groups[rank // 4])

    machine = fat_tree(2, 6, "50 GB/s", "1 us", spine_latency="3 us")
    images, every = both(monkeypatch, program, machine, (2, 4))
    assert summary(images) == summary(every)
    assert images.skew_fs > 0
    assert not counted["images"]


def test_splits_of_corresponding_groups_are_those_of_the_leaders(monkeypatch):
    def program(rank, world_size, sizes):
        inner, _ = mesh_groups(rank, world_size, sizes)
        x = dist.fake_array(1 << 16)
        dist.all_to_all_single(x, x, [1 << 14] * 4, [1 << 14] * 4, group=inner)

    images, every = both(monkeypatch, program, crossbar(8, "50 GB/s", "1 us"), (2, 4))
    assert summary(images) == summary(every)
    assert images.operations == 2


def micro_batches(rank, world_size, sizes, gaps):
    """Equal micro-batches, the calls of which stand alone or side by side."""
    inner, outer = mesh_groups(rank, world_size, sizes)
    x = dist.fake_array(1 << 18)
    for gap in gaps:
        dist.compute("20 us")
        dist.all_reduce(x, group=inner)
        work = dist.all_reduce(x, group=outer, async_op=True)
        dist.compute(gap)
        dist.all_reduce(x, group=inner)
        work.wait()
        dist.all_reduce(x)


@pytest.mark.slow
@pytest.mark.parametrize("gap", ["1 us", "7 us", "15 us", "1 ms"])
@pytest.mark.parametrize("machine", [crossbar(8, "50 GB/s", "1 us"), "dgx-h100"])
def test_micro_batches_are_replayed_exactly(counted, monkeypatch, machine, gap):
    gaps = ["1 ms", gap, gap, "1 ms", gap]
    images, every = both(monkeypatch, micro_batches, machine, (2, 4), gaps)
    assert summary(images) == summary(every)
    assert counted["replays"] >= 6
    assert counted["gave up"] or gap != "1 us"


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "sizes", "options"), MACHINES)
def test_flows_that_come_again_take_their_known_rates(monkeypatch, machine, sizes, options):
    def program(rank, world_size, sizes, seed):
        for _ in range(3):
            mesh_program(rank, world_size, sizes, seed)
            dist.barrier()

    spread, spreads = fabric.Fabric._spread, Counter()

    def count(self, queue):
        spreads[fabric.LEAST_DIRTY] += 1
        return spread(self, queue)

    monkeypatch.setattr(fabric.Fabric, "_spread", count)
    for seed in range(2):
        runs = []
        for least in (0, math.inf):
            monkeypatch.setattr(fabric, "LEAST_DIRTY", least)
            run = {"args": (sizes, seed), "topology": machine, "alike": "all", **options}
            runs.append(dist.spawn(program, math.prod(sizes), **run))
        assert summary(runs[0]) == summary(runs[1]), seed
    assert 0 < spreads[0] < spreads[math.inf]
