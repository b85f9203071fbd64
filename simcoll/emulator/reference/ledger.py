"""The accounts of a run: bytes moved, completion times, and the trace hash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from simcoll.arrays import Array, Ints
from simcoll.core.plan import PlanStep
from simcoll.core.schedule import OP_NAMES
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.reference.messages import Message, MessageBlock
from simcoll.emulator.steps.step_columns import PlanSummary
from simcoll.errors import InternalError

__all__ = ["Ledger", "Observer"]

HASH_BATCH = 4096


class Observer(Protocol):
    """A callback for every transfer of a run, in the order in which steps complete."""

    def __call__(
        self,
        message: int,
        step: int,
        src: int,
        dst: int,
        channel: int,
        op: int,
        size_bytes: int,
        ready_fs: int,
        start_fs: int,
        end_fs: int,
        done_fs: int,
        /,
    ) -> None:
        """Report that a transfer was ready, its flow started and ended, and it was done, at these
        times.
        """


class Ledger:
    """Accounts for the messages of a plan, step by step.

    Attributes
    ----------
    messages, bytes_by_op
        Number of completed transfers, and their payload by operation.
    time_fs
        Completion time of the last transfer; that of the launch if there is none.
    hash
        Their trace hash.
    done_fs
        Completion time of every transfer, with ``keep``; -1 for those not completed.
    dropped_bytes
        Payload of the messages that will never complete.
    columns
        Batches of the hashed columns, if a list collects them: id, source, destination, bytes,
        start, end, done.
    """

    def __init__(self, summary: PlanSummary, observer: Observer | None, *, keep: bool) -> None:
        self.messages = self.time_fs = self.dropped_bytes = 0
        self.bytes_by_op = [0] * len(OP_NAMES)
        self.hash = TraceHash()
        self.columns: list[Ints] | None = None
        self.done_fs = np.full(summary.messages, -1, np.int64) if keep else None
        self._summary = summary
        self._observer = observer
        self._rows: list[tuple[int, ...]] = []

    @property
    def complete(self) -> bool:
        """Whether every message is done."""
        return self.messages == self._summary.messages

    def enter(self, block: MessageBlock) -> None:
        """Account for a completed step."""
        messages, block.messages = block.messages, []
        self._add(block.step, messages)

    def end_early(self, blocks: Iterable[MessageBlock], unloaded: Iterable[PlanStep]) -> None:
        """Account for a run that ends early: for steps in progress, and for those that no rank has
        reached.
        """
        for block in blocks:
            if not block.messages:
                continue  # complete and accounted for, although one of its lanes has stopped
            complete = [row for row, message in enumerate(block.messages) if message.done_fs >= 0]
            sizes = block.step.size_bytes
            self.dropped_bytes += int(sizes.sum() - sizes[complete].sum())
            if complete:
                self._add(block.step, [block.messages[row] for row in complete], complete)
        for step in unloaded:
            self.dropped_bytes += int(step.size_bytes.sum())

    def _add(self, step: PlanStep, messages: list[Message], rows: list[int] | None = None) -> None:
        """Account for completed messages: all rows of a step, or some."""

        def column(array: Array) -> list[int]:
            selected: list[int] = (array if rows is None else array[rows]).tolist()
            return selected

        src, dst, channel = column(step.src_rank), column(step.dst_rank), column(step.channel)
        op, size_bytes = column(step.op), column(step.size_bytes)
        ids = [message.id for message in messages]
        times = [
            [message.start_fs for message in messages],
            [message.end_fs for message in messages],
            [message.done_fs for message in messages],
        ]
        self.messages += len(messages)
        self.time_fs = max(self.time_fs, *times[-1])
        for operation, size in zip(op, size_bytes, strict=True):
            self.bytes_by_op[operation] += size
        self._rows += zip(ids, src, dst, size_bytes, *times, strict=True)
        if self._observer is not None:
            ready = [message.ready_fs for message in messages]
            columns = src, dst, channel, op, size_bytes, ready, *times
            for message, *of_row in zip(ids, *columns, strict=True):
                self._observer(message, step.step, *of_row)
        if len(self._rows) >= HASH_BATCH:
            self._hash_rows()
        if self.done_fs is not None:
            self.done_fs[ids] = times[-1]

    def _hash_rows(self) -> None:
        if self._rows:
            columns = np.array(self._rows, np.int64).T
            self.hash.add(list(columns))
            self._rows.clear()
            if self.columns is not None:
                self.columns.append(columns)

    def close(self) -> None:
        """Compare the bytes moved and dropped with the plan.

        Raises
        ------
        InternalError
            When they differ.
        """
        self._hash_rows()
        moved, planned = self.bytes_by_op, self._summary.bytes_by_op
        if self.complete and tuple(moved) != planned:
            raise InternalError(f"moved {moved} bytes by {OP_NAMES}; the plan has {planned}")
        if sum(moved) + self.dropped_bytes != sum(planned):
            raise InternalError(
                f"delivered {sum(moved)} bytes and dropped {self.dropped_bytes}; the plan has "
                f"{sum(planned)}"
            )
