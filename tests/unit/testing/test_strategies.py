"""What the strategies make is legal, and reaches what it is for."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.collective import KINDS
from simcoll.errors import ConfigError
from simcoll.proving import verify
from simcoll.testing import (
    assert_implements,
    collectives,
    groups,
    rewrites,
    schedules,
    sizes,
    topologies,
)

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@QUICK
@given(schedules())
def test_every_schedule_made_is_right(schedule):
    verify(schedule)


@pytest.mark.slow
@settings(QUICK, max_examples=25)
@given(schedules(collectives(nranks=st.integers(1, 5))), st.data())
def test_every_schedule_made_runs(schedule, data):
    assert_implements(schedule, counts=[data.draw(sizes(schedule.collective))], dtypes=["int32"])


@pytest.mark.slow
@settings(QUICK, max_examples=25)
@given(st.data())
def test_groups_of_a_topology_run(data):
    topology = data.draw(topologies(least=3))
    ranks = data.draw(groups(3, topology))
    plan = simcoll.bind(simcoll.schedule("all_gather", "ring", nranks=3), [2, 0, 5], ranks=ranks)
    assert simcoll.emulate(plan, topology).wrong == 0


def reached(strategy, wanted):
    return find(
        strategy,
        wanted,
        settings=settings(max_examples=2000, deadline=None, derandomize=True, database=None),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_root_and_place_is_made(kind):
    assert reached(collectives(), lambda c: c.kind == kind).nranks == 1
    assert reached(collectives([kind]), lambda c: c.in_place and c.nranks > 3).nranks == 4
    if KINDS[kind].rooted:
        assert reached(collectives([kind]), lambda c: c.root == 2).nranks == 3


@pytest.mark.slow
def test_awkward_sizes_are_made():
    gathered = simcoll.Collective("all_gather", 3)
    assert (
        reached(sizes(gathered), lambda s: isinstance(s, list) and 0 in s and sum(s) > 0)
        is not None
    )
    matrix = reached(
        sizes(simcoll.Collective("all_to_all", 3)),
        lambda s: (
            isinstance(s, list)
            and any(not any(row) for row in s)
            and not any(row[1] for row in s)
            and sum(map(sum, s))
        ),
    )
    assert [len(row) for row in matrix] == [3, 3, 3]
    assert isinstance(reached(sizes(simcoll.Collective("all_reduce", 3)), lambda s: s == 7), int)


@pytest.mark.slow
def test_every_family_of_topologies_is_made():
    for name in ("crossbar", "boxes", "fat-tree", "torus"):
        assert reached(topologies(least=4), lambda t, name=name: t.name == name).nranks >= 4


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (
            lambda: collectives("all_reduce"),
            "kinds must be a list such as ['all_reduce', 'broadcast'], got 'all_reduce'",
        ),
        (
            lambda: collectives(["allreduce"]),
            "unknown collective 'allreduce'; did you mean 'all_reduce'?",
        ),
        (lambda: collectives([7]), "unknown collective 7; valid: all_gather"),
        (lambda: collectives([]), "kinds is empty"),
        (
            lambda: collectives(nranks=5),
            (
                "nranks must be a strategy of Hypothesis, got 5; did you mean "
                "hypothesis.strategies.just(5)?"
            ),
        ),
        (lambda: collectives(in_place=True), "in_place must be a strategy of Hypothesis, got True"),
        (
            lambda: schedules(simcoll.Collective("barrier", 2)),
            "wanted must be a strategy of Hypothesis, got Collective(kind='barrier'",
        ),
        (lambda: schedules(rewritten=3), "rewritten must be a strategy of Hypothesis, got 3"),
    ],
)
def test_arguments_of_the_wrong_kind(strategy, says):
    with pytest.raises(ConfigError) as error:
        strategy()
    assert says in str(error.value)


@pytest.mark.slow
def test_schedules_of_switches_run():
    reduced = schedules(collectives(["all_reduce"], nranks=st.just(3)))
    assert_implements(reached(reduced, lambda found: found.name == "switch"), counts=[5])


def test_a_group_that_does_not_fit():
    with pytest.raises(ConfigError, match="a group of 5 ranks does not fit in a world of 4"):
        find(groups(5, 4), lambda _: True)


ALL_GATHER = simcoll.schedule("all_gather", "ring", nranks=3)


def test_relabelled_ranks_carry_their_blocks():
    renamed = rewrites.relabel_ranks(ALL_GATHER, [2, 0, 1])
    first = next(renamed.steps())
    # Rank 0 is now rank 2: its own block goes to slot 2 of its output.
    assert first.src_rank.tolist() == [2, 0, 1]
    assert first.dst_chunk.tolist() == [1 + 2, 1 + 0, 1 + 1]
    verify(renamed)
    verify(
        rewrites.relabel_ranks(simcoll.schedule("scatter", "tree", nranks=4, root=1), [3, 2, 0, 1])
    )
    assert (
        rewrites.relabel_ranks(
            simcoll.schedule("scatter", "tree", nranks=4, root=1), [3, 2, 0, 1]
        ).collective.root
        == 2
    )


def test_steps_are_split_and_merged_only_where_that_is_right():
    count = len(list(ALL_GATHER.steps()))
    assert len(list(rewrites.split(ALL_GATHER, 1, [True, False]).steps())) == count + 1
    # The second step passes on what the first brought.
    assert len(list(rewrites.merge(ALL_GATHER, 1).steps())) == count
    shift = simcoll.schedule("all_to_all", "pairwise", nranks=3)
    assert len(list(rewrites.merge(shift, 0).steps())) == len(list(shift.steps())) - 1
    swap = simcoll.schedule("all_reduce", "recursive_doubling", nranks=2)
    exchange = next(
        i for i, step in enumerate(swap.steps()) if (step.src_rank != step.dst_rank).any()
    )
    lengths = [len(step) for step in swap.steps()]
    assert [len(step) for step in rewrites.split(swap, exchange, [True, False]).steps()] == lengths
    barrier = simcoll.schedule("barrier", "dissemination", nranks=4)
    assert len(list(rewrites.merge(barrier, 0).steps())) == 2


def test_a_detour_goes_through_scratch():
    longer = rewrites.detour(ALL_GATHER, 1, 0)
    assert longer.layout.scratch_slots == 1
    steps = list(longer.steps())
    assert len(steps) == len(list(ALL_GATHER.steps())) + 1
    assert steps[1].dst_chunk.tolist() == [longer.layout.scratch_at(0)]
    verify(longer)


@pytest.mark.slow
def test_only_one_operand_of_a_fold_takes_a_detour():
    schedule = simcoll.schedule("all_reduce", "recursive_multiplying", nranks=4)
    for at in range(len(list(schedule.steps()))):
        once = rewrites.detour(schedule, at, 0)
        for later in range(len(list(once.steps()))):
            for row in range(12):
                verify(rewrites.detour(once, later, row))


def test_a_detour_of_what_is_gone_in_place():
    # In place the root's own copy is gone: rows are counted among the others.
    placed = simcoll.schedule("broadcast", "linear", nranks=3, in_place=True)
    for at in range(len(list(placed.steps()))):
        for row in range(4):
            verify(rewrites.detour(placed, at, row))


def test_a_tree_by_hand():
    # 2 is the root, with children 0 and 3; 1 hangs on 3.
    tree = rewrites.tree_schedule(simcoll.Collective("reduce", 4, root=2), [0, 0, 2], [2, 0, 3, 1])
    assert [(int(s.src_rank[0]), int(s.dst_rank[0])) for s in list(tree.steps())[1:]] == [
        (1, 3),
        (3, 2),
        (0, 2),
    ]
    verify(tree)
