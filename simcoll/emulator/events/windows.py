"""Time windows of events: those active at each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

__all__ = ["windows"]


class Window(Protocol):
    """A time window from a start, for a duration or (``None``) to the end."""

    @property
    def at_fs(self) -> int: ...
    @property
    def for_fs(self) -> int | None: ...


Each = TypeVar("Each", bound=Window)


def windows(events: Sequence[Each]) -> Iterator[tuple[int, list[Each]]]:
    """Every time at which a window begins or ends, ascending, with the windows active from then
    on.
    """
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, event in enumerate(events):
        begins.setdefault(event.at_fs, []).append(number)
        if event.for_fs is not None:
            ends.setdefault(event.at_fs + event.for_fs, []).append(number)
    active: dict[int, Each] = {}
    for time in sorted({*begins, *ends}):
        for number in ends.get(time, ()):
            del active[number]
        for number in begins.get(time, ()):
            active[number] = events[number]
        yield time, list(active.values())
