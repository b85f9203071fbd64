"""Services of a running job's collectives, as ``simcoll job --rows`` writes them: measured in situ.

Such a time begins when the last rank has arrived, so it has no launch; and it was taken in a job,
possibly beside computation. So its rows are tables of their own, and never mixed with benchmarks.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable

from simcoll.errors import ConfigError, shown
from simcoll.formats.logs.measured import MeasuredRow, MeasuredTable

__all__ = ["BESIDE", "COLUMNS", "HEADER", "IN_SITU", "in_situ_tables"]

COLUMNS = (
    "collective",
    "size_bytes",
    "ranks",
    "service_ns",
    "waiting_ns",
    "beside_computation",
    "group",
    "device",
)
HEADER = ",".join(COLUMNS)
IN_SITU, BESIDE = "in situ", "in situ, beside computation"
MAX_ROWS = 1_000_000
_WHOLE = re.compile(r"[0-9]{1,15}")


def in_situ_tables(lines: Iterable[str], file: str) -> tuple[MeasuredTable, ...]:
    """The tables of a file's lines after its header, by collective, ranks and situation.

    Raises
    ------
    ConfigError
        With the line of what is no row.
    """
    rows: dict[tuple[str, int, str], list[MeasuredRow]] = {}
    devices: dict[str, None] = {}
    for number, cells in enumerate(csv.reader(lines), 2):
        if not cells:
            continue
        if number > MAX_ROWS:
            raise ConfigError(f"more than {MAX_ROWS:,} rows", file=file)
        record = dict(zip(COLUMNS, cells, strict=False))
        texts = [record.get(name, "") for name in ("size_bytes", "ranks", "service_ns")]
        if len(cells) != len(COLUMNS) or not all(map(_WHOLE.fullmatch, texts)):
            raise ConfigError(
                f"expected a row of {HEADER}, got {shown(','.join(cells))}",
                file=file,
                path=f"line {number}",
            )
        size_bytes, ranks, service_ns = map(int, texts)
        situation = BESIDE if record["beside_computation"] == "yes" else IN_SITU
        devices[record["device"]] = None
        rows.setdefault((record["collective"], ranks, situation), []).append(
            MeasuredRow(size_bytes, size_bytes, "uint8", "", -1, service_ns * 10**6, line=number)
        )
    names = tuple(name for name in devices if name)
    amd = any("AMD" in name or "Instinct" in name for name in names)
    return tuple(
        MeasuredTable(
            collective,
            ranks,
            0,
            names,
            "rccl" if amd else "nccl",
            "",
            (),
            tuple(table_rows),
            situation=situation,
        )
        for (collective, ranks, situation), table_rows in rows.items()
    )
