"""Max-min fair rates in the fast engine: links at one fixpoint, whatever the order of updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.emulator.fast.calendar import at_time, unlink
from simcoll.emulator.fast.compiled import part
from simcoll.emulator.fast.state import (
    ARGUMENT,
    CLOCK,
    DELIVERED,
    DIRTY,
    MAX,
    NO_RATE,
    NOW,
    OVER,
    STARTED,
    STOP,
    WIDTH,
)

if TYPE_CHECKING:
    from simcoll.emulator.fast.state import State

FS_PER_SECOND_UBPS = 1e21  # as in the model
ROUNDING = 0.3819660112501051


@part
def join(s: State, m: int) -> None:
    """A flow starts: on its links now, with a rate at the end of the timestamp."""
    r = s.reg
    s.left[m] = s.wire[m]
    s.rate[m] = 0
    s.started[r[STARTED]] = m
    r[STARTED] += 1
    for e in range(m * r[WIDTH], (m + 1) * r[WIDTH]):
        l = s.link[e]
        if l < 0:
            break
        first = s.head[l]
        s.next_flow[e] = first
        s.last_flow[e] = -1
        if first >= 0:
            s.last_flow[first] = e
        s.head[l] = e
        s.flows[l] += s.weight[e]
        if s.queued[l] == 0:
            s.queued[l] = 1
            s.queue[r[DIRTY]] = l
            r[DIRTY] += 1


@part
def part_links(s: State, m: int) -> None:
    """A flow is over."""
    r = s.reg
    r[DELIVERED] += s.wire[m]
    for e in range(m * r[WIDTH], (m + 1) * r[WIDTH]):
        l = s.link[e]
        if l < 0:
            break
        following, previous = s.next_flow[e], s.last_flow[e]
        if previous >= 0:
            s.next_flow[previous] = following
        else:
            s.head[l] = following
        if following >= 0:
            s.last_flow[following] = previous
        s.flows[l] -= s.weight[e]
        s.used[l] -= s.rate[m] * s.weight[e]
        if s.head[l] < 0:
            s.level[l] = MAX
        elif s.queued[l] == 0:
            s.queued[l] = 1
            s.queue[r[DIRTY]] = l
            r[DIRTY] += 1


@part
def _limit(s: State, m: int, without: int) -> int:
    """Lowest level on the way of a flow."""
    lowest = MAX
    for e in range(m * s.reg[WIDTH], (m + 1) * s.reg[WIDTH]):
        l = s.link[e]
        if l < 0:
            break
        if l != without and s.level[l] < lowest:
            lowest = s.level[l]
    return lowest


@part
def _water_level(s: State, l: int) -> int:
    """See :func:`simcoll.emulator.model.water_level`."""
    n, left, count = s.flows[l], s.capacity[l], 0
    e = s.head[l]
    if e >= 0 and s.next_flow[e] < 0:
        level: int = left // n
        return MAX if _limit(s, e // s.reg[WIDTH], l) < level else level
    while e >= 0:
        s.limits[count] = _limit(s, e // s.reg[WIDTH], l)
        s.weights[count] = s.weight[e]
        count += 1
        e = s.next_flow[e]
    while count:
        level = left // n
        kept = 0
        for i in range(count):
            limit = s.limits[i]
            if limit < level:
                left -= limit * s.weights[i]
                n -= s.weights[i]
            else:
                s.limits[kept] = limit
                s.weights[kept] = s.weights[i]
                kept += 1
        if kept == count:
            return level
        count = kept
    return MAX


@part
def _set_rate(s: State, m: int, touched: int) -> int:
    """Bring the rate of a flow to the levels of its links; returns how many links are marked as touched."""
    r = s.reg
    rate, old = _limit(s, m, -1), s.rate[m]
    if rate == old and rate > 0:
        return touched
    if rate <= 0:
        r[STOP], r[ARGUMENT] = NO_RATE, m
        return touched
    for e in range(m * r[WIDTH], (m + 1) * r[WIDTH]):
        l = s.link[e]
        if l < 0:
            break
        s.used[l] += (rate - old) * s.weight[e]
        if s.marked[l] == 0:
            s.marked[l] = 1
            s.touched[touched] = l
            touched += 1
    if old:
        s.left[m] -= float(old) * float(r[NOW] - s.since_fs[m]) / FS_PER_SECOND_UBPS
    s.rate[m] = rate
    s.since_fs[m] = r[NOW]
    delay = np.floor(s.left[m] * FS_PER_SECOND_UBPS / float(rate) + ROUNDING)
    whole = MAX if delay >= float(MAX) else max(0, int(delay))
    if whole > MAX - r[NOW]:
        s.finish_fs[m] = MAX
        if old == 0:
            r[STOP], r[ARGUMENT] = CLOCK, whole
        return touched
    s.finish_fs[m] = r[NOW] + whole
    if old == 0 or s.finish_fs[m] < s.key[m]:  # if later, it is moved when its old entry comes up
        if old:
            unlink(s, m)
        at_time(s, m, whole)
    return touched


@part
def _notices(s: State, l: int, lower: int, new: int, old: int) -> bool:
    """Whether a change of another link's level from ``old`` to ``new`` can change that of a link: not if both are above its
    own; nor if it limits none of its flows, and they now want less, or it has one that still wants less than it gives.
    """
    level = s.level[l]
    if lower >= level:
        return False
    if level < MAX:
        return True
    if new < old:
        return False
    return bool(s.next_flow[s.head[l]] >= 0 or new >= s.capacity[l] // s.flows[l])


@part
def _spread(s: State) -> int:
    """Bring levels to the fixpoint; returns how many links changed."""
    r = s.reg
    at, waiting, changed, links = 0, r[DIRTY], 0, len(s.level)
    while waiting > 0:
        l = s.queue[at]
        waiting -= 1
        at = at + 1 if at + 1 < links else 0
        s.queued[l] = 0
        if s.head[l] < 0:
            s.level[l] = MAX
            continue
        old = s.level[l]
        new = _water_level(s, l)
        if new == old:
            continue
        s.level[l] = new
        if s.marked[l] == 0:
            s.marked[l] = 1
            s.changed[changed] = l
            changed += 1
        lower = min(old, new)
        e = s.head[l]
        while e >= 0:
            m = e // r[WIDTH]
            for other in range(m * r[WIDTH], (m + 1) * r[WIDTH]):
                l2 = s.link[other]
                if l2 < 0:
                    break
                if _notices(s, l2, lower, new, old) and l2 != l and s.queued[l2] == 0:
                    s.queued[l2] = 1
                    end = at + waiting
                    s.queue[end if end < links else end - links] = l2
                    waiting += 1
            e = s.next_flow[e]
    r[DIRTY] = 0
    return changed


@part
def settle(s: State) -> None:
    """Give every flow its rate, once everything else of the timestamp has happened."""
    r = s.reg
    changed = _spread(s)
    for i in range(changed):
        s.marked[s.changed[i]] = 0
    touched, started = 0, r[STARTED]
    for i in range(started + changed):
        e = s.started[i] * r[WIDTH] if i < started else s.head[s.changed[i - started]]
        while e >= 0:
            touched = _set_rate(s, e // r[WIDTH], touched)
            e = s.next_flow[e] if i >= started else -1
    r[STARTED] = 0
    for i in range(touched):
        l = s.touched[i]
        s.marked[l] = 0
        if s.used[l] > s.capacity[l]:
            r[STOP], r[ARGUMENT] = OVER, l
