"""Hierarchical algorithms on two or three levels: fast links inside nodes, one rail per member between them.

The nodes (and pods of nodes) are a grid whose last dimension is the place in the node. A collective is a row of stages, each along one
dimension, so that only members with the same place, on the same rail, talk between nodes.

With ``pieces`` the vector is cut, and piece p does a stage while piece p - 1 does the next one. Every stage then has a channel of its own,
on which the pieces come in order; a piece starts a stage when its data is there, so that links inside and between nodes work at the same
time.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.algorithms.compose import in_stages
from simcoll.algorithms.grid import PAIRWISE, Grid, all_gather_stage, reduce_scatter_stage, weights_of
from simcoll.algorithms.registered import algorithm
from simcoll.algorithms.tree import binomial_edges
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from simcoll.algorithms.grid import Moves
    from simcoll.core.collective import Collective

    Ints = NDArray[np.int64]

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]

HIER = "Cho et al.: BlueConnect, MLSys 2019"


def _grid(collective: Collective, box: int | None, pod: int | None) -> Grid:
    """``(boxes, box)``, or with pods ``(pods, boxes in a pod, box)``."""
    n = collective.nranks
    if box is None:
        raise ConfigError("hierarchical needs box=, the number of ranks in a node (for example box=8)")
    if n % box:
        raise ConfigError(f"hierarchical needs a multiple of box={box} ranks, got {n}")
    if pod is None:
        return Grid((n // box, box))
    if pod % box or n % pod:
        raise ConfigError(f"pod={pod} must be a multiple of box={box} and divide the {n} ranks")
    return Grid((n // pod, pod // box, box))


def _way(grid: Grid, d: int) -> int:
    """Inside a node all pairs have a direct link; between nodes neighbours suffice."""
    return PAIRWISE if d == grid.dims[-1] else 1


def _stage(layout: Layout, steps: Callable[[int], Iterator[Step]], which: int) -> Schedule:
    return Schedule("hierarchical", layout, partial(steps, which))


@algorithm(
    "all_reduce",
    "hierarchical",
    cost="2(g-1)/g s b_box + 2(m-1)/m s/g b_net, m nodes of g; the larger with pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
    order="run-consistent",
    shared=in_stages,
)
def all_reduce(collective: Collective, *, box: int | None = None, pod: int | None = None) -> list[Schedule]:
    """Reduce-scatter inside every node, all-reduce on every rail, all-gather inside every node.

    ``box`` is the number of consecutive ranks in a node, ``pod`` that of consecutive ranks in a pod of nodes.
    """
    grid = _grid(collective, box, pod)
    n, order = grid.nranks, grid.dims[::-1]
    layout, rank, weights = Layout(collective, n), np.arange(n), weights_of(grid, order)

    def moved(moves: Moves, op: int) -> Iterator[Step]:
        for peer, chunk, count in moves:
            yield transfers(rank, layout.output(0, chunk), peer, layout.output(0, chunk), count=count, op=op)

    def scattered(position: int) -> Iterator[Step]:
        if position == 0:
            yield transfers(rank, layout.input(), rank, layout.output(), count=n)
        d = order[position]
        yield from moved(reduce_scatter_stage(grid, weights, d, order[:position], _way(grid, d)), REDUCE)

    def gathered(position: int) -> Iterator[Step]:
        d = order[position]
        yield from moved(all_gather_stage(grid, weights, d, order[:position], _way(grid, d)), COPY)

    inner, outermost = range(len(order) - 1), len(order) - 1
    return [
        *(_stage(layout, scattered, position) for position in inner),
        _stage(layout, lambda position: chain(scattered(position), gathered(position)), outermost),
        *(_stage(layout, gathered, position) for position in reversed(inner)),
    ]


@algorithm(
    "all_gather",
    "hierarchical",
    cost="(n-m)/n s b_box + (m-1)/n s b_net, m nodes; the larger with pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
    shared=in_stages,
)
def all_gather(collective: Collective, *, box: int | None = None, pod: int | None = None) -> list[Schedule]:
    """All-gather on the rails between pods and nodes, where every block crosses once, then inside every node."""
    grid = _grid(collective, box, pod)
    layout, rank = Layout(collective), np.arange(grid.nranks)

    def level(d: int) -> Iterator[Step]:
        if d == 0:
            yield transfers(rank, layout.input(), rank, layout.output(rank))
        for peer, slot, count in all_gather_stage(grid, grid.strides, d, grid.dims[d + 1 :], _way(grid, d)):
            yield transfers(rank, layout.output(slot), peer, layout.output(slot), count=count)

    return [_stage(layout, level, d) for d in grid.dims]


@algorithm(
    "reduce_scatter",
    "hierarchical",
    cost="(n-m)/n s b_box + (m-1)/n s b_net, m nodes; the larger with pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
    order="run-consistent",
    shared=in_stages,
)
def reduce_scatter(collective: Collective, *, box: int | None = None, pod: int | None = None) -> list[Schedule]:
    """The all-gather backwards, first inside every node, so that the rails carry sums."""
    grid = _grid(collective, box, pod)
    n = grid.nranks
    layout, rank, slots = Layout(collective, 1, np.arange(n)), np.arange(n), np.arange(n)[:, None]

    def level(d: int) -> Iterator[Step]:
        if d == grid.dims[-1]:
            yield transfers(rank, layout.input(slots), rank, layout.scratch_at(slots))
        for peer, slot, count in reduce_scatter_stage(grid, grid.strides, d, grid.dims[d + 1 :], _way(grid, d)):
            yield transfers(rank, layout.scratch_at(slot), peer, layout.scratch_at(slot), count=count, op=REDUCE)
        if d == 0:
            yield transfers(rank, layout.scratch_at(rank), rank, layout.output())

    return [_stage(layout, level, d) for d in reversed(grid.dims)]


@algorithm(
    "broadcast",
    "hierarchical",
    cost="2(g-1)/g s b_box + ceil(lg m) s/g b_net, m nodes of g; max(2(g-1)/g s b_box, s/g b_net) with many pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
)
def broadcast(
    collective: Collective, *, box: int | None = None, pod: int | None = None, channels: int = 1, pieces: int = 1
) -> Schedule:
    """The root's vector is scattered over its node (and pod), broadcast on every rail, then gathered inside every node.

    Over the outermost level a single piece goes down a binomial tree; several go down a chain, whose hops have two channels alternately,
    so that a rank receives a piece while it passes on the one before.
    """
    grid = _grid(collective, box, pod)
    outer, order, root = grid.sizes[0], grid.dims[:0:-1], collective.root or 0
    parts = grid.nranks // outer
    # The outermost level does not split the vector.
    weights = (0, *weights_of(Grid(grid.sizes[1:]), [d - 1 for d in order]))
    layout, rank = Layout(collective, parts), np.arange(grid.nranks)
    turn = (grid.digit(0) - grid.digit(0)[root]) % outer
    own, _ = grid.chunks(weights, grid.digits(grid.dims), runs=True)

    def copies(who: Ints, peer: Ints, chunks: Ints, count: int) -> Step:
        chunk = layout.output(0, chunks[:, who])
        return transfers(who, chunk, peer[who], chunk, count=count)

    def scattered(position: int) -> Iterator[Step]:
        d, done = order[position], (0, *order[:position])
        like_root = [grid.digit(e) == grid.digit(e)[root] for e in (0, *order[position:])]
        senders = np.flatnonzero(np.all(like_root, axis=0))
        if position == 0:
            yield transfers(root, layout.input(), root, layout.output(), count=parts)
        for peer, chunks, count in reduce_scatter_stage(grid, weights, d, done, PAIRWISE):
            yield copies(senders, peer, chunks, count)

    def gathered(position: int) -> Iterator[Step]:
        d, split = order[position], (0, *order[:position])
        for peer, chunks, count in all_gather_stage(grid, weights, d, split, _way(grid, d)):
            yield copies(rank, peer, chunks, count)

    def down_a_tree(levels: int) -> Iterator[Step]:
        for level in reversed(range(levels)):
            yield copies(
                np.flatnonzero(np.isin(turn, binomial_edges(outer, level)[0])), grid.moved(0, 1 << level), own, 1
            )

    def along_a_chain(hop: int) -> Iterator[Step]:
        yield copies(np.flatnonzero(turn == hop), grid.moved(0, 1), own, 1)

    if pieces == 1:
        hops = [_stage(layout, down_a_tree, (outer - 1).bit_length())]
    else:
        hops = [_stage(layout, along_a_chain, hop) for hop in range(outer - 1)]
    inner, first = range(len(order)), len(order)
    stages = [
        *(_stage(layout, scattered, position) for position in inner),
        *hops,
        *(_stage(layout, gathered, position) for position in reversed(inner)),
    ]
    lanes = [*inner, *(first + hop % 2 for hop in range(len(hops))), *(first + 2 + position for position in inner)]
    return in_stages(stages, lanes, channels=channels, pieces=pieces)


@algorithm(
    "all_to_all",
    "hierarchical",
    cost="(g-1)/g s b_box + (m-1)/m s b_net, m nodes of g; the larger with pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
)
def all_to_all(
    collective: Collective, *, box: int | None = None, pod: int | None = None, channels: int = 1, pieces: int = 1
) -> Schedule:
    """All-to-all level by level: in a node each rank collects the blocks for its own rail, then the rails exchange.

    Before a stage slot s of rank r has, in the dimensions done, the digits of the sender, in the others those of the receiver.
    """
    grid = _grid(collective, box, pod)
    n, order = grid.nranks, grid.dims[::-1]
    rank, slot = np.arange(n)[:, None], np.arange(n)
    between = []
    for done in range(1, len(order)):
        ours = np.sum([grid.digit(d) * grid.strides[d] for d in order[:done]], axis=0)
        theirs = slot - ours
        between.append((ours[slot] + theirs[rank]) * n + ours[rank] + theirs[slot])
    layout = Layout(collective, 1, np.hstack(between))
    runs = channels * pieces == 1

    def place(stage: int, slots: Ints) -> Any:
        if stage in {0, len(order)}:
            return layout.output(slots) if stage else layout.input(slots)
        return layout.scratch_at((stage - 1) * n + slots)

    def level(number: int) -> Iterator[Step]:
        d = order[number]
        for shift in range(grid.sizes[d]):
            peer = grid.moved(d, shift)
            given, count = grid.chunks(grid.strides, {d: grid.digit(d)[peer]}, runs=runs)
            taken, _ = grid.chunks(grid.strides, {d: grid.digit(d)}, runs=runs)
            yield transfers(rank[:, 0], place(number, given), peer, place(number + 1, taken), count=count)

    return in_stages([_stage(layout, level, number) for number in range(len(order))], channels=channels, pieces=pieces)
