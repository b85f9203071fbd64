"""Records of runs that events end early, equal for both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.arrays import Ints
from simcoll.emulator.events.capacities import CapacityTimeline
from simcoll.emulator.events.cut import Cut, CutMessage, cut_at
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.events.timeline import Timeline
from simcoll.emulator.reference.fabric import Fabric, OverdueError
from simcoll.emulator.reference.messages import Bundle, Message
from simcoll.emulator.reference.player import Player, links_now
from simcoll.errors import InternalError

if TYPE_CHECKING:
    from simcoll.emulator.fast.changing import Changes
    from simcoll.emulator.fast.cutting import Remains
    from simcoll.emulator.fast.driver import StepMachine


__all__ = ["changes_of", "cut_of_machine", "cut_of_player", "stranded_messages", "until_end"]


def until_end(fabric: Fabric) -> list[Any] | None:
    """Run until nothing more happens.

    Return the messages that waited too long for a link, if that ended the run.
    """
    try:
        fabric.env.run()
    except OverdueError as late:
        return late.items
    return None


def stranded_messages(
    fabric: Fabric, detours: Detours | None, late: list[Any] | None
) -> Iterator[tuple[Message, tuple[str, ...]]]:
    """The messages that wait for links that are down, or waited too long (``late``), each with the names of these links."""
    for flow in fabric.waiting() if late is None else late:
        links = tuple(sorted(map(fabric.link_name, fabric.down(links_now(detours, flow)))))
        for message in flow.messages if isinstance(flow, Bundle) else [flow]:
            yield message, links


def cut_of_player(timeline: Timeline, player: Player, detours: Detours | None, late: list[Any] | None) -> Cut:
    """The record of a SimPy run that ended early; ``late`` as from :func:`until_end`."""
    fabric = player.fabric
    stranded = stranded_messages(fabric, detours, late)
    messages = [CutMessage(m.id, m.sender.rank, m.receiver.rank, links) for m, links in stranded]
    waiting = player.end_early()
    ledger = player.ledger
    time_fs = ledger.time_fs if late is None else fabric.calendar.now
    payload = sum(ledger.bytes_by_op), ledger.dropped_bytes
    return cut_at(timeline, time_fs, messages, waiting, payload, aborted=late is not None)


def changes_of(
    timeline: Timeline,
    capacity: Ints,
    endpoints: Ints,
    stride: int,
    companions: Mapping[int, Sequence[int]] | None = None,
) -> Changes:
    """The changes by events during a run of the compiled loops, with ``stride`` lanes per rank.

    ``companions`` as in a CapacityTimeline.
    """
    from simcoll.emulator.fast.changing import BlockRoutes, Changes

    ways = BlockRoutes(Detours(timeline.topology), endpoints) if timeline.detours else None
    return Changes(CapacityTimeline(timeline, capacity.tolist(), companions), len(endpoints), stride, ways)


def cut_of_machine(
    timeline: Timeline, machine: StepMachine, link_name: Callable[[int], str], stride: int, planned_bytes: int
) -> tuple[Remains, Cut]:
    """The record of a compiled run that ended early.

    Raises
    ------
    InternalError
        When the bytes moved and the bytes dropped do not add up to the plan.
    """
    from simcoll.emulator.fast.cutting import remains

    record, s = remains(machine), machine.state
    payload = record.delivered_bytes, record.dropped_bytes
    if sum(payload) != planned_bytes:
        raise InternalError(f"delivered {payload[0]} bytes and dropped {payload[1]}; the plan has {planned_bytes}")
    waiting = np.unique(np.flatnonzero((s.lane_left > 0) | (s.lane_pending > 0)) // stride).tolist()
    messages = [
        CutMessage(message.number, message.src, message.dst, tuple(sorted(map(link_name, message.links))))
        for message in record.waiting
    ]
    return record, cut_at(timeline, record.time_fs, messages, waiting, payload, aborted=record.aborted)
