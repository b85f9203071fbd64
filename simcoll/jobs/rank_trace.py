"""The trace of one rank: what its host called, what its device did, and its collectives."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from simcoll.errors import ConfigError, shown
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.jobs.comm_records import (
    CUSTOM_KERNEL,
    LIBRARY_KERNEL,
    CommRecord,
    GroupRecord,
    record_of,
)
from simcoll.jobs.trace_stream import TraceEvent, TraceHead, TraceStream
from simcoll.units import counted

__all__ = [
    "CommEvent",
    "DeviceWork",
    "HostCall",
    "RankTrace",
    "StepMark",
    "StreamWait",
    "load_rank_trace",
]

MOST_EVENTS = 20_000_000
"""Limit of the events that are kept of a file: calls, device work and collectives."""
MOST_US = 1e16
"""Limit of a time: Unix microseconds of the year 2286 are below it."""
_CALLS = {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "runtime"}
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
_HOST = {"cpu_op", "user_annotation", "Operator"}
_TIMED = _CALLS | _DEVICE | _HOST
_QUERIES = re.compile(
    r"EventQuery|StreamQuery|IsCapturing|CaptureInfo|LastError|Occupancy|GetDevice|GetAttribute"
    r"|PointerGetAttributes|FuncGetAttributes|FuncSetAttribute"
)
"""Calls that launch nothing and wait for nothing: a short one is a part of the host's gap."""
_LONG_NS = 100_000
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?([0-9]{1,7})", re.IGNORECASE)


class HostCall(msgspec.Struct, gc=False):
    """A call to the runtime of the device; times in nanoseconds."""

    begin_ns: int
    end_ns: int
    thread: str | int
    name: str
    correlation: int


class DeviceWork(msgspec.Struct, gc=False):
    """A kernel or a copy on a stream; ``record`` if it is a kernel of a communication library."""

    begin_ns: int
    end_ns: int
    stream: str | int
    name: str
    correlation: int
    record: CommRecord | None = None


class CommEvent(msgspec.Struct, gc=False):
    """A collective on the host: the call of the library, or a wait for its result.

    ``parameters`` tells a ``record_param_comms`` from an annotation inside it.
    """

    begin_ns: int
    end_ns: int
    thread: str | int
    record: CommRecord
    parameters: bool


class StreamWait(NamedTuple):
    """A stream that waits for another: up to the call that recorded the event, if that is known."""

    stream: str | int
    awaited: str | int
    record: int = -1


class StepMark(msgspec.Struct, gc=False):
    """A step of the profiler's schedule on the host."""

    begin_ns: int
    end_ns: int
    number: int


@dataclass(slots=True, eq=False)
class RankTrace:
    """The trace of one rank.

    Attributes
    ----------
    file, rank, ranks
        The file, the rank, and the number of ranks of the job.
    rank_source
        Where the rank comes from: ``"the file"``, ``"its name"``, or empty if it is the only one.
    backend, device, base_time_ns
        The backend of its groups, the name of its GPU, and the origin of its times.
    groups
        Process groups that the file lists, by name.
    calls, device_work, comms, steps
        In order of their beginnings.
    waits
        What a ``cudaStreamWaitEvent`` waits for, by correlation, where it is recorded.
    custom_kernels
        Numbers of kernels that communicate without a library known here, by name.
    events
        Number of all events of the file.
    notes
        What was unusual.
    """

    file: str
    rank: int = 0
    ranks: int = 1
    rank_source: str = ""
    backend: str = ""
    device: str = ""
    base_time_ns: int = 0
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    calls: list[HostCall] = field(default_factory=list)
    device_work: list[DeviceWork] = field(default_factory=list)
    comms: list[CommEvent] = field(default_factory=list)
    steps: list[StepMark] = field(default_factory=list)
    waits: dict[int, StreamWait] = field(default_factory=dict)
    custom_kernels: Counter[str] = field(default_factory=Counter)
    events: int = 0
    notes: list[str] = field(default_factory=list)

    def move(self, shift_ns: int) -> None:
        """Add a time to all times."""
        timed: tuple[list[Any], ...] = (self.calls, self.device_work, self.comms, self.steps)
        for entries in timed:
            for entry in entries:
                entry.begin_ns += shift_ns
                entry.end_ns += shift_ns

    @property
    def collectives(self) -> list[DeviceWork]:
        """The kernels of communication libraries."""
        return [work for work in self.device_work if work.record is not None]


def load_rank_trace(path: FilePath) -> RankTrace:
    """Read the trace of a rank, streaming; ``.json`` or ``.json.gz``.

    Raises
    ------
    ConfigError
        For a file that is truncated, damaged, no trace, or too large.
    """
    name = path_of(path, "load_rank_trace")
    stream = TraceStream(Path(name))
    trace = RankTrace(name)
    raw_comms: list[tuple[CommEvent | DeviceWork, TraceEvent]] = []
    untimed = 0
    for event in stream:
        trace.events += 1
        if event.ph != "X":
            continue
        times = _times_ns(event)
        if times is not None:
            _take(trace, event, *times, raw_comms)
        elif isinstance(event.cat, str) and event.cat in _TIMED:
            untimed += 1
        total = len(trace.calls) + len(trace.device_work) + len(raw_comms)
        if total > MOST_EVENTS:
            raise ConfigError(f"more than {MOST_EVENTS:,} calls and kernels", file=name)
    _take_head(trace, stream.head)
    for place, event in raw_comms:
        place.record = record_of(event.arguments(), event.name, trace.groups)
    if untimed:
        trace.notes.append(f"{counted(untimed, 'event')} without a valid time left out")
    if stream.repaired:
        trace.notes.append(f"{stream.repaired} pieces of its text were not well-formed JSON")
    for ordered in (trace.calls, trace.device_work, trace.comms, trace.steps):
        ordered.sort(key=lambda entry: (entry.begin_ns, -entry.end_ns))
    return trace


