"""The command that runs a file of rank programs on the emulator or for real."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.distributed.linked.process_links import BACKEND_VARIABLE, place_of
from simcoll.distributed.run import main
from simcoll.distributed.runtime.objects import encode
from simcoll.errors import ConfigError
from simcoll.planning import run_workload
from simcoll.topology import load_topology
from simcoll.units import format_time
from simcoll.workload.workload import read_workload
from tests.support.mpi import environment, needs_mpi

PROGRAM = """
import sys
import numpy as np
import simcoll.distributed as dist

def program(rank, world_size):
    x = np.arange(3.0) / 7 + rank
    dist.all_reduce(x)
    return x, sys.argv[1:]
"""
SPAWNS = (
    PROGRAM + "\nif __name__ == '__main__':\n    print(dist.spawn(program, nprocs=2).operations)\n"
)
SCRIPT = """
import numpy as np
import simcoll.distributed as dist

dist.init_process_group("gloo")
x = np.ones(1)
dist.all_reduce(x)
print(f"{dist.get_rank()} of {dist.get_world_size()}: {x[0]}\\n", end="")
"""


@pytest.fixture
def file(tmp_path):
    def made(text):
        path = tmp_path / "rank_program.py"
        path.write_text(text)
        return str(path)

    return made


def test_a_function_is_spawned(file, capsys):
    before = list(sys.argv), list(sys.path), os.environ.get(BACKEND_VARIABLE)
    assert main(["-n", "2", file(PROGRAM), "--its", "own"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(
        "# 2 ranks, emulator (crossbar): 1 operation, 1 us, at most 24 B of tensors on a rank, "
        "returns "
    )
    assert main(["--nproc", "2", file(PROGRAM), "--other"]) == 0
    assert capsys.readouterr().out != line  # the arguments are part of what is returned
    assert (
        main(["--topology", "dgx-h100", "--algorithm", "ring", "--protocol", "LL", file(PROGRAM)])
        == 0
    )
    assert capsys.readouterr().out.startswith("# 8 ranks, emulator (dgx-h100): 1 operation, ")
    assert (list(sys.argv), list(sys.path), os.environ.get(BACKEND_VARIABLE)) == before


@pytest.mark.slow
def test_options_of_spawn(file, capsys, tmp_path):
    """Without data the tensors stay as they are; the table, the timeline and the recording are
    those of spawn.
    """
    trace, recording = tmp_path / "t.json", tmp_path / "w.json"
    words = [
        "--data",
        "none",
        "--alike",
        "all",
        "--trace",
        str(trace),
        "--record",
        str(recording),
        "--library",
        "nccl",
    ]
    assert main(["--topology", "dgx-h100", *words, file(PROGRAM)]) == 0
    line, head, row = capsys.readouterr().out.splitlines()
    plain = dist.spawn(lambda *_: (np.arange(3.0) / 7, []), 8, init=False)
    assert line.split()[-1] == hashlib.sha256(encode(list(plain.returns))).hexdigest()[:16]
    assert head.split()[1:] == [
        "ranks",
        "total",
        "compute",
        "communication",
        "idle",
        "memory",
        "exposed",
        "communication",
    ]
    assert row.startswith("# 0-7 ")
    assert " 24 B " in row
    assert {"traceEvents"} <= set(json.loads(trace.read_text()))
    again = run_workload(read_workload(recording.read_bytes()), load_topology("dgx-h100"))
    assert format_time(again.time_fs) in line


def test_faults_of_a_run(file, capsys):
    link = "t=0us gpu1 -> switch = 0 for 1ms"
    assert main(["-n", "2", "--fault", link, file(PROGRAM)]) == 0
    assert " 1 operation, 1 ms, " in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="given up at 8 ms: down: gpu1 -> switch"):
        main(
            [
                "-n",
                "2",
                "--fault",
                link.replace("1ms", "1s"),
                "--policy",
                "stall 4ms x 1",
                file(PROGRAM),
            ]
        )
    for words, said in (
        (["--fault", "t=1ms rank 9 stops"], "rank 9"),
        (["--policy", "re-rout"], "did you mean 're-route'"),
    ):
        assert main(["-n", "2", *words, file(PROGRAM)]) == 2
        assert said in capsys.readouterr().err


def test_a_file_that_spawns_is_left_alone(file, capsys):
    assert main(["-t", "dgx-h100", "--trace", "t.json", file(SPAWNS)]) == 0
    said = capsys.readouterr()
    first, second = said.out.splitlines()
    assert first == "1"
    assert second.startswith(
        "# 2 ranks, emulator (crossbar): 1 operation, 1 us, at most 24 B of tensors on a rank, "
        "returns "
    )
    assert said.err.endswith("rank_program.py calls spawn itself, without --topology, --trace\n")


def test_a_script_runs_on_every_rank(file, capsys):
    assert main(["-n", "3", "--script", file(SCRIPT)]) == 0
    assert sorted(capsys.readouterr().out.splitlines()[:3]) == [
        f"{rank} of 3: 3.0" for rank in range(3)
    ]


def test_what_cannot_be_is_said_in_one_line(file, capsys, monkeypatch):
    def said(*words):
        assert main(list(words)) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text.removeprefix("simcoll: ").strip()

    path = file(PROGRAM)
    assert said("-n", "2", path + "x") == f"{path}x: there is no such file"
    assert said(path) == "how many ranks? Give --nproc, or a --topology to fill"
    assert (
        said("--backend", "mpy", path)
        == "unknown backend 'mpy'; did you mean 'mpi'? (valid: emulator, mpi)"
    )
    assert said("-n", "0", path).startswith("nprocs 0: expected a whole number of ranks")
    assert "did you mean 'ring'?" in said("-n", "2", "-a", "rnig", path)
    assert "has no function program(rank, world_size)" in said("-n", "2", file("x = 1\n"))
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    assert "pip install 'simcoll[mpi]'" in said("--backend", "mpi", file(PROGRAM))


def test_a_file_that_is_no_python_is_shown(file, capsys):
    assert main(["-n", "2", file("print(1\n")]) == 2
    text = capsys.readouterr().err
    assert "line 1" in text
    assert "SyntaxError" in text
    assert "Traceback" not in text


def test_where_ranks_run(monkeypatch):
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    assert [place_of(name) for name in (None, "gloo", "emulator", "mpi")] == [
        "emulator",
        "emulator",
        "emulator",
        "mpi",
    ]
    monkeypatch.setenv(BACKEND_VARIABLE, "mpi")
    assert [place_of(name) for name in (None, "gloo", "emulator")] == ["mpi", "mpi", "emulator"]
    monkeypatch.setenv(BACKEND_VARIABLE, "mpl")
    with pytest.raises(ConfigError, match="SIMCOLL_BACKEND='mpl'; did you mean 'mpi'"):
        dist.spawn(lambda *_: None, 2)


@pytest.mark.slow
@needs_mpi
def test_processes_give_the_same_digest(file, capsys):
    assert main(["-n", "2", file(PROGRAM), "word"]) == 0
    emulated = capsys.readouterr().out
    command = [
        sys.executable,
        "-m",
        "simcoll.distributed.run",
        "--backend",
        "mpi",
        "-n",
        "2",
        file(PROGRAM),
        "word",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment(), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# 2 ranks, mpi (2 processes): 1 operation, ")
    assert done.stdout.split(", at most")[1] == emulated.split(", at most")[1]
