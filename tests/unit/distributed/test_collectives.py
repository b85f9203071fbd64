"""What collectives do to their tensors, the documentation's examples, and wrong arguments.

Numbers of examples are those of the torch.distributed documentation, and of the reduce_scatter
example of the PyTorch forum.
"""

# ruff: noqa: B023  # the lambdas are called at once
from __future__ import annotations

import numpy as np
import pytest

import simcoll.distributed as dist

COMPLEX = np.complex64


def run(program, nprocs=2, **kw):
    return dist.spawn(program, nprocs, **kw).returns


def refused(kind, text, call):
    with pytest.raises(kind, match=text):
        call()


def test_broadcast():
    """BC-01 BC-02 BC-04 SIG-15: the source's data in every tensor, in place; shapes may differ;
    complex numbers.
    """

    def program(rank, world_size):
        x = (
            (np.arange(4).reshape(2, 2) * (1 + 1j)).astype(COMPLEX)
            if rank == 1
            else np.zeros(4, COMPLEX)
        )
        dist.broadcast(x, 1)
        return x.reshape(-1).tolist()

    assert run(program, 3) == ([0, 1 + 1j, 2 + 2j, 3 + 3j],) * 3


def test_roots():
    """BC-03 RD-02: exactly one of global and group rank; ValueError outside of the group,
    RuntimeError out of range.
    """

    def program(rank, world_size):
        x, group = np.ones(1), dist.new_group([1, 2])
        for call, name in ((dist.broadcast, "src"), (dist.reduce, "dst")):
            refused(
                ValueError, "Can't specify both", lambda: call(x, **{name: 0, f"group_{name}": 0})
            )
            refused(ValueError, "Must specify global_rank or group_rank", lambda: call(x))
            if rank:
                refused(
                    ValueError,
                    "Global rank 0 is not part of group",
                    lambda: call(x, 0, group=group),
                )
                refused(
                    RuntimeError,
                    "invalid root rank: 2",
                    lambda: call(x, group=group, **{f"group_{name}": 2}),
                )
        if rank:
            x += rank
            dist.broadcast(x, group=group, group_src=1)
        return float(x[0])

    assert run(program, 3) == (1.0, 3.0, 3.0)


def test_all_reduce():
    """AR-01 AR-02 AR-03 SIG-16: the documentation's int64 and complex examples; in place, the same
    bits everywhere.
    """

    def program(rank, world_size):
        x = np.arange(2) + 1 + 2 * rank
        y = (np.array([1 + 1j, 2 + 2j]) + 2 * rank * (1 + 1j)).astype(COMPLEX)
        rough = np.random.default_rng(rank).normal(size=100).astype(np.float32)
        for each in (x, y, rough):
            dist.all_reduce(each)
        return x.tolist(), y.tolist(), rough.tobytes()

    (x, y, rough), other = run(program)
    assert (x, y) == ([4, 6], [4 + 4j, 6 + 6j])
    assert other == (x, y, rough)


def test_complex_numbers_have_no_order():
    """AR-04 RD-03 RO-08: SUM and AVG only; ValueError from all_reduce, RuntimeError from the
    others.
    """

    def program(rank, world_size):
        x = np.ones(2, COMPLEX)
        for op in ("MAX", "MIN", "PRODUCT", "BAND"):
            kw = {"op": getattr(dist.ReduceOp, op)}
            refused(
                ValueError,
                f"all_reduce does not support RedOpType.{op} on complex tensors",
                lambda: dist.all_reduce(x, **kw),
            )
            refused(RuntimeError, "reduce does not support", lambda: dist.reduce(x, 0, **kw))
            refused(
                RuntimeError,
                "reduce_scatter does not support",
                lambda: dist.reduce_scatter(x, [x, x], **kw),
            )
        dist.reduce(x, 0)
        return x.tolist()

    assert run(program) == ([2, 2], [1, 1])


def test_views_scalars_and_empty_arrays():
    """AR-05 AR-06: rows, columns and strided views in place; 0-d and empty arrays."""

    def program(rank, world_size):
        matrix = np.arange(9.0).reshape(3, 3)
        dist.all_reduce(matrix[1])
        dist.all_reduce(matrix[:, 0])
        scalar, empty = np.array(2.0), np.zeros((0, 3))
        dist.all_reduce(scalar)
        dist.all_reduce(empty)
        return matrix.tolist(), float(scalar)

    assert run(program) == (([[0, 1, 2], [12, 8, 10], [12, 7, 8]], 4.0),) * 2


