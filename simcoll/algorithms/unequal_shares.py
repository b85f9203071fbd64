"""A combinator: concurrent schedules of one collective, each with a fraction of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import zip_longest
from math import gcd, lcm
from typing import NamedTuple

import numpy as np

from simcoll.algorithms.combinable import checked_cuts
from simcoll.algorithms.compose import single_steps, within_slots
from simcoll.arrays import Ints
from simcoll.core.schedule import Layout, Schedule, Step, joined
from simcoll.errors import ConfigError, expect
from simcoll.units import Ratio

__all__ = ["in_fractions"]

MOST_CHUNKS = 1 << 16
"""Shares such as 1/3 and 2/7 of many chunks have a common measure, which may be small."""


class _Share(NamedTuple):
    """The place of a schedule in the common layout: its first chunk in every block, the number of
    chunks for each of its own, its first scratch slot, and its first channel.
    """

    schedule: Schedule
    begin: int
    width: int
    scratch_slot: int
    channel: int


def in_fractions(schedules: Sequence[Schedule], shares: Sequence[Ratio]) -> Schedule:
    """Concurrent schedules of one collective, each with a fraction of every block and separate
    channels.

    Parameters
    ----------
    schedules
        Schedules of one collective; their chunks, scratch and numbers of steps may differ.
    shares
        The share of each: fractions (``"7/10"``, ``Fraction(7, 10)``) or decimals (``0.7``) that
        sum to 1.

    Raises
    ------
    ConfigError
        For shares that do not sum to 1, different collectives, and scratch of single chunks.

    Examples
    --------
    >>> import simcoll
    >>> ring = simcoll.schedule("all_reduce", "ring", nranks=4)
    >>> tree = simcoll.schedule("all_reduce", "tree", nranks=4)
    >>> both = in_fractions([ring, tree], ["7/10", "3/10"])
    >>> both.nchannels, both.layout.chunks
    (2, 40)
    >>> print(simcoll.verify(both))
    proved (full, exact): 38 transfers in 7 steps, reduction order run-consistent
    """
    parts = _fractions(schedules, shares)
    model = schedules[0]
    chunks = 1
    for schedule, share in zip(schedules, parts, strict=True):
        cut = schedule.layout.chunks
        chunks = lcm(chunks, share.denominator * cut // gcd(share.numerator, cut))
    if chunks > MOST_CHUNKS:
        raise ConfigError(
            f"shares {', '.join(map(str, parts))} cut every block into {chunks:,} chunks; at most "
            f"{MOST_CHUNKS:,} are supported: round the shares"
        )
    n = model.nranks
    scratch = np.concatenate(
        [
            np.broadcast_to(schedule.layout.scratch, (n, schedule.layout.scratch_slots))
            for schedule in schedules
        ],
        axis=1,
    )
    layout = Layout(model.collective, chunks, scratch)
    locations: list[_Share] = []
    begin = scratch_slot = channel = 0
    for schedule, share in zip(schedules, parts, strict=True):
        length = int(share * chunks)
        width = length // schedule.layout.chunks
        locations.append(_Share(schedule, begin, width, scratch_slot, channel))
        begin += length
        scratch_slot += schedule.layout.scratch_slots
        channel += schedule.nchannels

    def steps() -> Iterator[Step]:
        sources = (_steps_in_share(layout, part) for part in locations)
        for concurrent_steps in zip_longest(*sources):
            yield joined([step for step in concurrent_steps if step is not None])

    texts = ("+".join(schedule.title for schedule in schedules), "+".join(map(str, parts)))
    params = (("schedules", texts[0]), ("shares", texts[1]))
    divisible = any(schedule.divisible for schedule in schedules)
    return Schedule("in_fractions", layout, steps, channel, params, divisible)


def _fractions(schedules: Sequence[Schedule], shares: Sequence[Ratio]) -> list[Fraction]:
    """The shares as fractions."""
    expect(schedules, Sequence, "in_fractions takes a list of schedules")
    for schedule in schedules:
        expect(schedule, Schedule, "in_fractions takes schedules")
    checked_cuts("schedules", len(schedules))
    if len(schedules) != len(shares):
        raise ConfigError(f"in_fractions: {len(schedules)} schedules and {len(shares)} shares")
    for schedule in schedules:
        if schedule.collective != schedules[0].collective:
            raise ConfigError(
                f"in_fractions: {schedule} is of another collective than {schedules[0]}"
            )
        if schedule.layout.scratch_pieces is not None:
            raise ConfigError(
                f"in_fractions: {schedule} has scratch slots of single chunks, which have no shares"
            )
    try:
        parts = [Fraction(str(share)) for share in shares]
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"shares={list(shares)!r:.80}: expected numbers such as '7/10' or 0.7"
        ) from None
    if min(parts) <= 0 or sum(parts) != 1:
        raise ConfigError(
            f"shares {', '.join(map(str, parts))}: expected numbers above 0 that sum to 1, not to "
            f"{sum(parts)}"
        )
    return parts


def _steps_in_share(layout: Layout, share: _Share) -> Iterator[Step]:
    """The steps of a schedule on its share of the common layout."""
    for step in single_steps(share.schedule):
        within = within_slots(step, share.schedule.layout)
        yield Step(
            within.src_rank,
            _address(layout, share, within.src_chunk),
            within.dst_rank,
            _address(layout, share, within.dst_chunk),
            within.count * share.width,
            within.op,
            within.channel + share.channel,
            within.transits,
        )


def _address(layout: Layout, share: _Share, chunk: Ints) -> Ints:
    """Chunks of a schedule's own layout in the common one."""
    alone = share.schedule.layout
    region = alone.region(chunk)
    slot, piece = np.divmod(chunk - alone.bases()[region], alone.chunks)
    slot = slot + np.where(region == 2, share.scratch_slot, 0)
    within: Ints = slot * layout.chunks + share.begin + piece * share.width
    return layout.bases()[region] + within
