"""The lower bound of a custom collective: what must cross cuts, counted from its definition.

A set of ranks must be able to compute its outputs from its inputs and from what enters it. A
message carries a linear combination of contributions, so at least as many blocks enter the set as
its outputs have independent parts in contributions that no rank of the set holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.bounds.cuts import candidate_groups, cut_name
from simcoll.bounds.flows import FLOW_LIMIT, FlowGraph, egress, flow_graph
from simcoll.bounds.lower_bounds import Bottleneck, Bound
from simcoll.core.definition import Definition
from simcoll.core.facts import FactStore
from simcoll.errors import ConfigError
from simcoll.topology import Topology
from simcoll.topology.orbits import set_orbits
from simcoll.units import FS_PER_SECOND, UBPS_PER_BPS

__all__ = ["crossing_blocks", "custom_bound"]


@dataclass(frozen=True, slots=True, eq=False)
class _ReceiverCut:
    """A set of ranks, and a cut of the network that all data into it must cross."""

    receivers: NDArray[np.bool_]
    capacity_uBps: int
    name: str


def custom_bound(
    definition: Definition,
    topology: Topology,
    block_bytes: Sequence[int],
    *,
    latency_fs: int = 0,
) -> Bound:
    """The least time that any schedule of a custom collective can take, by cuts around ranks,
    groups of the topology, and halves of its groups.

    Parameters
    ----------
    definition
        The collective.
    topology
        A cluster with its ranks.
    block_bytes
        Size of a block of each size class.
    latency_fs
        A provable latency floor; the result is the larger of the two bounds.

    Returns
    -------
    Bound
        Its certificate's ``seconds_per_byte`` is per byte that must cross the cut; other cuts may
        give a larger bound, so it is never called exact.

    Raises
    ------
    ConfigError
        For another number of ranks than the topology's, or of sizes than the definition's.

    Examples
    --------
    >>> from simcoll.core.collective import Collective
    >>> from simcoll.topology import crossbar
    >>> swap = Collective.custom("swap", inputs=[[0], [1]], outputs=[[1], [0]])
    >>> bound = custom_bound(swap.definition, crossbar(2, "1 GB/s"), [10**6])
    >>> bound.time_fs == 10**12, bound.bottleneck
    (True, 'the links out of gpu0')
    """
    if topology.nranks != definition.nranks or len(block_bytes) != definition.nclasses:
        raise ConfigError(
            f"{definition} has {definition.nranks} ranks and {definition.nclasses} size classes; "
            f"got {topology.nranks} ranks and {len(block_bytes)} sizes"
        )
    nothing = Bottleneck(Fraction(0), "latency", "no data has to cross between ranks", exact=False)
    longest, certificate = Fraction(0), nothing
    for cut in _cuts_of(topology):
        blocks = crossing_blocks(definition, cut.receivers)
        size = sum(
            number * block for number, block in zip(blocks.tolist(), block_bytes, strict=True)
        )
        seconds = Fraction(size * UBPS_PER_BPS, cut.capacity_uBps)
        if seconds > longest:
            number = int(blocks.sum())
            argument = f"{number} block{'s' if number > 1 else ''} must cross the cut"
            senders = tuple(np.flatnonzero(~cut.receivers).tolist())
            rate = Fraction(UBPS_PER_BPS, cut.capacity_uBps)
            longest = seconds
            certificate = Bottleneck(rate, cut.name, argument, senders, exact=False)
    time_fs = int(longest * FS_PER_SECOND)
    if time_fs >= latency_fs and time_fs > 0:
        return Bound(time_fs, "bandwidth", certificate.name, certificate)
    return Bound(latency_fs, "latency", "latency", certificate)


def crossing_blocks(definition: Definition, receivers: NDArray[np.bool_]) -> Ints:
    """The least number of blocks of each size class that must enter a set of ranks.

    Of the sums that the set must hold, without the contributions that one of its ranks holds, those
    count that have a contribution which the ones counted before do not have: they are independent.

    Examples
    --------
    >>> scan = Definition("scan", inputs=[[0], [1], [2]], outputs=[[0], [[0, 1]], [[0, 1, 2]]])
    >>> crossing_blocks(scan, np.array([False, True, True])).tolist()
    [1]
    """
    present = np.zeros(definition.contributions, np.bool_)
    numbers_inside = definition.input_numbers[receivers]
    present[numbers_inside[numbers_inside >= 0]] = True
    width = definition.sums.shape[1]
    numbers: dict[int, tuple[int, ...]] = {}
    for rank in np.flatnonzero(receivers).tolist():
        for slot, number in enumerate(definition.sums[rank].tolist()):
            if number >= 0 and number not in numbers:
                row = rank * width + slot
                begin, end = definition.starts[row : row + 2].tolist()
                row_numbers = definition.summands[begin:end]
                numbers[number] = tuple(sorted(set(row_numbers[~present[row_numbers]].tolist())))
    blocks = np.zeros(definition.nclasses, np.int64)
    covered: set[int] = set()
    for summands in sorted(numbers.values(), key=lambda members: (len(members), members)):
        if not covered.issuperset(summands):
            covered.update(summands)
            blocks[definition.classes[summands[0]]] += 1
    return blocks


def _find_cuts(topology: Topology) -> tuple[_ReceiverCut, ...]:
    """Cuts into and out of ranks, groups and halves of the groups of each level."""
    n = topology.nranks
    if n == 1:
        return ()
    sets: list[Ints] = []
    orbits: list[int] = []  # sets of one orbit have equal cuts
    for _, groups in candidate_groups(topology):
        orbits += (len(sets) + set_orbits(topology, groups)).tolist()
        sets += groups
        if len(groups) > 2:
            orbits.append(len(sets))
            sets.append(np.sort(np.concatenate(groups[: len(groups) // 2])))
    cuts: list[_ReceiverCut] = []
    for backwards in (False, True):
        graph = flow_graph(topology, backwards=backwards)
        capacities: dict[int, int] = {}
        for members, orbit in zip(sets, orbits, strict=True):
            if orbit not in capacities or n <= FLOW_LIMIT // 16:
                capacities[orbit], side = egress(graph, members)
                name = cut_name(topology, graph, side, backwards=backwards)
            else:
                name = _name(topology, graph, members, backwards=backwards)
            members_mask = np.zeros(n, np.bool_)
            members_mask[members] = True
            receivers = members_mask if backwards else ~members_mask
            cuts.append(_ReceiverCut(receivers, capacities[orbit] * graph.unit_uBps, name))
    return tuple(cuts)


def _name(topology: Topology, graph: FlowGraph, members: Ints, *, backwards: bool) -> str:
    """A cut in words, named by its ranks alone."""
    side = np.zeros(graph.nvertices, np.bool_)
    side[graph.ranks[members]] = True
    return cut_name(topology, graph, side, backwards=backwards)


_cuts_of: FactStore[Topology, tuple[_ReceiverCut, ...]] = FactStore(_find_cuts)
