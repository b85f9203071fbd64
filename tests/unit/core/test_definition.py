"""Definitions of custom collectives: what they accept, and what they refuse where it is written."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import simcoll
from simcoll import Collective, ConfigError, Layout
from simcoll.bounds import custom_bound
from simcoll.bounds.custom_cuts import crossing_blocks
from simcoll.collectives import gossip, halo_exchange, scan
from simcoll.core.definition import Definition
from simcoll.topology import crossbar, load_topology

SWAP = {"inputs": [[0], [1]], "outputs": [[1], [0]]}


def test_numbers_of_any_kind_become_python_s():
    arrays = Collective.custom("swap", np.array([[0], [1]]), np.array([[1], [0]]))
    assert arrays == Collective.custom("swap", **SWAP)
    assert hash(arrays) == hash(Collective.custom("swap", **SWAP))
    assert pickle.loads(pickle.dumps(arrays)) == arrays
    assert repr(arrays).endswith("definition=<swap>)")
    assert len(repr(scan(512))) < 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "1 to 60 printable"),
        ({"name": "all_reduce"}, "'all_reduce', which has a meaning already"),
        ({"name": "custom"}, "'custom', which has a meaning already"),
        ({"inputs": [[0]]}, "inputs of 1 ranks and outputs of 2"),
        ({"inputs": 7}, "expected a list"),
        ({"inputs": [[0], [True]]}, r"inputs\[1\]\[0\]: expected a whole number"),
        ({"inputs": [[0], [2]]}, "no input slot holds contribution 1"),
        ({"inputs": [[0], [2**40]]}, "too large"),
        ({"outputs": [[1], [3]]}, r"outputs\[1\]\[0\] lists contribution 3"),
        ({"outputs": [[1], [[]]]}, "at least one contribution"),
        ({"outputs": [[], []]}, "an output slot on some rank"),
        ({"outputs": [[-1], [0]]}, r"outputs\[0\]\[0\]\[0\]: expected a whole number"),
        ({"sizes": [0]}, "sizes of 1 contributions"),
        ({"sizes": [0, 2]}, "no contribution has class 1"),
        ({"outputs": [[[0, 1]], [0]], "sizes": [0, 1]}, "size classes 0, 1"),
        ({"order": "listd"}, "did you mean 'listed'"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_place(change, message):
    arguments = {"name": "swap", **SWAP} | change
    with pytest.raises(ConfigError, match=message):
        Collective.custom(**arguments)


def test_only_custom_has_a_definition():
    definition = Definition("swap", **SWAP)
    with pytest.raises(ConfigError, match="only custom takes one"):
        Collective("all_reduce", 2, definition=definition)
    with pytest.raises(ConfigError, match="needs its definition"):
        Collective("custom", 2)
    with pytest.raises(ConfigError, match="defined for 2 ranks"):
        Collective("custom", 3, definition=definition)
    with pytest.raises(ConfigError, match="out of place"):
        Collective("custom", 2, in_place=True, definition=definition)


def test_sizes_of_classes_are_bound_one_by_one():
    halo = simcoll.schedule(halo_exchange(4), "direct")
    plan = simcoll.bind(halo, [30, 20, 1])
    assert plan.sizes.tolist() == [30, 20, 1]
    assert plan.total_bytes == 51 * 4
    assert simcoll.emulate(plan, crossbar(4, "1 GB/s")).wrong == 0
    for counts, message in (([1, 2], "3 size classes"), ([1, 2, -3], "negative"), ("x", "whole")):
        with pytest.raises(ConfigError, match=message):
            simcoll.bind(halo, counts)
    with pytest.raises(ConfigError, match="blocks of 1 size class; expected one whole number"):
        simcoll.bind(simcoll.schedule(scan(4), "direct"), [1, 2])


def test_an_algorithm_of_another_definition_is_refused(tmp_path):
    from simcoll.formats.schedules.schedule_json import dump_schedule

    path = tmp_path / "scan.json"
    dump_schedule(simcoll.schedule(scan(4), "direct"), path)
    assert simcoll.schedule(scan(4), str(path)).collective == scan(4)
    with pytest.raises(ConfigError, match="is scan n=4, not gossip n=4"):
        simcoll.schedule(gossip(4), str(path))
    with pytest.raises(ConfigError, match="serves scan and exclusive_scan"):
        simcoll.schedule(gossip(4), "simcoll.collectives:chain")


def test_the_bound_counts_independent_blocks():
    """Sums of what a set lacks count once each, however many ranks need them."""
    last_half = np.array([False, False, True, True])
    assert crossing_blocks(scan(4).definition, last_half).tolist() == [1]
    assert crossing_blocks(gossip(6).definition, np.arange(6) < 3).tolist() == [2]
    layout = Layout(halo_exchange(4))
    assert layout.collective.definition.nclasses == 3
    assert crossing_blocks(halo_exchange(4).definition, np.arange(4) == 0).tolist() == [1, 1, 1]
    bound = custom_bound(halo_exchange(4).definition, crossbar(4, "1 GB/s"), [3000, 2000, 1000])
    assert bound.time_fs == 6 * 10**9  # 6 kB into a rank at 1 GB/s
    assert bound.certificate.argument == "3 blocks must cross the cut"


def test_the_bound_of_an_all_gather_by_definition_is_that_of_all_gather():
    """The ten have bounds of their own, found in other ways."""
    machine = load_topology("dgx-h100", nodes=2)
    n = machine.nranks
    same = Collective.custom("gathered", [[r] for r in range(n)], [list(range(n))] * n)
    ours = custom_bound(same.definition, machine, [1 << 20])
    theirs = simcoll.bounds.lower_bound("all_gather", machine, n << 20)
    assert ours.time_fs <= theirs.time_fs
    assert ours.time_fs >= 0.99 * theirs.time_fs
