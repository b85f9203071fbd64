"""A grid gives the same rows whoever plays it, however often it was stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError, InternalError
from simcoll.planning.grids.executors import GridPool, open_pool
from simcoll.planning.grids.grid import PointGrid, read_rows, run_grid, shard_of
from tests.support.mpi import environment, needs_mpi, run_mpi

SWEEP = """
title = "a sweep of {points} points"
topologies = ["pair.toml"]
collectives = ["all_reduce", "all_gather"]
algorithms = ["ring", "direct"]
seeds = {seeds}
jitter = "1 us"
sizes = ["1K", "64K"]
"""
PAIR = """
name = "four"
family = "crossbar"
nranks = 4
bandwidth = "10 GB/s"
latency = "1 us"
"""


def squared(point):
    if point["x"] == 13:
        raise ConfigError("thirteen does not fit")
    return {"square": point["x"] ** 2}


def faulty(point):
    if point["x"] == 3:
        raise InternalError("broken")
    return {}


def grid(n=40, work=squared):
    return PointGrid(work, tuple({"x": x} for x in range(n)))


def played(folder, n=40, pool=None, **options):
    if pool is not None:
        return run_grid(grid(n), folder, pool, **options)
    with open_pool(jobs=1) as here:
        return run_grid(grid(n), folder, here, **options)


def sorted_lines(folder):
    return sorted(
        line
        for path in folder.glob("rows*.jsonl")
        for line in path.read_bytes().splitlines(keepends=True)
    )


def test_a_key_tells_the_content():
    one, two = PointGrid(squared, ({"a": 1, "b": 2},)), PointGrid(squared, ({"b": 2, "a": 1},))
    assert one.keys == two.keys
    assert (
        len(
            {
                *one.keys,
                *PointGrid(squared, ({"a": 1, "b": 3},)).keys,
                *PointGrid(faulty, ({"a": 1, "b": 2},)).keys,
            }
        )
        == 3
    )
    assert [p["x"] for p in PointGrid(squared, ({"x": 2}, {"x": 1}, {"x": 2})).points] == [2, 1]


def test_rows_are_in_order_and_errors_stop_nothing(tmp_path):
    run = played(tmp_path)
    assert [row["point"]["x"] for row in run.rows] == list(range(40))
    assert [row["result"]["square"] for row in run.rows if "result" in row] == [
        x * x for x in range(40) if x != 13
    ]
    assert run.errors == {"thirteen does not fit": 1}
    assert run.played == 40


def test_any_executor_gives_the_same_bytes(tmp_path):
    for name in ("here", "threads"):
        (tmp_path / name).mkdir()
    played(tmp_path / "here")
    with ThreadPoolExecutor(3) as threads:
        played(tmp_path / "threads", pool=GridPool(threads, lambda: 3))
    assert sorted_lines(tmp_path / "here") == sorted_lines(tmp_path / "threads")


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 7, 39])
def test_a_run_goes_on_wherever_its_file_was_cut(tmp_path, kept):
    played(tmp_path)
    whole = (tmp_path / "rows.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    start = b"".join(lines[:kept])
    for torn in range(len(lines[kept])):
        (tmp_path / "rows.jsonl").write_bytes(start + lines[kept][:torn])
        assert len(read_rows(tmp_path)) == kept
        if torn in {0, 1, len(lines[kept]) // 2, len(lines[kept]) - 1}:
            assert played(tmp_path, resume=True).played == 40 - kept
            assert (tmp_path / "rows.jsonl").read_bytes() == whole


def test_the_disk_is_not_waited_for_after_every_row(tmp_path, monkeypatch):
    sizes, path = [], tmp_path / "rows.jsonl"
    monkeypatch.setattr(os, "fsync", lambda _: sizes.append(path.stat().st_size))
    begin = time.monotonic()
    played(tmp_path)
    assert len(sizes) <= 3 + (time.monotonic() - begin) / 0.5  # of 40 rows
    assert sizes[-1] == path.stat().st_size > 0  # the last wait covers all of them


def test_rows_of_an_earlier_run_are_not_mixed_up(tmp_path):
    played(tmp_path)
    with pytest.raises(ConfigError, match=r"40 rows of an earlier run; --resume"):
        played(tmp_path)
    assert played(tmp_path, n=42, resume=True).played == 2
    assert played(tmp_path, n=3, resume=True).played == 0
    row = '{"key": "1", "point": {}, "result": {}}\n'
    for wrong in (
        "nonsense",
        '{"key": "2", "point": {}}',
        '{"key": "2", "point": {}, "result": 3}',
        "\0\0",
    ):
        (tmp_path / "rows.jsonl").write_text(f"{row}{wrong}\n{row}")
        with pytest.raises(ConfigError, match=r"rows.jsonl: line 2: not a row of a grid"):
            played(tmp_path, resume=True)


def test_no_row_goes_through_a_link_and_nothing_is_cut_there(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("no line end")
    (tmp_path / "rows.jsonl").symlink_to(victim)
    with pytest.raises(ConfigError, match=r"rows\.jsonl: cannot be written: it is a link"):
        played(tmp_path)
    assert victim.read_text() == "no line end"
    (tmp_path / "rows.jsonl").unlink()
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError, match=r"rows\.jsonl: cannot be written: it is no file"):
        played(tmp_path)


def test_two_runs_do_not_write_one_file(tmp_path):
    said = []

    def also(done, _):
        if done == 0:
            with pytest.raises(
                ConfigError, match="another run is writing it; wait for its end"
            ) as found:
                played(tmp_path, resume=True)
            said.append(found.value)

    played(tmp_path, n=1, progress=also)
    assert said
    assert len(read_rows(tmp_path)) == 1
    assert played(tmp_path, n=2, resume=True).played == 1


@pytest.mark.slow
@pytest.mark.parametrize("many", [1, 3, 16])
def test_shards_are_the_grid(tmp_path, many):
    parts = [shard_of(grid(100), f"{k}/{many}") for k in range(1, many + 1)]
    assert sorted(key for part in parts for key in part.keys) == sorted(grid(100).keys)
    for k in range(1, many + 1):
        played(tmp_path, n=100, shard=f"{k}/{many}", resume=True)
    assert len(list(tmp_path.glob("rows-*.jsonl"))) == many
    assert played(tmp_path, n=100, resume=True).played == 0


def test_shards_that_begin_at_any_time_share_a_folder(tmp_path):
    for k in (2, 1, 3):
        played(tmp_path, n=100, shard=f"{k}/3")
        (tmp_path / f"rows-in-hand-{k}.jsonl").write_bytes(
            (tmp_path / f"rows-{k}-of-3.jsonl").read_bytes()
        )
    for shard in ("2/3", "2/4", None):
        with pytest.raises(ConfigError, match="rows of an earlier run"):
            played(tmp_path, n=100, shard=shard)
    run = played(tmp_path, n=100, resume=True)
    assert (run.played, len(run.rows)) == (0, 100)
    assert sorted_lines(tmp_path) == sorted(set(sorted_lines(tmp_path)))


def test_rows_handed_over_while_the_folder_is_read_are_no_error(tmp_path, monkeypatch):
    played(tmp_path)
    listed = [tmp_path / "rows.jsonl", tmp_path / "rows-in-hand-1.jsonl"]
    monkeypatch.setattr(type(tmp_path), "iterdir", lambda *_: iter(listed))
    assert len(read_rows(tmp_path)) == 40


@pytest.mark.parametrize("shard", ["0/4", "5/4", "1", "a/b", "1/0", "-1/4"])
def test_wrong_shards_are_named(shard):
    with pytest.raises(ConfigError, match="expected which of how many, such as 3/16"):
        shard_of(grid(), shard)


def test_a_fault_of_ours_ends_the_grid_and_keeps_what_was_done(tmp_path):
    with open_pool(jobs=1) as pool, pytest.raises(InternalError):
        run_grid(grid(work=faulty), tmp_path, pool)
    assert [row["point"]["x"] for row in read_rows(tmp_path).values()] == [0, 1, 2]


class Stopping(Executor):
    """Plays, until something happens to it."""

    def __init__(self, error, after):
        self.error, self.left = error, after

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.left -= 1
        if self.left < 0 and not isinstance(self.error, Exception):
            raise self.error
        if self.left < 0:
            future.set_exception(self.error)
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_a_dead_worker_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"a worker died, perhaps for want of memory .*--resume"):
        played(tmp_path, pool=GridPool(Stopping(BrokenExecutor(), 5), lambda: 1))
    assert 0 < len(read_rows(tmp_path)) < 40
    assert played(tmp_path, resume=True).played > 0


def test_a_scheduler_that_is_gone_is_said(tmp_path):
    def workers():
        if len(read_rows(tmp_path)) > 5:
            raise ConnectionResetError("in a comm of the scheduler")
        return 1

    pool = GridPool(Stopping(None, 99), workers, hold_s=0, gone=(ConnectionResetError,))
    with pytest.raises(ConfigError, match=r"the scheduler does not answer any more .*--resume"):
        played(tmp_path, pool=pool)
    assert 5 < len(read_rows(tmp_path)) < 40
    assert played(tmp_path, resume=True).played > 0


class OddError(Exception):
    """Cannot be made again from its arguments, as every other error can."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class LockedError(Exception):
    """Holds what cannot be sent."""

    def __init__(self, said):
        super().__init__(said, threading.Lock())


