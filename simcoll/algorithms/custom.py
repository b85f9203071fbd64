"""An algorithm for every custom collective: each output fetches its contributions itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.algorithms.registered import algorithm
from simcoll.arrays import Ints
from simcoll.core.collective import Collective
from simcoll.core.definition import Definition
from simcoll.core.schedule import COPY, REDUCE, Layout, Schedule, Step, transfers
from simcoll.errors import ConfigError

__all__ = ["direct"]


@algorithm("custom", "direct", cost="", source="the definition", order="position-independent")
def direct(collective: Collective) -> Schedule:
    """Every output fetches its contributions from ranks that hold them, in the listed order."""
    definition = collective.definition
    if definition is None:
        raise ConfigError(f"direct serves custom collectives, not {collective}")
    layout = Layout(collective)
    rank, slot = np.nonzero(definition.sums >= 0)
    row = rank * definition.sums.shape[1] + slot
    begin, lengths = definition.starts[row], np.diff(definition.starts)[row]

    def steps() -> Iterator[Step]:
        for place in range(int(lengths.max())):
            longer = np.flatnonzero(lengths > place)
            contribution = definition.summands[begin[longer] + place]
            sender, sender_slot = _holders(definition, contribution, rank[longer])
            yield transfers(
                sender,
                layout.input(sender_slot),
                rank[longer],
                layout.output(slot[longer]),
                op=REDUCE if place else COPY,
            )

    return Schedule("direct", layout, steps)


def _holders(definition: Definition, contribution: Ints, receiver: Ints) -> tuple[Ints, Ints]:
    """The input slot that each contribution is fetched from: the receiver's own, or of the first
    holder after it, so that several holders share the work.
    """
    rank, slot = np.nonzero(definition.input_numbers >= 0)
    number = definition.input_numbers[rank, slot]
    order = np.lexsort((slot, rank, number))
    key = number[order] * definition.nranks + rank[order]
    place = np.searchsorted(key, contribution * definition.nranks + receiver)
    # After the last holder of a contribution, its first one is next.
    earliest = np.searchsorted(key, contribution * definition.nranks)
    bounded = np.minimum(place, len(key) - 1)
    later = (place < len(key)) & (number[order][bounded] == contribution)
    chosen = order[np.where(later, bounded, earliest)]
    return rank[chosen], slot[chosen]
