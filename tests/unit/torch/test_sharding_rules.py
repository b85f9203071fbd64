"""Attention on sharded tensors, as programs with tensor parallel attention call it."""

import copy
import gc
from types import SimpleNamespace

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist, fsdp = (
    Deferred("torch"),
    Deferred("torch.distributed"),
    Deferred("torch.distributed.fsdp"),
)
parallel = Deferred("torch.distributed.tensor.parallel")
placement_types = Deferred("torch.distributed.tensor.placement_types")
backend, sharding_rules = Deferred("simcoll.torch"), Deferred("simcoll.torch.sharding_rules")

pytestmark = needs_torch


def attention(_rank, _size, dimension, mask_shape):
    """A sharded attention and its gradients; the largest differences from those of whole
    tensors.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.nn.functional import scaled_dot_product_attention

    dist.init_process_group("simcoll")
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    whole = [torch.randn(4, 6, 5, 8, requires_grad=True) for _ in range(3)]
    mask = None if mask_shape is None else torch.randn(*mask_shape)
    expected = scaled_dot_product_attention(*whole, attn_mask=mask, is_causal=mask is None)
    wanted = torch.autograd.grad(expected.square().sum(), whole)
    place = Replicate() if dimension is None else Shard(dimension)
    parts = [distribute_tensor(each.detach(), mesh, [place]).requires_grad_() for each in whole]
    shared = None if mask is None else distribute_tensor(mask, mesh, [Replicate()])
    got = scaled_dot_product_attention(*parts, attn_mask=shared, is_causal=mask is None)
    assert isinstance(got, DTensor)
    differs = (
        mask is not None and dimension is not None and mask.expand(4, 6, 5, 5).stride()[dimension]
    )
    assert got.placements == ((Replicate() if differs else place),)
    gradients = torch.autograd.grad(got.square().sum(), parts)
    return [
        float((one.full_tensor() - two).detach().abs().max())
        for one, two in zip((got, *gradients), (expected, *wanted), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mask_shape", [None, (5, 5), (4, 1, 5, 5), (1, 6, 5, 5), (4, 6, 5, 5)])
@pytest.mark.parametrize("dimension", [None, 0, 1])
def test_attention_is_sharded_by_batches_and_heads(dimension, mask_shape):
    import simcoll.torch

    for differences in simcoll.torch.spawn(attention, 2, (dimension, mask_shape)).returns:
        assert max(differences) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
def test_context_parallel_attention_is_that_of_the_whole_sequence(ranks, rotation):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention as experimental
    from torch.nn import functional

    import simcoll.torch

    causal = {"is_causal": True}

    def program(rank, world_size):
        standard = functional.scaled_dot_product_attention
        mesh = init_device_mesh("cpu", (world_size,))
        experimental.set_rotate_method(rotation)
        torch.manual_seed(0)
        whole = [torch.randn(2, 3, 4 * world_size, 8) for _ in range(4)]
        gradient, *tensors = parts = [each.clone() for each in whole]
        with experimental.context_parallel(
            mesh, buffers=parts, buffer_seq_dims=[2] * 4, no_restore_buffers=set(parts)
        ):
            for each in tensors:
                each.requires_grad_()
            part = functional.scaled_dot_product_attention(*tensors, **causal)
            part.backward(gradient)
        # Of this rank; others may still be inside.
        assert functional.scaled_dot_product_attention is standard
        mine = [part.detach(), *(each.grad for each in tensors)]
        got = experimental.context_parallel_unshard(mesh, mine, [2] * 4)
        for each in whole[1:]:
            each.requires_grad_()
        expected = standard(*whole[1:], **causal)
        wanted = torch.autograd.grad(expected, whole[1:], whole[0])
        return [
            float((one - two).abs().max())
            for one, two in zip(got, (expected.detach(), *wanted), strict=True)
        ]

    try:
        for differences in simcoll.torch.spawn(program, ranks).returns:
            assert max(differences) < 1e-5
    finally:
        experimental.set_rotate_method("allgather")


def test_the_rule_ends_with_the_run():
    from torch.distributed.tensor import DTensor

    import simcoll.torch

    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    known = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    before = operator in known
    inside = simcoll.torch.spawn(lambda *_: operator in known, 1).returns
    assert inside == (True,)
    assert (operator in known) == before


@pytest.mark.parametrize("flags", [(), (True,), (False, False), (False, True, False)])
def test_strided_shards_of_a_list_are_looked_for_once(flags):
    """DTensor corrects each tensor of a list by looking through all of them; the flags of the
    strided ones count.
    """
    strided = [placement_types._StridedShard(0, split_factor=2)]
    specs = [
        SimpleNamespace(placements=[placement_types.Shard(0)]),
        *(
            SimpleNamespace(placements=strided, use_strided_shard_as_shard_order=flag)
            for flag in flags
        ),
    ]
    lookups, seen = [], []

    class Schema:
        @property
        def args_spec(self):
            lookups.append(self)
            return specs

    def standard(_strategy, schema):
        seen.append([spec.use_strided_shard_as_shard_order for spec in schema.args_spec])

    correct, first, second = sharding_rules._look_once(standard), Schema(), Schema()
    for schema in (first, first, second, second, second):
        correct(None, schema)
    assert lookups == [first, second]
    assert seen == [list(dict.fromkeys(flags))] * (5 if flags else 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*returned a view tensor:UserWarning")
def test_optimizers_on_lists_of_strided_shards():
    """With tensor parallelism and fully_shard, whose parameters have strided shards: the steps are
    those of plain tensors.
    """

    def program(rank, world_size):
        dist.init_process_group()
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
        plain = copy.deepcopy(model)
        parallel.parallelize_module(
            model,
            mesh["tensor"],
            {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()},
        )
        fsdp.fully_shard(model, mesh=mesh["shard"])
        rows = torch.arange(8.0).reshape(2, 4)
        for module in (plain, model):
            optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, foreach=True)
            for _ in range(2):
                module(rows).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return all(
            torch.allclose(mine.full_tensor(), theirs, atol=1e-5)
            for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True)
        )

    assert backend.spawn(program, 4).returns == (True,) * 4


@pytest.mark.slow
def test_collections_of_garbage_look_through_what_the_run_has_made():
    """Not through PyTorch's modules, which are as before after the run."""
    frozen_before = gc.get_freeze_count()
    frozen = backend.spawn(lambda *_: gc.get_freeze_count(), 1).returns[0]
    assert frozen > 10_000
    assert gc.get_freeze_count() == frozen_before


def test_placements_of_equal_tensors_are_worked_out_once():
    """And again for a schema that differs, or other arguments."""
    calls = []

    def work_out(mesh, schema, *, inplace):
        calls.append((mesh, schema, inplace))
        return [len(calls)]

    quick = sharding_rules._work_out_once(work_out, 1)
    first, second = SimpleNamespace(), SimpleNamespace()
    results = [
        quick("mesh", first, inplace=False),
        quick("mesh", first, inplace=False),
        quick("mesh", second, inplace=False),
        quick("mesh", first, inplace=True),
        quick("other mesh", first, inplace=True),
    ]
    assert results == [[1], [1], [2], [3], [4]]
    assert results[0] is results[1]
