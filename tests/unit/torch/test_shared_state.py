"""What PyTorch keeps once for a process, in programs whose ranks share one: every rank sees its
own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
import warnings

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend, fsdp, parallel = (
    Deferred("simcoll.torch"),
    Deferred("torch.distributed.fsdp"),
    Deferred("torch.distributed.tensor.parallel"),
)

pytestmark = needs_torch


def test_a_static_graph_starts_its_first_all_reduces_at_the_end_of_the_backward_pass():
    def program(rank, world_size):
        dist.init_process_group()
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(2, 1, bias=False), static_graph=True
        )
        gradients = []
        for step in range(2):
            model(torch.full((1, 2), float(rank + step))).sum().backward()
            gradients.append(model.module.weight.grad.tolist()[0])
            model.zero_grad()
        return gradients

    assert backend.spawn(program, 3).returns == ([[1.0, 1.0], [2.0, 2.0]],) * 3


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*was never waited for:UserWarning")
def test_a_full_state_dict_on_the_cpu_of_one_rank():
    """PyTorch frees the parameters that it moves to where they are; on gloo, it reads them then."""

    def program(rank, world_size):
        dist.init_process_group()
        torch.manual_seed(0)
        plain = torch.nn.Linear(5, 3)
        before = {name: value.clone() for name, value in plain.state_dict().items()}
        model = fsdp.FullyShardedDataParallel(
            plain, device_id=torch.device("cpu"), use_orig_params=True
        )
        how = fsdp.FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with fsdp.FullyShardedDataParallel.state_dict_type(
            model, fsdp.StateDictType.FULL_STATE_DICT, how
        ):
            found = model.state_dict()
        state = fsdp.FullyShardedDataParallel.optim_state_dict(
            model, torch.optim.SGD(model.parameters())
        )
        assert set(state) == {"state", "param_groups"}
        return rank != 0 or all(torch.equal(found[name], before[name]) for name in before)

    assert backend.spawn(program, 2).returns == (True, True)


def test_filters_of_warnings_are_those_of_a_rank():
    """Rank 1 warns while rank 0 takes warnings for errors, and the run's own findings are warnings
    all the same.
    """

    def program(rank, world_size):
        dist.init_process_group()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if rank else "error")
            dist.barrier()
            if rank:
                warnings.warn("heard by nobody", stacklevel=1)
            dist.barrier()
        warnings.simplefilter("error")
        dist.all_reduce(torch.ones(1), async_op=True)

    before = warnings.filters[:]
    with pytest.warns(UserWarning, match="was never waited for"):
        backend.spawn(program, 2)
    assert warnings.filters == before


def test_loss_parallel_is_that_of_a_rank():
    """While rank 0 is inside, rank 1 has not entered, or has left."""

    def program(rank, world_size):
        dist.init_process_group()
        mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
        logits = torch.arange(24.0).reshape(4, 6).sin()
        target = torch.tensor([0, 5, 3, 2])
        shard = torch.distributed.tensor.distribute_tensor(
            logits, mesh, [torch.distributed.tensor.Shard(1)]
        )
        for _ in range(2):
            with parallel.loss_parallel():
                loss = torch.nn.functional.cross_entropy(shard, target)
                dist.barrier()
        return loss.full_tensor().item() - torch.nn.functional.cross_entropy(logits, target).item()

    assert backend.spawn(program, 2).returns == pytest.approx((0, 0), abs=1e-6)


def test_stores_that_a_program_makes(tmp_path):
    def program(rank, world_size):
        found = []
        for store in (
            dist.TCPStore("localhost", 29511, world_size, rank == 0),
            dist.FileStore(str(tmp_path / "store"), world_size),
        ):
            if rank == 1:
                store.set("key", "value")
            found.append(store.get("key"))  # rank 0 waits for rank 1
        dist.init_process_group(store=store, rank=rank, world_size=world_size)
        total = torch.ones(1)
        dist.all_reduce(total)
        return [*found, total.item()]

    assert backend.spawn(program, 2).returns == ([b"value", b"value", 2.0],) * 2


def test_environment_variables_are_those_of_a_rank():
    """Set, changed and removed ones, in Python's table and in C's, and the run restores them."""
    os.environ["SIMCOLL_TEST_SHARED"] = "run"
    try:

        def program(rank, world_size):
            dist.init_process_group()
            if rank == 0:
                del os.environ["SIMCOLL_TEST_SHARED"]
            elif rank == 1:
                os.environ["SIMCOLL_TEST_OWN"] = os.environ["SIMCOLL_TEST_SHARED"] = "one"
            dist.barrier()
            names = ("RANK", "SIMCOLL_TEST_SHARED", "SIMCOLL_TEST_OWN")
            in_c = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
            lines = dict(line.split("=", 1) for line in in_c.splitlines() if "=" in line)
            values = [os.environ.get(name) for name in names]
            assert values == [lines.get(name) for name in names]
            return values

        assert backend.spawn(program, 3).returns == (
            ["0", None, None],
            ["1", "one", "one"],
            ["2", "run", None],
        )
        assert os.environ["SIMCOLL_TEST_SHARED"] == "run"
        assert "SIMCOLL_TEST_OWN" not in os.environ
        assert os.getenv("RANK") is None
    finally:
        os.environ.pop("SIMCOLL_TEST_SHARED", None)


def test_paths_of_imports_and_the_format_of_tensors_are_those_of_a_rank():
    def program(rank, _world_size):
        dist.init_process_group()
        sys.path.append(f"/folder of rank {rank}")
        torch.set_printoptions(precision=2 + rank)
        dist.barrier()
        return sys.path[-1], str(torch.tensor(1.23456))

    path, text = sys.path[:], str(torch.tensor(1.23456))
    assert backend.spawn(program, 2).returns == (
        ("/folder of rank 0", "tensor(1.23)"),
        ("/folder of rank 1", "tensor(1.235)"),
    )
    assert (sys.path, str(torch.tensor(1.23456))) == (path, text)


def test_modules_that_a_rank_puts_into_the_table_itself_are_its_own():
    def program(rank, _world_size):
        dist.init_process_group()
        module = sys.modules["module_of_a_rank"] = types.ModuleType("module_of_a_rank")
        module.rank = rank
        dist.barrier()
        import module_of_a_rank

        return module_of_a_rank.rank, module_of_a_rank is module

    run = backend.spawn(program, 3, own_modules=True)
    assert run.returns == ((0, True), (1, True), (2, True))
    assert "module_of_a_rank" not in sys.modules
