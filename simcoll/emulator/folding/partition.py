"""Partitions of lanes and links into symmetry classes, found by colour refinement.

**Claim.** Suppose that every step gives each lane of a class the same messages, that each link of a
class carries the same messages (messages are the same if their costs and the classes of their lanes
and links are equal), and that the links of a class have equal capacity. Then all messages of a
class have the same times. With a FIFO, connections have classes, too: every step gives each
connection of a class the same messages in the same order, and messages are the same only if, in
addition, the classes of their connections and their positions in that order are equal.

**Why.** By induction over the times of events. Whether a lane enters a step depends only on when
its messages of earlier steps were done or flowed, and how long they kept it busy. Whether a message
is ready depends only on its two lanes and, with a FIFO, on the message some places before it on its
connection; that has the same class throughout a class, since the connections of one class have the
same messages in every step. The rates depend only on the capacities and on how many flows of each
kind are on each link. All of that is equal within a class, and the arithmetic is exact.

Messages can be tied to each other: a switch handles several at a time, or one waits for others.
Messages are then the same only if the messages of their operation (one of which leads) and those
that they wait for are the same, because the operation begins, and the wait ends, for all at the
same time.

Refinement uses 64-bit hashes, and a partition may come from any source;
:mod:`simcoll.emulator.folding.certification` compares the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints
from simcoll.core.hashing import SALTS, mix
from simcoll.emulator.steps.joint import RowCosts
from simcoll.emulator.steps.timed import StepShape, Timed

Hashes = NDArray[np.uint64]

__all__ = [
    "TOO_LITTLE",
    "Partition",
    "Ties",
    "alike",
    "connections_in_order",
    "dense",
    "first_of",
    "in_one",
    "out_of_patience",
    "refine",
    "runs_of_steps",
]

NONE = np.zeros(0, np.int64)
SHORT_ROWS = 1 << 13
"""Number of rows below which steps are joined to runs: each step costs microseconds a dozen
times. The classes of a ring of 1,024 ranks take as long with 2^10, and an eighth longer with 2^16;
those of a pairwise exchange of 512 ranks take the same time with all three.
"""
JOINED_ROWS = 1 << 19
"""Up to this number of rows steps are joined, since runs are copies: some 30 MB. It decides
nothing about the time (pairwise exchange of 1,024 ranks, 2^16 to 2^22 rows).
"""
FEW = 256
"""Number of rows that are compared before all."""
TOO_LITTLE = "too little symmetry: more than a quarter of the lanes differ"


class Ties(NamedTuple):
    """Ties between rows of distinct steps: each row's switch leader or -1, and pairs of rows, the
    first of which waits for the second.
    """

    leader: Ints
    later: Ints
    earlier: Ints

    def marked(self, messages: Hashes) -> Hashes:
        """Hashes of messages, mixed with those of the messages that they are tied to."""
        from simcoll.emulator.fast.refining import tie_hashes  # imports numba

        return tie_hashes(messages, self.leader, self.later, self.earlier)

    def broken(self, names: Ints) -> str:
        """Why messages of one class are tied to different ones; empty if they are not."""
        from simcoll.emulator.fast.grouping import lists_equal  # imports numba

        leads = np.where(self.leader >= 0, names[self.leader], -1)
        own = self.leader == np.arange(len(names))
        one = first_of(names, int(names.max(initial=-1)) + 1)[names]
        if not (np.array_equal(leads[one], leads) and np.array_equal(own[one], own)):
            return "messages of one class belong to different switch operations"
        leaders = np.flatnonzero(own)
        operation = np.full(len(names) + 1, -1, np.int32)  # the last entry is for messages of none
        operation[leaders] = np.arange(len(leaders))
        if not lists_equal(
            [(operation[self.leader], names)], operation[one[leaders]].astype(np.int64)
        ):
            return "switch operations of one class have different messages"
        if len(self.later) and not lists_equal([(self.later, names[self.earlier])], one):
            return "messages of one class wait for different ones"
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The class of every lane, every link, and with a FIFO every connection (in their order),
    numbered from 0.

    ``marks`` distinguish rows of distinct steps that are tied to others; ``rounds`` is the number
    of rounds that refinement took.
    """

    lanes: Ints
    links: Ints
    connections: Ints | None = None
    marks: Ints | None = None
    rounds: int = 0


