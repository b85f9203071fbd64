"""Events during a run: links that lose capacity, background traffic, ranks that slow down or stop.

``kinds`` defines the events and the policy for bytes that meet a dead link, ``reading`` their text
form, ``timeline`` their effect on a topology, ``pace`` the duration of work, ``outage_routes`` the
routes around dead links, ``capacities`` the links' shares change by change, ``cut`` the record of a
run that could not finish.
"""

from simcoll.emulator.events.cut import Cut, CutMessage
from simcoll.emulator.events.kinds import Background, Event, LinkShare, Policy, Slow, Stop
from simcoll.emulator.events.reading import parse_event, parse_events, parse_policy
from simcoll.emulator.events.timeline import Timeline, timeline_of

__all__ = [
    "Background",
    "Cut",
    "CutMessage",
    "Event",
    "LinkShare",
    "Policy",
    "Slow",
    "Stop",
    "Timeline",
    "parse_event",
    "parse_events",
    "parse_policy",
    "timeline_of",
]
