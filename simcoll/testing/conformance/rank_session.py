"""What the checks of statements have in common, whatever the implementation."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

__all__ = ["RankSession", "checks_of", "states"]


class RankSession:
    """One rank among all, which checks what it sees."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def needs(self, nranks: int) -> None:
        """Skip the check where there are fewer ranks."""
        if self.size < nranks:
            raise unittest.SkipTest(f"needs {nranks} ranks")

    def equal(self, result: Any, expected: Any) -> bool:
        """Whether a result is what it must be."""
        return bool(result == expected)

    def same(self, result: Any, expected: Any) -> None:
        """Compare a result with what it must be."""
        if not self.equal(result, expected):
            raise AssertionError(f"got {result!r}, expected {expected!r}")

    def raises(self, kinds: Any, call: Callable[..., Any], *args: Any, **options: Any) -> str:
        """The text of the error that a call must raise."""
        try:
            result = call(*args, **options)
        except kinds as error:
            return str(error)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} instead of {kinds}: {error}") from error
        raise AssertionError(f"no error, but {result!r}; expected {kinds}")


def states(*rows: str) -> Callable[[Any], Any]:
    """Name the statements that a check holds."""

    def mark(check: Any) -> Any:
        check.rows = rows
        return check

    return mark


def checks_of(namespace: dict[str, Any]) -> dict[str, Any]:
    """The checks of a module, by the statements that they hold."""
    return {row: check for check in namespace.values() for row in getattr(check, "rows", ())}
