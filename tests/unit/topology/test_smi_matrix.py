"""nvidia-smi topo -m: what the words mean, what is asked for, and what is refused."""

import re

import pytest

from simcoll.errors import ConfigError
from simcoll.formats.recognise import recognise
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


def both(text):
    """The topology of PAIRS, and of a text that should be the same."""
    return (
        (
            t.node_names,
            t.link_capacity_uBps.tolist(),
            t.link_src.tolist(),
            t.path(1, 5),
            t.path(2, 6),
        )
        for t in (
            parse_smi_matrix(PAIRS, nodes=2, **RATES),
            parse_smi_matrix(text, nodes=2, **RATES),
        )
    )


def wrapped(width):
    """PAIRS with tabs expanded, as a terminal of some width wraps it, inside words too."""
    lines = (
        PAIRS.replace(b"\x1b[4m", b"").replace(b"\x1b[0m", b"").decode().expandtabs().split("\n")
    )
    return "\n".join(
        line[begin : begin + width]
        for line in lines
        for begin in range(0, max(len(line), 1), width)
    ).encode()


PLAIN = PAIRS.replace(b"\x1b[4m", b"").replace(b"\x1b[0m", b"")


@pytest.mark.parametrize(
    "text",
    [
        b"\n".join(b"> " + line for line in PLAIN.split(b"\n")),
        b"\n".join(b">> > " + line for line in PLAIN.split(b"\n")),
        b"\n".join(b"    " + line for line in PLAIN.split(b"\n")),
        PLAIN.replace(b"\t", b"\xc2\xa0 "),
        PLAIN.replace(b"\n", b"\r\n"),
        PLAIN.replace(b"SYS\t", b"SOC\t"),
        PLAIN.replace(b"NIC", b"bnxt_re"),
        PLAIN.replace(b"NIC", b"mlx5_bond_"),
        PLAIN.replace(b"NIC0", b"rocep59s0f0v1").replace(b"NIC1", b"ib7s400p0"),
        b"node-7 login: # nvidia-smi topo -m\n" + PLAIN + b"\nnode-7 # echo GPU0\n",
        PLAIN + b"\n\tGPU0\tGPU1\tGPU2\tGPU3\n" + b"".join(
            b"GPU%d\t%s\n" % (row, b"\t".join(b"X" if row == c else b"OK" for c in range(4)))
            for row in range(4)
        ),
        b"\tGPU0\tGPU1\nGPU0\tX\tCNS\nGPU1\tCNS\tX\n\n" + PLAIN,
        PLAIN + b"\n" + PLAIN,
        b"\n".join(
            b"|" + line.replace(b"\t", b" | ") + b"|" if b"GPU" in line or b"NIC" in line else line
            for line in PLAIN.split(b"\n")
        ),
        *map(wrapped, (48, 56, 64, 71)),
    ],
    ids=[
        "quoted", "quoted twice", "indented", "no-break spaces", "carriage returns", "old words",
        "bnxt_re", "bond", "names of ports", "a session", "p2p after", "p2p before", "twice",
        "table of a page", "48", "56", "64", "71",
    ],
)  # fmt: skip
def test_the_matrix_is_found_in_many_texts(text):
    expected, actual = both(text)
    assert actual == expected


def test_a_matrix_of_one_gpu():
    text = b"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\t0\tN/A\n"
    assert parse_smi_matrix(text).nranks == 1


@pytest.mark.parametrize("text", [PLAIN, PLAIN.replace(b"\t", b"  "), wrapped(56)])
def test_recognised_by_content(text, tmp_path):
    (tmp_path / "matrix").write_bytes(text)
    assert recognise(text) == "smi-topology"
    with pytest.raises(ConfigError, match="does not state the speed of NVLinks"):
        load_topology(tmp_path / "matrix")


