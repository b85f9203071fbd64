"""Lists of a job's collectives from files without a trace: reports of NCCL's inspector, flight
records of PyTorch and torchcomms, tables of DeepSpeed, and text workloads of simulators.

They have kinds, sizes and counts. Their times, where they have any, contain the waiting for other
ranks or none of the network, so nothing is replayed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from simcoll.errors import ConfigError
from simcoll.files.strict import read_file, read_start
from simcoll.formats.recognise import recognise
from simcoll.formats.reports.aicb_calls import parse_aicb_calls
from simcoll.formats.reports.astra_workload import parse_astra_workload
from simcoll.formats.reports.deepspeed_comms import parse_deepspeed_comms
from simcoll.formats.reports.flight_record import load_flight_record
from simcoll.formats.reports.nccl_inspector import MAX_BYTES, parse_inspector
from simcoll.jobs.comm_records import RecordKind, kind_of
from simcoll.jobs.list_workload import tensors_bytes
from simcoll.units import counted, format_size, format_time

__all__ = ["is_collective_list", "list_lines"]

_NS = 10**6


@dataclass(frozen=True, slots=True)
class ListedCalls:
    """Calls of one kind and size.

    Attributes
    ----------
    kind, size_bytes
        As in a workload; -1 if the file does not say.
    ranks
        Of the group; 0 if the file does not say.
    count
        Number of calls, on all ranks of the files together if ``per_rank``.
    time_ns
        Least and median time; None without times.
    """

    kind: RecordKind
    size_bytes: int
    ranks: int
    count: int
    time_ns: tuple[float, float] | None = None


def is_collective_list(path: Path) -> bool:
    """Whether a file is a list of collectives by its content."""
    return recognise(read_start(path)) in _READERS


def list_lines(paths: Sequence[Path]) -> list[str]:
    """Describe the collectives in files of one kind.

    Raises
    ------
    ConfigError
        For files of several kinds, and for those that cannot be read.
    """
    kinds = {recognise(read_start(path)): path for path in paths}
    if len(kinds) > 1:
        paths_of_kinds = list(kinds.values())
        raise ConfigError(
            f"of another kind than {paths_of_kinds[0]}; expected files of one",
            file=str(paths_of_kinds[1]),
        )
    title, calls, note = _READERS[next(iter(kinds))](paths)
    lines = [f"{title}: {counted(sum(row.count for row in calls), 'call')}"]
    timed = any(row.time_ns for row in calls)
    lines.append(
        f"{'collective':<15}{'size':>14}{'ranks':>7}{'calls':>8}"
        + (f"{'least':>12}{'median':>12}" if timed else "")
    )
    for row in sorted(calls, key=lambda row: (row.kind, row.size_bytes)):
        size = format_size(row.size_bytes) if row.size_bytes >= 0 else "-"
        line = f"{row.kind or 'unknown':<15}{size:>14}{row.ranks or '?':>7}{row.count:>8}"
        if row.time_ns:
            for time_ns in row.time_ns:
                line += f"{format_time(round(time_ns * _NS)):>12}"
        lines.append(line)
    return [*lines, f"# {note}"]


_Listing = tuple[str, list[ListedCalls], str]


def _combine(rows: Iterable[tuple[RecordKind, int, int, float | None]]) -> list[ListedCalls]:
    """Combine calls (kind, size, ranks, nanoseconds) by kind, size and ranks."""
    equal: dict[tuple[RecordKind, int, int], list[float | None]] = defaultdict(list)
    for row in rows:
        equal[row[:3]].append(row[3])
    listed = []
    for (kind, size_bytes, ranks), times in equal.items():
        measured = [time for time in times if time is not None]
        span = (min(measured), median(measured)) if measured else None
        listed.append(ListedCalls(kind, size_bytes, ranks, len(times), span))
    return listed


def _inspector(paths: Sequence[Path]) -> _Listing:
    calls: dict[tuple[str, int], dict[int, tuple[RecordKind, int, int, float]]] = defaultdict(dict)
    for path in paths:
        for row in parse_inspector(read_file(path, MAX_BYTES), str(path)):
            entry = (kind_of(row.collective), row.size_bytes, row.nranks, row.time_us * 1e3)
            calls[row.communicator, row.number][row.rank] = entry
    # The rank that came last has not waited, so the least time of a call is nearest to the network.
    shortest = [min(ranks.values(), key=lambda entry: entry[3]) for ranks in calls.values()]
    pairs = zip(calls.values(), shortest, strict=True)
    complete = sum(len(ranks) == entry[2] for ranks, entry in pairs)
    note = (
        f"the least time of the ranks of each call; {complete} of {counted(len(calls), 'call')} "
        "with all ranks, and without them even the least may contain waiting"
    )
    return "reports of NCCL's inspector", _combine(shortest), note


def _flight(paths: Sequence[Path]) -> _Listing:
    rows: list[tuple[RecordKind, int, int, float | None]] = []
    for path in paths:
        record = load_flight_record(path)
        groups = dict(record.groups)
        for entry in record.entries:
            ranks = len(groups.get(entry.group, ()))
            rows.append((kind_of(entry.operation), tensors_bytes(entry), ranks, None))
    note = (
        f"calls of {counted(len(paths), 'rank')} together; a flight record keeps the latest calls "
        "only, and its times contain the waiting for other ranks"
    )
    return "flight records", _combine(rows), note


def _deepspeed_rows(paths: Sequence[Path]) -> _Listing:
    rows = [
        ListedCalls(
            kind_of(row.operation),
            row.size_bytes,
            0,
            row.count,
            (row.average_ms * 1e6, row.average_ms * 1e6),
        )
        for path in paths
        for row in parse_deepspeed_comms(read_file(path, MAX_BYTES), str(path))
    ]
    note = (
        "sizes as printed, to two decimals, and of a rank's part for all_gather and "
        "reduce_scatter; times are averages and contain the waiting for the last rank"
    )
    return "DeepSpeed's communication summary", rows, note


def _aicb(paths: Sequence[Path]) -> _Listing:
    calls = [
        call for path in paths for call in parse_aicb_calls(read_file(path, MAX_BYTES), str(path))
    ]
    rows: list[tuple[RecordKind, int, int, float | None]] = [
        (
            kind_of(call.operation.removeprefix("i")),  # isend, irecv
            call.size_bytes,
            call.ranks,
            None if call.elapsed_ms is None else call.elapsed_ms * 1e6,
        )
        for call in calls
    ]
    note = "calls of one rank, of the first stage of a pipeline, with sizes as AICB states them"
    if any(call.elapsed_ms is not None for call in calls):
        note += "; times contain the waiting for other ranks"
    return "calls of AICB", _combine(rows), note


def _astra(paths: Sequence[Path]) -> _Listing:
    rows: list[tuple[RecordKind, int, int, float | None]] = []
    titles, compute = [], 0.0
    for path in paths:
        workload = parse_astra_workload(read_file(path, MAX_BYTES), str(path))
        titles.append(f"{workload.strategy}, {counted(len(workload.layers), 'layer')}")
        compute += workload.compute
        rows += [
            (call.kind, call.size_bytes, workload.ranks_of(call.group), None)
            for call in workload.calls
        ]
    note = (
        f"one iteration of a rank; computation of {compute:,.0f} in the unit of the file (cycles "
        "in ASTRA-sim, nanoseconds in SimAI); simcoll step plays it on a machine"
    )
    return f"a text workload ({'; '.join(titles)})", _combine(rows), note


_READERS: Mapping[str, Callable[[Sequence[Path]], _Listing]] = {
    "inspector": _inspector,
    "flight-record": _flight,
    "pickle": _flight,
    "deepspeed-comms": _deepspeed_rows,
    "astra-workload": _astra,
    "aicb-calls": _aicb,
}
"""By kind of file: what lists its collectives."""
