"""Lower bounds that no schedule can beat, however many ports it uses.

Most bounds count the bytes that must cross a cut, and therefore also hold for switches that
multicast and reduce. Only an all-reduce crosses cuts less often with such switches; ``in_network``
requests the bound that still holds then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from simcoll.arrays import Ints
from simcoll.bounds.cuts import all_gather_cut, candidate_groups, cut_name, scatter_cut
from simcoll.bounds.flows import FLOW_LIMIT, alike_both_ways, egress, flow_graph, min_cut
from simcoll.bounds.linear_programs import (
    VARIABLE_LIMIT,
    all_to_all_bound,
    all_to_all_by_routes,
    rooted_bound,
    rooted_by_routes,
    routed_bound,
)
from simcoll.core.facts import FactStore
from simcoll.core.vocabulary import BoundKind, CollectiveKind
from simcoll.errors import ConfigError, listed, nearest
from simcoll.notebook_forms import shows_facts
from simcoll.topology import Topology
from simcoll.topology.orbits import rank_orbits, set_orbits
from simcoll.units import FS_PER_SECOND, UBPS_PER_BPS, format_rate, format_time

__all__ = ["Bottleneck", "Bound", "bottleneck", "bottlenecks_of", "lower_bound"]

ROUTE_LIMIT = 256
"""Up to this many ranks, the routes of all pairs are tested for whether they reach a bound."""

PAIRS_LIMIT = 64
"""Up to this many ranks, the rates that the routes of all pairs can carry simultaneously are
computed.
"""
_ROUTED: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_reduce")
_ROOTED: tuple[CollectiveKind, ...] = ("broadcast", "reduce", "scatter", "gather")
_BY_ROUTES = "the routes between ranks"
_BY_PRICES = "what crosses between ranks, for prices of the links that a linear program found"


@shows_facts
@dataclass(frozen=True, slots=True, repr=False)
class Bottleneck:
    """The bound of a collective on a topology, for any size.

    Attributes
    ----------
    seconds_per_byte
        The least time per byte; see :func:`lower_bound` for the size of each collective. 0 without
        a bound.
    name
        The bottleneck in words.
    argument
        The counting argument behind the bound.
    ranks
        The ranks on the sending side of the cut; all ranks for a sum over a partition.
    exact
        Whether no better bound exists: for a rooted collective or an all_to_all, a schedule can
        take this time; for an all_gather or a reduce_scatter, no other cut gives a larger bound. If
        False, the bound holds, but a better one may exist.
    in_network
        Whether the bound also holds if switches multicast and reduce.
    """

    seconds_per_byte: Fraction
    name: str
    argument: str
    ranks: tuple[int, ...] = ()
    exact: bool = True
    in_network: bool = True

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees."""
        rate = "none"
        if self.seconds_per_byte:
            rate = format_rate(int(UBPS_PER_BPS / self.seconds_per_byte))
        lines: list[tuple[str, object]] = [
            ("bottleneck", self.name),
            ("argument", self.argument),
            ("at most", rate),
            ("exact", "yes" if self.exact else "a better bound may exist"),
            ("ranks", f"{listed(self.ranks)} on the sending side" if self.ranks else "none"),
        ]
        return lines if self.in_network else [*lines, ("holds", "without switches that reduce")]

    def time_fs(self, total_bytes: int) -> int:
        """The bound for a size, rounded down to whole femtoseconds."""
        return int(self.seconds_per_byte * total_bytes * FS_PER_SECOND)