def test_integers_wrap():
    """AR-08: sums of whole numbers wrap around."""

    def program(rank, world_size):
        values = [
            np.array([2**31 - 1], np.int32),
            np.array([200], np.uint8),
            np.array([100], np.int8),
        ]
        dist.all_reduce(values[0])
        dist.all_reduce(values[1])
        dist.all_reduce(values[2], op=dist.ReduceOp.PRODUCT)
        return [int(value[0]) for value in values]

    assert run(program, 3) == ([2147483645, 88, 64],) * 3


class Tensor:
    """What a torch tensor with requires_grad looks like from here."""

    def __init__(self, array):
        self.array = array
        self.requires_grad = True

    def detach(self):
        return self.array


def test_tensors_that_record_gradients():
    """AR-09: the value changes, the object stays as it is."""

    def program(rank, world_size):
        x = Tensor(np.ones(2))
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert work.result() == [x]
        return x.array.tolist(), x.requires_grad

    assert run(program) == (([2.0, 2.0], True),) * 2


def test_memory_of_others():
    def program(rank, world_size):
        import array

        class Exchanged:
            """Has DLPack, and nothing else."""

            def __init__(self, data):
                self.data = data

            def __dlpack__(self, **kw):
                return self.data.__dlpack__(**kw)

            def __dlpack_device__(self):
                return self.data.__dlpack_device__()

        x, y = array.array("d", [1.0, 2.0]), bytearray(b"\x01\x02")
        z = np.ones(2)
        dist.all_reduce(Exchanged(z))
        assert z.tolist() == [2.0, 2.0]
        dist.all_reduce(x)
        dist.all_reduce(y)
        refused(RuntimeError, "read-only", lambda: dist.all_reduce(b"ab"))
        refused(
            TypeError,
            "Expected parameter `tensor` of type torch.Tensor but got <class 'object'>",
            lambda: dist.all_reduce(object()),
        )
        return x.tolist(), bytes(y)

    assert run(program) == (([2.0, 4.0], b"\x02\x04"),) * 2


def test_reduce():
    """RD-01: only the destination changes."""

    def program(rank, world_size):
        x = np.array([rank + 1])
        dist.reduce(x, 1)
        return int(x[0])

    assert run(program, 3) == (1, 6, 3)


def test_all_gather():
    """AG-01 AG-02 AG-04 RS-04 SIG-17: the examples; group order; the input stays, outputs are
    written in place.
    """

    def program(rank, world_size):
        x = np.arange(2) + 1 + 2 * rank
        outs = [np.zeros(2, int) for _ in range(2)]
        kept = list(outs)
        dist.all_gather(outs, x)
        y = (x * (1 + 1j)).astype(COMPLEX)
        many = [np.zeros(2, COMPLEX) for _ in range(2)]
        dist.all_gather(many, y)
        three = [np.zeros(3, int) for _ in range(2)]
        dist.all_gather(three, np.arange(3) + 3 * rank)
        assert all(a is b for a, b in zip(outs, kept, strict=True))
        assert x.tolist() == [1 + 2 * rank, 2 + 2 * rank]
        return [o.tolist() for o in outs], [o.tolist() for o in many], [o.tolist() for o in three]

    expected = ([[1, 2], [3, 4]], [[1 + 1j, 2 + 2j], [3 + 3j, 4 + 4j]], [[0, 1, 2], [3, 4, 5]])
    assert run(program) == (expected, expected)


def test_uneven_all_gather():
    """AG-03 AG-06: rank k gives k + 1 elements; an output may have another shape of the same
    size.
    """

    def program(rank, world_size):
        outs = [np.zeros(k + 1) for k in range(world_size - 1)] + [np.zeros((1, world_size))]
        dist.all_gather(outs, np.full(rank + 1, float(rank)))
        return [o.reshape(-1).tolist() for o in outs]

    assert run(program, 4) == ([[0], [1, 1], [2, 2, 2], [3, 3, 3, 3]],) * 4


