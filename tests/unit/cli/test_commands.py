"""Every command does its job: what it prints, what it writes, how it behaves on a terminal and in a
pipe.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from simcoll.algorithms import ALGORITHMS
from simcoll.cli import main
from simcoll.cli.drawing import schedule_svg
from simcoll.core.collective import Collective
from simcoll.core.schedule import Layout, Schedule, transfers
from tests.support.installed import PACKAGES

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGES)}
COMMAND = [sys.executable, "-m", "simcoll"]

SCENARIO = """
title = "small"
algorithms = ["ring", "tree:channels=2"]
protocols = ["LL", "Simple"]
check_up_to = "1K"
[topology]
name = "dgx-a100"
nodes = 2
[collective]
kind = "all_reduce"
[sizes]
begin = "8"
end = "1M"
factor = 16
"""

PAIR = """
name = "pair"
family = "crossbar"
nranks = 2
bandwidth = "10 GB/s"
latency = "1 us"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SCENARIO)
    return tmp_path


@dataclass(frozen=True)
class Ran:
    """A run of the small scenario: where its files are, and what it printed."""

    files: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Run here, without a terminal."""
    folder, out, err = tmp_path_factory.mktemp("here"), StringIO(), StringIO()
    (folder / "small.toml").write_text(SCENARIO)
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        assert main(["run", "small.toml"]) == 0
    return Ran(folder / "out" / "small", out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Run by a process with another hash seed, on a terminal."""
    if not hasattr(os, "openpty"):
        pytest.skip("no pseudo-terminals here")
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "small.toml").write_text(SCENARIO)
    main_end, terminal = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run", "small.toml", "-o", "b"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={**ENVIRONMENT, "TERM": "xterm", "PYTHONHASHSEED": "17"},
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            block = os.read(main_end, 65536)
        except OSError:  # Linux: the other end has closed
            break
        if not block:
            break
        seen += block
    os.close(main_end)
    assert process.wait() == 0
    return Ran(folder / "b", "", seen.decode())


@pytest.mark.slow
def test_run_writes_four_files(small):
    # No progress bar off a terminal; the compiled engine may be new.
    assert [
        line for line in small.err.splitlines() if "compiling the fast engine" not in line
    ] == []
    out = small.files
    assert sorted(path.name for path in out.iterdir()) == [
        "busbw.svg",
        "results.csv",
        "results.json",
        "trace.json.gz",
    ]
    results = json.loads((out / "results.json").read_text())
    assert (results["format"], results["version"]) == ("simcoll-results", 1)
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert len(rows) == len(results["runs"]) == 5 * 2 * 2
    assert [entry["size_bytes"] for entry in results["best"]] == [8, 128, 2048, 32768, 524288]
    for entry in results["best"]:
        times = [
            int(row["time_fs"]) for row in rows if int(row["size_bytes"]) == entry["size_bytes"]
        ]
        assert entry["time_fs"] == min(times)
        assert entry["bound_fs"] <= entry["time_fs"]
    assert {row["wrong"] for row in rows if int(row["size_bytes"]) <= 1024} == {"0"}
    # Of the check of the schedule.
    assert {row["wrong"] for row in rows if int(row["size_bytes"]) > 1024} == {"0"}
    assert ET.parse(out / "busbw.svg").getroot().tag.endswith("svg")
    trace = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X", "s", "f", "C"}
    table = [line for line in small.out.splitlines() if not line.startswith("#")]
    assert len(table) == 5
    assert [int(line.split()[0]) for line in table] == [8, 128, 2048, 32768, 524288]


@pytest.mark.slow
def test_same_input_same_bytes(small, elsewhere):
    for name in ("results.json", "results.csv", "busbw.svg", "trace.json.gz"):
        assert (small.files / name).read_bytes() == (elsewhere.files / name).read_bytes(), name


