"""The history of a run: finished operations, findings and failures."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from simcoll.core.plan import Plan
from simcoll.distributed.runtime.recording import Recording
from simcoll.distributed.runtime.run_timeline import RunTimeline
from simcoll.emulator.moved_hash import MovedHash
from simcoll.units import format_size

__all__ = ["History", "Record"]

KEPT_RECORDS = 100_000
HASHED_TOGETHER, LEAST_HASHED = 1 << 23, 512
"""Messages whose hashes are computed at once, as many as it takes to load compiled code for them
(:mod:`simcoll.emulator.moved_hash`), and the least that an operation counts, so that few wait.
"""
TRACED_TOGETHER = 1 << 18
"""Messages of different traces that wait to be hashed, which take 40 bytes each."""


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
        return (
            f"{self.name} #{self.sequence} of group {self.group}: {self.schedule}, {size}, "
            f"{self.messages} messages"
        )


class _Unhashed(NamedTuple):
    """A finished operation, by its group, sequence number and name; its hash is computed together
    with others.
    """

    label: tuple[str, int, str]
    plan: Plan
    messages: int
    times_fs: tuple[int, int]
    trace: MovedHash | str


@dataclass(slots=True)
class History:
    """What a run has recorded so far.

    Attributes
    ----------
    max_records
        How many records are kept.
    end_fs
        When the last operation ended.
    findings
        Problems short of an error.
    launches
        Of the rank whose accelerator waited longest for its host's launches: the share of its time,
        and a sentence.
    failures
        Exceptions of the programs; the first is the cause, and others may be its consequences.
    stuck
        The last hang that only a timeout could end: when that expired, and the report.
    timeline
        Spans and messages for a trace, if requested.
    recording
        Operations and dependencies to replay as a workload, if requested.
    """

    max_records: int = KEPT_RECORDS
    operations: int = 0
    messages: int = 0
    end_fs: int = 0
    findings: list[str] = field(default_factory=list)
    launches: tuple[float, str] = (0.0, "")
    failures: list[BaseException] = field(default_factory=list)
    stuck: tuple[int, str] = (-1, "")
    timeline: RunTimeline | None = None
    recording: Recording | None = None
    _records: list[Record] = field(default_factory=list)
    _digest: int = 0
    _unhashed: list[_Unhashed] = field(default_factory=list)
    _waiting: int = 0
    _traces: dict[MovedHash, None] = field(default_factory=dict)
    _traced: int = 0

    def add(
        self,
        group: str,
        sequence: int,
        name: str,
        plan: Plan,
        times_fs: tuple[int, int],
        messages: int = 0,
        trace_hash: MovedHash | str = "",
    ) -> None:
        """Add a finished operation; ``times_fs`` is its begin and end, by which a MovedHash is
        moved when it is needed.
        """
        self._unhashed.append(
            _Unhashed((group, sequence, name), plan, messages, times_fs, trace_hash)
        )
        self._waiting += max(LEAST_HASHED, messages)
        if isinstance(trace_hash, MovedHash) and trace_hash not in self._traces:
            self._traces[trace_hash] = None
            self._traced += messages
        if self._waiting > HASHED_TOGETHER or self._traced > TRACED_TOGETHER:
            self._settle()
        self.messages += messages
        self.operations += 1
        self.end_fs = max(self.end_fs, times_fs[1])
        if self.timeline is not None:
            self.timeline.played.add(plan, times_fs)

    @property
    def records(self) -> list[Record]:
        """The first ``max_records`` operations."""
        self._settle()
        return self._records

    @property
    def digest(self) -> int:
        """Sum of the operations' hashes, which does not depend on their order."""
        self._settle()
        return self._digest

    def _settle(self) -> None:
        """Hash the operations since the last time; those that repeat one another together, which
        takes half the time.
        """
        added, self._unhashed, self._waiting = self._unhashed, [], 0
        self._traced = 0
        self._traces.clear()
        begins: defaultdict[MovedHash, list[int]] = defaultdict(list)
        for operation in added:
            if isinstance(operation.trace, MovedHash):
                begins[operation.trace].append(operation.times_fs[0])
        moved = {trace: iter(trace.hexdigests(later)) for trace, later in begins.items()}
        for operation in added:
            plan, trace = operation.plan, operation.trace
            title = plan.schedule.title
            trace_hash = trace if isinstance(trace, str) else next(moved[trace])
            group, sequence, name = operation.label
            text = f"{group} {sequence} {name} {title} {trace_hash}"
            number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
            self._digest = (self._digest + number) % 2**128
            if len(self._records) < self.max_records:
                self._records.append(
                    Record(
                        group,
                        sequence,
                        name,
                        title,
                        plan.protocol.name,
                        plan.total_bytes,
                        operation.messages,
                        *operation.times_fs,
                        trace_hash,
                    )
                )
