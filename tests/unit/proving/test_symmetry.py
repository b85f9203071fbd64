"""Proof by symmetry: says what the full proof says, and refuses every schedule in which one chunk is not like the others."""

from dataclasses import replace

import numpy as np
import pytest

import simcoll
from simcoll.core.schedule import Repeat, Step
from simcoll.errors import ScheduleError
from simcoll.proving import verify
from simcoll.proving.symmetry import certify, find_symmetry, verify_by_symmetry

COLUMNS = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")
SYMMETRIC = [
    ("all_reduce", "ring", {}),
    ("all_reduce", "ring", {"channels": 2, "pieces": 3}),
    ("all_reduce", "ring", {"channels": 2, "box": 4}),
    ("all_reduce", "bidirectional_ring", {"channels": 2}),
    ("all_reduce", "ring", {"pieces": 2}),
    ("all_reduce", "ring", {"channels": 3, "pieces": 2, "box": 4}),
    ("all_reduce", "bidirectional_ring", {}),
    ("all_reduce", "bidirectional_ring", {"channels": 2, "pieces": 3}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "params"), SYMMETRIC)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_it_says_what_the_full_proof_says(kind, name, params, n, in_place):
    if n % params.get("box", 1):
        return
    schedule = simcoll.schedule(kind, name, nranks=n, in_place=in_place, **params)
    full, short = verify(schedule), verify_by_symmetry(schedule)
    assert short == replace(full, kind="by symmetry", method="fingerprint")


def test_far_fewer_chunks_than_a_full_proof_could_follow():
    proof = verify_by_symmetry(simcoll.schedule("all_reduce", "ring", nranks=4096))
    assert proof.transfers == 4096 + 2 * 4095 * 4096
    assert str(proof).startswith("proved (by symmetry")


@pytest.mark.parametrize("in_place", [False, True])
def test_large_rings_are_proved_by_symmetry(in_place):
    assert verify(simcoll.schedule("all_reduce", "ring", nranks=63, in_place=in_place)).kind == "full"
    large = simcoll.schedule("all_reduce", "ring", nranks=64, channels=2, in_place=in_place)
    told = verify(with_steps(large, unrolled(large)))  # without its repeats
    assert told.kind == "full"
    assert verify(large) == replace(told, kind="by symmetry")


def test_a_large_ring_that_is_wrong_gets_the_counter_example_of_the_full_proof():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=64)
    first, reduce, copy = schedule.source()
    short = with_steps(schedule, [first, replace(reduce, count=reduce.count - 1), copy])
    with pytest.raises(ScheduleError, match="is wrong at the end"):
        verify(short)


def unrolled(schedule):
    return list(schedule.steps())


def with_steps(schedule, steps):
    return replace(schedule, source=lambda: iter(steps))


def changed(step, row, **values):
    columns = {name: getattr(step, name).copy() for name in COLUMNS}
    for name, value in values.items():
        columns[name][row] = value
    return Step(*columns.values())


def without(step, row):
    return Step(*(np.delete(getattr(step, name), row) for name in COLUMNS))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_one_wrong_transfer_anywhere_is_refused(seed):
    """Whatever transfer is changed: that of a chunk which is followed, or any other."""
    rng = np.random.default_rng(seed)
    kind, name, params = SYMMETRIC[int(rng.integers(len(SYMMETRIC)))]
    n = 4 * int(rng.integers(1, 3))
    schedule = simcoll.schedule(kind, name, nranks=n, **params)
    steps = unrolled(schedule)
    at = int(rng.integers(len(steps)))
    step = steps[at]
    row = int(rng.integers(len(step)))
    size = schedule.layout.size
    steps[at] = [
        without(step, row),
        changed(step, row, src_rank=(step.src_rank[row] + 1) % n),
        changed(step, row, dst_rank=(step.dst_rank[row] + 1) % n),
        changed(step, row, src_chunk=(step.src_chunk[row] + 1) % size),
        changed(step, row, dst_chunk=(step.dst_chunk[row] + 1) % size),
        changed(step, row, op=1 - step.op[row]),
    ][int(rng.integers(6))]
    with pytest.raises(ScheduleError):
        verify_by_symmetry(with_steps(schedule, steps))


