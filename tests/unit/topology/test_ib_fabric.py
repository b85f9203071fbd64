"""InfiniBand fabrics from ibnetdiscover and iblinkinfo: the same topology from both, and times by
hand.
"""

from __future__ import annotations

import pytest

import simcoll
from simcoll.errors import ConfigError
from simcoll.formats.recognise import recognise
from simcoll.topology import load_topology
from simcoll.topology.readers.ib_fabric import parse_ib_fabric
from tests.support.fabrics import discovered, fat_tree, lined, linked

RATES = {"nvlink_bandwidth": "100 GB/s", "pcie_bandwidth": "50 GB/s"}


@pytest.mark.parametrize(
    "shape", [{}, {"hosts": 12, "adapters": 1, "leaves": 3, "spines": 4, "speed": "EDR"}]
)
def test_all_listings_give_one_topology(shape, tmp_path):
    writers = (discovered, linked, lined)
    made = [parse_ib_fabric(write(*fat_tree(**shape)), **RATES) for write in writers]
    assert [recognise(write(*fat_tree(**shape))) for write in writers] == ["ib-fabric"] * 3
    (tmp_path / "fabric").write_bytes(lined(*fat_tree(**shape)))
    assert (
        load_topology(f"{tmp_path}/fabric:nvlink.bandwidth=100 GB/s:pcie.bandwidth=50 GB/s").nranks
        == made[0].nranks
    )
    pairs = [(a, b) for a in range(made[0].nranks) for b in range(made[0].nranks)]
    src, dst = zip(*pairs, strict=True)
    routes = [topology.route(src, dst) for topology in made]
    for other, other_routes in zip(made[1:], routes[1:], strict=True):
        assert made[0].node_names == other.node_names
        assert made[0].link_capacity_uBps.tolist() == other.link_capacity_uBps.tolist()
        assert routes[0].links.tolist() == other_routes.links.tolist()


def test_times_by_hand():
    """4xHDR is 25 GB/s; GPU to adapter 0.4 us, a cable to an adapter 0.5 us, one between switches
    0.25 us.
    """
    machine = parse_ib_fabric(discovered(*fat_tree()), **RATES)
    assert machine.nranks == 8
    for other, latency, rate in ((1, 0.7, 100), (4, 1.8, 25), (2, 2.3, 25)):
        pair = simcoll.Collective("send_recv", 8, pairs=((0, other),))
        plan = simcoll.bind(simcoll.schedule(pair, "direct"), 250_000)
        assert simcoll.emulate(plan, machine).time_us == pytest.approx(
            latency + 1e6 / rate / 1e3, abs=1e-6
        )
    assert machine.path(0, 2) == [
        "node-0.gpu0 -> node-0 mlx5_0",
        "node-0 mlx5_0 -> leaf0",
        "leaf0 -> spine0",
        "spine0 -> leaf1",
        "leaf1 -> node-1 mlx5_0",
        "node-1 mlx5_0 -> node-1.gpu0",
    ]


def test_destinations_are_spread_over_the_spines():
    machine = parse_ib_fabric(
        discovered(*fat_tree(hosts=8, adapters=1, leaves=2, spines=2)), **RATES
    )
    spines = [
        next(link for link in machine.path(0, dst) if link.startswith("leaf0 -> spine"))
        for dst in (1, 3, 5, 7)
    ]
    assert spines == ["leaf0 -> spine0", "leaf0 -> spine1"] * 2
    # Whoever sends, a destination is reached over one spine.
    assert {machine.path(src, 3)[2] for src in (0, 2, 4, 6)} == {"leaf0 -> spine1"}
    made = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=8), 1000)
    assert simcoll.emulate(made, machine).wrong == 0


def test_files_extend_a_listing(tmp_path):
    (tmp_path / "fabric.txt").write_bytes(linked(*fat_tree()))
    (tmp_path / "cluster.toml").write_text(
        'extends = "fabric.txt"\n[nvlink]\nbandwidth = "100 GB/s"\n[pcie]\nbandwidth = "50 GB/s"\n'
        '[traits]\ngeneration = "hopper"\n'
    )
    machine = load_topology(tmp_path / "cluster.toml", nodes=2)
    assert (machine.nranks, machine.ranks_per_node) == (4, 2)
    with pytest.raises(
        ConfigError,
        match=r"fabric.txt: \$.pcie.bandwidth: the listing does not state the speed of links from "
        r"GPUs to adapters",
    ):
        load_topology(tmp_path / "fabric.txt")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: b"", "has no cables"),
        (
            lambda text: text.replace(b"4xHDR", b"4xQQQ", 1),
            "line 12: 4 lanes of QQQ: expected 1 to 12 of SDR",
        ),
        (
            lambda text: text.replace(b"4xHDR", b"4xEDR", 1),
            "the cable has 100000 Mbit/s at this end, and 200000 at",
        ),
        (lambda text: text.replace(b"4xHDR", b"", 1), "no width and speed at the end"),
        (
            lambda text: text.replace(b'"S-0000000000000008"[1]', b'"S-0000000000000008"[9]', 1),
            "which does not lead back",
        ),
        (
            lambda text: text.replace(b'"S-0000000000000008"[1]', b'"S-00000000000000ff"[1]', 1),
            "leads to S-00000000000000ff, which",
        ),
    ],
)
def test_what_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        parse_ib_fabric(change(discovered(*fat_tree())), **RATES)


def test_a_fabric_in_two_parts_is_refused():
    names, kinds, cables = fat_tree()
    apart = [cable for cable in cables if not names[cable[1][0]].startswith("spine")]
    with pytest.raises(ConfigError, match="no way from 'node-"):
        parse_ib_fabric(discovered(names, kinds, [*apart, ((10, 9), (11, 9), "HDR")]), **RATES)


NET = """# two switches, two cables between them
speed 7
Switch  8 "s1"
[1]  "h1"[1]
[2]  "h2"[1]
[3]  "s2"[3]
[5]  "s2"[5]

Switch 8 "s2"
[1]  "h3"[1]
[3]  "s1"[3]

Hca  2 "h1"
[1]  "s1"[1]

Hca  2 "h2"

Hca  2 "h3"
"""


def test_net_files_of_ibsim(tmp_path):
    """4 lanes of QDR carry 4 GB/s; a cable may be listed at one end only."""
    (tmp_path / "net").write_text(NET)
    assert recognise(NET.encode()) == "ib-fabric"
    machine = load_topology(tmp_path / "net", pcie__bandwidth="50 GB/s")
    assert machine.nranks == 3
    assert machine.path(0, 2) == [
        "h1.gpu0 -> h1", "h1 -> s1", "s1 -> s2", "s2 -> h3", "h3 -> h3.gpu0"
    ]  # fmt: skip
    capacities = {
        machine.link_name(link): int(machine.link_capacity_uBps[link])
        for link in range(machine.nlinks)
    }
    between = [rate for name, rate in capacities.items() if name.startswith("s1 -> s2")]
    assert between == [2 * 4 * 10**15]  # two cables as one


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"s2"[5]', '"s9"[5]', "port 5 leads to s9, which is not listed"),
        ('Hca  2 "h2"', 'Hca  2 "h1"', "'h1' is listed twice"),
        ('[3]  "s1"[3]', '[3]  "s1"[4]', "which does not lead back"),
        ("speed 7", "speed 8", "speed 8: expected a sum of 1, 2, 4"),
    ],
)
def test_net_files_that_are_refused(old, new, said):
    assert old in NET
    with pytest.raises(ConfigError, match=said):
        parse_ib_fabric(NET.replace(old, new, 1).encode(), **RATES)
