"""GOAL, text and binary: read, written, matched, and timed by the model of the program that defined
it.
"""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.cli import main
from simcoll.errors import ConfigError, ScheduleError
from simcoll.formats.goal.binary import goal_binary, parse_goal_binary
from simcoll.formats.goal.goal_writer import dump_goal, dump_goal_binary, goal_of
from simcoll.formats.goal.language import CALC, RECV, SEND, Goal, goal_text, parse_goal
from simcoll.formats.schedules.schedule_files import load_algorithm, schedule_of
from tests.support.loggops import last_end

LOGGOPSIM = {"L": 2500, "o": 1500, "g": 1000, "G": 6}
"""The defaults of LogGOPSim, in nanoseconds."""

SMALL = """
/* two ranks,
   one message */
num_ranks 2
rank 0 {
c: calc 1000   // nanoseconds
s: send 1001b to 1 tag 7
s requires c
d: calc 500 cpu 1
d irequires s
}
rank 1
{
recv 1001b from 0 tag 7
}
"""


def binomial_tree(nranks):
    """A broadcast of one byte: rank r sends to r + 2^k for every 2^k above r."""
    lines = [f"num_ranks {nranks}"]
    for rank in range(nranks):
        children = [
            rank + (1 << k)
            for k in range(nranks.bit_length())
            if rank < 1 << k and rank + (1 << k) < nranks
        ]
        lines.append(f"rank {rank} {{")
        if rank:
            lines.append(f"l: recv 1b from {rank - (1 << rank.bit_length() - 1)} tag 0")
        for child in children:
            lines += [
                f"s{child}: send 1b to {child} tag 0",
                *([f"s{child} requires l"] if rank else []),
            ]
        lines.append("}")
    return "\n".join(lines)


def test_the_words():
    goal = parse_goal(SMALL)
    assert goal.kind.tolist() == [CALC, SEND, CALC, RECV]
    assert goal.size.tolist() == [1000, 1001, 500, 1001]
    assert (goal.start.tolist(), goal.cpu.tolist(), goal.tag.tolist()) == (
        [0, 3, 4],
        [0, 0, 1, 0],
        [0, 7, 0, 7],
    )
    assert list(zip(goal.later, goal.earlier, goal.at_start, strict=True)) == [
        (1, 0, False),
        (2, 1, True),
    ]
    assert goal.check() == 1


def test_time_of_a_binomial_tree():
    """Five hops of o + L + o: later sends of a rank lead to shallower subtrees."""
    tree = parse_goal(binomial_tree(32))
    assert tree.check() == 31
    assert last_end(tree, **LOGGOPSIM) == 5 * (1500 + 2500 + 1500)


@pytest.mark.slow
@pytest.mark.parametrize(("nranks", "nanoseconds"), [(16, 11_961_300), (64, 13_078_548)])
def test_a_ring_takes_as_long_as_in_loggopsim(nranks, nanoseconds):
    """LogGOPSim 1.1 itself, an all-reduce of 1 MiB by its own ring, default parameters."""
    ring = parse_goal(
        dump_goal(simcoll.schedule("all_reduce", "ring", nranks=nranks), size=1 << 20)
    )
    assert last_end(ring, **LOGGOPSIM) == nanoseconds


def test_bytes_of_txt2bin():
    """By hand from the layout that LogGOPSim's Parser.hpp serialises."""
    small = goal_binary(parse_goal(SMALL))
    node = struct.Struct("<IbIQIBBIIII").pack
    first = (
        struct.pack("<3I", 3, 1, 0)
        + node(0, 3, 0, 1000, 0, 0, 0, 1, 0, 0, 1)
        + node(1, 1, 1, 1001, 7, 0, 0, 0, 1, 1, 1)
    )
    first += node(1, 3, 0, 500, 0, 1, 0, 0, 2, 0, 2) + struct.pack("<2I", 1, 2)
    second = struct.pack("<3I", 1, 1, 0) + node(0, 2, 0, 1001, 7, 0, 0, 0, 0, 0, 0)
    begin, middle = 6 + 32, 6 + 32 + len(first)
    table = struct.pack("<4Q", begin, middle, middle, middle + len(second))
    assert small == struct.pack("<QIBB", 4223, 2, 1, 0) + table + first + second


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in Goal.__slots__)


@st.composite
def goals(draw):
    """Any operations, matched or not, with orders that go up."""
    nranks = draw(st.integers(1, 4))
    rows, orders, start = [], [], [0]
    for _ in range(nranks):
        for _ in range(draw(st.integers(0, 5))):
            kind, peer = draw(st.sampled_from([SEND, RECV, CALC])), draw(st.integers(0, nranks - 1))
            size, tag = draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**32 - 2))
            calc = kind == CALC
            nic = 0 if calc else draw(st.integers(0, 255))
            rows.append(
                (
                    kind,
                    0 if calc else peer,
                    size,
                    0 if calc else tag,
                    draw(st.integers(0, 255)),
                    nic,
                )
            )
        own = range(start[-1], len(rows))
        for later in own[1:]:
            orders += [(later, draw(st.integers(own[0], later - 1)), draw(st.booleans()))] * draw(
                st.integers(0, 1)
            )
        start.append(len(rows))
    kind, *rest = np.array(rows, np.int64).reshape(-1, 6).T
    later, earlier, begun = np.array(orders, np.int64).reshape(-1, 3).T
    return Goal(np.array(start), kind.astype(np.int8), *rest, later, earlier, begun == 1)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(goals())
