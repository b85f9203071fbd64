"""The event queue of the fast engine: a heap of distinct times, each with its slots.

Collectives move in rounds, so thousands of slots often share a time; a heap of distinct times pays
its logarithm once for all of them. A hash table maps a time to its slots, which form a doubly
linked list, so a slot can be removed without a search.
"""

from __future__ import annotations

from simcoll.emulator.fast.compiled import entry, part
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.state import (
    ARGUMENT,
    CHAIN,
    CLOCK,
    FLOW,
    HEAP,
    LANE,
    LATE,
    MAX,
    NOW,
    POST,
    PRE,
    STOP,
    TICK,
    TIMER,
    State,
)


@part
def _home(time: int, mask: int) -> int:
    # Times are sums of a few round numbers: their low bits alone would collide.
    return (time ^ (time >> 17) ^ (time >> 34)) & mask


@part
def find(s: State, time: int) -> int:
    """Position of a time in the table, or of the hole where it belongs."""
    mask = len(s.table_key) - 1
    position = _home(time, mask)
    while s.table_key[position] != time and s.table_key[position] >= 0:
        position = (position + 1) & mask
    return position


@part
def at_time(s: State, m: int, delay: int) -> None:
    """Schedule a slot after a delay."""
    r = s.reg
    if delay > MAX - r[NOW]:
        r[STOP], r[ARGUMENT] = CLOCK, delay
        return
    time = r[NOW] + delay
    s.key[m] = time
    if delay == 0:  # slots of the current time form a separate chain
        s.next_slot[m] = r[CHAIN]
        r[CHAIN] = m
        return
    position = find(s, time)
    if s.table_key[position] < 0:
        s.table_key[position] = time
        s.table_head[position] = -1
        place = r[HEAP]
        r[HEAP] = place + 1
        while place > 0:
            up = (place - 1) >> 1
            if s.heap[up] <= time:
                break
            s.heap[place] = s.heap[up]
            place = up
        s.heap[place] = time
    head = s.table_head[position]
    s.previous_slot[m] = -1
    s.next_slot[m] = head
    if head >= 0:
        s.previous_slot[head] = m
    s.table_head[position] = m


@part
def unlink(s: State, m: int) -> None:
    """Remove a slot from the queue; its time may remain without slots."""
    previous, following = s.previous_slot[m], s.next_slot[m]
    if previous >= 0:
        s.next_slot[previous] = following
    else:
        s.table_head[find(s, s.key[m])] = following
    if following >= 0:
        s.previous_slot[following] = previous


@part
def drop_key(s: State, hole: int) -> None:
    """Remove a time from the table; move up later times that it had displaced.

    Tombstones would be cheaper here, but would fill the table in a long run.
    """
    mask = len(s.table_key) - 1
    position = hole
    while True:
        position = (position + 1) & mask
        if s.table_key[position] < 0:
            break
        home = _home(s.table_key[position], mask)
        if ((position - home) & mask) >= ((position - hole) & mask):
            s.table_key[hole] = s.table_key[position]
            s.table_head[hole] = s.table_head[position]
            hole = position
    s.table_key[hole] = -1


@part
def next_time(s: State) -> bool:
    """Advance to the next time at which something happens."""
    r = s.reg
    while r[HEAP] > 0:
        time = s.heap[0]
        count = r[HEAP] - 1
        r[HEAP] = count
        moved = s.heap[count]
        place = 0
        while True:
            down = 2 * place + 1
            if down >= count:
                break
            if down + 1 < count and s.heap[down + 1] < s.heap[down]:
                down += 1
            if s.heap[down] >= moved:
                break
            s.heap[place] = s.heap[down]
            place = down
        s.heap[place] = moved
        position = find(s, time)
        head = s.table_head[position]
        drop_key(s, position)
        # Unlinked slots leave empty times: removing one from inside the heap would cost more.
        if head >= 0:
            r[NOW] = time
            r[CHAIN] = head
            return True
    return False


@entry
def rehash(s: State, _sources: int = SOURCES) -> None:
    """Insert every queued slot into a new, empty table."""
    for place in range(s.reg[HEAP]):
        position = find(s, s.heap[place])
        s.table_key[position] = s.heap[place]
        s.table_head[position] = -1
    for m in range(len(s.key)):
        phase = s.phase[m]
        queued = phase in (PRE, POST, TIMER, LATE, LANE, TICK) or (phase == FLOW and s.cover[m] < 0)
        if queued and s.key[m] > s.reg[NOW] and s.previous_slot[m] < 0:
            s.table_head[find(s, s.key[m])] = m
