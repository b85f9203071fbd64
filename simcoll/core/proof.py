"""The facts that a proof establishes about a schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

from simcoll.core.immutable import without_subclasses
from simcoll.core.vocabulary import OrderLevel, ProofKind, ProofMethod

__all__ = ["LEVELS", "Proof"]

LEVELS: tuple[OrderLevel, ...] = (
    "any",
    "rank-consistent",
    "run-consistent",
    "position-independent",
)
"""Guarantees on the reduction order, weakest first. ``rank-consistent``: the same bits on every
rank. ``run-consistent``: also in every run. ``position-independent``: also the same order for every
chunk.
"""


@without_subclasses
@dataclass(frozen=True, slots=True)
class Proof:
    """Facts proved about a schedule, for every size, dtype and reduction.

    Attributes
    ----------
    kind
        ``full``: every chunk was followed. ``by symmetry``: some chunks were followed, and the rest
        are images of these (:mod:`simcoll.proving.symmetry`, :mod:`simcoll.proving.alike_pieces`).
    method
        ``exact``, or ``fingerprint``.
    order
        One of ``LEVELS``; empty where nothing is reduced.
    steps, transfers
        Number of steps and transfers that were followed.
    shared_chunks
        Two channels touch the same chunk, so plans need explicit dependencies.
    error_bits
        A wrong schedule has a proof like this with probability ``2**-error_bits`` at most; 0 if
        ``exact``, or if the salt was given.
    folds
        Some step adds to one element more than once, so the order inside the step matters; assumed
        until the opposite is shown.
    salt
        Secret bytes from which a proof by fingerprints drew its tokens:
        ``verify(schedule, salt=...)`` repeats it.
    of
        Identity of the proved schedule (its ``known``); a plan of any other schedule refuses this
        proof.
    """

    kind: ProofKind
    method: ProofMethod
    order: OrderLevel
    steps: int
    transfers: int
    shared_chunks: bool
    error_bits: int = 0
    folds: bool = field(default=True, repr=False)
    salt: bytes = field(default=b"", repr=False, compare=False)
    of: object = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        error = f"error 2^-{self.error_bits}" if self.error_bits else "repeated with a given salt"
        error = "exact" if self.method == "exact" else error
        order = f", reduction order {self.order}" if self.order else ""
        return (
            f"proved ({self.kind}, {error}): {self.transfers:,} transfers in {self.steps:,} "
            f"steps{order}"
        )
