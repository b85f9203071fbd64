"""The interface that every transport implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from realcoll.meeting.control import Control
from simcoll.arrays import Array
from simcoll.core.plan import Plan
from simcoll.core.vocabulary import PairReduction
from simcoll.core.wire_format import WireFormat

__all__ = ["Memory", "Message", "Transport", "View", "Wire"]

Memory: TypeAlias = Any
"""Memory of a rank: a numpy or CuPy array of uint8."""
View: TypeAlias = Any
"""Part of a memory as typed elements."""
Wire: TypeAlias = Any
"""Part of a memory in the form that messages use."""
Message: TypeAlias = tuple[Wire, int, int]
"""Part of a memory, the process at the other end, and the channel."""


class Transport(Protocol):
    """Moves bytes between processes, and reduces them in place.

    A process may host several ranks; data between them goes from the process to itself, inside a
    group, like all other data. Messages between two processes on one channel arrive in sending
    order; the order between channels is undefined.
    """

    @property
    def name(self) -> str:
        """The transport's name, such as ``mpi``."""

    @property
    def control(self) -> Control:
        """The control connection: number of this process, number of processes, agreement."""

    def alloc(self, size_bytes: int) -> Memory:
        """New memory; its content is undefined."""

    def view(self, memory: Memory, first_byte: int, elements: int, dtype: np.dtype[Any]) -> View:
        """Elements inside a memory."""

    def wire(self, memory: Memory, first_byte: int, size_bytes: int) -> Wire:
        """Bytes inside a memory, for messages."""

    def group(self, recvs: Sequence[Message], sends: Sequence[Message]) -> Callable[[], Any]:
        """A reusable function that starts a group of messages, which progress together, without
        waiting for them.

        It returns the argument of :meth:`is_over` and :meth:`wait`, or None if calls may follow at
        once.
        """

    def is_over(self, group: Any) -> bool:
        """Whether all messages of a group are done."""

    def wait(self, groups: Sequence[Any]) -> None:
        """Wait until one of some groups is done.

        Raises
        ------
        FaultError
            When another process fails or times out.
        """

    def copy(self, target: View, source: View) -> None:
        """``target = source``."""

    def reducer(self, op: PairReduction, dtype: np.dtype[Any]) -> Callable[[View, View], object]:
        """The function that computes ``target = target (op) source`` on views of a dtype.

        Raises
        ------
        ConfigError
            When the device does not support it.
        """

    def encoder(self, wire: WireFormat) -> Callable[[View, View], object]:
        """The function that writes the elements of a source to a target of bytes, in a wire format.

        Raises
        ------
        ConfigError
            When the device does not convert.
        """

    def decoder(
        self, wire: WireFormat, dtype: np.dtype[Any], write: Callable[[View, View], object]
    ) -> Callable[[View, View], object]:
        """The function that turns a source of bytes in a wire format into elements, and hands a
        target and these to ``write``.
        """

    def finisher(self, plan: Plan) -> Callable[[View], None] | None:
        """The function that converts a reduced output to the result (an average's division), if one
        is needed.
        """

    def load(self, target: View, values: Any) -> None:
        """Copy a caller's array to a view."""

    def fetch(self, source: View) -> Array:
        """The content of a view as a numpy array, which may share memory."""

    def lanes(self, plan: Plan, processes: int) -> Sequence[Transport]:
        """One transport per channel of a plan, or one for all channels together."""

    def record_calls(self, play: Callable[[], None]) -> Callable[[], None]:
        """Make a sequence of calls cheap to repeat, if the transport supports it."""

    def vendor(
        self, plan: Plan, inputs: Mapping[int, View], outputs: Mapping[int, View]
    ) -> Callable[[], object] | None:
        """The library's own collective for a plan on the local ranks' memory, if it has one."""

    def synchronize(self) -> None:
        """Wait until all work issued so far is done."""

    def barrier(self) -> None:
        """Wait until every process has called this."""

    def abort(self, reason: str) -> None:
        """Announce a failure to the others and drop pending operations; the transport is unusable
        afterwards.
        """

    def close(self) -> None:
        """Release all resources."""
