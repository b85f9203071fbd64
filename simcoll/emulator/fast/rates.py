"""Max-min fair rates in the fast engine: a unique fixpoint, whatever the order of updates.

The textbook computes these rates in rounds over all links (:mod:`simcoll.emulator.model` states
them so). Rounds would visit every link in use whenever a flow starts or ends, although most starts
and ends change few rates. Instead every link keeps a *level*, and :func:`settle` repairs what the
flows of one timestamp have disturbed:

    Invariant, after settle: the level of a link is the water level of its capacity and, for each of
    its flows, the lowest level among the flow's other links; the rate of a flow is the lowest level
    of its links.

The model proves that only the max-min levels satisfy this. So repairs may be made in any order, a
queue in the order of arrival suffices, and a link that a change cannot reach (:func:`_notices`) is
never looked at.

**Private hops.** On a link with a single flow the level is the capacity, independently of the
flow's other limits. Such hops of a flow are condensed into one number, ``private_rate``; only
shared links have levels, flow counts and summed rates. Most hops are private in a good schedule.
The price: the numbers of a link are stale while it is private, so the flow that joins second
restores them (:func:`put_on_links`). It must not touch the level if the link is queued. Then others
left at this very timestamp, their dependents were computed from the old level, and :func:`_spread`
tells them of the new one only if it sees the two differ.

**Timers.** Each start or end on a link gives all of its flows a new end, so a calendar entry per
flow would be rewritten again and again. One link *covers* each flow instead: that at which settle
gave the flow its rate. The link has one entry, for the first end of the flows that it covers. A
flow may be covered by another link later, and the entry of the first then fires for nothing; this
is cheaper than finding it, and the next settle sets it again. A new flow that changes no level has
its own entry.

**Bytes.** The remaining bytes of a flow are rounded, so every engine must update them at the same
moments: only when the integer rate changes, never when a timer fires or a level returns to what it
was.
"""

from __future__ import annotations

import numpy as np

from simcoll.emulator.fast.calendar import at_time, unlink
from simcoll.emulator.fast.compiled import part
from simcoll.emulator.fast.progressive import fill, private_share
from simcoll.emulator.fast.state import (
    ARGUMENT,
    CHAIN,
    CLOCK,
    CUT,
    DIRTY,
    FILLED,
    IDLE,
    MAX,
    NO_RATE,
    NOW,
    OVER,
    PATIENCE,
    SETTLED,
    STARTED,
    STOP,
    TOUCHED,
    State,
)

FS_PER_SECOND_UBPS = 1e21  # as in the model
ROUNDING = 0.3819660112501051
FILL_AT = 256
"""Visits of flows after which :func:`_spread` gives up repairs, in addition to one for every four
flows of the component that was filled last. Where flows rarely meet, it is never reached; all pairs
of 64 ranks with unequal messages take 1.7 times as long with 4,096, and two for every flow.
"""


@part
def put_in_queue(s: State, l: int) -> None:
    """Queue a link whose flows have changed, for the next settlement."""
    if s.queued[l] == 0:
        s.queued[l] = 1
        s.queue[s.reg[DIRTY]] = l
        s.reg[DIRTY] += 1


@part
def join(s: State, m: int) -> None:
    """Start a flow: it is on its links now, and gets a rate at the end of the timestamp."""
    r = s.reg
    s.remaining[m] = s.wire[m]
    s.rate[m] = 0
    s.cover[m] = s.finish_fs[m] = -1
    s.started[r[STARTED]] = m
    r[STARTED] += 1
    put_on_links(s, m)


@part
def put_on_links(s: State, m: int) -> None:
    """Insert a flow into the lists of its links."""
    for e in range(s.entry[m], s.entry[m] + s.hops[m]):
        l = s.link[e]
        neighbour = s.head[l]  # insertion at the front needs no tail, and order does not matter
        s.next_flow[e] = neighbour
        s.head[l] = e
        if neighbour >= 0:
            # The first flow was alone here, so the link's numbers are stale.
            if s.shared[neighbour] == 0:
                # If it is queued, others left just now, and its dependents have its old level.
                if s.queued[l] == 0:
                    s.level[l] = private_share(s, neighbour)
                s.flows[l] = s.weight[neighbour]
                s.used[l] = s.rate[s.owner[neighbour]] * s.weight[neighbour]
                _share(s, neighbour)
            s.flows[l] += s.weight[e]
            _share(s, e)
            s.last_flow[neighbour] = e
            put_in_queue(s, l)


@part
def find_private_rate(s: State, m: int) -> None:
    """Compute the least rate that a private hop allows a flow."""
    lowest = MAX
    for e in range(s.entry[m], s.entry[m] + s.hops[m]):
        if s.shared[e] == 0:
            lowest = min(lowest, private_share(s, e))
    s.private_rate[m] = lowest


