"""Placement of ranks, and ranks that are alike."""

from fractions import Fraction

import numpy as np
import pytest
from networkx.algorithms.isomorphism import DiGraphMatcher

from simcoll.bounds import all_gather_cut
from simcoll.errors import ConfigError
from simcoll.topology import boxes as nodes_of
from simcoll.topology import crossbar, fat_tree, hypercube, load_topology, place, rank_orbits, torus
from simcoll.topology.orbits import is_symmetry, set_orbits, symmetries


def boxes():
    return load_topology("dgx-h100", nodes=3)


def test_orders():
    assert place(boxes()).groups["box"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert place(boxes(), nranks=10).nranks == 10
    dealt = place(boxes(), "round_robin")
    assert dealt.groups["box"].tolist() == [0, 1, 2] * 8
    # Within a box the order stays.
    assert [dealt.node_names[v] for v in dealt.rank_nodes[:4]] == [
        "box0.gpu0",
        "box1.gpu0",
        "box2.gpu0",
        "box0.gpu1",
    ]
    assert place(boxes(), "round_robin", nranks=5).groups["box"].tolist() == [0, 1, 2, 0, 1]
    listed = place(boxes(), "explicit", gpus=[9, 2, 17])
    assert [listed.node_names[v] for v in listed.rank_nodes] == [
        "box1.gpu1",
        "box0.gpu2",
        "box2.gpu1",
    ]


def test_a_list_may_be_an_array_of_numpy():
    assert (
        place(boxes(), "explicit", gpus=np.array([9, 2])).rank_nodes.tolist()
        == boxes().rank_nodes[[9, 2]].tolist()
    )


def test_round_robin_over_another_level():
    tree = place(fat_tree(3, 2, "50 GB/s"), "round_robin", level="leaf")
    assert tree.groups["leaf"].tolist() == [0, 1, 2, 0, 1, 2]


def test_random_is_a_function_of_the_seed():
    one, same, other = (
        place(boxes(), "random", seed=seed).rank_nodes.tolist() for seed in (1, 1, 2)
    )
    assert one == same != other
    assert sorted(one) == sorted(boxes().rank_nodes.tolist())
    # With fewer ranks the first stay where they were.
    assert place(boxes(), "random", seed=1, nranks=7).rank_nodes.tolist() == one[:7]


def test_in_a_file_and_as_arguments(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'family = "crossbar"\nnranks = 6\nbandwidth = "1 GB/s"\n[placement]\norder = "explicit"\n'
        "gpus = [5, 0]\n",
        encoding="utf-8",
    )
    assert load_topology(file).rank_nodes.tolist() == [5, 0]
    assert (
        load_topology("dgx-h100", nodes=2, placement__order="round_robin").groups["box"].tolist()
        == [0, 1] * 8
    )
    assert load_topology("dgx-h100", placement__ranks=3).nranks == 3
    shuffled = load_topology("dgx-h100", placement__order="random", placement__seed=4)
    assert (
        shuffled.rank_nodes.tolist()
        == place(load_topology("dgx-h100"), "random", seed=4).rank_nodes.tolist()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "compcat"}, "did you mean 'compact'"),
        ({"order": "explicit"}, "belong together"),
        ({"gpus": [1]}, "belong together"),
        ({"order": "explicit", "gpus": [1, 1]}, "two ranks on one GPU"),
        ({"order": "explicit", "gpus": [24]}, "0 to 23"),
        ({"nranks": 25}, "25 ranks were requested"),
        ({"order": "round_robin", "level": "bxo"}, "did you mean 'box'"),
        ({"order": "round_robin", "level": ["box"]}, "no groups of level"),
        ({"order": None}, "unknown order None"),
        ({"order": 3}, "unknown order 3; valid: compact"),
        ({"order": "explicit", "gpus": [0.7, 1.2]}, "gpus: expected a whole number, got 0.7"),
        ({"order": "explicit", "gpus": ["a"]}, "gpus: expected a whole number, got 'a'"),
        ({"order": "explicit", "gpus": [[0, 1]]}, r"gpus: expected a whole number, got \[0, 1\]"),
        ({"order": "explicit", "gpus": 3}, "gpus: expected a list of whole numbers, got 3"),
        ({"order": "explicit", "gpus": [2**70]}, "0 to 23"),
        ({"order": "explicit", "gpus": []}, "at least one rank"),
        (
            {"order": "random", "seed": "x"},
            "seed must be a whole number from 0 to 9223372036854775807, got 'x'",
        ),
        (
            {"order": "random", "seed": 1.5},
            "seed must be a whole number from 0 to 9223372036854775807, got 1.5",
        ),
    ],
)
def test_bad_placements(arguments, message):
    with pytest.raises(ConfigError, match=message):
        place(boxes(), **arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "orbits"),
    [
        (lambda: crossbar(6, "50 GB/s"), 1),
        (lambda: torus([4, 3], "25 GB/s"), 1),
        (lambda: torus([4], "25 GB/s", wrap=False), 4),
        (lambda: hypercube(5, "25 GB/s"), 1),
        (lambda: load_topology("dgx-h100", nodes=5), 1),
        (lambda: load_topology("superpod-h100", nodes=64), 1),
        (lambda: fat_tree(3, 4, "50 GB/s", oversubscription=2), 1),
        (
            lambda: load_topology("dgx-h100", nodes=2).degrade("box0.gpu0 -> box0.nvswitch", "1/2"),
            4,
        ),
        (lambda: load_topology("dgx-h100", nodes=2).with_ranks([0, 1, 8, 9]), 1),
        (lambda: load_topology("dgx-h100", nodes=2).with_ranks([0, 1, 8]), 3),
    ],
)
def test_orbits(make, orbits):
    topology = make()
    assert len(rank_orbits(topology)) == orbits
    short, full = all_gather_cut(topology), all_gather_cut(topology, by_orbit=False)
    assert short.ratio == full.ratio
    assert short.exact


