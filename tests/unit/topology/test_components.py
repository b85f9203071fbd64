"""Vertices that links join, beside networkx."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.topology.components import lowest_in_component


@pytest.mark.slow
@given(links=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20))
def test_the_least_vertex_of_a_component(links):
    graph = nx.Graph(links)
    graph.add_nodes_from(range(12))
    tail, head = np.array(links, np.int64).reshape(-1, 2).T
    assert lowest_in_component(12, tail, head).tolist() == [
        min(nx.node_connected_component(graph, v)) for v in range(12)
    ]


def test_long_paths_join_whatever_the_order_of_their_vertices():
    order = np.random.default_rng(5).permutation(10_000)
    assert not lowest_in_component(10_000, order[1:], order[:-1]).any()
    assert not lowest_in_component(10_000, np.arange(1, 10_000), np.arange(9_999)).any()
