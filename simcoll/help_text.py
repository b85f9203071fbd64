"""How the command lines print help: paragraphs, wrapped to the width of the terminal."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["PARAGRAPHS", "HelpInParagraphs", "joined_lines"]

_BREAK = re.compile(r"(?<!\n)\n(?![\n *-])")
"""A line break inside a paragraph: neither a blank line, nor before a list or an indented line."""


def joined_lines(text: str) -> str:
    r"""A text whose paragraphs are one line each, as docstrings are wrapped for those who read
    code.

    >>> joined_lines("Axes of a mesh,\nfastest first.\n\n* tp\n* dp")
    'Axes of a mesh, fastest first.\n\n* tp\n* dp'
    """
    return _BREAK.sub(" ", text)


class HelpInParagraphs:
    """The formatter of cyclopts, given paragraphs; it is loaded when help is printed."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Print a panel of arguments, options or commands."""
        from cyclopts.help import DefaultFormatter

        for entry in panel.entries:
            _join(entry.description)
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        """Print the line of usage."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Print what a command does."""
        from cyclopts.help import DefaultFormatter

        _join(description)
        DefaultFormatter().render_description(console, options, description)


def _join(description: Any) -> None:
    text: Any = getattr(description, "primary_renderable", None)
    if hasattr(text, "plain"):
        text.plain = joined_lines(text.plain)


PARAGRAPHS = HelpInParagraphs()
"""For the apps of all command lines."""
