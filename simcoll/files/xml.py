"""External XML: no DTD, and limits on tokens, depth, elements and attributes, checked during
parsing.

Expat before 2.6 rescans an unfinished token with every piece that it is fed, which takes hours for
one of 60 MiB. So it is fed small pieces, and no token may be longer than a few of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from simcoll.errors import ConfigError

__all__ = ["XmlLimits", "parse_xml"]

PIECE_BYTES = 2**14
MAX_TOKEN_BYTES = 2**16
SHOWN_LEVELS = 8


@dataclass(frozen=True, slots=True)
class XmlLimits:
    """Limits of levels and elements of a file, of attributes of an element, and of characters of
    each attribute.
    """

    depth: int
    elements: int
    attributes: int = 64
    letters: int = 4096


class _TreeBuilder(TreeBuilder):
    """Builds the tree within the limits."""

    def __init__(self, limits: XmlLimits, file: str | None) -> None:
        super().__init__()
        self._limits, self._file = limits, file
        self._path: list[str] = []
        self._count = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        limits = self._limits
        self._path.append(tag)
        self._count += 1
        if len(self._path) > limits.depth:
            self._refuse(f"nested deeper than {limits.depth} levels")
        if self._count > limits.elements:
            self._refuse(f"more than {limits.elements} elements")
        if len(attrs) > limits.attributes or any(
            len(text) > limits.letters for text in attrs.values()
        ):
            self._refuse(
                f"an element may have {limits.attributes} attributes of {limits.letters} characters"
            )
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._path.pop()
        return super().end(tag)

    def _refuse(self, why: str) -> None:
        path = (
            self._path if len(self._path) <= SHOWN_LEVELS else [*self._path[:SHOWN_LEVELS], "..."]
        )
        raise ConfigError(why, file=self._file, path="/".join(path))


def parse_xml(data: bytes, limits: XmlLimits, file: str | None = None) -> Element:
    """The root element of a file.

    Raises
    ------
    ConfigError
        When it is not well-formed, has a DTD, or exceeds a limit.

    Examples
    --------
    >>> parse_xml(b"<a><b c='1'/></a>", XmlLimits(depth=2, elements=10))[0].get("c")
    '1'
    """
    parser: Any = DefusedXMLParser(target=_TreeBuilder(limits, file), forbid_dtd=True)
    try:
        for begin in range(0, len(data), PIECE_BYTES):
            parser.feed(data[begin : begin + PIECE_BYTES])
            if (
                min(len(data), begin + PIECE_BYTES) - parser.parser.CurrentByteIndex
                > MAX_TOKEN_BYTES
            ):
                raise ConfigError(
                    f"a tag or comment of more than {MAX_TOKEN_BYTES} bytes", file=file
                )
        root: Element = parser.close()
    except DefusedXmlException:
        raise ConfigError(
            "document type definitions and entities are not allowed", file=file
        ) from None
    except ParseError as error:
        line, column = error.position
        reason = str(error).partition(":")[0]
        raise ConfigError(
            f"not well-formed XML: {reason} (column {column + 1})", file=file, path=f"line {line}"
        ) from None
    except (ValueError, LookupError) as error:
        raise ConfigError(f"not readable as XML: {error}", file=file) from None
    return root
