"""Non-negative indices of numpy arrays; columns of the state take theirs as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simcoll.emulator.fast.compiled import COMPILED

__all__ = ["natural"]


def natural(index: int) -> int:
    """An index that the compiler may assume to be non-negative.

    This avoids code for counting from the end of an array, which would take a quarter of the time.
    """
    return index


def _as_intrinsic(plain: Callable[[int], int]) -> Any:
    """The same as a numba intrinsic."""
    from numba.extending import intrinsic

    def natural(_context: Any, index: Any) -> Any:
        def code(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
            builder.assume(builder.icmp_signed(">=", values[0], values[0].type(0)))
            return values[0]

        return index(index), code

    natural.__doc__ = plain.__doc__
    return intrinsic(natural)


if COMPILED:
    natural = _as_intrinsic(natural)
