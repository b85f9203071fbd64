"""Choices for libraries: the fastest, the ranges of sizes, and files on the command line."""

import pytest

from simcoll.cli import main
from simcoll.formats.tuner_files import Rule, tuner_format
from simcoll.planning.tuner_choices import Picked, played_choices, rules_of
from simcoll.topology import crossbar, load_topology


def test_few_steps_win_small_and_few_bytes_win_large():
    """8 ranks, 1 us, 1 GB/s: log2(n) steps of all bytes against 2 (n - 1) / n of them."""
    machine = crossbar(8, "1 GB/s", "1 us")
    small, large = played_choices(machine, ["all_reduce"], [8, 1 << 26], "mpich")
    assert small.algorithm.endswith("recursive_doubling")
    assert small.time_fs == 3 * (10**9 + 8 * 10**6)
    assert large.algorithm.endswith("reduce_scatter_allgather")
    assert large.time_fs == 6 * 10**9 + 2 * 7 * (1 << 23) * 10**6
    assert small.error is None
    assert not large.certain


def test_ranges_of_sizes():
    def picked(size, algorithm):
        return Picked("all_reduce", size, algorithm, "ll", 2, 10, "ring LL", 20, 0.1)

    rules = rules_of(
        [picked(8, "tree"), picked(64, "tree"), picked(512, "ring")], load_topology("dgx-h100", nodes=2), exact=True
    )
    assert rules == [
        Rule("all_reduce", 0, 64, "tree", "ll", 2, 2, 16),
        Rule("all_reduce", 65, -1, "ring", "ll", 2, 2, 16),
    ]
    assert picked(8, "tree").gain == 2
    assert picked(8, "tree").certain


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 8])
def test_a_tuner_file_for_nccl(tmp_path, monkeypatch, capsys, nodes):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "-t", "dgx-h100", "--nodes", str(nodes), "-o", "t.csv", "-c", "all_reduce", "-f", "1024"]) == 0
    out = capsys.readouterr().out
    assert "x  " in out
    rules = tuner_format("nccl-csv").parse((tmp_path / "t.csv").read_bytes())
    assert {(rule.nodes, rule.ranks) for rule in rules} == {(nodes, 8 * nodes)}
    # -1 would mean one channel to the plugin.
    assert all(rule.channels > 0 for rule in rules)
    assert (rules[0].min_bytes, rules[-1].max_bytes) == (0, -1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openmpi", "openmpi-han", "mpich", "oneccl"])
def test_files_for_mpi(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    line = [
        "tune",
        "-t",
        "dgx-h100",
        "--nodes",
        "2",
        "-o",
        "rules",
        "--format",
        name,
        "-c",
        "all_reduce",
        "-b",
        "1K",
        "-e",
        "1M",
        "-f",
        "1024",
    ]
    assert main(line) == 0
    assert "the library's own is not modelled" in capsys.readouterr().out
    assert tuner_format(name).parse((tmp_path / "rules").read_bytes())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--format", "nccl"], "unknown tuner format 'nccl'; "),
        (["-c", "all_to_all"], "has no 'all_to_all' known here"),
        (["-p", "LL"], "--protocol is for MPI libraries"),
        (["--format", "mpich", "--library", "nccl"], "--library is the model of NCCL"),
        (["-b", "1M", "-e", "1K"], "the largest size, 1024 bytes, is below the smallest, 1048576"),
    ],
)
def test_refusals(tmp_path, capsys, more, says):
    assert main(["tune", "-t", "dgx-h100", "-o", str(tmp_path / "f"), *more]) == 2
    assert says in capsys.readouterr().err


def test_one_rank_gains_nothing(tmp_path, capsys):
    line = ["tune", "-t", "crossbar:nranks=1", "-o", str(tmp_path / "f"), "--format", "openmpi", "-b", "8", "-e", "8"]
    assert main([*line, "-c", "all_reduce"]) == 0
    out = capsys.readouterr().out
    assert " 1.00x " in out
    assert "# wrote " in out
    assert out.endswith(": 1 rule\n")
