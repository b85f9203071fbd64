"""Files are whole or not there: on a full disk, beside another run, after kill -9, and where
somebody has planted a link.
"""

import contextlib
import json
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import simcoll
import simcoll.distributed as dist
from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.files import output
from simcoll.files.output import open_folder, refuse_places, write_file, write_files
from simcoll.formats.schedules.schedule_json import dump_schedule

NAMES = ("one", "two", "three")
WRITER = f"""
import sys
from pathlib import Path
from simcoll.files.output import write_files
mine = sys.argv[2].encode()
for turn in range(int(sys.argv[3])):
    write_files(Path(sys.argv[1]), {{name: mine * 50_000 for name in {NAMES!r}}})
    if turn == 0:
        print("begun", flush=True)
"""


def writer(folder, letter, turns):
    command = [sys.executable, "-c", WRITER, str(folder), letter, str(turns)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(simcoll.__file__).parents[1])},
    )


def begun(process):
    assert process.stdout.readline() == b"begun\n"


@contextlib.contextmanager
def full_disk():
    """No file may have more than 1,000 bytes: not even the log of the tests, so only for a
    moment.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def flight(path):
    """A flight record, in the way a program writes it."""
    result = dist.spawn(lambda *_: [dist.all_reduce(np.zeros(1)) for _ in range(9)] and None, 2)
    result.write_flight_record(0, path)


def schedule(path):
    dump_schedule(simcoll.schedule("all_reduce", "recursive_doubling", nranks=64), path)


@pytest.mark.parametrize("write", [flight, schedule, lambda path: write_file(path, b"x" * 2000)])
def test_on_a_full_disk_the_old_file_stays(write, tmp_path):
    (tmp_path / "mine").write_bytes(b"old")
    with pytest.raises(ConfigError, match=r"mine: cannot be written: File too large"), full_disk():
        write(tmp_path / "mine")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("mine", b"old")]


def test_a_new_file_has_the_rights_that_the_user_gives(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "mine", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o640


def test_the_disk_has_the_content_before_the_name_leads_to_it(tmp_path, monkeypatch):
    seen = []
    fsync, replace = os.fsync, Path.replace

    def noted(file):
        found = os.fstat(file)
        seen.append("folder" if stat.S_ISDIR(found.st_mode) else found.st_size)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(
        Path, "replace", lambda path, target: (seen.append(target.name), replace(path, target))
    )
    write_files(tmp_path, {"a": b"12", "b": b"345"})
    assert seen == ["folder", 2, 3, "a", "b", "folder"]


def test_no_name_can_be_planted(tmp_path, monkeypatch):
    """Whoever may write there cannot know the name; and if he guessed it, the file is not
    opened.
    """
    (tmp_path / "victim").write_bytes(b"old")
    monkeypatch.setattr(output.secrets, "token_hex", lambda _: "known")
    (tmp_path / ".mine.known.part").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="cannot be written: File exists"):
        write_file(tmp_path / "mine", b"new")
    assert (tmp_path / "victim").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.known.part", "victim"]


def test_a_stopped_writer_holds_up_nobody_for_long(tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr(output, "LOCK_S", 0.05)
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    write_files(tmp_path, {"mine": b"x"})
    os.close(holder)
    assert (tmp_path / "mine").read_bytes() == b"x"


@pytest.mark.parametrize("place", ["mine", "mine/file", ".mine.0123.part"])
def test_a_planted_pipe_is_waited_for_no_longer_than_anybody(place, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "LOCK_S", 0.05)
    os.mkfifo(tmp_path / Path(place).parts[0])
    words = {"mine": "no process reads this pipe", "mine/file": "Not a directory"}
    if place in words:
        with pytest.raises(ConfigError, match=words[place]):
            write_file(tmp_path / place, b"x")
    else:
        write_file(tmp_path / "mine", b"x")
        assert (tmp_path / "mine").read_bytes() == b"x"


def test_a_pipe_gets_the_content_once_somebody_reads_it(tmp_path):
    os.mkfifo(tmp_path / "mine")
    with subprocess.Popen(["cat", str(tmp_path / "mine")], stdout=subprocess.PIPE) as reader:
        write_file(tmp_path / "mine", b"x" * 50_000)
        assert reader.stdout.read() == b"x" * 50_000
    assert (tmp_path / "mine").is_fifo()


def test_a_pipe_of_another_user_is_refused_at_once(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "mine")
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    for refuse in (refuse_places, open_folder, write_files):
        asked = {refuse_places: ([tmp_path / "mine"],), open_folder: (tmp_path, ["mine"])}
        with pytest.raises(
            ConfigError, match="mine: cannot be written: it is a pipe of another user"
        ):
            refuse(*asked.get(refuse, (tmp_path, {"mine": b"x"})))


@pytest.mark.slow
def test_two_runs_in_one_folder(tmp_path):
    writers = [writer(tmp_path, letter, 60) for letter in "ab"]
    assert [process.wait(120) for process in writers] == [0, 0]
    for process in writers:
        process.stdout.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
    assert len({(tmp_path / name).read_bytes() for name in NAMES}) == 1


@pytest.mark.slow
def test_killed_while_it_writes(tmp_path):
    chance = random.Random(5)
    for letter in "abcdefgh":
        process = writer(tmp_path, letter, 10_000)
        begun(process)
        time.sleep(chance.random() / 20)
        process.kill()
        process.wait()
        process.stdout.close()
        for name in NAMES:
            content = (tmp_path / name).read_bytes()
            assert content == content[:1] * 50_000
    write_files(tmp_path, dict.fromkeys(NAMES, b"x"))  # the next removes what is left of all
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)


def test_the_file_of_a_writer_that_lives_is_left_alone(tmp_path):
    living = output._New.beside(tmp_path / "mine")
    write_file(tmp_path / "mine", b"first")
    living.write(b"second")
    living.publish()
    living.discard()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("mine", b"second")]


@pytest.mark.slow
def test_every_result_names_its_run(tmp_path, monkeypatch):
    import csv
    import gzip

    monkeypatch.chdir(tmp_path)
    assert main(["run", "first-look", "-o", "out"]) == 0
    run = json.loads(Path("out/results.json").read_text())["run"]
    assert len(run) == 16
    with Path("out/results.csv").open() as stream:
        assert {row["run"] for row in csv.DictReader(stream)} == {run}
    assert f"<dc:identifier>{run}</dc:identifier>" in Path("out/busbw.svg").read_text()
    assert (
        json.loads(gzip.decompress(Path("out/trace.json.gz").read_bytes()))["otherData"]["run"]
        == run
    )
