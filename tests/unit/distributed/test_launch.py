"""The launcher: environments as torchrun gives them, real processes, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import simcoll
from simcoll.distributed.launch import ProcessJob, launch, main
from simcoll.distributed.start.processes import Worker, run_workers, worker_environment
from simcoll.errors import ConfigError

LAUNCHER = [sys.executable, "-m", "simcoll.distributed.launch"]
REPORT = """
import json, os, sys
variables = {name: os.environ.get(name) for name in sys.argv[1].split(",")}
with open(f"{sys.argv[2]}/{os.environ['RANK']}", "w") as file:
    json.dump([variables, sys.argv[3:]], file)
"""
NAMES = "RANK,LOCAL_RANK,WORLD_SIZE,LOCAL_WORLD_SIZE,GROUP_RANK,MASTER_ADDR,MASTER_PORT,OMP_NUM_THREADS,SIMCOLL_SECRET"


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write


def reports(folder, ranks):
    return [json.loads((folder / str(rank)).read_text()) for rank in ranks]


def test_the_environment_of_a_worker():
    # The variables torchrun documents.
    variables = worker_environment(ProcessJob(3, 2, 1, "node0", 1234, "job"), 2)
    assert variables == {
        "RANK": "5",
        "LOCAL_RANK": "2",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def test_every_rank_once_over_all_machines():
    """LA-02: LOCAL_RANK is unique on one machine only."""
    ranks = [
        (int(v["RANK"]), int(v["LOCAL_RANK"]))
        for node in range(3)
        for v in (worker_environment(ProcessJob(2, 3, node), local) for local in range(2))
    ]
    assert ranks == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (5, 1)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node must be 1 or more, got 0"),
        ({"nnodes": -1}, "nnodes must be 1 or more"),
        ({"node_rank": 1}, "node_rank must be 0 to 0"),
        ({"master_port": 65_536}, "master_port must be 1 to 65535"),
        ({"master_port": 0, "nnodes": 2}, "could not know the port"),
    ],
)
def test_jobs_that_cannot_be(wrong, message):
    with pytest.raises(ConfigError, match=message):
        ProcessJob(**wrong)


@pytest.mark.slow
def test_workers_get_their_variables_and_arguments(program, tmp_path, monkeypatch):
    """LA-01: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("SIMCOLL_SECRET", raising=False)
    script = program(REPORT)
    job = ProcessJob(nproc_per_node=3, master_port=1234)
    assert launch([sys.executable, script], [NAMES, str(tmp_path), "--its", "own"], job) == 0
    found = reports(tmp_path, range(3))
    assert [arguments for _, arguments in found] == [["--its", "own"]] * 3
    secrets = {variables.pop("SIMCOLL_SECRET") for variables, _ in found}
    assert len(secrets) == 1
    assert len(secrets.pop()) == 64
    assert [variables for variables, _ in found] == [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1234",
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(3)
    ]


@pytest.mark.slow
def test_what_is_set_is_left_alone(program, tmp_path):
    script = program(REPORT)
    mine = os.environ | {"OMP_NUM_THREADS": "7", "SIMCOLL_SECRET": "mine", "RANK": "99"}
    assert (
        launch([sys.executable, script], [NAMES, str(tmp_path)], ProcessJob(2), environment=mine)
        == 0
    )
    for rank, (variables, _) in enumerate(reports(tmp_path, range(2))):
        assert variables["OMP_NUM_THREADS"] == "7"
        assert variables["SIMCOLL_SECRET"] == "mine"
        assert variables["RANK"] == str(rank)


def test_machines_of_a_larger_job_share_no_secret_by_chance(program, tmp_path, monkeypatch):
    monkeypatch.delenv("SIMCOLL_SECRET", raising=False)
    script = program(REPORT)
    assert launch([sys.executable, script], [NAMES, str(tmp_path)], ProcessJob(1, 2, 1)) == 0
    ((variables, _),) = reports(tmp_path, [1])
    assert variables["SIMCOLL_SECRET"] is None
    assert variables["RANK"] == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "first"),
    [
        (["--nproc-per-node", "2"], "--local-rank=1"),
        (["--nproc_per_node=2", "--use-env"], None),
        (["--nproc-per-node=2", "--use_env"], None),
    ],
)
def test_the_command_line(options, first, program, tmp_path):
    """LA-01 SIG-30: --local-rank comes first among the program's arguments, unless --use-env."""
    script = program(
        REPORT.replace("sys.argv[1]", "sys.argv[-2]")
        .replace("sys.argv[2]", "sys.argv[-1]")
        .replace("[3:]", "[1:-2]")
    )
    assert main([*options, script, "--epochs", "3", NAMES, str(tmp_path)]) == 0
    own = [] if first is None else [first]
    assert reports(tmp_path, [1])[0][1] == [*own, "--epochs", "3"]


@pytest.mark.slow
def test_modules_and_other_programs(tmp_path, capfd):
    assert main(["--use-env", "-m", "json.tool", "--help"]) == 0
    assert "json" in capfd.readouterr().out
    assert (
        main(
            [
                "--no-python",
                "--nproc-per-node",
                "2",
                "sh",
                "-c",
                f"echo $RANK > {tmp_path}/$LOCAL_RANK",
            ]
        )
        == 0
    )
    assert [(tmp_path / str(rank)).read_text().strip() for rank in range(2)] == ["0", "1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nproc-per-node", "0", "x.py"], "nproc_per_node must be 1 or more"),
        (["--nproc-per-node", "two", "x.py"], 'unable to convert "two" into int'),
        (["--nnodes", "2", "--standalone", "x.py"], "for one machine"),
        (["--nnodes", "2", "--master-port", "0", "x.py"], "could not know the port"),
        (["-m", "--no-python", "x"], "exclude each other"),
        (["--no-python", "/no/such/program"], "cannot start '/no/such/program': No such file"),
        (["--nproc-per-nod", "2", "x.py"], "--nproc-per-nod"),
        ([], "PROGRAM requires an argument"),
    ],
)
def test_wrong_command_lines(options, message, capsys):
    assert main(options) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


