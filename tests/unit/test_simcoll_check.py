"""The independent checker: certificates made by hand, right and wrong in one place each, and
hostile files.
"""

from __future__ import annotations

import ast
import copy
import gzip
import itertools
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import simcoll_check
from simcoll_check import Unreadable, Wrong, check, main
from tests.support.certificates_by_hand import (
    KINDS,
    REDUCING,
    ROOTED,
    chain,
    direct,
    exchange,
    program,
    ring,
    schedule,
    slots,
    step,
    unrolled,
)

FILE = Path(simcoll_check.__file__)
SENDING = tuple(kind for kind in KINDS if kind != "barrier")


def wrong(certificate, *words):
    """Check that a certificate is refused as wrong, for the reason that the words give."""
    with pytest.raises(Wrong) as caught:
        check(certificate)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def unreadable(certificate, *words):
    with pytest.raises(Unreadable) as caught:
        check(certificate)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def changed(certificate, change):
    """A copy that a function has changed."""
    other = copy.deepcopy(certificate)
    change(other)
    return other


def columns(certificate):
    return certificate["blocks"][0]["steps"][0]


# ---- What is right


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_in_one_step_is_right(kind):
    for n, chunks, in_place in itertools.product((1, 2, 3, 5), (1, 3), (False, True)):
        for root in sorted({0, n - 1}) if kind in ROOTED else (0,):
            pairs = [(rank, (rank + 1) % n) for rank in range(n)][: max(1, n - 1)]
            check(direct(kind, n, chunks=chunks, root=root, pairs=pairs, in_place=in_place))


def test_rings_are_right_with_and_without_repeats_and_by_symmetry():
    for n in (2, 3, 4, 7):
        assert f"{2 * n * (n - 1)} transfers in {2 * (n - 1)} steps, full" in check(ring(n))
        assert "by symmetry" in check(ring(n, "by symmetry"))
        check(unrolled(ring(n)))


def test_weaker_claims_are_right():
    for level in ("any", "rank-consistent", "run-consistent"):
        check(changed(ring(4), lambda c, level=level: c["claims"].update(order=level)))
    check(changed(ring(4), lambda c: c["claims"].update(shared_chunks=True, folds=True)))


def test_programs_are_right():
    assert "2 messages" in check(exchange())
    for n in (2, 3, 5):
        assert f"{2 * (n - 1)} messages" in check(chain(n))


def test_documents_bytes_and_paths_are_the_same(tmp_path):
    text = json.dumps(ring(4)).encode()
    path = tmp_path / "ring.json.gz"
    path.write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]))
    assert check(ring(4)) == check(text) == check(gzip.compress(text)) == check(str(path))


# ---- Data that is wrong in one place


