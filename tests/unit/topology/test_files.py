"""Topology files: every shipped one loads and is sourced; every mistake has one clear message with its place."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.topology import LINK_KINDS, load_topology, shipped_topologies

FOLDER = Path(__file__).resolve().parents[3] / "topologies"

BOXES = """
family = "boxes"
nodes = 2
[gpu]
count = 4
bandwidth = "300 GB/s"
latency = "1 us"
[nic]
count = 4
bandwidth = "200 Gbps"
latency = "3 us"
"""


def write(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", sorted(shipped_topologies()))
def test_shipped_topology_loads_and_every_number_has_a_source(name):
    topology = load_topology(name)
    assert topology.name == name
    assert 10 < len(topology.description) < 120
    assert set(topology.efficiency) <= set(LINK_KINDS)
    document = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    unsourced = []
    for key, value in document.items():
        entries = (
            {f"$.{key}.{inner}": v for inner, v in value.items()}
            if isinstance(value, dict) and "value" not in value
            else {f"$.{key}": value}
        )
        for path in entries:
            text = path.startswith("$.traits.") or path in {"$.name", "$.description", "$.family", "$.gpu.interconnect"}
            choice = path in {"$.nodes", "$.wrap"}  # a default size, and yes or no: no measured number
            if not (text or choice) and path not in topology.sources:
                unsourced.append(path)
    assert unsourced == []


# Endpoints, links from each GPU into the scale-up network, and network bandwidth of a box, as the vendors state them.
FACTS = {
    "dgx-1v": (8, 150, 4 * 12.5),
    "dgx-2": (16, 150, 8 * 12.5),
    "dgx-a100": (8, 300, 8 * 25),
    "dgx-h100": (8, 450, 8 * 50),
    "dgx-h200": (8, 450, 8 * 50),
    "dgx-b200": (8, 900, 8 * 50),
    "gb200-nvl72": (72, 900, 72 * 50),
    "mi300x": (8, 7 * 64, 8 * 50),
    "aws-p4d": (8, 300, 4 * 12.5),
    "aws-p5": (8, 450, 32 * 12.5),
    "superpod-h100": (8, 450, 8 * 50),
}


@pytest.mark.parametrize("name", FACTS)
def test_shipped_boxes_have_the_published_bandwidths(name):
    gpus, scale_up, network = FACTS[name]
    topology = load_topology(name, nodes=2)
    assert topology.nranks == 2 * gpus
    out = kinds = 0
    for link in range(topology.nlinks):
        tail, _, head = topology.link_name(link).partition(" -> ")
        if tail == "box0.gpu0" and topology.link_kind[link] == LINK_KINDS.index("nvlink"):
            out += int(topology.link_capacity_uBps[link])
        if tail.startswith("box0.nic") and head.startswith("leaf"):
            kinds += int(topology.link_capacity_uBps[link])
    assert out == scale_up * 10**15
    assert kinds == int(network * 10) * 10**14


def test_superpod_leaves():
    # 128 boxes: 32 leaves of 64 ports, half of them down.
    topology = load_topology("superpod-h100")
    assert topology.nranks == 1024
    assert int(topology.groups["leaf"].max()) + 1 == 32
    assert load_topology("superpod-h100", nodes=64).groups["leaf"].max() + 1 == 16


def test_file_values_bare_or_with_source(tmp_path):
    topology = load_topology(write(tmp_path, BOXES.replace('"300 GB/s"', '{ value = "300 GB/s", source = "me" }')))
    assert topology.name == "mine"
    assert topology.sources == {"$.gpu.bandwidth": "me"}
    assert topology.nranks == 8


def test_overrides(tmp_path):
    path = write(tmp_path, BOXES)
    topology = load_topology(path, nodes=3, nic__bandwidth="100 GB/s", network__oversubscription=2)
    assert topology.nranks == 12
    assert topology.link_capacity_uBps[topology.link("leaf0.rail1 -> spine")] == 150 * 10**15
    assert topology.sources["$.nic.bandwidth"] == "argument"


def test_tiers_in_a_file(tmp_path):
    tiers = """
