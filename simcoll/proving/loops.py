"""Machine code of proofs, where numba is installed: the inner loops of the sliced proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.compiled import SOURCES, entry, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["fill_tokens", "mixed", "play_turns"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@number
def mixed(value: np.uint64) -> np.uint64:
    """:func:`simcoll.core.hashing.mix` of one word."""
    value = (value ^ (value >> SHIFTS[0])) * FACTORS[0]
    value = (value ^ (value >> SHIFTS[1])) * FACTORS[1]
    return value ^ (value >> SHIFTS[2])


@entry
def fill_tokens(held: Words, sums: Words, first: int, per_rank: int, salt: int, _sources: int = SOURCES) -> None:
    """:func:`simcoll.core.hashing.token_at` of chunks ``first ..`` of every rank, and their sums over the ranks."""
    ranks, width = held.shape
    sums[:] = 0
    for rank in range(ranks):
        for column in range(width):
            index = np.uint64(rank * per_rank + first + column) + np.uint64(1 + (salt << 40))
            word = mixed(index * GOLDEN)
            held[rank, column] = word
            sums[column] += word


@entry
def play_turns(
    held: Words,
    tree: Words,
    origins: Ints,
    targets: Ints,
    column: int,
    size: int,
    at: int,
    stride: int,
    count: int,
    reduces: bool,
    _sources: int = SOURCES,
) -> bool:
    """``count`` turns of a repeat on ``size`` columns: in every turn each comes from and goes to the rank at its place, and places shift.

    ``at`` is the place of the first column in the first turn, ``origins`` and ``targets`` have the ranks of all places. False when a
    turn reads what holds nothing.
    """
    modulus = len(origins)
    for _ in range(count):
        place = at
        for each in range(column, column + size):
            src, dst = origins[place], targets[place]
            place += 1
            if place == modulus:
                place = 0
            value, made = held[src, each], tree[src, each]
            if made == 0:
                return False
            if reduces:
                there = tree[dst, each]
                if there == 0:
                    return False
                value += held[dst, each]
                made = mixed(made + there)
            held[dst, each] = value
            tree[dst, each] = made
        at = (at - stride) % modulus
    return True