@pytest.mark.parametrize("kind", SENDING)
def test_a_missing_transfer_is_found(kind):
    right = direct(kind, 4, chunks=2, root=1, pairs=[(0, 1), (1, 2), (3, 0)])
    rows = len(columns(right)["src_rank"])
    for row in range(0, rows, 1 + rows // 12):

        def drop(c, row=row):
            for column in columns(c).values():
                del column[row]
            c["claims"]["transfers"] -= 1

        wrong(changed(right, drop))


@pytest.mark.parametrize("kind", SENDING)
def test_a_wrong_source_is_found(kind):
    right = direct(kind, 4, chunks=2, root=1, pairs=[(0, 1), (1, 2), (3, 0)])
    rows = len(columns(right)["src_rank"])
    for row in range(0, rows, 1 + rows // 12):

        def move(c, row=row):
            columns(c)["src_rank"][row] = (columns(c)["src_rank"][row] + 1) % 4

        wrong(changed(right, move))


@pytest.mark.parametrize("kind", SENDING)
def test_a_wrong_chunk_is_found_with_and_without_sizes(kind):
    right = direct(kind, 3, chunks=2, root=1, pairs=[(0, 1), (1, 2), (2, 0)])

    def move(c):
        columns(c)["src_chunk"][0] ^= 1

    wrong(changed(right, move), "step 0", "not the same piece of a block")
    wrong(
        changed(right, lambda c: (move(c), c.update(divisible=True))), "at the end", "input chunk"
    )


@pytest.mark.parametrize("kind", REDUCING)
def test_counting_twice_is_found(kind):
    right = direct(kind, 3)

    def twice(c):
        columns(c)["op"] = ["copy"] * len(columns(c)["op"])

    wrong(changed(right, twice), "written twice")
    again = unrolled_folds(right)
    check(again)

    def repeat(c):
        c["blocks"].append(copy.deepcopy(c["blocks"][-1]))
        c["claims"]["transfers"] += len(c["blocks"][-1]["steps"][0]["src_rank"])
        c["claims"]["steps"] += 1

    wrong(changed(again, repeat), "+1 of rank")


def unrolled_folds(certificate):
    """The same with one transfer into each chunk and step."""
    rows = list(zip(*columns(certificate).values(), strict=True))
    steps, used = [], []
    for row in rows:
        where = next((k for k, cells in enumerate(used) if row[2:4] not in cells), None)
        if where is None or any(row[2:4] in cells for cells in used[where:]):
            where = max((k + 1 for k, cells in enumerate(used) if row[2:4] in cells), default=0)
        if where == len(steps):
            steps.append([])
            used.append(set())
        steps[where].append(row)
        used[where].add(row[2:4])
    return schedule(
        certificate["collective"],
        [{"steps": [step(rows)]} for rows in steps],
        order=certificate["claims"]["order"],
    )


@pytest.mark.parametrize("times", [1, 8, 63, 64, 128])
def test_doublings_do_not_wrap(times):
    # x += x for a number of times: modulo 2^64, 64 of them are nothing.
    rows = [(0, 0, 0, 2, "copy"), (1, 0, 0, 2, "reduce")]
    blocks = [{"steps": [step([row])]} for row in rows]
    doubling = (
        {"steps": [step([(0, 0, 0, 1, "copy")])]},
        {"steps": [step([(0, 1, 0, 1, "reduce")])], "repeat": times},
    )
    collective = {"kind": "reduce", "nranks": 2, "root": 0}
    moved = [{"steps": [step([(0, 2, 0, 1, "reduce")])]}]
    certificate = schedule(collective, [*doubling, *blocks, *moved], order="any", scratch=[0])
    wrong(certificate, "at the end", "rank 0 output 0")
    # The same without the doublings is right.
    check(
        schedule(
            collective,
            [*blocks, {"steps": [step([(0, 2, 0, 1, "copy")])]}],
            order="position-independent",
            scratch=[0],
        )
    )


@pytest.mark.slow
def test_fibonacci_counts_do_not_wrap():
    blocks = [{"steps": [step([(0, 0, 0, 1, "copy"), (1, 0, 0, 2, "copy")])]}]
    blocks += [
        {"steps": [step([(0, 2, 0, 1, "reduce")]), step([(0, 1, 0, 2, "reduce")])], "repeat": 5000}
    ]
    certificate = schedule(
        {"kind": "reduce", "nranks": 2, "root": 0}, blocks, order="any", scratch=[0]
    )
    wrong(certificate, "at the end", "...")


def test_writing_inputs_and_reading_nothing_is_found():
    collective = {"kind": "all_reduce", "nranks": 2}
    wrong(
        schedule(collective, [{"steps": [step([(0, 0, 1, 0, "reduce")])]}], order="any"),
        "step 0",
        "rank 1 chunk 0",
        "input",
    )
    wrong(
        schedule(collective, [{"steps": [step([(0, 1, 1, 1, "copy")])]}], order="any"),
        "rank 0 chunk 1",
        "holds nothing",
    )
    wrong(
        schedule(collective, [{"steps": [step([(0, 0, 1, 1, "reduce")])]}], order="any"),
        "rank 1 chunk 1",
        "but holds nothing",
    )
    # In place: an all_gather's own slot may be written, the input of a reduce_scatter only where it
    # is the output.
    collective = {"kind": "reduce_scatter", "nranks": 2, "in_place": True}
    right = [{"steps": [step([(1, 0, 0, 2, "reduce"), (0, 1, 1, 2, "reduce")])]}]
    check(schedule(collective, right, order="position-independent"))
    wrong(
        schedule(collective, [{"steps": [step([(1, 1, 0, 1, "reduce")])]}, *right], order="any"),
        "rank 0 chunk 1",
        "input",
    )
    # The root's input only; other ranks of a broadcast have none.
    wrong(
        schedule({"kind": "broadcast", "nranks": 2}, [{"steps": [step([(1, 0, 1, 1, "copy")])]}]),
        "rank 1 chunk 0",
    )
    wrong(
        schedule(
            {"kind": "broadcast", "nranks": 2, "in_place": True},
            [{"steps": [step([(0, 0, 1, 0, "copy")])]}],
        ),
        "rank 1 chunk 0 is an input",
    )


def test_outputs_of_others_are_workspace_in_place():
    rows = [(2, 0, 1, 1, "copy"), (1, 0, 1, 1, "reduce"), (1, 1, 0, 1, "reduce")]
    blocks = [{"steps": [step([row])]} for row in rows]
    right = schedule(
        {"kind": "reduce", "nranks": 3, "in_place": True}, blocks, order="position-independent"
    )
    check(right)
    wrong(
        changed(right, lambda c: c["blocks"][0]["steps"][0].update(dst_chunk=[0])),
        "rank 1 chunk 0 is an input",
    )


def test_what_does_not_exist_is_found():
    for row in [
        (2, 0, 0, 1, "copy"),
        (0, 0, 2, 1, "copy"),
        (0, 2, 0, 1, "copy"),
        (0, 0, 1, 2, "copy"),
        (0, 0, 1, 1, "add"),
        (0, 0, 1, 1, "sync"),
        (0, 0, 1, 1, "copy", 1),
        (0, 0, 1, 1, "copy", 0, 2),
        (0, 0, 1, 0, "copy", 0, 3),
        (0, 2**62, 1, 1, "copy"),
        (2**62, 0, 1, 1, "copy"),
        (0, 0, 1, 1, "copy", 2**63 - 1),
    ]:
        full = [*row, 0, 1][:5] + list(row[5:] or [0]) + ([1] if len(row) < 7 else [])
        wrong(
            schedule({"kind": "all_reduce", "nranks": 2}, [{"steps": [step([full])]}], order="any"),
            "step 0",
            "no such",
        )
    # Ranges that begin in one buffer and end in another, at either end.
    for row in ((0, 0, 1, 3, "copy", 0, 2), (0, 1, 1, 4, "copy", 0, 2), (0, 4, 1, 3, "copy", 0, 2)):
        blocks = [{"steps": [step([row])]}]
        collective = {"kind": "all_reduce", "nranks": 2}
        wrong(
            schedule(collective, blocks, chunks=2, order="any", scratch=[0], divisible=True),
            "no such",
        )
    # A range that leaves the input of an all_gather in place would lie in its output after the
    # alias is resolved.
    certificate = schedule(
        {"kind": "all_gather", "nranks": 2, "in_place": True},
        [{"steps": [step([(0, 0, 1, 1, "copy", 0, 2)])]}],
        divisible=True,
    )
    wrong(certificate, "no such")


def test_scratch_of_ranks_and_pieces():
    rows = [
        (0, 0, 0, 2, "copy"),
        (1, 0, 1, 2, "copy"),
        (0, 2, 1, 1, "copy"),
        (0, 2, 0, 1, "copy"),
        (1, 2, 0, 1, "reduce"),
    ]
    blocks = [{"steps": [step([row])]} for row in rows] + [
        {"steps": [step([(0, 1, 1, 1, "copy")])]}
    ]
    collective = {"kind": "all_reduce", "nranks": 2}
    for more in (
        {"scratch": [0]},
        {"scratch": [[0], [0]]},
        {"scratch": [0], "scratch_pieces": [0]},
        {"scratch": [[0], [0, 0]]},
    ):
        check(schedule(collective, blocks, order="position-independent", **more))
    wrong(schedule(collective, blocks, order="any", scratch=[[0], []]), "step 1", "no such")
    wrong(schedule(collective, blocks[2:], order="any", scratch=[[], [0]]), "step 0", "no such")
    for more in (
        {"scratch": [1]},
        {"scratch": [[0]]},
        {"scratch": [0, [0]]},
        {"scratch": [[0], 0]},
        {"scratch_pieces": [0]},
        {"scratch": [0], "scratch_pieces": [1]},
        {"scratch": [0], "scratch_pieces": []},
        {"scratch": [-1]},
        {"scratch": [True]},
    ):
        unreadable(schedule(collective, blocks, order="any", **more), "scratch")


def test_blocks_of_different_ranks_do_not_mix():
    # Both ranks of an all_gather have one chunk, but not of one size.
    certificate = direct("all_gather", 2)

    def change(c):
        columns(c)["dst_chunk"][0] = 2

    wrong(changed(certificate, change), "not the same piece")


# ---- Folds, switches, channels


def fold(rows, **claims):
    return schedule(
        {"kind": "reduce", "nranks": 3, "root": 0},
        [{"steps": [step(rows)]}],
        order="any",
        channels=2,
        claims=claims,
    )


def test_rules_of_folds():
    rows = [(0, 0, 0, 1, "copy", 0), (1, 0, 0, 1, "reduce", 0), (2, 0, 0, 1, "reduce", 0)]
    check(fold(rows, folds=True, order="position-independent"))
    check(fold(rows[::-1], folds=True, order="position-independent"))
    wrong(fold(rows), "claims.folds")
    wrong(fold([*rows, (2, 0, 0, 1, "reduce", 0)], folds=True), "written twice")
    wrong(fold([*rows, (2, 0, 0, 1, "copy", 0)], folds=True), "written twice")
    wrong(
        fold([rows[0], rows[1], (2, 0, 0, 1, "reduce", 1)], folds=True, shared_chunks=True),
        "written twice",
    )
    wrong(fold([(0, 0, 0, 1, "multicast", 0), *rows[1:]], folds=True), "written twice")
    wrong(fold([*rows[:2], (2, 0, 0, 1, "switch_reduce", 0)], folds=True), "written twice")
    wrong(fold(rows[1:], folds=True), "but holds nothing")


def test_a_fold_adds_in_the_order_of_ranks():
    collective = {"kind": "all_reduce", "nranks": 3}
    one = [(0, 0, 0, 1, "copy"), (1, 0, 0, 1, "reduce"), (2, 0, 0, 1, "reduce")]
    spread = [(0, 1, 1, 1, "copy"), (0, 1, 2, 1, "copy")]
    steps = [
        [(1, 0, 1, 1, "copy")],
        [(0, 0, 1, 1, "reduce")],
        [(2, 0, 1, 1, "reduce")],
        [(1, 1, 2, 1, "copy")],
    ]
    blocks = [{"steps": [step(rows)]} for rows in ([*one], *steps)]
    claims = {"folds": True}
    check(schedule(collective, blocks, order="position-independent", claims=claims))
    check(
        schedule(
            collective,
            [{"steps": [step(one)]}, {"steps": [step(spread)]}],
            order="position-independent",
            claims=claims,
        )
    )
    steps[1], steps[2] = steps[2], steps[1]  # (1 + 2) + 0 has other brackets than (0 + 1) + 2
    blocks = [{"steps": [step(rows)]} for rows in ([*one], *steps)]
    check(schedule(collective, blocks, order="any", claims=claims))
    wrong(schedule(collective, blocks, order="rank-consistent", claims=claims), "claims.order")


def test_the_order_of_rows_has_no_meaning():
    rows = [
        (source, 0, rank, 1, "reduce" if source else "copy")
        for rank in range(2)
        for source in range(3)
    ]
    rest = [(1, 1, 2, 1, "copy")]
    for mixed in (rows, rows[:3] + rows[:2:-1], rows[::-1]):
        blocks = [{"steps": [step(mixed)]}, {"steps": [step(rest)]}]
        claims = {"folds": True}
        check(
            schedule(
                {"kind": "all_reduce", "nranks": 3},
                blocks,
                order="position-independent",
                claims=claims,
            )
        )


def test_rules_of_switches():
    collective = {"kind": "all_reduce", "nranks": 3}
    up = [(rank, 0, target, 1, "switch_reduce", 0) for rank in range(3) for target in range(3)]
    check(schedule(collective, [{"steps": [step(up)]}], order="rank-consistent"))
    wrong(schedule(collective, [{"steps": [step(up)]}], order="run-consistent"), "step 0")
    twice = [*up, (0, 0, 0, 1, "switch_reduce", 0)]
    wrong(schedule(collective, [{"steps": [step(twice)]}], order="any"), "+1 of rank 0")
    wrong(schedule(collective, [{"steps": [step(up[:-1])]}], order="any"), "-1 of rank 2")
    mixed = [*up[:-1], (2, 0, 2, 1, "switch_reduce", 1)]
    wrong(
        schedule(
            collective,
            [{"steps": [step(mixed)]}],
            order="any",
            channels=2,
            claims={"shared_chunks": True},
        ),
        "written twice",
    )
    wrong(
        schedule(collective, [{"steps": [step([*up[:-1], (2, 0, 2, 1, "copy", 0)])]}], order="any"),
        "written twice",
    )
    # A switch that adds two, or passes on one, is not a transfer that does so.
    pair = [(0, 0, 0, 1, "switch_reduce"), (1, 0, 0, 1, "switch_reduce")]
    own = [(0, 0, 1, 1, "copy"), (1, 0, 1, 1, "reduce")]
    single = [(0, 1, 1, 1, "switch_reduce")]
    of_two = {"kind": "all_reduce", "nranks": 2}
    for steps in ([pair + own], [pair, single]):
        blocks = [{"steps": [step(rows)]} for rows in steps]
        check(schedule(of_two, blocks, order="any", claims={"folds": True}))
        wrong(
            schedule(of_two, blocks, order="rank-consistent", claims={"folds": True}),
            "claims.order",
        )
    many = [pair, *[[(0, 1, 0, 1, "switch_reduce")]] * 9, [(0, 1, 1, 1, "copy")]]
    check(schedule(of_two, [{"steps": [step(rows)]} for rows in many], order="rank-consistent"))
    # One operand is itself, where there are no brackets to compare.
    first = [(0, 0, 0, 1, "copy"), (0, 0, 1, 1, "switch_reduce")]
    blocks = [{"steps": [step(rows)]} for rows in (first, [(1, 1, 2, 1, "switch_reduce")])]
    check(schedule({"kind": "broadcast", "nranks": 3}, blocks))
    # The old content of the destination does not count.
    check(
        schedule(
            collective,
            [{"steps": [step([(0, 0, 0, 1, "copy", 0)])]}, {"steps": [step(up)]}],
            order="rank-consistent",
        )
    )
    down = [(0, 1, rank, 1, "multicast", 0) for rank in (1, 2)]
    one = [(rank, 0, 0, 1, "switch_reduce", 0) for rank in range(3)]
    check(
        schedule(
            collective, [{"steps": [step(one)]}, {"steps": [step(down)]}], order="rank-consistent"
        )
    )


def test_channels_that_share_chunks():
    collective = {"kind": "broadcast", "nranks": 3}
    rows = [[(0, 0, 0, 1, "copy", 0)], [(0, 0, 1, 1, "copy", 0)], [(1, 1, 2, 1, "copy", 1)]]
    blocks = [{"steps": [step(one)]} for one in rows]
    check(schedule(collective, blocks, channels=2, claims={"shared_chunks": True}))
    wrong(schedule(collective, blocks, channels=2), "claims.shared_chunks", "step 2")
    wrong(schedule(collective, blocks), "no such")


def swap(first, second, *, more=()):
    """Two ranks hold a chunk each and exchange them, in one step."""
    fill = [(0, 0, 0, 2, "copy", 0), (1, 0, 1, 2, "copy", 0)]
    rows = [(0, 2, 1, 2, "copy", first), (1, 2, 0, 2, "copy", second), *more]
    rest = [(0, 0, 0, 1, "copy", 0), (1, 0, 1, 1, "copy", 0)]
    last = [(0, 2, 0, 1, "reduce", 0), (1, 2, 1, 1, "reduce", 0)]
    blocks = [{"steps": [step(each)]} for each in (fill, rows, rest, last)]
    claims = {"shared_chunks": True}
    return schedule(
        {"kind": "all_reduce", "nranks": 2},
        blocks,
        order="position-independent",
        scratch=[0, 0],
        channels=3,
        claims=claims,
    )


def test_channels_do_not_wait_for_each_other_in_a_cycle():
    check(swap(0, 0))
    wrong(swap(0, 1), "step 1", "cycle")
    # A third channel that only reads waits for nothing.
    check(swap(0, 0, more=[(0, 2, 0, 3, "copy", 1)]))


# ---- Claims, barriers, repeats


@pytest.mark.parametrize("key", ["steps", "transfers"])
def test_counts_are_compared(key):
    for right in (
        ring(4),
        ring(4, "by symmetry"),
        direct("all_gather", 3, in_place=True),
        direct("barrier", 3),
    ):
        for off in (-1, 1):
            wrong(
                changed(
                    right, lambda c, off=off: c["claims"].update({key: c["claims"][key] + off})
                ),
                "claims",
            )


def test_levels_that_claim_too_much():
    wrong(
        changed(ring(4), lambda c: c["claims"].update(order="position-independent")), "claims.order"
    )
    wrong(
        changed(ring(4, "by symmetry"), lambda c: c["claims"].update(order="position-independent")),
        "claims.order",
    )
    wrong(
        changed(
            direct("all_reduce", 3, in_place=True),
            lambda c: c["claims"].update(order="rank-consistent"),
        ),
        "claims.order",
    )
    for right, level in (
        (ring(3), ""),
        (ring(3), "best"),
        (direct("all_gather", 2), "any"),
        (direct("barrier", 2), "any"),
    ):
        wrong(
            changed(right, lambda c, level=level: c["claims"].update(order=level)), "claims.order"
        )


def test_barriers():
    n = 5
    shifts = [[(rank, 0, (rank + 2**k) % n, 0, "sync", 0) for rank in range(n)] for k in range(3)]
    blocks = [{"steps": [step(rows)]} for rows in shifts]
    check(schedule({"kind": "barrier", "nranks": n}, blocks))
    wrong(schedule({"kind": "barrier", "nranks": n}, blocks[:2]), "may leave before")
    other = changed(blocks, lambda b: b[1]["steps"][0].update(channel=1))
    # Channels do not tell each other.
    wrong(schedule({"kind": "barrier", "nranks": n}, other, channels=2), "may leave before")
    check(schedule({"kind": "barrier", "nranks": n}, [other[1], *blocks], channels=2))
    both = [
        {"steps": [step([(0, 0, 1, 0, "sync"), (1, 0, 2, 0, "sync"), (2, 0, 0, 0, "sync")])]}
    ] * 2
    check(schedule({"kind": "barrier", "nranks": 3}, both))
    # Messages of a step are simultaneous.
    wrong(schedule({"kind": "barrier", "nranks": 3}, both[:1]), "may leave before")
    wrong(
        schedule({"kind": "barrier", "nranks": 2}, [{"steps": [step([(0, 0, 1, 0, "copy")])]}]),
        "no such",
    )
    check(schedule({"kind": "barrier", "nranks": 1}, []))


def test_repeats_with_an_order():
    # Three chunks in the order 2, 0, 1, copied one in each turn.
    row = [(0, 0, 0, 3, "copy")]
    rest = [{"steps": [step([(0, k, 1, 3 + k, "copy") for k in range(3)])]}]
    collective = {"kind": "broadcast", "nranks": 2}

    def certificate(**more):
        block = {
            "steps": [step(row)],
            "repeat": 3,
            "stride": 2,
            "modulus": 3,
            "order": [0, 2, 1, 3, 5, 4],
        } | more
        return schedule(collective, [block, *rest], chunks=3)

    check(certificate())
    check(certificate(stride=-1))
    check(certificate(order=None))
    wrong(certificate(stride=3), "at the end")
    wrong(certificate(modulus=2), "at the end")
    wrong(certificate(repeat=2), "at the end")
    wrong(certificate(order=[0, 2, 1]), "no such")
    wrong(certificate(order=[]), "no such")
    wrong(certificate(order=None, base=1, modulus=4), "no such")
    wrong(certificate(order=None, modulus=100), "no such")
    check(certificate(base=3))
    for more in ({"order": [0, 2, 1, 3, 5]}, {"base": 1}, {"modulus": 4}, {"modulus": 100}):
        unreadable(certificate(**more), "whole windows")
    unreadable(certificate(order=[0, 2, 1, 3, 5, 5]), "order")
    unreadable(certificate(modulus=0), "modulus")
    assert "in 1 step," in check(
        schedule(collective, [{"steps": [step(row)], "repeat": 0}, *rest_all()], chunks=3)
    )


def rest_all():
    return [{"steps": [step([(0, k, rank, 3 + k, "copy") for k in range(3) for rank in range(2)])]}]


# ---- Symmetry


def test_a_symmetry_broken_in_one_place_of_one_window_is_found():
    right = unrolled(ring(5, "by symmetry"))
    check(right)
    for number in range(8):

        def break_source(c, number=number):
            one = c["blocks"][number]["steps"][0]
            one["src_rank"][3] = (one["src_rank"][3] + 1) % 5

        def break_chunk(c, number=number):
            one = c["blocks"][number]["steps"][0]
            for key in ("src_chunk", "dst_chunk"):
                one[key][2] = one[key][1]

        for change in (break_source, break_chunk):
            wrong(changed(right, change), f"step {number}", "does not map")


def outside(n):
    """The ring by symmetry, out of place: a first step copies whole inputs."""
    certificate = ring(n, "by symmetry")
    certificate["collective"]["in_place"] = False
    ranks = list(range(n))
    whole = {"src_rank": ranks, "src_chunk": 0, "dst_rank": ranks, "dst_chunk": n, "count": n}
    certificate["blocks"].insert(0, {"steps": [whole]})
    certificate["claims"]["steps"] += 1
    certificate["claims"]["transfers"] += n
    return certificate


def test_transfers_of_many_places_are_compared_place_by_place():
    right = outside(5)
    check(right)
    check(changed(right, lambda c: c.update(proof={"kind": "full"})))
    wrong(
        changed(right, lambda c: columns(c).update(count=[5, 5, 4, 5, 5])),
        "step 0",
        "does not map place",
    )
    wrong(
        changed(right, lambda c: columns(c).update(src_rank=[0, 1, 2, 3, 3])),
        "step 0",
        "does not map place",
    )
    # The same transfer twice, at places that are followed and at one that is not.
    for row in range(5):
        for number in (0, 4):
            twice = unrolled(ring(5, "by symmetry"))
            one = twice["blocks"][number]["steps"][0]
            for key in ("src_rank", "src_chunk", "dst_rank", "dst_chunk"):
                one[key].append(one[key][row])
            twice["claims"]["transfers"] += 1
            wrong(twice, f"step {number}", "does not map place")
    more = {"src_rank": list(range(5)) * 2, "dst_rank": list(range(5)) * 2}
    wrong(
        changed(right, lambda c: (columns(c).update(more), c["claims"].update(transfers=55))),
        "step 0",
    )


def test_renumberings_that_are_none():
    right = ring(4, "by symmetry")
    for key, value in (
        ("rank", [[1, 2, 3, 3]]),
        ("rank", [[1, 2, 3]]),
        ("rank", []),
        ("place", [1, 2, 3, 3]),
        ("place", [1, 2, 3]),
        ("lane", [0, 0, 0]),
        ("lane", [0, 0, 0, 1]),
        ("lane", 1),
        ("rank", [[1, 2, 3, 4]]),
        ("place", [1, 2, 3, 4]),
    ):
        wrong(
            changed(right, lambda c, key=key, value=value: c["proof"].update({key: value})),
            "permutation",
        )
    wrong(changed(right, lambda c: c["proof"].update(place=[0, 1, 2, 3])), "does not map")
    wrong(changed(right, lambda c: c["proof"].update(rank=[[0, 1, 2, 3]])), "does not map")
    wrong(
        changed(right, lambda c: c["proof"].update(rank=[[1, 2, 3, 0]] * 2, lane=[0, 0, 1, 1])),
        "another lane",
    )
    # The identity is a symmetry of everything; every place is then followed.
    check(changed(right, lambda c: c["proof"].update(rank=[[0, 1, 2, 3]], place=[0, 1, 2, 3])))
    for kind in ("broadcast", "all_to_all", "barrier", "send_recv"):
        unreadable(changed(direct(kind, 2), lambda c: c.update(proof=right["proof"])), "symmetry")


def test_a_symmetric_but_wrong_schedule_is_found():
    right = ring(5, "by symmetry")

    def shorter(c):
        c["blocks"][0]["repeat"] -= 1
        c["claims"]["steps"] -= 1
        c["claims"]["transfers"] -= 5

    wrong(changed(right, shorter), "at the end")


def test_symmetric_gathers_and_scatters():
    for kind in ("all_gather", "reduce_scatter"):
        for n in (2, 3, 4):
            after = [(rank + 1) % n for rank in range(n)]
            certificate = (
                unrolled_folds(direct(kind, n)) if kind == "reduce_scatter" else direct(kind, n)
            )
            proof = {"kind": "by symmetry", "rank": [after], "lane": 0, "place": after}
            if kind == "all_gather":
                check(changed(certificate, lambda c, proof=proof: c.update(proof=proof)))
                still = proof | {"place": list(range(n))}
                wrong(changed(certificate, lambda c, still=still: c.update(proof=still)), "block")
            else:  # everybody begins with rank 0, which no rotation keeps
                wrong(
                    changed(certificate, lambda c, proof=proof: c.update(proof=proof)),
                    "does not map",
                )
    unreadable(
        changed(direct("reduce_scatter", 2, in_place=True), lambda c: c.update(proof=proof)),
        "in place",
    )


def test_a_symmetric_schedule_keeps_places():
    # Right, but what is at one place comes from another, so that one place does not tell about its
    # orbit.
    swapped = [
        (0, 0, 1, 3, "copy"),
        (0, 1, 1, 2, "copy"),
        (0, 0, 0, 2, "copy"),
        (0, 1, 0, 3, "copy"),
    ]
    again = [(1, 3, 1, 4, "copy"), (1, 2, 1, 5, "copy")]
    last = [(1, 4, 1, 2, "copy"), (1, 5, 1, 3, "copy")]
    add = [
        (1, 0, 1, 2, "reduce"),
        (1, 1, 1, 3, "reduce"),
        (1, 0, 0, 2, "reduce"),
        (1, 1, 0, 3, "reduce"),
    ]
    blocks = [{"steps": [step(rows)]} for rows in (swapped, again, last, add)]
    collective = {"kind": "all_reduce", "nranks": 2}
    right = schedule(
        collective, blocks, chunks=2, order="position-independent", scratch=[0], divisible=True
    )
    check(right)
    scratchless = schedule(
        collective,
        [{"steps": [step([(0, 0, 0, 3, "copy")])]}],
        chunks=2,
        order="any",
        divisible=True,
    )
    proof = {"kind": "by symmetry", "rank": [[0, 1]], "place": [0, 1]}
    wrong(changed(scratchless, lambda c: c.update(proof=proof)), "not the same piece")
    unreadable(changed(right, lambda c: c.update(proof=proof)), "scratch")


def test_folds_are_not_symmetric():
    n = 3
    rows = [
        (source, place, rank, n + place, "copy" if source == rank else "reduce")
        for rank in range(n)
        for place in range(n)
        for source in range(n)
    ]
    after = [1, 2, 0]
    certificate = schedule(
        {"kind": "all_reduce", "nranks": n},
        [{"steps": [step(rows)]}],
        chunks=n,
        order="any",
        claims={"folds": True},
    )
    check(certificate)
    proof = {"kind": "by symmetry", "rank": [after], "lane": 0, "place": after}
    wrong(changed(certificate, lambda c: c.update(proof=proof)), "more than once")


# ---- Programs


def code(certificate, rank, lane=0):
    return certificate["program"]["ranks"][rank][lane]["instructions"]


def test_messages_that_do_not_match():
    right = exchange()
    wrong(changed(right, lambda c: code(c, 0).pop(0)), "sends and receives")
    wrong(changed(right, lambda c: code(c, 0)[0].update(send_to=0)), "peer")
    wrong(changed(right, lambda c: code(c, 0)[0].update(count=0)), "sends and receives")
    wrong(changed(right, lambda c: code(c, 0)[0].pop("send_to")), "peer")
    check(changed(right, lambda c: code(c, 0)[2].update(send_to=1)))  # it sends nothing
    wrong(changed(right, lambda c: code(c, 0)[2].update(op="swap")), "no such instruction")
    wrong(
        changed(right, lambda c: code(c, 0)[2].update(waits=[[0, 7]])),
        "no such instruction, or wait",
    )
    wrong(changed(right, lambda c: c["claims"].update(messages=3)), "claims.messages")

    def split(c):  # two lanes send on one connection
        c["program"]["ranks"][0].append(
            {"channel": 0, "instructions": [{"op": "send", "src": 0, "send_to": 1}]}
        )
        code(c, 1).insert(2, {"op": "recv", "dst": 1, "recv_from": 0})
        c["claims"]["messages"] = 3

    wrong(changed(right, split), "lanes")


def test_deadlocks_and_least_depths():
    right = exchange()
    check(changed(right, lambda c: c["program"].update(fifo_depth=1)))
    check(changed(right, lambda c: c["program"].update(fifo_depth=None)))
    wrong(
        changed(right, lambda c: c["program"].update(fifo_depth=0)),
        "deadlock at FIFO depth 0",
        "cycle",
    )
    wrong(changed(right, lambda c: c["claims"].update(least_depth=0)), "least_depth")
    wrong(changed(right, lambda c: c["claims"].update(least_depth=2)), "least_depth")
    wrong(changed(right, lambda c: c["claims"].update(least_depth=None)), "least_depth")
    # Rank 0 receives first: rendezvous is enough.
    first = changed(right, lambda c: code(c, 0).insert(0, code(c, 0).pop(1)))
    wrong(first, "least_depth")
    check(changed(first, lambda c: c["claims"].update(least_depth=0)))
    both = changed(first, lambda c: code(c, 1).insert(0, code(c, 1).pop(1)))
    wrong(both, "deadlock", "cycle")
    wrong(changed(right, lambda c: code(c, 0)[0].update(waits=[[0, 0]])), "cycle")


def burst(messages, least, depth):
    """Each rank sends a number of messages, then receives as many."""
    ranks = []
    for rank in range(2):
        sends = [{"op": "send", "src": k, "send_to": 1 - rank} for k in range(messages)]
        receives = [
            {"op": "recv", "dst": messages * (2 - rank) + k, "recv_from": 1 - rank}
            for k in range(messages)
        ]
        copies = [{"op": "copy", "src": 0, "dst": messages * (1 + rank), "count": messages}]
        ranks.append([(0, [*sends, *receives, *copies])])
    return program(
        {"kind": "all_gather", "nranks": 2},
        ranks,
        [messages, 2 * messages, 0],
        chunks=messages,
        depth=depth,
        least=least,
        messages=2 * messages,
    )


def test_depths_of_bursts():
    for messages, least, depth in (
        (1, 1, 2),
        (2, 2, 2),
        (3, 8, 8),
        (3, 3, 3),
        (8, 8, 8),
        (9, None, None),
        (9, 9, 9),
    ):
        check(burst(messages, least, depth))
    for messages, least, depth in (
        (3, 2, 8),
        (3, 8, 3),
        (3, 4, 2),
        (9, 8, None),
        (8, None, None),
        (2, 8, 8),
        (3, None, 3),
    ):
        wrong(burst(messages, least, depth), "least_depth")


def test_a_chain_that_nobody_starts_is_a_deadlock():
    code_of = [{"op": "recv_copy_send", "dst": 1, "recv_from": 1, "send_to": 1}]
    other = [{"op": "recv_copy_send", "dst": 1, "recv_from": 0, "send_to": 0}]
    certificate = program(
        None, [[(0, code_of)], [(0, other)]], [1, 1, 0], depth=0, least=0, messages=2
    )
    wrong(certificate, "cycle")


def races(waits):
    """Two lanes of a rank touch one chunk."""
    lanes = [
        (0, [{"op": "copy", "src": 0, "dst": 2}]),
        (1, [{"op": "copy", "src": 2, "dst": 1, **({"waits": [[0, 0]]} if waits else {})}]),
    ]
    return program(
        {"kind": "all_reduce", "nranks": 1},
        [lanes],
        [1, 1, 1],
        order="position-independent",
        least=0,
    )


def test_races():
    check(races(waits=True))
    wrong(races(waits=False), "race")

    def overlap(c):
        code(c, 0)[0].update(src=0, dst=1, count=2)

    wide = program(
        None, [[(0, [{"op": "copy", "src": 0, "dst": 2, "count": 2}])]], [4, 0, 0], least=0
    )
    check(wide)
    wrong(changed(wide, overlap), "overlap")
    check(changed(wide, lambda c: code(c, 0)[0].update(src=2)))  # onto itself
    # A write that comes long after a read in the usual order, but does not wait for it.
    reader = [{"op": "copy", "src": 0, "dst": 2}, {"op": "copy", "src": 2, "dst": 1}]
    writer = [
        {"op": "nop", "waits": [[0, 0]]},
        {"op": "nop"},
        {"op": "nop"},
        {"op": "copy", "src": 0, "dst": 2},
    ]
    late = program(None, [[(0, reader), (1, writer)]], [1, 1, 1], least=0)
    wrong(late, "race")
    check(changed(late, lambda c: code(c, 0, 1)[0].update(waits=[[0, 1]])))
    # Right data in the usual order, but the order is only kept by the FIFO's back-pressure.
    sends = [{"op": "send", "src": 2, "send_to": 1}, {"op": "send", "src": 2, "send_to": 1}]
    certificate = program(
        None,
        [
            [(0, sends), (1, [{"op": "copy", "src": 0, "dst": 2}])],
            [(0, [{"op": "recv", "dst": 2, "recv_from": 0}] * 2)],
        ],
        [2, 0, 1],
        depth=1,
        least=0,
        messages=2,
    )
    wrong(certificate, "race")


def test_a_message_orders_accesses():
    ranks = [
        [
            (0, [{"op": "copy", "src": 0, "dst": 2}, {"op": "send", "src": 2, "send_to": 1}]),
            (1, [{"op": "recv", "dst": 1, "recv_from": 1}, {"op": "copy", "src": 2, "dst": 3}]),
        ],
        [
            (0, [{"op": "recv", "dst": 2, "recv_from": 0}, {"op": "nop", "waits": [[1, 0]]}]),
            (1, [{"op": "send", "src": 0, "send_to": 0, "waits": [[0, 0]]}]),
        ],
    ]
    right = program(None, ranks, [1, 1, 2], least=0, messages=2)
    check(right)
    wrong(changed(right, lambda c: code(c, 1, 1)[0].pop("waits")), "race")


def test_wrong_data_of_programs():
    right = chain(3)
    wrong(changed(right, lambda c: code(c, 1)[0].update(src=1)), "holds nothing")
    wrong(changed(right, lambda c: code(c, 1)[1].update(dst=0)), "input")
    wrong(changed(right, lambda c: code(c, 2)[0].update(src=9)), "no such")
    wrong(changed(right, lambda c: code(c, 2)[0].pop("src")), "no such")
    wrong(
        changed(right, lambda c: code(c, 1).append({"op": "reduce", "src": 0, "dst": 1})),
        "at the end",
        "+1 of rank 1",
    )
    wrong(
        changed(
            right, lambda c: code(c, 1)[0].update(op="recv_reduce_copy_send", dst=1, src=0, count=0)
        ),
        "sends and",
    )
    wrong(changed(right, lambda c: c["claims"].update(order="")), "claims.order")
    wrong(changed(right, lambda c: c["claims"].update(data=False)), "claims")
    wrong(changed(right, lambda c: c["program"].update(buffers=[1, 2, 0])), "collective")
    wrong(changed(right, lambda c: c["program"].update(in_place=True)), "collective")
    wrong(changed(exchange(), lambda c: code(c, 0)[2].update(dst=2)), "at the end")
    unreadable(changed(right, lambda c: c["program"].update(buffers=[1, 1])), "3 buffers")
    unreadable(changed(right, lambda c: c["program"]["ranks"].pop()), "ranks")


def test_order_levels_of_programs():
    # One-shot: every rank adds its own first.
    ranks = []
    for rank in range(3):
        others = [(rank + 1) % 3, (rank + 2) % 3]
        lanes = [(0, [{"op": "send", "src": 0, "send_to": other}]) for other in others]
        adds = [{"op": "copy", "src": 0, "dst": 1}]
        adds += [
            {"op": "recv_reduce_copy", "src": 1, "dst": 1, "recv_from": other} for other in others
        ]
        ranks.append([*lanes, (0, adds)])
    certificate = program(
        {"kind": "all_reduce", "nranks": 3}, ranks, [1, 1, 0], order="any", least=0, messages=6
    )
    check(certificate)
    wrong(
        changed(certificate, lambda c: c["claims"].update(order="rank-consistent")), "claims.order"
    )


def test_programs_in_place_use_one_address():
    ranks = [
        [
            (
                0,
                [
                    {"op": "send", "src": 1, "send_to": 1},
                    {"op": "recv_reduce_copy", "src": 1, "dst": 1, "recv_from": 1},
                ],
            )
        ],
        [(0, [{"op": "recv_reduce_copy_send", "src": 1, "dst": 1, "recv_from": 0, "send_to": 0}])],
    ]
    collective = {"kind": "all_reduce", "nranks": 2, "in_place": True}
    double = program(collective, ranks, [1, 1, 0], order="any", least=1, messages=2, in_place=True)
    wrong(double, "+1 of rank 0")
    right = changed(double, lambda c: code(c, 0)[1].update(op="recv") or code(c, 0)[1].pop("src"))
    check(changed(right, lambda c: c["claims"].update(order="position-independent")))
    wrong(changed(right, lambda c: code(c, 0)[0].update(src=0)), "alias")


# ---- Hostile files


def status(path, capsys):
    """The exit status, with an answer of one printable line."""
    number = main([str(path)])
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.endswith("\n")
    assert printed.out[:-1].isprintable()
    return number, printed.out


def test_answers_of_the_command(tmp_path, capsys):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(ring(4)))
    assert status(path, capsys)[0] == 0
    path.write_text(json.dumps(changed(ring(4), lambda c: c["claims"].update(steps=5))))
    number, line = status(path, capsys)
    assert (number, "wrong: step 5: claims: 6 steps, 24 transfers" in line) == (1, True)
    path.write_text("{")
    number, line = status(path, capsys)
    assert (number, "unreadable: Expecting property name" in line) == (2, True)
    path.write_text("[" * 100_000)
    assert "unreadable: too deep" in status(path, capsys)[1]
    assert "unreadable: No such file or directory" in status(tmp_path / "none.json", capsys)[1]
    assert "unreadable: Is a directory" in status(tmp_path, capsys)[1]
    assert main(["--help"]) == 0
    assert "Usage: simcoll-check FILE" in capsys.readouterr().out
    for arguments in ([], ["a", "b"], ["--what"]):
        assert main(arguments) == 2


HOSTILE = {
    "nothing": b"",
    "deep lists": b"[" * 400_000,
    "deep objects": b'{"a":' * 100_000,
    "many lists": b"[" + b"[]," * 600_000 + b"0]",
    "long number": b'{"version":' + b"9" * 5_000 + b"}",
    "very long number": b'{"version":-' + b"9" * 3_000_000 + b"}",
    "65 bits": b'{"version":9223372036854775808}',
    "NaN": b'{"version":NaN}',
    "infinity": b'{"version":-Infinity}',
    "float": b'{"version":1.0}',
    "huge float": b'{"version":1e999999}',
    "not UTF-8": b'{"format":"\xff"}',
    "UTF-16": '{"format":"x"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "key twice": b'{"version":1,"version":1}',
    "text": b'"certificate"',
    "null": b"null",
    "trailing": b"{} {}",
    "not gzip": b"\x1f\x8b",
    "truncated gzip": gzip.compress(b"{}" * 1000)[:-9],
    "wrong checksum": gzip.compress(b"{}")[:-8] + bytes(8),
    "damaged gzip": gzip.compress(bytes(range(256)) * 50)[:200] + bytes(100),
    "garbage after gzip": gzip.compress(b"{}") + b"garbage",
    "empty gzip members": gzip.compress(b"") * 2_000 + b"\x1f",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_unreadable(name, tmp_path, capsys):
    path = tmp_path / "c.json"
    path.write_bytes(HOSTILE[name])
    number, line = status(path, capsys)
    assert number == 2
    assert len(line) < 600 + len(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 40])
def test_bombs_are_not_unpacked(members, tmp_path, capsys):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256 // members)) + packer.flush()
    path = tmp_path / "bomb"
    path.write_bytes(bomb * members)
    assert len(bomb) < 300_000
    number, line = status(path, capsys)
    assert (number, "above the limits" in line) == (2, True)


def test_files_that_are_none(tmp_path, capsys):
    for path in (
        tmp_path,
        tmp_path / "missing",
        tmp_path / "missing\x1b[31m\u202e",
        "a\0b",
        "\udcff",
    ):
        assert status(path, capsys)[0] == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path, capsys):
    path = tmp_path / "c.json"
    path.write_text("{}")
    path.chmod(0)
    assert status(path, capsys)[0] == 2


