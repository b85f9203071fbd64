"""MSCCL++ plans written from schedules: read back, they have the same proof, and as schedules they
move the same data.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.errors import ConfigError
from simcoll.formats import dump_mscclpp_plan, parse_mscclpp_plan, schedule_of
from simcoll.proving import verify_device_program
from simcoll.testing import collectives, schedules
from tests.support.msccl_trips import made, outputs

SPOKEN = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]


def check_trip(schedule, protocol, *, data=False):
    program = parse_mscclpp_plan(dump_mscclpp_plan(schedule, protocol=protocol))
    proof = verify_device_program(program)
    assert (proof.data, proof.order, proof.trusted) == (True, simcoll.verify(schedule).order, False)
    if data:
        again, elements = schedule_of(program), 2 * schedule.layout.chunks
        assert [
            None if each is None else each.tobytes() for each in outputs(schedule, elements)
        ] == [None if each is None else each.tobytes() for each in outputs(again, elements)]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize(("nranks", "in_place"), [(3, False), (4, True)])
def test_algorithms_there_and_back(nranks, in_place, protocol):
    """What is refused is named: other collectives, and operations of switches.

    Every algorithm with both protocols and both numbers of ranks, every second one the other way
    round.
    """
    gone = 0
    for found in ALGORITHMS[(protocol == "LL") ^ in_place :: 2]:
        schedule = made(found, nranks, in_place=in_place)
        if schedule is None:
            continue
        switched = any((step.op > 1).any() for step in schedule.steps())
        try:
            check_trip(schedule, protocol, data=not switched)
            gone += 1
        except ConfigError as error:
            other = f"the executor has no {found.collective}"
            assert found.collective not in SPOKEN or switched
            assert other in str(error) or "switch" in str(error)  # noqa: PT017
    assert gone > 15


@pytest.mark.slow
def test_a_few_there_and_back():
    for kind, name in [
        ("all_reduce", "ring"),
        ("all_gather", "bruck"),
        ("all_to_all", "pairwise"),
        ("reduce_scatter", "direct"),
    ]:
        for protocol in ("Simple", "LL"):
            check_trip(simcoll.schedule(kind, name, nranks=3), protocol, data=True)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(schedules(collectives(SPOKEN, nranks=st.integers(1, 4))), st.sampled_from(["Simple", "LL"]))
def test_random_schedules_there_and_back(schedule, protocol):
    try:
        check_trip(schedule, protocol)
    except ConfigError as error:
        assert "an MSCCL++ plan cannot hold" in str(error)  # noqa: PT017 - most do not raise
        assert "would be wrong" not in str(error)  # noqa: PT017


def test_channels_set_aside_in_places_of_their_own():
    check_trip(
        simcoll.schedule("all_reduce", "recursive_doubling", nranks=2, channels=2),
        "Simple",
        data=True,
    )


def test_switches_become_one_operation():
    plan = json.loads(
        dump_mscclpp_plan(simcoll.schedule("all_reduce", "nvls", nranks=4, in_place=True))
    )
    names = [[op["name"] for op in gpu["threadblocks"][0]["ops"]] for gpu in plan["gpus"]]
    assert names == [["rlxsignal", "rlxwait", "nop", "glres", "nop", "signal", "wait"]] * 4


@pytest.mark.slow
def test_long_programs_go_on_in_another_block():
    schedule = simcoll.schedule("all_reduce", "ring", nranks=12)
    plan = json.loads(dump_mscclpp_plan(schedule))
    blocks = plan["gpus"][0]["threadblocks"]
    assert len(blocks) == 2
    assert max(len(block["ops"]) for block in blocks) <= 64
    assert [op["name"] for op in blocks[1]["ops"][:2]] == ["sem_acquire", "nop"]
    assert blocks[0]["ops"][-1]["name"] == "sem_release"


@pytest.mark.parametrize(
    ("schedule", "arguments", "says"),
    [
        (simcoll.schedule("broadcast", "tree", nranks=3), {}, "the executor has no broadcast"),
        (
            simcoll.schedule("reduce_scatter", "nvls", nranks=4),
            {},
            r"cannot load that operation \(glre\)",
        ),
        (
            simcoll.schedule("all_gather", "nvls", nranks=4),
            {"protocol": "LL"},
            "operations of switches need protocol 'Simple'",
        ),
        (
            simcoll.schedule("all_gather", "direct", nranks=20),
            {},
            "meets 19 others in one thread block; it takes 16 channels",
        ),
        (
            simcoll.schedule("all_gather", "ring", nranks=3),
            {"protocol": "LL128"},
            "unknown protocol 'LL128'",
        ),
    ],
)
def test_refusals(schedule, arguments, says):
    with pytest.raises(ConfigError, match=says):
        dump_mscclpp_plan(schedule, **arguments)
