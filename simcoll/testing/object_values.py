"""Python objects as the data of a case: what object collectives move."""

from __future__ import annotations

from typing import Any

import numpy as np

from simcoll.arrays import Array

__all__ = ["OBJECT", "equal_elements", "image", "object_values"]

OBJECT = "object"
"""The dtype of operations on Python objects."""


def object_values(numbers: Array) -> Array:
    """An array of objects, one for each number, and different where the numbers are.

    They are of several types, sizes and depths, as pickles are.

    >>> object_values(np.array([2, 3])).tolist()
    [('nested', [2, None]), {'key': 3}]
    """
    values = np.empty(numbers.size, object)
    for place, number in enumerate(numbers.tolist()):
        values[place] = _object(number)
    return values


def _object(number: int) -> Any:
    forms: tuple[Any, ...] = (
        number,
        f"text {number}",
        ("nested", [number, None]),
        {"key": number},
        b"long" * 500 + str(number).encode(),
    )
    return forms[number % len(forms)]


def equal_elements(values: Array, expected: Array) -> Array:
    """Where two arrays of one shape agree: objects in type and value, and NaN with NaN."""
    if values.dtype.kind != "O":
        return np.asarray((values == expected) | (np.isnan(values) & np.isnan(expected)))
    pairs = zip(values.tolist(), expected.tolist(), strict=True)
    return np.array([type(a) is type(b) and a == b for a, b in pairs], np.bool_)


def image(values: Array) -> Any:
    """What an array holds, for comparisons: objects by value, numbers bit by bit."""
    return values.tolist() if values.dtype.kind == "O" else values.tobytes()
