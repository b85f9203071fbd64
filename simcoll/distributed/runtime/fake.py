"""Fake arrays: a shape and a dtype without memory, for programs that are only timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from simcoll.arrays import Array
from simcoll.core.reduction import parse_dtype
from simcoll.distributed.runtime.tasks import current_task
from simcoll.errors import ConfigError

__all__ = ["FakeArray", "fake_array", "is_fake", "move_always"]


class FakeArray(np.ndarray[Any, Any]):
    """An array without storage: all its elements share one; arithmetic gives fake arrays of the
    right shape and dtype.
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any
    ) -> Any:
        """Shape and dtype of an elementwise operation."""
        if method != "__call__" or ufunc.signature is not None:
            raise TypeError(f"a fake array has no elements: {ufunc.__name__}.{method} needs them")
        scalars = [
            np.zeros((), operand.dtype) if isinstance(operand, np.ndarray) else operand
            for operand in inputs
        ]
        with np.errstate(all="ignore"):
            outcome = ufunc(*scalars, **kwargs)
        if out is not None:
            return out[0] if len(out) == 1 else out
        shape = np.broadcast_shapes(*(getattr(operand, "shape", ()) for operand in inputs))
        results = [
            fake_array(shape, scalar.dtype)
            for scalar in (outcome if isinstance(outcome, tuple) else (outcome,))
        ]
        return tuple(results) if isinstance(outcome, tuple) else results[0]

    def __array_function__(
        self, func: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:  # numpy's protocol
        """Refuse functions that need elements."""
        raise TypeError(f"a fake array has no elements: numpy.{func.__name__} needs them")


def fake_array(shape: int | Sequence[int], dtype: Any = "float32") -> FakeArray:
    """An array with a shape and a dtype, but no memory; collectives of fake arrays are timed and
    move nothing.

    Raises
    ------
    ConfigError
        For a negative dimension.

    Examples
    --------
    >>> gradients = fake_array((1 << 20, 4096), "bfloat16")
    >>> gradients.nbytes, (gradients * 0.5).shape
    (8589934592, (1048576, 4096))
    """
    kind = dtype if isinstance(dtype, np.dtype) else parse_dtype(dtype)
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise ConfigError(f"shape {sizes} of a fake array: expected sizes of 0 or more")
    element = np.zeros(1, kind)
    array = np.lib.stride_tricks.as_strided(element, sizes, (0,) * len(sizes)).view(FakeArray)
    task = current_task()
    if task is not None:
        task.owner.memory.hold_arrays([array])
    return array


_ALWAYS_MOVED: ContextVar[bool] = ContextVar("simcoll_always_moved", default=False)


@contextmanager
def move_always() -> Iterator[None]:
    """Move data inside the block even in a timed-only run, for content that the program needs
    (object collectives).
    """
    token = _ALWAYS_MOVED.set(True)
    try:
        yield
    finally:
        _ALWAYS_MOVED.reset(token)


def is_fake(arrays: Iterable[Array], *, timed: bool) -> bool:
    """Whether an operation on these buffers moves no data; ``timed``: the run is only timed."""
    if timed and not _ALWAYS_MOVED.get():
        return True
    for array in arrays:  # noqa: SIM110  # this is on every call, and a loop is faster
        if isinstance(array, FakeArray):
            return True
    return False
