"""Reductions by name, on every dtype."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from simcoll.core.reduction import (
    REDUCTIONS,
    Reduction,
    combine,
    parse_dtype,
    parse_reduction,
    premul_sum,
)
from simcoll.errors import ConfigError

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_by_name(name):
    expected = np.dtype(getattr(ml_dtypes, name, name))
    assert parse_dtype(name) == expected
    assert parse_dtype(expected) == expected
    assert parse_dtype(expected).name == name


def test_other_names_and_refusals():
    assert [parse_dtype(n).name for n in ("half", "float", "double", np.float32, "<i4")] == [
        "float16",
        "float32",
        "float64",
        "float32",
        "int32",
    ]
    for bad in ("flaot32", "object", "U3", "datetime64[s]", "V4", 3.5):
        with pytest.raises(ConfigError, match=r"unknown dtype|not a number type"):
            parse_dtype(bad)


# Left operand 6, right operand 3 (True and False for bool).
SIX_THREE = {"sum": 9, "product": 18, "min": 3, "max": 6, "band": 2, "bor": 7, "bxor": 5}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_combine(op, name):
    dtype = parse_dtype(name)
    legal = not (op.startswith("b") and dtype.kind not in "biu") and not (
        op in ("min", "max") and dtype.kind == "c"
    )
    if not legal:
        with pytest.raises(
            ConfigError, match=r"needs an integer or bool dtype|complex numbers have no order"
        ):
            parse_reduction(op, dtype)
        return
    assert parse_reduction(op.upper(), dtype) == Reduction(op)
    assert Reduction(op).pairwise == op
    if dtype.kind == "b":
        target, received, expected = (
            [True, True],
            [False, True],
            {
                "sum": [1, 1],
                "product": [0, 1],
                "min": [0, 1],
                "max": [1, 1],
                "band": [0, 1],
                "bor": [1, 1],
                "bxor": [1, 0],
            }[op],
        )
    else:
        target, received, expected = [6, 0], [3, 0], [SIX_THREE[op], 0]
    buffer = np.array([*target, 1]).astype(dtype)
    kept = np.array(received).astype(dtype)
    combine(op, buffer[:2], kept)
    assert buffer.tolist() == np.array([*expected, 1]).astype(dtype).tolist()
    assert kept.tolist() == np.array(received).astype(dtype).tolist()
    assert buffer.dtype == dtype


def test_integers_wrap():
    target = np.array([250], np.uint8)
    combine("sum", target, np.array([10], np.uint8))
    combine("product", target, np.array([100], np.uint8))
    assert target.tolist() == [400 % 256]


# C division cuts off towards zero, which is what NCCL's average of whole numbers does.
@pytest.mark.parametrize(
    ("dtype", "values", "n", "expected"),
    [
        ("int32", [7, -7, 6, -6, 0, -1], 2, [3, -3, 3, -3, 0, 0]),
        ("int8", [127, -128], 3, [42, -42]),
        ("uint8", [255, 4], 2, [127, 2]),
        ("float32", [7, -1], 2, [3.5, -0.5]),
        ("complex64", [2 + 4j], 2, [1 + 2j]),
        ("bfloat16", [3], 2, [1.5]),
        ("float16", [4], 4, [1]),
    ],
)
def test_average(dtype, values, n, expected):
    array = np.array(values).astype(parse_dtype(dtype))
    average = parse_reduction("avg", array.dtype)
    assert average.pairwise == "sum"
    assert average.prepared(array) is array
    average.finish(array, n)
    assert array.tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "values", "n", "expected"),
    [
        ("int8", [127, -128], 200, [0, 0]),
        ("uint8", [255, 4], 300, [0, 0]),
        ("int8", [127, -128], 128, [0, -1]),
    ],
)
def test_average_over_more_ranks_than_the_dtype_can_count(dtype, values, n, expected):
    array = np.array(values, dtype)
    Reduction("avg").finish(array, n)
    assert array.tolist() == expected


SMALL_FLOATS = (
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)


# Most of these counts have more bits than the dtype keeps, and 512 and 2049 are beyond the range of
# some.
@pytest.mark.parametrize("name", SMALL_FLOATS)
@pytest.mark.parametrize("n", [3, 17, 241, 512, 2049])
def test_average_is_the_nearest_value_to_the_true_quotient(name, n):
    dtype = parse_dtype(name)
    every = np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):
        every = every[np.isfinite(every.astype(np.float64))]
    known, true = np.unique(every.astype(np.float64)), every.astype(np.float64) / n
    Reduction("avg").finish(every, n)
    right = np.clip(np.searchsorted(known, true), 1, known.size - 1)
    least = np.minimum(abs(true - known[right - 1]), abs(true - known[right]))
    assert (abs(every.astype(np.float64) - true) <= least * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("n", [3, 49, 98, 2**20 - 1])
def test_average_is_rounded_once(name, n):
    rng = np.random.default_rng(n)
    split = name.startswith("complex")
    values = (rng.standard_normal(200) * ((1 + 2j) if split else 1)).astype(name)
    parts = [values.real, values.imag] if split else [values]
    # Python divides fractions and rounds to the nearest float; rounding that to float32 does no
    # harm to a quotient of two float32.
    expected = [
        [parts[0].dtype.type(float(Fraction(float(x)) / n)) for x in part] for part in parts
    ]
    Reduction("avg").finish(values, n)
    assert [part.tolist() for part in parts] == [[float(x) for x in part] for part in expected]


def test_premultiplied_sum():
    half = premul_sum(0.5)
    assert half.pairwise == "sum"
    given = np.array([1, 3], np.float32)
    assert half.prepared(given).tolist() == [0.5, 1.5]
    assert half.prepared(given).dtype == np.float32
    assert given.tolist() == [1, 3]
    half.finish(given, 7)
    assert given.tolist() == [1, 3]
    assert parse_reduction(premul_sum(2), np.dtype("int8")) == Reduction("premul_sum", 2.0)
    assert parse_reduction("Premul_Sum:2", np.dtype("int8")) == Reduction("premul_sum", 2.0)


@pytest.mark.parametrize(
    ("op", "dtype", "says"),
    [
        ("avg", "bool", "not defined on bool"),
        (premul_sum(2), "bool", "not defined on bool"),
        ("premul_sum", "float32", "needs its factor"),
        ("premul_sum:x", "float32", "expected a number behind the colon"),
        ("sum:2", "float32", "unknown reduction 'sum:2'"),
        (premul_sum(0.5), "int32", "needs a whole factor on int32"),
        ("average", "float32", "did you mean 'avg'?"),
        ("nosuch", "int8", "valid: avg, band"),
        (Reduction("sum", 2.0), "float32", "'sum' takes no factor, got 2.0; only premul_sum"),
        (Reduction("avg", 1), "float32", "'avg' takes no factor"),
        (Reduction("premul_sum", "a"), "float32", "needs a finite number as its factor, got 'a'"),
        (
            Reduction("premul_sum", float("inf")),
            "int32",
            "needs a finite number as its factor, got inf",
        ),
        (Reduction("premul_sum", True), "float32", "needs a finite number as its factor, got True"),
    ],
)
def test_reductions_that_are_refused(op, dtype, says):
    with pytest.raises(ConfigError) as error:
        parse_reduction(op, parse_dtype(dtype))
    assert says in str(error.value)


@pytest.mark.parametrize(
    "factor",
    [10**400, -(10**400), 10**5000, float("nan"), np.float64("inf"), True, "2", None, 1j],
    ids=list("abcdefghi"),
)
def test_factors_that_are_no_finite_number(factor):
    with pytest.raises(ConfigError, match="premul_sum needs a finite number as its factor, got "):
        premul_sum(factor)
