"""The loops of the fast engine: messages become ready, flow and finish until Python must supply
more steps.
"""

from __future__ import annotations

from simcoll.emulator.fast.calendar import at_time, next_time
from simcoll.emulator.fast.compiled import entry, part
from simcoll.emulator.fast.loading import load_block
from simcoll.emulator.fast.pacing import NEVER, STOPPED, work_duration
from simcoll.emulator.fast.rates import join, part_links, settle, timer
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.state import (
    AGAIN,
    ARGUMENT,
    ARRIVED,
    CHAIN,
    CHANGE,
    CONTENT,
    DELIVERED,
    DIRTY,
    DONE,
    EAGER,
    EDGE,
    EVENT,
    FINISHED,
    FLOW,
    FULL,
    HASHED,
    HEAP,
    IDLE,
    LANE,
    LAST,
    LATE,
    MAX,
    MEMBER,
    MOVE,
    MOVES_FLOWS,
    MOVING,
    NEED_STEP,
    NOW,
    PACED,
    POST,
    PRE,
    RECORD,
    RETIRED,
    STACK,
    STARTED,
    STOP,
    SWITCHED,
    TICK,
    TIMER,
    WAIT,
    WAITING,
    State,
)
from simcoll.emulator.fast.trace_hashing import SEED_A, SEED_B, row_hash
from simcoll.emulator.steps.roles import LAUNCHES, MOVES

__all__ = ["run"]


@part
def _push(s: State, m: int) -> None:
    """Queue a slot to proceed before anything else happens.

    A stack replaces calls of :func:`_next`: parts of a loop are inlined into their callers, so
    every further call would be a further copy, which costs more compile time than the stack costs
    here.
    """
    s.moving[s.reg[MOVING]] = m
    s.reg[MOVING] += 1


@part
def _meet_need(s: State, m: int) -> None:
    s.needs[m] -= 1
    if s.needs[m] == 0:
        _push(s, m)


@part
def _next(s: State, m: int) -> None:
    """Schedule the next time of a slot whose phase has changed. The only such place, so that it is
    compiled once.
    """
    phase, eager = s.phase[m], False
    work, rank, extra = 0, -1, 0  # the rank's own work, at its pace, plus a further delay
    if phase == WAITING and s.delay_fs[m] >= 0:
        s.phase[m] = PRE
        eager = s.rule[m] == EAGER
        work, rank = s.busy_fs[m], s.src[m]
        extra = s.delay_fs[m] - work
    elif phase == MEMBER:
        _meet_need(s, s.leader[m])
        return
    elif phase in (LATE, TICK):
        extra = s.delay_fs[m]
    elif phase == LANE:
        extra = s.lane_free[m - len(s.level)] - s.reg[NOW]
    else:
        if phase == WAITING:  # within a rank
            if s.rule[m] == RECORD:
                _record(s, s.connection[m])
            elif s.rule[m] == WAIT and not _find_record(s, m):
                return
            s.start_fs[m] = s.end_fs[m] = s.reg[NOW]
        s.phase[m] = POST
        work, rank = s.post_fs[m], s.dst[m]
    if s.reg[PACED] and rank >= 0 and s.block_role[s.block[m]] == MOVES:
        work = work_duration(s, rank, work)
        if work == STOPPED or (work == NEVER and not eager):
            return
        work = MAX if work == NEVER else work
    if eager:
        lane = s.sender[m]
        s.lane_free[lane] = max(s.lane_free[lane], s.reg[NOW] + min(work, MAX - s.reg[NOW]))
        work = extra = 0
    at_time(s, m, work + min(extra, MAX - work))


@part
def _record(s: State, connection: int) -> None:
    """Make a record, and release the slot that waits for it, if any."""
    # The waits of a connection are all on one lane, in order, so at most one slot waits at a time.
    s.ring_done[connection] += 1
    place = s.ring_base[connection]
    m = s.ring[place]
    if m >= 0 and s.ring_place[m] < s.ring_done[connection]:
        s.ring[place] = -1
        _push(s, m)


