"""Topologies whose exact cuts are known: published values and closed forms."""

import networkx as nx

from simcoll.topology import boxes, crossbar, fat_tree, from_networkx, load_topology, torus


def hypercube(d):
    graph = nx.convert_node_labels_to_integers(nx.hypercube_graph(d), ordering="sorted")
    nx.set_node_attributes(graph, "gpu", "kind")
    nx.set_edge_attributes(graph, "25 GB/s", "bandwidth")
    return from_networkx(graph, gpus_forward=True)


def one_way_ring(n):
    graph = nx.cycle_graph(n, create_using=nx.DiGraph)
    nx.set_node_attributes(graph, "gpu", "kind")
    nx.set_edge_attributes(graph, "25 GB/s", "bandwidth")
    return from_networkx(graph, gpus_forward=True)


def dgx1v_without_pcie():
    graph = nx.Graph()
    graph.add_nodes_from(range(8), kind="gpu")
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    graph.add_edges_from(single, bandwidth="25 GB/s")
    graph.add_edges_from(double, bandwidth="50 GB/s")
    return from_networkx(graph, gpus_forward=True)


def dgx(nodes, gpu, nic, per_box=8):
    return boxes(nodes, per_box, f"{gpu} GB/s", nics=per_box, nic_bandwidth=f"{nic} GB/s")


# Exact ratios in seconds per gigabyte, ranks inside, and the all-reduce algorithm bandwidth (GB/s)
# of the optimal LP or of reduce-scatter plus all-gather where they agree. All-gather ratios come
# from max-flow with rational arithmetic (ForestColl, arXiv 2402.06787, and closed forms: crossbar
# (N-1)/b, d-regular (N-1)/(d b), boxes max((N-1)/(a+c), (N-g)/(g c)), fat tree max((N-1)/b, (N-p)
# s/(p b))).
ORACLES = {
    "crossbar-4": (lambda: crossbar(4, "300 GB/s"), "1/100", 3, 200.0),
    "dgx-a100": (lambda: load_topology("dgx-a100"), "7/300", 7, 171.428571),
    "dgx-h100": (lambda: load_topology("dgx-h100"), "7/450", 7, 257.142857),
    "dgx-b200": (lambda: load_topology("dgx-b200"), "7/900", 7, 514.285714),
    "dgx-2": (lambda: load_topology("dgx-2"), "1/10", 15, 80.0),
    "gb200-nvl72": (lambda: load_topology("gb200-nvl72"), "71/900", 71, 456.338028),
    "2-dgx-a100": (lambda: load_topology("dgx-a100", nodes=2), "3/65", 15, 173.333333),
    "3-dgx-a100": (lambda: load_topology("dgx-a100", nodes=3), "2/25", 16, 150.0),
    "4-dgx-a100": (lambda: dgx(4, 300, 25), "3/25", 24, 133.333333),
    "2-dgx-h100": (lambda: load_topology("dgx-h100", nodes=2), "3/100", 15, 266.666667),
    "4-dgx-h100": (lambda: dgx(4, 450, 50), "31/500", 31, 258.064516),
    "8-dgx-h100": (lambda: dgx(8, 450, 50), "7/50", 56, 228.571429),
    "16-dgx-h100": (lambda: dgx(16, 450, 50), "3/10", 120, 213.333333),
    "32-dgx-h100": (lambda: dgx(32, 450, 50), "31/50", 248, 206.451613),
    "8-nvl72": (lambda: dgx(8, 900, 50, 72), "23/38", 575, 475.826087),
    "ring-4-one-way": (lambda: one_way_ring(4), "3/25", 3, 16.666667),
    "ring-8": (lambda: torus([8], "25 GB/s"), "7/50", 7, 28.571429),
    "ring-5": (lambda: torus([5], "25 GB/s"), "2/25", 4, 31.25),
    # On a path the optimum of all-reduce is 25, more than reduce-scatter plus all-gather (16.7 and
    # 15).
    "path-4": (lambda: torus([4], "25 GB/s", wrap=False), "3/25", 3, 25.0),
    "path-6": (lambda: torus([6], "25 GB/s", wrap=False), "1/5", 5, 25.0),
    "torus-3x3": (lambda: torus([3, 3], "25 GB/s"), "2/25", 8, 56.25),
    "torus-4x4": (lambda: torus([4, 4], "25 GB/s"), "3/20", 15, 53.333333),
    "torus-3x5": (lambda: torus([3, 5], "25 GB/s"), "7/50", 14, 53.571429),
    "torus-2x4": (lambda: torus([2, 4], "25 GB/s"), "7/75", 7, 42.857143),
    "torus-8x8": (lambda: torus([8, 8], "25 GB/s"), "63/100", 63, 50.793651),
    "torus-4x4x4": (lambda: torus([4, 4, 4], "25 GB/s"), "21/50", 63, 76.190476),
    "tpu-v5e": (lambda: load_topology("tpu-v5e"), "17/12", 255, 90.352941),
    "hypercube-3": (lambda: hypercube(3), "7/75", 7, 42.857143),
    "hypercube-4": (lambda: hypercube(4), "3/20", 15, 53.333333),
    "hypercube-6": (lambda: hypercube(6), "21/50", 63, 76.190476),
    "mi300x": (lambda: load_topology("mi300x"), "1/64", 7, 256.0),
    "dgx-1v": (dgx1v_without_pcie, "7/150", 7, 85.714286),
    "fat-tree-2x4-1:1": (lambda: fat_tree(2, 4, "50 GB/s"), "7/50", 7, 28.571429),
    "fat-tree-2x4-2:1": (
        lambda: fat_tree(2, 4, "50 GB/s", oversubscription=2),
        "7/50",
        7,
        28.571429,
    ),
    "fat-tree-4x4-2:1": (
        lambda: fat_tree(4, 4, "50 GB/s", oversubscription=2),
        "3/10",
        15,
        26.666667,
    ),
    "fat-tree-4x8-2:1": (
        lambda: fat_tree(4, 8, "50 GB/s", oversubscription=2),
        "31/50",
        31,
        25.806452,
    ),
    "fat-tree-4x8-16:1": (
        lambda: fat_tree(4, 8, "800 GB/s", oversubscription=16),
        "3/50",
        24,
        266.666667,
    ),
}
