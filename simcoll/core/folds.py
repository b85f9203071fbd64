"""Folds: several reductions into one chunk in one step, whose operands have an order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.step import COPY, REDUCE, Step, overlaps, spread

__all__ = ["in_fold_order", "operands"]


def in_fold_order(step: Step, size: int) -> Step:
    """The step with each fold's rows in the order of application.

    ``size`` is the number of chunks per rank.
    """
    if not (step.op == REDUCE).any():
        return step
    rows = np.flatnonzero((step.op == REDUCE) | (step.op == COPY))
    start = (step.dst_rank * size + step.dst_chunk)[rows]
    if not overlaps(start, start + step.count[rows]):
        return step
    return step.rows(np.lexsort((step.src_rank, step.op == REDUCE)))


def operands(dst_rank: Ints, dst_chunk: Ints, count: Ints, op: NDArray[np.int8], size: int) -> Ints:
    """Length of the fold of each transfer of a step; ``size`` is the number of chunks per rank."""
    result = np.ones(len(op), np.int64)
    rows = np.flatnonzero(op == REDUCE)
    start = (dst_rank * size + dst_chunk)[rows]
    if overlaps(start, start + count[rows]):
        row, offset = spread(count[rows])
        _, chunk, writes = np.unique(start[row] + offset, return_inverse=True, return_counts=True)
        np.maximum.at(result, rows[row], writes[chunk])
    return result
