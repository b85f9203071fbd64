"""External algorithms: from files, from functions in modules, and from packages with entry
points.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from simcoll.algorithms.registered import Algorithm
from simcoll.core.collective import Collective
from simcoll.core.schedule import Schedule
from simcoll.errors import ConfigError, SimcollError, blamed_on, nearest
from simcoll.files.paths import is_file

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


__all__ = [
    "ENTRY_POINTS",
    "UnservedError",
    "entry_point_names",
    "file_schedule",
    "imported_algorithm",
    "is_file_name",
    "named_collective",
    "names_custom",
    "split_choice",
]

ENTRY_POINTS = "simcoll.algorithms"
"""Entry-point group in which a package registers algorithms."""

_NO_RECORD: dict[str, Any] = {"cost": "", "pattern": "ring", "ranks": "any", "source": ""}
_OF_COLLECTIVE = re.compile(r"'Collective'|Collective\(")
"""Matches messages about a collective that was mistaken for something else, such as a number."""
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class UnservedError(ConfigError):
    """The algorithm is not for this collective; a default applies where others may run."""


def is_file_name(text: str) -> bool:
    """Whether a text names an algorithm by a file.

    >>> names = ("plans/ring.xml", "ring:channels=2", "mine.algorithms:star")
    >>> [is_file_name(name) for name in names]
    [True, False, False]
    """
    return is_file(text) or (":" not in text and ("." in text or "/" in text or "\\" in text))


def split_choice(text: str, shipped: Collection[str]) -> tuple[str, list[str]]:
    """Split the text that chooses an algorithm into its name and its parameters.

    >>> split_choice("ring:channels=2", ["ring"]), split_choice("mine:star:arms=3", ["ring"])
    (('ring', ['channels=2']), ('mine:star', ['arms=3']))
    """
    if is_file_name(text):
        return text, []
    name, *parts = text.split(":")
    if parts and "=" not in parts[0] and name not in shipped:
        name = f"{name}:{parts.pop(0)}"
    return name, parts


def _entry_points() -> EntryPoints:
    # importlib.metadata takes longer to import than the algorithms.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS)


def entry_point_names() -> list[str]:
    """Names of the algorithms that installed packages register."""
    return sorted({point.name for point in _entry_points()})


def imported_algorithm(kind: str, name: str) -> Algorithm | None:
    """The algorithm of a file, ``module:function`` or entry point; None for a name that is none of
    these.

    A file is read when the schedule is built. A function takes a collective and keyword parameters,
    and returns a schedule, or None for a collective that it does not serve.

    Raises
    ------
    ConfigError
        For a module or function that cannot be loaded, or an algorithm of another collective.
    """
    if is_file_name(name):
        return Algorithm(kind, name, partial(_of_file, name), **_NO_RECORD)
    if ":" in name:
        return _of_object(kind, name, _import_function(name))
    point = next((point for point in _entry_points() if point.name == name), None)
    if point is None:
        return None
    with _blame(f"entry point {name!r} ({point.value})"):
        loaded = point.load()
    return _of_object(kind, name, loaded)


def file_schedule(path: str) -> Schedule:
    """The schedule in a file of any supported format.

    Raises
    ------
    ConfigError
        When it cannot be read, or does not contain a schedule.
    ScheduleError
        When the program in it is wrong.
    """
    from simcoll.formats.schedules.schedule_files import load_algorithm, schedule_of

    program = load_algorithm(path)
    with blamed_on(path):
        return schedule_of(program)


def names_custom(text: str) -> bool:
    """Whether a text names a custom collective: by a function, or a schedule file.

    >>> names_custom("simcoll.collectives:scan"), names_custom("all_reduce")
    (True, False)
    """
    return ":" in text or is_file_name(text)


def named_collective(text: str, nranks: int) -> Collective:
    """The custom collective that a function of a module makes for a number of ranks, or that a
    schedule file has.

    >>> print(named_collective("simcoll.collectives:scan", 4))
    scan n=4

    Raises
    ------
    ConfigError
        For a module or function that cannot be loaded, a result that is no collective, and a file
        of another number of ranks.
    """
    if is_file_name(text):
        collective = file_schedule(text).collective
        if collective.nranks != nranks:
            raise ConfigError(f"is {collective}, not of {nranks} ranks", file=text)
        return collective
    function = _import_function(text)
    if not callable(function):
        raise ConfigError(f"{text}: expected a function of a number of ranks; got {function!r:.60}")
    try:
        with _blame(f"{text}({nranks})"):
            result = function(nranks)
    except ConfigError as error:
        explanation = f"{error.message}; {text} receives the number of ranks, {nranks}"
        raise ConfigError(explanation, file=error.file, path=error.path) from error
    if not isinstance(result, Collective):
        raise ConfigError(
            f"{text}({nranks}) returned {result!r:.60}; expected a Collective, made by "
            "Collective.custom(name, inputs, outputs)"
        )
    return result


def _of_file(path: str, collective: Collective) -> Schedule:
    """The file's schedule for one collective; in place as in the file, unless in place is
    required.
    """
    schedule = file_schedule(path)
    served = schedule.collective
    differs = (served.kind, served.nranks) != (collective.kind, collective.nranks)
    differs = differs or (served.root, served.pairs) != (collective.root, collective.pairs)
    differs = differs or served.definition != collective.definition
    if differs or (collective.in_place and not served.in_place):
        raise UnservedError(f"is {served}, not {collective}", file=path)
    return schedule


def _of_object(kind: str, name: str, target: Any) -> Algorithm:
    if isinstance(target, Algorithm):
        if target.collective != kind:
            raise UnservedError(f"algorithm {name!r} serves {target.collective}, not {kind}")
        return target
    if not callable(target):
        raise ConfigError(
            f"{name}: expected a function of a collective, or an Algorithm; got {target!r:.60}"
        )
    return _of_function(kind, name, target)


@cache
def _of_function(kind: str, name: str, function: Callable[..., Any]) -> Algorithm:
    def build(collective: Collective, **params: Any) -> Schedule:
        try:
            with _blame(f"{name}({collective})"):
                result = function(collective, **params)
                if result is not None:
                    return _of_collective(name, _as_schedule(name, result), collective)
            raise UnservedError(
                f"{name}({collective}): expected a schedule; got None, which means that it does "
                "not serve this collective"
            )
        except ConfigError as error:
            if not _OF_COLLECTIVE.search(error.message):
                raise
            explanation = (
                f"{error.message}; {name} receives a Collective, whose attribute nranks "
                "is the number of ranks"
            )
            raise ConfigError(explanation, file=error.file, path=error.path) from error

    build.__signature__ = _signature(name, function)  # type: ignore[attr-defined]
    return Algorithm(kind, name, build, **_NO_RECORD)


def _of_collective(name: str, schedule: Schedule, collective: Collective) -> Schedule:
    """A schedule, refused if it is of another custom collective than requested."""
    if schedule.collective.definition == collective.definition:
        return schedule
    raise UnservedError(f"{name}: its schedule is of {schedule.collective}, not of {collective}")


def _signature(name: str, function: Any) -> Any:
    import inspect

    expected = "expected a function of one collective and keyword-only parameters"
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: {expected}") from None
    try:
        parameters.bind(None)
    except TypeError:
        raise ConfigError(
            f"{name}: {expected}; got {name.rpartition(':')[2]}{parameters}"[:300]
        ) from None
    return parameters


def _as_schedule(name: str, result: Any) -> Schedule:
    """The result of a function as a schedule; per-rank programs are proved and joined."""
    from simcoll.core.device_program import DeviceProgram
    from simcoll.core.rank_program import RankProgram
    from simcoll.formats.goal.language import Goal
    from simcoll.formats.schedules.schedule_files import schedule_of

    if isinstance(result, (Schedule, RankProgram, DeviceProgram, Goal)):
        return schedule_of(result)
    raise ConfigError(f"{name} returned {result!r:.60}; expected a Schedule")


def _import_function(name: str) -> Any:
    if not _FUNCTION.fullmatch(name):
        raise ConfigError(
            f"algorithm {name!r}: expected a name, a file, or a function such as "
            "package.module:function"
        )
    module, _, function = name.partition(":")
    with _blame(f"module {module!r}"), _working_folder():
        namespace = importlib.import_module(module)
    if not hasattr(namespace, function):
        functions = [
            attribute
            for attribute in dir(namespace)
            if callable(getattr(namespace, attribute)) and not attribute.startswith("_")
        ]
        raise ConfigError(f"module {module!r} has no {function!r}; {nearest(function, functions)}")
    return getattr(namespace, function)


@contextmanager
def _working_folder() -> Iterator[None]:
    """Make modules in the working directory importable, as ``python -m`` does."""
    from pathlib import Path

    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _blame(source: str) -> Iterator[None]:
    """Report errors of foreign code as one line with their location."""
    try:
        yield
    except SimcollError:
        raise
    except Exception as error:
        from pathlib import Path

        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        file = last.tb_frame.f_code.co_filename if last else ""
        location = (
            ""
            if last is None or file.startswith("<")
            else f" ({Path(file).name}, line {last.tb_lineno})"
        )
        text = " ".join(str(error).split())[:200]
        raise ConfigError(f"{source} raised {type(error).__name__}: {text}{location}") from error