def test_wrong_lists():
    """AG-05 RS-06 AA-04 SC-06 IN-01: lists must be lists of the right length and dtype."""

    def program(rank, world_size):
        x, ok = np.ones(2), [np.ones(2), np.ones(2)]
        for call in (dist.all_gather, dist.all_to_all):
            other = x if call is dist.all_gather else ok
            refused(TypeError, "List", lambda: call((x, x), other))
            refused(
                RuntimeError, "list size 1 does not match world size 2", lambda: call([x], other)
            )
            refused(
                ValueError,
                "Invalid usage of tensors with different dtypes",
                lambda: call([x, np.ones(2, int)], other),
            )
        refused(
            RuntimeError,
            "invalid tensor size at index",
            lambda: dist.all_gather([np.ones(3), np.ones(3)], x),
        )
        refused(
            RuntimeError,
            "invalid input tensor list size, must be world size",
            lambda: dist.reduce_scatter(x, [x]),
        )
        refused(
            RuntimeError,
            "output tensor has",
            lambda: dist.reduce_scatter(x, [np.ones(3), np.ones(3)]),
        )
        if rank == 0:
            refused(
                RuntimeError,
                "Incorrect input list size 1. Input list size should be 2",
                lambda: dist.scatter(x, [x]),
            )

    run(program)


@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=["concat", "stack"])
def test_all_gather_into_tensor(shape):
    """AT-01 AT-02 AT-05: concatenated or stacked; complex."""

    def program(rank, world_size):
        out = np.zeros(shape, int)
        dist.all_gather_into_tensor(out, np.arange(2) + 1 + 2 * rank)
        other = np.zeros(shape, COMPLEX)
        dist.all_gather_single(other, (np.arange(2) * 1j).astype(COMPLEX))
        return out.reshape(-1).tolist(), other.reshape(-1).tolist()

    assert run(program) == (([1, 2, 3, 4], [0, 1j, 0, 1j]),) * 2


def test_all_gather_into_tensor_wrong_and_aliased():
    """AT-03 AT-04 AT-06: sizes and dtypes must fit, on every rank; the input may be a part of the
    output.
    """

    def program(rank, world_size):
        refused(
            RuntimeError,
            "world_size times input",
            lambda: dist.all_gather_into_tensor(np.zeros(3), np.zeros(2)),
        )
        refused(
            RuntimeError,
            "same type",
            lambda: dist.all_gather_into_tensor(np.zeros(4), np.zeros(2, int)),
        )
        out = np.zeros(4)
        out[2 * rank : 2 * rank + 2] = rank + 1
        work = dist.all_gather_into_tensor(out, out[2 * rank : 2 * rank + 2], async_op=True)
        work.wait()
        size = 2 + rank
        refused(
            RuntimeError,
            "they differ in number of elements",
            lambda: dist.all_gather_into_tensor(np.zeros(2 * size), np.zeros(size)),
        )
        return out.tolist()

    assert run(program) == ([1, 1, 2, 2],) * 2


def test_gather():
    """GA-01 GA-02 GA-03 GA-04 GA-06 SIG-18: the list at the destination, default global rank 0,
    only there; complex too.
    """

    def program(rank, world_size):
        x = np.full(2, rank + 1, COMPLEX)
        if rank == 0:
            for wrong in (None, []):
                refused(
                    ValueError,
                    "must be specified on destination rank",
                    lambda: dist.gather(x, wrong),
                )
        else:
            refused(
                ValueError,
                "must NOT be specified on non-destination ranks",
                lambda: dist.gather(x, [x, x]),
            )
        refused(ValueError, "Can't specify both", lambda: dist.gather(x, None, 0, group_dst=0))
        outs = [np.zeros(2, COMPLEX) for _ in range(2)] if rank == 0 else None
        dist.gather(x, outs)
        group = dist.new_group([1])
        if rank == 1:
            refused(
                ValueError,
                "Global rank 0 is not part of group",
                lambda: dist.gather(x, None, group=group),
            )
        return outs and [o.tolist() for o in outs]

    assert run(program) == ([[1, 1], [2, 2]], None)


def test_uneven_gather_and_scatter():
    """GA-05 SC-05: all tensors must have the same size."""

    def program(rank, world_size):
        x = np.ones(1)
        if rank == 0:
            refused(RuntimeError, "same size", lambda: dist.gather(x, [np.zeros(1), np.zeros(2)]))
            refused(RuntimeError, "same size", lambda: dist.scatter(x, [np.zeros(1), np.zeros(2)]))

    run(program)


def test_scatter():
    """SC-01 SC-02 SC-03 SC-04 SIG-19: entry i to rank i, from global rank 0 by default; the list
    there only; complex.
    """

    def program(rank, world_size):
        x = np.zeros(2, COMPLEX)
        if rank == 0:
            refused(ValueError, "must be specified on source rank", lambda: dist.scatter(x))
        else:
            refused(
                ValueError,
                "must NOT be specified on non-source ranks",
                lambda: dist.scatter(x, [x, x]),
            )
        refused(ValueError, "Can't specify both", lambda: dist.scatter(x, None, 0, group_src=0))
        dist.scatter(x, [np.ones(2, COMPLEX), np.full(2, 5, COMPLEX)] if rank == 0 else None)
        return x.tolist()

    assert run(program) == ([1, 1], [5, 5])


