"""Schedules from trees on a given topology: every part of a rank's data goes down a tree, or is summed up along one.

Shared by :mod:`simcoll.algorithms.packed` and :mod:`simcoll.algorithms.bfb`, which find the trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from simcoll.errors import ConfigError
from simcoll.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from simcoll.collective import Collective
    from simcoll.topology import Topology

    Ints = NDArray[np.int64]

__all__ = ["Forest", "all_gather", "all_reduce", "reduce_scatter", "topology_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """The links of the trees as parallel arrays, one entry for every part of a root's data and link of its tree.

    Attributes
    ----------
    src, dst
        Ranks, away from the root (toward it in a forest that was turned round).
    root, part
        Whose data, and which of its ``per_root`` parts.
    level
        Step in which the first piece passes the link.
    landing
        In a forest that was turned round: number of the link among those with the same destination, root and part.
    """

    src: Ints
    dst: Ints
    root: Ints
    part: Ints
    level: Ints
    landing: Ints
    per_root: int

    @staticmethod
    def of(rows: Sequence[tuple[int, int, int, int, int]], per_root: int) -> Forest:
        """From rows of (source, destination, root, part, level)."""
        src, dst, root, part, level = np.array(rows, np.int64).reshape(-1, 5).T
        return Forest(src, dst, root, part, level, np.zeros_like(src), per_root)

    @property
    def depth(self) -> int:
        """Steps that one piece takes."""
        return int(self.level.max(initial=-1)) + 1

    def turned(self) -> Forest:
        """The same trees from the leaves to the root."""
        level = self.depth - 1 - self.level
        order = np.lexsort((self.dst, level, self.part, self.root, self.src))
        key = np.stack([self.src, self.root, self.part])[:, order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
        place = np.arange(len(order))
        landing = np.zeros_like(self.src)
        landing[order] = place - np.maximum.accumulate(np.where(new, place, 0))
        return Forest(self.dst, self.src, self.root, self.part, level, landing, self.per_root)

    def pipeline(self, pieces: int, scale: int) -> Iterator[tuple[Ints, Ints]]:
        """For each step: the entries whose links are passed, and the first of the ``scale`` chunks of the root's data that each moves.

        All transfers have one size: then fair sharing of the links ends a step as soon as its most loaded link allows.
        """
        for time in range(self.depth + pieces - 1 if len(self.src) else 0):
            piece = time - self.level
            here = np.flatnonzero((piece >= 0) & (piece < pieces))
            yield here, (self.part[here] * pieces + piece[here]) * scale


def topology_of(collective: Collective, topology: Topology | None, name: str) -> Topology:
    """The topology that an algorithm is made for, checked.

    Raises
    ------
    ConfigError
        When there is none, or it has another number of ranks.
    """
    if topology is None or not hasattr(topology, "rank_nodes"):
        raise ConfigError(f"{name} is made for one topology: give topology=, for example load_topology('dgx-h100')")
    if topology.nranks != collective.nranks:
        raise ConfigError(
            f"{name}: topology {topology.name!r} has {topology.nranks} ranks, {collective.kind} {collective.nranks}"
        )
    return topology


def all_gather(collective: Collective, name: str, topology: Topology, forest: Forest, pieces: int) -> Schedule:
    """Every part of a rank's block goes down its tree, in pieces that follow each other."""
    layout, rank = Layout(collective, forest.per_root * pieces), np.arange(collective.nranks)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(rank), count=layout.chunks)
        for here, start in forest.pipeline(pieces, 1):
            chunk = layout.output(forest.root[here], start)
            yield transfers(forest.src[here], chunk, forest.dst[here], chunk, op=COPY)

    return Schedule(name, layout, steps, 1, (("topology", topology.name), ("pieces", pieces)))


def reduce_scatter(collective: Collective, name: str, topology: Topology, forest: Forest, pieces: int) -> Schedule:
    """Every part of a rank's block is summed up along a turned forest: what arrives lands in scratch, and is added there."""
    n = collective.nranks
    zones = int(forest.landing.max(initial=-1)) + 1
    layout, rank = Layout(collective, forest.per_root * pieces, np.tile(np.arange(n), 1 + zones)), np.arange(n)

    def steps() -> Iterator[Step]:
        slot = np.arange(n)[:, None]
        home = np.where(slot == rank, layout.output(), layout.scratch_at(slot))
        yield transfers(rank, layout.input(slot), rank, home, count=layout.chunks)
        for here, start in forest.pipeline(pieces, 1):
            src, dst, root, landing = (column[here] for column in (forest.src, forest.dst, forest.root, forest.landing))
            landed = layout.scratch_at((1 + landing) * n + root, start)
            yield transfers(src, layout.scratch_at(root, start), dst, landed)
            total = np.where(dst == root, layout.output(0, start), layout.scratch_at(root, start))
            yield from _added(dst, landed, total, landing, 1)

    return Schedule(name, layout, steps, 1, (("topology", topology.name), ("pieces", pieces)))


def all_reduce(
    collective: Collective, name: str, topology: Topology, inward: Forest, outward: Forest, pieces: int
) -> Schedule:
    """Reduce-scatter along a turned forest, then all-gather; a rank owns an n-th of the vector."""
    n, share = collective.nranks, lcm(inward.per_root, outward.per_root)
    zones = int(inward.landing.max(initial=-1)) + 1
    layout, rank = Layout(collective, n * share * pieces, np.zeros(zones, np.int64)), np.arange(n)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(), count=layout.chunks)
        scale = share // inward.per_root
        for here, start in inward.pipeline(pieces, scale):
            src, dst, landing = inward.src[here], inward.dst[here], inward.landing[here]
            chunk = inward.root[here] * share * pieces + start
            landed = layout.scratch_at(landing, chunk)
            yield transfers(src, layout.output(0, chunk), dst, landed, count=scale)
            yield from _added(dst, landed, layout.output(0, chunk), landing, scale)
        scale = share // outward.per_root
        for here, start in outward.pipeline(pieces, scale):
            chunk = layout.output(0, outward.root[here] * share * pieces + start)
            yield transfers(outward.src[here], chunk, outward.dst[here], chunk, count=scale)

    return Schedule(name, layout, steps, 1, (("topology", topology.name), ("pieces", pieces)))


def _added(rank: Ints, landed: Ints, total: Ints, landing: Ints, count: int) -> Iterator[Step]:
    """Add what landed, one landing zone after the other, so that the order is known."""
    for zone in range(int(landing.max(initial=-1)) + 1):
        here = landing == zone
        if here.any():
            yield transfers(rank[here], landed[here], rank[here], total[here], count=count, op=REDUCE)
