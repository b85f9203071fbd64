"""Double binary trees: each carries half of the data, and only the root has children in both.

One tree is a binary tree by lowest set bits; the other is its mirror image, or the same tree
shifted by one rank. The trees are NCCL's (``src/graph/trees.cc``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from simcoll.algorithms import compose
from simcoll.algorithms.grid_stages import nodes_of
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, joined, transfers

Tree = tuple[list[int], list[int]]  # parent of every rank (-1: the root), colour of the edge to it

__all__ = ["all_reduce", "binary_tree", "broadcast", "reduce", "tree_orders", "tree_pair"]

PLACE = 5  # in listings

SANDERS = (
    "Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and "
    "scan, ParCo 35 (2009)"
)


def binary_tree(nranks: int) -> list[int]:
    """Parent of every rank (-1: the root): one place up at the lowest set bit, or without that bit.

    >>> binary_tree(8)
    [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    parents = [-1]
    for rank in range(1, nranks):
        low = rank & -rank
        up = (rank ^ low) | (low << 1)
        parents.append(up if up < nranks else rank ^ low)
    return parents


def tree_pair(nranks: int) -> tuple[list[int], list[int]]:
    """Parents in the two trees of a pair.

    For an even number of ranks the second tree mirrors the first; for an odd number it is shifted
    by one rank.

    >>> tree_pair(5)
    ([-1, 2, 4, 2, 0], [1, -1, 3, 0, 3])
    """
    parents = binary_tree(nranks)
    last = nranks - 1
    if nranks % 2 == 0:
        return parents, [last - up if up >= 0 else -1 for up in reversed(parents)]
    moved = [(up + 1) % nranks if up >= 0 else -1 for up in parents]
    return parents, [moved[(rank - 1) % nranks] for rank in range(nranks)]


def tree_orders(nranks: int, box: int, pairs: int) -> list[Ints]:
    """Numberings of the ranks for pairs of trees: member c of every node leads in pair c, and the
    second tree mirrors the nodes.

    An odd number of nodes is shifted by one instead, so that only one node has children in both
    trees.

    >>> [order.tolist() for order in tree_orders(6, 2, 1)]
    [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 0, 1]]
    """
    node, member = np.divmod(np.arange(nranks, dtype=np.int64), box)
    nodes = nranks // box
    mirror = (node + 1) % nodes if nodes % 2 else nodes - 1 - node
    return [home * box + (member + lead) % box for lead in range(pairs) for home in (node, mirror)]


def _colours(pair: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    """Colour 0 or 1 of the edge above every rank in both trees, for even and odd steps.

    The two edges below a rank (in one tree, since at most one of its trees gives it two children)
    have different colours, as have the two above it (one in each tree), so that a rank communicates
    with one child and one parent per step. Such a colouring exists, since the two conditions
    alternate along every cycle (Sanders, Speck, Träff).
    """
    edges = [
        (tree, rank)
        for tree, parents in enumerate(pair)
        for rank, up in enumerate(parents)
        if up >= 0
    ]
    differ: dict[tuple[int, int], list[tuple[int, int]]] = {edge: [] for edge in edges}
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    for tree, rank in edges:
        for end in (("above", rank), ("below", pair[tree][rank])):
            neighbour = ends.setdefault(end, (tree, rank))
            if neighbour != (tree, rank):
                differ[neighbour].append((tree, rank))
                differ[tree, rank].append(neighbour)
    colours = ([0] * len(pair[0]), [0] * len(pair[1]))
    coloured_edges: set[tuple[int, int]] = set()
    for start in differ:
        waiting = [(start, start[0])]
        while waiting:
            edge, colour = waiting.pop()
            if edge not in coloured_edges:
                coloured_edges.add(edge)
                colours[edge[0]][edge[1]] = colour
                waiting.extend((neighbour, 1 - colour) for neighbour in differ[edge])
    return colours


class UpwardEdges(NamedTuple):
    """Child, parent and time of every edge on the way up, and the number of steps between two
    pieces.
    """

    child: Ints
    parent: Ints
    time: Ints
    period: int


def _edges(parents: list[int], colours: list[int]) -> UpwardEdges:
    """The edges of a tree on the way up.

    An edge fires after all edges below it, in a step of its colour; if no rank has two children,
    colours do not matter.
    """
    children: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(child)
    period = 2 if any(len(below) > 1 for below in children) else 1
    order = [parents.index(-1)]
    for rank in order:
        order.extend(children[rank])
    time = [0] * len(parents)
    ready = [0] * len(parents)
    for rank in reversed(order):
        for child in children[rank]:
            time[child] = ready[child] + (colours[child] - ready[child]) % period
            ready[rank] = max(ready[rank], time[child] + 1)
    below = np.array(order[1:], np.int64)
    parent_of, time_of = np.array(parents, np.int64), np.array(time, np.int64)
    return UpwardEdges(below, parent_of[below], time_of[below], period)


def _with_boxes(parents: list[int], colours: list[int], box: int) -> Tree:
    """A tree over nodes with a chain inside each, whose first member communicates with the parent
    node.

    The first two members of the chain have a child node each, so that no rank has more than two
    children.
    """
    ups = [rank - 1 for rank in range(len(parents) * box)]
    shades = [1] * len(ups)
    boxes_below = [0] * len(parents)
    for home, up in enumerate(parents):
        ups[home * box] = -1
        if up >= 0:
            member = up * box + min(boxes_below[up], box - 1)
            boxes_below[up] += 1
            ups[home * box], shades[home * box] = member, colours[home]
            if member % box < box - 1:
                shades[member + 1] = 1 - colours[home]
    return ups, shades


def _behind(root: int, parents: list[int]) -> list[int]:
    """A tree of the other ranks, in rank order after the root and attached below it."""
    n = len(parents) + 1
    result = [-1] * n
    for place, up in enumerate(parents):
        result[(root + 1 + place) % n] = root if up < 0 else (root + 1 + up) % n
    return result


class _Way(NamedTuple):
    """The edges of a tree in one direction: the step of each edge's first piece, and the steps
    between two pieces.
    """

    src: Ints
    dst: Ints
    time: Ints
    op: int
    period: int


def _ways(tree: Tree, *, up: bool, down: bool) -> list[_Way]:
    """The edges on the way up, down, or both."""
    edges = _edges(*tree)
    child, parent, time = edges.child, edges.parent, edges.time
    top = int(time.max(initial=0))
    top += top % 2  # so that colours denote the same steps in both trees on the way down
    ways = []
    if up:
        ways.append(_Way(child, parent, time, REDUCE, edges.period))
    if down:
        start = top + 1 if up else 0
        ways.append(_Way(parent, child, top - time + start, COPY, edges.period))
    return ways


def _schedule(
    collective: Collective, trees: Iterable[Tree], pieces: int, *, up: bool, down: bool
) -> Schedule:
    """Two trees with half of the vector each, on one channel, whose steps keep them
    synchronised.
    """
    layout, root = Layout(collective, 2 * pieces), collective.root or 0
    rank = np.arange(collective.nranks) if up else np.array([root])

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(), count=2 * pieces)
        ways = [
            (half * pieces, edges)
            for half, tree in enumerate(trees)
            for edges in _ways(tree, up=up, down=down)
        ]
        last = max(
            int(edges.time.max(initial=-1)) + (pieces - 1) * edges.period for _, edges in ways
        )
        for time in range(last + 1):
            parts = []
            for start, edges in ways:
                piece, phase = np.divmod(time - edges.time, edges.period)
                live = (phase == 0) & (piece >= 0) & (piece < pieces)
                chunk = layout.output(0, start + piece[live])
                parts.append(transfers(edges.src[live], chunk, edges.dst[live], chunk, op=edges.op))
            yield joined(parts)

    return Schedule("double_tree", layout, steps)


@algorithm(
    "all_reduce",
    "double_tree",
    cost="at most (4 ceil(lg n) + 2)(a + s/2 b) + ceil(lg n) s g; many pieces: 2 s b + s g",
    source=SANDERS,
    pattern="tree",
    order="run-consistent",
)
def all_reduce(
    collective: Collective, *, channels: int = 1, pieces: int = 4, box: int | None = None
) -> Schedule:
    """Reduce up and broadcast down two binary trees at once, each with half of the vector, in
    ``pieces``.

    With ``box`` the trees span boxes of that many consecutive ranks; the ranks of a box form a
    chain. ``channels`` counts pairs of trees, whose chains start at different members.
    """
    nodes, size = nodes_of(collective.nranks, box or 1)
    pair = tree_pair(nodes)
    trees = [_with_boxes(*tree, size) for tree in zip(pair, _colours(pair), strict=True)]
    schedule = _schedule(collective, trees, pieces, up=True, down=True)
    return compose.channels(
        schedule, tree_orders(collective.nranks, size, channels)[::2], by_rank=True
    )


def _half_trees(collective: Collective, channels: int, pieces: int, *, up: bool) -> Schedule:
    """Both trees span the other ranks and are attached below the root, which feeds (or drains) them
    alternately.
    """
    root, children = collective.root or 0, collective.nranks - 1
    parents, mirror_parents = tree_pair(children) if children else ([], [])
    pair = _behind(root, parents), _behind(root, mirror_parents)
    trees = list(zip(pair, _colours(pair), strict=True))
    schedule = _schedule(collective, trees, pieces, up=up, down=not up)
    return compose.in_channels(schedule, channels=channels)


@algorithm(
    "broadcast",
    "double_tree",
    cost="at most (2 ceil(lg n) + 1)(a + s/2 b); many pieces: s b",
    source=SANDERS,
    pattern="tree",
)
def broadcast(collective: Collective, *, channels: int = 1, pieces: int = 4) -> Schedule:
    """The root sends half of the vector, in ``pieces``, down each of two trees of the other
    ranks.
    """
    return _half_trees(collective, channels, pieces, up=False)


@algorithm(
    "reduce",
    "double_tree",
    cost="at most (2 ceil(lg n) + 1)(a + s/2 (b + g)); many pieces: s (b + g)",
    source=SANDERS,
    pattern="tree",
    order="run-consistent",
)
def reduce(collective: Collective, *, channels: int = 1, pieces: int = 4) -> Schedule:
    """The reversed broadcast: every rank adds its children's data and passes the sum up."""
    return _half_trees(collective, channels, pieces, up=True)
