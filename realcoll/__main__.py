"""``python -m realcoll``: the command line."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.stopping import run_program

__all__ = ["main", "program"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see :func:`realcoll.commands.main`."""
    from realcoll.commands import main as command

    return command(argv)


def program() -> None:
    """Run the command line as this process."""
    run_program(main)


if __name__ == "__main__":
    program()
