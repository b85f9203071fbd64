"""Whole rings and tori among the ranks of a torus."""

import pytest

from simcoll.topology import crossbar, torus
from simcoll.topology.sub_tori import closed_dims

RATE = "45 GB/s"


@pytest.mark.parametrize(
    ("dims", "wrap", "ranks", "expected"),
    [
        ([4, 6], True, range(24), (4, 6)),
        ([4, 6], True, range(6), (6,)),
        ([4, 6], True, range(1, 24, 6), (4,)),
        ([4, 6, 2], True, [12 * row + column for row in range(4) for column in (0, 1)], (4, 2)),
        ([4, 6], True, range(12), ()),  # two of four rows: their ends are not joined
        ([4, 6], [True, False], range(24), ()),
        ([4, 6], [True, False], range(0, 24, 6), (4,)),
        ([4, 2], False, range(2), (2,)),  # two chips are joined by their one link
        ([4, 6], True, [5, 4, 3, 2, 1, 0], ()),
        ([4, 6], True, [0, 1, 2, 3, 4, 11], ()),
        ([4, 6], True, [3], ()),
    ],
)
def test_only_whole_axes_are_rings(dims, wrap, ranks, expected):
    assert closed_dims(torus(dims, RATE, wrap=wrap).with_ranks(list(ranks))) == expected


def test_other_topologies_have_none():
    assert closed_dims(crossbar(4, RATE)) == ()
