"""Statements of PyTorch's documentation of torch.cuda.comm (2.8), and the messages of
torch/csrc/cuda/comm.cpp.
"""

import inspect
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from simcoll.cuda_comm import (
    DeviceArray,
    broadcast,
    broadcast_coalesced,
    gather,
    reduce_add,
    reduce_add_coalesced,
    scatter,
)


def on(device, values, dtype="float32"):
    return DeviceArray(np.array(values, dtype), device)


def lists(tensors):
    return [tensor.array.tolist() for tensor in tensors]


@pytest.mark.parametrize(
    ("length", "devices", "sizes"),
    [(7, 3, [3, 3, 1]), (5, 4, [2, 2, 1]), (8, 2, [4, 4]), (1, 3, [1])],
)
def test_scatter_cuts_equal_chunks_and_may_use_fewer_devices(length, devices, sizes):
    """CS-04 CS-05 CS-10 CS-21: chunks are those of torch.chunk, one a device in order; together
    they are the tensor.
    """
    chunks = scatter(np.arange(length), range(devices))
    assert [len(chunk.array) for chunk in chunks] == sizes
    assert [chunk.device for chunk in chunks] == list(range(len(sizes)))
    assert np.concatenate([chunk.array for chunk in chunks]).tolist() == list(range(length))


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("sizes", [None, [1, 4, 1], [0, 6, 0]])
def test_scatter_and_gather_undo_each_other_along_any_dimension(dim, sizes):
    """CS-07 CS-09 CS-11 CS-12 CS-21: any dimension, sizes of zero, names of devices, a device
    twice.
    """
    tensor = np.arange(6 * 6 * 6).reshape(6, 6, 6)
    chunks = scatter(tensor, ["cuda:2", "cuda:0", "cuda:2"], sizes, dim)
    assert [chunk.device for chunk in chunks] == [2, 0, 2]
    back = gather(chunks, dim, 1)
    assert back.device == 1
    assert np.array_equal(back.array, tensor)
    assert np.array_equal(gather(chunks, dim, "cpu"), tensor)


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "bool", "int8"])
def test_scatter_keeps_the_dtype(dtype):
    """CS-20: complex numbers stay complex."""
    kind = getattr(ml_dtypes, dtype, dtype)
    chunks = scatter(np.ones(3, kind), [0, 1])
    assert [chunk.array.dtype for chunk in chunks] == [np.dtype(kind)] * 2


def test_scatter_leaves_a_view_on_the_own_device():
    """CS-10 CS-13: no copy where the tensor already is."""
    tensor = on(1, [1, 2, 3, 4])
    first, second = scatter(tensor, [0, 1])
    assert np.shares_memory(second.array, tensor.array)
    assert not np.shares_memory(first.array, tensor.array)


def test_scatter_fills_out_and_returns_it():
    """CS-15: the tensors of out are filled by their sizes and returned."""
    out = [on(0, [0, 0, 0]), on(3, [0])]
    result = scatter(np.arange(4, dtype="float32"), out=out)
    assert result[0] is out[0]
    assert result[1] is out[1]
    assert lists(result) == [[0, 1, 2], [3]]


