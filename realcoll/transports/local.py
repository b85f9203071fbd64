"""All ranks in one process, on numpy arrays: the reference, and the fast way to test a program."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from realcoll.control import Control
from simcoll.errors import InternalError
from simcoll.reduction import REDUCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from simcoll.plan import Plan

    Array = NDArray[Any]

__all__ = ["LocalTransport", "aligned_bytes", "array_finisher", "array_reducer"]

ALIGN = 64


def aligned_bytes(size_bytes: int) -> NDArray[np.uint8]:
    """New memory that starts at a cache line."""
    whole = np.empty(size_bytes + ALIGN, np.uint8)
    first = -whole.ctypes.data % ALIGN
    return whole[first : first + size_bytes]


def array_reducer(op: str) -> Callable[[Array, Array], object]:
    """``target = target (op) source`` on numpy arrays."""
    ufunc = REDUCTIONS[op]

    def reduce(target: Array, source: Array) -> object:
        return ufunc(target, source, out=target)

    return reduce


def array_finisher(plan: Plan) -> Callable[[Array], None] | None:
    """The last touch to a reduced numpy array."""
    if plan.reduction.name != "avg":
        return None
    return lambda values: plan.reduction.finish(values, plan.nranks)


class LocalTransport:
    """One process that hosts every rank. Messages are copied in the order in which they were sent.

    Examples
    --------
    >>> import numpy as np
    >>> import simcoll, realcoll
    >>> plan = simcoll.schedule("all_reduce", "ring", nranks=3).bind(count=4)
    >>> realcoll.execute(plan, [np.full(4, rank, "float32") for rank in range(3)])[2].tolist()
    [3.0, 3.0, 3.0, 3.0]
    """

    name = "local"

    def __init__(self) -> None:
        self.control = Control(0, 1, None, 0.0)
        self._sent: deque[Array] = deque()
        self._wanted: deque[Array] = deque()

    def alloc(self, size_bytes: int) -> Array:
        """New numpy bytes."""
        return aligned_bytes(size_bytes)

    def view(self, memory: Array, first_byte: int, elements: int, dtype: np.dtype[Any]) -> Array:
        """A typed numpy view."""
        return memory[first_byte : first_byte + elements * dtype.itemsize].view(dtype)

    def wire(self, memory: Array, first_byte: int, size_bytes: int) -> Array:
        """A numpy view of bytes."""
        return memory[first_byte : first_byte + size_bytes]

    def group_start(self) -> None:
        """Nothing to do: the group is what was sent since the last one."""

    def send(self, source: Array, process: int) -> None:  # noqa: ARG002
        """Offer bytes to the next receive."""
        self._sent.append(source)

    def recv(self, target: Array, process: int) -> None:  # noqa: ARG002
        """Take the bytes of the next send."""
        self._wanted.append(target)

    def group_end(self) -> None:
        """Copy each send to its receive."""
        sent, wanted = self._sent, self._wanted
        if len(sent) != len(wanted):
            raise InternalError(f"a group has {len(sent)} sends and {len(wanted)} receives")
        while sent:
            source, target = sent.popleft(), wanted.popleft()
            if source.size != target.size:
                raise InternalError(f"a message of {source.size} bytes meets a receive of {target.size}")
            target[...] = source

    def copy(self, target: Array, source: Array) -> None:
        """Copy elements."""
        target[...] = source

    def reducer(self, op: str, dtype: np.dtype[Any]) -> Callable[[Array, Array], object]:  # noqa: ARG002
        """A numpy function."""
        return array_reducer(op)

    def finisher(self, plan: Plan) -> Callable[[Array], None] | None:
        """A numpy function."""
        return array_finisher(plan)

    def load(self, target: Array, values: Array) -> None:
        """Copy elements."""
        target[...] = values

    def fetch(self, source: Array) -> Array:
        """The view itself."""
        return source

    def lanes(self, plan: Plan, processes: int) -> Sequence[LocalTransport]:  # noqa: ARG002
        """Itself for all channels."""
        return (self,)

    def recorded(self, play: Callable[[], None]) -> Callable[[], None]:
        """The calls as they are."""
        return play

    def vendor(self, plan: Plan, inputs: Mapping[int, Array], outputs: Mapping[int, Array]) -> None:
        """There is no library below."""

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def barrier(self) -> None:
        """Nobody to wait for."""

    def abort(self, reason: str) -> None:
        """Forget what was not delivered."""
        self._sent.clear()
        self._wanted.clear()
        self.control.fail(reason)

    def close(self) -> None:
        """Nothing to give back."""
        self.control.close()
