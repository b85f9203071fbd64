"""What the command lines of simcoll and realcoll share: whole-number options, exit statuses,
completion.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    Token,
    UnusedCliTokensError,
)

from simcoll.call_records import described_fields, with_parameters
from simcoll.errors import (
    ConfigError,
    InternalError,
    ScheduleError,
    SimcollError,
    missing_package,
    nearest,
)
from simcoll.stopping import STOPPED, raise_again, receive
from simcoll.terminal import printable_lines, say_text

__all__ = [
    "COUNT",
    "FAULT",
    "SHELLS",
    "VERBOSE",
    "WHOLE",
    "completion_script",
    "inherit_options",
    "override_options",
    "run_app",
    "separate_program",
    "status_of",
]

Options = TypeVar("Options")

FAULT = 3
"""Exit status of an internal error."""
TRACEBACK = "SIMCOLL_TRACEBACK"
SHELLS = ("bash", "zsh", "fish")
"""Shells with a completion script."""

_STATUSES: Mapping[type[BaseException], int] = {
    CycloptsError: 2,
    ConfigError: 2,
    ScheduleError: 1,
    InternalError: FAULT,
    MemoryError: 2,
    KeyboardInterrupt: STOPPED,
}
_ALIKE = (CycloptsError, ConfigError, ScheduleError)
"""Errors that every process of a job finds alike."""


def _whole(_: object, tokens: Sequence[Token]) -> int:
    option, text = tokens[0].keyword, tokens[0].value
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ConfigError(f"{option} {text!r}: expected a whole number, such as 2")
    if len(text) > 20:
        raise ConfigError(f"{option} {text!r}: out of range")
    return int(text)


def _count(kind: object, tokens: Sequence[Token]) -> int:
    number = _whole(kind, tokens)
    if number < 0:
        raise ConfigError(f"{tokens[0].keyword} {number}: expected a number from 0 on")
    return number


WHOLE = Parameter(converter=_whole)
"""Reads a whole-number option; a fraction is refused, not rounded."""
COUNT = Parameter(converter=_count)
"""Reads the option of a number of things, from 0 on."""
VERBOSE = Parameter(name=["--verbose", "-v"], negative=())
"""The option that adds to a table what explains it: proofs, engines, hashes, limits of the
model.
"""


def override_options(
    record: type[Any], flags: Mapping[str, Parameter]
) -> Callable[[type[Options]], type[Options]]:
    """Give a class the fields of a record as options, which are None unless given.

    Parameters
    ----------
    record
        A dataclass, whose documentation describes its fields.
    flags
        The fields, in the order of the help, and how each is spelled.
    """
    hints = get_type_hints(record)

    def declare(options: type[Options]) -> type[Options]:
        options.__annotations__ = {
            name: Annotated[hints[name] | None, flag] for name, flag in flags.items()
        }
        for name in flags:
            setattr(options, name, None)
        options.__doc__ = with_parameters(options.__doc__ or "", described_fields(record))
        return Parameter(name="*")(dataclass(frozen=True)(options))

    return declare


def inherit_options(flags: Mapping[str, Parameter]) -> Callable[[type[Options]], type[Options]]:
    """Make options of the fields that a class inherits from a record: how each is spelled."""

    def declare(options: type[Options]) -> type[Options]:
        hints = get_type_hints(options)
        options.__annotations__ = {
            name: Annotated[hints[name], flag] for name, flag in flags.items()
        }
        for name in flags:
            setattr(options, name, getattr(options, name))  # the inherited default
        return Parameter(name="*")(dataclass(frozen=True)(options))

    return declare


def run_app(
    app: App,
    arguments: Sequence[str],
    *,
    statuses: Mapping[type[BaseException], int] | None = None,
    speaks: bool = True,
) -> int:
    """Run a command and return its exit status; an error becomes one message on stderr, never a
    traceback.

    Parameters
    ----------
    statuses
        Exit statuses of the program's further errors.
    speaks
        Whether this process reports errors that every process of its job finds alike.
    """
    name = app.name[0]
    try:
        raise_again()
        status = app(
            list(arguments), exit_on_error=False, print_error=False, result_action="return_value"
        )
        if sys.stdout is not None:  # None if it was closed before the program started
            sys.stdout.flush()  # so that a closed pipe is reported here, not at interpreter exit
    except BrokenPipeError:
        # The reader of our output has stopped reading; keep the interpreter from complaining when
        # it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as caught:  # noqa: BLE001 - no traceback reaches a user
        error = KeyboardInterrupt() if receive() else caught
        if speaks or not isinstance(error, _ALIKE):
            # The status says it even where nothing can be written.
            with contextlib.suppress(OSError):
                say_text(f"{name}: {_message(name, error)}", error=True)
        if _is_full(error) or missing_package(error):
            return 2
        all_statuses = {**_STATUSES, **(statuses or {})}
        return next(
            (status for kind, status in all_statuses.items() if isinstance(error, kind)), FAULT
        )
    return status if isinstance(status, int) else 0


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _message(name: str, error: BaseException) -> str:
    if isinstance(error, CycloptsError):
        unused = isinstance(error, UnusedCliTokensError) and error.unused_tokens
        summary = f"unexpected argument {unused[0]!r}" if unused else _absent(error) or str(error)
        return f"{summary}\n{name}: try {' '.join([name, *(error.command_chain or ())])} --help"
    if isinstance(error, ScheduleError):
        return f"wrong schedule: {error}"
    if isinstance(error, SimcollError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory for this many ranks, chunks or bytes"
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    if _is_full(error):
        return "no space is left for the output"
    if needs := missing_package(error):
        return needs
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    summary = " ".join(str(error).split())[:200]
    return (
        f"unexpected {type(error).__name__}: {summary} ({Path(last.filename).name}, line "
        f"{last.lineno}). This is a bug in {name}, not in "
        f"your input: please report it with your command and its output with {TRACEBACK}=1 set"
    )


def _absent(error: CycloptsError) -> str:
    """What a command cannot do without; empty for other errors."""
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return ""
    argument = error.argument
    has_keyword = error.keyword is not None or bool(argument.tokens)
    if has_keyword or error.unused_tokens or argument.token_count()[0] != 1:
        return ""
    return f"{' '.join(error.command_chain or ())} needs {argument.name}".strip()


def completion_script(app: App, shell: str, names: Mapping[str, Sequence[str]]) -> str:
    """The shell script that completes commands, options, and parameters whose values are names.

    In bash, a word that matches no name is completed as a file.

    Raises
    ------
    ConfigError
        For a shell other than bash, zsh and fish.
    """
    if shell not in SHELLS:
        raise ConfigError(f"no completion for {shell!r}; {nearest(shell, SHELLS)}")
    declarations = [(holder, holder.__annotations__) for holder in dict.fromkeys(_holders(app))]
    try:
        for holder, _ in declarations:
            hints = get_type_hints(holder, include_extras=True)
            narrowed = {
                name: _of_names(hints[name], names[name]) for name in names if name in hints
            }
            holder.__annotations__ = hints | narrowed
        script = app.generate_completion(shell=shell)  # type: ignore[arg-type]
    finally:
        for holder, annotations in declarations:
            holder.__annotations__ = annotations
    # The script only defines a function, which must be called when zsh autoloads it.
    if shell == "zsh":
        entry = f"_cyclopts_{app.name[0]}"
        return (
            f"{script.rstrip()}\n\nif [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n"
            f'  {entry} "$@"\n'
            f"else\n  compdef {entry} {app.name[0]}\nfi\n"
        )
    return script.replace("\ncomplete -F ", "\ncomplete -o default -F ")


def _holders(app: App) -> Iterator[FunctionType | type[Any]]:
    """The functions of all commands, and the records that hold options of theirs."""
    for name in app:
        if not name.startswith("-"):
            yield from _holders(app[name])
    if isinstance(app.default_command, FunctionType):
        yield app.default_command
        yield from _records_in(app.default_command)


def _records_in(holder: FunctionType | type[Any]) -> Iterator[type[Any]]:
    """The dataclasses among the types of parameters or fields, and those inside them."""
    for hint in get_type_hints(holder).values():
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and is_dataclass(kind):
                yield kind
                yield from _records_in(kind)


def _of_names(hint: Any, names: Sequence[str]) -> Any:
    """A string type narrowed to some names; other types unchanged."""
    inner, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if inner not in {str, str | None}:
        return hint
    return Annotated[(Literal[tuple(names)], *extras)] if extras else Literal[tuple(names)]


def separate_program(words: Sequence[str], valued: Collection[str]) -> list[str]:
    """Put ``--`` before the program, so that the options after it go to the program.

    An option in ``valued`` takes the next word as its value.

    >>> separate_program(["-n", "2", "--fast", "x.py", "-n", "3"], ["-n"])
    ['-n', '2', '--fast', '--', 'x.py', '-n', '3']
    """
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "--":
        position += 2 if words[position] in valued else 1
    return [
        *words[:position],
        "--",
        *words[position + (words[position : position + 1] == ["--"]) :],
    ]


def status_of(app: App, words: Sequence[str], say: Callable[[str], object] | None = None) -> int:
    """Run an application; its exit status, 2 and one line of error, or 130 and one line after
    Ctrl-C.
    """
    say = say or sys.stderr.write
    try:
        raise_again()
        status = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        say(printable_lines(f"{app.name[0]}: {str(error).rstrip('.')}; try --help\n"))
        return 2
    except SimcollError as error:
        say(f"simcoll: {error}\n")
        return 2
    except KeyboardInterrupt:
        say(f"{app.name[0]}: stopped\n")
        return STOPPED
    except Exception:
        if not receive():
            raise
        say(f"{app.name[0]}: stopped\n")
        return STOPPED
    return status if isinstance(status, int) else 0
