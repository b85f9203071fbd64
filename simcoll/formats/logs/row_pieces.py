"""Rows of nccl-tests in pieces, put together.

The program prints a row in three parts: size to root, times out of place, times in place. Lines of
NCCL and the prefix of a launcher stand between them, on the same line or on lines of their own.
Tables of pages and CSV files are rows too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["RowPieces"]

MOST_HOSTS = 4096
_NCCL = re.compile(r"(?P<host>[A-Za-z_][\w.-]{0,200}):\d{1,10}:\d{1,10} \[-?\d{1,4}\] NCCL [A-Z]")
_NCCL_FIRST = re.compile(r"(?P<host>[\w.-]{1,200}):\d{1,10}:\d{1,10} \[-?\d{1,4}\] NCCL ")
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{0,9})?(?:e[+-]?\d{1,3})?|N/A", re.IGNORECASE)
_UNIT = re.compile(r"\([^()]{0,20}\)")
_ENDS = ("#", " time ", "nThread", "_perf")
"""Parts of lines that never stand within a row."""


@dataclass(slots=True)
class _Row:
    """A row that is not complete."""

    line: int
    words: list[str]
    prefix: re.Pattern[str] | None
    further: int  # number of words after the type, reduction and root


class RowPieces:
    """Joins the pieces of rows; other lines pass unchanged.

    Parameters
    ----------
    dtypes, ops
        The names that a row has after size and count.

    Examples
    --------
    >>> pieces = RowPieces({"float"}, {"sum"})
    >>> lines = ["[0] 8 2 float sum -1[0]24.1 0.0 0.0 0", "[0] 23.9 0.0 0.0 0", "# end"]
    >>> for number, line in enumerate(lines, 1):
    ...     print(*pieces.feed(number, line))
    <BLANKLINE>
    (1, '8 2 float sum -1 24.1 0.0 0.0 0 23.9 0.0 0.0 0')
    (3, '# end')
    """

    __slots__ = ("_columns", "_dtypes", "_groups", "_hosts", "_ops", "_row")

    def __init__(self, dtypes: Collection[str], ops: Collection[str]) -> None:
        self._dtypes, self._ops = frozenset(dtypes), frozenset(ops)
        self._row: _Row | None = None
        self._groups, self._columns = 2, 4
        self._hosts: dict[str, None] = {}

    def feed(self, number: int, text: str) -> Iterator[tuple[int, str]]:
        """The lines that are complete with this one, each with the number of its first piece."""
        if "," in text or "|" in text:
            text = self._without_rules(text)
        if "NCCL " not in text:
            yield from self._piece(number, text)
            return
        fragment, message = self._split(text)
        if fragment:
            yield from self._piece(number, fragment)
        yield number, message

    def end(self) -> Iterator[tuple[int, str]]:
        """What is left."""
        if self._row is not None:
            yield self._row.line, " ".join(self._row.words)
            self._row = None

    def _without_rules(self, text: str) -> str:
        """A row or a header of a table of a page, or of CSV, as nccl-tests prints it."""
        divider = "|" if text.count("|") >= 5 else "," if text.count(",") >= 5 else ""
        if not divider or "NCCL" in text:
            return text
        words = text.replace(divider, " ").replace('"', " ")
        if not self._dtypes.isdisjoint(words.split()):
            return words
        titles = _UNIT.sub(" ", words.lower())
        if not {"size", "count", "type"} <= set(titles.split()):
            return text
        # Titles such as oop_time(us) and in_place_busbw are those of two groups.
        plain = (
            next((title for title in ("time", "algbw", "busbw", "wrong") if title in word), word)
            for word in titles.split()
        )
        return f"# {' '.join(plain)} "

    def _split(self, text: str) -> tuple[str, str]:
        """A piece of a row, and the message of NCCL that follows it without a blank."""
        start = _NCCL_FIRST.match(text)
        if start is not None and self._row is None and len(self._hosts) < MOST_HOSTS:
            self._hosts[start["host"]] = None
        place = min(
            (column for host in self._hosts if (column := text.find(f"{host}:")) >= 0), default=-1
        )
        if place < 0 and (match := _NCCL.search(text)) is not None:
            place = match.start()
            if text[:place].endswith("N/") and text[place] == "A":
                place += 1
        fragment = text[: max(place, 0)]
        words = self._words(fragment)
        is_piece = self._row is not None and _is_piece(words)
        if is_piece or not self._dtypes.isdisjoint(words):
            return fragment, text[place:]
        return "", text

    def _words(self, text: str) -> list[str]:
        if self._row is not None and self._row.prefix is not None:
            text = self._row.prefix.sub(" ", text)
        return text.split()

    def _piece(self, number: int, text: str) -> Iterator[tuple[int, str]]:
        words = text.split()
        place = next((p for p in range(2, min(len(words), 40)) if words[p] in self._dtypes), 0)
        if place and words[place - 2].isdecimal():
            yield from self.end()
            yield from self._begin(number, text, words, place)
            return
        row = self._row
        if row is not None and _is_piece(cells := self._words(text)):
            row.words += cells
            row.further += len(cells)
            if row.further >= self._groups * self._columns:
                yield from self.end()
            return
        if any(end in text for end in _ENDS):
            yield from self.end()
            if " time " in text and "count" in words:
                self._header(words)
        yield number, text

    def _header(self, words: Sequence[str]) -> None:
        """The number of groups of columns, and of the columns of one."""
        self._groups = max(words.count("time"), 1)
        ntitles = len(words) - words.index("time")
        self._columns = min(max(ntitles // self._groups, 3), 4)

    def _begin(
        self, number: int, text: str, words: Sequence[str], place: int
    ) -> Iterator[tuple[int, str]]:
        """Start a row, which may be complete."""
        prefix = " ".join(words[: place - 2])
        pattern = _pattern(prefix)
        after_prefix = text[text.index(words[place - 2], len(prefix)) :] if prefix else text
        cells = (pattern.sub(" ", after_prefix) if pattern else after_prefix).split()
        has_prefix_inside = pattern is not None and pattern.search(after_prefix) is not None
        lead = 3 + (len(cells) > 3 and cells[3] in self._ops)
        # The root follows unless the first number there is a time.
        lead += len(cells) > lead and re.fullmatch(r"-?\d{1,6}", cells[lead]) is not None
        further = len(cells) - lead
        needed = self._groups * self._columns
        if (
            further >= needed
            or further % self._columns
            or not all(map(_NUMBER.fullmatch, cells[lead:]))
        ):
            yield number, " ".join(cells) if has_prefix_inside else text
        else:
            self._row = _Row(number, cells, pattern, further)


def _is_piece(words: Sequence[str]) -> bool:
    """Whether words are the times and bandwidths of one or two groups."""
    return 3 <= len(words) <= 9 and all(map(_NUMBER.fullmatch, words))


def _pattern(prefix: str) -> re.Pattern[str] | None:
    """A launcher's prefix with any numbers; None for one that cannot be told from a number."""
    if not re.search(r"[^\w\s.]", prefix):
        return None
    escaped = re.escape(prefix.strip())
    return re.compile(re.sub(r"\d+", r"\\d+", escaped).replace(r"\ ", r"\s+"))
