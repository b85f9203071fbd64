"""Measured times of operators, which replace the roofline: a table by operator, shape and dtype."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from simcoll.errors import ConfigError, nearest
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import read_file
from simcoll.units import FS_PER_SECOND, MAX_TIME_FS

__all__ = ["OperatorTimes", "load_measured", "parse_measured"]

MAX_FILE_BYTES = 1 << 24
COLUMNS = ("operator", "shape", "dtype", "milliseconds")
_MS = FS_PER_SECOND // 1000
_SHAPE = re.compile(r"\d{1,12}(x\d{1,12}){0,7}|")
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,15})?([eE][-+]?\d)?")


@dataclass(frozen=True, slots=True, eq=False)
class OperatorTimes:
    """Times in femtoseconds by operator, shape and dtype.

    Attributes
    ----------
    file
        File name, for messages.
    times
        By ``(operator, shape, dtype)``.
    lookups
        Lookups so far, and whether the table has them.
    """

    file: str
    times: Mapping[tuple[str, str, str], int]
    lookups: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    def lookup(self, operator: str, shape: Sequence[float] | str, dtype: str) -> int | None:
        """The time of an operator; None if it was not measured."""
        text = (
            shape
            if isinstance(shape, str)
            else "x".join(f"{length:g}" if length % 1 else f"{length:.0f}" for length in shape)
        )
        time_fs = self.times.get((operator, text, dtype))
        self.lookups[operator, text, dtype] = time_fs is not None
        return time_fs

    def note(self) -> str:
        """A note on the number of rows in use, and the operators still timed by the roofline."""
        hits = sum(self.lookups.values())
        missing = [" ".join(key).replace("  ", " ") for key, hit in self.lookups.items() if not hit]
        roofline = (
            f"; by roofline {', '.join(missing[:3])}{', ...' if missing[3:] else ''}"
            if missing
            else ""
        )
        return (
            f"{hits} of {len(self.times)} rows of {self.file} stand in for the roofline{roofline}"
        )

    def time_fs(self, operator: str, shape: str, dtype: str) -> int:
        """The time of an operator.

        Raises
        ------
        ConfigError
            If it was not measured, with the nearest entry of the table.
        """
        measured_fs = self.lookup(operator, shape, dtype)
        if measured_fs is None:
            rows = [" ".join(key) for key in self.times]
            raise ConfigError(
                f"{self.file} has no row {operator} {shape} {dtype}; "
                f"{nearest(f'{operator} {shape} {dtype}', rows)}"
            )
        return measured_fs


def load_measured(path: FilePath) -> OperatorTimes:
    """Load the table in a CSV file.

    Raises
    ------
    ConfigError
        As :func:`parse_measured`, and when it cannot be read.
    """
    path = path_of(path, "load_measured", "parse_measured")
    return parse_measured(read_file(path, MAX_FILE_BYTES), path)


def parse_measured(content: Content, file: str) -> OperatorTimes:
    """Parse a table with the columns operator, shape, dtype and milliseconds; a shape is whole
    numbers separated by ``x``.

    Raises
    ------
    ConfigError
        With the line, for other columns, invalid shapes and times, and contradictory rows.

    Examples
    --------
    >>> lines = ("operator,shape,dtype,milliseconds", "gemm,4096x4096x8192,bf16,0.41")
    >>> table = parse_measured(chr(10).join(lines).encode(), "operators.csv")
    >>> table.time_fs("gemm", "4096x4096x8192", "bf16")
    410000000000
    """
    content = content_of(content, "parse_measured")
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"not a CSV file: {error}", file=file) from None
    rows = [[cell.strip() for cell in row] for row in rows]
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ConfigError(
            f"expected the columns {','.join(COLUMNS)}, got "
            f"{','.join(rows[0])[:80] if rows else 'none'}",
            file=file,
        )
    times: dict[tuple[str, str, str], int] = {}
    for line, row in enumerate(rows[1:], 2):
        if not any(row):
            continue
        if (
            len(row) != len(COLUMNS)
            or not row[0]
            or not _SHAPE.fullmatch(row[1])
            or not _NUMBER.fullmatch(row[3])
        ):
            raise ConfigError(
                "expected an operator, a shape such as 8192x4096x4096, a dtype, and milliseconds; "
                f"got {','.join(row)[:80]}",
                file=file,
                path=f"line {line}",
            )
        time = round(Fraction(row[3]) * _MS)
        key = (row[0], row[1], row[2])
        if time >= MAX_TIME_FS or times.setdefault(key, time) != time:
            raise ConfigError(
                f"{' '.join(key)} has {row[3]} ms, too long or different from an earlier line",
                file=file,
                path=f"line {line}",
            )
    return OperatorTimes(file, times)
