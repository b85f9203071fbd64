"""Deviations between measured sizes, against closed forms and a published example."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simcoll.libraries.residuals import (
    LARGE_DOUBLINGS,
    OTHER_PROTOCOL,
    SizePoint,
    deviations,
    without_falls,
)

LL, SIMPLE = ("ring", "LL"), ("ring", "Simple")


def test_between_two_rows_a_deviation_is_that_of_an_ornstein_uhlenbeck_bridge():
    # Its expectation is a * sinh((L - x) / l) / sinh(L / l) + b * sinh(x / l) / sinh(L / l):
    # Mazzolo, Journal of Statistical Mechanics (2017) 023203.
    rows = [SizePoint(2**20, 10**9, LL), SizePoint(2**30, 10**9, LL)]
    grid = [SizePoint(2**power, 10**9, LL) for power in range(20, 31)]
    length, across = LARGE_DOUBLINGS, 10.0
    for first, last in ((0.1, 0.1), (0.2, -0.1), (0.0, 0.3)):
        bridge = [
            (first * math.sinh((across - x) / length) + last * math.sinh(x / length))
            / math.sinh(across / length)
            for x in range(11)
        ]
        found = deviations(rows, [first, last], grid)
        assert found.tolist() == pytest.approx(bridge, abs=0.001)


def test_a_deviation_fades_from_its_row_to_none():
    row = SizePoint(2**20, 10**9, LL)
    far = [row._replace(size_bytes=2**power) for power in range(20, 60)]
    found = deviations([row], [0.5], far)
    assert found[0] == pytest.approx(0.5, abs=0.001)
    assert found.tolist() == sorted(found.tolist(), reverse=True)
    assert found[-1] < 0.05


def test_another_protocol_is_less_alike():
    row = SizePoint(2**20, 10**9, LL)
    same, other = deviations([row], [0.4], [row, row._replace(choice=SIMPLE)])
    assert other == pytest.approx(OTHER_PROTOCOL * same)


def test_equal_sizes_nearly_do_not_tear_the_curve():
    rows = [SizePoint(2**20, 10**9, LL), SizePoint(2**20 + 1, 10**9, LL)]
    found = deviations(rows, [0.2, 0.1], rows)
    assert np.all((found > 0.09) & (found < 0.21))


def test_pools_are_those_of_isotonic_regression():
    # The example of isoreg in R's manual.
    values = np.array([1, 0, 4, 3, 3, 5, 4, 2, 0], float)
    expected = [0.5, 0.5, 3, 3, 3, 3, 3, 3, 3]
    assert without_falls(values, np.zeros(8)).tolist() == pytest.approx(expected)


def test_values_may_fall_by_as_much_as_times_grow():
    growths = np.array([0.1, 0.3])
    kept = np.array([0.0, -0.1, -0.4])
    assert without_falls(kept, growths).tolist() == pytest.approx(kept.tolist())
    fallen = without_falls(np.array([0.0, -0.3, -0.9]), growths)
    assert np.diff(fallen) == pytest.approx(-growths)
