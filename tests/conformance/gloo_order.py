"""The all_reduce in whose order gloo adds, found by trying: part p of n begins on rank p - 1 and
goes down the ring.

Sums of tensors that n divides are then gloo's to the last bit, in every type; parts of others are
cut elsewhere.
"""

from __future__ import annotations

import numpy as np

from simcoll.core.schedule import REDUCE, Layout, Schedule, transfers


def all_reduce(collective):
    """A ring from rank to rank - 1; None for other collectives."""
    if collective.kind != "all_reduce":
        return None
    n = collective.nranks
    layout, rank = Layout(collective, chunks=n), np.arange(n)

    def turn(lead, **op):
        part = layout.output(0, (rank + lead) % n)
        return transfers(rank, part, (rank - 1) % n, part, **op)

    def steps():
        yield transfers(rank, layout.input(), rank, layout.output(), count=n)
        yield from (turn(step + 1, op=REDUCE) for step in range(n - 1))
        yield from (turn(step) for step in range(n - 1))

    return Schedule("gloo", layout, steps)
