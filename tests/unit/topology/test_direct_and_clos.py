"""Hypercube, cube-mesh, HyperX, dragonfly, Clos: published counts, degrees and diameters; routes
against networkx.
"""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from simcoll.errors import ConfigError
from simcoll.topology import (
    clos,
    dragonfly,
    fat_tree,
    hybrid_cube_mesh,
    hypercube,
    hyperx,
    load_topology,
    torus,
)
from simcoll.topology.ecmp import hash_of

SMALL = {
    "hypercube-1": lambda: hypercube(1, "25 GB/s", "1 us"),
    "hypercube-4": lambda: hypercube(4, "25 GB/s", "1 us"),
    "cube-mesh-1": lambda: hybrid_cube_mesh(1, "25 GB/s", "1 us"),
    "cube-mesh-4": lambda: hybrid_cube_mesh(4, "25 GB/s", "1 us"),
    "hyperx-3x4": lambda: hyperx([3, 4], 2, "50 GB/s", "1 us", switch_latency="300 ns"),
    "dragonfly": lambda: dragonfly(
        2, 4, 2, "50 GB/s", "1 us", local_latency="100 ns", global_latency="300 ns"
    ),
    "dragonfly-few": lambda: dragonfly(
        1, 3, 2, "50 GB/s", "1 us", groups=4, local_latency="1 ns", global_latency="1 us"
    ),
    "clos": lambda: clos(3, 2, 2, "50 GB/s", "1 us", spine_latency="1 us"),
    "clos-planes": lambda: clos(3, 2, 2, "50 GB/s", "1 us", spine_latency="1 us", planes=3, seed=5),
    "clos-modulo": lambda: clos(2, 3, 3, "50 GB/s", "1 us", planes=2, ecmp="modulo"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_route_is_a_shortest_path(name):
    topology = SMALL[name]()
    n = topology.nranks
    src, dst = (ends.ravel() for ends in np.indices((n, n)))
    routes = topology.route(src, dst)
    graph = topology.to_networkx()
    lengths = dict(nx.all_pairs_dijkstra_path_length(graph, weight="latency_fs"))
    for m in range(n * n):
        links = routes.links[m][routes.links[m] >= 0]
        a, b = (topology.node_names[topology.rank_nodes[end[m]]] for end in (src, dst))
        if a == b:
            assert links.size == 0
            continue
        assert topology.node_names[topology.link_src[links[0]]] == a
        assert topology.node_names[topology.link_dst[links[-1]]] == b
        assert all(topology.link_dst[x] == topology.link_src[y] for x, y in pairwise(links))
        assert routes.latency_fs[m] == lengths[a][b]


def switches(topology):
    return sum(kind == "switch" for kind in topology.node_kinds)


def trunks(topology):
    """Pairs of links between switches."""
    kinds = np.array(topology.node_kinds)
    return (
        int(((kinds[topology.link_src] == "switch") & (kinds[topology.link_dst] == "switch")).sum())
        // 2
    )


def test_counts_of_fat_trees_of_64_port_switches():
    # DeepSeek-V3 hardware paper (ISCA 2025), table 3: k^2/2 endpoints, 3k/2 switches, k^2/2 links
    # between switches.
    tree = clos(64, 32, 32, "50 GB/s")
    assert (tree.nranks, switches(tree), trunks(tree)) == (2048, 96, 2048)
    # Eight planes have eight times the switches and links.
    tree = clos(16, 8, 8, "50 GB/s", planes=8)
    assert (tree.nranks, switches(tree), trunks(tree)) == (128, 8 * 24, 8 * 128)


@pytest.mark.parametrize(
    ("p", "a", "h", "g"),
    [(2, 4, 2, None), (1, 2, 1, None), (3, 6, 3, 19), (2, 4, 2, 7), (2, 4, 3, 6), (16, 4, 3, 11)],
)
def test_counts_of_dragonflies(p, a, h, g):
    network = dragonfly(p, a, h, "50 GB/s", groups=g)
    g = a * h + 1 if g is None else g
    assert network.nranks == p * a * g
    assert switches(network) == a * g
    # All ports are used, but for one of each group where they do not come out even. Parallel links
    # count as one of more capacity.
    kinds = np.array(network.node_kinds)
    group = np.array(
        [
            int(name[5:].split(".")[0]) if name.startswith("group") else -1
            for name in network.node_names
        ]
    )
    away = (kinds[network.link_src] == "switch") & (
        group[network.link_src] != group[network.link_dst]
    )
    away &= kinds[network.link_dst] == "switch"
    ports = np.bincount(
        group[network.link_src[away]],
        network.link_capacity_uBps[away] // (50 * 10**15),
        minlength=g,
    )
    left = (a * h) % (g - 1)
    assert (ports == a * h - left % 2).all()
    near = (kinds[network.link_src] == "switch") & (
        group[network.link_src] == group[network.link_dst]
    )
    assert near.sum() == g * a * (a - 1)
    # Every two groups are joined.
    joined = {
        (group[x], group[y])
        for x, y in zip(network.link_src[away], network.link_dst[away], strict=True)
    }
    assert len(joined) == g * (g - 1)


@pytest.mark.slow
def test_counts_of_the_large_dragonfly_by_group():
    # Same paper: p=16, a=32, h=16, g=511 has 384,272 links = 511 C(32,2) + 511 512 / 2.
    from simcoll.topology.direct_networks import _global_links

    links = _global_links(511, 512, 16)
    assert len(links) == 511 * 512 // 2
    ends = [end for link in links for end in link]
    counts = np.zeros((511, 32), dtype=int)
    for group, switch in ends:
        counts[group, switch] += 1
    assert (counts == 16).all()


@pytest.mark.parametrize(("dims", "hosts"), [([4], 2), ([3, 4], 1), ([2, 3, 4], 2)])
def test_counts_of_hyperx(dims, hosts):
    network = hyperx(dims, hosts, "50 GB/s")
    total = int(np.prod(dims))
    assert (network.nranks, switches(network)) == (hosts * total, total)
    # Radix T + sum(S_i - 1), diameter = number of dimensions.
    assert trunks(network) == total * sum(size - 1 for size in dims) // 2
    n = network.nranks
    links = network.route(*np.divmod(np.arange(n * n), n)).links
    assert (links >= 0).sum(axis=1).max() == 2 + len(dims)


def test_cube_mesh_of_a_dgx1():
    mesh = hybrid_cube_mesh(2, "20 GB/s", "1 us")
    degree = np.bincount(mesh.link_src)
    assert degree.tolist() == [4] * 8  # the four NVLinks of a P100
    assert mesh.groups["quad"].tolist() == [0] * 4 + [1] * 4


def test_ecmp_is_a_function_of_the_seed_and_spreads():
    one, same, other = (clos(8, 8, 8, "50 GB/s", seed=seed) for seed in (1, 1, 2))
    src, dst = np.divmod(np.arange(64 * 64), 64)
    assert np.array_equal(one.route(src, dst).links, same.route(src, dst).links)
    assert not np.array_equal(one.route(src, dst).links, other.route(src, dst).links)
    # A pair has the same route whatever else is asked for.
    assert one.path(3, 60) == one.path(3, 60)
    load = np.bincount(one.route(src, dst).links[:, 1][src // 8 != dst // 8])
    load = load[load > 0]
    assert load.size == 64
    assert 30 < load.min() <= load.max() < 80  # 56 on average
    modulo = (
        clos(8, 8, 8, "50 GB/s", ecmp="modulo").route(src, dst).links[:, 1][src // 8 != dst // 8]
    )
    assert set(np.bincount(modulo)[np.bincount(modulo) > 0].tolist()) == {56}


def test_the_hash_is_the_same_for_ever():
    word = hash_of(0, 1, np.array([0, 1, 2**31]), np.array([0, 0, 5]))
    assert word.tolist() == GOLDEN
    assert hash_of(0, 2, np.array([0]), np.array([0]))[0] != GOLDEN[0]


GOLDEN = [1627154515576818219, 654179442029834812, 3287275625542387941]


def test_ideal_spreading_is_one_plane_of_all_capacity():
    ideal = clos(4, 4, 2, "50 GB/s", "1 us", planes=2, ecmp="ideal", spine_latency="1 us")
    tree = fat_tree(4, 4, "100 GB/s", "1 us", oversubscription=2, spine_latency="1 us")
    assert ideal.link_capacity_uBps.tolist() == tree.link_capacity_uBps.tolist()
    assert ideal.path(0, 15) == tree.path(0, 15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: clos(2, 2, 2, "50 GB/s", ecmp="hsah"), "did you mean 'hash'"),
        (lambda: clos(0, 2, 2, "50 GB/s"), "leaves"),
        (lambda: hybrid_cube_mesh(3, "50 GB/s"), "power of two"),
        (lambda: dragonfly(1, 2, 1, "50 GB/s", groups=4), "1 to 3"),
        (lambda: hyperx([], 0, "50 GB/s"), "hosts_per_switch"),
        (lambda: hypercube(40, "50 GB/s"), "1 to 20"),
        (
            lambda: hyperx(3, 2, "50 GB/s"),
            r"dims: expected at least one dimension, such as \[4, 4\], got 3",
        ),
        (lambda: hyperx([], 2, "50 GB/s"), "dims: expected at least one dimension"),
        (lambda: hyperx([2.0], 2, "50 GB/s"), "dims: expected a whole number, got 2.0"),
        (lambda: torus(3, "50 GB/s"), "dims: expected at least one dimension"),
        (
            lambda: clos(2, 2, 2, "50 GB/s", seed="a"),
            "seed must be a whole number from 0 to 9223372036854775807, got 'a'",
        ),
        (
            lambda: clos(2, 2, 2, "50 GB/s", seed=1.5),
            "seed must be a whole number from 0 to 9223372036854775807, got 1.5",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("kind", ["infiniband", None, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda kind: hyperx([2], 2, "50 GB/s", link_kind=kind),
        lambda kind: dragonfly(1, 2, 1, "50 GB/s", link_kind=kind),
        lambda kind: hybrid_cube_mesh(2, "50 GB/s", link_kind=kind),
        lambda kind: clos(2, 2, 2, "50 GB/s", link_kind=kind),
        lambda kind: hypercube(2, "50 GB/s", link_kind=kind),
        lambda kind: fat_tree(2, 2, "50 GB/s", link_kind=kind),
    ],
)
def test_an_unknown_kind_of_link(make, kind):
    with pytest.raises(
        ConfigError, match=f"link_kind: unknown {kind!r}; .*valid: cpu, link, net, nvlink, pcie"
    ):
        make(kind)


@pytest.mark.parametrize(
    ("text", "nranks"),
    [
        ('family = "hypercube"\ndimensions = 3', 8),
        ('family = "hybrid_cube_mesh"\nquads = 2', 8),
        ('family = "hyperx"\ndims = [2, 3]\nhosts_per_switch = 2\nswitch_latency = "1 ns"', 12),
        (
            (
                'family = "dragonfly"\nhosts_per_switch = 1\nswitches_per_group = 2\nglobal_links = 1\n'
                'global_latency = "1 ns"'
            ),
            6,
        ),
        (
            (
                'family = "clos"\nleaves = 2\nhosts_per_leaf = 3\nspines = 2\nplanes = 2\n'
                'ecmp = "hash"\nseed = 0'
            ),
            6,
        ),
    ],
)
def test_in_a_file(tmp_path, text, nranks):
    file = tmp_path / "mine.toml"
    file.write_text(f'{text}\nbandwidth = "50 GB/s"\nlatency = "1 us"\n', encoding="utf-8")
    assert load_topology(file).nranks == nranks
