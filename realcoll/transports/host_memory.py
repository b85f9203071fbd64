"""The parts common to transports that keep data in numpy arrays and play a plan in one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from simcoll.core.reduction import REDUCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from simcoll.core.plan import Plan

    Array = NDArray[Any]

__all__ = ["HostMemory"]

ALIGN = 64
MOST_CHANNELS = 2**15
"""As many tags as every MPI library has; the channels of a plan with more share a lane."""


class HostMemory:
    """The part of a transport that manages memory, but moves no messages."""

    def alloc(self, size_bytes: int) -> Array:
        """New numpy bytes, from the beginning of a cache line."""
        whole = np.empty(size_bytes + ALIGN, np.uint8)
        first = -whole.ctypes.data % ALIGN
        return whole[first : first + size_bytes]

    def view(self, memory: Array, first_byte: int, elements: int, dtype: np.dtype[Any]) -> Array:
        """A typed numpy view."""
        return memory[first_byte : first_byte + elements * dtype.itemsize].view(dtype)

    def copy(self, target: Array, source: Array) -> None:
        """Copy elements."""
        target[...] = source

    def reducer(self, op: str, dtype: np.dtype[Any]) -> Callable[[Array, Array], object]:  # noqa: ARG002
        """A numpy function."""
        ufunc = REDUCTIONS[op]

        def reduce(target: Array, source: Array) -> object:
            return ufunc(target, source, out=target)

        return reduce

    def finisher(self, plan: Plan) -> Callable[[Array], None] | None:
        """A numpy function."""
        if plan.reduction.name != "avg":
            return None
        return lambda values: plan.reduction.finish(values, plan.nranks)

    def load(self, target: Array, values: Array) -> None:
        """Copy elements."""
        target[...] = values

    def fetch(self, source: Array) -> Array:
        """The view itself."""
        return source

    def lanes(self, plan: Plan, processes: int) -> Sequence[Self]:  # noqa: ARG002
        """Itself for each channel."""
        return (self,) * (plan.nchannels if plan.nchannels <= MOST_CHANNELS else 1)

    def recorded(self, play: Callable[[], None]) -> Callable[[], None]:
        """The calls as they are."""
        return play
