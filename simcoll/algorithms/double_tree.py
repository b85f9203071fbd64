"""Double binary trees: two trees, each with half of the data, in which no rank but the root has children in both.

The tree of one half is the textbook's binary tree by lowest set bits; the other is its mirror image, or the same moved by one rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.errors import ConfigError
from simcoll.schedule import COPY, REDUCE, Layout, Schedule, Step, joined, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from simcoll.collective import Collective

    Ints = NDArray[np.int64]

__all__ = ["all_reduce", "binary_tree", "broadcast", "reduce", "tree_pair"]


def binary_tree(nranks: int) -> list[int]:
    """Parent of every rank (-1: the root): one place up at the lowest set bit, or back to the rank without that bit.

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
    """Parents in the two trees of a pair: for an even number of ranks the second is the first's mirror image, else it is moved by one.

    >>> tree_pair(5)
    ([-1, 2, 4, 2, 0], [1, -1, 3, 0, 3])
    """
    first = binary_tree(nranks)
    last = nranks - 1
    if nranks % 2 == 0:
        return first, [last - up if up >= 0 else -1 for up in reversed(first)]
    moved = [(up + 1) % nranks if up >= 0 else -1 for up in first]
    return first, [moved[(rank - 1) % nranks] for rank in range(nranks)]


def _edges(parents: list[int]) -> tuple[Ints, Ints, Ints, int]:
    """Child, parent and time of every edge on the way up, and the number of steps between two pieces.

    A parent hears from one child a step: of its c children the i-th at steps i mod the largest c. An edge fires when all edges below have.
    """
    children: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(child)
    period = max(map(len, children)) or 1
    root = parents.index(-1)
    order = [root]
    for rank in order:
        order.extend(children[rank])
    time, ready = [0] * len(parents), [0] * len(parents)
    for rank in reversed(order):
        for turn, child in enumerate(children[rank]):
            time[child] = ready[child] + (turn - ready[child]) % period
            ready[rank] = max(ready[rank], time[child] + 1)
    child = np.array(order[1:], np.int64)
    return child, np.array(parents, np.int64)[child], np.array(time, np.int64)[child], period


def _with_boxes(parents: list[int], box: int, lead: int) -> list[int]:
    """A tree over boxes, with the members of a box as a chain behind the one that talks to other boxes."""
    result = []
    for rank in range(len(parents) * box):
        home, place = rank - rank % box, (rank - lead) % box
        up = parents[rank // box]
        chained = home + (rank - home - 1) % box
        result.append(chained if place else -1 if up < 0 else up * box + lead % box)
    return result


def _behind(root: int, parents: list[int]) -> list[int]:
    """A tree of the other ranks in rank order from the root on, hung below the root."""
    n = len(parents) + 1
    result = [-1] * n
    for place, up in enumerate(parents):
        result[(root + 1 + place) % n] = root if up < 0 else (root + 1 + up) % n
    return result


def _flows(parents: list[int], pieces: int, *, up: bool, down: bool) -> Iterator[tuple[Ints, Ints, Ints, int]]:
    """``(src, dst, piece, op)`` of every step: pieces climb and descend the tree one ``period`` behind the other."""
    child, parent, time, period = _edges(parents)
    top = int(time.max(initial=-1))
    ways = [(child, parent, time, REDUCE)] if up else []
    if down:
        ways.append((parent, child, top - time + (top + 1 if up else 0), COPY))
    last = max((int(when.max(initial=-1)) for *_, when, _ in ways), default=-1)
    for now in range(last + 1 + (pieces - 1) * period if last >= 0 else 0):
        for src, dst, when, op in ways:
            piece, phase = np.divmod(now - when, period)
            live = (phase == 0) & (piece >= 0) & (piece < pieces)
            yield src[live], dst[live], piece[live], op


def _schedule(collective: Collective, trees: list[list[int]], pieces: int, params: dict[str, int | None], *, up: bool, down: bool) -> Schedule:
    """The trees side by side, each on its own channel with its share of the vector."""
    n, root = collective.nranks, collective.root or 0
    layout = Layout(collective, len(trees) * pieces)
    ways = up + down

    def steps() -> Iterator[Step]:
        rank, channel = np.arange(n) if up else np.array([root]), np.arange(len(trees))[:, None]
        whole = channel * pieces
        yield transfers(rank, layout.input(0, whole), rank, layout.output(0, whole), count=pieces, channel=channel)
        flows = [list(_flows(parents, pieces, up=up, down=down)) for parents in trees]
        for at in range(0, max(map(len, flows)), ways):
            now = []
            for tree, flow in enumerate(flows):
                for src, dst, piece, op in flow[at : at + ways]:
                    chunk = layout.output(0, tree * pieces + piece)
                    now.append(transfers(src, chunk, dst, chunk, op=op, channel=tree))
            yield joined(now)

    return Schedule("double_tree", layout, steps, len(trees), tuple(params.items()))


def all_reduce(collective: Collective, *, channels: int = 1, pieces: int = 4, box: int | None = None) -> Schedule:
    """Reduce up and broadcast down two binary trees at once, each with half of the vector, cut into ``pieces``.

    With ``box`` the trees span boxes of that many consecutive ranks; inside a box the ranks are a chain. ``channels`` counts pairs of trees,
    whose chains start at different members.
    """
    n = collective.nranks
    if box is not None and n % box:
        raise ConfigError(f"box={box} does not divide the {n} ranks")
    pair = tree_pair(n // (box or 1))
    trees = [_with_boxes(parents, box or 1, lead) for lead in range(channels) for parents in pair]
    return _schedule(collective, trees, pieces, {"channels": channels, "pieces": pieces, "box": box}, up=True, down=True)


def _rooted(collective: Collective, channels: int, pieces: int, *, up: bool) -> Schedule:
    """Both trees span the other ranks and hang below the root, which feeds (or drains) them in turn."""
    pair = tree_pair(collective.nranks - 1) if collective.nranks > 1 else ([], [])
    trees = [_behind(collective.root or 0, parents) for _ in range(channels) for parents in pair]
    return _schedule(collective, trees, pieces, {"channels": channels, "pieces": pieces}, up=up, down=not up)


def broadcast(collective: Collective, *, channels: int = 1, pieces: int = 4) -> Schedule:
    """Two binary trees of all ranks but the root, which sends half of the vector to each, in ``pieces``."""
    return _rooted(collective, channels, pieces, up=False)


def reduce(collective: Collective, *, channels: int = 1, pieces: int = 4) -> Schedule:
    """The broadcast backwards: every rank adds what its children send and passes it up."""
    return _rooted(collective, channels, pieces, up=True)
