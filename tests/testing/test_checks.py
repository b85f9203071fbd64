"""assert_implements and the pytest plugin: what they accept, and what a person reads when they do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import simcoll
from simcoll.schedule import REDUCE, Layout, Schedule, transfers
from simcoll.testing import assert_implements, plugin
from simcoll.testing.checks import checked_run, default_counts
from simcoll.topology import torus

emulator = plugin.emulator  # as the entry point gives it where simcoll is installed
ROOT = Path(__file__).parents[2]


def my_all_reduce(n):
    """Everyone sends everything to rank 0, which sends the sum back."""
    layout = Layout(simcoll.Collective("all_reduce", n))
    others = np.arange(1, n)
    steps = [
        transfers(np.arange(n), 0, np.arange(n), 1),
        *(transfers(rank, 1, 0, 1, op=REDUCE) for rank in others),
        transfers(0, 1, others, 1),
    ]
    return Schedule("mine", layout, lambda: iter(steps))


def test_what_is_right_passes():
    assert_implements(my_all_reduce(3))
    assert_implements(
        my_all_reduce(4), counts=[7], dtypes=["float64"], op="max", topology=torus([2, 2], "10 GB/s", "1 us")
    )
    assert_implements(simcoll.schedule("barrier", "dissemination", nranks=3))


def test_default_counts_are_awkward():
    assert default_counts(my_all_reduce(4)) == (0, 1, 3, 5)  # none, one, n - 1, n + 1; its one chunk adds 3
    pieces = simcoll.schedule("all_reduce", "ring", nranks=3)
    assert default_counts(pieces) == (0, 1, 2, 4, 3, 7)
    even = Schedule("imported", pieces.layout, pieces.source, divisible=True)
    assert default_counts(even) == (0, 3, 9)


def broken(n):
    good = my_all_reduce(n)
    steps = list(good.steps())[:-1]
    return Schedule("broken", good.layout, lambda: iter(steps))


def test_what_is_wrong_fails_with_the_message_of_the_verifier():
    with pytest.raises(AssertionError) as error:
        assert_implements(broken(3))
    text = str(error.value)
    assert text.startswith(
        "broken all_reduce n=3: rank 1 output chunk 0 is wrong at the end (2 wrong output chunks in all)"
    )
    assert (
        "replay: schedule.proof()  # schedule: broken for Collective(kind='all_reduce', nranks=3, root=None, pairs=(), "
        f"in_place=False), hash {broken(3).content_hash()[:16]}"
    ) in text


def test_a_count_that_does_not_fit_names_the_call():
    with pytest.raises(AssertionError, match=r"replay: schedule.bind\(\[1, 2\], 'int32', 'sum'\)"):
        assert_implements(my_all_reduce(3), counts=[[1, 2]], dtypes=["int32"])


def test_wrong_data_fails_whatever_the_proof_says():
    # Bound without a proof, so that only the data can tell.
    with pytest.raises(AssertionError, match=r"18 wrong output elements \(seed=3\)"):
        checked_run(broken(3).bind(9, "int32", unproved=True), None, seed=3)


def test_the_fixture_checks_and_measures(emulator):
    result = emulator(my_all_reduce(3), 10, dtype="int32")
    assert result.wrong == 0
    assert result.bound is not None
    assert result.time_fs >= result.bound.time_fs
    spread = emulator(my_all_reduce(3), 10, topology=torus([5], "10 GB/s", "1 us"), ranks=[4, 0, 2])
    assert spread.topology == "torus"
    with pytest.raises(simcoll.ScheduleError):
        emulator(broken(3), 10)


def run(code):
    # A module that cannot be imported is None in sys.modules.
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)


def test_nothing_heavy_is_loaded_before_it_is_used():
    code = (
        "import sys; sys.modules['hypothesis'] = None; import simcoll.testing as t\n"
        "assert 'pytest' not in sys.modules\n"
        "import simcoll.testing.plugin\n"
        "assert 'simpy' not in sys.modules\n"
        "assert callable(t.assert_implements)\n"
        "try: t.schedules\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = run(code)
    assert done.stderr == ""
    assert done.stdout == "ConfigError simcoll.testing.schedules needs hypothesis: pip install simcoll[test]\n"


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'schedule'"):
        _ = simcoll.testing.schedule
