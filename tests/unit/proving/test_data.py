"""Proofs of every shipped algorithm; reduction orders; every kind of counter-example."""

from __future__ import annotations

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import KINDS, Collective
from simcoll.core.schedule import COPY, REDUCE, SYNC, Layout, Schedule, transfers
from simcoll.core.step import by_chunk
from simcoll.errors import ConfigError, ScheduleError
from simcoll.proving import LEVELS, verify
from simcoll.testing.examples import needed_params

RANKS = (*range(1, 18), 24, 32, 33)
CASES = [(a.collective, a.name) for a in ALGORITHMS]
BOXED_OR_SWITCHED = [
    (a.collective, a.name)
    for a in ALGORITHMS
    if a.topologies in {"switch", "sharp"} or a.name == "hierarchical"
]
SERVES = {(a.collective, a.name): a.ranks for a in ALGORITHMS}


def shipped(kind, name, n, **extra):
    """The schedules of an algorithm for n ranks, with some boxes where it needs one; none where it
    does not serve n.
    """
    extra = needed_params(kind, name, n) | extra
    boxes = [{}] if name != "hierarchical" else [{"box": b} for b in (1, 2, 3, n) if n % b == 0]
    for box in boxes:
        try:
            schedule = simcoll.schedule(kind, name, nranks=n, **box, **extra)
            list(schedule.steps())
        except ConfigError as error:
            if SERVES[kind, name] == "any" and "has no parameter" not in str(error):
                raise
        else:
            yield schedule


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), BOXED_OR_SWITCHED)
def test_every_algorithm_of_boxes_or_switches_is_proved_for_every_rank_count(kind, name):
    """All others are in ``tests/unit/algorithms/test_library.py``."""
    proved = [verify(schedule) for n in RANKS for schedule in shipped(kind, name, n)]
    assert len(proved) >= (len(RANKS) if SERVES[kind, name] == "any" else 1)
    assert {proof.kind for proof in proved} == {"full"}
    assert all((proof.order in LEVELS) == KINDS[kind].reduces for proof in proved)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_variant_is_proved_and_the_exact_mode_agrees(kind, name):
    variants = [{}, {"channels": 2}, {"pieces": 2}, {"channels": 2, "pieces": 3}]
    served = 0
    for n in (1, 2, 3, 4, 6):
        for number, extra in enumerate(variants):
            for place, root in enumerate(
                sorted({0, n // 2, n - 1}) if KINDS[kind].rooted else [None]
            ):
                # With the defaults both in place and not; else one of the two, by turns.
                for in_place in (bool((n // 2 + number + place) % 2),) if extra else (False, True):
                    for schedule in shipped(kind, name, n, root=root, in_place=in_place, **extra):
                        found = verify(schedule)
                        served += 1
                        if n <= 4:
                            exact = verify(schedule, exact=True)
                            assert exact.method == "exact"
                            assert (exact.order, exact.steps, exact.transfers) == (
                                found.order,
                                found.steps,
                                found.transfers,
                            )
    assert served >= 2


def test_counts_of_transfers():
    # Local copies, then the literature's counts of messages.
    ring = verify(simcoll.schedule("all_reduce", "ring", nranks=8))
    assert (ring.transfers, ring.steps) == (8 + 2 * 7 * 8, 1 + 14)
    assert verify(simcoll.schedule("broadcast", "tree", nranks=8)).transfers == 1 + 7
    assert verify(simcoll.schedule("barrier", "dissemination", nranks=6)).transfers == 3 * 6
    assert str(ring).startswith("proved (full, exact): 120 transfers in 15 steps")


# What a fold in one fixed order, the same on every rank and for every chunk, or not, gives.
@pytest.mark.parametrize(
    ("kind", "name", "n", "order"),
    [
        ("all_reduce", "ring", 4, "run-consistent"),
        ("all_reduce", "ring", 2, "position-independent"),
        ("all_reduce", "tree", 6, "position-independent"),
        ("all_reduce", "recursive_doubling", 8, "position-independent"),
        ("all_reduce", "recursive_doubling", 6, "position-independent"),
        ("all_reduce", "rabenseifner", 8, "position-independent"),
        ("reduce", "tree", 5, "position-independent"),
        ("reduce_scatter", "ring", 4, "run-consistent"),
        ("reduce_scatter", "recursive_halving", 4, "position-independent"),
        ("all_gather", "ring", 4, ""),
        ("all_to_all", "direct", 4, ""),
        ("broadcast", "tree", 4, ""),
    ],
)
def test_reduction_order_of_shipped_schedules(kind, name, n, order):
    assert verify(simcoll.schedule(kind, name, nranks=n)).order == order


def test_levels():
    assert LEVELS == ("any", "rank-consistent", "run-consistent", "position-independent")


def made(collective, steps, chunks=1, channels=1, scratch=0):
    layout = Layout(collective, chunks, np.zeros(scratch, np.int64))
    return Schedule("mine", layout, lambda: iter(steps), channels)


def gathered_then_folded(orders, chunks=1):
    """An all-reduce of 3 ranks: all vectors to scratch, then each rank adds them in its own order,
    per chunk.
    """
    all_reduce = Collective("all_reduce", 3)
    layout = Layout(all_reduce, chunks, np.zeros(3, np.int64))
    piece = np.arange(chunks)
    steps = [
        transfers(s, layout.input(0, piece), np.array([[0], [1], [2]]), layout.scratch_at(s, piece))
        for s in range(3)
    ]
    for turn in range(3):
        rank, chunk = np.repeat(np.arange(3), chunks), np.tile(piece, 3)
        slot = np.array([orders[r][c][turn] for r, c in zip(rank, chunk, strict=True)])
        op = COPY if turn == 0 else REDUCE
        steps.append(
            transfers(rank, layout.scratch_at(slot, chunk), rank, layout.output(0, chunk), op=op)
        )
    return Schedule("mine", layout, lambda: iter(steps))


def test_the_order_is_any_when_ranks_add_in_different_orders():
    # (0 + 1) + 2 on two ranks and (0 + 2) + 1 on the third.
    assert verify(gathered_then_folded([[(0, 1, 2)], [(0, 1, 2)], [(0, 2, 1)]])).order == "any"


def test_swapped_operands_are_the_same_bits():
    # a + b = b + a in every floating-point format; (1 + 0) + 2 = (0 + 1) + 2.
    assert (
        verify(gathered_then_folded([[(0, 1, 2)], [(1, 0, 2)], [(0, 1, 2)]])).order
        == "position-independent"
    )


def test_the_order_may_differ_between_chunks():
    same, other = [(0, 1, 2), (0, 1, 2)], [(0, 1, 2), (2, 1, 0)]
    assert verify(gathered_then_folded([same] * 3, chunks=2)).order == "position-independent"
    assert verify(gathered_then_folded([other] * 3, chunks=2)).order == "run-consistent"
    assert verify(gathered_then_folded([other, other, other[::-1]], chunks=2)).order == "any"


def test_expanded_transfers():
    step = by_chunk(transfers([0, 1], [5, 7], [1, 0], [2, 3], count=[2, 1], op=[COPY, REDUCE]))
    assert [
        c.tolist() for c in (step.src_rank, step.src_chunk, step.dst_rank, step.dst_chunk, step.op)
    ] == [
        [0, 0, 1],
        [5, 6, 7],
        [1, 1, 0],
        [2, 3, 3],
        [COPY, COPY, REDUCE],
    ]


AR2 = Collective("all_reduce", 2)  # input chunk 0, output chunk 1, scratch from chunk 2 on
LOAD = transfers([0, 1], 0, [0, 1], 1)
CROSS = transfers([0, 1], 0, [1, 0], 1, op=REDUCE)


def test_a_schedule_by_hand():
    proof = verify(made(AR2, [LOAD, CROSS]))
    assert (proof.transfers, proof.steps, proof.order, proof.shared_chunks) == (
        4,
        2,
        "position-independent",
        False,
    )


# What is wrong, the words a person gets, and where the error says it is.
FAULTS = {
    "never read what holds nothing": (
        made(AR2, [LOAD, transfers(1, 2, 0, 1, op=REDUCE)], scratch=1),
        (
            "step 1: reads rank 1 scratch chunk 0, which holds nothing yet",
            "rank 1 scratch chunk 0 -> rank 0 output chunk 0 (reduce, channel 0)",
        ),
        {"step": 1, "rank": 1, "channel": 0, "chunk": 2},
    ),
    "never reduce into what holds nothing": (
        made(AR2, [transfers(1, 0, 0, 1, op=REDUCE)]),
        ("step 0: reduces into rank 0 output chunk 0, which holds nothing yet",),
        {"step": 0, "rank": 0, "channel": 0, "chunk": 1},
    ),
    "inputs are read-only": (
        made(AR2, [LOAD, transfers(0, 1, 1, 0)]),
        ("step 1: overwrites rank 1 input chunk 0: inputs are read-only",),
        {"step": 1, "rank": 1, "channel": 0, "chunk": 0},
    ),
    "one write per step": (
        made(AR2, [LOAD, transfers([0, 1], 0, 1, 1, op=REDUCE, channel=[0, 1])], channels=2),
        (
            "writes rank 1 output chunk 0 twice in one step",
            "rank 0 input chunk 0",
            "rank 1 input chunk 0",
        ),
        {"step": 1, "rank": 1, "chunk": 1},
    ),
    "a contribution is missing": (
        made(AR2, [LOAD, transfers(0, 0, 1, 1, op=REDUCE)]),
        (
            "rank 0 output chunk 0 is wrong at the end (1 wrong output chunk in all)",
            "expected: rank 0 input chunk 0, rank 1 input chunk 0",
            "found:    rank 0 input chunk 0",
            "missing: rank 1 input chunk 0",
            "last written in step 0",
        ),
        {"step": 0, "rank": 0, "chunk": 1},
    ),
    "a contribution is counted twice": (
        made(AR2, [LOAD, CROSS, transfers(0, 0, 1, 1, op=REDUCE)]),
        (
            "rank 1 output chunk 0 is wrong",
            "counted more than once: rank 0 input chunk 0",
            "last written in step 2",
        ),
        {"step": 2, "rank": 1},
    ),
    "never written": (
        made(AR2, []),
        ("found:    nothing", "never written", "2 wrong output chunks in all"),
        {"step": None, "rank": 0, "chunk": 1},
    ),
    "not wanted": (
        made(
            Collective("broadcast", 3),
            [transfers(0, 0, [0, 1], 1), transfers(1, 1, 2, 1), transfers(0, 0, 2, 1, op=REDUCE)],
        ),
        ("rank 2 output chunk 0 is wrong", "counted more than once: rank 0 input chunk 0"),
        {"step": 2, "rank": 2},
    ),
    "wrong source": (
        made(
            Collective("all_gather", 2),
            [
                transfers([0, 1], 0, [0, 1], [1, 2]),
                transfers([0, 1], [1, 2], [1, 0], [1, 2]),
                transfers(0, 1, 0, 1, op=REDUCE),
            ],
        ),
        ("rank 0 output slot 0 is wrong",),
        {"step": 2, "rank": 0, "chunk": 1},
    ),
    "pieces of different sizes": (
        made(AR2, [transfers(0, 0, 0, 3)], chunks=2),
        ("joins chunks of different sizes: piece 0 of block 0 and piece 1 of block 0",),
        {"step": 0, "rank": 0, "chunk": 3},
    ),
    "blocks of different sizes": (
        made(Collective("all_gather", 2), [transfers(0, 0, 1, 2)]),
        ("joins chunks of different sizes: piece 0 of block 0 and piece 0 of block 1",),
        {"step": 0, "rank": 1, "chunk": 2},
    ),
    "the wrong slot of a gather": (
        made(Collective("gather", 3), [transfers([0, 1, 2], 0, 0, [1, 3, 2])]),
        (
            (
                "joins chunks of different sizes: piece 0 of block 1 and piece 0 of block 2 (blocks "
                "may have different sizes"
            ),
            "expected: rank 2 input chunk 0\n",
            "found:    rank 1 input chunk 0\n",
        ),
        {"step": 0, "rank": 0, "chunk": 3},
    ),
    "the wrong slot of an all_to_all": (
        made(Collective("all_to_all", 3), [transfers(0, 1, 1, 4)]),
        ("expected: rank 1 input slot 1\n", "found:    rank 0 input slot 1\n"),
        {"step": 0, "rank": 1, "chunk": 4},
    ),
    "the wrong slot after a detour": (
        Schedule(
            "mine",
            Layout(Collective("all_to_all", 2), 1, [2]),  # block 2: from rank 1 to rank 0
            lambda: [transfers(1, 0, 0, 4), transfers(0, 4, 1, 4), transfers(1, 4, 1, 2)],
        ),
        ("step 2: joins", "expected: rank 0 input slot 1\n", "found:    rank 1 input slot 0\n"),
        {"step": 2, "rank": 1, "chunk": 2},
    ),
    "the wrong slot in place": (
        made(Collective("scatter", 3, in_place=True), [transfers(0, 1, 2, 3)]),
        ("expected: rank 0 input slot 2\n", "found:    rank 0 input slot 1\n"),
        {"step": 0, "rank": 2},
    ),
    "the wrong destination of a send_recv": (
        made(Collective("send_recv", 3, pairs=((0, 1),)), [transfers(0, 0, 2, 1)]),
        (
            "expected: nothing, because rank 2 is not the destination of a pair\n",
            "found:    rank 0 input chunk 0\n",
        ),
        {"step": 0, "rank": 2, "chunk": 1},
    ),
    "no data in a barrier": (
        made(Collective("barrier", 2), [transfers([0, 1], 0, [1, 0], 0)]),
        ("a barrier has no data; its transfers are sync",),
        {"step": 0, "rank": 0, "channel": 0},
    ),
    "some chunks to move": (
        made(AR2, [LOAD, transfers(1, 0, 0, 1, count=0, op=REDUCE)]),
        ("step 1, rank 1 -> 0, channel 0: count must be at least 1, got 0",),
        {"step": 1, "rank": 1},
    ),
    "no sync but in a barrier": (
        made(AR2, [transfers(0, 0, 1, 0, op=SYNC)]),
        ("step 0: only a barrier has sync transfers",),
        {"step": 0},
    ),
    "a barrier that a rank leaves early": (
        made(
            Collective("barrier", 3),
            [transfers([0, 1], 0, 2, 0, op=SYNC), transfers(2, 0, 0, 0, op=SYNC)],
        ),
        (
            "rank 1 may leave before rank 0, 2 has entered",
            "rank 1 receives no message",
            "rank 0's arrival is last forwarded in step 0, from rank 0 to rank 2 (channel 0)",
        ),
        {"rank": 1, "step": 0, "channel": 0, "chunk": None},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_counter_examples(fault):
    schedule, words, where = FAULTS[fault]
    for exact in (False, True):
        with pytest.raises(ScheduleError) as error:
            verify(schedule, exact=exact)
        assert [w for w in words if w not in str(error.value)] == [], str(error.value)
        assert {name: getattr(error.value, name) for name in where} == where
        assert str(error.value).startswith("mine")


def test_all_counter_examples_are_found_not_only_the_first():
    # 33 ranks, the last message of the broadcast is missing: exactly one chunk is wrong.
    good = simcoll.schedule("broadcast", "tree", nranks=33)
    steps = list(good.steps())[:-1]
    with pytest.raises(ScheduleError, match=r"\((\d+) wrong output chunks? in all\)") as error:
        verify(Schedule("cut", good.layout, lambda: iter(steps)))
    assert f"({len(list(good.steps())[-1])} wrong" in str(error.value)


def test_a_swap_in_one_step_reads_before_it_writes():
    rotate = transfers([0, 1, 2], 1, [1, 2, 0], 1)
    collective = Collective("send_recv", 3, pairs=((0, 0), (1, 1), (2, 2)))
    assert verify(made(collective, [transfers([0, 1, 2], 0, [0, 1, 2], 1)])).transfers == 3
    # Three times round is where it began; the blocks' sizes differ, so it needs a collective with
    # one block.
    layout = Layout(Collective("broadcast", 3), 1)
    steps = [transfers(0, 0, [0, 1, 2], 1), rotate, rotate, rotate]
    assert verify(Schedule("round", layout, lambda: iter(steps))).transfers == 12


def test_shared_chunks_are_noted():
    steps = [
        transfers([0, 1], 0, [0, 1], 1, channel=0),
        transfers([0, 1], 0, [1, 0], 1, op=REDUCE, channel=1),
    ]
    proof = verify(made(AR2, steps, channels=2))
    assert proof.shared_chunks
    assert simcoll.bind(made(AR2, steps, channels=2), 4).waits == {2: (1,), 3: (0,)}


def test_exact_mode_refuses_what_does_not_fit():
    with pytest.raises(ConfigError, match="use fingerprints"):
        verify(simcoll.schedule("all_reduce", "ring", nranks=256), exact=True)


# On two channels nothing makes the release wait for the arrivals: each channel is a lane of its
# own, and there is no chunk in between.
TWO_CHANNEL_BARRIER = [
    transfers([1, 2], 0, 0, 0, op=SYNC, channel=0),
    transfers(0, 0, [1, 2], 0, op=SYNC, channel=1),
]


def test_a_barrier_whose_release_does_not_wait_is_refused():
    with pytest.raises(ScheduleError, match="may leave before"):
        verify(made(Collective("barrier", 3), TWO_CHANNEL_BARRIER, channels=2))


def test_a_barrier_of_empty_copies_is_refused():
    layout = Layout(Collective("barrier", 2), 1, np.zeros(1, np.int64))
    with pytest.raises(ScheduleError):
        verify(Schedule("mine", layout, lambda: iter([transfers([0, 1], 0, [1, 0], 0)])))
