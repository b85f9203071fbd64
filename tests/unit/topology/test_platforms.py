"""Times on topologies written as SimGrid platforms, in SMPI and here.

SimGrid 3.32 played the messages of our schedules on the very files of which the SHA-256 is below:
model CM02, calibration factors neutralised, 16 bytes more in every message
(``benchmarks/peers/platforms.py`` makes the numbers again). SMPI prints six digits.
"""

from __future__ import annotations

import hashlib

import pytest

import simcoll
from simcoll.core.protocol import Protocol
from simcoll.topology import crossbar, fat_tree, torus
from simcoll.topology.readers.graph_files import parse_simgrid, simgrid_text

SMPI = Protocol("smpi", header_bytes=16)
CASES = (
    ("all_reduce", "ring"),
    ("all_reduce", "recursive_doubling"),
    ("all_to_all", "pairwise"),
    ("broadcast", "tree"),
)
# Seconds for 1 KiB and 1 MiB, case by case.
MACHINES = {
    "crossbar": (
        lambda: crossbar(16, "12.5 GB/s", "2 us"),
        "8f630d051b634d0d323cc76cd160081d282482a21d8a292a55e1f1c1335a7690",
        (
            6.0192e-05,
            0.000217325,
            8.3328e-06,
            0.000343549,
            3.0096e-05,
            0.000108662,
            8.3328e-06,
            0.000343549,
        ),
    ),
    "torus": (
        lambda: torus((4, 4), "12.5 GB/s", "1 us"),
        "c54ce109fe0d0fbff2c709b4ec80a325c43b47f4c526e88c01f31bff724b0ecf",
        (
            6.0192e-05,
            0.000217325,
            6.3328e-06,
            0.000341549,
            3.8096e-05,
            0.000116662,
            6.3328e-06,
            0.000341549,
        ),
    ),
    "fat tree": (
        lambda: fat_tree(4, 4, "12.5 GB/s", "2 us", oversubscription=2, spine_latency="2 us"),
        "ce25099f1f27d68f16f141727d7b10f7134b3c7aff4a0a45959ca08f7fee2338",
        (
            0.000120192,
            0.000277325,
            1.24992e-05,
            0.000515324,
            6.016e-05,
            0.000191104,
            1.23328e-05,
            0.000347549,
        ),
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_written_platform_has_our_times_in_smpi(name):
    make, sha256, expected = MACHINES[name]
    platform = simgrid_text(make())
    assert hashlib.sha256(platform).hexdigest() == sha256
    machine, found = parse_simgrid(platform), []
    for kind, algorithm in CASES:
        made = simcoll.schedule(kind, algorithm, nranks=16)
        for size in (1 << 10, 1 << 20):
            plan = simcoll.bind(
                made, size // (16 if kind == "all_to_all" else 1), "uint8", protocol=SMPI
            )
            found.append(simcoll.emulate(plan, machine, data="none", bound=False).time)
    assert found == pytest.approx(expected, rel=5e-6)  # half of the last digit that SMPI prints
