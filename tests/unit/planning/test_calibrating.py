"""Calibrations from logs: several collectives at once, and NCCL's own table, which decides what
runs.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from simcoll import load_topology
from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration, Correction
from simcoll.libraries.fitting import Series, formula, left_out
from simcoll.libraries.formula import stated_costs
from simcoll.libraries.library import load_library
from simcoll.libraries.prediction import formula_time
from simcoll.planning.measured.calibrating import fit_calibration, gather, refuse_sick_machine
from simcoll.planning.measured.log_parameters import LogParameters
from simcoll.topology.machine import machine
from tests.support.nccl_logs import blocks, nccl_tests

SIZES = tuple(2**power for power in range(3, 31))
OURS = {"ring": "Ring", "tree": "Tree", "nvls_tree": "NVLSTree", "nvls": "NVLS"}
SIZE = "node-1:11:22 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8"


def nccl_table(topology, change=None):
    """What NCCL would log: the formula's numbers without size, as the library file has them."""
    costs = stated_costs(
        machine(topology), "all_reduce", np.array([1.0]), load_library(), by_size=False
    )
    numbers = {
        ("AllReduce", OURS[each.algorithm], each.protocol): (each.latency_us[0], each.rate_GBps[0])
        for each in costs
    }
    for algorithm in {key[1]: None for key in numbers}:
        for protocol in ("LL", "LL128", "Simple"):
            numbers.setdefault(("AllReduce", algorithm, protocol), (0.0, 0.0))
    return numbers | (change or {})


def read(tmp_path, lines, **how):
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines))
    return gather([path], "dgx-h100", LogParameters(**how))


def test_nccl_s_own_numbers_lead_to_nccl_s_own_choice(tmp_path):
    topology = load_topology("dgx-h100", nodes=2)
    found = fit_calibration(read(tmp_path, [SIZE, *blocks(nccl_table(topology))]), None, "dgx-h100")
    for size in SIZES:
        costs = stated_costs(
            machine(topology), "all_reduce", np.array([float(size)]), load_library()
        )
        # NCCL prints one decimal, so two that cost almost the same may swap.
        times = {
            (each.algorithm, each.protocol): each.time_us(np.array([float(size)]))[0]
            for each in costs
        }
        chosen = formula_time("all_reduce", size, topology, calibration=found)
        assert times[chosen.algorithm, chosen.protocol] <= min(times.values()) * 1.02


def test_a_table_that_says_otherwise_is_followed(tmp_path):
    topology = load_topology("dgx-h100", nodes=2)
    slow = nccl_table(topology)
    slow = {
        key: (latency * (1 if key[1:] == ("Ring", "LL128") else 1000), rate)
        for key, (latency, rate) in slow.items()
    }
    found = fit_calibration(read(tmp_path, [SIZE, *blocks(slow)]), None, "dgx-h100")
    assert {
        formula_time("all_reduce", size, topology, calibration=found).algorithm
        for size in SIZES[:10]
    } == {"ring"}
    # It is of 16 ranks: on 32 the library's own choice counts.
    other = load_topology("dgx-h100", nodes=4)
    assert (
        formula_time("all_reduce", 8, other, calibration=found).algorithm
        == formula_time("all_reduce", 8, other).algorithm
    )


@pytest.mark.slow
def test_several_collectives_share_the_machine_s_numbers(tmp_path):
    machine, names = load_topology("dgx-h100"), ("all_reduce", "all_gather")
    shortest_fs = min(formula(name, machine)(SIZES[5:6], Calibration())[0] for name in names)
    truth = Calibration(launch_fs=25 * 10**9, hidden_from_fs=shortest_fs)
    lines = []
    for name, factor, share, op in (
        ("all_reduce", 1.75, 1, "sum"),
        ("all_gather", 0.875, 8, "none"),
    ):
        times = formula(name, load_topology("dgx-h100"))(SIZES[5:], truth)
        rows = list(nccl_tests(SIZES[5:], factor, share=share, op=op, name=name, version=3))
        for size, time in zip(SIZES[5:], times, strict=True):
            us = time / 10**9
            place = next(
                number for number, row in enumerate(rows) if row.startswith(f"{size:12d} ")
            )
            algbw = size / us / 1e3
            rows[place] = (
                f"{size:12d} {size // 4 // share:12d} float {op} -1 {us:.3f} {algbw:.2f} "
                f"{algbw * factor:.2f} 0"
            )
        lines += rows
    found = read(tmp_path, lines)
    assert [each.collective for each in found.series] == ["all_reduce", "all_gather"]
    made = fit_calibration(found, ("launch", "rate"), "dgx-h100")
    assert abs(made.launch_fs - truth.launch_fs) < 10**8
    assert abs(made.rate - 1) < 0.01
    assert (made.library, made.topology) == (str(load_library()), "dgx-h100")
    assert made.sources == (
        "run.log: all_reduce, 8 ranks on 1 node, 23 rows, nccl 2.28.7",
        "run.log: all_gather, 8 ranks on 1 node, 23 rows, nccl 2.28.7",
    )