@part
def _find_record(s: State, m: int) -> bool:
    """Whether a slot need not wait; otherwise register it with its connection."""
    connection = s.connection[m]
    if s.ring_place[m] < s.ring_done[connection]:
        return True
    s.ring[s.ring_base[connection]] = m
    return False


@part
def _leave(s: State, lane: int) -> None:
    """Note that a message of the lane's current step is finished for the lane."""
    s.lane_pending[lane] -= 1
    if s.lane_pending[lane] == 0 and s.lane_left[lane] > 0:
        s.stack[s.reg[STACK]] = lane
        s.reg[STACK] += 1


@part
def _consume(s: State, m: int) -> None:
    place = s.ring_place[m]
    if s.ring[place] == m:
        s.ring[place] = -1
    if s.follower[m] >= 0:
        _meet_need(s, s.follower[m])
    _push(s, m)


@part
def _enter(s: State, lane: int) -> None:
    """Enter the next step of a lane, which is loaded."""
    node = s.lane_head[lane]
    s.lane_head[lane] = s.node_next[node]
    first_entry, end = s.node_first[node], s.node_end[node]
    s.lane_block[lane] = s.block[s.entries[first_entry]]
    s.lane_left[lane] -= 1
    s.lane_pending[lane] = end - first_entry
    for place in range(first_entry, end):
        m = s.entries[place]
        if s.rule[m] == EAGER and s.sender[m] != lane:
            if s.phase[m] == ARRIVED:
                _consume(s, m)
        else:
            _meet_need(s, m)


@part
def _retire(s: State, block: int) -> None:
    """Account for a finished step."""
    r = s.reg
    s.retired[r[RETIRED]] = block
    r[RETIRED] += 1
    base, rows, first_number = s.block_base[block], s.block_rows[block], s.block_first_number[block]
    r[DONE] += rows
    if s.block_role[block] <= LAUNCHES:
        r[LAST] = r[NOW]
    if r[HASHED] == 0 or s.block_role[block] != MOVES:
        return
    a, b = s.sums[0], s.sums[1]
    for row in range(rows):
        m = base + row
        a += row_hash(
            SEED_A,
            first_number + row,
            s.src[m],
            s.dst[m],
            s.size[m],
            s.start_fs[m],
            s.end_fs[m],
            s.done_fs[m],
        )
        b += row_hash(
            SEED_B,
            first_number + row,
            s.src[m],
            s.dst[m],
            s.size[m],
            s.start_fs[m],
            s.end_fs[m],
            s.done_fs[m],
        )
    s.sums[0], s.sums[1] = a, b


@part
def _done(s: State, m: int) -> None:
    s.done_fs[m] = s.reg[NOW]
    s.phase[m] = FINISHED
    edge = s.waiters[m]
    while edge >= 0:
        _meet_need(s, s.edge_slot[edge])
        following = s.edge_next[edge]
        # The edge returns to the free list.
        s.edge_next[edge] = s.reg[EDGE]
        s.reg[EDGE] = edge
        edge = following
    s.waiters[m] = -1
    sender, receiver = s.sender[m], s.receiver[m]
    rule = s.rule[m]
    if sender == receiver or rule != EAGER:
        _leave(s, sender)
    if sender != receiver:
        _leave(s, receiver)
    if rule == SWITCHED and s.partner[m] >= 0:
        # Only the leader of a switch operation has a flow; its partners finish one after the other
        # with the same times.
        partner = s.partner[m]
        s.start_fs[partner], s.end_fs[partner] = s.start_fs[m], s.end_fs[m]
        s.phase[partner] = POST
        s.next_slot[partner] = s.reg[CHAIN]
        s.reg[CHAIN] = partner
    block = s.block[m]
    s.block_left[block] -= 1
    if s.block_left[block] == 0:
        _retire(s, block)


