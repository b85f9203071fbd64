"""A workload of which a few turns of each cycle are played takes the time of all turns."""

import random

import numpy as np
import pytest

from simcoll.topology import crossbar
from simcoll.training.design import design_from
from simcoll.training.steps import TrainingStep
from simcoll.workload import playing
from simcoll.workload.timing import WorkloadTimes
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    Rules,
    SendOperation,
    Workload,
)

CASES = 60


@pytest.fixture
def any_size(monkeypatch):
    """Turns are left out of any workload that has them."""
    monkeypatch.setattr(playing, "FEW_OPERATIONS", 0)
    monkeypatch.setattr(playing, "LEAST_GAIN", 1)


def play_both(workload, alone, monkeypatch, *, hashed=False, slow=None):
    """The runs with few turns, and with all."""
    times = WorkloadTimes(workload, alone)
    few = playing._play_together(workload, times, slow, spans=False, hashed=hashed)
    with monkeypatch.context() as patch:
        patch.setattr(playing, "_play_few_turns", lambda *_, **__: None)
        return few, playing._play_together(workload, times, slow, spans=False, hashed=hashed)


def random_body(generator):
    """Operations of a turn: what they do, and at what distances those are that they need."""
    body = []
    for _ in range(generator.randint(1, 4)):
        kind = generator.choice(["compute", "compute", "inside", "call", "send"])
        stream = generator.choice(["compute", "compute", "comm", f"{kind} stream"])
        distances = generator.sample(range(1, 6), generator.randint(0, 2))
        time_fs = generator.choice([0, 10**8, 10**9, 10**9, 3 * 10**9, 7_777_777_777])
        size = 8 * generator.choice([1, 1_000, 12_345, 100_000])
        body.append((kind, stream, distances, time_fs, size, generator.choice(["a", "b"])))
    return body


def random_workload(generator):
    """Cycles inside a cycle, between operations that do not recur."""
    rows = random_body(generator) * generator.randint(0, 1)
    inner = [random_body(generator) for _ in range(generator.randint(1, 2))]
    for _ in range(generator.choice([1, 2, 7, 9])):
        for body in inner:
            rows += body * generator.choice([generator.randint(1, 12), 8])
    rows += random_body(generator)
    operations = []
    if generator.random() < 0.2:  # beside all cycles, or a part of them
        time_fs = generator.choice([10**10, 10**12])
        operations.append(ComputeOperation(id="long", on="a", time_fs=time_fs, stream="long"))
    for number, (kind, stream, distances, time_fs, size, on) in enumerate(rows):
        places = [len(operations) - distance for distance in distances]
        after = tuple(operations[place].id for place in places if place >= 0)
        common = {"id": f"{number}", "after": after, "stream": stream}
        if kind == "call":
            operation = CallOperation(
                kind="all_reduce", group="dp", size_bytes=size, on=(on,), **common
            )
        elif kind == "send":
            target = "ba"[on == "b"]
            operation = SendOperation(source=on, target=target, size_bytes=size, **common)
        else:
            inside = (Inside("all_gather", "dp", size, generator.randint(1, 2)),)
            operation = ComputeOperation(
                on=on, time_fs=time_fs, inside=inside if kind == "inside" else (), **common
            )
        operations.append(operation)
    groups = {"dp": np.array([[0, 1], [2, 3]])}
    classes = {"a": np.array([0, 1]), "b": np.array([2, 3])}
    return Workload(4, classes, groups, tuple(operations), rules=Rules(protocol="ideal"))


@pytest.mark.slow
def test_random_cycles_take_the_time_of_all_their_turns(any_size, monkeypatch):
    alone = playing.alone_on(
        crossbar(4, "50 GB/s", "1 us"), uniform=False, rules=Rules(protocol="ideal")
    )
    generator, recurring = random.Random(7), 0
    for case in range(CASES):
        few, every = play_both(random_workload(generator), alone, monkeypatch)
        assert few.clock.time_fs == every.clock.time_fs, case
        assert few.messages == every.messages, case
        recurring += "recur" in few.path
    assert CASES // 6 < recurring < CASES


def step_of(**parallel):
    return TrainingStep(
        design_from(
            {
                "model": {"name": "llama-3.1-8b", "sequence": 4096, "global_batch": 128},
                "topology": {"name": "dgx-h100", "nodes": 2},
                "parallel": parallel,
            }
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "slow", "recurs"),
    [
        ({"tp": 2, "shard": "parameters"}, None, True),
        ({"tp": 2, "shard": "parameters"}, {3: 1.25}, False),
        ({"tp": 4, "cp": 2, "shard": "parameters", "micro_batch": 2}, None, False),
        ({"tp": 2, "pp": 2, "micro_batch": 1}, None, True),
        ({"tp": 8, "shard": "parameters", "micro_batch": 1}, None, False),
    ],
)
def test_steps_take_the_time_of_all_layers_and_micro_batches(
    parallel, slow, recurs, any_size, monkeypatch
):
    step = step_of(**parallel)
    for without in ((), ("dp",)):
        workload = step._workload(without)
        few, every = play_both(workload, step.alone, monkeypatch, slow=slow)
        assert few.clock.time_fs == every.clock.time_fs
        assert few.messages == every.messages
        if not without:
            assert ("recur" in few.path) == recurs


@pytest.mark.slow
def test_a_hash_of_all_messages_needs_all_turns(any_size, monkeypatch):
    step = step_of(tp=8, shard="parameters", micro_batch=4)
    few, every = play_both(step.workload, step.alone, monkeypatch, hashed=True)
    assert few == every
    assert few.trace_hash or few.messages > playing.MOST_HASHED
