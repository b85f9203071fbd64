"""A language model over data, pipeline, context and tensor ranks; its groups are those of the
module ``grid``.
"""

from __future__ import annotations

import os

import grid
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LENGTH, LAYERS, BATCH, MICRO = 32, 16, 4, 16, 4, 4, 2
SIZES = {1: (1, 1, 1, 1), 2: (1, 1, 1, 2), 4: (1, 2, 1, 2), 8: (2, 2, 1, 2), 16: (2, 2, 2, 2)}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Tokens(nn.Module):
    """An embedding of which each tensor rank has some words."""

    def __init__(self, full):
        super().__init__()
        rows = VOCABULARY // grid.grid.size("tensor")
        self.first = rows * grid.grid.places["tensor"]
        self.weight = nn.Parameter(full[self.first : self.first + rows].clone())

    def forward(self, tokens):
        mine = (tokens >= self.first) & (tokens < self.first + len(self.weight))
        found = functional.embedding(
            (tokens - self.first).clamp(0, len(self.weight) - 1), self.weight
        )
        return grid.Reduce.apply(found * mine[..., None])


def part(full, dim):
    """The rows or columns of a weight that this tensor rank has."""
    return nn.Parameter(
        full.chunk(grid.grid.size("tensor"), dim)[grid.grid.places["tensor"]].clone()
    )


class Layer(nn.Module):
    """Attention over the whole context, and two layers; heads and hidden numbers are divided."""

    def __init__(self, full):
        super().__init__()
        self.q, self.k, self.v, self.up = (part(each, 0) for each in full[:4])
        self.out, self.down = (part(each, 1) for each in full[4:])
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH) for _ in range(2)])

    def forward(self, x):
        size, place = grid.grid.size("context"), grid.grid.places["context"]
        normed = grid.Copy.apply(self.norms[0](x))
        q, k, v = (
            functional.linear(normed, each).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        here = torch.arange(x.shape[1], device=x.device)
        scores, values = [], []
        for turn in range(size):
            owner = (place - turn) % size
            blocked = (here + owner * x.shape[1])[None] > (here + place * x.shape[1])[:, None]
            scores.append((q @ k.transpose(-1, -2) / 2).masked_fill(blocked, float("-inf")))
            values.append(v)
            if turn < size - 1:
                k, v = grid.Ring.apply(k), grid.Ring.apply(v)
        found = torch.cat(scores, -1).softmax(-1) @ torch.cat(values, -2)
        x = x + grid.Reduce.apply(functional.linear(found.transpose(1, 2).flatten(2), self.out))
        hidden = functional.silu(functional.linear(grid.Copy.apply(self.norms[1](x)), self.up))
        return x + grid.Reduce.apply(functional.linear(hidden, self.down))


class Stage(nn.Module):
    """The layers of this pipeline rank; the first has the embedding, the last the loss."""

    def __init__(self):
        super().__init__()
        stages, mine = grid.grid.size("pipeline"), grid.grid.places["pipeline"]
        torch.manual_seed(0)
        shapes = [(WIDTH, WIDTH)] * 3 + [(4 * WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
        words, head = torch.randn(VOCABULARY, WIDTH), torch.randn(VOCABULARY, WIDTH) / 4
        full = [[torch.randn(shape) / 4 for shape in shapes] for _ in range(LAYERS)]
        each = LAYERS // stages
        self.layers = nn.ModuleList([Layer(one) for one in full[mine * each : (mine + 1) * each]])
        self.first, self.last = mine == 0, mine == stages - 1
        if self.first:
            self.tokens = Tokens(words)
        if self.last:
            self.head = nn.Parameter(head)

    def forward(self, x, targets):
        x = self.tokens(x) if self.first else x
        for layer in self.layers:
            x = layer(x)
        if not self.last:
            return x
        return (
            functional.cross_entropy(
                functional.linear(x, self.head).flatten(0, 1), targets.flatten()
            )
            / MICRO
        )


class Gradients:
    """All-reduces over ranks with equal weights, each as soon as its gradient is there for the last
    time.
    """

    def __init__(self, model):
        self.works, self.on = [], False
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, parameter):
        """Start it."""
        if self.on:
            group = grid.grid.groups["replicas"]
            parameter.grad /= dist.get_world_size(group)
            self.works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))

    def wait(self):
        """Until all have ended."""
        for work in self.works:
            work.wait()
        self.works.clear()


def step(stage, gradients, tokens):
    """All forward passes, then all backward passes; the sum of the losses."""
    pipe = grid.grid
    length = LENGTH // pipe.size("context")
    begin = length * pipe.places["context"]
    held, losses = [], torch.zeros((), device=DEVICE)
    for micro in tokens.chunk(MICRO):
        x, targets = (
            micro[:, begin + shift : begin + shift + length].contiguous() for shift in (0, 1)
        )
        if not stage.first:
            x = torch.empty(len(micro), length, WIDTH, device=DEVICE, requires_grad=True)
            with torch.no_grad():
                dist.recv(x, pipe.beside("pipeline", -1))
        y = stage(x, targets)
        if stage.last:
            losses += y.detach()
        else:
            dist.send(y.detach(), pipe.beside("pipeline", 1))
        held.append((x, y))
    for index, (x, y) in enumerate(held):
        gradients.on = index == MICRO - 1
        gradient = None
        if not stage.last:
            gradient = torch.empty_like(y)
            dist.recv(gradient, pipe.beside("pipeline", 1))
        y.backward(gradient)
        if not stage.first:
            dist.send(x.grad, pipe.beside("pipeline", -1))
    gradients.wait()
    return losses


def main():
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    grid.set_up(*SIZES[dist.get_world_size()])
    stage = Stage().to(DEVICE)
    gradients, optimizer = Gradients(stage), torch.optim.AdamW(stage.parameters(), lr=1e-2)
    draw, found = torch.Generator().manual_seed(grid.grid.places["data"]), []
    for _ in range(3):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=draw).to(DEVICE)
        losses = step(stage, gradients, tokens)
        dist.all_reduce(losses, group=grid.grid.groups["replicas"])
        found.append(losses.item())
        optimizer.step()
        optimizer.zero_grad()
    print(
        dist.get_rank(),
        *found,
        sum(float(each.detach().double().sum()) for each in stage.parameters()),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