OUT = [DeviceArray(np.zeros(4, "float32"), 0)]
FOUR = np.zeros(4, "float32")


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: scatter(FOUR, [0], out=OUT),
            RuntimeError,
            "'devices' must not be specified when 'out' is specified",
        ),
        (
            lambda: scatter(FOUR, chunk_sizes=[4], out=OUT),
            RuntimeError,
            "'chunk_sizes' must not be specified when 'out'",
        ),
        (lambda: scatter(FOUR), TypeError, "needs 'devices' or 'out'"),
        (lambda: scatter(FOUR, []), RuntimeError, "Expected at least one device to scatter to"),
        (
            lambda: scatter(FOUR, out=[]),
            RuntimeError,
            "Expected at least one output tensor to scatter to",
        ),
        (
            lambda: scatter(FOUR, [0, 1, 2], [2, 2]),
            RuntimeError,
            r"len\(devices\) = 3 and len\(chunk_sizes\) = 2",
        ),
        (lambda: scatter(FOUR, [0, 1], [2, 3]), RuntimeError, "split_sizes to sum exactly to 4"),
        (lambda: scatter(FOUR, [0, 1], [-1, 5]), RuntimeError, "non-negative"),
        (lambda: scatter(FOUR, [0], dim=1), IndexError, "Dimension out of range"),
        (lambda: scatter(FOUR, ["cpu"]), ValueError, "Expected a non cpu device, but got: cpu"),
        (lambda: scatter(FOUR, ["cuda"]), ValueError, "specified index"),
        (lambda: scatter(FOUR, [-1]), RuntimeError, "Expected non-negative device index"),
        (
            lambda: scatter(FOUR, [0], streams=[SimpleNamespace(device=1)]),
            RuntimeError,
            r"index 0 \(was 1\).*expected 0",
        ),
        (
            lambda: scatter(FOUR, out=[FOUR]),
            RuntimeError,
            "output tensor at index 0 has device 'cpu'",
        ),
        (
            lambda: scatter(FOUR, out=[on(0, [[0]])]),
            RuntimeError,
            "Output tensor at index 0 has incorrect shape",
        ),
        (
            lambda: scatter(FOUR, out=[on(0, [0, 0, 0])]),
            RuntimeError,
            "Expected 4, but got total size 3",
        ),
        (lambda: broadcast(FOUR), RuntimeError, "Exactly one of 'devices' and 'out'"),
        (lambda: broadcast(FOUR, [0], out=OUT), RuntimeError, "Exactly one of 'devices' and 'out'"),
        (
            lambda: broadcast(FOUR, out=[on(0, [1])]),
            RuntimeError,
            "same shape as the source tensor",
        ),
        (
            lambda: broadcast(FOUR, out=[FOUR]),
            RuntimeError,
            "Expected all output tensors to be CUDA tensors",
        ),
        (
            lambda: broadcast_coalesced([on(1, [1])], [0, 1]),
            RuntimeError,
            r"must be on devices\[0\]",
        ),
        (
            lambda: reduce_add([on(0, [1]), FOUR]),
            AssertionError,
            "all inputs to be on GPUs, but input 1 is on CPU",
        ),
        (lambda: reduce_add([on(0, [1]), on(1, [1], "int64")]), ValueError, "input 1 is of int64"),
        (
            lambda: reduce_add_coalesced([[on(0, [1])], []]),
            ValueError,
            "as many tensors from every device",
        ),
        (
            lambda: scatter(np.float32(1), [0]),
            RuntimeError,
            "chunk expects at least a 1-dimensional tensor",
        ),
        (lambda: scatter(np.float32(1), out=OUT), IndexError, "tensor has no dimensions"),
        (
            lambda: gather([on(0, 1)]),
            IndexError,
            "Dimension specified as 0 but tensor has no dimensions",
        ),
        (lambda: reduce_add([on(0, [1]), on(1, [1, 2])]), ValueError, "input 1 has invalid size"),
        (
            lambda: reduce_add([on(1, [1]), on(2, [1])]),
            RuntimeError,
            "same GPU with one of the tensors",
        ),
        (lambda: gather([FOUR]), RuntimeError, "tensor at index 0 has device cpu$"),
        (lambda: gather([FOUR], out=FOUR), RuntimeError, "tensor at index 0 has device 'cpu'$"),
        (
            lambda: gather([on(0, [1]), on(1, [[1]])]),
            RuntimeError,
            "same number of dimensions, but tensor at index 1 has 2 dim",
        ),
        (
            lambda: gather([on(0, [[1, 2]]), on(1, [[1]])]),
            RuntimeError,
            r"index 1 has invalid shape \[1, 1\], but expected \[1, 2\]",
        ),
        (lambda: reduce_add([]), IndexError, "at least one tensor"),
        (
            lambda: gather(OUT, destination=0, out=OUT[0]),
            RuntimeError,
            "'destination' must not be specified",
        ),
    ],
)
def test_what_does_not_fit_is_refused_as_pytorch_does(call, error, said):
    """CS-01 CS-02 CS-03 CS-06 CS-07 CS-08 CS-09 CS-11 CS-14 CS-16 CS-17 CS-18 CS-19: each with its
    message.
    """
    with pytest.raises(error, match=said):
        call()


