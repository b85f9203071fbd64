"""Components of many flows that are levelled in rounds: the integers of the reference engine."""

import numpy as np
import pytest

import simcoll
from simcoll.core.protocol import Protocol, nccl
from simcoll.emulator import emulate
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.fast.state import FILLED
from simcoll.topology import boxes, crossbar, fat_tree, load_topology, torus

MACHINES = {
    "crossbar": lambda n: crossbar(n, "50 GB/s", "1 us"),
    "fat tree 3:1": lambda n: fat_tree(2, n // 2, "12.5 GB/s", "2 us", oversubscription=3),
    "torus": lambda n: torus([n // 4, 4], "7 GB/s", "1 us"),
    "DGX H100": lambda n: load_topology("dgx-h100", nodes=n // 8),
    "boxes with shared NICs": lambda n: boxes(
        2, n // 2, "100 GB/s", nics=4, nic_bandwidth="200 Gbps", pcie_bandwidth="50 GB/s"
    ),
}
RULES = {
    "calm": Protocol("calm"),
    "jitter": Protocol("jitter", jitter_fs=10**9, seed=5),
    "LL128": nccl("LL128"),
}


def unequal(n, seed):
    """Bytes between all pairs: few are large, and some are 0."""
    draws = np.random.default_rng(seed)
    return (60_000 * draws.pareto(1.2, (n, n))).astype(np.int64) * (draws.random((n, n)) > 0.1)


@pytest.fixture
def filled(monkeypatch):
    """The last number of flows that a run levelled in rounds."""
    from simcoll.emulator.fast.driver import StepMachine

    numbers = []
    play = StepMachine.play

    def played(self, link_name):
        play(self, link_name)
        numbers.append(int(self.state.reg[FILLED]))

    monkeypatch.setattr(StepMachine, "play", played)
    # All pairs at once need no loops.
    monkeypatch.setattr("simcoll.emulator.fast_way.play_concurrently", lambda *_: None)
    return numbers


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason="needs compiled loops")
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("machine", MACHINES)
def test_all_pairs_at_once_are_those_of_the_reference(machine, rules, filled):
    n = 24 if rules == "jitter" else 16  # fewer messages are under way at once
    schedule = simcoll.schedule("all_to_all", "direct", nranks=n)
    plan = simcoll.bind(schedule, unequal(n, 1), protocol=RULES[rules])
    here = MACHINES[machine](n)
    fast, reference = (
        emulate(plan, here, engine=engine, data="none", bound=False, quotient=False)
        for engine in ("fast", "simpy")
    )
    assert fast.trace_hash == reference.trace_hash
    assert fast.time_fs == reference.time_fs
    assert max(filled) > n


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason="needs compiled loops")
def test_all_pairs_under_events_are_those_of_the_reference(filled):
    # Links that change or go down keep all links in the run, and levels of 0 and above.
    schedule = simcoll.schedule("all_to_all", "direct", nranks=16)
    plan = simcoll.bind(schedule, unequal(16, 3))
    events = ["t=20us gpu0 -> switch = 0 for 30us", "t=10us switch -> gpu3 = 0.3 for 60us"]
    machine = crossbar(16, "50 GB/s", "1 us")
    fast, reference = (
        emulate(plan, machine, engine=engine, data="none", bound=False, events=events)
        for engine in ("fast", "simpy")
    )
    assert fast.trace_hash == reference.trace_hash
    assert max(filled) > 16
