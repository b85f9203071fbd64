"""Choices for libraries: the fastest, the ranges of sizes, and files on the command line."""

from dataclasses import replace

import numpy as np
import pytest

from simcoll.algorithms import ALGORITHMS
from simcoll.cli import main
from simcoll.files.paths import data_folder
from simcoll.formats.logs.nccl_tuning import TunedCost, TuningTable
from simcoll.formats.tuners.tuner_files import Rule, tuner_format
from simcoll.libraries.calibration import Calibration, write_calibration
from simcoll.planning.tuners.fastest_choices import Picked, nccl_choices, played_choices, rules_of
from simcoll.planning.tuners.leaders import time_through_leaders
from simcoll.planning.tuners.mpi_libraries import load_mpi_library
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
        [picked(8, "tree"), picked(64, "tree"), picked(512, "ring")],
        load_topology("dgx-h100", nodes=2),
        exact=True,
    )
    assert rules == [
        Rule("all_reduce", 0, 64, "tree", "ll", 2, 2, 16),
        Rule("all_reduce", 65, -1, "ring", "ll", 2, 2, 16),
    ]
    assert picked(8, "tree").gain == 2
    assert picked(8, "tree").certain


@pytest.mark.parametrize("nodes", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_tuner_file_for_nccl(tmp_path, monkeypatch, capsys, nodes):
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            [
                "tune",
                "-t",
                "dgx-h100",
                "--nodes",
                str(nodes),
                "-o",
                "t.csv",
                "-c",
                "all_reduce",
                "-f",
                "1024",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "x  " in out
    rules = tuner_format("nccl-csv").parse((tmp_path / "t.csv").read_bytes())
    assert {(rule.nodes, rule.ranks) for rule in rules} == {(nodes, 8 * nodes)}
    # -1 would mean one channel to the plugin.
    assert all(rule.channels > 0 for rule in rules)
    assert (rules[0].min_bytes, rules[-1].max_bytes) == (0, -1)


def test_what_estimates_of_nccl_prefer_stands_beside_the_default():
    """NCCL's estimates of a tree over NVLink switches leave out most of what it costs to start."""
    # A machine whose PCIe devices are not described, so that NCCL's graphs are unknown.
    mine = replace(load_topology("dgx-h100", nodes=2), name="mine", host=None)
    small, large = nccl_choices(mine, ["all_reduce"], [8, 1 << 21])
    assert (small.default, small.estimated, small.estimated_fs) == ("tree LL", "", 0)
    assert (large.default, large.estimated) == ("tree LL128", "nvls_tree Simple")
    assert large.estimated_fs > large.default_fs >= large.time_fs


def test_the_default_of_a_calibration_with_nccls_table_is_its_choice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = (
        TunedCost("all_reduce", "tree", "LL128", 48_500_000_000, 1248 * 10**14),
        TunedCost("all_reduce", "nvls_tree", "Simple", 53_000_000_000, 2667 * 10**14),
    )
    made = Calibration(launch_fs=5 * 10**9, tuning=(TuningTable(16, 2, rows),))
    write_calibration("mine.toml", made)
    line = "tune -t dgx-h100 --nodes 2 -c all_reduce -b 1M -e 1M -f 2 -o t.csv"
    assert main([*line.split(), "--calibration", "mine.toml"]) == 0
    out = capsys.readouterr().out
    assert f"16 ranks, calibration {made.hash}" in out
    assert "# default: NCCL's choice by its own table in the calibration" in out
    (row,) = [each.split() for each in out.splitlines() if each.startswith("  all_reduce")]
    assert row[2:4] == ["tree", "ll128"]
    assert row[6:8] == ["nvls_tree", "Simple"]
    assert float(row[9].removesuffix("x")) > 1.1
    assert main(line.split()) == 0
    (plain,) = [
        each.split()
        for each in capsys.readouterr().out.splitlines()
        if each.startswith("  all_reduce")
    ]
    assert float(row[5]) == pytest.approx(float(plain[5]) + 5, abs=0.02)


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
    out = capsys.readouterr().out
    assert f"# default: of {name} " in out
    assert "# error: unknown, since simcoll ships no measured tables of MPI libraries" in out
    usual = {
        "openmpi": "han",
        "openmpi-han": "han",
        "mpich": "MPIDI_Allreduce_intra_composition_alpha",
        "oneccl": "ring",
    }
    rows = [line.split() for line in out.splitlines() if line.startswith("  all_reduce")]
    assert {row[4] for row in rows} == {usual[name]}
    assert "-" not in {row[6] for row in rows}
    assert tuner_format(name).parse((tmp_path / "rules").read_bytes())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--format", "nccl"], "unknown tuner format 'nccl'; "),
        (["-c", "all_to_all"], "has no 'all_to_all' known here"),
        (["-p", "LL"], "--protocol is for MPI libraries"),
        (["--format", "mpich", "--library", "nccl"], "--library is the model of NCCL"),
        (
            ["--format", "mpich", "--calibration", "x.toml"],
            "--calibration is for the model of NCCL",
        ),
        (["--calibration", "none.toml"], "none.toml: cannot read: No such file"),
        (["-b", "1M", "-e", "1K"], "the largest size, 1024 bytes, is below the smallest, 1048576"),
    ],
)
def test_refusals(tmp_path, capsys, more, says):
    assert main(["tune", "-t", "dgx-h100", "-o", str(tmp_path / "f"), *more]) == 2
    assert says in capsys.readouterr().err


