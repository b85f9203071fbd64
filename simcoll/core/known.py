"""Derived facts about a schedule, and whether its source yields the same steps at every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING

from simcoll.arrays import Array
from simcoll.core.step import Repeat, Step
from simcoll.core.transit import Transit

if TYPE_CHECKING:
    from simcoll.core.proof import Proof

__all__ = ["Known"]


class Known:
    """Derived facts about a schedule, each computed once; they are neither pickled nor copied.

    ``digests``: of the blocks that the source has yielded so far; ``complete``: these are all.
    ``keeps``: whether a short pass, or a longer one while ``held``, is ``kept``, and then, without
    repeats, ``lowered``. ``again``: the function, with its arguments, that makes the same schedule
    in another process. ``transfers``: their number, those of a repeat counted once, if the
    schedule was checked as a whole. ``transits``: the paths and wire formats that occurred so far.
    These are facts of the core; other packages store theirs in their own
    :class:`simcoll.core.facts.FactStore`.

    It is no dataclass, because a proof leads back to its facts, and ``dataclasses.asdict`` of a
    plan or a result would never end.
    """

    __slots__ = (
        "again",
        "checked",
        "complete",
        "content_hash",
        "digests",
        "held",
        "keeps",
        "kept",
        "lock",
        "lowered",
        "proof",
        "transfers",
        "transits",
        "wait_pairs",
        "waits",
    )

    def __init__(self) -> None:
        self.digests: list[bytes] = []
        self.complete = False
        self.lock = Lock()
        self.again: tuple[Callable[..., object], tuple[object, ...]] | None = None
        self.keeps = False
        self.held = False
        self.kept: tuple[Step | Repeat, ...] | None = None
        self.lowered: tuple[Step, ...] | None = None
        self.checked = False
        self.content_hash = ""
        self.proof: Proof | None = None
        self.transfers: int | None = None
        self.transits: frozenset[Transit] = frozenset()
        self.waits: Mapping[int, tuple[int, ...]] | None = None
        self.wait_pairs: tuple[Array, Array] | None = None

    @property
    def folds(self) -> bool:
        """Whether a step may add to one element more than once, which only a proof of this very
        schedule excludes.
        """
        return self.proof is None or self.proof.of is not self or self.proof.folds

    def agrees(self, number: int, value: bytes) -> bool:
        """Whether a pass that yields this digest as its block ``number``, from 1 on, agrees with
        all others so far.

        The first pass to come this far, finished or not, in any thread, decides for the others.
        """
        with self.lock:
            if number > len(self.digests) and not self.complete:
                self.digests.append(value)
            return self.digests[number - 1 : number] == [value]

    def ends(self, number: int) -> bool:
        """Whether a pass that ends after ``number`` blocks agrees with all others so far."""
        with self.lock:
            self.complete = self.complete or number == len(self.digests)
            return number == len(self.digests)

    def __reduce__(self) -> tuple[type[Known], tuple[()]]:
        return Known, ()

    def __dask_tokenize__(self) -> str:
        return "derived facts"
