"""Small schedules from lists of transfers, for timing that can be worked out by hand."""

import numpy as np
import pytest

from simcoll.binding import bind
from simcoll.core.collective import Collective
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import COPY, Layout, Schedule, transfers


def _plan(nranks, steps, *, sizes=1000, nchannels=None, ranks=None, **protocol):
    """A plan whose steps are lists of ``(src, slot, dst, channel, op)``: input slot of src to that
    output slot of dst.

    Elements are bytes; ``sizes[src][slot]`` (or one number) are the block sizes. Unproved: it need
    not mean anything.
    """
    layout = Layout(Collective("all_to_all", nranks))

    def source():
        for step in steps:
            src, slot, dst, channel, op = zip(
                *[(*row, *(0, COPY)[len(row) - 3 :]) for row in step], strict=True
            )
            slot = np.array(slot)
            yield transfers(
                np.array(src),
                layout.input(slot),
                np.array(dst),
                layout.output(slot),
                op=op,
                channel=channel,
            )

    channels = nchannels or 1 + max(
        (row[3] for step in steps for row in step if len(row) > 3), default=0
    )
    schedule = Schedule("by_hand", layout, source, channels)
    return bind(
        schedule, sizes, "uint8", ranks=ranks, protocol=Protocol("test", **protocol), unproved=True
    )


@pytest.fixture(scope="session")
def by_hand():
    return _plan
