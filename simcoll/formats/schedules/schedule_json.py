"""The schedule file: one JSON object with a version, columns of transfers per step, and repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from simcoll.core.collective import Collective
from simcoll.core.definition import Definition
from simcoll.core.schedule import OP_NAMES, Layout, Repeat, Schedule, Step
from simcoll.core.transit import transits_from
from simcoll.errors import ConfigError
from simcoll.files.output import write_file
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import decode_json, read_file

__all__ = ["dump_schedule", "load_schedule", "parse_schedule"]

FORMAT, VERSION = "simcoll-schedule", 1
MAX_BYTES = 2**28
MAX_TRANSFERS = 2**31
MAX_STEPS = 2**21
"""The steps of a ring of a million ranks, whose proof takes a minute or two."""
MAX_CHANNELS = 2**16
Column = int | list[int]
Names = str | list[str]
Value = int | float | bool | str | None


class _DefinitionRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    inputs: list[list[int]]
    outputs: list[list[int | list[int]]]
    sizes: list[int] = []
    order: str = ""


class _CollectiveRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    kind: str
    nranks: int
    root: int | None = None
    pairs: list[tuple[int, int]] = []
    in_place: bool = False
    definition: _DefinitionRecord | None = None


class _StepRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    src_rank: Column
    src_chunk: Column
    dst_rank: Column
    dst_chunk: Column
    count: Column = 1
    op: Names = "copy"
    channel: Column = 0
    via: Names = ""
    wire: Names = ""


class _BlockRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    steps: list[_StepRecord]
    repeat: int = 1
    stride: int = 0
    base: int = 0
    modulus: int = 1


class _ScheduleFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    version: int
    name: str
    collective: _CollectiveRecord
    chunks: int
    blocks: list[_BlockRecord]
    channels: int = 1
    scratch: list[int | list[int]] = []
    scratch_pieces: list[int | list[int]] | None = None
    divisible: bool = False
    params: dict[str, Value | list[Value | list[Value]]] = {}


def _column(values: np.ndarray) -> Any:
    if len(values) and (values == values[0]).all() and len(values) > 1:
        return int(values[0])
    return values.tolist()


def _step_record(step: Step) -> _StepRecord:
    transits = () if step.transits is None else step.transits.columns()
    # One column stays a list even if constant: its length is the number of transfers.
    return _StepRecord(
        step.src_rank.tolist(),
        _column(step.src_chunk),
        _column(step.dst_rank),
        _column(step.dst_chunk),
        _column(step.count),
        _names([OP_NAMES[op] for op in step.op.tolist()]),
        _column(step.channel),
        *map(_names, transits),
    )


def _names(texts: list[str]) -> Names:
    """The text of every transfer, or the only one."""
    return texts[0] if len(set(texts)) == 1 else texts


def _plain(value: Any) -> Any:
    """Convert a parameter to JSON's types: numpy's numbers and arrays to Python's, tuples to
    lists.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_plain(member) for member in value] if isinstance(value, (tuple, list)) else value


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(member) for member in value) if isinstance(value, list) else value


def dump_schedule(schedule: Schedule, path: str | Path | None = None) -> bytes:
    """Write a schedule as JSON, to ``path`` if given.

    The text is read back before it is returned, so every written file can be read.

    Raises
    ------
    ConfigError
        When the file cannot be written, or cannot represent the schedule: numbers that are too
        large, parameters other than numbers, texts, None and lists of these.
    ScheduleError
        When a step names ranks, chunks or channels that do not exist.

    Examples
    --------
    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> print(dump_schedule(ring).decode().splitlines()[1])
     "format": "simcoll-schedule",
    """
    collective, layout = schedule.collective, schedule.layout
    blocks = []
    for block in schedule.blocks():
        if isinstance(block, Repeat) and block.order is not None:  # the file has no such windows
            blocks += [_BlockRecord([_step_record(step)]) for step in block.unrolled()]
        elif isinstance(block, Repeat):
            steps = [_step_record(step) for step in block.steps]
            # Shifts wrap around, so a window may begin at its first chunk that is not negative.
            base = block.base % block.modulus if block.base < 0 else block.base
            blocks.append(_BlockRecord(steps, block.count, block.stride, base, block.modulus))
        else:
            blocks.append(_BlockRecord([_step_record(block)]))
    record = _ScheduleFile(
        FORMAT,
        VERSION,
        schedule.name,
        _CollectiveRecord(
            collective.kind,
            collective.nranks,
            collective.root,
            list(collective.pairs),
            collective.in_place,
            _definition_record(collective),
        ),
        layout.chunks,
        blocks,
        schedule.nchannels,
        layout.scratch.tolist(),
        None if layout.scratch_pieces is None else layout.scratch_pieces.tolist(),
        schedule.divisible,
        {key: _plain(value) for key, value in schedule.params},
    )
    data = _checked_bytes(record)
    if path is not None:
        write_file(path, data)
    return data


