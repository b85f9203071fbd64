"""The rows of blocks of the fast engine, gathered from the steps that the blocks hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from simcoll.arrays import Array, Ints, Shorts
from simcoll.emulator.steps.timed import Timed

__all__ = ["BlockRows", "rows_of"]


class BlockRows:
    """Blocks, each with the rows of a step.

    Parameters
    ----------
    blocks
        Numbers of the blocks.
    bases
        The first slot of each block.
    steps
        The distinct steps that they hold, by first appearance.
    order
        The number of each block's step among them.

    Attributes
    ----------
    place
        The blocks as a place in columns of blocks, one of which has a number.
    """

    def __init__(self, blocks: Ints, bases: Ints, steps: Sequence[Timed], order: Ints) -> None:
        self.blocks, self.bases, self.steps, self.order = blocks, bases, steps, order
        self.lengths = np.array([len(step) for step in steps], np.int64)
        self.counts = self.lengths[order]
        self.place: Ints | int = blocks

    @cached_property
    def _ends(self) -> Ints:
        """The number of rows up to the end of each block."""
        return np.cumsum(self.counts)

    @cached_property
    def slots(self) -> slice | Ints:
        """The slots of all rows; a slice, which is copied faster, where nothing is between them."""
        if np.array_equal(self.bases[1:], self.bases[:-1] + self.counts[:-1]):
            return slice(int(self.bases[0]), int(self.bases[-1] + self.counts[-1]))
        return self.spread(self.bases - (self._ends - self.counts)) + np.arange(self._ends[-1])

    @cached_property
    def _table_rows(self) -> Ints:
        """The row of each slot among those of the distinct steps."""
        begins = np.cumsum(self.lengths) - self.lengths
        shift = begins[self.order] - (self._ends - self.counts)
        return self.spread(shift) + np.arange(self._ends[-1])

    def gather(self, columns: Sequence[Array]) -> Array:
        """A column of all rows, from one for each distinct step."""
        return self.gather_rows(columns[0] if len(columns) == 1 else np.concatenate(columns))

    def gather_rows(self, table: Array) -> Array:
        """The same from one column of all distinct steps."""
        return table[self._table_rows]

    def of_blocks(self, values: Sequence[int]) -> Ints | int:
        """A value for each block, from one for each distinct step."""
        return np.array(values, np.int64)[self.order]

    def spread(self, values: Ints) -> Ints:
        """A value for each row, from one for each block."""
        return np.repeat(values, self.counts)

    def of_steps(self, numbers: Sequence[int]) -> BlockRows:
        """The blocks of some of the distinct steps, of which there is at least one."""
        if len(numbers) == len(self.steps):
            return self
        renumbered = np.full(len(self.steps), -1, np.int64)
        renumbered[numbers] = np.arange(len(numbers))
        order = renumbered[self.order]
        chosen = order >= 0
        steps = [self.steps[number] for number in numbers]
        return BlockRows(self.blocks[chosen], self.bases[chosen], steps, order[chosen])


class _RowsOfOneBlock(BlockRows):
    """The rows of a single block, which large steps have: nothing is copied or repeated, which
    would take as long as the rest.
    """

    def __init__(self, block: int, base: int, step: Timed) -> None:
        self.blocks, self.bases = np.array([block]), np.array([base])
        self.steps, self.order = [step], _FIRST_STEP
        self.lengths = self.counts = np.array([len(step)])
        self.place = block
        self.slots = slice(base, base + len(step))

    def gather_rows(self, table: Array) -> Array:
        """The column itself."""
        return table

    def of_blocks(self, values: Sequence[int]) -> int:
        """The only value."""
        return values[0]

    def spread(self, values: Ints) -> Ints:
        """One value for all rows."""
        return values


_FIRST_STEP = np.zeros(1, np.int64)


def rows_of(blocks: Sequence[int], bases: Shorts, steps: Sequence[Timed]) -> BlockRows:
    """The rows of blocks, given the first slot of every block and the step of each of these."""
    if len(blocks) == 1:
        return _RowsOfOneBlock(blocks[0], int(bases[blocks[0]]), steps[0])
    numbers: dict[Timed, int] = {}
    order = np.array([numbers.setdefault(step, len(numbers)) for step in steps], np.int64)
    array = np.array(blocks, np.int64)
    return BlockRows(array, bases[array].astype(np.int64), list(numbers), order)
