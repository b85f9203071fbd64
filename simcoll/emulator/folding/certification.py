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
    numberings = [("lane", partition.lanes, used_lanes), ("link", partition.links, len(capacity))]
    if partition.connections is not None:
        numberings.append(("connection", partition.connections, connections))
    for owner, classes, size in numberings:
        if len(classes) < size or (owner != "lane" and len(classes) != size):
            return f"{len(classes)} classes of {owner}s are given; the plan has {size} {owner}s"
        if len(classes) and (classes.min() < 0 or not np.bincount(classes).all()):
            return f"the classes of {owner}s are not numbered from 0 without gaps"
    return ""


def certify(
    patterns: Sequence[Timed], capacity: Ints, partition: Partition, ties: Ties | None = None
) -> list[Shorts] | str:
    """The class of every message of each step, numbered from 0 within it; or the reason why the
    partition fails.

    With connections, the messages of one connection have classes in their order; leaders of switch
    operations come first.
    """
    # The classes of messages are made here from the numbers that decide their times (costs, classes
    # of lanes and links, places on connections), never taken from the refinement: equal hashes
    # could be chance, and a partition may come from any source, such as another size. Two
    # messages of a class are then equal by construction, and what is left to compare are the
    # lanes, links and connections of a class: whether they have the same multiset of messages.
    #
    # Invariant: classes of different runs of steps have different numbers (``first_class``), so one
    # comparison serves several steps, and a lane cannot make up for a message that it lacks in one
    # step with a message of another. Comparing step by step gives the same answer with one pass
    # over all lanes for each step; comparing all steps at once would need memory for all links.
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
    names_of_steps: list[Shorts] = []
    lists, compared_links = _Lists([], [], []), 0
    first_class, begins, padded = (
        0,
        np.cumsum([0, *map(len, patterns)]).tolist(),
        np.append(links, -1),
    )
    padded = padded.astype(np.int16 if padded.max() < 1 << 15 else np.int32)
    for some, run in runs_of_steps(patterns):
        rows = slice(begins[some[0]], begins[some[-1] + 1])
        ordered = (
            (places[some[0]], ways[numbers[some[0]]])
            if run.uses_connections and ways is not None
            else ()
        )
        classes = (dense if ordered else alike)(
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
            *(() if partition.marks is None else (partition.marks[rows],)),
        )
        if run.shape.leader is not None:
            classes = _leaders_first(classes, run.shape.leader)
        lists.add(run, (first_class + classes).astype(np.int32), numbers[some[0]])
        compared_links += run.shape.links.size
        if compared_links >= COMPARED_ROWS or some[-1] + 1 == len(patterns):
            if refused := lists.unlike(partition):
                return refused
            lists, compared_links = _Lists([], [], []), 0
        classes_so_far = 0
        for number in some:  # the numbers of a run ascend from step to step
            names = (
                classes[begins[number] - rows.start : begins[number + 1] - rows.start]
                - classes_so_far
            )
            classes_so_far += int(names.max(initial=-1)) + 1
            names_of_steps.append(names.astype(np.int32))
        first_class += classes_so_far
    if ties is not None:
        begins = np.cumsum([0, *(int(names.max()) + 1 for names in names_of_steps)]).tolist()
        if refused := ties.broken(
            np.concatenate(
                [names + begin for names, begin in zip(names_of_steps, begins, strict=False)]
            )
        ):
            return refused
    return names_of_steps


def _crossed(shape: StepShape, classes: Array) -> Sequence[Array]:
    """The link classes of each message in order, as columns; as one column if few messages have
    links.
    """
    crossed = classes[shape.links]
    crossed.sort(axis=1)
    if shape.linked is None:
        return [*crossed.T]
    sets = np.zeros(len(shape.sender), np.int64)
    if crossed.shape[1] > WIDE:
        numbers: dict[bytes, int] = {}
        sets[shape.linked] = [
            1 + numbers.setdefault(row.tobytes(), len(numbers)) for row in crossed
        ]
    else:
        sets[shape.linked] = 1 + alike(shape.linked * 0, *crossed.T)
    return [sets]


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
        linked_names = names if shape.linked is None else names[shape.linked]
        if shape.linked is None:
            self.links.extend((link, linked_names) for link in shape.links.T)
        else:  # few rows, which may have many links
            self.links.append(
                (shape.links.reshape(-1), np.repeat(linked_names, shape.links.shape[1]))
            )
        if step.uses_connections:
            self.ways.append((ways, names))

    def unlike(self, partition: Partition) -> str:
        """The kind of owners of one class that have different multisets.

        Empty if none. A step is compared only with itself.
        """
        classes = partition.lanes, partition.links, partition.connections
        for keys, of, reason in zip(self, classes, NOT_ALIKE, strict=True):
            if of is not None and not _alike_lists(keys, of):
                return reason
        return ""


def _leaders_first(names: Ints, leader: Ints) -> Ints:
    """Class numbers with those of leaders first."""
    example = first_of(names, int(names.max()) + 1)
    order = np.argsort(leader[example] != example, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place[names]
