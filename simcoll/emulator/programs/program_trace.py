"""A timeline of a program's run for Perfetto and chrome://tracing."""

from __future__ import annotations

from typing import Any

from simcoll.emulator.programs import Program, ProgramResult
from simcoll.emulator.programs.resources import call_of
from simcoll.emulator.traces.trace_marks import TraceRow, paths_of
from simcoll.emulator.traces.trace_tracks import compress, trace_document
from simcoll.topology import Topology

__all__ = ["ProgramTrace"]

MAX_EVENTS = 200_000


class ProgramTrace:
    """Records the messages and work of a program; pass it as
    ``emulate(program, ..., observer=trace)``.

    Each rank is a process with tracks for each stream: its work, and the messages that it sends and
    receives. See ``docs/reference/trace.md``.

    Parameters
    ----------
    program, topology
        The run, for names.

    Examples
    --------
    >>> import simcoll
    >>> from simcoll.planning import Compute, Program, Send
    >>> from simcoll.topology import crossbar
    >>> net = crossbar(2, "1 GB/s", "1 us")
    >>> forward = Compute([0], 10**9, name="forward")
    >>> program = Program(2, [forward, Send([(0, 1)], 1000, after="forward")])
    >>> trace = ProgramTrace(program, net)
    >>> trace.document(simcoll.emulate(program, net, observer=trace))["otherData"]["critical_path"]
    {'messages': 2, 'share': 1.0}
    """

    __slots__ = ("_lanes", "_program", "_rows", "_seen", "_topology")

    def __init__(self, program: Program, topology: Topology) -> None:
        self._program, self._topology = program, topology
        self._rows: list[TraceRow] = []
        self._seen = 0
        streams = dict.fromkeys(operation.stream for operation in program.operations)
        self._lanes = {stream: number for number, stream in enumerate(streams)}

    def __call__(
        self, operation: int, group: int, message: int, src: int, dst: int, size: int, *times: int
    ) -> None:
        """Record a message; the arguments are those of
        :class:`simcoll.planning.ProgramObserver`.
        """
        self._seen += 1
        if message < MAX_EVENTS // 2:  # two events for each
            self._rows.append(TraceRow(message, operation, src, dst, group, 0, size, *times))

    def document(
        self, result: ProgramResult, about: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The trace as a JSON object; ``about`` adds entries to ``otherData``."""
        entries: dict[str, Any] = {
            "topology": self._topology.name,
            "engine": result.engine,
            "time_us": result.time_us,
            "trace_hash": result.trace_hash,
            "transfers": self._seen,
        }
        if result.unproved:
            entries["proof"] = "unproved"
        entries |= about or {}
        if self._seen > len(self._rows):
            entries["truncated"] = (
                f"only the first {len(self._rows)} of {self._seen} transfers are in this file"
            )
        ranks = list(range(self._program.nranks))
        rows = self._from_launch()
        about_rows = self._describe, self._vias()
        return trace_document(rows, self._topology, ranks, result.time_fs, entries, *about_rows)

    def content(self, result: ProgramResult, about: dict[str, Any] | None = None) -> bytes:
        """The compressed trace. Equal runs give equal bytes."""
        return compress(self.document(result, about))

    def _vias(self) -> dict[int, str]:
        """The path that each message chooses: those of a group are numbered in the plan's order."""
        vias: dict[int, str] = {}
        paths: dict[tuple[int, int], list[str]] = {}
        for row in sorted(self._rows):
            key = row.step, row.channel
            if key not in paths:
                call = call_of(self._program.operations[row.step])
                paths[key] = [] if call is None else paths_of(call.plan)[::-1]
            if paths[key] and (via := paths[key].pop()):
                vias[row.message] = via
        return vias

    def _from_launch(self) -> list[TraceRow]:
        """Messages, starting when their operations began: a protocol's launch precedes the
        readiness of a message.
        """
        ends = {(rank, row.done_fs) for row in self._rows for rank in (row.src, row.dst)}
        rows = []
        for row in self._rows:
            call = call_of(self._program.operations[row.step])
            launch_fs = call.plan.protocol.launch_fs if call is not None else 0
            begin = row.ready_fs - launch_fs
            waited = {(row.src, row.ready_fs), (row.dst, row.ready_fs)} & ends
            began = not begin or {(row.src, begin), (row.dst, begin)} & ends
            rows.append(row._replace(ready_fs=begin) if began and not waited else row)
        return rows

    def _describe(self, row: TraceRow) -> tuple[tuple[int, str], str, dict[str, Any]]:
        operation = self._program.operations[row.step]
        name = operation.name or f"operation {row.step}"
        return (self._lanes[operation.stream], operation.stream), name, {"operation": name}
