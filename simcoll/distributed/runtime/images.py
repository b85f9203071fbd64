"""Groups that are images of each other: of corresponding groups, one is played for all.

The groups that a call of alike ranks is played by enter it at the same times, with plans that are
equal but for the placement of their ranks. Where two of them cross links one to one, of the same
capacities, and nothing else comes to these links, they take the same course to the femtosecond.

What else comes to the links decides. Calls that share links while in flight form a *cluster*, whose
groups fall into *islands*: parts that share no link with each other. An island is an image of
another if its groups pair off with those of the other, message by message and link by link. It is
checked on the messages themselves, so that symmetry need not be known, and is never assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.plan import Plan
from simcoll.emulator.model import shared_capacities
from simcoll.emulator.reference.messages import prepared_steps
from simcoll.emulator.steps.plan_placement import placement_of
from simcoll.topology import Topology

__all__ = ["CallCluster", "Family", "family_of"]

Node = tuple["Family", int]
"""A group of a family, by its number."""
Island = list[Node]


@dataclass(slots=True, eq=False)
class Family:
    """The plans of a call in its groups, the leaders' first.

    Attributes
    ----------
    plans
        One for each group.
    costs
        For every group a number; those with equal numbers have equal messages but for their links.
    links
        For every group the links of its messages, message by message; empty where messages are too
        many to be compared. Links that the protocol adds come after those of the topology.
    used
        The links of the topology that any group uses.
    capacities
        Rows of capacities of the topology's links: of the run, and of the plan's protocol.
    cluster
        The families whose calls have shared links with calls of this one.
    """

    plans: tuple[Plan, ...]
    costs: tuple[int, ...]
    links: tuple[Ints, ...]
    used: NDArray[np.bool_]
    capacities: Ints
    cluster: CallCluster = field(init=False)
    _shares: dict[Family, bool] = field(default_factory=dict)
    _disjoint: dict[tuple[int, ...], bool] = field(default_factory=dict)
    _distinct: dict[int, Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Form a cluster of one."""
        self.cluster = CallCluster([self])

    def shares_links(self, family: Family) -> bool:
        """Whether any of its groups shares a link with any of another family."""
        if family not in self._shares:
            self._shares[family] = bool((self.used & family.used).any())
        return self._shares[family]

    def are_disjoint(self, groups: tuple[int, ...]) -> bool:
        """Whether some groups share no link with each other."""
        if groups not in self._disjoint:
            links = np.concatenate([self.links_of(group) for group in groups])
            self._disjoint[groups] = len(np.unique(links)) == len(links)
        return self._disjoint[groups]

    def links_of(self, group: int) -> Ints:
        """The links of the topology that a group uses."""
        if group not in self._distinct:
            links = self.links[group]
            self._distinct[group] = np.unique(links[links < len(self.used)])
        return self._distinct[group]


def family_of(
    plans: Sequence[Plan], topology: Topology, open_uBps: Ints, is_small: Callable[[Plan], bool]
) -> Family:
    """The family of some plans, whose messages are compared if all plans are small."""
    capacities = np.stack([open_uBps, shared_capacities(topology, plans[0].protocol)])
    if not all(map(is_small, plans)):
        everything = np.ones(topology.nlinks, np.bool_)
        return Family(tuple(plans), tuple(range(len(plans))), (), everything, capacities)
    numbers: dict[tuple[object, ...], int] = {}
    costs, links = [], []
    for plan in plans:
        cost, crossed = _messages(plan, topology)
        costs.append(numbers.setdefault(cost, len(numbers)))
        links.append(crossed)
    used = np.zeros(topology.nlinks, np.bool_)
    for crossed in links:
        used[crossed[crossed < topology.nlinks]] = True
    return Family(tuple(plans), tuple(costs), tuple(links), used, capacities)


