"""Many flows of which none waits for another: all pairs at once, a dispatch to experts.

The loops with a calendar (:mod:`simcoll.emulator.fast.loops`) level a component of links again
whenever a flow begins or ends, and reach everything through lists of hops. Where all start times
are known beforehand, nothing but the links connects the flows: a component is played on its own,
its links hold their flows in contiguous places, and the next event is the lowest of a few numbers.
All pairs of 64 ranks take a tenth of the time.

**Rounds.** As in :mod:`simcoll.emulator.fast.progressive`, but what they leave on the links is kept
after every few of them, so that the next event begins with the first round that it can change.

    Invariant: rounds whose share is below the rate of every flow that ended, and below the water
    level of every link on which a flow begins, are those of the last event.

A flow that ends had no rate in these rounds, and neither of its links was frozen in them: without
it, their shares are higher. A flow that begins has none either, as long as its links are not
frozen; and no link is frozen in a round whose share is below its water level, computed with the
levels of the last event, for as long as the rounds are those of the last event.

**Bytes** and ends are rounded as in :mod:`simcoll.emulator.fast.rates`: the remaining bytes of a
flow change only when its integer rate does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcoll.arrays import Floats, Ints, Shorts
from simcoll.emulator.fast.compiled import SOURCES, entry, part
from simcoll.emulator.fast.natural import natural
from simcoll.emulator.fast.rates import FS_PER_SECOND_UBPS, ROUNDING
from simcoll.emulator.fast.state import MAX

__all__ = [
    "COLUMNS",
    "ENDED",
    "FINISH",
    "KEPT_EVERY",
    "OVERFULL",
    "PENDING",
    "REMAINING",
    "SPARE",
    "Flows",
    "LinkLists",
    "play_component",
]

ENDED, REFUSED, OVERFULL = range(3)
"""All flows have ended; a link leaves nothing to a flow, or a flow ends beyond the clock; a link
carried more than its capacity.
"""
RATE, SINCE, FINISH, REMAINING = range(4)
COLUMNS = 4
"""Numbers of a flow: rate, the time of its last change, the end at this rate if it has been asked
for, and, as a float, the remaining bytes.
"""
UNKNOWN = -1
FROZEN = -1
"""In place of the number of pending flows: the link has its level."""
SPARE, PENDING = range(2)
KEPT_EVERY = 16
"""Rounds after which the shares are kept."""


class Flows(NamedTuple):
    """The flows of a component, [flows, ...].

    ``links`` are padded with the number of links; ``place`` is where each link lists the flow;
    ``numbers`` and ``bytes`` are the same memory; ``order`` is by start time.
    """

    links: Shorts
    place: Shorts
    numbers: Ints
    bytes: Floats
    start_fs: Ints
    order: Shorts


class LinkLists(NamedTuple):
    """The links of a component, and behind the last one that for no link.

    A link lists its ``length[link]`` flows from ``base[link]`` on: ``flow``, the column ``hop`` of
    the flow that names the link, and ``other_links``, the further links of the flow. ``spare`` is
    what its flows without a rate share, and ``pending`` their number; ``shares`` are both after
    every few rounds. ``frozen`` lists the links by round.
    """

    capacity: Ints
    base: Ints
    length: Ints
    level: Ints
    used: Ints
    soonest: Ints
    spare: Ints
    pending: Ints
    flow: Shorts
    hop: Shorts
    other_links: Shorts
    frozen: Shorts
    heap: Ints
    shares: Ints
    listed: Shorts


@part
def _begin(flows: Flows, links: LinkLists, f: int) -> None:
    """Put a flow on its links."""
    width = flows.links.shape[1]
    for hop in range(width):
        l = natural(flows.links[f, hop])
        if l == len(links.capacity) - 1:
            break
        place = natural(links.base[l] + links.length[l])
        links.length[l] += 1
        links.flow[place] = f
        links.hop[place] = hop
        column = 0
        for further in range(width):
            if further != hop:
                links.other_links[place, column] = flows.links[f, further]
                column += 1
        flows.place[f, hop] = place


@part
def _end(flows: Flows, links: LinkLists, f: int) -> None:
    """Take a flow off its links; the last flow of each moves to its place."""
    for hop in range(flows.links.shape[1]):
        l = natural(flows.links[f, hop])
        if l == len(links.capacity) - 1:
            break
        place = natural(flows.place[f, hop])
        links.length[l] -= 1
        links.used[l] -= flows.numbers[f, RATE]
        last = natural(links.base[l] + links.length[l])
        moved, moved_hop = natural(links.flow[last]), natural(links.hop[last])
        links.flow[place], links.hop[place] = moved, moved_hop
        for column in range(links.other_links.shape[1]):
            links.other_links[place, column] = links.other_links[last, column]
        flows.place[moved, moved_hop] = place


@part
def _sink(links: LinkLists, size: int, place: int, key: int, l: int) -> None:
    """Put a share at a place of the heap of ``size`` entries, or below."""
    heap = links.heap
    while True:
        child = natural(2 * place + 1)
        if child >= size:
            break
        if child + 1 < size and heap[child + 1, 0] < heap[child, 0]:
            child = natural(child + 1)
        if key <= heap[child, 0]:
            break
        heap[place, 0], heap[place, 1] = heap[child, 0], heap[child, 1]
        place = child
    heap[place, 0], heap[place, 1] = key, l


@part
def _take_from(links: LinkLists, o: int, share: int) -> None:
    """Take a rate from a link, unless its share is that of the round."""
    pending = links.pending[o]
    if links.spare[o] - share * pending >= pending:
        links.spare[o] -= share
        links.pending[o] = pending - 1


@part
def _list_without_rate(links: LinkLists, l: int) -> int:
    """List the places of a link's flows without a rate; return their number.

    Nothing branches on whether a flow has a rate: no processor foresees it.
    """
    width, flows = links.other_links.shape[1], 0
    begin = links.base[l]
    for index in range(begin, begin + links.length[l]):
        place = natural(index)
        links.listed[natural(flows)] = place
        unrated = 1
        for column in range(width):
            unrated &= links.pending[natural(links.other_links[place, column])] >= 0
        flows += unrated
    return flows


@part
def _take(links: LinkLists, place: int, share: int) -> None:
    """Take the rate of a flow from its other links."""
    for column in range(links.other_links.shape[1]):
        _take_from(links, natural(links.other_links[place, column]), share)


@part
def _finish_of(remaining: float, rate: int, since_fs: int) -> int:
    """When a flow ends; ``MAX`` if that is beyond the clock."""
    delay = np.floor(remaining * FS_PER_SECOND_UBPS / float(rate) + ROUNDING)
    rounded_fs = MAX if delay >= float(MAX) else max(0, int(delay))
    return since_fs + rounded_fs if rounded_fs <= MAX - since_fs else MAX


@part
def _finish(flows: Flows, f: int) -> int:
    """When a flow ends at its present rate."""
    numbers = flows.numbers
    if numbers[f, FINISH] == UNKNOWN:
        numbers[f, FINISH] = _finish_of(
            flows.bytes[f, REMAINING], numbers[f, RATE], numbers[f, SINCE]
        )
    finish: int = numbers[f, FINISH]
    return finish


@part
def _freeze(flows: Flows, links: LinkLists, l: int, share: int, now_fs: int) -> int:
    """Level a link, and rate its flows without a rate."""
    links.pending[l] = FROZEN
    links.level[l] = share
    numbers, soonest, status, gains = flows.numbers, MAX, ENDED, 0
    # All flows that have this rate from now on end in the order of their bytes: one division tells
    # when the first of them does.
    fewest_bytes = np.inf
    for turn in range(_list_without_rate(links, l)):
        place = natural(links.listed[natural(turn)])
        _take(links, place, share)
        f = natural(links.flow[place])
        old = numbers[f, RATE]
        if old == share:
            soonest = min(soonest, _finish(flows, f))
            continue
        remaining = flows.bytes[f, REMAINING]
        if old > 0:
            elapsed_fs = now_fs - numbers[f, SINCE]
            remaining -= float(old) * float(elapsed_fs) / FS_PER_SECOND_UBPS
            flows.bytes[f, REMAINING] = remaining
        elif _finish_of(remaining, share, now_fs) == MAX:
            status = REFUSED
        fewest_bytes = min(fewest_bytes, remaining)
        gains += share - old
        for column in range(links.other_links.shape[1]):
            links.used[natural(links.other_links[place, column])] += share - old
        numbers[f, RATE], numbers[f, SINCE], numbers[f, FINISH] = share, now_fs, UNKNOWN
    links.used[l] += gains
    if fewest_bytes < np.inf:
        soonest = min(soonest, _finish_of(fewest_bytes, share, now_fs))
    links.soonest[l] = soonest
    return status


@part
def _keep(links: LinkLists, turn: int) -> None:
    """Keep the shares after a number of rounds, if it is one to begin with."""
    if turn % KEPT_EVERY == 0:
        shares = natural(turn // KEPT_EVERY)
        for l in range(len(links.spare)):
            links.shares[shares, SPARE, l] = links.spare[l]
            links.shares[shares, PENDING, l] = links.pending[l]


@part
def _count_in_shares(flows: Flows, links: LinkLists, f: int, restart: int, change: int) -> None:
    """Count a flow that begins (1) or has ended (-1) in the shares that remain valid."""
    for hop in range(flows.links.shape[1]):
        l = natural(flows.links[f, hop])
        if l == len(links.capacity) - 1:
            break
        for turn in range(restart + 1):
            links.shares[turn, PENDING, l] += change


@part
def _go_back(links: LinkLists, restart: int, turns: int) -> None:
    """Restore the shares that were kept, and repeat the rounds from there."""
    for l in range(len(links.spare)):
        links.spare[l] = links.shares[restart, SPARE, l]
        links.pending[l] = links.shares[restart, PENDING, l]
    for turn in range(restart * KEPT_EVERY, turns):
        l = natural(links.frozen[turn])
        links.pending[l] = FROZEN
        for index in range(_list_without_rate(links, l)):
            _take(links, natural(links.listed[natural(index)]), links.level[l])


@part
def _fill(flows: Flows, links: LinkLists, frozen: int, now_fs: int) -> tuple[int, int]:
    """Continue the rounds to the end; return the number of frozen links, and the status."""
    heap = links.heap
    size = 0
    for l in range(len(links.capacity) - 1):
        pending = links.pending[l]
        if pending == FROZEN:
            continue
        links.level[l] = links.soonest[l] = MAX
        if pending > 0:
            heap[size, 0], heap[size, 1] = links.spare[l] // pending, l
            size += 1
    for place in range(size // 2 - 1, -1, -1):
        _sink(links, size, natural(place), heap[place, 0], heap[place, 1])
    status = ENDED
    while size > 0:
        share, l = heap[0, 0], natural(heap[0, 1])
        pending = links.pending[l]
        if pending > 0:
            current_share = links.spare[l] // pending
            if current_share > share:
                _sink(links, size, 0, current_share, l)
                continue
            if share <= 0:
                return frozen, REFUSED
            _keep(links, frozen)
            if _freeze(flows, links, l, share, now_fs) != ENDED:
                status = REFUSED
            links.frozen[frozen] = l
            frozen += 1
        size -= 1
        _sink(links, size, 0, heap[size, 0], heap[size, 1])
    _keep(links, frozen)  # the next event may change no round, and add some
    for l in range(len(links.capacity) - 1):
        if links.used[l] > links.capacity[l]:
            status = OVERFULL
    return frozen, status


@part
def _end_flows(flows: Flows, links: LinkLists, now_fs: int) -> tuple[int, int]:
    """End the flows whose time has come, and list them as gone; return their number and the lowest
    of their rates.
    """
    ended, lowest = 0, MAX
    for l in range(len(links.capacity) - 1):
        if links.soonest[l] != now_fs:
            continue
        place = natural(links.base[l])
        while place < links.base[l] + links.length[l]:
            f = natural(links.flow[place])
            if _finish(flows, f) != now_fs:
                place = natural(place + 1)
                continue
            lowest = min(lowest, flows.numbers[f, RATE])
            _end(flows, links, f)  # another flow may now have its place
            links.listed[ended] = f
            ended += 1
    return ended, lowest


@part
def _water_level(links: LinkLists, l: int) -> int:
    """The level of a link whose flows are limited elsewhere as after the last event."""
    level, begin = 0, links.base[l]
    while True:
        spare, pending = links.capacity[l], links.length[l]
        for index in range(begin, begin + links.length[l]):
            limit = MAX
            for column in range(links.other_links.shape[1]):
                limit = min(limit, links.level[natural(links.other_links[index, column])])
            if limit < level:
                spare -= limit
                pending -= 1
        if pending == 0:
            return MAX
        if spare // pending == level:
            return level
        level = spare // pending


@part
def _lowest_water_level(flows: Flows, links: LinkLists, f: int) -> int:
    """The lowest water level of the links of a flow."""
    lowest = MAX
    for hop in range(flows.links.shape[1]):
        l = natural(flows.links[f, hop])
        if l == len(links.capacity) - 1:
            break
        lowest = min(lowest, _water_level(links, l))
    return lowest


@part
def _unchanged_rounds(links: LinkLists, frozen: int, below: int) -> int:
    """The number of the first links frozen whose level is below a limit."""
    turns = 0
    while turns < frozen and links.level[natural(links.frozen[turns])] < below:
        turns += 1
    return turns


@entry
def play_component(flows: Flows, links: LinkLists, _sources: int = SOURCES) -> int:
    """Play the flows of a component to their ends; return ``ENDED``, or why that failed.

    The ends are left in ``flows.numbers[:, FINISH]``.
    """
    begun = ended = frozen = 0
    total = len(flows.order)
    while ended < total:
        now_fs = MAX
        for l in range(len(links.capacity) - 1):
            now_fs = min(now_fs, links.soonest[l])
        if begun < total:
            now_fs = min(now_fs, flows.start_fs[flows.order[begun]])
        if now_fs == MAX:
            return REFUSED
        gone, below = _end_flows(flows, links, now_fs)
        ended += gone
        earlier = begun
        while begun < total and flows.start_fs[flows.order[begun]] == now_fs:
            _begin(flows, links, natural(flows.order[begun]))
            begun += 1
        for turn in range(earlier, begun):
            below = min(below, _lowest_water_level(flows, links, natural(flows.order[turn])))
        turns = _unchanged_rounds(links, frozen, below)
        restart = turns // KEPT_EVERY
        for turn in range(gone):
            _count_in_shares(flows, links, natural(links.listed[turn]), restart, -1)
        for turn in range(earlier, begun):
            _count_in_shares(flows, links, natural(flows.order[turn]), restart, 1)
        _go_back(links, restart, turns)
        frozen, status = _fill(flows, links, turns, now_fs)
        if status != ENDED:
            return status
    return ENDED
