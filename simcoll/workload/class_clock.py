"""Play a workload class by class with given times of collectives and sends.

If no two collectives share a link at the same time, this equals the emulator's result to the
femtosecond: streams are in order, so the end of each operation follows from earlier ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    Operation,
    RepeatOperation,
    SendOperation,
    Workload,
    WorkloadPart,
    operations_with_counts,
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


def play_classes(workload: Workload, times: OperationDurations, *, spans: bool = True) -> Clock:
    """Play a workload with given times; without ``spans`` the clock has the time alone.

    Operations have the numbers of :meth:`~simcoll.workload.workload.Workload.unroll`.
    """
    player = _ClassPlayer(workload, times, keeps_spans=spans)
    player.play(workload.operations)
    return Clock(player.last_fs, tuple(player.spans))


@dataclass(frozen=True, slots=True)
class _Completion:
    """When an operation ended on each class, and the number of loops around it."""

    times: Mapping[str, int]
    depth: int


@dataclass(eq=False)
class _ClassPlayer:
    """Plays operations in their order, and loops until their iterations are alike.

    All times are maxima of sums. So if an iteration ends with every stream of the loop later by the
    same shift than it began, and in it nothing waited for what is older than the loop, then all
    following iterations are this one, each a shift later. They are counted, not played.

    Attributes
    ----------
    free
        When each stream of a class is free.
    waits_outside
        For each loop that is being played, whether an operation of its current iteration began when
        something older than the loop ended.
    """

    workload: Workload
    times: OperationDurations
    keeps_spans: bool
    free: dict[tuple[str, str], int] = field(default_factory=dict)
    ends: dict[str, _Completion] = field(default_factory=dict)
    waits_outside: list[bool] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    place: int = 0
    last_fs: int = 0

    def play(self, parts: Iterable[WorkloadPart]) -> None:
        for part in parts:
            if isinstance(part, RepeatOperation):
                self._loop(part)
            else:
                self._operation(part)

    def _operation(self, operation: Operation) -> None:
        classes = self.workload.classes_of(operation)
        stream = operation.stream
        needs = [self.ends[needed] for needed in operation.after]
        begins = {
            name: max(
                [
                    self.free.get((name, stream), 0),
                    *(ends.times.get(name, 0) for ends in needs),
                ]
            )
            for name in classes
        }
        takes = operation_fs(operation, self.times)
        # Classes meet.
        if (
            takes
            or isinstance(operation, SendOperation)
            or (isinstance(operation, CallOperation) and operation.kind == "meeting")
        ):
            begins = dict.fromkeys(classes, max(begins.values()))
        for begin in set(begins.values()) if self.waits_outside else ():
            self._note_what_holds(operation, classes, needs, begin)
        self.ends[operation.id] = _Completion(
            {name: begin + takes for name, begin in begins.items()}, len(self.waits_outside)
        )
        for name, begin in begins.items():
            self.free[name, stream] = begin + takes
            self.last_fs = max(self.last_fs, begin + takes)
            if self.keeps_spans:
                self.spans.append(Span(self.place, name, stream, begin, begin + takes))
        self.place += 1

    def _note_what_holds(
        self,
        operation: Operation,
        classes: tuple[str, ...],
        needs: list[_Completion],
        begin: int,
    ) -> None:
        """Note the loops in which nothing explains when an operation begins."""
        if any(self.free.get((name, operation.stream), 0) == begin for name in classes):
            return
        explaining = [
            ends.depth
            for ends in needs
            if any(ends.times.get(name, 0) == begin for name in classes)
        ]
        for loop in range(max(explaining, default=0), len(self.waits_outside)):
            self.waits_outside[loop] = True

    def _loop(self, loop: RepeatOperation) -> None:
        streams = tuple(
            dict.fromkeys(
                (name, operation.stream)
                for operation, _ in operations_with_counts(loop.operations)
                for name in self.workload.classes_of(operation)
            )
        )
        self.waits_outside.append(False)
        earlier_fs, later_fs = self.last_fs, 0
        for iteration in range(loop.count):
            begins = [self.free.get(key, 0) for key in streams]
            first_span, first_place = len(self.spans), self.place
            self.waits_outside[-1], self.last_fs = False, 0
            self.play(loop.operations)
            shifts = {self.free[key] - begin for key, begin in zip(streams, begins, strict=True)}
            further = loop.count - iteration - 1
            if len(shifts) == 1 and not self.waits_outside[-1]:
                shift_fs = shifts.pop()
                later_fs = shift_fs * further
                self._add_spans(
                    self.spans[first_span:], self.place - first_place, shift_fs, further
                )
                self.place += (self.place - first_place) * further
                for key in streams:
                    self.free[key] += later_fs
                break
        self.waits_outside.pop()
        self.last_fs = max(earlier_fs, self.last_fs + later_fs)
        latest: dict[str, int] = {}
        for part in loop.operations:
            for name, end in self.ends[part.id].times.items():
                latest[name] = max(latest.get(name, 0), end + later_fs)
        self.ends[loop.id] = _Completion(latest, len(self.waits_outside))

    def _add_spans(self, spans: list[Span], operations: int, shift_fs: int, count: int) -> None:
        for iteration in range(1, count + 1):
            by_fs = shift_fs * iteration
            self.spans += [
                replace(
                    span,
                    operation=span.operation + operations * iteration,
                    begin_fs=span.begin_fs + by_fs,
                    end_fs=span.end_fs + by_fs,
                )
                for span in spans
            ]


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
