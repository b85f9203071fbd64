"""The trace hash (:mod:`simcoll.emulator.digest`) in compiled code."""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints, Shorts, Words
from simcoll.emulator.fast.compiled import entry, part
from simcoll.emulator.fast.sources import SOURCES

__all__ = ["SEED_A", "SEED_B", "hash_classes", "hash_later", "hash_steps", "row_hash"]

SEED_A, SEED_B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@part
def mix_word(value: np.uint64) -> np.uint64:
    """:func:`simcoll.core.hashing.mix` of one word."""
    value = (value ^ (value >> SHIFTS[0])) * FACTORS[0]
    value = (value ^ (value >> SHIFTS[1])) * FACTORS[1]
    return value ^ (value >> SHIFTS[2])


@part
def row_hash(
    seed: np.uint64,
    number: int,
    src: int,
    dst: int,
    size: int,
    start_fs: int,
    end_fs: int,
    done_fs: int,
) -> np.uint64:
    """See :mod:`simcoll.emulator.digest`."""
    state = mix_word((seed ^ np.uint64(number)) + seed)
    state = mix_word((state ^ np.uint64(src)) + seed)
    state = mix_word((state ^ np.uint64(dst)) + seed)
    state = mix_word((state ^ np.uint64(size)) + seed)
    state = mix_word((state ^ np.uint64(start_fs)) + seed)
    state = mix_word((state ^ np.uint64(end_fs)) + seed)
    return mix_word((state ^ np.uint64(done_fs)) + seed)


@entry
def hash_classes(
    sums: Words,
    begin: int,
    ends: tuple[Ints, Ints, Ints],
    names: Shorts,
    times: tuple[Ints, Ints, Ints],
    _sources: int = SOURCES,
) -> None:
    """Add the messages of a step from ``begin`` on, given source, destination and size of each, and
    start, end and done of its class.
    """
    src, dst, size = ends
    start_fs, end_fs, done_fs = times
    a, b = sums[0], sums[1]
    for row in range(len(names)):
        m = names[row]
        a += row_hash(
            SEED_A, begin + row, src[row], dst[row], size[row], start_fs[m], end_fs[m], done_fs[m]
        )
        b += row_hash(
            SEED_B, begin + row, src[row], dst[row], size[row], start_fs[m], end_fs[m], done_fs[m]
        )
    sums[0], sums[1] = a, b


@entry
def hash_steps(
    sums: Words,
    steps: Ints,
    patterns: Ints,
    ends: tuple[Shorts, Shorts, Shorts],
    times: tuple[Ints, Ints, Ints, Ints],
    _sources: int = SOURCES,
) -> None:
    """Add all messages of a run.

    ``steps`` is [3, steps]: the pattern of each, and its first message and class. The rows of
    pattern p begin at ``patterns[p]``; ``ends`` are source, destination and class of each row, and
    ``times`` size, start, end and done of all classes.
    """
    src, dst, name = ends
    size = times[0]
    start_fs, end_fs, done_fs = times[1:]
    a, b = sums[0], sums[1]
    for step in range(steps.shape[1]):
        first_row = patterns[steps[0, step]]
        number, classes = steps[1, step] - first_row, steps[2, step]
        for row in range(first_row, patterns[steps[0, step] + 1]):
            m = classes + name[row]
            a += row_hash(
                SEED_A,
                number + row,
                src[row],
                dst[row],
                size[m],
                start_fs[m],
                end_fs[m],
                done_fs[m],
            )
            b += row_hash(
                SEED_B,
                number + row,
                src[row],
                dst[row],
                size[m],
                start_fs[m],
                end_fs[m],
                done_fs[m],
            )
    sums[0], sums[1] = a, b


@entry
def hash_later(
    sums: Words, states: Words, times: Words, by: Words, _sources: int = SOURCES
) -> None:
    """Add all messages of a run that begins later by each number of femtoseconds in ``by``.

    ``states`` are [seeds, messages], before the times; ``times`` start, end and done of each
    message; ``sums`` are [numbers in ``by``, seeds].
    """
    for place in range(len(by)):
        later = by[place]
        for half, seed in enumerate((SEED_A, SEED_B)):
            total = sums[place, half]
            for row in range(states.shape[1]):
                state = mix_word((states[half, row] ^ (times[0, row] + later)) + seed)
                state = mix_word((state ^ (times[1, row] + later)) + seed)
                total += mix_word((state ^ (times[2, row] + later)) + seed)
            sums[place, half] = total