def _messages(plan: Plan, topology: Topology) -> tuple[tuple[object, ...], Ints]:
    """What the messages of a plan cost, and their links, message by message."""
    costs: list[object] = [plan.protocol, id(plan.schedule), plan.total_bytes]
    paths: list[Iterable[int]] = []
    for step in prepared_steps(plan, topology, None, placement_of(plan, topology.nlinks)):
        for message in step.columns:
            links = message[2]
            costs.append((*message[:2], len(links), *message[3:]))
            paths.append(links)
        for rows, ways_up in step.switched:
            costs.append((*rows, len(ways_up)))
            paths.append(ways_up)
    return tuple(costs), np.fromiter(chain.from_iterable(paths), np.int64)


class CallCluster:
    """Families whose calls have shared links while in flight."""

    def __init__(self, families: list[Family]) -> None:
        self.families = families
        self._players: dict[Family, tuple[int, ...]] = {}
        self._island: dict[Node, int] = {}

    def merge(self, cluster: CallCluster) -> None:
        """Take in the families of another cluster."""
        self.families += cluster.families
        for family in cluster.families:
            family.cluster = self
        self._players = {}

    def players(self, family: Family) -> tuple[int, ...]:
        """For every group of a family, the group that is played for it, possibly itself."""
        if not self._players:
            self._pair_off()
        return self._players[family]

    def island(self, family: Family, group: int) -> int:
        """The number of the island of a group."""
        if not self._players:
            self._pair_off()
        return self._island[family, group]

    def _pair_off(self) -> None:
        """Assign every island to one that is played for it; those of leaders are played."""
        islands = _islands(self.families)
        islands.sort(key=lambda island: all(group for _, group in island))  # the leaders' first
        played: list[Island] = []
        players = {family: list(range(len(family.plans))) for family in self.families}
        for number, island in enumerate(islands):
            self._island |= dict.fromkeys(island, number)
            image_of = None
            if all(group for _, group in island):
                image_of = next((twin for twin in played if _is_image(island, twin)), None)
            if image_of is None:
                played.append(island)
                continue
            for (family, group), (_, player) in zip(island, image_of, strict=True):
                players[family][group] = player
        self._players = {family: tuple(groups) for family, groups in players.items()}


def _islands(families: Sequence[Family]) -> list[Island]:
    """The parts of some families that share no link, each in the order of families and groups."""
    nodes = [(family, group) for family in families for group in range(len(family.plans))]
    parent = list(range(len(nodes)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    user: dict[int, int] = {}  # of every link, one
    for number, (family, group) in enumerate(nodes):
        for link in family.links_of(group).tolist():
            low, high = sorted((root(number), root(user.setdefault(link, number))))
            parent[high] = low
    islands: dict[int, Island] = {}
    for number, node in enumerate(nodes):
        islands.setdefault(root(number), []).append(node)
    return list(islands.values())


def _is_image(island: Island, twin: Island) -> bool:
    """Whether an island's groups are those of another in order, message by message, on links that
    correspond one to one and have the same capacities.
    """
    if len(island) != len(twin) or any(
        family is not counterpart or family.costs[group] != family.costs[number]
        for (family, group), (counterpart, number) in zip(island, twin, strict=True)
    ):
        return False
    crossed, twins = (
        np.concatenate([family.links[group] for family, group in side]) for side in (island, twin)
    )
    nlinks = len(island[0][0].used)
    shared = crossed < nlinks
    if not np.array_equal(shared, twins < nlinks) or not np.array_equal(
        crossed[~shared], twins[~shared]
    ):
        return False
    pairs = np.unique(crossed[shared] * nlinks + twins[shared])
    links, twin_links = pairs // nlinks, pairs % nlinks
    if len(np.unique(links)) != len(pairs) or len(np.unique(twin_links)) != len(pairs):
        return False
    return all(
        np.array_equal(row[links], row[twin_links])
        for family in dict.fromkeys(family for family, _ in island)
        for row in family.capacities
    )
