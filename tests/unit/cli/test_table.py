"""The table of perf while it runs: lines, files, Ctrl-C, progress."""

import csv
import gzip
import re
import time
from xml.etree import ElementTree as ET

import pytest

from simcoll.cli import grids, main
from simcoll.cli.progress import Progress
from simcoll.errors import ConfigError
from simcoll.formats.logs.nccl_tests import load_log
from simcoll.planning.sweeps import running, sweep


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_files_of_perf(folder, capsys):
    argv = [
        "perf",
        "all_reduce",
        "-t",
        "dgx-h100",
        "-b",
        "1K",
        "-e",
        "64K",
        "-f",
        "8",
        "-a",
        "ring,tree",
        "-p",
        "LL,Simple",
    ]
    assert (
        main([*argv, "-J", "a.json", "--csv", "a.csv", "--svg", "a.svg", "--trace", "a.json.gz"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "# wrote a.json" in printed
    assert len(list(csv.DictReader((folder / "a.csv").read_text().splitlines()))) == 3 * 2 * 2
    ET.fromstring((folder / "a.svg").read_text())
    assert gzip.decompress((folder / "a.json.gz").read_bytes()).startswith(b"{")
    (table,) = load_log(folder / "a.json").tables  # as any other result file of nccl-tests
    assert (table.collective, table.nranks, table.library) == ("all_reduce", 8, "simcoll")
    assert [row.size_bytes for row in table.rows] == [1024, 8192, 65536]
    best = [line.split() for line in printed.splitlines() if line.lstrip()[:1].isdigit()]
    assert [f"{row.time_fs / 1e9:.2f}" for row in table.rows] == [line[5] for line in best]


def test_ctrl_c_before_the_first_size_says_that_nothing_is_kept(folder, capsys, monkeypatch):
    def play(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("simcoll.planning.sweeps.running.play", play)
    assert (
        main(
            [
                "perf",
                "all_reduce",
                "-t",
                "dgx-h100",
                "-b",
                "1K",
                "-e",
                "4K",
                "-a",
                "ring",
                "-p",
                "LL",
                "--csv",
                "a.csv",
            ]
        )
        == 130
    )
    printed = capsys.readouterr()
    assert (
        printed.out.splitlines()[-1]
        == "# stopped before the first of 3 sizes was done; nothing is kept"
    )
    assert printed.err.strip() == "simcoll: stopped"
    assert not (folder / "a.csv").exists()


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(folder, capsys, monkeypatch):
    played = []

    def play(*arguments, **options):
        if len(played) == 5:
            raise KeyboardInterrupt
        played.append(sweep.play(*arguments, **options))
        return played[-1]

    monkeypatch.setattr("simcoll.planning.sweeps.running.play", play)
    assert (
        main(
            [
                "perf",
                "all_reduce",
                "-t",
                "dgx-h100",
                "-b",
                "1K",
                "-e",
                "64K",
                "-f",
                "2",
                "-a",
                "ring,tree",
                "-p",
                "LL",
                "--csv",
                "a.csv",
            ]
        )
        == 130
    )
    printed = capsys.readouterr()
    assert "# stopped after 2 of 7 sizes; these are kept" in printed.out
    assert printed.err.strip() == "simcoll: stopped"
    rows = list(csv.DictReader((folder / "a.csv").read_text().splitlines()))
    assert [(row["size_bytes"], row["choice"]) for row in rows] == [
        ("1024", "ring"),
        ("1024", "tree"),
        ("2048", "ring"),
        ("2048", "tree"),
    ]


@pytest.mark.slow
def test_lines_of_a_table_come_one_by_one(folder, capsys, monkeypatch):
    """When a size is played, those before it have been printed."""
    seen = []

    def play(*arguments, **options):
        seen.append(
            sum(line.lstrip()[:1].isdigit() for line in capsys.readouterr().out.splitlines())
        )
        return sweep.play(*arguments, **options)

    monkeypatch.setattr("simcoll.planning.sweeps.running.play", play)
    assert (
        main(
            [
                "perf",
                "all_reduce",
                "-t",
                "dgx-h100",
                "-b",
                "1K",
                "-e",
                "4K",
                "-a",
                "ring",
                "-p",
                "LL",
            ]
        )
        == 0
    )
    assert seen == [0, 1, 1]


@pytest.mark.parametrize("kind", ["runs", "points"])
def test_progress_off_a_terminal_is_a_line_a_minute_also_while_one_run_is_longer(
    kind, capsys, monkeypatch
):
    monkeypatch.setattr("simcoll.cli.progress.LINE_S", 0.01)
    lines = []
    with Progress() if kind == "runs" else grids._progress() as progress:
        progress(1000, 1674, *(["ring LL"] if kind == "runs" else []))
        end = time.monotonic() + 60
        while len(lines) < 3 and time.monotonic() < end:
            time.sleep(0.01)
            lines += capsys.readouterr().err.splitlines()
    expected = (
        r"# 1,000 of 1,674 (done in 0:\d\d, about \d:\d\d left, now ring LL|points, 0\.0/min)"
    )
    assert all(re.fullmatch(expected, line) for line in lines[:3])
    assert len(lines) >= 3
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""  # none after the end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "now"),
    [
        (
            ["verify", "pairwise", "all_to_all", "-n", "64"],
            r"0 of 1 done in \S+ now the proof of pairwise",
        ),
        (
            [
                "perf",
                "all_to_all",
                "-t",
                "dgx-h100",
                "--nodes",
                "6",
                "-b",
                "1M",
                "-e",
                "1M",
                "-a",
                "bruck,pairwise",
                "-p",
                "LL",
            ],
            r"1 of 2 done in \S+ (about \S+ left, )?now the proof of pairwise",
        ),
    ],
)
def test_a_proof_tells_how_far_it_is(argv, now, capsys, monkeypatch):
    monkeypatch.setattr("simcoll.cli.progress.LINE_S", 0.001)
    tell = Progress.__call__

    def tell_and_wait(progress, finished, total, next_up):
        tell(progress, finished, total, next_up)
        time.sleep(0.1)  # a proof that takes longer than LINE_S, also where it is remembered

    monkeypatch.setattr(Progress, "__call__", tell_and_wait)
    assert main(argv) == 0
    err = capsys.readouterr().err
    assert re.search(now, err), err[:300]


@pytest.mark.slow
def test_an_algorithm_that_needs_too_much_is_left_out_of_a_default_table(
    folder, capsys, monkeypatch
):
    """Its proof or a run may not fit; the other rows are still an answer."""
    bind, play = sweep.bind, running.play

    def bind_small(schedule, *arguments, **keywords):
        if schedule.name == "rabenseifner":
            raise ConfigError("its proof takes 64 GiB")
        return bind(schedule, *arguments, **keywords)

    def play_small(of_table, plan, *arguments, **keywords):
        if plan.schedule.name == "swing" and plan.total_bytes > 1024:
            raise ConfigError("this run takes 9 GiB")
        return play(of_table, plan, *arguments, **keywords)

    monkeypatch.setattr(sweep, "bind", bind_small)
    monkeypatch.setattr(running, "play", play_small)
    command = ["perf", "all_reduce", "-t", "dgx-h100", "-b", "1K", "-e", "2K"]
    assert main([*command, "--csv", "rows.csv"]) == 0
    output = capsys.readouterr().out
    assert "# left out: rabenseifner: its proof takes 64 GiB\n" in output
    assert "# left out from here on: swing: this run takes 9 GiB\n" in output
    with (folder / "rows.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    names = {
        size: {row["choice"] for row in rows if row["size_bytes"] == size}
        for size in ("1024", "2048")
    }
    assert names["1024"] - names["2048"] == {"swing"}
    assert "rabenseifner" not in names["1024"]
    assert main([*command, "-a", "rabenseifner"]) == 2  # asked for by name
    assert "its proof takes 64 GiB" in capsys.readouterr().err
