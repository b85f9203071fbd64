"""A workload on a clock, class by class, when the time of each collective and send is known.

Where no two collectives share a link at the same time, this is what the emulator finds, to the femtosecond: streams are in order, so
the end of every operation follows from ends before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from simcoll.workload.workload import Call, Compute, Send

if TYPE_CHECKING:
    from simcoll.workload.workload import Inside, Operation, Workload

__all__ = ["Clock", "Span", "Times", "compute_fs", "play_classes"]


class Times(Protocol):
    """Knows how long collectives and sends take when nothing else runs."""

    def call(self, call: Call) -> int:
        """Femtoseconds of all groups of a call at once."""

    def inside(self, operation: Compute, inner: Inside) -> int:
        """Femtoseconds of one collective that a computation waits for, on its class."""

    def send(self, send: Send) -> int:
        """Femtoseconds of all messages of a send at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """An operation on a class: when it ran, in femtoseconds."""

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
        When the last one ends.
    spans
        In the order of the workload; an operation of several classes has one for each.
    """

    time_fs: int
    spans: tuple[Span, ...]


def compute_fs(operation: Compute, times: Times) -> int:
    """A computation with the collectives that it waits for."""
    waits = sum(
        inner.count * max(0, times.inside(operation, inner) - inner.hidden_fs)
        for inner in operation.inside
        if inner.count
    )
    return max(operation.least_fs, operation.time_fs + waits)


def play_classes(workload: Workload, times: Times) -> Clock:
    """Play a workload with given times."""
    free: dict[tuple[str, str], int] = {}
    done: dict[str, dict[str, int]] = {}
    spans: list[Span] = []
    last = 0
    for place, operation in enumerate(workload.operations):
        classes = workload.involved(operation)
        stream = operation.stream
        begins = {
            name: max([free.get((name, stream), 0), *(done[other].get(name, 0) for other in operation.after)])
            for name in classes
        }
        takes = _takes(operation, times)
        if takes or isinstance(operation, Send):  # its classes meet
            begins = dict.fromkeys(classes, max(begins.values()))
        done[operation.id] = {name: begin + takes for name, begin in begins.items()}
        for name, begin in begins.items():
            free[name, stream] = begin + takes
            spans.append(Span(place, name, stream, begin, begin + takes))
            last = max(last, begin + takes)
    return Clock(last, tuple(spans))


def _takes(operation: Operation, times: Times) -> int:
    if isinstance(operation, Compute):
        return compute_fs(operation, times)
    return times.call(operation) if isinstance(operation, Call) else times.send(operation)
