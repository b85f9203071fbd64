"""Broken variants of every shipped schedule, each with one fault, all deterministic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.core.collective import Collective
from simcoll.core.schedule import COPY, REDUCE, SWITCH_REDUCE, SYNC, Layout, Schedule, transfers
from simcoll.errors import ConfigError
from simcoll.testing.examples import needed_params

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from simcoll.algorithms import Algorithm
    from simcoll.core.step import Step

SIZES = (2, 3, 4, 5, 6, 7, 8)
FIELDS = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")


@dataclass(frozen=True, slots=True)
class Row:
    """One transfer."""

    src: int
    src_chunk: int
    dst: int
    dst_chunk: int
    count: int
    op: int
    channel: int


Rows = list[list[Row]]
Changes = dict[str, int]
"""New values of some fields of a transfer; of millions of mutants few are made."""


def rows_of(schedule: Schedule) -> Rows:
    """The transfers of every step."""
    return [
        [Row(*row) for row in zip(*(getattr(step, f).tolist() for f in FIELDS), strict=True)]
        for step in schedule.steps()
    ]


def step_of(rows: list[Row]) -> Step:
    """The transfers of one step."""

    def column(name):
        return np.array([getattr(row, name) for row in rows], np.int64)

    return transfers(
        column("src"),
        column("src_chunk"),
        column("dst"),
        column("dst_chunk"),
        count=column("count"),
        op=column("op"),
        channel=column("channel"),
    )


def rebuilt(
    schedule: Schedule,
    rows: Rows,
    *,
    in_place: bool | None = None,
    kept: Mapping[int, Step] | None = None,
) -> Schedule:
    """A schedule with the layout of another and these transfers; ``kept``: steps that are made, by
    the identity of their rows.
    """
    kept = kept or {}
    steps = [kept[id(step)] if id(step) in kept else step_of(step) for step in rows]
    layout = schedule.layout
    if in_place is not None:
        collective = replace(layout.collective, in_place=in_place)
        layout = Layout(collective, layout.chunks, layout.scratch, layout.scratch_pieces)
    channels = 1 + max((row.channel for step in rows for row in step), default=0)
    lanes = max(schedule.nchannels, channels)
    return Schedule("mutant", layout, lambda: iter(steps), lanes, divisible=schedule.divisible)


def mutants(schedule: Schedule) -> Iterator[tuple[str, Callable[[], Schedule]]]:
    """``(kind of fault, what makes the schedule)`` of every variant with one fault."""
    rows = rows_of(schedule)
    kept = {id(step): step_of(step) for step in rows}  # a fault is in one step or two
    if schedule.collective.definition is None:  # a custom collective is never in place
        yield (
            "in place flipped",
            lambda: rebuilt(schedule, rows, in_place=not schedule.collective.in_place),
        )
    for kind, changed in _faults(schedule, rows):
        yield kind, partial(_made, schedule, changed, kept)


def _made(schedule: Schedule, changed: Callable[[], Rows], kept: Mapping[int, Step]) -> Schedule:
    return rebuilt(schedule, changed(), kept=kept)


def _faults(schedule: Schedule, rows: Rows) -> Iterator[tuple[str, Callable[[], Rows]]]:
    for s in range(len(rows) - 1):
        yield "steps swapped", partial(_swapped, rows, s)
        yield "steps merged", partial(_merged, rows, s)
    for s, step in enumerate(rows):
        for i, row in enumerate(step):
            yield from _placed(schedule, rows, s, i, row)
            if row.op != SYNC:
                for kind, changes in _changed(schedule, row):
                    yield kind, partial(_put, rows, s, i, *changes)


def _swapped(rows: Rows, s: int) -> Rows:
    return [*rows[:s], rows[s + 1], rows[s], *rows[s + 2 :]]


def _merged(rows: Rows, s: int) -> Rows:
    return [*rows[:s], rows[s] + rows[s + 1], *rows[s + 2 :]]


def _put(rows: Rows, s: int, i: int, *changes: Changes, at: int | None = None) -> Rows:
    """Without transfer i of step s; at the end of that step or another, the transfer with each of
    these changes.
    """
    result = list(rows)
    result[s] = [r for k, r in enumerate(rows[s]) if k != i]
    place = s if at is None else at
    result[place] = [*result[place], *(replace(rows[s][i], **each) for each in changes)]
    return result


def _again(rows: Rows, row: Row, at: int) -> Rows:
    return [*rows[:at], [row], *rows[at:]]


def _exchanged(rows: Rows, first: tuple[int, int], second: tuple[int, int]) -> Rows:
    result = [list(step) for step in rows]
    (s, i), (t, j) = first, second
    result[s][i], result[t][j] = rows[t][j], rows[s][i]
    return result


def _placed(
    schedule: Schedule, rows: Rows, s: int, i: int, row: Row
) -> Iterator[tuple[str, Callable[[], Rows]]]:
    """A transfer left out, done again, at another time, between other ranks, on another channel."""
    n, put = schedule.nranks, partial(_put, rows, s, i)
    yield "drop", put
    yield "duplicate", partial(_again, rows, row, s + 1)
    yield "duplicate", partial(_again, rows, row, len(rows))
    yield "wrong source", partial(put, {"src": (row.src + 1) % n})
    yield "wrong destination", partial(put, {"dst": (row.dst + 1 + (s + i) % (n - 1)) % n})
    back = {"src": row.dst, "src_chunk": row.dst_chunk, "dst": row.src, "dst_chunk": row.src_chunk}
    yield "direction swapped", partial(put, back)
    for at in sorted({s - 1, s + 1, 0, len(rows) - 1} - {s}):
        if 0 <= at < len(rows):
            yield "step moved", partial(put, {}, at=at)
    yield (
        "channel changed",
        partial(put, {"channel": (row.channel + 1) % max(2, schedule.nchannels)}),
    )
    later = (s + 1 + i) % len(rows)
    if later != s and rows[later]:
        yield (
            "two transfers swapped",
            partial(_exchanged, rows, (s, i), (later, i % len(rows[later]))),
        )


def _changed(schedule: Schedule, row: Row) -> Iterator[tuple[str, tuple[Changes, ...]]]:
    """A transfer of other chunks, with another operation, of another length, or in two parts."""
    size, chunks = schedule.layout.size, schedule.layout.chunks
    yield "wrong chunk", ({"src_chunk": (row.src_chunk + 1) % size},)
    yield "wrong chunk", ({"dst_chunk": (row.dst_chunk + size - 1) % size},)
    for over in (1, chunks):
        yield (
            "wrong chunk",
            (
                {
                    "src_chunk": (row.src_chunk + over) % size,
                    "dst_chunk": (row.dst_chunk + over) % size,
                },
            ),
        )
    for op in (COPY, REDUCE, SWITCH_REDUCE):
        if op != row.op and (op != SWITCH_REDUCE or row.op == REDUCE):
            yield "reduce flipped", ({"op": op},)
    yield "count changed", ({"count": row.count + 1},)
    if row.count > 1:
        yield "count changed", ({"count": row.count - 1},)
        half = row.count // 2
        rest = {
            "src_chunk": row.src_chunk + half,
            "dst_chunk": row.dst_chunk + half,
            "count": row.count - half,
        }
        rest["channel"] = (row.channel + 1) % max(2, schedule.nchannels)
        yield "split over channels", ({"count": half}, rest)


def collective_of(
    kind: str, nranks: int, root: int | None = None, *, in_place: bool = False
) -> Collective:
    """A collective of each kind; a send_recv shifts by one."""
    pairs = tuple((r, (r + 1) % nranks) for r in range(nranks)) if kind == "send_recv" else ()
    return Collective(kind, nranks, root=root, pairs=pairs, in_place=in_place)


def originals(
    sizes: tuple[int, ...] = SIZES, algorithms: tuple[Algorithm, ...] = ALGORITHMS
) -> Iterator[Schedule]:
    """Every shipped algorithm: plain, with two channels, with two pieces, in place, and with the
    last rank as root.
    """
    for algorithm in algorithms:
        params = algorithm.params
        variants: list[dict[str, int]] = [
            {},
            *({name: 2} for name in ("channels", "pieces") if name in params),
        ]
        if "box" in params and algorithm.topologies != "any":
            variants.append({"box": 2})
        for n in sizes:
            for extra in variants:
                yield from _built(algorithm, n, extra, None, in_place=False)
            yield from _built(algorithm, n, {}, None, in_place=True)
            if collective_of(algorithm.collective, n).root is not None:
                yield from _built(algorithm, n, {}, n - 1, in_place=False)


def _built(
    algorithm: Algorithm, n: int, extra: dict[str, int], root: int | None, *, in_place: bool
) -> Iterator[Schedule]:
    """The schedule, or none where the algorithm does not serve it; one that needs a box gets boxes
    of two.
    """
    collective = collective_of(algorithm.collective, n, root, in_place=in_place)
    extra = needed_params(algorithm.collective, algorithm.name, n) | extra
    for more in ({}, {"box": 2}):
        if "box" in algorithm.params or not more:
            try:
                yield simcoll.schedule(collective, algorithm.name, **(more | extra))
            except ConfigError:
                continue
            return