def test_control_characters_never_reach_the_terminal(tmp_path, capsys):
    for name in ("\x1b[31mred", "a\nb", "a\u202eb", "\ud800", "x" * 201):
        path = tmp_path / "c\x1b[1m.json"
        path.write_text(json.dumps(changed(ring(2), lambda c, name=name: c.update(name=name))))
        number, line = status(path, capsys)
        assert (number, "name" in line) == (2, True)
        path.write_text(json.dumps(changed(ring(2), lambda c, name=name: c.update({name: 1}))))
        assert status(path, capsys)[0] == 2
        path.write_text(
            json.dumps(changed(ring(2), lambda c, name=name: columns(c).update(op=name)))
        )
        assert status(path, capsys)[0] in (1, 2)
    path.write_text(
        json.dumps(
            changed(ring(2), lambda c: c.update(name="Schöner Ring 環")), ensure_ascii=False
        ),
        encoding="utf-8",
    )
    assert status(path, capsys)[0] == 0


def places(value, path=()):
    """Every place in a document."""
    yield path
    for key, entry in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(entry, (*path, key))


@pytest.mark.slow
@pytest.mark.parametrize(
    "right",
    [ring(2, "by symmetry"), exchange(), direct("send_recv", 2)],
    ids=["ring", "program", "pairs"],
)
def test_values_of_wrong_types_are_unreadable(right):
    for path in places(right):
        for value in (
            None,
            True,
            1.5,
            "x",
            [],
            {},
            [[]],
            -1,
            2**63,
            10**5000,
            [None],
            float("nan"),
            [1.0],
            [[True]],
        ):
            other = copy.deepcopy(right)
            holder = other
            for key in path[:-1]:
                holder = holder[key]
            if path:
                holder[path[-1]] = value
            else:
                other = value
            if accepted(other):  # what was right before, or of another shape that is right as well
                assert (
                    other == right
                    or value in (True, None, [], "x")
                    or path[-1] in ("base", "stride")
                ), (path, value)


