"""The same run in two processes with different hash seeds leaves the same trace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.installed import PACKAGES

PROGRAM = """
import simcoll

from simcoll.emulator.run import emulate
from simcoll.topology.families import crossbar, fat_tree

for kind, name, n, extra in (
    ("all_reduce", "ring", 8, {"channels": 2}), ("all_to_all", "direct", 8, {}), ("all_reduce", "hierarchical", 8,
    {"box": 4}), ("all_reduce", "rabenseifner", 7, {}), ("broadcast", "tree", 8, {"pieces": 3}), ("barrier",
    "dissemination", 5, {}), ):
    for topology in (fat_tree(2, 4, "12.5 GB/s", "2 us", oversubscription=4), crossbar(8, "7 GB/s", "1 us")):
        for protocol in ("ideal", "LL128"):
            schedule = simcoll.schedule(kind, name, nranks=n, **extra)
            result = emulate(simcoll.bind(schedule, 1001 if kind != "barrier" else 0, "int32", protocol=protocol), topology)
            print(schedule.content_hash(), result.trace_hash, result.time_fs, result.wrong)
"""


def run(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(PACKAGES)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_two_processes_agree():
    first, second = run("0"), run("1")
    assert first == second
    assert len(first) == 24
    assert len({line.split()[1] for line in first}) == 24
    assert {line.split()[3] for line in first} == {"0"}
