"""Play the script of a pipeline with given times of its slots, without building the workload."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from threading import Lock
from typing import TypeAlias

from simcoll.core.facts import FactStore
from simcoll.training.script import Script

__all__ = ["play_script", "slowed_rows"]

NO_OVERLAP = Fraction(0)
NO_STAGE = -1
MOST_ENDS = 4
"""Ends that are remembered for a script. Designs of a plan that differ only in their memory take
the same times, and those that differ in a link do without their traffic: of the 4,418 plays of
10,000 designs 3,092 are among the latest four of their script, and 3,290 among the latest 32.
"""


def play_script(script: Script, takes: Sequence[int], overlap: Fraction = NO_OVERLAP) -> int:
    """The end of a script with given slot times, without building its workload.

    It equals that of :func:`~simcoll.workload.class_clock.play_classes` on the workload.

    Parameters
    ----------
    takes
        The time of each slot.
    overlap
        The slow-down of passes by collectives, as in :func:`slowed_rows`.
    """
    return _latest_ends(script).find(script, tuple(takes), overlap)


def slowed_rows(script: Script, takes: Sequence[int], overlap: Fraction) -> dict[int, int]:
    """The additional time of passes that overlap collectives of their stage, by row.

    While a collective is in flight on another stream, a pass does a second's work in
    ``1 + overlap`` seconds. Only collectives in earlier rows count: under ZeRO-3 the gathering of
    parameters two layers ahead, whose row comes later, does not.
    """
    slowing = _Slowing(script, overlap)
    _play(script, takes, slowing)
    return slowing.added_fs


def _play(script: Script, takes: Sequence[int], slowing: _Slowing | None) -> list[int]:
    """The ends of all rows, two for each: on its first stage, and on its second or 0."""
    lanes = _script_lanes(script)
    free = [0] * lanes.count
    ends: list[int] = []
    for slot, on_first, on_second in lanes.rows:
        lane, needs = on_first
        took = takes[slot]
        begin = free[lane]
        for end_index in needs:
            # max() takes twice as long, and 10,000 designs spend most of their time here.
            if ends[end_index] > begin:  # noqa: PLR1730
                begin = ends[end_index]
        if on_second is None:
            if slowing is not None:
                took = slowing.duration_fs(len(ends) // 2, slot, begin, took)
            free[lane] = end = begin + took
            ends += (end, 0)
            continue
        second_lane, second_needs = on_second
        second_begin = free[second_lane]
        for end_index in second_needs:
            if ends[end_index] > second_begin:  # noqa: PLR1730
                second_begin = ends[end_index]
        if took or lanes.meets[slot]:
            begin = second_begin = max(begin, second_begin)
        if slowing is not None:
            took = slowing.duration_fs(len(ends) // 2, slot, begin, took)
        free[lane], free[second_lane] = begin + took, second_begin + took
        ends += (begin + took, second_begin + took)
    return ends


class _Slowing:
    """Slows passes down while collectives of their stage are in flight.

    Attributes
    ----------
    added_fs
        The additional time of passes, by row.
    """

    def __init__(self, script: Script, overlap: Fraction) -> None:
        self.added_fs: dict[int, int] = {}
        self._script, self._overlap = script, overlap
        self._passes = [slot.does == "turn" for slot in script.slots]
        self._beside = [slot.stream in {"gather", "reduce"} for slot in script.slots]
        self._busy: dict[int, list[tuple[int, int]]] = {}

    def duration_fs(self, row: int, slot: int, begin: int, work: int) -> int:
        """The duration of a row that begins now; collectives are noted for the passes of later
        rows.
        """
        if self._passes[slot]:
            stage = self._script.slots[slot].stage
            busy = self._busy[stage] = [
                interval for interval in self._busy.get(stage, ()) if interval[1] > begin
            ]
            duration = _stretch(begin, work, sorted(busy), self._overlap)
            if duration > work:
                self.added_fs[row] = duration - work
            return duration
        if self._beside[slot] and work:
            for stage in self._script.stages_of(self._script.slots[slot]):
                self._busy.setdefault(stage, []).append((begin, begin + work))
        return work


def _stretch(begin: int, work: int, busy: Sequence[tuple[int, int]], overlap: Fraction) -> int:
    """The duration of work from ``begin`` on that slows down during the busy intervals, which are
    in order.
    """
    time, remaining = begin, work
    for start, end in busy:
        idle = min(remaining, max(0, start - time))
        time, remaining = time + idle, remaining - idle
        progress = int(max(0, end - time) / (1 + overlap))
        if progress >= remaining:
            break
        time, remaining = max(time, end), remaining - progress
    else:
        return time + remaining - begin
    return time + int(remaining * (1 + overlap)) - begin


_OnLane: TypeAlias = tuple[int, tuple[int, ...]]
"""A row on a stream of one of its stages: the stream, and the ends that it waits for there. The
ends of row r are ``2 r`` on its first stage and ``2 r + 1`` on its second.
"""
_LaneRow: TypeAlias = tuple[int, _OnLane, _OnLane | None]
"""A row on its streams: its slot, and its first and second stage. Plain tuples, which the garbage
collector stops following, and does not follow named ones.
"""


@dataclass(frozen=True, slots=True)
class _ScriptLanes:
    """A script with its stages' streams numbered.

    Attributes
    ----------
    count
        Number of streams of all stages.
    meets
        For each slot, whether its rows always begin together on both stages.
    rows
        The rows of the script.
    """

    count: int
    meets: tuple[bool, ...]
    rows: tuple[_LaneRow, ...]


def _lanes_of(script: Script) -> _ScriptLanes:
    """The lanes of a script."""
    numbers: dict[tuple[int, str], int] = {}
    firsts, seconds, lanes = [], [], []
    for slot in script.slots:
        stages = script.stages_of(slot)
        firsts.append(stages[0])
        seconds.append(stages[1] if len(stages) > 1 else NO_STAGE)
        lanes.append([numbers.setdefault((stage, slot.stream), len(numbers)) for stage in stages])
    first_of_row = [firsts[number] for number in script.slot_of_row]
    second_of_row = [seconds[number] for number in script.slot_of_row]

    def ends_on(stage: int, needs: tuple[int, ...]) -> tuple[int, ...]:
        """The ends on a stage of the earlier rows that are on it."""
        return tuple(
            [
                2 * row if first_of_row[row] == stage else 2 * row + 1
                for row in needs
                if first_of_row[row] == stage or second_of_row[row] == stage
            ]
        )

    rows: list[_LaneRow] = []
    for number, needs in zip(script.slot_of_row, script.needs_of_row, strict=True):
        on_first = lanes[number][0], ends_on(firsts[number], needs)
        second = seconds[number]
        on_second = None if second == NO_STAGE else (lanes[number][1], ends_on(second, needs))
        rows.append((number, on_first, on_second))
    meets = tuple(slot.does == "send" for slot in script.slots)
    return _ScriptLanes(len(numbers), meets, tuple(rows))


class _LatestEnds:
    """The ends of the latest plays of a script."""

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[tuple[int, ...], Fraction], int] = OrderedDict()
        self._lock = Lock()

    def find(self, script: Script, takes: tuple[int, ...], overlap: Fraction) -> int:
        """The end with given times of slots, played if it is not remembered."""
        key = takes, overlap
        with self._lock:
            if key in self._ends:
                self._ends.move_to_end(key)
                return self._ends[key]
        slowing = _Slowing(script, overlap) if overlap else None
        end_fs = max(_play(script, takes, slowing), default=0)
        with self._lock:
            self._ends[key] = end_fs
            if len(self._ends) > MOST_ENDS:
                self._ends.popitem(last=False)
        return end_fs


_script_lanes: FactStore[Script, _ScriptLanes] = FactStore(_lanes_of)
"""The lanes of a script."""
_latest_ends: FactStore[Script, _LatestEnds] = FactStore(lambda _: _LatestEnds())
"""The ends of the latest plays of a script."""
