"""Fits find what a fake machine was made with, are not led by single rows, and refuse what rows
cannot tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.corrected import costs, send_choices
from simcoll.libraries.fitting import Series, fit, fit_series, formula, left_out
from simcoll.libraries.prediction import launched_us
from simcoll.topology import load_topology

US = 10**9
SIX = (8, 2**16, 2**20, 2**23, 2**26, 2**30)
MANY = tuple(2**power for power in range(3, 34))


@dataclass(frozen=True)
class Row:
    size_bytes: int
    time_fs: int


def machine(size, calibration):
    """A ring under LL and Simple over two network hops, in the form of NCCL's cost model."""
    hop = 10 * US + calibration.fabric_latency_fs
    growth = calibration.growth * min(size, 2**16) * US / 2**12
    low = 20 * US + 2 * (hop + growth) + size * 10**6 * 2 / (100 * calibration.rate)
    high = 60 * US + 2 * 2 * hop + size * 10**6 / (100 * calibration.rate)
    return calibration.corrected_fs(int(min(low, high)), "all_reduce", 8, size)


def predictor(sizes, calibration):
    return [machine(size, calibration) for size in sizes]


def beside(calibration):
    """The calibration with its launch measured whole at 8 B."""
    time_fs = machine(8, replace(calibration, launch_fs=0))
    return replace(calibration, hidden_from_fs=time_fs)


def measured(calibration, sizes):
    return [Row(size, machine(size, calibration)) for size in sizes]


def worst(found, rows):
    return max(abs(machine(row.size_bytes, found) / row.time_fs - 1) for row in rows)


@pytest.mark.slow
@given(st.integers(-20, 60), st.integers(40, 150))
def test_two_rows_give_launch_and_rate(launch, percent):
    truth = beside(Calibration(launch_fs=launch * US, rate=Fraction(percent, 100)))
    found = fit(measured(truth, (8, 2**30)), predictor)
    assert abs(found.launch_fs - truth.launch_fs) < US // 2
    assert abs(found.rate / truth.rate - 1) < Fraction(1, 100)
    assert (found.growth, found.fabric_latency_fs, found.corrections) == (1, 0, ())
    assert worst(found, measured(truth, MANY)) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    "truth",
    [
        beside(Calibration(5 * US, Fraction(4, 5), 40 * US)),
        Calibration(0, Fraction(1), 0, Fraction(4)),
        beside(Calibration(30 * US)),
    ],
)
def test_more_rows_find_more(truth):
    found = fit(measured(truth, MANY), predictor, collective="all_reduce", nranks=8)
    assert worst(found, measured(truth, MANY)) < 0.05
    assert worst(replace(found, corrections=()), measured(truth, MANY)) < 0.1


@pytest.mark.slow
def test_a_parameter_without_need_stays_neutral():
    found = fit(measured(beside(Calibration(launch_fs=7 * US)), MANY), predictor)
    assert (found.rate, found.growth, found.fabric_latency_fs) == (1, 1, 0)
    assert found.launch_fs == 7 * US


def test_a_correction_takes_what_no_parameter_explains():
    slow = {2**16: 2, 2**20: 3, 2**23: 2}
    rows = [Row(size, machine(size, Calibration()) * slow.get(size, 1)) for size in SIX]
    found = fit(rows, predictor, collective="all_reduce", nranks=8)
    assert 2 < found.factor("all_reduce", 8, 2**20) < 3
    assert found.factor("all_gather", 8, 2**20) == 1
    assert abs(machine(8, found) / rows[0].time_fs - 1) < 0.01


def test_a_row_between_the_ends_that_is_far_off_moves_nothing():
    rows = [Row(size, machine(size, Calibration()) * (6 if size == 2**20 else 1)) for size in SIX]
    found = fit(rows, predictor, collective="all_reduce", nranks=8)
    for size in (8, 2**14, 2**16, 2**23, 2**26, 2**30):
        assert machine(size, found) / machine(size, Calibration()) == pytest.approx(1, abs=0.01)


