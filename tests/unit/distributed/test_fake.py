"""Fake arrays, and runs that are only timed."""

import numpy as np
import pytest

import simcoll.distributed as dist
from simcoll.errors import ConfigError


def every_call(rank, world_size, make):
    """Collectives, asynchronous work, messages and objects, on tensors from ``make``."""
    x, whole = make(1 << 12), make((world_size, 1 << 12))
    dist.all_reduce(x)
    work = dist.broadcast(x, src=2, async_op=True)
    dist.compute("3 us")
    work.wait()
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(x, whole)
    dist.all_to_all_single(whole, whole)
    dist.gather(x, list(whole) if rank == 0 else None)
    if rank == 0:
        dist.send(x, 3)
    elif rank == 3:
        dist.recv(x, 0)
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(world_size)]


@pytest.mark.slow
def test_fake_arrays_take_the_same_time_as_real_ones():
    real = dist.spawn(
        every_call, 4, args=(lambda shape: np.ones(shape, np.float32),), topology="dgx-h100"
    )
    for options in ({}, {"data": "none"}):
        fake = dist.spawn(every_call, 4, args=(dist.fake_array,), topology="dgx-h100", **options)
        assert (fake.trace_hash, fake.finish_fs) == (real.trace_hash, real.finish_fs)


def test_a_timed_run_leaves_tensors_alone():
    def program(rank, world_size):
        x = np.full(8, rank, np.float64)
        dist.all_reduce(x)
        return x.tolist()

    assert dist.spawn(program, 3, data="none").returns == ([0.0] * 8, [1.0] * 8, [2.0] * 8)


def test_a_fake_tensor_meets_only_fake_ones():
    def collective(rank, world_size):
        dist.all_reduce(dist.fake_array(4) if rank == 2 else np.ones(4, np.float32))

    with pytest.raises(RuntimeError, match="they differ in whether tensors are fake"):
        dist.spawn(collective, 3)

    def message(rank, world_size):
        if rank:
            dist.recv(np.ones(4, np.float32), 0)
        else:
            dist.send(dist.fake_array(4), 1)

    with pytest.raises(RuntimeError, match="the tensor of rank 0 is fake, that of rank 1 has data"):
        dist.spawn(message, 2)


def test_gibibytes_of_tensors_need_no_memory():
    def program(rank, world_size):
        gradients = dist.fake_array(1 << 33, "bfloat16")
        dist.all_reduce(gradients)
        return gradients.nbytes

    result = dist.spawn(program, 8, topology="dgx-h100", data="none")
    assert result.returns == (1 << 34,) * 8
    # A ring at 450 GB/s takes at least 2 (n - 1) / n of the size over the rate.
    assert result.time > 2 * 7 / 8 * (1 << 34) / 450e9


def test_arithmetic_of_fake_arrays_gives_shapes():
    one, other = dist.fake_array((4, 1), "float16"), dist.fake_array((3,), "float32")
    assert ((one + other).shape, (one + other).dtype) == ((4, 3), np.float32)
    assert (one > 0).dtype == np.bool_
    one *= 2
    assert type(one) is type(other)
    for function in (np.sum, np.concatenate, np.linalg.norm):
        with pytest.raises(TypeError, match="a fake array has no elements"):
            function(one)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: dist.fake_array(-1), "expected sizes of 0 or more"),
        (lambda: dist.fake_array(4, "flaot32"), "did you mean 'float32'"),
        (lambda: dist.spawn(every_call, 2, data="fake"), "valid: exact, none"),
        (lambda: dist.spawn(every_call, 2, data="none", backend="mpi"), "are for the emulator"),
    ],
)
def test_errors(wrong, said):
    with pytest.raises(ConfigError, match=said):
        wrong()
