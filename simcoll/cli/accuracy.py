"""``simcoll accuracy``: predictions against published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simcoll.terminal import say

__all__ = ["show_accuracy"]


def show_accuracy(
    *, steps: bool = False, output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None
) -> None:
    """Compare predictions with published tables, with each system left out of the fit.

    Parameters
    ----------
    steps
        Training steps instead of collectives.
    output
        File to write the page to, in Markdown. Default: the terminal.
    """
    import sys

    from simcoll.formats.output import refuse_places, write_file
    from simcoll.planning.accuracy import measure
    from simcoll.planning.accuracy_page import page

    def told(name: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{name:<60}")
            sys.stderr.flush()

    refuse_places([output])
    if steps:
        from simcoll.planning.step_accuracy import step_page

        text = step_page()
    else:
        text = page(measure(told))
        told("")
    if output is None:
        sys.stdout.write(text)
    else:
        write_file(output, text.encode())
        say(f"# wrote {output}")
