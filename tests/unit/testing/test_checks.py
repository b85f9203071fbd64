"""assert_implements and the pytest plugin: what they accept, and what a person reads when they do
not.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import simcoll
from simcoll.core.schedule import REDUCE, Layout, Schedule, transfers
from simcoll.testing import assert_implements, plugin
from simcoll.testing.checks import checked_run, default_counts
from simcoll.topology import torus

emulator = plugin.emulator  # as the entry point gives it where simcoll is installed
ROOT = Path(__file__).parents[3]


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


@pytest.mark.slow
def test_what_is_right_passes():
    assert_implements(my_all_reduce(3))
    assert_implements(
        my_all_reduce(4),
        counts=[7],
        dtypes=["float64"],
        op="max",
        topology=torus([2, 2], "10 GB/s", "1 us"),
    )
    assert_implements(simcoll.schedule("barrier", "dissemination", nranks=3))


def test_default_counts_are_awkward():
    # None, one, n - 1, n + 1; its one chunk adds 3.
    assert default_counts(my_all_reduce(4)) == (0, 1, 3, 5)
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
        "broken all_reduce n=3: rank 1 output chunk 0 is wrong at the end (2 wrong output chunks "
        "in all)"
    )
    assert (
        "replay: simcoll.verify(schedule)  # schedule: broken for Collective(kind='all_reduce', "
        "nranks=3, root=None, pairs=(), "
        f"in_place=False), hash {broken(3).content_hash()[:16]}"
    ) in text


@pytest.mark.slow
def test_scaled_sums_of_a_right_schedule_pass():
    for dtype, factor in (
        ("float32", 0.3),
        ("float16", 0.1),
        ("float8_e4m3fn", 7),
        ("float8_e4m3fn", 448),
        ("float16", 6e4),
    ):
        assert_implements(
            simcoll.schedule("all_reduce", "ring", nranks=8),
            counts=[64],
            dtypes=[dtype],
            op=simcoll.types.premul_sum(factor),
        )
        with pytest.raises(AssertionError, match="wrong output elements"):
            checked_run(
                simcoll.bind(broken(8), 64, dtype, simcoll.types.premul_sum(factor), unproved=True),
                None,
            )


@pytest.mark.parametrize(
    ("dtype", "n"), [("float8_e4m3fn", 17), ("float8_e4m3fnuz", 241), ("float8_e4m3fn", 512)]
)
def test_averages_of_many_ranks_pass(dtype, n):
    assert_implements(
        simcoll.schedule("all_reduce", "tree", nranks=n), counts=[3], dtypes=[dtype], op="avg"
    )


def test_a_wrong_average_fails(monkeypatch):
    # The count itself in the dtype of the data: 17 becomes 16.
    monkeypatch.setattr(
        simcoll.types.Reduction,
        "finish",
        lambda _, values, n: np.divide(values, values.dtype.type(n), out=values),
    )
    with pytest.raises(AssertionError, match="wrong output elements"):
        checked_run(
            simcoll.bind(
                simcoll.schedule("all_reduce", "tree", nranks=17), 40, "float8_e4m3fn", "avg"
            ),
            None,
        )


@pytest.mark.slow
def test_schedules_of_switches_pass(emulator):
    switch = simcoll.schedule("all_reduce", "switch", nranks=4)
    assert_implements(switch)
    assert emulator(switch, 5).wrong == 0
    assert emulator(switch, 5, ranks=[5, 0, 2, 3]).wrong == 0


def replayed(text, **names):
    """What the replay line of a message raises."""
    line = next(line for line in text.splitlines() if line.startswith("replay: "))
    with pytest.raises((AssertionError, simcoll.ConfigError, simcoll.ScheduleError)) as error:
        exec(line.removeprefix("replay: "), {"simcoll": simcoll, **names})
    return str(error.value)


@pytest.mark.parametrize(
    "op", ["sum", "avg", simcoll.types.premul_sum(0.25), simcoll.types.Reduction("max")], ids=str
)
@pytest.mark.parametrize(
    "topology", [None, torus([3], "10 GB/s", "1 us")], ids=["crossbar", "torus"]
)
def test_replay_lines_replay(op, topology, monkeypatch):
    def fails(*_, **__):
        raise AssertionError("as before")

    schedule, dtype, count = my_all_reduce(3), np.dtype("float32"), np.int64(4)
    arguments = {
        "counts": np.array([count]),
        "dtypes": (kind for kind in [dtype]),
        "op": op,
        "topology": topology,
    }
    monkeypatch.setattr("simcoll.testing.checks.emulate", fails)
    with pytest.raises(AssertionError) as error:
        assert_implements(schedule, **arguments)
    assert replayed(str(error.value), schedule=schedule, topology=topology).startswith(
        "as before\nreplay: "
    )
    for module in ("simcoll.testing.checks", "simcoll.proving"):
        monkeypatch.setattr(sys.modules[module], "check_lowering", fails)
    with pytest.raises(AssertionError) as error:
        assert_implements(schedule, counts=[4], dtypes=[np.float32], op=op)
    assert replayed(str(error.value), schedule=schedule) == "as before"


def test_replay_lines_of_what_does_not_bind_or_is_wrong():
    for schedule, dtype in (
        (my_all_reduce(3), "int7"),
        (my_all_reduce(3), object),
        (broken(3), "int8"),
    ):
        with pytest.raises(AssertionError) as error:
            assert_implements(schedule, counts=[1], dtypes=[dtype])
        if dtype is not object:  # which has no name
            assert (
                replayed(str(error.value), schedule=schedule)
                == str(error.value).split("\nreplay: ")[0]
            )


def test_every_count_is_checked_with_every_dtype(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "simcoll.testing.checks.checked_run",
        lambda plan, _: seen.append((plan.count, plan.dtype.name)),
    )
    assert_implements(
        my_all_reduce(2), counts=iter([1, 2]), dtypes=(kind for kind in ("float32", "int8"))
    )
    assert seen == [(1, "float32"), (1, "int8"), (2, "float32"), (2, "int8")]


@pytest.mark.parametrize(
    ("schedule", "arguments", "says"),
    [
        (
            "ring",
            {},
            (
                "assert_implements takes a schedule, made by schedule(collective, algorithm); got "
                "'ring'"
            ),
        ),
        (None, {"counts": 5}, "counts must be a list such as [0, 1, 7], got 5; did you mean [5]?"),
        (None, {"counts": []}, "counts is empty, so nothing would be checked"),
        (
            None,
            {"dtypes": "float32"},
            (
                "dtypes must be a list such as ['float32', 'int32'], got 'float32'; did you mean "
                "['float32']?"
            ),
        ),
        (None, {"dtypes": np.dtype("int8")}, "dtypes must be a list such as"),
        (
            None,
            {"topology": "crossbar"},
            "assert_implements takes a topology, made by load_topology(name); got 'crossbar'",
        ),
    ],
)
def test_arguments_of_the_wrong_kind(schedule, arguments, says):
    with pytest.raises(simcoll.ConfigError) as error:
        assert_implements(schedule or my_all_reduce(2), **arguments)
    assert says in str(error.value)


def test_a_count_that_does_not_fit_names_the_call():
    with pytest.raises(
        AssertionError, match=r"replay: simcoll.bind\(schedule, \[1, 2\], 'int32', 'sum'\)"
    ):
        assert_implements(my_all_reduce(3), counts=[[1, 2]], dtypes=["int32"])


def test_wrong_data_fails_whatever_the_proof_says():
    # Bound without a proof, so that only the data can tell.
    with pytest.raises(AssertionError, match=r"18 wrong output elements \(seed=3\)"):
        checked_run(simcoll.bind(broken(3), 9, "int32", unproved=True), None, seed=3)


def test_the_fixture_checks_and_measures(emulator):
    result = emulator(my_all_reduce(3), 10, dtype="int32")
    assert result.wrong == 0
    assert result.bound is not None
    assert result.time_fs >= result.bound.time_fs
    spread = emulator(my_all_reduce(3), 10, topology=torus([5], "10 GB/s", "1 us"), ranks=[4, 0, 2])
    assert spread.topology == "torus"
    with pytest.raises(simcoll.ScheduleError):
        emulator(broken(3), 10)


@pytest.mark.slow
def test_the_fixture_as_documented(emulator):
    page = (ROOT / "docs" / "howto" / "test-your-algorithm.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names = {}
    exec(blocks[0], names)
    exec(next(block for block in blocks if "(emulator: " in block), names)
    names["test_a_star_is_slower_than_a_ring"](emulator)


def run(code):
    # A module that cannot be imported is None in sys.modules.
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )


@pytest.mark.slow
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
    assert (
        done.stdout
        == "ConfigError simcoll.testing.schedules needs hypothesis: pip install simcoll[test]\n"
    )


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'schedule'"):
        _ = simcoll.testing.schedule
