"""The arrays of the fast engine's loops.

A message in flight is a *slot*; the slots of a step are a contiguous *block*. A flow is a slot
whose *hops*, one per link on its route, are in the lists of their links; the hops of a block are
contiguous, too. The first slots are timers instead of messages. Slot l belongs to link l: it fires
when the first of the flows that the link *covers* ends, so these flows need no calendar entries.
With a FIFO the timers of lanes follow, each of which fires when the overhead of all messages that
its lane sent has passed. With events, one slot ticks at event times, and a flow with the rate 0
waits for a link that is down: it "finishes" when it has waited too long. A *node* is a lane's part
in a step. Scalars live in ``reg``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Floats, Ints, Shorts, Words

Bytes = NDArray[np.int8]
Reals = Floats

MAX = 2**63 - 1
WORD = 32
"""Bits of an owner and of its value, where both share one number."""
# Indices of ``reg``.
NOW, CHAIN, HEAP, STACK, DONE, LAST, RETIRED, STARTED, DIRTY, DELIVERED = range(10)
STOP, ARGUMENT, HASHED, EDGE, MOVING, SETTLED, NEXT_ID, NEXT_NUMBER = range(10, 18)
AGAIN, CONTENT, TOUCHED = range(18, 21)
# The next time at which events change something; whether flows must be moved, and whether work has
# paces; how long a flow may wait for a link that is down, -1: no link is ever down.
EVENT, MOVES_FLOWS, PACED, PATIENCE = range(21, 25)
# Flows of the component that was filled last.
FILLED, REGISTERS = range(25, 27)
# Reasons for the loop to stop.
IDLE, NEED_STEP, FULL, NO_RATE, CLOCK, OVER, CHANGE, MOVE, CUT = range(9)
# Rules of a slot: rendezvous, FIFO, part of a switch operation, record, wait.
BOTH, EAGER, SWITCHED, RECORD, WAIT = range(5)
# Phases of a slot.
WAITING, PRE, FLOW, POST, ARRIVED, FINISHED, TIMER, LATE, LANE, MEMBER, TICK = range(11)


class State(NamedTuple):
    """All arrays that the loops read and write."""

    reg: Ints
    sums: Words
    # per slot: fixed while the block holds the same step
    sender: Shorts
    receiver: Shorts
    src: Shorts
    dst: Shorts
    delay_fs: Ints  # before the flow, with a FIFO after it; -1: a transfer within a rank
    busy_fs: Ints  # with a FIFO only
    wire: Ints
    post_fs: Ints
    size: Ints
    block: Shorts
    entry: Shorts  # the first of its hops
    hops: Shorts
    ring_place: Ints  # for a wait: the number of earlier waits on its connection
    connection: Shorts
    rule: Bytes
    leader: Shorts  # leader of its switch operation; -1: it is the leader
    partner: Shorts  # the next part of its switch operation; -1: none
    # per slot: variable
    needs: Shorts
    phase: Bytes
    follower: Shorts
    waiters: Shorts
    start_fs: Ints
    end_fs: Ints
    done_fs: Ints
    remaining: Reals
    rate: Ints
    private_rate: Ints  # the least rate by a private hop
    since_fs: Ints
    finish_fs: Ints
    cover: Shorts  # link whose timer covers the slot; -1: own calendar entry
    rated: Ints  # the last settlement that visited it
    key: Ints
    previous_slot: Shorts
    next_slot: Shorts
    limits: Ints
    weights: Ints
    started: Shorts
    moving: Shorts
    # per hop
    link: Shorts
    owner: Shorts  # slot
    shared: Bytes  # whether other flows are on the link
    weight: Shorts
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
    block_hop: Shorts  # its first hop
    block_nodes: Shorts
    block_left: Shorts
    block_role: Shorts
    block_connected: Shorts  # whether its slots have connections
    block_first_id: Ints
    block_first_number: Ints  # among hashed messages
    block_content: Ints
    retired: Shorts
    # per lane
    lane_left: Ints
    lane_pending: Shorts
    lane_free: Ints  # end of the send overhead
    lane_block: Shorts
    lane_head: Shorts
    lane_tail: Shorts
    stack: Shorts
    # per link
    capacity: Ints
    level: Ints
    used: Ints
    flows: Ints
    spare: Ints  # while a component is filled: what its flows without a rate share, then its level
    pending: Ints  # and their number
    head: Shorts
    queued: Bytes
    marked: Bytes
    queue: Shorts
    changed: Shorts
    touched: Shorts
    # calendar: a heap of distinct times, and a hash table from time to the slots of that time
    heap: Ints
    table_key: Ints
    table_head: Shorts
    # connections (FIFOs; records and waits) and explicit waits
    ring: Shorts  # latest messages of a FIFO; for records, the waiting slot
    ring_base: Shorts
    ring_size: Shorts
    ring_count: Ints  # messages, or waits
    ring_done: Ints  # records
    edge_next: Shorts
    edge_slot: Shorts
    # paces of ranks: a rank's stretches, their start times, and the ratio ``up / down`` (``up`` 0:
    # stopped)
    pace_first: Ints
    pace_from: Ints
    pace_up: Ints
    pace_down: Ints
    # addresses and lengths of all of these
    table: Ints


DTYPES = {
    name: {
        "Ints": np.int64,
        "Shorts": np.int32,
        "Bytes": np.int8,
        "Words": np.uint64,
        "Reals": np.float64,
    }[kind.__forward_arg__]
    for name, kind in State.__annotations__.items()
}