def true_orbits(topology, fixed):
    """Orbits under all automorphisms, by a search that knows nothing of ours."""
    graph = topology.to_networkx()
    for _, data in graph.nodes(data=True):
        data["held"] = data.get("rank") == fixed if "rank" in data else None
    match = DiGraphMatcher(
        graph,
        graph,
        node_match=lambda a, b: (a["kind"], a["held"]) == (b["kind"], b["held"]),
        edge_match=lambda a, b: a["capacity_uBps"] == b["capacity_uBps"],
    )
    ranks = {name: data["rank"] for name, data in graph.nodes(data=True) if "rank" in data}
    least = dict.fromkeys(range(topology.nranks), topology.nranks)
    for image in match.isomorphisms_iter():
        for name, rank in ranks.items():
            least[rank] = min(least[rank], ranks[image[name]])
    return sorted(set(least.values()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: crossbar(5, "50 GB/s").degrade("gpu2 -> switch", "1/2"),
        lambda: torus([5], "25 GB/s"),
        lambda: torus([3, 4], "25 GB/s").degrade("gpu0 -> gpu1", 0),
        lambda: nodes_of(3, 2, "300 GB/s", nics=2, nic_bandwidth="25 GB/s"),
        lambda: nodes_of(2, 3, "300 GB/s", nics=3, nic_bandwidth="25 GB/s").degrade(
            "box0.gpu1 -> box0.nvswitch", "1/3"
        ),
        lambda: fat_tree(2, 3, "50 GB/s", oversubscription=2),
    ],
)
@pytest.mark.parametrize("fixed", [None, 0, 4])
def test_orbits_are_those_of_all_automorphisms(make, fixed):
    topology = make()
    assert rank_orbits(topology, fixed).tolist() == true_orbits(topology, fixed)
    assert all(fixed is None or image[fixed] == fixed for image in symmetries(topology, fixed))


def test_orbits_of_nodes():
    machine = load_topology("dgx-h100", nodes=4).degrade("box1.gpu2 -> box1.nvswitch", "1/2")
    nodes = [np.flatnonzero(machine.groups["box"] == box) for box in range(4)]
    assert set_orbits(machine, nodes).tolist() == [0, 1, 0, 0]
    assert set_orbits(machine, nodes, fixed=25).tolist() == [0, 1, 0, 3]


def test_a_false_symmetry_is_refused():
    topology = crossbar(4, "50 GB/s").degrade("gpu2 -> switch", "1/2")
    turn = np.array([1, 2, 3, 0, 4])
    assert is_symmetry(crossbar(4, "50 GB/s"), turn)
    assert not is_symmetry(topology, turn)
    assert not is_symmetry(crossbar(4, "50 GB/s"), np.array([1, 1, 3, 0, 4]))
    assert not is_symmetry(crossbar(4, "50 GB/s"), np.array([4, 1, 2, 3, 0]))
    assert is_symmetry(topology, np.array([1, 0, 2, 3, 4]))


@pytest.mark.slow
def test_the_largest_pod_is_exact_by_orbit():
    # TPU v4, 16 x 16 x 16: 4095 shares over six links of 45 GB/s.
    cut = all_gather_cut(load_topology("tpu-v4"))
    assert cut.exact
    assert cut.ratio == Fraction(91, 6) / 10**9
