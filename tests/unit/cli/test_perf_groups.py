"""perf --group: a collective of one group of a mesh, and of all groups at once."""

import csv

import pytest

import simcoll
from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.libraries.plans import library_plan
from simcoll.planning.sweeps.mesh_groups import group_rows, parse_mesh
from simcoll.planning.sweeps.sweep import Sweep
from simcoll.topology import fat_tree, load_topology


def test_all_groups_of_an_axis_share_the_uplinks():
    # Pairs across two leaves with uplinks 2:1: alone 50 GB/s each way, all at once 25. 500,000
    # bytes take 10 us at 50 GB/s.
    machine = fat_tree(2, 16, "50 GB/s", "1 us", oversubscription=2, spine_latency="1 us")
    mesh = parse_mesh("near=16,far=2", 32)
    near, far = group_rows(
        Sweep("all_to_all", (1_000_000,), (), ("ideal",), "uint8"), machine, mesh
    )
    latency = machine.route([0], [16]).latency_fs[0]
    assert (far.one_fs - latency, far.all_fs - latency) == (10 * 10**9, 20 * 10**9)
    assert near.one_fs == near.all_fs
    assert (far.ranks, far.groups, far.size_bytes) == (2, 16, 1_000_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "'tp' is no axis"),
        ("tp=x", "'tp=x' is no axis"),
        ("tp=2,,dp=4", "'' is no axis"),
        ("tp=2,dp=2", "has 4 ranks; the machine has 8"),
        ("tp=2,tp=4", "named twice"),
        ("tp=0,dp=8", "at least 1"),
    ],
)
def test_wrong_meshes(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_mesh(text, 8)
    assert message in str(caught.value)


def test_the_command(capsys):
    argv = (
        "perf all_gather -t dgx-h100 --nodes 2 -b 1M -e 1M -p ideal,LL -a ring --group "
        "tp=8,dp=2 --concurrent"
    )
    assert main(argv.split()) == 0
    lines = [
        line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")
    ]
    assert [line[:5] for line in lines] == [
        ["tp", "8", "2", "1", "MiB"],
        ["dp", "2", "8", "1", "MiB"],
    ]
    assert all(float(line[7]) >= 1 for line in lines)
    assert main(["perf", "all_gather", "--concurrent"]) == 2
    assert "give --group" in capsys.readouterr().err


@pytest.mark.slow
def test_each_axis_has_a_table_and_its_files(tmp_path, capsys):
    names = {"-J": "a.json", "--csv": "a.csv", "--svg": "a.svg", "--trace": "a.json.gz"}
    files = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    argv = (
        "perf all_gather -t dgx-h100 --nodes 2 -b 1M -e 4M -f 4 -p ideal -a ring:channels=1 "
        "--group tp=8,pp=1,dp=2 -c 1M"
    )
    assert main([*argv.split(), *files]) == 0
    assert "one group along tp" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{axis}-{name}" for axis in ("tp", "dp") for name in names.values()
    )
    machine = load_topology("dgx-h100", nodes=2)
    for axis, ranks in (("tp", range(8)), ("dp", (0, 8))):
        made = simcoll.schedule("all_gather", "ring", nranks=len(ranks), channels=1)
        expected = [
            simcoll.emulate(
                simcoll.bind(made, size // (4 * len(ranks))), machine.with_ranks(list(ranks))
            ).time_fs
            for size in (1 << 20, 1 << 22)
        ]
        rows = csv.DictReader((tmp_path / f"{axis}-a.csv").read_text().splitlines())
        assert [int(row["time_fs"]) for row in rows] == expected
    (tmp_path / "dp-b.json").mkdir()  # nothing runs if one of the files cannot be written
    assert main([*argv.split(), "-J", str(tmp_path / "b.json")]) == 2
    printed = capsys.readouterr()
    assert ("dp-b.json" in printed.err, printed.out) == (True, "")


def test_the_library_along_each_axis(capsys):
    argv = "perf all_reduce -t dgx-h100 --nodes 2 -b 64K -e 64K --library nccl --group tp=8,dp=2"
    assert main(argv.split()) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("# nccl")] == [
        "# nccl 2.27 on dgx-h100, 8 ranks",
        "# nccl 2.27 on dgx-h100, 2 ranks",
    ]


@pytest.mark.slow
def test_what_nccl_would_choose_in_all_groups_at_once(capsys):
    argv = (
        "perf all_reduce -t dgx-h100 --nodes 2 -b 64K -e 64M -f 1024 --group tp=8,dp=2 --concurrent"
    )
    machine = load_topology("dgx-h100", nodes=2)
    for options in ([], ["--library", "nccl"]):
        assert main([*argv.split(), *options]) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert head.endswith("fastest axis first, as nccl 2.27 would choose")
        rows = [line.split() for line in lines if not line.startswith("#")]
        assert [row[0] for row in rows] == ["tp", "tp", "dp", "dp"]
        for row, size in zip(rows[:2], (1 << 16, 1 << 26), strict=True):
            plan = library_plan("all_reduce", size, machine.with_ranks(range(8)))
            assert row[-2:] == [plan.schedule.name, plan.protocol.name]
            assert float(row[-5]) == pytest.approx(
                simcoll.emulate(plan, machine.with_ranks(range(8)), data="none").time_us, rel=1e-3
            )
    assert main([*argv.split(), "--env", "NCCL_ALGO=Ring"]) == 2
    assert "not for --env" in capsys.readouterr().err


