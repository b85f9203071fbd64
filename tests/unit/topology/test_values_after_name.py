"""Values after the name of a topology, and what they add to files for NCCL_TOPO_FILE."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.errors import ConfigError
from simcoll.libraries.nccl.search import search
from simcoll.topology import load_topology, topology_of_job
from simcoll.topology.file_layers import beside, layers_of, split_values
from simcoll.topology.files import one_node
from simcoll.topology.machine import beyond_pcie

DEVICE = '<pci busid="{}" class="{}" link_speed="16 GT/s" link_width="16"/>'
GPU = (
    '<pci busid="{0}" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu sm="80" '
    'rank="{1}" dev="{1}">{2}</gpu></pci>'
)
DUMP = Path(__file__).parents[3] / "docs" / "howto" / "four-gpu-box.xml"
LINK = '<nvlink target="{}" count="12" tclass="0x030200"/>'


def system(*devices):
    return (
        '<system version="1"><cpu numaid="0" arch="x86_64" '
        f'vendor="AuthenticAMD">{"".join(devices)}</cpu></system>'
    )


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """Two GPUs, the one with the higher address first, and a NIC."""
    monkeypatch.chdir(tmp_path)
    kinds = (
        ("0002:00:00.0", "0x030200"),
        ("0001:00:00.0", "0x030200"),
        ("0003:00:00.0", "0x020700"),
    )
    Path("cloud.xml").write_text(system(*(DEVICE.format(*each) for each in kinds)))
    return "cloud.xml"


def capacity(topology, link):
    return topology.link_capacity_uBps[topology.find_links(link)[0]] / 10**15


def test_values_replace_those_of_a_file():
    changed = load_topology("dgx-h100:nodes=2:nic.bandwidth=100 Gbps")
    assert changed.nranks == 16
    assert (changed.name, changed.description) == (
        "dgx-h100",
        load_topology("dgx-h100").description,
    )
    plain = load_topology("dgx-h100", nodes=2, nic__bandwidth="100 Gbps")
    assert changed.link_capacity_uBps.tolist() == plain.link_capacity_uBps.tolist()
    # So that a sweep's points differ.
    assert len(layers_of("dgx-h100:nodes=2")) == len(layers_of("dgx-h100")) + 1


def test_a_faster_nic_is_behind_the_same_slot_however_it_is_stated(tmp_path):
    file = tmp_path / "fast.toml"
    file.write_text('extends = "dgx-h100"\n[nic]\nbandwidth = "800 Gbps"\n')
    of_file, after_name, argument = (
        load_topology(file, nodes=2),
        load_topology("dgx-h100:nic.bandwidth=800 Gbps", nodes=2),
        load_topology("dgx-h100", nodes=2, nic__bandwidth="800 Gbps"),
    )
    for topology in (of_file, after_name):
        assert (topology.link_capacity_uBps == argument.link_capacity_uBps).all()
    assert beyond_pcie(of_file).startswith("NICs of 100 GB/s behind PCIe links of 63 GB/s")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "dgx-h100:nic.bandwith=1 GB/s",
            r"\$\.nic\.bandwith: unknown key; did you mean 'bandwidth'",
        ),
        ("dgx-h100:nic.bandwidth=1", r"\$\.nic\.bandwidth: .*expected text with a unit"),
        ("dgx-h100:nodes=two", r"\$\.nodes: nodes: expected a whole number, got 'two'"),
        ("dgx-h10:nodes=2", "unknown topology 'dgx-h10'; did you mean 'dgx-h100'"),
        ("dgx-h100:nic=1:nic.count=2", "has a value and values below it"),
        ("dgx-h100:nodes=", r"\$\.nodes: nodes: expected a whole number, got ''"),
    ],
)
def test_wrong_values_are_named(name, said):
    with pytest.raises(ConfigError, match=said):
        load_topology(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dgx-h100:nodes=2:nodes=4", "nodes is given twice, as 2 and as 4"),
        ("dgx-h100:nic.latency=1 us:nic.latency=2 us", "as '1 us' and as '2 us'"),
    ],
)
def test_values_that_contradict_are_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        load_topology(name)


def test_a_number_of_nodes_beside_another_is_refused():
    with pytest.raises(ConfigError, match="has 2 nodes, and 4 are asked for beside it"):
        load_topology("dgx-h100:nodes=2", nodes=4)
    assert load_topology("dgx-h100:nodes=2", nodes=2).nranks == 16
    assert topology_of_job("dgx-h100:nodes=2", 8).nranks == one_node("dgx-h100:nodes=2").nranks == 8


def test_a_file_may_have_a_colon_and_lies_beside_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a:nodes=2").write_text('family = "crossbar"\nnranks = 3\nbandwidth = "1 GB/s"\n')
    assert split_values("a:nodes=2") == ("a:nodes=2", "")
    assert load_topology("a:nodes=2").nranks == 3
    folder = Path("sub")
    folder.mkdir()
    Path("sub/net.toml").write_text('family = "crossbar"\nnranks = 3\nbandwidth = "1 GB/s"\n')
    assert load_topology(beside(folder, "net.toml:nranks=5")).nranks == 5
    assert beside(folder, "dgx-h100:nodes=2") == "dgx-h100:nodes=2"


def test_a_file_of_pcie_devices_gets_what_nccl_adds(cloud):
    found = load_topology(f"{cloud}:gpu.sm=80:nvlink.count=12:nic.bandwidth=25 GB/s", nodes=2)
    assert found.nranks == 4
    assert capacity(found, "box0.gpu0 -> box0.nvswitch") == 300  # twelve of 25 GB/s
    assert capacity(found, "box1.nic0 -> leaf") == 25
    assert (found.traits["gpu"], found.traits["generation"]) == ("sm80", "ampere")
    direct = load_topology(f"{cloud}:gpu.sm=70:gpu.links=[[0, 1, 2]]:nic.bandwidth=25 GB/s")
    assert direct.path(0, 1) == ["box0.gpu0 -> box0.gpu1"]
    assert capacity(direct, "box0.gpu0 -> box0.gpu1") == 50
    none = load_topology(f"{cloud}:gpu.sm=70:nvlink.count=0:nic.bandwidth=25 GB/s")
    assert none.path(0, 1) == ["box0.gpu0 -> box0.cpu0", "box0.cpu0 -> box0.gpu1"]


def test_what_nccl_adds_to_a_file_of_pcie_devices_decides_its_graphs(tmp_path):
    """Two GPUs, and below a switch with each a NIC, of which the later one has the lower address."""
    switch = '<pci busid="{}" class="0x060400" link_speed="16 GT/s" link_width="16">{}</pci>'
    devices = [
        switch.format(f"f{n}", DEVICE.format(gpu, "0x030200") + DEVICE.format(nic, "0x020700"))
        for n, gpu, nic in (
            (0, "0001:00:00.0", "0102:00:00.0"),
            (1, "0002:00:00.0", "0101:00:00.0"),
        )
    ]
    path = tmp_path / "cloud.xml"
    path.write_text(system(*devices))
    facts = "gpu.sm=80:nvlink.count=12:nic.bandwidth=25 GB/s"
    ring = search(load_topology(f"{path}:{facts}:nic.latency=75 us", nodes=2), (2, 30)).ring
    assert (ring.path_to_nic, ring.net_latency_us) == ("PXN", 75), ring
    assert (ring.orders[0], ring.nics[0]) == ((0, 1), (1, 1))
    assert search(load_topology(f"{path}:{facts}", nodes=2), (2, 30)).ring.net_latency_us == 0
    with pytest.raises(ConfigError, match=r"\$\.nic\.latency: a full dump states this"):
        load_topology(f"{DUMP}:nic.latency=1 us")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            "",
            "2 GPU devices .class 0x03. but no <gpu> elements: .*gpu.sm, such as 80, nvlink.count",
        ),
        (":gpu.sm=80", r"\$\.nvlink\.count: missing: how many NVLinks each GPU has"),
        (
            ":gpu.sm=80:nvlink.count=2",
            r"\$\.nic\.bandwidth: missing: the file has 1 network devices",
        ),
        (
            ":gpu.sm=80:gpu.links=[[0, 2, 1]]:nic.bandwidth=1 GB/s",
            r"\$\.gpu\.links: \[0, 2, 1\]: expected two GPUs of 0 to 1",
        ),
        (
            ":gpu.sm=80:gpu.links=[[0, 0, 1]]:nic.bandwidth=1 GB/s",
            r"\$\.gpu\.links: \[0, 0, 1\]: expected two GPUs",
        ),
        (":gpu.sm=8:nvlink.count=0:nic.bandwidth=1 GB/s", "sm='8' is not a GPU"),
    ],
)
def test_what_is_missing_is_asked_for(cloud, values, said):
    with pytest.raises(ConfigError, match=said):
        load_topology(cloud + values)


def test_given_links_stand_in_for_those_to_itself(tmp_path):
    path = tmp_path / "vm.xml"
    ids = [f"000{number}:00:00.0" for number in range(4)]
    path.write_text(
        system(*(GPU.format(each, rank, LINK.format(each)) for rank, each in enumerate(ids)))
    )
    with pytest.raises(ConfigError, match=r"a link to itself, .*gpu\.links=\[\[0, 1, 12\]\]"):
        load_topology(path)
    pairs = load_topology(f"{path}:gpu.links=[[0, 1, 12], [2, 3, 12]]")
    assert pairs.path(2, 3) == ["box0.gpu2 -> box0.gpu3"]
    assert len(pairs.path(1, 2)) == 2
    path.write_text(system('<pci busid="0000:00:16.0"/>'))
    with pytest.raises(ConfigError, match="no <gpu> elements, nor devices of class 0x03"):
        load_topology(f"{path}:gpu.sm=80:nvlink.count=0")


def test_what_is_no_topology_is_told_so(tmp_path):
    path = tmp_path / "tuner.csv"
    path.write_text("allreduce,0,1024,ring,ll,2,1,8\n")
    with pytest.raises(
        ConfigError,
        match="not a topology: expected TOML, an NCCL topology dump, the output of nvidia-smi",
    ):
        load_topology(path)
