"""Reduction operators on every dtype."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import simcoll.distributed as dist

OP = dist.ReduceOp
FLOATS = ["float16", "float32", "float64", ml_dtypes.bfloat16]
INTS = ["int8", "uint8", "int32", "int64", "int16", "uint16"]


def run(program, nprocs=2, **kw):
    return dist.spawn(program, nprocs, **kw).returns


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"], ids=str)
@pytest.mark.parametrize(
    ("name", "function"),
    [("SUM", np.add), ("PRODUCT", np.multiply), ("MIN", np.minimum), ("MAX", np.maximum)],
)
def test_arithmetic(dtype, name, function):
    """RO-01 RO-02: SUM, PRODUCT, MIN and MAX on all dtypes (16-bit integers too), in all four
    reducing collectives.
    """

    def program(rank, world_size):
        def values(r):
            return np.array([r + 1, 3, 5 - r], dtype)

        want = function(values(0), values(1))
        x, y, part, other = values(rank), values(rank), np.zeros(3, dtype), np.zeros(3, dtype)
        kw = {"op": getattr(OP, name)}
        dist.all_reduce(x, **kw)
        dist.reduce(y, 0, **kw)
        dist.reduce_scatter(part, [values(rank)] * 2, **kw)
        dist.reduce_scatter_tensor(other, np.concatenate([values(rank)] * 2), **kw)
        return [(each == want).all() for each in (x, y if rank == 0 else x, part, other)]

    assert np.all(run(program))


@pytest.mark.parametrize(
    ("name", "function"),
    [("BAND", np.bitwise_and), ("BOR", np.bitwise_or), ("BXOR", np.bitwise_xor)],
)
def test_bits(name, function):
    """RO-03: on whole numbers and bool; RuntimeError on others."""

    def program(rank, world_size):
        op = getattr(OP, name)
        with pytest.raises(
            RuntimeError, match=rf"Cannot use ReduceOp.{name} with non-integral dtype"
        ):
            dist.all_reduce(np.ones(1), op=op)
        results = []
        for values in ([6, 3], [True, False]):
            x = np.array([values[rank]])
            dist.all_reduce(x, op=op)
            results.append(x[0] == function(*values))
        return results

    assert np.all(run(program))


def test_bool():
    """RO-04: SUM and MAX are or, PRODUCT and MIN are and, BXOR is xor; 256 ranks do not wrap."""

    def program(rank, world_size):
        got = {}
        for name in ("SUM", "MAX", "PRODUCT", "MIN", "BXOR"):
            x = np.array([True, rank > 0, False])
            dist.all_reduce(x, op=getattr(OP, name))
            got[name] = x.tolist()
        return got

    wide, both = [True, True, False], [True, False, False]
    assert run(program, 3)[0] == {
        "SUM": wide,
        "MAX": wide,
        "PRODUCT": both,
        "MIN": both,
        "BXOR": [True, False, False],
    }

    def many(rank, world_size):
        x = np.array([True])
        dist.all_reduce(x)
        return bool(x[0])

    assert run(many, 256) == (True,) * 256


def test_avg():
    """RO-05: on floats and complex numbers; whole numbers are cut off, as NCCL does; not on
    bool.
    """

    def program(rank, world_size):
        values = [np.array([rank + 1.0]), np.array([1j * rank]), np.array([-(rank + 1)])]
        for x in values:
            dist.all_reduce(x, op=OP.AVG)
        with pytest.raises(RuntimeError, match="bool"):
            dist.all_reduce(np.array([True]), op=OP.AVG)
        return [x[0] for x in values]

    assert run(program) == ([1.5, 0.5j, -1],) * 2


def test_premul_sum():
    """RO-07: every input times a factor, then summed; without a factor it is a TypeError."""

    def program(rank, world_size):
        x, y = np.array([rank + 1.0]), np.array([rank + 1])
        dist.all_reduce(x, op=dist.premul_sum(0.5))
        dist.all_reduce(y, op=dist.premul_sum(np.array([2.0])))
        with pytest.raises(TypeError, match="needs its factor"):
            dist.all_reduce(x, op=OP.PREMUL_SUM)
        with pytest.raises(RuntimeError, match="whole factor"):
            dist.all_reduce(y, op=dist.premul_sum(0.5))
        zeros = np.ones(1), np.ones(1)
        for zero, factor in zip(zeros, (0.0, -0.0), strict=True):  # equal, but not the same factor
            dist.all_reduce(zero, op=dist.premul_sum(factor))
        return float(x[0]), int(y[0]), [bool(np.signbit(zero[0])) for zero in zeros]

    assert run(program, 3) == ((3.0, 12, [False, True]),) * 3


def test_reduce_op_class():
    """RO-09 RO-10 SIG-24: values are ReduceOps, compare, copy and pickle; reduce_op is
    deprecated.
    """
    assert isinstance(OP.SUM, OP)
    assert OP(OP.SUM) == OP.SUM == pickle.loads(pickle.dumps(OP.SUM)) == copy.deepcopy(OP.SUM)
    assert OP.SUM != OP.MAX
    with pytest.raises(AttributeError):
        OP.__members__
    with pytest.warns(FutureWarning, match="reduce_op` is deprecated"):
        assert dist.reduce_op.SUM == OP.SUM


def test_op_must_be_a_reduce_op():
    """RO-11: text is a TypeError."""

    def program(rank, world_size):
        for call in (dist.all_reduce, lambda x, op: dist.reduce(x, 0, op)):
            with pytest.raises(TypeError, match="op must be a ReduceOp"):
                call(np.ones(1), op="sum")

    run(program)
