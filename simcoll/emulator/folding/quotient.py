"""The quotient of a plan: symmetric lanes, links and messages are played once per class.

The quotient has exactly the times of the plan (:mod:`simcoll.emulator.folding.partition` proves
why), so the times of every message follow by expansion. If no partition is certified, or the model
has state beyond lanes and links, the result is the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcoll.arrays import Array, Ints, Shorts
from simcoll.core.step import distinct
from simcoll.emulator.folding.certification import certify
from simcoll.emulator.folding.partition import (
    Partition,
    Ties,
    connections_in_order,
    first_of,
    refine,
)
from simcoll.emulator.steps.timed import Steps, StepShape, StepStream, Timed

__all__ = ["Quotient", "fold", "folded", "most_lane_classes"]

MOST_ROWS = 1 << 24
"""Limit of messages of distinct steps, over all of which every round of refinement passes, at 0.4
us a message: 7 s.
"""
StepNumbers = tuple[tuple[int, ...], int]
NO_WAITS = np.zeros(0, np.int64), np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Quotient:
    """A folded plan.

    Attributes
    ----------
    groups, order
        The steps in order: groups of numbers of distinct steps, with how often each group repeats
        in a row, and the group at each place.
    patterns, steps
        The distinct steps of the plan, and their images.
    classes
        Class of every message of each distinct step.
    capacity, lane_steps
        Capacity of every link class and number of steps of every lane class.
    links, nlinks
        One link of every class, and the number of links.
    waits
        Pairs of messages of the quotient, the first of which waits for the second; only for steps
        that do not repeat.
    rounds
        Number of rounds in which its classes were found.
    """

    groups: tuple[StepNumbers, ...]
    order: Ints
    patterns: tuple[Timed, ...]
    steps: tuple[Timed, ...]
    classes: tuple[Shorts, ...]
    capacity: Ints
    lane_steps: Ints
    links: Ints
    nlinks: int
    waits: tuple[Array, Array] = NO_WAITS
    rounds: int = 0

    @property
    def messages(self) -> int:
        """Number of messages in the quotient."""
        places = np.bincount(self.order, minlength=len(self.groups)).tolist()
        return sum(
            count * times * sum(len(self.steps[number]) for number in numbers)
            for (numbers, times), count in zip(self.groups, places, strict=True)
        )

    def stream(self) -> Iterator[Steps]:
        """The steps, in the form that the fast engine takes."""
        for place in self.order.tolist():
            numbers, times = self.groups[place]
            yield tuple(map(self.steps.__getitem__, numbers)), times

    def without_links(self, begin: int, count: int) -> Quotient:
        """The quotient of a run that has all links but ``count`` from ``begin`` on.

        Its classes are still classes: messages that cross equal links do so without some of them.
        """
        gone = (self.links >= begin) & (self.links < begin + count)
        absent = np.append(gone, np.False_)  # no link is the last one
        steps = []
        for step in self.steps:
            shape = step.shape
            links = np.where(absent[shape.links], np.int32(-1), shape.links)
            order = np.argsort(links < 0, axis=1, kind="stable")
            links, weight = (
                np.take_along_axis(column, order, axis=1) for column in (links, shape.weight)
            )
            steps.append(replace(step, shape=replace(shape, links=links, weight=weight)))
        # A class that no message crosses keeps its number, and may stand for any link.
        links = np.where(gone, 0, self.links - count * (self.links >= begin + count))
        return replace(self, steps=tuple(steps), links=links, nlinks=self.nlinks - count)

    def parts(self, most_rows: int) -> Iterator[Ints]:
        """The numbers of the steps in order, in parts of some ``most_rows`` messages."""
        once = np.array(
            [sum(len(self.steps[number]) for number in numbers) for numbers, _ in self.groups]
        )
        times = np.array([times for _, times in self.groups])
        ends, begin = np.append(0, np.cumsum((once * times)[self.order])), 0
        while begin < len(self.order):
            end = int(np.searchsorted(ends, ends[begin] + most_rows, "right")) - 1
            if end > begin:
                yield self._numbers_of(self.order[begin:end])
            else:  # one group of more messages
                end = begin + 1
                numbers, repeats = self.groups[self.order[begin]]
                turns = max(1, most_rows // int(once[self.order[begin]]))
                for turn in range(0, repeats, turns):
                    yield np.tile(np.array(numbers, np.int64), min(turns, repeats - turn))
            begin = end

    def _numbers_of(self, places: Ints) -> Ints:
        """The numbers of the steps at some places."""
        of_groups = {
            group: np.tile(np.array(self.groups[group][0], np.int64), self.groups[group][1])
            for group in np.unique(places).tolist()
        }
        return np.concatenate([of_groups[group] for group in places.tolist()])

    @property
    def which(self) -> Ints:
        """The number of every step, in order."""
        return self._numbers_of(self.order)

    def starts(self) -> tuple[Ints, Ints, Ints]:
        """For every step in order: the number of its first message in the quotient and in the plan,
        and its distinct step.
        """
        which = self.which
        small = np.array([len(step) for step in self.steps], np.int64)[which]
        large = np.array([len(step) for step in self.patterns], np.int64)[which]
        return np.cumsum(small) - small, np.cumsum(large) - large, which


def most_lane_classes(lane_steps: Ints) -> int:
    """The largest number of lane classes with which a quotient is worth it: a quarter, or it would
    save little.
    """
    return len(lane_steps) // 4


def fold(
    stream: Iterable[Steps],
    capacity: Ints,
    lane_steps: Ints,
    *,
    most_lanes: int,
    patience: int | None = None,
    waits: tuple[Array, Array] | None = None,
) -> Quotient | str:
    """The quotient of timed steps, or the reason why there is none.

    ``most_lanes``: the limit of lane classes. ``patience``: that of refinement rounds.
    ``waits``: pairs of messages, the first of which waits for the second; without it, switch
    operations are refused as well.
    """
    numbers: dict[Timed, int] = {}
    groups: list[StepNumbers] = []
    rows = 0
    for group, times in stream.groups if isinstance(stream, StepStream) else stream:
        for step in group:
            if step not in numbers:
                numbers[step] = len(numbers)
                rows += len(step)
        if rows > MOST_ROWS:
            return f"more than {MOST_ROWS} different transfers"
        groups.append((tuple(numbers[step] for step in group), times))
    patterns = tuple(numbers)
    ties = None
    switched = any(step.shape.leader is not None for step in numbers)
    if waits is None and switched:
        return "switches multicast or reduce"
    if waits is not None and (switched or len(waits[0])):
        if len(waits[0]) and rows < sum(
            times * sum(len(patterns[each]) for each in group) for group, times in groups
        ):
            return "messages of different channels wait for each other in steps that repeat"
        ties = Ties(_leaders(patterns), *waits)
    nlanes = len(lane_steps)
    partition = refine(patterns, capacity, nlanes, most_lanes, patience, ties)
    if isinstance(partition, str):
        return partition
    order = stream.order if isinstance(stream, StepStream) else np.arange(len(groups))
    return folded(patterns, (tuple(groups), order), capacity, lane_steps, partition, ties)


def _leaders(patterns: Sequence[Timed]) -> Ints:
    """Leaders of all rows, as row numbers over all steps; -1 for none."""
    leaders, first_row = [np.zeros(0, np.int64)], 0
    for step in patterns:
        leader = np.full(len(step), -1) if step.shape.leader is None else step.shape.leader
        leaders.append(np.where(leader >= 0, leader + first_row, -1))
        first_row += len(step)
    return np.concatenate(leaders)


def folded(
    patterns: tuple[Timed, ...],
    places: tuple[tuple[StepNumbers, ...], Ints],
    capacity: Ints,
    lane_steps: Ints,
    partition: Partition,
    ties: Ties | None = None,
) -> Quotient | str:
    """The quotient by a partition, if certified, or the reason why not."""
    classes = certify(patterns, capacity, partition, ties)
    if isinstance(classes, str):
        return f"partition refused: {classes}"
    lane_of, link_of = (_representatives(each) for each in (partition.lanes, partition.links))
    weights = _weights(patterns, classes, partition, link_of)
    ways, steps, first = _ways(patterns, partition), [], 0
    for step, names, connections in zip(patterns, classes, ways, strict=True):
        steps.append(_image(step, names, partition, connections, first, weights))
        first += int(names.max()) + 1
    of_classes = capacity[link_of], lane_steps[lane_of], link_of
    waits = NO_WAITS
    if ties is not None and len(ties.later):
        begins = np.cumsum([0, *map(len, steps)])
        every = np.concatenate(
            [names + begin for names, begin in zip(classes, begins.tolist(), strict=False)]
        )
        waits = np.divmod(
            distinct(every[ties.later] * begins[-1] + every[ties.earlier]), begins[-1]
        )
    return Quotient(
        *places,
        patterns,
        tuple(steps),
        tuple(classes),
        *of_classes,
        len(partition.links),
        waits,
        partition.rounds,
    )


def _representatives(classes: Array) -> Ints:
    """One member of each class."""
    return first_of(classes, int(classes.max(initial=-1)) + 1)


def _weights(
    patterns: Sequence[Timed], classes: Sequence[Shorts], partition: Partition, link_of: Ints
) -> tuple[Ints, Ints, int]:
    """Number of messages of each class on one link of each class: sorted keys (link class, message
    class), counts, radix.
    """
    total = sum(int(names.max()) + 1 for names in classes)
    chosen = np.zeros(len(partition.links), np.bool_)
    chosen[link_of] = True
    keys, first_class = [], 0
    for step, names in zip(patterns, classes, strict=True):
        links, linked_names = (
            step.shape.links,
            names if step.shape.linked is None else names[step.shape.linked],
        )
        chosen_places = (links >= 0) & chosen[links]
        message = np.broadcast_to(first_class + linked_names[:, None], links.shape)[chosen_places]
        keys.append(partition.links[links[chosen_places]] * total + message)
        first_class += int(names.max()) + 1
    pairs, count = np.unique(np.concatenate(keys), return_counts=True)
    return pairs, count, total


def _ways(patterns: tuple[Timed, ...], partition: Partition) -> list[Ints | None]:
    """Class of each message's connection, for every step that has connections."""
    classes = partition.connections
    if classes is None:
        return [None] * len(patterns)
    numbers = connections_in_order(patterns)[0]
    return [
        classes[own] if step.uses_connections else None
        for step, own in zip(patterns, numbers, strict=True)
    ]


