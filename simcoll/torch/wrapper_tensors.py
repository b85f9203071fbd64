"""Classes of a program's tensors that wrap others, which have the memory.

PyTorch is told that a wrapper is on the CPU, as are the tensors in it. A wrapper tells the program
the place of the first of them, and its class moves it, by its own ``aten._to_copy``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from simcoll.torch.callers import is_program
from simcoll.torch.places import HOST, PLAIN
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["copy_of_wrapper", "dispatches_in_program", "wrapper_replacements", "wraps_in_program"]


def dispatches_in_program(cls: Any) -> bool:
    """Whether the program says what a class of tensors makes of operators."""
    code = getattr(cls.__torch_dispatch__, "__code__", None)
    return code is not None and is_program(code.co_filename)


def wraps_in_program(tensor: torch.Tensor) -> bool:
    """Whether a tensor wraps others by a class of the program."""
    kind = type(tensor)
    return (
        kind not in PLAIN and is_traceable_wrapper_subclass(tensor) and dispatches_in_program(kind)
    )


def copy_of_wrapper(tensor: torch.Tensor, place: int) -> torch.Tensor:
    """A copy at another place, which the class of the wrapper makes."""
    device = torch.device("cpu") if place == HOST else torch.device("cuda", place)
    copied: torch.Tensor = torch.ops.aten._to_copy.default(tensor, device=device)
    return copied


@for_ranks
def _make_on_cpu(
    thread: RankThread, standard: Any, cls: Any, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """``_make_wrapper_subclass``, of which PyTorch's C++ takes the device at its word."""
    device = kwargs.get("device")
    on_gpu = device is not None and torch.device(device).type == "cuda"
    if on_gpu and thread.process.places is not None and hasattr(cls, "__tensor_flatten__"):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    wrapper: torch.Tensor = standard(cls, *args, **kwargs)
    return wrapper


def wrapper_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the function that makes wrappers."""
    name = "_make_wrapper_subclass"
    return [(torch.Tensor, name, staticmethod(_make_on_cpu(getattr(torch.Tensor, name))))]
