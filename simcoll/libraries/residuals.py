"""The correction of a calibration by size: what measured rows say about the sizes between them.

Deviations of sizes are alike if the sizes are near, take about as long, and go by the same
protocol. So the deviation of any size is estimated from those of the measured ones as geostatistics
does it (simple kriging): expected given the measured ones, if likeness is their correlation. Far
from all rows, the estimate is none.
"""

# The three distances and the likeness of protocols are those of the least error of published tables
# that each leave all but six rows out; of other systems than that of the lab with half of all
# tables, and of that lab alone, they are the same. Errors change by less than 0.1 points between 8
# and 24 doublings, 1.5 and 3 of the time, and 0.6 and 0.9.

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Floats

__all__ = ["SizePoint", "deviations", "without_falls"]

LATENCY_BYTES = 2**16
"""Below this size, time is mostly latency."""
SMALL_DOUBLINGS, LARGE_DOUBLINGS, TIME_DOUBLINGS = 3.0, 16.0, 2.0
"""Doublings of a size below and from :data:`LATENCY_BYTES`, and of the time, over which likeness
falls to 1/e.
"""
OTHER_PROTOCOL = 0.75
"""Likeness of two protocols."""
NOISE = 0.001
"""Share of the variance that is noise of one row. It keeps nearly equal sizes apart; errors are
the same up to 0.02.
"""


class SizePoint(NamedTuple):
    """A size with the time that is predicted for it, and with its algorithm and protocol."""

    size_bytes: int
    time_fs: int
    choice: tuple[str, str]


def _likeness(rows: Sequence[SizePoint], columns: Sequence[SizePoint]) -> Floats:
    """The correlation of deviations, for each pair of points."""

    def apart(values: tuple[Floats, Floats]) -> Floats:
        return np.abs(values[0][:, None] - values[1][None, :])

    def logarithms(points: Sequence[SizePoint]) -> tuple[Floats, Floats, Floats]:
        size_bytes = np.array([point.size_bytes for point in points], float)
        small = np.log2(np.minimum(size_bytes, LATENCY_BYTES))
        large = np.log2(np.maximum(size_bytes, LATENCY_BYTES))
        return small, large, np.log2([float(max(1, point.time_fs)) for point in points])

    lengths = SMALL_DOUBLINGS, LARGE_DOUBLINGS, TIME_DOUBLINGS
    logs = zip(logarithms(rows), logarithms(columns), lengths, strict=True)
    distance = sum(apart((ours, theirs)) / length for ours, theirs, length in logs)
    protocols = np.array(
        [[row.choice[1] == column.choice[1] for column in columns] for row in rows], bool
    )
    return np.exp(-distance) * np.where(protocols, 1.0, OTHER_PROTOCOL)


def deviations(
    rows: Sequence[SizePoint], residuals: Sequence[float], grid: Sequence[SizePoint]
) -> Floats:
    """The expected deviation at the points of a grid, given those of measured rows.

    >>> row = SizePoint(1024, 10, ("ring", "LL"))
    >>> further = [row, row._replace(size_bytes=8192), row._replace(time_fs=40)]
    >>> deviations([row], [0.1], further).round(3).tolist()
    [0.1, 0.037, 0.037]
    """
    covariances = _likeness(rows, rows) + NOISE * np.eye(len(rows))
    weights = np.linalg.solve(covariances, np.array(residuals, float))
    expected: Floats = _likeness(grid, rows) @ weights
    return expected


def without_falls(values: Floats, growths: Floats) -> Floats:
    """The nearest values to these of which none falls by more than the time grows.

    ``growths`` are the logarithms by which the time grows between neighbours, at least. Values
    that fall by more are pooled (isotonic regression).

    >>> without_falls(np.array([0.0, 0.3, 0.1]), np.array([0.0, 0.1])).round(2).tolist()
    [0.0, 0.25, 0.15]
    """
    passed = np.concatenate([[0.0], np.cumsum(growths)])
    pools: list[tuple[float, int]] = []
    for value in (values + passed).tolist():
        mean, members = value, 1
        while pools and pools[-1][0] > mean:
            earlier, count = pools.pop()
            mean = (mean * members + earlier * count) / (members + count)
            members += count
        pools.append((mean, members))
    pooled: Floats = np.array([mean for mean, count in pools for _ in range(count)])
    least_falling: Floats = pooled - passed
    return least_falling
