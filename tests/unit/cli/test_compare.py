"""``simcoll compare`` and ``simcoll calibrate``: what they print, what they write, and one clear
message for bad input.
"""

from __future__ import annotations

import json

import pytest

from simcoll.cli import main
from simcoll.libraries.calibration import load_calibration
from tests.support.nccl_logs import blocks, nccl_tests, table

SIZES = tuple(2**power for power in range(3, 31, 3))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size = "node-1:11:22 [0] NCCL INFO comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8"
    lines = list(
        nccl_tests(
            SIZES, 14 / 8, version=3, wrong=lambda size: "7" if size == 512 else "0", rate=250.0
        )
    )
    (tmp_path / "run.log").write_text("\n".join(lines))
    (tmp_path / "tuned.log").write_text(
        "\n".join([size, *blocks(table(("Tree", "Ring"), ("AllReduce",)))])
    )
    (tmp_path / "cut.log").write_text("\n".join(lines)[:2050])
    (tmp_path / "rows.log").write_text("\n".join(line for line in lines if "#" not in line))
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "link.log").write_text(
        " #bytes     #iterations    BW peak[Gb/sec]\n65536 5000 392\n"
    )
    corrupt = nccl_tests(SIZES, 14 / 8, version=3, wrong=lambda _: "7")
    (tmp_path / "corrupt.log").write_text("\n".join(corrupt))
    (tmp_path / "prose.log").write_text("no table, only float words")
    (tmp_path / "other.log").write_text("./alltoallv_perf\n" + "\n".join(lines[2:]))
    (tmp_path / "cut.json").write_text('{\n "version": 3,\n "results": [')
    (tmp_path / "other.json").write_text(json.dumps({"results": 4}))
    (tmp_path / "bad.toml").write_text("rate = 3")
    return tmp_path


def run(line, capsys):
    status = main(line.split())
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize(
    ("more", "told", "runs"),
    [
        ("", "# environment of the log: NCCL_ALGO=Ring", "ring"),
        (
            " --env NCCL_ALGO=Tree",
            "# environment of the log, which --env replaces: NCCL_ALGO=Ring",
            "tree",
        ),
    ],
)
def test_the_environment_is_that_of_the_log_or_the_given_one(here, capsys, more, told, runs):
    forced = "node-1:11:22 [0] NCCL INFO NCCL_ALGO set by environment to Ring"
    (here / "ring.log").write_text("\n".join([forced, *nccl_tests((8, 2**20), 14 / 8, version=3)]))
    status, out, _ = run(f"compare ring.log -t dgx-a100{more}", capsys)
    assert (status, told in out.splitlines()) == (0, True)
    assert {line.split()[6] for line in out.splitlines() if line.startswith(" ")} == {runs}


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_compare_prints_the_table_and_writes_the_picture(capsys, here):
    status, out, err = run("compare run.log -t dgx-h100 --svg both.svg", capsys)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("# note: line ")
    assert lines[0].endswith("512 B: 7 wrong elements; left out")
    assert (
        lines[1]
        == "# all_reduce, 8 ranks on 1 node, 9 rows, nccl 2.28.7 on dgx-h100; predicted by nccl "
        "2.27"
    )
    rows = [line.split() for line in lines if line.startswith(" ")]
    assert [int(row[0]) for row in rows] == [size for size in SIZES if size != 512]
    assert all(
        float(row[3]) == pytest.approx(float(row[2]) / float(row[1]), abs=0.01) for row in rows
    )
    assert {row[4] for row in rows} <= {"50%", "90%", "outside"}
    inside = sum(row[4] != "outside" for row in rows)
    assert f"# within 90 %: {inside} of {len(rows)} rows, within 50 %:" in out
    picture = (here / "both.svg").read_text()
    assert "measured" in picture
    assert "lower bound for any schedule" in picture
    run("compare run.log -t dgx-h100 --svg again.svg", capsys)
    assert (here / "again.svg").read_text() == picture


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_calibration_brings_predictions_closer_and_is_named(capsys, here):
    status, out, err = run("calibrate run.log tuned.log -t dgx-h100 -o mine.toml", capsys)
    assert (status, err) == (0, "")
    found = load_calibration(here / "mine.toml")
    assert out.splitlines()[-1] == f"# wrote mine.toml: calibration {found.hash}"
    assert "# NCCL's tuning table for 8 ranks on 1 nodes: determines the choice there" in out
    assert "# error of rows left out of the fit, below 64 KiB: median " in out
    assert (
        "# verdict: with the calibration, predictions are more exact for sizes below 64 KiB" in out
    )
    assert "worse with the calibration" not in out
    assert found.sources == ("run.log: all_reduce, 8 ranks on 1 node, 9 rows, nccl 2.28.7",)
    assert (found.topology, found.library.split()[0], len(found.tuning)) == ("dgx-h100", "nccl", 1)
    _, plain, _ = run("compare run.log -t dgx-h100", capsys)
    status, closer, _ = run("compare run.log -t dgx-h100 --calibration mine.toml", capsys)
    assert status == 0
    assert f"calibration {found.hash}" in closer

    def median_of(text):
        line = next(line for line in text.splitlines() if line.startswith("# error below 64 KiB"))
        return float(line.split("median ")[1].split("%")[0])

    assert median_of(closer) < 4 < median_of(plain)
    assert "# note: the calibration was fitted to a log of this name" in closer
    assert (
        "on topology 'dgx-h100', another than 'dgx-h200'"
        in run("compare run.log -t dgx-h200 --calibration mine.toml", capsys)[1]
    )
    first = (here / "mine.toml").read_bytes()
    run("calibrate run.log tuned.log -t dgx-h100 -o mine.toml", capsys)
    assert (here / "mine.toml").read_bytes() == first


