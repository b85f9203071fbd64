"""Maximum flows and minimum cuts of a topology, exact in integers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints
from simcoll.core.step import distinct

if TYPE_CHECKING:
    from simcoll.topology import Topology

__all__ = ["FEW_LINKS", "FlowGraph", "alike_both_ways", "egress", "flow_graph", "min_cut"]

SOLVER_LIMIT = 2**30 - 1
"""The sum of a capacity and the opposite flow must fit in 32 bits."""
FEW_LINKS = 256
"""Up to this number of links, flows are found without SciPy, which takes longer to load than a
table of a few sizes.
"""
FLOW_LIMIT = 1024
"""Up to this many ranks the minimum cut of a group is a maximum flow; beyond, a greedy cut, which
is equally valid.
"""


@dataclass(frozen=True, slots=True, eq=False)
class FlowGraph:
    """Links between vertices, with capacities divided by their greatest common divisor
    ``unit_uBps``.

    Capacities are Python integers if their sum might not fit in 64 bits.

    ``out_links[v]`` and ``in_links[v]`` list the links at a vertex (only beyond ``FLOW_LIMIT``
    ranks, where greedy cuts need them); ``ranks`` are vertices; ``nodes`` maps vertices to those of
    the topology.
    """

    nvertices: int
    tail: Ints
    head: Ints
    capacity: Array
    unit_uBps: int
    ranks: Ints
    nodes: Ints
    out_links: tuple[Ints, ...]
    in_links: tuple[Ints, ...]

    @property
    def nranks(self) -> int:
        """World size."""
        return len(self.ranks)

    def leaving(self, members: NDArray[np.bool_]) -> Ints:
        """The links that leave a set of vertices."""
        return np.flatnonzero(members[self.tail] & ~members[self.head])


def flow_graph(topology: Topology, *, backwards: bool = False) -> FlowGraph:
    """The links of a topology, optionally reversed.

    A GPU without a rank carries nothing if GPUs do not forward, so it is left out.
    """
    keep = np.ones(len(topology.node_names), dtype=bool)
    if not topology.passes_gpus:
        keep = np.array([kind != "gpu" for kind in topology.node_kinds])
        keep[topology.rank_nodes] = True
    number = np.cumsum(keep) - 1
    links = keep[topology.link_src] & keep[topology.link_dst]
    tail, head = number[topology.link_src[links]], number[topology.link_dst[links]]
    if backwards:
        tail, head = head, tail
    capacity = topology.link_capacity_uBps[links]
    unit = int(np.gcd.reduce(capacity)) if capacity.size else 1
    capacity //= unit
    if int(capacity.max(initial=0)) * (capacity.size + 1) >= 2**62:
        capacity = capacity.astype(object)
    total = int(keep.sum())
    return FlowGraph(
        nvertices=total,
        tail=tail,
        head=head,
        capacity=capacity,
        unit_uBps=unit,
        ranks=number[topology.rank_nodes],
        nodes=np.flatnonzero(keep),
        out_links=_at_vertices(tail, total) if topology.nranks > FLOW_LIMIT else (),
        in_links=_at_vertices(head, total) if topology.nranks > FLOW_LIMIT else (),
    )


def alike_both_ways(topology: Topology) -> bool:
    """Whether every link has an equal one in the opposite direction."""
    ends = np.stack([topology.link_src, topology.link_dst, topology.link_capacity_uBps])
    forward, backward = ends[:, np.lexsort(ends[::-1])], ends[[1, 0, 2]]
    return np.array_equal(forward, backward[:, np.lexsort(backward[::-1])])


def _at_vertices(end: Ints, nvertices: int) -> tuple[Ints, ...]:
    order = np.argsort(end, kind="stable")
    return tuple(np.split(order, np.searchsorted(end[order], np.arange(1, nvertices))))


def min_cut(
    nvertices: int,
    tail: Ints,
    head: Ints,
    capacity: Array,
    source: int,
    sink: int,
) -> tuple[int, NDArray[np.bool_], bool]:
    """Value of a maximum flow, the vertices on the source's side of a minimum cut, and whether both
    are exact.

    SciPy's solver, for more than ``FEW_LINKS`` links, has 32-bit capacities. Larger ones are scaled
    down and rounded, which may yield a cut slightly above the minimum; callers evaluate the cut
    itself in exact integers, so their claims remain true.
    """
    if tail.size <= FEW_LINKS:
        return *_augmenting_paths(
            nvertices, tail.tolist(), head.tolist(), capacity.tolist(), source, sink
        ), True
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    # No minimum cut contains a link of more than this, so all larger capacities can be reduced to
    # one unit more.
    enough = min(sum(capacity[tail == source].tolist()), sum(capacity[head == sink].tolist()))
    exact = enough < SOLVER_LIMIT
    if exact:
        fitted = np.minimum(capacity, enough + 1)
    else:
        fitted = np.array(
            [-(-min(c, enough + 1) * SOLVER_LIMIT // (enough + 1)) for c in capacity.tolist()]
        )
    graph = csr_array((fitted.astype(np.int32), (tail, head)), shape=(nvertices, nvertices))
    flow = maximum_flow(graph, source, sink)
    residual = graph - flow.flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    source_side = np.zeros(nvertices, dtype=bool)
    source_side[breadth_first_order(residual, source, return_predecessors=False)] = True
    return int(flow.flow_value), source_side, exact


def _augmenting_paths(
    nvertices: int, tail: list[int], head: list[int], capacity: list[int], source: int, sink: int
) -> tuple[int, NDArray[np.bool_]]:
    """Value of a maximum flow by shortest augmenting paths (Edmonds and Karp), and the source side
    of the first minimum cut.
    """
    residual: list[dict[int, int]] = [{} for _ in range(nvertices)]
    for a, b, amount in zip(tail, head, capacity, strict=True):
        residual[a][b] = residual[a].get(b, 0) + amount
        residual[b].setdefault(a, 0)
    value = 0
    while True:
        previous, queue = {source: source}, [source]
        for a in queue:
            for b, amount in residual[a].items():
                if amount and b not in previous:
                    previous[b] = a
                    queue.append(b)
            if sink in previous:
                break
        if sink not in previous:
            source_side = np.zeros(nvertices, dtype=bool)
            source_side[queue] = True
            return value, source_side
        path = [sink]
        while path[-1] != source:
            path.append(previous[path[-1]])
        links = list(pairwise(reversed(path)))
        room = min(residual[a][b] for a, b in links)
        for a, b in links:
            residual[a][b] -= room
            residual[b][a] += room
        value += room


def egress(graph: FlowGraph, members: Ints) -> tuple[int, NDArray[np.bool_]]:
    """Capacity (in the graph's units) of a cut that separates some ranks from all others, and their
    side.

    All data from these ranks to the others crosses the cut. For up to ``FLOW_LIMIT`` ranks it is
    the smallest one.
    """
    mine = np.zeros(graph.nvertices, dtype=bool)
    mine[graph.ranks[members]] = True
    outsiders = distinct(graph.ranks[~mine[graph.ranks]])
    if graph.nranks > FLOW_LIMIT:
        side = _greedy_side(graph, mine, outsiders)
    else:
        source, sink = graph.nvertices, graph.nvertices + 1
        tail = np.concatenate([graph.tail, np.full(members.size, source), outsiders])
        head = np.concatenate([graph.head, graph.ranks[members], np.full(outsiders.size, sink)])
        every = int(graph.capacity.max(initial=1)) * graph.capacity.size
        free = np.full(members.size + outsiders.size, every, graph.capacity.dtype)
        _, side, _ = min_cut(
            sink + 1, tail, head, np.concatenate([graph.capacity, free]), source, sink
        )
        side = side[: graph.nvertices]
    return int(graph.capacity[graph.leaving(side)].sum()), side


def _greedy_side(graph: FlowGraph, mine: NDArray[np.bool_], outsiders: Ints) -> NDArray[np.bool_]:
    """Add neighbouring vertices while this does not raise the capacity out of the set."""
    side = mine.copy()
    closed = np.zeros(graph.nvertices, dtype=bool)
    closed[outsiders] = True
    frontier = list(
        dict.fromkeys(int(h) for v in np.flatnonzero(mine) for h in graph.head[graph.out_links[v]])
    )
    while frontier:
        added_vertices: list[int] = []
        for v in frontier:
            if side[v] or closed[v]:
                continue
            saved = graph.in_links[v][side[graph.tail[graph.in_links[v]]]]
            added = graph.out_links[v][~side[graph.head[graph.out_links[v]]]]
            if graph.capacity[added].sum() <= graph.capacity[saved].sum():
                side[v] = True
                added_vertices.append(v)
        frontier = list(
            dict.fromkeys(int(h) for v in added_vertices for h in graph.head[graph.out_links[v]])
        )
    return side
