"""Runs of the reference engine that events end early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simcoll.emulator.events.cut import Cut, CutMessage, cut_at
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.events.timeline import Timeline
from simcoll.emulator.reference.fabric import Fabric, OverdueError
from simcoll.emulator.reference.messages import Bundle, Message
from simcoll.emulator.reference.player import Player, links_now

__all__ = ["cut_of_player", "stranded_messages", "until_end"]


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
    """The messages that wait for links that are down, or waited too long (``late``), each with the
    names of these links.
    """
    for flow in fabric.waiting() if late is None else late:
        links = tuple(sorted(map(fabric.link_name, fabric.down(links_now(detours, flow)))))
        for message in flow.messages if isinstance(flow, Bundle) else [flow]:
            yield message, links


def cut_of_player(
    timeline: Timeline, player: Player, detours: Detours | None, late: list[Any] | None
) -> Cut:
    """The record of a SimPy run that ended early; ``late`` as from :func:`until_end`."""
    fabric = player.fabric
    stranded = stranded_messages(fabric, detours, late)
    messages = [CutMessage(m.id, m.sender.rank, m.receiver.rank, links) for m, links in stranded]
    waiting = player.end_early()
    ledger = player.ledger
    time_fs = ledger.time_fs if late is None else fabric.calendar.now
    payload = sum(ledger.bytes_by_op), ledger.dropped_bytes
    return cut_at(timeline, time_fs, messages, waiting, payload, aborted=late is not None)
