"""Play a workload class by class with given times of collectives and sends.

If no two collectives share a link at the same time, this equals the emulator's result to the
femtosecond: streams are in order, so the end of each operation follows from earlier ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    Operation,
    SendOperation,
    Workload,
)

__all__ = [
    "Clock",
    "OperationDurations",
    "Span",
    "added_fs",
    "lost_fs",
    "operation_fs",
    "play_classes",
]


class OperationDurations(Protocol):
    """Provides the times of collectives and sends in isolation."""

    def call(self, call: CallOperation) -> int:
        """Femtoseconds of a call in all its groups at once."""

    def inside(self, operation: ComputeOperation, inner: Inside) -> int:
        """Femtoseconds of one collective inside a computation, in its class."""

    def send(self, send: SendOperation) -> int:
        """Femtoseconds of all messages of a send at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """The interval of an operation on a class, in femtoseconds."""

    operation: int
    on: str
    stream: str
    begin_fs: int
    end_fs: int


@dataclass(frozen=True, slots=True)
class Clock:
    """All operations with their times.

    Attributes
    ----------
    time_fs
        End of the last operation.
    spans
        In the order of the workload; one per class of an operation.
    """

    time_fs: int
    spans: tuple[Span, ...]


def lost_fs(inner: Inside, time_fs: int) -> int:
    """The time that an overlapping computation loses to a collective's share of the
    multiprocessors.
    """
    return round(inner.share * time_fs) if inner.hidden_fs else 0


def added_fs(inner: Inside, time_fs: int) -> int:
    """The time that a collective of ``time_fs`` adds to its computation.

    Examples
    --------
    >>> from simcoll.workload.workload import Inside
    >>> beside = Inside("all_to_all", "ep", 1024, hidden_fs=10, share=0.25)
    >>> [added_fs(beside, time_fs) for time_fs in (4, 12, 20)]
    [1, 3, 10]
    """
    return max(0, time_fs - inner.hidden_fs, lost_fs(inner, time_fs))


def play_classes(workload: Workload, times: OperationDurations) -> Clock:
    """Play a workload with given times."""
    free: dict[tuple[str, str], int] = {}
    ends: dict[str, dict[str, int]] = {}
    spans: list[Span] = []
    last = 0
    for place, operation in enumerate(workload.operations):
        classes = workload.classes_of(operation)
        stream = operation.stream
        begins = {
            name: max(
                [
                    free.get((name, stream), 0),
                    *(ends[needed].get(name, 0) for needed in operation.after),
                ]
            )
            for name in classes
        }
        takes = operation_fs(operation, times)
        # Classes meet.
        if (
            takes
            or isinstance(operation, SendOperation)
            or (isinstance(operation, CallOperation) and operation.kind == "meeting")
        ):
            begins = dict.fromkeys(classes, max(begins.values()))
        ends[operation.id] = {name: begin + takes for name, begin in begins.items()}
        for name, begin in begins.items():
            free[name, stream] = begin + takes
            spans.append(Span(place, name, stream, begin, begin + takes))
            last = max(last, begin + takes)
    return Clock(last, tuple(spans))


def operation_fs(operation: Operation, times: OperationDurations) -> int:
    """The time of an operation in isolation; a computation includes the collectives inside."""
    if isinstance(operation, ComputeOperation):
        waits = sum(
            inner.count * added_fs(inner, times.inside(operation, inner))
            for inner in operation.inside
            if inner.count
        )
        return max(operation.least_fs, operation.time_fs + waits)
    return times.call(operation) if isinstance(operation, CallOperation) else times.send(operation)
