"""The most memory of arrays that each rank held at once, counted by hand."""

import numpy as np
import pytest

import simcoll.distributed as dist


def held(rank, world_size):
    weights = np.zeros((100, 10 * (1 + rank)))
    dist.broadcast(weights[:, :10].copy(), 0)
    for _ in range(3):
        dist.all_reduce(weights[:1, :10])  # the whole array counts, once
        dist.all_reduce(np.zeros(40))
    del weights
    parts = [np.zeros(10, np.float32) for _ in range(world_size)]
    dist.all_gather(parts, np.zeros(10, np.float32))


@pytest.mark.parametrize("data", ["exact", "none"])
@pytest.mark.parametrize("alike", [None, "all"])
def test_arrays_that_calls_were_given(data, alike):
    expected = [8000 * (1 + rank) + 8 * 40 if rank or alike is None else 8320 for rank in range(2)]
    if alike:
        expected[1] = expected[0]
    assert dist.spawn(held, 2, data=data, alike=alike).peak_bytes == tuple(expected)


def test_arrays_that_are_only_used_by_the_program():
    def program(rank, world_size):
        np.zeros(10**6)
        dist.barrier()

    assert dist.spawn(program, 2).peak_bytes == (0, 0)


def test_fake_arrays_count_as_if_they_were_real():
    def program(rank, world_size):
        gradients = dist.fake_array(1 << 40, "bfloat16")
        half = gradients[: 1 << 39]
        scaled = half * np.float32(2)
        del gradients, half
        return scaled + scaled

    assert dist.spawn(program, 2).peak_bytes == ((2 << 40) + (4 << 39), (2 << 40) + (4 << 39))


def test_memory_that_is_not_of_numpy_counts_during_calls():
    def program(rank, world_size):
        for _ in range(2):
            data = bytearray(1000)
            dist.all_reduce(data)
        peer = 1 - rank
        incoming = np.zeros(250)
        work = (dist.isend, dist.irecv)[rank](np.zeros(250) if rank == 0 else incoming, peer)
        work.wait()

    assert dist.spawn(program, 2).peak_bytes == (2000, 2000)


def test_arrays_in_flight_are_held():
    def program(rank, world_size):
        works = [dist.all_reduce(np.zeros(10), async_op=True) for _ in range(4)]
        for work in works:
            work.wait()

    assert dist.spawn(program, 2).peak_bytes == (320, 320)
