"""The interface that every transport implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from realcoll.meeting.control import Control
from simcoll.arrays import Array
from simcoll.core.plan import Plan

__all__ = ["Memory", "Message", "Transport", "View", "Wire"]

Memory: TypeAlias = Any
"""Bytes where the transport's ranks compute: a numpy or CuPy array of uint8."""
View: TypeAlias = Any
"""Part of a memory as elements of a dtype."""
Wire: TypeAlias = Any
"""Part of a memory in the form that messages take."""
Message: TypeAlias = tuple[Wire, int, int]
"""Part of a memory, the process at the other end, and the channel."""


class Transport(Protocol):
    """Moves bytes between processes and combines them where they are.

    A process may host several ranks; the data they exchange goes from the process to itself, inside a group, like all other data.
    Messages between two processes on one channel arrive in the order in which they were sent; those of different channels need not.
    """

    @property
    def name(self) -> str:
        """Such as ``mpi``."""

    @property
    def control(self) -> Control:
        """Number of this process, number of processes, and how they agree."""

    def alloc(self, size_bytes: int) -> Memory:
        """New memory; its content is undefined."""

    def view(self, memory: Memory, first_byte: int, elements: int, dtype: np.dtype[Any]) -> View:
        """Elements inside a memory."""

    def wire(self, memory: Memory, first_byte: int, size_bytes: int) -> Wire:
        """Bytes inside a memory, for messages."""

    def group(self, recvs: Sequence[Message], sends: Sequence[Message]) -> Callable[[], Any]:
        """The function that begins messages which progress together, as often as wanted, and does not wait for them.

        It returns the argument of :meth:`finished` and :meth:`wait`, None if calls may follow at once.
        """

    def finished(self, group: Any) -> bool:
        """Whether all messages of a group are done."""

    def wait(self, groups: Sequence[Any]) -> None:
        """Return when one of some groups is done.

        Raises
        ------
        FaultError
            When another process fails, or does not do its part within the timeout.
        """

    def copy(self, target: View, source: View) -> None:
        """``target = source``."""

    def reducer(self, op: str, dtype: np.dtype[Any]) -> Callable[[View, View], object]:
        """The function that does ``target = target (op) source`` on views of that dtype.

        Raises
        ------
        ConfigError
            When the device cannot do it.
        """

    def finisher(self, plan: Plan) -> Callable[[View], None] | None:
        """The function that turns a reduced output into the result, where one is needed."""

    def load(self, target: View, values: Any) -> None:
        """Copy an array of the caller to a view."""

    def fetch(self, source: View) -> Array:
        """The content of a view as a numpy array; it may share memory."""

    def lanes(self, plan: Plan, processes: int) -> Sequence[Transport]:
        """A transport for each channel of a plan among that many processes, or one for all channels together."""

    def recorded(self, play: Callable[[], None]) -> Callable[[], None]:
        """Make a sequence of calls cheap to repeat, where the transport can."""

    def vendor(
        self, plan: Plan, inputs: Mapping[int, View], outputs: Mapping[int, View]
    ) -> Callable[[], object] | None:
        """The library's own collective for a plan on the memory of the ranks hosted here, if it has one."""

    def synchronize(self) -> None:
        """Return when everything asked for so far is done."""

    def barrier(self) -> None:
        """Return when every process has called this."""

    def abort(self, reason: str) -> None:
        """Give up: announce the reason to the others and drop pending operations; the transport is unusable afterwards."""

    def close(self) -> None:
        """Give everything back."""