CUT = "\n".join(line[:40] for line in PLAIN.decode().expandtabs().split("\n")).encode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CUT, "line 6: a row of NIC0, and no column of it; lines are cut off"),
        (
            CUT.replace(b"NIC0    PIX", b"").replace(b"NIC1    SYS", b""),
            "0 columns of NICs, and a legend of 1: columns are cut off",
        ),
        (PLAIN + PLAIN.replace(b"NV4", b"NV2"), "the matrices at lines 1 and .* differ"),
        (PLAIN.replace(b"NIC1\tCPU", b"NIC0\tCPU"), "expected column headers"),
    ],
    ids=["rows of NICs", "a legend of NICs", "two nodes", "two columns of one name"],
)
def test_a_device_is_never_lost(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_smi_matrix(text, **RATES)


def test_nodes_that_differ_are_told_by_their_labels():
    """As a parallel shell prints the matrices of several nodes."""
    labelled = [
        b"\n".join(b"%s: %s" % (node, line) for line in text.split(b"\n"))
        for node, text in ((b"node-1", PLAIN), (b"node-2", PLAIN.replace(b"NV4", b"NV2")))
    ]
    expected, actual = both(labelled[0] + b"\n" + labelled[0].replace(b"node-1", b"node-3"))
    assert actual == expected
    with pytest.raises(ConfigError, match="matrices of 'node-1:' and 'node-2:' differ"):
        parse_smi_matrix(b"\n".join(labelled), **RATES)


def amd(words, hops, labels, titles, numa=""):
    """Tables as AMD's tools print them."""
    head = "             " + " ".join(f"{label:12}" for label in labels)
    text = ""
    for title, rows in zip(titles, (hops, words), strict=True):
        lines = [
            " ".join(f"{cell:12}" for cell in (label, *row))
            for label, row in zip(labels, rows, strict=True)
        ]
        text += "\n".join([title, head, *lines, "", ""])
    return (text + numa).encode()


ROCM = (
    "=========== Hops between two GPUs ============",
    "========= Link Type between two GPUs =========",
)
AMD = ("HOPS TABLE:", "LINK TYPE TABLE:")
BUSES = ("0000:0c:00.0", "0000:22:00.0", "0000:5c:00.0")


@pytest.mark.parametrize(
    ("titles", "labels", "self_word"), [(ROCM, ("GPU0", "GPU1", "GPU2"), "0"), (AMD, BUSES, "SELF")]
)
def test_links_of_amd(titles, labels, self_word):
    """GPUs 0 and 1 have a link, 1 and 2 have one, and 0 reaches 2 through 1."""
    hops = [["0", "1", "2"], ["1", "0", "1"], ["2", "1", "0"]]
    words = [[self_word if a == b else "XGMI" for b in range(3)] for a in range(3)]
    topology = parse_smi_matrix(
        amd(words, hops, labels, titles), nvlink_bandwidth="64 GB/s", pcie_bandwidth="64 GB/s"
    )
    assert topology.path(0, 1) == ["box0.gpu0 -> box0.gpu1"]
    assert topology.path(1, 2) == ["box0.gpu1 -> box0.gpu2"]
    assert "box0.gpu0 -> box0.gpu2" not in topology.path(0, 2)
    capacity = topology.link_capacity_uBps[topology.link("box0.gpu0 -> box0.gpu1")]
    assert int(capacity) == 64 * 10**15


def test_numa_nodes_of_amd_are_sockets():
    numa = "GPU[0]\t\t: (Topology) Numa Node: 0\nGPU[1]\t\t: (Topology) Numa Node: 1\n"
    text = amd(
        [["0", "PCIE"], ["PCIE", "0"]], [["0", "2"], ["2", "0"]], ("GPU0", "GPU1"), ROCM, numa
    )
    assert recognise(text) == "smi-topology"
    topology = parse_smi_matrix(text, pcie_bandwidth="64 GB/s", cpu_bandwidth="20 GB/s")
    assert "box0.cpu0 -> box0.cpu1" in topology.path(0, 1)


@pytest.mark.parametrize(
    ("words", "hops", "titles", "says"),
    [
        ([["0", "XGMI"], ["PCIE", "0"]], [["0", "1"], ["1", "0"]], ROCM, "GPU0 to GPU1 is XGMI, 1"),
        ([["0", "WIFI"], ["WIFI", "0"]], [["0", "1"], ["1", "0"]], ROCM, "expected XGMI or PCIE"),
        (
            [["0", "XGMI"]] * 2,
            [["0", "1"]] * 2,
            ("OTHER TABLE:", AMD[1]),
            "tables of hops and link",
        ),
        ([["0"], ["XGMI", "0"]], [["0", "1"], ["1", "0"]], AMD, "a row of GPU0 with 2 cells"),
    ],
    ids=["one way", "type", "no hops", "cut"],
)
def test_tables_of_amd_that_are_refused(words, hops, titles, says):
    with pytest.raises(ConfigError, match=says):
        parse_smi_matrix(amd(words, hops, ("GPU0", "GPU1"), titles), **RATES)
