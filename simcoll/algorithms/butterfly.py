"""Butterflies: all ranks pair up in every step, and blocks are halved or doubled along the
pairings.

A sequence of pairings closes if the set of ranks reachable in the last k steps is the same for all
its members: ranks can then be numbered so that each sends one range per step. Pairings by XOR are
the textbook's; those of swing and bine trees keep partners closer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers

__all__ = [
    "BlockPlacement",
    "all_gather",
    "all_reduce",
    "fold",
    "reduce_scatter",
    "rooted_fold",
    "swing_peers",
]


class FoldedRanks(NamedTuple):
    """Number of members, the rank of each member, and the ranks that fold: the even ones and their
    odd partners.
    """

    members: int
    rank_of: Ints
    even: Ints
    odd: Ints


def fold(nranks: int, members: int | None = None) -> FoldedRanks:
    """The members of a butterfly, and the ranks that fold into one.

    At least half of the ranks are members; by default the largest power of two.
    """
    members = 1 << (nranks.bit_length() - 1) if members is None else members
    extra = nranks - members
    member = np.arange(members, dtype=np.int64)
    even = np.arange(0, 2 * extra, 2, dtype=np.int64)
    rank_of = np.where(member < extra, 2 * member + 1, member + extra)
    return FoldedRanks(members, rank_of, even, even + 1)


def rooted_fold(nranks: int, root: int) -> FoldedRanks:
    """The same with the ranks counted backwards from the root, so that the root is member 0 and
    never folds.

    >>> [column.tolist() for column in rooted_fold(5, root=2)[1:]]
    [[2, 1, 0, 4], [3], [4]]
    """
    ranks, shift = fold(nranks), root + 1
    return FoldedRanks(
        ranks.members,
        (ranks.rank_of[::-1] + shift) % nranks,
        (ranks.even + shift) % nranks,
        (ranks.odd + shift) % nranks,
    )


def swing_peers(members: int, *, mirrored: bool = False) -> Ints:
    """Partner of every member in every step: ``[steps, members]``, at distances 1, 1, 3, 5, 11,
    ..., alternately to each side.

    In step s an even member's partner is ``(1 - (-2)^(s + 1)) / 3`` places on, an odd one's as far
    back; ``mirrored`` swaps the two.

    >>> swing_peers(8).tolist()
    [[1, 0, 3, 2, 5, 4, 7, 6], [7, 2, 1, 4, 3, 6, 5, 0], [3, 6, 5, 0, 7, 2, 1, 4]]
    """
    member = np.arange(members, dtype=np.int64)
    side = np.where(member % 2 == 0, 1, -1)
    if mirrored:
        side = -side
    steps = range(members.bit_length() - 1)
    distances = [(1 - (-2) ** (step + 1)) // 3 for step in steps]
    peers = [(member + side * distance) % members for distance in distances]
    return np.array(peers, np.int64).reshape(-1, members)


def member_numbers(peers: Ints) -> Ints:
    """Number the members so that those reachable in the last k steps differ only in the last k
    bits.

    >>> member_numbers(np.array([[1, 0, 3, 2], [2, 3, 0, 1]])).tolist()
    [0, 2, 1, 3]
    """
    number = np.zeros(peers.shape[1], np.int64)
    smallest = np.arange(peers.shape[1], dtype=np.int64)  # of those reachable
    for later, partner in enumerate(peers[::-1]):
        lower = np.minimum(smallest, smallest[partner])
        number += (smallest != lower).astype(np.int64) << later
        smallest = lower
    return number


class BlockPlacement:
    """A placement of the blocks in which the blocks that a member is still responsible for after a
    step form one range.

    Blocks are in the order of their members' numbers, from the root on if there is one; a folded
    rank's block accompanies its partner's.
    """

    def __init__(self, collective: Collective, peers: Ints) -> None:
        n, root = collective.nranks, collective.root
        ranks = fold(n) if root is None else rooted_fold(n, root)
        self.rank_of, self.even, self.odd = ranks.rank_of, ranks.even, ranks.odd
        self.peers = peers
        self.number = member_numbers(peers)
        by_number = self.rank_of[np.argsort(self.number)]
        folded = np.full(n, -1, np.int64)
        folded[self.odd] = self.even
        pairs = np.stack([folded[by_number], by_number], axis=1)
        blocks_per_member = (pairs >= 0).sum(axis=1)
        self._first = np.concatenate([[0], np.cumsum(blocks_per_member)])
        self.order: Ints = pairs[pairs >= 0]
        self.place = np.argsort(self.order)
        self.layout = Layout(collective, 1, self.order)

    def range_after(self, number: Ints, step: int) -> tuple[Ints, Ints]:
        """First place and number of the blocks of the members that each number can still reach
        after a step.
        """
        low, size = _halves(number, step, len(self.peers))
        start, end = self._first[low], self._first[low + size]
        return start, end - start


def _halves(number: Ints, step: int, steps: int) -> tuple[Ints, int]:
    """First number and count of the members that each one can still reach after a step."""
    size = 1 << (steps - 1 - step)
    return number & -size, size


def all_reduce(name: str, collective: Collective, peers: Ints) -> Schedule:
    """Reduce-scatter by halving along the pairings, then all-gather by doubling along the reversed
    pairings.
    """
    ranks = fold(collective.nranks)
    members, rank_of = ranks.members, ranks.rank_of
    even, odd = ranks.even, ranks.odd
    layout = Layout(collective, members)
    rank = np.arange(collective.nranks)
    number, vector = member_numbers(peers), layout.output()
    count = len(peers)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, vector, count=members)
        yield transfers(even, vector, odd, vector, count=members, op=REDUCE)
        for step, peer in enumerate(peers):
            theirs, size = _halves(number[peer], step, count)
            half = vector + theirs
            yield transfers(rank_of, half, rank_of[peer], half, count=size, op=REDUCE)
        for step in reversed(range(count)):
            mine, size = _halves(number, step, count)
            half = vector + mine
            receiver = rank_of[peers[step]]
            yield transfers(rank_of, half, receiver, half, count=size)
        yield transfers(odd, vector, even, vector, count=members)

    return Schedule(name, layout, steps)


def all_gather(name: str, collective: Collective, peers: Ints) -> Schedule:
    """All-gather by doubling along the reversed pairings."""
    n, blocks = collective.nranks, BlockPlacement(collective, peers)
    layout, place = blocks.layout, blocks.place
    rank_of, even, odd = blocks.rank_of, blocks.even, blocks.odd
    rank = np.arange(n)
    slot = rank[:, None]

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.scratch_at(place))
        folded = layout.scratch_at(place[even])
        yield transfers(even, folded, odd, folded)
        for step in reversed(range(len(peers))):
            mine, count = blocks.range_after(blocks.number, step)
            address = layout.scratch_at(mine)
            receiver = rank_of[peers[step]]
            yield transfers(rank_of, address, receiver, address, count=count)
        start = layout.scratch_at()
        yield transfers(odd, start, even, start, count=n)
        blocks_in_order = layout.output(blocks.order[slot])
        yield transfers(rank, layout.scratch_at(slot), rank, blocks_in_order)

    return Schedule(name, layout, steps)


def reduce_scatter(name: str, collective: Collective, peers: Ints) -> Schedule:
    """Reduce-scatter by halving along the pairings."""
    n, blocks = collective.nranks, BlockPlacement(collective, peers)
    layout, place = blocks.layout, blocks.place
    rank_of, even, odd = blocks.rank_of, blocks.even, blocks.odd
    rank = np.arange(n)
    slot = rank[:, None]

    def steps() -> Iterator[Step]:
        blocks_in_order = layout.input(blocks.order[slot])
        yield transfers(rank, blocks_in_order, rank, layout.scratch_at(slot))
        start = layout.scratch_at()
        yield transfers(even, start, odd, start, count=n, op=REDUCE)
        for step, peer in enumerate(peers):
            theirs, count = blocks.range_after(blocks.number[peer], step)
            address = layout.scratch_at(theirs)
            receiver = rank_of[peer]
            yield transfers(rank_of, address, receiver, address, count=count, op=REDUCE)
        total = layout.output()
        yield transfers(rank_of, layout.scratch_at(place[rank_of]), rank_of, total)
        yield transfers(odd, layout.scratch_at(place[even]), even, total)

    return Schedule(name, layout, steps)
