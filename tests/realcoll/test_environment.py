"""Variables of launchers, and our own."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import simcoll
from realcoll.environment import job_from
from realcoll.launch import launch
from simcoll.errors import ConfigError

ENV = os.environ | {"PYTHONPATH": str(Path(simcoll.__file__).parents[1])}


@pytest.mark.parametrize(
    ("variables", "launcher", "process", "size", "local"),
    [
        ({}, "", 0, 1, 0),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "torchrun", 5, 8, 1),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            "Open MPI",
            2,
            4,
            0,
        ),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, "MPICH", 3, 4, 1),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3", "SLURM_NNODES": "1"}, "Slurm", 3, 4, 3),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun", 0, 2, 0),
    ],
)
def test_launchers(variables, launcher, process, size, local):
    job = job_from(variables)
    assert (job.launcher, job.process, job.size, job.local) == (launcher, process, size, local)
    assert job.address == ("127.0.0.1", 29533)


def test_address_and_token():
    two = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "4000"}
    assert job_from(two).address == ("node1", 4000)
    assert job_from(two | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).address == ("node1", 4001)
    assert job_from(two | {"REALCOLL_TOKEN": "x"}).token == "x"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "two", "WORLD_SIZE": "2"}, "RANK='two': expected a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"rank 2 of 2; expected 0\.\.1"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}, "set MASTER_ADDR"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
    ],
)
def test_nonsense_is_refused(variables, said):
    with pytest.raises(ConfigError, match=said):
        job_from(variables)


def launched(tmp_path, script, *arguments, timeout=60):
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "realcoll", "launch", "-n", "3", str(tmp_path / "script.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=timeout, check=False)


def test_launch_gives_each_process_its_rank_and_lets_them_meet(tmp_path):
    done = launched(
        tmp_path,
        """
        import os, sys
        from realcoll.environment import control_of, job_from
        job = job_from(os.environ)
        control = control_of(job, 20.0)
        found = control.gather("hello", bytes([job.process]))
        os.write(1, f"{job.process} {sorted(found)} {sys.argv[1:]}\\n".encode())
        control.close()
        """,
        "-n",
        "7",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} [0, 1, 2] ['-n', '7']" for rank in range(3)]


def test_when_one_fails_the_others_are_ended(tmp_path):
    done = launched(
        tmp_path,
        """
        import os, sys, time
        rank = int(os.environ["RANK"])
        open(f"{sys.argv[1]}/{os.getpid()}.pid", "w").close()
        if rank == 1:
            time.sleep(0.5)
            sys.exit(7)
        time.sleep(600)
        """,
        str(tmp_path),
    )
    assert done.returncode == 7
    assert "rank 1 ended with status 7" in done.stderr
    limit = time.monotonic() + 10
    left = [path.stem for path in tmp_path.glob("*.pid")]
    while any(Path(f"/proc/{pid}").exists() for pid in left) and time.monotonic() < limit:
        time.sleep(0.05)
    assert [pid for pid in left if Path(f"/proc/{pid}").exists()] == []
    assert len(left) == 3


@pytest.mark.parametrize(("processes", "command"), [(0, ["x.py"]), (5000, ["x.py"]), (2, [])])
def test_launch_refuses_nonsense(processes, command):
    with pytest.raises(ConfigError):
        launch(processes, command)
