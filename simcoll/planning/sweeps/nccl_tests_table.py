"""nccl-tests' table format, shared by ``simcoll perf`` and ``realcoll perf``."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["DATA", "TIMES", "Column", "gigabytes", "microseconds", "table_line", "titles"]

Column = tuple[str, str, int]
"""Title, unit and width."""

DATA: tuple[Column, ...] = (
    ("size", "(B)", 12),
    ("count", "(elements)", 12),
    ("type", "", 9),
    ("redop", "", 8),
    ("root", "", 5),
)
TIMES: tuple[Column, ...] = (
    ("time", "(us)", 10),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 7),
)


def titles(columns: Sequence[Column]) -> tuple[str, str]:
    """The two header lines, as comments."""
    names, units = (
        "".join(f"{column[place]:>{column[2]}}" for column in columns) for place in (0, 1)
    )
    return f"#{names[1:]}", f"#{units[1:]}"


def table_line(columns: Sequence[Column], cells: Sequence[object]) -> str:
    """Format one line; a cell wider than its column shifts the others."""
    return "".join(
        f" {cell:>{column[2] - 1}}" for cell, column in zip(map(str, cells), columns, strict=True)
    )


def microseconds(value: float) -> str:
    """Format a time in microseconds, with nccl-tests' precision."""
    return f"{value:.2f}" if value < 1e4 else f"{value:.0f}"


def gigabytes(rate: float) -> str:
    """Format a rate in bytes per second as GB/s."""
    return f"{rate / 1e9:.2f}"