def fails(error, *arguments):
    raise error(*arguments)


@pytest.mark.slow
def test_an_error_that_cannot_be_sent_arrives_in_words(monkeypatch):
    # Processes that are started get it, and import this module.
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    with open_pool(jobs=2) as pool:
        odd, locked, plain = (
            pool.executor.submit(fails, *call)
            for call in ((OddError, "this", "that"), (LockedError, "held"), (ConfigError, "mine"))
        )
        with pytest.raises(
            InternalError, match=r"a process that plays points: .*OddError: this and that"
        ):
            odd.result()
        with pytest.raises(
            InternalError, match=r"a process that plays points: .*LockedError: \('held', <unlocked"
        ):
            locked.result()
        with pytest.raises(ConfigError, match="mine"):
            plain.result()


class Elsewhere(Executor):
    """Has another version of simcoll, so its keys differ."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result([{**row, "key": "0" * 32} for row in fn(*args, **kwargs)])
        return future


def test_a_worker_of_another_version_is_said(tmp_path):
    with pytest.raises(ConfigError, match="another version of simcoll than this one"):
        played(tmp_path, pool=GridPool(Elsewhere(), lambda: 1))
    assert read_rows(tmp_path) == {}


def test_ctrl_c_keeps_what_is_done(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        played(tmp_path, pool=GridPool(Stopping(KeyboardInterrupt(), 6), lambda: 2, hold_s=0))
    assert len(read_rows(tmp_path)) == 6


@pytest.mark.parametrize(
    ("kind", "jobs", "said"),
    [
        ("proceses", None, "did you mean 'processes'"),
        ("processes", 0, "expected 1 or more"),
        ("mpi", 2, "--jobs is for processes"),
    ],
)
def test_wrong_executors_are_named(kind, jobs, said):
    with pytest.raises(ConfigError, match=said), open_pool(kind, jobs):
        pass


@pytest.fixture
def sweep(tmp_path):
    """Writes a sweep file; gives the command that plays it and the folder."""
    (tmp_path / "pair.toml").write_text(PAIR)

    def command(folder, *options, seeds=6):
        (tmp_path / "s.toml").write_text(SWEEP.format(points=6 * seeds, seeds=list(range(seeds))))
        return [
            "-m",
            "simcoll",
            "sweep",
            str(tmp_path / "s.toml"),
            "-o",
            str(tmp_path / folder),
            *options,
        ]

    return command


def finished(arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def one(arguments):
    """The folder of a command, played in this process, as one worker does."""
    assert main([*arguments[2:], "-j", "1"]) == 0
    return Path(arguments[arguments.index("-o") + 1])


def same_results(folder, *others):
    assert len(sorted_lines(folder)) == len(set(sorted_lines(folder))) > 0
    for other in others:
        assert sorted_lines(other) == sorted_lines(folder)
        assert (other / "results.csv").read_bytes() == (folder / "results.csv").read_bytes()


@pytest.mark.slow
def test_processes_give_the_bytes_of_one(sweep, tmp_path):
    finished(sweep("3", "-j", "3"))  # with two processes they go on below
    alone = one(sweep("1"))
    same_results(alone, tmp_path / "3")
    rows = [json.loads(line) for line in sorted_lines(alone)]
    assert len(rows) == 36
    assert all("result" in row for row in rows)
    # Seeds move the times of what jitters, and only those.
    assert len({row["result"]["time_fs"] for row in rows}) > 12


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_stopped_sweep_goes_on(sweep, tmp_path, how):
    process = subprocess.Popen(
        [sys.executable, *sweep("cut", "-j", "2", seeds=20)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    rows = tmp_path / "cut" / "rows.jsonl"
    while process.poll() is None and not (rows.exists() and rows.read_bytes().count(b"\n") > 5):
        time.sleep(0.01)
    seen = rows.read_bytes()
    process.send_signal(getattr(signal, how))
    out, err = process.communicate(timeout=60)
    assert rows.read_bytes().startswith(seen)
    if how == "SIGINT" and process.returncode != 0:
        assert (process.returncode, err.removesuffix("simcoll: stopped\n")) == (130, "")
        assert "--resume continues" in out
    finished(sweep("cut", "-j", "2", "--resume", seeds=20))
    same_results(one(sweep("whole", seeds=20)), tmp_path / "cut")


MARKED = """
import time

