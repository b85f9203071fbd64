"""MSCCL XML written from schedules: read back, it has the same proof and moves the same data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.collective import Collective
from simcoll.core.schedule import Layout, Schedule, transfers
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats import parse_msccl_xml
from simcoll.formats.schedules.msccl_writer import DIALECTS, dump_msccl_xml
from simcoll.testing import collectives, schedules
from tests.support.msccl_trips import SPOKEN, check_trip, trips


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nranks", "in_place"), [(1, True), (2, False), (3, True), (4, True), (8, False)]
)
def test_all_algorithms_there_and_back(nranks, in_place):
    """A part of what ``tests/laws/msccl_trips.py`` does for every number of ranks up to 16."""
    assert len(trips(nranks, in_place=in_place).made) > (30 if nranks > 2 else 20)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [2, 4])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_channels_and_pieces(algorithm, channels):
    check_trip(simcoll.schedule("all_reduce", algorithm, nranks=5, channels=channels, pieces=3))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(schedules(collectives(kinds=sorted(SPOKEN), nranks=st.integers(1, 5))))
def test_random_schedules_there_and_back(schedule):
    """Any correct schedule that the format has words for comes back with the same proof and
    data.
    """
    try:
        check_trip(schedule)
    except ConfigError as error:
        assert "MSCCL XML cannot hold" in str(error)  # noqa: PT017 - most do not raise


def test_dialects():
    schedule = simcoll.schedule("reduce_scatter", "ring", nranks=3)
    heads = {name: dump_msccl_xml(schedule, dialect=name).split(b"\n")[0] for name in DIALECTS}
    assert b'coll="reduce_scatter" inplace="0" minBytes=' in heads["msccl"]
    assert b'coll="reducescatter" inplace="0" outofplace="1" minBytes=' in heads["azure"]
    text = dump_msccl_xml(
        schedule, protocol="LL128", min_bytes=1024, max_bytes=0, name="mine & yours", dialect="rccl"
    )
    program = parse_msccl_xml(text)
    assert (program.name, program.protocol, program.min_bytes, program.max_bytes) == (
        "mine & yours",
        "LL128",
        1024,
        0,
    )


def test_leaves_of_a_reduce_keep_sums_in_scratch():
    """NCCL's reduce has no output but at the root."""
    program = parse_msccl_xml(dump_msccl_xml(simcoll.schedule("reduce", "tree", nranks=4)))
    inputs, outputs, scratch = program.buffers
    written = [
        {step.dst for lane in program.lanes[rank] for step in lane.instructions if step.dst >= 0}
        for rank in range(4)
    ]
    assert scratch == outputs == 1
    assert written[0] == {inputs}
    assert set.union(*written[1:]) == {inputs + outputs}


def test_long_ranges_are_cut():
    """A step moves at most 71 chunks."""
    layout = Layout(Collective("broadcast", 2), 150)
    steps = [transfers([0, 0], [0, 0], [0, 1], [150, 150], count=150)]
    text = dump_msccl_xml(Schedule("wide", layout, lambda: steps)).decode()
    assert text.count('cnt="71"') == 6
    assert text.count('cnt="8"') == 3


@pytest.mark.parametrize(
    ("schedule", "arguments", "says"),
    [
        (
            simcoll.schedule("broadcast", "tree", nranks=3, root=1),
            {},
            "a file names no root, so it would run with root 0",
        ),
        (
            simcoll.schedule("all_gather", "ring", nranks=2, channels=33),
            {},
            "33 channels; at most 32",
        ),
        (
            simcoll.schedule("all_reduce", "ring", nranks=3),
            {"dialect": "nccl"},
            "unknown dialect 'nccl'",
        ),
        (simcoll.schedule("all_reduce", "ring", nranks=3), {"protocol": "ll"}, "did you mean 'LL'"),
        (
            simcoll.schedule("all_reduce", "ring", nranks=3),
            {"min_bytes": 9, "max_bytes": 3},
            "maxBytes=3 is below",
        ),
        (
            simcoll.schedule("all_to_all", "direct", nranks=40),
            {"dialect": "rccl"},
            "GPU 0 needs 79 thread blocks; the runtime takes 64",
        ),
        (
            simcoll.schedule("all_reduce", "ring", nranks=34),
            {"dialect": "rccl"},
            "steps in one thread block; the runtime takes 64",
        ),
    ],
)
def test_refusals(schedule, arguments, says):
    with pytest.raises(ConfigError, match=says):
        dump_msccl_xml(schedule, **arguments)


def test_wrong_schedules_are_not_written(tmp_path):
    layout = Layout(Collective("broadcast", 2))
    with pytest.raises(ScheduleError):
        dump_msccl_xml(
            Schedule("half", layout, lambda: [transfers(0, 0, 0, 1)]), tmp_path / "half.xml"
        )
    assert list(tmp_path.iterdir()) == []
