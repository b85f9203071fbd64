"""NCCL's algorithms on switches that reduce: NVLS in a node, NVLSTree over nodes, CollNet with a
reducing network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from simcoll.algorithms import compose, switch
from simcoll.algorithms.compose import in_pieces, in_stages, pipelined, staggered
from simcoll.algorithms.double_tree import binary_tree, tree_orders
from simcoll.algorithms.grid_stages import nodes_of
from simcoll.algorithms.nccl_tree import levels
from simcoll.algorithms.registered import algorithm
from simcoll.algorithms.switch import SHARP, everyone, fetch_step, multicast_step
from simcoll.core.collective import Collective
from simcoll.core.schedule import (
    MULTICAST,
    REDUCE,
    SWITCH_REDUCE,
    Layout,
    Schedule,
    Step,
    transfers,
)
from simcoll.errors import ConfigError

__all__ = [
    "all_gather",
    "all_reduce",
    "collnet_all_reduce",
    "collnet_chain_all_reduce",
    "reduce_scatter",
    "tree_all_reduce",
]

PLACE = 20  # in listings

NCCL = "NCCL 2.27: src/device/all_reduce.h, src/transport/nvls.cc and coll_net.cc"


def _one_node(collective: Collective, box: int | None) -> None:
    nodes, size = nodes_of(collective.nranks, box)
    if nodes > 1:
        raise ConfigError(
            f"nvls serves the {size} ranks of one node, got {nodes} nodes; nvls_tree serves several"
        )


@algorithm(
    "all_reduce",
    "nvls",
    cost="2a + (2 - 1/n) s b; many pieces: (1 + 1/n) s b",
    source=SHARP,
    topologies="switch",
    order="rank-consistent",
    shared=in_stages,
)
def all_reduce(collective: Collective, *, box: int | None = None) -> list[Schedule]:
    """Rank r fetches the reduction of its share from the switch, then multicasts it to all: with
    pieces, on two channels.
    """
    _one_node(collective, box)
    n = collective.nranks
    layout, rank = Layout(collective, n), np.arange(n)
    share = layout.output(0, rank)

    def fetch() -> Iterator[Step]:
        yield fetch_step(everyone(n), layout.input(0, rank), share)

    def send() -> Iterator[Step]:
        yield multicast_step(everyone(n), share, share)

    return [Schedule("nvls", layout, fetch), Schedule("nvls", layout, send)]


@algorithm(
    "reduce_scatter",
    "nvls",
    cost="a + s b",
    source=SHARP,
    topologies="switch",
    order="rank-consistent",
    shared=in_pieces,
)
def reduce_scatter(collective: Collective, *, box: int | None = None) -> Schedule:
    """Every rank fetches the reduction of its block from the switch, in pieces and on several
    channels.
    """
    _one_node(collective, box)
    return switch.reduce_scatter(collective)


@algorithm(
    "all_gather",
    "nvls",
    cost="a + (n-1)/n s b",
    source=SHARP,
    topologies="switch",
    shared=in_pieces,
)
def all_gather(collective: Collective, *, box: int | None = None) -> Schedule:
    """Every rank has the switch multicast its block to all others, in pieces and on several
    channels.
    """
    _one_node(collective, box)
    return switch.all_gather(collective)


@algorithm(
    "all_reduce",
    "nvls_tree",
    cost="at most 2(1 + ceil(lg nodes))a + (2 - 1/box) s b_box + (2 ceil(lg nodes) - 1)/box s "
    "b_net; "
    "many pieces: max((1 + 1/box) s b_box, 2/box s b_net)",
    machine="boxes",
    source=NCCL,
    pattern="tree",
    topologies="switch",
    order="rank-consistent",
)
def tree_all_reduce(
    collective: Collective, *, channels: int = 1, pieces: int = 4, box: int | None = None
) -> Schedule:
    """NVLS in every node, a double binary tree over the nodes on every rail.

    Member h of a node fetches the reduction of share h from its switch; sums travel up and down the
    trees of its rail; then the switch multicasts them to the node. With pieces each of these is a
    separate channel; ``channels`` counts the pairs of trees.
    """
    lane = int(pieces > 1)
    nodes, size = nodes_of(collective.nranks, box)
    layout, rank = Layout(collective, size), np.arange(collective.nranks)
    node, member = np.divmod(rank, size)
    members = node[:, None] * size + np.arange(size)
    share, parent = layout.output(0, member), np.array(binary_tree(nodes))[node] * size + member
    below = [members[level * size].reshape(-1) for level in levels(np.array(binary_tree(nodes)))]

    def steps() -> Iterator[Step]:
        yield fetch_step(members, layout.input(0, member), share)
        for level in reversed(below):
            yield transfers(
                level, share[level], parent[level], share[level], op=REDUCE, channel=lane
            )
        for level in below:
            yield transfers(parent[level], share[level], level, share[level], channel=2 * lane)
        yield multicast_step(members, share, share, channel=3 * lane)

    tree = Schedule("nvls_tree", layout, steps, 1 + 3 * lane)
    return pipelined(compose.channels(tree, tree_orders(len(rank), size, 1) * channels), pieces)


@algorithm(
    "all_reduce",
    "collnet",
    cost="4a + 2(box-1)/box s b_box + (2 - 1/nodes)/box s b_net + (box-1)/box s g; "
    "many pieces: max(2(box-1)/box s b_box, (1 + 1/nodes)/box s b_net)",
    machine="boxes",
    source=NCCL,
    topologies="sharp",
    order="rank-consistent",
    shared=in_stages,
)
def collnet_all_reduce(collective: Collective, *, box: int | None = None) -> list[Schedule]:
    """Member h of every node adds share h of its node; the network adds the nodes' sums.

    Finally, members exchange the results. On every rail, each node fetches its part of the share
    from the switches and has it multicast to the others.
    """
    nodes, size = nodes_of(collective.nranks, box)
    layout, rank = Layout(collective, collective.nranks), np.arange(collective.nranks)
    node, member = np.divmod(rank, size)
    shift = np.arange(1, size)[:, None]
    peer, rail = node * size + (member + shift) % size, np.arange(nodes) * size + member[:, None]
    rank_share = layout.output(0, member * nodes)

    def add_members() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, layout.output(), count=layout.chunks)
        yield transfers(rank, rank_share[peer], peer, rank_share[peer], count=nodes, op=REDUCE)

    def fetch_sums() -> Iterator[Step]:
        yield fetch_step(rail, rank_share + node, rank_share + node)

    def multicast_sums() -> Iterator[Step]:
        yield multicast_step(rail, rank_share + node, rank_share + node)

    def exchange() -> Iterator[Step]:
        yield transfers(rank, rank_share, peer, rank_share, count=nodes)

    return [
        Schedule("collnet", layout, stage)
        for stage in (add_members, fetch_sums, multicast_sums, exchange)
    ]


@algorithm(
    "all_reduce",
    "collnet_chain",
    cost="2 box a + 2(box-1)/box s b_box + (2 - 1/nodes)/box s b_net + (box-1)/box s g, channels = "
    "box; "
    "many pieces: max(2(box-1)/box s b_box, (1 + 1/nodes)/box s b_net)",
    machine="boxes",
    source=NCCL,
    topologies="sharp",
    order="rank-consistent",
)
def collnet_chain_all_reduce(
    collective: Collective, *, channels: int = 1, pieces: int = 4, box: int | None = None
) -> Schedule:
    """Chains in every node, with the network adding the sums of their first members.

    Sums travel up the chain of every node; the network adds those of the first members; results
    travel down the chains. Each first member fetches its part of the sum from the switches and has
    it multicast to the others. ``channels`` counts the chains of a node, each with a different
    first member and therefore on a different rail. With pieces the stages are separate channels;
    hops alternate between two, so that a GPU passes a piece on while it receives the next.
    """
    nodes, size = nodes_of(collective.nranks, box)
    layout, rank = Layout(collective, nodes), np.arange(collective.nranks)
    heads, vector, part = rank[::size], layout.output(), layout.output(0, np.arange(nodes))
    peer_heads = np.tile(heads, (nodes, 1))

    def copy_inputs() -> Iterator[Step]:
        yield transfers(rank, layout.input(), rank, vector, count=nodes)

    def add_up(member: int) -> Iterator[Step]:
        yield transfers(heads + member, vector, heads + member - 1, vector, count=nodes, op=REDUCE)

    def add_nodes() -> Iterator[Step]:
        yield transfers(peer_heads.T, part, heads, part, op=SWITCH_REDUCE)

    def multicast_sums() -> Iterator[Step]:
        src, place = np.nonzero(peer_heads != heads[:, None])
        yield transfers(heads[src], part[src], heads[place], part[src], op=MULTICAST)

    def pass_down(member: int) -> Iterator[Step]:
        yield transfers(heads + member - 1, vector, heads + member, vector, count=nodes)

    up = [partial(add_up, member) for member in range(size - 1, 0, -1)]
    down = [partial(pass_down, member) for member in range(1, size)]
    sources: list[Callable[[], Iterator[Step]]] = [
        copy_inputs,
        *up,
        add_nodes,
        multicast_sums,
        *down,
    ]
    stages = [Schedule("collnet_chain", layout, source) for source in sources]
    hops = np.arange(size - 1) % 2
    chain = staggered(stages, pieces, (0, *hops[::-1].tolist(), 2, 3, *(4 + hops).tolist()))
    return compose.channels(chain, tree_orders(len(rank), size, channels)[::2])
