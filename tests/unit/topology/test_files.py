"""Topology files: every shipped one loads and is sourced; every mistake has one clear message with
its place.
"""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.topology import LINK_KINDS, load_topology, shipped_topologies, topology_of_job

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


TEXTS = {"$.name", "$.description", "$.family", "$.extends", "$.gpu.interconnect"}


def write(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.slow
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
            text = path.startswith("$.traits.") or path in TEXTS
            # A default size, and yes or no: no measured number.
            choice = path in {"$.nodes", "$.wrap"}
            if not (text or choice) and path not in topology.sources:
                unsourced.append(path)
    assert unsourced == []


# Nodes of a domain, GPUs of a node, and as the vendors state them, per node: GPU links in GB/s,
# both ways together; network in Gbit/s.
FACTS = {
    "dgx-1v": (1, 8, 8 * 300, 400),
    "azure-nd40rs-v2": (1, 8, 8 * 300, 100),
    "dgx-2": (1, 16, 4800, 800),
    "dgx-a100": (1, 8, 4800, 1600),
    "dgx-h100": (1, 8, 7200, 3200),
    "dgx-h200": (1, 8, 7200, 3200),
    "dgx-b200": (1, 8, 14400, 3200),
    "dgx-b300": (1, 8, 14400, 6400),
    "hgx-h100-roce": (1, 8, 7200, 3200),
    "hgx-h200-roce": (1, 8, 7200, 3200),
    "hgx-b200-roce": (1, 8, 14400, 3200),
    "hgx-b300-roce": (1, 8, 14400, 6400),
    "superpod-h100": (1, 8, 7200, 3200),
    "superpod-b200": (1, 8, 14400, 3200),
    "gb200-nvl72": (18, 4, 7200, 1600),  # 130 TB/s and 28.8 Tbit/s a rack
    "gb300-nvl72": (18, 4, 7200, 3200),
    "alps-gh200": (1, 4, 3600, 800),
    "alps-gh200-cxi": (1, 4, 3600, 800),
    "jupiter-gh200": (1, 4, 4 * 900, 800),
    "snellius-h100": (1, 4, 4 * 900, 800),
    "kestrel-h100": (1, 4, 4 * 900, 400),
    "perlmutter-a100": (1, 4, 4 * 600, 800),
    "polaris-a100": (1, 4, 4 * 600, 400),
    "alps-gh200-1": (1, 1, 0, 200),
    "mi300x": (1, 8, 8 * 896, 3200),
    "mi325x": (1, 8, 8 * 896, 3200),
    "mi355x": (1, 8, 8 * 1075.2, 3200),
    "aws-p4d": (1, 8, 4800, 400),
    "aws-p4de": (1, 8, 4800, 400),
    "aws-p5": (1, 8, 7200, 3200),
    "aws-p5en": (1, 8, 7200, 3200),
    "aws-p6-b200": (1, 8, 14400, 3200),
    "aws-p6-b300": (1, 8, 14400, 6400),
    "azure-nd-a100-v4": (1, 8, 4800, 1600),
    "azure-nd-h100-v5": (1, 8, 7200, 3200),
    "dell-xe9680": (1, 8, 7200, 3200),
    "gcp-a3-high": (1, 8, 7200, 1000 - 200),
    "gcp-a3-mega": (1, 8, 7200, 1800 - 200),
    "gcp-a3-ultra": (1, 8, 7200, 3600 - 400),
    "gcp-a4": (1, 8, 14400, 3600 - 400),
    "gcp-a4-1nic": (1, 1, 1800, 400),
    "oci-a100": (1, 8, 4800, 1600),
    "oci-h100": (1, 8, 7200, 3200),
    "oci-h200": (1, 8, 7200, 3200),
    "oci-b200": (1, 8, 14400, 3200),
    "oci-gb200": (16, 4, 7200, 1600),
    "oci-gb200-v3": (16, 4, 7200, 3200),
    "gcp-a4x": (18, 4, 7200, 2000 - 400),
    "gcp-a4x-max": (18, 4, 7200, 3600 - 400),
    "gcp-a4x-max-apart": (1, 4, 7200, 3600 - 400),
    "oci-gb300": (16, 4, 7200, 3200),
    "oci-mi300x": (1, 8, 8 * 896, 3200),
    "oci-mi355x": (1, 8, 8 * 1075.2, 3200),
    "rtx-pro-6000": (1, 8, 0, 3200),
    "dgx-spark": (1, 1, 0, 200),
    "leonardo-a100": (1, 4, 4 * 600, 400),
}
WITHOUT_NICS = {
    "rtx-2080ti-pair",
    "azure-nc-a100-v4",
    "rtx-pro-6000-switch",
    "rtx-pro-6000-direct",
}
NO_MACHINE = {"crossbar", "fat-tree", "tpu-v4", "tpu-v5e"} | WITHOUT_NICS


@pytest.mark.parametrize("name", shipped_topologies())
def test_facts_are_there_for_every_machine(name):
    assert (name in FACTS) != (name in NO_MACHINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTS)
def test_shipped_machines_have_the_published_bandwidths(name):
    span, gpus, scale_up, network = FACTS[name]
    topology = load_topology(name, nodes=2 * span)
    assert topology.nranks == 2 * span * gpus
    assert topology.groups["box"].tolist() == [0] * span * gpus + [1] * span * gpus
    out = [0, 0]
    for link in range(topology.nlinks):
        tail, _, head = topology.link_name(link).partition(" -> ")
        if tail.startswith("box0.gpu") and topology.link_kind[link] == LINK_KINDS.index("nvlink"):
            out[0] += int(topology.link_capacity_uBps[link])
        if tail.startswith("box0.nic") and not head.startswith("box0"):
            out[1] += int(topology.link_capacity_uBps[link])
    assert out == [round(span * scale_up * 10**15 / 2), span * network * 125 * 10**12]


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_shipped_machines_load_with_few_nodes(name, nodes):
    span, gpus, _, _ = FACTS[name]
    topology = load_topology(name, nodes=nodes)
    assert topology.nranks == nodes * gpus
    assert int(topology.groups["box"].max()) == (nodes - 1) // span


def test_a_machine_of_two_thousand_gpus():
    alps = load_topology("alps-gh200", nodes=512)
    assert alps.nranks == 2048
    assert alps.groups["leaf"][4 * 15] == alps.groups["leaf"][0] != alps.groups["leaf"][4 * 16]


def test_two_cards_in_a_pc_meet_at_the_socket():
    pair = load_topology("rtx-2080ti-pair")
    assert [link.partition(" -> ")[2] for link in pair.path(0, 1)] == [
        "box0.pcie0",
        "box0.cpu0",
        "box0.pcie1",
        "box0.gpu1",
    ]


@pytest.mark.parametrize("nodes", [1, 17, 18, 19, 36, 40])
def test_a_rack_is_filled_before_the_next(nodes):
    racks = load_topology("gb200-nvl72", nodes=nodes)
    assert racks.groups["box"].tolist() == [rank // 72 for rank in range(4 * nodes)]
    inside = racks.route([0], [min(71, 4 * nodes - 1)])
    assert LINK_KINDS[inside.kind[0]] == "nvlink"
    if nodes > 18:
        assert LINK_KINDS[racks.route([0], [4 * nodes - 1]).kind[0]] == "net"


def test_superpod_leaves():
    # 128 boxes: 32 leaves of 64 ports, half of them down.
    topology = load_topology("superpod-h100")
    assert topology.nranks == 1024
    assert int(topology.groups["leaf"].max()) + 1 == 32
    assert load_topology("superpod-h100", nodes=64).groups["leaf"].max() + 1 == 16


def test_file_values_bare_or_with_source(tmp_path):
    topology = load_topology(
        write(tmp_path, BOXES.replace('"300 GB/s"', '{ value = "300 GB/s", source = "me" }'))
    )
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
        (
            ("count = 4", "count = { valeu = 4 }"),
            "$.gpu.count: expected { value = ..., source = '...' }, got 'valeu'",
        ),
        (("count = 4", "count = { value = 4, source = 3 }"), "$.gpu.count: source: expected text"),
        (('"boxes"', '"boxen"'), "$.family: unknown family 'boxen'; did you mean 'boxes'"),
        (("[nic]", "[nics]"), "$.nics: unknown key; did you mean 'nic'"),
        (("nodes = 2", ""), "$.nodes: missing"),
        (("nodes = 2", "nodes = 1000001"), "out of range"),
        (("nodes = 2", "nodes = 2\ngpus = 3"), "$.gpus: unknown key; did you mean 'gpu'"),
        (
            ("[nic]", "[efficiency]\nnvlnk = 0.9\n[nic]"),
            "$.efficiency.nvlnk: unknown key; did you mean 'nvlink'",
        ),
        (
            ("[nic]", "[efficiency]\nnvlink = 1.9\n[nic]"),
            "$.efficiency.nvlink: nvlink: expected at most 1",
        ),
        (("[nic]", "[network]\noversubscription = 0\n[nic]"), "expected a positive number"),
        (("[nic]", "[traits]\ngpu = 3\n[nic]"), "$.traits.gpu: expected text"),
        (
            ("[nic]", "[network]\ntiers = [{ boxes = 2 }]\n[nic]"),
            "$.network.tiers[0].name: missing",
        ),
        (
            ("[nic]", '[network]\ntiers = [{ name = "leaf", box = 2 }]\n[nic]'),
            "$.network.tiers[0].box: unknown key",
        ),
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


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"", b"family = [1]", b"a" * (2**20 + 1), b"[" * 5000]
)
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
    name = data.draw(
        st.sampled_from(
            [
                "dgx-1v",
                "dgx-h100",
                "tpu-v5e",
                "fat-tree",
                "crossbar",
                "gb200-nvl72",
                "oci-gb300",
                "rtx-2080ti-pair",
            ]
        )
    )
    lines = (FOLDER / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[at].partition("=")
        lines[at] = (
            f"{key}{equals} {data.draw(st.sampled_from(WORDS))}"
            if equals
            else data.draw(st.sampled_from(WORDS))
        )
    path = tmp_path_factory.mktemp("damaged") / "x.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    try:
        topology = load_topology(path)
    except ConfigError:
        return
    assert topology.route([0], [topology.nranks - 1]).links.shape[0] == 1


OWN = (
    'extends = "{base}"\n[gpu]\nbandwidth = "100 GB/s"\n[network]\n'
    'spine_latency = { value = "1 us", source = "me" }\n'
)


def test_a_file_that_extends_another_is_that_file_with_changes(tmp_path):
    base = write(
        tmp_path, BOXES.replace('"1 us"', '{ value = "1 us", source = "them" }'), "base.toml"
    )
    (tmp_path / "inner").mkdir()
    child = load_topology(
        write(tmp_path / "inner", OWN.replace("{base}", "../base.toml"), "child.toml"), nodes=5
    )
    same = load_topology(base, nodes=5, gpu__bandwidth="100 GB/s", network__spine_latency="1 us")
    for field in ("link_src", "link_dst", "link_capacity_uBps", "link_latency_fs", "link_kind"):
        assert getattr(child, field).tolist() == getattr(same, field).tolist()
    assert child.name == "child"
    assert child.sources == {
        "$.gpu.latency": "them",
        "$.network.spine_latency": "me",
        "$.nodes": "argument",
    }


def test_what_a_file_takes_from_its_base(tmp_path):
    child = load_topology(
        write(
            tmp_path,
            'extends = "dgx-h100"\n[traits]\nfabric = "roce"\n[nic]\nbandwidth = "200 Gbps"\n',
        )
    )
    base = load_topology("dgx-h100")
    assert child.traits == {**base.traits, "fabric": "roce"}
    assert child.efficiency == base.efficiency
    assert child.description == ""
    assert "$.nic.bandwidth" in base.sources
    assert "$.nic.bandwidth" not in child.sources  # the base's source is not that of another value
    assert child.sources["$.nic.count"] == base.sources["$.nic.count"]


def test_tiers_of_a_base_are_replaced_as_a_whole(tmp_path):
    tier = '[[network.tiers]]\nname = "leaf"\nlatency = { value = "2 us", source = "{}" }\n'
    write(
        tmp_path,
        BOXES + tier.replace("{}", "old") + tier.replace("{}", "older").replace("leaf", "spine"),
        "base.toml",
    )
    child = load_topology(write(tmp_path, 'extends = "base.toml"\n' + tier.replace("{}", "new")))
    assert child.sources == {"$.network.tiers[0].latency": "new"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "dgx-h10"', "$.extends: unknown topology 'dgx-h10'; did you mean 'dgx-h100'"),
        ('extends = "none.toml"', "$.extends: cannot be read"),
        ('extends = "a\\u0000.toml"', "$.extends: not a path"),
        ('extends = ""', "$.extends: unknown topology ''; valid: "),
        ("extends = 3", "$.extends: expected the name of a topology, or the path of a file; got 3"),
        ('extends = "mine.toml"', "$.extends: 'mine.toml' leads back to"),
        (
            'extends = "dgx-h100"\nfamily = "torus"',
            "$.family: 'torus' is not the family of dgx-h100.toml; expected 'boxes'",
        ),
        (
            'extends = "dgx-h100"\n[nic]\nbandwith = "1 GB/s"',
            "$.nic.bandwith: unknown key; did you mean 'bandwidth'",
        ),
        ('extend = "dgx-h100"', "$.family: missing; valid: "),
        ('family = "boxes"\nextend = "dgx-h100"', "$.extend: unknown key; did you mean 'extends'"),
        ('extends = "dgx-h100"\n[nic]\ncount = 3', "3 NICs cannot be shared equally by 8 GPUs"),
        (
            'extends = "gb200-nvl72"\n[gpu]\ncount = 100',
            "GPUs of a domain: 1800 is out of range; expected 1 to 1024",
        ),
        (
            'extends = "dgx-1v"\n[gpu]\nnodes_per_domain = 2',
            "nodes_per_domain: only GPUs joined by a switch",
        ),
        (
            'extends = "dgx-h100"\n[gpu]\ninterconnect = "pcie"',
            "interconnect 'pcie': expected gpus_per_pcie_switch",
        ),
        (
            'extends = "dgx-h100"\n[gpu]\ninterconnect = "mehs"',
            "interconnect: unknown 'mehs'; did you mean 'mesh'",
        ),
    ],
)
def test_mistakes_in_a_file_that_extends_another(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_topology(path)
    assert message in str(error.value)
    assert str(error.value).startswith(path)


def test_a_mistake_in_a_base_is_told_with_its_own_file(tmp_path):
    write(tmp_path, BOXES.replace("[nic]", "[nics]"), "base.toml")
    path = write(tmp_path, 'extends = "base.toml"')
    with pytest.raises(ConfigError, match=r"base\.toml: \$\.nics: unknown key"):
        load_topology(path)
    write(tmp_path, "family = ", "base.toml")
    with pytest.raises(ConfigError, match=r"base\.toml: not a TOML file"):
        load_topology(path)


def test_circles_and_long_chains_of_bases(tmp_path):
    write(tmp_path, 'extends = "b.toml"', "a.toml")
    b = write(tmp_path, 'extends = "./a.toml"', "b.toml")
    with pytest.raises(ConfigError, match=r"a\.toml: \$\.extends: 'b\.toml' leads back to"):
        load_topology(b)
    write(tmp_path, BOXES, "0.toml")
    for number in range(1, 6):
        write(tmp_path, f'extends = "{number - 1}.toml"', f"{number}.toml")
    assert load_topology(tmp_path / "4.toml").nranks == 8
    with pytest.raises(
        ConfigError,
        match=r"1\.toml: \$\.extends: '0\.toml' would be base number 5; expected at most 4",
    ):
        load_topology(tmp_path / "5.toml")


def test_traits_are_changed_when_loading():
    assert load_topology("dgx-h100", traits__fabric="roce").traits["fabric"] == "roce"
    with pytest.raises(
        ConfigError, match=r"\$\.traits\.fabric: unknown fabric 'rocee'; did you mean 'roce'"
    ):
        load_topology("dgx-h100", traits__fabric="rocee")
    with pytest.raises(ConfigError, match=r"has no 'trait\.fabric'; did you mean 'traits\.fabric'"):
        load_topology("dgx-h100", trait__fabric="roce")


@pytest.mark.parametrize(
    ("name", "nranks", "nodes", "boxes"),
    [
        ("dgx-h100", 16, None, [0] * 8 + [1] * 8),
        ("dgx-h100", 16, 2, [0] * 8 + [1] * 8),
        ("dgx-h100", 6, 2, [0] * 3 + [1] * 3),
        ("dgx-h100", 7, 2, [0] * 7),  # not equally many on each
        ("dgx-h100", 5, None, [0] * 5),
        ("dgx-h100", 3, 3, [0, 1, 2]),
        ("gb200-nvl72", 8, 2, [0] * 8),
        ("gb200-nvl72", 74, None, [0] * 72 + [1] * 2),
        ("oci-gb300", 128, 32, [0] * 64 + [1] * 64),
        ("oci-gb300", 64, 32, [0] * 32 + [1] * 32),  # half of the GPUs of each node
        ("superpod-h100", 16, None, [0] * 8 + [1] * 8),
    ],
)
def test_the_ranks_of_a_job(name, nranks, nodes, boxes):
    found = topology_of_job(name, nranks, nodes=nodes)
    assert found.groups["box"].tolist() == boxes


def test_the_ranks_of_a_job_on_other_topologies(tmp_path):
    assert topology_of_job("crossbar", 3).nranks == 3
    assert topology_of_job(write(tmp_path, BOXES), 3, nodes=3).groups["box"].tolist() == [0, 1, 2]
    assert topology_of_job("rtx-2080ti-pair", 2, nodes=1).nranks == 2
    with pytest.raises(ConfigError, match="topology 'crossbar' has 8 GPUs; 9 ranks were requested"):
        topology_of_job("crossbar", 9)
    with pytest.raises(ConfigError, match="has no 'nodes'"):
        topology_of_job("crossbar", 3, nodes=2)
    with pytest.raises(
        ConfigError, match="topology 'dgx-h100' has 16 GPUs; 17 ranks were requested"
    ):
        topology_of_job("dgx-h100", 17, nodes=2)
    for ranks, nodes in ((0, 1), (-1, None), (8, 0), (2.5, 1)):
        with pytest.raises(ConfigError, match="expected"):
            topology_of_job("dgx-h100", ranks, nodes=nodes)


def test_the_bandwidth_of_gpus_is_needed_except_with_pcie(tmp_path):
    text = BOXES.replace('bandwidth = "300 GB/s"\n', "", 1)
    with pytest.raises(
        ConfigError, match="gpu_bandwidth: expected the bandwidth of interconnect 'switch'"
    ):
        load_topology(write(tmp_path, text))
    tree = (
        'interconnect = "pcie"\n[pcie]\nbandwidth = "24 GB/s"\ngpus_per_switch = 2\n[cpu]\n'
        'bandwidth = "10 GB/s"\n[nic]'
    )
    pcie = load_topology(write(tmp_path, text.replace("[nic]", tree)), nodes=1)
    assert [len(pcie.path(0, gpu)) for gpu in (1, 2)] == [2, 5]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "<?xml version='1.0'?>\n<topology version='2.0'/>",
            "this is hwloc's description of a node",
        ),
        ("CA 'mlx5_0'\n\tCA type: MT4123\n", "this is the state of one node's InfiniBand adapters"),
        ("SwitchName=s0 Switches=s[1-2]\n", "this is a topology of Slurm"),
    ],
)
def test_files_without_links_are_named(content, said, tmp_path):
    (tmp_path / "file.xml").write_text(content)
    with pytest.raises(ConfigError, match=f"{said}.*; use a dump of NCCL .*NCCL_TOPO_DUMP_FILE"):
        load_topology(tmp_path / "file.xml")
