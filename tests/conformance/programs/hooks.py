"""DistributedDataParallel, whose gradients are sent in 16 bits, or as matrices of rank 2, or as
both.
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def train(hook, *, low_rank):
    torch.manual_seed(3)
    layers = [
        torch.nn.Linear(32, 96),
        torch.nn.GELU(),
        torch.nn.Linear(96, 32),
        torch.nn.GELU(),
        torch.nn.Linear(32, 8),
    ]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    state = (
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        if low_rank
        else None
    )
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(10 + dist.get_rank())
    for _ in range(8):
        x = torch.randn(16, 32, generator=data)
        loss = (model(x) - x[:, :8].sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
    yield from (each.detach().double().sum().item() for each in model.parameters())


dist.init_process_group("gloo")
half, low = default_hooks.fp16_compress_hook, powerSGD_hook.powerSGD_hook
numbers = [*train(half, low_rank=False), *train(low, low_rank=True)]
numbers += train(default_hooks.fp16_compress_wrapper(low), low_rank=True)
print(dist.get_rank(), *numbers)
dist.destroy_process_group()
