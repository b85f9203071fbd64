"""Algorithms of files, of functions in modules, and of packages that announce them, wherever an
algorithm is named.
"""

from __future__ import annotations

import json

import pytest

import simcoll
from simcoll.algorithms import find_algorithm
from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.formats.schedules.schedule_json import dump_schedule

MODULE = """
import numpy as np
import simcoll
from simcoll.algorithms.registered import algorithm

def star(collective, *, arms=1):
    layout = simcoll.Layout(collective)
    rank, own = np.arange(collective.nranks), layout.output()
    steps = [simcoll.transfers(rank, layout.input(), rank, own)]
    steps += [simcoll.transfers(r, own, 0, own, op=simcoll.REDUCE) for r in rank[1:]]
    steps += [simcoll.transfers(0, own, rank[1:], own)]
    return simcoll.Schedule("star", layout, lambda: steps)

def number(collective):
    return 3

def fails(collective):
    raise ValueError("not today")

def counts(n):
    return range(n)

def nested(n):
    import simcoll
    return simcoll.schedule("all_reduce", "ring", nranks=n)

def pair(n, m):
    return None

listed = algorithm("all_reduce", "listed", cost="", source="")(star)
constant = 7
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "star_module.py").write_text(MODULE)
    (tmp_path / "four.toml").write_text(
        'name = "four"\nfamily = "crossbar"\nnranks = 4\nbandwidth = "10 GB/s"\nlatency = "1 us"'
    )
    dump_schedule(simcoll.schedule("all_reduce", "ring", nranks=4), tmp_path / "ring.json")
    yield tmp_path
    import sys

    sys.modules.pop("star_module", None)


def test_a_function_takes_parameters_and_fits_any_collective(folder):
    made = simcoll.schedule("all_reduce", "star_module:star", nranks=3, arms=2)
    assert (str(made), simcoll.verify(made).kind) == (
        "star_module:star(arms=2) all_reduce n=3",
        "full",
    )
    with pytest.raises(
        ConfigError, match=r"has no parameter .legs.; valid: arms; .* after \* in its"
    ):
        simcoll.schedule("all_reduce", "star_module:star", nranks=3, legs=2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("star_module:number", "star_module:number returned 3; expected a Schedule"),
        (
            "star_module:fails",
            (
                r"star_module:fails\(all_reduce n=2\) raised ValueError: not today \(star_module.py, "
                r"line"
            ),
        ),
        (
            "star_module:counts",
            (
                "'Collective' object .* receives a Collective, whose attribute nranks is the number of "
                "ranks"
            ),
        ),
        (
            "star_module:nested",
            (
                "star_module:nested receives a Collective, whose attribute nranks is the number of "
                "ranks"
            ),
        ),
        (
            "star_module:pair",
            r"a function of one collective and keyword-only parameters; got pair\(n, m\)",
        ),
        ("all_reduce", "'all_reduce' is a collective; expected an algorithm for all_reduce: bfb"),
        ("star_module:sta", "module 'star_module' has no 'sta'; did you mean 'star'"),
        ("star_module:constant", "expected a function of a collective, or an Algorithm; got 7"),
        ("no_such_module:star", "module 'no_such_module' raised ModuleNotFoundError"),
        ("a b:c", "expected a name, a file, or a function such as"),
        ("none.xml", "none.xml: cannot read: No such file"),
        ("ring.json", "ring.json: is all_reduce n=4, not all_reduce n=2"),
        (
            "four.toml",
            "this is a simcoll topology file; expected an algorithm in one of the formats",
        ),
    ],
)
def test_what_is_no_algorithm_says_what_it_is(folder, name, said):
    with pytest.raises(ConfigError, match=said):
        simcoll.schedule("all_reduce", name, nranks=2)


def test_a_package_announces_algorithms(folder, monkeypatch, capsys):
    record = folder / "starpack-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: starpack\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(
        "[simcoll.algorithms]\nmy_star = star_module:listed\nbroken = no_such_module:x\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    assert simcoll.verify(simcoll.schedule("all_reduce", "my_star", nranks=5)).kind == "full"
    with pytest.raises(ConfigError, match="'my_star' serves all_reduce, not all_gather"):
        find_algorithm("all_gather", "my_star")
    with pytest.raises(
        ConfigError, match="unknown algorithm 'my_sta' for all_reduce; did you mean 'my_star'"
    ):
        find_algorithm("all_reduce", "my_sta")
    with pytest.raises(
        ConfigError, match=r"entry point 'broken' \(no_such_module:x\) raised ModuleNotFoundError"
    ):
        find_algorithm("all_reduce", "broken")
    assert main(["list", "algorithms"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[-2:]] == [
        "broken",
        "my_star",
    ]


def test_a_file_in_place_serves_where_the_place_is_free(folder):
    dump_schedule(
        simcoll.schedule("all_reduce", "ring", nranks=4, in_place=True), folder / "inside.json"
    )
    made = simcoll.schedule("all_reduce", "inside.json", nranks=4)
    assert made.collective.in_place
    with pytest.raises(ConfigError, match="is all_reduce n=4, not all_reduce n=4 in place"):
        simcoll.schedule("all_reduce", "ring.json", nranks=4, in_place=True)


@pytest.mark.slow
def test_perf_show_verify_and_convert_take_them(folder, capsys):
    assert (
        main(
            ["perf", "-t", "four.toml", "-a", "ring.json,star_module:star", "-b", "1M", "-e", "1M"]
        )
        == 0
    )
    assert "ring.json ideal" in capsys.readouterr().out
    assert main(["show", "star_module:star", "-n", "2"]) == 0
    assert "star_module:star(arms=1) all_reduce n=2" in capsys.readouterr().out
    assert main(["verify", "star_module:star", "broadcast"]) == 1
    assert main(["convert", "star_module:star", "star.xml", "-n", "3"]) == 0
    assert main(["verify", "star.xml"]) == 0
    assert "proved" in capsys.readouterr().out


def test_a_collective_in_place_of_an_algorithm_gets_its_own_listed(folder, capsys):
    assert main(["verify", "broadcast"]) == 2
    assert (
        "'broadcast' is a collective; expected an algorithm for broadcast: bine, chain"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_goal_is_timed_and_said_to_be_unproved(folder, capsys):
    assert main(["convert", "ring.json", "ring.goal", "--size", "64K"]) == 0
    assert main(["perf", "-t", "four.toml", "-a", "ring.goal"]) == 0
    (line,) = [
        each for each in capsys.readouterr().out.splitlines() if each.startswith("ring.goal ideal")
    ]
    # Six steps of 16 KiB at 10 GB/s and 1 us.
    assert f"{6 * (1 + 16384 / 1e4):.1f} us" in line
    assert "unproved" in line


@pytest.mark.slow
def test_scenarios_and_sweeps_take_files_beside_them(folder, capsys):
    inner = folder / "inner"
    inner.mkdir()
    (folder / "ring.json").rename(inner / "ring.json")
    (folder / "four.toml").rename(inner / "four.toml")
    (inner / "scenario.toml").write_text(
        'title = "t"\nalgorithms = ["ring.json", "star_module:star"]\ntopology.name = "four.toml"\n'
        'collective = {kind = "all_reduce", dtype = "bf16"}\nsizes = {begin = "1M", end = "1M"}\n'
    )
    (inner / "sweep.toml").write_text(
        'title = "t"\ntopologies = ["four.toml"]\ncollectives = ["all_reduce", "all_gather"]\n'
        'algorithms = ["ring.json", "ring"]\nsizes = ["1M"]\n'
    )
    assert main(["run", "inner/scenario.toml", "-o", "out"]) == 0
    found = json.loads((folder / "out" / "results.json").read_text())
    assert (found["sweep"]["dtype"], len(found["runs"])) == ("bfloat16", 2)
    assert main(["sweep", "inner/sweep.toml", "-o", "rows", "--jobs", "1"]) == 0
    rows = [json.loads(line) for line in (folder / "rows" / "rows.jsonl").read_text().splitlines()]
    times = {
        (row["point"]["collective"], row["point"]["algorithm"].rpartition("/")[2]): row["result"][
            "time_fs"
        ]
        for row in rows
    }
    assert times["all_reduce", "ring.json"] == times["all_reduce", "ring"]
    assert set(times) == {
        ("all_reduce", "ring.json"),
        ("all_reduce", "ring"),
        ("all_gather", "ring"),
    }
    assert (
        "algorithm_hash"
        in next(row for row in rows if row["point"]["algorithm"].endswith("json"))["point"]
    )
