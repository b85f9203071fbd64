"""A plan under the SimPy clock: every message, in every run."""

from __future__ import annotations

from functools import partial

import simpy

from simcoll.core.collector import collector_paused
from simcoll.emulator.events.capacities import CapacityTimeline
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.model import effective_capacities
from simcoll.emulator.reference.fabric import Calendar, Fabric
from simcoll.emulator.reference.link_changes import LinkChanges
from simcoll.emulator.reference.player import Player, Surroundings, links_now
from simcoll.emulator.reference.player_cut import cut_of_player, until_end
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result

__all__ = ["play_plan"]


def play_plan(request: Request) -> Result:
    """Play every message under the SimPy clock."""
    plan, topology, timeline = request.plan, request.topology, request.timeline
    capacity = effective_capacities(topology, plan.protocol)
    patience = None if timeline is None else timeline.policy.limit_fs
    fabric = Fabric(
        Calendar(simpy.Environment()), capacity, topology.link_name, patience_fs=patience
    )
    detours = Detours(topology) if timeline is not None and timeline.detours else None
    pace = None if timeline is None else timeline.pace
    buffers = request.storage, request.observer
    player = Player(
        plan,
        topology,
        fabric,
        *buffers,
        keep=request.keep,
        plan_summary=request.summary,
        surroundings=Surroundings(pace=pace, detours=detours),
    )
    ledger, cut = player.ledger, None
    if timeline is not None:
        changes = CapacityTimeline(timeline, capacity), fabric, lambda: ledger.complete
        LinkChanges(
            *changes, *(([detours], partial(links_now, detours)) if detours else ())
        ).start()
    player.start()
    with collector_paused():
        late = until_end(fabric)
    if timeline is not None and not ledger.complete:
        cut = cut_of_player(timeline, player, detours, late)
    else:
        player.check()
        player.check_fabric()
    return Result(
        plan,
        topology.name,
        "simpy",
        "",
        ledger.time_fs if cut is None else cut.time_fs,
        player.steps,
        ledger.messages,
        sum(ledger.bytes_by_op),
        player.switched,
        ledger.hash.hexdigest(),
        ledger.done_fs,
        cut=cut,
    )
