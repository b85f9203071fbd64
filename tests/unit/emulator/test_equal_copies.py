"""One of the equal copies of a plan stands for all: the same counts, classes and times."""

from copy import copy
from itertools import groupby

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import compose
from simcoll.algorithms.compose import EqualShares, in_channels
from simcoll.core import digests
from simcoll.core.protocol import Protocol, protocol
from simcoll.core.schedule import Layout, Schedule, Step, transfers
from simcoll.emulator.data.stepwise import data_errors
from simcoll.emulator.folding.loaded_run import classes_run
from simcoll.emulator.folding.unpriced import find_classes
from simcoll.emulator.request import Request
from simcoll.emulator.steps import equal_copies
from simcoll.emulator.steps.step_columns import same_moves, turns
from simcoll.errors import ScheduleError
from simcoll.proving import copied_shares
from simcoll.topology import load_topology

CAPPED = Protocol("capped", channel_rate_uBps=9_000_000_007, rank_rate_uBps=30_000_000_001)
RANK_CAPPED = Protocol("rank-capped", rank_rate_uBps=30_000_000_001)
COUNTS = (1, 2, 3, 4, 8, 24, 64, 4096)
ALGORITHMS = [
    ("all_gather", "direct"),
    ("all_gather", "pat"),
    ("all_gather", "ring"),
    ("all_gather", "hierarchical"),
    ("all_to_all", "direct"),
    ("all_to_all", "pairwise"),
    ("all_to_all", "hierarchical"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "hierarchical"),
    ("all_reduce", "ring"),
    ("reduce_scatter", "hierarchical"),
    ("broadcast", "linear"),
]


