"""The vector of a collective, of which every buffer holds all places or only the block of its
rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.layout import Layout

__all__ = ["Vector", "vector_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """Numbers the pieces of all blocks in a row: the places that chunks hold.

    Attributes
    ----------
    size
        Number of places.
    own_block
        For input, output and scratch: whether a rank has only its own block there.
    """

    layout: Layout
    size: int
    own_block: NDArray[np.bool_]

    @property
    def by_block(self) -> bool:
        """Whether there is a block for each rank."""
        return bool(self.own_block.any())

    def at(self, rank: Ints, chunk: Ints) -> tuple[Ints, Ints]:
        """Buffer and place of each chunk; further chunks of its buffer have the next places."""
        region = self.layout.region(chunk)
        start = self.own_block[region] * rank * self.layout.chunks
        return region, start + chunk - self.layout.bases()[region]

    def chunk(self, region: int, place: int) -> int:
        """The chunk of a place in a buffer."""
        return int(self.layout.bases()[region]) + (
            place % self.layout.chunks if self.own_block[region] else place
        )

    def chunks(self, region: int, place: Ints) -> Ints:
        """The chunks of places in a buffer."""
        return int(self.layout.bases()[region]) + (
            place % self.layout.chunks if self.own_block[region] else place
        )

    def holds(self, region: int, rank: Ints, place: Ints) -> NDArray[np.bool_]:
        """Whether a rank has a place in a visible buffer."""
        if not self.own_block[region]:
            return np.ones(np.broadcast(rank, place).shape, np.bool_)
        mine: NDArray[np.bool_] = rank == place // self.layout.chunks
        return mine


def vector_of(layout: Layout) -> Vector | None:
    """The vector of an all_reduce, an all_gather or a reduce_scatter; ``None`` for other
    collectives and kinds of scratch.
    """
    collective, scratch = layout.collective, layout.scratch
    own_block = {
        "all_reduce": (False, False, False),
        "all_gather": (True, False, False),
        "reduce_scatter": (False, True, False),
    }
    # Its outputs would be addressed in two ways.
    inner = collective.in_place and collective.kind == "reduce_scatter"
    fits = scratch.size == 0 or (
        collective.kind == "reduce_scatter"
        and layout.scratch_pieces is None
        and np.array_equal(scratch, np.arange(collective.nranks))
    )
    if collective.kind not in own_block or inner or not fits:
        return None
    return Vector(
        layout, max(collective.nblocks, 1) * layout.chunks, np.array(own_block[collective.kind])
    )
