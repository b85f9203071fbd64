"""Paths and wire formats of transfers, and what keeps, shows or refuses them."""

import copy
import pickle

import numpy as np
import pytest

import simcoll
from simcoll.algorithms import (
    channels,
    in_fractions,
    in_shares,
    in_transit,
    pieces,
    pipelined,
    together,
)
from simcoll.core.collective import Collective
from simcoll.core.digests import digest
from simcoll.core.picture import schedule_svg
from simcoll.core.schedule import Layout, Repeat, Schedule, Step, transfer_text, transfers
from simcoll.core.step import MULTICAST, SYNC, joined
from simcoll.core.transit import PLAIN, Transit, Transits
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats.schedules.schedule_json import dump_schedule, parse_schedule

BROADCAST = Layout(Collective("broadcast", 3))


def _star(**how):
    """A broadcast to two ranks, whose messages have transits."""

    def steps():
        yield transfers(0, 0, 0, 1), transfers(0, 0, [1, 2], 1, **how)

    return Schedule("star", BROADCAST, steps)


def _transits(schedule):
    return [
        texts
        for step in schedule.steps()
        for texts in ([""] * len(step) if step.transits is None else step.transits.texts())
    ]


def test_steps_without_transits_are_as_before():
    ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    assert ring.transits == ring.wire_formats == ()
    assert "transit" not in ring.to_dict()
    plain = _star()
    assert plain.content_hash() == _star(via="", wire="").content_hash()
    assert all(step.transits is None for step in _star(via="", wire="").steps())
    content = dump_schedule(plain)
    assert b"via" not in content
    assert b"wire" not in content


def test_transits_are_part_of_hash_and_digest():
    variants = [
        {},
        {"via": "net"},
        {"via": "nvlink"},
        {"wire": "bfloat16"},
        {"wire": "int8/256"},
        {"wire": "int8/128"},
        {"via": "net", "wire": "bfloat16"},
        {"via": ["net", ""]},
        {"via": ["", "net"]},
    ]
    schedules = [_star(**how) for how in variants]
    assert len({schedule.content_hash() for schedule in schedules}) == len(variants)
    assert len({digest(next(schedule.steps())) for schedule in schedules}) == len(variants)
    # Equal transits are equal whatever the order of their tables.
    one = Transits(np.array([0, 1]), (Transit("net"), PLAIN))
    other = Transits(np.array([2, 0]), (PLAIN, Transit("x"), Transit("net")))
    assert one.key == other.key


def test_a_source_that_changes_a_path_is_refused():
    vias = iter(["net", "nvlink"])

    def steps():
        yield transfers(0, 0, [0, 1, 2], 1, via=["", *[next(vias)] * 2])

    schedule = Schedule("moody", BROADCAST, steps)
    with pytest.raises(ScheduleError, match="yields other steps"):
        simcoll.verify(schedule)


@pytest.mark.parametrize("how", [{"via": ["net", "gpu2"]}, {"wire": "bf16"}, {"via": "net"}])
def test_files_and_pickles_keep_transits(how):
    schedule = _star(**how)
    again = parse_schedule(dump_schedule(schedule))
    assert again.content_hash() == schedule.content_hash()
    assert _transits(again) == _transits(schedule)
    step = next(schedule.steps())
    for twin in (pickle.loads(pickle.dumps(step)), copy.deepcopy(step), joined([step])):
        assert twin.transits.key == step.transits.key
    assert pickle.loads(pickle.dumps(again)).content_hash() == schedule.content_hash()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"via":["","net","gpu2"]', b'"via":["","net"]', "one length"),
        (b'"via":["","net","gpu2"]', b'"via":7', "via"),
        (b'"via":["","net","gpu2"]', b'"wire":"int8"', "need blocks"),
        (b'"via":["","net","gpu2"]', b'"via":"\\u0007"', "expected the name"),
    ],
)
def test_files_with_other_transits_are_refused(old, new, reason):
    content = dump_schedule(_star(via=["net", "gpu2"]))
    assert old in content
    with pytest.raises(ConfigError, match=reason):
        parse_schedule(content.replace(old, new))


def test_repeats_and_parts_keep_transits():
    step = transfers([0, 1], [0, 1], [1, 0], [0, 1], via=["", "net"], wire="bfloat16")
    turns = Repeat((step,), 3, 1, 0, 2)
    assert {tuple(turn.transits.texts()) for turn in turns.unrolled()} == {
        ("as bfloat16", "via net, as bfloat16")
    }
    assert step.rows(np.array([1])).transits.texts() == ["via net, as bfloat16"]
    assert _star(via="net").source().__next__()[0].transits is None
    assert joined([step, transfers(0, 0, 1, 1)]).transits.texts()[2] == ""
    plain = transfers([0, 1], 0, [1, 0], 0, via=["", "net"]).rows(np.array([0]))
    assert plain.transits is None


