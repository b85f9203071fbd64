"""PyTorch's example ``distributed/rpc/pipeline``: ResNet-50 on two workers, with smaller images.

Its folder is on ``PYTHONPATH``, and torchvision's. It takes three ranks.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import torch
from torch.distributed import autograd

# torchvision without its compiled operators, which are those of a build for CUDA.
sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")

GPU = torch.cuda.is_available()


def on_the_cpu(initialize):
    """A shard's constructor, which is called in threads of RPC, with another device."""

    def function(self, device, *args, **kwargs):
        initialize(self, "cpu", *args, **kwargs)

    return function


def main():
    import main as example

    if not GPU:
        for shard in (example.ResNetShard1, example.ResNetShard2):
            shard.__init__ = on_the_cpu(shard.__init__)

    rank, losses = int(os.environ["RANK"]), []

    def backward(context, roots):
        losses.append(roots[0].item())
        autograd.backward(context, roots)

    example.dist_autograd = SimpleNamespace(context=autograd.context, backward=backward)
    example.batch_size, example.image_w, example.image_h = 4, 32, 32
    torch.manual_seed(rank)
    example.run_worker(rank, 3, 2)
    print(rank, *losses, flush=True)


if __name__ == "__main__":
    main()
