"""torch.cuda.comm's family on CuPy arrays, against the stand-in: the same semantics as on emulated
devices.
"""

import numpy as np
import pytest

from realcoll import comm
from tests.support.fake_cupy import Device, install


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    install(monkeypatch, devices=4)
    import cupy

    return cupy


def on(cupy, device, values):
    with Device(device):
        return cupy.asarray(np.array(values, "float32"))


def places(arrays):
    return [array.device.id for array in arrays]


def test_scatter_and_gather_undo_each_other(cupy):
    tensor = np.arange(42, dtype="float32").reshape(6, 7)
    chunks = comm.scatter(tensor, [2, "cuda:0", 1], dim=1)
    assert places(chunks) == [2, 0, 1]
    assert [chunk.shape for chunk in chunks] == [(6, 3), (6, 3), (6, 1)]
    assert np.array_equal(comm.gather(chunks, 1, "cpu"), tensor)
    back = comm.gather(chunks, 1, 3)
    assert back.device.id == 3
    again = comm.scatter(back, [3, 1], [2, 4])
    assert np.shares_memory(again[0], back)
    assert places(again) == [3, 1]


def test_scatter_fills_out(cupy):
    out = [on(cupy, 0, [0, 0]), on(cupy, 2, [0])]
    result = comm.scatter(np.array([5, 6, 7], "float32"), out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    assert [array.tolist() for array in out] == [[5, 6], [7]]


def test_broadcast_and_reduce_add(cupy):
    tensors = [on(cupy, 1, [1, 2]), on(cupy, 1, [[3]])]
    copies = comm.broadcast(tensors[0], [1, 0, 3])
    assert copies[0] is tensors[0]
    assert places(copies) == [1, 0, 3]
    total = comm.reduce_add(copies, 3)
    assert (total.device.id, total.tolist()) == (3, [3, 6])
    rows = comm.broadcast_coalesced(tensors, [1, 0, 2])
    assert [places(row) for row in rows] == [[1, 1], [0, 0], [2, 2]]
    sums = comm.reduce_add_coalesced(rows, 2)
    assert [found.tolist() for found in sums] == [[3, 6], [[9]]]


def test_wrong_use_is_refused(cupy):
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
        comm.broadcast(np.zeros(3))
    with pytest.raises(AssertionError, match="all inputs to be on GPUs"):
        comm.reduce_add([np.zeros(3)])
