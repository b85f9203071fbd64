"""``python -m simcoll``: the command line."""

from simcoll.stopping import run_program

__all__ = ["main", "program"]


def main() -> int:
    """The command line; see :func:`simcoll.cli.main`."""
    from simcoll.cli import main as command

    return command()


def program() -> None:
    """Run the command line as this process."""
    run_program(main)


if __name__ == "__main__":
    program()
