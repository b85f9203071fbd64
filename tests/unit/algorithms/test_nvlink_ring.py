"""Rings along direct links: no link is used more often than there are, NICs alike, times by
hand.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

import simcoll
from simcoll.algorithms.nvlink_ring import link_rings
from simcoll.topology import load_topology
from simcoll.topology.families import crossbar, torus
from simcoll.tuning import schedule_on

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
# nvidia-smi topo -m of a DGX-1 with V100: GPU, GPU, NVLinks.
DGX_1V = [
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
]


def links(size, pairs):
    found = np.zeros((size, size), np.int64)
    for a, b, width in pairs:
        found[a, b] = found[b, a] = width
    return found


def used(rings):
    return Counter(hop for ring in rings for hop in pairwise((*ring, ring[0])))


def test_dgx_1v_has_six_rings_that_use_every_link_both_ways():
    have = links(8, DGX_1V)
    rings = link_rings(have)
    assert len(rings) == 6
    assert used(rings) == {
        (int(a), int(b)): int(have[a, b]) for a, b in zip(*np.nonzero(have), strict=True)
    }


@pytest.mark.parametrize("n", [2, 3, 5, 7, 8, 9])
def test_all_links_of_a_full_mesh_are_used(n):
    # Tillson 1980: the directed links of a full mesh are n - 1 rings, except for 4 and 6 ranks.
    rings = link_rings(np.ones((n, n), np.int64) - np.eye(n, dtype=np.int64))
    assert len(rings) == n - 1
    assert set(used(rings).values()) == {1}


def test_no_link_is_used_more_often_than_there_are():
    rng = np.random.default_rng(5)
    for size in (4, 6, 8, 10, 12):
        have = rng.integers(0, 4, (size, size)) * (1 - np.eye(size, dtype=np.int64))
        rings = link_rings(have)
        assert all(sorted(ring) == list(range(size)) for ring in rings)
        assert all(have[hop] >= times for hop, times in used(rings).items())


def test_a_graph_without_a_ring_has_none():
    assert link_rings(links(4, [(0, 1, 1), (1, 2, 1), (2, 3, 1)])) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_proved_on_dgx_1v_with_every_nic_used_alike(kind, nodes):
    machine = load_topology("dgx-1v", nodes=nodes)
    for root in (0, 5, machine.nranks - 1) if kind in ("broadcast", "reduce") else (None,):
        made = simcoll.schedule(kind, "nvlink_ring", topology=machine, root=root, pieces=2)
        simcoll.verify(made)
        assert made.nchannels == (6 if nodes == 1 else 8)
    if kind == "all_gather" and nodes > 1:
        out = Counter(
            (src // 8, src % 8 // 2)  # two GPUs share a NIC
            for step in made.steps()
            for src, dst, _ in set(
                zip(
                    *(c.tolist() for c in (step.src_rank, step.dst_rank, step.channel)), strict=True
                )
            )
            if src // 8 != dst // 8
        )
        assert len(out) == 4 * nodes
        assert len(set(out.values())) == 1


@pytest.mark.parametrize(
    ("name", "nodes"), [("dgx-1v", 2), ("dgx-1v", 4), ("mi300x", 2), ("mi300x", 3)]
)
def test_nics_are_filled(name, nodes):
    # Each NIC carries its share of what a ring sends out of a node; on DGX-1V the PCIe link to it
    # is a little slower.
    machine, count = load_topology(name, nodes=nodes), 1 << 28
    made = simcoll.schedule("all_reduce", "nvlink_ring", topology=machine)
    found = simcoll.emulate(
        simcoll.bind(made, count, "uint8"), machine, data="none", bound=False
    ).time_us
    rate = {"dgx-1v": 4 * 12e9, "mi300x": 8 * 50e9}[name]
    ideal = 2 * (machine.nranks - 1) / machine.nranks * count / rate * 1e6
    latencies = 2 * (machine.nranks - 1) * 6
    assert ideal < found < 1.02 * ideal + latencies


def test_as_many_times_faster_as_there_are_rings():
    # 6 rings of 25 GB/s: 14 / 8 of the vector on each.
    machine, count = load_topology("dgx-1v"), 48 * 10**6
    plan = simcoll.bind(
        schedule_on(simcoll.Collective("all_reduce", 8), "nvlink_ring", machine), count, "uint8"
    )
    found = simcoll.emulate(plan, machine, data="none", bound=False).time_fs
    assert found == 14 * (700_000_000 + Fraction(count, 48) * 40_000)


@pytest.mark.slow
def test_the_right_data_arrives():
    machine = load_topology("dgx-1v", nodes=2)
    for kind in KINDS:
        plan = simcoll.bind(simcoll.schedule(kind, "nvlink_ring", topology=machine), 1001)
        assert simcoll.emulate(plan, machine).wrong == 0


@pytest.mark.parametrize(
    "machine", [crossbar(4, "1 GB/s"), load_topology, torus([5], "1 GB/s", wrap=False)]
)
def test_machines_without_rings_of_links_are_refused(machine):
    topology = machine("dgx-h100") if callable(machine) else machine
    with pytest.raises(
        simcoll.ConfigError,
        match=r"nvlink_ring needs rings of direct links.*ring serves any topology",
    ):
        simcoll.schedule("all_reduce", "nvlink_ring", topology=topology)


@pytest.mark.parametrize("share", [0.8317, 0.31, 0.0001234])
def test_an_odd_share_of_a_link_does_not_multiply_the_rings(share):
    # Of one of seven xGMI links; its capacity and those of the others hardly have a divisor.
    machine = load_topology("mi300x").degrade("box0.gpu0 -> box0.gpu1", share)
    schedule = schedule_on(simcoll.Collective("all_reduce", 8), "nvlink_ring", machine)
    assert 7 <= schedule.nchannels <= 32
