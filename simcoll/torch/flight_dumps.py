"""PyTorch's dumps of its Flight Recorder, with the operations of the simulated run."""

from __future__ import annotations

import json
import pickle
from typing import Any

from torch._C import _distributed_c10d as c10d

from simcoll import distributed as ours
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["dump_replacements"]


def _record(thread: RankThread, include: bool | None, active: bool | None) -> dict[str, Any]:
    """The rank's flight record: without operations if not included, or only those in flight."""
    record: dict[str, Any] = thread.call(ours.flight_record)
    entries = [] if include is False else record["entries"]
    if active:
        entries = [entry for entry in entries if entry["state"] != "completed"]
    return {**record, "entries": entries}


@for_ranks
def _dump_json(
    thread: RankThread,
    _standard: Any,
    includeCollectives: bool | None = None,  # torch's names
    onlyActive: bool | None = None,
) -> bytes:
    return json.dumps(_record(thread, includeCollectives, onlyActive)).encode()


@for_ranks
def _dump(
    thread: RankThread,
    _standard: Any,
    includeCollectives: bool | None = None,  # torch's names
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
) -> bytes:
    record = _record(thread, includeCollectives, onlyActive)
    if includeStackTraces is False:
        record["entries"] = [{**entry, "frames": []} for entry in record["entries"]]
    return pickle.dumps(record)


def dump_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the functions that dump what a rank's groups have done."""
    return [
        (c10d, "_dump_fr_trace_json", _dump_json(c10d._dump_fr_trace_json)),
        (c10d, "_dump_fr_trace", _dump(c10d._dump_fr_trace)),
    ]