@pytest.mark.slow
def test_what_played_the_runs_is_on_the_terminal_if_asked_and_in_the_files(small, folder, capsys):
    assert not any(word in small.out for word in ("# engine ", "trace hash"))
    (folder / "small.toml").write_text(SCENARIO)
    assert main(["run", "small.toml", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.count(": proved (full") == 2
    assert (
        f"trace hash {json.loads((small.files / 'results.json').read_text())['trace_hash']}\n"
        in out
    )
    lines = [line for line in out.splitlines() if line.startswith("# engine ")]
    told = [
        re.fullmatch(r"# engine (\w+): (\d+) runs?, ([\d,]+) messages, \d+\.\d\d s \((.*)\)", line)
        for line in lines
    ]
    runs = json.loads((small.files / "results.json").read_text())["runs"]
    counts = {}
    for run in runs:
        assert run["classes"] is None
        assert "wall_s" not in run
        whys = (
            (f"only {run['messages']} messages",)
            if run["engine"] == "simpy"
            else ("a table of many messages", "lock-step")
        )
        assert run["path"].startswith(whys)
        number, messages = counts.get(run["engine"], (0, 0))
        counts[run["engine"]] = (number + 1, messages + run["messages"])
    assert {line[1]: (int(line[2]), int(line[3].replace(",", ""))) for line in told} == counts


@pytest.mark.slow
def test_why_there_was_no_quotient_is_told(capsys):
    pytest.importorskip("numba")
    machine = ["-t", "dgx-h100", "--nodes", "16"]
    command = [
        "perf",
        "all_reduce",
        *machine,
        "-b",
        "1G",
        "-e",
        "1G",
        "-p",
        "ideal",
        "-a",
        "ring",
        "-v",
    ]
    assert main(command) == 0
    folded = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("# engine")
    )
    # 128 ranks, 8 channels, 254 steps and the local copy.
    assert re.search(
        r"engine fast: 1 run, 261,120 messages, .* \(quotient: [\d,]+ classes stand for 261,120 "
        r"messages\)",
        folded,
    )
    assert main([*command, "--degrade", "box0.gpu3 <-> box0.nvswitch=17/18"]) == 0
    lone = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("# engine")
    )
    assert "(no quotient: too little symmetry" in lone


@pytest.mark.slow
def test_what_is_named_twice_runs_once(folder, capsys):
    text = SCENARIO.replace('["ring", "tree:channels=2"]', '["ring", "ring", "tree"]').replace(
        '["LL", "Simple"]', '["LL", "LL"]'
    )
    (folder / "twice.toml").write_text(text)
    assert main(["run", "twice.toml"]) == 0
    assert "# 10 runs" in capsys.readouterr().out


@pytest.mark.slow
def test_a_barrier_has_a_picture_of_times(folder):
    text = SCENARIO.replace("all_reduce", "barrier").replace(
        '["ring", "tree:channels=2"]', '["dissemination", "tree"]'
    )
    (folder / "barrier.toml").write_text(text)
    assert main(["run", "barrier.toml"]) == 0
    picture = (folder / "out" / "barrier" / "busbw.svg").read_text()
    assert all(name in picture for name in ("dissemination LL", "tree Simple", "time (us)"))


def test_a_long_title_is_wrapped():
    step = transfers(0, 0, [0, 1], 1)
    name = "long " * 60 + chr(27)
    picture = schedule_svg(Schedule(name, Layout(Collective("broadcast", 2)), lambda: iter([step])))
    root = ET.fromstring(picture)
    assert int(root.get("width")) < 800
    titles = [
        text.text
        for text in root.iter("{http://www.w3.org/2000/svg}text")
        if text.get("font-size") == "14"
    ]
    assert len(titles) == 4
    assert " ".join(titles) == name.replace(chr(27), "?") + " broadcast n=2 root=0"


