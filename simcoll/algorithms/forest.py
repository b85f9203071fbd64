"""Schedules from trees on a topology: every part of a rank's data travels down a tree, or up it as
a sum.

Shared by :mod:`simcoll.algorithms.packed` and :mod:`simcoll.algorithms.bfb`, which find the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.collective import Collective
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, joined, transfers
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.topology import Topology


__all__ = ["Forest", "all_gather", "all_reduce", "reduce_scatter", "topology_of"]


class Crossings(NamedTuple):
    """The forest entries whose links are used in a step; ``piece`` counts all pieces of a root's
    data.
    """

    src: Ints
    dst: Ints
    root: Ints
    piece: Ints
    landing: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Links of the trees as parallel arrays, with an entry for each part of a root's data and each
    link of its tree.

    Large topologies have millions of entries, so all columns are int32; :meth:`crossings` converts
    them to int64.

    Attributes
    ----------
    src, dst
        Ranks, away from the root (towards it in a reversed forest).
    root, part
        The root, and the part among its ``shares[root]`` parts.
    level
        Step in which the first piece crosses the link.
    landing
        In a reversed forest, number of the link among those that bring the same part to the same
        rank in the same step.
    shares
        Number of parts of every root; all parts have one size.
    """

    src: Shorts
    dst: Shorts
    root: Shorts
    part: Shorts
    level: Shorts
    landing: Shorts
    shares: tuple[int, ...]

    @staticmethod
    def of(
        rows: Sequence[tuple[int, int, int, int, int]] | Shorts, shares: Sequence[int]
    ) -> Forest:
        """From rows of (source, destination, root, part, level)."""
        columns = np.ascontiguousarray(np.asarray(rows, np.int32).reshape(-1, 5).T)
        return Forest(
            src=columns[0],
            dst=columns[1],
            root=columns[2],
            part=columns[3],
            level=columns[4],
            landing=np.zeros_like(columns[0]),
            shares=tuple(shares),
        )

    @property
    def depth(self) -> int:
        """Number of steps that one piece takes."""
        return int(self.level.max(initial=-1)) + 1

    @property
    def zones(self) -> int:
        """Number of places that a part needs on a rank, besides its own."""
        return int(self.landing.max(initial=0))

    def reversal(self) -> Forest:
        """The same trees from the leaves to the root."""
        level = self.depth - 1 - self.level
        key = np.stack([self.src, self.root, self.part, level])
        order = np.lexsort((self.dst, *key))
        new = np.ones(len(order), np.bool_)
        new[1:] = np.any([np.diff(column[order]) != 0 for column in key], axis=0)
        place = np.arange(len(order))
        landing = np.zeros_like(self.src)
        landing[order] = place - np.maximum.accumulate(np.where(new, place, 0))
        return Forest(self.dst, self.src, self.root, self.part, level, landing, self.shares)

    def levels(self) -> list[Shorts]:
        """The entries of every level, in their order."""
        # 16-bit numbers use numpy's radix sort.
        level = self.level.astype(np.uint16) if self.depth <= 2**16 else self.level
        order = np.argsort(level, kind="stable").astype(np.int32)
        return np.split(order, np.cumsum(np.bincount(self.level, minlength=1))[:-1])

    def crossings(self, levels: list[Shorts], time: int, pieces: int) -> Crossings:
        """The links that pieces cross in a step; ``levels`` are those of :meth:`levels`.

        All transfers have one size, so that fair sharing of the links ends a step as soon as its
        most loaded link allows.
        """
        active = levels[max(time - pieces + 1, 0) : max(time + 1, 0)]
        entry = np.concatenate(active).astype(np.int64) if active else np.zeros(0, np.int64)
        if len(active) > 1:
            entry.sort()

        def column(values: Shorts) -> Ints:
            return values.take(entry).astype(np.int64)

        return Crossings(
            src=column(self.src),
            dst=column(self.dst),
            root=column(self.root),
            piece=column(self.part) * pieces + time - column(self.level),
            landing=column(self.landing),
        )


