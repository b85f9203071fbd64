"""Schedules side by side with fractions of the data; several steps yielded as one; addresses and
parameters refused where they are written.
"""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest

import simcoll
from simcoll import Collective, ConfigError, Layout, Schedule, transfers
from simcoll.algorithms.compose import pipelined, together
from simcoll.algorithms.unequal_shares import in_fractions
from simcoll.collectives import chain, scan
from simcoll.topology import crossbar
from simcoll.tuning import parse_choice, split_choices


def made(kind, *names, n=6):
    return [simcoll.schedule(kind, name, nranks=n) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "names", "shares"),
    [
        ("all_reduce", ("ring", "tree"), (0.7, 0.3)),
        ("all_reduce", ("ring", "recursive_doubling", "tree"), ("1/2", "1/3", "1/6")),
        ("all_reduce", ("tree", "tree"), (Fraction(1, 7), Fraction(6, 7))),
        ("all_gather", ("ring", "bruck"), ("3/5", "2/5")),
        ("reduce_scatter", ("ring", "pairwise"), ("3/8", "5/8")),
        ("all_to_all", ("pairwise", "bruck"), ("1/4", "3/4")),
        ("broadcast", ("tree", "linear"), ("9/10", "1/10")),
    ],
)
def test_fractions_are_proved_and_move_their_share(kind, names, shares):
    parts = made(kind, *names)
    both = in_fractions(parts, shares)
    proof = simcoll.verify(both)
    # More where a transfer of several slots is split.
    assert proof.transfers >= sum(simcoll.verify(part).transfers for part in parts)
    assert both.nchannels == sum(part.nchannels for part in parts)
    result = simcoll.emulate(
        simcoll.bind(both, 5 * both.layout.chunks if both.divisible else 1013, "int32"),
        crossbar(6, "10 GB/s"),
    )
    assert result.wrong == 0
    # Each moves its share of what it moves alone: exactly, where chunks are even.
    count = both.layout.chunks * 4
    moved = [
        simcoll.emulate(simcoll.bind(p, count), crossbar(6, "10 GB/s")).bytes_moved for p in parts
    ]
    expected = sum(Fraction(str(s)) * m for s, m in zip(shares, moved, strict=True))
    total = simcoll.emulate(simcoll.bind(both, count), crossbar(6, "10 GB/s")).bytes_moved
    assert abs(total - expected) <= 4 * proof.transfers


def test_fractions_of_own_collectives():
    both = in_fractions([chain(scan(4)), simcoll.schedule(scan(4), "direct")], ["2/3", "1/3"])
    assert simcoll.verify(both).order == "position-independent"  # both add from left to right


@pytest.mark.parametrize(
    ("schedules", "shares", "message"),
    [
        (made("all_reduce", "ring", "tree"), (0.5, 0.6), "sum to 1, not to 11/10"),
        (made("all_reduce", "ring", "tree"), (1.5, -0.5), "above 0"),
        (made("all_reduce", "ring", "tree"), (1,), "2 schedules and 1 shares"),
        (made("all_reduce", "ring", "tree"), ("half", "half"), "such as '7/10'"),
        (made("all_reduce", "ring") + made("reduce", "tree"), (0.5, 0.5), "another collective"),
        (made("all_reduce", "two_shot", "ring"), (0.5, 0.5), "single chunks"),
        (made("all_reduce", "ring", "tree"), ("1/99991", "99990/99991"), "round the shares"),
    ],
)
def test_shares_that_cannot_be(schedules, shares, message):
    with pytest.raises(ConfigError, match=message):
        in_fractions(schedules, shares)


def pair(collective, *, yielded):
    layout = Layout(collective)

    def steps():
        first = transfers(0, layout.input(), 0, layout.output())
        second = transfers(0, layout.input(), [1, 2], layout.output())
        yield from [(first, second)] if yielded else [simcoll.types.joined([first, second])]

    return Schedule("pair", layout, steps)