def _times_ns(event: TraceEvent) -> tuple[int, int] | None:
    """Beginning and end of an event; None if it has none that are numbers."""
    values = []
    for value in (event.ts, event.dur):
        # Whole microseconds stay exact: Unix times in nanoseconds have more digits than a float.
        number = _number(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return None
        if not 0 <= number < MOST_US:
            return None
        values.append(number * 1000 if isinstance(number, int) else round(number * 1000))
    return values[0], values[0] + values[1]


def _number(text: str) -> float | int | None:
    """The number in a text, as some writers of traces store times."""
    if not re.fullmatch(r"[0-9]{1,17}(?:\.[0-9]{1,9})?", text):
        return None
    return float(text) if "." in text else int(text)


def _place(value: Any) -> str | int:
    return value if isinstance(value, (int, str)) else ""


def _take(
    trace: RankTrace,
    event: TraceEvent,
    begin_ns: int,
    end_ns: int,
    raw_comms: list[tuple[CommEvent | DeviceWork, TraceEvent]],
) -> None:
    """Keep an event that is needed."""
    category, name = event.cat, event.name
    if not isinstance(name, str) or not isinstance(category, str):
        return
    if category in _CALLS:
        if end_ns - begin_ns < _LONG_NS and _QUERIES.search(name):
            return
        correlation = event.arguments().correlation
        number = correlation if isinstance(correlation, int) else -1
        trace.calls.append(HostCall(begin_ns, end_ns, _place(event.tid), name, number))
    elif category in _DEVICE:
        arguments = event.arguments()
        correlation = arguments.correlation
        number = correlation if isinstance(correlation, int) else -1
        lane = _place(arguments.stream if arguments.stream is not None else event.tid)
        work = DeviceWork(begin_ns, end_ns, lane, name, number)
        trace.device_work.append(work)
        if LIBRARY_KERNEL.search(name):
            raw_comms.append((work, event))
        elif CUSTOM_KERNEL.search(name):
            trace.custom_kernels[name] += 1
    elif category == "cuda_sync":
        arguments = event.arguments()
        if isinstance(arguments.correlation, int) and arguments.wait_stream is not None:
            record = arguments.record_correlation
            trace.waits[arguments.correlation] = StreamWait(
                _place(arguments.stream),
                _place(arguments.wait_stream),
                record if isinstance(record, int) else -1,
            )
    elif category in _HOST:
        parameters = name == "record_param_comms"
        if parameters or name.startswith(("nccl:", "gloo:", "rccl:", "ucc:", "mpi:")):
            comm = CommEvent(begin_ns, end_ns, _place(event.tid), CommRecord(), parameters)
            trace.comms.append(comm)
            raw_comms.append((comm, event))
        elif step := re.fullmatch(r"ProfilerStep#([0-9]{1,12})", name):
            trace.steps.append(StepMark(begin_ns, end_ns, int(step[1])))


def _take_head(trace: RankTrace, head: TraceHead) -> None:
    info = head.distributedInfo
    match = _RANK_IN_NAME.search(Path(trace.file).name)
    if info is not None and isinstance(info.rank, int) and 0 <= info.rank < 2**24:
        trace.rank, trace.rank_source = info.rank, "the file"
    elif match:
        trace.rank, trace.rank_source = int(match[1]), "its name"
    if info is not None:
        size = info.world_size
        trace.ranks = size if isinstance(size, int) and 0 < size < 2**24 else 0
        trace.backend = info.backend if isinstance(info.backend, str) else ""
        _take_groups(trace, info.pg_config)
    if trace.ranks and trace.rank >= max(trace.ranks, 1):
        raise ConfigError(
            f"rank {trace.rank} of {trace.ranks} ranks; expected one below the number of ranks",
            file=trace.file,
            path="$.distributedInfo",
        )
    devices = head.deviceProperties
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        trace.device = str(devices[0].get("name", ""))[:100]
    base = head.base_time_ns
    trace.base_time_ns = base if isinstance(base, int) else 0
    if info is None:
        trace.notes.append("it has no distributedInfo")


def _take_groups(trace: RankTrace, listed: object) -> None:
    """The process groups that a file lists."""
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict):
            raise ConfigError(
                f"expected groups as objects, got {shown(entry)}",
                file=trace.file,
                path="$.distributedInfo.pg_config",
            )
        ranks = entry.get("ranks")
        members = (
            tuple(rank for rank in ranks if isinstance(rank, int))
            if isinstance(ranks, list)
            else ()
        )
        name, description = str(entry.get("pg_name", "")), str(entry.get("pg_desc", ""))
        size = entry.get("pg_size")
        complete = len(members) == size if isinstance(size, int) else bool(members)
        trace.groups[name] = GroupRecord(
            name, description, members if complete else (), size if isinstance(size, int) else 0
        )
