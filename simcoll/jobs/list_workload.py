"""Lists of a job's collectives as workloads: reports of NCCL's inspector, and flight records.

A list has what every communicator called, in order, and neither the computation between the calls
nor what waits for what across communicators. So a workload of it is the communication alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from simcoll.core.vocabulary import CallKind
from simcoll.errors import ConfigError, ranks_listed
from simcoll.files.strict import read_file, read_start
from simcoll.formats.recognise import TITLES, recognise
from simcoll.formats.reports.flight_record import FlightEntry, FlightRecord, load_flight_record
from simcoll.formats.reports.nccl_inspector import MAX_BYTES, InspectorRow, parse_inspector
from simcoll.jobs.comm_records import item_bytes, kind_of
from simcoll.traces.gathering import gather_traces
from simcoll.traces.rank_traces import Together, TraceStep
from simcoll.units import counted
from simcoll.workload.workload import Workload

__all__ = ["LISTS", "list_workload", "tensors_bytes"]

LISTS = ("inspector", "flight-record", "pickle", "deepspeed-comms", "aicb-calls")
"""Kinds of files that list collectives and have no order of computation."""
MOST_RANKS = 1 << 20
_NS = 10**6
_NOT_COLLECTIVES = {"send", "recv", "messages", "wait", ""}


@dataclass(frozen=True, slots=True)
class _ListedCall:
    """What ranks of a group called as its number-th collective; the time of one of them."""

    kind: CallKind
    size_bytes: int
    time_ns: int | None = None


@dataclass(slots=True)
class _ListedGroup:
    """The members of a group, and by member that was recorded its calls by number."""

    members: tuple[int, ...]
    calls: dict[int, dict[int, _ListedCall]]


def list_workload(paths: Sequence[Path], *, measured: bool = False) -> tuple[Workload, list[str]]:
    """The workload of the collectives in files of one kind, and notes.

    Parameters
    ----------
    paths
        Files of ranks.
    measured
        Whether collectives keep the least of their ranks' times (NCCL's inspector only).

    Raises
    ------
    ConfigError
        For files that do not say what all ranks called.
    """
    kind = recognise(read_start(paths[0]))
    if kind == "deepspeed-comms":
        raise ConfigError(
            f"this is {TITLES[kind]}, with numbers of calls by size, but neither their order nor "
            "their groups, so it is no workload; a profile of the job has both",
            file=str(paths[0]),
        )
    if kind == "aicb-calls":
        raise ConfigError(
            f"this is {TITLES[kind]}, of one rank and without its computation, so it is no "
            "workload; AICB's text workload for SimAI has both",
            file=str(paths[0]),
        )
    notes: list[str] = []
    if kind == "inspector":
        groups = _inspector_groups(paths)
    else:
        groups = _flight_groups(paths, notes)
        if measured:
            raise ConfigError(
                "--measured: times of flight records contain the waiting for other ranks, so "
                "they are no services",
                file=str(paths[0]),
            )
    steps = _steps(groups, str(paths[0]), notes, measured=measured)
    notes.append(
        "the communication alone: computation, and what waits for what between groups, are not in "
        "such files, so a time of it bounds a step from below"
    )
    title = f"{TITLES[kind]}, {counted(len(paths), 'file')}"
    return gather_traces(steps, title=title), notes


def tensors_bytes(entry: FlightEntry) -> int:
    """Bytes of a call as nccl-tests counts them: the larger side; -1 without sizes or types."""
    return max(map(_bytes_of, (entry.inputs, entry.outputs)))


def _bytes_of(tensors: Sequence[tuple[Sequence[int], str]]) -> int:
    """Bytes of the tensors of one side; -1 without tensors or types, as before PyTorch 2.4."""
    total = 0
    for shape, dtype in tensors:
        size_bytes = item_bytes(dtype)
        for length in shape:
            size_bytes *= length
        if not item_bytes(dtype):
            return -1
        total += size_bytes
    return total if tensors else -1


def _inspector_groups(paths: Sequence[Path]) -> dict[str, _ListedGroup]:
    """The communicators of a job. A file is that of a process, whose rank of the job is that in the
    communicator of all processes.
    """
    files = [parse_inspector(read_file(path, MAX_BYTES), str(path)) for path in paths]
    sizes = {row.communicator: row.nranks for rows in files for row in rows}
    largest = max(sizes, key=lambda name: (sizes[name], name))
    if len(sizes) == 1:
        group = _ListedGroup(tuple(range(sizes[largest])), defaultdict(dict))
        for rows in files:
            for row in rows:
                group.calls[row.rank][row.number] = _inspector_call(row)
        return {largest: group}
    global_rank: list[int] = []
    for path, rows in zip(paths, files, strict=True):
        within = {row.rank for row in rows if row.communicator == largest}
        if len(within) != 1 or sizes[largest] != len(paths):
            raise ConfigError(
                f"{counted(len(sizes), 'communicator')}: expected a file of each of the "
                f"{sizes[largest]} ranks of the largest one, which numbers the ranks of the job; "
                f"got {counted(len(paths), 'file')}",
                file=str(path),
            )
        global_rank.append(within.pop())
    members: dict[str, dict[int, int]] = defaultdict(dict)
    calls: dict[str, dict[int, dict[int, _ListedCall]]] = defaultdict(lambda: defaultdict(dict))
    for rank, rows in zip(global_rank, files, strict=True):
        for row in rows:
            members[row.communicator][row.rank] = rank
            calls[row.communicator][rank][row.number] = _inspector_call(row)
    for name, places in members.items():
        if len(places) != sizes[name]:
            raise ConfigError(
                f"communicator {name[:40]}: {len(places)} of its {sizes[name]} ranks are in the "
                "files; expected all"
            )
    return {
        name: _ListedGroup(tuple(places[place] for place in sorted(places)), calls[name])
        for name, places in members.items()
    }


def _inspector_call(row: InspectorRow) -> _ListedCall:
    kind = kind_of(row.collective)
    return _ListedCall(_collective(kind, row.collective), row.size_bytes, row.time_us * 1000)


def _collective(kind: str, name: str) -> CallKind:
    if kind in _NOT_COLLECTIVES:
        raise ConfigError(f"operation {name[:60]!r} is no collective that is known here")
    return kind  # type: ignore[return-value]


def _flight_groups(paths: Sequence[Path], notes: list[str]) -> dict[str, _ListedGroup]:
    """The groups of flight records; the rank is the last number of a file's name."""
    records: dict[int, FlightRecord] = {}
    for path in paths:
        numbers = re.findall(r"[0-9]{1,9}", path.name)
        rank = int(numbers[-1]) if numbers else 0
        if rank in records:
            raise ConfigError(
                f"a second record of rank {rank}; the last number of a name is the rank",
                file=str(path),
            )
        records[rank] = load_flight_record(path)
    groups: dict[str, _ListedGroup] = {}
    left_out: Counter[str] = Counter()
    for rank, record in records.items():
        members = dict(record.groups)
        for entry in record.entries:
            kind = kind_of(entry.operation)
            if kind in _NOT_COLLECTIVES or entry.p2p:
                left_out["message" if entry.p2p else "operation without a kind"] += 1
                continue
            if rank not in members.get(entry.group, ()):
                raise ConfigError(
                    f"rank {rank} calls {entry.operation[:40]!r} in group {entry.group[:40]!r}, of "
                    "which the record has no ranks with it among them, so who takes part is unknown"
                )
            size_bytes = tensors_bytes(entry)
            if size_bytes < 0 and kind != "barrier":
                raise ConfigError(
                    f"{entry.operation[:40]!r} of group {entry.group[:40]!r} has no types of "
                    "tensors, as before PyTorch 2.4, so its size is unknown"
                )
            group = groups.setdefault(
                entry.group, _ListedGroup(members[entry.group], defaultdict(dict))
            )
            call = _ListedCall(_collective(kind, entry.operation), max(0, size_bytes))
            group.calls[rank][entry.sequence] = call
    notes += [f"{counted(number, title)} left out" for title, number in left_out.items()]
    if not groups:
        raise ConfigError("no collective in these records", file=str(paths[0]))
    return groups


