"""Options of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcoll.distributed.runtime.plans import Choice

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``pg_options`` of ``init_process_group`` and ``new_group``.

    Attributes
    ----------
    algorithm
        What the group's collectives run, as for :func:`simcoll.distributed.spawn`. None: as passed to spawn.
    """

    algorithm: Choice = None