def test_one_rank_gains_nothing(tmp_path, capsys):
    line = [
        "tune",
        "-t",
        "crossbar:nranks=1",
        "-o",
        str(tmp_path / "f"),
        "--format",
        "openmpi",
        "-b",
        "8",
        "-e",
        "8",
    ]
    assert main([*line, "-c", "all_reduce"]) == 0
    out = capsys.readouterr().out
    assert " 1.00x " in out
    assert "# wrote " in out
    assert out.endswith(": 1 rule\n")


@pytest.mark.parametrize(
    ("library", "kind", "nranks", "size", "default"),
    [
        # Open MPI: every rank on its own node; ompi/mca/coll/tuned/coll_tuned_decision_fixed.c at
        # the commit that the file names.
        ("openmpi", "all_reduce", 2, 1 << 30, ("recursive_doubling", "recursive_doubling")),
        ("openmpi", "all_reduce", 8, (1 << 18) - 1, ("allgather_reduce", None)),
        ("openmpi", "all_reduce", 8, 1 << 18, ("rabenseifner", "rabenseifner")),
        ("openmpi", "all_reduce", 8, 1 << 20, ("recursive_doubling", "recursive_doubling")),
        ("openmpi", "broadcast", 8, 1 << 10, ("basic_linear", "linear")),
        ("openmpi", "all_gather", 40, 40 * 65535, ("neighbor", "neighbor_exchange")),
        ("openmpi", "all_gather", 40, 40 * 65536, ("ring", "ring")),
        ("openmpi", "all_to_all", 8, 8 * 1024, ("linear_sync", "direct")),
        ("openmpi", "reduce_scatter", 8, 1 << 18, ("ring", "ring")),
        # MPICH: MPIR_CVAR_BCAST_SHORT_MSG_SIZE 12288, BCAST_LONG_MSG_SIZE 524288, BCAST_MIN_PROCS
        # 8, ALLGATHER_LONG_MSG_SIZE 524288, ALLGATHER_SHORT_MSG_SIZE 81920, ALLTOALL_SHORT_MSG_SIZE
        # 256, ALLTOALL_MEDIUM_MSG_SIZE 32768.
        ("mpich", "broadcast", 7, 1 << 20, ("MPIR_Bcast_intra_binomial", "tree")),
        ("mpich", "broadcast", 8, 12288, ("MPIR_Bcast_intra_binomial", "tree")),
        (
            "mpich",
            "broadcast",
            8,
            12289,
            ("MPIR_Bcast_intra_scatter_recursive_doubling_allgather", "scatter_doubling"),
        ),
        (
            "mpich",
            "broadcast",
            12,
            12289,
            ("MPIR_Bcast_intra_scatter_ring_allgather", "scatter_ring"),
        ),
        (
            "mpich",
            "all_gather",
            16,
            524287,
            ("MPIR_Allgather_intra_recursive_doubling", "recursive_doubling"),
        ),
        ("mpich", "all_gather", 12, 81920, ("MPIR_Allgather_intra_ring", "ring")),
        ("mpich", "all_to_all", 8, 8 * 256, ("MPIR_Alltoall_intra_brucks", "bruck")),
        ("mpich", "all_to_all", 8, 8 * 257, ("MPIR_Alltoall_intra_scattered", "direct")),
        ("mpich", "all_to_all", 8, 8 * 32769, ("MPIR_Alltoall_intra_pairwise", "pairwise")),
        (
            "mpich",
            "all_reduce",
            64,
            63,
            ("MPIR_Allreduce_intra_recursive_doubling", "recursive_doubling"),
        ),
        (
            "mpich",
            "all_reduce",
            64,
            64,
            ("MPIR_Allreduce_intra_reduce_scatter_allgather", "rabenseifner"),
        ),
        # oneCCL: src/coll/selection/selector_*.cpp, what runs where topo cannot.
        ("oneccl", "all_reduce", 64, 64, ("ring", "ring")),
        ("oneccl", "all_to_all", 64, 64, ("scatter", "direct")),
    ],
)
def test_what_a_library_runs_when_nothing_is_said(library, kind, nranks, size, default):
    known = load_mpi_library(library).collectives[kind]
    assert known.default_on(crossbar(nranks, "1 GB/s"), size) == default


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (data_folder("libraries") / "mpi").glob("*.toml"))
)
def test_every_default_is_found_and_every_algorithm_is_there(name):
    library = load_mpi_library(name)
    machines = [
        crossbar(1, "1 GB/s"),
        crossbar(5000, "1 GB/s"),
        load_topology("dgx-h100"),
        load_topology("dgx-h100", nodes=3),
    ]
    assert set(library.collectives) <= set(tuner_format(name).names)
    for kind, known in library.collectives.items():
        assert set(known.algorithms) <= {
            each.name for each in ALGORITHMS if each.collective == kind
        }
        for rows in (known.default, known.one_node, known.apart, known.several):
            assert [row[0] for row in rows[-1:]] in ([], ["any"])
            limits = [row[0] for row in rows if isinstance(row[0], int)]
            assert limits == sorted(set(limits))
            assert all(list(row[2::2]) == sorted(set(row[2::2])) for row in rows)
        for machine in machines:
            assert all(known.default_on(machine, 1 << power)[0] for power in range(0, 40, 3))


