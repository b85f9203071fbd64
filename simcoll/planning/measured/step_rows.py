"""Measured training steps: a design file with the common values, and a CSV file with a row per
step.

A column is a path in the design, such as ``model.global_batch`` or ``parallel.tp``; ``time_ms`` is
the measured time, ``peak_gib`` the published peak of memory, if any, and rows of one ``fold`` are
left out together in the cross-validation (default: the row's number).
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcoll.errors import ConfigError
from simcoll.files.paths import data_folder
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import read_file
from simcoll.files.text import parse_toml
from simcoll.training.design import Design, design_from

__all__ = ["StepRow", "StepTable", "published_memory", "published_steps", "read_steps"]

MAX_FILE_BYTES = 2**24
OWN = ("time_ms", "fold", "peak_gib")


@dataclass(frozen=True, slots=True, eq=False)
class StepRow:
    """A measured step.

    Attributes
    ----------
    design, seconds, fold
        The design, the measured time, and the fold.
    label
        The values of the row, for tables.
    peak_gib
        The published peak of memory on a GPU, in GiB; 0 if there is none.
    """

    design: Design
    seconds: float
    fold: str
    label: str
    peak_gib: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Measured steps with their title and source."""

    title: str
    source: str
    rows: tuple[StepRow, ...]


def published_steps(name: str) -> StepTable:
    """Load a shipped table, such as ``vtrain-multi``, ``korthikanti`` or ``mpt-h100``: a name in
    ``measurements/steps``.

    >>> table = published_steps("korthikanti")
    >>> len(table.rows), table.rows[0].seconds
    (8, 1.42)
    """
    folder = data_folder("measurements") / "steps"
    return read_steps(folder / f"{name}.toml", folder / f"{name}.csv")


def published_memory(name: str) -> StepTable:
    """Load a shipped table of peaks of memory, such as ``nanotron``: a name in
    ``measurements/memory``.

    >>> table = published_memory("nanotron")
    >>> len(table.rows), table.rows[0].peak_gib
    (8, 7.34)
    """
    folder = data_folder("measurements") / "memory"
    return read_steps(folder / f"{name}.toml", folder / f"{name}.csv", timed=False)


def read_steps(base: FilePath, rows: FilePath, *, timed: bool = True) -> StepTable:
    """Read the rows of a CSV file, based on the design of a TOML file.

    Parameters
    ----------
    timed
        Whether every row needs a time; without one it has 0 seconds.

    Raises
    ------
    ConfigError
        With the file and the line.
    """
    base, rows = path_of(base, "read_steps"), path_of(rows, "read_steps")
    document = parse_toml(read_file(base, MAX_FILE_BYTES), base)
    source = document.pop("source", "")
    try:
        text = read_file(rows, MAX_FILE_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("not text in UTF-8", file=rows) from None
    reader = csv.DictReader(io.StringIO(text))
    needed = "time_ms" if timed else "peak_gib"
    if needed not in (reader.fieldnames or ()):
        raise ConfigError(
            f"expected a column {needed}, got {', '.join(reader.fieldnames or ['none'])}", file=rows
        )
    if len(set(reader.fieldnames or ())) < len(reader.fieldnames or ()):
        raise ConfigError(f"a column twice: {', '.join(reader.fieldnames or ())}", file=rows)
    steps = [
        _row(document, row, base, f"line {number}", rows) for number, row in enumerate(reader, 2)
    ]
    if not steps:
        raise ConfigError("no rows", file=rows)
    return StepTable(str(document.get("title", Path(base).stem)), str(source), tuple(steps))


def _row(
    document: dict[str, Any], row: dict[str | None, Any], base: str, line: str, file: str
) -> StepRow:
    if None in row or None in row.values():
        raise ConfigError("expected as many values as there are columns", file=file, path=line)
    tables: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in document.items()
    }
    try:
        milliseconds = float(row.get("time_ms", 0.0))
    except ValueError:
        milliseconds = math.nan
    if not (0 < milliseconds < 1e9 or "time_ms" not in row):
        raise ConfigError(
            f"time_ms: expected milliseconds above 0, got {row['time_ms']!r}", file=file, path=line
        )
    label = []
    for place, value in row.items():
        if place in OWN or place is None:
            continue
        table, _, key = place.partition(".")
        if not key:
            raise ConfigError(
                f"column {place!r}: expected a place in the design, such as 'model.global_batch'",
                file=file,
            )
        tables.setdefault(table, {})[key] = _value(value)
        label.append(f"{key} {value}")
    try:
        design = design_from(tables, file=base)
    except ConfigError as error:
        raise ConfigError(
            f"{error.path}: {error.message}" if error.path else error.message, file=file, path=line
        ) from None
    peak_gib = _peak(row.get("peak_gib") or "", line, file)
    return StepRow(design, milliseconds / 1e3, row.get("fold") or line, ", ".join(label), peak_gib)


def _peak(text: str, line: str, file: str) -> float:
    """A published peak of memory in GiB; 0 without one."""
    try:
        peak_gib = float(text or 0)
    except ValueError:
        peak_gib = math.nan
    if not 0 <= peak_gib < 1e6:
        raise ConfigError(
            f"peak_gib: expected GiB above 0 or nothing, got {text!r}", file=file, path=line
        )
    return peak_gib


def _value(text: str) -> Any:
    """Parse a number, a boolean, a list in brackets, or text."""
    if text.startswith("["):
        return [_value(part.strip()) for part in text.strip("[]").split(";") if part.strip()]
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
