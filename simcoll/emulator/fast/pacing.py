"""Work of ranks that slow down or stop: :class:`simcoll.emulator.events.pace.Pace` in compiled
code.
"""

from __future__ import annotations

from simcoll.emulator.fast.compiled import part
from simcoll.emulator.fast.state import MAX, NOW, State

__all__ = ["NEVER", "STOPPED", "work_duration"]

STOPPED, NEVER = -1, -2


@part
def _longer(work: int, up: int, down: int) -> int:
    """``work * up / down``, rounded up and limited to the range of the clock."""
    quotient = work // down
    if quotient > (MAX - up) // up:
        return MAX
    return quotient * up + (work % down * up + down - 1) // down


@part
def work_duration(s: State, rank: int, work: int) -> int:
    """Duration of work that a rank begins now.

    ``STOPPED`` if the rank has stopped, ``NEVER`` if it stops before the end.
    """
    stretch, end = s.pace_first[rank], s.pace_first[rank + 1]
    now_fs = s.reg[NOW]
    if stretch == end:
        return work
    while stretch + 1 < end and s.pace_from[stretch + 1] <= now_fs:
        stretch += 1
    passed = 0
    while True:
        up, down = s.pace_up[stretch], s.pace_down[stretch]
        if up == 0:
            return NEVER if passed > 0 else STOPPED
        needed = _longer(work, up, down)
        room = s.pace_from[stretch + 1] - now_fs - passed if stretch + 1 < end else MAX
        if needed <= room:
            return passed + min(needed, MAX - passed)
        work -= room // up * down + room % up * down // up
        passed += room
        stretch += 1
