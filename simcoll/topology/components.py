"""Connected components in numpy: importing SciPy takes longer than building most topologies."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints

__all__ = ["lowest_in_component"]


def lowest_in_component(count: int, tail: Ints, head: Ints) -> Ints:
    """For each of ``count`` vertices, the lowest vertex of its component; link directions do not
    matter.

    >>> lowest_in_component(5, np.array([4, 3]), np.array([3, 1])).tolist()
    [0, 1, 2, 1, 1]
    """
    lowest = np.arange(count)
    while not np.array_equal(lowest[tail], lowest[head]):
        joined = np.minimum(lowest[tail], lowest[head])
        np.minimum.at(lowest, lowest[tail], joined)
        np.minimum.at(lowest, lowest[head], joined)
        while not np.array_equal(lowest, lowest[lowest]):
            lowest = lowest[lowest]
    return lowest
