"""A timeline of a run for Perfetto and chrome://tracing."""

from __future__ import annotations

import gzip
import io
import json
from typing import TYPE_CHECKING, Any

from simcoll.core.schedule import OP_NAMES
from simcoll.emulator.trace_marks import arrows, critical_messages, link_counters, summary
from simcoll.errors import ConfigError
from simcoll.formats.output import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from simcoll.core.plan import Plan
    from simcoll.emulator.result import Result
    from simcoll.topology import Topology

__all__ = ["Trace"]

FS_PER_US = 10**9
EVENTS_PER_TRANSFER = 2


class Trace:
    """Records the transfers of one run: give it to ``emulate(..., observer=trace)``, then :meth:`write` it.

    The format is the Trace Event Format (JSON, compressed): a process per rank, in it a track per channel and
    direction; where transfers of one track overlap, as many tracks as it takes. See ``docs/reference/trace.md``.

    Parameters
    ----------
    plan, topology
        The run; for names.
    max_events
        Most transfer events to keep. The first transfers in schedule order are kept, and the file says when there were
        more.
    """

    __slots__ = ("_kept", "_limit", "_plan", "_rows", "_seen", "_topology")

    def __init__(self, plan: Plan, topology: Topology, *, max_events: int = 200_000) -> None:
        if max_events < 0:
            raise ConfigError(f"max_events {max_events} is negative")
        self._plan = plan
        self._topology = topology
        self._limit = max_events // EVENTS_PER_TRANSFER
        self._rows: list[tuple[int, ...]] = []
        self._seen = 0

    def __call__(self, message: int, /, *rest: int) -> None:
        """Record a transfer; the arguments are those of :class:`simcoll.emulator.books.Observer`."""
        self._seen += 1
        if message < self._limit:
            self._rows.append((message, *rest))

    def document(self, result: Result, run: str = "") -> dict[str, Any]:
        """The trace as a JSON object."""
        spans: dict[tuple[int, int, str], list[tuple[int, int, str, dict[str, Any]]]] = {}
        path = critical_messages(self._rows)
        critical = set(path)
        for message, step, src, dst, channel, op, size, ready, start, end, done in sorted(self._rows):
            args = {
                "message": message,
                "step": step,
                "op": OP_NAMES[op],
                "bytes": size,
                "flow_start_us": _us(start),
                "flow_end_us": _us(end),
            }
            if message in critical:
                args["critical"] = True
            if src == dst:
                spans.setdefault((src, channel, "local"), []).append((ready, done, OP_NAMES[op], args))
                continue
            spans.setdefault((src, channel, "send"), []).append((ready, end, f"send -> {dst}", args))
            spans.setdefault((dst, channel, "receive"), []).append((start, done, f"receive <- {src}", args))
        tracks = _tracks(spans)
        links = link_counters(self._rows, self._topology, self._plan.ranks.tolist(), self._plan.nranks)
        about = self._about(result) | {"critical_path": summary(path, self._rows, result)}
        return {
            "displayTimeUnit": "ns",
            "otherData": about | ({"run": run} if run else {}),
            "traceEvents": [*self._processes(), *tracks, *arrows(tracks), *links],
        }

    def write(self, path: str | Path, result: Result) -> None:
        """Write the compressed trace. Equal runs give equal bytes.

        Raises
        ------
        ConfigError
            When the file cannot be written; then there is none, or the old one.
        """
        write_file(path, self.content(result))

    def content(self, result: Result, *, run: str = "") -> bytes:
        """The compressed trace, as :meth:`write` writes it; ``run`` names the results that it belongs to."""
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream:
            stream.write(json.dumps(self.document(result, run), separators=(",", ":")).encode())
        return buffer.getvalue()

    def _about(self, result: Result) -> dict[str, Any]:
        about: dict[str, Any] = {
            "schedule": result.schedule,
            "collective": str(self._plan.collective),
            "protocol": result.protocol,
            "topology": result.topology,
            "engine": result.engine,
            "proof": result.proof,
            "time_us": _us(result.time_fs),
            "trace_hash": result.trace_hash,
            "transfers": self._seen,
        }
        if self._seen > len(self._rows):
            about["truncated"] = (
                f"only the first {len(self._rows)} of {self._seen} transfers, in schedule order, are in this file"
            )
        return about

    def _processes(self) -> list[dict[str, Any]]:
        nodes = self._topology.rank_nodes[self._plan.ranks].tolist()
        events = []
        for rank, node in enumerate(nodes):
            name = f"rank {rank} ({self._topology.node_names[node]})"
            events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
            events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        return events


def _us(time_fs: int) -> float:
    return time_fs / FS_PER_US


def _tracks(spans: dict[tuple[int, int, str], list[tuple[int, int, str, dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Complete events, each on the first free track of its channel and direction, so that a track's events never overlap."""
    events: list[dict[str, Any]] = []
    next_track: dict[int, int] = {}
    for (rank, channel, direction), group in sorted(spans.items(), key=lambda entry: entry[0]):
        free_at: list[int] = []
        base = next_track.get(rank, 0)
        for begin, end, name, args in sorted(group, key=lambda span: (span[0], span[3]["message"])):
            row = next((row for row, free in enumerate(free_at) if free <= begin), len(free_at))
            if row == len(free_at):
                free_at.append(end)
                label = f"channel {channel} {direction}" + (f" ({row + 1})" if row else "")
                events.append(
                    {"ph": "M", "name": "thread_name", "pid": rank, "tid": base + row, "args": {"name": label}}
                )
            free_at[row] = end
            shown = {"ph": "X", "name": name, "cat": direction, "pid": rank, "tid": base + row}
            if args.get("critical"):
                shown["cname"] = "terrible"  # a red of the viewers' palette
            events.append({**shown, "ts": _us(begin), "dur": _us(end - begin), "args": args})
        next_track[rank] = base + len(free_at)
    return events
