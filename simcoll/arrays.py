"""Type aliases for arrays, whole numbers and optional results in signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Floats", "Ints", "Links", "MaybeNone", "Shorts", "Whole", "Words"]

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Shorts: TypeAlias = NDArray[np.int32]
MaybeNone: TypeAlias = Any
"""In ``Work | MaybeNone``: None only in a case that the caller knows (it has not asked for the
result, or its rank is not in the group), so that a type checker asks for no check.
"""
Whole: TypeAlias = "int | np.integer[Any]"
"""A whole number as callers give it; it is stored as an int."""
Links: TypeAlias = Shorts
"""Link numbers, in a topology's order."""
Words: TypeAlias = NDArray[np.uint64]
