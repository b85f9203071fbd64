"""Loading of steps: their messages enter the queues of their lanes and connections."""

from __future__ import annotations

from simcoll.arrays import Ints
from simcoll.emulator.fast.compiled import entry, part
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.state import (
    EAGER,
    MEMBER,
    NEXT_ID,
    NEXT_NUMBER,
    SWITCHED,
    WAIT,
    WAITING,
    State,
)
from simcoll.emulator.steps.roles import MOVES

__all__ = ["load", "load_block"]


@part
def load_block(s: State, block: int) -> None:
    """Load a filled block: queue its messages at their lanes."""
    r = s.reg
    base, rows = s.block_base[block], s.block_rows[block]
    s.block_first_id[block] = r[NEXT_ID]
    r[NEXT_ID] += rows
    if s.block_role[block] == MOVES:
        s.block_first_number[block] = r[NEXT_NUMBER]
        r[NEXT_NUMBER] += rows
    s.block_left[block] = rows
    for m in range(base, base + rows):
        s.phase[m] = WAITING
        s.needs[m] = 1 + (s.rule[m] != EAGER and s.sender[m] != s.receiver[m])
        if s.rule[m] == SWITCHED and s.leader[m] >= 0:  # the leader precedes it
            s.phase[m] = MEMBER
            s.needs[s.leader[m]] += 1
    if s.block_connected[block]:
        _connect(s, base, rows)
    for node in range(2 * base, 2 * base + s.block_nodes[block]):
        lane = s.node_lane[node]
        s.node_next[node] = -1
        if s.lane_head[lane] < 0:
            s.lane_head[lane] = node
        else:
            s.node_next[s.lane_tail[lane]] = node
        s.lane_tail[lane] = node


@part
def _connect(s: State, base: int, rows: int) -> None:
    """Assign messages their places in the FIFOs of their connections, and waits their numbers."""
    for m in range(base, base + rows):
        s.follower[m] = -1
        if s.rule[m] != EAGER and s.rule[m] != WAIT:
            continue
        connection = s.connection[m]
        count = s.ring_count[connection]
        s.ring_count[connection] += 1
        if s.rule[m] == WAIT:
            s.ring_place[m] = count
            continue
        place = s.ring_base[connection] + count % s.ring_size[connection]
        s.ring_place[m] = place
        if s.ring[place] >= 0:
            s.follower[s.ring[place]] = m
            s.needs[m] += 1
        s.ring[place] = m


@entry
def load(s: State, blocks: Ints, _sources: int = SOURCES) -> None:
    """Load filled blocks, in order."""
    for block in blocks:
        load_block(s, block)
