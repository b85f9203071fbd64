"""``python -m simcoll``: the command line."""

import gc

from simcoll.stopping import run_program

__all__ = ["main", "program"]

YOUNG_OBJECTS = 50_000
"""New objects between two runs of Python's cycle collector, whose default of 700 takes 15 % of the
CPU time of a plan, and finds next to nothing; the memory of commands stays the same.
"""


def main() -> int:
    """The command line; see :func:`simcoll.cli.main`."""
    from simcoll.cli import main as command

    status = command()
    # Python looks for cycles once more at its end, among all objects, for 8 % of a short command.
    # Nothing needs it: what a command opens, it closes.
    gc.freeze()
    return status


def program() -> None:
    """Run the command line as this process."""
    gc.set_threshold(YOUNG_OBJECTS)
    run_program(main)


if __name__ == "__main__":
    program()
