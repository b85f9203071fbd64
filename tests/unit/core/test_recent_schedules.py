import gc
import weakref

import pytest

import simcoll
from simcoll.core.recent_schedules import MOST_SCHEDULES, MOST_TRANSFERS
from simcoll.topology import crossbar


def test_a_schedule_that_was_bound_is_made_only_once():
    arguments = {"nranks": 6, "channels": 2, "pieces": 7}  # which no other test binds
    first = simcoll.schedule("all_reduce", "ring", **arguments)
    assert simcoll.schedule("all_reduce", "ring", **arguments) is not first
    simcoll.bind(first, 12)
    assert simcoll.schedule("all_reduce", "ring", **arguments) is first


@pytest.mark.parametrize(
    ("kind", "algorithm", "parameters"),
    [
        ("all_reduce", "ring", {"nranks": 7}),
        ("all_reduce", "ring", {"nranks": 6, "channels": 3}),
        ("all_reduce", "ring", {"nranks": 6, "in_place": True}),
        ("all_gather", "ring", {"nranks": 6}),
        ("all_reduce", "recursive_doubling", {"nranks": 6}),
    ],
)
def test_other_arguments_make_another_one(kind, algorithm, parameters):
    first = simcoll.schedule("all_reduce", "ring", nranks=6)
    simcoll.bind(first, 12)
    other = simcoll.schedule(kind, algorithm, **parameters)
    simcoll.bind(other, 84)
    assert other is not first
    assert simcoll.schedule(kind, algorithm, **parameters) is other


def test_roots_and_dimensions_and_topologies_count():
    machines = [crossbar(4, "10 GB/s", "1 us"), crossbar(4, "10 GB/s", "1 us")]
    requests = [
        ("broadcast", "tree", {"nranks": 4, "root": 0}),
        ("broadcast", "tree", {"nranks": 4, "root": 1}),
        ("all_reduce", "torus", {"nranks": 4, "dims": [2, 2]}),
        *(("all_gather", "packed", {"topology": machine}) for machine in machines),
    ]
    schedules = [simcoll.schedule(kind, name, **options) for kind, name, options in requests]
    for schedule in schedules:
        simcoll.bind(schedule, 8)
    again = [simcoll.schedule(kind, name, **options) for kind, name, options in requests]
    assert len(set(map(id, schedules))) == len(schedules)
    assert all(a is b for a, b in zip(schedules, again, strict=True))


@pytest.mark.slow
def test_only_the_latest_are_kept():
    schedules = [
        simcoll.schedule("all_reduce", "ring", nranks=2, channels=channels)
        for channels in range(1, MOST_SCHEDULES + 2)
    ]
    references = [weakref.ref(schedule) for schedule in schedules]
    for schedule in schedules:
        simcoll.bind(schedule, 64)
    del schedules, schedule
    gc.collect()
    assert [reference() is not None for reference in references] == [
        False,
        *[True] * MOST_SCHEDULES,
    ]


@pytest.mark.parametrize("unproved", [True, False])
def test_a_large_one_is_built_anew(unproved):
    schedule = simcoll.schedule("all_to_all", "bruck", nranks=260)
    plan = simcoll.bind(schedule, 1, unproved=unproved)
    assert plan.proof is None or plan.proof.transfers > MOST_TRANSFERS
    assert simcoll.schedule("all_to_all", "bruck", nranks=260) is not schedule


def test_an_unproved_one_stays_so_until_its_proof():
    schedule = simcoll.schedule("all_to_all", "bruck", nranks=9)
    assert simcoll.bind(schedule, 1, unproved=True).proof is None
    again = simcoll.schedule("all_to_all", "bruck", nranks=9)
    assert again is schedule
    assert simcoll.bind(again, 1, unproved=True).proof is None
    assert simcoll.bind(again, 1).proof is not None
    assert simcoll.bind(again, 1, unproved=True).proof is None


def test_a_long_ring_without_a_proof_is_kept_as_its_repeats_are_short():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=300)
    simcoll.bind(schedule, 300, unproved=True)
    assert simcoll.schedule("all_reduce", "ring", nranks=300) is schedule