def accepted(certificate):
    """Whether a certificate is right; a reason of moderate length otherwise."""
    reason = ""
    try:
        check(certificate)
    except (Wrong, Unreadable) as error:
        reason = str(error)
    assert len(reason) < 1000
    return not reason


def test_unknown_and_missing_keys_are_unreadable():
    for right in (ring(2), exchange()):
        for path in places(right):
            holder = right
            for key in path:
                holder = holder[key]
            if not isinstance(holder, dict):
                continue
            for change in ("more", *holder):
                other = copy.deepcopy(right)
                inner = other
                for key in path:
                    inner = inner[key]
                if change == "more":
                    inner["comment"] = "x"
                    unreadable(other, "unknown key 'comment'")
                else:
                    del inner[change]
                    optional = {"in_place", "base", "op", "lane", "repeat", "stride", "modulus"}
                    assert not accepted(other) or change in optional, change


def test_a_key_that_occurs_twice_is_unreadable():
    text = json.dumps(ring(2))
    for key in ('"version": 1', '"modulus": 2', '"folds": false', '"kind": "full"'):
        assert key in text
        unreadable(text.replace(key, f"{key}, {key}", 1).encode(), "twice")


def test_other_versions_and_formats_are_unreadable():
    for key, value in (
        ("version", 2),
        ("version", True),
        ("version", 1.0),
        ("format", "simcoll-schedule"),
        ("subject", "plan"),
        ("subject", ["schedule"]),
        ("proof", {"kind": "by hand"}),
    ):
        unreadable(changed(ring(2), lambda c, key=key, value=value: c.update({key: value})))
    for kind in ("allreduce", "", "__class__"):
        unreadable(
            changed(ring(2), lambda c, kind=kind: c["collective"].update(kind=kind)), "collective"
        )


