"""What each rank does by itself: the form that recorded programs and execution traces have, before ranks are put together.

A rank's steps are in an order that its streams keep; ``after`` holds numbers of earlier steps of the same rank. Steps that several ranks
do together, a collective or a message, have the same :class:`Together` on all of them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

__all__ = ["Step", "Together", "Traces"]


@dataclass(frozen=True, slots=True)
class Together:
    """A collective of some ranks, or a message between two.

    Attributes
    ----------
    key
        Tells it from all others.
    ranks
        In the order of the group; of a message its source and its destination.
    kind
        As of a :class:`~simcoll.workload.workload.Call`; ``"send"``: a message.
    group
        The name of the group that it counts for.
    size_bytes, dtype, root, sizes, algorithm, imbalance
        As of a Call.
    at_once
        Of a message: it begins when both ends are ready, whatever the protocol lets a sender do before.
    """

    key: Hashable
    ranks: tuple[int, ...]
    kind: str
    group: str
    size_bytes: int
    dtype: str = ""
    root: int = 0
    sizes: tuple[tuple[int, ...], ...] = ()
    algorithm: str = ""
    imbalance: float = 1.0
    at_once: bool = False

    @property
    def traits(self) -> tuple[object, ...]:
        """What is the same where other ranks do the same."""
        return (
            self.kind, len(self.ranks), self.size_bytes, self.dtype, self.root, self.sizes, self.algorithm, self.imbalance, self.at_once,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a rank does: work of its own for a time, or its part in something together.

    Attributes
    ----------
    stream, after, name, time_fs, flops
        As of a :class:`~simcoll.workload.workload.Compute`; ``after`` are numbers of earlier steps of the rank.
    together
        None: work of its own.
    """

    stream: str
    after: tuple[int, ...] = ()
    name: str = ""
    time_fs: int = 0
    flops: float = 0.0
    together: Together | None = None


Traces = list[list[Step]]
"""By rank, then in order."""
