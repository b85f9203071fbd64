"""Memory in the order of time: messages that are under way at the same time become neighbours.

The loops touch some forty numbers of every message. In a plan that repeats a step thousands of times, ranks drift apart until only some
of them are active at a time (those at one place of every box, say), whose numbers then lie scattered among those of the others. So
the first turns are rehearsed, and lanes, links and messages are numbered anew in the order in which they were seen to be active. Times
do not depend on the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from simcoll.emulator.fast.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from simcoll.emulator.fast.timed import Timed

    Ints = NDArray[np.int64]
    Group = tuple[tuple[Timed, ...], int]

__all__ = ["Order", "rehearsed"]

SHARE = 128
"""One turn in so many is rehearsed."""
FEWEST_TURNS = 8
"""As long as it takes until ranks have drifted apart."""
FEWEST_ROWS = 512
"""The numbers of fewer messages fit in a cache, wherever they lie."""


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """New numbers: ``lanes`` and ``links`` list the old numbers in the new order."""

    lanes: Ints
    links: Ints

    def steps(self, groups: Iterator[Group]) -> Iterator[Group]:
        """Steps with the new numbers; equal ones stay one object."""
        lane, link = _inverse(self.lanes), np.append(_inverse(self.links), -1).astype(np.int32)
        known: dict[int, tuple[Timed, Timed]] = {}  # with the original, so that its id is not given again

        def renumbered(step: Timed) -> Timed:
            if id(step) not in known:
                if len(known) > 64:
                    known.clear()
                known[id(step)] = step, _renumbered(step, lane, link)
            return known[id(step)][1]

        for steps, times in groups:
            yield tuple(renumbered(step) for step in steps), times


def _inverse(order: Ints) -> Ints:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def _renumbered(step: Timed, lane: Ints, link: NDArray[np.int32]) -> Timed:
    shape = step.shape
    row = np.argsort(lane[shape.receiver], kind="stable")
    moved = replace(
        shape,
        sender=lane[shape.sender[row]],
        receiver=lane[shape.receiver[row]],
        src=shape.src[row],
        dst=shape.dst[row],
        links=link[shape.links[row]],
        weight=shape.weight[row],
        row=row,
    )
    return replace(
        step, shape=moved, pre_fs=step.pre_fs[row], wire=step.wire[row], post_fs=step.post_fs[row], size=step.size[row]
    )


def rehearsed(
    groups: Iterator[Group],
    capacity_uBps: Ints,
    nlanes: int,
    link_name: Callable[[int], str],
    *,
    depth: int,
) -> tuple[Iterator[Group], Order | None]:
    """The steps again, and an order if the first of them come often enough for it to pay."""
    first = next(groups, None)
    if first is None:
        return groups, None
    steps, times = first
    groups = chain([first], groups)
    turns = times // SHARE
    if turns < FEWEST_TURNS or max(map(len, steps)) < FEWEST_ROWS:
        return groups, None
    lane_steps = np.zeros(nlanes, np.int64)
    for step in steps:
        lane_steps[np.union1d(step.shape.sender, step.shape.receiver)] += turns
    last_fs = np.zeros(nlanes, np.int64)

    def over(_first: int, step: Timed, _start_fs: Ints, _end_fs: Ints, done_fs: Ints) -> None:
        last_fs[step.shape.receiver] = done_fs

    machine = Machine(capacity_uBps, lane_steps, iter([(steps, turns)]), depth=depth, hashed=False, over=over)
    machine.play(link_name)
    lanes = np.argsort(last_fs, kind="stable")
    active = _inverse(lanes)
    used = np.full(len(capacity_uBps) + 1, nlanes)
    for step in steps:
        shape = step.shape
        np.minimum.at(used, shape.links, np.broadcast_to(active[shape.sender][:, None], shape.links.shape))
    return groups, Order(lanes, np.argsort(used[:-1], kind="stable"))
