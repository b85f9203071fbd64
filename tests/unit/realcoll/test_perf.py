"""The command line: tables, files and messages; figures are not judged."""

import errno
import json
import os

import pytest

import simcoll
from realcoll.commands import main
from realcoll.measure.message_fit import calibration, fit, shift, topology_toml
from realcoll.measure.nccl_tests_report import footer, header, row, write_new
from realcoll.measure.timed_sizes import Line, TimedRuns
from realcoll.transports import gpu_is_here
from simcoll.errors import ConfigError
from simcoll.files import output
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.libraries.calibration import Calibration, load_calibration
from simcoll.libraries.fitting import formula
from simcoll.topology import load_topology

STEPS = (
    "-b",
    "100",
    "-e",
    "300",
    "-i",
    "100",
    "-n",
    "1",
    "-c",
    "0",
    "-g",
    "2",
    "--predict",
    "crossbar",
)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI", "SLURM")):
            monkeypatch.delenv(name)


def rows(text):
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize(
    ("arguments", "redop", "root"),
    [
        (["all_reduce", "-o", "prod"], "product", "-1"),
        (["all_reduce", "-d", "bfloat16", "-o", "avg"], "avg", "-1"),
        (["broadcast", "-r", "2"], "none", "2"),
        (["all_to_all"], "none", "-1"),
        (["all_gather", "-a", "bruck"], "none", "-1"),
    ],
)
def test_perf_prints_the_table_of_nccl_tests(arguments, redop, root, capsys):
    assert (
        main(
            [
                "perf",
                *arguments,
                "-t",
                "local",
                "-b",
                "64",
                "-e",
                "256",
                "-f",
                "2",
                "-n",
                "2",
                "-g",
                "4",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    table = rows(shown)
    assert [line[0] for line in table] == ["64", "128", "256"]
    for line in table:
        assert line[3:5] == [redop, root]
        assert line[8] == "0"
        assert line[12] == ("N/A" if arguments[0] == "all_to_all" else "0")
        assert float(line[5]) > 0
    assert "# Out of bounds values : 0 OK" in shown


def test_perf_steps_predicts_and_leaves_out_the_check(capsys):
    assert main(["perf", "all_reduce", "-t", "local", *STEPS]) == 0
    table = rows(capsys.readouterr().out)
    assert [line[0] for line in table] == ["100", "200", "300"]
    assert all(line[8] == "N/A" for line in table)
    # A ring of 2 is two messages, 2 us each on the crossbar file.
    assert float(table[0][-1]) == pytest.approx(4, abs=0.1)


ALL = ("-t", "local", "-n", "1", "-d", "all", "-o", "all", "-g", "2")


@pytest.mark.slow
def test_all_types_and_reductions_of_nccl_tests(capsys):
    assert main(["perf", "all_reduce", "-b", "64", "-e", "64", *ALL]) == 0
    table = rows(capsys.readouterr().out)
    assert [line[3] for line in table[:6]] == ["sum", "product", "max", "min", "avg", "premul_sum"]
    assert [line[2] for line in table[::6]] == [
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
    assert all(line[8] == line[12] == "0" for line in table)
    assert main(["perf", "broadcast", "-b", "64", "-e", "64", "-c", "0", *ALL]) == 0
    assert len(rows(capsys.readouterr().out)) == 12


def test_json_is_that_of_nccl_tests(tmp_path, capsys):
    path = tmp_path / "out.json"
    for _ in range(2):
        assert main(f"perf all_reduce -t local -b 64 -e 64 -n 2 -g 4 -J {path}".split()) == 0
    capsys.readouterr()
    document = json.loads(path.read_bytes())
    assert (tmp_path / "out.json.0").exists()
    assert document["version"] == 3
    (result,) = document["results"]
    assert (result["size"], result["count"], result["root"]) == (64, 16, "-1")
    both = (result["out_of_place"], result["in_place"])
    for found in both:
        assert found["nwrong"] == 0
        assert found["bus_bw"] == pytest.approx(found["alg_bw"] * 2 * 3 / 4)
        assert found["alg_bw"] == pytest.approx(64 / found["time"] / 1e3)
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}


def test_ratio_is_ours_over_the_library_s():
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), 2000)
    line = Line(plan, "sum", TimedRuns(2e-6, 0), None, TimedRuns(1e-6, None), 3e-6)
    assert line.ratio == 0.5
    cells = row(line, predicts=True).split()
    assert cells[5:9] == ["2.00", "4.00", "6.00", "0"]
    assert cells[-3:] == ["1.00", "0.50", "3.00"]


def test_reports_are_read_for_comparison(tmp_path, capsys):
    command = f"perf all_gather -t local -b 1K -e 64K -f 8 -n 2 -g 4 -J {tmp_path / 'own.json'}"
    assert main(command.split()) == 0
    text = capsys.readouterr().out
    (tmp_path / "own.log").write_text(text)
    printed = [(int(line[0]), float(line[5])) for line in rows(text)]
    for name in ("own.log", "own.json"):
        (table,) = load_log(tmp_path / name).tables
        assert (table.collective, table.nranks, table.library, table.version) == (
            "all_gather",
            4,
            "realcoll",
            "(local)",
        )
        times = [(each.size_bytes, each.time_fs / 1e9) for each in table.rows]
        assert times == [(size, pytest.approx(time, abs=0.006)) for size, time in printed]


@pytest.mark.parametrize("predicts", [False, True])
def test_the_time_of_the_library_is_found_in_a_report(tmp_path, predicts):
    lines = [
        "# realcoll: all_reduce with ring on nccl: 8 ranks in 8 processes",
        *header(predicts=predicts),
    ]
    for count in (64, 2000, 10**7):
        plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=8), count)
        line = Line(
            plan,
            "sum",
            TimedRuns(9e-6 + count * 1e-10, 0),
            None,
            TimedRuns(7e-6 + count * 1e-11, None),
            3e-6,
        )
        lines.append(row(line, predicts=predicts))
    (tmp_path / "own.log").write_text("\n".join([*lines, *footer([])]))
    (table,) = load_log(tmp_path / "own.log").tables
    assert (table.library, table.version) == ("realcoll", "(nccl)")
    assert [each.time_fs / 1e9 for each in table.rows] == [7.0, 7.02, 107.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("perf all_redcue", "did you mean 'all_reduce'?"),
        ("perf all_reduce -a rnig", "did you mean 'ring'?"),
        ("perf all_reduce -t mpj", "unknown transport 'mpj'"),
        ("perf all_reduce -d float23", "unknown dtype"),
        ("perf all_reduce -t local -b 1x", "unknown unit"),
        ("perf all_reduce -t local -b 8 -e 4", "is below the smallest, 8"),
        ("perf all_reduce -t local -b 8 -e 80 -i 0", "steps of at least 1 byte"),
        ("perf all_reduce -t local -n 0", "-n 0"),
        ("perf all_reduce -t local -b 8 -e 8 -g 16 --predict crossbar", "16 are measured"),
        (
            "perf all_reduce -t local -b 8 -e 8 -n 1 -J /no/such/folder/x",
            "/no/such/folder/x: cannot be written",
        ),
        ("launch", "launch needs a script"),
        ("perf", "perf needs COLLECTIVE"),
        ("calibrate /dev/null -t local", "is already there"),
    ],
)
def test_bad_input_is_one_clear_message(arguments, said, capsys):
    assert main(arguments.split()) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "Traceback" not in errors


