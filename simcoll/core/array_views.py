"""Zero-copy numpy arrays on the memory of other objects."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from simcoll.arrays import Array
from simcoll.core.reduction import parse_dtype
from simcoll.errors import ConfigError

__all__ = ["array_on", "is_tensor"]


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor, without importing torch."""
    return hasattr(value, "detach") and hasattr(value, "requires_grad")


def array_on(value: Any) -> Array | None:
    """An array on the memory of a torch CPU tensor, a buffer, or an object with ``__array__`` or
    DLPack; None for other values.

    Raises
    ------
    TypeError
        For a tensor whose memory numpy cannot share: on another device, sparse, or of an
        unsupported dtype.
    RuntimeError
        For a lazily conjugated or negated tensor, as torch raises.
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
    """Like ``tensor.numpy()``, but also for the dtypes that numpy has from ml_dtypes; these are
    viewed as bits.
    """
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