def test_a_correction_of_64_kib_leaves_sizes_alone_that_take_as_long_as_the_least():
    truth = beside(Calibration(launch_fs=7 * US))
    rows = [Row(size, machine(size, truth) * (1.3 if size == 2**16 else 1)) for size in SIX]
    found = fit(rows, predictor, collective="all_reduce", nranks=8, parameters=("launch", "rate"))
    small = [machine(size, found) / machine(size, truth) for size in (8, 64, 512)]
    assert small == pytest.approx([1, 1, 1], abs=0.02)
    rising = [found.factor("all_reduce", 8, 1 << power) for power in range(3, 17)]
    assert rising == sorted(rising)
    assert 1.2 < rising[-1] < 1.3  # times hardly grow after 64 KiB, so that it cannot fall


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, len(MANY) - 1), st.integers(2, 50))
def test_one_wild_row_of_many_moves_nothing_else(place, factor):
    truth = beside(Calibration(launch_fs=12 * US, rate=Fraction(7, 10)))
    rows = measured(truth, MANY)
    wild = [
        *rows[:place],
        Row(rows[place].size_bytes, rows[place].time_fs * factor),
        *rows[place + 1 :],
    ]
    found = replace(fit(wild, predictor, parameters=("launch", "rate")), corrections=())
    assert worst(found, rows) < 0.03


def test_the_warm_up_row_is_set_aside_and_named():
    rows = measured(Calibration(), MANY)
    late = [Row(8, rows[1].time_fs * 9), *rows[1:]]
    series = Series.of("all_reduce", 8, late, predictor)
    assert series.aside == (
        f"8 B took {rows[1].time_fs * 9 / US:.0f} us, 9.0 times the next size: warm-up",
    )
    assert series.rows[0] == (16, rows[1].time_fs)
    assert Series.of("all_reduce", 8, rows, predictor).aside == ()


def test_rows_of_one_size_count_once():
    rows = [Row(8, 30), Row(8, 10), Row(8, 20), Row(1024, 40)]
    assert Series.of("all_reduce", 8, rows, predictor).rows == ((8, 20), (1024, 40))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.permutations(measured(beside(Calibration(launch_fs=9 * US, growth=Fraction(2))), SIX)))
def test_the_order_of_rows_does_not_matter(rows):
    assert (
        fit(rows, predictor).hash
        == fit(sorted(rows, key=lambda row: row.size_bytes), predictor).hash
    )


@pytest.mark.parametrize(
    ("rows", "parameters", "says"),
    [
        ([], None, "needs at least one row"),
        ([Row(8, US)], ("launch", "rate"), r"1 row cannot fit 2 parameters \(launch, rate\)"),
        (
            [Row(8, US), Row(1024, US)],
            ("launch", "rate", "growth"),
            "2 rows cannot fit 3 parameters",
        ),
        ([Row(8, US)], ("lunch",), "unknown parameter 'lunch'; did you mean 'launch'"),
        ([Row(0, US)], None, "sizes and times above 0, got 0 bytes"),
        ([Row(8, 0)], None, "sizes and times above 0, got 8 bytes, 0 fs"),
    ],
)
def test_what_rows_cannot_tell_is_refused(rows, parameters, says):
    with pytest.raises(ConfigError, match=says):
        fit(rows, predictor, parameters=parameters)


def test_one_row_fits_what_it_shows():
    small = measured(Calibration(11 * US), [8])
    large = measured(Calibration(rate=Fraction(1, 2)), [2**30])
    assert fit(small, predictor) == beside(Calibration(launch_fs=11 * US))
    assert fit(large, predictor).launch_fs == 0
    assert abs(fit(large, predictor).rate - Fraction(1, 2)) < Fraction(1, 100)


