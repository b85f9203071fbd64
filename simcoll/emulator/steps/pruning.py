"""Drops links that can never bind before a run.

Fewer links remain to level, and fewer distinguish classes.

**Claim.** Let every flow on link l also cross some link of a set U, and let l have at least the
total capacity of U plus ``SLACK``. Then the rates of all flows are the same without l.

**Why.** Compare the rounds of the model with l and without it, and suppose that they have been
equal so far. Let L be the lowest share in the next round without l. Each link u has a share of at
least L, so its remaining capacity is at least L times its flows that have no rate yet. The
remaining capacity of l is at least that of all U together plus ``SLACK``, because the flows on l
that have a rate take no more from l than from U. That is at least L n + SLACK for its n flows
without a rate. So the share of l is at least L + SLACK // n > L, because a run has fewer than
``SLACK`` flows at a time; l is not settled in this round, which is therefore the same with and
without it. (Without the slack this fails: a link of 10 behind links of 3, 3 and 4 gives each of
three flows 10 // 3 = 3.)

**No circle of excuses.** A link of U may be dropped in turn, by its own set. Every link is wider
than each of its excuses, so drop the widest first: its excuses are all still there, and the claim
applies to what remains, again and again. Therefore every link can be judged with all others
present, and in any order.

**A single excuse** u needs no slack, nor to be narrower: let every flow on l also cross u, and let
l be as wide as u or wider. As long as the rounds are equal, the flows on l that have a rate take no
more from it than those on u take from u, and no more of its flows have none. So its share is at
least that of u; if it is the same, both belong to one round, in which u settles the flows of l as
well. Of links as wide as each other, only those behind their excuse on every route are dropped, so
there is still no circle: a flow on all links of one would cross each of them before the next.
(The links of a GPU to its NIC and of the NIC to its leaf carry the same flows.)

**Which U.** Any set is sound; one of small total capacity drops more links. The best hits every
flow on l with the least capacity, a weighted hitting set, which is hard. Two choices fit trees,
where the links that feed a link, or that it feeds, are together as wide as it: for each flow on l
the narrowest link before l on its route, or for each the narrowest after l. They are not mixed:
each is a cut on one side of l, while a mixture counts links on both sides. Only routes are used to
find them, so a link is dropped for the flows of these steps, not for all traffic. (A link exactly
as wide as its feeders passes because :func:`simcoll.emulator.model.with_slack` has added ``SLACK``
to its capacity.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Shorts
from simcoll.emulator.model import LOW, SLACK
from simcoll.emulator.steps.timed import StepShape, Timed

Steps = tuple[tuple[Timed, ...], int]

__all__ = ["never_bind", "without_idle_links", "without_links"]

JOINED = 64
"""Number of route arrays processed together: each numpy call costs microseconds."""


def never_bind(
    shapes: Iterable[StepShape], capacity: Ints, candidates: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Mask of the links, all or the ``candidates`` ones, that can never bind the flows of some
    steps.
    """
    routes = _join_by_width(
        [*{id(shape.links): shape.links for shape in shapes if shape.links.size}.values()]
    )
    candidates = np.ones(len(capacity), np.bool_) if candidates is None else candidates.copy()
    never = np.zeros(len(capacity), np.bool_)
    for turn in (1, -1):
        if not candidates.any():
            break
        pairs = [
            np.zeros(0, np.int64),
            *(_excuses(links[:, ::turn], capacity, candidates) for links in routes),
        ]
        link, excuse = np.divmod(_distinct(np.concatenate(pairs)), len(capacity) + 1)
        never |= _never_binding(link, excuse, capacity, precedes=turn == 1)
        candidates &= ~never
    return never


def _join_by_width(routes: list[Shorts]) -> list[Shorts]:
    """Route arrays, with those of equal width joined: fewer and larger."""
    by_width: dict[int, list[Shorts]] = {}
    for links in routes:
        by_width.setdefault(links.shape[1], []).append(links)
    return [
        np.concatenate(arrays[begin : begin + JOINED])
        for arrays in by_width.values()
        for begin in range(0, len(arrays), JOINED)
    ]


