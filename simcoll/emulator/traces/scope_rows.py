"""Rows of a timeline that tell where in its program a rank computes: phases, and modules."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

__all__ = ["MODULES", "PHASES", "ScopeSlice", "scope_slices"]

PHASES, MODULES = "phases", "modules"
"""Names of the rows."""


class ScopeSlice(NamedTuple):
    """An interval of a row; slices of modules lie in those of the modules around them.

    ``scope`` is the place in the program from the outside in, of which ``name`` is the last level.
    """

    row: str
    begin_fs: int
    end_fs: int
    name: str
    scope: str


class _OpenSlice:
    """A slice that may go on."""

    def __init__(self, name: str, begin_fs: int, end_fs: int) -> None:
        self.name, self.begin_fs, self.end_fs = name, begin_fs, end_fs


def scope_slices(spans: Iterable[tuple[int, int, str]]) -> list[ScopeSlice]:
    """The slices of computations: begin, end and scope of each, none of which overlap.

    A slice lasts from the first of its computations to the last, with the gaps between them.
    Computations without a scope end all slices before them.

    Examples
    --------
    >>> spans = [(0, 2, "forward/Model/head"), (3, 5, "forward/Model/loss"), (5, 9, "backward")]
    >>> for slice in scope_slices(spans):
    ...     print(slice.row, slice.begin_fs, slice.end_fs, slice.name)
    phases 0 5 forward
    modules 0 5 Model
    modules 0 2 head
    modules 3 5 loss
    phases 5 9 backward
    """
    slices: list[ScopeSlice] = []
    open_slices: list[_OpenSlice] = []

    def close(depth: int) -> None:
        while len(open_slices) > depth:
            scope = "/".join(part.name for part in open_slices)
            row = PHASES if len(open_slices) == 1 else MODULES
            last = open_slices.pop()
            slices.append(ScopeSlice(row, last.begin_fs, last.end_fs, last.name, scope))

    for begin_fs, end_fs, scope in sorted(spans):
        levels = scope.split("/") if scope else []
        pairs = zip(open_slices, levels, strict=False)
        shared = len(list(takewhile(lambda pair: pair[0].name == pair[1], pairs)))
        close(shared)
        for part in open_slices:
            part.end_fs = max(part.end_fs, end_fs)
        open_slices += [_OpenSlice(level, begin_fs, end_fs) for level in levels[shared:]]
    close(0)
    return sorted(slices, key=lambda part: (part.begin_fs, -part.end_fs, part.scope.count("/")))
