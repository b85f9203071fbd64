"""Connected components in numpy: importing SciPy takes longer than building most topologies."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints

__all__ = ["first_joined"]


def first_joined(count: int, tail: Ints, head: Ints) -> Ints:
    """For each of ``count`` vertices, the lowest vertex of its component; link directions do not matter.

    >>> first_joined(5, np.array([4, 3]), np.array([3, 1])).tolist()
    [0, 1, 2, 1, 1]
    """
    first = np.arange(count)
    while not np.array_equal(first[tail], first[head]):
        least = np.minimum(first[tail], first[head])
        np.minimum.at(first, first[tail], least)
        np.minimum.at(first, first[head], least)
        while not np.array_equal(first, first[first]):
            first = first[first]
    return first
