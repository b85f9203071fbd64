"""Algorithms along packed trees: optimal in bytes on any topology, even irregular or degraded ones.

Data is cut into as many parts as there are trees, and each part travels along its tree in pieces
that follow each other. A reduction travels along trees into the roots. The trees come from
:mod:`simcoll.bounds.packing`; with more pieces the time comes closer to the bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.algorithms import forest
from simcoll.algorithms.forest import Forest, topology_of
from simcoll.algorithms.registered import algorithm
from simcoll.core.collective import Collective
from simcoll.core.schedule import Schedule

if TYPE_CHECKING:
    from simcoll.bounds.packing import Packing
    from simcoll.topology import Topology

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]

PLACE = 22  # in listings

FOREST = (
    "Zhao et al.: ForestColl, efficient collective communications on heterogeneous network "
    "fabrics, arXiv 2402.06787"
)


def _forest(packing: Packing) -> Forest:
    rows: list[tuple[int, int, int, int, int]] = []
    used: dict[int, int] = {}
    for tree in packing.trees:
        first_part = used.get(tree.root, 0)
        used[tree.root] = first_part + tree.copies
        level = {tree.root: -1}
        for src, dst in tree.links:
            level[dst] = level[src] + 1
            rows += [
                (src, dst, tree.root, first_part + copy, level[dst]) for copy in range(tree.copies)
            ]
    return Forest.of(rows, packing.shares)


@algorithm(
    "all_gather",
    "packed",
    cost="many pieces: bound",
    machine="any",
    source=FOREST,
    pattern="tree",
    ranks="up to 1024",
)
def all_gather(
    collective: Collective, *, topology: Topology | None = None, pieces: int = 16
) -> Schedule:
    """Every rank's block travels down trees that fill the links of the topology."""
    from simcoll.bounds.packing import pack_trees

    machine = topology_of(collective, topology, "packed")
    return forest.all_gather(collective, "packed", machine, _forest(pack_trees(machine)), pieces)


@algorithm(
    "reduce_scatter",
    "packed",
    cost="many pieces: bound",
    machine="any",
    source=FOREST,
    pattern="tree",
    ranks="up to 1024",
    order="run-consistent",
)
def reduce_scatter(
    collective: Collective, *, topology: Topology | None = None, pieces: int = 16
) -> Schedule:
    """Every rank's block is summed up along trees that fill the links of the topology."""
    from simcoll.bounds.packing import pack_trees

    machine = topology_of(collective, topology, "packed")
    trees = _forest(pack_trees(machine, backwards=True)).reversal()
    return forest.reduce_scatter(collective, "packed", machine, trees, pieces)


@algorithm(
    "all_reduce",
    "packed",
    cost="many pieces: bound",
    machine="any",
    source=FOREST,
    pattern="tree",
    ranks="up to 1024",
    order="run-consistent",
)
def all_reduce(
    collective: Collective, *, topology: Topology | None = None, pieces: int = 16
) -> Schedule:
    """Sums travel up and back down trees that fill the topology's links.

    Ranks with few links are roots of more data.
    """
    from simcoll.bounds.packing import pack_all_reduce

    machine = topology_of(collective, topology, "packed")
    inward, outward = pack_all_reduce(machine)
    return forest.all_reduce(
        collective, "packed", machine, _forest(inward).reversal(), _forest(outward), pieces
    )
