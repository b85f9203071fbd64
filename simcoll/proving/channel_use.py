"""Whether channels share chunks: plans of such schedules need waits beyond the order of each
channel.
"""

from __future__ import annotations

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.schedule import Schedule, Step, lowered
from simcoll.core.step import by_chunk, spread

__all__ = ["ChannelUse"]


class ChannelUse:
    """The channel that touches each chunk address, on any rank, during a proof.

    One address has many chunks, one on each rank, so two channels of an address only suggest that a
    chunk has two. That is checked at the end, chunk by chunk, in the rare schedules where it
    matters.

    Attributes
    ----------
    mixed
        Two channels touch one address.
    concurrent
        A step has two channels.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        # Of every address; -1: not touched yet.
        self.channel = np.full(schedule.layout.size, -1, np.int64)
        self.mixed = self.concurrent = False

    def record(self, step: Step) -> None:
        """Record the channels of a step."""
        if self.schedule.nchannels == 1:
            return
        self.concurrent = self.concurrent or bool((step.channel != step.channel[:1]).any())
        if not self.mixed:
            self.mixed = not all(self._record_end(step, chunk) for _, chunk in step.ends)

    def _record_end(self, step: Step, chunk: Ints) -> bool:
        """Record the channel of each address; return False if an address has two."""
        channel = step.channel
        if (step.count != 1).any():
            chunk, count, channel = np.unique(np.stack([chunk, step.count, channel]), axis=1)
            row, offset = spread(count)
            chunk, channel = chunk[row] + offset, channel[row]
        return _record_channels(self.channel, chunk, channel)

    def shares_chunks(self) -> bool:
        """Whether two channels touch one chunk of a rank."""
        if not self.mixed:
            return False
        schedule = self.schedule
        channel_of_chunk = np.full(schedule.nranks * schedule.layout.size, -1, np.int64)
        for _, step in lowered(schedule):
            units = by_chunk(step)
            for rank, chunk in units.ends:
                if not _record_channels(
                    channel_of_chunk, chunk * schedule.nranks + rank, units.channel
                ):
                    return True
        return False

    def check_orderable(self) -> None:
        """Refuse channels that exchange chunks in a cycle inside one step.

        Raises
        ------
        ScheduleError
            Names the step and one of the transfers.
        """
        if self.concurrent:
            from simcoll.core.hazards import check_orderable

            check_orderable(self.schedule)


def _record_channels(channels: Ints, places: Ints, channel: Ints) -> bool:
    """Record the channel of each place; return False if a place has two channels."""
    previous = channels.take(places)
    if np.array_equal(previous, channel):
        return True
    channels[places] = channel
    # The second comparison finds two channels in one step.
    return not ((previous >= 0) & (previous != channel)).any() and np.array_equal(
        channels.take(places), channel
    )
