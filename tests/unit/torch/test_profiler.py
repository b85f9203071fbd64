"""``torch.profiler`` in ranks: each has its own events, in simulated time."""

from __future__ import annotations

import json

import pytest

from tests.support.deferred import Deferred, needs_torch

torch, nn, dist = Deferred("torch"), Deferred("torch.nn"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def test_each_rank_has_its_own_profile(tmp_path):
    def body(rank, world_size):
        dist.init_process_group("gloo")
        pair = dist.new_group([0, 1])
        profiler, activities = torch.profiler, [torch.profiler.ProfilerActivity.CPU]
        with (
            profiler.profile(activities=activities, record_shapes=True) as profile,
            profiler.record_function(f"step of {rank}"),
        ):
            x = torch.ones(4, 4) @ torch.ones(4, 4)
            backend.compute("10 us")
            dist.all_reduce(x)
            if rank < 2:
                dist.all_reduce(x, group=pair)
            dist.all_reduce(x, async_op=True).wait()
        profile.export_chrome_trace(str(tmp_path / f"{rank}.json"))
        return profile, backend.emulated_time()

    for rank, (profile, seconds) in enumerate(backend.spawn(body, 3).returns):
        events = profile.events()
        named = {event.name: event for event in events}
        step = named[f"step of {rank}"]
        assert (step.time_range.start, step.time_range.end) == (0, pytest.approx(seconds * 1e6))
        assert named["aten::mm"].input_shapes == [[4, 4], [4, 4]]
        found = [event for event in events if event.name == "gloo:all_reduce"]
        assert len(found) == (3 if rank < 2 else 2)
        assert all(event.is_async and event.input_shapes == [[4, 4]] for event in found)
        assert found[0].time_range.start == 10  # after the computation
        assert "gloo:all_reduce" in profile.key_averages(group_by_input_shape=True).table()
        trace = json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"]
        (mine,) = (event for event in trace if event["name"] == f"step of {rank}")
        assert (mine["pid"], mine["ts"], mine["dur"]) == (rank, 0, pytest.approx(seconds * 1e6))
        groups = [
            event["args"]["Process Group Name"]
            for event in trace
            if event["name"] == "gloo:all_reduce"
        ]
        assert groups == (["0", "1", "0"] if rank < 2 else ["0", "0"])


@pytest.mark.slow
def test_profiles_with_a_schedule_and_of_a_backward_pass():
    kept = []

    def body(rank, world_size):
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4), find_unused_parameters=True)
        plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
        with torch.profiler.profile(
            schedule=plan, on_trace_ready=lambda profile: kept.append(profile.events())
        ) as prof:
            for _ in range(5):
                model(torch.ones(2, 4)).sum().backward()
                prof.step()
        with torch.autograd.profiler.profile(record_shapes=True) as inner:
            dist.barrier()
        return [event.name for event in inner.function_events]

    assert all("gloo:barrier" in names for names in backend.spawn(body, 2).returns)
    assert len(kept) == 2
    for events in kept:
        names = [event.name for event in events]
        assert sum(name.endswith("search_unused_parameters") for name in names) == 2
        assert sum(name.startswith("ProfilerStep") for name in names) == 2
        assert names.count("gloo:all_reduce") >= 2


def test_what_a_profile_of_a_rank_cannot_be():
    def body(rank, world_size):
        said = pytest.raises(RuntimeError, match=f"rank {rank}: a profiler is open already")
        with torch.autograd.profiler.profile() as outer, said:
            torch.autograd.profiler.profile().__enter__()
        with pytest.raises(RuntimeError, match="no event tree"):
            outer.kineto_results.experimental_event_tree()
        with pytest.raises(RuntimeError, match="records one process"):
            torch.profiler.ExecutionTraceObserver().register_callback("x.json")

    backend.spawn(body, 2)
    with torch.profiler.profile() as outside:  # as always
        torch.ones(2) + 1
    assert "aten::add" in {event.name for event in outside.events()}


@pytest.mark.parametrize("name", ["gloo", "nccl", "simcoll", None])
@pytest.mark.filterwarnings("ignore:.*NCCL support is not compiled:UserWarning")
def test_reports_survive_under_every_name(name):
    def body(rank, world_size):
        dist.init_process_group(name)
        dist.all_reduce(torch.zeros(3 + rank))

    with pytest.raises(
        RuntimeError, match=r"they differ in number of elements\n  rank 0: all_reduce \[3\]"
    ):
        backend.spawn(body, 2)
