"""Counter-examples begin with the rank that differs where all others are symmetric."""

from __future__ import annotations

import numpy as np
import pytest

import simcoll
from simcoll import Schedule, ScheduleError, transfers
from simcoll.algorithms import ALGORITHMS
from simcoll.algorithms.compose import relabelled
from simcoll.collectives import doubling, scan
from simcoll.proving.odd_rank import odd_rank
from simcoll.testing.examples import needed_params

COLUMN = {name: place for place, name in enumerate(("src", "src_chunk", "dst", "dst_chunk"))}
OP = 5


def changed(kind, name, nranks, number, row, **changes):
    """A schedule with one transfer changed, or left out."""
    original = simcoll.schedule(kind, name, nranks=nranks)
    steps = list(original.steps())
    columns = [np.array(column) for column in steps[number].columns]
    if changes:
        for column, value in changes.items():
            columns[COLUMN.get(column, OP)][row] = value
    else:
        columns = [np.delete(column, row) for column in columns]
    steps[number] = transfers(*columns[:4], count=columns[4], op=columns[5], channel=columns[6])
    return Schedule("changed", original.layout, lambda: iter(steps), original.nchannels)


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (("all_gather", "ring", 5, 2, 3), {"dst": 0}, "rank 3 .* which would be rank 4"),
        (("all_reduce", "ring", 5, 2, 3), {"op": 0}, "rank 3 .* is a copy, theirs are reduce"),
        (
            ("all_reduce", "ring", 6, 7, 2),
            {"src_chunk": 7, "dst_chunk": 7},
            "rank 2 .* another place",
        ),
        (("all_gather", "ring", 5, 2, 3), {}, "rank 3 .* it sends nothing, .* r \\+ 1"),
        (("all_reduce", "recursive_doubling", 8, 2, 3), {}, "rank 3 .* sends nothing, .* r xor 2"),
        (
            ("all_reduce", "recursive_doubling", 8, 3, 6),
            {"dst": 3},
            "rank 6 .* which would be rank 2",
        ),
    ],
)
def test_the_odd_rank_comes_first(arguments, changes, message):
    with pytest.raises(ScheduleError, match=message) as error:
        simcoll.verify(changed(*arguments, **changes))
    assert "differs from all others" in str(error.value).splitlines()[1]


@pytest.mark.slow
@pytest.mark.parametrize("nranks", [4, 5, 8])
def test_no_rank_of_a_right_schedule_is_odd(nranks):
    """Only of steps where all but one do the same; trees and roots have none."""
    accused = []
    for algorithm in ALGORITHMS:
        try:
            schedule = simcoll.schedule(
                algorithm.collective,
                algorithm.name,
                nranks=nranks,
                **needed_params(algorithm.collective, algorithm.name, nranks),
            )
        except simcoll.ConfigError:
            continue
        line = odd_rank(schedule)
        if line:
            accused.append((algorithm.collective, algorithm.name, line))
    assert accused == []


def test_a_schedule_without_symmetry_has_no_odd_rank():
    """Its message begins with what went wrong."""
    renumbered = relabelled(doubling(scan(4)), [3, 2, 1, 0])
    with pytest.raises(ScheduleError) as error:
        simcoll.verify(renumbered)
    assert "differs from all others" not in str(error.value)


def test_a_step_of_few_transfers_has_no_majority():
    assert odd_rank(changed("broadcast", "tree", 8, 1, 0)) == ""
