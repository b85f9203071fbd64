"""The time of a workload from the run of a shortened one.

If the state of the machine at an instant is that at an earlier one, with every operation of a cycle
one turn further, then what happened in between recurs in the same times, for each turn that was
left out: what runs is deterministic, and knows of no other times than those between its events. All
that follows is the same, later by the distance of the two instants for each of these turns.

The state is known where no message is under way: on each stream a rank computes, waits or is idle,
what remains of a computation follows from its end, and links are empty. Such instants are sought at
the ends of computations, just before anything else happens at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.emulator.programs.operations import Compute, Send
from simcoll.emulator.programs.program_result import ProgramResult
from simcoll.emulator.programs.resources import call_of
from simcoll.workload.lower import NOTHING
from simcoll.workload.repetitions import TURNS, Cycle, Shortened

__all__ = ["time_with_all_turns"]

COMPUTES, MOVES, WAITS = range(3)
NEW, RUNS, DONE, UNKNOWN = range(4)


def time_with_all_turns(
    short: Shortened, places: Sequence[int], result: ProgramResult
) -> int | None:
    """The time of a workload in femtoseconds; ``None`` where the state of a cycle does not recur.

    Parameters
    ----------
    short
        The shortened workload.
    places
        For each operation of its program, the place of the operation of the workload.
    result
        The run of the program, with the times of its operations.
    """
    timeline = _ShareTimes(result)
    bounds = np.searchsorted(
        np.asarray(places)[timeline.operation], np.arange(len(short.operations) + 1)
    )
    instants: dict[Cycle, tuple[int, int]] = {}
    for cycle in short.cycles:
        start = int(np.searchsorted(short.operations, cycle.operations[0]))
        turns = bounds[start : start + TURNS * cycle.period + 1 : cycle.period].tolist()
        inner = [pair for smaller, pair in instants.items() if cycle.encloses(smaller)]
        pair = timeline.instants(turns, inner)
        if pair is None:
            return None
        instants[cycle] = pair
    return result.time_fs + _added_fs(instants)


def _added_fs(instants: dict[Cycle, tuple[int, int]]) -> int:
    """The time of all turns that were left out; those of inner cycles recur with the turns around
    them.
    """
    times = dict.fromkeys(instants, 1)
    added_fs = 0
    for cycle, (begin_fs, end_fs) in reversed(instants.items()):
        turns = times[cycle] * cycle.left_out
        added_fs += turns * (end_fs - begin_fs)
        for inner, (early_fs, late_fs) in instants.items():
            within = begin_fs <= early_fs and late_fs <= end_fs
            if inner is not cycle and cycle.encloses(inner) and within:
                times[inner] += turns
    return added_fs


@dataclass(frozen=True, slots=True, eq=False)
class _OperationShare:
    """What some ranks of an operation do, and when."""

    operation: int
    kind: int
    begin_fs: Ints
    end_fs: Ints

    def limits(self) -> tuple[int, int, int, int]:
        """First and last begin, first and last end."""
        if not self.begin_fs.size:
            return -1, -1, -1, -1
        begin_fs, end_fs = self.begin_fs, self.end_fs
        return int(begin_fs.min()), int(begin_fs.max()), int(end_fs.min()), int(end_fs.max())


class _ShareTimes:
    """The shares of all operations, in their order."""

    def __init__(self, result: ProgramResult) -> None:
        self.result = result
        shares = [
            share
            for number in range(len(result.program.operations))
            for share in _shares_of(number, result)
        ]
        self.operation = np.array([share.operation for share in shares], np.int64)
        self.kind = np.array([share.kind for share in shares], np.int64)
        limits = np.array([share.limits() for share in shares], np.int64)
        self.first_begin, self.last_begin = limits.T[:2]
        self.first_end, self.last_end = limits.T[2:]
        moves = self.kind == MOVES
        self.departures, self.arrivals = (
            np.sort(self.first_begin[moves]),
            np.sort(self.last_end[moves]),
        )

    def instants(
        self, turns: Sequence[int], inner: Sequence[tuple[int, int]]
    ) -> tuple[int, int] | None:
        """Two instants, a turn of a cycle apart, with the same state.

        Parameters
        ----------
        turns
            Where the shares of each turn begin, and the end of the last.
        inner
            The instants of cycles inside this one; none may lie between the two of an inner cycle.
        """
        length = turns[1] - turns[0]
        if set(np.diff(turns).tolist()) != {length}:
            return None
        for turn in (turns[1], turns[0]):
            shares = turn + np.flatnonzero(self.kind[turn : turn + length] == COMPUTES)
            early_fs, late_fs = self.first_end[shares], self.first_end[shares + length]
            quiet = self._is_quiet(early_fs) & self._is_quiet(late_fs)
            pairs = set(zip(early_fs[quiet].tolist(), late_fs[quiet].tolist(), strict=True))
            for pair in sorted(pairs, reverse=True):
                between = any(begin < fs < end for begin, end in inner for fs in pair)
                if not between and self._recurs(pair, turns):
                    return pair
        return None

    def _is_quiet(self, times_fs: Ints) -> NDArray[np.bool_]:
        """Whether no message is under way just before some times."""
        departed = np.searchsorted(self.departures, times_fs)
        quiet: NDArray[np.bool_] = departed == np.searchsorted(self.arrivals, times_fs)
        return quiet

    def _states(self, time_fs: int) -> Ints:
        """The state of each share just before a time."""
        begun, unfinished = self.last_begin < time_fs, self.first_end >= time_fs
        states: Ints = np.select(
            [
                self.first_begin >= time_fs,
                self.last_end < time_fs,
                begun & unfinished & (self.kind != MOVES),
            ],
            [NEW, DONE, RUNS],
            UNKNOWN,
        )
        return states

    def _recurs(self, instants: tuple[int, int], turns: Sequence[int]) -> bool:
        """Whether the later state is the earlier one with all shares of the turns one turn further:
        those before them are done, and those after them have not begun.
        """
        early, late = map(self._states, instants)
        if UNKNOWN in early or UNKNOWN in late:
            return False
        if (early[: turns[0]] != DONE).any() or (late[: turns[1]] != DONE).any():
            return False
        if (early[turns[-2] :] != NEW).any() or (late[turns[-1] :] != NEW).any():
            return False
        early, late = early[turns[0] : turns[-2]], late[turns[1] : turns[-1]]
        if (early != late).any():
            return False
        computing = (early == RUNS) & (self.kind[turns[0] : turns[-2]] == COMPUTES)
        return all(
            np.array_equal(
                self._end_fs(turns[0] + share) + (instants[1] - instants[0]),
                self._end_fs(turns[1] + share),
            )
            for share in np.flatnonzero(computing).tolist()
        )

    def _end_fs(self, share: int) -> Ints:
        return self.result.end_fs(int(self.operation[share]))


def _shares_of(number: int, result: ProgramResult) -> list[_OperationShare]:
    """The shares of an operation: the targets of a message may wait for long before its sources
    send it, and so may each of two ranks that meet without bytes; both are states.
    """
    operation = result.program.operations[number]
    begin_fs, end_fs = result.begin_fs(number), result.end_fs(number)
    if isinstance(operation, Compute):
        return [_OperationShare(number, COMPUTES, begin_fs, end_fs)]
    call = call_of(operation)
    if call is not None and call.plan.protocol == NOTHING and call.plan.nranks == 2:
        return [
            _OperationShare(number, WAITS, begin_fs[end::2], end_fs[end::2]) for end in range(2)
        ]
    if isinstance(operation, Send):
        sends, receives = (np.isin(operation.ranks, ends) for ends in operation.pairs.T)
        if not (sends & receives).any():
            return [
                _OperationShare(number, MOVES, begin_fs[sends], end_fs),
                _OperationShare(number, WAITS, begin_fs[receives], end_fs[receives]),
            ]
    return [_OperationShare(number, MOVES, begin_fs, end_fs)]