def dense(*columns: Ints) -> Ints:
    """Number the distinct rows of some columns from 0, without collisions.

    >>> import numpy as np
    >>> dense(np.array([7, 7, 5]), np.array([1, 1, 1])).tolist()
    [1, 1, 0]
    """
    names = np.unique(columns[0], return_inverse=True)[1]
    for column in columns[1:]:
        if column.size and (column == column[0]).all():
            continue
        other = np.unique(column, return_inverse=True)[1]
        names = np.unique(names * (int(other.max(initial=0)) + 1) + other, return_inverse=True)[1]
    return names.astype(np.int64)


def alike(*columns: NDArray[Any]) -> Ints:
    """Number the distinct rows of some columns from 0 by hashes, then verify the rows against the
    numbers.

    >>> import numpy as np
    >>> len(set(alike(np.array([7, 7, 5]), np.array([1, 1, 1])).tolist()))
    2
    """
    from simcoll.emulator.fast.grouping import group_rows  # imports numba

    names, equal = group_rows([column for column in columns if _varies(column)] or columns[:1])
    return names if equal else dense(*columns)


def _varies(column: NDArray[Any]) -> bool:
    """Whether a column has different values, which its first few nearly always show."""
    if not column.size or not column.strides[0]:
        return False
    return bool((column[:FEW] != column[0]).any() or (column != column[0]).any())


def first_of(names: Array, count: int) -> Ints:
    """The first row of each of ``count`` classes."""
    rows = np.zeros(count, np.int64)
    rows[names[::-1]] = np.arange(len(names))[::-1]
    return rows


def connections_in_order(patterns: Sequence[Timed]) -> tuple[list[Ints], list[Ints], int]:
    """For every step, each message's connection and its position there within the step; and the
    number of connections.

    A step without connections gets empty arrays.
    """
    from simcoll.emulator.fast.grouping import number_words, positions  # imports numba

    if not any(step.uses_connections for step in patterns):
        return [NONE] * len(patterns), [NONE] * len(patterns), 0
    lanes = 1 + max((int(step.shape.receiver.max(initial=-1)) for step in patterns), default=-1)
    pairs = [_connections(step, lanes) for step in patterns]
    all_pairs = np.concatenate([*pairs, np.zeros(0, np.int64)])
    names, first_rows = number_words(all_pairs.view(np.uint64))
    ascending = np.empty(len(first_rows), np.int64)
    ascending[np.argsort(all_pairs[first_rows])] = np.arange(len(first_rows))
    numbers = np.split(ascending[names], np.cumsum([len(pair) for pair in pairs]))[: len(pairs)]
    return numbers, [positions(number, len(first_rows)) for number in numbers], len(first_rows)


def _connections(step: Timed, lanes: int) -> Ints:
    """Numbers of the connections of a step; empty if it has none."""
    if not step.uses_connections:
        return np.zeros(0, np.int64)
    connection = step.shape.connection
    return step.shape.sender * lanes + step.shape.receiver if connection is None else connection


def in_one(tables: Iterable[Sequence[Array]]) -> list[Array]:
    """The columns of several tables, one table after the other; columns of one value that take no
    memory still take none.
    """
    return [_joined(parts) for parts in zip(*tables, strict=True)]


def _joined(parts: Sequence[Array]) -> Array:
    if len(parts) > 1 and all(part.strides == (0,) and part[0] == parts[0][0] for part in parts):
        return np.broadcast_to(parts[0][0], sum(map(len, parts)))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def runs_of_steps(patterns: Sequence[Timed]) -> list[tuple[range, Timed]]:
    """The steps, with runs of short ones that have nothing but links and costs joined to one step,
    and their numbers.
    """
    rows = sum(map(len, patterns))

    def kind(number: int) -> tuple[int, ...]:
        step, shape = patterns[number], patterns[number].shape
        plain = (
            len(step) < SHORT_ROWS
            and not step.uses_connections
            and shape.leader is None
            and shape.linked is None
        )
        return (shape.links.shape[1],) if plain and rows <= JOINED_ROWS else (-1, number)

    runs = []
    for _, some in groupby(range(len(patterns)), kind):
        numbers = [*some]
        steps = [patterns[number] for number in numbers]
        if len(steps) > 1:
            shapes = [step.shape for step in steps]
            sender, receiver = in_one((shape.sender, shape.receiver) for shape in shapes)
            shape = StepShape(
                sender,
                receiver,
                sender,
                receiver,
                np.concatenate([shape.links for shape in shapes]),
                NONE,
            )
            costs = in_one((step.delay_fs, step.busy_fs, step.wire, step.post_fs) for step in steps)
            steps = [Timed(shape, *RowCosts(*costs), size=sender, bytes_by_op=())]
        runs.append((range(numbers[0], numbers[-1] + 1), steps[0]))
    return runs


