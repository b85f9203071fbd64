"""State changes by events between two runs of the loops, compiled only when a run has events."""

from __future__ import annotations

from simcoll.arrays import Ints
from simcoll.emulator.fast.calendar import unlink
from simcoll.emulator.fast.compiled import entry
from simcoll.emulator.fast.rates import (
    FS_PER_SECOND_UBPS,
    find_private_rate,
    part_links,
    put_in_queue,
    put_on_links,
)
from simcoll.emulator.fast.sources import SOURCES
from simcoll.emulator.fast.state import FLOW, NOW, STARTED, State

__all__ = ["change", "move"]


@entry
def change(s: State, links: Ints, capacities: Ints, _sources: int = SOURCES) -> None:
    """Change link capacities."""
    for i in range(len(links)):
        s.capacity[links[i]] = capacities[i]
    for m in range(len(s.phase)):
        find_private_rate(s, m)
    for i in range(len(links)):
        l = links[i]
        if s.head[l] >= 0:
            s.level[l] = -1  # an impossible level, so that all dependents of the link are updated
        put_in_queue(s, l)


@entry
def move(s: State, slots: Ints, entries: Ints, links: Ints, _sources: int = SOURCES) -> None:
    """Move slots to other links, ``links[row]`` padded with -1, with hops from ``entries[row]`` on.

    Flows keep their remaining bytes.
    """
    r = s.reg
    for row in range(len(slots)):
        m = slots[row]
        flows, fresh = s.phase[m] == FLOW, s.finish_fs[m] < 0
        if flows:
            if s.rate[m] > 0:
                s.remaining[m] -= (
                    float(s.rate[m]) * float(r[NOW] - s.since_fs[m]) / FS_PER_SECOND_UBPS
                )
            if s.cover[m] < 0 and not fresh and s.key[m] > r[NOW]:
                unlink(s, m)
                s.key[m] = 0
            part_links(s, m)
        s.entry[m] = entries[row]
        count = 0
        for column in range(links.shape[1]):
            if links[row, column] < 0:
                break
            e = entries[row] + column
            s.link[e] = links[row, column]
            s.owner[e] = m
            s.weight[e] = 1
            s.shared[e] = 0
            count += 1
        s.hops[m] = count
        find_private_rate(s, m)
        if flows:
            s.rate[m] = 0
            s.cover[m] = s.finish_fs[m] = -1
            if not fresh:
                s.started[r[STARTED]] = m
                r[STARTED] += 1
            put_on_links(s, m)
