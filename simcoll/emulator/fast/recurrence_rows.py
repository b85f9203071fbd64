"""The rows of the tables of lock-step runs, which the compiled loops and array operations share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcoll.arrays import Ints, Words

__all__ = [
    "BUSY",
    "BY_RECEIVER",
    "BY_SENDER",
    "CONNECTION",
    "CROWDED",
    "DELAY",
    "DEPTH",
    "DONE",
    "DST",
    "END",
    "ENTERED",
    "FLOW",
    "FREE",
    "JITTER",
    "LATEST",
    "LEFT",
    "NUMBER",
    "PLACE",
    "POST",
    "RECEIVER",
    "SENDER",
    "SIZE",
    "SRC",
    "START",
    "STRIDE",
    "TIMES",
    "Tables",
]

ENTERED, LEFT, FREE = range(3)
"""Rows of a lane: time of entering its step, of leaving it, and of the end of its send overhead."""
SENDER, RECEIVER, SRC, DST, DELAY, BUSY, PLACE, CONNECTION = range(8)
SIZE, FLOW, POST = range(3)
START, END, DONE = range(3)
NUMBER, TIMES, STRIDE, DEPTH, JITTER = range(5)
"""Settings of a run: number of the first message, repetitions, stride, FIFO depth, and jitter."""

BY_SENDER, BY_RECEIVER, LATEST, CROWDED = range(4)
"""Rows of a link: its only sending lane, its only receiving lane (-1: none yet, -2: several), its
latest step, and whether two flows met in a step.
"""


class Tables(NamedTuple):
    """All that some steps, played repeatedly, read and change.

    Attributes
    ----------
    lanes
        [3, lanes].
    rings, counts
        For every connection, when its latest messages were consumed, and their number.
    fixed
        [8, rows] over all steps, which begin at ``begins``.
    varying, window
        [payloads, 3, rows], and the payload at each place.
    step_times
        Room for the times of one repetition, [3, rows].
    begins
        The first row of each step, and the number of rows.
    settings
        Number of the first message, repetitions, stride, FIFO depth, and jitter.
    seed, sums
        That of the jitter, and the sums of the trace hash.
    done_fs
        Receives all completion times, if it has room.
    """

    lanes: Ints
    rings: Ints
    counts: Ints
    fixed: Ints
    varying: Ints
    step_times: Ints
    begins: Ints
    window: Ints
    settings: Ints
    seed: np.uint64
    sums: Words
    done_fs: Ints
