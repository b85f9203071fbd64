"""Tensors as numpy arrays on the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.core.memory import array_on

if TYPE_CHECKING:
    from simcoll.core.memory import Array

__all__ = ["as_array", "as_arrays"]


def as_array(value: Any, parameter: str = "tensor") -> Array:
    """An array on the memory of a tensor.

    Accepted are an ndarray, a buffer (``bytearray``, ``array.array``), and an object with ``__array__`` or DLPack that
    shares its memory, such as a torch CPU tensor.

    Raises
    ------
    TypeError
        For anything else.
    """
    if isinstance(value, np.ndarray):
        return value
    plain = isinstance(value, (list, tuple, str, int, float, complex, bool, type(None), dict))
    found = None if plain else array_on(value)
    if found is None:
        raise TypeError(
            f"Invalid function argument. Expected parameter `{parameter}` of type torch.Tensor but got {type(value)} instead."
            " Pass a numpy array, or an object that shares its memory (buffer protocol, DLPack)."
        )
    return found


def as_arrays(values: Any, parameter: str) -> list[Array]:
    """Arrays on the memory of a list of tensors.

    Raises
    ------
    TypeError
        For anything but a list of tensors.
    """
    if not isinstance(values, list):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{parameter}` of type List[torch.Tensor] but got {type(values)} "
            "instead."
        )
    return [as_array(value, parameter) for value in values]
