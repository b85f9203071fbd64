"""Slow ranks, traffic of others, random delays, and the ranks that take part: as options and as
keys of files.
"""

from __future__ import annotations

import csv
import json

import pytest

import simcoll
from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.disturbance import disturbance, parse_ranks
from simcoll.topology import crossbar
from simcoll.types import Slow

PAIR = 'name = "pair"\nfamily = "crossbar"\nnranks = 3\nbandwidth = "10 GB/s"\nlatency = "1 us"\n'
MEBIBYTE = 1 << 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair.toml").write_text(PAIR)
    return tmp_path


def times(capsys, *argv):
    assert main(["perf", "all_reduce", *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.split()[5] for line in lines if line[:1] != "#"], [
        line for line in lines if "disturbed" in line
    ]


@pytest.mark.slow
def test_background_takes_its_share_of_a_link(folder, capsys):
    """Two ranks: two steps of half a MiB, at 10 GB/s, and at 7.5 and 5 GB/s where others take a
    quarter and a half.
    """
    plain = ["-t", "pair.toml", "--ranks", "0,2", "-a", "ring", "-b", "1M", "-e", "1M"]
    for share, rate in ((0, 10), (25, 7.5), (50, 5)):
        options = ["--background", f"gpu2 -> switch: {share} %"] if share else []
        (time,), said = times(capsys, *plain, *options)
        assert time == f"{2 * (1 + MEBIBYTE / 2 / rate / 1e3):.2f}"
        assert len(said) == bool(share)


def test_a_straggler_is_slow_in_everything(folder, capsys):
    """Two ranks: what enters and leaves the GPU of the slow one takes half as long again; so it
    does where the other is slow.
    """
    plain = ["-t", "pair.toml", "--ranks", "0,2", "-a", "ring", "-b", "1M", "-e", "1M"]
    by_hand = f"{2 * (1 + 1.5 * MEBIBYTE / 2 / 10 / 1e3):.2f}"
    assert times(capsys, *plain, "--straggler", "rank 1: +50 %")[0] == [by_hand]
    assert times(capsys, *plain, "--straggler", "0: +50%")[0] == [by_hand]


def test_the_work_of_a_straggler_is_slow():
    slow = disturbance(stragglers=["rank 3: +50 %"]).events(simcoll.load_topology("dgx-h100"))
    assert slow[0] == Slow(3, "3/2")
    assert str(slow[1]) == "t=0 box0.gpu3 = 2/3"


@pytest.mark.slow
def test_jitter_comes_from_its_seed(folder, capsys):
    plain = ["-t", "pair.toml", "-a", "ring", "-b", "1M", "-e", "1M"]
    seeds = [
        times(capsys, *plain, "--jitter", "5us", "--seed", seed)[0] for seed in ("1", "2", "1")
    ]
    assert seeds[0] == seeds[2] != seeds[1]
    assert main(["perf", "all_reduce", *plain, "--seed", "1"]) == 2
    assert "--seed is for --jitter" in capsys.readouterr().err


@pytest.mark.slow
def test_files_say_the_same(folder, capsys):
    (folder / "scenario.toml").write_text(
        'title = "t"\nalgorithms = ["ring"]\nbackground = ["gpu1 -> switch: 50 %"]\nranks = "0-1"\n'
        '[topology]\nname = "pair.toml"\n[collective]\nkind = "all_reduce"\n[sizes]\nbegin = "1M"\n'
        'end = "1M"\n'
    )
    (folder / "sweep.toml").write_text(
        'title = "t"\ntopologies = ["pair.toml"]\ncollectives = ["all_reduce"]\n'
        'algorithms = ["ring"]\nsizes = ["1M"]\n'
        'background = ["gpu1 -> switch: 50 %"]\nranks = "0-1"\n'
    )
    assert main(["run", "scenario.toml", "-o", "out"]) == 0
    results = json.loads((folder / "out" / "results.json").read_text())
    assert results["sweep"]["disturbed"]["background"] == [["gpu1 -> switch", "1/2"]]
    assert main(["sweep", "sweep.toml", "-o", "rows", "-j", "1"]) == 0
    (row,) = [
        json.loads(line) for line in (folder / "rows" / "rows.jsonl").read_text().splitlines()
    ]
    by_hand_fs = 2 * (10**9 + MEBIBYTE // 2 * 200_000)
    assert results["runs"][0]["time_fs"] == row["result"]["time_fs"] == by_hand_fs
    assert (
        main(
            [
                "sweep",
                "sweep.toml",
                "-o",
                "all",
                "-j",
                "1",
                "--ranks",
                "0-2",
                "--background",
                "gpu0 -> switch: 0 %",
            ]
        )
        == 0
    )
    (other,) = [
        json.loads(line) for line in (folder / "all" / "rows.jsonl").read_text().splitlines()
    ]
    assert other["point"]["ranks"] == [0, 1, 2]
    assert "background" not in other["point"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "said"),
    [
        (
            lambda: disturbance(stragglers=["3 +10 %"]),
            "straggler '3 .10 %': expected a rank and how much longer",
        ),
        (
            lambda: disturbance(background=["leaf: 100 %"]),
            "background 'leaf: 100 %': expected a link and the share",
        ),
        (lambda: disturbance(jitter="fast"), "jitter"),
        (
            lambda: disturbance(seed=-1),
            "seed must be a whole number from 0 to 9223372036854775807, got -1",
        ),
        (lambda: parse_ranks("3-1"), "ranks '3-1': expected numbers and rising ranges"),
        (
            lambda: disturbance(stragglers=["rank 3: +1 %", "3: +2 %"]),
            "rank 3 is already slow",
        ),
        (
            lambda: crossbar(4, "1 GB/s").with_ranks(range(5)),
            "may use ranks 0 to 3 of topology 'crossbar', not 4",
        ),
        (lambda: parse_ranks("0-9999999"), "more than 1,048,576 ranks"),
        (lambda: parse_ranks("0-3,2"), "ranks '0-3,2': a rank comes twice"),
    ],
)
def test_what_cannot_be_read(read, said):
    with pytest.raises(ConfigError, match=said):
        read()


def test_what_does_not_go_together(capsys):
    assert main(["perf", "all_reduce", "--straggler", "rank 1: +5 %", "--library", "nccl"]) == 2
    assert "are for algorithms" in capsys.readouterr().err
    assert (
        main(["perf", "all_reduce", "--straggler", "rank 99: +5 %", "-a", "ring", "-e", "8"]) == 2
    )
    assert "99" in capsys.readouterr().err


FLAP = "t=10us gpu1 -> switch = 0 for 1ms"


@pytest.mark.slow
def test_faults_happen_in_every_run(folder, capsys):
    """Two ranks send half a MiB each, twice; in the first round one link is down for a
    millisecond.
    """
    plain = ["-t", "pair.toml", "--ranks", "0,1", "-a", "ring", "-b", "1M", "-e", "1M"]
    by_hand = 2 * (1 + MEBIBYTE / 2 / 10 / 1e3) + 1000
    assert times(capsys, *plain, "--fault", FLAP) == (
        [f"{by_hand:.2f}"],
        ["# disturbed: t=10us gpu1 -> switch = 0 for 1ms; policy stall"],
    )
    options = [
        "--fault",
        FLAP,
        "--policy",
        "stall 100us x 1",
        "--csv",
        "rows.csv",
        "--svg",
        "a.svg",
        "--json",
        "a.json",
    ]
    assert main(["perf", "all_reduce", *plain, *options]) == 0
    out = capsys.readouterr().out
    assert "aborted    0.00    0.00" in out
    assert (
        "# ring ideal, 1 MiB: aborted at 210 us: down: gpu1 -> switch; cut off: message 3 (rank 1 "
        "-> 0)" in out
    )
    assert "aborted at 210 us" in (folder / "rows.csv").read_text()
    written = json.loads((folder / "a.json").read_text())
    (result,) = written["results"]  # no time that a reader could take for one
    assert (result["out_of_place"], result["cut"][:17]) == (None, "aborted at 210 us")
    assert (written["average_bus_bandwidth"]["bandwidth"], "step_factor" in written["config"]) == (
        0,
        False,
    )
    # A run that comes to its end is better than one that is cut off earlier.
    assert (
        main(
            [
                "perf",
                "all_reduce",
                *plain[:4],
                "-a",
                "ring,one_shot",
                *plain[6:],
                "--fault",
                "t=90us gpu1 -> switch = 0",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert " one_shot ideal " in out
    assert "# ring ideal, 1 MiB: stuck at" in out
    assert "# 2 runs, 2 stuck, data checked in 2 schedules: 0 wrong" in out


def test_a_table_of_runs_that_are_stuck_says_so_and_calls_nothing_right(folder, capsys):
    asked = [
        "-t",
        "pair.toml",
        "-b",
        "1M",
        "-e",
        "1M",
        "-a",
        "ring",
        "-p",
        "ideal",
        "--csv",
        "a.csv",
    ]
    assert main(["perf", "all_reduce", *asked, "--fault", "t=1us rank 2 stops"]) == 0
    out = capsys.readouterr().out
    assert " stuck    0.00    0.00      -  ring ideal " in out
    assert "# 1 run, 1 stuck, data checked in 1 schedule: 0 wrong" in out
    (row,) = csv.DictReader((folder / "a.csv").read_text().splitlines())
    assert (row["wrong"], row["cut"][:5]) == ("", "stuck")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fault", "t=10us gpu1 -> swich = 0"], "did you mean 'switch'"),
        (["--fault", "gpu1 -> switch = 0"], "expected a time first"),
        (["--fault", FLAP, "--policy", "wait"], "policy 'wait' is not known"),
        (["--policy", "abort"], "--policy is for --fault"),
    ],
)
def test_wrong_faults_are_refused_before_anything_is_proved(folder, capsys, options, message):
    assert main(["perf", "all_reduce", "-t", "pair.toml", "-a", "ring", *options]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "proved" not in said.out


@pytest.mark.slow
def test_files_have_faults(folder, capsys):
    (folder / "scenario.toml").write_text(
        f'title = "t"\nalgorithms = ["ring"]\nfaults = ["{FLAP}"]\npolicy = "stall 1s x 1"\n'
        'ranks = "0-1"\n'
        '[topology]\nname = "pair.toml"\n[collective]\nkind = "all_reduce"\n[sizes]\nbegin = "1M"\n'
        'end = "1M"\n'
    )
    (folder / "sweep.toml").write_text(
        'title = "t"\ntopologies = ["pair.toml"]\ncollectives = ["all_reduce"]\n'
        'algorithms = ["ring"]\nsizes = ["1M"]\n'
        f'faults = ["{FLAP}"]\nranks = "0-1"\n'
    )
    assert main(["run", "scenario.toml", "-o", "out"]) == 0
    (run,) = json.loads((folder / "out" / "results.json").read_text())["runs"]
    by_hand_fs = 2 * (10**9 + MEBIBYTE // 2 * 100_000) + 10**12
    assert (run["time_fs"], "cut" in run) == (by_hand_fs, False)
    assert main(["run", "scenario.toml", "-o", "out", "--policy", "abort"]) == 0
    (run,) = json.loads((folder / "out" / "results.json").read_text())["runs"]
    assert (run["time_fs"], run["cut"][:16], run["headroom"]) == (10**10, "aborted at 10 us", None)
    assert main(["sweep", "sweep.toml", "-o", "rows", "-j", "1"]) == 0
    (row,) = [
        json.loads(line) for line in (folder / "rows" / "rows.jsonl").read_text().splitlines()
    ]
    assert row["result"]["time_fs"] == by_hand_fs
    assert main(["sweep", "sweep.toml", "-o", "more", "-j", "1", "--policy", "abort"]) == 0
    (row,) = [
        json.loads(line) for line in (folder / "more" / "rows.jsonl").read_text().splitlines()
    ]
    assert row["error"].startswith("aborted at 10 us")
