"""The trace hash, against plain whole-number arithmetic."""

import itertools

import numpy as np
import pytest

from simcoll.emulator import moved_hash
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.moved_hash import MovedHash

MASK = 2**64 - 1


def finalised(value):
    """SplitMix64, https://prng.di.unimi.it/splitmix64.c"""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def by_hand(rows):
    text = ""
    for seed in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03):
        total = 0
        for row in rows:
            state = seed
            for value in row:
                state = finalised(((state ^ value) + seed) & MASK)
            total += state
        text += f"{total & MASK:016x}"
    return text


ROWS = [
    (0, 0, 1, 8, 5, 7, 9),
    (1, 1, 0, 8, 5, 7, 9),
    (2, 0, 1, 2**62, 0, 2**63 - 1, 2**63 - 1),
    (3, 4, 4, 0, 0, 0, 0),
]


def test_it_is_the_documented_function():
    digest = TraceHash()
    digest.add(list(np.array(ROWS).T))
    assert digest.hexdigest() == by_hand(ROWS)


def test_neither_order_nor_batches_matter():
    for order in itertools.permutations(ROWS):
        digest = TraceHash()
        digest.add(list(np.array(order[:1]).T))
        digest.add(list(np.array(order[1:]).T))
        assert digest.hexdigest() == by_hand(ROWS)


def test_every_field_counts():
    base = by_hand(ROWS)
    for field in range(7):
        changed = [list(row) for row in ROWS]
        changed[3][field] += 1
        digest = TraceHash()
        digest.add(list(np.array(changed).T))
        assert digest.hexdigest() == by_hand(changed) != base


@pytest.mark.parametrize("limit", [-1, 2**62], ids=["compiled", "numpy"])
def test_moved_messages_hash_as_those_that_are_later(limit, monkeypatch):
    for name in ("LOADS_QUICKLY", "LOADS_SLOWLY"):
        monkeypatch.setattr(moved_hash, name, limit)
    monkeypatch.setattr(moved_hash, "MIXED_TOGETHER", 2 * len(ROWS))
    later = [0, 1, 10**15, 2**61, 2**62]
    rows = [row[:4] + tuple(time_fs % 2**62 for time_fs in row[4:]) for row in ROWS]
    moved = MovedHash(list(np.array(rows).T)).hexdigests(later)
    assert moved == [
        by_hand([row[:4] + tuple(time_fs + by for time_fs in row[4:]) for row in rows])
        for by in later
    ]
