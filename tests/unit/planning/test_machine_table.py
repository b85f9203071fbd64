"""The table of a sweep: the fastest run of each machine, collective and size."""

from __future__ import annotations

import pytest

from simcoll.cli import main
from simcoll.planning.sweeps.machine_table import fastest_rows, machine_lines, machines_svg


def row(time_fs, algorithm="ring", machine="a", size=1024, **point):
    base = {
        "topology": machine,
        "collective": "all_reduce",
        "algorithm": algorithm,
        "protocol": "ideal",
        "size": size,
    }
    result = {"time_fs": time_fs, "bound_fs": 50, "bottleneck": "latency", "size_bytes": size}
    return {"point": {**base, **point}, "result": result}


def test_the_fastest_counts_and_of_seeds_the_slowest():
    rows = [
        row(100, seed=0),
        row(130, seed=1),
        row(120, algorithm="tree", seed=0),
        row(125, algorithm="tree", seed=1),
        row(90, machine="b"),
        {"point": row(1)["point"], "error": "no"},
    ]
    table = fastest_rows(rows)
    assert [(line.machine, line.run, line.time_fs) for line in table] == [
        ("a", "tree ideal", 125),
        ("b", "ring ideal", 90),
    ]


def test_conditions_that_differ_tell_machines_apart():
    rows = [row(100, degraded={}), row(200, degraded={"x": 0.5}), row(100, nodes=None)]
    assert [line.machine for line in fastest_rows(rows)] == ["a", "a, degraded x=0.5"]


@pytest.mark.slow
def test_lines_and_picture_repeat(tmp_path):
    table = fastest_rows([row(100, size=size) for size in (1024, 2048)])
    lines = list(machine_lines(table))
    assert lines[1].split()[:4] == ["a", "all_reduce", "1", "KiB"]
    assert "2.00" in lines[1]
    picture = machines_svg("t", table)
    assert picture == machines_svg("t", table)
    assert b"lower bound for any schedule" in picture


@pytest.mark.slow
def test_the_command_prints_and_draws(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(
        'title = "s"\ntopologies = ["crossbar"]\ncollectives = ["all_reduce", "broadcast"]\n'
        'algorithms = ["ring", "tree"]\nsizes = ["1K", "64K"]\n'
    )
    out = tmp_path / "out"
    assert main(["sweep", str(tmp_path / "s.toml"), "-o", str(out), "-j", "1"]) == 0
    assert capsys.readouterr().out.count("  crossbar  ") == 4
    assert b"broadcast, time" in (out / "sweep.svg").read_bytes()
