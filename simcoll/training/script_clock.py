"""Play the script of a pipeline with given times of its slots, without building the workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from simcoll.core.facts import FactStore
from simcoll.training.script import Script

__all__ = ["play_script", "slowed_rows"]

NO_OVERLAP = Fraction(0)


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
    return max(_play(script, takes, _Slowing(script, overlap) if overlap else None), default=0)


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
    lanes = script_lanes(script)
    free = [0] * lanes.count
    ends: list[int] = []
    for row in lanes.rows:
        lane, second_lane = row.lane, row.second_lane
        took = takes[row.slot]
        begin = free[lane]
        for end_index in row.needs:
            # max() takes twice as long, and 10,000 designs spend most of their time here.
            if ends[end_index] > begin:  # noqa: PLR1730
                begin = ends[end_index]
        if second_lane < 0:
            if slowing is not None:
                took = slowing.duration_fs(len(ends) // 2, row.slot, begin, took)
            free[lane] = begin + took
            ends += (begin + took, 0)
            continue
        second_begin = free[second_lane]
        for end_index in row.second_needs:
            second_begin = max(second_begin, ends[end_index])
        if row.meets or took:
            begin = second_begin = max(begin, second_begin)
        if slowing is not None:
            took = slowing.duration_fs(len(ends) // 2, row.slot, begin, took)
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


class _LaneRow(NamedTuple):
    """A row on its streams: ``lane`` on its first stage, ``second_lane`` on its second (-1: none).

    ``meets``: whether the two always begin together. ``needs`` and ``second_needs`` are the ends to
    wait for on each: the ends of row r are ``2 r`` on its first stage and ``2 r + 1`` on its
    second.
    """

    slot: int
    lane: int
    second_lane: int
    meets: bool
    needs: tuple[int, ...]
    second_needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _ScriptLanes:
    """A script with its stages' streams numbered.

    Attributes
    ----------
    count
        Number of streams of all stages.
    rows
        The rows of the script.
    """

    count: int
    rows: tuple[_LaneRow, ...]


def _lanes_of(script: Script) -> _ScriptLanes:
    """The lanes of a script."""
    stages = [script.stages_of(slot) for slot in script.slots]
    numbers: dict[tuple[int, str], int] = {}
    rows = []
    for row in script.rows:
        slot, on = script.slots[row.slot], stages[row.slot]
        lanes = [numbers.setdefault((stage, slot.stream), len(numbers)) for stage in on]
        needs = [
            tuple(
                2 * earlier + stages[script.rows[earlier].slot].index(stage)
                for earlier in row.needs
                if stage in stages[script.rows[earlier].slot]
            )
            for stage in on
        ]
        second_lane = lanes[1] if len(on) > 1 else -1
        rows.append(
            _LaneRow(row.slot, lanes[0], second_lane, slot.does == "send", needs[0], needs[-1])
        )
    return _ScriptLanes(len(numbers), tuple(rows))


script_lanes: FactStore[Script, _ScriptLanes] = FactStore(_lanes_of)
"""The lanes of a script."""
