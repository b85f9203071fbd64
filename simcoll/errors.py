"""Errors: each states the value given, the values expected, the place, and the nearest valid
choice.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from simcoll.terminal import printable, printable_lines

__all__ = [
    "ConfigError",
    "InternalError",
    "RaceError",
    "ScheduleError",
    "SimcollError",
    "blamed_on",
    "expect",
    "listed",
    "missing_package",
    "nearest",
    "ranks_listed",
    "shown",
]

SEPARABLE = ("scipy", "matplotlib")
"""Packages without which simcoll proves, emulates and predicts; a small installation lacks them."""
MOST_LETTERS = 4000
"""Limit of a message, and of the file and place that it names: they may quote a file of any
size.
"""
MOST_PLACE = 400
MOST_LISTED, MOST_SIMILAR = 40, 6
"""Of more choices, an error lists only so many that are similar to what was given."""


def _clip(text: str, limit: int) -> str:
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} ... {text[-half:]}"


class _Short(reprlib.Repr):
    """Shortens values from files, which may be deep, long, or integers that Python refuses to
    print.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 60, 60, 60

    def repr_int(self, x: int, level: int) -> str:
        return (
            super().repr_int(x, level)
            if x.bit_length() < 1000
            else f"a number of {x.bit_length()} bits"
        )


_SHORT = _Short()


def missing_package(error: BaseException) -> str:
    """What to say of an import that failed in a small installation; empty for any other error.

    >>> missing_package(ModuleNotFoundError("No module named 'scipy'", name="scipy.sparse"))
    'this needs scipy, which is not installed: pip install scipy'
    >>> missing_package(ModuleNotFoundError("No module named 'json2'", name="json2"))
    ''
    """
    package = ""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
    if package not in SEPARABLE:
        return ""
    return f"this needs {package}, which is not installed: pip install {package}"


def shown(value: object) -> str:
    """A value as messages quote it: at most a few lines, whatever its length and depth.

    >>> shown("50 GB"), shown(2**5000)
    ("'50 GB'", 'a number of 5001 bits')
    >>> shown([[[[[[]]]]]])
    '[[[[...]]]]'
    """
    return _clip(_SHORT.repr(value), 200)


class SimcollError(Exception):
    """Root of all errors that simcoll and realcoll raise on purpose.

    Its text is safe for a terminal, whatever names of files and in files it holds.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable_lines(message))


class ConfigError(SimcollError):
    """Unusable input: a file, an argument, a value.

    Parameters
    ----------
    message
        What is wrong, what was expected, and the nearest valid choice.
    file
        The file that the value was read from, if any.
    path
        Where in the file, such as ``$.links[1].bandwidth`` or ``line 12``.
    """

    def __init__(self, message: str, *, file: str | None = None, path: str | None = None) -> None:
        self.message = message = printable_lines(_clip(message, MOST_LETTERS))
        self.file = file
        self.path = path = _clip(path, MOST_PLACE) if path else path
        location = ": ".join(printable(str(part)) for part in (file, path) if part)
        super().__init__(f"{location}: {message}" if location else message)


class ScheduleError(SimcollError):
    """A schedule or per-rank program that does not implement its collective.

    ``step``, ``rank``, ``channel`` and ``chunk`` locate the fault where they are known.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int | None = None,
        rank: int | None = None,
        channel: int | None = None,
        chunk: int | None = None,
    ) -> None:
        self.message = message = printable_lines(_clip(message, MOST_LETTERS))
        self.step = step
        self.rank = rank
        self.channel = channel
        self.chunk = chunk
        super().__init__(message)


class RaceError(SimcollError):
    """A program whose results depend on the order in which its ranks go on.

    Attributes
    ----------
    order
        An order in which it fails, as ``interleavings=`` of ``spawn`` takes it.
    orders
        The number of orders that were played until then.
    """

    def __init__(self, message: str, *, order: str = "", orders: int = 0) -> None:
        self.order = order
        self.orders = orders
        super().__init__(message)