def _image(
    step: Timed,
    names: Shorts,
    partition: Partition,
    connections: Ints | None,
    first: int,
    weights: tuple[Ints, Ints, int],
) -> Timed:
    """The image of a step: one message of every class."""
    row, shape = _representatives(names), step.shape
    own = shape.links_of(row)
    links = np.sort(np.where(own >= 0, partition.links[own], -1), axis=1)
    # A class that a message crosses twice counts once: its weight covers all messages on one link.
    links[:, 1:][links[:, 1:] == links[:, :-1]] = -1
    links = np.take_along_axis(links, np.argsort(links < 0, axis=1, kind="stable"), axis=1)
    keys, counts, total = weights
    weight = np.ones(links.shape, np.int64)
    if len(keys):
        wanted = links * total + first + np.arange(len(row))[:, None]
        weight = np.where(
            links >= 0, counts[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)], 1
        )
    lanes = partition.lanes
    sender, receiver = lanes[shape.sender[row]], lanes[shape.receiver[row]]
    connection = None if connections is None else connections[row]
    leader = (
        None
        if shape.leader is None
        else np.where(shape.leader[row] >= 0, names[shape.leader[row]], -1)
    )
    image = StepShape(
        sender, receiver, sender, receiver, links.astype(np.int32), weight, connection, leader
    )
    nothing = tuple(0 for _ in step.bytes_by_op)
    costs = (
        step.delay_fs[row],
        step.busy_fs[row],
        step.wire[row],
        step.post_fs[row],
        step.size[row],
    )
    return Timed(image, *costs, nothing, step.depth, step.role)
