"""What combinators ask of their arguments: schedules of one layout with equally many steps, and
numbers of copies and pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from simcoll.core.numbers import whole_number, whole_numbers
from simcoll.core.schedule import Layout, Repeat, Schedule, Step
from simcoll.errors import ConfigError, expect, shown

__all__ = ["MAX_CUTS", "abreast", "checked_cuts", "checked_lanes", "first_of"]

MAX_CUTS = 2**16
"""Limit of pieces and copies: each step has a transfer for each, on each rank."""
Block = TypeVar("Block", Step, Step | Repeat)


def checked_cuts(name: str, count: int) -> int:
    """A number of pieces or copies."""
    return whole_number(name, count, 1, MAX_CUTS)


def checked_lanes(lanes: Sequence[int] | None, stages: int) -> list[int]:
    """The channel that is added to those of each stage; by default the number of the stage."""
    numbers = whole_numbers("lanes", range(stages) if lanes is None else lanes)
    if numbers.shape != (stages,) or int(numbers.min()) < 0:
        raise ConfigError(
            f"lanes={shown(lanes)}: expected a channel for each of the {stages} stages"
        )
    return [int(number) for number in numbers]


def first_of(schedules: Sequence[Schedule], function: str) -> Schedule:
    """The first of several schedules, which must have one layout; ``function`` is named in the
    error.
    """
    expect(schedules, Sequence, f"{function} takes a list of schedules")
    for schedule in schedules:
        expect(schedule, Schedule, f"{function} takes schedules")
    if not schedules:
        raise ConfigError(f"{function} takes at least one schedule; got none")
    reference = schedules[0]
    for candidate in schedules[1:]:
        if candidate.layout is not reference.layout and not _have_same_layout(
            reference.layout, candidate.layout
        ):
            raise ConfigError(f"{reference.title} and {candidate.title} have no layout in common")
    return reference


def _have_same_layout(layout: Layout, reference: Layout) -> bool:
    if (layout.collective, layout.chunks) != (
        reference.collective,
        reference.chunks,
    ) or not np.array_equal(layout.scratch, reference.scratch):
        return False
    if layout.scratch_pieces is None or reference.scratch_pieces is None:
        return layout.scratch_pieces is reference.scratch_pieces
    return np.array_equal(layout.scratch_pieces, reference.scratch_pieces)


def abreast(
    schedules: Sequence[Schedule], sources: Iterable[Iterable[Block]]
) -> Iterator[tuple[Block, ...]]:
    """The first blocks of all schedules, then the second ones, and so on; equally many."""
    for blocks in zip_longest(*sources):
        for schedule, block in zip(schedules, blocks, strict=True):
            if block is None:
                raise ConfigError(
                    f"{schedule.title} has fewer steps or repeats than the schedules beside it"
                )
        yield blocks
