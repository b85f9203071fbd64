"""Runs of workloads are found again by their content, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simcoll.topology import crossbar
from simcoll.workload import playing
from simcoll.workload.lower import WorkloadPlans
from simcoll.workload.playing import alone_on, play_workload
from simcoll.workload.run_content import run_key
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    SendOperation,
    Workload,
)

NET = crossbar(4, "50 GB/s", "1 us")


def step(prefix="", *, time_fs=10**9, size=1 << 20, stream="compute", after=("forward",)):
    """A forward pass with collectives inside, gradients, and a message."""
    needs = tuple(f"{prefix}{name}" for name in after)
    inner = Inside("all_reduce", "tp", size, 2)
    forward = ComputeOperation(
        id=f"{prefix}forward", on="first", time_fs=time_fs, stream=stream, inside=(inner,)
    )
    gradients = CallOperation(
        id=f"{prefix}gradients", kind="all_reduce", group="dp", size_bytes=4 * size, after=needs
    )
    message = SendOperation(
        id=f"{prefix}message", source="first", target="last", size_bytes=size, after=needs
    )
    classes = {"first": np.arange(2), "last": np.arange(2, 4)}
    groups = {"tp": np.arange(4).reshape(2, 2), "dp": np.array([[0, 2], [1, 3]])}
    return Workload(4, classes, groups, (forward, gradients, message))


def key(workload, topology=NET, slow=None):
    return run_key(workload, WorkloadPlans(topology), slow or {})


def test_names_and_unused_groups_are_no_content():
    more = replace(step(), groups={**step().groups, "cp": np.array([[0, 3]])})
    assert key(step()) == key(step("other ")) == key(more)


@pytest.mark.parametrize(
    "other",
    [
        {"time_fs": 10**9 + 1},
        {"size": 1 << 21},
        {"stream": "further"},
        {"after": ()},
    ],
    ids=str,
)
def test_what_changes_a_run_changes_its_key(other):
    assert key(step(**other)) != key(step())


def test_groups_machines_and_slow_ranks_are_content():
    swapped = replace(step(), groups={**step().groups, "dp": np.array([[0, 3], [1, 2]])})
    others = key(swapped), key(step(), slow={0: 2.0}), key(step(), crossbar(4, "51 GB/s", "1 us"))
    assert len({key(step()), *others}) == 4


def test_a_run_is_played_once(monkeypatch, tmp_path):
    monkeypatch.setenv("SIMCOLL_CACHE_DIR", str(tmp_path))
    played = []
    play = playing.play_request
    monkeypatch.setattr(playing, "play_request", lambda request: played.append(1) or play(request))
    alone = alone_on(NET, uniform=False)
    runs = [
        play_workload(step(name), alone, spans=False, hashed=hashed)
        for name, hashed in (("a", True), ("b", True), ("c", False))
    ]
    assert len(played) == 1
    assert len({run.clock.time_fs for run in runs}) == 1
    assert runs[0].trace_hash == runs[1].trace_hash != ""
    spans = play_workload(step(), alone)
    assert (len(played), spans.clock.time_fs) == (2, runs[0].clock.time_fs)


def test_a_run_without_its_hash_is_played_again_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SIMCOLL_CACHE_DIR", str(tmp_path))
    play = playing.play_request
    hashed = play_workload(step(), alone_on(NET, uniform=False), spans=False).trace_hash
    monkeypatch.setenv("SIMCOLL_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(
        playing, "play_request", lambda request: replace(play(request), trace_hash="")
    )
    alone = alone_on(NET, uniform=False)
    assert not play_workload(step(), alone, spans=False, hashed=False).trace_hash
    monkeypatch.setattr(playing, "play_request", play)
    assert play_workload(step(), alone, spans=False).trace_hash == hashed


def test_spans_of_a_run_are_found_in_the_order_of_its_own_classes(monkeypatch, tmp_path):
    alone = alone_on(NET, uniform=False)
    mine = replace(step("b "), classes=dict(reversed(step().classes.items())))
    expected = [play_workload(workload, alone).clock for workload in (step(), mine)]
    monkeypatch.setenv("SIMCOLL_CACHE_DIR", str(tmp_path))
    play_workload(step(), alone)
    monkeypatch.setattr(playing, "play_request", None)
    assert [play_workload(workload, alone).clock for workload in (step(), mine)] == expected
    assert expected[0].spans != expected[1].spans


def test_a_run_with_many_spans_is_not_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("SIMCOLL_CACHE_DIR", str(tmp_path))
    alone = alone_on(NET, uniform=False)
    monkeypatch.setattr(playing, "MOST_CACHED_SPANS", 3)
    clock = play_workload(step(), alone).clock
    assert len(clock.spans) > 3
    assert not [*tmp_path.rglob("spans/*/*")]
