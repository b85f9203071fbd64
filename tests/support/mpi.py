"""Starting real MPI processes; tests that need them are skipped where mpi4py or an MPI library is
missing.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import simcoll

PROGRAMS = Path(__file__).parent
MPIEXEC = shutil.which(
    "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
)

needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or find_spec("mpi4py") is None,
    reason="needs mpi4py and an MPI library: pip install '.[mpi]'",
)


def environment():
    """With this simcoll, and one thread a process."""
    folders = (Path(simcoll.__file__).parents[1], Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}


def run_mpi(processes, *arguments):
    command = [MPIEXEC, "-n", str(processes), sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment(), check=False
    )
