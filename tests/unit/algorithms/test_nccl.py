"""NCCL's algorithms: its trees rebuilt from their description, messages on rails, times by hand on
ideal machines.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import simcoll
from simcoll.algorithms.ring import ring_orders
from simcoll.core.protocol import ideal
from simcoll.core.schedule import REDUCE
from simcoll.topology import load_topology
from simcoll.topology.families import boxes, crossbar
from simcoll.tuning import schedule_on

ALPHA_FS, BETA_FS, GAMMA_FS = 2_000_000_000, 1_000, 7  # 1 TB/s
AWKWARD = (*range(1, 18), 24, 31, 32, 33)
NODES = [(2, 1), (3, 1), (16, 1), (1, 5), (2, 2), (3, 3), (5, 2), (4, 8), (7, 4)]


def machine(n, rate="1 TB/s", latency=ALPHA_FS, switched="yes"):
    """A crossbar, whose switch reduces."""
    return replace(crossbar(n, rate, latency), traits={"switch_reduce": switched})


def time_fs(kind, name, n, total_bytes, topology=None, gamma_fs=0, root=None, **params):
    """Emulated time for the bytes of the whole vector, or of all blocks together."""
    made = simcoll.schedule(kind, name, nranks=n, root=root, **params)
    count = total_bytes if kind == "all_reduce" else total_bytes // n
    plan = simcoll.bind(made, count, "uint8", protocol=ideal(reduce_as_per_byte=gamma_fs * 1000))
    return simcoll.emulate(plan, topology or machine(n), data="none", bound=False).time_fs


def below(node, nodes):
    """Children in NCCL's binary tree: half of the lowest set bit to both sides, nearer where that
    is no node any more.
    """
    if node == 0:
        top = 1 << (nodes - 1).bit_length() >> 1
        return [top] if nodes > 1 else []
    half = (node & -node) // 2
    found = [node - half] if half else []
    while half and node + half >= nodes:
        half //= 2
    return [*found, node + half] if half else found


def edges(nodes, box, lead, second):
    """``(child, parent)`` of a tree over nodes whose member ``lead`` talks to other nodes and
    starts the chain of its own.
    """

    def moved(node):
        if not second:
            return node
        return nodes - 1 - node if nodes % 2 == 0 else (node + 1) % nodes

    between = {
        (moved(c) * box + lead, moved(p) * box + lead)
        for p in range(nodes)
        for c in below(p, nodes)
    }
    chains = {
        (k * box + (lead + m + 1) % box, k * box + (lead + m) % box)
        for k in range(nodes)
        for m in range(box - 1)
    }
    return between | chains


def depth(nodes, node=0):
    """Hops from a node to the farthest one below it."""
    return max((1 + depth(nodes, child) for child in below(node, nodes)), default=0)


def sent(schedule, op=None):
    """``(source, destination, channel)`` of all messages of an operation."""
    rows = set()
    for step in schedule.steps():
        here = (step.src_rank != step.dst_rank) & ((step.op == op) | (op is None))
        rows |= set(
            zip(
                *(c[here].tolist() for c in (step.src_rank, step.dst_rank, step.channel)),
                strict=True,
            )
        )
    return rows


@pytest.mark.parametrize(("nodes", "box"), NODES)
@pytest.mark.parametrize("pairs", [1, 3])
def test_the_trees_are_nccl_s(nodes, box, pairs):
    schedule = simcoll.schedule(
        "all_reduce", "nccl_tree", nranks=nodes * box, box=box, channels=pairs, pieces=2
    )
    trees = {2 * c: edges(nodes, box, c // 2 % box, c % 2) for c in range(2 * pairs)}
    up = {(src, dst, channel) for channel, found in trees.items() for src, dst in found}
    assert sent(schedule, REDUCE) == up
    assert sent(schedule, 0) == {(dst, src, channel + 1) for src, dst, channel in up}


@pytest.mark.parametrize("name", ["nccl_tree", "nvls_tree", "collnet", "collnet_chain"])
@pytest.mark.parametrize(("nodes", "box"), NODES)
def test_messages_between_nodes_stay_on_their_rail(name, nodes, box):
    schedule = simcoll.schedule(
        "all_reduce", name, nranks=nodes * box, box=box, channels=box, pieces=2
    )
    between = [(src % box, dst % box) for src, dst, _ in sent(schedule) if src // box != dst // box]
    assert all(a == b for a, b in between)
    assert {a for a, _ in between} == (set(range(box)) if nodes > 1 else set())


@pytest.mark.parametrize(("nodes", "box"), [(2, 2), (4, 2), (3, 3), (3, 4), (5, 8), (6, 3), (7, 4)])
def test_rings_use_every_rail_alike(nodes, box):
    orders = ring_orders(nodes * box, box, box)
    assert (np.sort(orders, axis=1) == np.arange(nodes * box)).all()
    ends = np.stack([orders, np.roll(orders, -1, axis=1)], axis=-1).reshape(-1, 2)
    between = ends[ends[:, 0] // box != ends[:, 1] // box]
    assert len(between) == nodes * box
    assert (between[:, 0] % box == between[:, 1] % box).all()
    # Every member of every node is left once and entered once.
    assert (np.sort(between, axis=0) == np.arange(nodes * box)[:, None]).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("n", AWKWARD)
def test_switched_algorithms_are_proved(kind, n):
    box = next((b for b in range(2, n) if n % b == 0), n)
    for name in (
        ("nvls", "nvls_tree", "collnet", "collnet_chain") if kind == "all_reduce" else ("nvls",)
    ):
        boxed = {"box": n if name == "nvls" else box, "pieces": 2}
        for turn, params in enumerate(({}, {"channels": 2, "pieces": 3}, boxed)):
            for in_place in (False, True) if not params else (bool((n // 2 + turn) % 2),):
                made = simcoll.schedule(kind, name, nranks=n, in_place=in_place, **params)
                assert simcoll.verify(made).order == (
                    "" if kind == "all_gather" else "rank-consistent"
                )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("all_reduce", "nvls"),
        ("all_gather", "nvls"),
        ("reduce_scatter", "nvls"),
        ("all_reduce", "nvls_tree"),
        ("all_reduce", "collnet"),
        ("all_reduce", "collnet_chain"),
    ],
)
def test_switched_algorithms_move_the_right_data(kind, name):
    for n, box in ((1, 1), (3, 3), (6, 2), (8, 4)):
        for count in (0, 1, n + 1, 100):
            made = simcoll.schedule(
                kind, name, nranks=n, box=n if name == "nvls" else box, channels=2, pieces=2
            )
            assert simcoll.emulate(simcoll.bind(made, count, "int32"), machine(n)).wrong == 0


@pytest.mark.parametrize("n", [2, 3, 4, 8, 9])
def test_a_chain_up_and_down_on_one_node(n):
    # Both halves of the data take the same chain: they share every port, and add one after the
    # other.
    size = 64 * 60
    hop = ALPHA_FS + size * BETA_FS
    assert time_fs("all_reduce", "nccl_tree", n, size, pieces=1) == 2 * (n - 1) * hop
    added = (
        time_fs("all_reduce", "nccl_tree", n, size, gamma_fs=GAMMA_FS, pieces=1) - 2 * (n - 1) * hop
    )
    assert added == (n - 1) * GAMMA_FS * size // 2


@pytest.mark.parametrize("box", [1, 2, 3, 8])
def test_a_tree_of_two_nodes_in_one_piece(box):
    # Up: g - 1 hops of both halves, then one half each way. Down: the root of a half sends to its
    # chain and to the other node at once, after which the halves go down a hop apart.
    size, g = 64 * 60, box
    expected = (g - 1) * (ALPHA_FS + size * BETA_FS) + ALPHA_FS + size * BETA_FS // 2
    expected += (
        ALPHA_FS
        + (size * BETA_FS if g > 1 else size * BETA_FS // 2)
        + (g - 1) * (ALPHA_FS + size * BETA_FS // 2)
    )
    assert time_fs("all_reduce", "nccl_tree", 2 * g, size, pieces=1, box=g) == expected


@pytest.mark.parametrize(("nodes", "box"), NODES)
def test_a_tree_takes_the_latencies_of_its_longest_way(nodes, box):
    for name, inside in (("nccl_tree", box - 1), ("nvls_tree", box > 1)):
        found = time_fs("all_reduce", name, nodes * box, 64, pieces=1, box=box)
        assert found // ALPHA_FS == 2 * (inside + depth(nodes))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4, 5])
def test_many_pieces_fill_the_links_of_a_tree(nodes):
    # In every chain but one a GPU has a neighbour to each side. A NIC sends half of its share up in
    # one tree, and down to two children in the other; of two nodes each has one child.
    size, g = 1 << 26, 8
    rails = boxes(nodes, g, "400 GB/s", nics=g, nic_bandwidth="50 GB/s")
    made = simcoll.schedule(
        "all_reduce", "nccl_tree", nranks=nodes * g, box=g, channels=g, pieces=32
    )
    found = simcoll.emulate(
        simcoll.bind(made, size, "uint8"), rails, data="none", bound=False
    ).time_fs
    longest = max(2 * (g - 1) * size // g * 2_500, size * 20_000 // g * (1 if nodes == 2 else 2))
    # Every message rounds by less than a femtosecond.
    assert longest - 1000 <= found < 1.12 * longest


GROUPED = {"all_to_all": (None,), "gather": (0, 2), "scatter": (0, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("channels", [1, 2, 5, 32])
def test_grouped_sends_take_a_latency_for_every_group(kind, channels):
    for n in (3, 4, 6, 11, 17):
        groups = -(-(n - 1) // channels)
        for root in GROUPED[kind]:
            # A rate that up to 16 messages share without a remainder: a block takes 100 ns.
            found = time_fs(
                kind,
                "grouped",
                n,
                72072 * n,
                machine(n, "720720 MB/s"),
                root=root,
                channels=channels,
            )
            assert found == groups * ALPHA_FS + (n - 1) * 10**8


@pytest.mark.slow
@pytest.mark.parametrize("kind", GROUPED)
def test_grouped_sends_are_proved_for_any_number_of_channels(kind):
    for n in AWKWARD:
        for channels in (1, 3, 32):
            for root in GROUPED[kind] if n > 2 else GROUPED[kind][:1]:
                simcoll.verify(
                    simcoll.schedule(kind, "grouped", nranks=n, root=root, channels=channels)
                )


def test_nvls_takes_one_trip_up_and_one_down():
    # 1 GB/s is 1,000 bytes a microsecond, a message has 1 us of latency: as for the algorithm
    # "switch", and with two pieces the second is fetched (2,000 bytes up) while the first is sent
    # (500 up).
    slow = machine(4, "1 GB/s", "1 us")
    assert time_fs("all_reduce", "nvls", 4, 4000, slow) == (2 + 4 + 3) * 10**9
    assert time_fs("all_reduce", "nvls", 4, 4000, slow, pieces=2) == int(
        (3 + 2 + 2.5 + 1.5) * 10**9
    )
    assert time_fs("all_gather", "nvls", 4, 4000, slow) == (1 + 3) * 10**9
    assert time_fs("reduce_scatter", "nvls", 4, 4000, slow) == (1 + 4) * 10**9


@pytest.mark.parametrize(("m", "g"), [(2, 2), (3, 4), (4, 3), (1, 5), (5, 1)])
def test_collnet_is_the_sum_of_its_stages(m, g):
    # In the node a share from and to each of the others; on the rail a share up, then a part of it
    # sent to all others.
    latencies, bytes_each = (
        2 * (g > 1) + 2 * (m > 1),
        2 * Fraction(g - 1, g) + (2 - Fraction(1, m)) / g * (m > 1),
    )
    size = 60 * 60 * 60
    expected = latencies * ALPHA_FS + bytes_each * size * BETA_FS
    assert time_fs("all_reduce", "collnet", m * g, size, box=g) == pytest.approx(
        float(expected), abs=latencies
    )


@pytest.mark.parametrize(("m", "g"), [(2, 2), (3, 4), (4, 3), (1, 5), (5, 1)])
def test_a_collnet_chain_takes_a_hop_after_another(m, g):
    # Up and down g - 1 hops with everything; between them first members fetch a part each, then
    # have it sent to all others.
    size = 60 * 60 * 60
    hop, part = ALPHA_FS + size * BETA_FS, Fraction(size, m) * BETA_FS
    expected = 2 * (g - 1) * hop + (2 * ALPHA_FS + (2 * m - 1) * part if m > 1 else 0)
    found = time_fs("all_reduce", "collnet_chain", m * g, size, box=g, pieces=1)
    assert found == pytest.approx(float(expected), abs=2 * (g + 1))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_pieces_follow_each_other_along_a_collnet_chain(nodes):
    # Up and down share the port of a GPU; that of a first member carries what the network adds, its
    # part of the result and what goes down.
    size, g, pieces = 1 << 30, 4, 64
    found = time_fs("all_reduce", "collnet_chain", nodes * g, size, box=g, pieces=pieces)
    longest = size * BETA_FS * (2 + Fraction(nodes > 1, nodes))
    assert longest <= found < 1.25 * longest


def test_every_channel_of_a_collnet_chain_has_a_first_member_of_its_own():
    made = simcoll.schedule("all_reduce", "collnet_chain", nranks=12, box=4, channels=4, pieces=2)
    heads = [
        {src % 4 for src, dst, of in sent(made) if src // 4 != dst // 4 and of // 6 == c}
        for c in range(4)
    ]
    assert heads == [{0}, {1}, {2}, {3}]


def test_nodes_of_one_gpu_are_joined_by_trees():
    nodes = load_topology("gcp-a4-1nic", nodes=16)
    made = schedule_on(simcoll.Collective("all_reduce", 16), "nccl_tree", nodes, {"pieces": 1})
    chain = simcoll.schedule("all_reduce", "nccl_tree", nranks=16, pieces=1)
    assert made.title == "nccl_tree(channels=1, pieces=1, box=1)"
    # Two trees in company, the deeper one of 4 levels, up and down; a chain is 15 deep.
    assert (sum(1 for _ in made.steps()), sum(1 for _ in chain.steps())) == (9, 31)


@pytest.mark.slow
def test_machines_say_what_their_switches_do():
    two, one = load_topology("dgx-h100", nodes=2), load_topology("dgx-h100")
    collective = simcoll.Collective("all_reduce", 16)
    assert (
        schedule_on(collective, "nvls_tree", two).title == "nvls_tree(channels=8, pieces=4, box=8)"
    )
    assert schedule_on(simcoll.Collective("all_reduce", 8), "nvls", one).nchannels == 8
    assert (
        schedule_on(simcoll.Collective("all_reduce", 8), "nvls", one, {"pieces": 2}).nchannels == 16
    )
    with pytest.raises(
        simcoll.ConfigError,
        match="nvls serves the 8 ranks of one node, got 2 nodes; nvls_tree serves",
    ):
        schedule_on(collective, "nvls", two)
    with pytest.raises(simcoll.ConfigError, match="collnet needs a network that reduces"):
        schedule_on(collective, "collnet", two)
    sharp = replace(two, traits={**two.traits, "switch_reduce": "nvlink-sharp sharp"})
    assert (
        simcoll.emulate(simcoll.bind(schedule_on(collective, "collnet", sharp), 1000), sharp).wrong
        == 0
    )
    assert (
        simcoll.emulate(
            simcoll.bind(schedule_on(collective, "collnet_chain", sharp), 1000), sharp
        ).wrong
        == 0
    )
    for name in ("nccl_tree", "nvls_tree", "collnet", "collnet_chain"):
        with pytest.raises(simcoll.ConfigError, match="box=5"):
            simcoll.schedule("all_reduce", name, nranks=12, box=5)


@pytest.mark.parametrize("name", ["nccl_tree", "nvls_tree", "nvls"])
def test_a_single_piece_needs_one_lane(name):
    # Then nothing on a rank could happen at the same time, and plans without waits between channels
    # can be folded.
    for pieces, lanes in ((1, 1), (2, {"nccl_tree": 2, "nvls_tree": 4, "nvls": 2}[name])):
        made = simcoll.schedule(
            "all_reduce", name, nranks=8, box=8 if name == "nvls" else 2, pieces=pieces
        )
        assert made.nchannels == lanes * (1 if name == "nvls" else 2)
        assert (len(simcoll.bind(made, 64).waits) > 0) == (pieces > 1)


def test_large_trees_are_built_at_once():
    # A thousand ranks, eight rails, eight pieces: a step is a few array operations.
    made = simcoll.schedule("all_reduce", "nccl_tree", nranks=1024, box=8, channels=8, pieces=8)
    assert sum(map(len, made.steps())) == 8 * 2 * (1024 + 2 * 8 * 1023)
    assert np.all([len(step) for step in made.steps()])
