"""Reports of NCCL's inspector plugin: a sequence of JSON objects with size and time of each rank's
collectives.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NoReturn

from simcoll.errors import ConfigError, ranks_listed, shown
from simcoll.files.reader_arguments import Content, content_of

__all__ = ["InspectorRow", "inspector_findings", "parse_inspector"]

MAX_BYTES = 256 << 20
MAX_ROWS = 2_000_000
SLOW = 1.5
"""Ratio of a rank's median time to the others' above which it is reported as slow."""
LEAST_CALLS = 3
_BLANK = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class InspectorRow:
    """One collective of one rank: communicator, its rank and size, the collective's number and
    kind, bytes, and microseconds.
    """

    communicator: str
    rank: int
    nranks: int
    number: int
    collective: str
    size_bytes: int
    time_us: int
    host: str


def parse_inspector(content: Content, file: str | None = None) -> list[InspectorRow]:
    """Read an inspector's file: JSON objects, each on one line or several.

    Raises
    ------
    ConfigError
        With the position, for invalid content.
    """
    content = content_of(content, "parse_inspector")
    if len(content) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES >> 20} MiB", file=file)
    text = content.decode("utf-8", "replace").removeprefix("\ufeff")
    decoder, offset, rows = json.JSONDecoder(), _blank(text, 0), list[InspectorRow]()
    while offset < len(text):
        try:
            document, offset = decoder.raw_decode(text, offset)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, offset) + 1
            raise ConfigError(
                f"no JSON object: {str(error)[:200]}", file=file, path=f"line {line}"
            ) from None
        if len(rows) >= MAX_ROWS:
            raise ConfigError(f"more than {MAX_ROWS:,} collectives", file=file)
        rows.append(_row(document, file, f"object {len(rows)}"))
        offset = _blank(text, offset)
    if not rows:
        raise ConfigError("has no collectives of NCCL's inspector", file=file)
    return rows


def _blank(text: str, offset: int) -> int:
    match = _BLANK.match(text, offset)
    return match.end() if match else offset


def _row(document: Any, file: str | None, place: str) -> InspectorRow:
    def part(name: str, kind: type, inner: str) -> Any:
        table = document.get(name) if isinstance(document, dict) else None
        value = table.get(inner) if isinstance(table, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            refuse(f"{name}.{inner}: expected {kind.__name__}, got {shown(value)}")
        if isinstance(value, int) and not 0 <= value < 2**63:
            refuse(f"{name}.{inner}: {shown(value)} is out of range")
        return value if not isinstance(value, str) else value[:200]

    def refuse(message: str) -> NoReturn:
        raise ConfigError(message, file=file, path=place)

    row = InspectorRow(
        part("header", str, "id"),
        part("header", int, "rank"),
        part("header", int, "n_ranks"),
        part("coll_perf", int, "coll_sn"),
        part("coll_perf", str, "coll"),
        part("coll_perf", int, "coll_msg_size_bytes"),
        part("coll_perf", int, "coll_exec_time_us"),
        part("metadata", str, "hostname"),
    )
    if row.rank >= row.nranks:
        refuse(f"rank {row.rank} of {row.nranks}")
    return row


def inspector_findings(rows: Sequence[InspectorRow]) -> list[str]:
    """Report differences between a communicator's ranks: in collectives, progress and time."""
    by_name: dict[str, list[InspectorRow]] = defaultdict(list)
    for row in rows:
        by_name[row.communicator].append(row)
    return [
        f"communicator {name}: {finding}"
        for name, members in by_name.items()
        for finding in _of(members)
    ]


def _of(rows: Sequence[InspectorRow]) -> Iterator[str]:
    calls: dict[int, dict[int, InspectorRow]] = defaultdict(dict)
    for row in rows:
        calls[row.number][row.rank] = row
    for number in sorted(calls):
        kinds: dict[tuple[str, int], list[int]] = defaultdict(list)
        for rank, row in sorted(calls[number].items()):
            kinds[row.collective, row.size_bytes].append(rank)
        if len(kinds) > 1:
            parts = "; ".join(
                f"{ranks_listed(ranks)} {kind} of {size:,} bytes"
                for (kind, size), ranks in kinds.items()
            )
            yield f"collective {number}: ranks run different ones: {parts}"
            break
    last: dict[int, int] = {}
    for row in rows:
        last[row.rank] = max(last.get(row.rank, -1), row.number)
    latest = max(last.values())
    behind = sorted(rank for rank, number in last.items() if number < latest - 1)
    if behind:
        earliest = min(last[rank] for rank in behind)
        later = " or later" * (len(behind) > 1)
        yield (
            f"{ranks_listed(behind)} ended with collective {earliest}{later}, others with {latest}"
        )
    absent = [rank for rank in range(min(rows[0].nranks, 1 << 16)) if rank not in last]
    if absent and len(last) > 1:
        yield f"no collectives of {ranks_listed(absent)}"
    yield from _slow(rows)


def _slow(rows: Sequence[InspectorRow]) -> Iterator[str]:
    """Report ranks that take longer than the others for the same collectives."""
    times: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        times[row.collective, row.size_bytes][row.rank].append(row.time_us)
    for (kind, size), ranks in sorted(times.items()):
        medians = {
            rank: median(durations)
            for rank, durations in sorted(ranks.items())
            if len(durations) >= LEAST_CALLS
        }
        for rank, duration in medians.items():
            typical = median(
                [value for peer, value in medians.items() if peer != rank] or [duration]
            )
            if duration > SLOW * typical:
                yield (
                    f"rank {rank} takes {duration:,.0f} us for {kind} of {size:,} bytes, "
                    f"others {typical:,.0f} us"
                )
