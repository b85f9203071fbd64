"""A timeline of a run for Perfetto and chrome://tracing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simcoll.core.plan import Plan
from simcoll.core.schedule import OP_NAMES
from simcoll.emulator.result import Result
from simcoll.emulator.traces.trace_marks import TraceRow, paths_of
from simcoll.emulator.traces.trace_tracks import FS_PER_US, compress, trace_document
from simcoll.errors import ConfigError
from simcoll.files.output import write_file
from simcoll.topology import Topology

__all__ = ["Trace"]

EVENTS_PER_TRANSFER = 2


class Trace:
    """Records the transfers of one run; pass it as ``emulate(..., observer=trace)``, then
    :meth:`write` it.

    The format is the Trace Event Format (JSON, compressed): a process per rank, with a track per
    channel and direction, or several where transfers overlap. See ``docs/reference/trace.md``.

    Parameters
    ----------
    plan, topology
        The run, for names.
    max_events
        Limit of transfer events to keep. The first transfers in schedule order are kept, and the
        file states when there were more.
    """

    __slots__ = ("_kept", "_limit", "_plan", "_rows", "_seen", "_topology")

    def __init__(self, plan: Plan, topology: Topology, *, max_events: int = 200_000) -> None:
        if max_events < 0:
            raise ConfigError(f"max_events {max_events} is negative")
        self._plan = plan
        self._topology = topology
        self._limit = max_events // EVENTS_PER_TRANSFER
        self._rows: list[TraceRow] = []
        self._seen = 0

    def __call__(self, message: int, /, *columns: int) -> None:
        """Record a transfer; the arguments are those of
        :class:`simcoll.emulator.reference.ledger.Observer`.
        """
        self._seen += 1
        if message < self._limit:
            self._rows.append(TraceRow(message, *columns))

    def document(self, result: Result, run: str = "") -> dict[str, Any]:
        """The trace as a JSON object."""
        about = self._about(result) | ({"run": run} if run else {})
        vias = {number: via for number, via in enumerate(paths_of(self._plan)) if via}
        ranks = self._plan.ranks.tolist()
        return trace_document(
            self._rows, self._topology, ranks, result.time_fs, about, _describe, vias
        )

    def write(self, path: str | Path, result: Result) -> None:
        """Write the compressed trace; equal runs yield equal bytes.

        Raises
        ------
        ConfigError
            When the file cannot be written; no partial file is left.
        """
        write_file(path, self.content(result))

    def content(self, result: Result, *, run: str = "") -> bytes:
        """The compressed trace, as :meth:`write` writes it; ``run`` labels the results that it
        belongs to.
        """
        return compress(self.document(result, run))

    def _about(self, result: Result) -> dict[str, Any]:
        about: dict[str, Any] = {
            "schedule": result.schedule,
            "collective": str(self._plan.collective),
            "protocol": result.protocol,
            "topology": result.topology,
            "engine": result.engine,
            "proof": result.proof,
            "time_us": result.time_fs / FS_PER_US,
            "trace_hash": result.trace_hash,
            "transfers": self._seen,
        }
        if self._seen > len(self._rows):
            about["truncated"] = (
                f"only the first {len(self._rows)} of {self._seen} transfers, in schedule order, "
                "are in this file"
            )
        return about


def _describe(row: TraceRow) -> tuple[tuple[int, str], str, dict[str, Any]]:
    lane = row.channel, f"channel {row.channel}"
    return lane, OP_NAMES[row.op], {"step": row.step, "op": OP_NAMES[row.op]}
