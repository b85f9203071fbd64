"""Numpy arrays on the memory of other objects, without a copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from simcoll.arrays import Array
from simcoll.core.reduction import parse_dtype
from simcoll.errors import ConfigError

__all__ = ["array_on", "is_tensor"]


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor, as far as one can tell without torch."""
    return hasattr(value, "detach") and hasattr(value, "requires_grad")


def array_on(value: Any) -> Array | None:
    """An array on the memory of a torch CPU tensor, a buffer, or an object with ``__array__`` or DLPack; None for others.

    Raises
    ------
    TypeError
        For a tensor that numpy cannot share memory with: on another device, sparse, or of a dtype that does not exist here.
    RuntimeError
        For a tensor that is a view to be conjugated or negated, as torch.
    """
    if isinstance(value, np.ndarray):
        return value
    if is_tensor(value):
        return _array_on_tensor(value.detach())  # communication is not differentiated
    if hasattr(value, "__array__"):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        pass
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else None


def _array_on_tensor(tensor: Any) -> Array:
    """As ``tensor.numpy()``, also for the dtypes that numpy has from ml_dtypes: these are taken as bits."""
    name = str(tensor.dtype).removeprefix("torch.")
    if not name.startswith(("bfloat", "float8")) or tensor.device.type != "cpu":
        return np.asarray(tensor)
    try:
        dtype = parse_dtype(name)
    except ConfigError as error:
        raise TypeError(str(error)) from None
    torch: Any = sys.modules["torch"]
    bits: Array = tensor.view(torch.int16 if dtype.itemsize == 2 else torch.uint8).numpy()
    return bits.view(dtype)