@shows_facts
@dataclass(frozen=True, slots=True, repr=False)
class Bound:
    """A provable lower bound on the time of a collective.

    ``kind`` is ``"bandwidth"`` or ``"latency"``, whichever is larger; ``bottleneck`` names it;
    ``certificate`` proves the bandwidth bound for any size.
    """

    time_fs: int
    kind: BoundKind
    bottleneck: str
    certificate: Bottleneck

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees.

        >>> from simcoll.topology import crossbar
        >>> bound = lower_bound("all_reduce", crossbar(4, "100 GB/s"), 10**9)
        >>> bound.facts()[0]
        ('lower bound', '15 ms by bandwidth: the links of all 4 ranks')
        """
        return [
            ("lower bound", f"{format_time(self.time_fs)} by {self.kind}: {self.bottleneck}"),
            *self.certificate.facts()[1:],
        ]

    def to_dict(self) -> dict[str, Any]:
        """The bound as plain values.

        >>> from simcoll.topology import crossbar
        >>> lower_bound("all_reduce", crossbar(4, "100 GB/s"), 10**9).to_dict()["kind"]
        'bandwidth'
        """
        return {
            "time_fs": self.time_fs,
            "kind": self.kind,
            "bottleneck": self.bottleneck,
            "argument": self.certificate.argument,
            "exact": self.certificate.exact,
        }


bottlenecks_of: FactStore[Topology, dict[tuple[CollectiveKind, int, bool, bool], Bottleneck]] = (
    FactStore(lambda _: {})
)
"""The bounds of a topology that were asked for so far, by collective, root, whether switches may
multicast and reduce, and whether messages may take any path.
"""


def lower_bound(
    kind: str,
    topology: Topology,
    total_bytes: int,
    *,
    root: int | None = None,
    latency_fs: int = 0,
    certificate: Bottleneck | None = None,
    in_network: bool = False,
    any_path: bool = False,
) -> Bound:
    """The least time that any schedule of a collective can take.

    Parameters
    ----------
    kind
        The collective: ``"all_reduce"``, ``"all_gather"``, ...
    total_bytes
        all_gather: all gathered data; reduce_scatter: one rank's input; scatter, gather: all data
        at the root; all others: one rank's buffer.
    root
        Root of broadcast, reduce, scatter or gather; default: rank 0.
    latency_fs
        A provable latency floor; the result is the larger of the two bounds.
    certificate
        An earlier result of :func:`bottleneck` for the same collective and topology, to save time
        with many sizes.
    in_network
        Whether switches may multicast and reduce (NVLink SHARP, InfiniBand SHARP).
    any_path
        Whether messages may take any path, and not only the routes of the topology.

    Raises
    ------
    ConfigError
        When the collective is unknown or the root is not a rank.

    Examples
    --------
    >>> from simcoll.topology import crossbar
    >>> bound = lower_bound("all_reduce", crossbar(4, "100 GB/s"), 10**9)
    >>> bound.time_fs == 15 * 10**12, bound.bottleneck
    (True, 'the links of all 4 ranks')
    """
    proof = certificate
    if proof is None or (in_network and not proof.in_network):
        proof = bottleneck(kind, topology, root=root, in_network=in_network, any_path=any_path)
    time_fs = proof.time_fs(total_bytes)
    if time_fs >= latency_fs and time_fs > 0:
        return Bound(time_fs, "bandwidth", proof.name, proof)
    return Bound(latency_fs, "latency", "latency", proof)


def bottleneck(
    kind: str,
    topology: Topology,
    *,
    root: int | None = None,
    in_network: bool = False,
    any_path: bool = False,
) -> Bottleneck:
    """The bound of a collective on a topology for all sizes; see :func:`lower_bound`.

    Each topology's bound is computed only once.
    """
    bounded: tuple[CollectiveKind, ...] = (*_KINDS, "all_reduce")
    if kind not in bounded:
        raise ConfigError(f"no lower bound for collective {kind!r}; {nearest(kind, bounded)}")
    start = 0 if root is None else root
    if not 0 <= start < topology.nranks:
        raise ConfigError(
            f"root {root} is not a rank of topology {topology.name!r}; expected 0 to "
            f"{topology.nranks - 1}"
        )
    bottlenecks = bottlenecks_of(topology)
    question = (kind, start if kind in _ROOTED else 0, in_network, any_path)
    if question not in bottlenecks:
        bottlenecks[question] = _search(
            kind, topology, start, in_network=in_network, any_path=any_path
        )
    return bottlenecks[question]


def _search(
    kind: CollectiveKind, topology: Topology, root: int, *, in_network: bool, any_path: bool
) -> Bottleneck:
    if topology.nranks == 1:
        return Bottleneck(Fraction(0), "a single rank", "nothing to send")
    bound = (
        _all_reduce(topology, in_network=in_network)
        if kind == "all_reduce"
        else _KINDS[kind](topology, root)
    )
    if any_path:
        return bound
    if kind in _ROOTED:
        return _with_root_routes(kind, topology, root, bound, in_network=in_network)
    return bound if in_network or kind not in _ROUTED else _with_routes(kind, topology, bound)


def _with_routes(kind: CollectiveKind, topology: Topology, bound: Bottleneck) -> Bottleneck:
    """The larger of a bound and the bound by message routes."""
    if topology.nranks > PAIRS_LIMIT:
        return bound
    per_byte = routed_bound(kind, topology, bound.seconds_per_byte)
    if per_byte <= bound.seconds_per_byte:
        return bound
    return _by_prices(topology, per_byte, exact=False)


def _by_prices(topology: Topology, per_byte: Fraction, *, exact: bool) -> Bottleneck:
    ranks = tuple(range(topology.nranks))
    return Bottleneck(per_byte, _BY_ROUTES, _BY_PRICES, ranks, exact=exact, in_network=False)


def _with_root_routes(
    kind: CollectiveKind, topology: Topology, root: int, bound: Bottleneck, *, in_network: bool
) -> Bottleneck:
    """The larger of a cut and the bound by routes; exact if routes are known to reach it.

    The smallest cut also counts links that no route takes, so the cut alone does not show whether
    it can be reached.
    """
    if rooted_by_routes(kind, topology, root) <= bound.seconds_per_byte:
        return replace(bound, exact=True)
    if topology.nranks > PAIRS_LIMIT:
        return replace(bound, exact=False)
    per_byte, reached = rooted_bound(kind, topology, root, bound.seconds_per_byte)
    if in_network or per_byte <= bound.seconds_per_byte:
        return replace(bound, exact=reached and per_byte <= bound.seconds_per_byte)
    return _by_prices(topology, per_byte, exact=reached)


def _gather_bound(topology: Topology, _: int, *, backwards: bool) -> Bottleneck:
    cut = all_gather_cut(topology, backwards=backwards)
    leaving, entering = (
        "every share inside the cut must leave it",
        "a sum must enter the cut for every share inside",
    )
    argument = entering if backwards else leaving
    return Bottleneck(cut.ratio / topology.nranks, cut.name, argument, cut.ranks_inside, cut.exact)


def _scatter_bound(topology: Topology, root: int, *, backwards: bool) -> Bottleneck:
    cut = scatter_cut(topology, root, backwards=backwards)
    argument = "all shares of the ranks on the other side must cross"
    return Bottleneck(
        cut.ratio / topology.nranks, cut.name, argument, cut.ranks_inside, exact=False
    )


def _from_root(topology: Topology, root: int, *, backwards: bool) -> Bottleneck:
    """Edmonds: no rank gets the root's data faster than the smallest cut between them allows."""
    graph, reverse = (
        flow_graph(topology, backwards=backwards),
        flow_graph(topology, backwards=not backwards),
    )
    sides = [egress(graph, np.array([root]))[1]]
    if topology.nranks <= FLOW_LIMIT:
        ranks = rank_orbits(topology, fixed=root)
        for sink in graph.ranks[ranks[ranks != root]].tolist():
            ends = (int(graph.ranks[root]), sink)
            sides.append(min_cut(graph.nvertices, graph.tail, graph.head, graph.capacity, *ends)[1])
    else:
        for _level, groups in candidate_groups(topology):
            sides += [
                egress(graph, members)[1] if root in members else ~egress(reverse, members)[1]
                for members in _unlike(topology, groups, root)
            ]
    best = min(
        ((int(graph.capacity[graph.leaving(side)].sum()), side) for side in sides),
        key=lambda cut: cut[0],
    )
    rate = best[0] * graph.unit_uBps
    name = cut_name(topology, graph, best[1], backwards=backwards)
    ranks_inside = tuple(np.flatnonzero(best[1][graph.ranks]).tolist())
    return Bottleneck(
        Fraction(UBPS_PER_BPS, rate), name, "all data must cross the cut", ranks_inside, exact=False
    )


