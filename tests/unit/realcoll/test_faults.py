"""A rank that dies, does not come, stalls, or brings something else: every other rank names it, and
nothing is left.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from realcoll.meeting.control import Control
from realcoll.meeting.meeting_messages import DIED, Met
from realcoll.process_errors import FaultError
from tests.support.mpi import MPIEXEC, PROGRAMS, environment, needs_mpi

N, OTHERS = 3, (0, 2)  # one before the rank at fault and one after it
MEMORY = Path("/dev/shm")

pytestmark = needs_mpi


def alive(pid):
    """Whether a process runs; one that has ended and is not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def mapped():
    """Files in shared memory that some process uses: those of other tests may come and go."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            found |= {
                line.split()[-1] for line in maps.read_text().splitlines() if str(MEMORY) in line
            }
        except OSError:
            continue
    return found


def stale():
    """Shared memory with a name that nobody uses any more."""
    names = {str(path) for path in MEMORY.glob("mpich_*")}
    return names - mapped()


def doors():
    """Numbers of the sockets of this machine that listen: over TCP, or under a name of ours."""
    tcp, local = (
        Path(f"/proc/net/{kind}").read_text().splitlines()[1:] for kind in ("tcp", "unix")
    )
    return {line.split()[9] for line in tcp if line.split()[3] == "0A"} | {
        line.split()[6] for line in local if "realcoll" in line
    }


def begin(launcher, script, *arguments):
    """Start a job; returns it and what was lying around before."""
    starts = {"mpiexec": [MPIEXEC, "-n", str(N), sys.executable]}
    command = starts.get(launcher) or [sys.executable, "-m", "realcoll", "launch", "-n", str(N)]
    before = stale()
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(
        [*command, *script, *map(str, arguments)], env=environment(), **pipes
    ), before


def nothing_is_left(folder, before):
    limit = time.monotonic() + 120
    pids = [int(path.stem) for path in folder.glob("*.pid")]
    assert pids
    own = {name for path in folder.glob("*.sockets") for name in path.read_text().split()}
    while time.monotonic() < limit:
        left = ([pid for pid in pids if alive(pid)], stale() - before, doors() & own)
        if not any(left):
            return
        time.sleep(0.1)
    assert left == ([], set(), set())


def play(case, folder, launcher):
    job, before = begin(launcher, [str(PROGRAMS / "fault_program.py")], case, folder)
    status = job.wait(timeout=300)
    nothing_is_left(folder, before)
    assert (status == 0) == (case == "none")
    return {int(path.name): path.read_text() for path in folder.iterdir() if not path.suffix}


@pytest.mark.slow
def test_without_a_fault_there_is_no_error(tmp_path):
    assert play("none", tmp_path, "realcoll") == dict.fromkeys(range(N), "[] no error")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("dtype", "ranks disagree on the dtype: ranks 0, 2: float32; rank 1: float64"),
        ("absent from the start", "start of MPI: rank 1 did not come within 15 s"),
        ("sleeps", "rank 1 did not take part within 5 s"),
        ("raises", "rank 1"),
        ("killed before", "rank 1 died"),
        ("killed", "rank 1 died"),
    ],
)
def test_every_other_rank_names_the_one_at_fault(case, said, tmp_path):
    told = play(case, tmp_path, "realcoll")
    assert set(OTHERS) <= set(told)
    for rank in OTHERS:
        assert told[rank].startswith("[1] ")
        assert said in told[rank]


def test_who_gave_up_because_of_a_death_is_not_to_blame():
    """News of the death and of the other's end may both come before this rank arrives."""
    control = Control(2, 3, 5.0)
    control.gone = {1: DIED, 0: "gave up: start: rank 1 died"}
    assert control._blame("start", [0]).ranks == (1,)
    control.gone = {1: "", 0: "gave up: closed"}
    assert control._blame("start", [0]).ranks == (0,)


def test_who_comes_after_the_others_gave_up_because_of_a_death_is_not_to_blame(monkeypatch):
    control = Control(0, 3, 5.0)
    control.gone = {1: DIED, 2: "gave up: start: rank 1 died"}
    late = Met("start", {}, (0, 1), late=True, gone=control.gone)
    monkeypatch.setattr(control, "meet", lambda *_: late)
    with pytest.raises(FaultError, match="start: rank 1 died") as error:
        control.gather("start")
    assert error.value.ranks == (1,)
    monkeypatch.setattr(control, "meet", lambda *_: Met("start", {}, (0,), late=True))
    with pytest.raises(FaultError, match="this rank arrived after the others") as error:
        control.gather("start")
    assert error.value.ranks == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["size", "absent", "killed", "killed while MPI starts"])
def test_under_mpiexec_nothing_is_left_and_whoever_may_speak_names_the_rank(case, tmp_path):
    # MPICH's launcher kills every process as soon as one is killed; errors come in time.
    told = play(case, tmp_path, "mpiexec")
    assert all(said.startswith("[1] ") for said in told.values())
    if case in ("size", "absent"):
        assert set(OTHERS) <= set(told)
        said = {
            "size": "the count: ranks 0, 2: 1000; rank 1: 1001",
            "absent": "rank 1 did not come within 5 s",
        }[case]
        assert all(said in told[rank] for rank in OTHERS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "number"),
    [("mpiexec", signal.SIGKILL), ("realcoll", signal.SIGINT), ("realcoll", signal.SIGKILL)],
)
def test_a_launcher_that_is_stopped_or_killed_leaves_nothing(launcher, number, tmp_path):
    job, before = begin(launcher, [str(PROGRAMS / "fault_program.py")], "busy", tmp_path)
    # Processes that start MPI take long on a loaded machine. Once they run, a launcher ends in
    # seconds or hangs.
    limit = time.monotonic() + 240
    while len(list(tmp_path.glob("*.sockets"))) < N:
        assert time.monotonic() < limit
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(number)
    assert job.wait(timeout=300) != 0
    nothing_is_left(tmp_path, before)