def test_a_gain_over_the_default_of_a_library():
    """8 hosts, 1 us, 1 GB/s: MPICH halves and doubles 1 KiB where doubling alone takes half of the
    latencies.
    """
    (row,) = played_choices(crossbar(8, "1 GB/s", "1 us"), ["all_reduce"], [1024], "mpich")
    assert (row.time_fs, row.default_fs) == (
        3 * (10**9 + 1024 * 10**6),
        6 * 10**9 + 2 * 7 * 128 * 10**6,
    )
    assert row.gain == row.default_fs / row.time_fs
    (unknown,) = played_choices(load_topology("dgx-h100"), ["all_reduce"], [1024], "mpich")
    assert (unknown.default, unknown.default_fs) == (
        "MPIDI_POSIX_mpi_allreduce_release_gather",
        None,
    )
    assert (unknown.gain, unknown.certain) == (None, False)


SEGMENT = 1 << 19


@pytest.mark.parametrize(
    ("kind", "size", "steps", "bytes_one_after_the_other"),
    [
        ("all_reduce", 1024, 4, 4 * 1024),
        # Of two segments: both stages of the second turn end at the first leader, both of the
        # fourth begin there.
        ("all_reduce", 2 * SEGMENT, 5, 7 * SEGMENT),
        ("broadcast", 1024, 2, 2 * 1024),
        ("broadcast", 2 * SEGMENT, 3, 4 * SEGMENT),
        ("reduce", 2 * SEGMENT, 3, 4 * SEGMENT),
        ("reduce", 2 * SEGMENT + 64, 4, 4 * SEGMENT + 2 * 64),
        ("all_gather", 4096, 3, 1024 + 2048 + 4096),
        ("gather", 4096, 2, 1024 + 2048),
        ("scatter", 4096, 2, 2048 + 1024),
    ],
)
def test_what_goes_through_leaders_by_hand(kind, size, steps, bytes_one_after_the_other):
    """Two nodes of two ranks, 1 us, 1 GB/s: a message a stage, on what the stages beside it leave
    of a port.
    """
    machine = replace(crossbar(4, "1 GB/s", "1 us"), groups={"box": np.array([0, 0, 1, 1])})
    library = load_mpi_library("openmpi")
    stages = library.collectives[kind].through_leaders["han"]
    assert (
        time_through_leaders(library, stages, size, machine, "ideal")
        == steps * 10**9 + bytes_one_after_the_other * 10**6
    )
    (row,) = played_choices(machine, [kind], [size], "openmpi")
    assert (row.default, row.default_fs) == (
        "han",
        steps * 10**9 + bytes_one_after_the_other * 10**6,
    )


