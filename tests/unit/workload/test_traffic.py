"""Loads of links, against sums over the transfers of each step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from simcoll.libraries.plans import library_call
from simcoll.topology import load_topology
from simcoll.workload.lower import WorkloadPlans
from simcoll.workload.traffic import LinkLoads, Traffic
from simcoll.workload.workload import CallOperation, Workload

CALLS = (
    ("superpod-h100", {"nodes": 4}, "all_gather", 10**8 + 7),
    ("dgx-h100", {"nodes": 2}, "all_reduce", 10**7),
    ("dgx-h100", {"nodes": 2}, "all_to_all", 10**7 + 3),
)


def bytes_by_pair(plan):
    """Bytes from rank to rank by the transfers of all steps."""
    sums = Counter()
    for step in plan.steps():
        for source, target, size in zip(
            step.src_rank.tolist(), step.dst_rank.tolist(), step.size_bytes.tolist(), strict=True
        ):
            if source != target:
                sums[source, target] += size
    return +sums


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "changes", "kind", "size"), CALLS)
@pytest.mark.parametrize("factor", [Fraction(1), Fraction(1, 3), Fraction(2)])
def test_a_link_carries_the_bytes_of_its_pairs_on_the_wire(
    machine, changes, kind, size, factor, monkeypatch
):
    topology = load_topology(machine, **changes)
    plan = library_call(kind, size, topology).plan()
    plan = replace(plan, protocol=replace(plan.protocol, wire_factor=factor))
    monkeypatch.setattr(WorkloadPlans, "plan", lambda *_: plan)
    call = CallOperation(id="call", kind=kind, group="all", size_bytes=size)
    ranks = np.arange(topology.nranks)
    workload = Workload(topology.nranks, {"ranks": ranks}, {"all": ranks[None, :]}, (call,))
    load = Traffic(workload, WorkloadPlans(topology)).of(call)

    expected = np.zeros(topology.nlinks, np.int64)
    for (source, target), nbytes in bytes_by_pair(plan).items():
        links = topology.route(np.array([source]), np.array([target])).links.ravel()
        expected[links[links >= 0]] += -(-nbytes * factor.numerator // factor.denominator)
    assert load.tolist() == expected.tolist()
    assert load.any()


def test_loads_hold_the_links_that_carry_bytes():
    dense = np.array([0, 5, 0, 2**40, 0])
    loads = LinkLoads.of(dense)
    assert loads.links.tolist() == [1, 3]
    assert loads.at([4, 3, 1, 0]) == [0, 2**40, 5, 0]
    assert LinkLoads.of(np.zeros(3, np.int64)).at([2, 0]) == [0, 0]
