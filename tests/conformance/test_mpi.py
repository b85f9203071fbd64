"""The suite on real MPI processes; skipped where mpi4py or an MPI library is missing."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import simcoll

HERE = Path(__file__).parent
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

pytestmark = pytest.mark.skipif(
    MPIEXEC is None or find_spec("mpi4py") is None, reason="needs mpi4py and an MPI library: pip install '.[mpi]'"
)


def run_mpi(processes, *arguments):
    env = os.environ | {"PYTHONPATH": str(Path(simcoll.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [MPIEXEC, "-n", str(processes), sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=False)


@pytest.mark.parametrize(("processes", "split"), [(8, "own"), (3, "shared"), (1, "shared")])
def test_results_are_those_of_the_definition_the_emulator_and_mpi(processes, split):
    done = run_mpi(processes, HERE / "mpi_program.py", split, 200)
    assert done.returncode == 0, done.stderr
    *faults, summary = done.stdout.strip().splitlines()
    assert "".join(faults) == ""
    cases, wrong, vendor = (int(part.split()[0]) for part in summary.split(","))
    assert cases >= 200
    assert wrong == 0
    assert vendor > 100 or split == "shared"
