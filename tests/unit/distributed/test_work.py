"""Handles of operations, futures, timeouts."""

from __future__ import annotations

import tracemalloc
from datetime import timedelta

import numpy as np
import pytest

import simcoll.distributed as dist


def run(program, nprocs=2, **kw):
    return dist.spawn(program, nprocs, **kw).returns


def calls(n):
    """Every collective as (name, function of kwargs, results)."""
    x, y = np.ones(4 * n), np.zeros(4)
    parts = [np.zeros(4) for _ in range(n)]
    return {
        "broadcast": (lambda **kw: dist.broadcast(x, 0, **kw), [x]),
        "all_reduce": (lambda **kw: dist.all_reduce(x, **kw), [x]),
        "reduce": (lambda **kw: dist.reduce(x, 0, **kw), [x]),
        "all_gather": (lambda **kw: dist.all_gather(parts, y, **kw), parts),
        "all_gather_into_tensor": (lambda **kw: dist.all_gather_into_tensor(x, y, **kw), [x]),
        "gather": (
            lambda **kw: dist.gather(y, parts if dist.get_rank() == 0 else None, 0, **kw),
            None,
        ),
        "scatter": (
            lambda **kw: dist.scatter(y, parts if dist.get_rank() == 0 else None, 0, **kw),
            [y],
        ),
        "reduce_scatter": (lambda **kw: dist.reduce_scatter(y, parts, **kw), [y]),
        "reduce_scatter_tensor": (lambda **kw: dist.reduce_scatter_tensor(y, x, **kw), [y]),
        "all_to_all_single": (lambda **kw: dist.all_to_all_single(x, x.copy(), **kw), [x]),
        "all_to_all": (lambda **kw: dist.all_to_all(parts, [np.ones(4)] * n, **kw), parts),
        "barrier": (dist.barrier, []),
    }


def test_all_return_values():
    """WK-01 WK-02 WK-03 WK-04 WK-05 WK-08 WK-15: None when it blocks, else a Work: wait,
    completion, future and results.
    """

    def program(rank, world_size):
        for name, (call, results) in calls(world_size).items():
            assert call() is None, name
            work = call(async_op=True)
            assert isinstance(work, dist.Work), name
            assert work.wait() is True is work.wait(), name
            assert work.is_completed(), name
            assert work.is_success(), name
            assert work.exception() is None, name
            assert work.synchronize() is None, name
            future = work.get_future()
            assert future.done(), name
            for got in (future.value(), work.result()):
                assert isinstance(got, list), name
                if results is not None:
                    assert all(a is b for a, b in zip(got, results, strict=True)), name
                elif rank:
                    assert got == [], name

    run(program, 3)


def test_futures():
    """WK-06 WK-16: then runs after completion and gives a future of its value; the gradient
    averaging of a DDP hook.
    """

    def program(rank, world_size):
        gradient = np.array([rank + 1.0])
        gradient /= world_size
        work = dist.all_reduce(gradient, async_op=True)
        future = work.get_future().then(lambda f: f.value()[0])
        later = future.then(lambda f: f.value() + dist.get_rank())
        assert not future.done()
        return float(future.wait()[0]), float(later.wait()[0])

    assert run(program) == ((1.5, 1.5), (1.5, 2.5))


def test_a_callback_that_fails():
    def program(rank, world_size):
        def fail(future):
            raise KeyError("mine")

        with pytest.raises(RuntimeError, match="not done"):
            dist.all_reduce(np.ones(1), async_op=True).get_future().value()
        with pytest.raises(KeyError, match="mine"):
            dist.all_reduce(np.ones(1), async_op=True).get_future().then(fail).wait()

    run(program)


def test_what_only_nccl_has():
    """WK-07 WK-09 SIG-23: get_future_result is not there; boxed and unbox are inverse."""

    def program(rank, world_size):
        work = dist.all_reduce(np.ones(1), async_op=True)
        with pytest.raises(RuntimeError, match="getFutureResult not implemented"):
            work.get_future_result()
        work.wait()
        assert dist.Work.unbox(work.boxed()) is work

    run(program)


