"""Type aliases for the arrays in signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Floats", "Ints", "Links", "Shorts", "Words"]

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Shorts: TypeAlias = NDArray[np.int32]
Links: TypeAlias = Shorts
"""Link numbers, in a topology's order."""
Words: TypeAlias = NDArray[np.uint64]
