"""The best all-reduce along trees: reduce to weighted roots and broadcast from them, by a linear
program.

Part of the vector is reduced to each root and broadcast from it; the two share the capacity of
every link. The result is the best schedule of this kind, not a bound on others: see
``docs/explanation/bounds.md``. It is in floating point.

Source: ForestColl, arXiv 2402.06787.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_array, hstack, identity, kron, vstack

from simcoll.bounds.flows import flow_graph
from simcoll.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from simcoll.topology import Topology

__all__ = ["VARIABLE_LIMIT", "best_roots"]

VARIABLE_LIMIT = 20_000


def best_roots(topology: Topology, *, in_network: bool = False) -> tuple[float, tuple[float, ...]]:
    """Bytes of the vector per second, and each rank's share of the vector as a root.

    ``in_network`` lets switches multicast and reduce: data that enters a switch then need not leave
    it as often.

    Raises
    ------
    ConfigError
        When the program would be too large.

    Examples
    --------
    >>> from simcoll.topology import torus
    >>> rate, _ = best_roots(torus([4], "25 GB/s", wrap=False))
    >>> round(rate / 1e9, 6)
    25.0
    """
    graph = flow_graph(topology)
    n, links, vertices = graph.nranks, graph.capacity.size, graph.nvertices
    if 2 * n * links > VARIABLE_LIMIT:
        raise ConfigError(f"all_reduce program: {n} ranks times {links} links are too many for it")
    if n == 1:
        return float("inf"), (1.0,)
    scale = float(graph.capacity.max())
    column, ones = np.arange(links), np.ones(links)
    out = csr_array((ones, (graph.tail, column)), shape=(vertices, links))
    leaving = out - csr_array((ones, (graph.head, column)), shape=(vertices, links))
    # For each rank v, a flow brings it x_u from every u within the broadcast capacities; another
    # takes x_u from it to every u.
    supply = np.zeros((n * vertices, n))
    for v in range(n):
        for u in range(n):
            if u != v:
                supply[v * vertices + graph.ranks[u], u] += 1
                supply[v * vertices + graph.ranks[v], u] -= 1
    one_way = kron(identity(n), leaving)
    supplies = vstack([csr_array(-supply), csr_array(supply)])
    flows = block_diag([one_way, one_way])
    nothing = csr_array((flows.shape[0], 2 * links))
    equal = [hstack([supplies, nothing, flows])]
    if not in_network:
        switch = np.ones(vertices, dtype=bool)
        switch[graph.ranks] = False
        balances = csr_array(leaving)[np.flatnonzero(switch)]
        no_flows = csr_array((2 * balances.shape[0], 2 * n * links))
        equal.append(
            hstack(
                [csr_array((2 * balances.shape[0], n)), block_diag([balances, balances]), no_flows]
            )
        )
    shared = hstack(
        [csr_array((links, n)), identity(links), identity(links), csr_array((links, 2 * n * links))]
    )
    copies = kron(np.ones((n, 1)), identity(links))
    within = hstack(
        [csr_array((2 * n * links, n)), -block_diag([copies, copies]), identity(2 * n * links)]
    )
    columns = n + 2 * links + 2 * n * links
    cost = np.zeros(columns)
    cost[:n] = -1
    conserved = vstack(equal)
    solution = linprog(
        cost,
        A_ub=vstack([shared, within]).tocsr(),
        b_ub=np.concatenate([graph.capacity.astype(np.float64) / scale, np.zeros(2 * n * links)]),
        A_eq=conserved.tocsr(),
        b_eq=np.zeros(conserved.shape[0]),
        bounds=(0, None),
        method="highs",
    )
    if not solution.success:
        raise InternalError(
            f"the all_reduce program of topology {topology.name!r} has no solution: "
            f"{solution.message}"
        )
    total = float(-solution.fun)
    roots = tuple(float(share) / total for share in solution.x[:n])
    return total * scale * graph.unit_uBps / 1e6, roots
