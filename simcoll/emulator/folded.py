"""Plays timed steps on a fabric under the SimPy clock: what the fast engine does, for a quotient where there is no compiled code.

A message stands for its class, and counts for so many on each of its links. There are no FIFOs, no waits and no data: what has these
has no quotient (:func:`simcoll.emulator.quotient.no_quotient`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from simcoll.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from simcoll.emulator.fabric import Fabric
    from simcoll.emulator.fast.timed import Timed

    Ints = NDArray[np.int64]

__all__ = ["FoldedPlayer"]


class _Block:
    """A step under way."""

    __slots__ = ("first", "left", "timed", "times")

    def __init__(self, timed: Timed, first: int) -> None:
        self.timed = timed
        self.first = first
        self.left = len(timed)
        self.times = np.zeros((3, len(timed)), np.int64)  # start, end, done


class _Message:
    """A class of messages in flight."""

    __slots__ = ("block", "counts", "links", "needs", "post_fs", "pre_fs", "receiver", "row", "sender", "wire")

    def __init__(self, block: _Block, row: int) -> None:
        timed, shape = block.timed, block.timed.shape
        linked = shape.links[row] >= 0
        self.block = block
        self.row = row
        self.sender, self.receiver = int(shape.sender[row]), int(shape.receiver[row])
        self.links = tuple(shape.links[row][linked].tolist())
        self.counts = tuple(shape.weight[row][linked].tolist())
        self.pre_fs, self.wire, self.post_fs = int(timed.pre_fs[row]), int(timed.wire[row]), int(timed.post_fs[row])
        self.needs = 1 + (self.sender != self.receiver)


class FoldedPlayer:
    """Plays timed steps; the parameters are those of :class:`simcoll.emulator.fast.machine.Machine`.

    Attributes
    ----------
    time_fs
        When the last message was done; the launch, if there is none.
    messages
        Messages that are done.
    """

    def __init__(
        self,
        fabric: Fabric,
        lane_steps: Ints,
        steps: Iterator[tuple[tuple[Timed, ...], int]],
        *,
        launch_fs: int = 0,
        over: Callable[[int, Timed, Ints, Ints, Ints], None] | None = None,
    ) -> None:
        self.fabric = fabric
        self.steps = (step for group, times in steps for _ in range(times) for step in group)
        self.over = over
        self.lane_left = lane_steps.tolist()
        self.pending = [0] * len(lane_steps)
        self.queues: list[deque[_Message]] = [deque() for _ in self.lane_left]
        self.loaded = self.messages = 0
        self.time_fs = launch_fs

    def play(self) -> None:
        """Run to the end.

        Raises
        ------
        ConfigError
            When a link has nothing to give or time runs beyond the clock.
        InternalError
            When a lane is stuck.
        """
        for lane, left in enumerate(self.lane_left):
            if left:
                self.fabric.calendar.at(self.time_fs, self._enter, lane)
        self.fabric.env.run()
        stuck = sum(left > 0 or pending > 0 for left, pending in zip(self.lane_left, self.pending, strict=True))
        if stuck:
            raise InternalError(f"{stuck} lanes are stuck at {self.fabric.calendar.now} fs")

    def _enter(self, lane: int) -> None:
        """Take the next step of a lane."""
        queue = self.queues[lane]
        while not queue:
            self._load(lane)
        block = queue[0].block
        self.lane_left[lane] -= 1
        while queue and queue[0].block is block:
            message = queue.popleft()
            self.pending[lane] += 1
            message.needs -= 1
            if not message.needs:
                self._ready(message)

    def _load(self, lane: int) -> None:
        timed = next(self.steps, None)
        if timed is None:
            raise InternalError(f"lane {lane} expects {self.lane_left[lane]} more steps, but the plan has ended")
        block = _Block(timed, self.loaded)
        self.loaded += len(timed)
        for row in range(len(timed)):
            message = _Message(block, row)
            for end in {message.sender, message.receiver}:
                self.queues[end].append(message)

    def _ready(self, message: _Message) -> None:
        calendar = self.fabric.calendar
        if message.pre_fs < 0:  # inside a rank
            message.block.times[:2, message.row] = calendar.now
            calendar.at(calendar.now + message.post_fs, self._done, message)
        else:
            calendar.at(calendar.now + message.pre_fs, self._flow, message)

    def _flow(self, message: _Message) -> None:
        message.block.times[0, message.row] = self.fabric.calendar.now
        self.fabric.transfer(message.links, message.wire, self._arrived, message, message.counts)

    def _arrived(self, message: _Message) -> None:
        now = message.block.times[1, message.row] = self.fabric.calendar.now
        self.fabric.calendar.at(now + message.post_fs, self._done, message)

    def _done(self, message: _Message) -> None:
        now = self.time_fs = self.fabric.calendar.now
        self.messages += 1
        block = message.block
        block.times[2, message.row] = now
        for lane in {message.sender, message.receiver}:
            self.pending[lane] -= 1
            if not self.pending[lane] and self.lane_left[lane]:
                self.fabric.calendar.at(now, self._enter, lane)
        block.left -= 1
        if not block.left and self.over is not None:
            self.over(block.first, block.timed, *block.times)
