"""Per-rank traces: the common form of recorded programs and execution traces, before they are
combined to a workload.

A rank's steps are in the order of its streams; ``after`` holds numbers of earlier steps of the same
rank. The steps of a collective or message have the same :class:`Together` on all its ranks.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from simcoll.core.vocabulary import TogetherKind

__all__ = ["Together", "TraceStep", "Traces"]


@dataclass(frozen=True, slots=True)
class Together:
    """A collective of some ranks, or a message between two.

    Attributes
    ----------
    key
        Unique identifier.
    ranks
        In the order of the group; for a message, source and destination.
    kind
        As in a :class:`~simcoll.workload.workload.CallOperation`; ``"send"``: a message.
    group
        The name of the group that it is attributed to.
    size_bytes, dtype, root, sizes, algorithm, imbalance, service_fs
        As in a Call.
    at_once
        For a message: it starts when both ends are ready, even under a protocol that buffers.
    """

    key: Hashable
    ranks: tuple[int, ...]
    kind: TogetherKind
    group: str
    size_bytes: int
    dtype: str = ""
    root: int = 0
    sizes: tuple[tuple[int, ...], ...] = ()
    algorithm: str = ""
    imbalance: float = 1.0
    at_once: bool = False
    service_fs: int | None = None

    @property
    def traits(self) -> tuple[object, ...]:
        """The properties that are equal for corresponding operations of other ranks."""
        return (
            self.kind,
            len(self.ranks),
            self.size_bytes,
            self.dtype,
            self.root,
            self.sizes,
            self.algorithm,
            self.imbalance,
            self.at_once,
            self.service_fs,
        )


@dataclass(frozen=True, slots=True)
class TraceStep:
    """A step of a rank: local work, or its part of a collective or message.

    Attributes
    ----------
    stream, after, name, time_fs, flops
        As in a :class:`~simcoll.workload.workload.ComputeOperation`; ``after`` holds numbers of
        earlier steps of the rank.
    together
        The collective or message; None for local work.
    scope
        As in a ComputeOperation; of ranks that differ in nothing else, that of the first counts.
    """

    stream: str
    after: tuple[int, ...] = ()
    name: str = ""
    time_fs: int = 0
    flops: float = 0.0
    together: Together | None = None
    scope: str = ""


Traces = list[list[TraceStep]]
"""Steps by rank, in order."""
