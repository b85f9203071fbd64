"""Nodes of one job that should be alike: where their dumps and logs differ."""

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.reports.node_facts import (
    NodeFacts,
    consequence,
    facts_of_dump,
    facts_of_log,
    node_differences,
)

DUMP = """<system version="1"><cpu host_hash="0x1" numaid="0" arch="x86_64" vendor="AuthenticAMD" modelid="49">
<pci busid="0:1.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
<pci busid="0:2.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90" rank="0">
<nvlink target="0:7.0" count="18" tclass="0x068000"/></gpu></pci>
<pci busid="0:3.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"><nic>
<net name="mlx5_0" speed="400000" port="1" gdr="1"/></nic></pci></pci>
<pci busid="0:4.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic>
<net name="mlx5_1" speed="200000" port="1" gdr="1"/></nic></pci></cpu></system>"""


def nodes(*changes):
    """Three nodes alike, and one with changes."""
    changed = DUMP
    for old, new in changes:
        assert old in changed
        changed = changed.replace(old, new, 1)
    dumps = [DUMP, DUMP, changed, DUMP]
    return [
        facts
        for number, dump in enumerate(dumps)
        for facts in facts_of_dump(dump.encode(), f"n{number}")
    ]


def test_nodes_that_are_alike():
    assert node_differences(nodes()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '<net name="mlx5_1" speed="200000" port="1" gdr="1"/>',
            "",
            ["NICs: n2 lacks mlx5_1:1 200 Gb/s; n0, n1, n3 have mlx5_0:1 400 Gb/s, mlx5_1:1 200 Gb/s"],
        ),
        (
            'name="mlx5_1" speed="200000" port="1" gdr="1"',
            'name="mlx5_1" speed="100000" port="1" gdr="0"',
            [
                ("NICs: n2 has mlx5_1:1 100 Gb/s, no GPUDirect instead of mlx5_1:1 200 Gb/s; n0, n1, "
                "n3 have mlx5_0:1 400 Gb/s, mlx5_1:1 200 Gb/s")
            ],
        ),
        (
            'class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"',
            'class="0x030200" link_speed="32.0 GT/s PCIe" link_width="8"',
            [
                ("PCIe links: n2 has 1 gpu at 32.0 GT/s PCIe x8 instead of 1 gpu at 32.0 GT/s PCIe "
                "x16; n0, n1, n3 have 1 gpu at 32.0 GT/s PCIe x16, 1 nic at 16.0 GT/s PCIe x16, 1 nic "
                "at 32.0 GT/s PCIe x16, 1 switch at 32.0 GT/s PCIe x16")
            ],
        ),
        (
            "</nic></pci></pci>",
            "</nic></pci><pci/></pci>",
            [
                ("PCIe tree: n2 has cpu[nic switch[gpu nic switch]] instead of cpu[nic switch[gpu "
                "nic]]; n0, n1, n3 have cpu[nic switch[gpu nic]]")
            ],
        ),
        (
            'count="18"',
            'count="17"',
            [
                ("NVLinks: n2 has 1 GPU with 17 NVLinks instead of 1 GPU with 18 NVLinks; n0, n1, n3 "
                "have 1 GPU with 18 NVLinks")
            ],
        ),
    ],
    ids=["a NIC less", "a slower NIC", "half a slot", "another tree", "a dead NVLink"],
)  # fmt: skip
def test_a_node_that_differs_is_named(old, new, said):
    assert node_differences(nodes((old, new))) == said


def test_a_dump_of_several_hosts_has_several_nodes():
    host = DUMP.removeprefix('<system version="1">').removesuffix("</system>")
    both = f"<system>{host}{host.replace('0x1', '0x2').replace('400000', '200000')}</system>"
    first, second = facts_of_dump(both.encode(), "rack")
    assert (first.name, second.name) == ("rack host 0", "rack host 1")
    assert len(node_differences([first, second])) == 1


def log(host, *messages):
    return [f"{host}:7:9 [0] NCCL INFO {message}" for message in messages]


ALIKE = (
    "NCCL version 2.27.3+cuda12.9",
    "NCCL_IB_GID_INDEX set by environment to 3.",
    "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "Using network IB",
    "comm 0x5 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x9 - Init START",
    "comm 0x6 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 2000 commId 0x9 - Init START",
)


