"""Groups, stores and tensors of PyTorch programs that need care: names per process, C++ defaults,
sparse gradients.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
c10d = Deferred("torch.distributed.distributed_c10d")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def on_ranks(body, nprocs=4):
    def program(rank, world_size):
        dist.init_process_group("simcoll")
        return body(rank, world_size)

    return backend.spawn(program, nprocs)


def test_groups_without_common_ranks_may_share_a_name():
    def body(rank, world_size):
        half, _ = dist.new_subgroups(2)
        own, _ = dist.new_subgroups(1, group=half)
        x, alone = torch.tensor([rank]), torch.tensor([rank])
        dist.all_reduce(x, group=half)
        dist.all_reduce(alone, group=own)
        return x.item(), alone.item()

    assert on_ranks(body).returns == ((1, 0), (1, 1), (5, 2), (5, 3))


def test_groups_with_common_ranks_may_not():
    def body(rank, world_size):
        dist.new_group([0, 1] if rank == 0 else [1, 2])

    with pytest.raises(
        RuntimeError, match=r"new_group differs between ranks: rank . makes group 1 of"
    ):
        on_ranks(body, 3)


def test_each_rank_making_only_its_own_group_is_an_error():
    def body(rank, world_size):
        mine = [0, 3] if rank in {0, 3} else [1, 2]
        dist.all_reduce(torch.ones(1), group=dist.new_group(mine))

    with pytest.raises(RuntimeError) as caught:
        on_ranks(body)
    assert "rank 1 makes group 1 of [1, 2], which another rank made of [0, 3]" in str(caught.value)
    assert "also those that they are no member of" in str(caught.value)


def test_own_groups_of_ranks_that_synchronise_locally_are_fine():
    def body(rank, world_size):
        mine = [0, 3] if rank in {0, 3} else [1, 2]
        x = torch.tensor([rank])
        dist.all_reduce(x, group=dist.new_group(mine, use_local_synchronization=True))
        return x.item()

    assert on_ranks(body).returns == (3, 3, 3, 3)


def test_messages_show_the_ranks_of_a_group():
    def body(rank, world_size):
        pair = dist.new_group([1, 2])
        if rank == 1:
            dist.barrier(pair)

    with pytest.raises(RuntimeError, match=r"on group 1 \(ranks 1, 2\), .*waits for rank 2"):
        on_ranks(body)


def test_groups_split_and_refuse_what_they_cannot_do():
    from simcoll.errors import ConfigError

    def body(rank, world_size):
        world = dist.group.WORLD
        half = world.split_group([rank // 2 * 2, rank // 2 * 2 + 1])
        x = torch.tensor([rank])
        dist.all_reduce(x, group=half)
        assert world.split_group([0]) is None or rank == 0
        with pytest.raises(ValueError, match=r"expected ranks of this group, 0 \.\. 3"):
            world.split_group([7])
        with pytest.raises(ConfigError, match="merge_remote_group joins groups of other jobs"):
            world.merge_remote_group(None, 8)
        with pytest.raises(ConfigError, match="_register_on_completion_hook calls back"):
            world._register_on_completion_hook(print)
        world._wait_for_pending_works()
        world.set_timeout(timedelta(seconds=3))
        return x.item(), half.size(), world._has_hooks()

    assert on_ranks(body).returns == ((1, 2, False),) * 2 + ((5, 2, False),) * 2


@pytest.mark.filterwarnings("ignore:.*which counts here.*:UserWarning")
def test_variables_that_contradict_the_run_are_a_finding():
    import os

    def program(rank, world_size):
        os.environ["WORLD_SIZE"] = "4"
        dist.init_process_group("gloo")
        return dist.get_world_size()

    result = backend.spawn(program, 2)
    assert result.returns == (2, 2)
    (said,) = result.findings
    assert "the script has set WORLD_SIZE=4, and the run has WORLD_SIZE=2" in said


def test_the_default_store_has_all_methods():
    def body(rank, world_size):
        store = c10d._get_default_store()
        if rank == 0:
            store.set("first", "a")
            store.queue_push("line", "x")
        dist.barrier()
        found = [
            store.clone().get("first"),
            store.num_keys(),
            store.list_keys(),
            store.queue_len("line"),
        ]
        dist.barrier()
        if rank == 1:
            found += [store.queue_pop("line"), store.delete_key("first")]
        dist.barrier()
        assert not store.check(["first"])
        return found

    ranks = on_ranks(body, 2).returns
    assert ranks[0] == [b"a", 1, ["first"], 1]
    assert ranks[1] == [*ranks[0], b"x", True]


def test_monitored_barriers_under_every_name_and_without_patience():
    def body(rank, world_size):
        dist.monitored_barrier()
        begin = backend.emulated_time()
        if rank == 0:
            with pytest.raises(
                RuntimeError, match="Rank 0 timed out in monitoredBarrier after 0 ms"
            ):
                dist.monitored_barrier(timeout=timedelta(0))
            assert backend.emulated_time() == begin
        with pytest.raises(TypeError, match="timedelta"):
            dist.monitored_barrier(timeout=3)

    on_ranks(body, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_sparse_tensors_are_summed():
    def body(rank, world_size):
        x = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,))
        dist.all_reduce(x)
        with pytest.raises(RuntimeError, match="of sparse tensors is a SUM"):
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
        model = nn.parallel.DistributedDataParallel(nn.Embedding(6, 2, sparse=True))
        model(torch.tensor([rank, 5])).sum().backward()
        return x.to_dense().tolist(), model.module.weight.grad.to_dense()[:, 0].tolist()

    for summed, gradient in on_ranks(body).returns:
        assert summed == [1, 1, 1, 9, 0]
        assert gradient == [0.25, 0.25, 0.25, 0.25, 0, 1]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_functions_that_autograd_knows_use_the_default_group_of_each_rank():
    def body(rank, world_size):
        from torch.distributed.nn import functional

        x = torch.full((2,), float(rank), requires_grad=True)
        y = functional.all_reduce(x)
        y.sum().backward()
        return y.tolist(), x.grad.tolist()

    assert on_ranks(body, 3).returns == (([3.0, 3.0], [3.0, 3.0]),) * 3


def test_the_fake_backend_stays_what_it_is():
    def program(rank, world_size):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=64, store=FakeStore())
        x = torch.ones(2)
        dist.all_reduce(x)
        return dist.get_world_size(), x.tolist()

    result = backend.spawn(program, 2)
    assert result.returns == ((64, [1.0, 1.0]),) * 2
    assert result.operations == 0
