"""Calls that are wrong on every rank, and the errors that are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from simcoll.core.vocabulary import CollectiveKind

__all__ = [
    "MISTAKES",
    "Mistake",
    "MistakeName",
    "RaisedError",
    "other_dtype",
    "undefined_reduction",
]

REFUSAL = ("ValueError", "RuntimeError")
TYPE_REFUSAL = ("TypeError", *REFUSAL)
BLOCKS: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives in which every rank passes a buffer of several blocks."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One way to call a collective wrongly.

    Attributes
    ----------
    text
        What is wrong, for messages.
    kinds
        Collectives in which every rank that calls can see it: others would leave a rank waiting.
    errors
        Names of the classes, one of which the exception must be of.
    """

    text: str
    kinds: tuple[CollectiveKind, ...]
    errors: tuple[str, ...]


MistakeName: TypeAlias = Literal["root", "peer", "length", "dtype", "reduction"]

MISTAKES: dict[MistakeName, Mistake] = {
    "root": Mistake(
        "a root outside of the group", ("broadcast", "reduce", "gather", "scatter"), REFUSAL
    ),
    "peer": Mistake("a peer outside of the group", ("send_recv",), REFUSAL),
    "length": Mistake("a buffer that is one element too short", BLOCKS, REFUSAL),
    "dtype": Mistake("an output of another dtype than the input", BLOCKS, TYPE_REFUSAL),
    "reduction": Mistake(
        "a reduction that is not defined on the dtype",
        ("all_reduce", "reduce", "reduce_scatter"),
        TYPE_REFUSAL,
    ),
}
"""The ways, by name."""


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An exception that a wrong call has raised: its classes, from the narrowest, and its text."""

    classes: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, error: Exception) -> RaisedError:
        """The record of an exception, which a process can send."""
        names = tuple(ancestor.__name__ for ancestor in type(error).__mro__)
        return cls(names, f"{names[0]}: {error}")


def other_dtype(name: str) -> str:
    """A dtype of as many bytes where there is one, so that only a look at the type tells."""
    pairs = {"int32": "float32", "float64": "int64", "int64": "float64"}
    return pairs.get(name, "int32")


def undefined_reduction(name: str) -> str | None:
    """A reduction that a dtype does not have, or ``None`` for integers, which have all."""
    if name.startswith("complex"):
        return "max"
    return "band" if "float" in name else None
