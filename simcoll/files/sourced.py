"""Facts in TOML: values with units and sources, declared once for every kind of file that has them.

A fact is ``{ value = ..., source = "..." }``, or a bare value in files that may leave sources out.
A file declares its facts as places with a function each; everything else in it is an error that
names the place and the nearest valid choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from simcoll.errors import ConfigError, nearest, shown

__all__ = ["FactRows", "FactSchema", "Kind", "text"]

Kind: TypeAlias = Callable[[Any, str], Any]
"""From the value in the file and the name of its key, for messages, to the value; raises
ConfigError, which needs no place.
"""


def text(value: Any, subject: str) -> str:
    """Text, as it is.

    >>> text(3, "name")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: name: expected text, got 3
    """
    if not isinstance(value, str):
        raise ConfigError(f"{subject}: expected text, got {shown(value)}")
    return value


@dataclass(frozen=True, slots=True)
class FactRows:
    """A list of tables with facts, such as ``[[network.tiers]]``, each made into a record.

    Attributes
    ----------
    keys, required
        The kinds of the keys of a table, and those that it must have.
    labels
        A table and its list, for messages.
    make
        From the values by key to the record.
    """

    keys: Mapping[str, Kind]
    required: Collection[str]
    labels: tuple[str, str]
    make: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FactSchema:
    """The facts that a kind of file may hold.

    Attributes
    ----------
    kinds
        By place, such as ``"memory.size"``. A part of a place may be a pattern, such as
        ``"fabric.*.latency"``; the first place that fits counts.
    ignored
        Keys of the first level that are no facts; they are left alone.
    nouns
        By table, what its keys name, for messages; default: a key.
    bare
        Whether facts may lack a source.
    evidence
        The kinds of evidence that a fact may state; empty: it states none.

    Examples
    --------
    >>> from simcoll.units import parse_size
    >>> facts = FactSchema({"memory.size": lambda value, what: parse_size(value, what=what)})
    >>> facts.read({"memory": {"size": {"value": "80 GB", "source": "data sheet"}}})
    ({'memory.size': 80000000000}, {'memory.size': 'data sheet'})
    >>> facts.read({"memory": {"sise": {"value": "80 GB", "source": "data sheet"}}}, "gpu.toml")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: gpu.toml: $.memory.sise: unknown key; did you mean 'size'? ...
    """

    kinds: Mapping[str, Kind | FactRows]
    ignored: Collection[str] = ()
    nouns: Mapping[str, str] = field(default_factory=dict)
    bare: bool = False
    evidence: Collection[str] = ()

    def read(
        self, document: Mapping[str, Any], file: str | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Values and sources by place, of all facts of a document.

        Raises
        ------
        ConfigError
            With the file and the place.
        """
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for place, entry in self._entries(document, "", file):
            values[place] = self.value(entry, place, file, sources)
        return values, sources

    def evidence_of(self, document: Mapping[str, Any], file: str | None = None) -> dict[str, str]:
        """The evidence that the facts of a document state, by place.

        Raises
        ------
        ConfigError
            With the file and the place.
        """
        stated: dict[str, str] = {}
        for place, entry in self._entries(document, "", file):
            word = entry.get("evidence") if isinstance(entry, dict) else None
            if word is None:
                continue
            if not isinstance(word, str) or word not in self.evidence:
                wrong = nearest(word, self.evidence) if isinstance(word, str) else "expected text"
                raise ConfigError(
                    f"evidence: got {shown(word)}; {wrong}", file=file, path=f"$.{place}"
                )
            stated[place] = word
        return stated

    def kind(self, place: str) -> Kind | FactRows | None:
        """The kind of a fact; None for places that hold none."""
        if place in self.kinds:  # most keys have no pattern
            return self.kinds[place]
        parts = place.split(".")
        return next(
            (kind for pattern, kind in self.kinds.items() if _fits(parts, pattern.split("."))),
            None,
        )

    def value(self, entry: Any, place: str, file: str | None, sources: dict[str, str]) -> Any:
        """The value of one fact, at a place that may hold one; its source is added to
        ``sources``.
        """
        kind = self.kind(place)
        if isinstance(kind, FactRows):
            return self._rows(entry, kind, place, file, sources)
        if kind is None:
            raise ConfigError(
                f"unknown key; {nearest(place, self.kinds)}", file=file, path=f"$.{place}"
            )
        return self._fact(entry, kind, place, file, sources)

    def _entries(
        self, table: Mapping[str, Any], above: str, file: str | None
    ) -> Iterator[tuple[str, Any]]:
        """The places of all facts, with what stands there."""
        parents = above.split(".") if above else []
        depth = len(parents)
        below = [
            parts
            for parts in (pattern.split(".") for pattern in self.kinds)
            if _fits(parents, parts[:depth])
        ]
        names = {parts[depth] for parts in below if len(parts) > depth}
        tables = {parts[depth] for parts in below if len(parts) > depth + 1}
        for key, entry in table.items():
            place = f"{above}.{key}" if above else key
            if self.kind(place) is not None:
                yield place, entry
            elif any(fnmatchcase(key, name) for name in tables):
                if not isinstance(entry, dict):
                    raise ConfigError(
                        f"expected a table [{place}], got {shown(entry)}",
                        file=file,
                        path=f"$.{place}",
                    )
                yield from self._entries(entry, place, file)
            elif above or key not in self.ignored:
                valid = names if above else {*names, *self.ignored}
                wrong = f"unknown {self.nouns.get(above, 'key')}; {nearest(key, valid)}"
                raise ConfigError(wrong, file=file, path=f"$.{place}")

    def _rows(
        self, entry: Any, rows: FactRows, place: str, file: str | None, sources: dict[str, str]
    ) -> list[Any]:
        row_noun, list_noun = rows.labels
        if not isinstance(entry, list):
            name = place.rpartition(".")[2]
            raise ConfigError(
                f"{name}: expected {list_noun}, got {shown(entry)}", file=file, path=f"$.{place}"
            )
        records = []
        for number, row in enumerate(entry):
            row_place = f"{place}[{number}]"
            if not isinstance(row, dict):
                raise ConfigError(
                    f"expected a table, got {shown(row)}", file=file, path=f"$.{row_place}"
                )
            for key in row:
                if key not in rows.keys:
                    wrong = f"unknown key; {nearest(key, rows.keys)}"
                    raise ConfigError(wrong, file=file, path=f"$.{row_place}.{key}")
            for key in rows.required:
                if key not in row:
                    raise ConfigError(
                        f"missing; {row_noun} needs a {key}", file=file, path=f"$.{row_place}.{key}"
                    )
            values = {
                key: self._fact(value, rows.keys[key], f"{row_place}.{key}", file, sources)
                for key, value in row.items()
            }
            records.append(rows.make(**values))
        return records

    def _fact(
        self, entry: Any, kind: Kind, place: str, file: str | None, sources: dict[str, str]
    ) -> Any:
        path = f"$.{place}"
        value = entry
        if isinstance(entry, dict):
            keys = {"value", "source", "evidence"} if self.evidence else {"value", "source"}
            strange = [key for key in entry if key not in keys]
            needed = ("value",) if self.bare else ("value", "source")
            absent = [key for key in needed if key not in entry]
            if strange or absent:
                instead = shown(strange[0]) if strange else f"no {absent[0]}"
                raise ConfigError(
                    f"expected {{ value = ..., source = '...' }}, got {instead}",
                    file=file,
                    path=path,
                )
            value, source = entry["value"], entry.get("source")
            if source is not None:
                if not isinstance(source, str) or not source.strip():
                    raise ConfigError(
                        f"source: expected text, got {shown(source)}", file=file, path=path
                    )
                sources[place] = source
        elif not self.bare:
            raise ConfigError(
                f"expected {{ value = ..., source = '...' }}, got {shown(entry)}",
                file=file,
                path=path,
            )
        try:
            return kind(value, place.rpartition(".")[2])
        except ConfigError as error:
            raise ConfigError(error.message, file=file, path=path) from None


def _fits(parts: list[str], patterns: list[str]) -> bool:
    """Whether each part of a place fits the pattern of the same number."""
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
