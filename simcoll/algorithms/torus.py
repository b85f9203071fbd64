"""The bucket algorithm on a torus: rings in each dimension in turn, in shifted copies that leave no
link idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import isqrt, prod

import numpy as np

from simcoll.algorithms.compose import in_shares
from simcoll.algorithms.grid_stages import (
    Grid,
    all_gather_stage,
    exchange,
    reduce_scatter_stage,
    weights_of,
)
from simcoll.algorithms.registered import algorithm
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]

PLACE = 18  # in listings

BUCKET = (
    "Jain, Sabharwal: Optimal bucket algorithms for large MPI collectives on torus "
    "interconnects, ICS 2010"
)


def _grid(collective: Collective, dims: tuple[int, ...] | None) -> Grid:
    """The torus; without dims, the most nearly square two-dimensional one."""
    n = collective.nranks
    if dims is None:
        small = next(size for size in range(isqrt(n), 0, -1) if n % size == 0)
        dims = (n // small, small)
    if prod(dims) != n:
        raise ConfigError(f"dims={dims} make {prod(dims)} ranks, but there are {n}")
    return Grid(dims)


def _both_ways(
    grid: Grid, layout: Layout, steps: Callable[[tuple[int, ...], int], Iterator[Step]]
) -> Schedule:
    """Concurrent copies, one per starting dimension and direction; ``steps`` takes the order of
    dimensions and the direction.
    """
    orders = [grid.dims[d:] + grid.dims[:d] for d in grid.dims]
    return in_shares(
        [
            Schedule("torus", layout, partial(steps, order, direction))
            for direction in (1, -1)
            for order in orders
        ]
    )


@algorithm(
    "all_reduce",
    "torus",
    cost="2 sum(dims-1) a + (n-1)/n s (2b + g)/links",
    machine="torus",
    source=BUCKET,
    topologies="torus",
    order="run-consistent",
)
def all_reduce(collective: Collective, *, dims: tuple[int, ...] | None = None) -> Schedule:
    """Ring reduce-scatter in every dimension, then ring all-gathers in reverse; one copy per
    dimension and direction.
    """
    grid = _grid(collective, dims)
    layout, rank = Layout(collective, grid.nranks), np.arange(grid.nranks)
    vector = partial(layout.output, 0)

    def steps(order: tuple[int, ...], direction: int) -> Iterator[Step]:
        weights = weights_of(grid, order)
        yield transfers(rank, layout.input(), rank, layout.output(), count=layout.chunks)
        for nsplit, d in enumerate(order):
            yield from exchange(
                reduce_scatter_stage(grid, weights, d, order[:nsplit], direction), vector, op=REDUCE
            )
        for nsplit, d in reversed(list(enumerate(order))):
            yield from exchange(
                all_gather_stage(grid, weights, d, order[:nsplit], direction), vector
            )

    return _both_ways(grid, layout, steps)


@algorithm(
    "all_gather",
    "torus",
    cost="sum(dims-1) a + (n-1)/n s b/links",
    machine="torus",
    source=BUCKET,
    topologies="torus",
)
def all_gather(collective: Collective, *, dims: tuple[int, ...] | None = None) -> Schedule:
    """Ring all-gather in every dimension; one copy per dimension and direction, each with its share
    of every block.
    """
    grid = _grid(collective, dims)
    layout, rank = Layout(collective), np.arange(grid.nranks)

    def steps(order: tuple[int, ...], direction: int) -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(rank))
        for nsplit, d in enumerate(order):
            moves = all_gather_stage(
                grid, grid.strides, d, order[nsplit + 1 :], direction, runs=False
            )
            yield from exchange(moves, layout.output)

    return _both_ways(grid, layout, steps)


@algorithm(
    "reduce_scatter",
    "torus",
    cost="sum(dims-1)(a + s/n g/links) + (n-1)/n s b/links",
    machine="torus",
    source=BUCKET,
    topologies="torus",
    order="run-consistent",
)
def reduce_scatter(collective: Collective, *, dims: tuple[int, ...] | None = None) -> Schedule:
    """Ring reduce-scatter in every dimension; one copy per dimension and direction, each with its
    share of every block.
    """
    grid = _grid(collective, dims)
    rank, slot = np.arange(grid.nranks), np.arange(grid.nranks)[:, None]
    layout = Layout(collective, 1, rank)

    def steps(order: tuple[int, ...], direction: int) -> Iterator[Step]:
        yield transfers(rank, layout.input(slot), rank, layout.scratch_at(slot))
        for nsplit, d in enumerate(order):
            moves = reduce_scatter_stage(
                grid, grid.strides, d, order[:nsplit], direction, runs=False
            )
            yield from exchange(moves, layout.scratch_at, op=REDUCE)
        yield transfers(rank, layout.scratch_at(rank), rank, layout.output())

    return _both_ways(grid, layout, steps)
