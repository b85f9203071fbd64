"""From a call to something that can be played: which algorithm, which schedule, the plan, buffers to play it on.

Schedules, proofs and plans are kept per world, so that a program that does the same thing a thousand times pays once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.algorithms import find_algorithm
from simcoll.algorithms import schedule as make_schedule
from simcoll.algorithms.registry import ALGORITHMS, default_algorithm
from simcoll.binding import bind
from simcoll.core.plan import INPUT, Plan
from simcoll.core.protocol import Protocol
from simcoll.core.protocol import protocol as find_protocol
from simcoll.core.schedule import Schedule
from simcoll.emulator.dataplane import Storage
from simcoll.emulator.engine import Player
from simcoll.emulator.score import Score
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simcoll.core.collective import Collective
    from simcoll.distributed.runtime.world import World

    Array = NDArray[Any]

__all__ = ["Choice", "Stage", "check_choice", "give_back", "plan_for", "stage_for"]

Choice = str | Schedule | Mapping[str, Any] | Callable[[str, int, int], Any] | None
"""An algorithm's name; a schedule; one of these per collective; a function of (collective, ranks, bytes) that gives one;
None for the default.
"""

SMALL_BYTES = 65536
_SMALL = {"all_reduce": "recursive_doubling", "reduce": "tree", "broadcast": "tree"}
"""Up to ``SMALL_BYTES`` latency counts, and the fewest steps are best."""

KEPT_TRANSFERS = 1 << 16
KEPT_BYTES = 1 << 24
KEPT_PLANS = 4096


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


def _box(world: World, endpoints: tuple[int, ...]) -> int | None:
    """Ranks per box, where the ranks fill boxes in order and evenly."""
    member = world.topology.groups.get("box")
    if member is None:
        return None
    boxes = member[list(endpoints)]
    size = int((boxes == boxes[0]).sum())
    even = len(boxes) % size == 0 and np.array_equal(boxes, boxes[::size].repeat(size))
    return size if even else None


def _named(world: World, name: str, collective: Collective, endpoints: tuple[int, ...]) -> Schedule:
    params: dict[str, Any] = {}
    if "box" in find_algorithm(collective.kind, name).params:
        box = _box(world, endpoints)
        if box is not None and box > 1:
            params["box"] = box
    if "topology" not in find_algorithm(collective.kind, name).params:
        return make_schedule(collective, name, **params)
    # Made for these endpoints, at some cost.
    made: dict[Any, Schedule] = world.shared.setdefault("made", {})
    key = (name, collective, endpoints)
    if key not in made:
        made[key] = make_schedule(collective, name, topology=world.topology.with_ranks(list(endpoints)), **params)
    return made[key]


def _schedule(
    world: World, choices: tuple[Choice, ...], collective: Collective, endpoints: tuple[int, ...], total_bytes: int
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
            return _named(world, choice, collective, endpoints)
    small = _SMALL.get(collective.kind) if total_bytes <= SMALL_BYTES else None
    return make_schedule(collective, small or default_algorithm(collective))


def _costs(world: World, schedule: Schedule) -> Protocol:
    given = world.protocol
    if isinstance(given, Protocol):
        return given
    serving = [a.pattern for a in ALGORITHMS if (a.collective, a.name) == (schedule.collective.kind, schedule.name)]
    generation = world.topology.traits.get("generation", "hopper")
    return find_protocol(given, pattern=serving[0] if serving else "ring", generation=generation)


def plan_for(
    world: World,
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
    plans: dict[Any, tuple[Plan, Any]] = world.shared.setdefault("plans", {})
    named = tuple(
        id(choice) if isinstance(choice, (Schedule, Mapping)) or callable(choice) else choice for choice in choices
    )
    key = (collective, sizes, dtype, op, endpoints, named)
    known = plans.get(key)
    if known is None:
        total = (sizes if isinstance(sizes, int) else int(np.max(sizes, initial=0))) * dtype.itemsize
        total *= max(collective.input_slots, collective.output_slots)
        chosen = _schedule(world, choices, collective, endpoints, total)
        # Equal schedules share their proof: it is the expensive part.
        schedules: dict[Any, Schedule] = world.shared.setdefault("schedules", {})
        own = id(chosen) if chosen in choices else 0
        place = endpoints if "topology" in dict(chosen.params) else ()
        schedule = schedules.setdefault((chosen.title, collective, own, place), chosen)
        count: Any = sizes if isinstance(sizes, int) else list(sizes)
        plan = bind(schedule, count, dtype, op, ranks=list(endpoints), protocol=_costs(world, schedule))
        if len(plans) >= KEPT_PLANS:
            plans.clear()
        known = plans[key] = (plan, choices)  # what has its id in the key stays alive
    return known[0]


class Stage:
    """Buffers to play a plan on, apart from the caller's: a rank's input is filled in when the rank arrives.

    Attributes
    ----------
    inputs, outputs
        Per rank a flat array; ``None`` where there is none.
    """

    __slots__ = ("inputs", "outputs", "plan", "score", "size_bytes", "storage")

    def __init__(self, world: World, plan: Plan) -> None:
        self.plan = plan
        self.inputs: list[Array | None] = []
        for rank in range(plan.nranks):
            elements = plan.view(rank, INPUT)[2]
            self.inputs.append(np.zeros(elements, plan.dtype) if elements else None)
        self.storage = Storage(plan, self.inputs)
        self.outputs = self.storage.outputs()
        self.size_bytes = int(plan.buffer_elements().sum()) * plan.dtype.itemsize
        few = plan.proof is not None and plan.proof.transfers <= KEPT_TRANSFERS
        self.score = Score(plan, world.topology, world.fabric, self.storage) if few else None

    def player(self, world: World, left: Callable[[int], None]) -> Player:
        """A player that has not started."""
        return Player(self.plan, world.topology, world.fabric, self.storage, score=self.score, left=left)


def stage_for(world: World, plan: Plan) -> Stage:
    """A stage that nobody uses: a used one of the same plan, or a new one."""
    free: dict[int, list[Stage]] = world.shared.setdefault("stages", {})
    waiting = free.get(id(plan))
    return waiting.pop() if waiting else Stage(world, plan)


def give_back(world: World, stage: Stage) -> None:
    """Keep a stage for the next run of its plan, unless it is large."""
    held = world.shared.get("stage_bytes", 0) + stage.size_bytes
    if stage.score is not None and stage.size_bytes <= KEPT_BYTES and held <= 16 * KEPT_BYTES:
        free: dict[int, list[Stage]] = world.shared.setdefault("stages", {})
        free.setdefault(id(stage.plan), []).append(stage)
