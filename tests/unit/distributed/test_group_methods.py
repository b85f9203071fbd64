"""The methods of groups, and calls on several tensors, under torch's names and arguments."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch_dist = Deferred("torch.distributed")


def values(work):
    work.wait()
    return [np.asarray(result).tolist() for result in work.result()]


CALLS = {
    "allreduce of a list": (lambda g, a: values(g.allreduce([a])), [[3.0, 3.0]]),
    "allreduce of a tensor": (
        lambda g, a: values(g.allreduce(tensor=a, op=dist.ReduceOp.MAX)),
        [[2.0, 2.0]],
    ),
    "allreduce with a plain operator": (
        lambda g, a: values(g.allreduce([a], dist.ReduceOp.MIN)),
        [[1.0, 1.0]],
    ),
    "allreduce with options": (
        lambda g, a: values(g.allreduce([a], dist.AllreduceOptions(dist.ReduceOp.PRODUCT))),
        [[2.0, 2.0]],
    ),
    "allreduce_coalesced": (
        lambda g, a: g.allreduce_coalesced([a]).wait() and a.tolist(),
        [3.0, 3.0],
    ),
    "broadcast with options": (
        lambda g, a: values(g.broadcast([a], dist.BroadcastOptions(rootRank=1))),
        [[2.0, 2.0]],
    ),
    "broadcast with a root": (lambda g, a: values(g.broadcast(a, 1)), [[2.0, 2.0]]),
    "reduce with a root": (
        lambda g, a: g.reduce(a, 0, dist.ReduceOp.SUM).wait() and a[: 2 - g.rank()].tolist(),
        None,
    ),
    "allgather of nested lists": (
        lambda g, a: values(g.allgather([[np.zeros(2), np.zeros(2)]], [a])),
        [[1.0, 1.0], [2.0, 2.0]],
    ),
    "allgather of a list": (
        lambda g, a: values(g.allgather([np.zeros(2), np.zeros(2)], input_tensor=a)),
        [[1.0, 1.0], [2.0, 2.0]],
    ),
    "_allgather_base": (
        lambda g, a: values(g._allgather_base(output=np.zeros(4), input=a)),
        [[1.0, 1.0, 2.0, 2.0]],
    ),
    "scatter": (
        lambda g, a: values(
            g.scatter(a, [np.full(2, 5.0), np.full(2, 6.0)] if g.rank() == 0 else [], 0)
        ),
        None,
    ),
    "gather with options": (
        lambda g, a: g.gather(
            [[np.zeros(2), np.zeros(2)]] if g.rank() == 1 else [],
            [a],
            dist.GatherOptions(rootRank=1),
        ).wait(),
        True,
    ),
    "reduce_scatter": (
        lambda g, a: values(g.reduce_scatter([np.zeros(2)], [[a, a + 1]])),
        None,
    ),
    "_reduce_scatter_base": (
        lambda g, a: values(g._reduce_scatter_base(np.zeros(1), a)),
        [[3.0]],
    ),
    "alltoall_base": (
        lambda g, a: values(g.alltoall_base(np.zeros(2), a, [], [])),
        [[1.0, 2.0]],
    ),
    "alltoall": (
        lambda g, a: values(g.alltoall([np.zeros(1), np.zeros(1)], [a[:1], a[1:]])),
        [[1.0], [2.0]],
    ),
    "barrier": (lambda g, _: g.barrier(timeout=timedelta(seconds=1)).wait(), True),
    "monitored_barrier": (lambda g, _: g.monitored_barrier(), None),
}


@pytest.mark.parametrize("call", CALLS)
def test_methods_do_what_the_functions_do(call):
    def program(rank, world_size):
        return CALLS[call][0](dist.group.WORLD, np.full(2, rank + 1.0))

    returns = dist.spawn(program, 2).returns
    expected = {
        "reduce with a root": ([3.0, 3.0], [2.0]),
        "scatter": ([[5.0, 5.0]], [[6.0, 6.0]]),
        "reduce_scatter": ([[3.0, 3.0]], [[5.0, 5.0]]),
    }.get(call, (CALLS[call][1],) * 2)
    assert returns == expected


def test_a_timeout_of_one_call():
    def program(rank, world_size):
        if rank == 0:
            with pytest.raises(RuntimeError, match="2000ms"):
                dist.group.WORLD.allreduce(np.ones(1), timeout=timedelta(seconds=2)).wait()
            return dist.emulated_time()
        dist.compute(5)
        return None

    assert dist.spawn(program, 2).returns[0] == 2.0


def test_messages_by_group_rank():
    def program(rank, world_size):
        group, tensor = dist.new_group([1, 2], sort_ranks=True), np.full(1, float(rank))
        if rank == 1:
            group.send([tensor], 1, 4).wait()
        elif rank == 2:
            work = group.recv_anysource([tensor], 4)
            work.wait()
            assert work.source_rank() == 0
        return tensor.tolist()

    assert dist.spawn(program, 3).returns == ([0.0], [1.0], [1.0])


@pytest.mark.parametrize(
    ("wrong", "raised", "words"),
    [
        (lambda g: g.allreduce(), TypeError, "needs a tensor"),
        (lambda g: g.allreduce([np.ones(1), np.ones(1)]), RuntimeError, "one tensor per rank"),
        (lambda g: g.allreduce(np.ones(1), dist.BroadcastOptions()), TypeError, "AllreduceOptions"),
        (lambda g: g.split_group([0]), ConfigError, "ProcessGroup.split_group"),
        (lambda g: g.merge_remote_group(None, 4), ConfigError, "merge_remote_group"),
        (lambda _: dist.all_reduce_coalesced([]), ValueError, "at least one tensor"),
        (
            lambda _: dist.all_gather_coalesced([[np.ones(1)], [np.ones(2)]], [np.ones(1)]),
            RuntimeError,
            "outputs for rank 1",
        ),
        (lambda _: dist.shrink_group([1]), ConfigError, "default group"),
        (lambda _: dist.shrink_group([7], dist.new_group()), ValueError, "ranks 0..1"),
        (lambda _: dist.shrink_group([1], dist.new_group(backend="gloo")), TypeError, "shrinking"),
        (lambda _: dist.init_device_mesh("cpu", (2,), backend_override={"x": "nccl"}), RuntimeError, "invalid keys"),
        (lambda _: dist.rendezvous("tpc://host:1"), RuntimeError, "did you mean 'tcp'"),
        (lambda g: g.get_group_store().barrier("here", 0), ValueError, "at least 1"),
    ],
)  # fmt: skip
def test_refusals(wrong, raised, words):
    def program(rank, world_size):
        with pytest.raises(raised, match=re.escape(words)):
            wrong(dist.group.WORLD)

    dist.spawn(program, 2)


def test_several_tensors_in_one_operation():
    def program(rank, world_size):
        tensors = [np.full(2, rank + 1.0), np.ones(1)]
        first = dist.all_reduce_coalesced(tensors, async_op=True).wait()
        rows = [[np.zeros(1), np.zeros(2)] for _ in range(world_size)]
        dist.all_gather_coalesced(rows, [np.full(1, float(rank)), np.full(2, float(rank))])
        return [tensor.tolist() for tensor in first], [[t.tolist() for t in row] for row in rows]

    result = dist.spawn(program, 2)
    sums, rows = [[3.0, 3.0], [2.0]], [[[0.0], [0.0, 0.0]], [[1.0], [1.0, 1.0]]]
    assert result.returns == ((sums, rows),) * 2
    assert result.operations == 2


def test_counts_and_settings_of_groups():
    def program(rank, world_size):
        counts = [dist.get_pg_count()]
        dist.new_group([0])
        counts.append(dist.get_pg_count())
        mine, _ = dist.new_subgroups(1, backend="nccl", group_desc="alone")
        mesh = dist.init_device_mesh(
            "cpu", (2, 1), mesh_dim_names=("a", "b"), backend_override={1: ("nccl", None)}
        )
        names = [dist.get_backend(mesh.get_group(dim)) for dim in range(2)]
        return counts, mine.group_desc, dist.get_backend(mine), names

    assert dist.spawn(program, 2).returns[1] == ([1, 2], "alone", "nccl", ["emulator", "nccl"])


def test_stores_have_barriers():
    def program(rank, world_size):
        store, arrivals = dist.group.WORLD.get_group_store(), []
        for turn in range(3):
            dist.compute("1 us" if rank == turn else "5 us")
            store.barrier("turns", world_size)
            arrivals.append(store.add("count", 1) > turn * world_size)
        if rank == 0:
            with pytest.raises(
                dist.DistStoreError, match="barrier timeout after 100ms, key: alone"
            ):
                store.barrier("alone", 2, timedelta(milliseconds=100))
        return arrivals

    assert dist.spawn(program, 3).returns == ([True] * 3,) * 3


def test_a_scheme_with_a_handler_of_its_own():
    stores = {}

    def shelf(url, timeout=None):
        query = dict(pair.split("=") for pair in url.partition("?")[2].split("&"))
        store = stores.setdefault(url.partition("?")[0], dist.HashStore())
        yield store, int(query["rank"]), int(query["world_size"])

    dist.register_rendezvous_handler("shelf", shelf)
    with pytest.raises(RuntimeError, match="already registered"):
        dist.register_rendezvous_handler("shelf", shelf)

    def program(rank, world_size):
        dist.init_process_group("gloo", "shelf://a", rank=rank, world_size=world_size)
        dist.group.WORLD.get_group_store().set(f"rank {rank}", "here")
        dist.barrier()
        return stores["shelf://a"].num_keys()

    assert dist.spawn(program, 2, init=False).returns == (2, 2)


def test_a_group_that_was_shut_down():
    def program(rank, world_size):
        group = dist.new_group()
        group.shutdown()
        with pytest.raises(ValueError, match="destroyed on this rank"):
            group.allreduce(np.ones(1))
        dist.group.WORLD.shutdown()
        with pytest.raises(ValueError, match="was shut down"):
            dist.all_reduce(np.ones(1))

    dist.spawn(program, 2)


OTHER_MEANING = {"reduce_op", "record_comm"}
"""A deprecated class, and names for PyTorch's own profiler."""