def test_a_calibration_that_makes_rows_left_out_worse_is_named(capsys, here):
    times_us = {2**20: 25.1, 2**24: 101.56, 2**28: 1019.5, 2**30: 4018.0}
    rows = [
        f"{size} {size // 4} float sum -1 {time} {size / time / 1e3:.2f} "
        f"{1.75 * size / time / 1e3:.2f} 0"
        for size, time in times_us.items()
    ]
    (here / "few.log").write_text("\n".join(["./all_reduce_perf -g 8", *rows]))
    status, out, err = run("calibrate few.log -t dgx-h100 -o few.toml", capsys)
    assert (status, err) == (0, "")
    assert "are worse with the calibration than without it" in out


@pytest.mark.usefixtures("here")
def test_a_tuning_table_alone_is_a_calibration(capsys, here):
    status, out, _ = run("calibrate tuned.log -t dgx-h100 -o mine.toml", capsys)
    assert (status, load_calibration(here / "mine.toml").launch_fs) == (0, 0)
    assert "launch" not in out


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_part_of_a_log_is_used_and_the_rest_named(capsys):
    status, out, _ = run("compare cut.log -t dgx-h100", capsys)
    assert status == 0
    assert "the log is cut off or a copy" in out
    status, out, _ = run("compare rows.log -t dgx-h100 --collective all_reduce", capsys)
    assert status == 0
    assert "# note: the number of ranks is not named, taken for 8 by its columns" in out


