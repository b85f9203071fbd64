"""Orders of turns of PyTorch programs: races are found, correct programs pass."""

from __future__ import annotations

import threading

import pytest

from simcoll.distributed.runtime.turn_order import TurnOrder
from simcoll.errors import RaceError
from tests.support.deferred import Deferred, needs_torch

torch, dist = Deferred("torch"), Deferred("torch.distributed")
backend = Deferred("simcoll.torch")

pytestmark = needs_torch


def order_of_arrival(rank, world_size):
    dist.init_process_group("simcoll")
    if rank:
        dist.send(torch.full((1,), float(rank)), 0)
        return None
    values = []
    for _ in range(world_size - 1):
        value = torch.zeros(1)
        dist.recv(value)
        values.append(value.item())
    return values


def result_before_wait(rank, world_size):
    dist.init_process_group("simcoll")
    x = torch.full((4,), float(rank))
    work = dist.all_reduce(x, async_op=True)
    dist.distributed_c10d._get_default_store().set(f"rank {rank}", "is here")
    if rank == 0:  # long after the others have called, its author thinks
        backend.compute("1 ms")
        x = x + 1
    work.wait()
    return x


def lost_update(rank, world_size):
    dist.init_process_group("simcoll")
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("count", "0")
    dist.barrier()
    count = int(store.get("count"))
    store.set("count", str(count + 1))
    dist.barrier()
    return int(store.get("count"))


def gradients(rank, world_size):
    dist.init_process_group("simcoll")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.full((3, 4), float(rank))).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def two_threads(rank, world_size):
    dist.init_process_group("simcoll")
    group = dist.new_group()
    x, y = torch.full((2,), float(rank)), torch.full((2,), 2.0 * rank)
    helper = threading.Thread(target=dist.all_reduce, args=(y,), kwargs={"group": group})
    helper.start()
    dist.all_reduce(x)
    helper.join()
    return x, y


@pytest.mark.slow
@pytest.mark.parametrize("program", [order_of_arrival, lost_update, result_before_wait])
def test_races_of_torch_programs_are_found_and_replayed(program):
    with pytest.raises(RaceError) as caught:
        backend.spawn(program, 3, interleavings=100)
    error = caught.value
    assert f"{__file__}:" in str(error)
    if error.__cause__ is None:
        replayed = backend.spawn(program, 3, interleavings=error.order).returns
        assert str(replayed) != str(backend.spawn(program, 3).returns)
    else:
        with pytest.raises(type(error.__cause__)):
            backend.spawn(program, 3, interleavings=error.order)


@pytest.mark.slow
@pytest.mark.parametrize("program", [gradients, two_threads])
def test_correct_torch_programs_pass(program):
    result = backend.spawn(program, 3, interleavings=12)
    assert result.orders == 12
    exhaustive = backend.spawn(program, 3, interleavings="exhaustive 12")
    assert exhaustive.orders == 12


@pytest.mark.slow
def test_the_usual_order_is_the_run_without_orders():
    order = TurnOrder()
    played = backend.spawn(gradients, 3, interleavings=order)
    assert played.trace_hash == backend.spawn(gradients, 3).trace_hash
    assert order.options
