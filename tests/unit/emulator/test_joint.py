"""Switch operations in the compiled engine: one flow over the links of all of their transfers."""

import numpy as np
import pytest

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.emulator import emulate
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.folding import certification, remembered
from simcoll.emulator.steps import joint
from simcoll.emulator.steps.joint import RowCosts, joint_costs, joint_links, partners
from simcoll.errors import ConfigError
from simcoll.topology import crossbar, load_topology

LEADER = np.array([-1, 1, 2, 1, 2, 1])


def test_a_leader_has_the_links_of_all_each_once():
    links = np.array([[7, 8], [0, 3], [1, 3], [0, 4], [2, 3], [0, 5]], np.int32)
    made = joint_links(LEADER, links, np.array([4]), np.array([[9]], np.int32))
    assert made.tolist() == [[7, 8, -1, -1], [0, 3, 4, 5], [1, 2, 3, 9], *[[-1] * 4] * 3]
    assert joint_links(LEADER, links[:, :0], np.zeros(0, np.int64), links[:0, :1]).shape == (6, 0)


@pytest.mark.parametrize("marked", [0, 1 << 26])
def test_links_of_leaders_alone_are_those_of_all_rows(marked, monkeypatch):
    rng = np.random.default_rng(7)
    monkeypatch.setattr(joint, "MARKED", marked)
    for _ in range(20):
        group = rng.integers(-1, 5, 40)
        leader = np.where(group < 0, -1, [int(np.flatnonzero(group == each)[0]) for each in group])
        links = np.sort(rng.integers(-1, 30, (40, 3)).astype(np.int32), axis=1)[:, ::-1]
        own = np.flatnonzero(leader >= 0)[:3]
        up = rng.integers(0, 40, (3, 1)).astype(np.int32)
        whole = joint_links(leader, links, own, up)
        for row in range(40):
            of = np.flatnonzero(leader == row)
            added = up[np.isin(own, of)]
            wanted = (
                links[row]
                if leader[row] < 0
                else np.unique(np.append(links[of], added))
                if len(of)
                else []
            )
            assert [each for each in whole[row] if each >= 0] == [
                each for each in wanted if each >= 0
            ]
        linked = np.flatnonzero((leader < 0) | (leader == np.arange(40)))
        assert np.array_equal(joint_links(leader, links, own, up, linked), whole[linked])


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason="needs numba")
@pytest.mark.parametrize("wide", [1, 64, 1 << 20])
def test_many_switch_operations_are_played_by_classes_at_once(wide, monkeypatch):
    monkeypatch.setattr(certification, "WIDE", wide)
    monkeypatch.setattr(remembered, "MANY_UNEVEN", 1 << 10)
    topology = load_topology("dgx-h100", nodes=6)
    plan = simcoll.bind(simcoll.schedule("all_reduce", "switch", nranks=48), 48 * 1000)
    folded, every = (
        emulate(plan, topology, data="none", engine=engine) for engine in ("fast", "simpy")
    )
    assert folded.path == f"quotient: {folded.classes} classes stand for {every.messages} messages"
    assert folded.classes < every.messages // 20
    assert (folded.time_fs, folded.trace_hash) == (every.time_fs, every.trace_hash)


def test_a_leader_has_the_longest_delays_and_the_most_bytes():
    delay, busy = np.array([5, -1, 3, 7, 2, 6]), np.arange(6)
    made = joint_costs(LEADER, RowCosts(delay, busy, 10 * np.arange(6), 20 - np.arange(6)))
    assert [column.tolist() for column in made] == [
        [5, 7, 3, 0, 0, 0],
        [0, 1, 2, 3, 4, 5],
        [0, 50, 40, 0, 0, 0],
        [20, 19, 18, 0, 0, 0],
    ]


def test_partners_follow_one_another():
    assert partners(LEADER).tolist() == [-1, 3, 4, 5, -1, -1]


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason="needs numba")
@pytest.mark.parametrize("depth", [0, 4])
@pytest.mark.parametrize(("algorithm", "nodes"), [("nvls", 1), ("nvls_tree", 3), ("switch", 1)])
def test_both_engines_play_the_switches_of_a_node(algorithm, nodes, depth):
    topology = load_topology("dgx-h100", nodes=nodes)
    box = {} if algorithm == "switch" else {"box": 8}
    schedule = simcoll.schedule("all_reduce", algorithm, nranks=8 * nodes, **box)
    protocol = Protocol(
        "p",
        fifo_depth=depth,
        send_overhead_fs=10**8,
        receive_overhead_fs=10**7,
        rank_rate_uBps=200 * 10**15,
    )
    plan = simcoll.bind(schedule, 8 * nodes * 4000, protocol=protocol)
    one, two = (
        emulate(plan, topology, data="none", keep=True, engine=engine, quotient=False)
        for engine in ("simpy", "fast")
    )
    assert (two.engine, two.path, two.switched) == ("fast", "asked for", True)
    assert np.array_equal(one.done_fs, two.done_fs)
    assert one.trace_hash == two.trace_hash


def test_switches_that_do_nothing_are_refused_by_every_engine():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "switch", nranks=4), 64)
    ways = [{"engine": "simpy"}, {"quotient": True}] + [
        {"engine": "fast", "quotient": False}
    ] * COMPILED
    for way in ways:
        with pytest.raises(
            ConfigError, match=r"topology 'crossbar' does not have \(trait switch_reduce\)"
        ):
            emulate(plan, crossbar(4, "1 GB/s"), data="none", **way)


def test_switch_operations_are_not_folded():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "switch", nranks=8), 64)
    result = emulate(plan, load_topology("dgx-h100", nodes=1), data="none", quotient=True)
    assert (result.classes, result.path) == (None, "no quotient: switches multicast or reduce")