@pytest.mark.parametrize(
    ("place", "message", "said"),
    [
        (0, "NCCL version 2.21.5+cuda12.4", "NCCL: b has 2.21.5+cuda12.4 instead of 2.27.3"),
        (1, "", "NCCL_IB_GID_INDEX: b has none; a has 3"),
        (1, "NCCL_IB_GID_INDEX set by environment to 1.", "b has 1 instead of 3; a has 3"),
        (2, "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB", "NICs: b lacks mlx5_1:1/RoCE; a has"),
        (3, "Using network Socket", "network: b has Socket instead of IB; a has IB"),
        (5, "", "ranks: b has 1 instead of 2; a has 2"),
        (2, "NET/IB : No device found.", None),
    ],
    ids=["version", "no variable", "variable", "NIC", "network", "ranks", "not known"],
)
def test_hosts_of_a_log_that_differ(place, message, said):
    changed = [*ALIKE[:place], message, *ALIKE[place + 1 :]]
    differences = node_differences(facts_of_log([*log("a", *ALIKE), *log("b", *changed)]))
    assert (said is None and differences == []) or (
        len(differences) == 1 and said in differences[0]
    )


def test_many_nodes_are_counted_not_listed():
    facts = [NodeFacts(f"n{number:02d}") for number in range(64)]
    for number, node in enumerate(facts):
        node.add("NCCL", "2.27" if number != 40 else "2.26")
    assert node_differences(facts) == [
        "NCCL: n40 has 2.26 instead of 2.27; the 63 others have 2.27"
    ]


def test_what_is_no_dump_is_refused():
    with pytest.raises(ConfigError, match="n0: expected <system>, found <graphs>"):
        facts_of_dump(b"<graphs/>", "n0")


def test_on_the_command_line(tmp_path, capsys):
    for number in range(3):
        (tmp_path / f"n{number}.xml").write_text(DUMP.replace("18", "17") if number == 1 else DUMP)
    (tmp_path / "notes.txt").write_text("x")
    assert main(["graph", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# left out: notes.txt: this is a text of no kind known here"
    assert lines[1].startswith("NVLinks: n1 has 1 GPU with 17 NVLinks instead of")
    assert lines[2] == "# 3 nodes in dumps: 1 difference"
    assert main(["graph", str(tmp_path / "n0.xml")]) == 0
    assert capsys.readouterr().out == "# 1 node in dumps: no differences; nothing to compare with\n"
    (tmp_path / "job.log").write_text(
        "\n".join(log("a", *ALIKE, "Channel 00/02 :    0   1   2   3"))
    )
    assert main(["graph", str(tmp_path / "job.log")]) == 1
    assert "1 of 2 channels are in the log; missing: 01" in capsys.readouterr().out
    assert main(["graph", str(tmp_path), "-t", "dgx-h100"]) == 2
    assert "a folder, whose nodes are compared without --topology" in capsys.readouterr().err
    assert main(["graph", str(tmp_path / "notes.txt")]) == 2
    assert "expected a topology dump or a log" in capsys.readouterr().err
    assert main(["graph", str(tmp_path / "job.log"), "--nodes", "2"]) == 2
    assert "--json, --use and --nodes need the machine" in capsys.readouterr().err


def test_a_number_of_nodes_beside_that_of_the_log_is_said(tmp_path, capsys):
    lines = [
        f"n{rank // 2}:7:{rank} [0] NCCL INFO comm 0x{rank} rank {rank} nRanks 4 nNodes 2 localRanks 2"
        for rank in range(4)
    ]
    lines.append("n0:7:0 [0] NCCL INFO Channel 00/01 :    0   1   2   3")
    (tmp_path / "job.log").write_text("\n".join(lines))
    main(["graph", str(tmp_path / "job.log"), "-t", "dgx-h100", "--nodes", "4"])
    assert "the log has 2 nodes, and --nodes is 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("NICs: n1 lacks mlx5_1:1; n0 has mlx5_0:1, mlx5_1:1", "hangs without a message"),
        ("NCCL_IB_HCA: n1 has mlx5_0; n0 has none", "set them alike on all"),
        ("NCCL: n1 has 2.27.7; n0 has 2.23.4", "one version"),
        ("network: n1 has Socket; n0 has IB", ""),
    ],
)
def test_a_difference_has_a_consequence(line, words):
    assert words in consequence(line)
    assert bool(words) == bool(consequence(line))
