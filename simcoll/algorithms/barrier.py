"""Barriers: messages without data, after which every rank knows that all have entered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.schedule import SYNC, Layout, Schedule, Step, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.collective import Collective

__all__ = ["dissemination"]


def dissemination(collective: Collective) -> Schedule:
    """Dissemination barrier: in step k rank r tells rank r + 2^k what it knows."""
    n = collective.nranks
    rank = np.arange(n, dtype=np.int64)

    def steps() -> Iterator[Step]:
        for level in range((n - 1).bit_length()):
            yield transfers(rank, 0, (rank + (1 << level)) % n, 0, op=SYNC)

    return Schedule("dissemination", Layout(collective), steps)