def test_steps_that_are_yielded_together_are_one_step():
    collective = Collective("broadcast", 3)
    plain, both = (pair(collective, yielded=yielded) for yielded in (False, True))
    assert both.content_hash() == plain.content_hash()
    assert simcoll.verify(both).steps == 1
    assert [len(step) for step in pipelined(both, 2).steps()] == [3, 3]
    assert [len(step) for step in together(both, both).steps()] == [6]
    wrong = Schedule("wrong", Layout(collective), lambda: iter([(1, 2)]))
    with pytest.raises(ConfigError, match="several as a tuple"):
        simcoll.verify(wrong)


@pytest.mark.slow
def test_any_schedule_can_be_pipelined_on_one_channel():
    """Of steps in sequence, only those of different pieces overlap: put in one step."""
    layout = Layout(Collective("broadcast", 8))

    def relay():
        yield transfers(0, layout.input(), 0, layout.output())
        for rank in range(7):
            yield transfers(rank, layout.output(), rank + 1, layout.output())

    one = Schedule("relay", layout, relay)
    many = pipelined(one, 16)
    assert many.nchannels == 1
    times = [
        simcoll.emulate(simcoll.bind(schedule, 1 << 20), crossbar(8, "10 GB/s")).time_us
        for schedule in (one, many)
    ]
    assert times[1] < times[0] / 4


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            lambda layout: layout.output(0, 1),
            r"output\(0, 1\) of all_gather n=3: there is no piece 1",
        ),
        (lambda layout: layout.output(3), "slots are numbered 0 to 2"),
        (lambda layout: layout.input(-1), "there is no slot -1"),
        (lambda layout: layout.scratch_at(0), "scratch= of the layout adds some"),
        (lambda layout: layout.output(np.int64(7)), "there is no slot 7"),
    ],
)
def test_an_address_outside_is_refused_where_it_is_written(address, message):
    with pytest.raises(ConfigError, match=message):
        address(Layout(Collective("all_gather", 3)))


def test_masked_addresses_in_arrays_are_left_to_the_step():
    layout = Layout(Collective("all_gather", 3), scratch=[0])
    assert layout.scratch_at(np.array([-1, 0])).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("own:f:mode=fast:share=0.5", (("mode", "fast"), ("share", 0.5))),
        ("own:f:wide=true:deep=False", (("wide", True), ("deep", False))),
        ("own:f:arms=-3:dims=2x3:rate=1e-3", (("arms", -3), ("dims", (2, 3)), ("rate", 0.001))),
        ("own:f:name=inf", (("name", "inf"),)),
    ],
)
def test_own_functions_take_values_of_any_type(text, params):
    choice = parse_choice(text)
    assert choice.params == params
    assert [type(value) for _, value in choice.params] == [type(value) for _, value in params]
    assert parse_choice(str(choice)) == choice


def test_a_comma_may_separate_the_parameters_of_an_own_function():
    assert split_choices("own:f:mode=fast,share=0.5,ring:channels=2") == [
        "own:f:mode=fast:share=0.5",
        "ring:channels=2",
    ]
    for text, message in (("own:f:mode", "such as arms=3"), ("own:f:a=1:a=2", "given twice")):
        with pytest.raises(ConfigError, match=message):
            parse_choice(text)
    with pytest.raises(ConfigError, match="write for example"):
        parse_choice("ring:channels=two")


def test_values_reach_the_function_and_are_never_remembered(tmp_path, monkeypatch):
    module = tmp_path / "shifty.py"
    module.write_text(
        "from simcoll import COPY, Layout, Schedule, transfers\n"
        "calls = []\n"
        "def star(collective, *, mode='slow', share=0.25):\n"
        "    calls.append((mode, share))\n"
        "    layout = Layout(collective)\n"
        "    ranks = list(range(collective.nranks))\n"
        "    return Schedule('star', layout, lambda: iter([transfers(0, 0, ranks, 1)]))\n"
    )
    monkeypatch.chdir(tmp_path)
    built = simcoll.schedule("broadcast", "shifty:star", nranks=3, mode="fast", share=0.5)
    assert dict(built.params) == {"mode": "fast", "share": 0.5}
    simcoll.bind(built, 4)
    again = simcoll.schedule("broadcast", "shifty:star", nranks=3, mode="fast", share=0.5)
    assert again is not built
    assert sys.modules["shifty"].calls == [("fast", 0.5)] * 2
