"""A disk that is really full: a tmpfs of 64 KiB, where one can be mounted; every writer leaves what
was there, and says so in one line.

Where none can be mounted these are skipped, and ``tests/unit/files/test_output.py`` has the limit
of a file's size in its place.
"""

import subprocess
from contextlib import suppress

import numpy as np
import pytest

import simcoll
import simcoll.distributed as dist
from simcoll.cli import main
from simcoll.emulator import Trace, emulate
from simcoll.errors import ConfigError
from simcoll.files.output import write_file
from simcoll.formats.schedules.schedule_json import dump_schedule
from simcoll.libraries import prediction_cache
from simcoll.topology import crossbar

pytestmark = pytest.mark.slow
OLD = b"what was there before"


@pytest.fixture
def full(tmp_path):
    """A folder on a disk with a page or two to spare."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(
            f"no tmpfs can be mounted here: {mounted.stderr.decode(errors='replace').strip()}"
        )
    try:
        (place / "ballast").write_bytes(b"x" * (48 << 10))
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _schedule(path):
    dump_schedule(simcoll.schedule("all_reduce", "recursive_doubling", nranks=256), path)


def _flight(path):
    result = dist.spawn(lambda *_: [dist.all_reduce(np.zeros(1)) for _ in range(60)] and None, 2)
    result.write_flight_record(0, path)


def _timeline(path):
    plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=32), count=4096)
    trace = Trace(plan, crossbar(32, "50 GB/s"))
    write_file(
        path, trace.content(emulate(plan, crossbar(32, "50 GB/s"), data="none", observer=trace))
    )


def _rank_timeline(path):
    dist.spawn(
        lambda *_: [dist.all_reduce(np.zeros(1)) for _ in range(200)] and None, 4, trace=path
    )


@pytest.mark.parametrize("write", [_schedule, _flight, _timeline, _rank_timeline])
def test_functions(write, full):
    target = full / "mine.json"
    target.write_bytes(OLD)
    with pytest.raises(
        ConfigError, match=r"mine\.json: cannot be written: No space left on device"
    ):
        write(target)
    assert sorted(path.name for path in full.iterdir()) == ["ballast", "mine.json"]
    assert target.read_bytes() == OLD


SCENARIO = """
title = "small"
algorithms = ["ring"]
[topology]
name = "dgx-h100"
[collective]
kind = "all_reduce"
[sizes]
begin = "1M"
end = "1M"
"""
COMMANDS = {
    "run": ("results.json", []),
    "faults": ("faults.svg", ["--seeds", "2", "--kind", "flap"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(name, full, tmp_path, capsys):
    result, words = COMMANDS[name]
    (tmp_path / "small.toml").write_text(SCENARIO)
    (full / result).write_bytes(OLD)
    assert main([name, str(tmp_path / "small.toml"), *words, "-o", str(full)]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("simcoll: ")
    assert "No space left on device" in said
    assert (full / result).read_bytes() == OLD
    assert not list(full.glob(".*.part"))


GRIDS = {
    "sweep": """
title = "small"
topologies = ["dgx-h100"]
collectives = ["all_reduce"]
algorithms = ["ring"]
protocols = ["ideal"]
sizes = ["1M"]
""",
    "goodput": """
title = "small"
days = 54
seeds = 2
failure = [{ cause = "GPU", count = 148, gpu_hours = 21_233_664 }]
[job]
gpus = 16384
[checkpoint]
save = "5 s"
interval = "young"
[restart]
load = "5 min"
""",
    "plan": """
title = "small"
[model]
name = "llama-3.1-8b"
global_batch = 16
dtype = "bf16"
[gpu]
name = "h100"
[topology]
name = "dgx-h100"
[parallel]
tp = [2, 4]
[objective]
maximise = "tokens_per_second"
""",
}


@pytest.mark.parametrize("name", GRIDS)
def test_grids(name, full, tmp_path, capsys):
    (tmp_path / "small.toml").write_text(GRIDS[name])
    for result in ("results.csv", "report.html"):
        (full / result).write_bytes(OLD)
    _fill(full)
    assert main([name, str(tmp_path / "small.toml"), "-j", "1", "-o", str(full)]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("simcoll: ")
    assert "No space left on device" in said
    assert {(full / result).read_bytes() for result in ("results.csv", "report.html")} == {OLD}
    assert not list(full.glob(".*.part"))


def _fill(place):
    with suppress(OSError), (place / "more").open("wb") as stream:
        while True:
            stream.write(b"x" * 4096)


def test_what_is_remembered_is_just_not_kept(full, monkeypatch):
    monkeypatch.setenv(prediction_cache.VARIABLE, str(full))
    key = prediction_cache.key_of("full disk")
    fields, form = {"text": "x" * 3000, "time_fs": 1}, {"text": str, "time_fs": int}
    prediction_cache.remember(key, fields)
    assert prediction_cache.recall(key, form) == fields
    _fill(full)
    other = prediction_cache.key_of("another")
    prediction_cache.remember(other, fields)
    assert prediction_cache.recall(other, form) is None
    assert prediction_cache.recall(key, form) == fields
    assert not list(full.rglob(".*.part"))