def _definition_record(collective: Collective) -> _DefinitionRecord | None:
    definition = collective.definition
    return None if definition is None else _DefinitionRecord(**definition.record())


def _length(step: _StepRecord) -> int:
    return max(
        (len(column) for column in msgspec.structs.astuple(step) if isinstance(column, list)),
        default=1,
    )


def _lines(record: _ScheduleFile) -> bytes:
    """Format the file with each key and each block of steps on a separate line."""
    fields = msgspec.to_builtins(record)
    blocks = b",\n  ".join(msgspec.json.encode(block) for block in fields.pop("blocks"))
    head = b",\n ".join(
        msgspec.json.encode(key) + b": " + msgspec.json.encode(value)
        for key, value in fields.items()
    )
    return b"{\n " + head + b',\n "blocks": [\n  ' + blocks + b"\n ]\n}\n"


def _checked_bytes(record: _ScheduleFile) -> bytes:
    """Encode the file, and check it by reading it back."""
    try:
        data = _lines(record)
        again = decode_json(data, _ScheduleFile, None)
        _schedule(again, None)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"a schedule file cannot hold {record.name!r:.60} with params {record.params}: {error}"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"a schedule file cannot hold {record.name!r:.60}: {error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"the file of {record.name!r} is larger than {MAX_BYTES >> 20} MiB")
    if again.params != record.params:
        raise ConfigError(
            f"a schedule file cannot keep the params {record.params} of {record.name!r}: they read "
            f"back as {again.params}"
        )
    return data


def _step(record: _StepRecord, file: str | None, place: str) -> Step:
    names = ("src_rank", "src_chunk", "dst_rank", "dst_chunk", "count", "op", "channel")
    columns: list[Any] = [getattr(record, name) for name in names]
    ops = [columns[5]] if isinstance(columns[5], str) else columns[5]
    for index, op in enumerate(ops):
        if op not in OP_NAMES:
            raise ConfigError(
                f"unknown op {op!r}; valid: {', '.join(OP_NAMES)}",
                file=file,
                path=f"{place}.op[{index}]",
            )
    numbers = [OP_NAMES.index(op) for op in ops]
    columns[5] = numbers[0] if isinstance(columns[5], str) else numbers
    texts = {"via": record.via, "wire": record.wire}
    lengths = {
        name: len(column)
        for name, column in (*zip(names, columns, strict=True), *texts.items())
        if isinstance(column, list)
    }
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ConfigError(
            f"columns of one step must have one length: {described}", file=file, path=place
        )
    size = next(iter(lengths.values()), 1)
    arrays = {}
    for name, column in zip(names, columns, strict=True):
        try:
            arrays[name] = np.broadcast_to(np.asarray(column, np.int64), (size,))
        except OverflowError:
            raise ConfigError("number out of range", file=file, path=f"{place}.{name}") from None
    try:
        transits = transits_from(record.via, record.wire, size)
    except ConfigError as error:
        raise ConfigError(error.message, file=file, path=place) from None
    return Step(op=arrays.pop("op").astype(np.int8), transits=transits, **arrays)


def parse_schedule(data: Content, file: str | None = None) -> Schedule:
    """Read a schedule from JSON text.

    Raises
    ------
    ConfigError
        When the text is not a schedule file; the message gives the path.
    ScheduleError
        When a step names ranks, chunks or channels that do not exist.

    Examples
    --------
    >>> import simcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> parse_schedule(dump_schedule(ring))
    <Schedule: ring(channels=1, pieces=1) all_gather n=3, 1 chunk a block, 1 channel>
    """
    data = content_of(data, "parse_schedule")
    return _schedule(decode_json(data, _ScheduleFile, file), file)


