"""Attempts of NCCL's search remembered in the process: versions of NCCL make mostly the same ones,
and each may take a quarter of a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from simcoll.libraries.nccl.channel_search import ChannelSearch, Draft

__all__ = ["AttemptMemory"]

_Attempt: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _SearchedLayout:
    """Devices and links as attempts see them, and for every attempt the better channels, or None,
    and the number of steps left.
    """

    digest: str
    outcomes: dict[_Attempt, tuple[Draft | None, int]] = field(default_factory=dict)


@lru_cache(maxsize=8)  # of a host with two groups of GPUs, the layouts of four versions
def _searched_layout(digest: str) -> _SearchedLayout:
    return _SearchedLayout(digest)


class AttemptMemory:
    """The attempts of a search, of which equal ones are made once."""

    def __init__(self, channels: ChannelSearch) -> None:
        self.channels = channels
        self.outcomes = _searched_layout(channels.layout_digest()).outcomes

    def run(
        self, draft: Draft, best: Draft, steps: int, optimum: tuple[int, int] | None
    ) -> tuple[Draft, int]:
        """As :meth:`ChannelSearch.run`."""
        attempt = (*_demands(draft), *_merits(best), steps, optimum)
        if attempt not in self.outcomes:
            better, remaining = self.channels.run(draft, best, steps, optimum)
            self.outcomes[attempt] = None if better is best else better, remaining
        remembered, remaining = self.outcomes[attempt]
        return best if remembered is None else remembered, remaining


def _demands(draft: Draft) -> _Attempt:
    """The channels that an attempt is to find, and the links that it counts from."""
    return (
        draft.pattern,
        draft.min_channels,
        draft.max_channels,
        draft.cross_nic,
        draft.speed_inside,
        draft.speed_between,
        draft.type_inside,
        draft.type_to_nic,
        draft.same_channels,
        draft.hops,
        draft.net_latency_us,
    )


def _merits(best: Draft) -> _Attempt:
    """The channels that an attempt is to better, as far as it compares them."""
    return (
        best.pattern,
        best.cross_nic,
        best.channels,
        best.speed_inside,
        best.speed_between,
        best.hops,
    )
