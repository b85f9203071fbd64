"""The emulator: plays a plan on a topology and yields its time, link by link, and its data.

``model`` defines all rules of time. ``run`` is the single entry point, ``request`` what it asks
for, ``result`` the record. ``ways`` lists the ways to play (``quotient_way``, ``fast_way``,
``reference_way``, ``reference_run``), and ``engine_choice`` has the thresholds between them.
``steps`` has what every engine needs of a plan; ``reference`` is the SimPy player, ``fast`` the
compiled loops, ``folding`` the classes of symmetric ranks and messages, ``programs`` many
operations at once, ``events`` what disturbs them. ``data`` holds the buffers and their limit,
``digest`` the trace hash, ``floor`` the latency floor, ``traces`` the timeline files. Nothing here
depends on particular protocols, algorithms or topology files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.lazy import lazy_attributes

if TYPE_CHECKING:
    from simcoll.emulator.reference.fabric import Calendar, Fabric
    from simcoll.emulator.reference.ledger import Observer
    from simcoll.emulator.reference.player import Player
    from simcoll.emulator.result import Result
    from simcoll.emulator.run import emulate
    from simcoll.emulator.traces.trace import Trace

__all__ = ["Calendar", "Fabric", "Observer", "Player", "Result", "Trace", "emulate"]

__getattr__, __dir__ = lazy_attributes(
    "simcoll.emulator",
    {
        "simcoll.emulator.reference.ledger": ["Observer"],
        "simcoll.emulator.reference.player": ["Player"],
        "simcoll.emulator.reference.fabric": ["Calendar", "Fabric"],
        "simcoll.emulator.result": ["Result"],
        "simcoll.emulator.run": ["emulate"],
        "simcoll.emulator.traces.trace": ["Trace"],
    },
)
