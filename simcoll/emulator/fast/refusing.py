"""Errors for early stops of the fast engine's loops, and the check of their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from simcoll.emulator.fast.state import ARGUMENT, CLOCK, DELIVERED, FLOW, MAX, NO_RATE, NOW, State
from simcoll.emulator.model import checked_time, flow_delay_fs
from simcoll.errors import ConfigError, InternalError

__all__ = ["check_clock", "check_end", "refuse"]


def check_clock(s: State) -> None:
    """Refuse flows that end beyond the range of the clock."""
    beyond = np.flatnonzero((s.phase == FLOW) & (s.rate > 0) & (s.finish_fs == MAX))
    ends = zip(
        s.since_fs[beyond].tolist(),
        s.remaining[beyond].tolist(),
        s.rate[beyond].tolist(),
        strict=True,
    )
    checked_time(
        min((since + flow_delay_fs(remaining, rate) for since, remaining, rate in ends), default=0)
    )


def check_end(s: State, wire: int) -> None:
    """Refuse an end with stuck lanes, or with delivered bytes other than ``wire``."""
    stuck = int(np.count_nonzero(s.lane_left) + np.count_nonzero(s.lane_pending))
    if stuck or (np.array(wire % 2**64, np.uint64).view(np.int64) != s.reg[DELIVERED]):
        raise InternalError(
            f"{stuck} lanes are stuck at {s.reg[NOW]} fs; links delivered {s.reg[DELIVERED]} of "
            f"{wire} bytes"
        )


def refuse(s: State, stop: int, link_name: Callable[[int], str]) -> NoReturn:
    """Raise the error of a run that stopped."""
    culprit, now_fs = int(s.reg[ARGUMENT]), int(s.reg[NOW])
    if stop == NO_RATE:
        hops = range(s.entry[culprit], s.entry[culprit] + s.hops[culprit])
        flows = {
            int(s.link[e]): int(s.flows[s.link[e]] if s.shared[e] else s.weight[e]) for e in hops
        }
        link = min(flows, key=lambda l: int(s.capacity[l]) // flows[l])
        raise ConfigError(
            f"link {link_name(link)}: {flows[link]} flows share {s.capacity[link]} micro-bytes per "
            "second, which "
            "leaves nothing for each; expected a larger capacity"
        )
    if stop == CLOCK:
        check_clock(s)
        checked_time(now_fs + max(culprit, MAX - now_fs + 1))
    raise InternalError(
        f"link {link_name(culprit)} carries {s.used[culprit]} uBps of {s.capacity[culprit]} at "
        f"{now_fs} fs"
    )