@pytest.mark.parametrize(
    "combine",
    [
        lambda schedule: pieces(schedule, 3),
        lambda schedule: pipelined(schedule, 3),
        lambda schedule: in_shares([schedule] * 2),
        lambda schedule: channels(schedule, [[0, 1, 2], [0, 2, 1]]),
        lambda schedule: in_fractions([schedule, schedule], ["1/3", "2/3"]),
        lambda schedule: together(schedule, schedule),
    ],
)
def test_combinators_keep_transits(combine):
    schedule = _star(via="net", wire="int8/64")
    texts = _transits(combine(schedule))
    assert set(texts) == {"", "via net, as int8/64"}
    # Two of three transfers, in every copy.
    assert texts.count("") * 2 <= len(texts) - texts.count("") + 2
    assert combine(schedule).transits == (Transit("net", "int8/64"),)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (transfers(0, 0, 0, 1, via="net"), "stays on its rank has no path"),
        (transfers(0, 0, [1, 2], 1, op=MULTICAST, via="net"), "a switch operation has neither"),
        (transfers(0, 0, 1, 1, op=SYNC, wire="bfloat16"), "without data has no wire format"),
        (transfers(0, 1, 0, 1, wire="bfloat16"), "converted onto itself"),
    ],
)
def test_transfers_that_can_have_none(step, reason):
    with pytest.raises(ScheduleError, match=reason):
        simcoll.verify(Schedule("wrong", BROADCAST, lambda: [step]))


def test_in_place_a_chunk_is_not_converted_onto_itself():
    layout = Layout(Collective("broadcast", 2, in_place=True))
    step = transfers(0, 0, [0, 1], 1, wire="bfloat16")  # rank 0: input and output are one memory
    with pytest.raises(ScheduleError, match="converted onto itself"):
        simcoll.verify(Schedule("wrong", layout, lambda: [step]))


def test_columns_that_do_not_fit():
    step = transfers([0, 1], 0, 2, 1)
    with pytest.raises(ConfigError, match="transfers\\(\\) takes via= and wire="):
        Step(*step.columns, transits="net")
    longer = Step(*step.columns, transits=Transits(np.zeros(3, int), (Transit("net"),)))
    with pytest.raises(ScheduleError, match="2 transfers with 3 transits"):
        simcoll.verify(Schedule("wrong", BROADCAST, lambda: [longer]))
    with pytest.raises(ConfigError, match="expected the name of a vertex"):
        transfers(0, 0, 1, 0, via=3)
    with pytest.raises(ConfigError, match="broadcast together"):
        transfers([0, 1, 2], 0, 1, 0, via=["a", "b"])
    with pytest.raises(ConfigError, match="one of 1 of its table"):
        Transits(np.array([1]), (PLAIN,))


def test_they_show_themselves():
    schedule = _star(via=["net", "nvlink"], wire="bfloat16")
    step = next(schedule.steps())
    assert "0[0] copy 1[1], via net, as bfloat16" in repr(step)
    assert transfer_text(schedule.layout, step, 2).endswith("via nvlink, as bfloat16)")
    assert schedule.to_dict()["transit"] == ["", "via net, as bfloat16", "via nvlink, as bfloat16"]
    picture = schedule_svg(schedule)
    assert picture.count("stroke-dasharray") == 2
    assert "dashed: via net, as bfloat16; via nvlink, as bfloat16" in picture


def test_a_counter_example_is_found_whatever_the_transits():
    def steps():
        yield transfers(0, 0, 0, 1), transfers(0, 0, 1, 1, via="net", wire="int8/4")

    with pytest.raises(ScheduleError, match="rank 2"):
        simcoll.verify(Schedule("forgetful", BROADCAST, steps))


def test_nobody_can_change_them_afterwards():
    step = transfers([0, 1], 0, [1, 2], 1, via=["net", "nvlink"])
    with pytest.raises(ValueError, match="WRITEABLE"):
        step.transits.number.flags.writeable = True
    with pytest.raises(AttributeError):
        step.transits.table = ()
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Sly", (Transits,), {})


def test_in_transit_leaves_local_copies_and_what_is_chosen():
    def steps():
        yield transfers(0, 0, 0, 1, wire="float16"), transfers(0, 0, 1, 1, via="gpu3")
        yield transfers(0, 1, 2, 1)

    schedule = in_transit(Schedule("some", BROADCAST, steps), via="net", wire="bf16")
    texts = ["as float16", "via gpu3, as bfloat16", "via net, as bfloat16"]
    assert _transits(schedule) == texts
    assert schedule.title == "some(via=net, wire=bfloat16)"
    barrier = in_transit(
        simcoll.schedule("barrier", "dissemination", nranks=4), wire="bf16", via="x"
    )
    assert set(_transits(barrier)) == {"via x"}  # without data there is nothing to convert
    ring = in_transit(simcoll.schedule("all_reduce", "ring", nranks=5), via="net")
    assert any(isinstance(block, Repeat) for block in ring.blocks())
    simcoll.verify(ring)
    with pytest.raises(ConfigError, match="switch operations"):
        simcoll.verify(in_transit(simcoll.schedule("all_reduce", "switch", nranks=4), via="net"))
