"""Find the repetitions of a workload: layers, micro-batches, turns of a pipeline.

Most operations of a training step repeat earlier ones. A shortened workload has a few turns of each
cycle; :mod:`simcoll.workload.cycle_times` finds out from its run how long the others take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simcoll.arrays import Ints
from simcoll.workload.run_content import OperationContent

__all__ = ["TURNS", "Cycle", "Shortened", "leave_out_turns"]

TURNS = 4
"""Turns of a cycle that remain. The first follows what came before the cycle, and the last is
beside what comes after it; the state between the other two must recur. With three, most states do
not: parameters are gathered a layer ahead.
"""
MOST_PERIODS = 8
"""Distances that are tried as periods, the most frequent first."""
LEAST_SHARE = 8
"""A period must leave out one operation of so many: a cycle whose state does not recur spoils the
others.
"""
MOST_PASSES = 32
"""Periods by which a workload is shortened one after the other: layers, then micro-batches."""


@dataclass(frozen=True, slots=True, eq=False)
class Cycle:
    """Operations that recur, of which some turns were left out.

    Attributes
    ----------
    operations
        The numbers of those that remain, turn after turn.
    period, left_out
        Operations of a turn, without what was left out inside it, and the number of turns that are
        left out.
    last
        The last operation of all turns.
    """

    operations: Ints
    period: int
    left_out: int
    last: int

    def encloses(self, cycle: Cycle) -> bool:
        """Whether another cycle is in the turns of this one."""
        return self.operations[0] <= cycle.operations[0] and cycle.last <= self.last


@dataclass(frozen=True, slots=True, eq=False)
class Shortened:
    """A workload without most of its repetitions.

    Attributes
    ----------
    operations
        The numbers of the operations that remain.
    needs
        For each of them, the numbers of those that it waits for, which all remain.
    cycles
        Of which turns were left out, the inner cycles before those around them.
    content
        For each operation of the workload, a number that all have that do the same.
    """

    operations: Ints
    needs: list[tuple[int, ...]]
    cycles: tuple[Cycle, ...]
    content: Ints


def leave_out_turns(contents: Sequence[OperationContent]) -> Shortened:
    """Leave out turns of the cycles of a workload, whose operations are in an order in which every
    stream may perform them.

    Examples
    --------
    >>> layer = [OperationContent(stream, (), ("compute",)) for stream in ("one", "two")]
    >>> short = leave_out_turns([*layer * 9, layer[0]])
    >>> short.operations.tolist(), [cycle.left_out for cycle in short.cycles]
    ([0, 1, 2, 3, 4, 5, 6, 7, 18], [5])
    """
    shortening = _Shortening(contents)
    for _ in range(MOST_PASSES):
        if not shortening.leave_out():
            break
    return shortening.result()


class _Shortening:
    """The state of a workload while it is shortened.

    Attributes
    ----------
    operations
        The numbers of operations that remain.
    waiting, needed
        A pair of operations for each dependency between them.
    content, mark
        For each operation, numbers of what it does, and of the turns that were left out after it.
    """

    def __init__(self, contents: Sequence[OperationContent]) -> None:
        numbers: dict[object, int] = {}
        self.content = np.array(
            [
                numbers.setdefault((content.stream, content.costs), len(numbers))
                for content in contents
            ],
            np.int64,
        )
        self.operations = np.arange(len(contents))
        self.mark = np.zeros(len(contents), np.int64)
        self.marks: dict[tuple[int, int, int], int] = {}
        pairs = [
            (number, predecessor)
            for number, content in enumerate(contents)
            for predecessor in _last_of_streams(contents, content.needs)
        ]
        self.waiting, self.needed = np.array(pairs, np.int64).reshape(-1, 2).T
        self.cycles: list[Cycle] = []

    def result(self) -> Shortened:
        needed = self.needed.tolist()
        needs = [tuple(needed[begin:end]) for begin, end in pairwise(self._bounds())]
        return Shortened(self.operations, needs, tuple(self.cycles), self.content)

    def leave_out(self) -> bool:
        """Leave out turns of the cycles of one period; whether there were any."""
        letters = self._letters()
        for period in _periods(letters):
            cycles = [
                cycle
                for start, turns in _recurrences(letters, period)
                if (cycle := self._cycle(start, period, turns)) is not None
            ]
            left_out = sum(cycle.left_out * cycle.period for cycle in cycles)
            if LEAST_SHARE * left_out >= len(letters):
                for cycle in cycles:
                    self._remove(cycle)
                return True
        return False

    def _bounds(self) -> list[int]:
        """Where the dependencies of each operation begin, and the end of the last."""
        ends = np.append(self.operations, len(self.content))
        bounds: list[int] = np.searchsorted(self.waiting, ends).tolist()
        return bounds

    def _letters(self) -> Ints:
        """Equal numbers for operations that do the same and need the same before them."""
        place = self._places()
        distances = (place[self.waiting] - place[self.needed]).tolist()
        contents = zip(
            self.content[self.operations].tolist(),
            self.mark[self.operations].tolist(),
            strict=True,
        )
        numbers: dict[object, int] = {}
        letters = [
            numbers.setdefault((content, *distances[begin:end]), len(numbers))
            for content, (begin, end) in zip(contents, pairwise(self._bounds()), strict=True)
        ]
        return np.array(letters, np.int64)

    def _places(self) -> Ints:
        """The place of each operation among those that remain."""
        place = np.zeros(len(self.content), np.int64)
        place[self.operations] = np.arange(len(self.operations))
        return place

    def _cycle(self, start: int, period: int, turns: int) -> Cycle | None:
        """The cycle from some place on; ``None`` if no turn of it can be left out."""
        end = start + turns * period
        remaining, leaving = np.split(self.operations[start:end], [TURNS * period])
        for cycle in self.cycles:
            for operations in (remaining, leaving):
                if 0 < np.isin(cycle.operations, operations).sum() < len(cycle.operations):
                    return None
        cycle = Cycle(remaining, period, turns - TURNS, int(leaving[-1]))
        # A later operation may need one of the last turns, in whose place is an earlier one.
        needed = self._places()[self.needed[self._across(cycle)]]
        return None if (needed < end - (TURNS - 1) * period).any() else cycle

    def _across(self, cycle: Cycle) -> Ints:
        """The dependencies of later operations on those of a cycle."""
        needed = (self.needed >= cycle.operations[0]) & (self.needed <= cycle.last)
        return np.flatnonzero((self.waiting > cycle.last) & needed)

    def _remove(self, cycle: Cycle) -> None:
        """Leave out turns of a cycle, with the cycles inside them."""
        place, across = self._places(), self._across(cycle)
        start, end = int(place[cycle.operations[-1]]) + 1, int(place[cycle.last]) + 1
        leaving = self.operations[start:end]
        self.needed[across] = self.operations[place[self.needed[across]] - len(leaving)]
        stays = ~np.isin(self.waiting, leaving)
        self.waiting, self.needed = self.waiting[stays], self.needed[stays]
        self.cycles = [inner for inner in self.cycles if not np.isin(inner.operations[0], leaving)]
        self.cycles.append(cycle)
        last = self.operations[start - 1]
        mark = int(self.mark[last]), cycle.period, cycle.left_out
        self.mark[last] = self.marks.setdefault(mark, len(self.marks) + 1)
        self.operations = np.delete(self.operations, slice(start, end))


def _last_of_streams(contents: Sequence[OperationContent], needs: Sequence[int]) -> Sequence[int]:
    """Those of the needed operations that imply the others: the last on each stream of the same
    ranks.
    """
    if len(needs) == 1:
        return needs
    latest: dict[object, int] = {}
    for number in sorted(needs):
        kind, *costs = contents[number].costs
        ranks = costs[: 1 if kind == "compute" else 2]
        latest[contents[number].stream, kind, *ranks] = number
    return sorted(latest.values())


def _periods(letters: Ints) -> list[int]:
    """The distances of operations to the next equal one, the most frequent first."""
    order = np.argsort(letters, kind="stable")
    equal = letters[order[1:]] == letters[order[:-1]]
    distances, counts = np.unique((order[1:] - order[:-1])[equal], return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[:MOST_PERIODS]
    return [int(distance) for distance in distances[frequent]]


def _recurrences(letters: Ints, period: int) -> Iterator[tuple[int, int]]:
    """Where letters recur with a period, and how many turns they have; the last first."""
    equal = np.concatenate([[False], letters[period:] == letters[:-period], [False]])
    changes = np.flatnonzero(equal[1:] != equal[:-1])
    limit = len(letters)
    for start, end in changes.reshape(-1, 2)[::-1].tolist():
        turns = (end - start) // period + 1
        if turns > TURNS + 1 and start + turns * period <= limit:
            yield start, turns
            limit = start