@pytest.mark.slow
def test_one_wrong_transfer_far_from_the_followed_chunk_of_a_large_ring():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=512)
    first, reduce, copy = schedule.source()
    steps = list(reduce.unrolled())
    assert verify_by_symmetry(with_steps(schedule, [first, *steps, copy])).kind == "by symmetry"
    steps[300] = changed(steps[300], 77, op=0)
    with pytest.raises(ScheduleError, match=r"step 301: some transfer like that of rank \d+"):
        verify_by_symmetry(with_steps(schedule, [first, *steps, copy]))
    block = replace(reduce, steps=(changed(reduce.steps[0], 200, dst_rank=5),))
    with pytest.raises(ScheduleError, match="no proof by symmetry"):
        verify_by_symmetry(with_steps(schedule, [first, block, copy]))


@pytest.mark.parametrize(
    "mutate",
    [
        lambda a, b, c: [a, replace(b, count=b.count - 1), c],
        lambda a, b, c: [a, b, replace(c, count=c.count - 1)],
        lambda a, b, *_: [a, b],
        lambda *s: [*s[1:]],
        lambda a, b, c: [a, replace(b, stride=-b.stride), c],
        lambda a, b, c: [a, replace(b, stride=2), c],
        lambda a, b, c: [a, c, b],
        lambda a, b, c: [a, b, b, c],
        lambda a, b, c: [a, replace(b, modulus=b.modulus - 1), c],
    ],
)
def test_wrong_everywhere_alike_is_wrong(mutate):
    """These stay symmetric, or nearly so: what is followed must show the fault."""
    schedule = simcoll.schedule("all_reduce", "ring", nranks=6)
    mutant = with_steps(schedule, mutate(*schedule.source()))
    with pytest.raises(ScheduleError):
        verify(mutant)
    with pytest.raises(ScheduleError):
        verify_by_symmetry(mutant)


@pytest.mark.parametrize("name", ["tree", "rabenseifner", "hierarchical"])
def test_without_a_known_symmetry_it_says_so(name):
    params = {"box": 4, "channels": 2} if name == "hierarchical" else {}
    with pytest.raises(ScheduleError, match="no proof by symmetry"):
        verify_by_symmetry(simcoll.schedule("all_reduce", name, nranks=8, **params))
    with pytest.raises(ScheduleError, match="not symmetric"):
        verify_by_symmetry(simcoll.schedule("broadcast", "chain", nranks=4))
    with pytest.raises(ScheduleError, match="not symmetric"):
        verify_by_symmetry(simcoll.schedule("all_gather", "ring", nranks=4))


def test_a_false_symmetry_is_not_certified():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=6)
    true = find_symmetry(schedule)
    certify(schedule, true)
    swapped = true.piece.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    for false in (
        replace(true, rank=np.roll(true.rank, 1, axis=1)),
        replace(true, rank=np.zeros_like(true.rank)),
        replace(true, piece=swapped),
        replace(true, piece=np.roll(true.piece, 1)),
        replace(true, piece=np.arange(schedule.layout.chunks)),
    ):
        with pytest.raises(ScheduleError, match="no proof by symmetry"):
            certify(schedule, false)


def test_repeats_with_a_stride_that_shares_a_factor_with_their_window():
    # Two steps that together go round a ring of 6 ranks, told as two repeats of every other turn.
    schedule = simcoll.schedule("all_reduce", "ring", nranks=6)
    first, reduce, copy = schedule.source()
    pairs = []
    for block in (reduce, copy):
        turns = list(block.unrolled())
        pairs += [Repeat((turns[0], turns[1]), 2, 2 * block.stride, block.base, block.modulus), turns[4]]
    again = with_steps(schedule, [first, *pairs])
    assert again.content_hash() == schedule.content_hash()
    assert verify_by_symmetry(again) == verify_by_symmetry(schedule)
