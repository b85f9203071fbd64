"""Write TOML from plain tables, as the decoder returns them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from simcoll.errors import InternalError

__all__ = ["toml_text"]


def toml_text(document: Mapping[str, Any]) -> str:
    """Encode a TOML document; nested tables become inline tables.

    Examples
    --------
    >>> print(toml_text({"title": "a", "x": {"n": 1, "y": {"a.b": 0.5}}}), end="")
    title = "a"
    <BLANKLINE>
    [x]
    n = 1
    y = { "a.b" = 0.5 }
    """
    lines = [
        f"{_key(key)} = {_value(value)}"
        for key, value in document.items()
        if not isinstance(value, dict)
    ]
    for key, table in document.items():
        if isinstance(table, dict):
            lines += [
                "",
                f"[{_key(key)}]",
                *(f"{_key(name)} = {_value(value)}" for name, value in table.items()),
            ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    # JSON's escapes are among TOML's; DEL is the one character that only TOML escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        entries = ", ".join(f"{_key(name)} = {_value(member)}" for name, member in value.items())
        return f"{{ {entries} }}" if entries else "{}"
    raise InternalError(f"{type(value).__name__} has no form in TOML")