def marked(point):
    time.sleep(0.002)
    with open("ended", "ab", buffering=0) as file:
        file.write(b"x")
    return {}
"""
PLAYS = """
import pathlib, sys
from marked import marked
from simcoll.planning.grids.executors import open_pool
from simcoll.planning.grids.grid import PointGrid, run_grid

if __name__ == "__main__":
    with open_pool(jobs=int(sys.argv[1])) as pool:
        pathlib.Path("rows").mkdir(exist_ok=True)
        run_grid(PointGrid(marked, tuple({"x": x} for x in range(100_000))), pathlib.Path("rows"), pool, resume=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 3])
def test_kill_9_loses_no_more_than_a_row_of_each_worker(tmp_path, jobs):
    """Points mark that they ended, a moment before their row is written; 2 ms each, handed over
    every 100 ms.
    """
    (tmp_path / "marked.py").write_text(MARKED)
    (tmp_path / "plays.py").write_text(PLAYS)
    for run in (1, 2):
        command = [sys.executable, "plays.py", str(jobs)]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), start_new_session=True)
        while process.poll() is None and ended_points(tmp_path) < 100 * run:
            time.sleep(0.007)
        maps = Path(f"/proc/{process.pid}/maps")
        # What has a name there would stay.
        assert not maps.exists() or "/dev/shm/" not in maps.read_text()
        os.killpg(process.pid, signal.SIGKILL)  # the workers with it
        process.wait(timeout=60)
        time.sleep(0.2)
        ended = ended_points(tmp_path)
        assert ended - run * jobs <= len(read_rows(tmp_path / "rows")) <= ended
    assert ended >= 200


