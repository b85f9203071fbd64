"""PyTorch's flight records: the last operations of each rank of a hung job, and the ranks'
disagreements.

A record is a file named by ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``: a pickle per rank, or the same as
JSON. Pickles are read without executing anything in them.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from simcoll.errors import ConfigError, ranks_listed
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import read_file

__all__ = [
    "FlightEntry",
    "FlightRecord",
    "dump_flight_record",
    "findings",
    "load_flight_record",
    "parse_flight_record",
]

MAX_BYTES = 64 << 20
MAX_ENTRIES = 1_000_000
STATES = ("scheduled", "started", "completed")
UNEVEN = ("all_to_all", "send", "recv", "gather", "scatter", "reduce_scatter", "all_gather")
"""Operations whose input or output sizes may differ between ranks."""


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One operation of one rank.

    Attributes
    ----------
    group
        Name of its process group.
    sequence
        Its number among the group's collectives or, for a message between two ranks, among the
        group's messages.
    operation
        The name, such as ``nccl:all_reduce``.
    inputs, outputs
        ``(shape, type)`` of every tensor.
    state
        One of ``STATES``.
    p2p
        Whether it is a message between two ranks.
    created_ns
        Time of the call, on the rank's clock.
    """

    group: str
    sequence: int
    operation: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    state: str
    p2p: bool = False
    created_ns: int = 0


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """The operations of one rank, and the ranks of its groups."""

    version: str
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    entries: tuple[FlightEntry, ...]


