"""One of the equal copies of which a plan consists: what is found out about it holds for all.

The channels of most algorithms are copies of one schedule, each with an equal share of every block
(:class:`simcoll.algorithms.compose.EqualShares`). If every share that moves something has the same
chunks, exchanging two such copies changes nothing in the run: the same messages, on the same links
of the topology and the same links that cap ranks, and on lanes and links of channels that only
change their numbers. Counts of a copy are therefore those of all, times their number, and classes
of a copy's messages are classes of all messages: a lane or a link of a channel has the messages of
one copy, and every other link has those of one copy as often as there are copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Array, Ints
from simcoll.core.facts import FactStore
from simcoll.core.plan import Plan
from simcoll.core.schedule import COPY, Repeat, Schedule, Step

__all__ = ["EqualCopies", "equal_copies"]

MANY_TRANSFERS = 1 << 21
"""Up to this number of transfers, the first pass over all of them is kept for the next, and costs
less than half a second.
"""


@dataclass(frozen=True, slots=True, eq=False)
class EqualCopies:
    """The equal copies of a plan.

    Attributes
    ----------
    plan
        That of one copy.
    places
        The numbers of the copies that move something.
    copies
        The number of all.
    run
        How many transfers of one copy follow each other in a step; ``None``: all.
    """

    plan: Plan
    places: Ints
    copies: int
    run: int | None = None

    @property
    def channels(self) -> int:
        """The channels of one copy."""
        return self.plan.nchannels

    @property
    def idle(self) -> bool:
        """Whether some copies move nothing."""
        return len(self.places) < self.copies

    def order(self, step: Step, rows: Ints) -> tuple[Ints, Ints]:
        """The transfers of all copies of a step that move something, in order: the row of each in
        the step of one copy, and its place. ``rows`` are those of one copy, ascending.
        """
        local = bool(((step.src_rank == step.dst_rank) & (step.op == COPY)).all())
        run = self.plan.nranks if self.run is None and local else self.run
        place, row = (
            np.repeat(self.places, len(rows)),
            np.tile(rows, len(self.places)),
        )
        if run is None or len(step) <= run:
            return row, place
        order = np.lexsort((place, row // run))
        return row[order], place[order]

    def lanes_of_all(self, values: Ints) -> Ints:
        """Values of the lanes of one copy as those of all lanes; 0 for lanes that move nothing."""
        lanes = np.zeros((self.plan.nranks, self.copies, self.channels), values.dtype)
        lanes[:, self.places] = values.reshape(-1, 1, self.channels)
        return lanes.reshape(-1)

    def lanes_of_one(self, values: Ints) -> Ints:
        """Values of all lanes as those of one copy, which are the same in each."""
        lanes = values.reshape(self.plan.nranks, self.copies, self.channels)
        return lanes[:, self.places[0]].reshape(-1)

    def of_channels(self, links: Array, first_cap: int) -> NDArray[np.bool_]:
        """Which links of one copy cap a channel; ``first_cap`` is the first link that caps a
        rate.
        """
        if not self.plan.protocol.channel_rate_uBps:
            return np.zeros(links.shape, np.bool_)
        lanes = self.plan.nranks * self.channels
        return (links >= first_cap) & (links < first_cap + 2 * lanes)

    def links_of_all(self, links: Array, first_cap: int) -> Ints:
        """The numbers of links of one copy among those of all."""
        place, inward = np.divmod(links.astype(np.int64) - first_cap, 2)
        rank, channel = np.divmod(place, self.channels)
        lane = (rank * self.copies + self.places[0]) * self.channels + channel
        capped = bool(self.plan.protocol.channel_rate_uBps)
        lanes_of_others = self.plan.nranks * self.channels * (self.copies - 1) * capped
        behind = links + np.where(place >= 0, 2 * lanes_of_others, 0)
        return np.where(self.of_channels(links, first_cap), first_cap + 2 * lane + inward, behind)


def equal_copies(plan: Plan) -> EqualCopies | None:
    """The equal copies of a large proved plan; ``None`` for others.

    Large: with more transfers than a first pass keeps.
    """
    from simcoll.algorithms.compose import EqualShares  # only large plans need it

    schedule, sizes = plan.schedule, plan.sizes
    if plan.proof is None or plan.proof.transfers <= MANY_TRANSFERS or not isinstance(sizes, int):
        return None
    shares = schedule.source
    if type(shares) is not EqualShares:
        return None
    part, copies = shares.schedule, shares.copies
    layouts = schedule.layout.chunks == copies * part.layout.chunks
    if not (layouts and schedule.nchannels == copies * part.nchannels and sizes):
        return None
    if sizes % copies == 0:
        share, places = sizes // copies, np.arange(copies)
    elif copies % sizes == 0:
        # Share j of k of s elements ends at (j + 1) * s // k: each k/s-th has one, the last one.
        share, distance = 1, copies // sizes
        places = np.arange(distance - 1, copies, distance)
    else:
        return None
    if sizes % schedule.layout.chunks and _repeats(part):
        return None  # iterations with different chunks are counted as they are played
    part_plan = replace(plan, schedule=part, sizes=share, proof=None)
    return EqualCopies(part_plan, places, copies, shares.run)


def _has_repeats(schedule: Schedule) -> bool:
    return any(isinstance(block, Repeat) for block in schedule.blocks())


_repeats: FactStore[Schedule, bool] = FactStore(_has_repeats)
