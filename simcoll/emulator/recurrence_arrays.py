"""The loop of lock-step runs in array operations: where no compiler is installed, and for runs of
so few steps that loading the compiled loop would take longer.

The functions do what those of :mod:`simcoll.emulator.fast.recurrence` do, a step at a time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints, Shorts, Words
from simcoll.core.hashing import mix
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.fast.recurrence_rows import (
    BUSY,
    BY_RECEIVER,
    BY_SENDER,
    CONNECTION,
    CROWDED,
    DELAY,
    DEPTH,
    DONE,
    DST,
    END,
    ENTERED,
    FREE,
    JITTER,
    LATEST,
    LEFT,
    NUMBER,
    PLACE,
    RECEIVER,
    SENDER,
    SRC,
    START,
    STRIDE,
    TIMES,
    Tables,
)

__all__ = ["advance", "claim"]

HASHED_ROWS = 1 << 14
"""Messages whose hashes are computed together, at some 50 bytes each: each array operation costs a
microsecond, and a hash has 80.
"""


def claim(links: Shorts, flows: Ints, sender: Ints, receiver: Ints, _step: int, of: Ints) -> None:
    """Record in ``of``, [4, links], which lanes own the flows of a step.

    ``flows`` are bytes, ``links`` is [rows, hops].
    """
    crossed = np.logical_and.accumulate(links >= 0, axis=1) & (flows != 0)[:, None]
    link = links[crossed]
    place = np.arange(len(link))
    of[LATEST, link] = place  # of several flows on a link, one remains
    of[CROWDED, link[of[LATEST, link] != place]] = 1
    for owner, lane in ((of[BY_SENDER], sender), (of[BY_RECEIVER], receiver)):
        lanes = np.broadcast_to(lane[:, None], links.shape)[crossed]
        unowned = owner[link] == -1
        owner[link[unowned]] = lanes[unowned]
        owner[link[owner[link] != lanes]] = -2


class _StepRows(NamedTuple):
    """The columns of one step that are the same in every repetition.

    Attributes
    ----------
    rows
        Its place among the rows of all steps.
    sender, receiver, busy
        Columns of the table.
    within
        Which messages stay within a rank; ``None`` if none does.
    rounds
        The rows and connections of messages that pass a FIFO, one of each connection at a time.
    """

    rows: slice
    sender: Ints
    receiver: Ints
    busy: Ints
    within: NDArray[np.bool_] | None
    rounds: list[tuple[Ints, Ints]]


def _step_rows(fixed: Ints, begin: int, end: int, depth: int) -> _StepRows:
    rows = slice(begin, end)
    within = fixed[DELAY, rows] < 0
    rounds = []
    if depth:
        waiting = np.flatnonzero(~within)
        while len(waiting):
            # The messages of a connection are in order, and each needs the outcome of those before.
            connection = fixed[CONNECTION, rows][waiting]
            foremost = np.unique(connection, return_index=True)[1]
            rounds.append((waiting[foremost], connection[foremost]))
            waiting = np.delete(waiting, foremost)
    return _StepRows(
        rows,
        fixed[SENDER, rows],
        fixed[RECEIVER, rows],
        fixed[BUSY, rows],
        within if within.any() else None,
        rounds,
    )


class _Fifos(NamedTuple):
    """The FIFOs of all connections: when their latest messages were consumed, and their number."""

    rings: Ints
    counts: Ints
    depth: int


def advance(tables: Tables) -> None:
    """Play some steps repeatedly, as :func:`simcoll.emulator.fast.recurrence.advance` does."""
    lanes, fixed, varying = tables.lanes, tables.fixed, tables.varying
    number, times, stride = tables.settings[[NUMBER, TIMES, STRIDE]].tolist()
    depth, jitter = tables.settings[[DEPTH, JITTER]].tolist()
    total, span = fixed.shape[1], len(tables.window) // 2
    fifos = _Fifos(tables.rings, tables.counts, depth)
    steps = [_step_rows(fixed, *ends, depth) for ends in pairwise(tables.begins.tolist())]
    trace = _TurnHashes(fixed, number, tables.sums, tables.done_fs)
    row = np.arange(total)
    play = _play_through_fifos if depth else _play_rendezvous
    size, flow, post = varying[0]
    for turn in range(times):
        if len(varying) > 1:
            payload = tables.window[fixed[PLACE] + turn * stride % span]
            size, flow, post = varying[payload, :, row].T
        delays = fixed[DELAY]
        if jitter:
            draw = mix((number + turn * total + row).astype(np.uint64) ^ tables.seed)
            late = (draw % np.uint64(jitter + 1)).astype(np.int64)
            delays = np.where(delays < 0, delays, delays + late)
        for step in steps:
            costs = delays[step.rows], flow[step.rows], post[step.rows]
            tables.step_times[:, step.rows] = play(lanes, step, *costs, fifos)
            for lane in (step.sender, step.receiver):
                lanes[ENTERED, lane] = np.maximum(lanes[LEFT, lane], lanes[FREE, lane])
        trace.add(size, tables.step_times)
    trace.close()


def _play_rendezvous(
    lanes: Ints, step: _StepRows, delay: Ints, flow: Ints, post: Ints, _fifos: _Fifos
) -> tuple[Ints, Ints, Ints]:
    """Start, end and completion of messages that wait for their receiver."""
    entered = lanes[ENTERED]
    begun = entered[step.sender]
    start = np.maximum(begun, entered[step.receiver]) + delay
    end = start + flow
    if step.within is not None:
        start, end = (np.where(step.within, begun, time) for time in (start, end))
    completion = end + post
    for lane in (step.sender, step.receiver):
        np.maximum.at(lanes[LEFT], lane, completion)
    return start, end, completion


def _play_through_fifos(
    lanes: Ints, step: _StepRows, delay: Ints, flow: Ints, post: Ints, fifos: _Fifos
) -> tuple[Ints, Ints, Ints]:
    """The same of messages that wait for room in the FIFO of their connection."""
    start = lanes[ENTERED, step.sender]
    end = start.copy()
    completion = start + post  # of those within a rank
    sent = completion.copy()
    for row, connection in step.rounds:
        place = connection * fifos.depth + fifos.counts[connection] % fifos.depth
        fifos.counts[connection] += 1
        start[row] = np.maximum(start[row], fifos.rings[place])
        end[row] = sent[row] = start[row] + flow[row]
        arrived = end[row] + delay[row]
        fifos.rings[place] = np.maximum(arrived, lanes[ENTERED, step.receiver[row]])
        completion[row] = fifos.rings[place] + post[row]
        np.maximum.at(lanes[FREE], step.sender[row], start[row] + step.busy[row])
    np.maximum.at(lanes[LEFT], step.sender, sent)
    np.maximum.at(lanes[LEFT], step.receiver, completion)
    return start, end, completion


class _TurnHashes:
    """Adds the messages of turns to the trace hash, and keeps their completion times."""

    def __init__(self, fixed: Ints, number: int, sums: Words, done_fs: Ints) -> None:
        self.ends = fixed[[SRC, DST]]
        self.number, self.sums, self.done_fs = number, sums, done_fs
        self.hashes = TraceHash(sums.tolist())
        self.columns: list[Array] = []
        self.rows = 0

    def add(self, size: Ints, step_times: Ints) -> None:
        """Add a turn."""
        self.columns.append(np.stack([*self.ends, size, *step_times[[START, END, DONE]]]))
        self.rows += len(size)
        if self.rows >= HASHED_ROWS:
            self.close()

    def close(self) -> None:
        """Add what is left."""
        if not self.columns:
            return
        columns = np.concatenate(self.columns, axis=1)
        numbers = np.arange(self.number, self.number + self.rows)
        self.hashes.add([numbers, *columns])
        if len(self.done_fs):
            self.done_fs[numbers] = columns[-1]
        self.sums[:] = np.array(self.hashes.sums, np.uint64)
        self.number, self.columns, self.rows = self.number + self.rows, [], 0