def test_torchrun_cannot_start_mpi(monkeypatch, capsys):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    if not gpu_is_here():
        assert main(["perf", "all_reduce", "-b", "8", "-e", "8"]) == 2
        assert "torchrun started 2 processes, and there is no GPU" in capsys.readouterr().err


def test_write_new_never_overwrites(tmp_path):
    names = [write_new(tmp_path / "a", bytes([i])).name for i in range(3)]
    assert names == ["a", "a.0", "a.1"]
    assert (tmp_path / "a").read_bytes() == b"\0"
    (tmp_path / "a.2").symlink_to(tmp_path / "planted")
    assert write_new(tmp_path / "a", b"new").name == "a.3"
    assert not (tmp_path / "planted").exists()


def test_write_new_leaves_nothing_on_a_full_disk(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(output.os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_new(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_fit_finds_the_line_it_was_made_from():
    sizes = [0, 100, 10_000, 1_000_000]
    found = fit(sizes, [3e-6 + size / 20e9 for size in sizes])
    assert found.latency_s == pytest.approx(3e-6)
    assert found.bandwidth == pytest.approx(20e9)
    assert max(map(abs, found.residuals)) < 1e-9


def test_a_fit_shows_what_does_not_fit():
    found = fit([1000, 2000, 3000], [1e-6, 2e-6, 6e-6])
    assert found.latency_s >= 0
    assert max(map(abs, found.residuals)) > 0.2
    with pytest.raises(ConfigError, match="at least two sizes"):
        fit([8, 8], [1e-6, 1e-6])
    with pytest.raises(ConfigError, match="do not grow"):
        fit([8, 1000], [2e-6, 1e-6])


def test_the_topology_file_predicts_what_was_measured(tmp_path):
    found = fit([0, 1 << 20], [2e-6, 2e-6 + (1 << 20) / 10e9])
    path = tmp_path / "mine.toml"
    path.write_text(topology_toml(found, "mine", 4, "test"))
    machine = load_topology(str(path))
    plan = simcoll.bind(shift(4), 1 << 20, "uint8")
    assert simcoll.emulate(plan, machine).time == pytest.approx(2e-6 + (1 << 20) / 10e9, rel=1e-5)
    assert "measured 1 MiB" in machine.traits
    assert "fitted to 2 sizes" in machine.sources["$.bandwidth"]


def test_calibrate_writes_a_file_that_can_be_read(tmp_path, capsys):
    path = tmp_path / "here.toml"
    assert main(f"calibrate {path} -t local -b 1K -e 4M -f 64 -n 2".split()) == 0
    assert "# latency" in capsys.readouterr().out
    assert load_topology(str(path)).nranks == 2


def test_calibrate_writes_the_file_of_simcoll_for_a_known_machine(tmp_path, capsys):
    path = tmp_path / "here.toml"
    assert main(f"calibrate {path} -t local -b 1K -e 4M -f 64 -n 2 --predict dgx-h100".split()) == 0
    found = load_calibration(path)
    assert f"calibration {found.hash}" in capsys.readouterr().out
    assert found.sources[0].startswith("realcoll calibrate: send_recv on 2 ranks with local")
    assert (found.topology, found.library.split()[0]) == ("dgx-h100", "nccl")
    assert main(f"calibrate {tmp_path / 'x'} -t local --predict dgx-h1000".split()) == 2
    assert "did you mean 'dgx-h100'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_calibration_finds_the_start_and_the_rate():
    sizes = [2**power for power in range(3, 31)]
    library = formula("send_recv", load_topology("dgx-h100"))
    # The launch is measured beside the least size, and hidden beside longer ones.
    (beside_fs,) = library(sizes[:1], Calibration())
    late = Calibration(launch_fs=9 * 10**9, hidden_from_fs=beside_fs)
    times = library(sizes, late)
    found = calibration(sizes, [time / 1e15 for time in times], "dgx-h100", 8, "test")
    assert (found.launch_fs, found.rate, found.topology) == (late.launch_fs, 1, "dgx-h100")
    assert found.hidden_from_fs == beside_fs
    # Without a name, the library is that of the GPUs.
    assert calibration(sizes, [1.0] * len(sizes), "mi300x", 8, "test").library.split()[0] == "rccl"
