"""Results of designs that were emulated in full, cached on disk: a plan that is run again, with
other limits or prices too, emulates only what is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from simcoll.files.paths import data_folder
from simcoll.libraries.prediction_cache import CachePart, key_of, recall, remember

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = ["cached_result"]

_FORM = {"result": str}
_NUMBERS = ("calibrations", "gpus", "libraries", "measurements", "models")
"""Folders of shipped numbers that results contain, in intervals and notes too."""


def _decode(text: str) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])


def _has_result(fields: Mapping[str, object]) -> bool:
    try:
        time_fs = _decode(str(fields["result"]))["breakdown"]["time_fs"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return False
    return isinstance(time_fs, int) and time_fs > 0


RESULTS = CachePart("designs", 2**16, _has_result, max_files=2**14)
"""A result takes 2 KiB."""


def cached_result(
    tables: tuple[object, ...], design: Design, find: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The result of a design in tier 2: that on disk, or else timed now and stored.

    Parameters
    ----------
    tables, design
        What was asked for, with the names of files, and the design, which has their contents.
    find
        Times the design.
    """
    if design.measured is not None:  # a note counts the lookups of the process in its table
        return find()
    key = key_of("design", _shipped_numbers(), _content(tables, design))
    stored = recall(key, _FORM, RESULTS)
    if stored is not None:
        return _decode(str(stored["result"]))
    result = find()
    remember(key, {"result": msgspec.json.encode(result).decode()}, RESULTS)
    return result


def _content(tables: tuple[object, ...], design: Design) -> str:
    """A hash of tables with all that their files state, also what a result only quotes."""
    files = (design.gpu, design.other_gpus, design.calibration, design.network)
    parts = (tables, design.hash, design.topology.name, files)
    content = msgspec.json.encode(parts, order="sorted", enc_hook=repr)
    return hashlib.sha256(content).hexdigest()


@cache
def _shipped_numbers() -> str:
    """A hash of the modification times of the shipped numbers, which a source checkout changes."""
    files = (path for name in _NUMBERS for path in sorted(data_folder(name).rglob("*")))
    stamps = [(str(path), path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()