@pytest.mark.slow
def test_an_algorithm_made_for_a_topology(folder, capsys):
    scenario = """
title = "a lost link"
algorithms = ["packed:pieces=64", "bfb", "ring"]
[topology]
name = "cube.toml"
degraded = { "gpu0 <-> gpu4" = 0 }
[collective]
kind = "all_gather"
[sizes]
begin = "8K"
end = "8G"
factor = 1048576
"""
    (folder / "lost.toml").write_text(scenario)
    (folder / "cube.toml").write_text(
        'name = "cube"\nfamily = "hypercube"\ndimensions = 3\nbandwidth = "25 GB/s"\n'
        'latency = "1 us"\n'
    )
    assert main(["run", "lost.toml"]) == 0
    runs = json.loads((folder / "out" / "lost" / "results.json").read_text())["runs"]
    assert {run["wrong"] for run in runs if run["size_bytes"] == 8192} == {0}
    time = {run["choice"]: run["headroom"] for run in runs if run["size_bytes"] > 2**32}
    assert time["packed:pieces=64"] < 1.1 < time["ring"]
    degrade = ["--degrade", "gpu0 <-> gpu4=0"]
    perf = "perf all_gather -t cube.toml -p ideal -b 8M -e 8M -a packed,ring"
    assert main([*perf.split(), *degrade]) == 0
    assert "packed ideal" in capsys.readouterr().out
    show = "show packed:pieces=2 -c all_reduce -t cube.toml --json packed.json --limit 0"
    assert main([*show.split(), *degrade]) == 0
    assert main(["verify", "packed.json"]) == 0
    assert (
        "packed(topology=cube degraded, pieces=2) all_reduce n=8\nproved (full"
        in capsys.readouterr().out
    )


@pytest.mark.slow
def test_a_scenario_may_name_a_topology_beside_it(folder):
    (folder / "pair.toml").write_text(PAIR)
    (folder / "own.toml").write_text(
        SCENARIO.replace('"dgx-a100"\nnodes = 2', '"pair.toml"').replace(
            '["LL", "Simple"]', '["ideal"]'
        )
    )
    assert main(["run", "own.toml"]) == 0
    results = json.loads((folder / "out" / "own" / "results.json").read_text())
    assert results["topology"]["nranks"] == 2
    # Ring of two: 2 messages of half the data after 1 us each. 8 B: 2 x (1 us + 4 B / 10 GB/s).
    assert next(run["time_fs"] for run in results["runs"] if run["choice"] == "ring") == 2 * (
        10**9 + 400_000
    )


