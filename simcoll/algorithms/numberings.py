"""Numberings of the ranks: which can be given to a schedule, and where its chunks then lie."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.numbers import whole_numbers
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, shown

__all__ = ["addresses", "checked_numberings"]


def checked_numberings(schedule: Schedule, orders: Iterable[ArrayLike]) -> Ints:
    """The numberings as an array; refuses invalid ones, and those that would change the root or the
    pairs.
    """
    collective, n = schedule.collective, schedule.nranks
    root, natural = collective.root, np.arange(n)
    try:
        ranks = [whole_numbers("order", order) for order in orders]
    except TypeError:
        raise ConfigError(
            f"orders={shown(orders)}: expected a list of orders, each with every rank once"
        ) from None
    if not ranks:
        raise ConfigError("orders=[]: expected an order of the ranks for each copy")
    for order in ranks:
        if order.shape != (n,) or not np.array_equal(np.sort(order), natural):
            raise ConfigError(f"order={order.tolist()!s:.80}: expected every rank 0..{n - 1} once")
        if np.array_equal(order, natural):
            continue
        if collective.pairs or (root is not None and order[root] != root):
            raise ConfigError(f"{collective}: relabelling would change its root or pairs")
    return np.array(ranks)


def addresses(schedule: Schedule, order: Ints) -> Ints:
    """The new address of every chunk if rank r becomes ``order[r]``.

    Raises
    ------
    ConfigError
        Where no scratch slot has the size of the block that a slot would have to hold.
    """
    layout, collective, n = schedule.layout, schedule.collective, schedule.nranks
    slots = [np.arange(count) for count in (collective.input_slots, collective.output_slots)]
    new_slots = [order[numbers] if len(numbers) == n > 1 else numbers for numbers in slots]
    new_slots.append(_scratch_slots(schedule, order))
    widths = (layout.chunks, layout.chunks, layout.scratch_chunks)
    regions = []
    for base, new, width in zip(layout.bases().tolist(), new_slots, widths, strict=False):
        regions.append(base + new.repeat(width) * width + np.tile(np.arange(width), len(new)))
    return np.concatenate(regions)


def _scratch_slots(schedule: Schedule, order: Ints) -> Ints:
    """The new slot of every scratch slot: the one with the block that the renamed ranks put
    there.
    """
    layout = schedule.layout
    if layout.scratch.ndim == 1:
        new = _blocks(schedule.collective, order, layout.scratch)
        stays = np.arange(layout.scratch_slots)
        # Divisible: every block has the size of every other.
        if schedule.divisible or np.array_equal(new, layout.scratch):
            return stays
        slot_of = {block: slot for slot, block in enumerate(layout.scratch.tolist())}
        if len(slot_of) == layout.scratch_slots and slot_of.keys() == set(new.tolist()):
            return np.array([slot_of[block] for block in new.tolist()], np.int64)
    raise ConfigError(f"{schedule.title}: ranks with different scratch cannot be relabelled")


def _blocks(collective: Collective, order: Ints, block: Ints) -> Ints:
    """The new number of each block if rank r becomes ``order[r]``."""
    n = collective.nranks
    if collective.nblocks <= 1:
        return block
    return order[block] if collective.nblocks == n else order[block // n] * n + order[block % n]
