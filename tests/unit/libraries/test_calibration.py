"""Calibration files: what is written is read, and what cannot be one is refused with its place."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.formats.logs.nccl_tuning import TunedCost, TuningTable
from simcoll.libraries.calibration import (
    Calibration,
    Correction,
    calibration_toml,
    load_calibration,
    parse_calibration,
    write_calibration,
)

FACTORS = st.integers(10**4, 10**8).map(lambda value: Fraction(value, 10**6))
SHARES = st.integers(0, 10**6).map(lambda value: Fraction(value, 10**6))
TIMES = st.integers(-(10**15), 10**15)
NAMES = st.text(max_size=20)
TUNED = st.builds(
    TunedCost,
    NAMES,
    NAMES,
    NAMES,
    st.integers(0, 10**15),
    st.integers(1, 92_233).map(lambda tenths: tenths * 10**14),
)
CORRECTIONS = st.builds(
    Correction,
    NAMES,
    st.integers(0, 10**6),
    st.dictionaries(st.integers(1, 2**50), FACTORS, min_size=1, max_size=6).map(
        lambda d: tuple(sorted(d.items()))
    ),
)
CALIBRATIONS = st.builds(
    Calibration,
    TIMES,
    FACTORS,
    TIMES,
    FACTORS,
    st.lists(CORRECTIONS, max_size=3).map(tuple),
    st.lists(
        st.builds(
            TuningTable,
            st.integers(0, 9999),
            st.integers(0, 999),
            st.lists(TUNED, max_size=3).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    NAMES,
    NAMES,
    st.lists(NAMES, max_size=3).map(tuple),
    st.integers(0, 10**15),
    SHARES,
    SHARES,
    st.integers(1, 2**50),
)


@pytest.mark.slow
@given(CALIBRATIONS)
def test_what_is_written_is_read(calibration):
    assert parse_calibration(calibration_toml(calibration).encode()) == calibration


@pytest.mark.slow
@given(CALIBRATIONS, st.sampled_from(["launch_fs", "fabric_latency_fs"]))
def test_the_hash_sees_every_change(calibration, name):
    assert replace(calibration, **{name: getattr(calibration, name) - 1}).hash != calibration.hash
    assert replace(calibration).hash == calibration.hash


def test_a_file_survives_its_folder(tmp_path):
    calibration = Calibration(launch_fs=-123, sources=("27 rows",))
    write_calibration(tmp_path / "mine.toml", calibration)
    assert load_calibration(tmp_path / "mine.toml") == calibration
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_calibration(tmp_path / "nowhere" / "mine.toml", calibration)
    with pytest.raises(ConfigError, match="cannot keep: factors in millionths"):
        write_calibration(tmp_path / "third.toml", Calibration(rate=Fraction(1, 3)))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


HEAD = 'format = "simcoll-calibration"\nversion = 1\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"\$: missing key 'format'"),
        ("launch = 3", r"missing key 'format'|expected text"),
        (
            'format = "nccl"\nversion = 1',
            r"\$\.format: format 'nccl', version 1: expected 'simcoll-calibration', version 1",
        ),
        (HEAD + "lunch = '1 us'", r"\$\.lunch: unknown key; did you mean 'launch'"),
        (HEAD + "launch = '1 furlong'", r"\$\.launch: launch: unknown unit 'furlong'"),
        (HEAD + "launch = '--1 us'", r"\$\.launch: launch: '-1 us' is negative"),
        (HEAD + "rate = 0.0", r"\$\.rate: expected a factor from 1/100 to 100, got 0.0"),
        (HEAD + "rate = nan", r"\$\.rate: expected a factor .* got nan"),
        (HEAD + "rate_scatter = 2", r"\$\.rate_scatter: expected a share from 0 to 1, got 2.0"),
        (HEAD + "launch_scatter = nan", r"\$\.launch_scatter: expected a share from 0 to 1"),
        (HEAD + "rate_scatter = 0.1", r"\$\.rate_size: a rate that fades needs the size at which"),
        (
            HEAD + "launch_size_scatter = 0.1",
            r"\$\.launch_size: a launch that fades needs the size",
        ),
        (HEAD + "rate = inf", r"\$\.rate: expected a factor .* got inf"),
        (
            HEAD + "[[correction]]\ncollective = 'a'\nranks = 2\npoints = {}",
            r"\$\.correction\[0\]\.points: expected factors by size",
        ),
        (
            HEAD + "[[correction]]\ncollective = 'a'\nranks = 2\npoints = {1K = 1.0, 1024 = 1.0}",
            "each size once",
        ),
        (
            HEAD + "[[correction]]\ncollective = 'a'\nranks = 2\npoints = {big = 1.0}",
            "size: cannot read 'big'",
        ),
        (HEAD + "[[tuning]]\nranks = 2\nnodes = 1\nrows = [{}]", r"missing key 'collective'"),
        ("\x00\x01", "not a TOML file"),
        ("a = [" * 5000, "not a TOML file"),
    ],
)
def test_what_is_no_calibration_is_refused(text, says):
    with pytest.raises(ConfigError, match=says) as refused:
        parse_calibration(text.encode(), "mine.toml")
    assert "mine.toml" in str(refused.value)


@pytest.mark.slow
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_only_our_error_comes_out(data):
    for content in (data, HEAD.encode() + data):
        try:
            parse_calibration(content)
        except ConfigError:
            continue


def test_a_correction_is_a_line_in_logarithms():
    correction = Correction("all_reduce", 8, ((1024, Fraction(1)), (4096, Fraction(4))))
    assert [float(correction.factor(size)) for size in (8, 1024, 2048, 4096, 2**40)] == [
        1,
        1,
        2,
        4,
        4,
    ]
    calibration = Calibration(corrections=(correction,))
    assert calibration.corrected_fs(1000, "all_reduce", 8, 2048) == 2000
    assert calibration.corrected_fs(1000, "all_gather", 8, 2048) == 1000
    assert calibration.corrected_fs(1000, "all_reduce", 16, 2048) == 1000
    early = replace(calibration, launch_fs=-700)
    assert [early.corrected_fs(time, "all_gather", 8, 2048) for time in (1000, 2000)] == [400, 1300]


def test_tuning_is_that_of_the_ranks():
    row = TunedCost("all_reduce", "ring", "LL", 10**9, 10**15)
    other = replace(row, latency_fs=2 * 10**9)
    calibration = Calibration(tuning=(TuningTable(16, 2, (row,)), TuningTable(32, 4, (other,))))
    assert calibration.tuning_rows("all_reduce", 32, 4) == (other,)
    assert (
        calibration.tuning_rows("all_reduce", 64, 8)
        == calibration.tuning_rows("broadcast", 16, 2)
        == ()
    )


@pytest.mark.parametrize(
    "change",
    [
        {"rate": Fraction(0)},
        {"growth": Fraction(101)},
        {"launch_fs": 2**63},
        {"rate_scatter": Fraction(2)},
        {"launch_scatter": Fraction(-1)},
        {"launch_size_scatter": Fraction(2)},
    ],
)
def test_numbers_out_of_range_are_refused(change):
    with pytest.raises(ConfigError, match=r"out of range|must lie in"):
        Calibration(**change)