@pytest.mark.slow
@pytest.mark.parametrize("collective", sorted({found.collective for found in ALGORITHMS}))
def test_perf_every_collective(collective, capsys):
    assert (
        main(
            [
                "perf",
                collective,
                "-t",
                "crossbar",
                "-b",
                "1K",
                "-e",
                "4K",
                "-f",
                "4",
                "-p",
                "ideal",
                "-d",
                "int32",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [row[0] for row in rows] == (["0"] if collective == "barrier" else ["1024", "4096"])
    assert all(row[8] == ("-" if collective == "barrier" else "0") for row in rows)  # #wrong


@pytest.mark.slow
def test_perf_leaves_out_what_does_not_fit(folder, capsys):
    command = ["perf", "all_gather", "--nodes", "1", "-b", "1K", "-e", "1K", "-p", "ideal"]
    assert main([*command, "-t", "dgx-h100"]) == 0
    out = capsys.readouterr().out
    assert out.count("left out") == 1
    assert "# left out, as the machine does not suit them: nvlink_ring, bfb (-v: why)\n" in out
    assert re.search(r"^# \d+ algorithms, all proved \(-v: each proof\)$", out, re.MULTILINE)
    assert "# ring(" not in out
    assert main([*command, "-t", "dgx-h100", "-v"]) == 0
    out = capsys.readouterr().out
    assert out.count("left out") == 2
    assert "# left out bfb: bfb needs direct links between the ranks" in out
    assert "# left out nvlink_ring: nvlink_ring needs rings of direct links" in out
    assert main([*command, "-t", "dgx-1v", "-v"]) == 0
    assert (
        "# left out switch: switch needs switches that reduce; those of dgx-1v do not"
        in capsys.readouterr().out
    )
    (folder / "three.toml").write_text(PAIR.replace("nranks = 2", "nranks = 3"))
    assert (
        main(
            ["perf", "all_gather", "-t", "three.toml", "-b", "1K", "-e", "1K", "-p", "ideal", "-v"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "# left out neighbor_exchange" in out
    assert "# ring(" in out


def test_verify_prints_a_proof(folder, capsys):
    assert main(["show", "ring", "-n", "5", "--json", "ring.json", "--limit", "0"]) == 0
    for extra in ([], ["--exact"]):
        assert main(["verify", "ring.json", *extra]) == 0
        assert "proved (full" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ring all_reduce -n 8", "ring(channels=1, pieces=1) all_reduce n=8\nproved (full"),
        (
            "ring:channels=2 all_gather -n 5 --exact",
            "ring(channels=2, pieces=1) all_gather n=5\nproved (full, exact)",
        ),
        ("tree broadcast -n 6 --root 4", "tree(channels=1, pieces=1) broadcast n=6 root=4\nproved"),
        ("packed all_gather -t dgx-1v", "packed(topology=dgx-1v"),
        ("ring", "ring(channels=1, pieces=1) all_reduce n=4"),
    ],
)
def test_verify_takes_an_algorithm(folder, capsys, line, says):
    assert main(["verify", *line.split()]) == 0
    assert capsys.readouterr().out.startswith(says)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("rnig", "unknown algorithm 'rnig' for all_reduce; did you mean 'ring'?"),
        ("ring all_to_all", "all_to_all"),
        ("ring all_reduce -n 0", "0"),
    ],
)
def test_verify_refuses(folder, capsys, line, says):
    assert main(["verify", *line.split()]) == 2
    assert says in capsys.readouterr().err


def test_show_takes_msccl_xml(folder, capsys):
    assert (
        main(
            [
                "show",
                str(ROOT / "docs" / "howto" / "all-gather.xml"),
                "--limit",
                "1",
                "--json",
                "shown.json",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "all_gather n=" in out.splitlines()[0]
    assert main(["verify", "shown.json"]) == 0
    assert "proved" in capsys.readouterr().out


def test_show_takes_parameters(capsys):
    assert main(["show", "torus:dims=2x3", "-n", "6", "--limit", "0"]) == 0
    assert "dims=(2, 3)" in capsys.readouterr().out


def test_show_prints_every_transfer(folder, capsys):
    assert main(["show", "ring", "-n", "3", "-c", "all_gather", "--svg", "ring.svg"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("step")] == [
        "step 0 (copy, 3 transfers)",
        "step 1 (copy, 3 transfers)",
        "step 2 (copy, 3 transfers)",
    ]
    drawn = ET.parse(folder / "ring.svg").getroot()
    arrows = [
        path for path in drawn.iter("{http://www.w3.org/2000/svg}path") if path.get("marker-end")
    ]
    assert len(arrows) == 6  # two rounds of three; the first step stays on its rank
    assert main(["show", "ring", "-n", "3", "--limit", "2"]) == 0
    assert "... 13 more of 15 transfers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("topologies", "dgx-h100"),
        ("algorithms", "rabenseifner"),
        ("scenarios", "first-look"),
        ("collectives", "all_to_all"),
        ("protocols", "LL128"),
        ("libraries", "rccl-2.22"),
    ],
)
def test_list(what, expected, capsys):
    assert main(["list", what]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv", [["--help"], ["-h"], ["--version"], ["run", "--help"], ["perf", "-h"], []]
)
def test_help(argv, capsys):
    assert main(argv) == 0
    printed = capsys.readouterr()
    assert printed.out
    assert printed.err == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv", [["list", "topologies"], ["show", "ring", "-n", "64", "--limit", "100000"]]
)
def test_a_reader_that_leaves_early(argv):
    """The pipe breaks in the middle of a long output, or only when Python flushes a short one."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [*COMMAND, *argv],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_progress_bar_on_a_terminal(elsewhere):
    assert "ring" in elsewhere.err
    assert "/20" in elsewhere.err  # runs done of runs in all


def test_show_knows_every_operation(folder, capsys):
    for algorithm, collective in (
        ("switch", "all_reduce"),
        ("direct", "send_recv"),
        ("dissemination", "barrier"),
    ):
        assert main(["show", algorithm, "-c", collective, "-n", "4", "--svg", "picture.svg"]) == 0
        assert "step 0" in capsys.readouterr().out
        ET.fromstring((folder / "picture.svg").read_text())


def test_a_factor_is_a_whole_number(capsys):
    assert main(["perf", "all_reduce", "-f", "1.5", "-e", "64"]) == 2
    assert "-f '1.5': expected a whole number" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folded_run_without_a_trace_hash_says_so(capsys):
    pytest.importorskip("numba")
    machine = ["-t", "superpod-h100", "-a", "ring", "-p", "ideal"]
    assert main(["perf", "all_reduce", *machine, "-b", "1M", "-e", "1M", "-v"]) == 0
    assert "0 wrong, no trace hash" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        ("mi300x", "topology 'mi300x', whose GPUs are of generation 'mi300'"),
        ("crossbar", "topology 'crossbar', which names no GPU generation"),
        ("pair.toml", "topology 'pair', which names no GPU generation"),
    ],
)
def test_machines_without_constants_of_nccl_run_under_ideal(folder, capsys, machine, named):
    (folder / "pair.toml").write_text(PAIR)
    small = ["perf", "all_reduce", "-t", machine, "-a", "ring", "-b", "1K", "-e", "1K"]
    assert main(small) == 0
    out = capsys.readouterr().out
    assert f"# protocol ideal: NCCL has no constants for {named}\n" in out
    assert re.search(r"^ +1024 .* ring ideal ", out, re.MULTILINE)
    assert main([*small, "-p", "LL"]) == 2
    error = capsys.readouterr().err
    assert f"not for {named}; use protocol 'ideal'" in error


def test_a_generation_of_one_s_own_file_brings_the_constants(folder, capsys):
    (folder / "pair.toml").write_text(PAIR + '[traits]\ngeneration = "ampere"\n')
    assert (
        main(["perf", "all_reduce", "-t", "pair.toml", "-a", "ring", "-b", "1K", "-e", "1K"]) == 0
    )
    out = capsys.readouterr().out
    assert "NCCL has no constants" not in out
    assert "ring LL" in out


@pytest.mark.slow
def test_the_picture_has_bandwidth_and_time_and_names_protocols(small):
    picture = (small.files / "busbw.svg").read_text()
    assert all(text in picture for text in ("bus bandwidth (GB/s)", "time (us)", "ring (LL"))
    assert all(text in picture for text in ("upper bound for any schedule", "tree:channels=2 (LL"))


@pytest.mark.slow
def test_one_rank_takes_no_time_and_has_a_picture(folder):
    (folder / "one.toml").write_text(PAIR.replace("nranks = 2", "nranks = 1"))
    text = SCENARIO.replace('"dgx-a100"\nnodes = 2', '"one.toml"').replace(
        '["LL", "Simple"]', '["ideal"]'
    )
    (folder / "alone.toml").write_text(text)
    assert main(["run", "alone.toml"]) == 0


def test_show_draws_before_it_prints(folder, monkeypatch):
    """A reader that closes the pipe at once still finds the files."""

    def closed(*arguments):
        raise BrokenPipeError

    monkeypatch.setattr("simcoll.cli.drawing.schedule_lines", closed)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert main(["show", "ring", "-n", "4", "--svg", "ring.svg", "--json", "ring.json"]) == 0
    assert ET.parse(folder / "ring.svg").getroot().tag.endswith("svg")
    assert (folder / "ring.json").exists()
