"""Indexes of a block before it is loaded: hops by message, messages by lane, explicit waits."""

from __future__ import annotations

from simcoll.arrays import Ints, Shorts
from simcoll.emulator.fast.compiled import SOURCES, entry, part
from simcoll.emulator.fast.rates import find_private_rate
from simcoll.emulator.fast.state import EDGE, FINISHED, State

__all__ = ["index_block", "index_blocks", "private_rates", "wait_for"]


@entry
def index_block(
    s: State, block: int, links: Shorts, weight: Shorts, count: Shorts, _sources: int = SOURCES
) -> None:
    """List the hops of a block by message, and its messages by lane.

    ``weight`` is empty if all weights are 1; ``count`` has a zero for every lane, before and after.
    """
    _index(s, block, 0, links, weight, count)


@entry
def index_blocks(
    s: State, firsts: Ints, links: Shorts, weight: Shorts, count: Shorts, _sources: int = SOURCES
) -> None:
    """Do the same for all blocks, whose rows begin at ``firsts``, with consecutive hops."""
    for block in range(len(firsts)):
        end = _index(s, block, firsts[block], links, weight, count)
        if block + 1 < len(firsts):
            s.block_hop[block + 1] = end


@part
def _index(
    s: State, block: int, first_row: int, links: Shorts, weight: Shorts, count: Shorts
) -> int:
    """Index one block, whose rows begin at ``first_row``; return the hop after its last."""
    base, rows = s.block_base[block], s.block_rows[block]
    hop: int = s.block_hop[block]
    for row in range(first_row, first_row + rows):
        m = base + row - first_row
        s.entry[m] = hop
        for column in range(links.shape[1]):
            if links[row, column] < 0:
                break
            s.link[hop] = links[row, column]
            s.weight[hop] = weight[row, column] if len(weight) else 1
            s.owner[hop] = m
            s.shared[hop] = 0
            hop += 1
        s.hops[m] = hop - s.entry[m]
        find_private_rate(s, m)
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
    return hop


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
