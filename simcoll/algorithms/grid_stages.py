"""Stages along the dimensions of a grid of ranks, the building blocks of hierarchical and torus
algorithms.

Rank r has one digit per dimension, the last varying fastest. Chunk numbers also have digits, with
different weights: a stage in one dimension moves, for every digit there, the chunks with that digit
and any digits in the dimensions that are still (or again) whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.schedule import COPY, Step, transfers
from simcoll.errors import ConfigError

# Peer of every rank, first chunks [runs, ranks], chunks in a run.
Moves = Iterable[tuple[Ints, Ints, int]]

__all__ = [
    "PAIRWISE",
    "Grid",
    "all_gather_stage",
    "exchange",
    "nodes_of",
    "reduce_scatter_stage",
    "weights_of",
]

PAIRWISE = 0
"""A stage in which every rank exchanges with all others of its line in turn; 1 and -1 go around the
line as a ring.
"""


def nodes_of(nranks: int, box: int | None) -> tuple[int, int]:
    """Number of nodes and of ranks in each; without ``box``, all ranks form one node.

    Raises
    ------
    ConfigError
        When the ranks do not fill their nodes.
    """
    size = box or nranks
    if nranks % size:
        raise ConfigError(f"box={box} does not divide the {nranks} ranks")
    return nranks // size, size


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of ranks.

    >>> Grid((2, 3)).digit(1).tolist()
    [0, 1, 2, 0, 1, 2]
    """

    sizes: tuple[int, ...]

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    @property
    def dims(self) -> tuple[int, ...]:
        """Numbers of the dimensions."""
        return tuple(range(len(self.sizes)))

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in ranks between neighbours of every dimension."""
        return tuple(prod(self.sizes[d + 1 :]) for d in self.dims)

    def digit(self, d: int) -> Ints:
        """Digit of every rank in a dimension."""
        return np.arange(self.nranks, dtype=np.int64) // self.strides[d] % self.sizes[d]

    def neighbour(self, d: int, shift: int) -> Ints:
        """The rank ``shift`` places on in a dimension."""
        place = self.digit(d)
        return (
            np.arange(self.nranks, dtype=np.int64)
            + ((place + shift) % self.sizes[d] - place) * self.strides[d]
        )

    def digits(self, dims: Sequence[int]) -> dict[int, Ints]:
        """Digits of every rank in some dimensions."""
        return {d: self.digit(d) for d in dims}

    def chunks(
        self, weights: Sequence[int], fixed: Mapping[int, Ints], *, runs: bool
    ) -> tuple[Ints, int]:
        """The chunks with given digits in some dimensions: first chunks ``[runs, ranks]``, and
        chunks in a run.

        Without ``runs`` every chunk is a separate run.
        """
        start = np.zeros(self.nranks, np.int64)
        for d, digit in fixed.items():
            start = start + digit * weights[d]
        offsets, count = np.zeros(1, np.int64), 1
        for d in sorted(set(self.dims) - set(fixed), key=lambda d: weights[d]):
            if runs and weights[d] == count:
                count *= self.sizes[d]
            else:
                offsets = (offsets[:, None] + np.arange(self.sizes[d]) * weights[d]).reshape(-1)
        return offsets[:, None] + start, count


def weights_of(grid: Grid, order: Sequence[int]) -> tuple[int, ...]:
    """Weights of the digits in a chunk's number such that all parts are ranges if dimensions are
    split in this order.

    >>> weights_of(Grid((2, 3)), (1, 0))
    (1, 2)
    """
    weights = [1] * len(order)
    for position, d in enumerate(order):
        weights[d] = prod(grid.sizes[e] for e in order[position + 1 :])
    return tuple(weights)


def reduce_scatter_stage(
    grid: Grid,
    weights: Sequence[int],
    d: int,
    split: Sequence[int],
    direction: int,
    *,
    runs: bool = True,
) -> Moves:
    """Moves with reduction, after which a rank keeps the chunks with its own digit in dimension d;
    ``done`` lists split dimensions.
    """
    size, place, split_digits = grid.sizes[d], grid.digit(d), grid.digits(split)
    for step in range(1, size):
        target = (place + (step if direction == PAIRWISE else -direction * step)) % size
        chunk, count = grid.chunks(weights, {**split_digits, d: target}, runs=runs)
        yield grid.neighbour(d, direction or step), chunk, count


def all_gather_stage(
    grid: Grid,
    weights: Sequence[int],
    d: int,
    split: Sequence[int],
    direction: int,
    *,
    runs: bool = True,
) -> Moves:
    """Moves with copying, after which every rank has the chunks of all digits in dimension d.

    ``split`` dimensions are unchanged.
    """
    size, place, split_digits = grid.sizes[d], grid.digit(d), grid.digits(split)
    for step in range(1, size):
        origin = place if direction == PAIRWISE else (place - direction * (step - 1)) % size
        chunk, count = grid.chunks(weights, {**split_digits, d: origin}, runs=runs)
        yield grid.neighbour(d, direction or step), chunk, count


def exchange(
    moves: Moves, address_of: Callable[[Ints], Ints], *, op: int = COPY, ranks: Ints | None = None
) -> Iterator[Step]:
    """A step for each of the moves, of all ranks or some.

    ``at`` maps their chunks to addresses, the same at both ends.
    """
    for peer, chunk, count in moves:
        who = np.arange(len(peer)) if ranks is None else ranks
        address = address_of(chunk if ranks is None else chunk[:, ranks])
        yield transfers(who, address, peer[who], address, count=count, op=op)
