"""The choice of an engine, with its reason (SimPy, fast, or the quotient), and the ways of playing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import simpy

from simcoll.arrays import Ints
from simcoll.core.plan import Plan
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.events.capacities import CapacityTimeline
from simcoll.emulator.events.outage_routes import Detours
from simcoll.emulator.events.timeline import Timeline
from simcoll.emulator.fast.compiled import COMPILED, REMEDY, UNCOMPILED, is_warm
from simcoll.emulator.folding.expanding import Expansion
from simcoll.emulator.folding.quotient import no_quotient
from simcoll.emulator.folding.remembered import folded_first, folding, worth_folding
from simcoll.emulator.interrupted import changes_of, cut_of_machine, cut_of_player, until_end
from simcoll.emulator.model import effective_capacities
from simcoll.emulator.reference.fabric import Calendar, Fabric
from simcoll.emulator.reference.ledger import Observer
from simcoll.emulator.reference.link_changes import LinkChanges
from simcoll.emulator.reference.player import Player, links_now
from simcoll.emulator.reference.prepared import check_switches
from simcoll.emulator.result import Result
from simcoll.emulator.steps.plan_placement import Placement, placement_of
from simcoll.emulator.steps.step_columns import PlanSummary, summary
from simcoll.emulator.steps.timed import StepTimer, Timed, timed_steps
from simcoll.errors import ConfigError, InternalError, nearest
from simcoll.topology import Topology

__all__ = [
    "ENGINES",
    "all_links",
    "check_engine",
    "choose",
    "few_messages",
    "play_fast",
    "play_folded",
    "play_lockstep",
    "play_quotient",
    "play_simpy",
    "result_of",
]

ENGINES = ("auto", "simpy", "fast")
FEW_MESSAGES = 20_000
"""Up to this number of messages, SimPy finishes before the compiled loops are loaded."""
TOYS = 32
"""The same limit once the compiled loops are loaded."""
MANY_MESSAGES = 1 << 17
"""Up to this number of messages, the compiled loops play every message faster than classes are found."""
FEWEST_FOLDED = 1 << 12
"""Up to this number of messages, the compiled loops play every message as fast as known classes."""
LEAST_A_STEP = 64
"""Least average messages per step for folding: a step with few messages costs only the step's own overhead."""
MOST_HASHED = 1 << 20
"""Up to this number of messages, a quotient is expanded for the trace hash by default."""
PATIENCE = 32
"""Limit of refinement rounds: per row, one round costs as much as lock-step of a few times this many messages."""
DEEPEST_FIFO = 64
ASKED = "asked for"
"""The reason for an engine that the caller named."""


def few_messages() -> int:
    """The number of messages up to which SimPy finishes first in this process, in its current state."""
    return TOYS if is_warm() else FEW_MESSAGES


