"""verl: a worker group whose methods are dispatched to workers, which train with
DistributedDataParallel.

The controller, rank 0, calls the workers by RPC, where verl's own group calls Ray's actors.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel
from verl import DataProto
from verl.single_controller.base import ClassWithInitArgs, Worker, WorkerGroup
from verl.single_controller.base.decorator import Dispatch, register

GPU = torch.cuda.is_available()
GROUPS = {}


class Actor(Worker):
    def __init__(self, width):
        super().__init__()
        self.place = f"cuda:{self._rank}" if GPU else "cpu"
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, width))
        self.model = DistributedDataParallel(model.to(self.place), process_group=GROUPS["workers"])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def generate(self, prompts):
        with torch.no_grad():
            answers = self.model.module(prompts.batch["x"].to(self.place)).cpu()
        return DataProto.from_dict(tensors={"y": answers})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update(self, batch):
        rows = batch.batch.to(self.place)
        loss = (self.model(rows["x"]) - rows["y"].flip(1)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return DataProto.from_dict(tensors={"loss": loss.detach().cpu()[None]})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def total(self, scale):
        return scale * sum(float(part.detach().double().sum()) for part in self.model.parameters())


def call_method(worker, name, args):
    return getattr(worker.local_value(), name)(*args)


def bind(group, method_name, dispatch_fn, collect_fn, execute_fn, blocking):
    def method(*args, **kwargs):
        args, kwargs = dispatch_fn(group, *args, **kwargs)
        results = execute_fn(method_name, *args, **kwargs)
        return collect_fn(group, [result.wait() for result in results] if blocking else results)

    return method


class RpcWorkerGroup(WorkerGroup):
    def __init__(self, names, init):
        super().__init__(resource_pool=None)
        self._workers = [rpc.remote(name, init.cls, init.args, init.kwargs) for name in names]
        self._bind_worker_method(init.cls, bind)

    def execute_all(self, name, *args):
        return [
            self.call(number, name, [part[number] for part in args])
            for number in range(self.world_size)
        ]

    def execute_rank_zero(self, name, *args):
        return self.call(0, name, args)

    def call(self, number, name, args):
        worker = self._workers[number]
        return rpc.rpc_async(worker.owner(), call_method, (worker, name, args))


def control(size):
    group = RpcWorkerGroup(
        [f"worker{rank}" for rank in range(1, size)], ClassWithInitArgs(Actor, width=16)
    )
    torch.manual_seed(5)
    losses = []
    for _ in range(3):
        prompts = DataProto.from_dict(tensors={"x": torch.randn(8, 16)})
        batch = prompts.union(group.generate(prompts))
        losses += group.update(batch).batch["loss"].tolist()
    return [*losses, *group.total(2.0)]


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if GPU else "gloo")
    GROUPS["workers"] = dist.new_group(list(range(1, size)))
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    numbers = control(size) if rank == 0 else []
    rpc.shutdown()
    print(rank, *numbers, flush=True)


if __name__ == "__main__":
    main()
