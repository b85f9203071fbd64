"""Proof by symmetry: says what the full proof says, and refuses every schedule in which one chunk
is not like the others.
"""

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
    ("reduce_scatter", "ring", {}),
    ("reduce_scatter", "ring", {"channels": 2, "pieces": 3}),
    ("reduce_scatter", "ring", {"channels": 2, "box": 4}),
    ("reduce_scatter", "bidirectional_ring", {"pieces": 2}),
    ("all_gather", "ring", {}),
    ("all_gather", "ring", {"channels": 3, "pieces": 2, "box": 4}),
    ("all_gather", "bidirectional_ring", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "params"), SYMMETRIC)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_it_says_what_the_full_proof_says(kind, name, params, n, in_place):
    if n % params.get("box", 1) or (in_place and kind == "reduce_scatter"):
        return
    schedule = simcoll.schedule(kind, name, nranks=n, in_place=in_place, **params)
    full, short = verify(schedule, exact=False), verify_by_symmetry(schedule)
    assert short == replace(full, kind="by symmetry")


def test_far_fewer_chunks_than_a_full_proof_could_follow():
    proof = verify_by_symmetry(simcoll.schedule("all_reduce", "ring", nranks=4096))
    assert proof.transfers == 4096 + 2 * 4095 * 4096
    assert str(proof).startswith("proved (by symmetry")


@pytest.mark.parametrize(
    ("kind", "in_place"),
    [
        ("all_reduce", False),
        ("all_reduce", True),
        ("all_gather", False),
        ("all_gather", True),
        ("reduce_scatter", False),
    ],
)
def test_large_rings_are_proved_by_symmetry(kind, in_place):
    assert verify(simcoll.schedule(kind, "ring", nranks=63, in_place=in_place)).kind == "full"
    large = simcoll.schedule(kind, "ring", nranks=64, channels=2, box=8, in_place=in_place)
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
        verify_by_symmetry(simcoll.schedule("reduce_scatter", "ring", nranks=4, in_place=True))


def swapped(values, *places):
    result = values.copy()
    result[list(places)] = result[list(places[::-1])]
    return result


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather"])
def test_a_wrong_repeat_of_blocks_is_refused(kind):
    """A symmetric proof accepts the schedule, and no mutant that the full proof of its unrolled
    steps refuses.
    """
    schedule = simcoll.schedule(kind, "ring", nranks=8, channels=2, box=4)
    blocks = list(schedule.source())
    at = next(at for at, block in enumerate(blocks) if isinstance(block, Repeat))
    turn, n = blocks[at], schedule.nranks
    step, order = turn.steps[0], turn.order
    assert verify_by_symmetry(schedule).kind == "by symmetry"
    windows = order.reshape(-1, n)
    row = int(np.flatnonzero(step.src_rank != step.dst_rank)[0])
    mutants = [
        replace(turn, count=turn.count - 1),
        replace(turn, stride=1),
        replace(turn, stride=-3),
        replace(turn, order=swapped(order, 0, 1)),  # in one window
        replace(turn, order=swapped(order, len(order) - 2, len(order) - 1)),
        replace(turn, order=swapped(windows, 0, -1).reshape(-1)),  # the same windows
        replace(turn, order=windows[:, swapped(np.arange(n), 2, 3)].reshape(-1)),  # in all windows
        replace(turn, order=np.roll(windows, 1, axis=1).reshape(-1)),  # the same shift
        replace(turn, steps=(without(step, row),)),
        replace(turn, steps=(changed(step, row, op=1 - step.op[row]),)),
        replace(turn, steps=(changed(step, row, channel=1 - step.channel[row]),)),  # the same data
        replace(turn, steps=(changed(step, row, dst_rank=step.src_rank[row]),)),
        replace(turn, steps=(changed(step, row, src_chunk=windows[-1, 0]),)),
        replace(
            turn, steps=(changed(step, row, src_chunk=windows[-1, 0], dst_chunk=windows[-1, 0]),)
        ),
    ]
    right = []
    for number, mutant in enumerate(mutants):
        made = with_steps(schedule, [*blocks[:at], mutant, *blocks[at + 1 :]])
        try:
            verify(with_steps(schedule, unrolled(made)), exact=True)
        except ScheduleError:
            with pytest.raises(ScheduleError):
                verify_by_symmetry(made)
            with pytest.raises(ScheduleError):
                verify(made)
        else:
            right.append(number)
    assert right == [5, 7, 10]


def test_blocks_that_do_not_move_with_their_ranks_are_no_symmetry():
    schedule = simcoll.schedule("all_gather", "ring", nranks=6, channels=2)
    true = find_symmetry(schedule)
    certify(schedule, true)
    with pytest.raises(ScheduleError, match="separates blocks from their ranks"):
        certify(schedule, replace(true, place=np.roll(true.place, 2)))


def test_a_false_symmetry_is_not_certified():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=6)
    true = find_symmetry(schedule)
    certify(schedule, true)
    for false in (
        replace(true, rank=np.roll(true.rank, 1, axis=1)),
        replace(true, rank=np.zeros_like(true.rank)),
        replace(true, place=swapped(true.place, 0, 1)),
        replace(true, place=np.roll(true.place, 1)),
        replace(true, place=np.arange(schedule.layout.chunks)),
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
        pairs += [
            Repeat((turns[0], turns[1]), 2, 2 * block.stride, block.base, block.modulus),
            turns[4],
        ]
    again = with_steps(schedule, [first, *pairs])
    assert again.content_hash() == schedule.content_hash()
    assert verify_by_symmetry(again) == verify_by_symmetry(schedule)