def test_reduce_scatter():
    """RS-01 RS-02 RS-03 RS-05 SIG-20: both forum examples; entries of different sizes."""

    def program(rank, world_size):
        outs = []
        for base in (np.arange(10), np.arange(10) + 5 * rank):
            out = np.zeros(5, int)
            inputs = [base[:5].copy(), base[5:].copy()]
            dist.reduce_scatter(out, inputs)
            assert inputs[0].tolist() == base[:5].tolist()
            outs.append(out.tolist())
        odd = np.zeros(rank + 1)
        dist.reduce_scatter(odd, [np.ones(1), np.full(2, 7.0)])
        return [*outs, odd.tolist()]

    assert run(program) == (
        [[0, 2, 4, 6, 8], [5, 7, 9, 11, 13], [2.0]],
        [[10, 12, 14, 16, 18], [15, 17, 19, 21, 23], [14.0, 14.0]],
    )


def test_gradient_of_all_gather():
    """RS-07: the gradient of an all_gather is the reduce_scatter of the gradients."""

    def program(rank, world_size):
        # D loss / d gathered.
        weight = np.arange(1.0, 1 + 2 * world_size).reshape(world_size, 2) * (rank + 1)
        gradient = np.zeros(2)
        dist.reduce_scatter(gradient, list(weight))
        return gradient.tolist()

    assert run(program) == ([3.0, 6.0], [9.0, 12.0])


@pytest.mark.parametrize("stack", [False, True])
def test_reduce_scatter_tensor(stack):
    """RT-01 RT-02 RT-03 RT-04: concatenated or stacked; the input stays; sizes and dtypes must
    fit.
    """

    def program(rank, world_size):
        whole, out = np.arange(4).reshape((2, 2) if stack else 4), np.zeros(2, int)
        dist.reduce_scatter_tensor(out, whole)
        assert whole.reshape(-1).tolist() == [0, 1, 2, 3]
        refused(
            RuntimeError,
            "world_size times output",
            lambda: dist.reduce_scatter_tensor(np.zeros(3), np.zeros(4)),
        )
        refused(RuntimeError, "same type", lambda: dist.reduce_scatter_tensor(np.zeros(2), whole))
        return out.tolist()

    assert run(program) == ([0, 2], [4, 6])


def test_all_to_all_single():
    """A1-01 A1-03 A1-08 SIG-21: the equal and complex examples of four ranks, which equal a loop of
    scatters.
    """

    def program(rank, world_size):
        x = np.arange(4) + 4 * rank
        out, loop = np.zeros(4, int), np.zeros(4, int)
        dist.all_to_all_single(out, x)
        for src in range(4):
            part = loop[src : src + 1]
            dist.scatter(part, list(x.reshape(4, 1)) if rank == src else None, src)
        many = np.zeros(4, COMPLEX)
        dist.all_to_all_single(many, (x * (1 + 1j)).astype(COMPLEX))
        assert (many == out * (1 + 1j)).all()
        return out.tolist(), loop.tolist()

    assert run(program, 4) == tuple(([r, 4 + r, 8 + r, 12 + r],) * 2 for r in range(4))


UNEVEN_INPUT = ([0, 1, 2, 3, 4, 5], list(range(10, 19)), list(range(20, 25)), list(range(30, 37)))
UNEVEN_SPLITS = ([2, 2, 1, 1], [3, 2, 2, 2], [2, 1, 1, 1], [2, 2, 2, 1])
UNEVEN_OUTPUT = (
    [0, 1, 10, 11, 12, 20, 21, 30, 31],
    [2, 3, 13, 14, 22, 32, 33],
    [4, 15, 16, 23, 34, 35],
    [5, 17, 18, 24, 36],
)


@pytest.mark.parametrize("lists", [False, True])
def test_uneven_all_to_all(lists):
    """A1-02 AA-02: the documentation's uneven example, with splits and with lists."""

    def program(rank, world_size):
        x, isplit = np.array(UNEVEN_INPUT[rank]), UNEVEN_SPLITS[rank]
        osplit = [UNEVEN_SPLITS[src][rank] for src in range(4)]
        out = np.zeros(sum(osplit), int)
        if lists:
            outs = np.split(out, np.cumsum(osplit)[:-1])
            dist.all_to_all(list(outs), np.split(x, np.cumsum(isplit)[:-1]))
        else:
            dist.all_to_all_single(out, x, osplit, isplit)
        return out.tolist()

    assert run(program, 4) == UNEVEN_OUTPUT


