"""Statements of the semantics as tests of pytest."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from simcoll.errors import ConfigError
from simcoll.testing.conformance.suite import (
    Statement,
    Verdict,
    explain_absence,
    play_statement,
    statements,
)
from simcoll.testing.conformance.suite_backends import TestedBackend, find_backend, numbers_of_ranks

__all__ = ["StatementItem", "statement_items"]

MOST_FAULTS = 6
"""Lines of a message."""


class StatementError(Exception):
    """A statement that a backend does not hold."""


class _Suite(pytest.Collector):
    """The statements on one backend, whose ranks stay until the end of the session."""

    def __init__(self, backend: TestedBackend, ranks: list[int], **options: Any) -> None:
        super().__init__(**options)
        self.backend, self.ranks = backend, ranks
        self._runner: Any = None

    def collect(self) -> list[pytest.Item]:
        """One test for each statement."""
        return [
            StatementItem.from_parent(self, name=statement.row, statement=statement)
            for statement in statements()
        ]

    def runner(self) -> Any:
        """The runner of the backend, opened for the first statement that is played."""
        if self._runner is None:
            stack = ExitStack()
            self._runner = stack.enter_context(self.backend.runner())
            self.config.add_cleanup(stack.close)
        return self._runner


class StatementItem(pytest.Item):
    """A statement, played with each number of ranks."""

    def __init__(self, statement: Statement, **options: Any) -> None:
        super().__init__(**options)
        self.statement = statement

    def runtest(self) -> None:
        """Play the statement: skipped where it cannot be played, with the reason."""
        suite = self.parent
        if not isinstance(suite, _Suite):
            raise TypeError("a statement belongs to a suite")
        verdict = Verdict(self.statement)
        for nranks in suite.ranks:
            backend = suite.backend
            play_statement(verdict, backend.target, nranks, suite.runner(), backend.checks)
        explain_absence(verdict, suite.backend.reasons)
        if verdict.status == "skip":
            pytest.skip(verdict.reason)
        if verdict.faults:
            lines = [f"{self.statement.row}: {self.statement.text}", *verdict.faults[:MOST_FAULTS]]
            raise StatementError("\n  ".join([*lines, f"see {self.statement.place}"]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The statement and its faults, without a traceback of the suite."""
        if isinstance(excinfo.value, StatementError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The statement's row and text."""
        return self.path, None, f"{self.statement.row}: {self.statement.text}"


def statement_items(session: pytest.Session) -> list[pytest.Item]:
    """The tests of the backend that the command line names."""
    name = session.config.getoption("--simcoll-backend")
    try:
        backend = find_backend(name, session.config.getoption("--simcoll-runner"))
        ranks = numbers_of_ranks("--simcoll-ranks", session.config.getoption("--simcoll-ranks"))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    suite = _Suite.from_parent(session, name=name, nodeid=name, backend=backend, ranks=ranks)
    return suite.collect()