def test_roots_and_pairs():
    unreadable(changed(ring(2), lambda c: c["collective"].update(root=1)), "root")
    unreadable(changed(ring(2), lambda c: c["collective"].update(pairs=[[0, 1]])), "pairs")
    unreadable(changed(direct("broadcast", 2), lambda c: c["collective"].update(root=2)), "root")
    for pairs in ([[0, 2]], [[0]], [[0, 1], [0, 0]], [[0, 1], [1, 1]], [[0, 1, 1]], [[]]):
        unreadable(
            changed(
                direct("send_recv", 2), lambda c, pairs=pairs: c["collective"].update(pairs=pairs)
            ),
            "pairs",
        )


def test_limits_are_said(monkeypatch):
    limits = {
        "MAX_RANKS": (3, ring(4)),
        "MAX_CELLS": (31, ring(4)),
        "MAX_MOVES": (23, ring(4)),
        "MAX_STEP": (3, ring(4)),
        "MAX_MOVES_BY_SYMMETRY": (23, ring(4, "by symmetry")),
        "MAX_SUMS": (11, ring(4)),
        "MAX_PARTS": (27, ring(4)),
        "MAX_HEARD": (15, direct("barrier", 4)),
        "MAX_INSTRUCTIONS": (5, exchange()),
        "MAX_BYTES": (500, ring(4)),
        "MAX_LISTS": (10, ring(4)),
    }
    for name, (limit, certificate) in limits.items():
        data = json.dumps(certificate).encode()
        check(data)
        with monkeypatch.context() as patch:
            patch.setattr(simcoll_check, name, limit)
            with pytest.raises(Unreadable, match=r"limits|ranks"):
                check(data)
    huge = changed(ring(2), lambda c: c["blocks"][0].update(repeat=2**62))
    unreadable(huge, "above the limits")
    unreadable(changed(ring(2), lambda c: c.update(chunks=2**62)), "above the limits")
    unreadable(
        changed(ring(2), lambda c: c.update(scratch=[0] * 100, chunks=2**40)), "above the limits"
    )
    unreadable(changed(ring(2), lambda c: columns(c).update(count=2**62)), "above the limits")
    unreadable(changed(ring(2), lambda c: c["collective"].update(nranks=2**62)))
    wrong(
        changed(direct("barrier", 2), lambda c: c.update(chunks=2**62)) | {"blocks": []}, "claims"
    )
    idle = changed(ring(2), lambda c: c["blocks"].append({"steps": [], "repeat": 2**62}))
    check(idle)


