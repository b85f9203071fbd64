"""Generated inputs are exact in any order; expected outputs are the definition."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from simcoll.binding import bind
from simcoll.core.collective import Collective
from simcoll.core.reduction import REDUCTIONS, Reduction, combine, premul_sum
from simcoll.core.reference import count_wrong, exact_inputs, expected_outputs
from simcoll.core.schedule import Layout, Schedule
from simcoll.errors import ConfigError

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
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


def plan_of(collective, count, dtype="float32", op="sum"):
    return bind(
        Schedule("none", Layout(collective), lambda: iter(())), count, dtype, op, unproved=True
    )


def combined(op, parts, rng):
    """The parts as one by a random tree: any two in each turn, in either order."""
    while len(parts) > 1:
        taken = parts.pop(rng.randrange(len(parts)))
        combine(op, rng.choice(parts), taken)
    return parts[0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 5, 16, 300])
def test_any_order_and_any_tree_gives_the_same_bits(dtype, n):
    for op in REDUCTIONS:
        try:
            plan = plan_of(Collective("all_reduce", n), 33, dtype, op)
        except ConfigError:
            continue
        inputs = exact_inputs(plan, seed=3)
        expected = expected_outputs(plan, inputs)[0]
        assert expected.dtype == plan.dtype, op
        rng = random.Random(n)
        for _ in range(4):
            found = combined(op, [part.copy() for part in inputs], rng)
            assert np.array_equal(found, expected), op
            # There the sign of an imaginary zero depends on the order.
            if not (op == "product" and plan.dtype.kind == "c"):
                assert found.tobytes() == expected.tobytes(), op
        # Some order-free data proves nothing: the result must depend on what ranks give.
        assert len({part.tobytes() for part in inputs[:2]}) == 2, op


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_average_and_scaling(dtype, n):
    for op, expect in (
        ("avg", lambda total: np.trunc(total / n)),
        (premul_sum(3), lambda total: 3 * total),
    ):
        plan = plan_of(Collective("reduce_scatter", n), 4, dtype, op)
        inputs = [(np.arange(4 * n) % 7 + r - 3).astype(plan.dtype) for r in range(n)]
        total = np.sum([a.astype(np.float64) for a in inputs], axis=0)
        wanted = expect(total) if dtype == "int32" or op != "avg" else total / n
        got = expected_outputs(plan, inputs)
        assert np.array_equal(np.concatenate(got), wanted.astype(plan.dtype))


FACTORS = (0.3, -0.1, 0.5, 3, 7, -11, 448, 60000, 1e-30, 1e300, 1.7e308, 0)
FLOATS = [name for name in DTYPES if name.startswith(("float", "bfloat", "complex"))]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [2, 7, 8, 21])
def test_scaled_sums_are_exact_in_any_order(dtype, n):
    for factor in FACTORS:
        try:
            plan = plan_of(Collective("all_reduce", n), 64, dtype, premul_sum(factor))
        except ConfigError:
            continue
        inputs = exact_inputs(plan, seed=3)
        expected = expected_outputs(plan, inputs)[0]
        kept = Fraction(complex(plan.dtype.type(factor)).real)
        true = [sum(Fraction(complex(part[i]).real) for part in inputs) * kept for i in range(64)]
        assert [Fraction(complex(value).real) for value in expected] == true, factor
        rng = random.Random(n)
        for _ in range(4):
            found = combined("sum", [plan.reduction.prepared(part) for part in inputs], rng)
            assert np.array_equal(found, expected), factor
        # The contribution of no rank may be left out unseen, unless the dtype makes the factor 0.
        if kept:
            rest = [expected - plan.reduction.prepared(part) for part in inputs]
            assert not any(np.array_equal(expected, without) for without in rest), factor


@pytest.mark.parametrize("n", [7, 14, 300])
def test_every_rank_contributes_somewhere(n):
    inputs = exact_inputs(plan_of(Collective("all_reduce", n), 4 * n, "float8_e4m3fn"))
    assert all((part != 0).any() for part in inputs)


# By hand: 16/17 = 0.941 is between 0.9375 and 1; 8/241 = 0.033195 between 2**-5 and 1.125 * 2**-5,
# below their middle 0.033203.
@pytest.mark.parametrize(
    ("dtype", "n", "ones", "expected"),
    [
        ("float8_e4m3fn", 17, 16, 0.9375),
        ("float8_e4m3fnuz", 241, 8, 2**-5),
        ("float8_e4m3fn", 512, 8, 2**-6),
        ("bfloat16", 257, 256, 255 / 256),
        ("float16", 2049, 2048, 2047 / 2048),
    ],
)
def test_averages_of_many_ranks(dtype, n, ones, expected):
    plan = plan_of(Collective("all_reduce", n), 1, dtype, "avg")
    inputs = [np.full(1, rank < ones, plan.dtype) for rank in range(n)]
    total = np.full(1, ones, plan.dtype)
    plan.reduction.finish(total, n)
    assert expected_outputs(plan, inputs)[0].tolist() == total.tolist() == [expected]


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "uint64", "complex64"]
)
def test_the_average_of_the_oracle_is_its_own(dtype, monkeypatch):
    plan = plan_of(Collective("all_reduce", 5), 64, dtype, "avg")
    inputs = exact_inputs(plan)
    expected = expected_outputs(plan, inputs)[0]
    monkeypatch.setattr(Reduction, "finish", lambda *_: None)
    assert expected_outputs(plan, inputs)[0].tobytes() == expected.tobytes()


def test_inputs_are_a_function_of_seed_rank_and_index():
    short, long = (
        exact_inputs(plan_of(Collective("all_reduce", 3), count), seed=1) for count in (10, 1000)
    )
    assert all(np.array_equal(a, b[:10]) for a, b in zip(short, long, strict=True))
    other = exact_inputs(plan_of(Collective("all_reduce", 3), 1000), seed=2)
    assert not any(np.array_equal(a, b) for a, b in zip(long, other, strict=True))
    wide = exact_inputs(plan_of(Collective("all_reduce", 3), 100, "int64"), seed=1)
    assert [int(a[0]) for a in wide] == [
        int(a[0]) for a in exact_inputs(plan_of(Collective("all_reduce", 3), 1, "int64"), seed=1)
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_definitions(n, count):
    def case(kind, **extra):
        plan = plan_of(Collective(kind, n, **extra), count, "int64")
        inputs = exact_inputs(plan)
        return inputs, expected_outputs(plan, inputs)

    def blocks(array):
        return array.reshape(n, count)

    for root in range(n):
        inputs, outputs = case("broadcast", root=root)
        assert [a.size for a in inputs] == [count if r == root else 0 for r in range(n)]
        assert all(np.array_equal(out, inputs[root]) for out in outputs)
        inputs, outputs = case("reduce", root=root)
        assert [out is None for out in outputs] == [r != root for r in range(n)]
        assert np.array_equal(outputs[root], np.sum(inputs, axis=0))
        inputs, outputs = case("gather", root=root)
        assert [out is None for out in outputs] == [r != root for r in range(n)]
        assert np.array_equal(outputs[root], np.concatenate(inputs))
        inputs, outputs = case("scatter", root=root)
        assert all(np.array_equal(out, blocks(inputs[root])[r]) for r, out in enumerate(outputs))
    inputs, outputs = case("all_reduce")
    assert all(np.array_equal(out, np.sum(inputs, axis=0)) for out in outputs)
    inputs, outputs = case("all_gather")
    assert all(np.array_equal(out, np.concatenate(inputs)) for out in outputs)
    inputs, outputs = case("reduce_scatter")
    assert all(
        np.array_equal(out, blocks(np.sum(inputs, axis=0))[r]) for r, out in enumerate(outputs)
    )
    inputs, outputs = case("all_to_all")
    assert all(
        np.array_equal(out, np.concatenate([blocks(a)[r] for a in inputs]))
        for r, out in enumerate(outputs)
    )
    inputs, outputs = case("send_recv", pairs=((0, n - 1),))
    assert all((out is None) == (r != n - 1) for r, out in enumerate(outputs))
    assert np.array_equal(outputs[n - 1], inputs[0])


def test_uneven_definitions():
    sizes = [3, 0, 5]
    for kind in ("all_gather", "gather"):
        plan = plan_of(Collective(kind, 3), sizes, "int16")
        inputs = exact_inputs(plan)
        assert [a.size for a in inputs] == sizes
        assert np.array_equal(expected_outputs(plan, inputs)[0], np.concatenate(inputs))
    for kind in ("reduce_scatter", "scatter"):
        plan = plan_of(Collective(kind, 3), sizes, "int16")
        inputs = exact_inputs(plan)
        whole = np.sum(inputs, axis=0, dtype=np.int16) if kind == "reduce_scatter" else inputs[0]
        got = expected_outputs(plan, inputs)
        assert [a.tolist() for a in got] == [a.tolist() for a in np.split(whole, [3, 3])]
    matrix = [[1, 2, 0], [4, 0, 3], [2, 2, 5]]
    plan = plan_of(Collective("all_to_all", 3), matrix, "int16")
    inputs = exact_inputs(plan)
    parts = [np.split(a, np.cumsum(row)[:-1]) for a, row in zip(inputs, matrix, strict=True)]
    for rank, got in enumerate(expected_outputs(plan, inputs)):
        assert np.array_equal(got, np.concatenate([parts[s][rank] for s in range(3)]))


def test_counting_wrong_elements():
    one, two = np.array([1, 2, 3]), np.array([1, 9, 9])
    assert count_wrong([one, one], [one, two]) == 2
    assert count_wrong([one, None], [one, two]) == 3
    assert count_wrong([one, one[:2]], [one, two]) == 3
    assert count_wrong([one, two], [one, None]) == 0
