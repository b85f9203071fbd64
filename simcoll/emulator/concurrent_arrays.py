"""Flows of which none waits for another, played by array operations, where no compiler is
installed: what :mod:`simcoll.emulator.fast.concurrent_flows` does for flows of at most two links.

SimPy spends microseconds on each of the flows whose rate an event changes, a quarter of all. Here
an event is some array operations for each *round*, and some for all flows at once.

**Rounds.** The links of a component are the first links of flows, *up*, or the second ones, *down*,
and a flow crosses one of each. So a link takes nothing from those of its own side: all links of a
side whose share is below the lowest share of the other one are frozen together, and only the shares
of the other side change. What precedes each round is kept, and an event continues with the first
one that it can change; see the other module for why.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.emulator.model import FS_PER_SECOND_UBPS, ROUNDING, UNLIMITED
from simcoll.errors import InternalError
from simcoll.units import MAX_TIME_FS

__all__ = ["play_arrays"]

SPARE, PENDING = range(2)
MOST_LINKS = 2048
"""Links of a component, all pairs of which are in memory, three times over: 50 MB at most."""
CHECKED_EVERY = 64
"""Events after which the sum of the rates on each link is compared with its capacity. Any number
from 1 to 4,096 takes the same time (uneven exchange of 48 ranks).
"""
NEVER = 2**64 - 1
"""The key of a link that is not to be frozen: it has its level, or no flow without a rate."""
ONE = np.array(1, np.uint64)  # numpy takes twice as long for a Python integer
LEVELED = np.array(NEVER, np.uint64)


class _Side:
    """The links of one side, and behind the last one that for no link.

    ``state``, [rounds of the other side + 1, 2, links], is what the flows of a link without a rate
    share, and their number, before the first of these rounds and after each; ``version`` is the
    current one. The ``key`` of a link is its share less one, unsigned, and ``signed`` the same:
    numpy divides by 0 to 0, so that links without such flows have the highest key. ``leveled`` has
    all bits where a link has its level. ``crossing`` counts the flows between a link and each of
    the other side. The last ``level`` is that of flows that have not begun, or have ended.
    """

    def __init__(self, capacity: Ints, opposite: int) -> None:
        links = len(capacity)
        self.version = 0
        self.state = np.zeros((opposite + 1, 2, links + 1), np.int64)
        self.state[0, SPARE, :-1] = capacity
        # Views of each: making them in every round takes a tenth of its time.
        self.states = list(self.state)
        self.shares = [(state[SPARE], state[PENDING]) for state in self.states]
        self.key = np.zeros(links + 1, np.uint64)
        self.signed = self.key.view(np.int64)
        self.leveled = np.append(np.zeros(links, np.uint64), np.uint64(NEVER))
        self.crossing = np.zeros((links + 1, opposite + 1), np.int64)
        self.level = np.append(np.full(links + 1, UNLIMITED), 0)

    def divide(self) -> None:
        """Find the keys of the current state."""
        spare, pending = self.shares[self.version]
        np.floor_divide(spare, pending, out=self.signed)
        np.subtract(self.key, ONE, out=self.key)
        np.bitwise_or(self.key, self.leveled, out=self.key)


class _Rounds:
    """The rounds of the last event: the side and links that each froze, and the ``highest`` level
    that they could have got: those of the next round of the other side are above.
    """

    def __init__(self, sides: tuple[_Side, _Side]) -> None:
        self.sides = sides
        self.frozen: list[tuple[_Side, Ints]] = []
        self.highest: list[int] = []
        weights = np.ones((2, max(len(side.key) for side in sides)), np.int64)
        self.weights = [
            (weights[:, :links], weights[SPARE, :links]) for links in range(weights.shape[1] + 1)
        ]

    def count(self, ends: Ints, change: int) -> list[Ints]:
        """Count flows that begin (1) or have ended (-1); return the change of all links."""
        up, down = self.sides
        changes = [np.zeros(len(side.key), np.int64) for side in self.sides]
        for uplink, downlink in ends.T.tolist():  # mostly a single flow
            up.crossing[uplink, downlink] += change
            down.crossing[downlink, uplink] += change
            changes[0][uplink] += change
            changes[1][downlink] += change
        return changes

    def count_unchanged_rounds(self, gained: Sequence[Ints], lowest_rate: int) -> int:
        """The number of the first rounds that flows that end, and new ones, leave as they are;
        ``gained`` counts the new ones on each link, and ``lowest_rate`` is that of those that end.
        """
        turns = bisect_left(self.highest, lowest_rate)
        for side, flows in zip(self.sides, gained, strict=True):
            links = flows[:-1].nonzero()[0]
            if turns and len(links):
                opposite = [frozen is not side for frozen, _ in self.frozen[: turns - 1]]
                state = side.state[np.cumsum([0, *opposite])]
                share = state[:, SPARE, links] // (state[:, PENDING, links] + flows[links])
                changed = (share <= np.array(self.highest[:turns])[:, None]).any(axis=1)
                turns = int(changed.argmax()) if changed.any() else turns
        return turns

    def fill(self, turns: int, gained: Sequence[Ints], lost: Sequence[Ints]) -> None:
        """Repeat the rounds behind the first ``turns``, with another number of flows on each
        link.
        """
        up, down = self.sides
        for side, links in self.frozen[turns:]:
            side.level[links] = UNLIMITED
            side.leveled[links] = 0
            (down if side is up else up).version -= 1
        del self.frozen[turns:], self.highest[turns:]
        for side, gain, loss in zip(self.sides, gained, lost, strict=True):
            side.state[: side.version + 1, PENDING] += gain + loss
            side.divide()
        while True:
            uplink, downlink = up.key.argmin(), down.key.argmin()
            lowest, lowest_down = up.key.item(uplink), down.key.item(downlink)
            if lowest < lowest_down:
                links = (up.key < down.key[downlink, ...]).nonzero()[0]
                self._freeze(up, down, links, up.signed.take(links), lowest_down)
            elif lowest_down < lowest:
                links = (down.key < up.key[uplink, ...]).nonzero()[0]
                self._freeze(down, up, links, down.signed.take(links), lowest)
            elif lowest == NEVER:
                return
            else:
                equal = [(side.key == lowest).nonzero()[0] for side in self.sides]
                self._freeze(up, down, equal[0], up.signed[equal[0]], lowest + 1)
                self._freeze(down, up, equal[1], np.full(len(equal[1]), lowest), lowest + 1)

    def _freeze(self, side: _Side, opposite: _Side, links: Ints, key: Ints, highest: int) -> None:
        """Level links of a side, and take their rates from those of the opposite one."""
        weights, level = self.weights[len(links)]
        np.add(key, 1, out=level)
        side.level[links] = level
        side.key[links] = side.leveled[links] = LEVELED
        self.frozen.append((side, links))
        self.highest.append(min(highest, UNLIMITED))
        rates = np.dot(weights, side.crossing.take(links, axis=0))
        opposite.version += 1
        states, version = opposite.states, opposite.version
        np.subtract(states[version - 1], rates, out=states[version])
        opposite.divide()


class _Rates(NamedTuple):
    """What the flows have: [flows]."""

    remaining: np.ndarray[tuple[int], np.dtype[np.float64]]
    rate: Ints
    since_fs: Ints
    end_fs: Ints


def play_arrays(columns: Shorts, wire: Ints, start_fs: Ints, capacity: Ints) -> Ints | None:
    """When each flow of a component ends; ``None`` if a flow crosses more than two links, a link is
    the first of some flows and the second of others, or may leave nothing to a flow, a flow ends
    beyond the clock, or there are too many links.

    ``columns`` are the links of each flow, padded with the number of links.
    """
    sided = _by_side(columns, capacity)
    if sided is None:
        return None
    ends, rounds = sided
    up, down = rounds.sides
    flows = len(wire)
    rates = _Rates(
        wire.astype(np.float64),
        np.zeros(flows, np.int64),
        np.zeros(flows, np.int64),
        np.full(flows, UNLIMITED),
    )
    limits = np.array([np.full(flows, len(up.key)), ends[1]])  # the level there is 0
    order = np.argsort(start_fs, kind="stable")
    starts = start_fs[order]
    next_flow = events = gone = 0
    end_fs = np.zeros(flows, np.int64)
    with np.errstate(divide="ignore"):
        while gone < flows:
            now_fs = rates.end_fs.item(rates.end_fs.argmin())
            if next_flow < flows:
                now_fs = min(now_fs, starts.item(next_flow))
            if now_fs == UNLIMITED:
                return None
            ended = (rates.end_fs == now_fs).nonzero()[0]
            behind = int(starts.searchsorted(now_fs, side="right"))
            begins = order[next_flow:behind]
            next_flow = behind
            end_fs[ended] = now_fs
            rates.end_fs[ended] = UNLIMITED
            gone += len(ended)
            limits[0, ended] = len(up.key)
            limits[0, begins] = ends[0, begins]
            gained = rounds.count(ends[:, begins], 1)
            lost = rounds.count(ends[:, ended], -1)
            lowest = int(rates.rate[ended].min(initial=UNLIMITED))
            unchanged = rounds.count_unchanged_rounds(gained, lowest)
            rounds.fill(unchanged, gained, lost)
            rate = np.minimum(up.level.take(limits[0]), down.level.take(limits[1]))
            if not _change(rates, rate, now_fs):
                return None
            events += 1
            if events % CHECKED_EVERY == 1:
                _check_capacity(ends, rates.rate, rounds)
    return end_fs


def _by_side(columns: Shorts, capacity: Ints) -> tuple[Ints, _Rounds] | None:
    """Both links of each flow, [2, flows], in numbers of their sides, and the links themselves."""
    links = len(capacity)
    if columns.shape[1] > 2 or links > MOST_LINKS:
        return None
    hops = np.full((2, len(columns)), links)
    hops[: columns.shape[1]] = columns.T
    is_second = np.bincount(hops[1], minlength=links + 1)[:-1] > 0
    flows_on = np.bincount(hops.ravel(), minlength=links + 1)[:-1]
    if is_second[hops[0]].any() or (capacity < flows_on).any():
        return None
    up = np.flatnonzero(~is_second)
    down = np.flatnonzero(is_second)
    number = np.full(links + 1, len(down))  # for no link, the last of the second side
    number[up] = np.arange(len(up))
    number[down] = np.arange(len(down))
    ends: Ints = number[hops]
    sides = _Side(capacity[up], len(down)), _Side(capacity[down], len(up))
    return ends, _Rounds(sides)


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


def _check_capacity(ends: Ints, rate: Ints, rounds: _Rounds) -> None:
    """Compare the rates on each link with its capacity."""
    for side, hops in zip(rounds.sides, ends, strict=True):
        used = np.zeros(len(side.key), np.int64)
        np.add.at(used, hops, rate)
        if (used[:-1] > side.state[0, SPARE, :-1]).any():
            raise InternalError("a link carries more than its capacity")
