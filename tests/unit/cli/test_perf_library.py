"""``simcoll perf`` with what a library would run."""

import json
import re
from pathlib import Path

import pytest

from simcoll.cli import main
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.libraries.calibration import Calibration, write_calibration
from simcoll.libraries.library import load_library
from simcoll.libraries.nccl_decision import own_choices
from simcoll.libraries.question import question_on
from simcoll.topology import load_topology


def run(capsys, *words):
    status = main(["perf", *words])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_library_alone_shows_its_lines_and_proves_nothing(capsys):
    status, out, _ = run(
        capsys,
        "all_reduce",
        "-t",
        "dgx-h100",
        "-b",
        "1K",
        "-e",
        "1G",
        "-f",
        "1024",
        "--library",
        "nccl",
    )
    assert status == 0
    lines = [line for line in out.splitlines() if line and not line.startswith("#")]
    assert [line.split()[0] for line in lines] == ["1024", "1048576", "1073741824"]
    assert "ring LL x1" in lines[0]
    assert "nvls Simple" in lines[2]
    assert "proved" not in out
    assert "# not in the model: " not in out
    assert (
        "# not in the model: "
        in run(capsys, "all_reduce", "-b", "1K", "-e", "1K", "--library", "nccl", "-v")[1]
    )


@pytest.mark.slow
def test_the_environment_and_a_calibration_count(capsys, tmp_path):
    words = ("all_reduce", "-t", "dgx-h100", "-b", "1G", "-e", "1G", "-f", "2")
    _, plain, _ = run(capsys, *words, "--library", "nccl", "-v")
    status, ring, _ = run(
        capsys, *words, "--env", "NCCL_NVLS_ENABLE=0,NCCL_DEBUG=INFO,NCCL_IB_TIMEOUT=9"
    )
    assert status == 0
    assert ("nvls" in plain, "nvls" in ring) == (True, False)
    assert "# NCCL_DEBUG=INFO: changes no time\n" in ring
    assert "# NCCL_IB_TIMEOUT=9: not in the model\n" in ring
    assert re.search(
        r"# 90 % interval of 1 size: left-out errors on \d+ systems \(-v: which\)", ring
    )
    overlay = Calibration(launch_fs=10**12)
    write_calibration(tmp_path / "c.toml", overlay)
    _, late, _ = run(capsys, *words, "--calibration", str(tmp_path / "c.toml"), "-v")
    assert f"# calibration {overlay.hash}" in late
    assert "# 90 % interval of 1 size: left-out errors on " in plain
    assert ("uncalibrated, large" in plain, "two points, large" in late) == (True, True)
    times = [
        float(next(x for x in out.splitlines() if x.strip().startswith("1073741824")).split()[1])
        for out in (plain, late)
    ]
    assert times[1] == pytest.approx(times[0] + 1000, abs=0.1)


def test_the_expected_error_is_that_of_the_page_of_accuracy():
    page = (Path(__file__).parents[3] / "docs" / "accuracy.md").read_text()
    head = re.findall(
        r"^\| (?:uncalibrated|two points) \| \*\*(.+?)\*\* / \*\*(.+?)\*\* / \*\*(.+?)\*\*",
        page,
        re.MULTILINE,
    )
    assert len(head) == 2
    assert re.findall(r"(\S+) / (\S+) / (\S+) %", load_library("nccl").accuracy) == head


@pytest.mark.slow
def test_what_is_assumed_is_printed_and_written(capsys, tmp_path):
    file = tmp_path / "rccl.json"
    sizes = ("-b", "1K", "-e", "1M", "-f", "1024")
    words = ("all_reduce", "-t", "oci-mi300x", "--nodes", "2", *sizes, "-J", str(file))
    status, out, _ = run(capsys, *words, "--library", "rccl")
    assert status == 0
    assert re.search("# assumed for 2 sizes: .*hop.net.tree are those of nccl 2.27\n", out)
    assert f"# wrote {file}" in out
    written = json.loads(file.read_text())
    assert written["config"]["library"] == "rccl 2.22"
    lines = [line.split() for line in out.splitlines() if not line.startswith("#")]
    for line, result in zip(lines, written["results"], strict=True):
        assert (int(line[0]), f"{line[4]} {line[5]}") == (
            result["size"],
            f"{result['algorithm']} {result['protocol']}",
        )
        assert result["out_of_place"]["time"] == pytest.approx(float(line[1]), abs=0.006)
        assert result["out_of_place"]["bus_bw"] == pytest.approx(float(line[3]), abs=0.006)
        assert any("are those of nccl 2.27" in each for each in result["assumed"])
    (log,) = load_log(file).tables
    assert (log.collective, log.nranks, log.library) == ("all_reduce", 16, "simcoll")


