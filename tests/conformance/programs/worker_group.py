"""A controller and its workers, in the shape of verl: methods say how their arguments are divided and
how results are joined; workers train one model with DistributedDataParallel.

The controller, rank 0, calls the workers by RPC; the workers' group leaves it out.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel

GPU = torch.cuda.is_available()
MODES = {
    "all": (lambda value, _size: [value] * _size, list),
    "parts": (lambda value, size: value.chunk(size), torch.cat),
}
group = None


def register(mode):
    """Mark a method with its way of dispatch."""

    def mark(method):
        method.mode = mode
        return method

    return mark


class Actor:
    def __init__(self, seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        model = model.cuda() if GPU else model
        self.model = DistributedDataParallel(model, process_group=group)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    @register("parts")
    def generate(self, x):
        with torch.no_grad():
            return self.model.module(x.to("cuda" if GPU else "cpu")).cpu()

    @register("all")
    def update(self, scale):
        rows = torch.Generator().manual_seed(dist.get_rank())
        x = torch.randn(8, 16, generator=rows).to("cuda" if GPU else "cpu")
        loss = (self.model(x) - scale * x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    @register("all")
    def total(self, _nothing):
        return sum(float(each.detach().double().sum()) for each in self.model.parameters())


class WorkerGroup:
    """Stands for the workers: calls each of them, and joins what they return."""

    def __init__(self, names, actor, *args):
        self.actors = [rpc.remote(name, actor, args=args) for name in names]
        self.kind = actor

    def __getattr__(self, name):
        divide, join = MODES[getattr(self.kind, name).mode]

        def call(value=None):
            parts = divide(value, len(self.actors))
            futures = [
                getattr(actor.rpc_async(), name)(part)
                for actor, part in zip(self.actors, parts, strict=True)
            ]
            return join([future.wait() for future in futures])

        return call


def main():
    global group
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if GPU else "gloo")
    if GPU:
        torch.cuda.set_device(rank)
    group = dist.new_group(range(1, size))
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    numbers = []
    if rank == 0:
        names = [f"worker{other}" for other in range(1, size)]
        workers = WorkerGroup(names, Actor, 0)
        prompts = torch.randn(6, 16, generator=torch.Generator().manual_seed(7))
        for step in range(3):
            answers = workers.generate(prompts)
            numbers += [
                answers.double().sum().item(),
                *workers.update(answers.mean().item() + step),
            ]
        numbers += workers.total()
    rpc.shutdown()
    print(rank, *numbers, size, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
