"""What readers take: ``load_`` functions the path of a file, ``parse_`` functions the content of
one.
"""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any, TypeAlias

from simcoll.errors import ConfigError, shown

__all__ = ["Content", "FilePath", "content_of", "path_of"]

FilePath: TypeAlias = str | PathLike[str]
Content: TypeAlias = bytes | bytearray | memoryview | str


def path_of(path: FilePath, reader: str, parser: str = "") -> str:
    r"""The path that a ``load_`` function was given; ``parser`` is its counterpart for the content
    of a file.

    >>> path_of("plan.json", "load_plan")
    'plan.json'
    >>> path_of(b"{}", "load_plan", "parse_plan")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: load_plan takes the path of a file, got b'{}'; parse_plan takes ...
    """
    value: Any = path
    name = fspath(value) if isinstance(value, (str, PathLike)) else None
    if not isinstance(name, str):
        advice = f"; {parser} takes the content of one" if parser else ""
        raise ConfigError(f"{reader} takes the path of a file, got {shown(path)}{advice}")
    return name


def content_of(content: Content, parser: str) -> bytes:
    """The content of a file that a ``parse_`` function was given, as bytes; text is encoded in
    UTF-8.

    >>> content_of("{}", "parse_plan")
    b'{}'
    >>> content_of(None, "parse_plan")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: parse_plan takes the content of a file, as bytes or text; got None
    """
    value: Any = content
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        # Lone surrogates become bytes that every reader refuses.
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise ConfigError(
        f"{parser} takes the content of a file, as bytes or text; got {shown(content)}"
    )
