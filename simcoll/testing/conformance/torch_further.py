"""Further statements: on leaving groups, on messages to oneself, and on what is refused."""

from __future__ import annotations

import unittest
from typing import Any

from simcoll.testing.conformance.torch_session import TorchSession, states


@states("BK-07")
def unknown_backend(s: TorchSession) -> None:
    """A backend of an unknown name is refused."""
    s.raises(Exception, s.dist.new_group, [s.rank], backend="no such backend")


@states("IN-20")
def name_of_the_default_group(s: TorchSession) -> None:
    """group_name is ignored."""
    s.dist.destroy_process_group()
    s.backend.initialise(group_name="a name")
    s.same(s.dist.get_world_size(), s.size)


@states("IN-21")
def device_without_an_index(s: TorchSession) -> None:
    """device_id must be an accelerator with an index."""
    device = s.torch.device("cpu")
    s.dist.destroy_process_group()
    s.raises(ValueError, s.backend.initialise, device_id=device)
    if s.dist.is_initialized():
        s.dist.destroy_process_group()
    s.backend.initialise()


@states("IN-25", "IN-26")
def ends_of_a_group(s: TorchSession) -> None:
    """One group ends, and the world stays."""
    group = s.dist.new_group([0])
    if s.rank == 0:
        s.dist.destroy_process_group(group)
        s.raises(ValueError, s.dist.destroy_process_group, group)
    else:
        s.same(s.dist.destroy_process_group(group), None)
    vector = s.numbers()
    s.dist.all_reduce(vector)
    s.same(vector, sum(s.everyone()))


@states("DM-06")
def mesh_without_a_group(s: TorchSession) -> None:
    """A mesh uses the default group that is there."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (s.size,))
    s.same((mesh.size(), mesh.get_rank()), (s.size, s.rank))


@states("DM-20")
def groups_of_a_mesh(s: TorchSession) -> None:
    """Groups come in the order of the dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, s.size), mesh_dim_names=("a", "b"))
    sizes = [s.dist.get_world_size(group) for group in mesh.get_all_groups()]
    s.same(sizes, [1, s.size])


@states("PP-09")
def message_to_itself(s: TorchSession) -> None:
    """Isend and irecv may name the rank itself."""
    vector = s.numbers(rank=7)
    try:
        works = [s.dist.irecv(vector, s.rank), s.dist.isend(s.numbers(), s.rank)]
    except (ValueError, RuntimeError) as error:
        raise unittest.SkipTest(f"the backend refuses it: {error}") from None
    for work in works:
        work.wait()
    s.same(vector, s.numbers())


@states("PP-18")
def futures_of_messages(s: TorchSession) -> None:
    """Messages have neither a future nor a result."""
    s.needs(2)
    source, target = (s.rank - 1) % s.size, (s.rank + 1) % s.size
    works = [s.dist.isend(s.numbers(), target), s.dist.irecv(s.numbers(), source)]
    for work in works:
        work.wait()
        s.raises(RuntimeError, work.get_future)
        s.raises(RuntimeError, work.result)


@states("WK-07")
def results_of_nccl(s: TorchSession) -> None:
    """get_future_result() is there for nccl only."""
    work = s.dist.all_reduce(s.numbers(), async_op=True)
    work.wait()
    if s.backend.name != "nccl":
        s.raises(RuntimeError, work.get_future_result)


@states("PP-21")
def longer_receive(s: TorchSession) -> None:
    """What a short message does not reach stays."""
    s.needs(2)
    if s.rank == 0:
        s.dist.send(s.numbers(2), 1)
    elif s.rank == 1:
        vector = s.numbers(5)
        s.dist.recv(vector, 0)
        s.same(vector.tolist(), [*s.numbers(2, 0).tolist(), *s.numbers(5).tolist()[2:]])


@states("A1-04")
def sizes_without_splits(s: TorchSession) -> None:
    """Without splits, the world size divides the first dimension."""
    s.needs(2)
    vector = s.numbers(s.size + 1)
    s.raises((ValueError, RuntimeError), s.dist.all_to_all_single, vector.clone(), vector)


@states("RO-13")
def sparse_tensors(s: TorchSession) -> None:
    """Sparse tensors can be summed."""
    place = s.torch.tensor([[s.rank]])
    tensor: Any = s.torch.sparse_coo_tensor(place, s.torch.tensor([2.0]), (s.size,))
    s.dist.all_reduce(tensor)
    s.same(tensor.to_dense().tolist(), [2.0] * s.size)


@states("MB-02")
def monitored_barrier_of_a_backend(s: TorchSession) -> None:
    """monitored_barrier works with gloo, and raises elsewhere."""
    if s.backend.name == "gloo":
        s.same(s.dist.monitored_barrier(), None)
    else:
        s.raises((ValueError, RuntimeError), s.dist.monitored_barrier)


@states("RS-07")
def transposes(s: TorchSession) -> None:
    """A reduce_scatter is the transpose of an all_gather: <A x, w> = <x, A' w>, over all ranks."""
    x = s.numbers().to(s.torch.float64)
    w = x.repeat(s.size) * (s.rank + 2)
    gathered, scattered = s.torch.empty_like(w), s.torch.empty_like(x)
    s.dist.all_gather_into_tensor(gathered, x)
    s.dist.reduce_scatter_tensor(scattered, w)
    products = s.torch.stack([gathered @ w, x @ scattered])
    s.dist.all_reduce(products)
    s.same(products[0].item(), products[1].item())


@states("WK-16")
def gradients(s: TorchSession) -> None:
    """Averages of gradients by the hook of DistributedDataParallel."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    layer = s.torch.nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(layer)
    model.register_comm_hook(None, allreduce_hook)
    model(s.torch.full((1, 1), float(s.rank))).backward()
    mean = sum(range(s.size)) / s.size
    s.same(layer.weight.grad.tolist(), [[mean]])


@states("LA-04")
def arguments_of_spawn(s: TorchSession) -> None:
    """Spawn takes a function, its arguments and a number of processes."""
    import torch.multiprocessing

    s.parameters(torch.multiprocessing.spawn, "fn args nprocs")