def test_interrupts_end_with_130(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(simcoll_check, "check", interrupt)
    assert main(["x"]) == 130
    assert capsys.readouterr() == ("", "")


# ---- The file itself


def test_the_file_is_short_and_needs_only_the_standard_library():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 500
    assert max(map(len, lines)) <= 140
    tree = ast.parse("\n".join(lines))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imports for alias in node.names if isinstance(node, ast.Import)}
    names |= {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    assert names
    assert names <= sys.stdlib_module_names


@pytest.mark.slow
def test_it_runs_alone_in_an_empty_folder(tmp_path):
    (tmp_path / "simcoll_check.py").write_bytes(FILE.read_bytes())
    cases = {
        "right": (0, ring(4)),
        "wrong": (1, changed(ring(4), lambda c: c["blocks"].pop())),
        "not": (2, {}),
    }
    for name, (expected, certificate) in cases.items():
        (tmp_path / "c.json").write_text(json.dumps(certificate))
        command = [sys.executable, "-I", "-S", "simcoll_check.py", "c.json"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (expected, ""), name
        assert name in done.stdout or expected == 2
        assert "'simcoll" not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="Linux tells the peak of a process"
)
def test_a_large_ring_needs_little_memory(tmp_path):
    # 256 ranks here; 1,024 ranks take sixteen times as long and 90 MB.
    (tmp_path / "ring.json").write_text(json.dumps(ring(256, "by symmetry")))
    code_text = (
        "import sys; sys.path.insert(0, sys.argv[1]); import simcoll_check; status = "
        "simcoll_check.main(sys.argv[2:]);"
        " print(status, open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    command = [sys.executable, "-I", "-c", code_text, str(FILE.parent), str(tmp_path / "ring.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    result, kilobytes = done.stdout.splitlines()[-1].split()
    assert result == "0"
    assert int(kilobytes) < 64_000


def test_slots_of_the_test_agree_with_the_public_definition():
    # The two tables were written apart; simcoll's own is the third.
    from simcoll.core.collective import KINDS as PUBLIC

    for kind in SENDING:
        for n in (1, 2, 5):
            assert slots(kind, n) == (PUBLIC[kind].input_slots(n), PUBLIC[kind].output_slots(n))


# ---- Paths and conversions, which are not checked


def test_paths_and_conversions_are_named():
    plain = check(direct("all_gather", 3))
    assert "not checked" not in plain

    def travel(c, **how):
        columns(c).update(how)

    paths = check(changed(direct("all_gather", 3), lambda c: travel(c, via="net")))
    assert paths.replace("; its paths are not checked", "") == plain
    both = check(changed(direct("all_gather", 3), lambda c: travel(c, via="x", wire="int8/9")))
    assert "its conversions on the way are not: outputs are right up to their rounding" in both
    nothing = check(changed(direct("all_gather", 3), lambda c: travel(c, via="", wire="")))
    assert nothing == plain


def test_what_is_converted_has_no_order():
    converting = changed(direct("all_reduce", 3), lambda c: columns(c).update(wire="bfloat16"))
    wrong(converting, "claims.order", "converted")
    converting["claims"]["order"] = "any"
    check(converting)
    columns(converting)["dst_rank"][0] ^= 1  # the data is checked all the same
    with pytest.raises(Wrong):
        check(converting)


@pytest.mark.parametrize("texts", [["net"], 3, [["net"]], ["\x07"] * 9, ["a" * 201] * 9])
def test_other_paths_are_unreadable(texts):
    unreadable(changed(direct("all_gather", 3), lambda c: columns(c).update(via=texts)))
