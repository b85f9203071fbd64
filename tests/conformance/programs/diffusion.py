"""A transformer that learns to take noise away, in the shape of DiT: conditions scale and shift
each block, and a second model averages.
"""

from __future__ import annotations

import copy
import logging
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, CLASSES, STEPS, PATCH, SIDE = 32, 10, 50, 2, 8


class Condition(nn.Module):
    """A vector for a time and a class; the class is dropped now and then."""

    def __init__(self):
        super().__init__()
        self.times = nn.Sequential(nn.Linear(16, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.classes = nn.Embedding(CLASSES + 1, WIDTH)

    def forward(self, times, labels):
        rates = torch.exp(-math.log(1e4) * torch.arange(8, device=times.device) / 8)
        angles = times[:, None].float() * rates
        if self.training:
            labels = torch.where(
                torch.rand(labels.shape, device=labels.device) < 0.1, CLASSES, labels
            )
        return self.times(torch.cat([angles.cos(), angles.sin()], 1)) + self.classes(labels)


class Block(nn.Module):
    """Attention and two layers, whose scales, shifts and gates come from the condition and start at
    zero.
    """

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(
            [nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2)]
        )
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.hidden = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.change = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
        nn.init.zeros_(self.change[1].weight)
        nn.init.zeros_(self.change[1].bias)

    def forward(self, x, condition):
        shift, scale, gate, shift2, scale2, gate2 = self.change(condition)[:, None].chunk(6, -1)
        q, k, v = (
            self.into(self.norms[0](x) * (1 + scale) + shift)
            .unflatten(-1, (3, 4, -1))
            .permute(2, 0, 3, 1, 4)
        )
        x = x + gate * self.out(
            functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )
        return x + gate2 * self.hidden(self.norms[1](x) * (1 + scale2) + shift2)


class Model(nn.Module):
    """Patches, blocks, patches."""

    def __init__(self):
        super().__init__()
        self.into = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(
            torch.randn(1, (SIDE // PATCH) ** 2, WIDTH) / 8, requires_grad=False
        )
        self.condition = Condition()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.out = nn.Linear(WIDTH, 3 * PATCH * PATCH)

    def forward(self, images, times, labels):
        x = self.into(images).flatten(2).transpose(1, 2) + self.places
        condition = self.condition(times, labels)
        for block in self.blocks:
            x = block(x, condition)
        return functional.fold(self.out(x).transpose(1, 2), (SIDE, SIDE), PATCH, stride=PATCH)


@torch.no_grad()
def average(slow, model, decay=0.99):
    """Move the second model towards the first."""
    for old, new in zip(slow.parameters(), model.parameters(), strict=True):
        old.mul_(decay).add_(new, alpha=1 - decay)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = rank % torch.cuda.device_count() if torch.cuda.is_available() else "cpu"
    if torch.cuda.is_available():
        torch.cuda.set_device(device)
    torch.manual_seed(7 * size + rank)
    logger = logging.getLogger("diffusion")
    logger.setLevel(logging.INFO)
    if rank == 0:
        logger.addHandler(logging.FileHandler(Path(sys.argv[1]) / "log.txt"))

    model = Model()
    slow = copy.deepcopy(model).to(device).requires_grad_(False)
    parallel = DistributedDataParallel(
        model.to(device), device_ids=None if device == "cpu" else [device]
    )
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3, weight_decay=0)
    draw = torch.Generator().manual_seed(11)
    data = TensorDataset(torch.randn(64, 3, SIDE, SIDE, generator=draw), torch.arange(64) % CLASSES)
    sampler = DistributedSampler(data, shuffle=True, seed=2)
    loader = DataLoader(data, batch_size=32 // size, sampler=sampler, drop_last=True)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), 0).to(device)
    average(slow, parallel.module, decay=0)
    parallel.train()
    means = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        running = torch.zeros((), device=device)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            times = torch.randint(0, STEPS, labels.shape, device=device)
            noise, share = torch.randn_like(images), kept[times].view(-1, 1, 1, 1)
            loss = (
                (
                    parallel(share.sqrt() * images + (1 - share).sqrt() * noise, times, labels)
                    - noise
                )
                .square()
                .mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average(slow, parallel.module)
            running += loss.detach()
        dist.all_reduce(running, op=dist.ReduceOp.SUM)
        means.append(running.item() / size)
        logger.info("epoch %d: %.6f", epoch, means[-1])
    dist.barrier()
    sums = [
        sum(float(each.double().sum()) for each in net.state_dict().values())
        for net in (parallel.module, slow)
    ]
    print(rank, *means, *sums)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
