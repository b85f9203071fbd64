"""Wire formats against a quantiser written value by value."""

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from simcoll.core.reduction import parse_dtype
from simcoll.core.wire_format import is_floating, wire_format
from simcoll.errors import ConfigError


def _single(value):
    """A number rounded to float32, by the standard library."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _quantised(values, bits, block):
    """Symmetric quantisation, one number after the other."""
    levels, arriving = 2 ** (bits - 1) - 1, []
    for begin in range(0, len(values), block):
        part = [_single(value) for value in values[begin : begin + block]]
        scale = _single(max(abs(value) for value in part) / levels)
        for value in part:
            whole = round(_single(value / scale)) if scale else 0  # ties to even
            arriving.append(_single(max(-levels, min(levels, whole)) * scale))
    return arriving


@pytest.mark.parametrize(("bits", "block"), [(8, 1), (8, 7), (8, 256), (4, 16), (4, 1000)])
@pytest.mark.parametrize("size", [1, 6, 7, 8, 300])
def test_blocks_round_as_a_quantiser_of_single_values(bits, block, size):
    values = np.random.default_rng([bits, block, size]).normal(size=size).astype(np.float32) * 3
    arriving = wire_format(f"int{bits}/{block}").round_trip(values)
    assert arriving.tolist() == _quantised(values.tolist(), bits, block)
    assert arriving.dtype == values.dtype
    # No value is further off than half a step, whatever the block.
    steps = np.repeat(np.arange(size) // block, 1)
    largest = np.array([np.abs(values[steps == step]).max() for step in steps])
    half = largest / (2 ** (bits - 1) - 1) / 2
    assert (np.abs(arriving - values) <= half * (1 + 1e-5)).all()


def test_messages_lie_along_the_last_axis():
    values = np.random.default_rng(1).normal(size=(3, 10)).astype(np.float32)
    wire = wire_format("int8/4")
    for row, arriving in zip(values, wire.round_trip(values), strict=True):
        assert arriving.tolist() == wire.round_trip(row).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_types_round_to_the_nearest_value(name):
    values = np.random.default_rng(2).normal(size=500).astype(np.float32)
    arriving = wire_format(name).round_trip(values).astype(np.float64)
    every = np.arange(2**16, dtype=np.uint16).view(parse_dtype(name))
    if np.dtype(every.dtype).itemsize == 1:
        every = np.arange(256, dtype=np.uint8).view(parse_dtype(name))
    with np.errstate(invalid="ignore"):
        grid = every.astype(np.float64)
    grid = np.unique(grid[np.isfinite(grid)])
    nearest = np.abs(grid[None, :] - values[:, None].astype(np.float64)).min(axis=1)
    assert np.isin(arriving, grid).all()
    assert (np.abs(arriving - values) == nearest).all()


def test_float64_goes_through_float32():
    near_tie = np.array([1 + 2**-8 + 2**-40])  # above the middle of two values, as float32 on it
    assert wire_format("bfloat16").round_trip(near_tie).tolist() == [1]
    assert wire_format("float16").round_trip(near_tie / 8 * 8).tolist() == [1 + 2**-8]
    assert wire_format("float8_e5m2").round_trip(np.array([1 + 2**-3 + 2**-40])).tolist() == [1]


def test_short_messages_are_not_padded_to_long_blocks():
    many = np.ones((100_000, 3), np.float32)  # padded to the block, they would take 400 GB
    assert (wire_format("int8/1048576").round_trip(many) == 1).all()
    assert wire_format("int4/7").round_trip(np.zeros((5, 0), np.float32)).shape == (5, 0)


def test_sizes():
    sizes = {"bfloat16": 2 * 1000, "int8/256": 1000 + 4 * 4, "int4/128": 500 + 8 * 4}
    for name, expected in sizes.items():
        wire = wire_format(name)
        assert wire.size_bytes(1000) == expected
        assert wire.size_bytes(np.array([0, 1000])).tolist() == [0, expected]
        assert wire.size_bytes(1000) >= 1000 * wire.least_bytes()
    assert wire_format("int4/3").size_bytes(5) == 3 + 2 * 4


def test_what_is_no_number():
    wire = wire_format("int8/2")
    values = np.array([1, np.inf, 0, 0, np.nan, 1, 1e-45, 1e-45], np.float32)
    arriving = wire.round_trip(values)
    assert np.isnan(arriving[[0, 1, 4, 5]]).all()
    assert arriving[[2, 3, 6, 7]].tolist() == [0] * 4  # 1e-45 / 127 is no number of float32
    assert wire_format("float16").round_trip(np.array([1e9], np.float32)).tolist() == [np.inf]
    assert np.isnan(wire_format("float8_e4m3fn").round_trip(np.array([1e9], np.float32))).all()


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_the_type_of_the_plan_stays(name):
    values = np.array([1, -0.5, 3], parse_dtype(name))
    for wire in ("int8/2", "bfloat16", "float64"):
        assert wire_format(wire).round_trip(values).dtype == values.dtype
    assert is_floating(values.dtype)
    assert is_floating(np.dtype(ml_dtypes.float8_e5m2))
    assert not is_floating(np.dtype("int8"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("int8", "'int8/256'"),
        ("int4", "'int4/256'"),
        ("int8/0", "1 to 1048576"),
        ("int8/x", "such as 'int8/256'"),
        ("int8/99999999", "1 to 1048576"),
        ("bfloat", "did you mean 'bfloat16'"),
        ("int32", "no wire format"),
        ("", "no wire format"),
        (8, "expected a name"),
    ],
)
def test_other_names_are_refused(name, reason):
    with pytest.raises(ConfigError, match=reason):
        wire_format(name)


def test_short_names():
    assert wire_format("bf16").name == wire_format("bfloat16").name == "bfloat16"
    assert wire_format("int8/0256").name == "int8/256"


@pytest.mark.slow
@given(
    arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)),
    st.sampled_from(
        [
            "float32",
            "bfloat16",
            "float16",
            "float8_e4m3fn",
            "int8/7",
            "int8/256",
            "int4/3",
            "int4/64",
        ]
    ),
    st.sampled_from(["float32", "float64", "float16", "bfloat16", "float8_e5m2"]),
)
def test_a_message_is_as_long_as_stated_and_has_the_values_that_arrive(values, name, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        values = values.astype(parse_dtype(dtype))
    wire = wire_format(name)
    message = wire.encode(values)
    assert message.dtype == np.uint8
    assert message.size == wire.size_bytes(values.size)
    decoded = wire.decode(message, values.size, values.dtype)
    assert decoded.tobytes() == wire.round_trip(values).tobytes()
