"""Runs: determinism, time, topologies, algorithms, what a result tells."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest

import simcoll
import simcoll.distributed as dist
from simcoll.distributed.runtime import plans_in_flight as playing
from simcoll.distributed.runtime.tasks import Task
from simcoll.distributed.runtime.world import current_rank
from simcoll.emulator.reference.player import Player
from simcoll.errors import ConfigError
from simcoll.formats.schedules.msccl_writer import dump_msccl_xml


def many(rank, world_size):
    x = np.arange(40.0) + rank
    work = dist.all_reduce(x, async_op=True)
    dist.compute(seconds=(rank % 3) * 1e-6)
    work.wait()
    group = dist.new_group(range(0, world_size, 2))
    if rank % 2 == 0:
        dist.broadcast(x, 0, group)
    y = np.zeros(40 * world_size)
    dist.all_gather_into_tensor(y, x)
    return float(y.sum())


@pytest.mark.slow
def test_two_processes_with_different_hash_seeds_give_one_trace_hash():
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('t', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n"
        "print(module.dist.spawn(module.many, 12, topology='dgx-h100').trace_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
    assert hashes.pop().decode().strip() == dist.spawn(many, 12, topology="dgx-h100").trace_hash


def test_the_example_of_the_reference():
    """LA-04: the program gets its rank, the world size and the further arguments."""

    def program(rank, world_size, factor, *, offset):
        x = np.arange(4.0) * factor + rank + offset
        work = dist.all_reduce(x, op=dist.ReduceOp.SUM, async_op=True)
        dist.compute(seconds=20e-6)
        work.wait()
        return x.tolist()

    result = dist.spawn(program, nprocs=64, args=(2.0,), kwargs={"offset": 1}, topology="dgx-h100")
    assert result.returns == ([2080.0, 2208.0, 2336.0, 2464.0],) * 64
    assert result.time == 20e-6
    assert result.finish_fs == (20 * 10**9,) * 64


@pytest.mark.slow
def test_time_is_that_of_the_emulator():
    def program(rank, world_size):
        dist.all_reduce(np.zeros(1 << 18, np.float32), algorithm="ring")

    topology = simcoll.load_topology("dgx-h100", nodes=2)
    plan = simcoll.bind(
        simcoll.schedule("all_reduce", "ring", nranks=16, box=8), 1 << 18, "float32"
    )
    expected = simcoll.emulate(plan, topology)
    result = dist.spawn(program, 16, topology=topology)
    assert result.time_fs == expected.time_fs
    assert result.records[0].trace_hash == expected.trace_hash
    assert (result.messages, result.operations) == (expected.messages, 1)


def test_a_late_rank_delays_only_who_needs_it():
    # A chain sends one way: the last rank's lateness costs the ranks before it nothing.
    def program(rank, world_size):
        if rank == 3:
            dist.compute("1 ms")
        dist.broadcast(np.zeros(1000), 0, algorithm="chain")
        return dist.emulated_time() < 1e-4

    assert dist.spawn(program, 4).returns == (True, True, False, False)


@pytest.mark.slow
def test_choosing_the_algorithm():
    def program(rank, world_size, algorithm=None, group_algorithm=None):
        group = dist.new_group(algorithm=group_algorithm) if group_algorithm else None
        dist.all_reduce(np.ones(4), group=group, algorithm=algorithm)
        dist.barrier(group)

    def ran(*args, **kw):
        return [
            record.schedule.split("(")[0]
            for record in dist.spawn(program, 4, args=args, **kw).records
        ]

    assert ran() == ["recursive_doubling", "dissemination"]
    assert ran(algorithm="ring") == ["ring", "dissemination"]
    assert ran(algorithm={"barrier": "linear"}) == ["recursive_doubling", "linear"]
    assert ran(algorithm=lambda _, n, size: "tree" if (n, size) in ((4, 32), (4, 0)) else None) == [
        "tree",
        "tree",
    ]
    assert ran(None, "rabenseifner", algorithm="ring") == ["rabenseifner", "dissemination"]
    assert ran("one_shot", "rabenseifner", algorithm="ring") == ["one_shot", "dissemination"]
    own = simcoll.schedule("all_reduce", "ring", nranks=4, channels=2)
    assert dist.spawn(program, 4, args=(own,)).records[0].schedule == own.title
    for wrong in ("rnig", {"all_reduce": "rnig"}):
        with pytest.raises(ConfigError, match="did you mean 'ring'"):
            ran(algorithm=wrong)
    with pytest.raises(ConfigError, match="rnig"):
        ran("rnig")
    with pytest.raises(ConfigError, match="the schedule given as algorithm is for all_reduce n=8"):
        ran(simcoll.schedule("all_reduce", "ring", nranks=8))


STAR = """
import simcoll

