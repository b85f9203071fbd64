"""The entry point for programs: from a program and a topology to a checked prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcoll.core.memory_limits import largest_automatic
from simcoll.core.vocabulary import DataMode
from simcoll.emulator.data.budget import check_exact, exact_bytes
from simcoll.emulator.engine_choice import check_engine, choose_way, engine_names
from simcoll.emulator.events import Event, Policy, timeline_of
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.program_request import KeptTimes, ProgramObserver, ProgramRequest
from simcoll.emulator.programs.program_result import ProgramResult
from simcoll.emulator.programs.program_ways import PROGRAM_WAYS
from simcoll.emulator.programs.resources import calls_of
from simcoll.errors import ConfigError, expect, nearest
from simcoll.topology import Topology

__all__ = ["emulate_program", "play_request"]

DATA: tuple[DataMode, ...] = ("auto", "exact", "none")


def emulate_program(
    program: Program,
    topology: Topology,
    *,
    data: str = "auto",
    seed: int = 0,
    observer: ProgramObserver | None = None,
    keep: KeptTimes = False,
    engine: str = "auto",
    quotient: bool | None = None,
    events: Sequence[Event | str] = (),
    policy: Policy | str = "stall",
) -> ProgramResult:
    """Play a program; :func:`simcoll.emulate` describes the arguments.

    ``keep="operations"``: only the times of operations, not those of messages.
    """
    expect(topology, Topology, "emulate takes a topology, made by load_topology(name)")
    if data not in DATA:
        raise ConfigError(
            f"data {data!r:.60} is not known for programs; {nearest(str(data), DATA)}"
        )
    check_engine(engine, quotient, engine_names(PROGRAM_WAYS))
    request = ProgramRequest(
        program,
        topology,
        seed=seed,
        moves_data=_moves_data(program, data),
        observer=observer,
        timeline=timeline_of(events, policy, topology, program.nranks),
        keep=keep,
        engine=engine,
        quotient=quotient,
    )
    return play_request(request)


def play_request(request: ProgramRequest) -> ProgramResult:
    """Play a program in the first way that takes the request."""
    player, path = choose_way(PROGRAM_WAYS, request, request.engine)
    result = player.play(request)
    return replace(result, path=result.path or path)


def _moves_data(program: Program, data: DataMode) -> bool:
    """Whether the program moves data."""
    if data == "none":
        return False
    converting = [call.plan for _, call in calls_of(program) if call.plan.schedule.wire_formats]
    if converting and data == "exact":
        raise ConfigError(
            f"{converting[0].schedule.title} converts its data on the way, so no result is exact; "
            "use data='none', or emulate its plan alone for the error of the conversion"
        )
    if converting:
        return False
    needed_bytes = sum(exact_bytes(call.plan) * len(call.groups) for _, call in calls_of(program))
    if data == "auto":
        return needed_bytes <= largest_automatic()
    check_exact(needed_bytes)
    return True
