"""PyTorch's example ``distributed/rpc/parameter_server``: a server and one trainer, on random images.

Its folder is on ``PYTHONPATH``, and torchvision's. It takes two ranks.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch.distributed import autograd
from torch.utils.data import DataLoader, TensorDataset

# torchvision without its compiled operators, which are those of a build for CUDA.
sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")


def import_example():
    """The example, whose name is that of this file."""
    name = "rpc_parameter_server"
    folders = os.environ["PYTHONPATH"].split(os.pathsep)
    paths = (Path(folder) / f"{name}.py" for folder in folders)
    path = next(path for path in paths if path.exists())
    spec = importlib.util.spec_from_file_location("parameter_server_example", path)
    example = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def main():
    example, losses = import_example(), []
    torch.manual_seed(0)
    if os.environ["RANK"] == "0":
        example.run_parameter_server(0, 2)
        print(0, flush=True)
        return

    def backward(context, roots):
        losses.append(roots[0].item())
        autograd.backward(context, roots)

    example.dist_autograd = SimpleNamespace(context=autograd.context, backward=backward)
    digits = torch.arange(64) % 10
    images = torch.rand(64, 1, 28, 28) + digits.view(-1, 1, 1, 1) / 5
    loader = DataLoader(TensorDataset(images, digits), batch_size=16)
    example.run_worker(1, 2, 0, loader, loader)
    print(1, *losses, flush=True)


if __name__ == "__main__":
    main()
