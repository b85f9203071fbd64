"""Hierarchical algorithms on two or three levels: fast links inside nodes, one rail per member
between them.

The nodes (and pods of nodes) form a grid whose last dimension is the place in the node. A
collective is a sequence of stages, each along one dimension, so that only members with the same
place, on the same rail, communicate between nodes.

With ``pieces`` the vector is cut, and piece p performs a stage while piece p - 1 performs the next.
Each stage then has a separate channel, on which the pieces are in order; a piece starts a stage as
soon as its data is available, so links inside and between nodes are busy simultaneously.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from simcoll.algorithms.compose import in_stages
from simcoll.algorithms.grid_stages import (
    PAIRWISE,
    Grid,
    all_gather_stage,
    exchange,
    reduce_scatter_stage,
    weights_of,
)
from simcoll.algorithms.registered import algorithm
from simcoll.algorithms.tree import binomial_edges
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]

PLACE = 17  # in listings

HIER = "Cho et al.: BlueConnect, MLSys 2019"


def _grid(collective: Collective, box: int | None, pod: int | None) -> Grid:
    """``(boxes, box)``, or with pods ``(pods, boxes in a pod, box)``."""
    n = collective.nranks
    if box is None:
        raise ConfigError(
            "hierarchical needs box=, the number of ranks in a node (for example box=8)"
        )
    if n % box:
        raise ConfigError(f"hierarchical needs a multiple of box={box} ranks, got {n}")
    if pod is None:
        return Grid((n // box, box))
    if pod % box or n % pod:
        raise ConfigError(f"pod={pod} must be a multiple of box={box} and divide the {n} ranks")
    return Grid((n // pod, pod // box, box))


def _direction(grid: Grid, d: int) -> int:
    """Inside a node all pairs have a direct link; between nodes neighbours suffice."""
    return PAIRWISE if d == grid.dims[-1] else 1


def _stages(
    layout: Layout, *parts: tuple[Callable[[Any], Iterator[Step]], Iterable[Any]]
) -> list[Schedule]:
    """A stage for each argument of each function."""
    return [
        Schedule("hierarchical", layout, partial(steps, argument))
        for steps, every in parts
        for argument in every
    ]


@algorithm(
    "all_reduce",
    "hierarchical",
    cost="2(box+nodes-2)a + 2(box-1)/box s b_box + 2(nodes-1)/n s b_net + (n-1)/n s g; "
    "many pieces: max(2(box-1)/box s b_box, 2(nodes-1)/n s b_net)",
    machine="boxes",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
    order="run-consistent",
    shared=in_stages,
)
def all_reduce(
    collective: Collective, *, box: int | None = None, pod: int | None = None
) -> list[Schedule]:
    """Reduce-scatter inside every node, all-reduce on every rail, all-gather inside every node.

    ``box`` is the number of consecutive ranks in a node, ``pod`` that of consecutive ranks in a pod
    of nodes.
    """
    grid = _grid(collective, box, pod)
    order, rank = grid.dims[::-1], np.arange(grid.nranks)
    layout, weights = Layout(collective, grid.nranks), weights_of(grid, order)
    vector, last = partial(layout.output, 0), len(order) - 1

    def scatter(position: int) -> Iterator[Step]:
        if position == 0:
            yield transfers(rank, layout.input(), rank, layout.output(), count=layout.chunks)
        d = order[position]
        yield from exchange(
            reduce_scatter_stage(grid, weights, d, order[:position], _direction(grid, d)),
            vector,
            op=REDUCE,
        )

    def gather(position: int) -> Iterator[Step]:
        d = order[position]
        yield from exchange(
            all_gather_stage(grid, weights, d, order[:position], _direction(grid, d)), vector
        )

    def reduce_rails(position: int) -> Iterator[Step]:
        return chain(scatter(position), gather(position))

    return _stages(
        layout, (scatter, range(last)), (reduce_rails, [last]), (gather, reversed(range(last)))
    )


@algorithm(
    "all_gather",
    "hierarchical",
    cost="(box+nodes-2)a + (n-nodes)/n s b_box + (nodes-1)/n s b_net; "
    "many pieces: max((n-nodes)/n s b_box, (nodes-1)/n s b_net)",
    machine="boxes",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
    shared=in_stages,
)
def all_gather(
    collective: Collective, *, box: int | None = None, pod: int | None = None
) -> list[Schedule]:
    """All-gather on the rails between pods and nodes, which every block crosses once, then inside
    every node.
    """
    grid = _grid(collective, box, pod)
    layout, rank = Layout(collective), np.arange(grid.nranks)

    def level(d: int) -> Iterator[Step]:
        if d == 0:
            yield transfers(rank, layout.input(), rank, layout.output(rank))
        yield from exchange(
            all_gather_stage(grid, grid.strides, d, grid.dims[d + 1 :], _direction(grid, d)),
            layout.output,
        )

    return _stages(layout, (level, grid.dims))


@algorithm(
    "reduce_scatter",
    "hierarchical",
    cost="(box+nodes-2)(a + s/n g) + (n-nodes)/n s b_box + (nodes-1)/n s b_net; "
    "many pieces: max((n-nodes)/n s b_box, (nodes-1)/n s b_net)",
    machine="boxes",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
    order="run-consistent",
    shared=in_stages,
)
def reduce_scatter(
    collective: Collective, *, box: int | None = None, pod: int | None = None
) -> list[Schedule]:
    """The reversed all-gather, first inside every node, so that the rails carry sums."""
    grid = _grid(collective, box, pod)
    rank, slots = np.arange(grid.nranks), np.arange(grid.nranks)[:, None]
    layout = Layout(collective, 1, rank)

    def level(d: int) -> Iterator[Step]:
        if d == grid.dims[-1]:
            yield transfers(rank, layout.input(slots), rank, layout.scratch_at(slots))
        moves = reduce_scatter_stage(grid, grid.strides, d, grid.dims[d + 1 :], _direction(grid, d))
        yield from exchange(moves, layout.scratch_at, op=REDUCE)
        if d == 0:
            yield transfers(rank, layout.scratch_at(rank), rank, layout.output())

    return _stages(layout, (level, reversed(grid.dims)))


def _hops(grid: Grid, root: int, pieces: int) -> list[list[tuple[Ints, int]]]:
    """Stages of hops over the nodes: the ranks that send in each, and the distance in nodes.

    A single piece travels down a binomial tree; several travel down a chain, where a node receives
    one while it sends its predecessor.
    """
    nodes, place = grid.sizes[0], grid.digit(0)
    beyond = (place - place[root]) % nodes
    if pieces > 1:
        return [[(np.flatnonzero(beyond == hop), 1)] for hop in range(nodes - 1)]
    levels = reversed(range((nodes - 1).bit_length()))
    return [
        [
            (np.flatnonzero(np.isin(beyond, binomial_edges(nodes, level)[0])), 1 << level)
            for level in levels
        ]
    ]


@algorithm(
    "broadcast",
    "hierarchical",
    cost="(2(box-1) + ceil(lg nodes))a + 2(box-1)/box s b_box + ceil(lg nodes)/box s b_net; "
    "many pieces: max(2(box-1)/box s b_box, s/box b_net)",
    machine="boxes",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
)
def broadcast(
    collective: Collective,
    *,
    box: int | None = None,
    pod: int | None = None,
    channels: int = 1,
    pieces: int = 1,
) -> Schedule:
    """Scatter the root's vector over its node (and pod), broadcast it on every rail, all-gather it
    inside every node.
    """
    grid, root = _grid(collective, box, pod), collective.root or 0
    layout, inner = Layout(collective, grid.nranks // grid.sizes[0]), grid.dims[:0:-1]
    # The outermost level does not split the vector.
    weights = (0, *weights_of(Grid(grid.sizes[1:]), [d - 1 for d in inner]))
    vector, (rank_chunk, _) = (
        partial(layout.output, 0),
        grid.chunks(weights, grid.digits(grid.dims), runs=True),
    )

    def scatter(position: int) -> Iterator[Step]:
        if position == 0:
            yield transfers(root, layout.input(), root, layout.output(), count=layout.chunks)
        holders = np.all(
            [grid.digit(d) == grid.digit(d)[root] for d in (0, *inner[position:])], axis=0
        )
        moves = reduce_scatter_stage(
            grid, weights, inner[position], (0, *inner[:position]), PAIRWISE
        )
        yield from exchange(moves, vector, ranks=np.flatnonzero(holders))

    def hop_steps(hops: list[tuple[Ints, int]]) -> Iterator[Step]:
        for senders, shift in hops:
            yield from exchange([(grid.neighbour(0, shift), rank_chunk, 1)], vector, ranks=senders)

    def gather(position: int) -> Iterator[Step]:
        d = inner[position]
        yield from exchange(
            all_gather_stage(grid, weights, d, (0, *inner[:position]), _direction(grid, d)), vector
        )

    nsplits, hops = len(inner), _hops(grid, root, pieces)
    stages = _stages(
        layout, (scatter, range(nsplits)), (hop_steps, hops), (gather, reversed(range(nsplits)))
    )
    # Hops alternate between two channels.
    lanes = [
        *range(nsplits),
        *(nsplits + hop % 2 for hop in range(len(hops))),
        *range(nsplits + 2, 2 * nsplits + 2),
    ]
    return in_stages(stages, lanes, channels=channels, pieces=pieces)


@algorithm(
    "all_to_all",
    "hierarchical",
    cost="(box+nodes-2)a + (box-1)/box s b_box + (nodes-1)/nodes s b_net; "
    "many pieces: max((box-1)/box s b_box, (nodes-1)/nodes s b_net)",
    machine="boxes",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
)
def all_to_all(
    collective: Collective,
    *,
    box: int | None = None,
    pod: int | None = None,
    channels: int = 1,
    pieces: int = 1,
) -> Schedule:
    """All-to-all level by level: in a node each rank collects the blocks for its own rail, then the
    rails exchange.

    Before a stage, slot s of rank r has the sender's digits in the finished dimensions, and the
    receiver's in the others.
    """
    grid = _grid(collective, box, pod)
    n, order = grid.nranks, grid.dims[::-1]
    rank, slot = np.arange(n)[:, None], np.arange(n)
    between = []
    for nsplit in range(1, len(order)):
        ours = np.sum([grid.digit(d) * grid.strides[d] for d in order[:nsplit]], axis=0)
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
            peer = grid.neighbour(d, shift)
            src_slots, count = grid.chunks(grid.strides, {d: grid.digit(d)[peer]}, runs=runs)
            dst_slots, _ = grid.chunks(grid.strides, {d: grid.digit(d)}, runs=runs)
            yield transfers(
                rank[:, 0],
                place(number, src_slots),
                peer,
                place(number + 1, dst_slots),
                count=count,
            )

    return in_stages(_stages(layout, (level, range(len(order)))), channels=channels, pieces=pieces)