BAD = [
    ("compare none.log -t dgx-h100", "none.log: cannot be read: No such file or directory"),
    ("compare . -t dgx-h100", "cannot be read: Is a directory"),
    ("compare empty.log -t dgx-h100", "empty.log: this is an empty file; there is no row"),
    ("compare link.log -t dgx-h100", "link.log: this is output of perftest (ib_write_bw)"),
    ("calibrate link.log -t dgx-h100 -o x.toml", "link.log: this is output of perftest"),
    ("compare corrupt.log -t dgx-h100", "corrupt.log: all rows have wrong results, so their times"),
    ("compare prose.log -t dgx-h100", "prose.log: there is no row of nccl-tests' table in it"),
    ("compare other.log -t dgx-h100", "simcoll has no model of 'alltoallv'"),
    ("compare cut.json -t dgx-h100", "cut.json: JSON that is cut off or broken"),
    ("compare other.json -t dgx-h100", "other.json: not the JSON of nccl-tests or realcoll"),
    (
        "compare run.log -t dgx-h1000",
        "simcoll: unknown topology 'dgx-h1000'; did you mean 'dgx-h100'",
    ),
    ("compare run.log -t tpu-v4", "nccl 2.27"),
    ("compare run.log -t dgx-h100 --nodes 0", "nodes"),
    ("compare run.log -t dgx-h100 --nodes two", "expected a whole number"),
    ("compare run.log -t dgx-h100 --calibration none.toml", "none.toml: cannot read: No such file"),
    ("compare run.log -t dgx-h100 --calibration bad.toml", "bad.toml: $: missing key 'format'"),
    (
        "compare run.log -t dgx-h100 --env NCCL_ALGO=Spiral",
        "simcoll: NCCL_ALGO: unknown value 'Spiral'",
    ),
    ("compare run.log -t dgx-h100 --library mccl", "unknown library 'mccl'"),
    (
        "compare run.log -t dgx-h100 --svg no/folder.svg",
        "cannot be written: No such file or directory",
    ),
    ("compare run.log", "--topology"),
    ("calibrate -t dgx-h100 -o x.toml", "calibrate needs a log"),
    ("calibrate none.log -t dgx-h100 -o x.toml", "none.log: cannot be read"),
    ("calibrate empty.log -t dgx-h100 -o x.toml", "empty.log: this is an empty file"),
    (
        "calibrate run.log -t dgx-h100 -o x.toml --parameters lunch",
        "unknown parameter 'lunch'; did you mean 'launch'",
    ),
    ("calibrate run.log -t dgx-h1000 -o x.toml", "simcoll: unknown topology 'dgx-h1000'"),
    (
        "calibrate run.log -t dgx-h100 -o no/x.toml",
        "no/x.toml: cannot be written: No such file or directory",
    ),
    ("calibrate run.log -t dgx-h100 -o .", "there is a folder of this name"),
    ("calibrate run.log cut.json -t dgx-h100 -o x.toml", "cut.json: JSON that is cut off"),
    ("calibrate run.log -t dgx-h100", "--output"),
]


@pytest.mark.slow
def test_wrong_results_are_in_the_last_sentence(capsys, here):
    _, out, _ = run("compare run.log -t dgx-h100", capsys)
    assert "; but 1 row had wrong results, so find out why first: " in out.splitlines()[-1]


@pytest.mark.slow
def test_a_failed_run_is_in_the_last_sentence(capsys, here):
    lines = (here / "run.log").read_text().splitlines()
    failure = "Test NCCL failure common.cu:1057 'unhandled system error / '"
    (here / "failed.log").write_text("\n".join([*lines[:-3], f"node-1: {failure}"]))
    _, out, _ = run("compare failed.log -t dgx-h100", capsys)
    assert f": {failure})" in out.splitlines()[-1]
    assert "; but the run failed (line " in out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "says"), BAD)
def test_bad_input_is_one_message_and_writes_nothing(line, says, capsys, here):
    before = sorted(path.name for path in here.iterdir())
    status, _, err = run(line, capsys)
    assert status == 2
    assert err.startswith("simcoll: ")
    assert says in err
    assert "Traceback" not in err
    assert sorted(path.name for path in here.iterdir()) == before


@pytest.mark.usefixtures("here")
def test_too_few_rows_for_the_parameters(capsys, here):
    (here / "one.log").write_text("\n".join(nccl_tests((8,), 14 / 8, version=3)))
    status, _, err = run("calibrate one.log -t dgx-h100 -o x.toml --parameters launch,rate", capsys)
    assert (status, "1 row cannot fit 2 parameters (launch, rate); measure more sizes" in err) == (
        2,
        True,
    )
    assert not (here / "x.toml").exists()
    status, out, _ = run("calibrate one.log -t dgx-h100 -o x.toml", capsys)
    assert (status, "too few rows for a cross-validation" in out) == (0, True)


@pytest.mark.slow
def test_own_tables_are_read_back(capsys, here):
    argv = "perf all_reduce -t dgx-a100 -a ring -p Simple -b 1M -e 4M -f 4"
    assert run(f"{argv} -J own.json", capsys)[0] == 0
    _, table, _ = run(argv, capsys)
    times = [line.split()[5] for line in table.splitlines() if line[:1] != "#"]
    status, out, err = run("compare own.json -t dgx-a100", capsys)
    assert (status, err) == (0, "")
    assert "is a prediction of simcoll perf; nothing was measured" in out
    assert [line.split()[1] for line in out.splitlines() if line[:1] != "#"] == times
    assert len(times) == 2
