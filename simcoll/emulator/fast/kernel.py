"""The loops of the fast engine, and the arrays that they work on.

All compiled code is in this module, so that a change of any of it drops every cached function. A message in flight is
a *slot*; the slots of a step are a contiguous *block*. A flow is a slot with one entry per link, ``slot * width + hop``,
in that link's list. A *node* is a lane's part in a step. Numbers that change one by one live in ``reg``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simcoll.emulator.fast.compiled import entry, part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Shorts = NDArray[np.int32]

__all__ = ["State", "advance_to_stop", "begin", "fill", "hash_rows", "index_lanes", "rehash", "wait_for"]

MAX = 2**63 - 1
FS_PER_SECOND_UBPS = 1e21  # the same constants as in the model; compiled code cannot read them there
ROUNDING = 0.3819660112501051

# Places of ``reg``.
NOW, CHAIN, HEAP, STACK, DONE, LAST, RETIRED, STARTED, DIRTY, DELIVERED = range(10)
DEPTH, WIDTH, STOP, ARGUMENT, HASHED, EDGE, REGISTERS = range(10, 17)
# Why the loop stopped.
IDLE, NEED_STEP, FULL, NO_RATE, CLOCK, OVER = range(6)
# Phases of a slot.
WAITING, PRE, FLOW, POST, ARRIVED, OVER_AND_DONE = range(6)


class State(NamedTuple):
    """Everything the loops read and write."""

    reg: Ints
    sums: NDArray[np.uint64]
    # per slot: fixed while the block has the same content
    sender: Shorts
    receiver: Shorts
    src: Shorts
    dst: Shorts
    pre_fs: Ints  # -1: a transfer inside a rank
    wire: Ints
    post_fs: Ints
    size: Ints
    block: Shorts
    ring_place: Ints
    # per slot: changes
    needs: Shorts
    phase: Shorts
    follower: Shorts
    waiters: Shorts
    start_fs: Ints
    end_fs: Ints
    done_fs: Ints
    left: NDArray[np.float64]
    rate: Ints
    since_fs: Ints
    finish_fs: Ints
    key: Ints
    before: Shorts
    after: Shorts
    limits: Ints
    weights: Ints
    started: Shorts
    # per slot and hop
    link: Shorts
    weight: Ints
    next_flow: Shorts
    last_flow: Shorts
    # two per slot
    node_lane: Shorts
    node_next: Shorts
    node_first: Shorts
    node_end: Shorts
    entries: Shorts
    # per block
    block_base: Shorts
    block_rows: Shorts
    block_nodes: Shorts
    block_left: Shorts
    block_first_id: Ints
    retired: Shorts
    # per lane
    lane_left: Ints
    lane_pending: Shorts
    lane_block: Shorts
    lane_head: Shorts
    lane_tail: Shorts
    stack: Shorts
    # per link
    capacity: Ints
    level: Ints
    used: Ints
    flows: Ints
    head: Shorts
    queued: Shorts
    marked: Shorts
    queue: Shorts
    changed: Shorts
    touched: Shorts
    # calendar: a heap of distinct times, and a hash table from time to the slots of that time
    heap: Ints
    table_key: Ints
    table_head: Shorts
    # connections (with a FIFO) and explicit waits
    ring: Shorts
    ring_count: Ints
    edge_next: Shorts
    edge_slot: Shorts


@part
def _home(time: int, mask: int) -> int:
    return (time ^ (time >> 17) ^ (time >> 34)) & mask


@part
def _find(s: State, time: int) -> int:
    mask = len(s.table_key) - 1
    at = _home(time, mask)
    while s.table_key[at] != time and s.table_key[at] >= 0:
        at = (at + 1) & mask
    return at


@part
def _at(s: State, m: int, delay: int) -> None:
    """Enter a slot in the calendar."""
    r = s.reg
    if delay > MAX - r[NOW]:
        r[STOP], r[ARGUMENT] = CLOCK, delay
        return
    time = r[NOW] + delay
    s.key[m] = time
    if delay == 0:  # what is over now is a chain of its own
        s.after[m] = r[CHAIN]
        r[CHAIN] = m
        return
    at = _find(s, time)
    if s.table_key[at] < 0:
        s.table_key[at] = time
        s.table_head[at] = -1
        place = r[HEAP]
        r[HEAP] = place + 1
        while place > 0:
            up = (place - 1) >> 1
            if s.heap[up] <= time:
                break
            s.heap[place] = s.heap[up]
            place = up
        s.heap[place] = time
    first = s.table_head[at]
    s.before[m] = -1
    s.after[m] = first
    if first >= 0:
        s.before[first] = m
    s.table_head[at] = m


@part
def _unlink(s: State, m: int) -> None:
    """Take a slot out of the calendar; its time may stay there with nobody."""
    before, after = s.before[m], s.after[m]
    if before >= 0:
        s.after[before] = after
    else:
        s.table_head[_find(s, s.key[m])] = after
    if after >= 0:
        s.before[after] = before


@part
def _drop_key(s: State, hole: int) -> None:
    mask = len(s.table_key) - 1
    at = hole
    while True:
        at = (at + 1) & mask
        if s.table_key[at] < 0:
            break
        home = _home(s.table_key[at], mask)
        if ((at - home) & mask) >= ((at - hole) & mask):
            s.table_key[hole] = s.table_key[at]
            s.table_head[hole] = s.table_head[at]
            hole = at
    s.table_key[hole] = -1


@part
def _next_time(s: State) -> bool:
    """Go to the next time at which something happens."""
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
        at = _find(s, time)
        first = s.table_head[at]
        _drop_key(s, at)
        if first >= 0:
            r[NOW] = time
            r[CHAIN] = first
            return True
    return False


@entry
def rehash(s: State) -> None:
    """Give every slot of the calendar its place in a new, empty table."""
    for place in range(s.reg[HEAP]):
        at = _find(s, s.heap[place])
        s.table_key[at] = s.heap[place]
        s.table_head[at] = -1
    for m in range(len(s.key)):
        waits = s.phase[m] == PRE or s.phase[m] == POST or (s.phase[m] == FLOW and s.rate[m] > 0)
        if waits and s.key[m] > s.reg[NOW] and s.before[m] < 0:
            s.table_head[_find(s, s.key[m])] = m


# ---- rates ----------------------------------------------------------------------------------------------------------


@part
def _join(s: State, m: int) -> None:
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
def _part(s: State, m: int) -> None:
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
        level = left // n
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
            _unlink(s, m)
        _at(s, m, whole)
    return touched


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
                # A link notices only changes below its own level.
                if lower < s.level[l2] and l2 != l and s.queued[l2] == 0:
                    s.queued[l2] = 1
                    end = at + waiting
                    s.queue[end if end < links else end - links] = l2
                    waiting += 1
            e = s.next_flow[e]
    r[DIRTY] = 0
    return changed


@part
def _settle(s: State) -> None:
    """Give every flow its rate, once everything else of the timestamp has happened."""
    r = s.reg
    changed = _spread(s)
    for i in range(changed):
        s.marked[s.changed[i]] = 0
    touched = 0
    for i in range(r[STARTED]):
        touched = _set_rate(s, s.started[i], touched)
    r[STARTED] = 0
    for i in range(changed):
        e = s.head[s.changed[i]]
        while e >= 0:
            touched = _set_rate(s, e // r[WIDTH], touched)
            e = s.next_flow[e]
    for i in range(touched):
        l = s.touched[i]
        s.marked[l] = 0
        if s.used[l] > s.capacity[l]:
            r[STOP], r[ARGUMENT] = OVER, l


# ---- messages -------------------------------------------------------------------------------------------------------


@part
def _ready(s: State, m: int) -> None:
    if s.pre_fs[m] < 0:
        s.start_fs[m] = s.end_fs[m] = s.reg[NOW]
        s.phase[m] = POST
        _at(s, m, s.post_fs[m])
    else:
        s.phase[m] = PRE
        _at(s, m, s.pre_fs[m])


@part
def _need_met(s: State, m: int) -> None:
    s.needs[m] -= 1
    if s.needs[m] == 0:
        _ready(s, m)


@part
def _leave(s: State, lane: int) -> None:
    """A message of the lane's current step is finished for it."""
    s.lane_pending[lane] -= 1
    if s.lane_pending[lane] == 0 and s.lane_left[lane] > 0:
        s.stack[s.reg[STACK]] = lane
        s.reg[STACK] += 1


@part
def _consume(s: State, m: int) -> None:
    place = s.ring_place[m]
    if s.ring[place] == m:
        s.ring[place] = -1
    follower = s.follower[m]
    if follower >= 0:
        _need_met(s, follower)
    s.phase[m] = POST
    _at(s, m, s.post_fs[m])
