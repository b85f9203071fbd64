"""Indexes of a block before it is loaded: hops by message, messages by lane, explicit waits."""

from __future__ import annotations

from simcoll.arrays import Ints, Shorts
from simcoll.emulator.fast.compiled import entry, part
from simcoll.emulator.fast.rates import find_private_rate
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.state import EDGE, FINISHED, State

__all__ = ["index_blocks", "private_rates", "wait_for"]


@entry
def index_blocks(
    s: State,
    blocks: Ints,
    begins: Ints,
    widths: Ints,
    links: Shorts,
    weight: Shorts,
    count: Shorts,
    _sources: int = SOURCES,
) -> None:
    """List the hops of blocks by message, and their messages by lane.

    The links of a block's rows begin at ``begins``, with ``widths`` places for each row. ``weight``
    is like ``links``, or empty if all weights are 1; ``count`` has a zero for every lane, before
    and after.
    """
    for i in range(len(blocks)):
        _list_hops(s, blocks[i], begins[i], widths[i], links, weight)
        _list_messages(s, blocks[i], count)


@part
def _list_hops(s: State, block: int, begin: int, width: int, links: Shorts, weight: Shorts) -> None:
    """List the hops of a block, whose links begin at ``begin``."""
    base = s.block_base[block]
    hop: int = s.block_hop[block]
    for row in range(s.block_rows[block]):
        m = base + row
        s.entry[m] = hop
        for place in range(begin + row * width, begin + (row + 1) * width):
            if links[place] < 0:
                break
            s.link[hop] = links[place]
            s.weight[hop] = weight[place] if len(weight) else 1
            s.owner[hop] = m
            s.shared[hop] = 0
            hop += 1
        s.hops[m] = hop - s.entry[m]
        find_private_rate(s, m)


@part
def _list_messages(s: State, block: int, count: Shorts) -> None:
    """List the messages of a block by lane."""
    base, rows = s.block_base[block], s.block_rows[block]
    next_node = 2 * base
    for m in range(base, base + rows):
        for lane in (s.sender[m], s.receiver[m]):
            if count[lane] == 0:
                s.node_lane[next_node] = lane
                next_node += 1
            count[lane] += 1
        if s.sender[m] == s.receiver[m]:
            count[s.sender[m]] -= 1
    place = 2 * base
    for node in range(2 * base, next_node):
        lane = s.node_lane[node]
        s.node_first[node] = s.node_end[node] = place
        place += count[lane]
        count[lane] = node + 1
    for m in range(base, base + rows):
        for lane in (s.sender[m], s.receiver[m]):
            node = count[lane] - 1
            if s.node_end[node] == s.node_first[node] or s.entries[s.node_end[node] - 1] != m:
                s.entries[s.node_end[node]] = m
                s.node_end[node] += 1
    for node in range(2 * base, next_node):
        count[s.node_lane[node]] = 0
    s.block_nodes[block] = next_node - 2 * base


@entry
def wait_for(s: State, earlier: Ints, later: Ints, _sources: int = SOURCES) -> None:
    """Make slots wait for others that are still in flight. There are enough free edges."""
    r = s.reg
    for i in range(len(earlier)):
        m = earlier[i]
        if s.phase[m] == FINISHED:
            continue
        edge = r[EDGE]
        r[EDGE] = s.edge_next[edge]
        s.edge_next[edge] = s.waiters[m]
        s.waiters[m] = edge
        s.edge_slot[edge] = later[i]
        s.needs[later[i]] += 1


@entry
def private_rates(s: State, _sources: int = SOURCES) -> None:
    """Recompute the least rate by private hops of each flow, for new capacities."""
    for m in range(len(s.hops)):
        if s.hops[m] > 0:
            find_private_rate(s, m)
