"""Tables of DeepSpeed's communication logger (``deepspeed.comm.log_summary()``).

A line names an operation; the rows below it have a message size, a count and latencies. Sizes are
printed with two decimals of a binary unit. Launchers may prefix lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simcoll.errors import ConfigError
from simcoll.files.reader_arguments import Content, content_of

__all__ = ["DeepSpeedRow", "parse_deepspeed_comms"]

MAX_BYTES = 64 << 20
MAX_ROWS = 100_000
_HEAD = re.compile(r"Comm\. Op\s+Message Size\s+Count\s+Total Latency\(ms\)\s+Avg Latency\(ms\)")
_NAME = re.compile(r"(?:.*[\]:|]\s*)?([a-z][a-z_]{2,40})\s*$")
_ROW = re.compile(
    r"(?:^|\s)(?P<size>\d{1,9}(?:\.\d{1,3})?)\s?(?P<unit>B|KB|MB|GB|TB)\s+(?P<count>\d{1,12})"
    r"\s+(?P<total>\d{1,15}(?:\.\d{1,6})?)\s+(?P<average>\d{1,15}(?:\.\d{1,6})?)(?=\s|$)"
)
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


@dataclass(frozen=True, slots=True)
class DeepSpeedRow:
    """Calls of one operation and size.

    Attributes
    ----------
    operation
        DeepSpeed's name, such as ``reduce_scatter_tensor``.
    size_bytes
        The message size, to the two decimals that are printed; a rank's part for gathers and
        scatters.
    count, total_ms, average_ms
        Number of calls, and their latencies. Logged calls are synchronised, so a latency contains
        the waiting for the last rank.
    """

    operation: str
    size_bytes: int
    count: int
    total_ms: float
    average_ms: float


def parse_deepspeed_comms(content: Content, file: str | None = None) -> list[DeepSpeedRow]:
    r"""Read the tables in a log.

    Raises
    ------
    ConfigError
        For a log without a row.

    Examples
    --------
    >>> head = "Comm. Op  Message Size  Count  Total Latency(ms)  Avg Latency(ms)  tput_avg (Gbps)"
    >>> row = "          98.25 MB      2      16.50              8.25             1.0"
    >>> parse_deepspeed_comms(f"{head}\nall_reduce\n{row}\n")[0].size_bytes
    103022592
    """
    data = content_of(content, "parse_deepspeed_comms")
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
    rows: list[DeepSpeedRow] = []
    operation, in_table = "", False
    for line in data.decode("utf-8", "replace").splitlines():
        if _HEAD.search(line):
            operation, in_table = "", True
            continue
        if not in_table:
            continue
        row = _ROW.search(line[:1000])
        name = _NAME.match(line[:1000].rstrip())
        if row and operation:
            size_bytes = round(float(row["size"]) * _UNITS[row["unit"]])
            times = (float(row["total"]), float(row["average"]))
            rows.append(DeepSpeedRow(operation, size_bytes, int(row["count"]), *times))
        elif name:
            operation = name[1]
        if len(rows) > MAX_ROWS:
            raise ConfigError(f"more than {MAX_ROWS:,} rows", file=file)
    if not rows:
        raise ConfigError("has no row of DeepSpeed's communication summary", file=file)
    return rows
