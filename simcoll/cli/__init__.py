"""The command line of simcoll: one module per command, imported on demand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App

from simcoll.cli.completion_command import completion_of, help_of
from simcoll.command_line import run_app
from simcoll.help_text import PARAGRAPHS

__all__ = ["app", "main"]

app = App(
    help_formatter=PARAGRAPHS,
    name="simcoll",
    help="Specify a collective once, prove it, see how fast it will be on any cluster, run it "
    "unchanged on GPUs.",
    help_flags=["--help", "-h"],
    help_format="plaintext",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,  # run_app says so
)
COMMANDS = {
    "run": "run_command:run_scenario",
    "perf": "perf_command:predict",
    "sweep": "sweep_command:sweep_all",
    "goodput": "goodput_command:simulate_goodput",
    "faults": "faults_command:play_faults",
    "plan": "plan_command:plan_designs",
    "diff": "diff_command:diff_results",
    "compare": "compare_command:compare_log",
    "calibrate": "calibrate_command:app",
    "accuracy": "accuracy_command:show_accuracy",
    "step": "step_command:time_step",
    "job": "job_command:ask_job",
    "verify": "verify_command:verify_file",
    "show": "show_command:show_schedule",
    "convert": "convert_command:convert_file",
    "tune": "tune_command:tune_library",
    "flight": "flight_command:read_flight",
    "graph": "graph_command:check_graph",
    "list": "list_command:list_names",
}
"""Module and function of every command, which are imported when it is called."""
for _name, _function in COMMANDS.items():
    app.command(f"simcoll.cli.{_function}", name=_name)
app.command(help_of(app), name="help")
app.command(completion_of(app), name="completion")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit status: 0 done, 1 a schedule is wrong, 2 bad input, 3 a bug in simcoll, 130
    stopped.
    """
    # Nothing here multiplies matrices of floats: NumPy's threads for them would only cost a tenth
    # of a second to start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] not in COMMANDS:
        describe_commands()
    return run_app(app, arguments)


def describe_commands() -> None:
    """Import all commands, so that the help of the whole has their first sentences."""
    for name in COMMANDS:
        app[name]