def _steps(
    groups: Mapping[str, _ListedGroup], file: str, notes: list[str], *, measured: bool
) -> list[list[TraceStep]]:
    """The steps of all ranks: each group's calls in order, on a stream of their own."""
    recorded = {rank for group in groups.values() for rank in group.calls}
    nranks = max(max(group.members) for group in groups.values()) + 1
    if nranks > MOST_RANKS:
        raise ConfigError(f"{nranks:,} ranks: expected at most {MOST_RANKS:,}", file=file)
    absent = sorted(set(range(nranks)) - recorded)
    partial = [name for name, group in groups.items() if len(group.members) < nranks]
    if absent and partial:
        raise ConfigError(
            f"{ranks_listed(absent)} without a file, and group {partial[0][:40]!r} has "
            f"{len(groups[partial[0]].members)} of {nranks} ranks: what others call is unknown, so "
            "the files of all ranks are needed (a folder of them, for simcoll convert)",
            file=file,
        )
    steps: list[list[TraceStep]] = [[] for _ in range(nranks)]
    streams = _streams(groups, nranks)
    cut = 0
    # Ranks that behave alike have their steps in one order.
    for name in sorted(groups, key=lambda name: (streams[name], name)):
        group = groups[name]
        calls, incomplete = _shared_calls(name, group)
        cut += incomplete
        for number, ranks_calls in calls.items():
            times = [call.time_ns for call in ranks_calls if call.time_ns is not None]
            sizes = [call.size_bytes for call in ranks_calls]
            together = Together(
                (name, number),
                group.members,
                ranks_calls[0].kind,
                streams[name],
                max(sizes),
                service_fs=min(times) * _NS if measured and times else None,
            )
            for rank in group.members:
                step = TraceStep(streams[name], (), ranks_calls[0].kind, together=together)
                steps[rank].append(step)
    if cut:
        notes.append(
            f"{counted(cut, 'call')} left out: some recorded rank of the group has not made them, "
            "or no longer has their records"
        )
    return steps


