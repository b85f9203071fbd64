"""Predictions and NCCL's graphs cached on disk, so that another process does not recompute them.

A key is a hash of everything that a prediction depends on: the request, the library's numbers, the
calibration, the environment, the topology with its routes, and the code. A file counts as absent if
it is damaged (each has a checksum), unreadable or of another form, or if its time is not positive
or below its own bound. An unwritable folder is not used. This is a defence against accidents: who
can write the folder can also write a checksum, and is trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simcoll import __version__

if TYPE_CHECKING:
    from simcoll.topology import Topology

__all__ = [
    "SPANS",
    "VARIABLE",
    "CachePart",
    "cache_folder",
    "key_of",
    "recall",
    "remember",
    "topology_digest",
]

VARIABLE = "SIMCOLL_CACHE_DIR"
"""Folder of cached predictions; empty: no cache. Default: the user's cache folder."""


def _has_possible_times(fields: Mapping[str, object]) -> bool:
    """Whether a time is positive, and not below its bound."""
    time_fs, bound_fs = fields.get("time_fs"), fields.get("bound_fs", 0)
    return (
        isinstance(time_fs, int)
        and isinstance(bound_fs, int)
        and 0 <= bound_fs <= time_fs
        and time_fs > 0
    )


@dataclass(frozen=True, slots=True)
class CachePart:
    """A part of the cache: its folder, the size of a file at most, what fields may be, and about
    how many files it holds.
    """

    folder: str
    max_bytes: int
    is_possible: Callable[[Mapping[str, object]], bool]
    max_files: int = 2**16


PREDICTIONS = CachePart("predictions", 4096, _has_possible_times)
SPANS = CachePart("spans", 2**21, _has_possible_times, max_files=2**9)
"""Runs with the spans of their operations, 170 KB for a step of some thousand."""
SUBFOLDERS = 256
"""A file is in the subfolder of the first two digits of its key."""


def cache_folder(part: CachePart = PREDICTIONS) -> Path | None:
    """Folder of a part of the cache; None if the cache is off."""
    variable = os.environ.get(VARIABLE)
    if variable is not None:
        return Path(variable) / part.folder if variable else None
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "simcoll" / part.folder
    except RuntimeError:  # no home
        return None


@cache
def _code() -> str:
    """Hash of the version and of the modification times of simcoll's files: a source checkout
    changes without a version.
    """
    package = Path(__file__).resolve().parents[1]
    stamps = [(str(path), path.stat().st_mtime_ns) for path in sorted(package.rglob("*.py"))]
    return hashlib.sha256(repr((__version__, stamps)).encode()).hexdigest()


ROUTES_AT_ONCE = 1 << 20
"""Routes that are hashed together: up to 130 MB."""


@lru_cache(maxsize=64)
def topology_digest(topology: Topology) -> str:
    """Hash of a topology: links, ranks, traits, devices, and routes between pairs of ranks."""
    digest = hashlib.sha256()
    for array in (
        topology.rank_nodes,
        topology.link_src,
        topology.link_dst,
        topology.link_capacity_uBps,
        topology.link_latency_fs,
        topology.link_kind,
    ):
        digest.update(np.ascontiguousarray(array).tobytes())
    groups = sorted((name, ids.tolist()) for name, ids in topology.groups.items())
    efficiency, traits = sorted(topology.efficiency.items()), sorted(topology.traits.items())
    digest.update(repr((topology.node_kinds, groups, efficiency, traits, topology.host)).encode())
    n = topology.nranks
    ranks = np.arange(n)
    starts = ranks if n <= 64 else np.unique(np.linspace(0, n - 1, 64).astype(np.int64))
    # In parts: all routes of a million GPUs at once would take 8 GB.
    for few in np.array_split(starts, -(-len(starts) * n // ROUTES_AT_ONCE)):
        links = topology.route(np.repeat(few, n), np.tile(ranks, len(few))).links
        digest.update(links.tobytes())
    return digest.hexdigest()


def key_of(*parts: object) -> str:
    """Hash of a request and of the code that computes the result."""
    return hashlib.sha256(repr((_code(), *parts)).encode()).hexdigest()


def recall(
    key: str, form: Mapping[str, type], part: CachePart = PREDICTIONS
) -> dict[str, object] | None:
    """The fields cached under a key, if they exist, are undamaged, have the right types, and are
    possible.
    """
    folder = cache_folder(part)
    if folder is None:
        return None
    path = folder / key[:2] / f"{key}.json"
    try:
        if not path.is_file():
            return None  # reading a pipe would block
        with path.open("rb") as stream:
            record = json.loads(stream.read(part.max_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    checksum = record.pop("checksum", None)
    if record.keys() != form.keys() or any(
        type(record[name]) is not kind for name, kind in form.items()
    ):
        return None
    return record if checksum == _checksum(key, record) and part.is_possible(record) else None


def _checksum(key: str, fields: Mapping[str, object]) -> str:
    """A hash of a key and its fields, so that neither a changed file nor a renamed one is
    believed.
    """
    return hashlib.sha256(json.dumps([key, fields], sort_keys=True).encode()).hexdigest()


def remember(key: str, fields: Mapping[str, object], part: CachePart = PREDICTIONS) -> None:
    """Cache the fields under a key, if possible: a full or read-only disk is no reason to fail."""
    folder = cache_folder(part)
    if folder is None:
        return
    target = folder / key[:2] / f"{key}.json"
    partial = target.with_name(f".{key}.{secrets.token_hex(8)}.part")
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Not synced, which would take longer than most predictions: a file that a crash damages
            # counts as absent.
            partial.write_bytes(json.dumps({"checksum": _checksum(key, fields), **fields}).encode())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        _make_room(target.parent, part.max_files // SUBFOLDERS)


def _make_room(folder: Path, max_files: int) -> None:
    """Delete the oldest half of a folder with too many files."""
    files = [file for file in folder.iterdir() if file.suffix == ".json"]
    if len(files) > max_files:
        for file in sorted(files, key=lambda file: file.stat().st_mtime_ns)[: -(-max_files // 2)]:
            file.unlink(missing_ok=True)