class _Plain(pickle.Unpickler):
    """An unpickler of numbers, texts, lists, tuples and dicts only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(
            f"it names {module[:40]}.{name[:40]}; a flight record has numbers, texts, lists and "
            "dicts only"
        )


def load_flight_record(path: FilePath) -> FlightRecord:
    """Read a flight record.

    Raises
    ------
    ConfigError
        As :func:`parse_flight_record`, or when it cannot be read.
    """
    path = path_of(path, "load_flight_record", "parse_flight_record")
    return parse_flight_record(read_file(path, MAX_BYTES), path)


def parse_flight_record(content: Content, file: str | None = None) -> FlightRecord:
    """Read the content of a flight record, a pickle or JSON.

    Raises
    ------
    ConfigError
        For another kind of file, with the position; for a pickle that would create objects.
    """
    content = content_of(content, "parse_flight_record")
    try:
        table = (
            json.loads(content)
            if content.lstrip()[:1] == b"{"
            else _Plain(io.BytesIO(content)).load()
        )
    except Exception as error:  # noqa: BLE001 - a broken pickle raises anything
        raise ConfigError(
            f"not a flight record: {' '.join(str(error).split())[:160] or type(error).__name__}",
            file=file,
        ) from None
    entries = _get(table, "entries", list, file, "$")
    if len(entries) > MAX_ENTRIES:
        raise ConfigError(f"more than {MAX_ENTRIES:,} entries", file=file)
    groups = []
    for name, group in _get(table, "pg_config", dict, file, "$", {}).items():
        if not isinstance(name, str):
            raise ConfigError("names of groups: expected texts", file=file, path="$.pg_config")
        place = f"$.pg_config.{name[:40]}"
        text = _get(group, "ranks", str, file, place, "[]")
        if not re.fullmatch(r"\[[0-9, ]{0,1000000}\]", text):
            raise ConfigError(
                f"ranks {text[:40]!r}: expected a list such as '[0, 1]'", file=file, path=place
            )
        groups.append((name[:200], tuple(int(rank) for rank in re.findall(r"[0-9]{1,9}", text))))
    flight_entries = tuple(
        _entry(record, file, f"$.entries[{number}]") for number, record in enumerate(entries)
    )
    return FlightRecord(_get(table, "version", str, file, "$", ""), tuple(groups), flight_entries)


def _get(
    table: Any,
    key: str,
    kind: type | tuple[type, ...],
    file: str | None,
    place: str,
    default: Any = None,
) -> Any:
    value = table.get(key, default) if isinstance(table, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        expected = (
            kind.__name__
            if isinstance(kind, type)
            else " or ".join(option.__name__ for option in kind)
        )
        raise ConfigError(
            f"{key}: expected {expected}, got {_describe(value)}", file=file, path=place
        )
    return value


def _describe(value: Any) -> str:
    """Format a value for a message, without containers, which may expand without bound."""
    return repr(value)[:40] if isinstance(value, (str, float, bytes)) else type(value).__name__


def _entry(entry: Any, file: str | None, place: str) -> FlightEntry:
    group = _get(entry, "process_group", (list, tuple), file, place, [""])
    p2p = bool(entry.get("is_p2p"))
    number = _get(entry, "p2p_seq_id" if p2p else "collective_seq_id", int, file, place)
    state = _get(entry, "state", str, file, place)
    if state not in STATES:
        raise ConfigError(
            f"state {state[:40]!r}: expected {', '.join(STATES)}", file=file, path=place
        )
    sides = []
    for side in ("input", "output"):
        shapes, types = (
            _get(entry, f"{side}_{quantity}", (list, tuple), file, place, [])
            for quantity in ("sizes", "dtypes")
        )
        if len(shapes) != len(types):
            raise ConfigError(
                f"{len(shapes)} {side}_sizes and {len(types)} {side}_dtypes", file=file, path=place
            )
        for shape in shapes:
            if not isinstance(shape, (list, tuple)) or not all(
                type(size) is int and size >= 0 for size in shape
            ):
                raise ConfigError(
                    f"{side}_sizes: expected lists of whole numbers", file=file, path=place
                )
        if not all(isinstance(kind, str) for kind in types):
            raise ConfigError(f"{side}_dtypes: expected names", file=file, path=place)
        sides.append(
            tuple((tuple(shape), kind[:40]) for shape, kind in zip(shapes, types, strict=True))
        )
    name = _get(entry, "profiling_name", str, file, place)[:200]
    created = _get(entry, "time_created_ns", int, file, place, 0)
    whose = group[0] if group and isinstance(group[0], str) else ""
    return FlightEntry(whose[:200], number, name, sides[0], sides[1], state, p2p, created)


def dump_flight_record(record: FlightRecord) -> bytes:
    """Write a flight record as JSON, which reads back as the same record."""
    entries = [
        {
            "frames": [],
            "record_id": number,
            "pg_id": 0,
            "process_group": [entry.group, ""],
            "collective_seq_id": 0 if entry.p2p else entry.sequence,
            "p2p_seq_id": entry.sequence if entry.p2p else 0,
            "op_id": number + 1,
            "profiling_name": entry.operation,
            "time_created_ns": entry.created_ns,
            "input_sizes": [list(shape) for shape, _ in entry.inputs],
            "input_dtypes": [kind for _, kind in entry.inputs],
            "output_sizes": [list(shape) for shape, _ in entry.outputs],
            "output_dtypes": [kind for _, kind in entry.outputs],
            "state": entry.state,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": entry.state == "completed",
            "timeout_ms": 600000,
            "is_p2p": entry.p2p,
        }
        for number, entry in enumerate(record.entries)
    ]
    groups = {
        name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in record.groups
    }
    return (
        json.dumps(
            {"version": record.version, "pg_config": groups, "pg_status": {}, "entries": entries},
            indent=1,
        ).encode()
        + b"\n"
    )


def findings(records: Mapping[int, FlightRecord]) -> list[str]:
    """Diagnose the records of some ranks: mismatched operations, missing ranks, unfinished
    operations.

    Reports the first faulty collective of each group, since later faults are consequences.

    >>> shapes = (((4,), "Float"),)
    >>> entry = FlightEntry("0", 1, "nccl:all_reduce", shapes, shapes, "scheduled")
    >>> groups = (("0", (0, 1)),)
    >>> findings({0: FlightRecord("2.4", groups, (entry,)), 1: FlightRecord("2.4", groups, ())})
    ["group '0', collective 1 (nccl:all_reduce): rank 1 never came; ...; waiting: rank 0"]
    """
    names = dict.fromkeys(entry.group for record in records.values() for entry in record.entries)
    faults: list[str] = []
    for name in names:
        member_lists = (
            ranks for record in records.values() for group, ranks in record.groups if group == name
        )
        members = sorted(next(member_lists, records))
        by_rank = {
            rank: {
                entry.sequence: entry
                for entry in records[rank].entries
                if entry.group == name and not entry.p2p
            }
            for rank in members
            if rank in records
        }
        faults += _of_group(name, by_rank)
        absent = [rank for rank in members if rank not in records]
        if absent and by_rank:
            faults.append(f"group {name!r}: no record of {ranks_listed(absent)}")
    return faults


def _of_group(name: str, by_rank: Mapping[int, Mapping[int, FlightEntry]]) -> Iterator[str]:
    """The first fault in a group."""
    # A record is a ring buffer: before the latest first entry nothing is known of some rank.
    first_number = max((min(entries) for entries in by_rank.values() if entries), default=0)
    for number in sorted(
        {number for entries in by_rank.values() for number in entries if number >= first_number}
    ):
        present = {rank: entries[number] for rank, entries in by_rank.items() if number in entries}
        title = f"group {name!r}, collective {number}"
        operations = Counter(entry.operation for entry in present.values())
        if len(operations) > 1:
            parts = [
                f"{ranks_listed([r for r in present if present[r].operation == operation])} "
                f"{operation}"
                for operation in sorted(operations)
            ]
            yield f"{title}: ranks run different operations: {'; '.join(parts)}"
            return
        operation = next(iter(operations))
        for side in ("inputs", "outputs"):
            tensors = {rank: getattr(entry, side) for rank, entry in present.items()}
            kinds = {
                rank: ", ".join(kind for _, kind in sides) or "none"
                for rank, sides in tensors.items()
            }
            shapes = {
                rank: ", ".join(map(_tensor, sides)) or "none" for rank, sides in tensors.items()
            }
            for quantity, values in (("types", kinds), ("shapes", shapes)):
                if quantity == "shapes" and any(word in operation for word in UNEVEN):
                    continue
                if len(set(values.values())) > 1:
                    different = sorted(set(values.values()))
                    parts = [
                        f"{ranks_listed([r for r in values if values[r] == value])} with {value}"
                        for value in different
                    ]
                    yield f"{title} ({operation}): {quantity} of {side} differ: {'; '.join(parts)}"
                    return
        waiting = [rank for rank, entry in present.items() if entry.state != "completed"]
        missing = [rank for rank in by_rank if rank not in present]
        if missing and waiting:
            latest = max((max(by_rank[rank], default=0) for rank in missing), default=0)
            progress = (
                f"it has done {latest}" if len(missing) == 1 else f"they have done up to {latest}"
            )
            yield (
                f"{title} ({operation}): {ranks_listed(missing)} never came; "
                f"{progress} of this group; waiting: {ranks_listed(waiting)}"
            )
            return
        if waiting:
            states = Counter(present[rank].state for rank in waiting)
            summary = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            ended = len(present) - len(waiting)
            yield (
                f"{title} ({operation}): {ranks_listed(waiting)} did not end it ({summary}), "
                f"{ended} did"
            )
            return


def _tensor(tensor: tuple[tuple[int, ...], str]) -> str:
    shape, kind = tensor
    return f"{'x'.join(map(str, shape)) or 'scalar'} {kind}"
