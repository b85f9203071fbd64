"""Allocation and growth of the fast engine's arrays."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.emulator.fast.calendar import rehash
from simcoll.emulator.fast.state import (
    CHAIN,
    DTYPES,
    EDGE,
    HEAP,
    LANE,
    LAST,
    MAX,
    NOW,
    PATIENCE,
    REGISTERS,
    STACK,
    STARTED,
    TIMER,
    State,
)
from simcoll.errors import ConfigError

__all__ = [
    "PER_BLOCK",
    "PER_CONNECTION",
    "PER_HOP",
    "edges",
    "extend_arrays",
    "larger_calendar",
    "more_hops",
    "more_rings",
    "more_slots",
    "new_state",
    "replace_arrays",
]

PER_SLOT = (
    "sender",
    "receiver",
    "src",
    "dst",
    "delay_fs",
    "busy_fs",
    "wire",
    "post_fs",
    "size",
    "block",
    "entry",
    "hops",
    "ring_place",
    "connection",
    "rule",
    "leader",
    "partner",
    "needs",
    "phase",
    "follower",
    "waiters",
    "start_fs",
    "end_fs",
    "done_fs",
    "remaining",
    "rate",
    "private_rate",
    "since_fs",
    "finish_fs",
    "cover",
    "rated",
    "key",
    "previous_slot",
    "next_slot",
    "limits",
    "weights",
    "started",
    "moving",
)
PER_NODE = ("node_lane", "node_next", "node_first", "node_end", "entries")
PER_BLOCK = (
    "block_base",
    "block_rows",
    "block_hop",
    "block_nodes",
    "block_left",
    "block_role",
    "block_connected",
    "block_first_id",
    "block_first_number",
    "block_content",
    "retired",
)
PER_LANE = (
    "lane_left",
    "lane_pending",
    "lane_free",
    "lane_block",
    "lane_head",
    "lane_tail",
    "stack",
)
PER_LINK = (
    "capacity",
    "level",
    "used",
    "flows",
    "spare",
    "pending",
    "head",
    "queued",
    "marked",
    "queue",
    "changed",
    "touched",
)
MOST_ENTRIES = 2**31 - 1
"""Entries are numbered by int32, which halves the memory and doubles the share that fits in a
cache.
"""
LEAST_TIMES = 64
PER_CONNECTION = ("ring_base", "ring_size", "ring_count", "ring_done")
PLACES = {name: place for place, name in enumerate(State._fields)}
PER_HOP = ("link", "owner", "weight", "shared", "next_flow", "last_flow")


def new_state(
    capacities_uBps: Ints, lane_steps: Ints, launch_fs: int, *, fifo: bool, slots: int = 0
) -> State:
    """The arrays of a new run.

    The first slots are the timers of the links and, with a FIFO, of the lanes.

    ``slots`` are allocated for messages from the start.
    """
    links, lanes = len(capacities_uBps), len(lane_steps)
    timers = links + (lanes if fifo else 0)
    all_slots = timers + slots
    _check_room(all_slots, 4, "messages")
    sizes = (
        dict.fromkeys(PER_LANE, lanes)
        | dict.fromkeys(PER_LINK, links)
        | dict.fromkeys(PER_SLOT, all_slots)
    )
    sizes |= dict.fromkeys(PER_NODE, 2 * all_slots)
    sizes |= {"reg": REGISTERS, "sums": 2, "heap": LEAST_TIMES, "table_key": 128, "table_head": 128}
    s = _with_table(
        State(**{name: np.zeros(sizes.get(name, 0), kind) for name, kind in DTYPES.items()})
    )
    s.reg[NOW] = s.reg[LAST] = launch_fs
    s.reg[CHAIN] = s.reg[EDGE] = s.reg[PATIENCE] = -1
    s.capacity[:] = capacities_uBps
    s.level[:] = MAX
    s.lane_left[:] = lane_steps
    for array in (s.head, s.lane_block, s.lane_head, s.table_key):
        array[:] = -1
    s.phase[:links], s.phase[links:timers] = TIMER, LANE
    busy = np.flatnonzero(lane_steps)
    s.stack[: len(busy)] = busy
    s.reg[STACK] = len(busy)
    return s


def extend_arrays(state: State, names: tuple[str, ...], length: int) -> State:
    """The state with some arrays lengthened."""
    longer = {}
    for name in names:
        old = getattr(state, name)
        longer[name] = np.zeros(length, old.dtype)
        longer[name][: len(old)] = old
    return replace_arrays(state, longer)


def replace_arrays(state: State, arrays: dict[str, Array]) -> State:
    """The state with some arrays replaced, also in its table."""
    table = state.table.copy()
    for name, array in arrays.items():
        table[2 * PLACES[name] : 2 * PLACES[name] + 2] = _place(array)
    return state._replace(**arrays, table=table)


def _with_table(state: State) -> State:
    """The state with a table of the addresses of its arrays."""
    return state._replace(
        table=np.array([_place(array) for array in state[:-1]], np.int64).reshape(-1)
    )


def _place(array: Array) -> tuple[int, int]:
    address: int = array.__array_interface__["data"][0]  # much faster than ``ctypes``
    return address, len(array)


def more_slots(state: State, slots: int) -> State:
    """Grow to a number of slots."""
    _check_room(slots, 4, "messages")
    state = extend_arrays(state, PER_SLOT, slots)
    return extend_arrays(state, PER_NODE, 2 * slots)


def more_hops(state: State, hops: int) -> State:
    """Grow to a number of hops."""
    _check_room(hops, 1, "links of messages")
    return extend_arrays(state, PER_HOP, hops)


def more_rings(state: State, entries: int) -> State:
    """Grow to a number of connection entries."""
    _check_room(entries, 1, "places of connections")
    old = len(state.ring)
    state = extend_arrays(state, ("ring",), entries)
    state.ring[old:] = -1
    return state


def _check_room(count: int, entries: int, contents: str) -> None:
    if count * entries > MOST_ENTRIES:
        raise ConfigError(
            f"{count} {contents} at once are too many for the fast engine; expected no more than "
            f"{MOST_ENTRIES // entries}; "
            "engine='simpy' has no such limit"
        )


def larger_calendar(state: State) -> State:
    """Grow the calendar to twice the times that it has, and that the next settlement may add."""
    times = int(state.reg[HEAP] + state.reg[STARTED]) + len(state.level)
    size = max(LEAST_TIMES, 2 * times, len(state.heap))
    # The table is at most two thirds full, which keeps its probes short.
    places = 128
    while places < size + size // 2:
        places *= 2
    state = extend_arrays(state, ("heap",), size)
    keys, heads = np.full(places, -1, np.int64), np.full(places, -1, np.int32)
    state = replace_arrays(state, {"table_key": keys, "table_head": heads})
    rehash(state)
    return state


def edges(state: State, count: int) -> State:
    """The edges of a run: one for each wait of a message for another."""
    _check_room(count, 1, "waits")
    state = extend_arrays(state, ("edge_next", "edge_slot"), count)
    state.edge_next[:] = np.arange(1, count + 1)
    state.edge_next[-1:] = -1
    state.reg[EDGE] = 0 if count else -1
    return state