def outcome(plan, topology):
    """The counts of a plan, and the time and the size of its classes."""
    request = Request(plan, topology)
    counts = request.summary
    classes = find_classes(plan, topology, counts, expanded=False, worth_it=False)
    run = classes_run(request, classes, all_caps=False)
    played = run.play(request)
    assert run.nlinks >= topology.nlinks
    return (
        counts.lane_steps.tolist(),
        counts.steps,
        counts.messages,
        counts.rows,
        counts.bytes_by_op,
        played.time_fs,
        played.classes,
        len(classes.quotient.lane_steps),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize(
    ("constants", "counts"),
    [
        # Every algorithm meets all constants, and all counts with and without a limit of ranks.
        (protocol("ideal"), COUNTS[::2]),
        (CAPPED, COUNTS[::2]),
        (RANK_CAPPED, COUNTS[1::2]),
        (protocol("Simple"), COUNTS[1::2]),
    ],
)
def test_one_copy_stands_for_all(collective, algorithm, constants, counts, monkeypatch):
    topology = load_topology("dgx-h100", nodes=2)
    parameters = {"channels": 8} | ({"box": 8} if algorithm == "hierarchical" else {})
    schedule = simcoll.schedule(collective, algorithm, nranks=16, **parameters)
    shortcuts = 0
    for count in counts:
        # Facts are remembered with a schedule: a copy has none.
        every, copied = (simcoll.bind(copy(schedule), count, protocol=constants) for _ in range(2))
        monkeypatch.setattr(equal_copies, "MANY_TRANSFERS", 1 << 40)
        expected = outcome(every, topology)
        monkeypatch.setattr(equal_copies, "MANY_TRANSFERS", 0)
        shortcuts += equal_copies.equal_copies(copied) is not None
        assert outcome(copied, topology) == expected, count
    # Three elements have none, and iterations of a ring with uneven chunks differ.
    assert shortcuts == len(set(counts) - {3}) or algorithm == "ring"


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_steps_made_from_one_copy_are_those_of_the_plan(
    collective, algorithm, in_place, monkeypatch
):
    parameters = {"channels": 8} | ({"box": 8} if algorithm == "hierarchical" else {})
    schedule = simcoll.schedule(collective, algorithm, nranks=16, in_place=in_place, **parameters)
    for count in (1, 2, 4, 8, 16, 24, 40, 72, 4104):
        monkeypatch.setattr(equal_copies, "MANY_TRANSFERS", 1 << 40)
        every = list(turns(simcoll.bind(copy(schedule), count)))
        monkeypatch.setattr(equal_copies, "MANY_TRANSFERS", 0)
        made = list(turns(simcoll.bind(copy(schedule), count)))
        assert [(len(group), times) for group, times in made] == [
            (len(group), times) for group, times in every
        ]
        pairs = zip(
            (step for group, _ in made for step in group),
            (step for group, _ in every for step in group),
            strict=True,
        )
        assert all(same_moves(*pair) for pair in pairs), count


def test_only_large_proved_copies_are_told_apart(monkeypatch):
    monkeypatch.setattr(equal_copies, "MANY_TRANSFERS", 0)
    direct = simcoll.schedule("all_gather", "direct", nranks=4, channels=2)
    assert equal_copies.equal_copies(simcoll.bind(direct, 8)) is not None
    assert equal_copies.equal_copies(simcoll.bind(direct, 8, unproved=True)) is None
    single = simcoll.schedule("all_gather", "direct", nranks=4)
    assert equal_copies.equal_copies(simcoll.bind(single, 8)) is None
    monkeypatch.setattr(equal_copies, "MANY_TRANSFERS", 100)
    assert equal_copies.equal_copies(simcoll.bind(direct, 8)) is None


def test_a_copy_that_changes_between_passes_is_refused():
    layout = Layout(simcoll.Collective("all_gather", 3))
    changes = []

    def steps():
        ranks = np.arange(3)
        yield transfers(ranks, layout.input(), ranks[:, None], layout.output(ranks))
        if changes:
            yield transfers(0, layout.output(), 1, layout.output())

    both = in_channels(Schedule("late", layout, steps), channels=2)
    assert isinstance(both.source, EqualShares)
    simcoll.verify(both)
    changes.append("another transfer")
    with pytest.raises(ScheduleError, match="other steps"):
        list(both.source.schedule.blocks())


def rows_of(steps):
    """The numbers of all transfers of some steps, in order."""
    columns = zip(*(step.columns for step in steps), strict=True)
    return [np.concatenate(column).tolist() for column in columns]


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("in_place", [False, True])
def test_copies_in_portions_are_the_same_ones(collective, algorithm, in_place, monkeypatch):
    monkeypatch.setattr(digests, "FEW", 0)
    monkeypatch.setattr(digests, "JOINED", 0)
    monkeypatch.setattr(compose, "WRITTEN_ROWS", 20)
    monkeypatch.setattr(copied_shares, "MANY_CELLS", 0)
    monkeypatch.setattr(copied_shares, "COMPARED_ROWS", 7)
    box = {"box": 4} if algorithm == "hierarchical" else {}
    root = {"root": 1} if collective == "broadcast" else {}
    params = {"nranks": 8, "in_place": in_place, "channels": 4} | box | root
    schedule = simcoll.schedule(collective, algorithm, **params)
    whole = list(schedule.blocks())
    again = simcoll.schedule(collective, algorithm, **params)
    again.known.kept = None
    long = 0
    for number, portions in groupby(again.portions(), lambda numbered: numbered[0]):
        steps = [portion for _, portion in portions]
        long += len(steps) > 1
        if isinstance(whole[number], Step):
            assert rows_of(steps) == rows_of([whole[number]])
    assert long or algorithm in {"ring", "linear"}  # a repeat, and steps of few transfers
    share = copied_shares.one_share(again)
    if share is not None:  # not where another channel has other ranks, or a repeat
        assert share.shares * sum(map(len, share.schedule.steps())) == sum(map(len, whole))
    again.known.kept = again.known.lowered = None
    assert data_errors(simcoll.bind(again, 4 * again.layout.chunks + 3)) == 0