def test_a_negative_launch_leaves_part_of_the_time():
    rows = [Row(size, max(1, machine(size, Calibration()) // 100)) for size in (8, 16, 1024)]
    found = fit(rows, predictor, parameters=("launch",))
    assert machine(8, found) > 0.39 * machine(8, Calibration())


@pytest.mark.slow
def test_rows_left_out_are_predicted_by_the_others():
    truth = beside(Calibration(launch_fs=20 * US, rate=Fraction(4, 5)))
    rows = measured(truth, MANY)
    found = left_out([Series.of("all_reduce", 8, rows, predictor)])
    assert [each.size_bytes for each in found] == list(MANY)
    assert (
        max(abs(each.calibrated_error) for each in found)
        < 0.03
        < max(abs(each.uncalibrated_error) for each in found)
    )
    # A row that is off in itself is predicted from the others: the fit that is judged has not seen
    # it.
    wild = [*rows[:15], Row(rows[15].size_bytes, rows[15].time_fs * 2), *rows[16:]]
    assert (
        -0.52 < left_out([Series.of("all_reduce", 8, wild, predictor)])[15].calibrated_error < -0.45
    )
    assert left_out([Series.of("all_reduce", 8, rows[:2], predictor)]) == ()


@pytest.mark.slow
def test_tables_of_a_machine_share_its_numbers():
    truth = beside(Calibration(launch_fs=20 * US, rate=Fraction(4, 5)))
    first, second = (
        Series.of(name, 8, measured(truth, MANY), predictor)
        for name in ("all_reduce", "all_gather")
    )
    found = fit_series([first, second])
    assert abs(found.launch_fs - truth.launch_fs) < US
    assert [each.collective for each in found.corrections] == ["all_reduce", "all_gather"]
    assert len(left_out([first, second])) == 2 * len(MANY)


def test_operations_longer_than_the_launch_was_measured_beside_hide_a_part_of_it():
    calibration = Calibration(launch_fs=10 * US, hidden_from_fs=20 * US)
    times_fs = range(US, 400 * US, US)
    more_fs = [calibration.launched_fs(time_fs) - time_fs for time_fs in times_fs]
    assert set(more_fs[:20]) == {10 * US}
    assert more_fs == sorted(more_fs, reverse=True)
    assert 0 < more_fs[-1] < US
    earlier = replace(calibration, launch_fs=-10 * US)
    less_fs = [earlier.launched_fs(time_fs) - time_fs for time_fs in times_fs]
    assert -US < less_fs[-1] < 0
    for launched in (calibration, earlier):
        grown = [launched.launched_fs(time_fs) for time_fs in times_fs]
        assert grown == sorted(grown)


def test_two_rows_within_the_scatter_of_a_library_change_nothing_and_others_count_in_part():
    dgx = formula("all_reduce", load_topology("dgx-h100"))
    sizes = (8, 2**30)

    def calibrated(small, large):
        times = zip(sizes, dgx(sizes, Calibration()), (small, large), strict=True)
        rows = [Row(size, int(time * factor)) for size, time, factor in times]
        return fit(rows, dgx, collective="all_reduce", nranks=8)

    within = calibrated(1 + dgx.scatter("launch") / 2, 1)
    assert within == calibrated(1, 1)
    assert (within.launch_fs, within.rate) == (0, 1)
    beyond = calibrated(1.5, 2)
    late_fs = dgx([8], beyond)[0] - dgx([8], Calibration())[0]
    assert 0.99 < late_fs / (0.5 * dgx([8], Calibration())[0]) < 1
    assert 0.49 < beyond.rate < 0.52


def test_a_rate_of_few_rows_fades_with_the_distance_from_its_row():
    dgx = formula("all_reduce", load_topology("dgx-h100"))
    sizes = [2**power for power in range(26, 35)]
    plain = dgx(sizes, Calibration())
    kept: list[float] = []
    for factor in (0.95, 1.05):
        rows = [Row(8, dgx([8], Calibration())[0]), Row(2**30, int(plain[4] * factor))]
        found = fit(rows, dgx, collective="all_reduce", nranks=8)
        times = zip(dgx(sizes, found), plain, strict=True)
        deviations = [abs(time / without - 1) for time, without in times]
        assert deviations[4] == pytest.approx(0.05, abs=0.002)
        assert deviations[:5] == sorted(deviations[:5])
        assert deviations[4:] == sorted(deviations[4:], reverse=True)
        assert deviations[0] < 0.03 < deviations[3]
        assert max(deviations[0], deviations[-1]) < deviations[4] / 1.5
        kept.append(deviations[2] / deviations[4])
    assert kept[0] < 0.4
    assert kept[1] > 0.6  # a rate above 1 fades sooner
    half = fit([Row(8, 30 * US), Row(2**30, plain[4] * 2)], dgx, collective="all_reduce", nranks=8)
    assert half.rate_shares(np.array(sizes, float)).min() > 0.98  # of many times the scatter


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
@pytest.mark.parametrize(("small", "large"), [(0.8, 0.95), (0.9, 1.3), (1.2, 0.7), (2.5, 1.04)])
def test_times_of_one_choice_grow_with_the_size_where_launch_and_rate_fade(
    collective, small, large
):
    dgx = formula(collective, load_topology("dgx-a100", nodes=2))
    ends = zip((8, 2**30), dgx([8, 2**30], Calibration()), (small, large), strict=True)
    rows = [Row(size, int(time_fs * factor)) for size, time_fs, factor in ends]
    found = fit(rows, dgx, collective=collective, nranks=16)
    assert min(found.launch_scatter, found.rate_scatter) > 0
    sizes = np.unique(np.floor(2 ** np.linspace(3, 35, 300)))
    question = replace(dgx.question, calibration=found)
    for cost in costs(question, sizes):
        bare_fs = (launched_us(cost.time_us(sizes), question) * 10**9).astype(np.int64)
        times_fs = np.array([int(found.launched_fs(time_fs)) for time_fs in bare_fs.tolist()])
        falling = np.diff(times_fs) < -1e-9 * times_fs[1:]
        if question.is_p2p:
            choices = send_choices(question, sizes)
            falling &= choices[1:] == choices[:-1]
        assert not falling.any()


@pytest.mark.slow
def test_a_rate_above_one_is_that_of_its_algorithm_and_a_lower_one_that_of_all():
    nodes = formula("all_reduce", load_topology("dgx-h100", nodes=4))
    sizes = [2**26, 2**33]
    plain = nodes(sizes, Calibration())
    algorithms = [algorithm for algorithm, _ in nodes.choices(sizes, Calibration())]
    assert algorithms == ["nvls_tree", "ring"]
    for factor in (0.8, 1.25):
        rows = [Row(8, nodes([8], Calibration())[0]), Row(2**33, int(plain[1] * factor))]
        found = fit(rows, nodes, collective="all_reduce", nranks=32)
        assert found.rate_algorithm == ("ring" if factor < 1 else "")
        changed = [time / without for time, without in zip(nodes(sizes, found), plain, strict=True)]
        assert changed[1] == pytest.approx(factor, abs=0.01)
        assert (changed[0] == 1) == (factor < 1)


def test_a_launch_below_none_fades_with_the_size_and_one_above_stays():
    dgx = formula("all_gather", load_topology("dgx-h100").take(2))
    sizes = [8, 2**12, 2**15]
    plain = dgx(sizes, Calibration())
    for factor in (0.9, 1.1):
        rows = [Row(8, int(plain[0] * factor)), Row(2**30, dgx([2**30], Calibration())[0])]
        found = fit(rows, dgx, collective="all_gather", nranks=2)
        parts = [
            (time - without) / found.launch_fs
            for time, without in zip(dgx(sizes, found), plain, strict=True)
        ]
        assert parts[0] == pytest.approx(1, abs=0.001)
        assert parts == sorted(parts, reverse=True)
        if factor > 1:
            assert (found.launch_size_scatter, found.launch_bytes) == (0, 0)
        else:
            assert found.launch_bytes == 8
            assert parts[1] < 0.8
    stays = Calibration(
        launch_fs=US,
        hidden_from_fs=9 * US,
        launch_size_scatter=Fraction(1, 9),
        launch_bytes=8,
    )
    assert stays.launched_fs(5 * US, 2**20) == 6 * US


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine_name", "collective"),
    [("dgx-a100", "all_reduce"), ("dgx-h100", "all_to_all"), ("mi300x", "all_reduce")],
)
def test_times_of_one_choice_grow_with_the_size_under_a_correction(machine_name, collective):
    library, random = formula(collective, load_topology(machine_name)), np.random.default_rng(33)
    plain = library(SIX, Calibration())
    sizes = np.unique(np.floor(2 ** random.uniform(3, 33, 400))).astype(int).tolist()
    for _ in range(3):
        factors = np.exp(random.normal(0, 0.3, len(SIX)))
        rows = [Row(*row) for row in zip(SIX, (plain * factors).astype(int).tolist(), strict=True)]
        found = fit(rows, library, collective=collective, nranks=8)
        assert len(found.corrections[0].points) > len(SIX)
        times_fs, choices = np.array(library(sizes, found)), library.choices(sizes, found)
        falling = np.diff(times_fs) < -3e-6 * times_fs[1:]  # factors are in millionths
        if library.question.is_p2p:
            own = send_choices(replace(library.question, calibration=found), np.array(sizes, float))
            choices = list(zip(choices, own.tolist(), strict=True))
        same = [first == second for first, second in pairwise(choices)]
        assert not (falling & same).any()


def test_rows_of_rccl_scatter_more_than_those_of_nccl():
    scatters = [
        formula("all_reduce", load_topology(name)).scatter("launch")
        for name in ("dgx-h100", "mi300x")
    ]
    assert scatters[0] < scatters[1]
    two_nodes = formula("all_reduce", load_topology("dgx-h100", nodes=2))
    assert two_nodes.scatter("launch") > scatters[0]