def _all_reduce(topology: Topology, *, in_network: bool) -> Bottleneck:
    """The best partition into m groups: every element crosses between groups at least 2 (m - 1)
    times.

    m - 1 crossings bring the sum together, m - 1 distribute it, and every group sends and receives
    everything at least once. If switches reduce and multicast, only the latter counts.
    """
    bounds: list[Bottleneck] = []
    for backwards in _directions(topology):
        graph = flow_graph(topology, backwards=backwards)
        for level, groups in candidate_groups(topology):
            representatives, sizes = np.unique(set_orbits(topology, groups), return_counts=True)
            cuts = {number: egress(graph, groups[number]) for number in representatives.tolist()}
            if not in_network:
                total = sum(
                    multiplicity * capacity
                    for multiplicity, (capacity, _) in zip(
                        sizes.tolist(), cuts.values(), strict=True
                    )
                )
                bounds.append(_partition(topology, level, len(groups), total * graph.unit_uBps))
            weakest = min(cuts, key=lambda number: cuts[number][0])
            single = Fraction(UBPS_PER_BPS, cuts[weakest][0] * graph.unit_uBps)
            name = cut_name(topology, graph, cuts[weakest][1], backwards=backwards)
            members = tuple(groups[weakest].tolist())
            argument = f"the group's data must {'reach' if backwards else 'leave'} it"
            bounds.append(Bottleneck(single, name, argument, members, exact=False))
    return max(bounds, key=lambda bound: bound.seconds_per_byte)


