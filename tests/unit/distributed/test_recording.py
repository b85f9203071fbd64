"""Recorded runs: played again they take the run's time, and elsewhere the time of a run there, to
the femtosecond.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.errors import ConfigError
from simcoll.topology import boxes, crossbar, load_topology
from simcoll.traces.chakra import load_chakra
from simcoll.workload.playing import run_workload
from simcoll.workload.workload import read_workload

CROSSBAR = crossbar(4, "50 GB/s", "1 us")
PLACES = {
    "two boxes": boxes(
        2,
        2,
        "400 GB/s",
        "1 us",
        nics=1,
        nic_bandwidth="25 GB/s",
        nic_latency="3 us",
        spine_latency="1 us",
    ),
    "slow": crossbar(4, "3 GB/s", "7 us"),
}


def replayed(result, topology):
    return run_workload(result.workload, topology, exposed=False).time_fs


def program(rank, n, seed):
    """Random calls: the same on all ranks where they must be, with times of each rank's own."""
    same, own = random.Random(seed), random.Random(f"{seed} {rank}")
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    odd = dist.new_group([1, 3, 0])
    works = []
    for _ in range(12):
        count = same.randrange(1, 60_000)
        what = same.randrange(10)
        data = np.zeros(count, np.float32)
        if what < 3:
            dist.compute(own.choice([0, 1e-6, 2e-5, 3e-4]))
        elif what == 3:
            works.append(dist.all_reduce(data, async_op=True))
        elif what == 4:
            dist.all_reduce(data, group=halves[rank // 2])
        elif what == 5 and rank != 2:
            works.append(dist.broadcast(data, group=odd, group_src=1, async_op=True))
        elif what == 6:
            shift = same.randrange(1, n)
            works += [
                dist.isend(data, (rank + shift) % n),
                dist.irecv(data.copy(), (rank - shift) % n),
            ]
        elif what == 7:
            sends = [[same.randrange(500) for _ in range(n)] for _ in range(n)]
            receives = [sends[other][rank] for other in range(n)]
            source, target = (np.zeros(sum(each), np.int64) for each in (sends[rank], receives))
            works.append(
                dist.all_to_all_single(target, source, receives, sends[rank], async_op=True)
            )
        elif what == 8:
            dist.barrier() if same.random() < 0.5 else dist.new_group([2, 3, 1])
        elif works:
            works.pop(own.randrange(len(works))).wait()
    future = works[0].get_future() if works and not works[0].entry.p2p else None
    if future is not None:
        future.then(lambda _: dist.compute(5e-6)).wait()
    for work in works:
        work.wait()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["ideal", "LL", "Simple"])
def test_a_recorded_run_takes_the_same_time_here_and_the_time_of_a_run_elsewhere(protocol):
    hopper = load_topology("dgx-h100")
    for seed in range(5):
        home = hopper if protocol != "ideal" else CROSSBAR
        recorded = dist.spawn(program, 4, (seed,), topology=home, protocol=protocol, record=True)
        assert replayed(recorded, home) == recorded.time_fs
        if protocol == "ideal":
            for place in PLACES.values():
                assert (
                    replayed(recorded, place)
                    == dist.spawn(program, 4, (seed,), topology=place).time_fs
                )


def pipeline(rank, n):
    """Two micro-batches through a chain, and a sum of gradients in pairs beside the last work."""
    pairs = [dist.new_group([each, each + 1]) for each in range(0, n, 2)]
    data = np.zeros(1 << 12, np.float32)
    for _ in range(2):
        if rank:
            dist.recv(data, rank - 1)
        dist.compute("1 ms", "forward")
        if rank < n - 1:
            dist.send(data, rank + 1)
    work = dist.all_reduce(data, group=pairs[rank // 2], async_op=True)
    dist.compute("2 ms", "optimizer")
    work.wait()


@pytest.mark.slow
def test_files_of_a_recorded_run(tmp_path):
    result = dist.spawn(pipeline, 4, topology=CROSSBAR, record=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "workload.json",
        *(f"trace.{rank}.et" for rank in range(4)),
    }
    read = read_workload((tmp_path / "run" / "workload.json").read_bytes())
    for workload in (read, load_chakra(tmp_path / "run" / "trace")):
        found = run_workload(workload, CROSSBAR)
        # By hand: a message of 16 KiB takes m = 1 us + 327.68 ns. Rank 3 has the first after 3 ms +
        # 3 m; a rank sends the second when its successor has sent the first on, so it comes after 4
        # ms + 5 m. Then 1 ms, and 2 ms beside the sum of gradients.
        assert found.time_fs == result.time_fs == 7 * 10**12 + 5 * (10**9 + 327_680_000)
        assert found.compute_fs == 4 * 10**12
        assert found.axes["messages"].bytes == 2 * (1 << 14)
    dist.spawn(pipeline, 4, record=tmp_path / "w.json")
    dist.spawn(pipeline, 4, record=tmp_path / "w.et")
    assert {path.name for path in tmp_path.iterdir()} == {
        "run",
        "w.json",
        *(f"w.{rank}.et" for rank in range(4)),
    }


@pytest.mark.slow
def test_ranks_that_do_the_same_are_one_class():
    def same(rank, n):
        data = np.zeros(1 << 16, np.float32)
        groups = [dist.new_group([each, each + 1]) for each in range(0, n, 2)]
        dist.compute("1 ms")
        dist.all_reduce(data, group=groups[rank // 2])
        dist.all_reduce(data)

    result = dist.spawn(same, 8, topology="dgx-h100", record=True)
    workload = result.workload
    assert len(workload.classes) == 1
    assert [operation.group for operation in workload.operations[1:]] == [
        "group of 2",
        "default_pg",
    ]
    assert workload.groups["group of 2"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert replayed(result, load_topology("dgx-h100")) == result.time_fs
    followed = dist.spawn(
        same, 8, topology="dgx-h100", record=True, alike=[range(0, 8, 2), range(1, 8, 2)]
    )
    assert replayed(followed, load_topology("dgx-h100")) == result.time_fs


@pytest.mark.slow
def test_a_library_and_named_algorithms_are_kept():
    def calls(rank, n):
        data = np.zeros(1 << 18, np.float32)
        dist.all_reduce(data)
        dist.all_reduce(data, algorithm="ring")
        dist.all_gather_into_tensor(np.zeros(n << 10, np.float32), np.zeros(1 << 10, np.float32))

    hopper = load_topology("dgx-h100")
    for guides in (
        {"library": "nccl"},
        {"algorithm": "ring"},
        {"algorithm": {"all_gather": "bruck"}},
    ):
        result = dist.spawn(calls, 8, topology=hopper, record=True, **guides)
        assert replayed(result, hopper) == result.time_fs, guides
        assert (
            replayed(result, load_topology("dgx-a100"))
            == dist.spawn(calls, 8, topology="dgx-a100", **guides).time_fs
        ), guides


def _keys(rank, _n):
    dist.compute("1 ms")
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.compute("1 ms")
        store.set("key", "value")
    store.get("key")


def _to_itself(rank, _n):
    data = np.zeros(4)
    works = [dist.isend(data, rank), dist.irecv(data.copy(), rank)]
    for work in works:
        work.wait()


def _chosen(_rank, _n):
    dist.all_reduce(np.zeros(4))


REFUSED = {
    "a wait for a key": (_keys, {}, "rank 1 waits for a key of a store"),
    "messages to itself": (_to_itself, {}, "rank 0 sends to itself"),
    "a function that chooses": (
        _chosen,
        {"algorithm": lambda *_: "ring"},
        "recorded programs name their algorithms; got a function",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_workload_cannot_say(case):
    asked, guides, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said):
        dist.spawn(asked, 2, record=True, **guides)
