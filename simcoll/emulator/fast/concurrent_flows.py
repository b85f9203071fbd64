"""Many flows of which none waits for another: all pairs at once, a dispatch to experts.

The loops with a calendar (:mod:`simcoll.emulator.fast.loops`) level a component of links again
whenever a flow begins or ends, and reach every flow through lists of hops. Where all start times
are known beforehand, nothing but the links connects the flows: a component is played on its own,
and the next event is the lowest of a few numbers.

Each end of a flow changes the rates of a quarter of all flows, so an event must not visit each of
them. They are visited by *groups*: a link limits the flows that no link before it, in the order of
the rounds, limits. All flows of a group have one rate, and nearly always the same since when, so

* what a round takes from the other links is a row of ``crossing``, which counts the flows of a
  group that cross each link;
* a new rate takes the same number of bytes from each flow of the group, whose bytes are contiguous;
* the first of them to end is the one with the fewest bytes, which remains so: rounding never
  reverses two numbers from which the same is taken.

**Rounds.** As in :mod:`simcoll.emulator.fast.progressive`, but what they leave on the links is kept
after every few of them, so that the next event begins with the first round that it can change.

    Invariant: rounds whose share is below the rate of every flow that ended, and below the water
    level of every link on which a flow begins, are those of the last event.

A flow that ends had no rate in these rounds, and neither of its links was frozen in them: without
it, their shares are higher. A flow that begins has none either, as long as its links are not
frozen; and no link is frozen in a round whose share is below its water level, computed with the
levels of the last event, for as long as the rounds are those of the last event.

**Order.** Levels change by little, so the order of the links does, too. When a link is frozen, the
links that preceded it and are not yet frozen are those that it overtakes, and flows that cross both
pass to its group; no other flow ever changes its group. Links of equal share keep their order.

**Bytes** and ends are rounded as in :mod:`simcoll.emulator.fast.rates`: the remaining bytes of a
flow change only when its integer rate does. A flow that passes to another group at its old rate
therefore keeps the time since when it has it; the group is *uneven* until its next rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcoll.arrays import Floats, Ints, Shorts
from simcoll.emulator.fast.compiled import entry, inline, part
from simcoll.emulator.fast.natural import natural
from simcoll.emulator.fast.rates import FS_PER_SECOND_UBPS, ROUNDING
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.state import MAX

__all__ = [
    "ENDED",
    "NONE",
    "OVERFULL",
    "PENDING",
    "ROUNDS_KEPT",
    "SPARE",
    "Flows",
    "LimitedFlows",
    "LinkColumns",
    "play_component",
]

ENDED, REFUSED, OVERFULL = range(3)
"""All flows have ended; a link leaves nothing to a flow, or a flow ends beyond the clock; a link
carries more than its capacity.
"""
NONE = -1
"""The group of a flow that has not begun, or has ended."""
UNRATED = -1
"""In place of the time since when a flow has its rate: it has none."""
SPARE, PENDING = range(2)
ROUNDS_KEPT = 16
"""Rounds after which the shares are kept. With 8 a run takes up to 8 % longer, with 32 as long
(uneven exchange of 128 ranks).
"""
CHECKED_EVERY = 64
"""Events after which the sum of the rates on each link is compared with its capacity. Comparing
after each event takes up to 4 % longer; from 16 on, no difference was measured.
"""


class Flows(NamedTuple):
    """The flows of a component, [flows, ...].

    ``links`` are padded with the number of links; ``group`` is the link that limits a flow, and
    ``place`` its place there; ``order`` is by start time.
    """

    links: Shorts
    size_bytes: Floats
    start_fs: Ints
    end_fs: Ints
    group: Shorts
    place: Shorts
    order: Shorts


class LimitedFlows(NamedTuple):
    """The flows that each link limits, [links] or [places].

    A group has ``members[link]`` places from ``base[link]`` on. ``rate`` and ``since_fs`` are those
    of all its flows, or if it is ``uneven``, ``own_since_fs`` is the time since when each has its
    rate. ``fewest`` are the fewest remaining bytes, valid if the group is neither uneven nor
    ``changed``; ``soonest_fs`` is the first end. ``crossing[link, other]`` counts the flows of the
    group of ``link`` that cross ``other``.
    """

    base: Ints
    members: Ints
    rate: Ints
    since_fs: Ints
    uneven: Shorts
    changed: Shorts
    fewest: Floats
    soonest_fs: Ints
    crossing: Shorts
    flow: Shorts
    remaining: Floats
    own_since_fs: Ints


class LinkColumns(NamedTuple):
    """The links of a component, and behind the last one that for no link.

    ``spare`` is what the flows of a link without a rate share, and ``pending`` their number;
    ``shares`` are both after every few rounds. ``order`` lists the links by round, and behind them
    those that limit no flow; ``position`` is the place in it. ``following`` and ``preceding``
    connect the links without a level in that order. ``entrant``, ``share`` and ``winner`` are a
    tournament for the lowest share (:func:`_seed`). Flows on both of two links are listed in
    ``meeting`` from ``meeting_base[lower * links + higher]`` on. Links that may share a flow with a
    link are ``lowest`` to ``beyond``.
    """

    capacity: Ints
    level: Ints
    spare: Ints
    pending: Ints
    lowest: Ints
    beyond: Ints
    shares: Ints
    order: Shorts
    position: Shorts
    following: Shorts
    preceding: Shorts
    entrant: Shorts
    share: Ints
    winner: Shorts
    meeting_base: Ints
    meeting: Shorts
    gone: Shorts


@part
def _finish_of(remaining: float, rate: int, since_fs: int) -> int:
    """When a flow ends; ``MAX`` if that is beyond the clock."""
    delay = np.floor(remaining * FS_PER_SECOND_UBPS / float(rate) + ROUNDING)
    rounded_fs = MAX if delay >= float(MAX) else max(0, int(delay))
    return since_fs + rounded_fs if rounded_fs <= MAX - since_fs else MAX


@part
def _bytes_in(rate: int, elapsed_fs: int) -> float:
    return float(rate) * float(elapsed_fs) / FS_PER_SECOND_UBPS


@part
def _since(groups: LimitedFlows, l: int, place: int) -> int:
    """Since when the flow at a place has its rate."""
    since: int = groups.own_since_fs[place] if groups.uneven[l] else groups.since_fs[l]
    return since


@part
def _spread_times(groups: LimitedFlows, l: int) -> None:
    """Let each flow of a group have its own time."""
    if groups.uneven[l] == 0:
        groups.uneven[l] = 1
        for place in range(groups.base[l], groups.base[l] + groups.members[l]):
            groups.own_since_fs[natural(place)] = groups.since_fs[l]


@part
def _count_crossing(flows: Flows, groups: LimitedFlows, f: int, l: int, change: int) -> None:
    for hop in range(flows.links.shape[1]):
        groups.crossing[l, natural(flows.links[f, hop])] += change


@part
def _join(
    flows: Flows, groups: LimitedFlows, f: int, l: int, remaining: float, since_fs: int
) -> None:
    """Put a flow in the group of a link."""
    if since_fs != groups.since_fs[l]:
        _spread_times(groups, l)
    place = natural(groups.base[l] + groups.members[l])
    groups.members[l] += 1
    groups.flow[place], groups.remaining[place] = f, remaining
    groups.own_since_fs[place] = since_fs
    groups.changed[l] = 1
    flows.group[f], flows.place[f] = l, place
    _count_crossing(flows, groups, f, l, 1)


@part
def _leave(flows: Flows, groups: LimitedFlows, f: int) -> None:
    """Take a flow out of its group; the last flow of the group moves to its place."""
    l, place = natural(flows.group[f]), natural(flows.place[f])
    groups.members[l] -= 1
    last = natural(groups.base[l] + groups.members[l])
    moved = natural(groups.flow[last])
    groups.flow[place], groups.remaining[place] = moved, groups.remaining[last]
    groups.own_since_fs[place] = groups.own_since_fs[last]
    groups.changed[l] = 1
    flows.place[moved] = place
    flows.group[f] = NONE
    _count_crossing(flows, groups, f, l, -1)


@part
def _begin(flows: Flows, groups: LimitedFlows, links: LinkColumns, f: int) -> None:
    """Put a new flow in the group of the first of its links."""
    limit = natural(flows.links[f, 0])
    for hop in range(1, flows.links.shape[1]):
        l = natural(flows.links[f, hop])
        if l < len(links.position) and links.position[l] < links.position[limit]:
            limit = l
    _join(flows, groups, f, limit, flows.size_bytes[f], UNRATED)


@part
def _end_flows(
    flows: Flows, groups: LimitedFlows, links: LinkColumns, now_fs: int
) -> tuple[int, int]:
    """End the flows whose time has come, and list them as gone; return their number and the lowest
    of their rates.
    """
    ended, lowest = 0, MAX
    for l in range(len(links.capacity) - 1):
        if groups.soonest_fs[l] != now_fs:
            continue
        lowest = min(lowest, groups.rate[l])
        place = natural(groups.base[l])
        while place < groups.base[l] + groups.members[l]:
            since_fs = _since(groups, l, place)
            if _finish_of(groups.remaining[place], groups.rate[l], since_fs) != now_fs:
                place = natural(place + 1)
                continue
            f = natural(groups.flow[place])
            _leave(flows, groups, f)  # another flow may now have its place
            flows.end_fs[f] = now_fs
            links.gone[ended] = f
            ended += 1
    return ended, lowest


@part
def _water_level(groups: LimitedFlows, links: LinkColumns, l: int, frozen: int) -> int:
    """The level of a link whose flows are limited elsewhere as after the last event."""
    spare, pending = links.capacity[l], links.shares[0, PENDING, l]
    share = spare // pending
    for turn in range(frozen):
        neighbour = natural(links.order[turn])
        if links.level[neighbour] >= share:
            break
        limited = groups.crossing[neighbour, l]
        if limited > 0 and neighbour != l:
            spare -= limited * links.level[neighbour]
            pending -= limited
            if pending == 0:
                return MAX
            share = spare // pending
    level: int = share
    return level


@part
def _lowest_water_level(
    flows: Flows, groups: LimitedFlows, links: LinkColumns, f: int, frozen: int
) -> int:
    """The lowest water level of the links of a flow."""
    lowest = MAX
    for hop in range(flows.links.shape[1]):
        l = natural(flows.links[f, hop])
        if l == len(links.capacity) - 1:
            break
        lowest = min(lowest, _water_level(groups, links, l, frozen))
    return lowest


@part
def _unchanged_rounds(links: LinkColumns, frozen: int, below: int) -> int:
    """The number of the first links frozen whose level is below a limit."""
    turns = 0
    while turns < frozen and links.level[natural(links.order[turns])] < below:
        turns += 1
    return turns


@part
def _count_in_shares(
    flows: Flows, links: LinkColumns, f: int, begin: int, end: int, by: int
) -> None:
    """Count a flow that begins (1) or has ended (-1) in some of the kept shares."""
    for hop in range(flows.links.shape[1]):
        l = natural(flows.links[f, hop])
        if l == len(links.capacity) - 1:
            break
        for turn in range(begin, end):
            links.shares[natural(turn), PENDING, l] += by


@inline
def _take(groups: LimitedFlows, links: LinkColumns, l: int, share: int) -> None:
    """Take the rates of a group from the other links.

    Links of the same round, which keep them, are frozen by now: what is left on them means nothing.
    """
    for neighbour in range(links.lowest[l], links.beyond[l]):
        o = natural(neighbour)
        rates = groups.crossing[l, o]
        links.spare[o] -= rates * share
        links.pending[o] -= rates


@inline
def _keep(links: LinkColumns, turn: int) -> None:
    """Keep the shares after a number of rounds, if it is one to begin with."""
    if turn % ROUNDS_KEPT == 0:
        shares = natural(turn // ROUNDS_KEPT)
        for l in range(len(links.spare)):
            links.shares[shares, SPARE, l] = links.spare[l]
            links.shares[shares, PENDING, l] = links.pending[l]


@part
def _go_back(groups: LimitedFlows, links: LinkColumns, turns: int) -> None:
    """Restore the last shares that were kept, repeat the rounds from there, and connect the links
    behind them.
    """
    restart = natural(turns // ROUNDS_KEPT)
    for l in range(len(links.spare)):
        links.spare[l] = links.shares[restart, SPARE, l]
        links.pending[l] = links.shares[restart, PENDING, l]
    for turn in range(restart * ROUNDS_KEPT, turns):
        l = natural(links.order[natural(turn)])
        _take(groups, links, l, links.level[l])
    previous = natural(len(links.capacity) - 1)
    for turn in range(turns, len(links.order)):
        l = natural(links.order[natural(turn)])
        links.following[previous], links.preceding[l] = l, previous
        previous = l
    links.following[previous] = len(links.capacity) - 1
    links.preceding[len(links.capacity) - 1] = previous


@inline
def _disconnect(links: LinkColumns, l: int) -> None:
    """Take a link out of those without a level."""
    previous, behind = natural(links.preceding[l]), natural(links.following[l])
    links.following[previous], links.preceding[behind] = behind, previous


@inline
def _change_rate(groups: LimitedFlows, l: int, share: int, now_fs: int) -> int:
    """Give the flows of a group another rate; return the status."""
    old, status = groups.rate[l], ENDED
    begin, end = groups.base[l], groups.base[l] + groups.members[l]
    if groups.uneven[l]:
        for index in range(begin, end):
            place = natural(index)
            since_fs = groups.own_since_fs[place]
            if since_fs == UNRATED:
                if _finish_of(groups.remaining[place], share, now_fs) == MAX:
                    status = REFUSED
            elif old != share:
                groups.remaining[place] -= _bytes_in(old, now_fs - since_fs)
            else:
                continue
            groups.own_since_fs[place] = now_fs
    elif old != share:
        moved = _bytes_in(old, now_fs - groups.since_fs[l])
        groups.fewest[l] -= moved
        for index in range(begin, end):
            groups.remaining[natural(index)] -= moved
    if old != share or begin == end:
        groups.uneven[l] = 0
        groups.since_fs[l] = now_fs
        groups.rate[l] = share
    return status


@part
def _overtake(
    flows: Flows, groups: LimitedFlows, links: LinkColumns, l: int, x: int, now_fs: int
) -> int:
    """Let the flows of a link that also cross a link before it pass to its group; return the
    status.
    """
    status, old, share = ENDED, groups.rate[x], groups.rate[l]
    pair = min(l, x) * (len(links.capacity) - 1) + max(l, x)
    for turn in range(links.meeting_base[pair], links.meeting_base[pair + 1]):
        f = natural(links.meeting[natural(turn)])
        if flows.group[f] != x:
            continue
        place = natural(flows.place[f])
        remaining, since_fs = groups.remaining[place], _since(groups, x, place)
        _leave(flows, groups, f)
        if since_fs == UNRATED:
            if _finish_of(remaining, share, now_fs) == MAX:
                status = REFUSED
            since_fs = now_fs
        elif old != share:
            remaining -= _bytes_in(old, now_fs - since_fs)
            since_fs = now_fs
        _join(flows, groups, f, l, remaining, since_fs)
    return status


@inline
def _find_soonest(groups: LimitedFlows, l: int) -> None:
    """Find the first end in a group."""
    begin, end, soonest = groups.base[l], groups.base[l] + groups.members[l], MAX
    if groups.uneven[l]:
        for index in range(begin, end):
            place = natural(index)
            finish = _finish_of(groups.remaining[place], groups.rate[l], groups.own_since_fs[place])
            soonest = min(soonest, finish)
    elif begin < end:
        if groups.changed[l]:
            fewest = np.inf
            for index in range(begin, end):
                fewest = min(fewest, groups.remaining[natural(index)])
            groups.fewest[l] = fewest
        soonest = _finish_of(groups.fewest[l], groups.rate[l], groups.since_fs[l])
    groups.changed[l] = groups.uneven[l]
    groups.soonest_fs[l] = soonest


@inline
def _freeze(
    flows: Flows, groups: LimitedFlows, links: LinkColumns, l: int, share: int, now_fs: int
) -> int:
    """Level a link, and rate its flows without a rate; return the status."""
    links.level[l] = share
    same_rate = groups.rate[l] == share
    status = _change_rate(groups, l, share, now_fs)
    x = natural(links.following[len(links.capacity) - 1])
    while x != l:
        if groups.crossing[x, l] > 0 and _overtake(flows, groups, links, l, x, now_fs) != ENDED:
            status = REFUSED
        x = natural(links.following[x])
    if groups.changed[l] or not same_rate:
        _find_soonest(groups, l)
    _take(groups, links, l, share)
    _disconnect(links, l)
    return status


@inline
def _share_of(links: LinkColumns, l: int) -> int:
    """What a link leaves to each flow without a rate; ``MAX`` without such flows."""
    pending = links.pending[l]
    share: int = links.spare[l] // pending if pending > 0 else MAX
    return share


@part
def _seed(links: LinkColumns, frozen: int) -> int:
    """Seed a tournament for the lowest share among the links that are not frozen, in their order;
    return how many it has room for.

    ``winner[1]`` is that of the final, and ``winner[match]`` that of matches ``2 * match`` and
    ``2 * match + 1``; entrants are the winners from ``room`` on.
    """
    entrants, room = len(links.order) - frozen, 1
    while room < entrants:
        room *= 2
    for entrant in range(room):
        e = natural(entrant)
        links.share[e] = MAX
        links.winner[natural(room + e)] = e
        if e < entrants:
            links.entrant[e] = links.order[natural(frozen + e)]
            links.share[e] = _share_of(links, natural(links.entrant[e]))
    for match in range(room - 1, 0, -1):
        upper = natural(links.winner[natural(2 * match)])
        lower = natural(links.winner[natural(2 * match + 1)])
        links.winner[natural(match)] = lower if links.share[lower] < links.share[upper] else upper
    return room


@inline
def _play_again(links: LinkColumns, room: int, entrant: int) -> None:
    """Repeat the matches of an entrant whose share has changed."""
    best, share, match = entrant, links.share[entrant], room + entrant
    while match > 1:
        opponent = natural(links.winner[natural(match ^ 1)])
        lower = links.share[opponent] < share
        earlier = (links.share[opponent] == share) & (opponent < best)
        best = opponent if lower | earlier else best
        share = min(share, links.share[opponent])
        match //= 2
        links.winner[natural(match)] = best


@inline
def _next_round(links: LinkColumns, room: int, frozen: int) -> tuple[int, int]:
    """Append the links of the lowest share to those that are frozen; return the number of these and
    the share, ``MAX`` if no link has flows without a rate.

    Shares only rise while lower rates are taken, so that of the winner may be too low: it plays
    again with its share of now until it wins with that.
    """
    lowest = MAX
    while True:
        e = natural(links.winner[1])
        share = links.share[e]
        if share == MAX or share > lowest:
            return frozen, lowest
        l = natural(links.entrant[e])
        links.share[e] = _share_of(links, l)
        if links.share[e] == share:
            lowest = share
            links.share[e] = MAX
            links.entrant[e] = NONE
            links.order[natural(frozen)] = l
            frozen += 1
        _play_again(links, room, e)


@inline
def _fill(
    flows: Flows, groups: LimitedFlows, links: LinkColumns, frozen: int, now_fs: int
) -> tuple[int, int]:
    """Continue the rounds to the end; return the number of frozen links, and the status."""
    status, turns, room = ENDED, frozen, _seed(links, frozen)
    entrants = len(links.order) - frozen
    while True:
        end, share = _next_round(links, room, frozen)
        if end == frozen:
            break
        if share <= 0:
            return frozen, REFUSED
        for turn in range(frozen, end):
            _keep(links, turn)
            l = natural(links.order[natural(turn)])
            if _freeze(flows, groups, links, l, share, now_fs) != ENDED:
                status = REFUSED
        frozen = end
    _keep(links, frozen)  # the next event may change no round, and add some
    place = frozen
    for entrant in range(entrants):
        l = links.entrant[natural(entrant)]
        if l != NONE:  # its flows are in other groups, and it overtakes none
            links.level[natural(l)] = groups.soonest_fs[natural(l)] = MAX
            links.order[natural(place)] = l
            place += 1
    for turn in range(turns, len(links.order)):
        links.position[natural(links.order[natural(turn)])] = turn
    return frozen, status


@part
def _is_overfull(groups: LimitedFlows, links: LinkColumns) -> bool:
    """Whether the flows of a link exceed its capacity."""
    used = links.spare  # restored before its next use
    used[:] = 0
    for l in range(len(links.capacity) - 1):
        if groups.members[l] > 0:
            for o in range(len(links.capacity) - 1):
                used[o] += groups.rate[l] * groups.crossing[l, o]
    overfull = False
    for l in range(len(links.capacity) - 1):
        overfull |= used[l] > links.capacity[l]
    return overfull


@part
def _next_event(flows: Flows, groups: LimitedFlows, begun: int) -> int:
    """The first time at which a flow ends or begins."""
    now_fs = MAX
    for l in range(len(groups.soonest_fs)):
        now_fs = min(now_fs, groups.soonest_fs[l])
    if begun < len(flows.order):
        now_fs = min(now_fs, flows.start_fs[flows.order[begun]])
    return now_fs


@entry
def play_component(
    flows: Flows, groups: LimitedFlows, links: LinkColumns, _sources: int = SOURCES
) -> int:
    """Play the flows of a component to their ends; return ``ENDED``, or why that failed.

    The ends are left in ``flows.end_fs``.
    """
    begun = ended = frozen = events = 0
    total = len(flows.order)
    while ended < total:
        now_fs = _next_event(flows, groups, begun)
        if now_fs == MAX:
            return REFUSED
        gone, below = _end_flows(flows, groups, links, now_fs)
        ended += gone
        earlier = begun
        while begun < total and flows.start_fs[flows.order[begun]] == now_fs:
            f = natural(flows.order[begun])
            _count_in_shares(flows, links, f, 0, 1, 1)
            begun += 1
        for turn in range(gone):
            _count_in_shares(flows, links, natural(links.gone[turn]), 0, 1, -1)
        for turn in range(earlier, begun):
            f = natural(flows.order[turn])
            below = min(below, _lowest_water_level(flows, groups, links, f, frozen))
        turns = _unchanged_rounds(links, frozen, below)
        checkpoints = turns // ROUNDS_KEPT + 1
        for turn in range(gone):
            _count_in_shares(flows, links, natural(links.gone[turn]), 1, checkpoints, -1)
        for turn in range(earlier, begun):
            f = natural(flows.order[turn])
            _count_in_shares(flows, links, f, 1, checkpoints, 1)
            _begin(flows, groups, links, f)
        _go_back(groups, links, turns)
        frozen, status = _fill(flows, groups, links, turns, now_fs)
        events += 1
        if events % CHECKED_EVERY == 1 and _is_overfull(groups, links):
            return OVERFULL
        if status != ENDED:
            return status
    return ENDED
