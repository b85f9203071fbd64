"""The best cut of an all-gather or a scatter, exactly: Newton's method on fractions with maximum
flows as the oracle.

Sources: ForestColl (arXiv 2402.06787) for the bound; Newton's method for a ratio of two set
functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints
from simcoll.bounds.flows import (
    FEW_LINKS,
    FLOW_LIMIT,
    SOLVER_LIMIT,
    FlowGraph,
    egress,
    flow_graph,
    min_cut,
)
from simcoll.errors import InternalError
from simcoll.topology import Topology
from simcoll.topology.orbits import rank_orbits
from simcoll.units import UBPS_PER_BPS

__all__ = ["NetworkCut", "all_gather_cut", "candidate_groups", "cut_name", "scatter_cut"]


ORBIT_LIMIT = 2**16
"""Beyond ``FLOW_LIMIT`` ranks, cuts are exact up to this product of ranks and orbits of ranks."""


_PLURALS = {"box": "boxes", "leaf": "leaves"}
TOGETHER = 2**15
"""Number of links in one flow that covers several sinks."""


@dataclass(frozen=True, slots=True)
class NetworkCut:
    """A set of vertices whose outgoing links bound a collective: the certificate of a lower bound.

    Attributes
    ----------
    ratio
        Ranks inside over capacity out, in seconds per byte: an all-gather of M bytes in total over
        N ranks takes at least ``M / N * ratio`` seconds, so its algorithm bandwidth is at most
        ``N / ratio``.
    ranks_inside
        The ranks on the sending side.
    capacity_uBps
        Capacity of the links that leave the set.
    name
        The cut in words, such as ``"the links into box0.gpu3"`` or ``"the NICs of box 1"``.
    exact
        Whether no cut gives a larger bound. If False, the bound holds, but a better one may exist.
    """

    ratio: Fraction
    ranks_inside: tuple[int, ...]
    capacity_uBps: int
    name: str
    exact: bool = True


def all_gather_cut(
    topology: Topology, *, backwards: bool = False, by_orbit: bool = True
) -> NetworkCut:
    """The cut that bounds all_gather.

    Over all sets of vertices that do not hold every rank, it maximizes ranks inside over capacity
    out. ``backwards`` reverses all links, which gives reduce_scatter.

    Exact for up to 1024 ranks, and beyond where symmetry leaves few orbits; otherwise the best of
    single ranks and groups. ``by_orbit`` tries only one rank of each orbit under certified
    symmetries; the result is the same.

    Examples
    --------
    >>> from simcoll.topology import crossbar
    >>> cut = all_gather_cut(crossbar(4, "300 GB/s"))
    >>> cut.ratio * 10**9, cut.name
    (Fraction(1, 100), 'the links into gpu0')
    """
    graph = flow_graph(topology, backwards=backwards)
    if graph.nranks == 1:
        return NetworkCut(Fraction(0), (0,), 0, "a single rank")
    orbits = rank_orbits(topology).tolist()
    best, side = _first_guess(topology, graph, orbits, backwards=backwards)
    sinks = orbits if by_orbit else list(range(graph.nranks))
    exact = graph.nranks <= FLOW_LIMIT or graph.nranks * len(sinks) <= ORBIT_LIMIT
    if not exact:
        sinks = []
    fits, served = _Feasible(graph, best, len(sinks)), 0
    while served < len(sinks):
        together = sinks[served : served + fits.copies]
        if not fits(together, sinks[:served]):
            for sink in together:
                ratio, worse, sure = _worse_cut(graph, best, sink)
                exact &= sure
                if ratio > best:
                    break
            if ratio > best:
                best, side = ratio, worse
                fits = _Feasible(graph, best, len(sinks))
                continue
        served += len(together)
    return _cut(topology, graph, best, side, backwards=backwards, exact=exact)


def scatter_cut(topology: Topology, root: int, *, backwards: bool = False) -> NetworkCut:
    """The cut that bounds scatter: most ranks outside per capacity out of a set that holds the
    root.

    Its ``ratio`` counts the ranks on the receiving side: a scatter of M bytes in total takes at
    least ``M / N * ratio`` seconds. ``backwards`` gives gather.
    """
    graph = flow_graph(topology, backwards=backwards)
    n = graph.nranks
    if n == 1:
        return NetworkCut(Fraction(0), (0,), 0, "a single rank")
    capacity, side = egress(graph, np.array([root]))
    best = Fraction(n - 1, capacity)
    receivers = np.delete(graph.ranks, root)
    sink = graph.nvertices
    exact = True
    while True:
        tail, head = (
            np.concatenate([graph.tail, receivers]),
            np.concatenate([graph.head, np.full(n - 1, sink)]),
        )
        demand = np.full(n - 1, best.denominator, dtype=object)
        scaled = _scale(graph.capacity, best.numerator)
        _, source_side, fits = min_cut(
            sink + 1, tail, head, np.concatenate([scaled, demand]), int(graph.ranks[root]), sink
        )
        exact &= fits
        source_side = source_side[:sink]
        receiving = int((~source_side[graph.ranks]).sum())
        ratio = Fraction(receiving, int(graph.capacity[graph.leaving(source_side)].sum()) or 1)
        if ratio <= best:
            break
        best, side = ratio, source_side
    return _cut(topology, graph, best, side, backwards=backwards, exact=exact)


def candidate_groups(topology: Topology) -> Iterator[tuple[str, list[Ints]]]:
    """Partitions of the ranks that are likely bottlenecks: single ranks, and each level of the
    topology's groups.
    """
    yield "rank", [np.array([r]) for r in range(topology.nranks)]
    for level, ids in topology.groups.items():
        members = [np.flatnonzero(ids == group) for group in range(int(ids.max()) + 1)]
        if 1 < len(members) < topology.nranks:
            yield level, members


def _first_guess(
    topology: Topology, graph: FlowGraph, sinks: list[int], *, backwards: bool
) -> tuple[Fraction, NDArray[np.bool_]]:
    """The best cut around all but one rank or group: everything except the vertices through which
    that receives.

    Only groups with one of the ``sinks`` are tried.
    """
    reverse = flow_graph(topology, backwards=not backwards)
    # For a single rank, cut its own links; the flows find any better cut behind them.
    entering = np.zeros(graph.nvertices, graph.capacity.dtype)
    np.add.at(entering, graph.head, graph.capacity)
    weakest = min(sinks, key=lambda rank: int(entering[graph.ranks[rank]]))
    alone = np.ones(graph.nvertices, bool)
    alone[graph.ranks[weakest]] = False
    candidates = [(Fraction(graph.nranks - 1, int(entering[graph.ranks[weakest]])), alone)]
    is_sink = np.zeros(graph.nranks, bool)
    is_sink[sinks] = True
    for level, groups in candidate_groups(topology):
        for members in groups if level != "rank" else ():
            if not is_sink[members].any():
                continue
            capacity, receiving = egress(reverse, members)
            candidates.append((Fraction(graph.nranks - members.size, capacity), ~receiving))
    return max(candidates, key=lambda entry: entry[0])


class _Feasible:
    """Whether all ranks can send 1 / ratio to each given sink simultaneously; False may be a false
    alarm.

    One flow through ``copies`` of the graph, each with a different sink, answers for that many
    sinks. A rank already known to be feasible may send without limit: no set without it has a
    larger ratio, so only sets that contain it matter, and for these its links to the source do not
    count. This shortens the flows.
    """

    def __init__(self, graph: FlowGraph, ratio: Fraction, sinks: int) -> None:
        self.need = graph.nranks * ratio.denominator
        self.copies = max(
            1,
            min(sinks, SOLVER_LIMIT // self.need, TOGETHER // (graph.tail.size + 2 * graph.nranks)),
        )
        self.matrix = None
        if self.need >= SOLVER_LIMIT or graph.tail.size + 2 * graph.nranks <= FEW_LINKS:
            return
        from scipy.sparse import csr_array

        offset = graph.nvertices * np.arange(self.copies)[:, None]
        tail, head, ranks = (
            (offset + vertices).ravel() for vertices in (graph.tail, graph.head, graph.ranks)
        )
        self.source, self.sink = graph.nvertices * self.copies, graph.nvertices * self.copies + 1
        tails = np.concatenate([tail, np.full(ranks.size, self.source), ranks])
        heads = np.concatenate([head, ranks, np.full(ranks.size, self.sink)])
        # The position of each link in the matrix; then its capacity there. Links of the source and
        # to the sink come last.
        matrix = csr_array(
            (np.arange(tails.size, dtype=np.int32), (tails, heads)),
            shape=(self.sink + 1, self.sink + 1),
        )
        capacity = np.minimum(_scale(graph.capacity, ratio.numerator), self.need + 1).astype(
            np.int32
        )
        ends = np.concatenate(
            [np.full(ranks.size, ratio.denominator, np.int32), np.zeros(ranks.size, np.int32)]
        )
        place = np.argsort(matrix.data)
        matrix.data = np.concatenate([np.tile(capacity, self.copies), ends])[matrix.data]
        self.starts, self.ends = place[tail.size :].reshape(2, self.copies, -1)
        self.matrix = matrix

    def __call__(self, sinks: list[int], passed: list[int]) -> bool:
        if self.matrix is None:
            return False
        from scipy.sparse.csgraph import maximum_flow

        self.matrix.data[self.starts[:, passed]] = self.need
        used = self.ends[np.arange(len(sinks)), sinks]
        self.matrix.data[used] = self.need
        flow = maximum_flow(self.matrix, self.source, self.sink)
        self.matrix.data[used] = 0
        return int(flow.flow_value) == self.need * len(sinks)


def _worse_cut(
    graph: FlowGraph, ratio: Fraction, sink: int
) -> tuple[Fraction, NDArray[np.bool_], bool]:
    """A set without the rank ``sink`` of a larger ratio, if there is one: its ratio, the set, and
    whether that is exact.

    With x = 1 / ratio flowing out of every rank, the flow to the sink must be N x, or else the
    minimum cut has a larger ratio.
    """
    source = graph.nvertices
    n = graph.nranks
    tail = np.concatenate([graph.tail, np.full(n, source)])
    head = np.concatenate([graph.head, graph.ranks])
    supply = np.full(n, ratio.denominator, dtype=object if ratio.denominator >= 2**62 else np.int64)
    capacity = np.concatenate([_scale(graph.capacity, ratio.numerator), supply])
    _, source_side, exact = min_cut(
        source + 1, tail, head, capacity, source, int(graph.ranks[sink])
    )
    source_side = source_side[:source]
    out = int(graph.capacity[graph.leaving(source_side)].sum())
    return (
        Fraction(int(source_side[graph.ranks].sum()), out) if out else Fraction(0),
        source_side,
        exact,
    )


def _scale(capacity: Ints, by: int) -> Array:
    """Capacities times an integer, as Python integers if 64 bits do not suffice."""
    if int(capacity.max(initial=0)) * by < 2**62:
        return capacity * by
    return capacity.astype(object) * by


def _cut(
    topology: Topology,
    graph: FlowGraph,
    ratio: Fraction,
    side: NDArray[np.bool_],
    *,
    backwards: bool,
    exact: bool,
) -> NetworkCut:
    capacity = int(graph.capacity[graph.leaving(side)].sum()) * graph.unit_uBps
    if capacity == 0:
        raise InternalError(
            f"a cut of topology {topology.name!r} has no capacity, but the topology is connected"
        )
    return NetworkCut(
        ratio=ratio / graph.unit_uBps * UBPS_PER_BPS,
        ranks_inside=tuple(np.flatnonzero(side[graph.ranks]).tolist()),
        capacity_uBps=capacity,
        name=cut_name(topology, graph, side, backwards=backwards),
        exact=exact,
    )


def cut_name(
    topology: Topology, graph: FlowGraph, side: NDArray[np.bool_], *, backwards: bool = False
) -> str:
    """A cut in words, from the side with fewer ranks. ``side`` sends; ``backwards``: the graph's
    links are reversed.
    """
    in_side = side[graph.ranks]
    sending = 2 * int(in_side.sum()) <= in_side.size
    members = np.flatnonzero(in_side if sending else ~in_side)
    crossing = graph.leaving(side)
    ends = graph.nodes[np.concatenate([graph.tail[crossing], graph.head[crossing]])].reshape(2, -1)
    kinds = np.array(topology.node_kinds)[ends]
    group = _group_name(topology, members)
    if (kinds == "nic").any(axis=0).all():
        return f"the NICs of {group}"
    return f"the links {'out of' if sending != backwards else 'into'} {group}"


def _group_name(topology: Topology, members: Ints) -> str:
    """``box0.gpu3``, ``box 1``, ``2 of 4 boxes``, ``5 of 16 ranks``."""
    if members.size == 1:
        return topology.node_names[int(topology.rank_nodes[members[0]])]
    chosen = np.zeros(topology.nranks, dtype=bool)
    chosen[members] = True
    for level, ids in topology.groups.items():
        groups = np.unique(ids[members])
        if chosen[np.isin(ids, groups)].all() and groups.size <= ids.max():
            if groups.size == 1:
                return f"{level} {groups[0]}"
            return f"{groups.size} of {ids.max() + 1} {_PLURALS.get(level, level + ' groups')}"
    return f"{members.size} of {topology.nranks} ranks"
