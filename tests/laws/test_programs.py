"""Random programs of collectives on random groups, against a sequential model written from what
each collective means.

A failure prints the program as a value: ``replay(n, program)`` runs it again.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import simcoll.distributed as dist
from tests.support.collective_model import KINDS, OPS, expected, issue


@st.composite
def programs(draw):
    n = draw(st.integers(1, 6))
    groups = draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1).map(sorted), max_size=2))
    step = st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, len(groups)),
        st.integers(0, 9),
        st.sampled_from(sorted(OPS)),
        st.integers(0, 5),
        st.booleans(),
        st.integers(0, 3),
    )
    return n, (groups, draw(st.lists(step, max_size=8)))


def replay(n, program):
    """Run a program, compare every result, and return the trace hash."""
    groups, steps = program

    def body(rank, world_size):
        made = [None, *(dist.new_group(members) for members in groups)]
        open_works = []
        for number, (kind, which, count, op, root, later, pause) in enumerate(steps):
            members = list(range(n)) if which == 0 else groups[which - 1]
            if rank not in members:
                continue
            here, at = members.index(rank), root % len(members)
            dist.compute(seconds=1e-6 * ((rank * pause) % 3))
            works, result = issue(kind, number, members, here, count, op, at, made[which])
            open_works.append(
                (works, result, expected(kind, number, members, here, count, op, at), number)
            )
            if not later:
                check(open_works)
        check(open_works)

    def check(open_works):
        while open_works:
            works, result, want, number = open_works.pop()
            for work in works:
                work.wait()
            assert np.array_equal(result, want), (
                f"step {number}: {result} is not {want}; replay({n}, {program})"
            )

    return dist.spawn(body, n).trace_hash


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(programs())
def test_programs_do_what_their_collectives_mean(case):
    n, program = case
    note(f"replay({n}, {program})")
    assert replay(n, program) == replay(n, program)
