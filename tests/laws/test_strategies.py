"""What is followed decides nothing: proofs by symmetry, of one share, of one piece of each kind, of
one of all images and part by part say what counting every chunk says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.schedule import Repeat, Step
from simcoll.errors import ConfigError, ScheduleError
from simcoll.proving import alike_pieces as alike
from simcoll.proving import copied_shares, data, explain, image_pieces, parts, symmetry, verify
from simcoll.testing.examples import needed_params

ROUTES = ("symmetry", "share", "pieces", "images", "parts")
PIECES = {"pieces": 5, "channels": 2}
MOST_CONTRIBUTIONS = 1 << 17
RANKS = (*range(1, 10), 12, 16)
"""Powers of two, odd, prime, square and otherwise composite."""


def refuse(schedule, ranks, chunks):
    raise ScheduleError(f"{schedule}: {len(ranks)} wrong output chunks")


@pytest.fixture
def eager(monkeypatch):
    """Every strategy is tried, however small the schedule, and only asked for its verdict: what is
    wrong with schedules of all algorithms is explained in :mod:`tests.laws.test_mutants`.
    """
    monkeypatch.setattr(explain, "wrong_outputs", refuse)
    monkeypatch.setattr(symmetry, "SYMMETRIC_RANKS", 1)
    monkeypatch.setattr(alike, "FEWEST", 1)
    monkeypatch.setattr(alike, "SAVED", 0)
    monkeypatch.setattr(copied_shares, "MANY_CELLS", 0)
    monkeypatch.setattr(image_pieces, "MANY_CELLS", 0)
    monkeypatch.setattr(image_pieces, "SAVED", 0)


def shipped(algorithm, nranks):
    """The schedules of an algorithm, plain, and in pieces on two channels if it has such
    parameters: one of them in place and one not.
    """
    # In such turns powers of two, other even numbers and odd ones have either in place.
    for turn, extra in enumerate(({}, PIECES), nranks.bit_length() + nranks.bit_count()):
        params = needed_params(algorithm.collective, algorithm.name, nranks) | extra
        if algorithm.name == "hierarchical":
            params["box"] = nranks // 2 if nranks % 2 == 0 else 1
        in_place = turn % 2 == 1
        try:
            schedule = simcoll.schedule(
                algorithm.collective, algorithm.name, nranks=nranks, in_place=in_place, **params
            )
            blocks = list(schedule.source())
        except ConfigError:
            continue
        if schedule.collective.kind != "barrier":
            # Eleven proofs follow: to play the algorithm anew for each took a quarter of them.
            yield replace(schedule, source=lambda blocks=blocks: blocks)


def verdict(route, schedule):
    """The order level that a strategy proves, empty without reductions; None if it refuses or does
    not apply.
    """
    schedule, salt = replace(schedule), bytes(32)
    try:
        if route == "symmetry":
            proof = data._by_symmetry(schedule, salt)
        elif route == "share":
            proof = data._by_share(schedule, salt)
        else:
            with pytest.MonkeyPatch.context() as patch:
                if route != "pieces":
                    patch.setattr(data, "one_of_each", lambda _: ([], 0, 0))
                if route != "images":
                    patch.setattr(data, "one_of_images", lambda _: ([], 0, 0))
                if route == "parts":
                    patch.setattr(parts, "CELLS", schedule.nranks * schedule.layout.size // 3 + 1)
                proof = data._by_parts(schedule, salt)
    except ScheduleError:
        return None
    return (
        None if proof is None else (proof.order, proof.steps, proof.transfers, proof.shared_chunks)
    )


def counted(schedule):
    try:
        proof = verify(replace(schedule), exact=True)
    except ScheduleError:
        return None
    return proof.order, proof.steps, proof.transfers, proof.shared_chunks


def broken(schedule, rng):
    """The schedule with one field of one transfer of one iteration changed; the iterations before
    it stay a repeat.
    """
    blocks = list(schedule.source())
    filled = [
        k
        for k, block in enumerate(blocks)
        if (block.count if isinstance(block, Repeat) else len(block))
    ]
    at = filled[rng.integers(len(filled))]
    block = blocks[at]
    if isinstance(block, Repeat):
        turn = int(rng.integers(block.count))
        steps = list(replace(block).unrolled())[
            turn * len(block.steps) : (turn + 1) * len(block.steps)
        ]
        later = list(block.unrolled())[(turn + 1) * len(block.steps) :]
        before, after = [replace(block, count=turn)], later
    else:
        steps, before, after = [block], [], []
    inner = int(rng.integers(len(steps)))
    columns = [column.copy() for column in steps[inner].columns]
    row, field = int(rng.integers(len(columns[0]))), int(rng.choice([0, 1, 2, 3, 5, 6]))
    n, size = schedule.nranks, schedule.layout.size
    limit = (n, size, n, size, 1, 2, schedule.nchannels)[field]
    if limit > 1:
        columns[field][row] = (columns[field][row] + 1 + rng.integers(limit - 1)) % limit
    else:
        columns = [np.delete(column, row) for column in columns]
    steps[inner] = Step(*columns)
    changed = [*blocks[:at], *before, *steps, *after, *blocks[at + 1 :]]
    return replace(schedule, source=lambda: changed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ALGORITHMS, ids=lambda algorithm: f"{algorithm.collective}-{algorithm.name}"
)
def test_every_strategy_says_what_counting_says(algorithm, eager):
    rng = np.random.default_rng(20261128)
    for nranks in RANKS:
        for schedule in shipped(algorithm, nranks):
            if data._contributions(schedule) > MOST_CONTRIBUTIONS:
                continue
            expected = counted(schedule)
            assert expected is not None
            for route in ROUTES:
                assert verdict(route, schedule) in {None, expected}, (route, str(schedule))
            if not any(map(len, schedule.steps())):
                continue
            wrong = broken(schedule, rng)
            expected = counted(wrong)
            for route in ROUTES:
                assert verdict(route, wrong) in {None, expected}, (route, str(schedule))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "params", "route"),
    [
        ("all_reduce", "ring", {}, "symmetry"),
        ("all_gather", "ring", {}, "symmetry"),
        ("reduce_scatter", "ring", {"channels": 2}, "symmetry"),
        ("broadcast", "chain", {"pieces": 4}, "pieces"),
        ("all_reduce", "tree", {"pieces": 4}, "pieces"),
        ("all_reduce", "tree", {"pieces": 4}, "parts"),
        ("all_reduce", "rabenseifner", {"channels": 3}, "share"),
        ("all_reduce", "tree", {"channels": 2, "pieces": 2}, "share"),
        ("broadcast", "chain", {"channels": 2}, "share"),
        ("all_gather", "direct", {"channels": 3}, "share"),
        ("all_gather", "pat", {"channels": 2}, "share"),
        ("all_reduce", "rabenseifner", {}, "images"),
        ("all_reduce", "swing", {}, "images"),
        ("all_reduce", "bine", {}, "images"),
    ],
)
@pytest.mark.parametrize("nranks", [5, 8])
def test_the_strategies_apply(kind, name, params, route, nranks, eager):
    """Otherwise the test above would compare nothing."""
    schedule = simcoll.schedule(kind, name, nranks=nranks, **params)
    assert verdict(route, schedule) == counted(schedule)
