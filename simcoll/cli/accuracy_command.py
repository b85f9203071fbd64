"""``simcoll accuracy``: predictions against published measurements."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated

from cyclopts import Parameter

from simcoll.terminal import say

__all__ = ["show_accuracy"]


def show_accuracy(
    *,
    steps: bool = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
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

    from simcoll.files.output import refuse_places, write_file
    from simcoll.planning.measured.accuracy import measure

    def tell(name: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{name:<60}")
            sys.stderr.flush()

    refuse_places([output])
    if steps:
        text = _writer("step_accuracy").step_page()
    else:
        text = _writer("accuracy_page").page(measure(tell))
        tell("")
    if output is None:
        sys.stdout.write(text)
    else:
        write_file(output, text.encode())
        say(f"# wrote {output}")


def _writer(name: str) -> ModuleType:
    """The module that writes a page: a script of ``benchmarks/pages``, shipped beside the data, as
    no part of the package.
    """
    import sys
    from importlib import import_module

    from simcoll.files.paths import data_folder

    sys.path.insert(0, str(data_folder("benchmarks/pages")))
    return import_module(name)
