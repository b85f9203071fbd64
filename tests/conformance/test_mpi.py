"""The suite on real MPI processes; skipped where mpi4py or an MPI library is missing."""

import json
import pickle
import re
import subprocess
import sys

import pytest

import realcoll
import simcoll
from realcoll.executor import checked_hosts
from simcoll.core.reference import random_inputs
from simcoll.topology import crossbar
from tests.support.conformance_cases import answers, order_faults, select, sendable
from tests.support.custom_cases import converting, rounding_inputs, shipped
from tests.support.mpi import PROGRAMS, environment, needs_mpi, run_mpi
from tests.support.mpi_program import shared

pytestmark = [needs_mpi, pytest.mark.slow]


CASES = 200


@pytest.fixture(scope="module")
def cases():
    every = select()
    return every[:: len(every) // CASES]


# Processes, the ranks of each, and which cases: where ranks share a process, one half with three
# and the other with one.
SPLITS = [
    (8, "own", slice(None)),
    (3, "shared", slice(0, None, 2)),
    (1, "shared", slice(1, None, 2)),
]


@pytest.mark.parametrize(
    ("processes", "split", "which"), SPLITS, ids=("8-own", "3-shared", "1-shared")
)
def test_turns_keep_the_order_of_the_plan(processes, split, which, cases):
    wrong = []
    for case in cases[which]:
        plan = case.plan()
        hosts = checked_hosts(
            plan, shared(case.nranks, processes) if split == "shared" else None, processes
        )
        # MPI has the lanes of every transport whose memory is the host's.
        apart = len(realcoll.LocalTransport().lanes(plan, processes)) > 1
        wrong += order_faults(case, hosts, apart=apart)
    assert wrong == []


@pytest.mark.parametrize(
    ("processes", "split", "which"), SPLITS, ids=("8-own", "3-shared", "1-shared")
)
def test_results_are_those_of_the_definition_the_emulator_and_mpi(
    processes, split, which, cases, tmp_path
):
    # The answers are found once and not by every process.
    answered, some = tmp_path / "cases", cases[which]
    answered.write_bytes(
        pickle.dumps([(case, sendable(case.plan()), answers(case)) for case in some])
    )
    done = run_mpi(processes, PROGRAMS / "mpi_program.py", split, answered)
    assert done.returncode == 0, done.stderr
    *faults, summary = done.stdout.strip().splitlines()
    assert "".join(faults) == ""
    played, wrong, vendor = (int(part.split()[0]) for part in summary.split(","))
    assert played == len(some) >= CASES // 2
    assert wrong == 0
    assert vendor > 100 or split == "shared"


def test_perf_compares_with_mpi(tmp_path):
    path = tmp_path / "out.json"
    done = run_mpi(
        4, "-m", "realcoll", "perf", "all_gather", "-b", "64", "-e", "256", "-n", "2", "-J", path
    )
    assert done.returncode == 0, done.stderr
    table = [
        line.split()
        for line in done.stdout.splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert [line[0] for line in table] == ["64", "128", "256"]
    assert all(line[8] == line[12] == "0" for line in table)
    for result in json.loads(path.read_bytes())["results"]:
        assert result["baseline"]["ratio"] == pytest.approx(
            result["baseline"]["time"] / result["out_of_place"]["time"]
        )


def test_bad_input_is_said_once():
    done = run_mpi(3, "-m", "realcoll", "perf", "all_redcue")
    assert done.returncode != 0
    assert done.stderr.count("did you mean 'all_reduce'?") == 1


def test_mpi_that_was_started_by_something_else_says_so():
    env = environment() | {"RANK": "0", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "realcoll", "perf", "all_reduce", "-t", "mpi"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=env, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"realcoll: 2 processes were started \(torchrun\), but .* knows of this one only: .*\n",
        done.stderr,
    )


def test_a_program_may_end_without_closing(tmp_path):
    (tmp_path / "open.py").write_text(
        "import realcoll\ntransport = realcoll.MpiTransport(timeout_s=20)\ntransport.barrier()\n"
    )
    done = run_mpi(3, tmp_path / "open.py")
    assert (done.returncode, done.stderr) == (0, "")


def emulated_case(name, schedule):
    """What ``mpi_custom.py`` plays and compares: every shipped custom collective, and collectives
    that convert on the way, on values that round.
    """
    plan = simcoll.bind(schedule, 1013, "float32")
    inputs = (rounding_inputs if plan.collective.kind == "custom" else random_inputs)(plan)
    result = simcoll.emulate(plan, crossbar(plan.nranks, "10 GB/s"), data=inputs)
    return name, plan, inputs, result.outputs


@pytest.mark.parametrize("processes", [3, 4, 6])
def test_custom_collectives_have_the_bits_of_the_emulator(processes, tmp_path):
    # They are emulated once and not by every process.
    schedules, path = shipped(processes) | converting(processes), tmp_path / "cases"
    path.write_bytes(pickle.dumps([emulated_case(*item) for item in schedules.items()]))
    done = run_mpi(processes, PROGRAMS / "mpi_custom.py", path)
    assert done.returncode == 0, done.stderr
    schedules, different = done.stdout.strip().split(" schedules, different: ")
    assert int(schedules) >= 13
    assert different == "[]"