@part
def _arrive(s: State, m: int) -> bool:
    """End a flow; return whether the message is done at once."""
    s.end_fs[m] = s.reg[NOW]
    s.phase[m] = ARRIVED
    if s.rule[m] != EAGER:
        if s.post_fs[m] == 0 and s.reg[PACED] == 0:
            return True
        _push(s, m)
        return False
    s.phase[m] = LATE
    _push(s, m)
    sender = s.sender[m]
    # In a quotient both ends may be in one class, which leaves when the message is done.
    if sender != s.receiver[m]:
        _leave(s, sender)
    return False


@part
def _handle(s: State, m: int) -> None:
    """Let a slot whose time has come proceed."""
    r = s.reg
    phase = s.phase[m]
    if phase == PRE:
        s.start_fs[m] = r[NOW]
        if s.wire[m] > 0:  # which is 0 without links
            s.phase[m] = FLOW
            join(s, m)
            return
    elif phase == FLOW:
        # It has waited its full time for a link; settling checks whether it still waits.
        if s.rate[m] == 0:
            s.started[r[STARTED]] = m
            r[STARTED] += 1
            return
        r[DELIVERED] += s.wire[m]
        part_links(s, m)
    elif phase == TICK:
        if s.delay_fs[m] > 0:
            _push(s, m)
        return
    elif phase == TIMER:
        timer(s, m)
        return
    elif phase == LATE:
        s.phase[m] = ARRIVED
        if s.lane_block[s.receiver[m]] == s.block[m]:
            _consume(s, m)
        return
    elif phase == LANE:
        s.stack[s.reg[STACK]] = m - len(s.level)
        s.reg[STACK] += 1
        return
    if phase == POST or _arrive(s, m):
        _done(s, m)


@part
def _load_again(s: State) -> bool:
    """Reuse the block that finished last for the next step, if that is the same step again."""
    r = s.reg
    if r[AGAIN] == 0 or r[RETIRED] == 0:
        return False
    block = s.retired[r[RETIRED] - 1]
    if s.block_content[block] != r[CONTENT]:
        return False
    # Returning to Python for every step would take 1.4 times as long for a ring of 1,024 ranks.
    r[RETIRED] -= 1
    r[AGAIN] -= 1
    load_block(s, block)
    return True


@entry
def run(s: State, _sources: int = SOURCES) -> int:
    """Run until everything is finished, a lane needs a step not yet loaded, or a check fails;
    return the reason.
    """
    r = s.reg
    while True:
        # All events of a timestamp and their zero-delay consequences come first; only then are
        # rates settled, once.
        while True:
            if r[MOVING] > 0:
                if r[HEAP] == len(s.heap):
                    return FULL
                r[MOVING] -= 1
                _next(s, s.moving[r[MOVING]])
            elif r[STACK] > 0:
                lane = s.stack[r[STACK] - 1]
                if s.lane_free[lane] > r[NOW]:
                    r[STACK] -= 1
                    s.lane_block[lane] = -1  # its block may be reused before the lane proceeds
                    if r[PACED] == 0 or s.lane_free[lane] < MAX:  # otherwise its rank has stopped
                        _push(s, len(s.level) + lane)
                    continue
                if s.lane_head[lane] < 0:
                    if not _load_again(s):
                        r[ARGUMENT] = lane
                        return NEED_STEP
                    continue
                r[STACK] -= 1
                _enter(s, lane)
            elif r[CHAIN] >= 0:
                m = r[CHAIN]
                r[CHAIN] = s.next_slot[m]
                _handle(s, m)
            else:
                break
            if r[STOP] != IDLE:
                return int(r[STOP])
        if r[STARTED] > 0 or r[DIRTY] > 0:
            if r[MOVES_FLOWS]:
                r[MOVES_FLOWS] = 0
                return MOVE
            # It sets a timer of each link, and of each flow that has started, at most.
            if r[HEAP] + r[STARTED] + len(s.level) > len(s.heap):
                return FULL
            settle(s)
            if r[STOP] != IDLE:
                return int(r[STOP])
            if r[CHAIN] >= 0:  # flows that end in no time belong to the same timestamp
                continue
        if not next_time(s):
            return IDLE
        if r[NOW] == r[EVENT]:  # which precedes everything else at its time
            return CHANGE
