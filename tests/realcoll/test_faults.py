"""A rank that dies, does not come, stalls, or brings something else: every other rank names it, and nothing is left."""

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import simcoll

HERE = Path(__file__).parent
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
N, VICTIM = 4, 2

pytestmark = pytest.mark.skipif(
    MPIEXEC is None or find_spec("mpi4py") is None, reason="needs mpi4py and an MPI library: pip install '.[mpi]'"
)


def alive(pid):
    """Whether a process runs; one that has ended and is not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def play(case, folder, *options):
    env = os.environ | {"PYTHONPATH": str(Path(simcoll.__file__).parents[1])}
    command = [MPIEXEC, *options, "-n", str(N), sys.executable, str(HERE / "fault_program.py"), case, str(folder)]
    subprocess.run(command, capture_output=True, timeout=60, env=env, check=False)
    limit = time.monotonic() + 30
    left = [int(path.stem) for path in folder.glob("*.pid")]
    while any(map(alive, left)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert [pid for pid in left if alive(pid)] == []
    return {int(path.name): path.read_text() for path in folder.iterdir() if not path.suffix}


def test_without_a_fault_there_is_no_error(tmp_path):
    assert play("none", tmp_path) == dict.fromkeys(range(N), "[] no error")


# MPICH's launcher ends every process as soon as it sees that one was killed; told not to, it mostly lets the others speak.
KEEP = "-disable-auto-cleanup"


@pytest.mark.parametrize(
    ("case", "said", "options"),
    [
        ("size", "ranks disagree on the count: ranks 0, 1, 3: 1000; rank 2: 1001", ()),
        ("dtype", "ranks disagree on the dtype: ranks 0, 1, 3: float32; rank 2: float64", ()),
        ("op", "ranks disagree on the op: ranks 0, 1, 3: sum; rank 2: max", ()),
        ("algorithm", "ranks disagree on the algorithm", ()),
        ("absent", "rank 2 did not come within 3 s", ()),
        ("sleeps", "rank 2 did not take part within 3 s", (KEEP,)),
        ("raises", "rank 2", (KEEP,)),
    ],
)
def test_every_other_rank_names_the_one_at_fault(case, said, options, tmp_path):
    told = play(case, tmp_path, *options)
    assert {0, 1, 3} <= set(told)
    for rank in (0, 1, 3):
        assert told[rank].startswith("[2] ")
        assert said in told[rank]


@pytest.mark.parametrize("case", ["killed before", "killed"])
def test_a_killed_rank_is_named_by_whoever_the_launcher_lets_speak(case, tmp_path):
    told = play(case, tmp_path, KEEP)
    assert set(told) <= {0, 1, 3}
    for said in told.values():
        assert said.startswith("[2] ")
        assert "rank 2 died" in said
