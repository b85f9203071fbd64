"""Timelines of PyTorch programs name the phases and modules of their operators."""

from __future__ import annotations

import gzip
import json

import pytest

from simcoll.planning.designs.step_trace import step_trace
from simcoll.topology import load_topology
from simcoll.workload.playing import alone_on, run_workload
from simcoll.workload.workload import read_workload, write_workload
from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
fake, fsdp, parallel = (
    Deferred("torch._subclasses.fake_tensor"),
    Deferred("torch.distributed.fsdp"),
    Deferred("torch.nn.parallel"),
)
checkpointing = Deferred("torch.utils.checkpoint")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch

RUN = {"compute": "roofline", "gpu": "h100"}


def model_class():
    """A model of two layers; its class cannot be made before torch is loaded."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(256, 512), nn.Linear(512, 256)

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    class Tower(nn.Module):
        def __init__(self, recomputing):
            super().__init__()
            self.layers, self.recomputing = nn.ModuleList([Layer(), Layer()]), recomputing

        def forward(self, x):
            for layer in self.layers:
                if self.recomputing:
                    x = checkpointing.checkpoint(layer, x, use_reentrant=False)
                else:
                    x = layer(x)
            return x

    return Tower


def rows(path, rank=0):
    """Row, depth and name of the slices of a rank's rows, in order of time."""
    document = json.loads(path.read_text())
    events = [event for event in document["traceEvents"] if event["pid"] == rank]
    names = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert {event["tid"] for event in events if event["ph"] == "X"} <= set(names)
    slices = [event for event in events if event["ph"] == "X"]
    slices.sort(key=lambda event: (event["ts"], -event["dur"], event["args"].get("scope", "")))
    return [
        (names[event["tid"]], event["args"]["scope"].count("/"), event["name"])
        for event in slices
        if names[event["tid"]] in {"phases", "modules"}
    ]


@pytest.mark.slow
def test_a_sharded_step_has_its_phases_and_modules(tmp_path):
    tower = model_class()

    def program(_rank, _n):
        dist.init_process_group("simcoll")
        with fake.FakeTensorMode():
            model = tower(recomputing=False)
            for layer in model.layers:
                fsdp.fully_shard(layer)
            fsdp.fully_shard(model)
            optimizer = torch.optim.SGD(model.parameters(), 1e-3)
            for _ in range(2):
                loss = model(torch.randn(64, 256)).square().mean()
                loss.backward()
                optimizer.step()

    path = tmp_path / "t.json"
    backend.spawn(program, 2, topology="dgx-h100", trace=path, **RUN)
    slices = rows(path)
    phases = [name for row, _, name in slices if row == "phases"]
    assert phases == [
        "forward 1",
        "backward 1",
        "optimizer",
        "forward 2",
        "backward 2",
        "optimizer",
    ]
    modules = [(depth, name) for row, depth, name in slices if row == "modules"]
    assert modules[: len(modules) // 2] == [
        (1, "Tower"),
        (2, "layers.0"),
        (3, "up"),
        (3, "down"),
        (2, "layers.1"),
        (3, "up"),
        (3, "down"),
        (1, "Tower"),
        (2, "layers.1"),
        (3, "down"),
        (3, "up"),
        (2, "layers.0"),
        (3, "down"),
        (3, "up"),
        (1, "SGD"),
    ]
    assert modules[len(modules) // 2 :] == modules[: len(modules) // 2]


@pytest.mark.slow
def test_recomputed_layers_have_a_phase(tmp_path):
    tower = model_class()

    def program(_rank, _n):
        dist.init_process_group("simcoll")
        with fake.FakeTensorMode():
            model = parallel.DistributedDataParallel(tower(recomputing=True))
            model(torch.randn(64, 256)).sum().backward()

    path = tmp_path / "t.json"
    backend.spawn(program, 2, topology="dgx-h100", trace=path, **RUN)
    slices = rows(path)
    phases = [name for row, _, name in slices if row == "phases"]
    assert phases == [
        "forward 1",
        "recompute 1",
        "backward 1",
        "recompute 1",
        "backward 1",
    ]
    assert {name for row, depth, name in slices if row == "modules" and depth == 1} == {"Tower"}


def test_work_on_real_tensors_and_operations_have_a_place(tmp_path):
    def program(_rank, _n):
        dist.init_process_group("simcoll")

        class Mean(nn.Module):
            def forward(self, x):
                backend.compute("3 us", "scale")
                dist.all_reduce(x)
                return x

        nn.Sequential(nn.Identity(), Mean())(torch.ones(4))

    path = tmp_path / "t.json"
    backend.spawn(program, 2, trace=path)
    assert rows(path) == [
        ("phases", 0, "forward 1"),
        ("modules", 1, "Sequential"),
        ("modules", 2, "1"),
    ]
    events = json.loads(path.read_text())["traceEvents"]
    (call,) = (
        event
        for event in events
        if event["name"] == "ncclDevKernel_all_reduce" and not event["pid"]
    )
    assert call["args"]["scope"] == "forward 1/Sequential/1"


@pytest.mark.slow
def test_a_recorded_step_keeps_them():
    tower = model_class()

    def program(_rank, _n):
        dist.init_process_group("simcoll")
        with fake.FakeTensorMode():
            model = parallel.DistributedDataParallel(tower(recomputing=False))
            model(torch.randn(64, 256)).sum().backward()

    recorded = backend.spawn(program, 4, topology="dgx-h100", record=True, **RUN).workload
    workload = read_workload(write_workload(recorded))
    assert list(workload.groups) == ["default_pg"]
    machine = load_topology("dgx-h100")
    clock = run_workload(workload, machine).clock
    plans = alone_on(machine, uniform=False, rules=workload.rules).plans
    document = json.loads(gzip.decompress(step_trace(workload, clock, "t", plans)))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    phases = [
        event["name"]
        for event in document["traceEvents"]
        if event["ph"] == "X" and names[event["pid"], event["tid"]] == "phases"
    ]
    assert phases == ["forward 1", "backward 1"]


def test_runs_without_a_timeline_follow_no_modules():
    def program(_rank, _n):
        dist.init_process_group("simcoll")
        return len(nn.modules.module._global_forward_pre_hooks)

    assert backend.spawn(program, 2).returns == (0, 0)


@pytest.mark.slow
def test_launches_of_a_recorded_step_are_no_computation():
    """The GPU computes beside the launches, which take longer here than small operators."""

    def program(_rank, _n):
        dist.init_process_group("simcoll")
        with fake.FakeTensorMode():
            x = torch.randn(64, 64)
            for _ in range(20):
                x = x @ x
            dist.all_reduce(x)

    recorded = backend.spawn(program, 2, topology="dgx-h100", record=True, trace=True, **RUN)
    result = run_workload(recorded.workload, load_topology("dgx-h100"))
    summary = recorded.timeline.summary(0)
    assert result.compute_fs == summary.compute_fs
    assert result.compute_fs < result.time_fs
