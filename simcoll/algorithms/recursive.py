"""Recursive doubling and halving: partners at distances 1, 2, 4, ...

Rank counts that are not a power of two fold first: in each of the first pairs of ranks, the even
rank hands its data to the odd one, and receives the result at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms import butterfly
from simcoll.algorithms.butterfly import fold, rooted_fold
from simcoll.algorithms.compose import in_channels
from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers

__all__ = [
    "doubling_all_gather",
    "doubling_all_reduce",
    "halving_reduce_scatter",
    "rabenseifner_all_reduce",
    "rabenseifner_reduce",
]

PLACE = 7  # in listings

THAKUR = (
    "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in "
    "MPICH, IJHPCA 19 (2005)"
)


def _first_blocks(nranks: int) -> Ints:
    """Member m is responsible for the blocks ``[first[m], first[m + 1])``: its own and that of the
    rank folded into it.
    """
    members = 1 << (nranks.bit_length() - 1)
    member = np.arange(members + 1, dtype=np.int64)
    return member + np.minimum(member, nranks - members)


def _masks(members: int) -> list[int]:
    return [1 << level for level in range(members.bit_length() - 1)]


@algorithm(
    "all_reduce",
    "recursive_doubling",
    cost="lg n (a + s b + s g), n = 2^k",
    source=THAKUR,
    pattern="tree",
    order="position-independent",
    shared=in_channels,
)
def doubling_all_reduce(collective: Collective) -> Schedule:
    """Partners at distances 1, 2, 4, ... exchange whole vectors, and each adds what it receives to
    its own.
    """
    layout, rank = Layout(collective), np.arange(collective.nranks)
    ranks = fold(collective.nranks)
    members, rank_of = ranks.members, ranks.rank_of
    even, odd = ranks.even, ranks.odd
    vector = layout.output()

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, vector)
        yield transfers(even, vector, odd, vector, op=REDUCE)
        for mask in _masks(members):
            partner = rank_of[np.arange(members) ^ mask]
            yield transfers(rank_of, vector, partner, vector, op=REDUCE)
        yield transfers(odd, vector, even, vector)

    return Schedule("recursive_doubling", layout, steps)


@algorithm(
    "all_gather",
    "recursive_doubling",
    cost="lg n a + (n-1)/n s b, n = 2^k",
    source=THAKUR,
    pattern="tree",
)
def doubling_all_gather(collective: Collective) -> Schedule:
    """Partners exchange all their blocks at distances 1, 2, 4, ...

    Of a folding pair one sends first and receives all at the end.
    """
    n = collective.nranks
    ranks = fold(n)
    members, rank_of = ranks.members, ranks.rank_of
    even, odd = ranks.even, ranks.odd
    layout = Layout(collective)
    rank, member = np.arange(n), np.arange(members)
    start = _first_blocks(n)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(rank))
        yield transfers(even, layout.output(even), odd, layout.output(even))
        for mask in _masks(members):
            low = member & ~(mask - 1)
            address = layout.output(start[low])
            yield transfers(
                rank_of,
                address,
                rank_of[member ^ mask],
                address,
                count=start[low + mask] - start[low],
            )
        yield transfers(odd, layout.output(), even, layout.output(), count=n)

    return Schedule("recursive_doubling", layout, steps)


@algorithm(
    "all_reduce",
    "rabenseifner",
    cost="2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k",
    source=THAKUR,
    pattern="tree",
    order="position-independent",
    shared=in_channels,
)
def rabenseifner_all_reduce(collective: Collective) -> Schedule:
    """Recursive halving reduce-scatter, then recursive doubling all-gather: the bytes of a ring in
    2 lg n steps.
    """
    members = fold(collective.nranks).members
    partners = [np.arange(members) ^ mask for mask in _masks(members)]
    return butterfly.all_reduce(
        "rabenseifner", collective, np.array(partners, np.int64).reshape(-1, members)
    )


@algorithm(
    "reduce",
    "rabenseifner",
    cost="2 lg n a + 2(n-1)/n s b + (n-1)/n s g, n = 2^k",
    source=THAKUR,
    pattern="tree",
    order="position-independent",
    shared=in_channels,
)
def rabenseifner_reduce(collective: Collective) -> Schedule:
    """Recursive halving reduce-scatter, then binomial gather to the root of the segments."""
    n = collective.nranks
    ranks = rooted_fold(n, collective.root or 0)
    members, rank_of = ranks.members, ranks.rank_of
    even, odd = ranks.even, ranks.odd
    layout = Layout(collective, members)
    rank, member, vector = np.arange(n), np.arange(members), layout.output()

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, vector, count=members)
        yield transfers(even, vector, odd, vector, count=members, op=REDUCE)
        for mask in reversed(_masks(members)):
            peer = member ^ mask
            address = vector + (peer & ~(mask - 1))
            yield transfers(rank_of, address, rank_of[peer], address, count=mask, op=REDUCE)
        for mask in _masks(members):
            child = np.arange(mask, members, 2 * mask)
            segment = vector + child
            yield transfers(rank_of[child], segment, rank_of[child - mask], segment, count=mask)

    return Schedule("rabenseifner", layout, steps)


@algorithm(
    "reduce_scatter",
    "recursive_halving",
    cost="lg n a + (n-1)/n s (b + g), n = 2^k",
    source=THAKUR,
    pattern="tree",
    order="position-independent",
)
def halving_reduce_scatter(collective: Collective) -> Schedule:
    """Partners at distances n/2, ..., 2, 1 reduce the half of the blocks that belongs to the
    other's side.
    """
    n = collective.nranks
    ranks = fold(n)
    members, rank_of = ranks.members, ranks.rank_of
    even, odd = ranks.even, ranks.odd
    layout = Layout(collective, 1, np.arange(n))
    rank, member = np.arange(n), np.arange(members)
    start = _first_blocks(n)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.scratch_at(), count=n)
        yield transfers(even, layout.scratch_at(), odd, layout.scratch_at(), count=n, op=REDUCE)
        for mask in reversed(_masks(members)):
            peer_block = (member ^ mask) & ~(mask - 1)
            address = layout.scratch_at(start[peer_block])
            yield transfers(
                rank_of,
                address,
                rank_of[member ^ mask],
                address,
                count=start[peer_block + mask] - start[peer_block],
                op=REDUCE,
            )
        yield transfers(rank_of, layout.scratch_at(rank_of), rank_of, layout.output())
        yield transfers(odd, layout.scratch_at(even), even, layout.output())

    return Schedule("recursive_halving", layout, steps)
