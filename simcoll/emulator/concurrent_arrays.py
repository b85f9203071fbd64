"""Flows of which none waits for another, played by array operations, where no compiler is
installed: what :mod:`simcoll.emulator.fast.concurrent_flows` does for flows of at most two links.

SimPy spends microseconds on each of the flows whose rate an event changes, a quarter of all. Here
an event is some array operations for each *round*, and some for all flows at once.

**Rounds.** The links of a component are the first links of flows, or the second ones, and a flow
crosses one of each. So a link takes nothing from those of its own side: all links of a side whose
share is below the lowest share of the other one are frozen together. What precedes each round is
kept, and an event continues with the first one that it can change; see the other module for why.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.emulator.model import FS_PER_SECOND_UBPS, ROUNDING, UNLIMITED
from simcoll.errors import InternalError
from simcoll.units import MAX_TIME_FS

__all__ = ["play_arrays"]

SPARE, PENDING = range(2)
MOST_LINKS = 2048
"""Links of a component, all pairs of which are in memory, three times over: 100 MB at most."""
CHECKED_EVERY = 64
"""Events after which the sum of the rates on each link is compared with its capacity."""


class _Rounds:
    """The links of a component, and the rounds of the last event.

    ``state``, [rounds + 1, 2, links + 1], is what precedes each round: what the flows of a link
    without a rate share, and their number, at most 0 if the link has its level. The last column is
    for no link. ``highest`` is the highest level of each round.
    """

    def __init__(self, capacity: Ints, sides: int) -> None:
        links = len(capacity)
        self.sides = sides
        self.state = np.zeros((links + 1, 2, links + 1), np.int64)
        self.state[0, SPARE, :-1] = capacity
        self.crossing = np.zeros((links + 1, links + 1), np.int64)
        self.level = np.full(links + 1, UNLIMITED)
        self.frozen: list[Ints] = []
        self.highest: list[int] = []

    def count_unchanged_rounds(self, gained: Ints, lowest_rate: int) -> int:
        """The number of the first rounds that flows that end, and new ones, leave as they are;
        ``gained`` counts the new ones on each link, and ``lowest_rate`` is that of those that end.
        """
        turns = bisect_left(self.highest, lowest_rate)
        links = np.flatnonzero(gained[:-1])
        for turn in range(turns if len(links) else 0):
            spare, pending = self.state[turn][:, links]
            share = spare // (np.maximum(pending, 0) + gained[links])
            if (share <= self.highest[turn]).any():
                return turn
        return turns

    def fill(self, turns: int, change: Ints) -> bool:
        """Repeat the rounds behind the first ``turns``, with another number of flows on each link;
        return whether every link leaves something to its flows.
        """
        for links in self.frozen[turns:]:
            self.level[links] = UNLIMITED
        del self.frozen[turns:], self.highest[turns:]
        self.state[: turns + 1, PENDING] += change
        self.state[: turns + 1, PENDING, -1] = 0
        share = np.empty_like(self.level)
        while True:
            spare, pending = state = self.state[turns]
            share.fill(UNLIMITED)
            np.floor_divide(spare, pending, out=share, where=pending > 0)
            lowest, links = self._next(share)
            if lowest == UNLIMITED or lowest <= 0:
                return lowest > 0
            level = share[links]
            rates = np.ones((2, len(links)), np.int64)
            rates[SPARE] = level
            turns += 1
            np.subtract(state, rates @ self.crossing[links], out=self.state[turns])
            self.state[turns, PENDING, links] = 0
            self.level[links] = level
            self.frozen.append(links)
            self.highest.append(max(level.tolist()))

    def _next(self, share: Ints) -> tuple[int, Ints]:
        """The lowest share, and the links of the next round."""
        sides, minimum = self.sides, np.minimum.reduce  # `min` costs another microsecond
        low, high = minimum(share[:sides]), minimum(share[sides:])
        if low < high:
            return int(low), (share[:sides] < high).nonzero()[0]
        if high < low:
            return int(high), sides + (share[sides:] < low).nonzero()[0]
        return int(low), (share == low).nonzero()[0]


class _Rates(NamedTuple):
    """What the flows have: [flows]."""

    remaining: np.ndarray[tuple[int], np.dtype[np.float64]]
    rate: Ints
    since_fs: Ints
    end_fs: Ints


def play_arrays(columns: Shorts, wire: Ints, start_fs: Ints, capacity: Ints) -> Ints | None:
    """When each flow of a component ends; ``None`` if a flow crosses more than two links, a link is
    the first of some flows and the second of others, or leaves nothing to a flow, a flow ends
    beyond the clock, or there are too many links.

    ``columns`` are the links of each flow, padded with the number of links.
    """
    sided = _by_side(columns, capacity)
    if sided is None:
        return None
    ends, rounds = sided
    flows, links = len(wire), len(capacity)
    rates = _Rates(
        wire.astype(np.float64),
        np.zeros(flows, np.int64),
        np.zeros(flows, np.int64),
        np.full(flows, UNLIMITED),
    )
    begun, order = np.zeros(flows, np.bool_), np.argsort(start_fs, kind="stable")
    starts = start_fs[order]
    next_flow = events = gone = 0
    end_fs = np.zeros(flows, np.int64)
    while gone < flows:
        now_fs = int(rates.end_fs.min())
        if next_flow < flows:
            now_fs = min(now_fs, int(starts[next_flow]))
        if now_fs == UNLIMITED:
            return None
        ended = np.flatnonzero(rates.end_fs == now_fs)
        behind = int(np.searchsorted(starts, now_fs, side="right"))
        begins, next_flow = order[next_flow:behind], behind
        end_fs[ended], rates.end_fs[ended] = now_fs, UNLIMITED
        gone += len(ended)
        begun[ended], begun[begins] = False, True
        gained, lost = (
            np.bincount(ends[:, rows].ravel(), minlength=links + 1) for rows in (begins, ended)
        )
        for rows, change in ((begins, 1), (ended, -1)):
            np.add.at(rounds.crossing, tuple(ends[:, rows]), change)
            np.add.at(rounds.crossing, tuple(ends[::-1, rows]), change)
        lowest = int(rates.rate[ended].min(initial=UNLIMITED))
        if not rounds.fill(rounds.count_unchanged_rounds(gained, lowest), gained - lost):
            return None
        if not _change(rates, np.where(begun, rounds.level[ends].min(axis=0), 0), now_fs):
            return None
        events += 1
        if events % CHECKED_EVERY == 1:
            _check_capacity(ends, rates.rate, rounds.state[0, SPARE])
    return end_fs


def _by_side(columns: Shorts, capacity: Ints) -> tuple[Ints, _Rounds] | None:
    """Both links of each flow, [2, flows], in numbers by side, and the links themselves."""
    links = len(capacity)
    if columns.shape[1] > 2 or links > MOST_LINKS:
        return None
    hops = np.full((2, len(columns)), links)
    hops[: columns.shape[1]] = columns.T
    is_second = np.bincount(hops[1], minlength=links + 1)[:-1] > 0
    if is_second[hops[0]].any():
        return None
    order = np.argsort(is_second, kind="stable")
    number = np.full(links + 1, links)
    number[order] = np.arange(links)
    ends: Ints = number[hops]
    return ends, _Rounds(capacity[order], int((~is_second).sum()))


def _change(rates: _Rates, rate: Ints, now_fs: int) -> bool:
    """Give flows another rate where it differs; return whether all of them end within the clock."""
    flows = np.flatnonzero(rate != rates.rate)
    old, rate = rates.rate[flows], rate[flows]
    elapsed = (now_fs - rates.since_fs[flows]).astype(np.float64)
    remaining = rates.remaining[flows] - old.astype(np.float64) * elapsed / FS_PER_SECOND_UBPS
    rates.remaining[flows], rates.rate[flows], rates.since_fs[flows] = remaining, rate, now_fs
    going = rate > 0
    flows, old = flows[going], old[going]
    delay = np.floor(remaining[going] * FS_PER_SECOND_UBPS / rate[going].astype(float) + ROUNDING)
    fits = delay < float(MAX_TIME_FS)
    delay_fs = np.where(fits, np.maximum(delay, 0), 0).astype(np.int64)
    late = ~fits | (delay_fs > MAX_TIME_FS - now_fs)
    rates.end_fs[flows] = np.where(late, UNLIMITED, now_fs + np.where(late, 0, delay_fs))
    return not bool((late & (old == 0)).any())


def _check_capacity(ends: Ints, rate: Ints, capacity: Ints) -> None:
    """Compare the rates on each link with its capacity."""
    used = np.zeros(len(capacity), np.int64)
    for side in ends:
        np.add.at(used, side, rate)
    if (used[:-1] > capacity[:-1]).any():
        raise InternalError("a link carries more than its capacity")