def _colour(hashes: Hashes) -> tuple[Ints, int]:
    from simcoll.emulator.fast.grouping import number_words  # imports numba

    names, first_rows = number_words(hashes)
    return names, len(first_rows)


def _hashed(names: Ints, salt: np.uint64) -> Hashes:
    return mix(names.astype(np.uint64) + salt)


def _words(count: int, salt: np.uint64) -> Hashes:
    """Hashes of numbers below ``count``, apart from those of lanes and links, to which they are
    added.
    """
    return mix(_hashed(np.arange(count), salt))


# In a round every message gets a hash of its costs and of the colours of its lanes and links, and
# every lane and link adds those of its messages to its colour. Sums, because within a step messages
# have no order. The step's own word and its costs are the same in every round, so they are hashed
# once (``fixed``).
#
# Invariant: a new colour contains the old one, so classes only ever split. A round that leaves all
# three counts as they were has split nothing, and its partition is the coarsest stable one. Equal
# hashes of different messages could only merge classes that differ, and the certification, which
# compares the messages themselves, would refuse them.
#
# The alternative, a queue of the classes that have just split (Hopcroft's), visits only messages at
# those classes, but needs an index of all messages by class and jumps between steps. It would save
# little: all-reduces on 16 to 128 nodes of DGX H100 take one to eight rounds (ring of 1,024 ranks:
# five, 1.1 ms), each a pass over the columns in their order.
def refine(
    patterns: Sequence[Timed],
    capacity: Ints,
    nlanes: int,
    most_classes: int,
    most_rounds: int | None = None,
    ties: Ties | None = None,
) -> Partition | str:
    """The coarsest partition by colour refinement, or the limit exceeded: ``most_classes`` of
    lanes, or ``most_rounds``.
    """
    from simcoll.emulator.fast.refining import Colours, spread  # imports numba

    lanes, links = np.zeros(nlanes, np.int64), dense(capacity)
    numbers, places, count = connections_in_order(patterns)
    ways = np.zeros(count, np.int64)
    counts = (1, int(links.max(initial=-1)) + 1, min(count, 1))
    begins = np.cumsum([0, *map(len, patterns)])
    marks, kinds = np.zeros(begins[-1] if ties else 0, np.uint64), 0
    runs = runs_of_steps(patterns)
    messages = np.empty(
        begins[-1] if ties else max((len(step) for _, step in runs), default=0), np.uint64
    )
    # Equal numbers mean equal costs only within a step, and a step is compared only with itself.
    every, fixed = _words(len(patterns), SALTS[1]), []
    for some, step in runs:
        costs = step.delay_fs, step.busy_fs, step.wire, step.post_fs
        names = alike(*costs, *places[some[0] : some[0] + step.uses_connections])
        fixed.append(_words(int(names.max(initial=-1)) + 1, SALTS[0])[names])
        fixed[-1] += np.repeat(
            every[some[0] : some[-1] + 1], np.diff(begins[some[0] : some[-1] + 2])
        )
    # Every round except the last increases the number of classes.
    for turn in range(
        nlanes + len(links) + count + len(marks) + 2 if most_rounds is None else most_rounds
    ):
        old = Colours(_hashed(lanes, SALTS[0]), _hashed(links, SALTS[1]), _hashed(ways, SALTS[2]))
        new = Colours(*(hashes.copy() for hashes in old))
        for (some, step), cost in zip(runs, fixed, strict=True):
            connected = numbers[some[0]] if step.uses_connections else NONE
            part = slice(begins[some[0]], begins[some[-1] + 1])
            spread(
                step.shape,
                cost,
                connected,
                marks[part],
                old,
                new,
                messages[part] if ties else messages[: len(step)],
            )
        lanes, lane_count = _colour(new.lanes)
        links, link_count = _colour(new.links)
        ways, way_count = _colour(new.ways)
        if lane_count > most_classes:
            return TOO_LITTLE
        same = (lane_count, link_count, way_count) == counts
        counts = lane_count, link_count, way_count
        if ties:
            # Marks are counted only where lanes and links are as before; otherwise another round
            # follows anyway.
            before = (kinds or _colour(marks)[1]) if same else 0
            marks = ties.marked(messages)
            names, kinds = _colour(marks) if same else (NONE, 0)
            if same and kinds == before:
                return Partition(lanes, links, ways if count else None, names, turn + 1)
        elif same:
            return Partition(lanes, links, ways if count else None, rounds=turn + 1)
    return out_of_patience(most_rounds)


def out_of_patience(most_rounds: int | None) -> str:
    """The reason for giving up after some rounds."""
    return f"classes are not found within {most_rounds} rounds"
