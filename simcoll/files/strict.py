"""Strict decoding of JSON and TOML into records; errors give the path of an unknown key or wrong
type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from simcoll.errors import ConfigError, nearest
from simcoll.files.text import parse_toml, refuse_repeated_keys

__all__ = ["convert_table", "decode_json", "decode_toml", "in_words", "read_file", "read_start"]

Record = TypeVar("Record")
"""A struct, or a dataclass with structs inside."""
Table = TypeVar("Table", bound=msgspec.Struct)


class _TableKey(NamedTuple):
    """A key of a table: the field of a record."""

    name: str
    type: Any
    required: bool


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind))


def _keys_of(record: Any) -> list[_TableKey]:
    """The keys of a record."""
    if issubclass(record, msgspec.Struct):
        return [
            _TableKey(entry.encode_name, entry.type, entry.required)
            for entry in msgspec.structs.fields(record)
        ]
    kinds = get_type_hints(record)
    return [
        _TableKey(
            entry.name,
            kinds[entry.name],
            entry.default is MISSING and entry.default_factory is MISSING,
        )
        for entry in fields(record)
    ]


def read_file(path: str | Path, max_bytes: int) -> bytes:
    """Read a file of limited size.

    Raises
    ------
    ConfigError
        When it cannot be read or is too large.
    """
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"cannot read: {error.strerror}", file=str(path)) from None
    except ValueError:  # a zero byte, or a lone surrogate
        raise ConfigError("cannot read: no file can have this name", file=str(path)) from None
    if len(data) > max_bytes:
        raise ConfigError(f"larger than {max_bytes >> 20} MiB", file=str(path))
    return data


def read_start(path: str | Path, most_bytes: int = 1 << 20) -> bytes:
    """Read the start of a file, enough to recognise its format.

    Raises
    ------
    ConfigError
        When it cannot be read.
    """
    try:
        with Path(path).open("rb") as stream:
            return stream.read(most_bytes)
    except OSError as error:
        raise ConfigError(f"cannot read: {error.strerror}", file=str(path)) from None
    except ValueError:  # a zero byte, or a lone surrogate
        raise ConfigError("cannot read: no file can have this name", file=str(path)) from None


def _field_names(record: Any, visited: dict[Any, None]) -> dict[str, None]:
    """Names of all fields of a record and of its nested records."""
    names: dict[str, None] = {}
    if _is_record(record) and record not in visited:
        visited[record] = None
        for entry in _keys_of(record):
            names[entry.name] = None
            names.update(_field_names(entry.type, visited))
    for inner in get_args(record):
        names.update(_field_names(inner, visited))
    return names


def _inside(record: Any, place: str) -> list[Any]:
    """The possible types at a path such as ``$.links[0]``."""
    types = [record]
    for step in re.findall(r"\.(\w+)|\[[^\]]*\]", place):
        types = [inner for member in types for inner in (member, *get_args(member))]
        if step:
            types = [
                entry.type
                for member in filter(_is_record, types)
                for entry in _keys_of(member)
                if entry.name == step
            ]
        else:
            types = [inner for outer in types for inner in get_args(outer)]
    return types


def _records(types: list[Any]) -> list[type[Any]]:
    """The records among some types, including those inside unions."""
    inner = [member for outer in types for member in (outer, *get_args(outer))]
    return list(filter(_is_record, inner))


def _keys(records: list[type[Any]]) -> dict[str, None]:
    return {entry.name: None for record in records for entry in _keys_of(record)}


_KINDS = {
    "object": "a table of keys",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


def in_words(reason: str) -> str:
    """Translate msgspec's type errors into the terms of files.

    >>> in_words("Expected `int | null`, got `str`")
    'expected a whole number or nothing, got text'
    """
    match = re.fullmatch(r"Expected `([a-z |]+)`(?:, got `([a-z]+)`)?(.*)", reason, re.DOTALL)
    if not match or not {*match[1].split(" | "), match[2] or "str"} <= _KINDS.keys():
        return reason
    expected = " or ".join(_KINDS[kind] for kind in match[1].split(" | "))
    return f"expected {expected}{f', got {_KINDS[match[2]]}' if match[2] else ''}{match[3]}"


def _refuse(error: msgspec.ValidationError, record: type[Record], file: str | None) -> ConfigError:
    reason, _, place = str(error).partition(" - at `")
    reason = in_words(reason)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", reason)
    place = place.rstrip("`") or "$"
    records = _records(_inside(record, place))
    if unknown:
        keys = _keys(records) or _field_names(record, {})
        return _unknown_key(unknown.group(1), keys, place, file)
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason)
    if missing:
        needed = [
            entry.name for outer in records[:1] for entry in _keys_of(outer) if entry.required
        ]
        hint = f"; needed are {', '.join(needed)}" if len(records) == 1 and len(needed) > 1 else ""
        reason = f"missing key {missing.group(1)!r}{hint}"
    choice = re.fullmatch(r"Invalid enum value '(.*)'", reason, re.DOTALL)
    if choice:
        words = [word for inner in _inside(record, place) for word in _words(inner)]
        reason = f"unknown {choice.group(1)!r}; {nearest(choice.group(1), words)}"
    return ConfigError(reason, file=file, path=place)


def _words(kind: Any) -> list[str]:
    """The words of a vocabulary, or of those in a union."""
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    return [word for inner in get_args(kind) for word in _words(inner)]


def _unknown_key(key: str, keys: Iterable[str], place: str, file: str | None) -> ConfigError:
    return ConfigError(f"unknown key; {nearest(key, keys)}", file=file, path=f"{place}.{key}")


def _refuse_unknown(table: object, record: Any, place: str, file: str | None) -> None:
    """Refuse keys that a dataclass lacks, and those in it; msgspec ignores them."""
    if not is_dataclass(record) or not isinstance(table, dict):
        return
    keys = {entry.name: entry.type for entry in _keys_of(record)}
    for key, inner in table.items():
        if key not in keys:
            raise _unknown_key(key, keys, place, file)
        _refuse_unknown(inner, keys[key], f"{place}.{key}", file)


def decode_json(data: bytes | str, record: type[Table], file: str | None = None) -> Table:
    """Decode a record from JSON.

    Raises
    ------
    ConfigError
        With the file and the path inside it.
    """
    if not data.strip():
        raise ConfigError("the file is empty", file=file)
    try:
        if isinstance(data, bytes):
            data.decode()  # what a record does not name is skipped without a look at it
        document = msgspec.json.decode(data, type=record)
    except msgspec.ValidationError as error:
        raise _refuse(error, record, file) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a JSON file: {error}", file=file) from None
    refuse_repeated_keys(data.encode() if isinstance(data, str) else data, file)
    return document


def decode_toml(data: bytes, record: type[Record], file: str | None = None) -> Record:
    """Decode a record from TOML.

    Raises
    ------
    ConfigError
        With the file and the path inside it.
    """
    return convert_table(parse_toml(data, file), record, file)


def convert_table(table: object, record: type[Record], file: str | None = None) -> Record:
    """Convert decoded tables and lists to a record.

    Raises
    ------
    ConfigError
        With the file and the path inside it.
    """
    _refuse_unknown(table, record, "$", file)
    try:
        return msgspec.convert(table, record)
    except msgspec.ValidationError as error:
        raise _refuse(error, record, file) from None
