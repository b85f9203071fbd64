"""nvidia-smi topo -m: what the words mean, what is asked for, and what is refused."""

import re

import pytest

from simcoll.errors import ConfigError
from simcoll.topology import load_topology
from simcoll.topology.readers.smi_matrix import parse_smi_matrix

# Two sockets with two GPUs and a NIC each; a pair is bridged by NVLink. As printed, with the
# terminal's marks.
PAIRS = (
    b"\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA "
    b"ID\x1b[0m\n"
    b"GPU0\t X \tNV4\tSYS\tSYS\tPIX\tSYS\t0-31\t0\t\tN/A\n"
    b"GPU1\tNV4\t X \tSYS\tSYS\tNODE\tSYS\t0-31\t0\t\tN/A\n"
    b"GPU2\tSYS\tSYS\t X \tNV4\tSYS\tPIX\t32-63\t1\t\tN/A\n"
    b"GPU3\tSYS\tSYS\tNV4\t X \tSYS\tNODE\t32-63\t1\t\tN/A\n"
    b"NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    b"NIC1\tSYS\tSYS\tPIX\tNODE\tSYS\t X \t\t\t\t\n"
    b"\nLegend:\n\n  X    = Self\n  SYS  = between NUMA nodes\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
RATES = {
    "nvlink_bandwidth": "25 GB/s",
    "pcie_bandwidth": "32 GB/s",
    "nic_bandwidth": "50 GB/s",
    "cpu_bandwidth": "20 GB/s",
}


def switched(gpus, links):
    """GPUs that are all joined alike."""
    names = [f"GPU{gpu}" for gpu in range(gpus)]
    rows = [
        " ".join([name, *("X" if a == b else f"NV{links}" for b in range(gpus))])
        for a, name in enumerate(names)
    ]
    return "\n".join(["   " + " ".join(names), *rows]).encode()


def test_bridges_sockets_and_nics():
    topology = parse_smi_matrix(PAIRS, file="pairs.txt", nodes=2, **RATES)
    assert (topology.name, topology.nranks) == ("pairs", 8)
    assert topology.path(0, 1) == ["box0.gpu0 -> box0.gpu1"]
    assert int(topology.link_capacity_uBps[topology.link("box0.gpu0 -> box0.gpu1")]) == 100 * 10**15
    assert topology.path(0, 2) == [
        "box0.gpu0 -> box0.pcie0",
        "box0.pcie0 -> box0.cpu0",
        "box0.cpu0 -> box0.cpu1",
        "box0.cpu1 -> box0.pcie1",
        "box0.pcie1 -> box0.gpu2",
    ]
    # GPU 0 and NIC 0 share a switch, and GPU 1 goes through the CPU to the same NIC.
    assert topology.path(0, 4)[:2] == ["box0.gpu0 -> box0.pcie0", "box0.pcie0 -> box0.nic0"]
    assert topology.path(1, 4)[:3] == [
        "box0.gpu1 -> box0.cpu0",
        "box0.cpu0 -> box0.pcie0",
        "box0.pcie0 -> box0.nic0",
    ]


@pytest.mark.parametrize(
    ("gpus", "links", "switch"), [(8, 18, True), (8, 12, True), (4, 4, False), (2, 12, False)]
)
def test_more_links_than_a_gpu_has_mean_switches(gpus, links, switch):
    topology = parse_smi_matrix(
        switched(gpus, links), nvlink_bandwidth="25 GB/s", pcie_bandwidth="32 GB/s"
    )
    assert ("box0.nvswitch" in topology.node_names) == switch
    first = int(topology.link_capacity_uBps[topology.link(topology.path(0, 1)[0])])
    assert first == links * 25 * 10**15


@pytest.mark.parametrize("name", ["nvlink", "pcie", "nic", "cpu"])
def test_what_is_not_known_is_asked_for(name):
    given = {key: value for key, value in RATES.items() if not key.startswith(name)}
    with pytest.raises(
        ConfigError,
        match=rf"\$.{name}.bandwidth: the matrix does not state the speed of .*; set it: -t "
        r"'matrix:nvlink.bandwidth=",
    ):
        parse_smi_matrix(PAIRS, **given)


def test_all_that_is_not_known_is_asked_for_at_once_with_a_name_that_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.txt").write_bytes(PAIRS)
    for start in ("pairs.txt", "pairs.txt:pcie.bandwidth=16 GB/s"):
        with pytest.raises(
            ConfigError,
            match=r"does not state the speed of NVLinks.* NICs and links between sockets; set them",
        ) as caught:
            load_topology(start)
        named = re.search("-t '(.*?)'", caught.value.message)[1]
        assert ("pcie.bandwidth=16" in named) == (start != "pairs.txt")
        assert load_topology(named).nranks == 4


def test_a_topology_file_gives_the_rates(tmp_path):
    (tmp_path / "pairs.txt").write_bytes(PAIRS)
    lines = ['extends = "pairs.txt"', 'name = "mine"', "nodes = 3"]
    lines += [f'[{key.partition("_")[0]}]\nbandwidth = "{value}"' for key, value in RATES.items()]
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    topology = load_topology(tmp_path / "mine.toml")
    assert (topology.name, topology.nranks) == ("mine", 12)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"GPU0\tGPU1", b"GPU\tGPU1", "no header line that begins with GPU0"),
        (b"GPU1\tGPU2", b"GPU9\tGPU2", "line 1: expected column headers GPU0, GPU1"),
        (b"NV4\tSYS\tSYS\tPIX", b"NVX\tSYS\tSYS\tPIX", "line 2: unknown word 'NVX'"),
        (b"GPU3\tSYS", b"GPU2\tSYS", "line 5: two rows of GPU2"),
        (b"NIC1\tSYS\tSYS\tPIX", b"NIC1\tSYS\tSYS\tPXB", "GPU2 to NIC1 is PIX, and back PXB"),
        (b"NIC1\tSYS\tSYS\tPIX\tNODE\tSYS\t X \t\t\t\t\n", b"", "no row of NIC1"),
        (
            b"GPU0\t X \tNV4\tSYS\tSYS\tPIX\tSYS\t0-31\t0\t\tN/A",
            b"GPU0\t X ",
            "line 2: 1 cells; expected one for each of 6",
        ),
    ],
)
def test_what_is_refused(old, new, says):
    assert old in PAIRS
    with pytest.raises(ConfigError, match=says):
        parse_smi_matrix(PAIRS.replace(old, new, 1), **RATES)
