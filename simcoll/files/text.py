"""External TOML and JSON: guards against input on which the standard readers use gigabytes, crash,
or ignore errors.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from simcoll.errors import ConfigError, shown

__all__ = ["parse_toml", "refuse_repeated_keys"]

MOST_PARTS = 32
"""Limit of parts of a dotted key: Python's reader keeps a tuple for each, as long as the path so
far.
"""

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")
# Strings (with the colon that makes them a key) and braces; numbers and lists are skipped at the
# speed of the search.
_TOKEN = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*+:)?|[{}]', re.DOTALL)


def parse_toml(data: bytes, file: str | None = None) -> dict[str, Any]:
    r"""The tables of a TOML file, as :mod:`tomllib` returns them.

    Raises
    ------
    ConfigError
        When it is not TOML, or has keys of more than 32 parts.

    Examples
    --------
    >>> parse_toml(b"[a.b]\nc = 1")
    {'a': {'b': {'c': 1}}}
    """
    try:
        text = data.decode()
        if long := _LONG_KEY.search(text):
            line = text.count("\n", 0, long.start()) + 1
            why = f"{shown(long.group())}: a key may have {MOST_PARTS} parts"
            raise ConfigError(why, file=file, path=f"line {line}")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are a ValueError
        raise ConfigError(f"not a TOML file: {error}", file=file) from None


def refuse_repeated_keys(data: bytes, file: str | None = None) -> None:
    """Refuse well-formed JSON with a repeated key in one object, since readers differ in which
    value counts.

    >>> refuse_repeated_keys(b'{"a": {"b": 1}, "b": "a:"}')
    >>> refuse_repeated_keys(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    simcoll.errors.ConfigError: line 1: the key 'a' occurs twice in one object
    """
    objects: list[set[str]] = []
    for token in _TOKEN.finditer(data):
        if token[0] == b"{":
            objects.append(set())
        elif token[0] == b"}":
            objects.pop()
        elif token[2] is not None:
            key = str(json.loads(b'"' + token[1] + b'"', strict=False))
            if key in objects[-1]:
                line = data.count(b"\n", 0, token.start()) + 1
                raise ConfigError(
                    f"the key {shown(key)} occurs twice in one object",
                    file=file,
                    path=f"line {line}",
                )
            objects[-1].add(key)
