"""Periods of a run: where the steps of classes recur, and a stretch of them has taken the same time
as the one before, the following ones are not played.

**Claim.** Let the steps of a run recur after q steps, with the same lanes in each. Let no lane have
left step b before the time t, let all messages that were alive at t have begun at t0 or later, and
let those of all steps before a have been done before t0. If start, end and completion of every
message of the steps a + q to b + q are later by D than those q steps before, and the messages
before a + q were done before t0 + D, then the run goes on from t + D as from t, q steps and D
later, as long as the same steps follow.

**Why.** Under rendezvous the future of a run depends on the steps at which its lanes are, on the
times at which messages that wait or are being completed go on, and on what is left of each flow.
The first two follow from the times of the messages alive, all of which belong to steps a to b. What
is left of a flow follows from its rates so far, each of which depends on the flows beside it alone;
from t0 on these are flows of steps a to b, too, between their starts and ends. All of this is the
same q steps later, and the model computes with differences of times only, in integers.

So some of the periods that have not begun are left out, and D is added for each. The steps after
them have not been loaded yet, so no lane has seen them. That is what makes large rings short: of
the 16,382 steps of one of 8,192 ranks on DGX H100, all but 300 are left out, and a run of its 16.8
million classes takes 0.05 s instead of 1.1 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints
from simcoll.emulator.folding.quotient import Quotient
from simcoll.emulator.steps.timed import Steps, Timed

__all__ = ["PeriodicSteps", "Stretch", "periods_of", "stretches_of"]

MOST_PERIOD = 64
"""Largest number of steps after which steps may recur. It is 1 for a ring whose chunks are all
equal, 2 or 4 with every second or fourth one filled, and 9 where a power of two is divided among 9
times another, as in racks of 72.
"""
LEAST_STEPS = 1 << 9
"""Least steps of a stretch whose times are compared."""
FIRST_LOOK, GROWTH = 1 << 7, 1.25
"""Steps after which times are compared for the first time, and by how many more each next time."""
WATCHED_SHARE = 0.5
"""Share of a stretch after which it is played to its end without comparing times, which would cost
a third of the time.
"""
KEPT_TIMES = 1 << 21
"""Most messages whose times are kept, at 24 bytes."""


class Stretch(NamedTuple):
    """Steps ``begin .. end - 1`` of a run, which recur after ``period`` steps."""

    begin: int
    end: int
    period: int


def stretches_of(order: Ints, steps: tuple[Timed, ...]) -> list[Stretch]:
    """The stretches of a run, given the number of each of its steps, in order."""
    for period in range(1, MOST_PERIOD + 1):
        recurs = order[period:] == order[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], recurs, [False]]))).tolist()
        some: list[Stretch] = []
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if end - begin >= LEAST_STEPS:
                # Stretches may overlap by steps that belong to either.
                free = max(begin, some[-1].end if some else 0)
                some.append(Stretch(free, end + period, period))
        if some:
            return [stretch for stretch in some if _shares_lanes(order, stretch, steps)]
    return []


def _shares_lanes(order: Ints, stretch: Stretch, steps: tuple[Timed, ...]) -> bool:
    """Whether all steps of a stretch have the same lanes, which wait for nothing but each other."""
    numbers = order[stretch.begin : stretch.begin + stretch.period].tolist()
    lanes = [_lanes_of(steps[number]) for number in numbers]
    plain = all(
        steps[number].shape.leader is None and not steps[number].uses_connections
        for number in numbers
    )
    return plain and all(np.array_equal(of_step, lanes[0]) for of_step in lanes)


def _lanes_of(step: Timed) -> Ints:
    return np.unique(np.concatenate([step.shape.sender, step.shape.receiver]))


def periods_of(quotient: Quotient) -> PeriodicSteps | None:
    """The steps of a quotient without FIFOs, without its periods; ``None`` if it has none, or if
    messages wait for more than their lanes.
    """
    periodic = None if len(quotient.waits[0]) else PeriodicSteps(quotient)
    return periodic if periodic is not None and periodic.stretches else None


class _StepTimes(NamedTuple):
    """The times of a step: those of its messages, [3, rows], the earliest at which one was ready,
    and the latest at which one was done.
    """

    times: Ints
    ready_fs: int
    done_fs: int


class PeriodicSteps:
    """The steps of a quotient without the periods that need not be played.

    :meth:`stream` yields those that are played, and each reports its times by a call, as
    ``on_step`` of :class:`simcoll.emulator.fast.driver.StepMachine`.

    Attributes
    ----------
    left_out, left_out_fs
        The number of messages that were left out, and their time.
    lane_left
        Numbers of steps that each lane has before it, of the loops that play the others.
    """

    def __init__(self, quotient: Quotient) -> None:
        self.steps, self.order = quotient.steps, quotient.which
        self.rows = np.array([len(step) for step in self.steps], np.int64)
        self.stretches = deque(stretches_of(self.order, self.steps))
        self.left_out = self.left_out_fs = 0
        self.lane_left = np.zeros(0, np.int64)
        # Of the next step that is played: the number of its first message, and its own.
        self.message = self.number = 0
        self.numbers: dict[int, int] = {}  # of steps being played, by their first message
        self.stretch: Stretch | None = None
        self.begin = 0  # number of its first step
        self.period_fs: int | None = None
        self.ended: dict[int, _StepTimes] = {}  # steps that ended before an earlier one
        self.through = 0  # steps before the first that has not ended
        self.recent: deque[_StepTimes] = deque()  # the last of these
        self.recent_rows = 0
        self.older_fs = -1  # when all before the recent ones were done
        self.next_look = 0

    def stream(self) -> Iterator[Steps]:
        """The steps that are played, in order."""
        place = 0
        while place < len(self.order):
            if self.stretches and place == self.stretches[0].begin:
                self.stretch, self.begin = self.stretches.popleft(), self.number
                self.next_look, self.period_fs = self.number + FIRST_LOOK, None
            if self.stretch is not None and self.period_fs is not None:
                place = self._leap(place, self.stretch, self.period_fs)
                continue
            if self.stretch is not None and place == self.stretch.end:
                self.stretch = None
            step = int(self.order[place])
            self.numbers[self.message] = self.number
            self.message += int(self.rows[step])
            self.number, place = self.number + 1, place + 1
            yield (self.steps[step],), 1

    def _leap(self, place: int, stretch: Stretch, period_fs: int) -> int:
        """Leave out the whole periods that remain of a stretch but one, for which some lanes are
        waiting; return the next place.
        """
        times = max((stretch.end - place) // stretch.period - 1, 0)
        left_out = self.order[place : place + times * stretch.period]
        self.left_out += int(self.rows[left_out].sum())
        self.left_out_fs += times * period_fs
        self.lane_left[_lanes_of(self.steps[self.order[stretch.begin]])] -= len(left_out)
        self.stretch = self.period_fs = None
        return place + len(left_out)

    def __call__(
        self, message: int, timed: Timed, start: Ints, end: Ints, completion: Ints
    ) -> None:
        """Take the times of a step."""
        ready = start - timed.delay_fs.clip(0)
        messages = np.stack([start, end, completion])
        times = _StepTimes(messages, int(ready.min()), int(completion.max()))
        self.ended[self.numbers.pop(message)] = times
        while self.through in self.ended:
            self._add(self.ended.pop(self.through))
            self.through += 1
        if self.stretch is None or self.through < self.next_look:
            return
        played = self.through - self.begin
        self.next_look = self.begin + int(GROWTH * max(played, FIRST_LOOK))
        if played > WATCHED_SHARE * (self.stretch.end - self.stretch.begin):
            self.stretch = None
        elif self.period_fs is None:
            self.period_fs = self._period(self.stretch)

    def _add(self, times: _StepTimes) -> None:
        """Add a step to the recent ones, of which there are some while a stretch is played."""
        self.recent.append(times)
        self.recent_rows += times.times.shape[1]
        while self.recent and (self.stretch is None or self.recent_rows > KEPT_TIMES):
            oldest = self.recent.popleft()
            self.recent_rows -= oldest.times.shape[1]
            self.older_fs = max(self.older_fs, oldest.done_fs)

    def _period(self, stretch: Stretch) -> int | None:
        """The time of a period, if the claim holds for the latest steps that have ended."""
        recent, period = list(self.recent), stretch.period
        last = len(recent) - 1 - period  # step b
        if last < 0:
            return None
        later_fs = int(recent[last + period].times[2, 0] - recent[last].times[2, 0])
        if not _is_later(recent[last + period], recent[last], later_fs):
            return None
        done_fs = np.array([step.done_fs for step in recent])
        alive = int(np.argmax(done_fs >= recent[last].times[2].min()))
        begun_fs = min(step.ready_fs for step in recent[alive : last + 1])
        begin = int(np.argmax(done_fs >= begun_fs))  # step a
        # All before it have ended, but they must have been played, and belong to the stretch.
        if self.older_fs >= begun_fs or begin <= len(recent) - (self.through - self.begin):
            return None
        if done_fs[: begin + period].max() >= begun_fs + later_fs:
            return None
        pairs = zip(recent[begin + period :], recent[begin : last + 1], strict=True)
        return later_fs if all(_is_later(*pair, later_fs) for pair in pairs) else None


def _is_later(step: _StepTimes, earlier: _StepTimes, by_fs: int) -> bool:
    return np.array_equal(step.times, earlier.times + by_fs)
