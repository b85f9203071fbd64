"""Random programs of collectives on random groups, against a sequential model written from what each collective means.

A failure prints the program as a value: ``replay(n, program)`` runs it again.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import simcoll.distributed as dist

KINDS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
    "ring",
)
OPS = {"SUM": np.add, "MAX": np.maximum, "BXOR": np.bitwise_xor}


@st.composite
def programs(draw):
    n = draw(st.integers(1, 6))
    groups = draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1).map(sorted), max_size=2))
    step = st.tuples(
        st.sampled_from(KINDS), st.integers(0, len(groups)), st.integers(0, 9), st.sampled_from(sorted(OPS)), st.integers(0, 5),
        st.booleans(), st.integers(0, 3),
    )  # fmt: skip
    return n, (groups, draw(st.lists(step, max_size=8)))


def data(step, rank, size):
    return (np.arange(size, dtype=np.int64) * 7 + rank * 1001 + step * 31) % 97


def expected(kind, number, members, here, count, op, root):
    """What the member at position ``here`` holds afterwards."""
    size = len(members)
    total = data(number, members[0], count * size)
    for member in members[1:]:
        total = OPS[op](total, data(number, member, count * size))
    whole = {member: data(number, member, count * size) for member in members}
    block = slice(count * here, count * (here + 1))
    match kind:
        case "all_reduce":
            return total
        case "reduce":
            return total if here == root else whole[members[here]]
        case "broadcast":
            return whole[members[root]]
        case "reduce_scatter":
            return total[block]
        case "all_gather":
            return np.concatenate([data(number, member, count) for member in members])
        case "all_to_all":
            return np.concatenate([whole[member][block] for member in members])
        case "gather":
            return (
                np.concatenate([data(number, member, count) for member in members])
                if here == root
                else np.zeros(0, np.int64)
            )
        case "scatter":
            return whole[members[root]][block]
        case "ring":
            return data(number, members[here - 1], count)
    return np.zeros(0, np.int64)


def issue(kind, number, members, here, count, op, root, group):
    """Start a collective; returns its works and its result."""
    size, kw = len(members), {"group": group, "async_op": True}
    x = data(number, members[here], count * size)
    part, whole = data(number, members[here], count), np.zeros(count * size, np.int64)
    split = [whole[count * i : count * (i + 1)] for i in range(size)]
    reduction = {"op": getattr(dist.ReduceOp, op)}
    match kind:
        case "all_reduce":
            return [dist.all_reduce(x, **reduction, **kw)], x
        case "reduce":
            return [dist.reduce(x, group_dst=root, **reduction, **kw)], x
        case "broadcast":
            return [dist.broadcast(x, group_src=root, **kw)], x
        case "reduce_scatter":
            out = np.zeros(count, np.int64)
            return [dist.reduce_scatter_tensor(out, x, **reduction, **kw)], out
        case "all_gather":
            return [dist.all_gather(split, part, **kw)], whole
        case "all_to_all":
            return [dist.all_to_all_single(whole, x, **kw)], whole
        case "gather":
            mine = here == root
            return [dist.gather(part, split if mine else None, group_dst=root, **kw)], whole if mine else np.zeros(
                0, np.int64
            )
        case "scatter":
            out = np.zeros(count, np.int64)
            return [
                dist.scatter(out, list(x.reshape(size, count)) if here == root else None, group_src=root, **kw)
            ], out
        case "ring":
            out = np.zeros(count, np.int64)
            ops = [
                dist.P2POp(dist.isend, part, group=group, group_peer=(here + 1) % size),
                dist.P2POp(dist.irecv, out, group=group, group_peer=(here - 1) % size),
            ]
            return dist.batch_isend_irecv(ops), out
    return [dist.barrier(**kw)], np.zeros(0, np.int64)


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
            open_works.append((works, result, expected(kind, number, members, here, count, op, at), number))
            if not later:
                check(open_works)
        check(open_works)

    def check(open_works):
        while open_works:
            works, result, want, number = open_works.pop()
            for work in works:
                work.wait()
            assert np.array_equal(result, want), f"step {number}: {result} is not {want}; replay({n}, {program})"

    return dist.spawn(body, n).trace_hash


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(programs())
def test_programs_do_what_their_collectives_mean(case):
    n, program = case
    note(f"replay({n}, {program})")
    assert replay(n, program) == replay(n, program)
