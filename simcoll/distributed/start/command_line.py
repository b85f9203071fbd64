"""Command lines that start a program: its arguments are its own, and errors are one line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError

from simcoll.errors import SimcollError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = ["complain", "own_app", "separated", "status_of"]


def own_app(name: str, text: str) -> App:
    """An application without commands."""
    return App(name=name, help=text, help_flags=["--help", "-h"], version_flags=[])


def separated(words: Sequence[str], valued: Collection[str]) -> list[str]:
    """Put ``--`` before the program, so that options after it are the program's.

    Options in ``valued`` take the next word.

    >>> separated(["-n", "2", "--fast", "x.py", "-n", "3"], ["-n"])
    ['-n', '2', '--fast', '--', 'x.py', '-n', '3']
    """
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        at += 2 if words[at] in valued else 1
    return [*words[:at], "--", *words[at + (words[at : at + 1] == ["--"]) :]]


def complain(message: str) -> None:
    """Write a line of error."""
    sys.stderr.write(f"{message}\n")


def status_of(app: App, words: Sequence[str], say: Callable[[str], None] = complain) -> int:
    """Run an application; its exit status, or 2 and one line of error."""
    try:
        found = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        say(f"{app.name[0]}: {str(error).rstrip('.')}; try --help")
        return 2
    except SimcollError as error:
        say(f"simcoll: {error}")
        return 2
    return found if isinstance(found, int) else 0
