"""From a call to its plan: the choice of algorithm and schedule, and the proof.

Schedules, proofs and plans are cached per run, so that a call repeated a thousand times is planned
once.
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
from simcoll.libraries.plans import library_call
from simcoll.topology import Topology
from simcoll.tuning import costs, default_algorithm, schedule, schedule_on

__all__ = ["Choice", "Plans", "check_choice", "plan_for"]

Choice = str | Schedule | Mapping[str, Any] | Callable[[str, int, int], Any] | None
"""An algorithm's name; a schedule; one of these per collective; a function of (collective, ranks,
bytes) that returns one; None for the default.
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
    named_schedules: dict[Any, Schedule] = field(default_factory=dict)
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
    plans: Plans,
    choices: tuple[Choice, ...],
    collective: Collective,
    endpoints: tuple[int, ...],
    total_bytes: int,
) -> Schedule | None:
    """The schedule of the first choice that applies to the collective; None if none does.

    The first choice is that of the call and must fit; those of the group and the world apply where
    they serve.
    """
    for position, scoped_choice in enumerate(choices):
        choice = scoped_choice
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
                    f"the call is {collective}; the schedule given as algorithm is for "
                    f"{choice.collective}"
                )
            continue
        if not isinstance(choice, str):
            raise ConfigError(
                f"algorithm {choice!r}: expected a name, a Schedule, a mapping or a function"
            )
        served = [algorithm.collective for algorithm in ALGORITHMS if algorithm.name == choice]
        if not served or collective.kind in served or position == 0:
            try:
                return _cached_schedule(plans, collective, choice, endpoints)
            except UnservedError:
                if position == 0:
                    raise
    return None


def _cached_schedule(
    plans: Plans, collective: Collective, name: str, endpoints: tuple[int, ...]
) -> Schedule:
    """The cached schedule of a named algorithm, with one channel."""
    key = (name, collective, endpoints)
    if key not in plans.named_schedules:
        topology = plans.topology.with_ranks(list(endpoints))
        plans.named_schedules[key] = schedule_on(collective, name, topology, most_channels=1)
    return plans.named_schedules[key]


def _library_plan(
    plans: Plans,
    collective: Collective,
    count: Any,
    dtype: np.dtype[Any],
    op: str,
    endpoints: tuple[int, ...],
) -> Plan:
    """The library's plan on these ranks; for another root or other pairs, its algorithm adapted to
    these.
    """
    largest = count if isinstance(count, int) else int(np.max(count, initial=0))
    size_bytes = largest * dtype.itemsize * max(collective.input_slots, collective.output_slots)
    topology = plans.topology.with_ranks(list(endpoints))
    call = library_call(collective.kind, size_bytes, topology, library=plans.library)
    schedule_of_call = call.schedule
    if schedule_of_call.collective != collective:
        params = {
            name: value for name, value in schedule_of_call.params if name in {"channels", "pieces"}
        }
        schedule_of_call = schedule_on(collective, schedule_of_call.name, topology, params)
    shared_schedule = _schedule_in_common(plans, schedule_of_call, collective, endpoints)
    return call.bind(shared_schedule, count, dtype, op, np.array(endpoints))


def _schedule_in_common(
    plans: Plans,
    schedule_of_call: Schedule,
    collective: Collective,
    endpoints: tuple[int, ...],
    schedule_id: int = 0,
) -> Schedule:
    """An equal schedule of an earlier call, so that both share the proof, the expensive part."""
    topology_ranks = endpoints if "topology" in dict(schedule_of_call.params) else ()
    return plans.schedules.setdefault(
        (schedule_of_call.title, collective, schedule_id, topology_ranks), schedule_of_call
    )


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
    choice_ids = tuple(
        id(choice) if isinstance(choice, (Schedule, Mapping)) or callable(choice) else choice
        for choice in choices
    )
    key = (collective, sizes, dtype, op, endpoints, choice_ids)
    entry = plans.plans.get(key)
    if entry is None:
        total = (
            sizes if isinstance(sizes, int) else int(np.max(sizes, initial=0))
        ) * dtype.itemsize
        total *= max(collective.input_slots, collective.output_slots)
        count: Any = sizes if isinstance(sizes, int) else list(sizes)
        chosen_schedule = _schedule(plans, choices, collective, endpoints, total)
        if chosen_schedule is None and plans.library is not None and len(endpoints) > 1:
            plan = _library_plan(plans, collective, count, dtype, op, endpoints)
        else:
            if chosen_schedule is None:
                name = default_algorithm(collective, total_bytes=total)
                chosen_schedule = schedule(collective, name)
            schedule_id = id(chosen_schedule) if chosen_schedule in choices else 0
            shared_schedule = _schedule_in_common(
                plans, chosen_schedule, collective, endpoints, schedule_id
            )
            protocol = costs(plans.protocol, plans.topology, shared_schedule)
            plan = bind(shared_schedule, count, dtype, op, ranks=list(endpoints), protocol=protocol)
        if len(plans.plans) >= KEPT_PLANS:
            plans.plans.clear()
        entry = plans.plans[key] = (plan, choices)  # objects whose ids are in the key stay alive
    return entry[0]
