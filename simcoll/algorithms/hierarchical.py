"""Hierarchical algorithms for boxes of ranks with fast links inside and one rail per member between them, two levels or three.

The boxes (and pods of boxes) are a grid whose last dimension is the place in the box. A collective is a row of stages, each along one
dimension, so that only the members of the same place, on the same rail, talk between boxes.

With ``pieces`` the vector is cut, and piece p does a stage while piece p - 1 does the next one. Every stage then has a channel of its own,
on which the pieces come in order; a piece starts a stage when its data is there, so that links inside and between boxes work at the same
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms.grid import PAIRWISE, Grid, all_gather_stage, reduce_scatter_stage, weights_of
from simcoll.algorithms.registered import algorithm
from simcoll.algorithms.tree import binomial_edges
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from simcoll.core.collective import Collective

    Ints = NDArray[np.int64]
    # From the share of the vector and the channel of every copy, as columns, to the steps of the stage.
    Stage = Callable[[Ints, Ints], Iterator[Step]]

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]

HIER = "Cho et al.: BlueConnect, MLSys 2019"


def _grid(collective: Collective, box: int | None, pod: int | None) -> Grid:
    """``(boxes, box)``, or with pods ``(pods, boxes in a pod, box)``."""
    n = collective.nranks
    if box is None:
        raise ConfigError("hierarchical needs box=, the number of ranks in a box (for example box=8)")
    if n % box:
        raise ConfigError(f"hierarchical needs a multiple of box={box} ranks, got {n}")
    if pod is None:
        return Grid((n // box, box))
    if pod % box or n % pod:
        raise ConfigError(f"pod={pod} must be a multiple of box={box} and divide the {n} ranks")
    return Grid((n // pod, pod // box, box))


def _way(grid: Grid, d: int) -> int:
    """Inside a box all pairs have a direct link; between boxes neighbours suffice."""
    return PAIRWISE if d == grid.dims[-1] else 1


def _schedule(
    layout: Layout, stages: list[Stage], params: dict[str, int | None], lanes: list[int] | None = None
) -> Schedule:
    """The stages one after the other for every piece, each piece one stage behind the one before; ``lanes`` are those of the stages."""
    channels, pieces = params["channels"] or 1, params["pieces"] or 1
    lane = [0] * len(stages) if pieces == 1 else lanes or list(range(len(stages)))
    width = max(lane) + 1
    copy = np.arange(channels, dtype=np.int64)[:, None]

    def steps() -> Iterator[Step]:
        for time in range(pieces + len(stages) - 1):
            for number, stage in enumerate(stages):
                if 0 <= time - number < pieces:
                    yield from stage(copy * pieces + time - number, copy * width + lane[number])

    return Schedule("hierarchical", layout, steps, channels * width, tuple(params.items()))


@algorithm(
    "all_reduce",
    "hierarchical",
    cost="2(g-1)/g s b_box + 2(m-1)/m s/g b_net, m boxes of g; the larger with pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
    order="run-consistent",
)
def all_reduce(
    collective: Collective, *, box: int | None = None, pod: int | None = None, channels: int = 1, pieces: int = 1
) -> Schedule:
    """Multi-rail all-reduce: reduce-scatter from the box outwards, all-gather back; the outermost level is a ring all-reduce on every rail.

    ``box`` is the number of consecutive ranks in a box, ``pod`` that of consecutive ranks in a pod of boxes, ``channels`` the copies.
    """
    grid = _grid(collective, box, pod)
    n, order = grid.nranks, grid.dims[::-1]
    layout, rank, weights = Layout(collective, channels * pieces * n), np.arange(n), weights_of(grid, order)

    def level(position: int, op: int) -> Stage:
        moves = reduce_scatter_stage if op == REDUCE else all_gather_stage

        def steps(share: Ints, channel: Ints) -> Iterator[Step]:
            whole, d = share * n, order[position]
            if op == REDUCE and position == 0:
                yield transfers(rank, layout.input(0, whole), rank, layout.output(0, whole), count=n, channel=channel)
            for peer, chunks, count in moves(grid, weights, d, order[:position], _way(grid, d)):
                chunk = layout.output(0, whole + chunks)
                yield transfers(rank, chunk, peer, chunk, count=count, op=op, channel=channel)

        return steps

    def outermost(share: Ints, channel: Ints) -> Iterator[Step]:
        for op in (REDUCE, COPY):
            yield from level(len(order) - 1, op)(share, channel)

    inner = range(len(order) - 1)
    stages = [*(level(p, REDUCE) for p in inner), outermost, *(level(p, COPY) for p in reversed(inner))]
    return _schedule(layout, stages, {"box": box, "pod": pod, "channels": channels, "pieces": pieces})


@algorithm(
    "all_gather",
    "hierarchical",
    cost="(n-m)/n s b_box + (m-1)/n s b_net, m boxes; the larger with pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
)
def all_gather(
    collective: Collective, *, box: int | None = None, pod: int | None = None, channels: int = 1, pieces: int = 1
) -> Schedule:
    """Multi-rail all-gather: first on the rails between pods and boxes, where every block goes once, then inside each box."""
    grid = _grid(collective, box, pod)
    shares = channels * pieces
    layout, rank = Layout(collective, shares), np.arange(grid.nranks)

    def level(d: int) -> Stage:
        def steps(share: Ints, channel: Ints) -> Iterator[Step]:
            if d == 0:
                yield transfers(rank, layout.input(0, share), rank, layout.output(rank, share), channel=channel)
            for peer, slot, count in all_gather_stage(
                grid, grid.strides, d, grid.dims[d + 1 :], _way(grid, d), runs=shares == 1
            ):
                chunk = layout.output(slot[:, None], share)
                yield transfers(rank, chunk, peer, chunk, count=count, channel=channel)

        return steps

    return _schedule(
        layout, [level(d) for d in grid.dims], {"box": box, "pod": pod, "channels": channels, "pieces": pieces}
    )


@algorithm(
    "reduce_scatter",
    "hierarchical",
    cost="(n-m)/n s b_box + (m-1)/n s b_net, m boxes; the larger with pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
    order="run-consistent",
)
def reduce_scatter(
    collective: Collective, *, box: int | None = None, pod: int | None = None, channels: int = 1, pieces: int = 1
) -> Schedule:
    """Multi-rail reduce-scatter: the all-gather backwards, first inside each box, so that the rails carry sums."""
    grid = _grid(collective, box, pod)
    n, shares = grid.nranks, channels * pieces
    layout, rank = Layout(collective, shares, np.arange(n)), np.arange(n)

    def level(d: int) -> Stage:
        def steps(share: Ints, channel: Ints) -> Iterator[Step]:
            if d == grid.dims[-1]:
                slot = np.arange(n)[:, None, None]
                yield transfers(rank, layout.input(slot, share), rank, layout.scratch_at(slot, share), channel=channel)
            done = grid.dims[d + 1 :]
            for peer, slot, count in reduce_scatter_stage(grid, grid.strides, d, done, _way(grid, d), runs=shares == 1):
                chunk = layout.scratch_at(slot[:, None], share)
                yield transfers(rank, chunk, peer, chunk, count=count, op=REDUCE, channel=channel)
            if d == 0:
                yield transfers(rank, layout.scratch_at(rank, share), rank, layout.output(0, share), channel=channel)

        return steps

    stages = [level(d) for d in reversed(grid.dims)]
    return _schedule(layout, stages, {"box": box, "pod": pod, "channels": channels, "pieces": pieces})


@algorithm(
    "broadcast",
    "hierarchical",
    cost="2(g-1)/g s b_box + ceil(lg m) s/g b_net, m boxes of g; max(2(g-1)/g s b_box, s/g b_net) with many pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
)
def broadcast(
    collective: Collective, *, box: int | None = None, pod: int | None = None, channels: int = 1, pieces: int = 1
) -> Schedule:
    """Multi-rail broadcast: the root's vector is scattered over its box (and pod), every rail carries its part on, then all-gather.

    Over the outermost level a single piece goes down a binomial tree; several go down a chain, whose hops have two channels by turns, so
    that a rank gets a piece while it passes on the one before.
    """
    grid = _grid(collective, box, pod)
    outer, order, root = grid.sizes[0], grid.dims[:0:-1], collective.root or 0
    parts = grid.nranks // outer
    # The outermost level does not split the vector.
    weights = (0, *weights_of(Grid(grid.sizes[1:]), [d - 1 for d in order]))
    layout, rank = Layout(collective, channels * pieces * parts), np.arange(grid.nranks)
    turn = (grid.digit(0) - grid.digit(0)[root]) % outer

    def copies(who: Ints, peer: Ints, chunks: Ints, count: int, share: Ints, channel: Ints) -> Step:
        chunk = layout.output(0, share * parts + chunks[:, who])
        return transfers(who, chunk, peer[who], chunk, count=count, channel=channel)

    def scatter(position: int) -> Stage:
        d, done = order[position], (0, *order[:position])
        like_root = [grid.digit(e) == grid.digit(e)[root] for e in (0, *order[position:])]
        senders = np.flatnonzero(np.all(like_root, axis=0))

        def steps(share: Ints, channel: Ints) -> Iterator[Step]:
            if position == 0:
                whole = share * parts
                yield transfers(
                    root, layout.input(0, whole), root, layout.output(0, whole), count=parts, channel=channel
                )
            for peer, chunks, count in reduce_scatter_stage(grid, weights, d, done, PAIRWISE):
                yield copies(senders, peer, chunks, count, share, channel)

        return steps

    def gather(position: int) -> Stage:
        d, split = order[position], (0, *order[:position])

        def steps(share: Ints, channel: Ints) -> Iterator[Step]:
            for peer, chunks, count in all_gather_stage(grid, weights, d, split, _way(grid, d)):
                yield copies(rank, peer, chunks, count, share, channel)

        return steps

    def across(rounds: list[tuple[Ints, int]]) -> Stage:
        own, _ = grid.chunks(weights, grid.digits(grid.dims), runs=True)

        def steps(share: Ints, channel: Ints) -> Iterator[Step]:
            for parents, distance in rounds:
                yield copies(np.flatnonzero(np.isin(turn, parents)), grid.moved(0, distance), own, 1, share, channel)

        return steps

    if pieces == 1:
        levels = reversed(range((outer - 1).bit_length()))
        hops = [across([(binomial_edges(outer, level)[0], 1 << level) for level in levels])]
    else:
        hops = [across([(np.array([hop]), 1)]) for hop in range(outer - 1)]
    inner, chain = range(len(order)), len(order)
    stages = [*map(scatter, inner), *hops, *map(gather, reversed(inner))]
    lanes = [*inner, *(chain + hop % 2 for hop in range(len(hops))), *(chain + 2 + position for position in inner)]
    params = {"box": box, "pod": pod, "channels": channels, "pieces": pieces}
    return _schedule(layout, stages, params, lanes)


@algorithm(
    "all_to_all",
    "hierarchical",
    cost="(g-1)/g s b_box + (m-1)/m s b_net, m boxes of g; the larger with pieces",
    source=HIER,
    ranks="multiple of box",
    topologies="boxes",
)
def all_to_all(
    collective: Collective, *, box: int | None = None, pod: int | None = None, channels: int = 1, pieces: int = 1
) -> Schedule:
    """All-to-all level by level: in a box every rank collects what goes to its own rail anywhere, then the rails exchange.

    Before a stage slot s of rank r has, in the dimensions done, the digits of the sender, in the others those of the receiver.
    """
    grid = _grid(collective, box, pod)
    n, shares, order = grid.nranks, channels * pieces, grid.dims[::-1]
    rank, slot = np.arange(n)[:, None], np.arange(n)
    between = []
    for done in range(1, len(order)):
        ours = np.sum([grid.digit(d) * grid.strides[d] for d in order[:done]], axis=0)
        theirs = slot - ours
        between.append((ours[slot] + theirs[rank]) * n + ours[rank] + theirs[slot])
    layout = Layout(collective, shares, np.hstack(between))

    def place(stage: int, slots: Ints, share: Ints) -> Ints:
        if stage == 0:
            where = layout.input(slots, share)
        elif stage == len(order):
            where = layout.output(slots, share)
        else:
            where = layout.scratch_at((stage - 1) * n + slots, share)
        found: Ints = where
        return found

    def level(number: int) -> Stage:
        d = order[number]

        def steps(share: Ints, channel: Ints) -> Iterator[Step]:
            for shift in range(grid.sizes[d]):
                peer = grid.moved(d, shift)
                given, count = grid.chunks(grid.strides, {d: grid.digit(d)[peer]}, runs=shares == 1)
                taken, _ = grid.chunks(grid.strides, {d: grid.digit(d)}, runs=shares == 1)
                source, target = place(number, given[:, None], share), place(number + 1, taken[:, None], share)
                yield transfers(rank[:, 0], source, peer, target, count=count, channel=channel)

        return steps

    params = {"box": box, "pod": pod, "channels": channels, "pieces": pieces}
    return _schedule(layout, [level(number) for number in range(len(order))], params)
