"""The rate of one flow, and the time at which it ends."""

from __future__ import annotations

import numpy as np

from simcoll.emulator.fast.calendar import at_time, unlink
from simcoll.emulator.fast.compiled import part
from simcoll.emulator.fast.state import (
    ARGUMENT,
    CLOCK,
    CUT,
    IDLE,
    MAX,
    NO_RATE,
    NOW,
    PATIENCE,
    STOP,
    State,
)

__all__ = ["FS_PER_SECOND_UBPS", "change_rate", "covered", "keeps_rate", "set_timer"]

FS_PER_SECOND_UBPS = 1e21  # as in the model
ROUNDING = 0.3819660112501051


@part
def keeps_rate(s: State, m: int, rate: int) -> bool:
    """Whether a flow has a rate already, or can have none, which ends the run."""
    if rate == s.rate[m] and (rate > 0 or s.finish_fs[m] >= 0):
        if rate == 0:
            _overdue(s, m)
        return True
    if rate <= 0 and not _down(s, m):
        s.reg[STOP], s.reg[ARGUMENT] = NO_RATE, m
        return True
    return False


@part
def covered(s: State, m: int, cover: int) -> None:
    """Let the timer of a link cover a flow, instead of its own or that of another link."""
    if s.cover[m] < 0 and s.finish_fs[m] >= 0 and s.key[m] > s.reg[NOW]:
        unlink(s, m)
        s.key[m] = 0
    s.cover[m] = cover


@part
def change_rate(s: State, m: int, rate: int, cover: int) -> None:
    """Change the rate of a flow, and the time at which it ends."""
    r, old = s.reg, s.rate[m]
    if old:
        s.remaining[m] -= float(old) * float(r[NOW] - s.since_fs[m]) / FS_PER_SECOND_UBPS
    covered(s, m, cover)
    s.rate[m] = rate
    s.since_fs[m] = r[NOW]
    s.finish_fs[m] = MAX
    if rate == 0:  # its timer is the limit of its wait
        if r[PATIENCE] < MAX - r[NOW]:
            s.finish_fs[m] = r[NOW] + r[PATIENCE]
            _overdue(s, m)
        return
    delay = np.floor(s.remaining[m] * FS_PER_SECOND_UBPS / float(rate) + ROUNDING)
    rounded_fs = MAX if delay >= float(MAX) else max(0, int(delay))
    if rounded_fs <= MAX - r[NOW]:
        s.finish_fs[m] = r[NOW] + rounded_fs
    elif old == 0:
        r[STOP], r[ARGUMENT] = CLOCK, rounded_fs


@part
def _down(s: State, m: int) -> bool:
    """Whether a flow waits for a link that events have taken down."""
    if s.reg[PATIENCE] < 0:
        return False
    narrowest: int = MAX
    for e in range(s.entry[m], s.entry[m] + s.hops[m]):
        narrowest = min(narrowest, s.capacity[s.link[e]])
    return narrowest == 0


@part
def _overdue(s: State, m: int) -> None:
    """End the run if a flow has waited too long; errors take precedence."""
    if s.finish_fs[m] <= s.reg[NOW] and s.reg[STOP] == IDLE:
        s.reg[STOP] = CUT


@part
def set_timer(s: State, m: int, time: int) -> None:
    """Set the timer of a slot (for a link or a single flow) to the first end of its flows."""
    now_fs = s.reg[NOW]
    if s.key[m] > now_fs:
        if s.key[m] == time:
            return
        unlink(s, m)
    s.key[m] = 0
    if time < MAX:
        at_time(s, m, time - now_fs)
