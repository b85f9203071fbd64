"""Barriers of thread blocks whose members would be decided by speed."""

from __future__ import annotations

import pytest

from simcoll.core.collective import Collective
from simcoll.core.device_program import DeviceOp, DeviceProgram, Region
from simcoll.errors import ScheduleError
from simcoll.proving import verify_device_program

INPUT, OUTPUT, SCRATCH = range(3)
BARRIER = DeviceOp("barrier", barrier=(0, 2))


def copied(source, target):
    return DeviceOp(
        "copy", how="each", reads=(Region(0, source, 1),), writes=(Region(0, target, 1),)
    )


def program(*blocks):
    return DeviceProgram("blocks", (blocks,), (1, 1, 1, 0), Collective("all_reduce", 1), 1)


WRITER = (copied(INPUT, SCRATCH), BARRIER)
READER = (BARRIER, copied(SCRATCH, OUTPUT))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_blocks_that_meet_are_proved(order):
    blocks = (WRITER, READER)
    assert verify_device_program(program(*(blocks[k] for k in order))).data


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0)])
def test_three_blocks_at_a_barrier_of_two_are_refused_in_any_order(order):
    """If the third block came first, the reader would not have waited for the writer."""
    blocks = (WRITER, (*READER, BARRIER), (BARRIER,))
    with pytest.raises(
        ScheduleError, match="3 thread blocks of the rank come to barrier 0, which waits for 2"
    ):
        verify_device_program(program(*(blocks[k] for k in order)))
