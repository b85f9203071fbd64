"""Collectives with several roots: a reduction to some ranks, and a broadcast from some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simcoll.core.collective import Collective
from simcoll.core.schedule import REDUCE, Layout, Schedule, Step, transfers
from simcoll.core.step import joined
from simcoll.errors import ConfigError

__all__ = ["broadcast_from_roots", "reduce_to_roots", "tree_and_fan", "trees_side_by_side"]


def _roots(nranks: int, roots: Sequence[int] | None) -> list[int]:
    """The roots: those given, or ranks 0 and n / 2."""
    chosen = sorted({0, nranks // 2}) if roots is None else [int(root) for root in roots]
    if len(set(chosen)) != len(chosen) or not all(0 <= root < nranks for root in chosen):
        raise ConfigError(f"roots={roots!r}: expected different ranks from 0 to {nranks - 1}")
    if not chosen:
        raise ConfigError("roots=[]: expected at least one rank")
    return chosen


def reduce_to_roots(nranks: int, *, roots: Sequence[int] | None = None) -> Collective:
    """Every root gets the sum of all vectors.

    >>> reduce_to_roots(3, roots=[0, 2]).definition.outputs
    (((0, 1, 2),), (), ((0, 1, 2),))
    """
    chosen = set(_roots(nranks, roots))
    everyone = list(range(nranks))
    outputs = [[everyone] if rank in chosen else [] for rank in everyone]
    return Collective.custom("reduce_to_roots", [[rank] for rank in everyone], outputs)


def broadcast_from_roots(nranks: int, *, roots: Sequence[int] | None = None) -> Collective:
    """Every rank gets the vectors of all roots, in the order of the roots.

    >>> broadcast_from_roots(3, roots=[0, 2]).definition.inputs
    ((0,), (), (1,))
    """
    chosen = _roots(nranks, roots)
    inputs = [[chosen.index(rank)] if rank in chosen else [] for rank in range(nranks)]
    outputs = [list(range(len(chosen)))] * nranks
    return Collective.custom("broadcast_from_roots", inputs, outputs)


def _ranks_with(collective: Collective, name: str) -> list[int]:
    """The roots of one of these collectives."""
    definition = collective.definition
    if definition is None or definition.name != name:
        raise ConfigError(f"this algorithm serves {name}, not {collective}")
    if name == "reduce_to_roots":
        return [rank for rank, slots in enumerate(definition.outputs) if slots]
    return [definition.holders(number)[0][0] for number in range(definition.contributions)]


def tree_and_fan(collective: Collective) -> Schedule:
    """A binomial tree to the first root, which sends the sum to the others along another one.

    >>> import simcoll
    >>> print(simcoll.verify(tree_and_fan(reduce_to_roots(8, roots=[2, 3, 5]))))
    proved (full, exact): 18 transfers in 7 steps, reduction order position-independent
    """
    n = collective.nranks
    roots = _ranks_with(collective, "reduce_to_roots")
    layout = Layout(collective, scratch=[0])
    order = np.roll(np.arange(n), -roots[0])  # numbered from the first root on

    def steps() -> Iterator[Step]:
        yield transfers(order, layout.input(), order, layout.scratch_at(0))
        distance = 1
        while distance < n:
            sender = np.arange(distance, n, 2 * distance)
            yield transfers(
                order[sender],
                layout.scratch_at(0),
                order[sender - distance],
                layout.scratch_at(0),
                op=REDUCE,
            )
            distance *= 2
        yield transfers(roots[0], layout.scratch_at(0), roots[0], layout.output())
        reached = 1
        while reached < len(roots):
            receiver = np.arange(reached, min(2 * reached, len(roots)))
            target = np.array(roots)[receiver]
            source = np.array(roots)[receiver - reached]
            yield transfers(source, layout.output(), target, layout.output())
            reached *= 2

    return Schedule("tree_and_fan", layout, steps)


def trees_side_by_side(collective: Collective) -> Schedule:
    """A binomial tree from every root, each on a channel of its own.

    >>> import simcoll
    >>> print(simcoll.verify(trees_side_by_side(broadcast_from_roots(8))))
    proved (full, exact): 16 transfers in 4 steps
    """
    n = collective.nranks
    roots = _ranks_with(collective, "broadcast_from_roots")
    layout = Layout(collective)

    def steps() -> Iterator[Step]:
        yield transfers(
            roots,
            layout.input(),
            roots,
            layout.output(np.arange(len(roots))),
            channel=np.arange(len(roots)),
        )
        reached = 1
        while reached < n:
            receiver = np.arange(reached, min(2 * reached, n))
            yield joined(
                [
                    transfers(
                        (root + receiver - reached) % n,
                        layout.output(slot),
                        (root + receiver) % n,
                        layout.output(slot),
                        channel=slot,
                    )
                    for slot, root in enumerate(roots)
                ]
            )
            reached *= 2

    return Schedule("trees_side_by_side", layout, steps, len(roots))
