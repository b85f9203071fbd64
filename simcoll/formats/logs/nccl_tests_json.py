"""The JSON that nccl-tests (``-J``), realcoll and ``simcoll perf`` write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from simcoll.errors import ConfigError, shown
from simcoll.files.strict import in_words, read_file
from simcoll.formats.logs.log_lines import Skipped
from simcoll.formats.logs.measured import (
    MeasuredRow,
    MeasuredRun,
    MeasuredTable,
    finish_table,
    version_text,
)
from simcoll.terminal import printable

__all__ = ["MAX_JSON", "tables_of_json"]

MAX_JSON = 2**26
"""Limit on JSON, which must be read as a whole; text is read line by line."""
MOST_US = 1e10

Number = int | float | str | None


class _JsonGroup(msgspec.Struct, frozen=True):
    time: Number = None
    cpu_time: Number = None
    alg_bw: Number = None
    bus_bw: Number = None
    nwrong: Number = None


class _JsonResult(msgspec.Struct, frozen=True):
    size: int
    count: int = 0
    type: str = ""
    redop: str = ""
    root: int | str = -1
    out_of_place: _JsonGroup | None = None
    in_place: _JsonGroup | None = None
    baseline: _JsonGroup | None = None


class _Device(msgspec.Struct, frozen=True):
    rank: int = 0
    pid: int = 0
    hostname: str = ""
    device_info: str = ""


class _Config(msgspec.Struct, frozen=True):
    devices: list[_Device] = []
    ngpus: int = 0
    nranks: int = 0
    collective: str = ""
    algorithm: str = ""
    transport: str = ""
    topology: str = ""


class _Document(msgspec.Struct, frozen=True):
    """The used keys of a document; others are ignored."""

    results: list[_JsonResult]
    args: list[str] = []
    env: list[str] | dict[str, str] = []
    nccl_version: str | int = ""
    config: _Config = _Config()
    errors: list[Any] = []


_COMMENT = re.compile(
    rb'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*|,(?=\s*[}\]])',
    re.DOTALL | re.MULTILINE,
)
"""Texts, which stay, comments, and commas after the last entry."""


def _decode(content: bytes) -> _Document:
    """A document, which people may have annotated."""
    try:
        return msgspec.json.decode(content, type=_Document)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        plain = _COMMENT.sub(lambda match: match[1] or b"", content)
        # A comma before a comment that stood last is seen only now.
        plain = _COMMENT.sub(lambda match: match[1] or b"", plain)
        try:
            return msgspec.json.decode(plain, type=_Document)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            raise error from None


def tables_of_json(path: str | Path, max_bytes: int, skipped: Skipped) -> tuple[MeasuredTable, ...]:
    """Read the tables of a document.

    Raises
    ------
    ConfigError
        When it is truncated, too large, or of another kind.
    """
    file = str(path)
    content = read_file(path, max_bytes)
    try:
        document = _decode(content)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"not the JSON of nccl-tests or realcoll: {in_words(str(error))}", file=file
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"JSON that is cut off or broken ({error}); the text output of the same run can be "
            "read",
            file=file,
        ) from None
    rows = [
        row
        for number, result in enumerate(document.results)
        if (row := _row(result, number, skipped))
    ]
    for message in document.errors:
        skipped.add(0, f"the file names an error: {printable(str(message))[:200]}")
    if not rows:
        return ()
    text = " ".join(document.args)
    ours = bool(document.config.algorithm and document.config.transport)
    pairs = (
        document.env.items()
        if isinstance(document.env, dict)
        else (entry.partition("=")[::2] for entry in document.env)
    )
    library = (
        "realcoll"
        if ours
        else "simcoll"
        if document.config.topology
        else "rccl"
        if "rccl" in text
        else "nccl"
    )
    run = MeasuredRun(
        _collective(document),
        document.config.nranks,
        {
            device.rank: (device.hostname, str(device.pid or ""), printable(device.device_info))
            for device in document.config.devices
        },
        rows,
        {
            printable(name): printable(value)[:200]
            for name, value in pairs
            if name.startswith("NCCL_")
        },
        library,
        printable(f"({document.config.transport})")[:40]
        if ours
        else _version(document.nccl_version),
        document.config.ngpus,
    )
    table, notes = finish_table(run)
    for note in notes:
        skipped.add(0, note)
    return (table,)


def _collective(document: _Document) -> str:
    """The collective, as simcoll's files name it, or from the program's name."""
    if document.config.collective:
        return printable(document.config.collective)[:40]
    program = document.args[0].rpartition("/")[2] if document.args else ""
    return program.partition("_perf")[0] if "_perf" in program else ""


def _version(stated: str | int) -> str:
    text = str(stated)
    return (
        version_text(int(text))
        if text.isascii() and text.isdecimal() and 4 <= len(text) <= 6
        else printable(text)[:40]
    )


def _number(value: Number) -> float:
    try:
        number = float(value) if value is not None else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return number if 0 < number < MOST_US else 0.0


def _fs(group: _JsonGroup | None, size: int) -> int:
    """The time of a group, computed from the bandwidth if only that is given."""
    if group is None:
        return 0
    time = _number(group.time if group.time is not None else group.cpu_time)
    rate = _number(group.alg_bw)
    return round(time * 1e9) if time else round(size / rate * 1e6) if rate else 0


def _row(result: _JsonResult, number: int, skipped: Skipped) -> MeasuredRow | None:
    if max(abs(result.size), abs(result.count)) >= 1 << 63:
        skipped.add(
            0,
            f"results[{number}]: size {shown(result.size)}, count {shown(result.count)}; left out",
        )
        return None
    place = f"results[{number}], {result.size} B"
    wrong = [
        int(_number(group.nwrong)) if group else 0
        for group in (result.out_of_place, result.in_place)
    ]
    out_of_place_fs, in_place_fs, library_fs = (
        _fs(group, result.size) for group in (result.out_of_place, result.in_place, result.baseline)
    )
    if wrong[0] or not (out_of_place_fs or in_place_fs) or result.size < 1:
        reason = f"{wrong[0]} wrong elements" if wrong[0] else "no time"
        if result.size:
            skipped.add(0, f"{place}: {reason}; left out")
        return None
    if wrong[1]:
        skipped.add(0, f"{place}: {wrong[1]} wrong elements in place; that time is left out")
    algbw = _number(result.out_of_place.alg_bw) if result.out_of_place else 0.0
    busbw = _number(result.out_of_place.bus_bw) if result.out_of_place else 0.0
    root = int(result.root) if re.fullmatch(r"-?[0-9]{1,9}", str(result.root)[:12]) else -1
    checked = result.in_place is not None and result.in_place.nwrong is not None
    return MeasuredRow(
        result.size,
        result.count,
        result.type,
        result.redop,
        root,
        out_of_place_fs,
        0 if wrong[1] else in_place_fs,
        library_fs,
        busbw / algbw if algbw >= 1 else 0.0,
        checked,
        number + 1,
    )
