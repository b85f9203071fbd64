"""Load algorithms from files of any format, recognised by content.

Formats with one program per rank load as a :class:`~simcoll.core.rank_program.RankProgram`, others
as a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from simcoll.core.device_program import DeviceProgram
from simcoll.core.rank_program import RankProgram
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, nearest
from simcoll.files.reader_arguments import Content, FilePath, content_of, path_of
from simcoll.files.strict import read_file
from simcoll.formats.goal.binary import goal_binary, parse_goal_binary
from simcoll.formats.goal.goal_writer import dump_goal, dump_goal_binary
from simcoll.formats.goal.language import Goal, goal_text, parse_goal
from simcoll.formats.mscclpp.plan_writer import dump_mscclpp_plan
from simcoll.formats.mscclpp.reader import parse_mscclpp_plan
from simcoll.formats.recognise import recognise, title_of
from simcoll.formats.schedules.msccl_writer import dump_msccl_xml
from simcoll.formats.schedules.msccl_xml import parse_msccl_xml
from simcoll.formats.schedules.schedule_json import MAX_BYTES, dump_schedule, parse_schedule
from simcoll.proving import device_schedule, program_schedule, verify

__all__ = [
    "FORMATS",
    "Algorithm",
    "ScheduleFormat",
    "algorithm_content",
    "load_algorithm",
    "parse_algorithm",
    "schedule_of",
    "target_format",
]

Algorithm: TypeAlias = "Schedule | RankProgram | DeviceProgram | Goal"
"""The content of such a file: a schedule, a program per rank, thread blocks with shared memory, or
messages without known data.
"""


@dataclass(frozen=True, slots=True)
class ScheduleFormat:
    """A file format of algorithms.

    Attributes
    ----------
    name
        Its short name, a key of :data:`simcoll.formats.recognise.TITLES`.
    endings
        Usual file suffixes, which select the format to write, never to read.
    read
        Reader, from content and file name.
    write
        Writer, from a schedule and the options below; None for read-only formats.
    options
        The writer's options besides the schedule.
    """

    name: str
    endings: tuple[str, ...]
    read: Callable[[bytes, str | None], Algorithm]
    write: Callable[..., bytes] | None = None
    options: tuple[str, ...] = ()


FORMATS: tuple[ScheduleFormat, ...] = (
    ScheduleFormat("schedule", (".json",), parse_schedule, dump_schedule),
    ScheduleFormat(
        "msccl",
        (".xml",),
        parse_msccl_xml,
        dump_msccl_xml,
        ("dialect", "protocol", "min_bytes", "max_bytes"),
    ),
    ScheduleFormat(
        "mscclpp",
        (".json",),
        parse_mscclpp_plan,
        dump_mscclpp_plan,
        ("protocol", "min_bytes", "max_bytes"),
    ),
    ScheduleFormat("mscclpp-old", (), parse_mscclpp_plan),
    ScheduleFormat("goal", (".goal",), parse_goal, dump_goal, ("size", "dtype")),
    ScheduleFormat(
        "goal-binary", (".bin",), parse_goal_binary, dump_goal_binary, ("size", "dtype")
    ),
)

_OF_GOAL: Mapping[str, Callable[[Goal], bytes]] = {"goal": goal_text, "goal-binary": goal_binary}


def parse_algorithm(content: Content, file: str | None = None) -> Algorithm:
    """Parse the algorithm in a file's content.

    Raises
    ------
    ConfigError
        When its format is not in :data:`FORMATS` (the message describes it), or it breaks the rules
        of its format.
    """
    content = content_of(content, "parse_algorithm")
    name = recognise(content)
    for schedule_format in FORMATS:
        if schedule_format.name == name:
            return schedule_format.read(content, file)
    readable = ", ".join(
        schedule_format.name for schedule_format in FORMATS if schedule_format.endings
    )
    raise ConfigError(
        f"this is {title_of(content)}; expected an algorithm in one of the formats {readable}",
        file=file,
    )


def load_algorithm(path: FilePath) -> Algorithm:
    """Read an algorithm from a file of any supported format.

    Raises
    ------
    ConfigError
        As :func:`parse_algorithm`, or when the file cannot be read.

    Examples
    --------
    >>> print(load_algorithm("docs/howto/all-gather.xml"))
    exchange all_gather n=2
    """
    path = path_of(path, "load_algorithm", "parse_algorithm")
    return parse_algorithm(read_file(path, MAX_BYTES), path)


def schedule_of(loaded: Algorithm) -> Schedule:
    """Convert a loaded algorithm to a schedule; per-rank programs are proved and merged.

    Raises
    ------
    ScheduleError
        When a program is wrong.
    ConfigError
        When a program's collective, or its messages' data, is unknown.
    """
    if isinstance(loaded, Goal):
        raise ConfigError(
            f"{loaded}: GOAL says how much is sent, not which data, so it is not a schedule; "
            "simcoll perf times it"
        )
    if isinstance(loaded, DeviceProgram):
        return device_schedule(loaded)
    return loaded if isinstance(loaded, Schedule) else program_schedule(loaded)


def target_format(path: str | Path, name: str | None = None) -> ScheduleFormat:
    """Select the format to write: by name, else the first with the path's suffix.

    Raises
    ------
    ConfigError
        For a read-only or unknown format, or an unknown suffix.

    Examples
    --------
    >>> target_format("ring.xml").name
    'msccl'
    """
    writable = {
        schedule_format.name: schedule_format
        for schedule_format in FORMATS
        if schedule_format.write is not None
    }
    if name is not None:
        if name not in writable:
            raise ConfigError(f"format {name!r} cannot be written; {nearest(name, writable)}")
        return writable[name]
    ending = Path(path).suffix
    for schedule_format in writable.values():
        if ending in schedule_format.endings:
            return schedule_format
    endings = ", ".join(
        f"{'/'.join(schedule_format.endings)} {schedule_format.name}"
        for schedule_format in writable.values()
    )
    raise ConfigError(
        f"no format has the ending {ending!r}; name one, or use one of {endings}", file=str(path)
    )


def algorithm_content(loaded: Algorithm, target: ScheduleFormat, **options: Any) -> bytes:
    """Encode an algorithm in a format, after proving it.

    Raises
    ------
    ScheduleError
        When the algorithm is wrong.
    ConfigError
        For content that the format cannot express, by name, and for unknown options.
    """
    for key in options:
        if key not in target.options:
            takes = f"it has {', '.join(target.options)}" if target.options else "it has none"
            raise ConfigError(f"format {target.name!r} has no option {key!r}; {takes}")
    if isinstance(loaded, Goal) and target.name in _OF_GOAL:
        loaded.check()
        return _OF_GOAL[target.name](loaded)
    if target.write is None:
        raise ConfigError(f"format {target.name!r} cannot be written")
    schedule = schedule_of(loaded)
    verify(schedule)  # before a format refuses what it cannot say
    return target.write(schedule, **options)
