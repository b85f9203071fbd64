"""Programs without known data (GOAL) in tables of algorithms: timed, and marked as unproved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simcoll.emulator import emulate
from simcoll.emulator.programs import ProgramResult
from simcoll.errors import ConfigError, blamed_on
from simcoll.files.paths import is_file
from simcoll.files.strict import read_start
from simcoll.formats.goal.language import Goal
from simcoll.planning.sweeps.disturbance import RunDisturbance
from simcoll.topology import Topology
from simcoll.tuning import Choice, costs
from simcoll.units import format_time

__all__ = ["UNPROVED", "ProgramRun", "is_program", "load_goal", "play_program", "split_programs"]

UNPROVED = "unproved: data unknown"


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One run of a program, which has no collective, no size and no proof."""

    choice: Choice
    protocol: str
    about: str
    result: ProgramResult

    def __str__(self) -> str:
        result = self.result
        return (
            f"{self.choice} {self.protocol} on {result.topology.name}: "
            f"{format_time(result.time_fs)}, {result.messages:,} messages, "
            f"{result.bytes_moved:,} bytes; unproved, data unknown"
        )

    def columns(self) -> dict[str, Any]:
        """Its columns in files: those of a schedule's run that apply, and the bytes moved."""
        result = self.result
        return {
            "choice": str(self.choice),
            "schedule": self.about,
            "protocol": self.protocol,
            "proof": UNPROVED,
            "time_fs": result.time_fs,
            "messages": result.messages,
            "trace_hash": result.trace_hash,
            "engine": result.engine,
            "path": result.path,
            "classes": result.classes,
            "bytes": result.bytes_moved,
        }

    def timeline(self, run: str) -> bytes:
        """Its timeline for Perfetto, compressed; ``run`` identifies the results."""
        from simcoll.emulator.programs.program_trace import ProgramTrace

        trace = ProgramTrace(self.result.program, self.result.topology)
        result = emulate(self.result.program, self.result.topology, data="none", observer=trace)
        return trace.content(
            result,
            {"schedule": self.about, "protocol": self.protocol, "proof": UNPROVED, "run": run},
        )


def is_program(name: str) -> bool:
    """Whether an algorithm names a program file."""
    if not is_file(name):
        return False
    from simcoll.formats.recognise import recognise

    return recognise(read_start(name)) in {"goal", "goal-binary"}


def load_goal(name: str) -> Goal:
    """Load a GOAL file, text or binary."""
    from simcoll.formats.goal.language import Goal
    from simcoll.formats.schedules.schedule_files import load_algorithm

    goal = load_algorithm(name)
    if not isinstance(goal, Goal):
        raise ConfigError("holds no GOAL", file=name)
    return goal


def split_programs(choices: Sequence[Choice]) -> tuple[tuple[Choice, ...], tuple[Choice, ...]]:
    """Separate schedules and programs."""
    programs = tuple(choice for choice in choices if is_program(choice.algorithm))
    return tuple(choice for choice in choices if choice not in programs), programs


def play_program(
    choice: Choice, protocol: str, topology: Topology, disturbed: RunDisturbance
) -> ProgramRun:
    """Time a program on all ranks of a topology.

    Raises
    ------
    ConfigError
        When the topology has another number of ranks, and for disturbances, which programs do not
        support.
    ScheduleError
        When its messages do not match.
    """
    if disturbed:
        raise ConfigError(
            "jitter, stragglers, background and faults are for schedules; a GOAL program is played "
            "without them",
            file=choice.algorithm,
        )
    from simcoll.emulator.goal import goal_program

    goal = load_goal(choice.algorithm)
    if goal.nranks > topology.nranks:
        raise ConfigError(
            f"has {goal.nranks} ranks; topology {topology.name!r} has {topology.nranks}: ask for "
            "more nodes",
            file=choice.algorithm,
        )
    with blamed_on(choice.algorithm):
        program = goal_program(goal, protocol=costs(protocol, topology))
        result = emulate(program, topology, data="none")
    return ProgramRun(choice, protocol, str(goal), result)