def test_timeout_of_wait():
    """WK-10: RuntimeError on the emulated clock; the operation can still end."""

    def program(rank, world_size):
        x = np.ones(1)
        if rank:
            dist.compute(2.0)
        work = dist.all_reduce(x, async_op=True, algorithm="ring")
        if rank == 0:
            with pytest.raises(
                RuntimeError, match=r"Operation timed out! .*500ms.* waits for rank 1"
            ):
                work.wait(timedelta(milliseconds=500))
            assert dist.emulated_time() == 0.5
        work.wait()
        return float(x[0])

    assert run(program) == (2.0, 2.0)


@pytest.mark.parametrize("peer", ["late", "never"])
def test_timeout_of_the_group(peer):
    """WK-11: an operation whose peer does not come fails after the timeout of the group."""

    def program(rank, world_size):
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank:
            dist.compute(5.0 if peer == "late" else 0.0)
            return None
        with pytest.raises(RuntimeError, match="Timed out waiting 1000ms for all_reduce"):
            dist.all_reduce(np.ones(1), group=group)
        return dist.emulated_time()

    assert run(program)[0] == 1.0


def test_waiting_in_any_order():
    """WK-12: works of one group may be waited for in any order."""

    def program(rank, world_size):
        arrays = [np.full(2, float(i)) for i in range(4)]
        works = [dist.all_reduce(array, async_op=True) for array in arrays]
        for i in (2, 0, 3, 1):
            works[i].wait()
        return [float(array[0]) for array in arrays]

    assert run(program, 3) == ([0.0, 3.0, 6.0, 9.0],) * 3


def test_a_peer_that_died():
    """WK-13: those who wait for it get a RuntimeError; the program fails with the peer's own
    error.
    """
    seen = []

    def program(rank, world_size):
        if rank == 1:
            raise KeyError("the cause")
        try:
            dist.all_reduce(np.ones(1))
        except RuntimeError as error:
            seen.append(str(error))
            raise

    with pytest.raises(KeyError, match="the cause"):
        run(program, 3)
    assert len(seen) == 2
    assert all("Connection closed by peer: rank 1 ended with KeyError" in text for text in seen)
    assert "waits for rank 1" in seen[0]


def test_communication_hides_behind_compute():
    # 1 MB all_reduce of 2 ranks at 50 GB/s takes over 20 us: it is over when 100 us of work are.
    def program(rank, world_size):
        x = np.ones(125_000)
        work = dist.all_reduce(x, async_op=True, algorithm="ring")
        dist.compute("100 us")
        assert work.is_completed()
        work.wait()
        return dist.emulated_time()

    assert run(program) == (1e-4, 1e-4)


def test_operations_of_one_group_are_a_stream():
    def program(rank, world_size):
        works = [dist.all_reduce(np.ones(125_000), async_op=True) for _ in range(3)]
        times = []
        for work in works:
            work.wait()
            times.append(dist.emulated_time())
        return times

    first, second, third = run(program)[0]
    assert second == pytest.approx(2 * first)
    assert third == pytest.approx(3 * first)


def test_two_groups_share_the_links():
    # The same transfer on two groups at once takes twice the bytes over the same ports.
    def program(rank, world_size, groups):
        made = [dist.new_group() for _ in range(groups)]
        works = [
            dist.broadcast(
                np.ones(500_000, np.uint8), 0, group=group, async_op=True, algorithm="tree"
            )
            for group in made
        ]
        for work in works:
            work.wait()
        return dist.emulated_time()

    assert run(program, args=(1,))[1] == 11e-6
    assert run(program, args=(2,))[1] == 21e-6


@pytest.mark.slow
def test_an_input_that_is_an_output_is_kept_until_its_rank_begins():
    # 1 MiB on each of 8 ranks: in flight there are two buffers of the plan, and no longer the input
    # as it was.
    def program(rank, world_size):
        x = np.ones(1 << 17)
        dist.barrier()
        before = tracemalloc.get_traced_memory()[0]
        work = dist.all_reduce(x, async_op=True, algorithm="ring")
        dist.compute("1 us")
        taken_mib = (tracemalloc.get_traced_memory()[0] - before) / (1 << 20)
        work.wait()
        return taken_mib

    run(program, 8)  # what a first run loads stays
    tracemalloc.start()
    try:
        assert run(program, 8)[0] == pytest.approx(2 * 8, abs=1)
    finally:
        tracemalloc.stop()