@part
def _share(s: State, e: int) -> None:
    """Turn a private hop into a shared one."""
    s.shared[e] = 1
    s.last_flow[e] = -1
    find_private_rate(s, s.owner[e])


@part
def part_links(s: State, m: int) -> None:
    """Remove a flow from its links."""
    rate = s.rate[m]
    private = True
    for e in range(s.entry[m], s.entry[m] + s.hops[m]):
        l = s.link[e]
        if s.shared[e] == 0:
            s.head[l] = -1
            continue
        s.shared[e] = 0
        private = False
        following, previous = s.next_flow[e], s.last_flow[e]
        if previous >= 0:
            s.next_flow[previous] = following
        else:
            s.head[l] = following
        if following >= 0:
            s.last_flow[following] = previous
        s.flows[l] -= s.weight[e]
        s.used[l] -= rate * s.weight[e]
        put_in_queue(s, l)
        last = s.head[l]
        if s.next_flow[last] < 0:  # a single flow remains, so its hop is private again
            s.shared[last] = 0
            find_private_rate(s, s.owner[last])
    if not private:
        find_private_rate(s, m)


@part
def _limit(s: State, m: int, without: int) -> int:
    """The rate that all links of a flow except ``without`` (possibly none) allow."""
    lowest: int = s.private_rate[m]
    for e in range(s.entry[m], s.entry[m] + s.hops[m]):
        if s.shared[e]:
            l = s.link[e]
            if l != without:
                lowest = min(lowest, s.level[l])
    return lowest


@part
def _water_level(s: State, l: int) -> int:
    """See :func:`simcoll.emulator.model.water_level`."""
    e = s.head[l]
    if s.shared[e] == 0:
        return private_share(s, e)
    n, spare, count = s.flows[l], s.capacity[l], 0
    level: int = spare // n
    lowest = MAX
    while e >= 0:
        limit = _limit(s, s.owner[e], l)
        s.limits[count] = limit
        s.weights[count] = s.weight[e]
        lowest = min(lowest, limit)
        count += 1
        e = s.next_flow[e]
    if lowest >= level:
        return level
    # Flows with lower limits elsewhere leave capacity to the others, so the level rises until it
    # excludes no further flow. Every pass excludes at least one, or is the last.
    while count:
        level = spare // n
        survivors = 0
        for i in range(count):
            limit = s.limits[i]
            if limit < level:
                spare -= limit * s.weights[i]
                n -= s.weights[i]
            else:
                s.limits[survivors] = limit
                s.weights[survivors] = s.weights[i]
                survivors += 1
        if survivors == count:
            return level
        count = survivors
    return MAX


@part
def _notices(s: State, l: int, lower: int, new: int, old: int) -> bool:
    """Whether a change of another link's level from ``old`` to ``new`` can change the level of
    shared link ``l``.
    """
    # A level depends only on limits below it: those at or above it leave their flows at the level,
    # however high they are. A link at MAX limits none of its flows; it still limits none when they
    # are limited more elsewhere.
    level = s.level[l]
    return bool(lower < level and (level < MAX or new >= old))


@part
def _spread(s: State) -> int:
    """Propagate levels to the fixpoint; return the number of links that changed or lost their
    timer's flow.
    """
    r = s.reg
    # The queue is a ring with room for every link: the flag ``queued`` keeps each link from being
    # in it twice.
    front, waiting = 0, r[DIRTY]
    changed, links = 0, len(s.level)
    visits = 0
    while waiting > 0:
        if visits > FILL_AT + r[FILLED] // 4:
            for place in range(waiting):
                s.touched[place] = s.queue[(front + place) % links]
            changed = fill(s, waiting, changed)
            r[FILLED] = s.moving[0]
            break
        l = s.queue[front]
        waiting -= 1
        front = front + 1 if front + 1 < links else 0
        s.queued[l] = 0
        if s.head[l] < 0:
            continue
        old = s.level[l]
        new = _water_level(s, l)
        visits += s.flows[l]
        # A timer that fires now must be set again even if the level is the same.
        if new == old and s.key[l] != r[NOW]:
            continue
        s.level[l] = new
        if s.marked[l] == 0:
            s.marked[l] = 1
            s.changed[changed] = l
            changed += 1
        lower = min(old, new)
        e = s.head[l] if new != old else -1
        while e >= 0:
            m = s.owner[e]
            for hop in range(s.entry[m], s.entry[m] + s.hops[m]):
                if s.shared[hop] == 0:
                    continue
                l2 = s.link[hop]
                if s.queued[l2] == 0 and l2 != l and _notices(s, l2, lower, new, old):
                    s.queued[l2] = 1
                    end = front + waiting
                    s.queue[end if end < links else end - links] = l2
                    waiting += 1
            e = s.next_flow[e]
    r[DIRTY] = 0
    return changed


