"""How transfers travel, where a schedule says so: over which links, and in which wire format.

Most steps say nothing: their transfers take the route of the topology, in the data type of the
plan, and have no :class:`Transits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.core.immutable import by_constructor, without_subclasses
from simcoll.core.numbers import whole_numbers
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.core.wire_format import WireFormat

__all__ = [
    "PLAIN",
    "Transit",
    "Transits",
    "chosen_transits",
    "refuse_transits",
    "same_transits",
    "transits_from",
    "transits_of",
]

LONGEST_NAME = 100


@without_subclasses
@dataclass(frozen=True, slots=True, order=True)
class Transit:
    """The way of a transfer.

    Attributes
    ----------
    via
        A vertex of the topology, or a class of links (``"nvlink"``, ``"net"``, ...), that the
        route passes; empty: the route of the topology.
    wire
        The wire format (:mod:`simcoll.core.wire_format`); empty: the data type of the plan.

    Examples
    --------
    >>> str(Transit("net", "int8/256")), str(Transit())
    ('via net, as int8/256', '')
    """

    via: str = ""
    wire: str = ""

    def __post_init__(self) -> None:
        via: Any = self.via  # whatever was given
        if type(via) is not str or len(via) > LONGEST_NAME or not via.isprintable():
            raise ConfigError(
                f"via={via!r:.60}: expected the name of a vertex of the topology, or a class of "
                "links, such as 'net'"
            )
        object.__setattr__(self, "via", via.strip())
        wire: Any = self.wire
        if type(wire) is not str:
            raise ConfigError(f"wire={wire!r:.60}: expected the name of a wire format")
        if wire:
            from simcoll.core.wire_format import wire_format

            object.__setattr__(self, "wire", wire_format(self.wire).name)

    @property
    def format(self) -> WireFormat | None:
        """The wire format; ``None`` for the data type of the plan."""
        if not self.wire:
            return None
        from simcoll.core.wire_format import wire_format

        return wire_format(self.wire)

    def __str__(self) -> str:
        parts = (f"via {self.via}" * bool(self.via), f"as {self.wire}" * bool(self.wire))
        return ", ".join(filter(None, parts))


PLAIN = Transit()
"""The route of the topology, and the data type of the plan."""


@without_subclasses
@dataclass(frozen=True, slots=True, eq=False)
class Transits:
    """The transit of each transfer of a step: ``table[number[row]]``.

    The table is sorted and has every transit that occurs, once, so that equal transits have equal
    records.

    >>> Transits(np.array([1, 0, 1]), (Transit("net"), PLAIN)).texts()
    ['', 'via net', '']
    """

    number: Ints
    table: tuple[Transit, ...]

    def __post_init__(self) -> None:
        table: Any = self.table  # whatever was given
        if type(table) is not tuple or not all(type(entry) is Transit for entry in table):
            raise ConfigError(f"the transits of a step are a tuple of Transit; got {table!r:.60}")
        number = whole_numbers("transits of a Step", self.number)
        if number.ndim != 1 or (len(number) and not 0 <= number.min() <= number.max() < len(table)):
            raise ConfigError(f"a transit of a step is one of {len(table)} of its table")
        used = np.unique(number).tolist()
        ordered = sorted({table[entry] for entry in used})
        places = np.zeros(len(table), np.int64)
        for entry in used:
            places[entry] = ordered.index(table[entry])
        object.__setattr__(self, "number", whole_numbers("transits of a Step", places[number]))
        object.__setattr__(self, "table", tuple(ordered))

    __reduce__ = by_constructor

    def __len__(self) -> int:
        return len(self.number)

    @property
    def key(self) -> bytes:
        """Equal for equal transits, on every machine."""
        import json

        table = json.dumps([[entry.via, entry.wire] for entry in self.table]).encode()
        number = self.number.astype("<i8").tobytes()
        return b"%d,%d:" % (len(table), len(number)) + table + number

    @property
    def plain(self) -> bool:
        """Whether no transfer has a path or a wire format."""
        return set(self.table) <= {PLAIN}

    def copy(self) -> Transits:
        """The same over an array that nobody else holds."""
        return Transits(self.number[:], self.table)

    def texts(self) -> list[str]:
        """Every transfer's transit in words; empty for plain ones."""
        words = [str(entry) for entry in self.table]
        return [words[number] for number in self.number.tolist()]

    def columns(self) -> tuple[list[str], list[str]]:
        """What each transfer goes via, and its wire format."""
        numbers = self.number.tolist()
        vias, wires = ([entry.via for entry in self.table], [entry.wire for entry in self.table])
        return [vias[number] for number in numbers], [wires[number] for number in numbers]

    def rows(self, chosen: slice | Array) -> Transits | None:
        """Those of some transfers; ``None`` if they are plain."""
        return _unless_plain(Transits(self.number[chosen], self.table))

    def paths(self) -> Transits | None:
        """The same without wire formats; ``None`` where no path is chosen."""
        if not any(entry.via for entry in self.table):
            return None
        return Transits(self.number, tuple(Transit(entry.via) for entry in self.table))

    def by_format(self) -> Iterable[tuple[WireFormat, Ints]]:
        """Each wire format, and the transfers that have it."""
        from simcoll.core.wire_format import wire_format

        for name in sorted({entry.wire for entry in self.table} - {""}):
            has_it = np.array([entry.wire == name for entry in self.table])
            yield wire_format(name), np.flatnonzero(has_it[self.number])


