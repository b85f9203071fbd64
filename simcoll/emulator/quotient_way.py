"""The way of classes: one message of every class of messages that provably behave alike, played by
the compiled loops.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from simcoll.arrays import Ints
from simcoll.core.facts import FactStore
from simcoll.core.plan import Plan
from simcoll.emulator.engine_choice import (
    ASKED,
    MOST_HASHED,
    MOST_SLOTS,
    PATIENCE,
    few,
    few_classes_pay,
    is_little,
)
from simcoll.emulator.fast.compiled import COMPILED, UNCOMPILED
from simcoll.emulator.fast_way import beyond_loops, plays_in_lockstep
from simcoll.emulator.folding.remembered import (
    FEWEST_FOLDED,
    LEAST_A_STEP,
    TOO_MANY_CLASSES,
    classes_first,
    classes_of,
    classes_with_caps,
    count_run,
    folded_rows,
    has_folded_rows,
    run_of_classes,
)
from simcoll.emulator.model import checked_time
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result, compiled_result
from simcoll.emulator.steps.run_links import all_links, check_switches
from simcoll.errors import InternalError
from simcoll.topology import Topology

if TYPE_CHECKING:
    from simcoll.emulator.folding.loaded_run import LoadedOutcome, LoadedRun
    from simcoll.emulator.folding.unpriced import Folding

__all__ = ["QuotientWay", "count_classes", "no_quotient"]


class QuotientWay:
    """Classes of messages; the loops of the fast engine play them, with or without a compiler."""

    name = "fast"

    def refuses(self, request: Request) -> str | None:
        """What rules out classes, or makes looking for them slower than playing every message; or
        why there are none.
        """
        if beyond := beyond_loops(request):
            return beyond
        if request.quotient is False or (
            request.quotient is None and request.summary.messages <= FEWEST_FOLDED
        ):
            return _too_small(request)
        unloadable = _unloadable_of(request)
        if unloadable not in {NOT_FIRST, TOO_MANY_CLASSES}:
            return f"no quotient: {unloadable}" if unloadable else None
        reason = _unlike(request)
        if request.quotient and reason:
            return f"no quotient: {reason}"
        if not request.quotient and (reason or not _classes_pay(request)):
            return _too_small(request)
        classes = _classes_of(request)
        if classes is LOCKSTEP:
            return _too_small(request)
        return f"no quotient: {classes}" if isinstance(classes, str) else None

    def play(self, request: Request) -> Result:
        """Play one message of every class, and expand the times of all messages, or only the trace
        hash.
        """
        plan, seen = request.plan, request.summary
        if seen.switched:
            check_switches(plan, request.topology)
        with _lend_classes(request) as run:
            if run is None:
                outcome, done_fs = _play_stream(request)
            else:
                outcome, done_fs = run.play(request), None
        classes = outcome.classes or 0
        path = f"quotient: {classes} classes stand for {seen.messages} messages"
        if not outcome.trace_hash:
            path = f"{path}; too many for a trace hash"
        return compiled_result(
            plan,
            request.topology.name,
            seen,
            outcome.time_fs,
            outcome.trace_hash,
            done_fs,
            classes,
            path=path,
        )


def count_classes(plan: Plan, topology: Topology) -> int:
    """The number of classes of a run that is going to come again; its number of messages if it has
    none, or if lock-step takes less time than looking for them.
    """
    request = Request(plan, topology)
    messages = request.summary.messages
    together = plays_in_lockstep(request)
    classes = no_quotient(plan) or classes_of(
        request,
        plan,
        worth_it=together,
        expanded=messages <= MOST_HASHED,
        patience=max(1, messages // (PATIENCE * request.summary.rows)) if together else None,
    )
    return messages if isinstance(classes, str) else classes.quotient.messages


LOCKSTEP = "lock-step is faster"
NOT_FIRST = "this run may be the only one"


def _unloadable(request: Request) -> str:
    """Why the classes of a run that repeats are not loaded; empty if they are."""
    if not classes_first(request):
        return NOT_FIRST
    classes = "" if has_folded_rows(request) else folded_rows(request)
    return classes if isinstance(classes, str) else ""


_unloadable_of: FactStore[Request, str] = FactStore(_unloadable)


def _too_small(request: Request) -> str:
    """Why every message is played although classes may exist: the run is not large enough."""
    messages = request.summary.messages
    if request.engine == "fast":
        return ASKED
    if not request.quotient and is_little(messages):
        return few(messages)
    return f"{messages} messages" if COMPILED else UNCOMPILED


def no_quotient(plan: Plan) -> str:
    """Why a plan has no quotient whatever its symmetry; empty if none is ruled out."""
    if plan.protocol.jitter_fs:
        return "jitter makes every message different"
    if len(plan.wait_pairs[0]):
        return "messages of different channels wait for each other"
    return ""


def _unlike(request: Request) -> str:
    """Why messages cannot share classes, whatever their symmetry; empty if they might."""
    if request.timeline is not None:
        return request.timeline.reason
    if request.storage is not None:
        return "data is moved"
    if request.summary.switched:
        return "switches multicast or reduce"
    return no_quotient(request.plan)


def _classes_pay(request: Request) -> bool:
    """Whether looking for classes may be faster than playing every message: steps repeat, or
    messages are many.
    """
    seen = request.summary
    if few_classes_pay(seen.rows, seen.messages):
        return True
    return seen.messages > max(MOST_HASHED, LEAST_A_STEP * seen.steps)


def _classes(request: Request) -> Folding | str:
    """The classes; or why there are none, or that lock-step is faster.

    The run of a table has found its classes already, and those that are too many to be loaded are
    still far fewer than its messages. Else lock-step may be faster: both look at the whole run, so
    the one that takes less time, and mostly has an answer, comes first: lock-step up to a million
    messages; beyond, where the trace hash makes it slow, refinement for as long as lock-step would
    take.
    """
    seen, plan = request.summary, request.plan
    hashed = seen.messages <= MOST_HASHED
    expanded = request.keep or hashed
    if request.quotient:
        return classes_of(request, plan, worth_it=False, expanded=expanded)
    if not expanded and _unloadable_of(request) == TOO_MANY_CLASSES:
        return classes_with_caps(request)
    if COMPILED:
        patience = 0 if hashed else seen.messages // (PATIENCE * seen.rows)
        if patience:
            classes = classes_of(request, plan, worth_it=True, expanded=expanded, patience=patience)
            if not isinstance(classes, str):
                return classes
        if plays_in_lockstep(request):
            return LOCKSTEP
    return classes_of(request, plan, worth_it=True, expanded=expanded)


_classes_of: FactStore[Request, Folding | str] = FactStore(_classes)


def _lend_classes(request: Request) -> AbstractContextManager[LoadedRun | None]:
    """The loaded run of the classes, if the schedule runs repeatedly and its classes are not too
    many.
    """
    serves = count_run(request)
    if not _unloadable_of(request):
        return run_of_classes(request, None)
    classes = _classes_of(request)
    if not serves or isinstance(classes, str) or classes.quotient.messages > MOST_SLOTS:
        return nullcontext(None)
    return run_of_classes(request, classes)


def _play_stream(request: Request) -> tuple[LoadedOutcome, Ints | None]:
    """Play one message of every class, loading its steps when they are needed."""
    from simcoll.emulator.fast.driver import StepMachine  # imports numba
    from simcoll.emulator.folding.expanding import Expansion
    from simcoll.emulator.folding.loaded_run import LoadedOutcome
    from simcoll.emulator.folding.periods import periods_of

    plan, seen, classes = request.plan, request.summary, _classes_of(request)
    if isinstance(classes, str):
        raise InternalError(f"{plan} has no classes to play: {classes}")
    quotient = classes.timed(plan, request.topology)
    expanded = request.keep or seen.messages <= MOST_HASHED
    expansion = Expansion(quotient, seen.messages, keep=request.keep) if expanded else None
    periodic = None if expanded or plan.protocol.fifo_depth else periods_of(quotient)
    machine = StepMachine(
        quotient.capacity,
        quotient.lane_steps,
        quotient.stream() if periodic is None else periodic.stream(),
        launch_fs=plan.protocol.launch_fs,
        fifo=plan.protocol.fifo_depth > 0,
        hashed=False,
        on_step=periodic or expansion,
    )
    if periodic is not None:
        periodic.lane_left = machine.state.lane_left

    def name(link: int) -> str:
        """A link in the reason of a refusal; names are not looked up for anything else."""
        link_name = all_links(plan, request.topology)[2]
        return f"class {link}, for example {link_name(int(quotient.links[link]))}"

    machine.play(name)
    messages = machine.messages + (periodic.left_out if periodic else 0)
    if messages != quotient.messages:
        raise InternalError(f"{messages} of {quotient.messages} messages of the quotient are done")
    if expansion is None:
        time_fs = checked_time(machine.time_fs + (periodic.left_out_fs if periodic else 0))
        return LoadedOutcome(time_fs, "", quotient.messages), None
    return LoadedOutcome(
        machine.time_fs, expansion.hash.hexdigest(), machine.messages
    ), expansion.done_fs