def topology_of(collective: Collective, topology: Topology | None, name: str) -> Topology:
    """The topology that an algorithm is built for, checked.

    Raises
    ------
    ConfigError
        When there is none, or its number of ranks differs.
    """
    if topology is None:
        raise ConfigError(
            f"{name} is made for one topology: give topology=, for example "
            "load_topology('dgx-h100') (command line: --topology dgx-h100)"
        )
    if topology.nranks != collective.nranks:
        raise ConfigError(
            f"{name}: topology {topology.name!r} has {topology.nranks} ranks, {collective.kind} "
            f"{collective.nranks}"
        )
    return topology


def all_gather(
    collective: Collective, name: str, topology: Topology, forest: Forest, pieces: int
) -> Schedule:
    """Every part of a rank's block travels down its tree, in pieces that follow one another."""
    layout, rank = Layout(collective, forest.shares[0] * pieces), np.arange(collective.nranks)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(rank), count=layout.chunks)
        levels = forest.levels()
        for time in range(forest.depth + pieces - 1):
            links = forest.crossings(levels, time, pieces)
            chunk = layout.output(links.root, links.piece)
            yield transfers(links.src, chunk, links.dst, chunk, op=COPY)

    return _schedule(name, layout, steps, topology, pieces)


def reduce_scatter(
    collective: Collective, name: str, topology: Topology, forest: Forest, pieces: int
) -> Schedule:
    """Every part of a rank's block is summed along a reversed forest."""
    n = collective.nranks
    scratch = np.tile(np.arange(n), 1 + forest.zones)
    layout, rank = Layout(collective, forest.shares[0] * pieces, scratch), np.arange(n)

    def steps() -> Iterator[Step]:
        slot = np.arange(n)[:, None]
        home = np.where(slot == rank, layout.output(), layout.scratch_at(slot))
        yield transfers(rank, layout.input(slot), rank, home, count=layout.chunks)
        levels = forest.levels()
        for time in range(forest.depth + pieces - 1):
            links = forest.crossings(levels, time, pieces)
            home = layout.scratch_at(links.root, links.piece)
            total = np.where(links.dst == links.root, layout.output(0, links.piece), home)
            yield from _pass_sums(layout, links, home, total, n + links.root, links.piece)

    return _schedule(name, layout, steps, topology, pieces)


def all_reduce(
    collective: Collective,
    name: str,
    topology: Topology,
    inward: Forest,
    outward: Forest,
    pieces: int,
) -> Schedule:
    """Each part is summed up a reversed forest and sent back down; meanwhile the next pieces are
    summed.
    """
    start_part = np.cumsum((0, *outward.shares))
    layout = Layout(collective, int(start_part[-1]) * pieces, np.zeros(inward.zones, np.int64))
    rank = np.arange(collective.nranks)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(), count=layout.chunks)
        inward_levels, outward_levels = inward.levels(), outward.levels()
        for time in range(inward.depth + outward.depth + pieces - 1 if len(outward.src) else 0):
            links = outward.crossings(outward_levels, time - inward.depth, pieces)
            chunk = layout.output(0, start_part[links.root] * pieces + links.piece)
            down = transfers(links.src, chunk, links.dst, chunk)
            links = inward.crossings(inward_levels, time, pieces)
            start = start_part[links.root] * pieces + links.piece
            chunk = layout.output(0, start)
            up, *added = _pass_sums(layout, links, chunk, chunk, 0, start)
            yield joined([up, down])
            yield from added

    return _schedule(name, layout, steps, topology, pieces)


def _pass_sums(
    layout: Layout, links: Crossings, home: Ints, total: Ints, zone: Ints | int, start: Ints
) -> Iterator[Step]:
    """Pass sums on.

    The first arrival for a part is added at once; others are stored beside it and added in a fixed
    order afterwards.
    """
    src, dst, landing = links.src, links.dst, links.landing
    slots = layout.collective.nranks if np.ndim(zone) else 1
    landed = layout.scratch_at((landing - 1) * slots + zone, start)
    yield transfers(
        src, home, dst, np.where(landing, landed, total), op=np.where(landing, COPY, REDUCE)
    )
    for number in range(1, int(landing.max(initial=0)) + 1):
        row = landing == number
        yield transfers(dst[row], landed[row], dst[row], total[row], op=REDUCE)


def _schedule(
    name: str, layout: Layout, steps: Callable[[], Iterator[Step]], topology: Topology, pieces: int
) -> Schedule:
    return Schedule(name, layout, steps, 1, (("topology", topology.name), ("pieces", pieces)))