def _shared_calls(name: str, group: _ListedGroup) -> tuple[dict[int, list[_ListedCall]], int]:
    """The calls of a group that all its recorded ranks have, by number, and how many others."""
    numbers = [set(calls) for calls in group.calls.values()]
    shared = sorted(set.intersection(*numbers))
    calls = {number: [by_number[number] for by_number in group.calls.values()] for number in shared}
    for number, ranks_calls in calls.items():
        kinds = sorted({call.kind for call in ranks_calls})
        if len(kinds) > 1:
            raise ConfigError(
                f"group {name[:40]!r}: ranks call {' and '.join(kinds)} as number {number}: these "
                "are files of different jobs, or of one with a mistake, which simcoll flight finds"
            )
    return calls, len(set.union(*numbers)) - len(shared)


def _streams(groups: Mapping[str, _ListedGroup], nranks: int) -> dict[str, str]:
    """Names of groups by their shape, so that ranks that behave alike have streams of one name."""
    titles: dict[str, str] = {}
    by_rank: dict[int, Counter[str]] = defaultdict(Counter)
    for name, group in groups.items():
        title = _shape(group.members, nranks)
        number = 1 + max(by_rank[rank][title] for rank in group.members)
        for rank in group.members:
            by_rank[rank][title] = number
        titles[name] = title if number == 1 else f"{title} ({number})"
    return titles


def _shape(members: Sequence[int], nranks: int) -> str:
    """``"all"``, or the number of ranks and their distance.

    >>> _shape((0, 4, 8, 12), 16)
    '4 by 4'
    """
    if len(members) == nranks:
        return "all"
    distances = _distances(members)
    return (
        f"{len(members)} by {distances.pop()}" if len(distances) == 1 else f"{len(members)} ranks"
    )


def _distances(members: Iterable[int]) -> set[int]:
    ordered = sorted(members)
    return {later - earlier for earlier, later in pairwise(ordered)}