class InternalError(SimcollError):
    """A broken invariant of simcoll itself."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message}\nThis is a bug in simcoll, not in your input: please report it with the "
            "lines above."
        )


@contextmanager
def blamed_on(file: str | None, path: str | None = None) -> Iterator[None]:
    """Add a file or a place to errors that name none.

    For input that can be read but asks for something invalid.

    >>> with blamed_on("a.toml"):
    ...     raise ConfigError("expected a size", path="$.bytes")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: a.toml: $.bytes: expected a size
    """
    try:
        yield
    except ConfigError as error:
        raise (
            error if error.file else ConfigError(error.message, file=file, path=error.path or path)
        ) from None


def expect(value: object, kind: type, expectation: str) -> None:
    """Refuse an argument of the wrong type; ``expectation`` names the type that the function takes.

    >>> expect("ring", int, "schedule takes a number of ranks")
    Traceback (most recent call last):
    simcoll.errors.ConfigError: schedule takes a number of ranks; got 'ring'
    """
    if not isinstance(value, kind):
        raise ConfigError(f"{expectation}; got {value!r:.60}")


def listed(words: Iterable[object], limit: int = 8) -> str:
    """A comma-separated list, cut after ``limit`` entries.

    >>> listed("abcd", 2)
    'a, b and 2 more'
    """
    texts = list(map(str, words))
    return ", ".join(texts[:limit]) + (
        f" and {len(texts) - limit} more" if len(texts) > limit else ""
    )


def ranks_listed(ranks: Sequence[int]) -> str:
    """Ranks by number, cut after a few.

    >>> ranks_listed([3]), ranks_listed(range(10))
    ('rank 3', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks)}"


_VERSION = re.compile(r"(.{0,60}?)(\d{1,6})\.(\d{1,6})(?:\.\d{1,6})?")


def _close_versions(text: str, choices: Sequence[str]) -> list[str]:
    """The choice of the nearest version, where a text is a version of what some choices are: of
    2.18 the nearest is 2.27, though 2.28 has more of its digits.
    """
    version = _VERSION.fullmatch(text)
    if version is None or any(choice.startswith(text) for choice in choices):  # 2.3 for 2.30
        return []
    versions = {
        choice: int(match[2]) * 10**6 + int(match[3])
        for choice in choices
        if (match := _VERSION.fullmatch(choice)) is not None and match[1] == version[1]
    }
    target = int(version[2]) * 10**6 + int(version[3])
    return sorted(versions, key=lambda choice: abs(versions[choice] - target))[:1]


def nearest(text: str, valid: Iterable[str]) -> str:
    """List the valid choices for an error message, the nearest first.

    >>> nearest("rnig", ["tree", "ring"])
    "did you mean 'ring'? (valid: ring, tree)"
    >>> nearest("zzz", ["tree", "ring"])
    'valid: ring, tree'
    >>> nearest("nccl-2.18", ["nccl", "nccl-2.27", "nccl-2.28"])
    "did you mean 'nccl-2.27'? (valid: nccl, nccl-2.27, nccl-2.28)"

    Of many, only the similar ones:

    >>> nearest("rck61", [f"rack{number}" for number in range(99)])
    "did you mean 'rack61'? (similar: rack6, rack1, rack96, rack91, rack86; 99 are valid)"
    """
    choices = sorted(set(valid))
    text = text[:MOST_PLACE]
    listed = f"valid: {', '.join(choices)}" if choices else "there are none"
    folded = {choice.lower(): choice for choice in reversed(choices)}
    exact = folded.get(text.lower())
    close = [exact] if exact else _close_versions(text, choices)
    if not close or len(choices) > MOST_LISTED:
        from difflib import get_close_matches

        similar = get_close_matches(text, choices, n=MOST_SIMILAR, cutoff=0.5)
        close = list(dict.fromkeys(close + similar))
    if not close:
        return listed
    if len(choices) > MOST_LISTED:
        listed = f"similar: {', '.join(close[1:]) or 'none'}; {len(choices)} are valid"
    return f"did you mean {close[0]!r}? ({listed})"