@part
def _set_rate(s: State, m: int, cover: int) -> None:
    """Set the rate of a flow to the lowest level of its links."""
    r = s.reg
    s.rated[m] = r[SETTLED]
    rate, old = _limit(s, m, len(s.level)), s.rate[m]
    if rate == old and (rate > 0 or s.finish_fs[m] >= 0):
        if rate == 0:
            _overdue(s, m)
        return
    if rate <= 0 and not _down(s, m):
        r[STOP], r[ARGUMENT] = NO_RATE, m
        return
    gain = rate - old
    for e in range(s.entry[m], s.entry[m] + s.hops[m]):
        if s.shared[e] == 0:
            continue
        l = s.link[e]
        s.used[l] += gain * s.weight[e]
        if s.marked[l] == 0:
            s.marked[l] = 1
            s.touched[r[TOUCHED]] = l
            r[TOUCHED] += 1
    if old:
        s.remaining[m] -= float(old) * float(r[NOW] - s.since_fs[m]) / FS_PER_SECOND_UBPS
    if s.cover[m] < 0 and s.finish_fs[m] >= 0 and s.key[m] > r[NOW]:
        unlink(s, m)
        s.key[m] = 0
    s.rate[m] = rate
    s.since_fs[m] = r[NOW]
    s.cover[m] = cover
    s.finish_fs[m] = MAX
    if rate == 0:  # its timer is the limit of its wait
        if r[PATIENCE] < MAX - r[NOW]:
            s.finish_fs[m] = r[NOW] + r[PATIENCE]
            _overdue(s, m)
        return
    delay = np.floor(s.remaining[m] * FS_PER_SECOND_UBPS / float(rate) + ROUNDING)
    rounded_fs = MAX if delay >= float(MAX) else max(0, int(delay))
    if rounded_fs <= MAX - r[NOW]:
        s.finish_fs[m] = r[NOW] + rounded_fs
    elif old == 0:
        r[STOP], r[ARGUMENT] = CLOCK, rounded_fs


@part
def _down(s: State, m: int) -> bool:
    """Whether a flow waits for a link that events have taken down."""
    if s.reg[PATIENCE] < 0:
        return False
    narrowest: int = MAX
    for e in range(s.entry[m], s.entry[m] + s.hops[m]):
        narrowest = min(narrowest, s.capacity[s.link[e]])
    return narrowest == 0


@part
def _overdue(s: State, m: int) -> None:
    """End the run if a flow has waited too long; errors take precedence."""
    if s.finish_fs[m] <= s.reg[NOW] and s.reg[STOP] == IDLE:
        s.reg[STOP] = CUT


@part
def _set_timer(s: State, m: int, time: int) -> None:
    """Set the timer of a slot (for a link or a single flow) to the first end of its flows."""
    now_fs = s.reg[NOW]
    if s.key[m] > now_fs:
        if s.key[m] == time:
            return
        unlink(s, m)
    s.key[m] = 0
    if time < MAX:
        at_time(s, m, time - now_fs)


@part
def timer(s: State, l: int) -> None:
    """Finish the flows of a link that end now; settling resets the timer."""
    r = s.reg
    e = s.head[l]
    if e >= 0:
        put_in_queue(s, l)
    while e >= 0:
        m = s.owner[e]
        if s.cover[m] == l and s.finish_fs[m] <= r[NOW]:
            s.next_slot[m] = r[CHAIN]
            r[CHAIN] = m
        e = s.next_flow[e]


@part
def settle(s: State) -> None:
    """Assign every flow its rate, after everything else at the timestamp."""
    r = s.reg
    changed = _spread(s)
    for i in range(changed):
        s.marked[s.changed[i]] = 0
    r[SETTLED] += 1  # a new stamp saves clearing the marks of the last settlement
    r[TOUCHED] = 0
    for i in range(changed + r[STARTED]):
        if i < changed:  # every flow on a link
            slot = s.changed[i]
            link, e = slot, s.head[slot]
        else:  # a new flow, unless it was on one of these links
            slot = s.started[i - changed]
            link, e = -1, s.entry[slot]
            if s.rate[slot] > 0:
                continue
        earliest = MAX
        while e >= 0:
            m = s.owner[e]
            if s.rated[m] != r[SETTLED]:
                _set_rate(s, m, link)
            if s.cover[m] == link:
                earliest = min(earliest, s.finish_fs[m])
            e = s.next_flow[e] if link >= 0 else -1
        _set_timer(s, slot, earliest)
    r[STARTED] = 0
    for i in range(r[TOUCHED]):
        l = s.touched[i]
        s.marked[l] = 0
        if s.used[l] > s.capacity[l]:
            r[STOP], r[ARGUMENT] = OVER, l
