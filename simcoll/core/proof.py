"""The facts that a proof establishes about a schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simcoll.core.immutable import without_subclasses
from simcoll.core.vocabulary import OrderLevel, ProofKind, ProofMethod
from simcoll.notebook_forms import facts_table
from simcoll.units import counted

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
@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """Facts proved about a schedule, for every size, dtype and reduction.

    Attributes
    ----------
    kind
        ``full``: every chunk was followed. ``by symmetry``: some chunks were followed, and the rest
        are images of these (:mod:`simcoll.proving.symmetry`, :mod:`simcoll.proving.alike_pieces`,
        :mod:`simcoll.proving.copied_shares`, :mod:`simcoll.proving.image_pieces`).
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
    conversions
        Wire formats to which transfers convert. The proof then holds up to the rounding of these
        conversions, and nothing is proved about the order of reductions.
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
    folds: bool = True
    salt: bytes = field(default=b"", compare=False)
    conversions: tuple[str, ...] = ()
    of: object = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain values, without the salt.

        >>> import simcoll
        >>> simcoll.verify(simcoll.schedule("all_reduce", "ring", nranks=4)).to_dict()["steps"]
        7
        """
        names = ("kind", "method", "order", "steps", "transfers", "shared_chunks", "error_bits")
        facts = {name: getattr(self, name) for name in (*names, "folds")}
        return facts | {"conversions": list(self.conversions)}

    def _repr_html_(self) -> str:
        error = "none, contributions were counted"
        if self.method != "exact":
            error = f"2^-{self.error_bits}" if self.error_bits else "that of a given salt"
        return facts_table(
            [
                ("proved", self.kind),
                ("probability of error", error),
                ("order of reductions", self.order or "nothing is reduced"),
                ("followed", self._work()),
                ("channels share chunks", "yes" if self.shared_chunks else "no"),
                ("up to conversion to", ", ".join(self.conversions) or "none"),
            ]
        )

    def __repr__(self) -> str:
        order = self.order or "no reductions"
        return f"<Proof: {self.kind}, {self.method}, {self._work()}, {order}>"

    def __str__(self) -> str:
        error = f"error 2^-{self.error_bits}" if self.error_bits else "repeated with a given salt"
        error = "exact" if self.method == "exact" else error
        order = f", reduction order {self.order}" if self.order else ""
        if self.conversions:
            order += f", up to conversion to {' and '.join(self.conversions)}"
        return f"proved ({self.kind}, {error}): {self._work()}{order}"

    def _work(self) -> str:
        return f"{counted(self.transfers, 'transfer')} in {counted(self.steps, 'step')}"