@pytest.mark.parametrize(
    ("kind", "size", "steps"),
    [("all_reduce", 1024, 4), ("broadcast", 1024, 2), ("reduce", 1024, 3), ("reduce", 4096, 3)],
)
def test_compositions_of_mpich_by_hand(kind, size, steps):
    """Two nodes of two ranks: a message of all bytes a stage; Rabenseifner between the two is two
    messages of half of them.
    """
    machine = replace(crossbar(4, "1 GB/s", "1 us"), groups={"box": np.array([0, 0, 1, 1])})
    (row,) = played_choices(machine, [kind], [size], "mpich")
    bytes_ = {
        "all_reduce": 3 * size,
        "broadcast": 2 * size,
        "reduce": 3 * size if size <= 2048 else 2 * size,
    }[kind]
    assert row.default_fs == steps * 10**9 + bytes_ * 10**6


def test_leaders_where_nodes_differ_and_as_a_choice():
    uneven = replace(crossbar(3, "1 GB/s"), groups={"box": np.array([0, 0, 1])})
    assert (
        time_through_leaders(load_mpi_library("openmpi"), ["between broadcast"], 8, uneven, "ideal")
        is None
    )
    (row,) = played_choices(uneven, ["broadcast"], [8], "openmpi-han")
    assert (row.algorithm, row.default, row.gain) == ("tuned", "han", None)
    one_node = replace(crossbar(4, "1 GB/s"), groups={"box": np.array([0] * 4)})
    (row,) = played_choices(one_node, ["broadcast"], [8], "openmpi-han")
    assert (row.algorithm, row.default, row.gain) == ("tuned", "tuned", 1)
    # Nodes joined by a link that is slow to answer: one leader a node beats what does not know the
    # nodes.
    far = load_topology("dgx-h100", nodes=2)
    (row,) = played_choices(far, ["broadcast"], [1 << 10], "openmpi-han")
    assert (row.algorithm, row.default, row.gain) == ("han", "han", 1)


def test_rules_have_the_bytes_that_the_library_compares():
    """oneCCL and HAN compare the bytes of a rank, Open MPI and MPICH those of all ranks, of an
    all_gather.
    """
    machine = crossbar(8, "1 GB/s")
    picked = [
        Picked("all_gather", size, name, "", -1, 10, "topo", None, None)
        for size, name in ((800, "flat"), (8000, "ring"))
    ]
    assert [rule.max_bytes for rule in rules_of(picked, machine)] == [800, -1]
    rules = rules_of(picked, machine, blocks=("all_gather",))
    assert [(rule.min_bytes, rule.max_bytes) for rule in rules] == [(0, 100), (101, -1)]
    told = (
        tuner_format("mpich")
        .dump([Rule("all_to_all", 0, 800, "MPIR_Alltoall_intra_brucks")])
        .decode()
    )
    assert "total_msg_size<=800" in told