def _unless_plain(transits: Transits) -> Transits | None:
    return None if transits.plain else transits


def refuse_transits(
    schedule: object, transits: Iterable[Transit], subject: str, *, formats_alone: bool = False
) -> None:
    """Refuse paths and wire formats (or ``formats_alone``) where something else cannot hold them.

    >>> refuse_transits("ring", [Transit("net")], "GOAL cannot hold")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: GOAL cannot hold ring: some of its transfers go via net
    """
    for transit in transits:
        part = Transit(wire=transit.wire) if formats_alone else transit
        if part != PLAIN:
            raise ConfigError(f"{subject} {schedule}: some of its transfers go {part}")


def same_transits(a: Transits | None, b: Transits | None) -> bool:
    """Whether two steps have equal transits."""
    if a is None or b is None:
        return a is b
    return a is b or a.key == b.key


def transits_of(parts: Sequence[tuple[int, Transits | None]]) -> Transits | None:
    """The transits of several runs of transfers in a row, given the length of each run.

    >>> both = transits_of([(1, None), (2, Transits(np.array([0, 0]), (Transit("net"),)))])
    >>> both.texts()
    ['', 'via net', 'via net']
    """
    if all(transits is None for _, transits in parts):
        return None
    table: list[Transit] = [PLAIN]
    numbers = []
    for length, transits in parts:
        if transits is None:
            numbers.append(np.zeros(length, np.int64))
        else:
            numbers.append(transits.number + len(table))
            table += transits.table
    return _unless_plain(Transits(np.concatenate(numbers), tuple(table)))


def transits_from(
    via: str | Sequence[str], wire: str | Sequence[str], size: int
) -> Transits | None:
    """Transits of so many transfers, from one text for all or one for each.

    >>> transits_from(["", "net"], "bfloat16", 2).texts()
    ['as bfloat16', 'via net, as bfloat16']
    >>> transits_from("", "", 2) is None
    True
    """
    if via == wire == "":
        return None
    vias, wires = ([text] * size if isinstance(text, str) else text for text in (via, wire))
    pairs = list(zip(vias, wires, strict=True))
    distinct = list(dict.fromkeys(pairs))
    place = {pair: number for number, pair in enumerate(distinct)}
    number = np.array([place[pair] for pair in pairs], np.int64)
    return _unless_plain(Transits(number, tuple(Transit(*pair) for pair in distinct)))


def chosen_transits(via: Ints, names: Sequence[str], wire: str) -> Transits | None:
    """Transits of one wire format, over the vertices or classes of links ``names[via[row]]``."""
    return _unless_plain(Transits(via, tuple(Transit(name, wire) for name in names)))