def test_splits():
    """A1-04 A1-05 A1-06 A1-09: they must divide, count and sum; zeros are fine; trailing dimensions
    stay; contiguous arrays.
    """

    def program(rank, world_size):
        single = dist.all_to_all_single
        refused(
            RuntimeError,
            "does not divide equally across group size",
            lambda: single(np.zeros(3), np.zeros(3)),
        )
        refused(
            RuntimeError,
            "does not divide equally",
            lambda: single(np.zeros(3), np.zeros(3), [1, 2]),
        )
        refused(
            RuntimeError,
            "Number of tensor splits not equal to group size",
            lambda: single(np.zeros(3), np.zeros(3), [3], [1, 2]),
        )
        refused(
            RuntimeError,
            "doesn't match total dim 0 size",
            lambda: single(np.zeros(3), np.zeros(3), [1, 1], [1, 2]),
        )
        refused(
            ValueError,
            "Tensors must be contiguous",
            lambda: single(np.zeros((2, 2)), np.zeros((2, 2)).T),
        )
        x = np.arange(4.0).reshape(2, 2) + 10 * rank
        out = np.zeros((4, 2)) if rank else np.zeros((0, 2))
        dist.all_to_all_single(out, x, [2, 2] if rank else [0, 0], [0, 2])
        return out.tolist(), x[0, 0]

    assert run(program) == (([], 0.0), ([[0, 1], [2, 3], [10, 11], [12, 13]], 10.0))


def test_splits_that_disagree():
    """A1-07: every rank is told which pair does not agree."""

    def program(rank, world_size):
        splits = ([1, 1], [1, 1]) if rank == 0 else ([2, 0], [1, 1])
        refused(
            RuntimeError,
            "rank 0 sends 1 elements to rank 1, which expects 2",
            lambda: dist.all_to_all_single(np.zeros(2), np.zeros(2), *splits),
        )

    run(program)


def test_all_to_all():
    """AA-01 AA-03: the documentation's list example, with whole and complex numbers."""

    def program(rank, world_size):
        x = np.arange(4) + 4 * rank
        outs = [np.zeros(1, int) for _ in range(4)]
        dist.all_to_all(outs, list(x.reshape(4, 1)))
        many = [np.zeros(1, COMPLEX) for _ in range(4)]
        dist.all_to_all(many, [np.array([v * (1 + 1j)], COMPLEX) for v in x])
        assert [complex(m[0]) for m in many] == [int(o[0]) * (1 + 1j) for o in outs]
        return [int(o[0]) for o in outs]

    assert run(program, 4) == tuple([r, 4 + r, 8 + r, 12 + r] for r in range(4))


def test_barrier():
    """BA-01 BA-02 BA-03 SIG-22: nobody leaves before all have entered; as a Work too; device_ids
    are ignored.
    """

    def program(rank, world_size):
        if rank == 2:
            dist.compute(0.8)
        dist.barrier(device_ids=[0])
        left = dist.emulated_time()
        if rank == 1:
            dist.compute(1.0)
        dist.barrier(async_op=True, device_ids=0).wait()
        return left, dist.emulated_time()

    for left, last in run(program, 5):
        assert 0.8 <= left < 0.81
        assert 1.8 <= last < 1.81


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_all_collectives_at_awkward_sizes(n, count):
    def program(rank, world_size):
        base = np.arange(count * n, dtype=np.int64) + 1000 * rank
        total = sum(np.arange(count * n, dtype=np.int64) + 1000 * r for r in range(n))
        x, part, whole = base.copy(), np.zeros(count, np.int64), np.zeros(count * n, np.int64)
        dist.all_reduce(x)
        assert (x == total).all()
        dist.reduce_scatter_tensor(part, base)
        assert (part == total[count * rank : count * (rank + 1)]).all()
        dist.all_gather_into_tensor(whole, part)
        assert (whole == total).all()
        for root in range(n):
            y = base.copy()
            dist.broadcast(y, root)
            assert (y == np.arange(count * n) + 1000 * root).all()
            dist.reduce(y, root)
            assert rank != root or (y == n * (np.arange(count * n) + 1000 * root)).all()
            parts = [np.zeros(count, np.int64) for _ in range(n)] if rank == root else None
            dist.gather(part, parts, root)
            dist.scatter(part, parts, root)
            assert (part == total[count * rank : count * (rank + 1)]).all()

    run(program, n)
