"""The certificate of a partition: a comparison of the numbers themselves, whatever the partition
came from.

:mod:`simcoll.emulator.folding.partition` says what has to hold, and why the times of a class are
then equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simcoll.arrays import Array, Ints, Shorts
from simcoll.emulator.folding.partition import (
    Partition,
    Ties,
    alike,
    connections_in_order,
    dense,
    first_of,
    runs_of_steps,
)
from simcoll.emulator.steps.timed import StepShape, Timed

__all__ = ["certify"]

WIDE = 64
"""With more columns, rows are compared as bytes, one by one."""
COMPARED_ROWS = 1 << 20
"""Number of message links compared at a time, which bounds memory; every comparison has a cost
proportional to all links.
"""
NOT_ALIKE = (
    "lanes of one class take part in different messages",
    "links of one class carry different messages",
    "connections of one class carry different messages",
)


def _alike_lists(pairs: Sequence[tuple[Array, Array]], owner_class: Ints) -> bool:
    """Whether all owners of a class have the same multiset of values, from columns of owners and
    values.
    """
    from simcoll.emulator.fast.grouping import lists_equal  # imports numba

    return lists_equal(
        pairs, first_of(owner_class, int(owner_class.max(initial=-1)) + 1)[owner_class]
    )


def _not_a_partition(
    patterns: Sequence[Timed], capacity: Ints, partition: Partition, connections: int
) -> str:
    """Why the given numbers are not classes of all lanes, links and connections; empty if they
    are.
    """
    used_lanes = 1 + max(
        (int(max(s.shape.sender.max(), s.shape.receiver.max())) for s in patterns), default=-1
    )
    given = [("lane", partition.lanes, used_lanes), ("link", partition.links, len(capacity))]
    if partition.connections is not None:
        given.append(("connection", partition.connections, connections))
    for what, classes, wanted in given:
        if len(classes) < wanted or (what != "lane" and len(classes) != wanted):
            return f"{len(classes)} classes of {what}s are given; the plan has {wanted} {what}s"
        if len(classes) and (classes.min() < 0 or not np.bincount(classes).all()):
            return f"the classes of {what}s are not numbered from 0 without gaps"
    return ""


def certify(
    patterns: Sequence[Timed], capacity: Ints, partition: Partition, ties: Ties | None = None
) -> list[Shorts] | str:
    """The class of every message of each step, numbered from 0 within it; or the reason why the
    partition fails.

    With connections, the messages of one connection have classes in their order; leaders of switch
    operations come first.
    """
    lanes, links, ways = partition.lanes, partition.links, partition.connections
    numbers, places, count = connections_in_order(patterns)
    if count and ways is None:
        return f"no classes are given of {count} connections"
    if refused := _not_a_partition(patterns, capacity, partition, count):
        return refused
    if not patterns:
        return "the plan moves nothing"
    if not np.array_equal(
        capacity[first_of(links, int(links.max(initial=-1)) + 1)][links], capacity
    ):
        return "links of one class have different capacities"
    found: list[Shorts] = []
    lists, held = _Lists([], [], []), 0
    first, begins, padded = 0, np.cumsum([0, *map(len, patterns)]).tolist(), np.append(links, -1)
    padded = padded.astype(np.int16 if padded.max() < 1 << 15 else np.int32)
    for some, run in runs_of_steps(patterns):
        here = slice(begins[some[0]], begins[some[-1] + 1])
        ordered = (
            (places[some[0]], ways[numbers[some[0]]])
            if run.uses_connections and ways is not None
            else ()
        )
        every = (dense if ordered else alike)(
            *(
                (np.repeat(some, np.diff(begins[some[0] : some[-1] + 2])),)
                if len(some) > 1
                else ordered
            ),
            run.delay_fs,
            run.busy_fs,
            run.wire,
            run.post_fs,
            lanes[run.shape.sender],
            lanes[run.shape.receiver],
            *_crossed(run.shape, padded),
            *(() if partition.marks is None else (partition.marks[here],)),
        )
        if run.shape.leader is not None:
            every = _leaders_first(every, run.shape.leader)
        lists.add(run, (first + every).astype(np.int32), numbers[some[0]])
        held += run.shape.links.size
        if held >= COMPARED_ROWS or some[-1] + 1 == len(patterns):
            if refused := lists.unlike(partition):
                return refused
            lists, held = _Lists([], [], []), 0
        before = 0
        for number in some:  # the numbers of a run ascend from step to step
            names = every[begins[number] - here.start : begins[number + 1] - here.start] - before
            before += int(names.max(initial=-1)) + 1
            found.append(names.astype(np.int32))
        first += before
    if ties is not None:
        begins = np.cumsum([0, *(int(names.max()) + 1 for names in found)]).tolist()
        if refused := ties.broken(
            np.concatenate([names + begin for names, begin in zip(found, begins, strict=False)])
        ):
            return refused
    return found


def _crossed(shape: StepShape, classes: Array) -> Sequence[Array]:
    """The link classes of each message in order, as columns; as one column if few messages have
    links.
    """
    crossed = classes[shape.links]
    crossed.sort(axis=1)
    if shape.linked is None:
        return [*crossed.T]
    found = np.zeros(len(shape.sender), np.int64)
    if crossed.shape[1] > WIDE:
        known: dict[bytes, int] = {}
        found[shape.linked] = [1 + known.setdefault(row.tobytes(), len(known)) for row in crossed]
    else:
        found[shape.linked] = 1 + alike(shape.linked * 0, *crossed.T)
    return [found]


class _Lists(NamedTuple):
    """Multisets of messages at lanes, links and connections: columns of owners and of message
    classes.
    """

    lanes: list[tuple[Array, Array]]
    links: list[tuple[Array, Array]]
    ways: list[tuple[Array, Array]]

    def add(self, step: Timed, names: Shorts, ways: Ints) -> None:
        """Add a step with the classes of its messages, and their connections."""
        shape = step.shape
        self.lanes.extend(((shape.sender, 2 * names), (shape.receiver, 2 * names + 1)))
        own = names if shape.linked is None else names[shape.linked]
        if shape.linked is None:
            self.links.extend((link, own) for link in shape.links.T)
        else:  # few rows, which may have many links
            self.links.append((shape.links.reshape(-1), np.repeat(own, shape.links.shape[1])))
        if step.uses_connections:
            self.ways.append((ways, names))

    def unlike(self, partition: Partition) -> str:
        """The kind of owners of one class that have different multisets.

        Empty if none. A step is compared only with itself.
        """
        classes = partition.lanes, partition.links, partition.connections
        for keys, of, what in zip(self, classes, NOT_ALIKE, strict=True):
            if of is not None and not _alike_lists(keys, of):
                return what
        return ""


def _leaders_first(names: Ints, leader: Ints) -> Ints:
    """Class numbers with those of leaders first."""
    one = first_of(names, int(names.max()) + 1)
    order = np.argsort(leader[one] != one, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place[names]
