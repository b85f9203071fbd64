"""From a call to its plan: the choice of algorithm and schedule, and the proof.

Schedules, proofs and plans are cached per run, so that a call repeated a thousand times is planned once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simcoll.algorithms import ALGORITHMS, find_algorithm
from simcoll.algorithms.imported import UnservedError
from simcoll.binding import bind
from simcoll.core.collective import Collective
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError
from simcoll.libraries.plans import library_play
from simcoll.topology import Topology
from simcoll.tuning import costs, default_algorithm, schedule, schedule_on

__all__ = ["Choice", "Plans", "check_choice", "plan_for"]

Choice = str | Schedule | Mapping[str, Any] | Callable[[str, int, int], Any] | None
"""An algorithm's name; a schedule; one of these per collective; a function of (collective, ranks, bytes) that returns one; None for
the default.
"""

KEPT_PLANS = 4096


@dataclass(slots=True, eq=False)
class Plans:
    """The plans of a run: the inputs of new plans, and the plans already made.

    Attributes
    ----------
    topology
        The topology, which algorithms may use.
    protocol
        Costs of a message: a name, or the costs themselves.
    algorithm
        The algorithm for calls whose own arguments and group name none.
    library
        A communication library, whose choice of schedule and protocol then applies.
    """

    topology: Topology
    protocol: str | Protocol
    algorithm: Choice = None
    library: str | None = None
    made: dict[Any, Schedule] = field(default_factory=dict)
    schedules: dict[Any, Schedule] = field(default_factory=dict)
    plans: dict[Any, tuple[Plan, Any]] = field(default_factory=dict)


def check_choice(choice: Choice) -> None:
    """Refuse an algorithm that serves no collective; states the nearest one."""
    if isinstance(choice, str) and choice not in {algorithm.name for algorithm in ALGORITHMS}:
        with suppress(UnservedError):  # for another collective
            find_algorithm("all_reduce", choice)  # raises, stating the nearest
    elif isinstance(choice, Mapping):
        for kind, name in choice.items():
            if isinstance(name, str):
                find_algorithm(kind, name)


def _schedule(
    plans: Plans, choices: tuple[Choice, ...], collective: Collective, endpoints: tuple[int, ...], total_bytes: int
) -> Schedule | None:
    """The schedule of the first choice that applies to the collective; None if none does.

    The first choice is that of the call and must fit; those of the group and the world apply where they serve.
    """
    for position, given in enumerate(choices):
        choice = given
        if isinstance(choice, Mapping):
            choice = choice.get(collective.kind)
        elif callable(choice):
            choice = choice(collective.kind, collective.nranks, total_bytes)
        if choice is None:
            continue
        if isinstance(choice, Schedule):
            if choice.collective == collective:
                return choice
            if position == 0:
                raise ConfigError(
                    f"the call is {collective}; the schedule given as algorithm is for {choice.collective}"
                )
            continue
        if not isinstance(choice, str):
            raise ConfigError(f"algorithm {choice!r}: expected a name, a Schedule, a mapping or a function")
        served = [algorithm.collective for algorithm in ALGORITHMS if algorithm.name == choice]
        if not served or collective.kind in served or position == 0:
            try:
                return _made(plans, collective, choice, endpoints)
            except UnservedError:
                if position == 0:
                    raise
    return None


def _made(plans: Plans, collective: Collective, name: str, endpoints: tuple[int, ...]) -> Schedule:
    """The cached schedule of a named algorithm, with one channel."""
    key = (name, collective, endpoints)
    if key not in plans.made:
        topology = plans.topology.with_ranks(list(endpoints))
        plans.made[key] = schedule_on(collective, name, topology, most_channels=1)
    return plans.made[key]


def _chosen_by_library(
    plans: Plans, library: str, collective: Collective, endpoints: tuple[int, ...], total_bytes: int
) -> tuple[Schedule, Protocol]:
    """The library's schedule and protocol on these ranks; for another root or other pairs, its algorithm adapted to these."""
    topology = plans.topology.with_ranks(list(endpoints))
    found, protocol = library_play(collective.kind, total_bytes, topology, library=library)
    if found.collective != collective:
        params = {name: value for name, value in found.params if name in {"channels", "pieces"}}
        found = schedule_on(collective, found.name, topology, params)
    return found, protocol


def plan_for(
    plans: Plans,
    collective: Collective,
    sizes: int | tuple[Any, ...],
    dtype: np.dtype[Any],
    op: str,
    endpoints: tuple[int, ...],
    choices: tuple[Choice, ...],
) -> Plan:
    """The proved plan of a call.

    Raises the errors of an algorithm, a protocol or the caller's own schedule.
    """
    named = tuple(
        id(choice) if isinstance(choice, (Schedule, Mapping)) or callable(choice) else choice for choice in choices
    )
    key = (collective, sizes, dtype, op, endpoints, named)
    known = plans.plans.get(key)
    if known is None:
        total = (sizes if isinstance(sizes, int) else int(np.max(sizes, initial=0))) * dtype.itemsize
        total *= max(collective.input_slots, collective.output_slots)
        chosen, protocol = _schedule(plans, choices, collective, endpoints, total), None
        if chosen is None and plans.library is not None and len(endpoints) > 1:
            chosen, protocol = _chosen_by_library(plans, plans.library, collective, endpoints, total)
        if chosen is None:
            chosen = schedule(collective, default_algorithm(collective, total_bytes=total))
        # Equal schedules share their proof, which is the expensive part.
        own = id(chosen) if chosen in choices else 0
        place = endpoints if "topology" in dict(chosen.params) else ()
        kept = plans.schedules.setdefault((chosen.title, collective, own, place), chosen)
        count: Any = sizes if isinstance(sizes, int) else list(sizes)
        protocol = costs(plans.protocol, plans.topology, kept) if protocol is None else protocol
        plan = bind(kept, count, dtype, op, ranks=list(endpoints), protocol=protocol)
        if len(plans.plans) >= KEPT_PLANS:
            plans.plans.clear()
        known = plans.plans[key] = (plan, choices)  # objects whose ids are in the key stay alive
    return known[0]