def _partition(topology: Topology, level: str, groups: int, capacity_uBps: int) -> Bottleneck:
    crossings = 2 * (groups - 1)
    return Bottleneck(
        Fraction(crossings * UBPS_PER_BPS, capacity_uBps),
        f"the links of all {groups} {'ranks' if level == 'rank' else f'groups of level {level}'}",
        f"{crossings} crossings between {groups} groups",
        tuple(range(topology.nranks)),
        exact=False,
        in_network=False,
    )


def _all_to_all(topology: Topology, _: int) -> Bottleneck:
    """The best cut: every rank of a set sends a block to every rank outside.

    The sets are ranks, groups, and the first half of a level's groups. If routes cannot reach that,
    a linear program looks for a better bound.
    """
    n = topology.nranks
    sets = [
        group
        for _level, groups in candidate_groups(topology)
        for group in _unlike(topology, groups)
    ]
    sets += [
        np.sort(np.concatenate(groups[: len(groups) // 2]))
        for _level, groups in candidate_groups(topology)
    ]
    bounds: list[Bottleneck] = []
    for backwards in _directions(topology):
        graph = flow_graph(topology, backwards=backwards)
        cuts = [egress(graph, members) for members in sets]
        rates = [
            Fraction(members.size * (n - members.size), n * capacity)
            for members, (capacity, _) in zip(sets, cuts, strict=True)
        ]
        worst = max(range(len(sets)), key=rates.__getitem__)
        name = cut_name(topology, graph, cuts[worst][1], backwards=backwards)
        per_byte = rates[worst] / graph.unit_uBps * UBPS_PER_BPS
        argument = "the blocks from one side of the cut to the other"
        bounds.append(
            Bottleneck(per_byte, name, argument, tuple(sets[worst].tolist()), exact=False)
        )
    best = max(bounds, key=lambda bound: bound.seconds_per_byte)
    if n <= ROUTE_LIMIT and all_to_all_by_routes(topology) == best.seconds_per_byte * n:
        return replace(best, exact=True)
    graph = flow_graph(topology)
    if n * graph.capacity.size > VARIABLE_LIMIT:
        return best
    priced = all_to_all_bound(graph) / graph.unit_uBps * UBPS_PER_BPS / n
    if priced <= best.seconds_per_byte:
        return best
    argument = (
        "the distances between all ranks, for lengths of the links that a linear program found"
    )
    return Bottleneck(priced, "many links together", argument, tuple(range(n)), exact=False)


def _no_data(_topology: Topology, _root: int) -> Bottleneck:
    return Bottleneck(Fraction(0), "latency", "no bound on bandwidth")


def _directions(topology: Topology) -> tuple[bool, ...]:
    """Both directions, unless their bounds are equal."""
    return (False,) if alike_both_ways(topology) else (False, True)


def _unlike(topology: Topology, sets: list[Ints], fixed: int | None = None) -> list[Ints]:
    """One set of ranks of each orbit."""
    return [sets[number] for number in np.unique(set_orbits(topology, sets, fixed)).tolist()]


_KINDS: dict[CollectiveKind, Callable[[Topology, int], Bottleneck]] = {
    "all_gather": partial(_gather_bound, backwards=False),
    "all_to_all": _all_to_all,
    "barrier": _no_data,
    "broadcast": partial(_from_root, backwards=False),
    "gather": partial(_scatter_bound, backwards=True),
    "reduce": partial(_from_root, backwards=True),
    "reduce_scatter": partial(_gather_bound, backwards=True),
    "scatter": partial(_scatter_bound, backwards=False),
    "send_recv": _no_data,
}
