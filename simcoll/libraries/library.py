"""Library files: the constants of one version of a communication library, each with its unit and
source.

A leaf of the file is ``{ value = ..., source = "..." }``. Times and rates are text with a unit, or
lists of such text; internally they are microseconds and GB/s (10**9 bytes per second), the units of
NCCL's own cost formula. The reader is strict: an unknown key, a missing source or a missing unit is
an error that names the place. A file that ``extends`` another inherits all values that it does not
set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simcoll.errors import ConfigError, nearest, shown
from simcoll.files.paths import shipped_files
from simcoll.files.reader_arguments import Content, content_of
from simcoll.files.sourced import FactSchema, Kind
from simcoll.files.strict import read_file
from simcoll.files.text import parse_toml
from simcoll.units import parse_rate, parse_time

if TYPE_CHECKING:
    from simcoll.topology import Topology

__all__ = ["Library", "library_for", "load_library", "parse_library", "shipped_libraries"]

MAX_FILE_BYTES = 2**20

Value = float | str | tuple[float, ...] | tuple[str, ...]


def _time(value: Any, subject: str) -> float:
    return parse_time(value, what=subject) / 1e9


def _rate(value: Any, subject: str) -> float:
    return float(parse_rate(value, what=subject)) / 1e15


def _number(value: Any, subject: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise ConfigError(f"{subject}: expected a number, at least 0, got {shown(value)}")
    return float(value)


def _text(value: Any, subject: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{subject}: expected text, got {shown(value)}")
    return value


def _texts(value: Any, subject: str) -> tuple[str, ...]:
    return tuple(_text(word, subject) for word in (value if isinstance(value, list) else [value]))


def _list_of(kind: Callable[[Any, str], float]) -> Kind:
    def items(value: Any, subject: str) -> tuple[float, ...]:
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{subject}: expected a list of values, got {shown(value)}")
        return tuple(kind(element, subject) for element in value)

    return items


def _by_protocol(value: Any, subject: str) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != 3:
        raise ConfigError(
            f"{subject}: expected three values, for LL, LL128 and Simple, got {shown(value)}"
        )
    return tuple(_time(element, subject) for element in value)


_times, _rates, _numbers = _list_of(_time), _list_of(_rate), _list_of(_number)
_TEXTS = ("name", "version", "description", "missing", "extends", "accuracy")
_OPTIONAL = {"missing", "extends", "accuracy"}
_FACTS = FactSchema(
    {
        "base.*": _by_protocol,
        "hop.*.ring": _by_protocol,
        "hop.*.tree": _by_protocol,
        "hop.*.*": _time,
        "share.*": _number,
        "cpu.*.net_overhead": _time,
        "cpu.*.ll_rate": _rates,
        "cpu.*.p2p_rate": _rate,
        "generation.*.plateau": _number,
        "generation.*.nvls_efficiency": _number,
        "generation.*.channels": _number,
        "generation.*.ll_rate": _rate,
        "generation.*.nvls_rate": _rate,
        "generation.*.link_rate": _rate,
        "generation.*.*_rate": _rates,
        "generation.*.*_start": _times,
        "generation.*.*_speeds": _rates,
        "generation.*.*_bytes": _numbers,
        "tree_correction.*": _numbers,
        "class.*.gpus": _texts,
        "class.*.*_share": _number,
        "class.*.*_factor": _number,
        "class.*.*_channel_rate": _rate,
        "class.*.*_start": _time,
        "class.*.own_step": _number,
        "class.*.ring_overlap": _number,
        "class.*.own_step_bytes": _number,
        "class.*.nvls_fill": _time,
        "class.*.p2p_peer": _time,
        "fabric.*.choice": _text,
        "fabric.*.protocols": _texts,
        "fabric.*.algorithms": _texts,
        "fabric.*.share": _number,
        "fabric.*.*_share": _number,
        "fabric.*.*_rate": _rate,
        "fabric.*.steps": _times,
        "fabric.*.latency": _time,
        "fabric.*.launch": _time,
        "fabric.*.p2p_peer": _time,
        "class.*.ll_growth": _time,
        "fabric.*.ll_growth": _time,
        "fabric.*.*_start": _time,
        "correction.net_post": _by_protocol,
        "correction.*_factor": _numbers,
        "correction.*_share": _number,
        "correction.own_step": _number,
        "correction.ring_rise": _number,
        "correction.p2p_own_step": _number,
        "correction.p2p_fill": _number,
        "correction.own_step_bytes": _number,
        "correction.*_bytes": _number,
        "correction.*_rate": _rate,
        "correction.*": _time,
        "launcher.*": _time,
        "scatter.*": _numbers,
        "rules.nvls_rate": _text,
        "rules.choice": _text,
        "rules.send_order": _text,
        "rules.*": _number,
    },
    ignored=_TEXTS,
)


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """One version of a communication library: constants by place in the file, in microseconds and
    GB/s.

    Attributes
    ----------
    name, version
        For example ``"nccl"`` and ``"2.27"``.
    missing
        Subjects for which the file has no numbers, in words.
    values, sources
        Constants by place, such as ``"fabric.ib.latency"``, and their sources.
    borrowed
        Places whose constants are borrowed from another library, with its name.
    accuracy
        How far uncalibrated predictions were off; empty where that is not known.
    """

    name: str
    version: str
    description: str
    missing: tuple[str, ...]
    values: Mapping[str, Value]
    sources: Mapping[str, str]
    borrowed: Mapping[str, str]
    accuracy: str = ""

    @property
    def digest(self) -> str:
        """Hash of the values."""
        return _digest(self)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def number(self, place: str, default: float | None = None) -> float:
        """One constant.

        Raises
        ------
        ConfigError
            When the file lacks it and there is no default.
        """
        value = self.values.get(place, default)
        if not isinstance(value, (int, float)):
            raise ConfigError(f"{self} has no number {place!r}; {nearest(place, self.values)}")
        return float(value)

    def numbers(self, place: str) -> tuple[float, ...]:
        """A list of constants; empty if the file has none."""
        value = self.values.get(place, ())
        return cast("tuple[float, ...]", value) if isinstance(value, tuple) else (float(value),)

    def texts(self, place: str) -> tuple[str, ...]:
        """A list of words, such as the GPUs of a class."""
        value = self.values.get(place, ())
        return tuple(str(word) for word in value) if isinstance(value, tuple) else ()

    def text(self, place: str) -> str:
        """A word, such as the way a fabric chooses protocols; empty if the file has none."""
        return str(self.values.get(place, ""))

    def tables(self, head: str) -> tuple[str, ...]:
        """Names of the tables below a heading, such as the fabrics, in file order."""
        return _tables(self, head)

    def with_values(self, changes: Mapping[str, Value]) -> Library:
        """The same library with some constants changed."""
        values = {**self.values, **changes}
        sources = {**self.sources, **dict.fromkeys(changes, "argument")}
        return replace(self, values=values, sources=sources)


@lru_cache(maxsize=4096)
def _tables(library: Library, head: str) -> tuple[str, ...]:
    """Cached, because every prediction needs it repeatedly."""
    return tuple(
        dict.fromkeys(
            place.split(".")[1] for place in library.values if place.startswith(f"{head}.")
        )
    )


@lru_cache(maxsize=64)
def _digest(library: Library) -> str:
    """Computed lazily: a fit changes constants thousands of times."""
    values = sorted((place, repr(value)) for place, value in library.values.items())
    return hashlib.sha256(repr((str(library), values)).encode()).hexdigest()[:16]


def load_library(name: str | Path | Library = "nccl", version: str = "") -> Library:
    """Load a shipped library by name, with or without its version, or a library file.

    Parameters
    ----------
    version
        The version of a library that is given by its name alone, such as ``"2.29"`` or
        ``"2.29.7"``. Default: the newest whose accuracy is known.

    Raises
    ------
    ConfigError
        States the file, the place in it, and the nearest valid choice.

    Examples
    --------
    >>> library = load_library("nccl")
    >>> print(library, library.number("hop.net.nvls_tree"), "us")
    nccl 2.27 14.0 us
    """
    shipped = shipped_files("libraries")
    if version:
        return _load(shipped[_stem_of(name, version, shipped)])
    if isinstance(name, Library):
        return name
    text = str(name)
    fitting = [
        stem
        for stem in shipped
        if stem == text.replace(" ", "-") or stem.rpartition("-")[0] == text
    ]
    if fitting:
        return max((_load(shipped[stem]) for stem in fitting), key=_preference)
    if text.endswith(".toml") or "/" in text or "\\" in text:
        return parse_library(read_file(text, MAX_FILE_BYTES), text)
    names = {*shipped, *(stem.rpartition("-")[0] for stem in shipped)}
    raise ConfigError(
        f"unknown library {text!r}; {nearest(text, names)}; or give the path of a .toml file"
    )


def _stem_of(name: str | Path | Library, version: str, shipped: Mapping[str, Path]) -> str:
    """The file of a version; of ``2.29.7``, that of ``2.29``."""
    versions = [stem.rpartition("-")[2] for stem in shipped if stem.rpartition("-")[0] == str(name)]
    if not versions:
        raise ConfigError(
            f"version {version} of {name}: a version is of a shipped library by its name, such as "
            "'nccl'; a file states its own"
        )
    minor = ".".join(str(version).split(".")[:2])
    if minor not in versions:
        raise ConfigError(f"no {name} of version {version}; {nearest(minor, versions)}")
    return f"{name}-{minor}"


def _preference(library: Library) -> tuple[bool, list[int]]:
    """The order of versions of a library whose name alone is given: the newest of which the
    accuracy is known.
    """
    return bool(library.accuracy), [int(part) for part in library.version.split(".")]


def library_for(
    name: str | Path | Library | None, topology: Topology, version: str | None = None
) -> Library:
    """The named library, or else the usual one for the GPUs of a topology.

    Raises
    ------
    ConfigError
        As :func:`load_library`.
    """
    default = "rccl" if topology.traits.get("generation", "").startswith("mi") else "nccl"
    return load_library(name or default, version or "")


def shipped_libraries() -> dict[str, str]:
    """Names of the shipped library files, each with its one-line description."""
    return {name: _load(path).description for name, path in shipped_files("libraries").items()}


@cache
def _load(path: Path) -> Library:
    return parse_library(path.read_bytes(), path.name)


def parse_library(content: Content, file: str) -> Library:
    """A library from the text of its file.

    Raises
    ------
    ConfigError
        States the place in the file.
    """
    content = content_of(content, "parse_library")
    document = parse_toml(content, file)
    heads: dict[str, Any] = {
        key: document.get(key, [] if key in _OPTIONAL else None) for key in _TEXTS
    }
    for key, head in heads.items():
        texts = (
            head
            if key == "missing" and isinstance(head, list)
            else [head]
            if head or key not in _OPTIONAL
            else []
        )
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ConfigError(f"expected text, got {shown(head)}", file=file, path=f"$.{key}")
    base = load_library(heads["extends"]) if heads["extends"] else None
    values, sources = _FACTS.read(document, file)
    name, version, borrowed = heads["name"], heads["version"], {}
    if base:
        lent = (
            base.borrowed
            if base.name == name
            else dict.fromkeys(base.values, str(base)) | dict(base.borrowed)
        )
        borrowed = {place: lender for place, lender in lent.items() if place not in values}
        values, sources = {**base.values, **values}, {**base.sources, **sources}
    accuracy = heads["accuracy"] or ""
    return Library(
        name,
        version,
        heads["description"],
        tuple(heads["missing"] or (base.missing if base else ())),
        values,
        sources,
        borrowed,
        accuracy,
    )
