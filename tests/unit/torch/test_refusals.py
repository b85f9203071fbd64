"""Parts of PyTorch that go past process groups are refused in words; those that only trace
collectives work.
"""

from __future__ import annotations

import pytest

from simcoll.errors import ConfigError
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
symmetric = Deferred("torch.distributed._symmetric_memory")
functional = Deferred("torch.distributed._functional_collectives")
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
