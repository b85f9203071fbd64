"""The reference transport: all ranks in one process, data in numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from realcoll.meeting.control import Control
from realcoll.transports.interface import Message
from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.core.reduction import REDUCTIONS
from simcoll.core.vocabulary import PairReduction
from simcoll.core.wire_format import WireFormat
from simcoll.errors import InternalError

__all__ = ["HostMemory", "LocalTransport"]


ALIGN = 64
MOST_CHANNELS = 2**15
"""Tags guaranteed by every MPI library; the channels of a plan with more channels share one
lane.
"""


class HostMemory:
    """The host-memory part of a transport: data in numpy arrays, execution in one thread; it moves
    no messages.
    """

    def alloc(self, size_bytes: int) -> Array:
        """New numpy bytes, aligned to a cache line."""
        padded = np.empty(size_bytes + ALIGN, np.uint8)
        offset = -padded.ctypes.data % ALIGN
        return padded[offset : offset + size_bytes]

    def view(self, memory: Array, first_byte: int, elements: int, dtype: np.dtype[Any]) -> Array:
        """A typed numpy view."""
        return memory[first_byte : first_byte + elements * dtype.itemsize].view(dtype)

    def copy(self, target: Array, source: Array) -> None:
        """Copy elements."""
        target[...] = source

    def reducer(
        self,
        op: PairReduction,
        dtype: np.dtype[Any],  # noqa: ARG002
    ) -> Callable[[Array, Array], object]:
        """A numpy function."""
        ufunc = REDUCTIONS[op]

        def reduce(target: Array, source: Array) -> object:
            return ufunc(target, source, out=target)

        return reduce

    def encoder(self, wire: WireFormat) -> Callable[[Array, Array], object]:
        """A numpy function."""

        def encode(target: Array, source: Array) -> None:
            target[...] = wire.encode(source)

        return encode

    def decoder(
        self, wire: WireFormat, dtype: np.dtype[Any], write: Callable[[Array, Array], object]
    ) -> Callable[[Array, Array], object]:
        """A numpy function."""
        return lambda target, source: write(target, wire.decode(source, target.size, dtype))

    def finisher(self, plan: Plan) -> Callable[[Array], None] | None:
        """A numpy function."""
        if plan.reduction.name != "avg":
            return None
        return lambda values: plan.reduction.finish(values, plan.summands)

    def load(self, target: Array, values: Array) -> None:
        """Copy elements."""
        target[...] = values

    def fetch(self, source: Array) -> Array:
        """The view itself."""
        return source

    def lanes(self, plan: Plan, processes: int) -> Sequence[Self]:  # noqa: ARG002
        """Itself for each channel."""
        return (self,) * (plan.nchannels if plan.nchannels <= MOST_CHANNELS else 1)

    def record_calls(self, play: Callable[[], None]) -> Callable[[], None]:
        """The calls as they are."""
        return play


class LocalTransport(HostMemory):
    """One process that hosts every rank. Messages are copied in sending order.

    Examples
    --------
    >>> import numpy as np
    >>> import simcoll, realcoll
    >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=3), count=4)
    >>> realcoll.execute(plan, [np.full(4, rank, "float32") for rank in range(3)])[2].tolist()
    [3.0, 3.0, 3.0, 3.0]
    """

    name = "local"

    def __repr__(self) -> str:
        return "<LocalTransport: one process>"

    def __init__(self) -> None:
        self.control = Control(0, 1, 0.0)

    def wire(self, memory: Array, first_byte: int, size_bytes: int) -> Array:
        """A numpy view of bytes."""
        return memory[first_byte : first_byte + size_bytes]

    def group(self, recvs: Sequence[Message], sends: Sequence[Message]) -> Callable[[], None]:
        """A function that copies each send to its receive at once."""
        if len(sends) != len(recvs):
            raise InternalError(f"a group has {len(sends)} sends and {len(recvs)} receives")
        pairs = [
            (target, source) for (target, _, _), (source, _, _) in zip(recvs, sends, strict=True)
        ]
        for target, source in pairs:
            if source.size != target.size:
                raise InternalError(
                    f"a message of {source.size} bytes meets a receive of {target.size}"
                )

        def begin() -> None:
            for target, source in pairs:
                target[...] = source

        return begin

    def is_over(self, group: None) -> bool:  # noqa: ARG002
        """Always True: messages complete at once."""
        return True

    def wait(self, groups: Sequence[None]) -> None:
        """Do nothing: messages complete at once."""

    def vendor(self, plan: Plan, inputs: Mapping[int, Array], outputs: Mapping[int, Array]) -> None:
        """None: there is no library below."""

    def synchronize(self) -> None:
        """Do nothing: no operation is ever pending."""

    def barrier(self) -> None:
        """Do nothing: messages complete at once."""

    def abort(self, reason: str) -> None:
        """Mark the transport as unusable."""
        self.control.fail(reason)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
        self.control.close()
