"""Derived facts about a schedule, and whether its source yields the same steps at every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from simcoll.arrays import Array
from simcoll.core.step import Repeat, Step

if TYPE_CHECKING:
    from simcoll.core.proof import Proof

__all__ = ["Known"]


@dataclass(slots=True, eq=False)
class Known:
    """Derived facts about a schedule, each computed once; they are neither pickled nor copied.

    ``digests``: of the blocks that the source has yielded so far; ``complete``: these are all.
    ``keeps``: whether a short pass, or a longer one while ``held``, is ``kept``, and then, without
    repeats, ``lowered``. ``again``: the function, with its arguments, that makes the same schedule
    in another process. These are facts of the core; other packages store theirs in their own
    :class:`simcoll.core.facts.FactStore`.
    """

    digests: list[bytes] = field(default_factory=list)
    complete: bool = False
    lock: Lock = field(default_factory=Lock, repr=False)
    again: tuple[Callable[..., object], tuple[object, ...]] | None = None
    keeps: bool = False
    held: bool = False
    kept: tuple[Step | Repeat, ...] | None = None
    lowered: tuple[Step, ...] | None = None
    checked: bool = False
    content_hash: str = ""
    proof: Proof | None = None
    waits: Mapping[int, tuple[int, ...]] | None = None
    wait_pairs: tuple[Array, Array] | None = None

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