def test_the_library_of_all_groups_is_that_of_the_gpus(capsys):
    argv = "perf all_reduce -t mi300x -b 64K -e 64K --group tp=4,dp=2 --concurrent"
    assert main(argv.split()) == 0
    assert ", as rccl 2.22 would choose\n" in capsys.readouterr().out


@pytest.mark.slow
def test_what_disturbs_counts_ranks_on_the_machine(tmp_path, capsys):
    # Each rank of a pair sends half of 1 MiB over links of 1 GB/s without latency.
    (tmp_path / "m.toml").write_text(
        'family = "crossbar"\nnranks = 4\nbandwidth = "1 GB/s"\nlatency = "0"\nname = "m"\n'
    )
    argv = [
        "perf",
        "all_gather",
        "-t",
        str(tmp_path / "m.toml"),
        "-a",
        "ring",
        "-p",
        "ideal",
        "-b",
        "1M",
        "-e",
        "1M",
    ]
    argv += ["--group", "tp=2,dp=2", "--concurrent", "--csv", str(tmp_path / "g.csv")]
    calm = (1 << 19) * 10**6  # half of 1 MiB at 1 GB/s, in femtoseconds

    def times(*options):
        assert main([*argv, *options]) == 0
        rows = csv.DictReader((tmp_path / "g.csv").read_text().splitlines())
        return [
            (int(row["one_fs"]), int(row["all_fs"]), row["one_cut"] + row["all_cut"])
            for row in rows
        ]

    assert times() == [(calm, calm, "")] * 2
    assert times("--background", "gpu3 -> switch: 50 %") == [(calm, 2 * calm, "")] * 2
    assert times("--straggler", "rank 0: +100 %") == [(2 * calm, 2 * calm, "")] * 2
    late = times("--jitter", "1ms", "--seed", "3")
    assert all(calm < one <= every < calm + 10**12 for one, every, _ in late)
    assert (
        late == times("--jitter", "1ms", "--seed", "3") != times("--jitter", "1ms", "--seed", "4")
    )
    cut = times("--fault", "t=1us gpu3 -> switch = 0", "--policy", "stall 4ms x 1")
    assert [(one, how) for one, _, how in cut] == [(calm, "aborted")] * 2
    capsys.readouterr()
    for options, message in (
        (["--straggler", "rank 4: +1 %"], "'m' has 4 ranks"),
        (["-J", str(tmp_path / "x.json")], "--concurrent writes --csv"),
        (["--check", "1M"], "--concurrent is for the times of schedules"),
        (["--op", "most"], "unknown reduction 'most'"),
        (["--jitter", ""], "cannot read ''"),
    ):
        assert main([*argv, *options]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


SCENARIO = """
title = "groups"
algorithms = ["ring:channels=1"]
[topology]
name = "dgx-h100"
nodes = 2
[collective]
kind = "all_gather"
[sizes]
begin = "1M"
end = "1M"
"""
SWEEP = """
title = "groups"
topologies = ["dgx-h100"]
nodes = [1, 2]
collectives = ["all_gather"]
algorithms = ["ring:channels=1"]
sizes = ["1M"]
"""


@pytest.mark.slow
def test_run_and_sweep_play_one_group_of_each_axis(tmp_path, capsys):
    machine = load_topology("dgx-h100", nodes=2)
    expected = {}
    for axis, ranks in (("tp", range(8)), ("dp", (0, 8))):
        plan = simcoll.bind(
            simcoll.schedule("all_gather", "ring", nranks=len(ranks), channels=1),
            (1 << 18) // len(ranks),
        )
        expected[axis] = simcoll.emulate(plan, machine.with_ranks(list(ranks))).time_fs
    assert expected["dp"] > expected["tp"]
    (tmp_path / "one.toml").write_text(SCENARIO)
    (tmp_path / "grid.toml").write_text(SWEEP)

    def rows(file):
        return list(csv.DictReader((tmp_path / file).read_text().splitlines()))

    group = ["--group", "tp=8,pp=1,dp=2"]
    assert main(["run", str(tmp_path / "one.toml"), *group, "-o", str(tmp_path / "run")]) == 0
    assert "# simcoll: groups; one group along tp" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["dp", "tp"]
    for axis, time_fs in expected.items():
        assert [int(row["time_fs"]) for row in rows(f"run/{axis}/results.csv")] == [time_fs]
    assert (
        main(
            [
                "sweep",
                str(tmp_path / "grid.toml"),
                *group,
                "-o",
                str(tmp_path / "sweep"),
                "--jobs",
                "1",
            ]
        )
        == 0
    )
    found = rows("sweep/results.csv")
    assert [row["error"] for row in found[:2]] == [
        "--group: tp=8,pp=1,dp=2 has 16 ranks; the machine has 8"
    ] * 2
    assert {row["axis"]: int(row["time_fs"]) for row in found[2:]} == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [("../tp=2", "is no axis"), ("tp=1", "two or more"), ("tp=4", "the machine has 16")],
)
def test_run_refuses_wrong_meshes(tmp_path, capsys, text, message):
    (tmp_path / "one.toml").write_text(SCENARIO)
    assert (
        main(["run", str(tmp_path / "one.toml"), "--group", text, "-o", str(tmp_path / "run")]) == 2
    )
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_run_refuses_a_straggler_of_no_group_before_anything_runs(tmp_path, capsys):
    (tmp_path / "one.toml").write_text(SCENARIO)
    argv = [
        "run",
        str(tmp_path / "one.toml"),
        "--group",
        "tp=8,dp=2",
        "--straggler",
        "rank 3: +10 %",
    ]
    assert main([*argv, "-o", str(tmp_path / "run")]) == 2
    assert "one.toml: --group, axis dp: straggler: rank 3" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
