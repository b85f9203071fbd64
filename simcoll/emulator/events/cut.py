"""The record of a run that could not reach its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simcoll.emulator.events.timeline import Timeline
from simcoll.errors import listed
from simcoll.terminal import printable
from simcoll.units import format_size, format_time

__all__ = ["Cut", "CutMessage", "cut_at"]

SHOWN = 4


@dataclass(frozen=True, slots=True)
class CutMessage:
    """A message with bytes in flight over a dead link: its number, its ends, and the links that
    were down.
    """

    message: int
    src: int
    dst: int
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where and why a run ended early.

    Attributes
    ----------
    kind
        ``"aborted"``: bytes met a dead link, and the policy ended the run, at once or after a
        timeout. ``"stuck"``: nothing more could happen, because a link stays down or a rank has
        stopped.
    time_fs
        Time of the abort, or completion time of the last message.
    messages
        Messages that waited for a dead link.
    stopped
        Ranks that had stopped.
    waiting
        Ranks that had not finished.
    delivered_bytes, dropped_bytes
        Payload of completed messages, and of all others; together the payload of the plan.
    """

    kind: Literal["aborted", "stuck"]
    time_fs: int
    messages: tuple[CutMessage, ...]
    stopped: tuple[int, ...]
    waiting: tuple[int, ...]
    delivered_bytes: int
    dropped_bytes: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks at fault: the ends of the messages that waited for a dead link, and the stopped
        ranks.
        """
        ends = {rank for message in self.messages for rank in (message.src, message.dst)}
        return tuple(sorted(ends.union(self.stopped)))

    @property
    def links(self) -> tuple[str, ...]:
        """The dead links that messages waited for."""
        return tuple(sorted({link for message in self.messages for link in message.links}))

    def __str__(self) -> str:
        causes = []
        if self.messages:
            messages = [f"{m.message} (rank {m.src} -> {m.dst})" for m in self.messages]
            causes.append(
                f"down: {listed(self.links, SHOWN)}; cut off: message {listed(messages, SHOWN)}"
            )
        if self.stopped:
            causes.append(f"stopped: rank {listed(self.stopped, SHOWN)}")
        waiting = [rank for rank in self.waiting if rank not in self.stopped]
        waits = f"; waiting: rank {listed(waiting, SHOWN)}" if waiting else ""
        return printable(
            f"{self.kind} at {format_time(self.time_fs)}: {'; '.join(causes)}{waits}; "
            f"{format_size(self.delivered_bytes)} delivered, {format_size(self.dropped_bytes)} "
            "dropped"
        )


def cut_at(
    timeline: Timeline,
    time_fs: int,
    messages: Sequence[CutMessage],
    waiting: Sequence[int],
    payload_bytes: tuple[int, int],
    *,
    aborted: bool,
) -> Cut:
    """The record of a run that ended at ``time_fs``; ``payload_bytes`` are the bytes delivered and
    dropped.
    """
    stops = [] if timeline.pace is None else timeline.pace.stops()
    # In a stuck run, all events have happened.
    stopped = [rank for rank, at_fs in stops if (at_fs <= time_fs if aborted else rank in waiting)]
    return Cut(
        "aborted" if aborted else "stuck",
        time_fs,
        tuple(sorted(messages, key=lambda message: message.message)),
        tuple(stopped),
        tuple(waiting),
        *payload_bytes,
    )
