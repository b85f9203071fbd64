"""PyTorch's flight records: the last operations of each rank of a hung job.

A record is a file named by ``TORCH_FR_DUMP_TEMP_FILE`` (``TORCH_NCCL_DEBUG_INFO_TEMP_FILE`` before
PyTorch 2.9): a pickle per rank, or the same as JSON. Pickles are read without executing anything in
them.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from simcoll.core.vocabulary import OperationState
from simcoll.errors import ConfigError
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import read_file

__all__ = [
    "FlightEntry",
    "FlightRecord",
    "GroupStatus",
    "dump_flight_record",
    "load_flight_record",
    "parse_flight_record",
]

MAX_BYTES = 64 << 20
MAX_ENTRIES = 1_000_000
STATES: tuple[OperationState, ...] = ("scheduled", "started", "completed")


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
    state: OperationState
    p2p: bool = False
    created_ns: int = 0


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How far a rank has come in a group, which it knows beyond the entries that it keeps.

    Attributes
    ----------
    group
        Name of the process group.
    called, ended
        Numbers of the last collective that it has called, and of the last that has ended; -1 for
        none.
    """

    group: str
    called: int
    ended: int


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """The operations of one rank, the ranks of its groups, and its progress in them."""

    version: str
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    entries: tuple[FlightEntry, ...]
    statuses: tuple[GroupStatus, ...] = ()


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
    if isinstance(table, list):  # PyTorch 2.2 dumps the entries alone
        table = {"entries": table}
    entries = _get(table, "entries", list, file, "$")
    if len(entries) > MAX_ENTRIES:
        raise ConfigError(f"more than {MAX_ENTRIES:,} entries", file=file)
    groups = tuple(
        _group(name, group, file)
        for name, group in _get(table, "pg_config", dict, file, "$", {}).items()
    )
    statuses = _statuses(table, entries, file)
    ended = {status.group: status.ended for status in statuses}
    flight_entries = tuple(
        _entry(record, ended, file, f"$.entries[{number}]") for number, record in enumerate(entries)
    )
    version = _get(table, "version", str, file, "$", "")
    # Groups without a name or ranks are those of backends that do not register them (Gloo).
    return FlightRecord(version, tuple(filter(all, groups)), flight_entries, statuses)


def _group(name: Any, group: Any, file: str | None) -> tuple[str, tuple[int, ...]]:
    """The name and the ranks of a group, which are text or, in some versions, a list."""
    if not isinstance(name, str):
        raise ConfigError("names of groups: expected texts", file=file, path="$.pg_config")
    place = f"$.pg_config.{name[:40]}"
    ranks = _get(group, "ranks", (str, list, tuple), file, place, "[]")
    text = ranks if isinstance(ranks, str) else str(list(ranks))
    if not re.fullmatch(r"\[[0-9, ]{0,1000000}\]", text):
        raise ConfigError(
            f"ranks {text[:40]!r}: expected a list such as '[0, 1]'", file=file, path=place
        )
    return name[:200], tuple(int(rank) for rank in re.findall(r"[0-9]{1,9}", text))


def _statuses(table: Any, entries: list[Any], file: str | None) -> tuple[GroupStatus, ...]:
    """The progress in each group. It is filed by a number of the group, which entries map to its
    name. A group without entries is that of the same name if no entry contradicts that.
    """
    names: dict[str, str] = {}
    last: dict[str, int] = {}
    for record in entries:
        entry = _with_all_keys(record) if isinstance(record, dict) else {}
        group = entry.get("process_group")
        if isinstance(group, (list, tuple)) and group and isinstance(group[0], str):
            names[str(entry.get("pg_id", ""))] = group[0]
            number = entry.get("collective_seq_id")
            if type(number) is int and not entry.get("is_p2p"):
                last[group[0]] = max(number, last.get(group[0], 0))
    numbered_by_name = all(number == name for number, name in names.items())
    for name in table.get("pg_config", {}):
        if numbered_by_name or name == "0":
            names.setdefault(str(name), str(name))
    statuses = []
    for number, status in _get(table, "pg_status", dict, file, "$", {}).items():
        place = f"$.pg_status.{str(number)[:40]}"
        called, ended = (
            _get(status, f"last_{event}_collective", int, file, place, -1)
            for event in ("enqueued", "completed")
        )
        group = names.get(str(number))
        # Gloo numbers messages together with collectives here: such numbers say nothing.
        if group is not None and called == last.get(group, called):
            statuses.append(GroupStatus(group[:200], called, ended))
    return tuple(statuses)


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


def _with_all_keys(entry: dict[Any, Any]) -> dict[Any, Any]:
    """An entry with the keys that PyTorch 2.2 and 2.3 do not write: one number for collectives and
    messages, the number of the group instead of its name, no types.
    """
    if "seq_id" not in entry or "collective_seq_id" in entry:
        return entry
    added: dict[str, Any] = {
        "collective_seq_id": entry["seq_id"],
        "p2p_seq_id": entry["seq_id"],
        "is_p2p": re.search(r":(?:send|recv)\b", str(entry.get("profiling_name"))) is not None,
        "process_group": [str(entry.get("pg_id", 0))],
    }
    for side in ("input", "output"):
        sizes = entry.get(f"{side}_sizes")
        added[f"{side}_dtypes"] = [""] * len(sizes) if isinstance(sizes, (list, tuple)) else []
    return {**added, **entry}


def _entry(entry: Any, ended: dict[str, int], file: str | None, place: str) -> FlightEntry:
    if isinstance(entry, dict):
        entry = _with_all_keys(entry)
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
    whose = group[0][:200] if group and isinstance(group[0], str) else ""
    # Backends without events of a GPU retire an operation that they leave in its first state.
    if p2p or number <= ended.get(whose, number):
        state = "completed" if entry.get("retired") is True else state
    if not p2p and number <= ended.get(whose, -1):
        state = "completed"
    return FlightEntry(whose, number, name, sides[0], sides[1], state, p2p, created)


def dump_flight_record(record: FlightRecord) -> bytes:
    """Write a flight record as JSON, which reads back as the same record."""
    numbers = {name: number for number, (name, _) in enumerate(record.groups)}
    for entry in record.entries:
        numbers.setdefault(entry.group, len(numbers))
    entries = [
        {
            "frames": [],
            "record_id": number,
            "pg_id": numbers[entry.group],
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
    statuses = {
        str(numbers.get(status.group, status.group)): {
            "last_enqueued_collective": status.called,
            "last_started_collective": -1,
            "last_completed_collective": status.ended,
        }
        for status in record.statuses
    }
    document = {
        "version": record.version,
        "pg_config": groups,
        "pg_status": statuses,
        "entries": entries,
    }
    return json.dumps(document, indent=1).encode() + b"\n"