def test_what_pytorch_takes():
    """Without tensors there are no sums; gather converts to the type of the first; a stream counts
    only where a chunk moves.
    """
    assert reduce_add_coalesced([]) == ()
    whole = gather([on(0, [1, 2]), on(1, [3], "int64")])
    assert (whole.array.tolist(), whole.array.dtype) == ([1, 2, 3], np.float32)
    parts = scatter(on(0, [1, 2]), [0, 1], streams=[SimpleNamespace(device=5), None])
    assert [part.array.tolist() for part in parts] == [[1], [2]]


def test_gather_may_go_to_the_cpu():
    chunks = [on(0, [1, 2]), on(1, [3])]
    with pytest.warns(FutureWarning, match="-1 to represent CPU"):
        assert gather(chunks, destination=-1).tolist() == [1, 2, 3]
    out = np.zeros(3, "float32")
    assert gather(chunks, out=out) is out
    assert out.tolist() == [1, 2, 3]


def test_streams_may_be_fewer_and_none():
    """CS-14: None, and no stream at all, mean the default one."""
    assert len(scatter(FOUR, [0, 1], streams=[None])) == 2


def test_broadcast_copies_except_on_the_own_device():
    tensor = on(1, [[1, 2], [3, 4]])
    result = broadcast(tensor, [1, 0, 2])
    assert [copy.device for copy in result] == [1, 0, 2]
    assert lists(result) == [[[1, 2], [3, 4]]] * 3
    assert result[0].array is tensor.array
    out = [on(0, [0, 0]), on(1, [0, 0])]
    assert broadcast(np.array([5, 6], "float32"), out=out)[1] is out[1]
    assert lists(out) == [[5, 6], [5, 6]]


@pytest.mark.parametrize("buffer_size", [1, 12, 10485760])
def test_coalesced_forms_give_the_same_for_every_buffer(buffer_size):
    tensors = [on(0, [1, 2]), on(0, [[3]]), on(0, [4], "int64"), on(0, [5, 6, 7])]
    found = broadcast_coalesced(tensors, [0, 1, 2], buffer_size)
    assert [lists(row) for row in found] == [lists(tensors)] * 3
    assert [{tensor.device for tensor in row} for row in found] == [{0}, {1}, {2}]
    sums = reduce_add_coalesced(found, 2, buffer_size)
    assert lists(sums) == [[3, 6], [[9]], [12], [15, 18, 21]]
    assert {tensor.device for tensor in sums} == {2}


def test_reduce_add_leaves_its_inputs_alone():
    inputs = [on(device, [device, 1]) for device in (3, 0, 1)]
    total = reduce_add(inputs, 1)
    assert (total.device, total.array.tolist()) == (1, [4, 3])
    assert lists(inputs) == [[3, 1], [0, 1], [1, 1]]
    assert reduce_add(inputs[1:2]) is inputs[1]


def test_signature_of_scatter():
    """SIG-29: parameters, their order and defaults; play, which says who executes, comes after
    them.
    """
    parameters = inspect.signature(scatter).parameters
    defaults = {"devices": None, "chunk_sizes": None, "dim": 0, "streams": None, "out": None}
    assert list(parameters) == ["tensor", *defaults, "play"]
    assert {name: parameters[name].default for name in defaults} == defaults
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == ["out", "play"]