def check_engine(engine: str, quotient: bool | None) -> None:
    """Refuse an engine that does not exist, is not installed, or cannot play a requested quotient.

    Raises
    ------
    ConfigError
        States the valid choices.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine {engine!r} is not known; {nearest(str(engine), ENGINES)}")
    if engine == "fast" and not COMPILED:
        raise ConfigError(f"engine 'fast' needs numba: {REMEDY}")
    if engine == "simpy" and quotient:
        raise ConfigError("engine 'simpy' plays every message; expected engine='auto' with quotient=True")


def choose(
    plan: Plan,
    topology: Topology,
    engine: str,
    quotient: bool | None,
    *,
    watched: bool,
    timing_only: bool,
    timeline: Timeline | None = None,
) -> tuple[str, str, PlanSummary | None]:
    """``"simpy"``, ``"fast"`` or ``"quotient"``, the reason, and the first pass over the plan if it was made.

    Raises
    ------
    ConfigError
        As :func:`check_engine`.
    """
    check_engine(engine, quotient)
    if engine == "simpy":
        return "simpy", ASKED, None
    if watched:
        return "simpy", "an observer follows every transfer", None
    seen = summary(plan)
    if not 0 <= plan.protocol.fifo_depth <= DEEPEST_FIFO:
        return "simpy", f"fifo_depth {plan.protocol.fifo_depth} is more than {DEEPEST_FIFO}", seen
    if seen.switched and timeline is not None and timeline.pace is not None:
        return "simpy", "switches work with ranks that slow down or stop", seen
    if quotient is not False:
        reason = no_quotient(plan) if timing_only else "data is moved"
        if timeline is not None:
            reason = timeline.reason
        if not reason and (quotient or _folding_pays(plan, topology, seen, engine)):
            return "quotient", "", seen
        if quotient:
            return ("fast" if COMPILED else "simpy"), f"no quotient: {reason}", seen
    if engine == "fast":
        return "fast", ASKED, seen
    if seen.messages <= few_messages():
        return "simpy", f"only {seen.messages} messages", seen
    if not COMPILED:
        return "simpy", UNCOMPILED, seen
    return "fast", f"{seen.messages} messages", seen


def _folding_pays(plan: Plan, topology: Topology, seen: PlanSummary, engine: str) -> bool:
    """Whether finding classes pays off: steps repeat, or, without switches, messages are many or the schedule runs repeatedly."""
    if 4 * seen.rows <= seen.messages and seen.messages > (MANY_MESSAGES if COMPILED else FEW_MESSAGES):
        return True
    least = FEWEST_FOLDED if engine == "fast" else max(FEWEST_FOLDED, few_messages())
    if seen.switched or seen.messages <= max(least, LEAST_A_STEP * seen.steps):
        return False
    return worth_folding(plan, topology) or seen.messages > MOST_HASHED


def all_links(plan: Plan, topology: Topology) -> tuple[Ints, Placement, Callable[[int], str]]:
    """Capacities of all links, including those that cap rates; the placement of ranks; and link names."""
    capacity = np.array(effective_capacities(topology, plan.protocol), np.int64)
    links = topology.nlinks
    placement = placement_of(plan, links)
    caps = placement.caps
    if caps is None:
        return capacity, placement, topology.link_name

    def name(link: int) -> str:
        return topology.link_name(link) if link < links else caps.name(link - links)

    return np.concatenate([capacity, np.array(caps.rates, np.int64)]), placement, name


def play_simpy(
    plan: Plan,
    topology: Topology,
    seen: PlanSummary | None,
    why: str,
    storage: Storage | None,
    observer: Observer | None,
    *,
    keep: bool,
    timeline: Timeline | None = None,
) -> Result:
    """Play every message under the SimPy clock."""
    capacity = effective_capacities(topology, plan.protocol)
    patience = None if timeline is None else timeline.policy.limit_fs
    fabric = Fabric(Calendar(simpy.Environment()), capacity, topology.link_name, patience_fs=patience)
    detours = Detours(topology) if timeline is not None and timeline.detours else None
    pace = None if timeline is None else timeline.pace
    player = Player(plan, topology, fabric, storage, observer, keep=keep, plan_summary=seen, pace=pace, detours=detours)
    ledger, cut = player.ledger, None
    if timeline is not None:
        changes = CapacityTimeline(timeline, capacity), fabric, lambda: ledger.complete
        LinkChanges(*changes, *(([detours], partial(links_now, detours)) if detours else ())).start()
    player.start()
    with _collector_paused():
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
        why,
        ledger.time_fs if cut is None else cut.time_fs,
        player.steps,
        ledger.messages,
        sum(ledger.bytes_by_op),
        player.switched,
        ledger.hash.hexdigest(),
        ledger.done_fs,
        cut=cut,
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's cycle collector during a run: it would scan all messages in flight repeatedly, in vain."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def play_lockstep(
    plan: Plan, topology: Topology, seen: PlanSummary, *, keep: bool, timer: StepTimer | None = None
) -> Result | None:
    """Play every message step by step; ``None`` if flows may share a link. The ``timer`` may serve :func:`play_fast` next."""
    from simcoll.emulator.lockstep import lockstep  # imports numba

    if seen.switched:
        return None
    capacity, placement, _ = all_links(plan, topology)
    played = lockstep(plan, topology, capacity, placement, seen.groups, keep=keep, timer=timer)
    if played is None:
        return None
    if played.messages != seen.messages:
        raise InternalError(f"{played.messages} messages are done; the plan has {seen.messages}")
    why = f"lock-step: no two of {seen.messages} messages meet on a link"
    return result_of(plan, topology, why, seen, played.time_fs, played.trace_hash, played.done_fs)


def play_fast(
    plan: Plan,
    topology: Topology,
    seen: PlanSummary,
    why: str,
    *,
    keep: bool,
    timeline: Timeline | None = None,
    timer: StepTimer | None = None,
) -> Result:
    """Play every message with the compiled loops."""
    from simcoll.emulator.fast.driver import StepMachine  # imports numba

    if seen.switched:
        check_switches(plan, topology)
    capacity, placement, name = all_links(plan, topology)
    done = np.full(seen.messages, -1, np.int64) if keep else None

    def over(first: int, _timed: Timed, _start: Ints, _end: Ints, done_fs: Ints) -> None:
        if done is not None:
            done[first : first + len(done_fs)] = done_fs

    machine = StepMachine(
        capacity,
        seen.lane_steps,
        timed_steps(plan, topology, placement, seen.groups, timer),
        launch_fs=plan.protocol.launch_fs,
        fifo=plan.protocol.fifo_depth > 0,
        waits=plan.wait_pairs,
        on_step=over if keep else None,
        changes=None if timeline is None else changes_of(timeline, capacity, plan.ranks, plan.nchannels),
    )
    machine.play(name)
    if timeline is not None and not machine.through:
        left, cut = cut_of_machine(timeline, machine, name, plan.nchannels, sum(seen.bytes_by_op))
        if done is not None:
            done[left.numbers] = left.done_fs
        result = result_of(plan, topology, why, seen, cut.time_fs, left.trace_hash, done)
        return replace(result, messages=left.messages, bytes_moved=cut.delivered_bytes, cut=cut)
    if machine.messages != seen.messages or tuple(machine.bytes_by_op) != seen.bytes_by_op:
        raise InternalError(
            f"{machine.messages} messages moved {machine.bytes_by_op} bytes; the plan has {seen.messages} and {seen.bytes_by_op}"
        )
    return result_of(plan, topology, why, seen, machine.time_fs, machine.hexdigest(), done)


def result_of(
    plan: Plan,
    topology: Topology,
    why: str,
    seen: PlanSummary,
    time_fs: int,
    trace_hash: str,
    done: Ints | None,
    classes: int | None = None,
) -> Result:
    """The record of a compiled run; ``why`` is the reason for the engine."""
    moved = sum(seen.bytes_by_op)
    return Result(
        plan,
        topology.name,
        "fast",
        why,
        time_fs,
        seen.steps,
        seen.messages,
        moved,
        seen.switched,
        trace_hash,
        done,
        classes,
    )


def play_folded(plan: Plan, topology: Topology, seen: PlanSummary, *, keep: bool) -> Result | str:
    """Play one message of every class or, where that is faster, all messages in lock-step.

    Returns the reason if neither is possible.
    """
    if folded_first(plan, topology):
        return play_quotient(plan, topology, seen, keep=keep, worth_it=True)
    few = seen.messages <= MOST_HASHED
    together = play_lockstep(plan, topology, seen, keep=keep) if COMPILED and few else None
    if together is not None:
        return together
    patience = seen.messages // (PATIENCE * seen.rows) if COMPILED and not few else None
    if patience != 0:
        folded = play_quotient(plan, topology, seen, keep=keep, worth_it=True, patience=patience)
        if isinstance(folded, Result) or patience is None:
            return folded
    together = play_lockstep(plan, topology, seen, keep=keep)
    return together or play_quotient(plan, topology, seen, keep=keep, worth_it=True)


def play_quotient(
    plan: Plan, topology: Topology, seen: PlanSummary, *, keep: bool, worth_it: bool, patience: int | None = None
) -> Result | str:
    """Play one message of every class, or return the reason why not.

    With ``keep``, and for up to a million messages, the times of all messages are expanded. Without numba the same loops run as Python.
    ``patience`` limits the rounds of refinement.
    """
    from simcoll.emulator.fast.driver import StepMachine  # imports numba

    if seen.switched:
        check_switches(plan, topology)
    capacity, placement, name = all_links(plan, topology)
    expanded = keep or seen.messages <= MOST_HASHED
    found = folding(plan, topology, seen, placement, capacity, expanded=expanded, worth_it=worth_it, patience=patience)
    if isinstance(found, str):
        return found
    expansion = Expansion(found, seen.messages, keep=keep) if expanded else None
    machine = StepMachine(
        found.capacity,
        found.lane_steps,
        found.stream(),
        launch_fs=plan.protocol.launch_fs,
        fifo=plan.protocol.fifo_depth > 0,
        hashed=False,
        on_step=expansion,
    )
    machine.play(lambda link: f"class {link}, for example {name(int(found.links[link]))}")
    if machine.messages != found.messages:
        raise InternalError(f"{machine.messages} of {found.messages} messages of the quotient are done")
    why = f"quotient: {found.messages} classes stand for {seen.messages} messages"
    if expansion is None:
        why = f"{why}; too many for a trace hash"
        return result_of(plan, topology, why, seen, machine.time_fs, "", None, machine.messages)
    trace_hash = expansion.hash.hexdigest()
    return result_of(plan, topology, why, seen, machine.time_fs, trace_hash, expansion.done_fs, machine.messages)
