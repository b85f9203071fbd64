"""``torch.profiler`` in ranks: each rank's own events, in simulated time.

PyTorch's profiler is per process, and ranks share a process. So in a rank
``torch.profiler.profile`` and ``torch.autograd.profiler.profile`` collect the operators and
``record_function`` ranges of the rank's thread with PyTorch's legacy per-thread collector, and the
rank's communication from its flight record. Real time is meaningless here: before a thread
continues after a wait, it inserts a mark with the simulated time into the event sequence, and each
event takes its time from the last mark. Tables, averages and exported Chrome traces are PyTorch's
own.
"""

from __future__ import annotations

import functools
import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import profiler as torch_profiler
from torch.autograd import profiler_legacy
from torch.autograd.profiler_util import FunctionEvent, _filter_name, _rewrite_name

from simcoll.distributed.runtime.records import KEPT, Entry
from simcoll.distributed.runtime.world import current_rank
from simcoll.files.output import write_file
from simcoll.torch.rank_threads import RankThread
from simcoll.torch.replacing import for_ranks

__all__ = ["profiler_replacements"]

_MARK = "simcoll: simulated time "
_ENDS = {"isend": "send", "irecv": "recv"}
"""Names of sends and receives in PyTorch's profiler."""


@dataclass(slots=True, eq=False)
class _Session:
    """An open profile in a thread of a rank.

    Attributes
    ----------
    first_number
        Number of the rank's first operation in the profile.
    begin_fs
        When it began.
    """

    thread: RankThread
    shapes: bool
    first_number: int = 0
    begin_fs: int = 0

    def mark(self) -> None:
        """Insert a mark with the simulated time into the collector's events."""
        with torch.autograd.profiler.record_function(f"{_MARK}{self.thread.now_fs()}"):
            pass

    def open(self) -> None:
        self.first_number, self.begin_fs = self.thread.call(_keep_all)
        torch.autograd._enable_profiler_legacy(
            profiler_legacy.profile(record_shapes=self.shapes).config()
        )
        self.thread.awake = self.mark
        self.mark()

    def close(self) -> _ProfilerTrace:
        self.thread.awake = None
        records = torch.autograd._disable_profiler_legacy()
        entries = self.thread.call(_kept_since, self.first_number)
        groups = self.thread.process.groups
        backends = {name: groups.pg_map[group][0] for group, name in groups.pg_names.items()}
        trace = _ProfilerTrace(self.thread.number, self.begin_fs)
        for number, listed in enumerate(records):
            trace.add_records(number, listed)
        for entry in entries:
            trace.add_operation(entry, backends.get(entry.group[0], "simcoll"))
        trace.events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
        return trace


def _keep_all() -> tuple[int, int]:
    """Make the rank's flight record unbounded; returns the number of its next operation, and the
    time.
    """
    me = current_rank()
    me.flight = deque(me.flight)
    return (me.flight[-1].number + 1 if me.flight else 0), me.world.now


def _kept_since(first_number: int) -> list[Entry]:
    """The rank's operations from a number on, finished or in flight."""
    me = current_rank()
    entries = [entry for entry in me.flight if entry.number >= first_number]
    me.flight = deque(me.flight, maxlen=KEPT)
    return entries


