"""The way of the compiled loops: every message, in lock-step where no two flows meet, or as an
earlier run of the schedule left it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.facts import FactStore
from simcoll.emulator.engine_choice import PACED, WATCHED, deep_fifo, few, is_little, is_short
from simcoll.emulator.fast.compiled import COMPILED, UNCOMPILED
from simcoll.emulator.folding.remembered import memory_of, run_of_all
from simcoll.emulator.lockstep import LockStep, lockstep
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result, compiled_result
from simcoll.emulator.steps.plan_placement import placement_of
from simcoll.emulator.steps.run_links import all_links, check_switches
from simcoll.emulator.steps.timed import StepTimer, Timed, timed_steps
from simcoll.errors import InternalError

__all__ = [
    "FastWay",
    "beyond_loops",
    "play_concurrently",
    "play_every",
    "play_together",
    "plays_in_lockstep",
]


MOST_PRUNED = 1 << 20
"""Messages of a run whose links are judged before it: all its steps are in memory then, some 100
bytes a message.
"""
CROWDED = 8
"""Up to this number of messages for each rank in its largest step, links that can never bind stay:
to find them takes longer than to level them (pairwise all_to_all of 1,024 ranks on rails: 1.8 s
with the search, 1.3 s without; double_tree of 1,024: 0.10 and 0.04 s). With more, each start or end
of a flow changes the rates of others on those links (two_shot with jitter on DGX H100, 15 messages
for each of 16 ranks: 8 ms with the search, 11 ms without; 63 for each of 64: 3.6 and 7.8 s).
"""


@dataclass(frozen=True, slots=True, eq=False)
class _LockStepTry:
    """The attempt to play a run in lock-step; ``timer`` has made its steps."""

    run: LockStep | None
    timer: StepTimer


def _try_lockstep(request: Request) -> _LockStepTry:
    plan, topology, seen = request.plan, request.topology, request.summary
    timer = StepTimer(plan.protocol, topology, placement_of(plan, topology.nlinks), joint=True)
    if seen.switched or request.timeline is not None:
        return _LockStepTry(None, timer)
    capacity, placement, _ = all_links(plan, topology)
    run = lockstep(
        plan,
        topology,
        capacity,
        placement,
        seen.groups,
        keep=request.keep,
        timer=timer,
        in_arrays=_in_arrays(request),
    )
    return _LockStepTry(run, timer)


def _in_arrays(request: Request) -> bool:
    """Whether array operations play a run in lock-step: without a compiler, and where the run may
    be the only one and is through before the compiled loops were loaded.
    """
    if not COMPILED:
        return True
    if request.engine != FastWay.name and is_little(request.summary.messages):
        return True
    alone = request.engine == "auto" and not request.protocols
    return alone and is_short(request.summary.steps, request.summary.messages)


_lockstep_of: FactStore[Request, _LockStepTry] = FactStore(_try_lockstep)


def plays_in_lockstep(request: Request) -> bool:
    """Whether a run is one for lock-step: no two flows can meet on a link."""
    answers, protocol = memory_of(request).in_lockstep, request.plan.protocol
    # Delays, which differ from size to size in the runs of a table, move no flow to other links.
    caps = protocol.channel_rate_uBps, protocol.rank_rate_uBps
    if caps not in answers:
        answers[caps] = _lockstep_of(request).run is not None
    return answers[caps]


def beyond_loops(request: Request) -> str:
    """What the compiled loops cannot do for a run; empty if they can play it."""
    if request.observer is not None:
        return WATCHED
    if deep := deep_fifo(request.plan.protocol.fifo_depth):
        return deep
    paced = request.timeline is not None and request.timeline.pace is not None
    return PACED if paced and request.summary.switched else ""


class FastWay:
    """The compiled loops."""

    name = "fast"

    def refuses(self, request: Request) -> str | None:
        """What the loops cannot do, a run too small for them, and a machine without a compiler."""
        if beyond := beyond_loops(request):
            return beyond
        messages = request.summary.messages
        if request.engine != self.name and not request.quotient and is_little(messages):
            return few(messages)
        return None if COMPILED else UNCOMPILED

    def play(self, request: Request) -> Result:
        """Play every message; data is moved afterwards, step by step."""
        with run_of_all(request) as run:
            if run is not None:
                outcome = run.play(request)
                result = compiled_result(
                    request.plan,
                    request.topology.name,
                    request.summary,
                    outcome.time_fs,
                    outcome.trace_hash,
                )
            else:
                result = (
                    play_together(request)
                    or play_concurrently(request, _lockstep_of(request).timer)
                    or play_every(request, _lockstep_of(request).timer)
                )
        if request.storage is not None:
            request.storage.play()
        return result


def play_together(request: Request) -> Result | None:
    """Play every message in lock-step; ``None`` if flows may meet on a link."""
    run, seen = _lockstep_of(request).run, request.summary
    outcome = None if run is None else run.play()
    if outcome is None:
        return None
    if outcome.messages != seen.messages:
        raise InternalError(f"{outcome.messages} messages are done; the plan has {seen.messages}")
    return compiled_result(
        request.plan,
        request.topology.name,
        seen,
        outcome.time_fs,
        outcome.trace_hash,
        outcome.done_fs,
    )


def play_concurrently(request: Request, timer: StepTimer | None = None) -> Result | None:
    """Play a run in which no message waits for another, without a calendar; ``None`` for other
    runs, and for those that end in an error, which the loops explain.
    """
    from simcoll.emulator.concurrent_run import play_flows, waits_for_nothing  # imports numba
    from simcoll.emulator.steps.pruning import without_idle_links

    plan, topology, counts = request.plan, request.topology, request.summary
    if counts.messages > MOST_PRUNED or not waits_for_nothing(request):
        return None
    capacity, placement, _ = all_links(plan, topology)
    steps = tuple(timed_steps(plan, topology, placement, counts.groups, timer))
    outcome = play_flows(plan.protocol, without_idle_links(steps, capacity), capacity)
    if outcome is None:
        return None
    done_fs = outcome.done_fs if request.keep else None
    return compiled_result(
        plan, topology.name, counts, outcome.time_fs, outcome.trace_hash, done_fs
    )


def play_every(request: Request, timer: StepTimer | None = None) -> Result:
    """Play every message in the loops with a calendar; ``timer`` may have made the steps
    already.
    """
    from simcoll.emulator.fast.driver import StepMachine  # imports numba
    from simcoll.emulator.steps.pruning import without_idle_links

    if request.timeline is not None:
        from simcoll.emulator.interrupted import changes_of, cut_of_machine

    plan, topology, seen, timeline = (
        request.plan,
        request.topology,
        request.summary,
        request.timeline,
    )
    if seen.switched:
        check_switches(plan, topology)
    capacity, placement, name = all_links(plan, topology)
    end_fs = np.full(seen.messages, -1, np.int64) if request.keep else None

    def over(first: int, _timed: Timed, _start: Ints, _end: Ints, done_fs: Ints) -> None:
        if end_fs is not None:
            end_fs[first : first + len(done_fs)] = done_fs

    steps = timed_steps(plan, topology, placement, seen.groups, timer)
    crowded = seen.largest > CROWDED * plan.nranks
    if timeline is None and crowded and seen.messages <= MOST_PRUNED:
        steps = iter(without_idle_links(tuple(steps), capacity))
    machine = StepMachine(
        capacity,
        seen.lane_steps,
        steps,
        launch_fs=plan.protocol.launch_fs,
        fifo=plan.protocol.fifo_depth > 0,
        waits=plan.wait_pairs,
        on_step=over if request.keep else None,
        changes=None
        if timeline is None
        else changes_of(timeline, capacity, plan.ranks, plan.nchannels),
        most_messages=seen.messages,
    )
    machine.play(name)
    if timeline is not None and not machine.through:
        left, cut = cut_of_machine(timeline, machine, name, plan.nchannels, sum(seen.bytes_by_op))
        if end_fs is not None:
            end_fs[left.numbers] = left.done_fs
        result = compiled_result(plan, topology.name, seen, cut.time_fs, left.trace_hash, end_fs)
        return replace(result, messages=left.messages, bytes_moved=cut.delivered_bytes, cut=cut)
    if machine.messages != seen.messages or tuple(machine.bytes_by_op) != seen.bytes_by_op:
        raise InternalError(
            f"{machine.messages} messages moved {machine.bytes_by_op} bytes; the plan has "
            f"{seen.messages} and {seen.bytes_by_op}"
        )
    return compiled_result(plan, topology.name, seen, machine.time_fs, machine.hexdigest(), end_fs)
