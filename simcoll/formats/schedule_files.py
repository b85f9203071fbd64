"""Every file format that holds an algorithm, read by one function: what a file is comes from its content.

Formats with one program per rank give a :class:`~simcoll.core.rank_program.RankProgram`; the others a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError
from simcoll.formats.msccl_xml import load_msccl_xml
from simcoll.formats.recognise import recognise, title_of
from simcoll.formats.schedule_json import MAX_BYTES, parse_schedule
from simcoll.formats.strict import read_file
from simcoll.proving import program_schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simcoll.core.rank_program import RankProgram

__all__ = ["FORMATS", "ScheduleFormat", "load_algorithm", "parse_algorithm", "schedule_of"]


@dataclass(frozen=True, slots=True)
class ScheduleFormat:
    """A file format of algorithms.

    Attributes
    ----------
    name
        Its short name, a key of :data:`simcoll.formats.recognise.TITLES`.
    endings
        Usual endings of its files, which decide what is written and never what is read.
    read
        From content and file name.
    """

    name: str
    endings: tuple[str, ...]
    read: Callable[[bytes, str | None], Schedule | RankProgram]


FORMATS: tuple[ScheduleFormat, ...] = (
    ScheduleFormat("schedule", (".json",), parse_schedule),
    ScheduleFormat("msccl", (".xml",), lambda content, file: load_msccl_xml(content, file=file)),
)


def parse_algorithm(content: bytes, file: str | None = None) -> Schedule | RankProgram:
    """The algorithm in a file's content.

    Raises
    ------
    ConfigError
        When it is of no format in :data:`FORMATS` (then the message says what it is), or breaks the rules of its format.
    """
    name = recognise(content)
    for each in FORMATS:
        if each.name == name:
            return each.read(content, file)
    known = ", ".join(each.name for each in FORMATS)
    raise ConfigError(f"this is {title_of(content)}; expected an algorithm in one of the formats {known}", file=file)


def load_algorithm(path: str | Path) -> Schedule | RankProgram:
    """Read a file that holds an algorithm, whatever its format.

    Raises
    ------
    ConfigError
        As :func:`parse_algorithm`, or when the file cannot be read.

    Examples
    --------
    >>> print(load_algorithm("docs/howto/all-gather.xml"))
    exchange all_gather n=2
    """
    return parse_algorithm(read_file(path, MAX_BYTES), str(path))


def schedule_of(loaded: Schedule | RankProgram) -> Schedule:
    """A loaded algorithm as a schedule; per-rank programs are proved and joined.

    Raises
    ------
    ScheduleError
        When a program is wrong.
    ConfigError
        When a program's collective is not known.
    """
    return loaded if isinstance(loaded, Schedule) else program_schedule(loaded)
