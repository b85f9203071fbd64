"""PyTorch's overloads of the methods of groups and backends, on the simulated group."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest

from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
c10d = Deferred("torch._C._distributed_c10d")
forms = Deferred("simcoll.torch.call_forms")
backend = Deferred("simcoll.torch")

pytestmark = [needs_torch, pytest.mark.filterwarnings("ignore::FutureWarning")]

SAME_METHOD = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "alltoall_base": "all_to_all_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "gather_into_tensor": "gather_single",
}


@pytest.mark.parametrize("owner", ["ProcessGroup", "Backend"])
def test_every_keyword_of_every_overload(owner):
    lacking, checked = {}, 0
    for name in dir(getattr(c10d, owner)):
        text = getattr(getattr(c10d, owner), name).__doc__ or ""
        overloads = re.findall(rf"(?:^|\n|\. ){name}\(self: [^,)]*, (.*)\) -> \S*Work", text)
        form = forms._FORMS.get(SAME_METHOD.get(name, name))
        for overload in overloads if form else ():
            keywords = set(re.findall(r"(\w+): ", re.sub("<.*?>", "", overload)))
            ours = {word for words in form.tensors for word in words} | {*form.plain, "opts"}
            unknown = {word for word in keywords - ours if not word.startswith("arg")}
            lacking |= {(owner, name): unknown} if unknown else {}
            checked += 1
    assert lacking == {}
    assert checked >= 20


def values(work):
    work.wait()
    return [tensor.tolist() for tensor in work.result()]


def zeros():
    return [torch.zeros(2), torch.zeros(2)]


CALLS = {
    "allreduce": (
        lambda g, t: values(g.allreduce([t])),
        lambda g, t: values(g.allreduce(tensors=[t], op=dist.ReduceOp.SUM)),
        lambda g, t: values(g.allreduce(tensor=t, timeout=timedelta(seconds=3))),
        lambda g, t: values(g.allreduce(t, dist.ReduceOp.SUM)),
        lambda g, t: values(g.allreduce([t], opts=c10d.AllreduceOptions())),
    ),
    "broadcast": (
        lambda g, t: values(g.broadcast([t])),
        lambda g, t: values(g.broadcast(t, 0)),
        lambda g, t: values(g.broadcast(tensor=t, root=0, timeout=timedelta(seconds=3))),
    ),
    "allgather": (
        lambda g, t: values(g.allgather([zeros()], [t])),
        lambda g, t: values(g.allgather(zeros(), t)),
        lambda g, t: values(g.allgather(output_tensors=zeros(), input_tensor=t)),
    ),
    "reduce_scatter": (
        lambda g, t: values(g.reduce_scatter([torch.zeros(2)], [[t, t]])),
        lambda g, t: values(g.reduce_scatter(torch.zeros(2), [t, t])),
        lambda g, t: values(g.reduce_scatter(output=torch.zeros(2), input=[t, t])),
    ),
    "_reduce_scatter_base": (
        lambda g, t: values(g._reduce_scatter_base(torch.zeros(1), t)),
        lambda g, t: values(g.reduce_scatter_single(outputTensor=torch.zeros(1), inputTensor=t)),
    ),
    "scatter": (
        lambda g, t: values(g.scatter([t], [zeros()] if g.rank() == 0 else [])),
        lambda g, t: values(g.scatter(t, zeros() if g.rank() == 0 else [], 0)),
    ),
    "alltoall_base": (
        lambda g, t: values(g.alltoall_base(torch.zeros(2), t, [], [])),
        lambda g, t: values(
            g.all_to_all_single(
                output=torch.zeros(2), input=t, output_split_sizes=[1, 1], input_split_sizes=[1, 1]
            )
        ),
    ),
    "allreduce_coalesced": (
        lambda g, t: values(g.allreduce_coalesced([t])),
        lambda g, t: values(g.allreduce_coalesced(tensors=[t], opts=c10d.AllreduceCoalescedOptions())),
    ),
}  # fmt: skip
FIRST = {
    "allreduce": [[3.0, 3.0]],
    "broadcast": [[1.0, 1.0]],
    "allgather": [[1.0, 1.0], [2.0, 2.0]],
    "reduce_scatter": [[3.0, 3.0]],
    "_reduce_scatter_base": [[3.0]],
    "scatter": [[0.0, 0.0]],
    "alltoall_base": [[1.0, 2.0]],
    "allreduce_coalesced": [[3.0, 3.0]],
}


@pytest.mark.slow
@pytest.mark.parametrize("method", CALLS)
def test_all_forms_of_a_call_are_one(method):
    def body(rank, world_size):
        dist.init_process_group("gloo")
        return [call(dist.group.WORLD, torch.full((2,), rank + 1.0)) for call in CALLS[method]]

    assert backend.spawn(body, 2).returns[0] == [FIRST[method]] * len(CALLS[method])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda g, _: g.allreduce(), "allreduce() lacks tensors; expected (tensors/tensor, opts or"),
        (lambda g, t: g.allreduce([t], c10d.BroadcastOptions()), "expected AllreduceOptions"),
        (lambda g, t: g.broadcast([t], rot=1), "no argument 'rot'; did you mean 'root'"),
        (lambda g, _: g.barrier(1, 2, 3), "barrier() got 3 arguments"),
    ],
)  # fmt: skip
def test_wrong_arguments(wrong, words):
    def body(rank, world_size):
        dist.init_process_group("gloo")
        with pytest.raises(TypeError, match=re.escape(words)):
            wrong(dist.group.WORLD, torch.ones(1))

    backend.spawn(body, 2)


def test_the_timeout_of_a_call():
    def body(rank, world_size):
        dist.init_process_group("gloo")
        if rank == 0:
            with pytest.raises(RuntimeError, match="2000ms"):
                dist.group.WORLD.allreduce(torch.ones(1), timeout=timedelta(seconds=2)).wait()
        else:
            backend.compute(5)

    backend.spawn(body, 2)


def test_what_a_run_has_not_is_refused_by_name():
    def body(rank, world_size):
        dist.init_process_group("gloo")
        group = dist.group.WORLD
        store = dist.distributed_c10d._get_default_store()
        for call in (
            lambda: dist.ProcessGroupGloo(store, rank, world_size),
            lambda: group.shrink([1]),
            lambda: group.allocate_tensor(2, torch.float32, torch.device("cpu")),
            lambda: setattr(group, "use_pg_for_symm_mem_rendezvous", True),
        ):
            with pytest.raises(ConfigError, match=r"ProcessGroup|Backend\."):
                call()
        assert not group.use_pg_for_symm_mem_rendezvous
        assert not group.supports_splitting

    backend.spawn(body, 2)


def test_the_flight_recorder_shows_simulated_operations():
    def body(rank, world_size):
        dist.init_process_group("gloo")
        work = dist.all_reduce(torch.ones(4), async_op=True)
        active = json.loads(c10d._dump_fr_trace_json(onlyActive=True))["entries"]
        work.wait()
        assert work._get_duration() > 0
        assert work._get_op_type() == 1
        everything = json.loads(c10d._dump_fr_trace_json())
        none = json.loads(c10d._dump_fr_trace_json(includeCollectives=False))
        names = [entry["profiling_name"] for entry in everything["entries"]]
        return len(active), names, len(none["entries"]), sorted(everything)

    active, names, none, keys = backend.spawn(body, 2).returns[0]
    assert (active, none) == (1, 0)
    assert "all_reduce" in names[-1]
    assert {"entries", "pg_config", "version"} <= set(keys)


def test_handlers_of_own_schemes_and_stores():
    def body(rank, world_size):
        def own(url, **kwargs):
            yield dist.TCPStore("localhost", 29555, 2, rank == 0), rank, world_size

        dist.register_rendezvous_handler("shelf", own)
        with pytest.raises(RuntimeError, match="already registered"):
            dist.register_rendezvous_handler("shelf", own)
        dist.init_process_group("gloo", "shelf://a", rank=rank, world_size=world_size)
        assert next(dist.rendezvous("env://", rank, world_size))[1:] == (rank, world_size)
        store = dist.distributed_c10d._get_default_store()
        store.barrier("here", world_size, timedelta(seconds=1))
        store.queue_push(key=f"queue {rank}", value="x")
        return store.queue_pop(key=f"queue {rank}", block=True)

    assert backend.spawn(body, 2).returns == (b"x", b"x")
    with pytest.raises(RuntimeError, match="No rendezvous handler"):
        dist.rendezvous("shelf://a", 0, 1)
