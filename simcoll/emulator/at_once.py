"""The data of a plan without a clock, a whole step at a time: what a check of many ranks and small chunks needs.

The buffers of all ranks are one array. A step reads all that it sends, and then writes it; where several of its transfers write
the same elements, these are written in turns, in the order of the fold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.core.plan import INPUT, OUTPUT, switch_groups
from simcoll.core.reduction import combine
from simcoll.core.reference import count_wrong, exact_inputs, expected_outputs
from simcoll.core.schedule import REDUCE, SWITCH_REDUCE, SYNC
from simcoll.emulator.dataplane import unwritten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from simcoll.core.plan import Plan, PlanStep

    Array = NDArray[Any]
    Ints = NDArray[np.int64]

__all__ = ["data_errors", "moved"]

LONG = 16
"""From so many elements a transfer on, transfers are moved one by one."""


def data_errors(plan: Plan, seed: int = 0) -> int:
    """Move generated data through a plan, and count the output elements that differ from the definition of the collective."""
    inputs = exact_inputs(plan, seed)
    return count_wrong(moved(plan, inputs), expected_outputs(plan, inputs))


def moved(plan: Plan, inputs: Sequence[Array]) -> tuple[Array | None, ...]:
    """Output of each rank, ``None`` where the collective has none.

    These are the bits that every engine gives, since the plan orders all transfers that share a chunk.
    """
    sizes = plan.buffer_elements()
    ends = np.cumsum(sizes.reshape(-1))
    first = (ends - sizes.reshape(-1)).reshape(sizes.shape)
    pool = unwritten(int(ends[-1]), plan.dtype)
    for rank, given in enumerate(inputs):
        buffer, offset, length = plan.view(rank, INPUT)
        start = int(first[rank, buffer]) + offset
        if length:
            pool[start : start + length] = plan.reduction.prepared(given) if plan.collective.spec.reduces else given
    for step in plan.steps(staged=False):
        _play(plan, step, pool, first)
    outputs: list[Array | None] = []
    for rank, has in enumerate(plan.collective.has_output(np.arange(plan.nranks)).tolist()):
        buffer, offset, length = plan.view(rank, OUTPUT)
        start = int(first[rank, buffer]) + offset
        seen = pool[start : start + length]
        if has and plan.collective.spec.reduces:
            plan.reduction.finish(seen, plan.nranks)
        outputs.append(seen if has else None)
    return tuple(outputs)


def _play(plan: Plan, step: PlanStep, pool: Array, first: Ints) -> None:
    """One step: read everything, then write it."""
    rows = np.flatnonzero(step.op != SYNC)
    if not len(rows):
        return
    length = step.elements[rows]
    source = first[step.src_rank[rows], step.src_buffer[rows]] + step.src_offset[rows]
    target = first[step.dst_rank[rows], step.dst_buffer[rows]] + step.dst_offset[rows]
    switched = bool((step.op == SWITCH_REDUCE).any())
    combines = step.op[rows] == REDUCE
    if switched:  # the first of a switch reduction copies: it ignores what was there
        followers = step.op == SWITCH_REDUCE
        followers[[group[0] for group in switch_groups(step)]] = False
        combines |= followers[rows]
    if length.sum() >= LONG * len(length):
        _by_transfer(plan, pool, source, target, length, combines)
        return
    each = [np.flatnonzero(length > element) for element in range(int(length.max()))]
    row = np.concatenate(each)
    element = np.repeat(np.arange(len(each)), [len(some) for some in each])
    places, combined = target[row] + element, combines[row]
    values = pool[source[row] + element]
    # Only folds and switches write an element twice in a step.
    alone = plan.schedule.known.folds is False and not switched
    turn = np.zeros(len(places), np.int64) if alone else _turns(places, row)
    for now in range(int(turn.max()) + 1):
        for kept in (~combined, combined):
            mine = np.flatnonzero((turn == now) & kept)
            if kept is combined and len(mine):
                total = pool[places[mine]]
                combine(plan.op, total, values[mine])
                pool[places[mine]] = total
            else:
                pool[places[mine]] = values[mine]


def _by_transfer(
    plan: Plan, pool: Array, source: Ints, target: Ints, length: Ints, combines: NDArray[np.bool_]
) -> None:
    """Long transfers one by one, which needs no list of their elements."""
    columns = [column.tolist() for column in (target, length, combines)]
    values = [pool[start : start + count].copy() for start, count in zip(source.tolist(), columns[1], strict=True)]
    for place, count, combined, value in zip(*columns, values, strict=True):
        if combined:
            combine(plan.op, pool[place : place + count], value)
        else:
            pool[place : place + count] = value


def _turns(places: Ints, row: Ints) -> Ints:
    """For every element how many of earlier transfers go to the same place."""
    order = np.lexsort((row, places))
    new = np.append(True, np.diff(places[order]) != 0)
    begin = np.flatnonzero(new)[np.cumsum(new) - 1]
    turn = np.empty(len(places), np.int64)
    turn[order] = np.arange(len(places)) - begin
    return turn
