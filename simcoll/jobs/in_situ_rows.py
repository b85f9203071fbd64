"""Services of a job's collectives as rows of measurements, for ``compare`` and ``calibrate``."""

from __future__ import annotations

from simcoll.errors import ConfigError
from simcoll.files.output import csv_bytes
from simcoll.formats.logs.in_situ import COLUMNS
from simcoll.jobs.job import Job
from simcoll.jobs.what_if import overlaps_computation

__all__ = ["in_situ_csv"]

_KINDS = {"send": "send_recv", "messages": "send_recv"}


def in_situ_csv(job: Job) -> tuple[bytes, int, int]:
    """The rows as CSV, their number, and the number of collectives left out for want of a size.

    Raises
    ------
    ConfigError
        When no collective has all its ranks among the traces.
    """
    meetings = job.matching.meetings
    if not meetings:
        raise ConfigError(
            "no service to write: a kernel's time contains the waiting for other ranks, so "
            "services need the traces of all ranks of a group"
        )
    rows = []
    for meeting, overlap in zip(meetings, overlaps_computation(job, meetings), strict=True):
        if meeting.size_bytes <= 0 or meeting.service_ns <= 0:
            continue
        if meeting.kind == "messages" and len(meeting.ranks) > 2:
            continue  # not those of a benchmark
        waiting = sum(map(meeting.waiting_ns, meeting.calls)) // len(meeting.calls)
        rows.append(
            {
                "collective": _KINDS.get(meeting.kind, meeting.kind),
                "size_bytes": meeting.size_bytes,
                "ranks": len(meeting.ranks),
                "service_ns": meeting.service_ns,
                "waiting_ns": waiting,
                "beside_computation": "yes" if overlap else "no",
                "group": meeting.group,
                "device": job.traces[0].device,
            }
        )
    return csv_bytes(COLUMNS, rows), len(rows), len(meetings) - len(rows)
