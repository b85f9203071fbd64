"""Algorithms as named on the command line: shipped ones, files, and functions of modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcoll.errors import ConfigError
from simcoll.terminal import say

if TYPE_CHECKING:
    from simcoll.tuning import Choice

__all__ = ["Named", "name_choices"]


@dataclass(frozen=True, slots=True)
class Named:
    """The requested collective, the named algorithms (None: all that fit), and programs, which have
    no collective.
    """

    collective: str
    root: int | None
    choices: tuple[Choice, ...] | None
    programs: tuple[Choice, ...] = ()


def name_choices(
    command: str,
    collective: str | None,
    root: int | None,
    algorithm: str | None,
) -> Named:
    """Parse the requested collective and algorithms; for programs alone, the collective's name is
    empty.

    Raises
    ------
    ConfigError
        When no collective is named, after a list of all.
    """
    from simcoll.algorithms.imported import file_schedule, is_file_name
    from simcoll.tuning import parse_choice, split_choices

    choices: tuple[Choice, ...] | None = None
    programs: tuple[Choice, ...] = ()
    if algorithm is not None:
        choices = tuple(parse_choice(text) for text in split_choices(algorithm))
        if any(is_file_name(choice.algorithm) for choice in choices):
            from simcoll.planning.sweeps.goal_programs import split_programs

            choices, programs = split_programs(choices)
        if not choices:
            return Named("", None, (), programs)
        file = next(
            (choice.algorithm for choice in choices if is_file_name(choice.algorithm)), None
        )
        if collective is None and file is not None:
            file_collective = file_schedule(file).collective
            collective, root = file_collective.kind, file_collective.root if root is None else root
            if file_collective.definition is not None:
                collective = file
    if collective is None:
        list_collectives()
        raise ConfigError(
            f"expected a COLLECTIVE, for example: {command} all_reduce -t dgx-h100 --nodes 2"
        )
    return Named(collective, root, choices, programs)


def list_collectives() -> None:
    """Print the collectives."""
    from simcoll.core.collective import KINDS

    width = max(map(len, KINDS))
    for name, kind in KINDS.items():
        say(f"{name:<{width}}  {kind.summary}")
