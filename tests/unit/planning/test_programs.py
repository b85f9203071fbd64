"""GOAL programs where algorithms are named: perf, scenarios, sweeps, show, verify and realcoll; and
their timelines.
"""

from __future__ import annotations

import csv
import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

import simcoll
from realcoll.commands import main as realcoll_main
from simcoll.cli import main
from simcoll.core.protocol import ideal
from simcoll.emulator.programs.program_trace import ProgramTrace
from simcoll.planning import Call, Compute, Program, Send
from simcoll.topology import crossbar

# Rank 0 works for 2 us and sends 1,000 bytes to rank 1, which works for 3 us and sends them on to
# rank 2.
CHAIN = """
num_ranks 3
rank 0 {
a: calc 2000
b: send 1000b to 1
b requires a
c: calc 100 cpu 1
}
rank 1 {
a: recv 1000b from 0
b: calc 3000
c: send 1000b to 2
b requires a
c requires b
}
rank 2 {
recv 1000b from 1
}
"""
TIME_FS = 17 * 10**9
"""2 us, twice 5 us of latency and 1 us of bytes, 3 us."""
MACHINE = 'name = "net"\nfamily = "crossbar"\nnranks = 3\nbandwidth = "1 GB/s"\nlatency = "5 us"\n'
SCENARIO = """
title = "t"
algorithms = [{}]
topology = {{ name = "net.toml" }}
collective = {{ kind = "all_reduce" }}
sizes = {{ begin = "1K", end = "2K" }}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("chain.goal").write_text(CHAIN)
    Path("net.toml").write_text(MACHINE)


def columns(path):
    return list(csv.DictReader(Path(path).read_text().splitlines()))


@pytest.mark.slow
def test_perf_times_a_program_and_writes_its_files(capsys):
    assert (
        main(
            [
                "perf",
                "-t",
                "net.toml",
                "-a",
                "chain.goal",
                "-J",
                "a.json",
                "--csv",
                "a.csv",
                "--trace",
                "a.gz",
            ]
        )
        == 0
    )
    assert "17 us, 5 messages, 2,000 bytes; unproved, data unknown" in capsys.readouterr().out
    (row,) = columns("a.csv")
    assert (row["choice"], row["time_fs"], row["proof"]) == (
        "chain.goal",
        str(TIME_FS),
        "unproved: data unknown",
    )
    report = json.loads(Path("a.json").read_text())
    assert (report["results"], report["programs"][0]["time_fs"], report["run"]) == (
        [],
        TIME_FS,
        row["run"],
    )
    assert json.loads(gzip.decompress(Path("a.gz").read_bytes()))["otherData"]["run"] == row["run"]
    assert main(["perf", "-t", "net.toml", "-a", "chain.goal", "--svg", "a.svg"]) == 2
    assert (
        "bandwidth over sizes, and a GOAL program has one size of its own"
        in capsys.readouterr().err
    )
    assert main(["perf", "-t", "net.toml", "-a", "chain.goal", "--jitter", "1 us"]) == 2
    assert (
        "chain.goal: jitter, stragglers, background and faults are for schedules"
        in capsys.readouterr().err
    )
    assert main(["perf", "-t", "dgx-h100", "--ranks", "0-1", "-a", "chain.goal"]) == 2
    assert "chain.goal: has 3 ranks; topology 'dgx-h100' has 2" in capsys.readouterr().err


def test_files_of_what_is_only_printed_are_refused(capsys):
    assert (
        main(["perf", "all_reduce", "-t", "dgx-h100", "--library", "nccl", "--csv", "a.csv"]) == 2
    )
    assert "is printed, and with -J and --svg written" in capsys.readouterr().err
    assert not Path("a.csv").exists()


def test_a_table_has_programs_beside_schedules():
    assert (
        main(
            [
                "perf",
                "all_reduce",
                "-t",
                "net.toml",
                "-a",
                "chain.goal,ring",
                "-b",
                "1K",
                "-e",
                "2K",
                "--csv",
                "a.csv",
            ]
        )
        == 0
    )
    assert [(row["choice"], row["size_bytes"]) for row in columns("a.csv")] == [
        ("ring", "1024"),
        ("ring", "2048"),
        ("chain.goal", ""),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithms", "files"), [('"chain.goal", "ring"', 4), ('"chain.goal"', 3)]
)
def test_a_scenario_plays_programs(algorithms, files):
    Path("s.toml").write_text(SCENARIO.format(algorithms))
    for folder in ("one", "two"):
        assert main(["run", "s.toml", "-o", folder]) == 0
    document = json.loads(Path("one/results.json").read_text())
    assert [each["time_fs"] for each in document["programs"]] == [TIME_FS]
    assert sorted(each.name for each in Path("one").iterdir()) == sorted(
        ["busbw.svg", "results.csv", "results.json", "trace.json.gz"][4 - files :]
    )
    assert main(["diff", "one", "two"]) == 0


@pytest.mark.slow
def test_a_sweep_plays_a_program_once_on_each_machine():
    Path("w.toml").write_text(
        'title = "t"\nalgorithms = ["chain.goal", "ring"]\ntopologies = ["net.toml"]\n'
        'collectives = ["all_reduce", "all_gather"]\n'
        'sizes = ["1K", "2K"]\n'
    )
    assert main(["sweep", "w.toml", "-j", "1", "-o", "out"]) == 0
    rows = columns("out/results.csv")
    assert len(rows) == 5
    (played,) = [row for row in rows if row["algorithm"].endswith("chain.goal")]
    assert (played["collective"], played["size"], played["time_fs"]) == ("", "", str(TIME_FS))
    assert played["proof"] == "unproved: data unknown"


def test_show_prints_its_operations_and_what_needs_data_says_so(capsys):
    assert main(["show", "chain.goal", "--limit", "4"]) == 0
    out = capsys.readouterr().out
    assert "GOAL n=3, 7 operations, unproved: data unknown\nrank 0\n  l1: calc 2000\n" in out
    assert out.endswith("... 3 more of 7 operations (--limit shows more)\n")
    assert main(["show", "chain.goal", "--json", "a.json"]) == 2
    assert "does not say which data it moves" in capsys.readouterr().err
    assert realcoll_main(["perf", "all_reduce", "-a", "chain.goal", "-t", "local", "-g", "3"]) == 2
    assert "GOAL says how much is sent, not which data" in capsys.readouterr().err


def traced(program, machine):
    trace = ProgramTrace(program, machine)
    result = simcoll.emulate(program, machine, observer=trace)
    return trace.document(result), result


@pytest.mark.parametrize("launch_us", [0, 4])
def test_the_critical_path_of_a_program_goes_through_work_and_messages(launch_us):
    """Five spans of which one, 100 ns of work beside, is on no path; a launch counts as part of its
    message.
    """
    protocol = ideal(launch_fs=launch_us * 10**9)
    work = [
        Compute([0], 2 * 10**9, name="first"),
        Compute([0], 10**8, stream="beside"),
        Compute([1], 3 * 10**9, after=3),
    ]
    program = Program(
        3,
        [
            *work[:2],
            Send([(2, 0)], 0, stream="other", protocol=protocol),
            Send([(0, 1)], 1000, after="first", protocol=protocol),
            work[2],
            Send([(1, 2)], 1000, after=4, protocol=protocol),
        ],
    )
    document, result = traced(program, crossbar(3, "1 GB/s", "5 us"))
    assert result.time_fs == TIME_FS + 2 * launch_us * 10**9
    assert document["otherData"]["critical_path"] == {"messages": 4, "share": 1.0}
    red = {
        e["args"]["operation"]
        for e in document["traceEvents"]
        if e["ph"] == "X" and e["args"].get("critical")
    }
    assert red == {"first", "operation 3", "operation 4", "operation 5"}


def test_arrows_and_counters_of_a_program_with_a_collective():
    machine = crossbar(4, "1 GB/s", "1 us")
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=2), 1000)
    document, result = traced(
        Program(4, [Call(plan, [[0, 1], [2, 3]]), Send([(1, 2)], 4000)]), machine
    )
    events = document["traceEvents"]
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    crossing = {e["args"]["message"]: e for e in events if e["ph"] == "X" and e["cat"] == "send"}
    assert set(starts) == set(ends) == set(crossing)
    assert all(starts[number]["pid"] == crossing[number]["pid"] for number in crossing)
    carried = {}
    for event in events:
        if event["ph"] == "C":
            carried.setdefault(event["name"], []).append((event["ts"], event["args"]["GB/s"]))
    for name, points in carried.items():
        # GB/s over microseconds are kilobytes: the area under a counter is what the link carried.
        area = sum(rate * (later - begin) for (begin, rate), (later, _) in pairwise(points))
        link = next(link for link in range(machine.nlinks) if machine.link_name(link) == name)
        assert area * 1000 == pytest.approx(result.link_bytes()[link])
    assert sum(map(len, carried.values())) > 8


@pytest.mark.slow
def test_a_trace_of_its_messages_takes_its_time(capsys):
    assert main(["convert", "chain.goal", "chain.et"]) == 0
    assert "GOAL n=3, 7 operations, unproved, 7 nodes" in capsys.readouterr().out
    assert main(["step", "chain", "-t", "net.toml"]) == 0
    assert "\nstep        17 us\n" in capsys.readouterr().out
    assert main(["convert", "chain.goal", "chain.et", "--size", "1K"]) == 2
    assert "has sizes of its own" in capsys.readouterr().err
