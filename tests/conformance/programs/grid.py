"""Four kinds of parallelism in the shape of picotron: one object of the module knows the groups,
and layers ask it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

grid = None


class Grid:
    """Ranks as data x pipeline x context x tensor."""

    def __init__(self, data, pipeline, context, tensor):
        ranks = torch.arange(dist.get_world_size()).view(data, pipeline, context, tensor)
        mine = (ranks == dist.get_rank()).nonzero()[0].tolist()
        self.groups, self.members = {}, {}
        self.places = dict(zip(("data", "pipeline", "context", "tensor"), mine, strict=True))
        for axis, name in enumerate(self.places):
            for row in ranks.movedim(axis, -1).reshape(-1, ranks.shape[axis]).tolist():
                group = dist.new_group(row)
                if dist.get_rank() in row:
                    self.groups[name], self.members[name] = group, row
        # Who has the same weights.
        rows = ranks.permute(1, 3, 0, 2).reshape(pipeline * tensor, -1).tolist()
        made = [dist.new_group(row) for row in rows]
        self.groups["replicas"] = next(
            made[at] for at, row in enumerate(rows) if dist.get_rank() in row
        )

    def size(self, name):
        """Ranks of my group along an axis."""
        return len(self.members[name])

    def beside(self, name, step):
        """The rank before or after me along an axis, in a ring."""
        members = self.members[name]
        return members[(self.places[name] + step) % len(members)]


def set_up(*sizes):
    """Make the one object."""
    global grid
    assert grid is None, "a process has one grid"
    grid = Grid(*sizes)


class Copy(torch.autograd.Function):
    """The same on all ranks of a tensor group; gradients are added."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=grid.groups["tensor"])
        return gradient


class Reduce(torch.autograd.Function):
    """Partial sums of a tensor group are added; gradients are the same."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x, group=grid.groups["tensor"])
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def shifted(x, step):
    """What the rank before me in the context ring has, when each sends its own on."""
    x = x.contiguous()
    found = torch.empty_like(x)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, grid.beside("context", step)),
            dist.P2POp(dist.irecv, found, grid.beside("context", -step)),
        ]
    )
    for work in works:
        work.wait()
    return found


class Ring(torch.autograd.Function):
    """One turn of the context ring; gradients turn back."""

    @staticmethod
    def forward(ctx, x):
        return shifted(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return shifted(gradient, -1)