MEET = """
import sys
from simcoll.distributed.stores.rendezvous import rendezvous
found = rendezvous("env://")
found.store.add("sum", found.rank + 1)
found.store.set(f"here {found.rank}", "")
found.store.wait([f"here {rank}" for rank in range(found.world_size)])
total = found.store.get("sum")
found.store.add("done", 1)
while found.rank == 0 and found.store.add("done", 0) < found.world_size:
    pass
sys.exit(0 if total == b"10" else 3)
"""


@pytest.mark.slow
def test_launched_ranks_meet_by_the_environment(program, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(simcoll.__file__).parents[1]))
    assert main(["--standalone", "--nproc-per-node", "4", program(MEET)]) == 0


FAIL = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    how = sys.argv[-1]
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
    sys.exit(int(how))
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("7", 7, "exited with status 7; "),
        ("SIGKILL", 137, "was killed by SIGKILL; "),
        ("SIGBUS", 135, "was killed by SIGBUS (is /dev/shm full?); "),
    ],
)
def test_one_failure_ends_all(how, status, said, program, capfd):
    assert main(["--nproc-per-node", "3", program(FAIL), how]) == status
    said_by_launcher = capfd.readouterr().err
    assert "rank 1 (local rank 1, process" in said_by_launcher
    assert said in said_by_launcher


@pytest.mark.slow
def test_a_signal_to_the_launcher_ends_the_workers(program, tmp_path):
    script = program(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "with open(f'{sys.argv[-1]}/{os.environ[\"RANK\"]}.new', 'w') as file:\n"
        "    file.write(f'{os.getpid()} {child.pid}')\n"
        "os.rename(file.name, file.name.removesuffix('.new'))\n"
        "time.sleep(600)\n"
    )
    launcher = subprocess.Popen([*LAUNCHER, "--nproc-per-node", "2", script, str(tmp_path)])
    while not all((tmp_path / str(rank)).exists() for rank in range(2)):
        assert launcher.poll() is None
        time.sleep(0.01)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM
    for rank in range(2):
        for pid in (tmp_path / str(rank)).read_text().split():
            assert not running(int(pid))


def interrupted_at(moment_s, poll_s):
    """The status and messages of a launcher of sleeping workers that gets SIGINT at some moment of
    its waiting.
    """
    script = (
        "import signal, sys, time\n"
        "from simcoll.distributed.start import processes\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"processes._POLL_S = {poll_s}\n"
        "signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))\n"
        "def workers():\n"
        f"    signal.setitimer(signal.ITIMER_REAL, {moment_s})\n"
        "    for _ in range(8):\n"
        "        yield processes.Worker(['sleep', '600'], {'RANK': '0', 'LOCAL_RANK': '0', 'PATH': "
        "'/bin:/usr/bin'})\n"
        "sys.exit(processes.run_workers(workers()))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("moment_s", [0.001, 0.05, 0.1, 0.2, 0.3, 0.4])
def test_an_interrupt_at_any_moment_ends_the_launcher(moment_s):
    """Also in the middle of asking how its workers are, which is all this one does."""
    done = interrupted_at(moment_s, poll_s=0)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_a_second_signal_kills_workers_that_will_not_end(tmp_path):
    script = "trap '' TERM; echo > $0/$RANK; while :; do sleep 1; done"
    signals = []

    def attend(seconds):
        time.sleep(seconds)
        if all((tmp_path / str(rank)).exists() for rank in range(2)) and len(signals) < 2:
            signals.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    workers = [
        Worker(
            ["sh", "-c", script, str(tmp_path)], os.environ | {"RANK": str(rank), "LOCAL_RANK": "0"}
        )
        for rank in range(2)
    ]
    assert run_workers(workers, terminate_s=600, attend=attend) == 130
    assert len(signals) == 2


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_worker(program, tmp_path):
    script = program(
        "import os, sys, time\nopen(f'{sys.argv[-1]}/{os.getpid()}.pid', 'w').close()\n"
        "time.sleep(600)\n"
    )
    launcher = subprocess.Popen([*LAUNCHER, "--nproc-per-node", "2", script, str(tmp_path)])
    while len(list(tmp_path.glob("*.pid"))) < 2:
        assert launcher.poll() is None
        time.sleep(0.01)
    launcher.kill()
    launcher.wait()
    for path in tmp_path.glob("*.pid"):
        assert not running(int(path.stem))


def test_a_failure_ends_what_its_rank_has_started(program, tmp_path):
    script = program(
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sh', '-c', 'trap \"\" TERM; sleep 600 & wait; sleep 600'])\n"
        "open(sys.argv[-1], 'w').write(str(child.pid))\n"
        "sys.exit(5)\n"
    )
    assert main([script, str(tmp_path / "pid")]) == 5
    assert not running(int((tmp_path / "pid").read_text()))


def running(pid):
    """Whether a process still runs, after the time that a busy machine may need to end it."""
    for _ in range(2000):
        try:
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return False
        except FileNotFoundError:
            return False
        time.sleep(0.01)
    return True