def star(collective):
    if collective.kind == "all_reduce":
        return simcoll.schedule(collective, "ring", channels=2)

def wrong(collective):
    return simcoll.schedule("all_reduce", "ring", nranks=2)
"""


@pytest.mark.slow
def test_an_algorithm_that_is_not_shipped_runs_where_it_serves(tmp_path, monkeypatch):
    def program(rank, world_size, algorithm=None):
        dist.all_reduce(np.ones(4), algorithm=algorithm)
        dist.barrier()

    def ran(*args, **kw):
        return [record.schedule for record in dist.spawn(program, 4, args=args, **kw).records]

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stars.py").write_text(STAR)
    usual = ran()
    dump_msccl_xml(simcoll.schedule("all_reduce", "ring", nranks=4), tmp_path / "star.xml")
    assert (
        ran(algorithm="stars:star")
        == ran(algorithm={"all_reduce": "stars:star"})
        == ["stars:star", usual[1]]
    )
    assert ran(algorithm="star.xml") == ["star.xml", usual[1]]
    with pytest.raises(ConfigError, match="stars:wrong has 2 ranks; got 4 endpoints"):
        ran(algorithm="stars:wrong")
    with pytest.raises(
        ConfigError, match="got None, which means that it does not serve this collective"
    ):
        dist.spawn(lambda *_: dist.barrier(algorithm="stars:star"), 4)


def test_hierarchical_takes_its_boxes_from_the_topology():
    def program(rank, world_size):
        x = np.ones(16)
        dist.all_reduce(x)
        return float(x[0])

    result = dist.spawn(program, 16, topology="dgx-h100", algorithm="hierarchical")
    assert result.returns == (16.0,) * 16
    assert result.records[0].schedule.startswith("hierarchical(box=8")


@pytest.mark.parametrize("protocol", ["ideal", "LL", "LL128", "Simple"])
def test_protocols(protocol):
    def program(rank, world_size):
        x = np.ones(1000)
        for _ in range(2):
            dist.all_reduce(x, algorithm="ring")
        return float(x[0])

    result = dist.spawn(program, 8, topology="dgx-h100", protocol=protocol)
    assert result.returns == (64.0,) * 8
    assert {record.protocol for record in result.records} == {protocol}


def test_topologies():
    assert dist.spawn(lambda *_: None, 24, topology="dgx-h100").topology == "dgx-h100"
    with pytest.raises(ConfigError, match="16 were asked for"):
        dist.spawn(lambda *_: None, 16, topology=simcoll.load_topology("dgx-h100", nodes=1))
    with pytest.raises(ConfigError, match="unknown topology"):
        dist.spawn(lambda *_: None, 2, topology="dgx-h1000")
    with pytest.raises(ConfigError, match="seconds=-1"):
        dist.spawn(lambda *_: dist.compute(-1), 1)


@pytest.mark.slow
def test_a_thousand_ranks():
    def program(rank, world_size):
        x = np.array([rank])
        dist.all_reduce(x)
        return int(x[0])

    result = dist.spawn(program, 1024)
    assert result.returns == (1023 * 512,) * 1024
    assert (
        str(result.records[0])
        == "all_reduce #0 of group 0: recursive_doubling(channels=1), 8 B, 11264 messages"
    )


def test_worlds_may_be_nested_and_hold_stores():
    def inner(rank, world_size):
        x = np.ones(1)
        dist.all_reduce(x)
        return float(x[0])

    def program(rank, world_size, store):
        if rank == 0:
            dist.compute(1.0)
            store.set("key", "value")
        got = store.get("key")
        with pytest.raises(dist.DistStoreError):
            store.wait(["none"], timedelta(seconds=1))
        return got, dist.emulated_time(), dist.spawn(inner, 3).returns

    assert (
        dist.spawn(program, 2, args=(dist.HashStore(),)).returns
        == ((b"value", 2.0, (3.0, 3.0, 3.0)),) * 2
    )


SIGNATURES = {
    "init_process_group": "backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, "
    "store=None, group_name='', "
    "pg_options=None, device_id=None",
    "new_group": "ranks=None, timeout=None, backend=None, pg_options=None, "
    "use_local_synchronization=False, group_desc=None, "
    "device_id=None",
    "destroy_process_group": "group=None",
    "send": "tensor, dst=None, group=None, tag=0, group_dst=None",
    "irecv": "tensor, src=None, group=None, tag=0, group_src=None",
    "broadcast": "tensor, src=None, group=None, async_op=False, group_src=None",
    "broadcast_object_list": "object_list, src=None, group=None, device=None, group_src=None",
    "all_gather": "tensor_list, tensor, group=None, async_op=False",
    "all_gather_into_tensor": "output_tensor, input_tensor, group=None, async_op=False",
    "all_gather_object": "object_list, obj, group=None",
    "gather": "tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None",
    "gather_object": "obj, object_gather_list=None, dst=None, group=None, group_dst=None",
    "scatter": "tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None",
    "scatter_object_list": "scatter_object_output_list, scatter_object_input_list=None, src=None, "
    "group=None, group_src=None",
    "all_to_all_single": "output, input, output_split_sizes=None, input_split_sizes=None, "
    "group=None, async_op=False",
    "all_to_all": "output_tensor_list, input_tensor_list, group=None, async_op=False",
    "barrier": "group=None, async_op=False, device_ids=None, timeout=None",
    "monitored_barrier": "group=None, timeout=None, wait_all_ranks=False",
    "batch_isend_irecv": "p2p_op_list",
    "breakpoint": "rank=0, skip=0, timeout_s=3600",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    """SIG-02 SIG-06 SIG-08 SIG-09: parameters, their order and defaults."""
    parameters = inspect.signature(getattr(dist, name)).parameters.values()
    shown = [
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in parameters
        if p.kind is not p.KEYWORD_ONLY
    ]
    wanted = SIGNATURES[name].split(", ")
    assert shown[: len(wanted)] == wanted
    assert all("=" in extra for extra in shown[len(wanted) :])


@pytest.mark.slow
def test_buffers_kept_between_calls_are_bounded(monkeypatch):
    """Buffers are kept for the next call of the same plan, but those of many plans do not add
    up.
    """
    monkeypatch.setattr(playing, "KEPT_BYTES", 1024)

    def program(rank, world_size):
        for count in range(1, 100):
            dist.all_reduce(np.ones(count, np.float32))
        stages = current_rank().world.emulator.stages.values()
        return sum(stage.size_bytes for kept in stages for stage in kept)

    assert 8 * 1024 < dist.spawn(program, 2).returns[0] <= 16 * 1024


def hangs(rank, _n):
    if rank:
        dist.all_reduce(np.ones(3))


def raises(rank, _n):
    dist.barrier()
    if rank == 1:
        raise ValueError("of rank 1")
    dist.barrier()


@pytest.mark.slow
@pytest.mark.parametrize("program", [hangs, raises])
def test_a_run_that_failed_leaves_nothing(program):
    """Not even for the garbage collector, which does not collect every circle that tasks are in."""
    gc.disable()
    gc.freeze()  # what other tests have left is not listed
    try:
        try:
            dist.spawn(program, 3)
        except (RuntimeError, ValueError):
            failed = True
        assert failed
        assert [each for each in gc.get_objects() if type(each) is Task] == []
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_played_operation_leaves_no_circle():
    """Large buffers are gone with their operation, not when the garbage collector comes."""

    def program(rank, _n):
        dist.all_reduce(np.ones(3))
        dist.barrier()
        return sum(type(each) is Player for each in gc.get_objects())

    gc.disable()
    gc.freeze()  # what other tests have left is not listed
    try:
        assert dist.spawn(program, 3).returns[0] <= 1  # the barrier's, which may not have ended
    finally:
        gc.enable()
