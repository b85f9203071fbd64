"""From a call to its plan: which algorithm, which schedule, and the proof.

Schedules, proofs and plans are kept per run, so that a program that makes the same call a thousand times pays once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.algorithms import find_algorithm
from simcoll.algorithms import schedule as make_schedule
from simcoll.algorithms.registry import ALGORITHMS, default_algorithm
from simcoll.binding import bind
from simcoll.core.protocol import Protocol
from simcoll.core.protocol import protocol as find_protocol
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.core.collective import Collective
    from simcoll.core.plan import Plan
    from simcoll.topology import Topology

__all__ = ["Choice", "Plans", "check_choice", "plan_for"]

Choice = str | Schedule | Mapping[str, Any] | Callable[[str, int, int], Any] | None
"""An algorithm's name; a schedule; one of these per collective; a function of (collective, ranks, bytes) that gives one;
None for the default.
"""

SMALL_BYTES = 65536
_SMALL = {"all_reduce": "recursive_doubling", "reduce": "tree", "broadcast": "tree"}
"""Up to ``SMALL_BYTES`` latency counts, and the fewest steps are best."""

KEPT_PLANS = 4096


@dataclass(slots=True, eq=False)
class Plans:
    """What the plans of a run are made from, and those already made.

    Attributes
    ----------
    topology
        Algorithms may look at it.
    protocol
        Costs of a message: a name, or the costs themselves.
    algorithm
        What collectives run when neither the call nor its group says.
    """

    topology: Topology
    protocol: str | Protocol
    algorithm: Choice = None
    made: dict[Any, Schedule] = field(default_factory=dict)
    schedules: dict[Any, Schedule] = field(default_factory=dict)
    plans: dict[Any, tuple[Plan, Any]] = field(default_factory=dict)


def check_choice(choice: Choice) -> None:
    """Refuse an algorithm that serves no collective.

    Raises
    ------
    ConfigError
        With the nearest valid name.
    """
    if isinstance(choice, str) and choice not in {algorithm.name for algorithm in ALGORITHMS}:
        find_algorithm("all_reduce", choice)  # raises, with the nearest
    elif isinstance(choice, Mapping):
        for kind, name in choice.items():
            if isinstance(name, str):
                find_algorithm(kind, name)


def _box(plans: Plans, endpoints: tuple[int, ...]) -> int | None:
    """Ranks per box, where the ranks fill boxes in order and evenly."""
    member = plans.topology.groups.get("box")
    if member is None:
        return None
    boxes = member[list(endpoints)]
    size = int((boxes == boxes[0]).sum())
    even = len(boxes) % size == 0 and np.array_equal(boxes, boxes[::size].repeat(size))
    return size if even else None


def _named(plans: Plans, name: str, collective: Collective, endpoints: tuple[int, ...]) -> Schedule:
    params: dict[str, Any] = {}
    if "box" in find_algorithm(collective.kind, name).params:
        box = _box(plans, endpoints)
        if box is not None and box > 1:
            params["box"] = box
    if "topology" not in find_algorithm(collective.kind, name).params:
        return make_schedule(collective, name, **params)
    # Made for these endpoints, at some cost.
    key = (name, collective, endpoints)
    if key not in plans.made:
        topology = plans.topology.with_ranks(list(endpoints))
        plans.made[key] = make_schedule(collective, name, topology=topology, **params)
    return plans.made[key]


def _schedule(
    plans: Plans, choices: tuple[Choice, ...], collective: Collective, endpoints: tuple[int, ...], total_bytes: int
) -> Schedule:
    """The schedule of the first choice that says something about the collective.

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
        serves = any(algorithm.name == choice for algorithm in ALGORITHMS if algorithm.collective == collective.kind)
        if serves or position == 0:
            return _named(plans, choice, collective, endpoints)
    small = _SMALL.get(collective.kind) if total_bytes <= SMALL_BYTES else None
    return make_schedule(collective, small or default_algorithm(collective))


def _costs(plans: Plans, schedule: Schedule) -> Protocol:
    given = plans.protocol
    if isinstance(given, Protocol):
        return given
    serving = [a.pattern for a in ALGORITHMS if (a.collective, a.name) == (schedule.collective.kind, schedule.name)]
    generation = plans.topology.traits.get("generation", "hopper")
    return find_protocol(given, pattern=serving[0] if serving else "ring", generation=generation)


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

    Raises
    ------
    ConfigError
        For an algorithm or protocol that does not exist or serve.
    ScheduleError
        For a schedule of the caller's own that is wrong.
    """
    named = tuple(
        id(choice) if isinstance(choice, (Schedule, Mapping)) or callable(choice) else choice for choice in choices
    )
    key = (collective, sizes, dtype, op, endpoints, named)
    known = plans.plans.get(key)
    if known is None:
        total = (sizes if isinstance(sizes, int) else int(np.max(sizes, initial=0))) * dtype.itemsize
        total *= max(collective.input_slots, collective.output_slots)
        chosen = _schedule(plans, choices, collective, endpoints, total)
        # Equal schedules share their proof: it is the expensive part.
        own = id(chosen) if chosen in choices else 0
        place = endpoints if "topology" in dict(chosen.params) else ()
        schedule = plans.schedules.setdefault((chosen.title, collective, own, place), chosen)
        count: Any = sizes if isinstance(sizes, int) else list(sizes)
        plan = bind(schedule, count, dtype, op, ranks=list(endpoints), protocol=_costs(plans, schedule))
        if len(plans.plans) >= KEPT_PLANS:
            plans.plans.clear()
        known = plans.plans[key] = (plan, choices)  # what has its id in the key stays alive
    return known[0]
