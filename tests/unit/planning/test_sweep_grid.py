"""Sweep files: the grid that they mean, the errors that they get, and what diff says of two
sweeps.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.sweep_grid import load_sweep, sweep_grid

SMALL = """
title = "small"
topologies = ["crossbar"]
collectives = ["all_reduce", "broadcast"]
algorithms = ["ring", "tree"]
sizes = ["1K", "64K"]
"""


def grid_of(path, text):
    path = Path(path) / "s.toml"
    path.write_text(text)
    return sweep_grid(load_sweep(path), path)


def test_a_grid_is_every_combination_that_an_algorithm_serves(tmp_path):
    points = grid_of(
        tmp_path, SMALL + 'jitter = "1 us"\nseeds = [1, 2]\nprotocols = ["ideal"]\nnodes = []\n'
    ).points
    assert len(points) == 3 * 2 * 2
    assert {(p["collective"], p["algorithm"]) for p in points} == {
        ("all_reduce", "ring"),
        ("all_reduce", "tree"),
        ("broadcast", "tree"),
    }
    assert [p["size"] for p in points[:2]] == [1024, 65536]  # neighbours share a schedule


def test_a_changed_topology_file_makes_other_points(tmp_path):
    text = 'name = "x"\nfamily = "crossbar"\nnranks = 4\nbandwidth = "{} GB/s"\nlatency = "1 us"\n'
    keys = []
    for rate in (10, 10, 20):
        (tmp_path / "x.toml").write_text(text.format(rate))
        keys.append(grid_of(tmp_path, SMALL.replace('"crossbar"', '"x.toml"')).keys)
    assert keys[0] == keys[1]
    assert not {*keys[0]} & {*keys[2]}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"all_reduce"',
            '"all_reduse"',
            r"\$\.collectives\[0\]: unknown collective 'all_reduse'; did you mean 'all_reduce'",
        ),
        (
            '"ring"',
            '"rnig"',
            (
                r"\$\.algorithms\[0\]: no algorithm 'rnig' for all_reduce, broadcast; did you mean "
                r"'ring'"
            ),
        ),
        ('"crossbar"', '"crosbar"', "unknown topology 'crosbar'; did you mean 'crossbar'"),
        ('"64K"', '"64X"', r"\$\.sizes\[1\]: .*64X"),
        ('["1K", "64K"]', "[]", r"\$\.sizes: an empty list"),
        ('["1K", "64K"]', '{ begin = "1M", end = "1K" }', r"\$\.sizes: the largest size"),
        ("title", "seeds = [1, 2]\ntitle", r"\$\.seeds: seeds differ only where there is jitter"),
        ("title", "nodes = [0]\ntitle", r"\$\.nodes\[0\]: expected at least one node, got 0"),
        ("title", 'dtype = "float23"\ntitle', "float23"),
        ("title", "nodess = [2]\ntitle", r"unknown key; did you mean 'nodes'"),
        ("title", 'op = "summ"\ntitle', "unknown reduction 'summ'; did you mean 'sum'"),
        (
            "title",
            'protocols = ["LL", "Simpel"]\ntitle',
            r"\$\.protocols\[1\]: unknown protocol 'Simpel'; did you mean 'Simple'",
        ),
        (
            "title",
            "seeds = [-1]\ntitle",
            r"\$\.seeds\[0\]: seed must be a whole number from 0 to 9223372036854775807, got -1",
        ),
        ("title", "protocols = []\ntitle", r"\$\.protocols: an empty list"),
    ],
)
def test_what_no_point_could_use_is_refused(tmp_path, old, new, said):
    with pytest.raises(ConfigError, match=said):
        grid_of(tmp_path, SMALL.replace(old, new))


@pytest.fixture
def folders(tmp_path, monkeypatch, capsys):
    """Two sweeps, of which the second has one time changed, one point gone and one new."""
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SMALL)
    assert main(["sweep", "s.toml", "-j", "1", "-o", "a"]) == 0
    Path("s.toml").write_text(SMALL.replace("64K", "32K").replace('"1K"', '"1K", "64K"'))
    assert main(["sweep", "s.toml", "-j", "1", "-o", "b"]) == 0
    capsys.readouterr()
    rows = [json.loads(line) for line in Path("b/rows.jsonl").read_text().splitlines()]
    first = next(
        r for r in rows if r["point"]["size"] == 1024 and r["point"]["collective"] == "all_reduce"
    )
    first["result"]["time_fs"] = first["result"]["time_fs"] * 51 // 50
    gone = next(
        r for r in rows if r["point"]["size"] == 65536 and r["point"]["collective"] == "broadcast"
    )
    Path("b/rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows if r is not gone))
    return capsys


@pytest.mark.slow
def test_diff_says_what_moved(folders):
    assert main(["diff", "a", "a"]) == 0
    assert "6 points in both, 6 equal, 0 moved" in folders.readouterr().out
    assert main(["diff", "a", "b", "-t", "1%"]) == 1
    out = folders.readouterr().out
    assert "+2.0" in out
    assert "5 points in both, 4 equal, 1 moved by more than 1%; 1 gone, 3 new" in out
    assert main(["diff", "a", "b", "-t", "3%"]) == 1  # a point is gone
    assert main(["diff", "b", "b", "-t", "0"]) == 0


@pytest.mark.slow
def test_diff_reads_scenarios_and_names_what_it_cannot_compare(folders, tmp_path):
    for name, size in (("c", 8), ("d", 8)):
        Path(name).mkdir()
        run = {
            "choice": "ring",
            "protocol": "LL",
            "size_bytes": size,
            "time_fs": 5 if name == "c" else 4,
        }
        Path(name, "results.json").write_text(json.dumps({"runs": [run]}))
    assert main(["diff", "c", "d"]) == 1
    assert "-20.000%" in folders.readouterr().out
    Path("e").mkdir()
    for arguments, said in (
        (["a", "e"], "e: has no rows.jsonl and no results.json of simcoll"),
        (["a", "c/results.json"], "c/results.json: is a file; expected a folder that simcoll run"),
        (["a", "nowhere"], "nowhere: does not exist; expected a folder that simcoll run"),
        (["a", "b", "-m", "time"], "did you mean 'time_fs'"),
        (["a", "b", "--limit", "-1"], "--limit -1: expected a number from 0 on"),
        (["a", "b", "-t", "much"], "threshold 'much': expected a share"),
    ):
        assert main(["diff", *arguments]) == 2
        assert said in folders.readouterr().err


def written(folder, *rows):
    Path(folder).mkdir()
    lines = (json.dumps({"key": str(number), **row}) + "\n" for number, row in enumerate(rows))
    Path(folder, "rows.jsonl").write_text("".join(lines))


def test_diff_marks_what_no_proof_covers_and_finds_files_in_other_folders(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for folder, time_fs in (("old", 4), ("new", 5)):
        point = {"topology": "dgx-h100", "size": None}
        written(
            folder,
            {
                "point": {**point, "algorithm": f"/{folder}/a.goal"},
                "result": {"time_fs": time_fs, "proof": "unproved: its data"},
            },
            {
                "point": {**point, "algorithm": f"/{folder}/a.xml"},
                "result": {"time_fs": time_fs, "proof": "full"},
            },
        )
    assert main(["diff", "old", "new"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in told[:2]] == [
        "algorithm=a.goal unproved",
        "algorithm=a.xml",
    ]
    assert "2 points in both, 0 equal" in told[2]
    # Two files of one name are told apart by their folders.
    same = [{"point": {"algorithm": f"/{at}/a.xml"}, "result": {"time_fs": at}} for at in (1, 2)]
    written("two", *same)
    assert main(["diff", "two", "two"]) == 0
    assert "2 points in both, 2 equal" in capsys.readouterr().out


def test_diff_takes_no_time_of_a_run_that_was_cut_off(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder, more in (("old", {}), ("new", {"cut": "aborted at 9 ms"})):
        Path(folder).mkdir()
        run = {"choice": "ring", "protocol": "LL", "size_bytes": 8, "time_fs": 5, **more}
        Path(folder, "results.json").write_text(json.dumps({"runs": [run]}))
    assert main(["diff", "old", "new"]) == 1
    assert "gone  the only point: aborted at 9 ms" in capsys.readouterr().out


def test_diff_names_a_disturbance_that_only_one_sweep_has(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written("calm", {"point": {"size": 8}, "result": {"time_fs": 4}})
    written(
        "disturbed", {"point": {"size": 8, "stragglers": [[3, "3/2"]]}, "result": {"time_fs": 5}}
    )
    assert main(["diff", "calm", "disturbed"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.split() for line in told[:2]] == [
        ["gone", "the", "only", "point"],
        ["new", "stragglers=[[3,", "'3/2']]"],
    ]
