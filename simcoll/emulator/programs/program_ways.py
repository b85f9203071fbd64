"""The ways to play a program: one row of every class, every row, every operation under SimPy.

They are to a program what those of ``emulator/ways.py`` are to a plan, and are chosen by the same
loop (:func:`simcoll.emulator.engine_choice.choose_way`). A refusal depends on the request alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simcoll.core.facts import FactStore
from simcoll.core.plan import Plan
from simcoll.core.reference import count_wrong, exact_inputs, expected_outputs
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.data.stepwise import data_errors
from simcoll.emulator.engine_choice import (
    ASKED,
    MOST_HASHED,
    PACED,
    PATIENCE,
    WATCHED,
    EngineWay,
    deep_fifo,
    few,
    few_classes_pay,
    is_little,
)
from simcoll.emulator.fast.compiled import COMPILED, UNCOMPILED
from simcoll.emulator.folding.quotient import Quotient
from simcoll.emulator.lockstep import LockStep, lockstep_program
from simcoll.emulator.programs.compiled_programs import (
    ProgramOutcome,
    fold_program,
    play_all,
    play_classes,
)
from simcoll.emulator.programs.operations import rank_array
from simcoll.emulator.programs.program_player import HashedRow, ProgramPlayer
from simcoll.emulator.programs.program_request import ProgramRequest
from simcoll.emulator.programs.program_result import OperationTimes, ProgramResult
from simcoll.emulator.programs.resources import calls_of
from simcoll.emulator.steps.step_columns import summary
from simcoll.errors import InternalError

__all__ = ["PROGRAM_WAYS"]


class ProgramClassesWay:
    """One row of every class of rows that provably behave alike."""

    name = "fast"

    def refuses(self, request: ProgramRequest) -> str | None:
        """What rules out classes, or makes looking for them slower than playing every row; or why
        there are none.
        """
        if beyond := _beyond_loops(request):
            return beyond
        if request.quotient is False:
            return _too_small(request)
        unlike = _unlike(request)
        if request.quotient and unlike:
            return f"no quotient: {unlike}"
        rows = request.timed_program
        if unlike or not (request.quotient or few_classes_pay(rows.distinct, rows.rows)):
            return _too_small(request)
        if request.quotient is None and rows.rows <= MOST_HASHED and _lockstep_of(request):
            return _too_small(request)
        classes = _classes_of(request)
        return f"no quotient: {classes}" if isinstance(classes, str) else None

    def play(self, request: ProgramRequest) -> ProgramResult:
        """Play one row of every class, and expand the times of all, or only the trace hash."""
        classes, lowered = _classes_of(request), request.timed_program
        if isinstance(classes, str):
            raise InternalError(f"{request.program} has no classes to play: {classes}")
        hashed = request.hashed and (bool(request.keep) or lowered.messages <= MOST_HASHED)
        outcome = play_classes(lowered, classes, keep=request.keep, hashed=hashed)
        path = f"quotient: {outcome.classes} classes stand for {lowered.rows} rows"
        return _compiled_result(request, outcome, path)


class ProgramLoopsWay:
    """The compiled loops, with every row."""

    name = "fast"

    def refuses(self, request: ProgramRequest) -> str | None:
        """What the loops cannot do, a run too small for them, and a machine without a compiler."""
        if beyond := _beyond_loops(request):
            return beyond
        rows = request.timed_program.rows
        if request.engine != self.name and not request.quotient and is_little(rows):
            return few(rows, "rows")
        return None if COMPILED else UNCOMPILED

    def play(self, request: ProgramRequest) -> ProgramResult:
        """Play every row, in lock-step if that suffices; data is moved afterwards, group by
        group.
        """
        if (ends := _play_in_lockstep(request)) is not None:
            return ends
        outcome = play_all(request.timed_program, keep=request.keep, timeline=request.timeline)
        result = _compiled_result(request, outcome)
        if not request.moves_data or result.cut is not None:
            return result
        wrong = sum(data_errors(plan, seed) for _, plan, seed in _groups(request))
        return replace(result, data="exact", wrong=wrong)


def _play_in_lockstep(request: ProgramRequest) -> ProgramResult | None:
    """The ends of the ranks of a program of one call; ``None`` where flows may meet on a link, or
    more is needed.

    CPU seconds of a ring all_gather in two groups of 1,024 ranks on GB200 NVL72, racks of which
    hold 32 to 72 of them, 2.1 million messages: 1.6 in the loops, 0.05 here.
    """
    if not _lockstep_of(request):
        return None
    (run,), lowered = _lockstep_of(request), request.timed_program
    outcome = run.play()
    if outcome is None:
        return None
    if outcome.messages != lowered.messages:
        raise InternalError(f"{outcome.messages} of {lowered.messages} messages are done")
    times = None
    if request.keep:
        ((number, call),) = calls_of(request.program)
        ends = run.entered_fs.reshape(request.program.nranks, -1).max(axis=1)
        end_fs = ends[call.groups.reshape(-1)]
        times = {number: OperationTimes(np.zeros_like(end_fs), end_fs)}
    return _compiled_result(request, ProgramOutcome(outcome.time_fs, "", None, times=times))


class ProgramPlayersWay:
    """A player of the reference engine for each operation, under one SimPy clock."""

    name = "simpy"

    def refuses(self, _request: ProgramRequest) -> str | None:
        """Nothing."""
        return None

    def play(self, request: ProgramRequest) -> ProgramResult:
        """Play every operation, with its data if it is moved."""
        storages: dict[tuple[int, int], Storage] = {}
        if request.moves_data:
            for group, plan, seed in _groups(request):
                storages[group] = Storage(plan, exact_inputs(plan, seed))
        result = _play_simpy(request, storages)
        if not request.moves_data or result.cut is not None:
            return result
        wrong = sum(
            count_wrong(storages[group].outputs(), expected_outputs(plan, exact_inputs(plan, seed)))
            for group, plan, seed in _groups(request)
        )
        return replace(result, data="exact", wrong=wrong)


PROGRAM_WAYS: tuple[EngineWay[ProgramRequest, ProgramResult], ...] = (
    ProgramClassesWay(),
    ProgramLoopsWay(),
    ProgramPlayersWay(),
)
"""In the order in which they are asked; the last one refuses nothing."""


def _beyond_loops(request: ProgramRequest) -> str:
    """What the compiled loops cannot do for a run; empty if they can play it."""
    if request.observer is not None:
        return WATCHED
    paced = request.timeline is not None and request.timeline.pace is not None
    for number, call in calls_of(request.program):
        if deep := deep_fifo(call.plan.protocol.fifo_depth):
            return deep
        if call.plan.waits:
            return f"operation {number} has messages of different channels that wait for each other"
        if paced and summary(call.plan).switched:
            return PACED
    return ""


def _unlike(request: ProgramRequest) -> str:
    """Why rows cannot share classes, whatever their symmetry; empty if they might."""
    if request.timeline is not None:
        return request.timeline.reason
    if request.timed_program.jittered:
        return "jitter makes every message different"
    return "data is moved" if request.moves_data else ""


def _too_small(request: ProgramRequest) -> str:
    """Why every row is played although classes may exist: the run is not large enough."""
    rows = request.timed_program.rows
    if request.engine == "fast":
        return ASKED
    if is_little(rows):
        return few(rows, "rows")
    return f"{rows} rows" if COMPILED else UNCOMPILED


def _try_lockstep(request: ProgramRequest) -> tuple[LockStep, ...]:
    """The run of a program in lock-step; empty if there is none."""
    program = request.program
    if request.hashed or request.keep is True or len(program.operations) != 1:
        return ()
    plans = [call.plan for _, call in calls_of(program) if not summary(call.plan).switched]
    if not plans or _unlike(request) or np.any(program.starts_fs):
        return ()
    (plan,), lowered = plans, request.timed_program
    resources = lowered.resources
    run = lockstep_program(lowered.stream, plan.protocol, resources.lanes, resources.capacity)
    return () if run is None else (run,)


_lockstep_of: FactStore[ProgramRequest, tuple[LockStep, ...]] = FactStore(_try_lockstep)


def _classes(request: ProgramRequest) -> Quotient | str:
    """The classes, for as many rounds as lock-step would take where it may play the program."""
    lowered, patience = request.timed_program, None
    if request.quotient is None and _lockstep_of(request):
        patience = lowered.rows // (PATIENCE * lowered.distinct)
    return fold_program(lowered, worth_it=request.quotient is None, patience=patience)


_classes_of: FactStore[ProgramRequest, Quotient | str] = FactStore(_classes)


def _compiled_result(
    request: ProgramRequest, outcome: ProgramOutcome, path: str = ""
) -> ProgramResult:
    """The record of a compiled run."""
    lowered, cut = request.timed_program, outcome.cut
    return ProgramResult(
        request.program,
        request.topology,
        "fast",
        path,
        outcome.time_fs,
        lowered.messages if cut is None else outcome.messages,
        sum(lowered.bytes_by_op) if cut is None else cut.delivered_bytes,
        outcome.trace_hash,
        outcome.classes,
        outcome.done_fs,
        wall_s=request.wall_s,
        cut=cut,
        _times=outcome.times,
    )


def _play_simpy(request: ProgramRequest, storages: dict[tuple[int, int], Storage]) -> ProgramResult:
    """Play a program under the SimPy clock."""
    program, topology = request.program, request.topology
    keep = request.keep is True
    observer = request.observer
    done_fs: dict[int, int] = {}

    def watch(operation: int, group: int, ready_fs: int, row: HashedRow) -> None:
        if keep:
            done_fs[row.message] = row.done_fs
        if observer is not None:
            observer(operation, group, *row[:4], ready_fs, *row[4:])

    watched = keep or observer is not None
    conductor = ProgramPlayer(
        program, topology, storages, watch if watched else None, request.timeline
    )
    conductor.play()
    times = None
    if request.keep and conductor.cut is None:
        times = {}
        for number, operation in enumerate(program.operations):
            ranks = rank_array(operation).reshape(-1).tolist()
            begin, end = (
                [by_rank[number][rank] for rank in ranks]
                for by_rank in (conductor.begin_fs, conductor.end_fs)
            )
            times[number] = OperationTimes(np.array(begin, np.int64), np.array(end, np.int64))
    messages = range(conductor.first[-1])
    completion_fs = (
        np.array([done_fs.get(message, -1) for message in messages], np.int64) if keep else None
    )
    return ProgramResult(
        program,
        topology,
        "simpy",
        "",
        conductor.time_fs,
        conductor.messages,
        sum(conductor.bytes_by_op),
        conductor.hash.hexdigest(),
        done_fs=completion_fs,
        wall_s=request.wall_s,
        cut=conductor.cut,
        _times=times,
    )


def _groups(request: ProgramRequest) -> Iterator[tuple[tuple[int, int], Plan, int]]:
    """Operation and group number of every group of every collective, its plan, and the seed of its
    inputs, which is unique.
    """
    for number, call in calls_of(request.program):
        for group in range(len(call.groups)):
            yield (number, group), call.plan, request.seed + (number << 20) + group
