"""Ways of DTensor that depend on the device type of a mesh."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import simcoll
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
tensor, debug = Deferred("torch.distributed.tensor"), Deferred("torch.distributed.tensor.debug")
costs = Deferred("torch.distributed.tensor._collective_utils")
fake_tensor = Deferred("torch._subclasses.fake_tensor")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch

ON_GLOO = """
import json, sys
import torch
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
import torch.distributed as dist

def shards(rank, size, file):
    store = dist.FileStore(file, size)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=store)
    mesh, result = init_device_mesh("cpu", (size,)), []
    for shape in json.loads(sys.argv[2]):
        whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
        local = distribute_tensor(whole, mesh, [Shard(0)])
        result.append(local.redistribute(mesh, [Shard(1)]).to_local().tolist())
    gathered = [None] * size
    dist.all_gather_object(gathered, result)
    if rank == 0:
        print(json.dumps(gathered))
    dist.barrier()  # gloo's messages need both ends
    dist.destroy_process_group()

# Processes that are started anew would import PyTorch three times.
torch.multiprocessing.start_processes(shards, (3, sys.argv[1]), nprocs=3, start_method="fork")
"""
SHAPES = [[6, 9], [7, 5], [2, 2, 4], [1, 3]]
"""Even and uneven shards along both dimensions, and empty ones."""


def _redistributed(device):
    def program(_rank, size):
        mesh, result = tensor.init_device_mesh(device, (size,)), []
        for shape in SHAPES:
            whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
            local = tensor.distribute_tensor(whole, mesh, [tensor.Shard(0)])
            result.append(local.redistribute(mesh, [tensor.Shard(1)]).to_local().tolist())
        return result

    return backend.spawn(program, 3, cuda_is_cpu=True)


@pytest.mark.slow
def test_shards_of_another_dimension_have_gloos_values(tmp_path):
    """On GPUs by ``all_to_all``, on CPUs by PyTorch's ``all_gather``."""
    script = tmp_path / "on_gloo.py"
    script.write_text(ON_GLOO)
    command = [sys.executable, str(script), str(tmp_path / "store"), json.dumps(SHAPES)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    on_gloo = json.loads(answer.stdout)
    assert on_gloo[0][1] == [[0, 1], [5, 6], [10, 11], [15, 16], [20, 21], [25, 26], [30, 31]]
    for device, name in (("cuda", "all_to_all"), ("cpu", "all_gather_coalesced")):
        result = _redistributed(device)
        assert list(result.returns) == on_gloo
        names = [record.name for record in result.records if record.name != "scatter"]
        assert names == [name] * len(SHAPES)


@pytest.mark.slow
@pytest.mark.parametrize("fake", [False, True])
def test_gpus_send_each_its_part(fake):
    """A rank of 4 with 8 x 64 of 32 x 64 floats sends three quarters of them, and keeps one."""

    def program(_rank, _size):
        mesh = tensor.init_device_mesh("cuda", (4,))
        with fake_tensor.FakeTensorMode() if fake else torch.no_grad():
            rows = torch.ones(8, 64, device="cuda")
            sharded = tensor.DTensor.from_local(rows, mesh, [tensor.Shard(0)])
            with debug.CommDebugMode() as counts:
                columns = sharded.redistribute(mesh, [tensor.Shard(1)])
            assert tuple(columns.to_local().shape) == (32, 16)
        return {str(name): count for name, count in counts.get_comm_counts().items()}

    result = backend.spawn(program, 4, cuda_is_cpu=True, compute="roofline", gpu="h100")
    assert list(result.returns) == [{"_dtensor.shard_dim_alltoall": 1}] * 4
    assert [record.name for record in result.records] == ["all_to_all"]
    assert result.records[0].size_bytes == 8 * 64 * 4
    assert not [finding for finding in result.findings if "shard_dim_alltoall" in finding]


def test_meta_tensors_move_nothing():
    def program(_rank, _size):
        mesh = tensor.init_device_mesh("cuda", (2,))
        rows = torch.ones(4, 6, device="meta")
        sharded = tensor.DTensor.from_local(rows, mesh, [tensor.Shard(0)], run_check=False)
        return tuple(sharded.redistribute(mesh, [tensor.Shard(1)]).to_local().shape)

    result = backend.spawn(program, 2, cuda_is_cpu=True)
    assert list(result.returns) == [(8, 3)] * 2
    assert not result.records


def test_the_parts_are_copied_before_and_after():
    """Three kernels of a GPU: contiguous parts, the collective, and their concatenation."""

    def program(_rank, _size):
        mesh = tensor.init_device_mesh("cuda", (2,))
        with fake_tensor.FakeTensorMode():
            rows = torch.empty(4096, 8192, device="cuda")
            sharded = tensor.DTensor.from_local(rows, mesh, [tensor.Shard(0)], run_check=False)
            torch.cpu.synchronize()
            begin = backend.emulated_time()
            sharded.redistribute(mesh, [tensor.Shard(1)])
            torch.cpu.synchronize()
            return backend.emulated_time() - begin

    timed = {"cuda_is_cpu": True, "compute": "roofline", "gpu": "h100", "topology": "dgx-h100"}
    copies = 2 * 2 * 4096 * 8192 * 4 / (0.8 * 3.35e12)
    result = backend.spawn(program, 2, **timed)
    (record,) = result.records
    assert result.returns[0] == pytest.approx(
        (record.end_fs - record.begin_fs) / 1e15 + copies, rel=0.05
    )


@pytest.mark.slow
def test_costs_by_which_dtensor_chooses_know_the_gpus_of_a_node():
    """PyTorch's own: 87.7 GB/s inside a host, 0.22 of that between hosts."""

    def program(_rank, size):
        gpus, cpus = (tensor.init_device_mesh(device, (2, size // 2)) for device in ("cuda", "cpu"))
        topologies = [costs.MeshTopoInfo.build_from_mesh(mesh) for mesh in (cpus, gpus)]
        return [topology.mesh_dim_bandwidth for topology in topologies]

    inside, between = 87.7, pytest.approx(0.22 * 87.7)
    for nodes, outer in ((1, inside), (2, between)):
        machine = simcoll.load_topology("dgx-h100", nodes=nodes)
        result = backend.spawn(program, 8 * nodes, topology=machine, cuda_is_cpu=True)
        assert result.returns[0] == [[between, between], [outer, inside]]


def test_pytorchs_costs_are_its_own_after_the_run():
    from torch.distributed.device_mesh import _mesh_resources, _MeshEnv

    before = vars(_MeshEnv)["num_devices_per_host"]
    backend.spawn(lambda *_: None, 1, cuda_is_cpu=True)
    assert vars(_MeshEnv)["num_devices_per_host"] is before
    assert _mesh_resources.num_devices_per_host("cpu") == 1
