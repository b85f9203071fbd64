"""Partitions of lanes and links into classes that behave alike: guessed by colour refinement, then certified exactly.

**Claim.** If every step gives each lane of a class the same messages, and each link of a class carries the same
messages, where messages are the same when their costs, the classes of their lanes and the classes of their links are
equal, and the links of a class have one capacity, then all messages of a class have the same times.

**Why.** By induction over the times of events. Whether a lane enters a step depends only on when its messages of earlier
steps were done. Whether a message is ready depends only on its two lanes. The rates depend only on the capacities and on how
many flows of each kind are on each link. All of that is equal in a class, and the arithmetic is exact.

The guess rests on 64-bit hashes and may come from anywhere; :func:`certify` compares the numbers themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.hashing import mix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from simcoll.emulator.fast.timed import Timed

    Ints = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

__all__ = ["Partition", "certify", "dense", "refine"]

SALTS = tuple(np.uint64(salt) for salt in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The class of every lane and of every link, numbered from 0."""

    lanes: Ints
    links: Ints

    @property
    def lane_classes(self) -> int:
        """The number of classes of lanes."""
        return int(self.lanes.max(initial=-1)) + 1


def dense(*columns: Ints) -> Ints:
    """Numbers from 0 for the different rows of some columns, without any collision.

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


def _colour(hashes: Hashes) -> tuple[Ints, int]:
    values, names = np.unique(hashes, return_inverse=True)
    return names, len(values)


def _hashed(names: Ints, salt: np.uint64) -> Hashes:
    return mix(names.astype(np.uint64) + salt)


def refine(patterns: Sequence[Timed], capacity: Ints, nlanes: int, most_classes: int) -> Partition | None:
    """The coarsest partition that colour refinement finds; ``None`` when it needs more than ``most_classes`` of lanes."""
    lanes, links = np.zeros(nlanes, np.int64), dense(capacity)
    counts = (1, int(links.max(initial=-1)) + 1)
    fixed = [
        _hashed(dense(step.delay_fs, step.wire, step.post_fs), np.uint64(number))
        for number, step in enumerate(patterns)
    ]
    # Equal numbers of dense() mean equal costs only inside a step, and a step is only compared with itself.
    while True:
        lane_sum, link_sum = _hashed(lanes, SALTS[0]), _hashed(links, SALTS[1])
        lane_hash, link_hash = lane_sum.copy(), np.append(link_sum, np.uint64(0))
        for step, cost in zip(patterns, fixed, strict=True):
            shape = step.shape
            message = mix(cost + lane_hash[shape.sender] + mix(lane_hash[shape.receiver] + SALTS[2]))
            message = mix(message + link_hash[shape.links].sum(axis=1, dtype=np.uint64))
            np.add.at(lane_sum, shape.sender, mix(message + SALTS[0]))
            np.add.at(lane_sum, shape.receiver, mix(message + SALTS[1]))
            used = shape.links >= 0
            np.add.at(link_sum, shape.links[used], np.broadcast_to(message[:, None], used.shape)[used])
        lanes, lane_count = _colour(lane_sum)
        links, link_count = _colour(link_sum)
        if lane_count > most_classes:
            return None
        if (lane_count, link_count) == counts:
            return Partition(lanes, links)
        counts = lane_count, link_count


def _same_lists(owner: Ints, owner_class: Ints, value: Ints) -> bool:
    """Whether all owners of a class have the same multiset of values."""
    order = np.lexsort((value, owner))
    owner, value = owner[order], value[order]
    count = np.bincount(owner, minlength=len(owner_class))
    start = np.concatenate([[0], np.cumsum(count)])
    first = np.zeros(int(owner_class.max(initial=-1)) + 1, np.int64)
    first[owner_class] = np.arange(len(owner_class))
    if not (count[first[owner_class]] == count).all():
        return False
    place = np.arange(len(owner)) - start[owner]
    return bool((value[start[first[owner_class[owner]]] + place] == value).all())


def certify(patterns: Sequence[Timed], capacity: Ints, partition: Partition) -> list[Ints] | str:
    """The class of every message of every step, numbered from 0 within it; or the reason why the partition fails."""
    lanes, links = partition.lanes, partition.links
    used_lanes = 1 + max((int(max(s.shape.sender.max(), s.shape.receiver.max())) for s in patterns), default=-1)
    for what, classes, wanted in (("lane", lanes, used_lanes), ("link", links, len(capacity))):
        if len(classes) < wanted or (what == "link" and len(classes) != wanted):
            return f"{len(classes)} classes of {what}s are given; the plan has {wanted} {what}s"
        if len(classes) and (classes.min() < 0 or not np.bincount(classes).all()):
            return f"the classes of {what}s are not numbered from 0 without gaps"
    found: list[Ints] = []
    owners: list[Ints] = []
    roles: list[Ints] = []
    on_links: list[Ints] = []
    carried: list[Ints] = []
    first = 0
    for step in patterns:
        shape = step.shape
        crossed = np.sort(np.append(links, -1)[shape.links], axis=1)
        names = dense(
            step.delay_fs,
            step.wire,
            step.post_fs,
            lanes[shape.sender],
            lanes[shape.receiver],
            *np.ascontiguousarray(crossed.T),
        )
        found.append(names)
        owners += [shape.sender, shape.receiver]
        roles += [2 * (first + names), 2 * (first + names) + 1]
        used = shape.links >= 0
        on_links.append(shape.links[used].astype(np.int64))
        carried.append(np.broadcast_to(first + names[:, None], used.shape)[used])
        first += int(names.max(initial=-1)) + 1
    if not found:
        return "the plan moves nothing"
    if not _same_lists(np.arange(len(links)), links, capacity):
        return "links of one class have different capacities"
    if not _same_lists(np.concatenate(owners), lanes, np.concatenate(roles)):
        return "lanes of one class take part in different messages"
    if not _same_lists(np.concatenate(on_links), links, np.concatenate(carried)):
        return "links of one class carry different messages"
    return found