@pytest.mark.slow
@needs_torch
def test_functions_have_the_parameters_of_pytorch():
    names = [
        name
        for name in [*torch_dist.distributed_c10d.__all__, "init_device_mesh", "rendezvous"]
        if name not in OTHER_MEANING and inspect.isfunction(getattr(torch_dist, name, None))
    ]
    assert len(names) > 50
    missing = [name for name in names if not hasattr(dist, name)]
    different = {}
    for name in set(names) - set(missing):
        theirs = inspect.signature(getattr(torch_dist, name)).parameters.values()
        ours = inspect.signature(getattr(dist, name)).parameters.values()
        plain = [(p.name, p.kind) for p in theirs if p.name[0] != "_"]
        mine = [(p.name, p.kind) for p in ours if p.name not in {"algorithm", "trusted"}]
        if plain != mine:
            different[name] = plain, mine
    assert missing == []
    assert different == {}


@needs_torch
@pytest.mark.slow
def test_methods_of_groups_take_the_keywords_of_pytorch():
    lacking = {}
    for name in dir(torch_dist.ProcessGroup):
        text = getattr(torch_dist.ProcessGroup, name).__doc__ or ""
        calls = re.findall(rf"{name}\(self: [^,)]*(?:, (.*))?\) -> ", text)
        if name[0] == "_" or not calls or name in {"split_group", "merge_remote_group"}:
            continue
        plain = [re.sub("<.*?>", "", call) for call in calls]  # defaults are objects
        keywords = {word for call in plain for word in re.findall(r"(\w+): ", call)}
        keywords -= {"arg0", "arg1"}
        ours = inspect.signature(getattr(dist.ProcessGroup, name)).parameters
        if not keywords <= ours.keys():
            lacking[name] = sorted(keywords - ours.keys())
    assert lacking == {}
