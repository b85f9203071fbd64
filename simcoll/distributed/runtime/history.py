"""The history of a run: finished operations, findings and failures."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from simcoll.core.plan import Plan
from simcoll.distributed.runtime.recording import Recording
from simcoll.distributed.runtime.timeline import Timeline
from simcoll.units import format_size

__all__ = ["History", "Record"]

KEPT_RECORDS = 100_000


@dataclass(frozen=True, slots=True)
class Record:
    """A finished operation.

    ``begin_fs`` is when the first rank entered, ``end_fs`` when the last was done.
    """

    group: str
    sequence: int
    name: str
    schedule: str
    protocol: str
    size_bytes: int
    messages: int
    begin_fs: int
    end_fs: int
    trace_hash: str

    def __str__(self) -> str:
        size = format_size(self.size_bytes)
        return f"{self.name} #{self.sequence} of group {self.group}: {self.schedule}, {size}, {self.messages} messages"


@dataclass(slots=True)
class History:
    """What a run has recorded so far.

    Attributes
    ----------
    max_records
        How many records are kept.
    end_fs
        When the last operation ended.
    digest
        Sum of the operations' hashes, which does not depend on their order.
    findings
        Problems short of an error.
    failures
        Exceptions of the programs; the first is the cause, and others may be its consequences.
    timeline
        Spans and messages for a trace, if requested.
    recording
        Operations and dependencies to replay as a workload, if requested.
    """

    max_records: int = KEPT_RECORDS
    records: list[Record] = field(default_factory=list)
    operations: int = 0
    messages: int = 0
    end_fs: int = 0
    digest: int = 0
    findings: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    timeline: Timeline | None = None
    recording: Recording | None = None

    def add(
        self,
        group: str,
        sequence: int,
        name: str,
        plan: Plan,
        times_fs: tuple[int, int],
        messages: int = 0,
        trace_hash: str = "",
    ) -> None:
        """Add a finished operation; ``times_fs`` is its begin and end."""
        record = Record(
            group, sequence, name, plan.schedule.title, plan.protocol.name, plan.total_bytes, messages, *times_fs, trace_hash
        )  # fmt: skip
        text = f"{group} {sequence} {name} {record.schedule} {trace_hash}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
        self.digest = (self.digest + number) % 2**128
        self.messages += messages
        self.operations += 1
        self.end_fs = max(self.end_fs, times_fs[1])
        if self.timeline is not None:
            self.timeline.played.append((plan, times_fs))
        if len(self.records) < self.max_records:
            self.records.append(record)