@pytest.mark.slow
def test_by_default_nccl_comes_before_the_best_of_all(capsys):
    status, out, _ = run(
        capsys, "all_gather", "-t", "dgx-a100", "-b", "1M", "-e", "1M", "-f", "2", "-c", "0"
    )
    assert status == 0
    assert out.startswith("# nccl 2.27 on dgx-a100, 8 ranks")
    assert out.index("ring LL") < out.index("# simcoll: all_gather on dgx-a100")
    assert (
        "# largest gain at 1048576 B: direct LL takes 15.28 us, NCCL's algorithm 1.24 times as "
        "long, 18.88 us (the shorter of its times in both tables)\n"
    ) in out


@pytest.mark.slow
def test_a_gain_is_not_a_difference_of_constants(capsys):
    # Predicted are 12 us for grouped sends, with the launch that measurements show; all algorithms
    # beside them start without it.
    status, out, _ = run(capsys, "all_to_all", "-t", "dgx-a100", "-b", "128K", "-e", "128K")
    assert status == 0
    assert out.endswith("# no algorithm is faster than NCCL's\n")


@pytest.mark.slow
def test_a_machine_without_numbers_is_no_obstacle(capsys):
    status, out, _ = run(capsys, "all_gather", "-t", "crossbar", "-b", "1K", "-e", "1K", "-f", "2")
    assert status == 0
    assert out.startswith("# no line of NCCL: nccl 2.27 has no constants")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--library", "nccl", "-a", "ring"), "for what a library chooses"),
        (("--library", "ncll"), "did you mean 'nccl'"),
        (("--env", "NCCL_ALGO=Rnig"), "did you mean 'ring'"),
        (
            ("--library", "nccl", "-t", "crossbar"),
            "no constants for GPUs whose generation the topology does not name; valid: ",
        ),
        (("--library", "nccl", "--csv", "x.csv"), "with -J and --svg written"),
        (("--library", "rccl"), "rccl 2.22 has no constants for GPUs of generation 'hopper'"),
        (("--library", "nccl", "-t", "mi300x"), "has no constants for GPUs of generation 'mi300'"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, words, what):
    status, _, err = run(capsys, "all_reduce", "-b", "1K", "-e", "1K", "-f", "2", *words)
    assert status == 2
    assert what in err


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3])
def test_choices_of_nccls_own_rules_are_named_where_others_are_predicted(capsys, nodes):
    words = ("-t", "dgx-h100", "--nodes", str(nodes), "-b", "1M", "-e", "1M", "--library", "nccl")
    _, out, _ = run(capsys, "all_reduce", *words)
    topology = load_topology("dgx-h100", nodes=nodes)
    (own,) = own_choices(question_on("all_reduce", topology, load_library("nccl")), [2**20])
    name = f"{own.algorithm} {own.protocol}"
    is_predicted = f" {name} x" in out
    assert is_predicted != (f"NCCL's own rules take {name} at 1 MiB" in out.splitlines()[-1])
    assert is_predicted == (nodes == 2)


@pytest.mark.slow
def test_nics_that_pcie_cannot_fill_are_said(capsys):
    words = ("--nodes", "2", "-b", "1G", "-e", "1G", "--library", "nccl")
    name = "dgx-h100:nic.bandwidth=400 GB/s"  # instead of 400 Gb/s
    _, out, _ = run(capsys, "all_gather", "-t", name, *words)
    assert out.startswith("# NICs of 400 GB/s behind PCIe links of 63 GB/s cannot be filled\n")
