"""Lists of calls of AICB, a benchmark that repeats the communication of a training job: a CSV with
a row for each call of a rank, as it is planned or, with times, as it was measured.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.errors import ConfigError, shown
from simcoll.files.reader_arguments import Content, content_of

__all__ = ["AicbCall", "parse_aicb_calls"]

MAX_BYTES = 64 << 20
MAX_ROWS = 1_000_000
MOST_SIZE_BYTES = 1 << 50
_CALL = "CommType."
_NO_CALLS = {"epoch_end", "computation"}
"""Rows that mark the end of an iteration, and computation, are no calls."""


@dataclass(frozen=True, slots=True)
class AicbCall:
    """A call of a rank.

    Attributes
    ----------
    operation
        Such as ``all_reduce`` or ``isend``.
    group
        AICB's name of the group, such as ``tp_group``.
    ranks
        Of the group; 0 if the file does not say.
    size_bytes
        The message size.
    elapsed_ms
        The measured time, which contains the waiting for other ranks; None if it is not there.
    """

    operation: str
    group: str
    ranks: int
    size_bytes: int
    elapsed_ms: float | None


def parse_aicb_calls(content: Content, file: str | None = None) -> list[AicbCall]:
    r"""Read the calls of the first rank, or stage of a pipeline, that the file lists.

    Raises
    ------
    ConfigError
        For a file without a call, and for a row without a size.

    Examples
    --------
    >>> head = "comm_type,comm_group,comm_group_size,msg_size,_elapsed_time,count"
    >>> row = "CommType.all_reduce,CommGroup.tp_group,8,4096,None,1"
    >>> parse_aicb_calls(f"{head}\n{row}\n")[0].size_bytes
    4096
    """
    data = content_of(content, "parse_aicb_calls")
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
    lines = io.StringIO(data.decode("utf-8", "replace"))
    header: list[str] = []
    calls: list[AicbCall] = []
    for number, line in enumerate(lines, 1):
        if "comm_type," in line:
            if header:  # the next stage of the pipeline
                break
            header = next(csv.reader([line.strip()]))
        elif header and line.startswith(_CALL):
            row = dict(zip(header, next(csv.reader([line.strip()])), strict=False))
            calls += _calls_of(row, f"line {number}", file)
        if len(calls) > MAX_ROWS:
            raise ConfigError(f"more than {MAX_ROWS:,} calls", file=file)
    if not calls:
        raise ConfigError("has no call of AICB (CommType.all_reduce, ...)", file=file)
    return calls


def _calls_of(row: Mapping[str, str], place: str, file: str | None) -> list[AicbCall]:
    operation = row["comm_type"].removeprefix(_CALL)
    if operation in _NO_CALLS:
        return []
    size_bytes = _integer(row, "msg_size", MOST_SIZE_BYTES, place, file)
    if size_bytes is None:
        raise ConfigError(f"{place}: a call of {shown(operation)} without msg_size", file=file)
    ranks = _integer(row, "comm_group_size", 1 << 24, place, file) or 0
    times = _integer(row, "count", 10_000, place, file) or 1
    try:
        elapsed_ms = float(row.get("_elapsed_time", ""))
    except ValueError:  # "None": planned, not measured
        elapsed_ms = -1.0
    group = row.get("comm_group", "").removeprefix("CommGroup.")
    measured = elapsed_ms if 0 <= elapsed_ms < 1e12 else None
    return [AicbCall(operation, group, ranks, size_bytes, measured)] * times


def _integer(
    row: Mapping[str, str], name: str, limit: int, place: str, file: str | None
) -> int | None:
    text = row.get(name, "").removesuffix(".0")
    if text in ("", "None"):
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= limit):
        raise ConfigError(
            f"{place}: {name} is {shown(text)}; expected a whole number up to {limit:,}", file=file
        )
    return int(text)
