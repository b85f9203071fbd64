"""Variables of launchers, and our own."""

import os
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

import simcoll
from realcoll.process_errors import FaultError
from realcoll.start.job_environment import LaunchedJob, control_of, job_from, listening_at
from realcoll.start.local_launch import launch
from realcoll.start.mpi_start import job_of
from realcoll.start.pmi import Board, job_name
from simcoll.errors import ConfigError

ENV = os.environ | {"PYTHONPATH": str(Path(simcoll.__file__).parents[1])}


@pytest.mark.parametrize(
    ("variables", "launcher", "process", "size", "local"),
    [
        ({}, "", 0, 1, 0),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "torchrun", 5, 8, 1),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            },
            "Open MPI",
            2,
            4,
            0,
        ),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, "MPICH", 3, 4, 1),
        (
            {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3", "SLURM_NNODES": "1"},
            "Slurm",
            3,
            4,
            3,
        ),
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
    assert job_from(two | {"SIMCOLL_SECRET": "x"}).token == "x"


def test_what_others_can_list_is_no_secret():
    job = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "none",
        "SLURM_JOB_ID": "1234",
        "MASTER_ADDR": "node1",
    }
    assert job_from(job).token == ""


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"},
    ],
)
def test_processes_of_one_machine_meet_on_loopback(variables):
    assert job_from(variables | {"MASTER_ADDR": "node1", "MASTER_PORT": "4000"}).address == (
        "127.0.0.1",
        4000,
    )


def test_without_a_secret_no_other_machine_is_served():
    # Of another machine: it would listen everywhere.
    job = LaunchedJob("torchrun", 0, 2, 0, ("192.0.2.1", 0))
    with pytest.raises(
        ConfigError,
        match=r"without a secret only this machine is served, and others can reach 0\.0\.0\.0",
    ):
        control_of(job, 5)


def test_the_file_of_a_meeting_is_of_this_user_alone(tmp_path):
    place = tmp_path / "meet"
    place.touch(mode=0o644)
    with pytest.raises(ConfigError, match="others may read or replace it"):
        control_of(LaunchedJob("torchrun", 0, 2, 0, (f"file://{place}", 0)), 5)


def test_the_rendezvous_listens_at_the_address_asked_for_and_no_other():
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    jobs = [LaunchedJob("torchrun", process, 2, 0, ("127.0.0.2", port)) for process in range(2)]
    with ThreadPoolExecutor(2) as pool:
        controls = list(pool.map(lambda job: control_of(job, 20), jobs))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    for control in reversed(controls):
        control.close()


def test_a_name_of_another_machine_or_of_loopback_only_here_listens_everywhere(monkeypatch):
    assert listening_at("192.0.2.1") == "0.0.0.0"
    # As Debian names a machine in its /etc/hosts.
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    assert listening_at("node7") == "0.0.0.0"
    assert listening_at("localhost") == "127.0.1.1"


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


MEET = """
    import os, sys
    from realcoll.start.job_environment import LaunchedJob, control_of, job_from, listening_at
    job = job_from(os.environ)
    control = control_of(job, 20.0)
    found = control.gather("hello", bytes([job.process]))
    os.write(1, f"{job.process} {sorted(found)} {sys.argv[1:]}\\n".encode())
    control.close()
"""


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "749010945"}


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, ("749010945", 1, 4)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, None),  # more than one machine
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4", "PMI_FD": "9999"}, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),
    ],
)
def test_a_job_on_one_machine_has_a_name(variables, job):
    assert job_of(variables) == job


def launched(tmp_path, script, *arguments, launcher=("realcoll", "launch", "-n", "3"), timeout=300):
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", *launcher, str(tmp_path / "script.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=ENV, timeout=timeout, check=False
    )


@pytest.mark.slow
def test_launch_gives_each_process_its_rank_and_lets_them_meet(tmp_path):
    done = launched(tmp_path, MEET, "-n", "7")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"{rank} [0, 1, 2] ['-n', '7']" for rank in range(3)
    ]


@pytest.mark.slow
def test_processes_meet_through_a_file(tmp_path):
    path = tmp_path / "meet"
    jobs = [
        job_from({"RANK": str(i), "WORLD_SIZE": "3", "MASTER_ADDR": f"file://{path}"})
        for i in range(3)
    ]
    with ThreadPoolExecutor(3) as pool:
        controls = list(pool.map(lambda job: control_of(job, 20.0), jobs))
        found = list(
            pool.map(lambda control: control.gather("hello", bytes([control.process])), controls)
        )
    assert found == [{0: b"\0", 1: b"\1", 2: b"\2"}] * 3
    assert not path.exists()
    for control in reversed(controls):
        control.close()
    with pytest.raises(FaultError, match=r"rank 0 has not written its address to .*/meet"):
        control_of(jobs[1], 0.2)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_under_torchrun_processes_meet(tmp_path):
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = launched(tmp_path, MEET, launcher=launcher, timeout=240)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 [0, 1] []", "1 [0, 1] []"]


@pytest.mark.slow
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
    assert "rank 1 (local rank 1, process" in done.stderr
    assert "exited with status 7" in done.stderr
    limit = time.monotonic() + 120
    left = [path.stem for path in tmp_path.glob("*.pid")]
    while any(Path(f"/proc/{pid}").exists() for pid in left) and time.monotonic() < limit:
        time.sleep(0.05)
    assert [pid for pid in left if Path(f"/proc/{pid}").exists()] == []
    assert len(left) == 3


def test_the_process_manager_answers_in_pmi():
    board, said = Board(2), []
    ends = [board.seat(process) for process in range(2)]
    assert [variables["PMI_RANK"] for _, variables in ends] == ["0", "1"]

    def ask(process, *lines):
        for line in lines:
            ends[process][0].sendall(f"cmd={line}\n".encode())
        for _ in lines:
            board.serve(1.0)

    def heard(process):
        ends[process][0].settimeout(5.0)
        said.append(ends[process][0].recv(4096).decode())
        return said[-1]

    ask(0, "put kvsname=x key=port value=tcp a=b c")
    assert heard(0) == "cmd=put_result rc=0 msg=success\n"
    ask(0, "barrier_in")
    ask(1, "barrier_in")
    assert heard(0) == heard(1) == "cmd=barrier_out rc=0\n"
    ask(1, "get kvsname=x key=port")
    assert heard(1) == "cmd=get_result rc=0 msg=True value=tcp a=b c\n"
    ask(1, "get kvsname=x key=no")
    assert "rc=-1" in heard(1)
    ask(1, "spawn what")
    assert heard(1) == "cmd=spawn_result rc=-1 msg=unknown_command\n"
    with ThreadPoolExecutor(1) as pool:
        name = pool.submit(job_name, ends[0][0])
        board.serve(5.0)
        board.serve(5.0)
        assert name.result().startswith("realcoll_")
    for end, _ in ends:
        end.close()
    board.close()


@pytest.mark.parametrize(("processes", "command"), [(0, ["x.py"]), (5000, ["x.py"]), (2, [])])
def test_launch_refuses_nonsense(processes, command):
    with pytest.raises(ConfigError):
        launch(processes, command)
