"""Minimum cuts of small and large graphs, beside networkx."""

from unittest import mock

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.bounds import flows

LINKS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 5)), min_size=1, max_size=40
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(links=LINKS, unit=st.sampled_from([1, 10**9, 10**30]))
def test_both_ways_find_the_first_minimum_cut(links, unit):
    tail, head, capacity = np.array([(a, b, c) for a, b, c in [*links, (0, 7, 1)] if a != b]).T
    graph = nx.DiGraph()
    for a, b, c in zip(tail.tolist(), head.tolist(), capacity.tolist(), strict=True):
        before = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=before + c * unit)
    value = nx.maximum_flow_value(graph, 0, 7)
    large = capacity.astype(object) * unit
    found, inside, exact = flows.min_cut(8, tail, head, large, 0, 7)
    assert (found, exact) == (value, True)
    assert sum(large[inside[tail] & ~inside[head]]) == value
    if unit == 1:
        with mock.patch.object(flows, "FEW_LINKS", 0):
            again, side, exact = flows.min_cut(8, tail, head, capacity, 0, 7)
        assert (again, side.tolist(), exact) == (value, inside.tolist(), True)
