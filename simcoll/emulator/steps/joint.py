"""Switch operations as single flows: all links and costs of their transfers at the *leader*, the first transfer."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.step import distinct

__all__ = ["joint_costs", "joint_links", "partners"]

MARKED = 1 << 26
"""Up to this number of pairs of an operation and a link, marking is faster than sorting."""


def joint_links(leader: Ints, links: Shorts, own: Ints, up: Shorts, linked: Ints | None = None) -> Shorts:
    """The links of all transfers of an operation in the row of its leader, without duplicates, and none in its other rows.

    ``leader`` is -1 for rows of no operation, which keep their links; the rows ``own`` have the links ``up`` in addition. If ``linked``
    rows are given, all leaders and all rows of no operation, the result has only those.
    """
    base = int(max(links.max(initial=0), up.max(initial=0))) + 1
    leaders = np.flatnonzero(leader == np.arange(len(leader)))
    found = _sorted if len(leaders) * base > MARKED else _marked
    paths, rows = found(leaders, base, leader, links, own, up), leaders
    width = max([links.shape[1], *map(len, paths)])
    if linked is not None:
        rows, leader, links = np.searchsorted(linked, leaders), leader[linked], links[linked]
    made = np.full((len(leader), width), -1, np.int32)
    made[:, : links.shape[1]] = np.where(leader[:, None] >= 0, -1, links)
    for row, path in zip(rows.tolist(), paths, strict=True):
        made[row, : len(path)] = path
    return made


def _sorted(leaders: Ints, base: int, leader: Ints, links: Shorts, own: Ints, up: Shorts) -> list[Ints]:
    """The links of each operation, ascending, without duplicates; all are below ``base``."""
    pairs = []
    for owners, columns in ((leader, links), (leader[own], up)):
        for column in columns.T:
            rows = np.flatnonzero((column >= 0) & (owners >= 0))
            pairs.append(owners[rows] * base + column[rows])
    rows, link = np.divmod(distinct(*pairs, np.zeros(0, np.int64)), base)
    return np.split(link, np.searchsorted(rows, leaders[1:])) if len(leaders) else []


def _marked(leaders: Ints, base: int, leader: Ints, links: Shorts, own: Ints, up: Shorts) -> list[Ints]:
    """The same for few leaders. Rows without a leader mark the last row of the table, and padding (-1) the last column."""
    width = base + 1
    marks = np.zeros((len(leaders) + 1) * width, np.bool_)
    place = np.full(len(leader) + 1, len(leaders) * width)
    place[leaders] = np.arange(len(leaders)) * width
    begin = place[leader]
    for column in links.T:
        marks[begin + column] = True  # one index for both is much faster
    for column in up.T:
        marks[begin[own] + column] = True
    return [row.nonzero()[0] for row in marks.reshape(-1, width)[:-1, :-1]]


def joint_costs(
    leader: Ints, delay_fs: Ints, busy_fs: Ints, wire: Ints, post_fs: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """The longest delays and the most bytes of an operation at its leader.

    Its other transfers put no bytes on the wire.
    """
    rows = np.flatnonzero(leader >= 0)
    most = []
    for column in (np.maximum(delay_fs, 0), wire, post_fs):
        largest = np.zeros_like(column)
        np.maximum.at(largest, leader[rows], column[rows])
        most.append(largest)
    joined = [np.where(leader >= 0, top, column) for top, column in zip(most, (delay_fs, wire, post_fs), strict=True)]
    return joined[0], busy_fs, joined[1], joined[2]


def partners(leader: Ints) -> Ints:
    """The next row of the same operation; -1 at its end and for rows of none."""
    found = np.full(len(leader), -1)
    rows = np.flatnonzero(leader >= 0)
    rows = rows[np.argsort(leader[rows], kind="stable")]
    same = leader[rows[1:]] == leader[rows[:-1]]
    found[rows[:-1][same]] = rows[1:][same]
    return found
