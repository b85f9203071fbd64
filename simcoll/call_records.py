"""Documented calls with many keywords, which are the fields of a record: name, default and
description are declared once, and the call takes the record too.

A decorated function keeps its module, name and examples; its signature, its documentation and what
a type checker knows of it come from the record.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

__all__ = ["RecordCall", "described_fields", "record_of", "takes", "with_parameters"]

Fields = ParamSpec("Fields")
Record = TypeVar("Record")
Taken_contra = TypeVar("Taken_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)

_SECTION = re.compile(r"^(?:Parameters|Attributes|Returns|Raises|Examples)\n-{3,}\n", re.MULTILINE)


class RecordCall(Protocol[Fields, Taken_contra, Answer_co]):
    """A function of a record, or of its fields as arguments."""

    @overload
    def __call__(self, record: Taken_contra, /) -> Answer_co: ...
    @overload
    def __call__(self, *args: Fields.args, **kwargs: Fields.kwargs) -> Answer_co: ...


def takes(
    record: Callable[Fields, Record],
) -> Callable[[Callable[..., Answer_co]], RecordCall[Fields, Record, Answer_co]]:
    """Give a function of any arguments the signature and the parameters of a record.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Span:
    ...     begin: int
    ...     end: int = 10
    >>> @takes(Span)
    ... def length(*arguments, **keywords):
    ...     span = record_of(Span, arguments, keywords)
    ...     return span.end - span.begin
    >>> length(3), length(begin=3, end=5), length(Span(4))
    (7, 2, 6)
    """

    def declare(function: Callable[..., Answer_co]) -> RecordCall[Fields, Record, Answer_co]:
        declared: Any = function
        returned = inspect.signature(function).return_annotation
        declared.__signature__ = inspect.signature(record).replace(return_annotation=returned)
        if function.__doc__:  # Python may have left documentation out
            fields = described_fields(cast("type[Record]", record))
            function.__doc__ = with_parameters(function.__doc__, fields)
        # An argument that does not exist is an error of the call, by its name.
        record.__init__.__qualname__ = function.__qualname__
        return cast("RecordCall[Fields, Record, Answer_co]", function)

    return declare


def record_of(
    record: type[Record], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Record:
    """The record that was passed to a function, or the one of the arguments that were."""
    if len(arguments) == 1 and isinstance(arguments[0], record):
        if keywords:
            raise TypeError(
                f"{record.__init__.__qualname__}() takes a {record.__name__} alone, or its fields; "
                f"got also {', '.join(keywords)}"
            )
        return arguments[0]
    return record(*arguments, **keywords)


def described_fields(record: type) -> str:
    """The descriptions of a record's fields, those of its bases first."""
    texts = (inspect.cleandoc(base.__doc__ or "") for base in reversed(inspect.getmro(record)))
    parts = (text.partition("Attributes\n----------\n")[2].rstrip() for text in texts)
    return "\n".join(filter(None, parts))


def with_parameters(text: str, fields: str) -> str:
    """A function's documentation with parameters before its other sections."""
    text = inspect.cleandoc(text)
    section = _SECTION.search(text)
    place = section.start() if section else len(text)
    return f"{text[:place].rstrip()}\n\nParameters\n----------\n{fields}\n\n{text[place:]}"
