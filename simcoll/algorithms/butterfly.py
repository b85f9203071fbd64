"""Butterflies: all ranks pair up in every step, and blocks are halved or doubled along the pairings.

A sequence of pairings closes when the ranks that can be reached in the last k steps are the same for all of them: then they can be
numbered so that a rank sends one range per step. Pairings by XOR are the textbook's; those of swing and bine trees keep partners
nearer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers

__all__ = [
    "all_gather",
    "all_reduce",
    "block_order",
    "fold",
    "numbered",
    "reduce_scatter",
    "rooted_fold",
    "swing_peers",
]


def fold(nranks: int, members: int | None = None) -> tuple[int, Ints, Ints, Ints]:
    """Number of members, the rank of each member, and the ranks that fold: the even ones and their odd partners.

    The members are half of the ranks or more; by default as many as the largest power of two.
    """
    members = 1 << (nranks.bit_length() - 1) if members is None else members
    extra = nranks - members
    member = np.arange(members, dtype=np.int64)
    even = np.arange(0, 2 * extra, 2, dtype=np.int64)
    return members, np.where(member < extra, 2 * member + 1, member + extra), even, even + 1


def rooted_fold(nranks: int, root: int) -> tuple[int, Ints, Ints, Ints]:
    """The same with the ranks counted backwards from the root, so that the root is member 0 and never folds.

    >>> [column.tolist() for column in rooted_fold(5, root=2)[1:]]
    [[2, 1, 0, 4], [3], [4]]
    """
    members, rank_of, even, odd = fold(nranks)
    moved = root + 1
    return members, (rank_of[::-1] + moved) % nranks, (even + moved) % nranks, (odd + moved) % nranks


def swing_peers(members: int, *, mirrored: bool = False) -> Ints:
    """Partner of every member in every step: ``[steps, members]``, at distances 1, 1, 3, 5, 11, ..., alternately to each side.

    In step s an even member talks to the one ``(1 - (-2)^(s + 1)) / 3`` places on, an odd one as far back; ``mirrored`` the other way.

    >>> swing_peers(8).tolist()
    [[1, 0, 3, 2, 5, 4, 7, 6], [7, 2, 1, 4, 3, 6, 5, 0], [3, 6, 5, 0, 7, 2, 1, 4]]
    """
    member = np.arange(members, dtype=np.int64)
    side = np.where(member % 2 == 0, 1, -1) * (-1 if mirrored else 1)
    distances = [(1 - (-2) ** (step + 1)) // 3 for step in range(members.bit_length() - 1)]
    return np.array([(member + side * distance) % members for distance in distances], np.int64).reshape(-1, members)


def numbered(peers: Ints) -> Ints:
    """Number the members so that those reached in the last k steps differ only in the last k bits.

    >>> numbered(np.array([[1, 0, 3, 2], [2, 3, 0, 1]])).tolist()
    [0, 2, 1, 3]
    """
    number = np.zeros(peers.shape[1], np.int64)
    least = np.arange(peers.shape[1], dtype=np.int64)  # of those reached
    for later, partner in enumerate(peers[::-1]):
        lower = np.minimum(least, least[partner])
        number += (least != lower).astype(np.int64) << later
        least = lower
    return number


def block_order(nranks: int, number: Ints, rank_of: Ints, even: Ints, odd: Ints) -> tuple[Ints, Ints]:
    """Blocks in the order of their members' numbers, and the start of each number's blocks; a folded rank's block goes
    with its partner's.
    """
    by_number = rank_of[np.argsort(number)]
    folded = np.full(nranks, -1, np.int64)
    folded[odd] = even
    pairs = np.stack([folded[by_number], by_number], axis=1)
    first = np.concatenate([[0], np.cumsum((pairs >= 0).sum(axis=1))])
    order: Ints = pairs[pairs >= 0]
    return order, first


def _halves(number: Ints, step: int, steps: int) -> tuple[Ints, int]:
    """First number, and how many, of the members that each one can still reach after a step."""
    size = 1 << (steps - 1 - step)
    return number & -size, size


def all_reduce(name: str, collective: Collective, peers: Ints) -> Schedule:
    """Reduce-scatter by halving along the pairings, then all-gather by doubling along them backwards."""
    members, rank_of, even, odd = fold(collective.nranks)
    layout, rank = Layout(collective, members), np.arange(collective.nranks)
    number, vector, count = numbered(peers), layout.output(), len(peers)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, vector, count=members)
        yield transfers(even, vector, odd, vector, count=members, op=REDUCE)
        for step, peer in enumerate(peers):
            theirs, size = _halves(number[peer], step, count)
            yield transfers(rank_of, vector + theirs, rank_of[peer], vector + theirs, count=size, op=REDUCE)
        for step in reversed(range(count)):
            mine, size = _halves(number, step, count)
            yield transfers(rank_of, vector + mine, rank_of[peers[step]], vector + mine, count=size)
        yield transfers(odd, vector, even, vector, count=members)

    return Schedule(name, layout, steps)


def all_gather(name: str, collective: Collective, peers: Ints) -> Schedule:
    """All-gather by doubling, the pairings backwards."""
    n = collective.nranks
    _, rank_of, even, odd = fold(n)
    number = numbered(peers)
    order, first = block_order(n, number, rank_of, even, odd)
    place, rank, slot = np.argsort(order), np.arange(n), np.arange(n)[:, None]
    layout = Layout(collective, 1, order)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.scratch_at(place))
        yield transfers(even, layout.scratch_at(place[even]), odd, layout.scratch_at(place[even]))
        for step in reversed(range(len(peers))):
            mine, size = _halves(number, step, len(peers))
            held = layout.scratch_at(first[mine])
            yield transfers(rank_of, held, rank_of[peers[step]], held, count=first[mine + size] - first[mine])
        yield transfers(odd, layout.scratch_at(), even, layout.scratch_at(), count=n)
        yield transfers(rank, layout.scratch_at(slot), rank, layout.output(order[slot]))

    return Schedule(name, layout, steps)


def reduce_scatter(name: str, collective: Collective, peers: Ints) -> Schedule:
    """Reduce-scatter by halving along the pairings."""
    n = collective.nranks
    _, rank_of, even, odd = fold(n)
    number = numbered(peers)
    order, first = block_order(n, number, rank_of, even, odd)
    place, rank, slot = np.argsort(order), np.arange(n), np.arange(n)[:, None]
    layout = Layout(collective, 1, order)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(order[slot]), rank, layout.scratch_at(slot))
        yield transfers(even, layout.scratch_at(), odd, layout.scratch_at(), count=n, op=REDUCE)
        for step, peer in enumerate(peers):
            theirs, size = _halves(number[peer], step, len(peers))
            given = layout.scratch_at(first[theirs])
            yield transfers(rank_of, given, rank_of[peer], given, count=first[theirs + size] - first[theirs], op=REDUCE)
        yield transfers(rank_of, layout.scratch_at(place[rank_of]), rank_of, layout.output())
        yield transfers(odd, layout.scratch_at(place[even]), even, layout.output())

    return Schedule(name, layout, steps)
