"""Calls for GPUs that scripts make beside computing: devices, streams, memory, profilers, groups,
sharding with offload.
"""

from __future__ import annotations

import os

import pytest

from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch, dist, fsdp = (
    Deferred("torch"),
    Deferred("torch.distributed"),
    Deferred("torch.distributed.fsdp"),
)
device_mesh = Deferred("torch.distributed.device_mesh")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def on_gpus(body, nprocs=4):
    def program(rank, world_size):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        return body(rank, world_size)

    return backend.spawn(program, nprocs, topology="dgx-h100", cuda_is_cpu=True).returns


def test_the_default_device_may_be_a_gpu():
    def body(rank, _world_size):
        torch.set_default_device("cuda")
        total = torch.ones(3).sum()
        torch.set_default_device(None)
        return (
            total.item(),
            torch.cuda.can_device_access_peer(0, rank),
            torch.cuda.is_current_stream_capturing(),
        )

    assert on_gpus(body) == ((3.0, True, False),) * 4


def test_streams_can_be_waited_for():
    def body(_rank, _world_size):
        for stream in (
            torch.cuda.Stream(),
            torch.cuda.current_stream(),
            torch.cuda.default_stream(),
        ):
            with torch.cuda.stream(stream):
                torch.ones(2, device="cuda").record_stream(stream)
            stream.synchronize()
        return torch.cuda.current_stream().query()

    assert on_gpus(body) == (True,) * 4


def test_memory_and_profilers_are_asked():
    def body(rank, _world_size):
        held = torch.ones(256, device="cuda")
        torch.cuda.profiler.start()
        torch.cuda.memory._record_memory_history()
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.profiler.stop()
        with pytest.raises(
            ConfigError, match=r"torch.cuda.memory._dump_snapshot has no meaning in a simulated run"
        ):
            torch.cuda.memory._dump_snapshot("snapshot.pickle")
        return torch.cuda.memory_summary(rank), held.numel()

    for rank, (summary, _) in enumerate(on_gpus(body)):
        assert f"device ID {rank} " in summary
        assert "| Allocated memory      |" in summary


def test_groups_take_options_of_nccl():
    def body(_rank, world_size):
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.max_ctas = 8
        options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x, group=dist.new_group(range(world_size), pg_options=options))
        return x.item()

    before = getattr(dist, "ProcessGroupNCCL", None)
    assert on_gpus(body) == (4.0,) * 4
    assert getattr(dist, "ProcessGroupNCCL", None) is before


@pytest.mark.slow
def test_groups_keep_their_device():
    def body(rank, _world_size):
        world, device = dist.group.WORLD, torch.device("cuda", rank)
        pair = dist.new_group([0, 1])
        groups = [world] if rank > 1 else [world, pair]
        assert all(group.bound_device_id == device for group in groups)
        dist.barrier()
        dist.barrier(device_ids=[rank])
        mesh = device_mesh.init_device_mesh("cuda", (2, 2), mesh_dim_names=("a", "b"))
        x = torch.tensor([float(rank)], device="cuda")
        dist.all_reduce(x, group=mesh["a"].get_group())
        with pytest.raises((AssertionError, ValueError), match=r"[Mm]ismatch|does not match"):
            dist.new_group([0, 1], device_id=torch.device("cuda", (rank + 1) % 4))
        return x.item(), mesh["b"].get_group().bound_device_id

    found = on_gpus(body)
    assert found == tuple((2.0 + 2 * (rank % 2), torch.device("cuda", rank)) for rank in range(4))


@pytest.mark.parametrize(
    ("device_id", "error"),
    [
        ("cuda", "Please use a device_id with index"),
        ("cuda:8", "cuda:8 is out of range"),
        (9, "cuda:9 is out of range"),
        ("xpu:0", "does not match the current compilation's accelerator"),
        ("cpu", "must be an accelerator with an index"),
    ],
)
def test_devices_of_groups_are_checked(device_id, error):
    def program(_rank, _world_size):
        device = torch.device(device_id) if isinstance(device_id, str) else device_id
        with pytest.raises(ValueError, match=error):
            dist.init_process_group("nccl", device_id=device)

    backend.spawn(program, 2, topology="dgx-h100", cuda_is_cpu=True)


def test_a_number_is_a_device_and_chooses_the_backend():
    def program(rank, _world_size):
        dist.init_process_group(device_id=rank)
        return dist.group.WORLD.bound_device_id, dist.get_backend()

    found = backend.spawn(program, 2, cuda_is_cpu=True).returns
    assert found == tuple((torch.device("cuda", rank), "nccl") for rank in range(2))


def test_groups_without_a_device_are_not_split_before_pytorch_2_15():
    def program(_rank, _world_size):
        dist.init_process_group("nccl")
        try:
            return dist.split_group(split_ranks=[[0], [1]]).size()
        except RuntimeError as error:
            return str(error)

    (found, _) = backend.spawn(program, 2, cuda_is_cpu=True).returns
    release = tuple(int(part) for part in torch.version.__version__.split(".")[:2])
    if release < (2, 15):
        assert "No device associated with the default pg" in found
    else:
        assert found == 1


