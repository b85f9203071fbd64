"""Foldings that are remembered give what a run of every message gives, for every size and
protocol.
"""

import dataclasses

import numpy as np
import pytest

import simcoll
from simcoll.emulator.folding.remembered import runs_of
from simcoll.emulator.folding.unpriced import Folding, find_classes
from simcoll.emulator.request import Request
from simcoll.topology import crossbar, fat_tree, load_topology

CASES = [
    ("all_reduce", "ring", {"channels": 2}),
    ("all_reduce", "one_shot", {}),
    ("all_reduce", "two_shot", {}),
    ("all_reduce", "rabenseifner", {}),
    ("all_gather", "recursive_doubling", {}),
    ("broadcast", "tree", {"pieces": 3}),
    ("all_to_all", "pairwise", {}),
]
PROTOCOLS = ("ideal", "LL", "Simple")


def kept(schedule):
    return [
        found.folding
        for found in runs_of(schedule).by_key.values()
        if isinstance(found.folding, Folding)
    ]


def without_runs(schedule):
    """The schedule, whose runs by other tests are forgotten: equal schedules share them."""
    runs_of(schedule).by_key.clear()
    return schedule


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "algorithm", "params"), CASES)
def test_every_size_and_protocol_as_with_every_message(kind, algorithm, params):
    machine = load_topology("dgx-h100", nodes=2)
    made = without_runs(simcoll.schedule(kind, algorithm, nranks=16, **params))
    chunks = made.layout.chunks
    for count in (5 * chunks, 4096 * chunks, 3):
        for protocol in PROTOCOLS:
            plan = simcoll.bind(made, count, "float16", protocol=protocol)
            every = simcoll.emulate(
                plan, machine, data="none", bound=False, engine="fast", quotient=False, keep=True
            )
            found = simcoll.emulate(
                plan, machine, data="none", bound=False, quotient=True, keep=True
            )
            assert (found.time_fs, found.trace_hash) == (every.time_fs, every.trace_hash)
            assert np.array_equal(found.done_fs, every.done_fs)
    # Equal chunks and the last others; protocols that cap channels, ranks, or nothing.
    assert len(kept(made)) <= 2 * 3


def test_a_schedule_that_runs_again_is_folded_once():
    machine = load_topology("dgx-h100", nodes=16)
    made = without_runs(
        simcoll.schedule("all_reduce", "recursive_doubling", nranks=128, channels=8)
    )
    runs = [
        simcoll.emulate(simcoll.bind(made, 1 << e), machine, data="none", engine="fast")
        for e in (12, 13, 14, 15)
    ]
    assert [(run.path, run.classes) for run in runs] == [
        ("asked for", None)
    ] * 4  # as if each was the first
    assert len(kept(made)) == 1


def test_capacities_that_differ_within_a_class_are_another_folding():
    machine = fat_tree(2, 4, "50 GB/s", oversubscription=2)
    made = simcoll.schedule("all_reduce", "ring", nranks=8)
    plan = simcoll.bind(made, 1 << 12)
    first = simcoll.emulate(plan, machine, data="none", quotient=True)
    slower = machine.degrade(0, "1/2")
    again = simcoll.emulate(plan, slower, data="none", quotient=True)
    assert (
        again.time_fs
        == simcoll.emulate(plan, slower, data="none", engine="simpy").time_fs
        > first.time_fs
    )
    assert simcoll.emulate(plan, machine, data="none", quotient=True).time_fs == first.time_fs


def test_too_little_symmetry_is_found_once():
    made = without_runs(
        simcoll.schedule("all_reduce", "recursive_doubling", nranks=256, channels=2)
    )
    machine = crossbar(256, "50 GB/s", "1 us")
    # No two ranks are alike, the two channels of each are.
    capacity = machine.link_capacity_uBps - 10**6 * np.arange(machine.nlinks)
    machine = dataclasses.replace(machine, link_capacity_uBps=capacity)
    plans = [simcoll.bind(made, 1 << exponent) for exponent in (12, 13, 14)]
    runs = [
        simcoll.emulate(plan, machine, data="none", bound=False, engine="fast") for plan in plans
    ]
    assert [run.classes for run in runs] == [None, None, None]
    (found,) = (
        entry.folding for entry in runs_of(made).by_key.values() if isinstance(entry.folding, str)
    )
    assert found.startswith("too little symmetry")


@pytest.mark.slow
def test_steps_that_recur_are_one_pattern():
    # Of 64 chunks every fourth has an element: after four turns of its rail a node sends as before.
    schedule = simcoll.schedule("all_reduce", "hierarchical", nranks=64, box=4)
    topology = load_topology("dgx-h100", nodes=8)
    plan = simcoll.bind(schedule, 16)
    request = Request(plan, topology)
    classes = find_classes(plan, topology, request.summary, expanded=True, worth_it=False)
    assert isinstance(classes, Folding)
    assert (len(classes.quotient.patterns), request.summary.steps) == (15, 37)
    folded = simcoll.emulate(plan, topology, data="none", bound=False, quotient=True)
    every = simcoll.emulate(plan, topology, data="none", bound=False, engine="simpy")
    assert (folded.time_fs, folded.trace_hash) == (every.time_fs, every.trace_hash)


@pytest.mark.slow
def test_steps_that_recur_after_many_rows_are_one_pattern():
    """Of 8,192 chunks every 64th is larger: half a million transfers lie between equal steps."""
    schedule = simcoll.schedule("all_reduce", "ring", nranks=1024, channels=8, box=8)
    topology = load_topology("dgx-h100", nodes=128)
    plan = simcoll.bind(schedule, 8192 * 2 + 128)
    request = Request(plan, topology)
    classes = find_classes(plan, topology, request.summary, expanded=False, worth_it=False)
    assert isinstance(classes, Folding)
    assert (len(classes.quotient.steps), request.summary.steps) == (2 * 64 + 1, 2 * 1023 + 1)