[[network.tiers]]
name = "leaf"
boxes = 2
rail_only = true
latency = "2 us"
[[network.tiers]]
name = "spine"
latency = { value = "1 us", source = "datasheet" }
oversubscription = "3:1"
"""
    topology = load_topology(write(tmp_path, BOXES + tiers), nodes=4)
    assert topology.route([0, 0], [4, 8]).latency_fs.tolist() == [2 * 10**9, 3 * 10**9]
    assert topology.sources["$.network.tiers[1].latency"] == "datasheet"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('bandwidth = "300 GB/s"', 'bandwidht = "300 GB/s"'),
            "$.gpu.bandwidht: unknown key; did you mean 'bandwidth'",
        ),
        (("300 GB/s", "300"), "$.gpu.bandwidth: bandwidth: '300' has no unit"),
        (("300 GB/s", "300 GX/s"), "$.gpu.bandwidth: bandwidth: unknown unit 'GX/s'"),
        (('"300 GB/s"', "300"), "$.gpu.bandwidth: bandwidth: expected text with a unit"),
        (("300 GB/s", "30 TB/s"), "$.gpu.bandwidth: bandwidth: '30 TB/s' is too large"),
        (("300 GB/s", "-1 GB/s"), "negative"),
        (('"1 us"', "1"), "$.gpu.latency: latency: expected text with a unit"),
        (("count = 4", "count = 0"), "$.gpu.count: count: 0 is out of range"),
        (("count = 4", 'count = "4"'), "$.gpu.count: count: expected a whole number"),
        (("count = 4", "count = { valeu = 4 }"), "$.gpu.count: expected { value = ..., source = '...' }, got 'valeu'"),
        (("count = 4", "count = { value = 4, source = 3 }"), "$.gpu.count: source: expected text"),
        (('"boxes"', '"boxen"'), "$.family: unknown family 'boxen'; did you mean 'boxes'"),
        (("[nic]", "[nics]"), "$.nics: unknown key; did you mean 'nic'"),
        (("nodes = 2", ""), "$.nodes: missing"),
        (("nodes = 2", "nodes = 1000001"), "out of range"),
        (("nodes = 2", "nodes = 2\ngpus = 3"), "$.gpus: unknown key; did you mean 'gpu'"),
        (("[nic]", "[efficiency]\nnvlnk = 0.9\n[nic]"), "$.efficiency.nvlnk: unknown key; did you mean 'nvlink'"),
        (("[nic]", "[efficiency]\nnvlink = 1.9\n[nic]"), "$.efficiency.nvlink: nvlink: expected at most 1"),
        (("[nic]", "[network]\noversubscription = 0\n[nic]"), "expected a positive number"),
        (("[nic]", "[traits]\ngpu = 3\n[nic]"), "$.traits.gpu: expected text"),
        (("[nic]", "[network]\ntiers = [{ boxes = 2 }]\n[nic]"), "$.network.tiers[0].name: missing"),
        (("[nic]", '[network]\ntiers = [{ name = "leaf", box = 2 }]\n[nic]'), "$.network.tiers[0].box: unknown key"),
        (("[nic]\ncount = 4", "[nic]\ncount = 3"), "3 NICs cannot be shared equally by 4 GPUs"),
        (("[gpu]", "gpu = 3\n[gpus]"), "$.gpu: expected a table [gpu]"),
        (("family", "family = "), "not a TOML file"),
    ],
)
def test_mistakes_in_a_file(tmp_path, change, message):
    path = write(tmp_path, BOXES.replace(*change, 1))
    with pytest.raises(ConfigError) as error:
        load_topology(path)
    assert message in str(error.value)
    assert str(error.value).startswith(path)


def test_a_shipped_name_that_is_not_there():
    with pytest.raises(ConfigError, match=r"unknown topology 'dgx-h10'; did you mean 'dgx-h100'"):
        load_topology("dgx-h10")


def test_paths_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topology(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topology(f"{tmp_path}/")
    with pytest.raises(ConfigError, match="not a path"):
        load_topology("a\0b.toml")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"family = [1]", b"a" * (2**20 + 1), b"[" * 5000])
def test_files_that_are_no_topology(tmp_path, content):
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.toml"):
        load_topology(path)


def test_overrides_that_do_not_exist():
    with pytest.raises(ConfigError, match=r"did you mean 'nic.bandwidth'"):
        load_topology("dgx-h100", nic__bandwith="3 GB/s")
    with pytest.raises(ConfigError, match="has no 'nodes'"):
        load_topology("tpu-v5e", nodes=2)
    with pytest.raises(ConfigError, match="out of range"):
        load_topology("dgx-h100", nodes=0)


WORDS = [
    "0",
    "-1",
    "3.5",
    "1e400",
    "nan",
    "true",
    "[]",
    "{}",
    '""',
    '"1 GB/s"',
    '"9 s"',
    "[[0, 1]]",
    "99999999999999999999",
    "'2:0'",
]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_files_load_or_raise_config_error(data, tmp_path_factory):
    name = data.draw(st.sampled_from(["dgx-1v", "dgx-h100", "tpu-v5e", "fat-tree", "crossbar"]))
    lines = (FOLDER / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[at].partition("=")
        lines[at] = (
            f"{key}{equals} {data.draw(st.sampled_from(WORDS))}" if equals else data.draw(st.sampled_from(WORDS))
        )
    path = tmp_path_factory.mktemp("damaged") / "x.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    try:
        topology = load_topology(path)
    except ConfigError:
        return
    assert topology.route([0], [topology.nranks - 1]).links.shape[0] == 1
