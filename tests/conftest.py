"""Options and marks of the whole suite."""

from __future__ import annotations

import faulthandler
import gc
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

COMPILING = pytest.StashKey[subprocess.Popen[bytes]]()
STDERR = pytest.StashKey[int]()
"""The standard error of the process, which tests do not capture."""
WATCHED_S = pytest.StashKey[float]()
"""When the watch for a test that hangs was last begun."""
HANGS_S = 600

# What other runs predicted is not what the code of now predicts.
os.environ["SIMCOLL_CACHE_DIR"] = ""
# Thousands of processes are started, and none needs NumPy's threads, which take a tenth of a second
# each time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Every worker and every process would compile all of simcoll, and pytest rewrite all tests, again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# All that collection makes stays: to search it for garbage again and again took a sixth of the
# time.
gc.disable()
# A loaded machine is slow, not wrong.
settings.register_profile(
    "simcoll", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("simcoll")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless",
        action="store_true",
        help="rewrite the golden times of the scenarios; review the diff",
    )


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """One worker more than pytest-xdist would start: some slow tests wait, for time-outs and for
    processes. The quick ones compute, and a worker collects for five seconds.
    """
    cores = yield
    waits = config.option.markexpr != "quick" and "PYTEST_XDIST_AUTO_NUM_WORKERS" not in os.environ
    return cores + 1 if waits else cores


def pytest_configure(config: pytest.Config) -> None:
    """Begin to compile the engine, once and not in every worker, while these collect."""
    config.stash[STDERR] = os.dup(2)
    # The whole suite has workers, and needs the engine; a part may not.
    if (
        getattr(config.option, "tx", None)
        and config.args_source is pytest.Config.ArgsSource.TESTPATHS
    ):
        command = [sys.executable, Path(__file__).parent / "support" / "compiling.py"]
        config.stash[COMPILING] = subprocess.Popen(command, stderr=subprocess.DEVNULL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    """Let the tests wait for the compiled engine."""
    if COMPILING in node.config.stash:
        node.config.stash[COMPILING].wait()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not slow as quick, for ``pytest -m quick``."""
    # Those with PyTorch first, and so in one worker and never at the end, where all share what is
    # left: importing it takes seconds.
    items.sort(
        key=lambda item: (
            "torch" not in item.nodeid and "torch" not in getattr(item, "fixturenames", ())
        )
    )
    for item in items:
        if item.get_closest_marker("slow") is None:
            item.add_marker("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """From here on garbage is looked for, less often and not among modules and tests."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that hangs prints where. pytest's ``faulthandler_timeout`` starts and joins a thread
    for every test, which costs a third of a millisecond each: once a minute is enough.
    """
    stash, now = item.config.stash, time.monotonic()
    if now > stash.get(WATCHED_S, -HANGS_S) + 60:
        faulthandler.dump_traceback_later(HANGS_S, file=stash[STDERR])
        stash[WATCHED_S] = now


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the watch."""
    faulthandler.cancel_dump_traceback_later()
    if STDERR in config.stash:
        os.close(config.stash[STDERR])
