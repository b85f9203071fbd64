"""The bucket algorithm on a torus: rings in each dimension in turn, in shifted copies that leave no link idle."""

from __future__ import annotations

from math import isqrt, prod
from typing import TYPE_CHECKING

import numpy as np

from simcoll.algorithms.grid import Grid, all_gather_stage, reduce_scatter_stage, weights_of
from simcoll.algorithms.registered import algorithm
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, joined, transfers
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.core.collective import Collective

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]

BUCKET = "Jain, Sabharwal: Optimal bucket algorithms for large MPI collectives on torus interconnects, ICS 2010"


def _grid(collective: Collective, dims: tuple[int, ...] | None) -> Grid:
    """The torus; without dims the squarest one of two dimensions."""
    n = collective.nranks
    if dims is None:
        small = next(size for size in range(isqrt(n), 0, -1) if n % size == 0)
        dims = (n // small, small)
    if prod(dims) != n:
        raise ConfigError(f"dims={dims} make {prod(dims)} ranks, but there are {n}")
    return Grid(dims)


def _copies(grid: Grid) -> list[tuple[tuple[int, ...], int]]:
    """Order of the dimensions and way round of every copy: each starts in another dimension, both ways."""
    orders = [grid.dims[d:] + grid.dims[:d] for d in grid.dims]
    return [(order, way) for way in (1, -1) for order in orders]


def _together(copies: list[Iterator[Step]]) -> Iterator[Step]:
    """The steps of all copies side by side; all have as many."""
    for steps in zip(*copies, strict=True):
        yield joined(steps)


@algorithm(
    "all_reduce",
    "torus",
    cost="2 sum(k-1) a + 2(n-1)/n s b/d, equal dimensions of k, d links a rank",
    source=BUCKET,
    topologies="torus",
    order="run-consistent",
)
def all_reduce(collective: Collective, *, dims: tuple[int, ...] | None = None) -> Schedule:
    """Ring reduce-scatter in every dimension, then ring all-gathers backwards; one copy per dimension and direction."""
    grid = _grid(collective, dims)
    n, copies = grid.nranks, _copies(grid)
    layout, rank = Layout(collective, len(copies) * n), np.arange(n)

    def copy(number: int, order: tuple[int, ...], way: int) -> Iterator[Step]:
        base, weights = layout.output(0, number * n), weights_of(grid, order)
        for done, d in enumerate(order):
            for peer, chunk, count in reduce_scatter_stage(grid, weights, d, order[:done], way):
                yield transfers(rank, base + chunk, peer, base + chunk, count=count, op=REDUCE, channel=number)
        for done, d in reversed(list(enumerate(order))):
            for peer, chunk, count in all_gather_stage(grid, weights, d, order[:done], way):
                yield transfers(rank, base + chunk, peer, base + chunk, count=count, op=COPY, channel=number)

    def steps() -> Iterator[Step]:
        number = np.arange(len(copies))[:, None]
        yield transfers(rank, layout.input(0, number * n), rank, layout.output(0, number * n), count=n, channel=number)
        yield from _together([copy(number, *how) for number, how in enumerate(copies)])

    return Schedule("torus", layout, steps, len(copies), (("dims", grid.sizes),))


@algorithm(
    "all_gather",
    "torus",
    cost="sum(k-1) a + (n-1)/n s b/d, equal dimensions of k, d links a rank",
    source=BUCKET,
    topologies="torus",
)
def all_gather(collective: Collective, *, dims: tuple[int, ...] | None = None) -> Schedule:
    """Ring all-gather in every dimension; one copy per dimension and direction, each with its share of every block."""
    grid = _grid(collective, dims)
    copies = _copies(grid)
    layout, rank = Layout(collective, len(copies)), np.arange(grid.nranks)

    def copy(number: int, order: tuple[int, ...], way: int) -> Iterator[Step]:
        for done, d in enumerate(order):
            for peer, slot, _ in all_gather_stage(grid, grid.strides, d, order[done + 1 :], way, runs=False):
                yield transfers(rank, layout.output(slot, number), peer, layout.output(slot, number), channel=number)

    def steps() -> Iterator[Step]:
        number = np.arange(len(copies))[:, None]
        yield transfers(rank, layout.input(0, number), rank, layout.output(rank, number), channel=number)
        yield from _together([copy(number, *how) for number, how in enumerate(copies)])

    return Schedule("torus", layout, steps, len(copies), (("dims", grid.sizes),))


@algorithm(
    "reduce_scatter",
    "torus",
    cost="sum(k-1) a + (n-1)/n s b/d, equal dimensions of k, d links a rank",
    source=BUCKET,
    topologies="torus",
    order="run-consistent",
)
def reduce_scatter(collective: Collective, *, dims: tuple[int, ...] | None = None) -> Schedule:
    """Ring reduce-scatter in every dimension; one copy per dimension and direction, each with its share of every block."""
    grid = _grid(collective, dims)
    n, copies = grid.nranks, _copies(grid)
    layout, rank = Layout(collective, len(copies), np.arange(n)), np.arange(n)

    def copy(number: int, order: tuple[int, ...], way: int) -> Iterator[Step]:
        for done, d in enumerate(order):
            for peer, slot, _ in reduce_scatter_stage(grid, grid.strides, d, order[:done], way, runs=False):
                chunk = layout.scratch_at(slot, number)
                yield transfers(rank, chunk, peer, chunk, op=REDUCE, channel=number)

    def steps() -> Iterator[Step]:
        number, slot = np.arange(len(copies))[:, None], np.arange(n)[:, None, None]
        yield transfers(rank, layout.input(slot, number), rank, layout.scratch_at(slot, number), channel=number)
        yield from _together([copy(number, *how) for number, how in enumerate(copies)])
        yield transfers(rank, layout.scratch_at(rank, number), rank, layout.output(0, number), channel=number)

    return Schedule("torus", layout, steps, len(copies), (("dims", grid.sizes),))
