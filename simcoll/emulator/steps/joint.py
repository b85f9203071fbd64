"""Switch operations as single flows: all links and costs of their transfers at the *leader*, the
first transfer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.step import distinct

__all__ = ["RowCosts", "joint_costs", "joint_links", "partners"]


class RowCosts(NamedTuple):
    """Costs of messages, without their size; see :class:`simcoll.emulator.steps.timed.Timed`."""

    delay_fs: Ints
    busy_fs: Ints
    wire: Ints
    post_fs: Ints


MARKED = 1 << 26
"""The most pairs of an operation and a link that are marked, with a byte each."""
PAIRS_OF_LINK = 16
"""Up to this number of pairs for each link of a transfer, marking is faster than sorting: it takes
1.3 ns a pair and 6 ns a link, sorting 28 ns a link (1,024 operations over 1,024 ranks: 13 and 39
ms; over 8 ranks in a network of 4,096 links: 5.4 and 0.45 ms).
"""


def joint_links(
    leader: Ints, links: Shorts, raised: Ints, up: Shorts, linked: Ints | None = None
) -> Shorts:
    """The links of all transfers of an operation in the row of its leader, without duplicates, and
    none in its other rows.

    ``leader`` is -1 for rows of no operation, which keep their links; the rows ``raised`` have the
    links ``up`` in addition. If ``linked`` rows are given, all leaders and all rows of no
    operation, the result has only those.
    """
    base = 1 + int(max(links.max(initial=0), up.max(initial=0)))
    leaders = np.flatnonzero(leader == np.arange(len(leader)))
    pairs = len(leaders) * base
    few_pairs = pairs <= min(MARKED, PAIRS_OF_LINK * links.size)
    collect = _links_by_marking if few_pairs else _links_by_sorting
    operation, crossed = collect(leaders, base, leader, links, raised, up)
    begins = np.searchsorted(operation, np.arange(len(leaders)))
    place = np.arange(len(operation)) - begins[operation]
    width = max(links.shape[1], 1 + int(place.max(initial=-1)))
    rows = leaders
    if linked is not None:
        rows = np.searchsorted(linked, leaders)
        leader = leader[linked]
        links = links[linked]
    joint = np.full((len(leader), width), -1, np.int32)
    joint[:, : links.shape[1]] = np.where(leader[:, None] >= 0, -1, links)
    joint[rows[operation], place] = crossed
    return joint


def _links_by_sorting(
    leaders: Ints, base: int, leader: Ints, links: Shorts, raised: Ints, up: Shorts
) -> tuple[Ints, Ints]:
    """The operations, numbered in the order of their leaders, and their links, ascending, without
    duplicates; all links are below ``base``.
    """
    pairs = []
    for owners, columns in ((leader, links), (leader[raised], up)):
        for column in columns.T:
            rows = np.flatnonzero((column >= 0) & (owners >= 0))
            pairs.append(owners[rows] * base + column[rows])
    rows, link = np.divmod(distinct(*pairs, np.zeros(0, np.int64)), base)
    return np.searchsorted(leaders, rows), link


def _links_by_marking(
    leaders: Ints, base: int, leader: Ints, links: Shorts, raised: Ints, up: Shorts
) -> tuple[Ints, Ints]:
    """The same for few leaders. Rows without a leader mark the last row of the table, and padding
    (-1) the last column.
    """
    width = base + 1
    marks = np.zeros((len(leaders) + 1) * width, np.bool_)
    place = np.full(len(leader) + 1, len(leaders) * width)
    place[leaders] = width * np.arange(len(leaders))
    begin = place[leader]
    for column in links.T:
        marks[begin + column] = True  # one index for both is much faster
    for column in up.T:
        marks[begin[raised] + column] = True
    operation, link = marks.reshape(-1, width)[:-1, :-1].nonzero()
    return operation, link


def joint_costs(leader: Ints, costs: RowCosts) -> RowCosts:
    """The longest delays and the most bytes of an operation at its leader.

    Its other transfers put no bytes on the wire.
    """
    rows = np.flatnonzero(leader >= 0)

    def at_leaders(column: Ints, values: Ints) -> Ints:
        largest = np.zeros_like(column)
        np.maximum.at(largest, leader[rows], values[rows])
        return np.where(leader >= 0, largest, column)

    return costs._replace(
        delay_fs=at_leaders(costs.delay_fs, np.maximum(costs.delay_fs, 0)),
        wire=at_leaders(costs.wire, costs.wire),
        post_fs=at_leaders(costs.post_fs, costs.post_fs),
    )


def partners(leader: Ints) -> Ints:
    """The next row of the same operation; -1 at its end and for rows of none."""
    following = np.full(len(leader), -1)
    rows = np.flatnonzero(leader >= 0)
    by_leader = np.argsort(leader[rows], kind="stable")
    rows = rows[by_leader]
    consecutive = leader[rows[1:]] == leader[rows[:-1]]
    following[rows[:-1][consecutive]] = rows[1:][consecutive]
    return following
