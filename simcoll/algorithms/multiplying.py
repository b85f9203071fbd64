"""Recursive multiplying: recursive doubling with groups of ``radix`` ranks instead of pairs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms.butterfly import fold
from simcoll.algorithms.compose import in_channels
from simcoll.algorithms.registered import algorithm
from simcoll.core.collective import Collective
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

__all__ = ["all_reduce", "factors_of"]

PLACE = 8  # in listings

MOST = 8


def factors_of(nranks: int, radix: int) -> list[int]:
    """Group sizes of the rounds: ``radix`` as often as it fits into the number of ranks, then the
    rest.

    >>> factors_of(16, 4), factors_of(27, 4), factors_of(3, 4)
    ([4, 4], [4, 4], [3])
    """
    factors = []
    while nranks >= radix:
        factors.append(radix)
        nranks //= radix
    return [*factors, nranks] if nranks > 1 else factors


@algorithm(
    "all_reduce",
    "recursive_multiplying",
    cost="lg n / lg radix (a + (radix-1) s (b + g)), n = radix^k",
    source="Ruefenacht, Bull, Booth: Generalisation of recursive doubling for AllReduce, ParCo 69 "
    "(2017)",
    pattern="tree",
    order="position-independent",
    shared=in_channels,
)
def all_reduce(collective: Collective, *, radix: int = 4) -> Schedule:
    """In every round, groups of ``radix`` ranks exchange whole vectors, and each adds those of its
    group in rank order.

    Two members share a group in a round if their numbers, written with base ``radix``, differ only
    in the digit of the round. The last round may have smaller groups; surplus ranks first fold into
    a partner, as in recursive doubling.
    """
    if not 2 <= radix <= MOST:
        raise ConfigError(f"radix={radix}: recursive_multiplying has groups of 2 to {MOST} ranks")
    n, factors = collective.nranks, factors_of(collective.nranks, radix)
    ranks = fold(n, int(np.prod(factors, dtype=np.int64)))
    members, rank_of = ranks.members, ranks.rank_of
    even, odd = ranks.even, ranks.odd
    layout, member = Layout(collective, 1, np.zeros(1, np.int64)), np.arange(members)
    buffers = (layout.output(), layout.scratch_at())

    def steps() -> Iterator[Step]:
        vector, weight = buffers[len(factors) % 2], 1
        yield transfers(np.arange(n), layout.input(), np.arange(n), vector)
        yield transfers(even, vector, odd, vector, op=REDUCE)
        for size in factors:
            total = buffers[vector == buffers[0]]
            digit = np.arange(size)[:, None]
            peer = member + (digit - member // weight % size) * weight
            yield transfers(rank_of[peer], vector, rank_of, total, op=np.where(digit, REDUCE, COPY))
            vector, weight = total, weight * size
        yield transfers(odd, vector, even, vector)

    return Schedule("recursive_multiplying", layout, steps)
