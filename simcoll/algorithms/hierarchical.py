"""Hierarchical algorithms for boxes of ranks with fast links inside and one rail per member between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.errors import ConfigError
from simcoll.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simcoll.collective import Collective

__all__ = ["all_reduce"]


def all_reduce(collective: Collective, *, box: int | None = None, channels: int = 1) -> Schedule:
    """Multi-rail all-reduce: reduce-scatter inside each box, a ring all-reduce over the boxes on every rail, all-gather inside.

    ``box`` is the number of consecutive ranks in a box. With several ``channels`` the phases of different channels overlap.
    """
    n = collective.nranks
    if box is None:
        raise ConfigError("hierarchical needs box=, the number of ranks in a box (for example box=8)")
    if n % box:
        raise ConfigError(f"hierarchical needs a multiple of box={box} ranks, got {n}")
    boxes = n // box
    layout = Layout(collective, channels * n)
    channel = np.arange(channels, dtype=np.int64)[:, None]
    rank = np.arange(n, dtype=np.int64)
    rail, home = rank % box, rank - rank % box
    following = (rank + box) % n

    def share(owner: np.ndarray, segment: int | np.ndarray = 0) -> np.ndarray:
        """The part of the vector that a rail carries, or one of its ``boxes`` segments."""
        chunk: np.ndarray = layout.output(0, channel * n + owner * boxes + segment)
        return chunk

    def inside(op: int) -> Iterator[Step]:
        for shift in range(1, box):
            peer = home + (rail + shift) % box
            part = share(peer % box if op == REDUCE else rail)
            yield transfers(rank, part, peer, part, count=boxes, op=op, channel=channel)

    def between(lead: int, op: int) -> Iterator[Step]:
        for step in range(boxes - 1):
            part = share(rail, (rank // box + lead - step) % boxes)
            yield transfers(rank, part, following, part, op=op, channel=channel)

    def steps() -> Iterator[Step]:
        yield transfers(rank, layout.input(0, channel * n), rank, layout.output(0, channel * n), count=n, channel=channel)
        yield from inside(REDUCE)
        yield from between(0, REDUCE)
        yield from between(1, COPY)
        yield from inside(COPY)

    return Schedule("hierarchical", layout, steps, channels, (("box", box), ("channels", channels)))
