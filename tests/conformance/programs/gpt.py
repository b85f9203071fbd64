"""A character model in the shape of minGPT: a trainer that owns its model, a sampler, and a
snapshot to go on from.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Shape:
    """The model."""

    vocabulary: int = 32
    length: int = 16
    layers: int = 2
    heads: int = 4
    width: int = 32


class Text(Dataset):
    """Windows of a text that a generator writes."""

    def __init__(self, length):
        self.length = length
        self.text = torch.randint(0, 32, (512,), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return 256

    def __getitem__(self, index):
        window = self.text[index : index + self.length + 1]
        return window[:-1], window[1:]


class Attention(nn.Module):
    """Causal attention, with its mask in a buffer."""

    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.into, self.out = (
            nn.Linear(shape.width, 3 * shape.width),
            nn.Linear(shape.width, shape.width),
        )
        self.register_buffer("mask", torch.tril(torch.ones(shape.length, shape.length)).bool())

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            each.view(batch, length, self.heads, -1).transpose(1, 2)
            for each in self.into(x).split(width, 2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Attention and two layers, each beside a residual."""

    def __init__(self, shape):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(shape.width) for _ in range(2)])
        self.attention = Attention(shape)
        self.hidden = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
            nn.Dropout(0.1),
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.hidden(self.norms[1](x))


class Model(nn.Module):
    """The network, whose embedding is its last layer too."""

    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Parameter(torch.zeros(1, shape.length, shape.width))
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._start)

    def _start(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def groups(self):
        """Parameters with and without decay."""
        decayed = [each for each in self.parameters() if each.dim() >= 2]
        others = [each for each in self.parameters() if each.dim() < 2]
        return [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    """The loop: epochs, clipped gradients, a schedule of the learning rate, snapshots by rank 0."""

    def __init__(self, shape, path):
        self.rank, self.path = int(os.environ["RANK"]), path
        self.device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(1 + self.rank)  # for dropout; DDP sends the weights of rank 0
        self.model = Model(shape).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.groups(), lr=3e-3, betas=(0.9, 0.95))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)
        self.first, self.losses = 0, []
        if path.exists():
            state = torch.load(path, map_location=self.device)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.first = state["epoch"]
        ids = [int(os.environ["LOCAL_RANK"])] if torch.cuda.is_available() else None
        self.parallel = DistributedDataParallel(self.model, device_ids=ids)
        data = Text(shape.length)
        self.sampler = DistributedSampler(data, seed=5)
        self.loader = DataLoader(
            data, batch_size=32 // dist.get_world_size(), sampler=self.sampler, drop_last=True
        )

    def epoch(self, number):
        """One pass over a part of the data."""
        self.sampler.set_epoch(number)
        for step, (tokens, targets) in enumerate(self.loader):
            loss = self.parallel(tokens.to(self.device), targets.to(self.device))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parallel.parameters(), 1.0)
            self.optimizer.step()
            self.losses.append(loss.item())
            if step == 2:
                break
        self.schedule.step()
        if self.rank == 0:
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "epoch": number + 1,
            }
            torch.save(state, self.path)
        dist.barrier()


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    path, shape = Path(sys.argv[1]) / "snapshot.pt", Shape()
    assert asdict(shape)["width"] == 32
    losses = []
    for _ in range(2):  # the second goes on from the snapshot
        trainer = Trainer(shape, path)
        trainer.epoch(trainer.first)
        losses += trainer.losses
    total = sum(float(each.detach().double().sum()) for each in trainer.model.parameters())
    print(dist.get_rank(), *losses, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
