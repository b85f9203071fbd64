"""Kernels that a program registers for CUDA alone, on simulated GPUs.

PyTorch dispatches all tensors of a run to kernels of the CPU. A program that has one for CUDA and
none for the CPU means the former for its tensors on GPUs; one that launches compiled kernels fails
there by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch._library import custom_ops

from simcoll.torch.places import HOST, Places
from simcoll.torch.rank_threads import Process, current_thread, current_thread_or_none

__all__ = ["COMPOSITE", "KEYS_OF_CPU", "check_device", "has_kernel", "sees_gpus", "serve_gpus"]

KEYS_OF_CPU = {"CUDA": "CPU", "AutogradCUDA": "AutogradCPU", "AutocastCUDA": "AutocastCPU"}
"""Keys of the dispatcher for tensors on GPUs, and those that it looks for in a run."""
COMPOSITE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "")
"""Keys of kernels for all devices."""
_OF_ALL = {"CPU": COMPOSITE[:2], "AutogradCPU": ("Autograd",), "AutocastCPU": ()}


def sees_gpus() -> bool:
    """Whether the running rank's program sees GPUs."""
    thread = current_thread_or_none()
    return thread is not None and thread.process.places is not None


def has_kernel(operator: str, key: str) -> bool:
    """Whether an operator has a kernel for a key of the CPU, or for all devices."""
    registered = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(registered(operator, name) for name in (key, *_OF_ALL[key]))


def check_device(process: Process, operator: str, arguments: Any) -> None:
    """Refuse tensors that are on the host, as PyTorch does for want of a kernel."""
    places: Places = process.places
    if places.of_inputs(arguments) == HOST:
        raise NotImplementedError(
            f"Could not run '{operator}' with arguments from the 'CPU' backend: it has a kernel "
            "for CUDA, and these tensors are on the host"
        )


def serve_gpus(undo: ExitStack) -> None:
    """Let operators that were defined before the run (``torch.library.custom_op``) use their
    functions for CUDA in it.
    """
    for definition in list(custom_ops.OPDEFS.values()):
        name = definition._qualname
        if not torch._C._dispatch_has_kernel(name):  # that of a run that has ended
            continue
        if "cuda" in definition._backend_fns and not has_kernel(name, "CPU"):
            library = torch.library.Library(definition._namespace, "FRAGMENT")
            undo.callback(library._destroy)
            library.impl(definition._name, _with_gpus(name, definition._backend_fns["cuda"]), "CPU")


def _with_gpus(operator: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        process = current_thread().process
        check_device(process, operator, (*args, *kwargs.values()))
        with process.around():
            return function(*args, **kwargs)

    return call
