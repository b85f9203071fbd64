"""Algorithms as the command line names them: shipped, in files, functions of modules; and what to say when none is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcoll.topology import Topology
    from simcoll.tuning import Choice

__all__ = ["Named", "name_choices", "play_programs", "programs_of"]


@dataclass(frozen=True, slots=True)
class Named:
    """The collective that is asked for, and the algorithms that are named; None: all that fit."""

    collective: str
    root: int | None
    choices: tuple[Choice, ...] | None


def name_choices(
    command: str,
    collective: str | None,
    root: int | None,
    algorithm: str | None,
    machine: Topology,
    protocols: Sequence[str],
) -> Named | None:
    """Read which collective and algorithms are asked for; programs whose data is not known are timed at once.

    Returns None where nothing else is to be done.

    Raises
    ------
    ConfigError
        When no collective is named, after a list of all.
    """
    from simcoll.algorithms.imported import file_schedule, is_file_name
    from simcoll.errors import ConfigError
    from simcoll.tuning import parse_choice

    choices = None
    if algorithm is not None:
        choices, programs = programs_of([parse_choice(text) for text in algorithm.split(",")])
        play_programs(programs, machine, protocols)
        if not choices:
            return None
        file = next((each.algorithm for each in choices if is_file_name(each.algorithm)), None)
        if collective is None and file is not None:
            own = file_schedule(file).collective
            collective, root = own.kind, own.root if root is None else root
    if collective is None:
        list_collectives()
        raise ConfigError(f"expected a COLLECTIVE, for example: {command} all_reduce -t dgx-h100 --nodes 2")
    return Named(collective, root, None if choices is None else tuple(choices))


def programs_of(choices: Sequence[Choice]) -> tuple[list[Choice], list[Path]]:
    """Algorithms that are schedules, and files of programs whose data is not known."""
    from simcoll.formats.recognise import recognise
    from simcoll.formats.strict import read_start
    from simcoll.limits.paths import is_file

    programs = [
        Path(choice.algorithm)
        for choice in choices
        if is_file(choice.algorithm) and recognise(read_start(choice.algorithm)) in {"goal", "goal-binary"}
    ]
    return [choice for choice in choices if Path(choice.algorithm) not in programs], programs


def play_programs(files: Sequence[Path], machine: Topology, protocols: Sequence[str]) -> None:
    """Time programs whose data is not known, as they are, and say that nothing of them is proved."""
    from simcoll.emulator import emulate
    from simcoll.emulator.goal import goal_program
    from simcoll.errors import ConfigError
    from simcoll.tuning import costs, default_protocols
    from simcoll.units import format_time

    if not files:
        return
    from simcoll.formats.goal import Goal
    from simcoll.formats.schedule_files import load_algorithm

    used, note = (protocols, "") if protocols else default_protocols(machine)
    if note:
        print(f"# {note}")
    for file in files:
        goal = load_algorithm(file)
        if not isinstance(goal, Goal):
            raise ConfigError("holds no GOAL", file=str(file))
        for name in used:
            result = emulate(goal_program(goal, protocol=costs(name, machine)), machine, data="none")
            print(
                f"{file} {name} on {machine.name}: {format_time(result.time_fs)}, {result.messages:,} messages, "
                f"{result.bytes_moved:,} bytes; unproved, for its data is not known; trace hash {result.trace_hash}"
            )


def list_collectives() -> None:
    """Say which collectives there are."""
    from simcoll.core.collective import KINDS

    width = max(map(len, KINDS))
    for name, kind in KINDS.items():
        print(f"{name:<{width}}  {kind.summary}")
