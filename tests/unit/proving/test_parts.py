"""Proofs of a long vector part by part: the same proof and the same errors as of the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.errors import ScheduleError
from simcoll.proving import parts, verify

SCHEDULES = [
    ("all_reduce", "rabenseifner", 8, {"channels": 2}),
    ("all_reduce", "bine", 8, {"channels": 2, "in_place": True}),
    ("all_reduce", "hierarchical", 8, {"box": 4, "pieces": 2}),
    ("all_reduce", "torus", 6, {"dims": (2, 3)}),
    ("reduce", "tree", 7, {"root": 2, "pieces": 4}),
    ("broadcast", "tree", 6, {"channels": 3, "root": 1, "in_place": True}),
]


def made(kind, name, n, params):
    return simcoll.schedule(kind, name, nranks=n, **params)


@pytest.mark.parametrize("given", SCHEDULES, ids=lambda given: f"{given[0]}-{given[1]}")
def test_the_proof_is_that_of_the_whole(given, monkeypatch):
    whole, split = made(*given), made(*given)
    expected = verify(whole)
    monkeypatch.setattr(parts, "CELLS", 16)
    assert len(parts.parts(split)[0]) > 1
    assert replace(verify(split), of=None) == replace(expected, of=None)
    assert split.known.folds == whole.known.folds == expected.folds


@pytest.mark.slow
@pytest.mark.parametrize("given", SCHEDULES, ids=lambda given: f"{given[0]}-{given[1]}")
def test_what_is_wrong_is_told_as_of_the_whole(given, monkeypatch):
    steps = list(made(*given).steps())
    told = 0
    for number, step in enumerate(steps):
        messages = np.flatnonzero(
            step.src_rank != step.dst_rank
        ).tolist()  # without a copy to itself a rank may be right
        for row in dict.fromkeys(messages[:: max(len(messages) // 2, 1)]):
            kept = step.rows([each for each in range(len(step)) if each != row])
            changed = [*steps[:number], kept, *steps[number + 1 :]]
            errors = []
            for cells in (1 << 30, 16):
                monkeypatch.setattr(parts, "CELLS", cells)
                with pytest.raises(ScheduleError) as caught:
                    verify(replace(made(*given), source=lambda changed=changed: iter(changed)))
                errors.append(str(caught.value))
            assert errors[0] == errors[1]
            told += 1
    assert told >= 3


def test_a_transfer_that_changes_its_place_is_proved_as_a_whole(monkeypatch):
    monkeypatch.setattr(parts, "CELLS", 16)
    moved = simcoll.schedule("all_gather", "ring", nranks=8)
    assert parts.parts(moved) == ([], 0, 0)
    assert verify(moved).kind == "full"
