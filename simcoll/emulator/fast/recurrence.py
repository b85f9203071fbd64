"""The loop of lock-step runs (:mod:`simcoll.emulator.lockstep`): each step's times from those of
earlier steps.
"""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints, Links, Words
from simcoll.emulator.fast.compiled import entry
from simcoll.emulator.fast.natural import natural
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
    FLOW,
    FREE,
    JITTER,
    LATEST,
    LEFT,
    NUMBER,
    PLACE,
    POST,
    RECEIVER,
    SENDER,
    SIZE,
    SRC,
    START,
    STRIDE,
    TIMES,
)
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.trace_hashing import SEED_A, SEED_B, mix_word, row_hash

__all__ = ["advance", "claim"]


@entry
def claim(
    links: Links,
    flows: Ints,
    sender: Ints,
    receiver: Ints,
    step: int,
    of: Ints,
    _sources: int = SOURCES,
) -> None:
    """Record in ``of``, [4, links], which lanes own the flows of a step.

    ``flows`` are bytes, ``links`` is [rows, hops].
    """
    for row in range(len(flows)):
        if flows[row] == 0:
            continue
        for hop in range(links.shape[1]):
            link = links[row, hop]
            if link < 0:
                break
            if of[LATEST, link] == step:
                of[CROWDED, link] = 1
            of[LATEST, link] = step
            if of[BY_SENDER, link] != sender[row]:
                of[BY_SENDER, link] = sender[row] if of[BY_SENDER, link] == -1 else -2
            if of[BY_RECEIVER, link] != receiver[row]:
                of[BY_RECEIVER, link] = receiver[row] if of[BY_RECEIVER, link] == -1 else -2


@entry
def advance(
    lanes: Ints,
    rings: Ints,
    counts: Ints,
    fixed: Ints,
    varying: Ints,
    step_times: Ints,
    begins: Ints,
    window: Ints,
    settings: Ints,
    seed: np.uint64,
    sums: Words,
    done_fs: Ints,
    _sources: int = SOURCES,
) -> None:
    """Play some steps repeatedly.

    ``lanes`` is [3, lanes]. ``rings`` holds, for every connection, when its latest messages were
    consumed, and ``counts`` their number. ``fixed`` is [8, rows] over all steps, which begin at
    ``begins``. ``varying`` is [payloads, 3, rows], and ``window`` maps places to payloads.
    ``settings``: number of the first message, repetitions, stride, FIFO depth, and jitter.
    ``done_fs`` receives all completion times, if it has room.
    """
    number, times, stride = settings[NUMBER], settings[TIMES], settings[STRIDE]
    depth, jitter = settings[DEPTH], settings[JITTER]
    span = len(window) // 2
    a, b = sums[0], sums[1]
    for turn in range(times):
        shift = natural(turn * stride % span)
        for step in range(len(begins) - 1):
            begin, end = natural(begins[step]), begins[step + 1]
            for index in range(begin, end):
                row = natural(index)
                s, r = natural(fixed[SENDER, row]), natural(fixed[RECEIVER, row])
                payload = natural(window[natural(fixed[PLACE, row] + shift)])
                delay, flow, post = (
                    fixed[DELAY, row],
                    varying[payload, FLOW, row],
                    varying[payload, POST, row],
                )
                if delay >= 0 and jitter > 0:
                    draw = mix_word(np.uint64(number + row - begin) ^ seed) % np.uint64(jitter + 1)
                    delay += np.int64(draw)
                start = lanes[ENTERED, s]
                if delay < 0:  # within a rank
                    finish, completion = start, start + post
                    lanes[LEFT, s] = max(lanes[LEFT, s], completion)
                elif depth == 0:
                    start = max(start, lanes[ENTERED, r]) + delay
                    finish = start + flow
                    completion = finish + post
                    lanes[LEFT, s] = max(lanes[LEFT, s], completion)
                else:
                    connection = natural(fixed[CONNECTION, row])
                    place = natural(connection * depth + counts[connection] % depth)
                    counts[connection] += 1
                    start = max(start, rings[place])
                    finish = start + flow
                    lanes[FREE, s] = max(lanes[FREE, s], start + fixed[BUSY, row])
                    lanes[LEFT, s] = max(lanes[LEFT, s], finish)
                    rings[place] = max(finish + delay, lanes[ENTERED, r])
                    completion = rings[place] + post
                lanes[LEFT, r] = max(lanes[LEFT, r], completion)
                step_times[START, row], step_times[END, row], step_times[DONE, row] = (
                    start,
                    finish,
                    completion,
                )
            for index in range(begin, end):
                row = natural(index)
                s, r = natural(fixed[SENDER, row]), natural(fixed[RECEIVER, row])
                lanes[ENTERED, s] = max(lanes[LEFT, s], lanes[FREE, s])
                lanes[ENTERED, r] = max(lanes[LEFT, r], lanes[FREE, r])
            for index in range(begin, end):
                row = natural(index)
                message = number + row - begin
                size = varying[natural(window[natural(fixed[PLACE, row] + shift)]), SIZE, row]
                src, dst = fixed[SRC, row], fixed[DST, row]
                start, finish, completion = (
                    step_times[START, row],
                    step_times[END, row],
                    step_times[DONE, row],
                )
                a += row_hash(SEED_A, message, src, dst, size, start, finish, completion)
                b += row_hash(SEED_B, message, src, dst, size, start, finish, completion)
            if len(done_fs):
                for index in range(begin, end):
                    row = natural(index)
                    done_fs[natural(number + row - begin)] = step_times[DONE, row]
            number += end - begin
    sums[0], sums[1] = a, b
