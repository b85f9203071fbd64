"""Runs in which no message waits for another: every lane has one step, so all start times are known
before anything is played.

Dispatches of unequal sizes, jitter and ECMP make every flow end at another time, and each end
changes the rates of many. :mod:`simcoll.emulator.fast.concurrent_flows` plays them without a
calendar, one connected part of the links after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.arrays import Links as Routes
from simcoll.core.protocol import Protocol
from simcoll.emulator.concurrent_arrays import play_arrays
from simcoll.emulator.digest import TraceHash
from simcoll.emulator.fast.compiled import COMPILED, announce_compiling
from simcoll.emulator.fast.concurrent_flows import (
    ENDED,
    NONE,
    OVERFULL,
    ROUNDS_KEPT,
    SPARE,
    Flows,
    LimitedFlows,
    LinkColumns,
    play_component,
)
from simcoll.emulator.request import Request
from simcoll.emulator.steps.pruning import Steps
from simcoll.emulator.steps.timed import Timed
from simcoll.errors import InternalError
from simcoll.topology.components import lowest_in_component

__all__ = ["ConcurrentOutcome", "play_flows", "waits_for_nothing"]

LATEST_FS = 2**62
"""Runs whose fixed delays are longer are left to the loops, which refuse them with their reason."""


MOST_PAIRS = 24
"""Pairs of links for each hop of a flow, up to which this way is the faster one: its rounds visit
all links of a component, the loops only those that an event disturbs. Where 128 ranks of a crossbar
send to 12 others (21 pairs), they take 0.04 s here and 0.07 s there; to 8 others (32 pairs), 0.04 s
here and 0.03 s there.
"""


class ConcurrentOutcome(NamedTuple):
    """The outcome of a run."""

    time_fs: int
    trace_hash: str
    done_fs: Ints


def waits_for_nothing(request: Request) -> bool:
    """Whether no message of a run waits for another."""
    counts = request.summary
    return (
        request.timeline is None
        and not counts.switched
        and int(counts.lane_steps.max(initial=0)) <= 1
        and not len(request.plan.wait_pairs[0])
    )


def play_flows(
    protocol: Protocol, stream: Sequence[Steps], capacity: Ints
) -> ConcurrentOutcome | None:
    """Play a run in which no message waits for another; ``None`` if one waits for room in a FIFO,
    few flows meet, a link leaves nothing to a flow, or the clock may not reach the end.
    """
    steps = [step for group, _ in stream for step in group]
    if not steps or _most_in_a_fifo(steps) > protocol.fifo_depth > 0:
        return None
    launch_fs = protocol.launch_fs
    sender_first = protocol.fifo_depth > 0
    delay_fs, wire, post_fs = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("delay_fs", "wire", "post_fs")
    )
    waits_fs = np.maximum(delay_fs, 0)
    if launch_fs + int(waits_fs.max(initial=0)) + int(post_fs.max(initial=0)) > LATEST_FS:
        return None
    start_fs: Ints = launch_fs + (np.zeros_like(waits_fs) if sender_first else waits_fs)
    rows = np.flatnonzero(wire > 0)
    ends = _ends(_joined_links(steps)[rows], wire[rows], start_fs[rows], capacity)
    if ends is None:
        return None
    end_fs = start_fs.copy()
    end_fs[rows] = ends
    latest_fs = int(end_fs.max(initial=0))
    if latest_fs > LATEST_FS:
        return None
    done_fs = end_fs + (waits_fs if sender_first else 0) + post_fs
    return ConcurrentOutcome(
        int(done_fs.max(initial=launch_fs)), _hash(steps, start_fs, end_fs, done_fs), done_fs
    )


def _most_in_a_fifo(steps: Sequence[Timed]) -> int:
    """The largest number of messages of one connection; all of them are in its FIFO at once."""
    sender, receiver, delay_fs = (
        np.concatenate(columns)
        for columns in zip(
            *((step.shape.sender, step.shape.receiver, step.delay_fs) for step in steps),
            strict=True,
        )
    )
    sent = delay_fs >= 0
    pairs = sender[sent] * (int(receiver.max(initial=0)) + 1) + receiver[sent]
    return int(np.unique(pairs, return_counts=True)[1].max(initial=0))


def _joined_links(steps: Sequence[Timed]) -> Routes:
    """The links of all rows, padded with -1."""
    width = max([1, *(step.shape.links.shape[1] for step in steps)])
    return np.concatenate(
        [
            np.pad(
                step.shape.links,
                ((0, 0), (0, width - step.shape.links.shape[1])),
                constant_values=-1,
            )
            for step in steps
        ]
    )


def _hash(steps: Sequence[Timed], start_fs: Ints, end_fs: Ints, done_fs: Ints) -> str:
    trace, begin = TraceHash(), 0
    for step in steps:
        rows = slice(begin, begin + len(step))
        ends = step.shape.src, step.shape.dst, step.size
        times = start_fs[rows], end_fs[rows], done_fs[rows]
        trace.add([np.arange(begin, begin + len(step)), *ends, *times])
        begin += len(step)
    return trace.hexdigest()


def _ends(links: Routes, wire: Ints, start_fs: Ints, capacity: Ints) -> Ints | None:
    """When each flow ends."""
    component = _components(links, len(capacity))
    by_component = np.argsort(component, kind="stable")
    begins = np.flatnonzero(np.diff(component[by_component], prepend=-1))
    end_fs = np.zeros(len(wire), np.int64)
    with announce_compiling(play_component):
        for rows in np.split(by_component, begins[1:]):
            if len(rows) and not _play(rows, links[rows], wire, start_fs, capacity, end_fs):
                return None
    return end_fs


def _components(links: Routes, count: int) -> Ints:
    """For each flow, the lowest of the links that it shares, or that those which share with it
    share, and so on.
    """
    first_link = np.repeat(links[:, :1], links.shape[1] - 1, axis=1)
    crossed = links[:, 1:] >= 0
    pairs = np.unique(
        first_link[crossed].astype(np.int64) * count + links[:, 1:][crossed].astype(np.int64)
    )
    lowest: Ints = lowest_in_component(count, *np.divmod(pairs, count))
    return lowest[links[:, 0]]


def _play(
    rows: Ints, links: Routes, wire: Ints, start_fs: Ints, capacity: Ints, end_fs: Ints
) -> bool:
    """Play the flows of a component, and enter their ends; return whether that worked."""
    used = np.unique(links[links >= 0])
    hops = int((links >= 0).sum())
    if len(used) ** 2 > MOST_PAIRS * hops:
        return False
    width = int((links >= 0).sum(axis=1).max())
    places = np.full(len(capacity) + 1, len(used), np.int32)
    places[used] = np.arange(len(used))
    columns = np.ascontiguousarray(places[links[:, :width]])  # -1 is the last place
    if not COMPILED:
        ends = play_arrays(columns, wire[rows], start_fs[rows], capacity[used])
        if ends is not None:
            end_fs[rows] = ends
        return ends is not None
    flows = Flows(
        columns,
        wire[rows].astype(np.float64),
        start_fs[rows],
        np.zeros(len(rows), np.int64),
        np.full(len(rows), NONE, np.int32),
        np.zeros(len(rows), np.int32),
        np.argsort(start_fs[rows], kind="stable").astype(np.int32),
    )
    status = play_component(flows, _no_groups(columns, len(used)), _links(columns, capacity[used]))
    if status == OVERFULL:
        raise InternalError("a link carries more than its capacity")
    end_fs[rows] = flows.end_fs
    return status == ENDED


def _no_groups(columns: Shorts, links: int) -> LimitedFlows:
    """Empty groups, with room for all flows of each link."""
    flows_on = np.bincount(columns.ravel(), minlength=links + 1)

    def each(kind: type[np.number[Any]] = np.int64, value: float = 0) -> Any:
        return np.full(links, value, kind)

    return LimitedFlows(
        np.cumsum(flows_on) - flows_on,
        each(),
        each(),
        each(),
        each(np.int8),
        each(np.int8),
        each(np.float64),
        each(np.int64, np.iinfo(np.int64).max),
        np.zeros((links, links + 1), np.int32),
        np.zeros(columns.size, np.int32),
        np.zeros(columns.size, np.float64),
        np.zeros(columns.size, np.int64),
    )


def _links(columns: Shorts, capacity: Ints) -> LinkColumns:
    """The links of a component before any flow begins."""
    links = len(capacity)
    shares = np.zeros((links // ROUNDS_KEPT + 1, 2, links), np.int64)
    shares[0, SPARE] = capacity
    lower, upper, flow = _meetings(columns, links)
    pairs = lower * links + upper
    lowest, beyond = np.full(links, links), np.zeros(links, np.int64)
    for link, neighbour in ((lower, upper), (upper, lower)):
        np.minimum.at(lowest, link, neighbour)
        np.maximum.at(beyond, link, neighbour + 1)
    order = np.arange(links, dtype=np.int32)
    room = 1 << (links - 1).bit_length()
    return LinkColumns(
        np.append(capacity, 0),
        np.full(links, np.iinfo(np.int64).max),
        capacity.copy(),
        np.zeros(links, np.int64),
        lowest,
        beyond,
        shares,
        order,
        order.copy(),
        np.zeros(links + 1, np.int32),
        np.zeros(links + 1, np.int32),
        np.zeros(room, np.int32),
        np.zeros(room, np.int64),
        np.zeros(2 * room, np.int32),
        np.searchsorted(pairs, np.arange(links * links + 1)),
        flow,
        np.zeros(len(columns), np.int32),
    )


def _meetings(columns: Shorts, links: int) -> tuple[Ints, Ints, Shorts]:
    """All pairs of links that a flow crosses, lower links first, and the flow, sorted by
    pair.
    """
    ones, twos = np.triu_indices(columns.shape[1], 1)
    hops = np.sort(columns, axis=1)  # that for no link comes last
    lower, upper = (hops[:, side].ravel().astype(np.int64) for side in (ones, twos))
    flow = np.repeat(np.arange(len(columns), dtype=np.int32), len(ones))
    rows = np.flatnonzero(upper < links)
    rows = rows[np.argsort(lower[rows] * links + upper[rows], kind="stable")]
    return lower[rows], upper[rows], flow[rows]
