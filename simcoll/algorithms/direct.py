"""Direct algorithms: every block goes straight from its source to its destination."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.schedule import Layout, Schedule, Step, joined, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.collective import Collective

__all__ = ["all_to_all", "pairwise_all_to_all"]


def _shift(layout: Layout, shift: int, channels: int) -> Step:
    """Rank r sends its block for rank r + shift."""
    n = layout.collective.nranks
    rank = np.arange(n, dtype=np.int64)
    peer, channel = (rank + shift) % n, np.arange(channels, dtype=np.int64)[:, None]
    return transfers(rank, layout.input(peer, channel), peer, layout.output(rank, channel), channel=channel)


def all_to_all(collective: Collective, *, channels: int = 1) -> Schedule:
    """All blocks at once: one step, in which the messages of a rank share its port."""
    layout = Layout(collective, channels)

    def steps() -> Iterator[Step]:
        yield joined([_shift(layout, shift, channels) for shift in range(collective.nranks)])

    return Schedule("direct", layout, steps, channels, (("channels", channels),))


def pairwise_all_to_all(collective: Collective, *, channels: int = 1) -> Schedule:
    """One peer at a time: in step k rank r sends to rank r + k."""
    layout = Layout(collective, channels)

    def steps() -> Iterator[Step]:
        for shift in range(collective.nranks):
            yield _shift(layout, shift, channels)

    return Schedule("pairwise", layout, steps, channels, (("channels", channels),))
