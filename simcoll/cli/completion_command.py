"""``simcoll help`` and ``simcoll completion``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from cyclopts import App

from simcoll.command_line import completion_script
from simcoll.errors import ConfigError, nearest

__all__ = ["completion_of", "help_of"]


def help_of(app: App) -> Callable[..., None]:
    """The command ``help`` of an application."""

    def show_help(*command: str) -> None:
        """Show the description and options of a command.

        Parameters
        ----------
        command
            A command such as perf, or calibrate step. Default: all commands.
        """
        commands, path = app, list[str]()
        for word in command:
            names = [name for name in commands if not name.startswith("-")]
            if word not in names:
                raise ConfigError(f"no command {' '.join([*path, word])!r}; {nearest(word, names)}")
            commands, path = commands[word], [*path, word]
        app.help_print(list(command))

    return show_help


def completion_of(app: App) -> Callable[..., None]:
    """The command ``completion`` of an application."""

    def print_completion(shell: str, /) -> None:
        """Print a shell script that completes commands, options and shipped names.

        Parameters
        ----------
        shell
            bash, zsh or fish.
        """
        from simcoll.cli.list_command import LISTED
        from simcoll.planning.names import option_names

        commands = tuple(name for name in app if not name.startswith("-"))
        values = {**option_names(), "what": LISTED, "command": commands}
        sys.stdout.write(f"{completion_script(app, shell, values)}\n")

    return print_completion
