"""What a command loads before it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = ("scipy", "networkx", "matplotlib", "numba", "torch")


@pytest.mark.parametrize(
    "code", ["import simcoll.cli", "from simcoll.topology import crossbar; crossbar(4, '50 GB/s')"]
)
def test_heavy_packages_wait(code):
    told = f"{code}; import sys; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == []
