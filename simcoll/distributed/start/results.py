"""The result of a run of rank programs."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from simcoll.arrays import MaybeNone
from simcoll.distributed.runtime.history import Record
from simcoll.distributed.runtime.records import Flight, document
from simcoll.distributed.runtime.run_timeline import RunTimeline
from simcoll.distributed.runtime.world import Rank, World
from simcoll.errors import ConfigError
from simcoll.files.output import write_file
from simcoll.libraries.library import load_library
from simcoll.notebook_forms import data_frame, shows_facts
from simcoll.units import counted, format_memory, format_time
from simcoll.workload.workload import Workload

MOST_FINDINGS = 4
FINDING = "simcoll: "
"""Start of the note of a failed run's error that tells a finding."""
Groups = list[tuple[str, str, tuple[int, ...]]]

__all__ = [
    "FINDING",
    "RunResult",
    "collect_results",
    "flight_of",
    "leftovers",
    "machine_of",
    "memory_of",
    "note_findings",
    "note_result",
    "raise_first",
    "result_of",
    "table_of",
]


@shows_facts
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunResult:
    """The result of a run of rank programs.

    Where ranks are processes, times are on each process's clock since the common start, operations
    and records are this rank's, and there is neither a trace hash nor a message count.

    Attributes
    ----------
    time_fs
        When the last program or transfer ended.
    finish_fs
        When each rank's program ended.
    returns
        Return value of each program.
    trace_hash
        Hash of every operation with its transfers and times, and of the finish times.
    operations, messages
        Number of collectives and messages played.
    records
        The first 100,000 operations, in order of completion.
    findings
        Problems short of an error: a Work that was never waited for, a return value that could not
        be sent.
    skew_fs
        With classes of symmetric ranks, the largest difference between completion times of one call
        within a class.
    peak_bytes
        Peak bytes of each rank's arrays or tensors. PyTorch programs count all tensors that
        operators make; others count arrays passed to calls, and fake arrays.
    host_peak_bytes
        Peak bytes of each rank's tensors that a PyTorch program has moved to the host's memory
        (offloaded parameters, activations, states of an optimizer), which ``peak_bytes`` leaves
        out.
    timeline
        Each rank's computation, communication and waits, if spawn was called with ``trace=``.
    workload
        The recorded run, if spawn was called with ``record=``: play it with
        :func:`simcoll.planning.run_workload`.
    library
        Name and version of the library whose choices were played; empty if there was none.
    launches
        Whether accelerators waited for their hosts, which launch operators one by one: a sentence
        on the rank that waited most, if it did for a tenth of its time; otherwise empty.
    orders, exhausted
        With ``interleavings=``, the number of orders of turns that were played, all with these
        returns, and whether there are no others.
    """

    time_fs: int
    finish_fs: tuple[int, ...]
    returns: tuple[Any, ...]
    trace_hash: str
    operations: int
    messages: int
    records: tuple[Record, ...]
    findings: tuple[str, ...]
    topology: str
    skew_fs: int
    peak_bytes: tuple[int, ...]
    timeline: RunTimeline | MaybeNone
    workload: Workload | MaybeNone
    library: str
    _flights: Mapping[int, tuple[Flight, Groups]] = field(repr=False)
    launches: str = ""
    host_peak_bytes: tuple[int, ...] = ()
    orders: int = 1
    exhausted: bool = False

    @property
    def time(self) -> float:
        """Seconds."""
        return self.time_fs / 1e15

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees."""
        ranks = len(self.finish_fs)
        earliest, latest = min(self.finish_fs), max(self.finish_fs)
        ends = format_time(earliest)
        if latest > earliest:
            ends += f" to {format_time(latest)}"
        played = f"{counted(self.operations, 'operation')}, {counted(self.messages, 'message')}"
        lines: list[tuple[str, object]] = [
            ("run", f"{ranks} ranks on {machine_of(self)}, {format_time(self.time_fs)}"),
            ("programs end", ends),
            ("played", f"{played}; trace {self.trace_hash[:16] or 'not kept'}"),
        ]
        if memory := memory_of(self):
            lines.append(("memory", memory.removeprefix(", ")))
        if self.orders > 1:
            lines.append(("orders", f"{self.orders}{', all there are' if self.exhausted else ''}"))
        for number, finding in enumerate(self.findings[:MOST_FINDINGS]):
            lines.append(("" if number else "findings", finding))
        if len(self.findings) > MOST_FINDINGS:
            lines.append(("", f"and {len(self.findings) - MOST_FINDINGS} more"))
        return lines

    def to_dict(self) -> dict[str, list[Any]]:
        """A row for each rank, as columns: when its program ended, its peak memory, and what it
        returned.
        """
        ranks = range(len(self.finish_fs))
        memory = [*self.peak_bytes] + [0] * (len(ranks) - len(self.peak_bytes))
        return {
            "rank": [*ranks],
            "finish_us": [time_fs / 1e9 for time_fs in self.finish_fs],
            "peak_bytes": memory,
            "returned": [*self.returns],
        }

    def to_frame(self) -> Any:
        """The same as a ``pandas.DataFrame``; a ConfigError without pandas."""
        return data_frame(self.to_dict())

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """The ranks that ran in this process."""
        return tuple(self._flights)

    def flight_record(self, rank: int) -> dict[str, Any]:
        """The flight record of a rank of this process, with the fields of PyTorch's Flight
        Recorder.
        """
        if rank not in self._flights:
            listed = ", ".join(map(str, [*self._flights][:4])) + (
                ", ..." if len(self._flights) > 4 else ""
            )
            raise ConfigError(
                f"flight record of rank {rank!r}: this process has those of rank {listed}"
            )
        return document(*self._flights[rank])

    def write_flight_record(self, rank: int, path: str | Path) -> None:
        """Write the flight record of a rank as JSON; a ConfigError if that fails, which keeps an
        old file.
        """
        write_file(path, f"{json.dumps(self.flight_record(rank), indent=1)}\n".encode())


def machine_of(result: RunResult) -> str:
    """The topology and the library of a run, for its summary line."""
    return f"{result.topology}, {result.library}" if result.library else result.topology


NOTEWORTHY_BYTES = 2**20
"""The least offloaded memory that a summary line tells: losses come to the host, too."""


def memory_of(result: RunResult) -> str:
    """The largest peak memory of a rank, for a run's summary line; empty where nothing was
    counted.
    """
    peak_bytes, host_bytes = max(result.peak_bytes), max(result.host_peak_bytes, default=0)
    text = f", at most {format_memory(peak_bytes)} of tensors on a rank" if peak_bytes else ""
    if host_bytes >= NOTEWORTHY_BYTES:
        text += f", and {format_memory(host_bytes)} in the memory of its host"
    return text


def table_of(result: RunResult) -> str:
    """The table of a timeline, each line prefixed with ``#``; empty without a timeline."""
    return (
        ""
        if result.timeline is None
        else "".join(f"# {line}\n" for line in result.timeline.table().splitlines())
    )


# Each thread has a context, so this is no state that others could see.
_COLLECTED: ContextVar[list[RunResult] | None] = ContextVar("simcoll_results", default=None)


@contextlib.contextmanager
def collect_results() -> Iterator[list[RunResult]]:
    """Collect the results of all runs inside the block, in order."""
    results: list[RunResult] = []
    token = _COLLECTED.set(results)
    try:
        yield results
    finally:
        _COLLECTED.reset(token)


def leftovers(world: World) -> None:
    """Report every Work that was never waited for: an error if it failed, else a finding."""
    for rank in world.ranks:
        for work in rank.open_works:
            if work.error is not None and rank.failure is None:
                rank.failure = RuntimeError(work.error)
                rank.failure.add_note(f"[rank{rank.number}]: of a Work that was never waited for")
                world.history.failures.append(rank.failure)
            state = "" if work.done else ", and it never ended"
            if world.history.failures:  # which kept the programs from waiting
                continue
            world.history.findings.append(
                f"rank {rank.number}: the Work of {work.name} issued at {work.entry.site} was "
                f"never waited for{state}"
            )


def note_findings(failure: BaseException, findings: Sequence[str]) -> None:
    """Note on the error of a failed run, which has no result, what the run had found before."""
    for finding in dict.fromkeys(findings):
        failure.add_note(FINDING + finding)


def raise_first(
    failures: list[BaseException], ranks: Sequence[Rank], findings: Sequence[str]
) -> NoReturn:
    """Raise the first failure with the findings of the run, and clear the list: errors refer to
    frames, and these to ranks, which must not refer back.
    """
    failure = failures[0]
    note_findings(failure, findings)
    failures.clear()
    for rank in ranks:
        rank.failure = None
    try:
        raise failure
    finally:
        del failure


def result_of(
    world: World,
    own_ranks: Sequence[Rank],
    finish: Sequence[int],
    returns: Sequence[Any],
    *,
    last_fs: int = 0,
    trace_hash: str = "",
) -> RunResult:
    """The result of a successful run; findings become warnings at the line that called spawn."""
    history, library = world.history, world.plans.library
    leaders = world.everyone if world.rank_classes is None else world.rank_classes.leader
    peaks = tuple(world.ranks[number].memory.peak_bytes for number in leaders)
    if history.timeline is not None:
        history.timeline.finish_fs, history.timeline.peak_bytes, history.timeline.leader = (
            tuple(finish),
            peaks,
            leaders,
        )
    for finding in history.findings[:8]:
        warnings.warn(finding, UserWarning, stacklevel=4)
    result = RunResult(
        time_fs=max(last_fs, *finish),
        finish_fs=tuple(finish),
        returns=tuple(returns),
        trace_hash=trace_hash,
        operations=history.operations,
        messages=history.messages,
        records=tuple(history.records),
        findings=tuple(history.findings),
        topology=world.plans.topology.name,
        skew_fs=0 if world.rank_classes is None else world.rank_classes.skew_fs,
        peak_bytes=peaks,
        timeline=history.timeline,
        workload=None
        if history.recording is None
        else history.recording.workload(world.rank_classes),
        library=str(load_library(library)) if library else "",
        _flights={rank.number: flight_of(rank) for rank in own_ranks},
        launches=history.launches[1],
        host_peak_bytes=tuple(world.ranks[number].memory.host_peak_bytes for number in leaders),
    )
    note_result(result)
    return result


def note_result(result: RunResult) -> None:
    """Add a result to those that :func:`collect_results` collects."""
    results = _COLLECTED.get()
    if results is not None:
        results.append(result)


def flight_of(rank: Rank) -> tuple[Flight, Groups]:
    """The operations and groups that a rank's flight record shows."""
    groups: Groups = [("0", "default_pg", tuple(range(len(rank.world.ranks))))]
    groups += [
        (group.communicator.name, group.communicator.desc, group.communicator.members)
        for group in rank.groups
    ]
    return rank.flight, groups
