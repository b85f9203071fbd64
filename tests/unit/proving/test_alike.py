"""One piece of each kind stands for all: the proof says what the full one says, and no piece that
differs goes unseen.
"""

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.core.collective import Collective
from simcoll.core.schedule import (
    COLUMNS,
    COPY,
    REDUCE,
    Layout,
    Repeat,
    Schedule,
    Step,
    joined,
    transfers,
)
from simcoll.errors import ScheduleError
from simcoll.proving import alike_pieces as alike
from simcoll.proving import verify

PIPELINES = [
    ("broadcast", "chain", {"pieces": 128}),
    ("broadcast", "chain", {"pieces": 64, "channels": 2, "box": 2}),
    ("reduce", "chain", {"pieces": 129}),
    ("all_reduce", "tree", {"pieces": 128}),
    ("all_reduce", "double_tree", {"pieces": 128}),
    ("all_reduce", "nccl_tree", {"pieces": 64, "channels": 2, "box": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "params"), PIPELINES)
def test_it_says_what_the_full_proof_says(kind, name, params):
    schedule = simcoll.schedule(kind, name, nranks=4, **params)
    full, told = verify(schedule, exact=True), verify(schedule, exact=False)
    assert told.kind == "by symmetry"
    assert replace(told, kind="full", method="exact", error_bits=0) == full


def test_few_pieces_are_followed():
    schedule = simcoll.schedule("broadcast", "chain", nranks=4, pieces=512)
    (some,), steps, count = alike.one_of_each(schedule)
    assert (some.layout.chunks, steps, count) == (1, 1 + 512 + 2, 1 + 3 * 512)
    assert sum(len(step) for step in some.steps()) == 1 + 3


@pytest.mark.parametrize(
    ("kind", "name", "params"),
    [
        ("all_reduce", "ring", {"channels": 32}),  # a segment of each rank
        ("all_gather", "ring", {"pieces": 128}),  # a block of each rank
        ("broadcast", "chain", {"pieces": 127}),
        ("all_reduce", "nvls", {"pieces": 128}),  # a switch reduces
    ],
)
def test_other_schedules_are_followed_in_full(kind, name, params):
    assert verify(simcoll.schedule(kind, name, nranks=4, **params)).kind == "full"


def mutant(schedule, rng):
    """The schedule with a change of one transfer, of whatever piece."""
    steps = list(schedule.steps())
    at = int(rng.integers(len(steps)))
    step, n, size = steps[at], schedule.nranks, schedule.layout.size
    row = int(rng.integers(len(step)))
    columns = {name: getattr(step, name).copy() for name in COLUMNS}
    how = ["without", "later", "src_rank", "dst_rank", "src_chunk", "dst_chunk", "op"][
        int(rng.integers(7))
    ]
    if how in ("without", "later"):
        moved = step.rows(slice(row, row + 1))
        steps[at] = Step(*(np.delete(column, row) for column in columns.values()))
        if how == "later":
            steps.insert(min(at + 1 + int(rng.integers(3)), len(steps)), moved)
    else:
        limit = {"op": 2, "src_rank": n, "dst_rank": n}.get(how, size)
        columns[how][row] = (columns[how][row] + 1 + int(rng.integers(limit - 1))) % limit
        steps[at] = Step(*columns.values())
    return replace(schedule, source=lambda: steps)


def judged(schedule, *, exact):
    """The verdict: what is proved, or the fault."""
    try:
        proof = verify(schedule, exact=exact)
    except ScheduleError as error:
        return error.step, error.rank, error.chunk, error.channel
    return proof.order, proof.steps, proof.transfers, proof.shared_chunks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_one_transfer_that_differs_is_judged_as_by_the_full_proof(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    kind, name, params = PIPELINES[seed % len(PIPELINES)]
    made = mutant(simcoll.schedule(kind, name, nranks=4, **params), rng)
    expected = judged(made, exact=True)
    assert judged(made, exact=False) == expected
    # Sums that suggest too much do no harm.
    monkeypatch.setattr(
        alike, "token_at", lambda index, salt: np.full(index.shape, salt, np.uint64)
    )
    assert judged(replace(made), exact=False) == expected


def test_pieces_whose_transfers_share_a_step_differ_from_those_that_follow_each_other():
    """Every piece goes from 0 to 1 and on to 2; where both happen in one step, rank 1 passes on
    what it held before.
    """
    layout = Layout(Collective("broadcast", 3), 128)
    chunk = np.arange(128)
    start = transfers(0, layout.input(0, chunk), 0, layout.output(0, chunk))

    def schedule(*pieces):
        early = np.array(pieces, np.int64)
        late = np.delete(chunk, early)
        first = transfers(0, layout.output(0, chunk), 1, layout.output(0, chunk))
        on = transfers(1, layout.output(0, late), 2, layout.output(0, late))
        at_once = transfers(1, layout.output(0, early), 2, layout.output(0, early))
        return Schedule("relay", layout, lambda: [start, joined([first, at_once]), on])

    assert verify(schedule(), exact=False).kind == "by symmetry"
    with pytest.raises(
        ScheduleError, match="reads rank 1 output chunk 17, which holds nothing yet"
    ):
        verify(schedule(17))


def test_repeats_of_ranges():
    layout = Layout(simcoll.schedule("reduce", "chain", nranks=2).collective, 128)
    half = transfers(1, layout.input(), 0, layout.output(), count=16, op=REDUCE)
    start = transfers([0, 1], layout.input(), [0, 1], layout.output(), count=128, op=COPY)
    for turns, right in ((8, True), (7, False)):
        steps = [start, Repeat((half,), turns, 16, 0, 128)]
        made = Schedule("ranges", layout, lambda steps=steps: steps)
        if right:
            told = verify(made, exact=False)
            assert (told.kind, told.steps, told.transfers) == ("by symmetry", 9, 10)
        else:
            with pytest.raises(ScheduleError, match="is wrong at the end"):
                verify(made)
