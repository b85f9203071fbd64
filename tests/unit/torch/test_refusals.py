"""Parts of PyTorch that go past process groups are refused in words; those that only trace
collectives work.
"""

from __future__ import annotations

import contextlib

import pytest

from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
symmetric = Deferred("torch.distributed._symmetric_memory")
functional = Deferred("torch.distributed._functional_collectives")
device_mesh = Deferred("torch.distributed.device_mesh")
parallel = Deferred("torch.distributed.tensor.parallel")
aot_autograd = Deferred("torch._functorch.aot_autograd")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch

CALLS = {
    "_symmetric_memory.empty maps the memory of other GPUs": lambda: symmetric.empty(
        4, device="cuda"
    ),
    "_symmetric_memory.set_backend maps": lambda: symmetric.set_backend("NCCL"),
    "_symmetric_memory.rendezvous maps": lambda: symmetric.rendezvous(torch.ones(4), "0"),
    "_symmetric_memory.get_symm_mem_workspace maps": lambda: symmetric.get_symm_mem_workspace(
        "0", 1024
    ),
}


@pytest.mark.parametrize("words", CALLS)
def test_what_goes_past_process_groups_is_refused(words):
    def program(_rank, _world_size):
        dist.init_process_group("nccl")
        CALLS[words]()

    with pytest.raises(ConfigError, match=words):
        backend.spawn(program, 2, cuda_is_cpu=True)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*deprecated:FutureWarning", "ignore:torch.compile has no effect"
)
@pytest.mark.parametrize("way", ["compile", "export"])
def test_functional_collectives_are_traced_without_time(way):
    def program(rank, _world_size):
        class Model(torch.nn.Module):
            def forward(self, x):
                gathered = functional.all_gather_tensor(
                    functional.all_reduce(x, "sum", "0"), 0, "0"
                )
                return functional.reduce_scatter_tensor(gathered, "sum", 0, "0")

        dist.init_process_group("simcoll")
        x = torch.ones(4) * (rank + 1)
        ready = (
            torch.compile(Model())
            if way == "compile"
            else torch.export.export(Model(), (x,)).module()
        )
        assert backend.emulated_time() == 0
        return ready(x).tolist()

    result = backend.spawn(program, 2)
    assert result.returns == ([6.0] * 4, [6.0] * 4)
    assert result.operations == 3


@pytest.mark.slow
def test_a_joint_graph_of_distributed_tensors_is_traced_on_every_rank_without_time():
    def program(_rank, _world_size):
        dist.init_process_group("simcoll")
        mesh = device_mesh.init_device_mesh("cpu", (2,))
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
        plan = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
        parallel.parallelize_module(model, mesh, plan)
        x = torch.ones(3, 4)
        before = backend.emulated_time()
        with contextlib.ExitStack() as stack:
            joint = aot_autograd.aot_export_joint_with_descriptors(stack, model, (x,))
            names = [str(node.target) for node in joint.graph_module.graph.nodes]
        assert backend.emulated_time() == before
        return sum("all_reduce" in name for name in names)

    # The second layer's sum; the gradient of x is not asked for.
    assert backend.spawn(program, 2).returns == (1, 1)