@dataclass(slots=True, eq=False)
class _ProfilerTrace:
    """The events of a closed profile, in place of PyTorch's ``kineto_results``."""

    rank: int
    begin_fs: int
    events: list[Any] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)

    def add_records(self, number: int, records: list[Any]) -> None:
        """Add the ranges of one thread's records."""
        now_fs, began = self.begin_fs, {}
        for record in records:
            key, name = (record.handle(), record.node_id()), record.name()
            if record.kind() == "push":
                if name.startswith(_MARK):
                    now_fs = int(name.removeprefix(_MARK))
                else:
                    began[key] = (record, now_fs)
            elif record.kind() == "pop" and key in began:
                start, start_fs = began.pop(key)
                if not _filter_name(start.name()):
                    self._add(start, number, (start_fs, now_fs))

    def _add(self, start: Any, number: int, times_fs: tuple[int, int]) -> None:
        name = functools.partial(_rewrite_name, name=start.name())
        event = FunctionEvent(
            id=start.handle(),
            name=name(with_wildcard=True),
            trace_name=name(with_wildcard=False),
            thread=number,
            start_us=times_fs[0] / 1e9,
            end_us=times_fs[1] / 1e9,
            fwd_thread=start.fwd_thread_id(),
            input_shapes=start.shapes(),
            scope=start.scope(),
            sequence_nr=start.sequence_nr(),
            is_legacy=True,
            stack=[],
        )
        self.events.append(event)
        self.details.append(
            self._event(event, "user_annotation" if start.scope() == 7 else "cpu_op", number, {})
        )

    def add_operation(self, entry: Entry, backend: str) -> None:
        """Add one of the rank's operations; an unfinished one lasts until now."""
        end_fs = entry.completed_fs if entry.completed_fs >= 0 else entry.created_fs
        name = _ENDS.get(entry.name, entry.name)
        shapes = entry.inputs or entry.outputs
        event = FunctionEvent(
            id=-1 - entry.number,
            name=f"{backend}:{name}",
            thread=-1,
            start_us=entry.created_fs / 1e9,
            end_us=end_fs / 1e9,
            input_shapes=[list(shape) for shape, _ in shapes],
            is_async=True,
            is_legacy=True,
            stack=[],
        )
        fields = entry.fields()
        arguments = {
            "Collective name": name,
            "Process Group Name": entry.group[0],
            "Process Group Description": entry.group[1],
            "Seq": entry.sequence,
            "dtype": shapes[0][1] if shapes else "",
            "In msg nelems": _elements(entry.inputs),
            "Out msg nelems": _elements(entry.outputs),
            "Call site": str(entry.site),
            "State": fields["state"],
        }
        self.events.append(event)
        self.details.append(self._event(event, "cpu_op", "communication", arguments))

    def _event(
        self, event: Any, kind: str, track: int | str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        times = event.time_range
        return {
            "ph": "X",
            "cat": kind,
            "name": event.trace_name or event.name,
            "pid": self.rank,
            "tid": track,
            "ts": times.start,
            "dur": times.end - times.start,
            "args": {"Input Dims": event.input_shapes or [], **arguments},
        }

    def save(self, path: str) -> None:
        """Write a Chrome trace; times are simulated microseconds."""
        process_name = {
            "ph": "M",
            "name": "process_name",
            "pid": self.rank,
            "args": {"name": f"rank {self.rank}"},
        }
        document = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "simcoll", "rank": self.rank},
            "displayTimeUnit": "ns",
            "traceEvents": [
                process_name,
                *sorted(self.details, key=lambda event: (event["ts"], -event["dur"])),
            ],
        }
        write_file(path, json.dumps(document).encode())

    def trace_start_ns(self) -> int:
        """Start of the profile."""
        return self.begin_fs // 10**6

    def experimental_event_tree(self) -> Any:
        """Refuse: allocations have no simulated times."""
        raise RuntimeError(
            "the profile of a simulated rank has operators, ranges and communication; it has no "
            "memory timeline and no event tree"
        )


def _elements(arrays: Sequence[tuple[tuple[int, ...], str]]) -> int:
    return sum(math.prod(shape) for shape, _ in arrays)


@for_ranks
def _enable(thread: RankThread, *_: Any) -> None:
    if thread.profile is not None:
        raise RuntimeError(
            f"rank {thread.number}: a profiler is open already in thread {thread.thread.name!r}"
        )
    thread.profile = _Session(thread, shapes=True)
    thread.profile.open()


@for_ranks
def _disable(thread: RankThread, _: Any) -> Any:
    session, thread.profile = thread.profile, None
    if session is None:
        raise RuntimeError(
            f"rank {thread.number}: no profiler is open in thread {thread.thread.name!r}"
        )
    return session.close()


@for_ranks
def _only_outside(*_: Any, **__: Any) -> None:
    """Make a function of the process-wide profiler do nothing in ranks."""


def _exit(standard: Callable[..., Any]) -> Callable[..., Any]:
    def leave(self: Any, *args: Any) -> Any:
        result = standard(self, *args)
        if self.enabled and isinstance(self.kineto_results, _ProfilerTrace):
            # Now, since PyTorch reads them as it does here during the run only.
            self._ensure_function_events()
        return result

    return leave


def _parse(standard: Callable[..., Any]) -> Callable[..., Any]:
    def parse(self: Any, result: Any, timeout_s: float | None = None) -> Any:
        return (
            list(result.events)
            if isinstance(result, _ProfilerTrace)
            else standard(self, result, timeout_s)
        )

    return parse


@for_ranks
def _refuse_observers(*_: Any) -> Any:
    raise RuntimeError(
        "torch.profiler.ExecutionTraceObserver records one process, and simulated ranks share "
        "theirs; use torch.profiler.profile, "
        "or simcoll.torch.spawn(..., trace=PATH)"
    )


def profiler_replacements() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of the entry points of PyTorch's profiler."""
    profile, observer = torch_profiler.profile, torch.profiler.ExecutionTraceObserver
    quiet = [
        (torch_profiler, "_prepare_profiler"),
        (torch_profiler, "_kineto_step"),
        (torch_profiler, "_toggle_collection_dynamic"),
        (torch.autograd, "_add_metadata_json"),
    ]
    return [
        (torch_profiler, "_enable_profiler", _enable(torch_profiler._enable_profiler)),
        (torch_profiler, "_disable_profiler", _disable(torch_profiler._disable_profiler)),
        (profile, "__exit__", _exit(profile.__exit__)),
        (profile, "_parse_kineto_results", _parse(profile._parse_kineto_results)),
        (observer, "register_callback", _refuse_observers(observer.register_callback)),
        *((owner, name, _only_outside(getattr(owner, name))) for owner, name in quiet),
    ]