def test_there_and_back(goal):
    assert same(parse_goal(goal_text(goal)), goal)
    content = goal_binary(goal)
    again = parse_goal_binary(content)
    assert goal_binary(again) == content
    assert goal_binary(parse_goal(goal_text(again))) == content


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_broken_files_give_one_error(data):
    binary = data.draw(st.booleans())
    content = bytearray(goal_binary(parse_goal(SMALL)) if binary else SMALL.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    try:
        (parse_goal_binary if binary else parse_goal)(bytes(content)).check()
    except (ConfigError, ScheduleError):
        return


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("num_ranks 2", "", "line 5: expected 'num_ranks' and a number"),
        ("rank 1", "rank 2", r"line 12: expected 'rank 1 {'"),
        ("1001b to", "1001 to", r"line 7: 's: send 1001 to 1 tag 7': expected 'send 8b to 1'"),
        ("s requires c", "s requires x", "line 8: label 'x' is not defined above"),
        ("d: calc", "s: calc", "line 9: label 's' is defined twice"),
        ("to 1", "to 2", "rank 2 does not exist; ranks are 0 to 1"),
        ("cpu 1", "cpu 256", "cpu 256 is out of range; expected at most 255"),
        ("tag 7\ns", "tag -1\ns", "a send has one tag"),
        ("*/", "", "line 2: a comment that begins with /\\* does not end"),
        ("}\nrank", "rank", "got|expected"),
        ("tag 7\n}", "tag 7\n", "the file ends inside a rank"),
    ],
)
def test_errors_of_texts(old, new, says):
    with pytest.raises(ConfigError, match=says):
        parse_goal(SMALL.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "error", "says"),
    [
        (
            "tag 7\n}",
            "tag 8\n}",
            ScheduleError,
            "from rank 0 to rank 1 with tag 7: 1 more sends than receives",
        ),
        (
            "recv 1001b",
            "recv 1000b",
            ScheduleError,
            "sends 1001 bytes to rank 1 operation 0, which takes 1000",
        ),
        ("from 0", "from -1", ConfigError, "rank 1 operation 0 takes any rank or tag"),
        (
            "d irequires s",
            "d irequires s\nc requires d",
            ScheduleError,
            "operations wait in a cycle",
        ),
    ],
)
def test_programs_that_cannot_run(old, new, error, says):
    with pytest.raises(error, match=says):
        parse_goal(SMALL.replace(old, new, 1)).check()


def test_schedules_of_every_kind(tmp_path):
    for kind, name in [
        ("all_to_all", "bruck"),
        ("gather", "tree"),
        ("barrier", "dissemination"),
        ("reduce", "tree"),
    ]:
        schedule = simcoll.schedule(kind, name, nranks=5)
        plan = simcoll.bind(schedule, 3)
        goal = goal_of(plan)
        messages = sum(int((step.src_rank != step.dst_rank).sum()) for step in plan.steps())
        assert goal.check() == messages
        bytes_sent = sum(
            int(step.size_bytes[step.src_rank != step.dst_rank].sum()) for step in plan.steps()
        )
        assert int(goal.size[goal.kind == SEND].sum()) == (
            messages if kind == "barrier" else bytes_sent
        )
    with pytest.raises(ConfigError, match="'multicast' of a switch"):
        dump_goal(simcoll.schedule("all_gather", "nvls", nranks=4))
    with pytest.raises(ConfigError, match="size 6 is not 3 block"):
        dump_goal_binary(simcoll.schedule("all_gather", "ring", nranks=3), size=6)


def test_reductions_take_time():
    from simcoll.core.protocol import ideal

    plan = simcoll.bind(
        simcoll.schedule("reduce", "linear", nranks=3),
        1000,
        protocol=ideal(reduce_as_per_byte=10**9),
    )
    goal = goal_of(plan)
    # 4,000 bytes at 1 ns each, after each of two arrivals.
    assert sorted(goal.size[goal.kind == CALC].tolist())[-2:] == [4000, 4000]
    assert goal.check() == 2


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "ring", "ring.goal", "-n", "3", "-s", "12K"]) == 0
    assert main(["convert", "ring.goal", "ring.bin"]) == 0
    assert load_algorithm("ring.goal").check() == load_algorithm("ring.bin").check() == 12
    assert main(["verify", "ring.bin"]) == 0
    assert "unproved, data unknown: 12 messages match" in capsys.readouterr().out
    assert main(["convert", "ring.bin", "ring.xml"]) == 2
    assert "not which data, so it is not a schedule" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        schedule_of(load_algorithm("ring.goal"))