def _distinct(keys: Ints) -> Ints:
    """Like np.unique, but several times as fast for some thousand keys."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def _excuses(links: Shorts, capacity: Ints, candidates: NDArray[np.bool_]) -> Ints:
    """Pairs of a candidate link and the narrowest link before it on a route, of equals the
    nearest; one past the last link stands for none.
    """
    none = len(capacity)
    wide = np.append(capacity, np.iinfo(np.int64).max)
    candidate = np.append(candidates, False)  # -1 is no link
    best = np.full(len(links), none)
    pairs = []
    for column in links.T:
        rows = np.flatnonzero(candidate[column])
        pairs.append(_distinct(column[rows].astype(np.int64) * (none + 1) + best[rows]))
        best = np.where((column >= 0) & (wide[column] <= wide[best]), column, best)
    return np.concatenate(pairs)


def _never_binding(
    link: Ints, excuse: Ints, capacity: Ints, *, precedes: bool
) -> NDArray[np.bool_]:
    """Whether each link is wider than all its excuses together, and all its flows have one; or not
    narrower than its only one, if that ``precedes`` it.
    """
    wide = np.append(capacity, np.iinfo(np.int64).max)[excuse]
    used = np.zeros(len(capacity), np.bool_)
    used[link] = True
    sums = []
    for part in (wide >> 32, wide & LOW):  # a sum may need more than 63 bits
        total = np.zeros(len(capacity), np.int64)
        np.add.at(total, link, part)
        sums.append(total)
    high, low = sums[0] + (sums[1] + SLACK >> 32), sums[1] + SLACK & LOW
    own_high, own_low = capacity >> 32, capacity & LOW
    unexcused = np.zeros(len(capacity), np.bool_)
    unexcused[link[excuse == len(capacity)]] = True
    fits = (high < own_high) | ((high == own_high) & (low <= own_low))
    single = np.bincount(link, minlength=len(capacity)) == 1
    narrowest = np.zeros(len(capacity), np.int64)
    narrowest[link] = wide
    fits |= single & ((narrowest < capacity) | (precedes & (narrowest == capacity)))
    never: NDArray[np.bool_] = used & ~unexcused & fits
    return never


def without_idle_links(stream: Sequence[Steps], capacity: Ints) -> tuple[Steps, ...]:
    """Steps whose flows no longer cross the links that can never bind them, if these are all the
    flows of a run, and no capacity changes meanwhile.
    """
    shapes = {step.shape: None for group, _ in stream for step in group}
    return without_links(stream, never_bind(shapes, capacity))


def without_links(stream: Sequence[Steps], dropped: NDArray[np.bool_]) -> tuple[Steps, ...]:
    """Steps whose flows no longer cross the dropped links."""
    shapes: dict[StepShape, StepShape] = {}
    steps: dict[Timed, Timed] = {}
    for group, _ in stream:
        for step in group:
            if step not in steps:
                shape = step.shape
                if shape not in shapes:
                    shapes[shape] = _without(shape, dropped)
                steps[step] = step if shapes[shape] is shape else replace(step, shape=shapes[shape])
    return tuple((tuple(map(steps.__getitem__, group)), times) for group, times in stream)


def _without(shape: StepShape, dropped: NDArray[np.bool_]) -> StepShape:
    """A step's rows without the dropped links."""
    links = shape.links
    gone = (links >= 0) & dropped[links]
    if not gone.any():
        return shape
    order = np.argsort(gone | (links < 0), axis=1, kind="stable")
    remaining = np.take_along_axis(np.where(gone, np.int32(-1), links), order, axis=1)
    width = int((remaining >= 0).sum(axis=1).max(initial=0))
    remaining = np.ascontiguousarray(remaining[:, :width])
    return replace(shape, links=remaining, weight=np.broadcast_to(np.int64(1), remaining.shape))