def ended_points(folder):
    path = folder / "ended"
    return path.stat().st_size if path.exists() else 0


@pytest.mark.slow
@needs_mpi
def test_mpi_gives_the_bytes_of_one(sweep, tmp_path):
    done = run_mpi(3, *sweep("mpi", "--executor", "mpi"))
    assert done.returncode == 0, done.stderr
    same_results(one(sweep("one")), tmp_path / "mpi")


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("distributed") is None, reason="needs dask.distributed: pip install '.[cluster]'"
)
def test_dask_gives_the_bytes_of_one_though_a_worker_is_killed(sweep, tmp_path):
    quiet = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "env": environment(),
        "cwd": tmp_path,
    }
    dask = [sys.executable, "-m", "dask"]
    started = [
        subprocess.Popen(
            [*dask, "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", "s.json"],
            **quiet,
        )
    ]
    try:
        until(
            lambda: (
                (tmp_path / "s.json").exists() and (tmp_path / "s.json").read_text().endswith("}")
            )
        )
        address = json.loads((tmp_path / "s.json").read_text())["address"].removeprefix("tcp://")
        worker = [*dask, "worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        started += [subprocess.Popen(worker, **quiet) for _ in range(2)]
        process = subprocess.Popen(
            [sys.executable, *sweep("dask", "--executor", f"dask://{address}", seeds=20)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            stdout=subprocess.DEVNULL,
        )
        started.append(process)
        rows = tmp_path / "dask" / "rows.jsonl"
        until(
            lambda: (
                process.poll() is not None
                or (rows.exists() and rows.read_bytes().count(b"\n") > 10)
            )
        )
        assert process.poll() is None
        started[1].kill()
        said = process.communicate(timeout=120)[1].splitlines()
        # Dask may tell that it does a key again.
        ours = [line for line in said if "- distributed." not in line]
        assert (ours, process.returncode) == ([], 0)

        # Without workers it waits, and says so; without the scheduler it ends with one line.
        process = subprocess.Popen(
            [sys.executable, *sweep("gone", "--executor", f"dask://{address}", seeds=20)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            stdout=subprocess.DEVNULL,
        )
        started.append(process)
        rows = tmp_path / "gone" / "rows.jsonl"
        until(
            lambda: (
                process.poll() is not None or (rows.exists() and rows.read_bytes().count(b"\n") > 5)
            )
        )
        started[2].kill()
        assert process.stderr.readline() == "# no dask worker is there; waiting for one\n"
        started[0].kill()
        (last,) = process.communicate(timeout=120)[1].splitlines()
        assert re.match(
            r"simcoll: the scheduler does not answer any more \(\w+\); finished rows are kept", last
        )
        assert process.returncode == 2
    finally:
        for each in reversed(started):
            each.kill()
            each.wait()
    same_results(one(sweep("one", seeds=20)), tmp_path / "dask")


def until(done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)
