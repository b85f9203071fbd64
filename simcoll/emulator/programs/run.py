"""The entry point for programs: from a program and a topology to a checked prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

import numpy as np

from simcoll.core.memory_limits import largest_automatic
from simcoll.core.plan import Plan
from simcoll.core.reference import count_wrong, exact_inputs, expected_outputs
from simcoll.emulator.data.budget import check_exact, exact_bytes
from simcoll.emulator.data.dataplane import Storage
from simcoll.emulator.data.stepwise import data_errors
from simcoll.emulator.engine_choice import (
    ASKED,
    MOST_HASHED,
    PACED,
    WATCHED,
    check_engine,
    deep_fifo,
    few,
    few_classes_pay,
    is_little,
)
from simcoll.emulator.events import Event, Policy, Timeline, timeline_of
from simcoll.emulator.fast.compiled import COMPILED, UNCOMPILED
from simcoll.emulator.programs.compiled_programs import ProgramOutcome, play_all, play_classes
from simcoll.emulator.programs.operations import Call, rank_array
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.program_player import HashedRow, ProgramPlayer
from simcoll.emulator.programs.program_result import OperationTimes, ProgramResult
from simcoll.emulator.programs.resources import call_of
from simcoll.emulator.programs.step_lowering import Lowered, lower
from simcoll.emulator.steps.step_columns import summary
from simcoll.errors import ConfigError, expect, nearest
from simcoll.topology import Topology

__all__ = ["ProgramObserver", "emulate_program"]

DATA = ("auto", "exact", "none")


class ProgramObserver(Protocol):
    """A callback for every transfer and computation of a program, in the order in which steps
    complete.
    """

    def __call__(
        self,
        operation: int,
        group: int,
        message: int,
        src: int,
        dst: int,
        size_bytes: int,
        ready_fs: int,
        start_fs: int,
        end_fs: int,
        done_fs: int,
        /,
    ) -> None:
        """Report that a transfer was ready, flowed from ``src`` to ``dst``, and was done; a
        computation has equal ranks.
        """


def emulate_program(
    program: Program,
    topology: Topology,
    *,
    data: str = "auto",
    seed: int = 0,
    observer: ProgramObserver | None = None,
    keep: bool = False,
    engine: str = "auto",
    quotient: bool | None = None,
    events: Sequence[Event | str] = (),
    policy: Policy | str = "stall",
) -> ProgramResult:
    """Play a program; :func:`simcoll.emulate` describes the arguments."""
    expect(topology, Topology, "emulate takes a topology, made by load_topology(name)")
    if data not in DATA:
        raise ConfigError(
            f"data {data!r:.60} is not known for programs; {nearest(str(data), DATA)}"
        )
    check_engine(engine, quotient)
    moves = _moves_data(program, data)
    timeline = timeline_of(events, policy, topology, program.nranks)
    began = perf_counter()
    engine_name, why, lowered = _choose(
        program,
        topology,
        engine,
        quotient,
        watched=observer is not None,
        moves=moves,
        keep=keep,
        timeline=timeline,
    )
    wrong: int | None = None
    if engine_name == "quotient" and lowered is not None:
        expand = keep or lowered.messages <= MOST_HASHED
        folded = play_classes(lowered, keep=keep, expand=expand, worth_it=quotient is None)
        if not isinstance(folded, str):
            why = f"quotient: {folded.classes} classes stand for {lowered.rows} rows"
            return _result(program, topology, why, lowered, folded, perf_counter() - began)
        engine_name, why = ("fast" if COMPILED else "simpy"), f"no quotient: {folded}"
    if engine_name == "fast" and lowered is not None:
        played = play_all(lowered, keep=keep, timeline=timeline)
        result = _result(program, topology, why, lowered, played, perf_counter() - began)
        if moves and result.cut is None:
            wrong = sum(
                data_errors(plan, inputs_seed) for _, plan, inputs_seed in _groups(program, seed)
            )
    else:
        storages: dict[tuple[int, int], Storage] = {}
        if moves:
            for group, plan, inputs_seed in _groups(program, seed):
                storages[group] = Storage(plan, exact_inputs(plan, inputs_seed))
        result = _play_simpy(
            program, topology, why, storages, observer, keep=keep, timeline=timeline
        )
        result = replace(result, wall_s=perf_counter() - began)
        if moves and result.cut is None:
            wrong = sum(
                count_wrong(
                    storages[group].outputs(),
                    expected_outputs(plan, exact_inputs(plan, inputs_seed)),
                )
                for group, plan, inputs_seed in _groups(program, seed)
            )
    return replace(result, data="exact", wrong=wrong) if moves and result.cut is None else result


def _calls(program: Program) -> Iterator[tuple[int, Call]]:
    """The collectives of a program, and the numbers of their operations."""
    for number, operation in enumerate(program.operations):
        call = call_of(operation)
        if call is not None:
            yield number, call


def _moves_data(program: Program, data: str) -> bool:
    """Whether the program moves data."""
    if data == "none":
        return False
    needed_bytes = sum(exact_bytes(call.plan) * len(call.groups) for _, call in _calls(program))
    if data == "auto":
        return needed_bytes <= largest_automatic()
    check_exact(needed_bytes)
    return True


def _choose(
    program: Program,
    topology: Topology,
    engine: str,
    quotient: bool | None,
    *,
    watched: bool,
    moves: bool,
    keep: bool,
    timeline: Timeline | None,
) -> tuple[str, str, Lowered | None]:
    """``"simpy"``, ``"fast"`` or ``"quotient"``, the reason, and the program's steps unless SimPy
    plays it.
    """
    if engine == "simpy":
        return "simpy", ASKED, None
    if watched:
        return "simpy", WATCHED, None
    for number, call in _calls(program):
        if deep := deep_fifo(call.plan.protocol.fifo_depth):
            return "simpy", deep, None
        if call.plan.waits:
            return (
                "simpy",
                f"operation {number} has messages of different channels that wait for each other",
                None,
            )
        if timeline is not None and timeline.pace is not None and summary(call.plan).switched:
            return "simpy", PACED, None
    # A rank may stop just when its last operation ends, which only a later row can detect.
    stops = timeline is not None and timeline.pace is not None
    lowered = lower(program, topology, marked=keep or stops)
    if quotient is not False:
        unlike = _unlike(lowered, timeline)
        if quotient and unlike:
            return ("fast" if COMPILED else "simpy"), f"no quotient: {unlike}", lowered
        pays = not unlike and (quotient or few_classes_pay(lowered.distinct, lowered.rows))
        if pays and not moves:
            return "quotient", "", lowered
        if quotient:
            return ("fast" if COMPILED else "simpy"), "no quotient: data is moved", lowered
    if engine == "fast":
        return "fast", ASKED, lowered
    if is_little(lowered.rows):
        return "simpy", few(lowered.rows, "rows"), None
    if not COMPILED:
        return "simpy", UNCOMPILED, None
    return "fast", f"{lowered.rows} rows", lowered


def _unlike(lowered: Lowered, timeline: Timeline | None) -> str:
    """Why no two messages can share a class; empty if they might."""
    if timeline is not None:
        return timeline.reason
    return "jitter makes every message different" if lowered.jittered else ""


def _result(
    program: Program,
    topology: Topology,
    why: str,
    lowered: Lowered,
    played: ProgramOutcome,
    wall_s: float,
) -> ProgramResult:
    """The record of a compiled run."""
    cut = played.cut
    return ProgramResult(
        program,
        topology,
        "fast",
        why,
        played.time_fs,
        lowered.messages if cut is None else played.messages,
        sum(lowered.bytes_by_op) if cut is None else cut.delivered_bytes,
        played.trace_hash,
        played.classes,
        played.done_fs,
        wall_s=wall_s,
        cut=cut,
        _times=played.times,
    )


def _play_simpy(
    program: Program,
    topology: Topology,
    why: str,
    storages: dict[tuple[int, int], Storage],
    observer: ProgramObserver | None,
    *,
    keep: bool,
    timeline: Timeline | None,
) -> ProgramResult:
    """Play a program under the SimPy clock."""
    done_fs: dict[int, int] = {}

    def watch(operation: int, group: int, ready_fs: int, row: HashedRow) -> None:
        if keep:
            done_fs[row.message] = row.done_fs
        if observer is not None:
            observer(operation, group, *row[:4], ready_fs, *row[4:])

    conductor = ProgramPlayer(
        program, topology, storages, watch if keep or observer is not None else None, timeline
    )
    conductor.play()
    times = None
    if keep and conductor.cut is None:
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
        why,
        conductor.time_fs,
        conductor.messages,
        sum(conductor.bytes_by_op),
        conductor.hash.hexdigest(),
        done_fs=completion_fs,
        cut=conductor.cut,
        _times=times,
    )


def _groups(program: Program, seed: int) -> Iterator[tuple[tuple[int, int], Plan, int]]:
    """Operation and group number of every group of every collective, its plan, and the seed of its
    inputs, which is unique.
    """
    for number, call in _calls(program):
        for group in range(len(call.groups)):
            yield (number, group), call.plan, seed + (number << 20) + group
