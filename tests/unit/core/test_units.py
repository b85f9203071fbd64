"""Quantities: text with units in, exact integers inside, text out."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.errors import ConfigError
from simcoll.units import (
    MAX_INT64,
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("8", 8),
        (8, 8),
        ("8B", 8),
        ("8 B", 8),
        ("1K", 1024),
        ("64M", 64 << 20),
        ("64m", 64 << 20),
        ("8G", 8 << 30),
        ("1 KiB", 1024),
        ("1kB", 1000),
        ("1 KB", 1000),
        ("10 MB", 10**7),
        ("1.5 GiB", 3 << 29),
        ("1.5K", 1536),
        (".5K", 512),
        ("1e3", 1000),
        ("  7  ", 7),
        ("9223372036854775807", MAX_INT64),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read ''"),
        ("M", "cannot read 'M'"),
        ("-1", "'-1' is negative"),
        ("1.5", "not a whole number of bytes"),
        ("1 MiBB", "did you mean 'MiB'?"),
        ("9223372036854775808", "too large"),
        ("8T8", "cannot read"),
        ("1e99", "out of range"),
        ("1" * 50, "out of range"),
        (None, "got None"),
        (1.5, "got 1.5"),
        (True, "got True"),
        (-1, "'-1' is negative"),
        ("nan", "cannot read"),
        ("inf", "cannot read"),
        ("8 GB/s", "unknown unit 'GB/s'"),
        ("64 Mb", "a small b stands for bits; for bytes, write 'MB'"),
    ],
)
def test_sizes_that_are_refused(text, says):
    with pytest.raises(ConfigError) as error:
        parse_size(text, what="minbytes", file="a.toml", path="$.b")
    assert says in str(error.value)
    assert str(error.value).startswith("a.toml: $.b: minbytes:")
    assert (error.value.file, error.value.path) == ("a.toml", "$.b")


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("50 GB/s", 50 * 10**9),
        ("400 Gbps", 50 * 10**9),
        ("400 Gb/s", 50 * 10**9),
        ("400 GBps", 400 * 10**9),
        ("400Gbit/s", 50 * 10**9),
        ("1 GiB/s", 2**30),
        ("8 bps", 1),
        ("1 B/s", 1),
        ("0 B/s", 0),
        ("1 bps", Fraction(1, 8)),
        ("1 TB/s", 10**12),
    ],
)
def test_rates(text, bytes_per_second):
    assert parse_rate(text) == bytes_per_second * 10**6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("50", "'50' has no unit; write for example '50 GB/s'"),
        ("50 GBs", "(valid: GB/s, GBps)"),
        ("10 TB/s", "too large"),
        ("-1 GB/s", "negative"),
        (50, "got 50"),
        ("50 us", "unknown unit 'us'"),
        ("400 gbps", "is it 'GBps' or 'Gbps'?"),
        ("400 Gb", "(valid: Gb/s, Gbit/s, Gbps)"),
        ("400 GBit/s", "did you mean 'Gbit/s'?"),
        ("400 GByte/s", "did you mean 'GB/s'?"),
        ("400 gB/s", "is it 'GB/s' or 'Gb/s'?"),
        ("400 Gib/s", "a small b stands for bits; for bytes, write 'GiB/s'"),
    ],
)
def test_rates_that_are_refused(text, says):
    with pytest.raises(ConfigError, match=r"^bandwidth: ") as error:
        parse_rate(text)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "femtoseconds"),
    [
        ("1.5 us", 15 * 10**8),
        ("1.5µs", 15 * 10**8),
        ("1.5μs", 15 * 10**8),
        ("2ms", 2 * 10**12),
        ("3 s", 3 * 10**15),
        ("1 ns", 10**6),
        ("1ps", 1000),
        ("7 fs", 7),
        ("0", 0),
        ("0.0", 0),
    ],
)
def test_times(text, femtoseconds):
    assert parse_time(text) == femtoseconds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1.5", "write for example '1.5 us'"),
        ("3 h", "unknown unit 'h'"),
        ("3 hs", "unknown unit"),
        ("10000 s", "too large"),
        ("-1 us", "negative"),
        (1, "got 1"),
    ],
)
def test_times_that_are_refused(text, says):
    with pytest.raises(ConfigError, match=r"^time: ") as error:
        parse_time(text)
    assert says in str(error.value)


@pytest.mark.slow
@given(st.integers(0, MAX_INT64))
def test_a_printed_size_reads_back(size):
    assert parse_size(format_size(size)) == size


@given(
    st.integers(1, MAX_INT64),
    st.sampled_from([(format_time, parse_time), (format_rate, parse_rate)]),
)
def test_a_printed_time_or_rate_reads_back_to_three_digits(value, pair):
    shown, read = pair
    text = shown(value)
    if (shown is format_rate and value < 1000) or float(text.split()[0]) > 9223:
        return
    assert abs(read(text) - value) <= value * 0.00501


def test_prefixes_change_where_they_should():
    assert [format_time(t) for t in (1, 999, 1000, 10**6, 10**9, 10**12, 10**15)] == [
        "1 fs",
        "999 fs",
        "1 ps",
        "1 ns",
        "1 us",
        "1 ms",
        "1 s",
    ]
    assert [format_rate(r * 10**6) for r in (0, 1, 999, 1000, 10**6, 10**9, 10**12)] == [
        "0 B/s",
        "1 B/s",
        "999 B/s",
        "1 kB/s",
        "1 MB/s",
        "1 GB/s",
        "1 TB/s",
    ]
    assert [format_size(s) for s in (1, 1024, 1025, 3 << 30)] == ["1 B", "1 KiB", "1025 B", "3 GiB"]