def test_groups_are_split():
    def body(rank, _world_size):
        pairs = dist.split_group(split_ranks=[[2, 0], [1, 3]])
        x = torch.tensor([float(rank)], device="cuda")
        dist.all_reduce(x, group=pairs)
        within = dist.split_group(pairs, [[1]])
        with pytest.raises(ValueError, match="split_ranks cannot be None or empty"):
            dist.split_group(split_ranks=[])
        alone = within not in {None, dist.GroupMember.NON_GROUP_MEMBER}
        return x.item(), dist.get_process_group_ranks(within) if alone else None

    assert on_gpus(body) == ((2.0, None), (4.0, None), (2.0, [2]), (4.0, [3]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*was never waited for:UserWarning")
def test_fsdp1_synchronizes_and_offloads_modules():
    def body(rank, _world_size):
        torch.manual_seed(rank)
        model = fsdp.FullyShardedDataParallel(
            torch.nn.Linear(4, 1, bias=False).cuda(),
            sync_module_states=True,
            cpu_offload=fsdp.CPUOffload(True),
            use_orig_params=True,
        )
        model(torch.full((2, 4), float(rank)).cuda()).sum().backward()
        with fsdp.FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            (weight,) = model.parameters()
            return weight.tolist(), weight.grad.tolist()

    found = on_gpus(body)
    torch.manual_seed(0)
    first = torch.nn.Linear(4, 1, bias=False).weight.tolist()
    assert found == ((first, [[3.0] * 4]),) * 4


def test_a_program_counts_the_modes_that_it_has_entered():
    from torch.overrides import BaseTorchFunctionMode

    def body(_rank, _world_size):
        before = torch._C._len_torch_function_stack()
        with BaseTorchFunctionMode():
            inside = torch._C._len_torch_function_stack()
            seen = torch.ones(2, device="cuda").sum().item()
        return before, inside, seen, torch._C._len_torch_function_stack()

    assert on_gpus(body) == ((0, 1, 2.0, 0),) * 4


def test_streams_are_set_by_their_numbers():
    standard = getattr(torch._C, "_cuda_setStream", None)

    def body(rank, _world_size):
        before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        numbers = stream.stream_id, stream.device_index, stream.device_type
        torch._C._cuda_setStream(*numbers)
        is_current = torch.cuda.current_stream() == stream
        raw = torch._C._cuda_getCurrentRawStream(rank)
        asked = torch._C._cuda_getCurrentStream(rank)
        torch.cuda.set_stream(before)
        return is_current, raw == stream.cuda_stream, asked == numbers

    assert on_gpus(body) == ((True, True, True),) * 4
    assert getattr(torch._C, "_cuda_setStream", None) is standard


def test_sharded_parameters_that_move_to_the_host_and_back_are_copies():
    def body(_rank, _world_size):
        model = torch.nn.Linear(4, 4, bias=False)
        fsdp.fully_shard(model)
        before = model.weight.to_local()
        model.cpu()
        moved = model.weight.to_local()
        model.cuda()
        after = model.weight.to_local()
        same = torch.equal(before, after)
        return same, len({tensor.data_ptr() for tensor in (before, moved, after)})

    assert on_gpus(body, 2) == ((True, 3),) * 2


def test_a_hook_of_sharded_gradients_runs_on_the_stream_that_it_is_given():
    def body(_rank, _world_size):
        model = torch.nn.Linear(4, 4, bias=False)
        fsdp.fully_shard(model)
        stream, seen = torch.cuda.Stream(), []
        hook = lambda _output: seen.append(torch.cuda.current_stream() == stream)  # noqa: E731
        model.set_all_reduce_hook(hook, stream=stream)
        model(torch.ones(1, 4, device="cuda")).sum().backward()
        return *seen, torch.cuda.current_stream() == torch.cuda.default_stream()

    assert on_gpus(body, 2) == ((True, True),) * 2


def test_generators_of_gpus_out_of_step_are_told():
    from torch.distributed.collective_utils import _check_rng_sync

    def body(rank, _world_size):
        generator = torch.Generator(device="cuda").manual_seed(3)
        same = _check_rng_sync(generator, dist.group.WORLD)
        if rank == 1:
            torch.rand(2, generator=generator, device="cuda")
        return same, _check_rng_sync(generator, dist.group.WORLD).splitlines()[0]

    assert on_gpus(body, 2) == ((None, "Generator desync detected:"),) * 2


@pytest.mark.slow
def test_a_mesh_selects_the_gpu_of_a_process_that_has_selected_none():
    """As PyTorch documents for ``init_device_mesh``: by LOCAL_RANK, else by the rank."""

    def body(rank, _world_size):
        if rank == 3:
            torch.cuda.set_device(0)
        if rank == 2:
            torch.ones(1, device="cuda")
        mesh = device_mesh.init_device_mesh("cuda", (4,))
        with pytest.raises(RuntimeError, match="Device type with index is not supported"):
            device_mesh.init_device_mesh("cuda:0", (4,))
        return torch.cuda.current_device(), mesh.size()

    assert backend.spawn(body, 4, cuda_is_cpu=True).returns == ((0, 4), (1, 4), (0, 4), (0, 4))

    def without_launcher(_rank, _world_size):
        del os.environ["LOCAL_RANK"]
        with pytest.warns(UserWarning, match="LOCAL_RANK is not set"):
            device_mesh.DeviceMesh(device_type="cuda", mesh=[0, 1, 2, 3])
        return torch.cuda.current_device()

    assert backend.spawn(without_launcher, 4, cuda_is_cpu=True).returns == (0, 1, 2, 3)
