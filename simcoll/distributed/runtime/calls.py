"""A rank's call of a collective or of a send or receive, and how two calls differ."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from simcoll.core.reduction import Reduction
from simcoll.core.vocabulary import CollectiveKind
from simcoll.distributed.runtime.work import Work
from simcoll.errors import InternalError
from simcoll.libraries.choices import Choice

Splits = tuple[tuple[int, ...], tuple[int, ...]]

__all__ = ["ASPECTS", "CollectiveCall", "End", "matrix", "without_data"]

ASPECTS = (
    "function",
    "number of elements",
    "dtype",
    "op",
    "root",
    "algorithm",
    "whether tensors are fake",
)


class CollectiveCall(msgspec.Struct, frozen=True, eq=False):
    """One rank's call of a collective.

    Attributes
    ----------
    name
        The function that was called.
    kind
        The collective that implements it.
    sizes
        Elements per block, as :func:`simcoll.core.plan.bind` takes them; for an all_to_all with
        splits ``()``.
    shape
        Shapes, as messages show them.
    splits
        Elements sent to and received from every rank, for an all_to_all with splits.
    fake
        Whether it only takes time and moves no data.
    """

    name: str
    kind: CollectiveKind
    sizes: int | tuple[int, ...]
    dtype: np.dtype[Any]
    shape: str = ""
    op: Reduction | None = None
    root: int | None = None
    splits: Splits | None = None
    algorithm: Choice = None
    fake: bool = False

    def aspects(self) -> tuple[Any, ...]:
        """The properties that must be equal on all ranks, in the order of ``ASPECTS``."""
        algorithm = self.algorithm if isinstance(self.algorithm, str) else None
        return self.name, self.sizes, self.dtype, self.op, self.root, algorithm, self.fake

    def differences(self, peer: CollectiveCall) -> list[str]:
        """The aspects in which two calls differ."""
        mine, theirs = self.aspects(), peer.aspects()
        if mine == theirs:
            return []
        return [
            aspect
            for aspect, own_value, peer_value in zip(ASPECTS, mine, theirs, strict=True)
            if own_value != peer_value
        ]

    def __str__(self) -> str:
        parts = [self.name, self.shape, "" if self.kind == "barrier" else self.dtype.name]
        if self.op is not None:
            parts.append(str(self.op).upper())
        if self.root is not None:
            parts.append(f"root={self.root} (group rank)")
        if self.splits is not None:
            parts.append(f"sends {list(self.splits[0])} receives {list(self.splits[1])} elements")
        if isinstance(self.algorithm, str):
            parts.append(f"algorithm={self.algorithm}")
        if self.fake:
            parts.append("fake")
        return " ".join(part for part in parts if part)


@functools.lru_cache(maxsize=1024)
def without_data(call: CollectiveCall) -> CollectiveCall:
    """The call without data."""
    return replace(call, fake=True)


@dataclass(slots=True, eq=False)
class End:
    """A posted send or receive of ``rank``; ``peer`` is None for a receive from any rank.

    ``number`` identifies a send between processes; ``work`` is None when the rank runs in another
    process.
    """

    sends: bool
    rank: int
    peer: int | None
    tag: int
    size: int
    dtype: str
    work: Work | None
    number: int = 0
    fake: bool = False

    @property
    def local_work(self) -> Work:
        """The Work, for an end posted in this process."""
        if self.work is None:
            raise InternalError(f"the end of a message at rank {self.rank} is in another process")
        return self.work


def matrix(rows: Sequence[Sequence[int]]) -> Any:
    """The sizes of an all_to_all, by sender and receiver; one number when they are equal."""
    return (
        rows[0][0] if len({size for row in rows for size in row}) == 1 else tuple(map(tuple, rows))
    )
