"""Proof that no rank leaves a barrier before every rank has entered."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import numpy as np

from simcoll.core.schedule import Schedule, lowered
from simcoll.errors import ScheduleError

__all__ = ["check_barrier"]


class _BarrierMessage(NamedTuple):
    """A message of a barrier."""

    step: int
    src: int
    dst: int
    channel: int

    def __str__(self) -> str:
        return (
            f"in step {self.step}, from rank {self.src} to rank {self.dst} (channel {self.channel})"
        )


def check_barrier(schedule: Schedule) -> tuple[int, int]:
    """Check that every rank learns of every rank's arrival; return the numbers of steps and
    messages.

    Channels are independent: a message on one channel cannot be forwarded on another, so knowledge
    is kept per rank and channel.

    Raises
    ------
    ScheduleError
        Names a rank that may leave early, the last message to it, and where an arrival that does
        not reach it is last forwarded.
    """
    n, channels = schedule.nranks, schedule.nchannels
    heard = np.zeros((n * channels, -(-n // 8)), np.uint8)
    lane = np.arange(n * channels)
    heard[lane, lane // channels // 8] = 1 << (lane // channels % 8)
    count = steps = 0
    for _, step in lowered(schedule):
        count, steps = count + len(step), steps + 1
        arrivals = heard[step.src_rank * channels + step.channel]
        np.bitwise_or.at(heard, step.dst_rank * channels + step.channel, arrivals)
    heard = np.bitwise_or.reduce(heard.reshape(n, channels, -1), axis=1)
    complete = np.bitwise_or.reduce(heard, axis=0)
    missing = np.flatnonzero((heard != complete).any(axis=1))
    if len(missing):
        rank = int(missing[0])
        absent = np.flatnonzero(
            ~np.unpackbits(heard[rank], bitorder="little")[:n].astype(bool)
        ).tolist()
        _leaves_early(schedule, rank, absent)
    return steps, count


def _leaves_early(schedule: Schedule, rank: int, absent: list[int]) -> NoReturn:
    """Report a barrier that a rank can leave before all ranks have arrived."""
    ranks = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
    lines = [
        (
            f"{schedule}: rank {rank} may leave before rank {ranks} has entered: no chain of "
            "messages "
            "leads here from there"
        )
    ]
    incoming = _last_message(schedule, rank, forwards=False)
    forwarding = _last_message(schedule, absent[0], forwards=True)
    if incoming:
        lines.append(f"  the last message to rank {rank} comes {incoming}")
    else:
        lines.append(f"  rank {rank} receives no message")
    if forwarding:
        lines.append(f"  rank {absent[0]}'s arrival is last forwarded {forwarding}")
    else:
        lines.append(f"  rank {absent[0]} sends no message")
    message = incoming or forwarding
    channel = message.channel if message else 0 if schedule.nchannels == 1 else None
    raise ScheduleError(
        "\n".join(lines), step=message.step if message else None, rank=rank, channel=channel
    )


def _last_message(schedule: Schedule, rank: int, *, forwards: bool) -> _BarrierMessage | None:
    """The last message to a rank, or the last that ``forwards`` its arrival."""
    channels = schedule.nchannels
    last: _BarrierMessage | None = None
    knows = np.zeros(schedule.nranks * channels, np.bool_)
    knows[rank * channels : (rank + 1) * channels] = True
    for number, step in lowered(schedule):
        src, dst = step.src_rank * channels + step.channel, step.dst_rank * channels + step.channel
        new = (
            knows[src] & ~knows[dst]
            if forwards
            else (step.dst_rank == rank) & (step.src_rank != rank)
        )
        if new.any():
            row = int(np.flatnonzero(new)[-1])
            last = _BarrierMessage(
                number, int(step.src_rank[row]), int(step.dst_rank[row]), int(step.channel[row])
            )
        knows[dst[new]] = True
    return last
