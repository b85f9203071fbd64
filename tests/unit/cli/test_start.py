"""What a command loads before it is needed."""

import os
import subprocess
import sys

import pytest

from tests.support.deferred import needs_torch
from tests.support.installed import PACKAGES

HEAVY = ("scipy", "networkx", "matplotlib", "numba", "torch")
HELP = (
    *HEAVY,
    "numpy",
    "msgspec",
    "simpy",
    "rich.markdown",
    "markdown_it",
    "docstring_parser",
    "urllib.request",
)
FILES = (
    "msgspec",
    "gzip",
    "simcoll.emulator.programs",
    "simcoll.emulator.traces.trace",
    "simcoll.planning.sweeps.result_files",
)
TABLE = (
    *HEAVY,
    *FILES,
    "rich.markdown",
    "markdown_it",
    "urllib.request",
    "simcoll.formats.schedules.msccl_writer",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "waiting"),
    [
        pytest.param("import simcoll.cli", HELP, id="a completion"),
        pytest.param("from simcoll.cli import main; main(['--version'])", HELP, id="the version"),
        pytest.param("from simcoll.cli import main; main(['--help'])", HELP[:-2], id="the help"),
        pytest.param(
            "from simcoll.cli import main; main('perf all_reduce -t dgx-h100 -e 1K -a ring -p "
            "ideal'.split())",
            TABLE,
            id="a small table",
        ),
        pytest.param(
            "import realcoll", (*HEAVY, "simpy", "simcoll.emulator"), id="a process of a job"
        ),
        pytest.param(
            "from simcoll.topology import crossbar; crossbar(4, '50 GB/s')",
            (*HEAVY, "simpy", "simcoll.topology.files"),
            id="a topology",
        ),
        pytest.param(
            "from simcoll.emulator import emulate",
            (*HEAVY, "simpy", "importlib.metadata", "simcoll.topology.files"),
            id="the emulator",
        ),
        pytest.param(
            "import simcoll.torch",
            ("simcoll.libraries.choices", "torch.distributed.fsdp", "torch.distributed.tensor"),
            id="the backend of PyTorch",
            marks=[needs_torch, pytest.mark.slow],
        ),
    ],
)
def test_heavy_packages_wait(code, waiting):
    told = (
        f"import sys\n{code}\nprint('loaded', *(name for name in {waiting!r} if name in "
        "sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "loaded"