def _schedule(record: _ScheduleFile, file: str | None) -> Schedule:
    if record.format != FORMAT:
        raise ConfigError(
            f"format is {record.format!r}, expected {FORMAT!r}", file=file, path="$.format"
        )
    if record.version != VERSION:
        raise ConfigError(
            f"version {record.version} is not known; this program reads version {VERSION}",
            file=file,
            path="$.version",
        )
    stated = record.collective
    try:
        collective = Collective(
            stated.kind,
            stated.nranks,
            stated.root,
            tuple(stated.pairs),
            stated.in_place,
            _definition(stated.definition),
        )
        layout = Layout(collective, record.chunks, *_scratch(record, collective, file))
    except ConfigError as error:
        raise (
            error if error.path else ConfigError(error.message, file=file, path="$.collective")
        ) from None
    if not record.name.isprintable() or len(record.name) > 200:
        raise ConfigError("expected up to 200 printable characters", file=file, path="$.name")
    params = tuple((key, _as_tuples(value)) for key, value in record.params.items())
    if not 1 <= record.channels <= MAX_CHANNELS:
        raise ConfigError(
            f"channels must lie in 1..{MAX_CHANNELS}, got {record.channels}",
            file=file,
            path="$.channels",
        )
    if (
        sum(block.repeat * sum(map(_length, block.steps)) for block in record.blocks)
        > MAX_TRANSFERS
    ):
        raise ConfigError(
            f"its repeats expand to more than {MAX_TRANSFERS:,} transfers",
            file=file,
            path="$.blocks",
        )
    if sum(block.repeat * len(block.steps) for block in record.blocks) > MAX_STEPS:
        raise ConfigError(
            f"its repeats expand to more than {MAX_STEPS:,} steps", file=file, path="$.blocks"
        )
    items = [_block(block, file, f"$.blocks[{index}]") for index, block in enumerate(record.blocks)]
    schedule = Schedule(
        record.name, layout, lambda: iter(items), record.channels, params, record.divisible
    )
    number = 0
    for entry in items:
        steps, turns = (entry.steps, entry.count) if isinstance(entry, Repeat) else ((entry,), 1)
        for place, step in enumerate(steps):
            schedule.check_step(number + place, step)
        number += turns * len(steps)
    return schedule


def _definition(record: _DefinitionRecord | None) -> Definition | None:
    if record is None:
        return None
    return Definition(record.name, record.inputs, record.outputs, record.sizes, record.order)


def _scratch(
    record: _ScheduleFile, collective: Collective, file: str | None
) -> tuple[np.ndarray, np.ndarray | None]:
    scratch = _per_slot(
        record.scratch, "block", collective.nranks, max(collective.nblocks, 1), file, "$.scratch"
    )
    if record.scratch_pieces is None:
        return scratch, None
    pieces = _per_slot(
        record.scratch_pieces, "piece", collective.nranks, record.chunks, file, "$.scratch_pieces"
    )
    if pieces.shape != scratch.shape:
        raise ConfigError(
            "expected a number for each of scratch", file=file, path="$.scratch_pieces"
        )
    return scratch, pieces


def _per_slot(
    numbers: list[Any], subject: str, rows: int, limit: int, file: str | None, path: str
) -> np.ndarray:
    """Parse a list of numbers below a limit, or one such list per rank."""
    try:
        values = np.array(numbers, np.int64)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(
            f"expected {subject} numbers, or rows of equal length of them", file=file, path=path
        ) from None
    if values.ndim > 1 and values.shape[0] != rows:
        raise ConfigError(
            f"expected one row per rank, got {values.shape[0]} rows", file=file, path=path
        )
    if values.size and not (values.min() >= 0 and values.max() < limit):
        raise ConfigError(f"{subject} numbers must lie in 0..{limit - 1}", file=file, path=path)
    return values


def _block(block: _BlockRecord, file: str | None, place: str) -> Step | Repeat:
    steps = tuple(
        _step(step, file, f"{place}.steps[{index}]") for index, step in enumerate(block.steps)
    )
    if block.repeat == 1 and len(steps) == 1:
        return steps[0]
    if not (0 <= block.repeat <= 2**24 and 1 <= block.modulus <= 2**40):
        raise ConfigError(
            "repeat must lie in 0..2**24 and modulus in 1..2**40", file=file, path=place
        )
    if not (0 <= block.base <= 2**40 and abs(block.stride) <= 2**40):
        raise ConfigError(
            "base must lie in 0..2**40 and stride within 2**40", file=file, path=place
        )
    return Repeat(steps, block.repeat, block.stride, block.base, block.modulus)


def load_schedule(path: FilePath) -> Schedule:
    """Read a schedule file.

    Raises
    ------
    ConfigError
        When it cannot be read or is not a schedule file.

    Examples
    --------
    >>> import simcoll
    >>> from tempfile import TemporaryDirectory
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=3)
    >>> with TemporaryDirectory() as folder:
    ...     written = dump_schedule(ring, f"{folder}/ring.json")
    ...     again = load_schedule(f"{folder}/ring.json")
    ...
    >>> again.content_hash() == ring.content_hash()
    True
    """
    path = path_of(path, "load_schedule", "parse_schedule")
    return parse_schedule(read_file(path, MAX_BYTES), path)
