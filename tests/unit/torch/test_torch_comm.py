"""How torch.cuda.comm cuts and groups tensors: torch itself is the oracle, on the CPU."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simcoll.cuda_comm import DeviceArray, broadcast_coalesced, gather, scatter
from simcoll.cuda_comm.emulated_devices import buckets
from tests.support.deferred import Deferred, needs_torch

torch = Deferred("torch")
pytestmark = needs_torch

SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)


def outcome(call):
    """The chunks, or the kind of error."""
    try:
        return [np.asarray(chunk).tolist() for chunk in call()]
    except (RuntimeError, IndexError) as error:
        return type(error)


def numbers(shape):
    return np.arange(int(np.prod(shape)), dtype="float32").reshape(shape)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(SHAPES, st.integers(-4, 3), st.integers(1, 6))
def test_equal_chunks_are_those_of_torch_chunk(shape, dim, count):
    values = numbers(shape)
    ours = outcome(lambda: [chunk.array for chunk in scatter(values, range(count), dim=dim)])
    assert ours == outcome(lambda: torch.from_numpy(values).chunk(count, dim))


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    SHAPES, st.integers(-4, 3), st.lists(st.integers(-1, 5), min_size=1, max_size=4), st.booleans()
)
def test_given_chunks_are_those_of_torch_split(shape, dim, sizes, fits):
    if fits and -len(shape) <= dim < len(shape):  # else hardly any would
        rest = shape[dim]
        sizes = [min(max(size, 0), rest) for size in sizes]
        for index, size in enumerate(sizes):
            sizes[index] = min(size, rest)
            rest -= sizes[index]
        sizes[-1] += rest
    values = numbers(shape)
    ours = outcome(
        lambda: [chunk.array for chunk in scatter(values, range(len(sizes)), sizes, dim)]
    )
    assert ours == outcome(lambda: torch.from_numpy(values).split_with_sizes(sizes, dim))


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(SHAPES, st.integers(-4, 3), st.integers(1, 4))
def test_gather_is_torch_cat(shape, dim, count):
    assume(shape != (0,))  # torch.cat leaves out what is empty, whatever the dimension
    parts = [np.asarray(numbers(shape) + 100 * index) for index in range(count)]
    ours = outcome(
        lambda: [gather([DeviceArray(part, index) for index, part in enumerate(parts)], dim, "cpu")]
    )
    theirs = outcome(lambda: [torch.cat([torch.from_numpy(part) for part in parts], dim)])
    # Of scalars torch.cat says it otherwise.
    assert ours == theirs or (not shape and IndexError in (ours, theirs))


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["float32", "int64", "int8"])), max_size=8
    ),
    st.integers(1, 60),
)
def test_buffers_hold_what_torch_puts_into_them(tensors, size):
    arrays = [np.full(length, index, dtype) for index, (length, dtype) in enumerate(tensors)]
    tensors = [torch.from_numpy(array) for array in arrays]
    groups = torch._utils._take_tensors(tensors, size)
    theirs = [
        [next(i for i, tensor in enumerate(tensors) if tensor is own) for own in group]
        for group in groups
    ]
    assert sorted(buckets(arrays, size)) == sorted(theirs)
    copies = broadcast_coalesced([DeviceArray(array, 0) for array in arrays], [0, 1], size)[1]
    assert [copy.array.tolist() for copy in copies] == [array.tolist() for array in arrays]