@pytest.mark.slow
def test_runs_that_are_repeated_are_one_series_of_medians(tmp_path):
    sizes = SIZES[::3]  # a fit leaves each of them out in turn
    lines = ["./all_reduce_perf", *nccl_tests(sizes, 14 / 8, version=3)]
    once, thrice = read(tmp_path, lines), read(tmp_path, 3 * lines)
    assert [each.rows for each in thrice.series] == [each.rows for each in once.series]
    assert (len(once.sources), len(thrice.sources)) == (1, 3)
    assert thrice.notes == (
        f"all_reduce: {2 * len(sizes)} rows of repeated sizes; medians are used",
    )
    made, again = (fit_calibration(found, None, "dgx-h100") for found in (once, thrice))
    assert (made.rate, made.corrections) == (again.rate, again.corrections)
    # A row that is left out has no twin in the fit, so that repeated runs do not look better than
    # they are.
    assert left_out(once.series) == left_out(thrice.series)


def test_a_limit_in_the_log_is_named(tmp_path):
    lines = [*nccl_tests(SIZES, 15 / 8, hosts=("a", "b"), version=3, rate=180.0)]
    limit = "node-1:11:22 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 2."
    assert read(tmp_path, lines).notes == ()
    (note,) = read(tmp_path, [limit, *lines]).notes
    assert "ran under a limit, at most 2 channels (NCCL_MAX_NCHANNELS=2)" in note
    assert read(tmp_path, [limit, *lines], environment="NCCL_ALGO=Ring").notes == ()


def test_a_log_with_nothing_is_refused_with_its_name(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.log: there is no row"):
        read(tmp_path, ["nothing"])
    wrong = list(nccl_tests(SIZES, 14 / 8, version=3, wrong=lambda _: "7"))
    with pytest.raises(
        ConfigError, match=r"all rows have wrong results.*; line \d+: 8 B: 7 wrong elements; left"
    ):
        read(tmp_path, wrong)


def series_from(shortest_us):
    rows = ((8, round(shortest_us * 10**9)), (2**20, 10**11))
    return [Series("all_reduce", 8, rows, lambda sizes, _: [1] * len(sizes))]


@pytest.mark.parametrize(
    ("result", "figure"),
    [
        (Calibration(launch_fs=-36 * 10**9), "the launch is -36 us, less than none"),
        (Calibration(launch_fs=100 * 10**9), "the launch is [+]100 us or more"),
        (Calibration(rate=Fraction(1, 4)), "0.25 times the expected rate"),
        (
            Calibration(rate=Fraction(1, 4), launch_fs=100 * 10**9),
            "0.25 times the expected rate, where",
        ),
        (
            Calibration(rate=Fraction(11, 20), launch_fs=100 * 10**9),
            "100 us or more, and links, NICs and switches have 0.55 times the expected rate",
        ),
        (Calibration(rate=Fraction(9, 4)), "2.25 times the expected rate"),
        (
            Calibration(
                corrections=(
                    Correction("all_reduce", 8, ((8, Fraction(1)), (2**20, Fraction(11)))),
                )
            ),
            "all_reduce of 1 MiB takes 11.00 times the fitted time",
        ),
    ],
)
def test_a_machine_that_is_not_sound_is_refused(result, figure):
    with pytest.raises(ConfigError, match=figure) as refusal:
        refuse_sick_machine(result, series_from(40), ["my run.log"], "dgx-a100")
    assert "simcoll compare 'my run.log' -t dgx-a100" in refusal.value.message


@pytest.mark.parametrize(
    "result",
    [
        Calibration(),
        Calibration(launch_fs=-4 * 10**9),
        Calibration(rate=Fraction(3, 5), launch_fs=30 * 10**9),
        Calibration(
            corrections=(Correction("all_reduce", 8, ((8, Fraction(3, 4)), (64, Fraction(2)))),)
        ),
    ],
)
def test_a_sound_machine_may_differ_a_little(result):
    refuse_sick_machine(result, series_from(40), ["run.log"], "dgx-a100")
