"""The command line of simcoll: one module per command, imported on demand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App

from simcoll.cli.accuracy_command import show_accuracy
from simcoll.cli.calibrate_command import calibrate_logs
from simcoll.cli.calibrate_step_command import calibrate_steps
from simcoll.cli.compare_command import compare_log
from simcoll.cli.completion_command import completion_of, help_of
from simcoll.cli.convert_command import convert_file
from simcoll.cli.diff_command import diff_results
from simcoll.cli.faults_command import play_faults
from simcoll.cli.flight_command import read_flight
from simcoll.cli.goodput_command import simulate_goodput
from simcoll.cli.graph_command import check_graph
from simcoll.cli.job_command import ask_job
from simcoll.cli.list_command import list_names
from simcoll.cli.perf_command import predict
from simcoll.cli.plan_command import plan_designs
from simcoll.cli.run_command import run_scenario
from simcoll.cli.show_command import show_schedule
from simcoll.cli.step_command import time_step
from simcoll.cli.sweep_command import sweep_all
from simcoll.cli.tune_command import tune_library
from simcoll.cli.verify_command import verify_file
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
app.command(run_scenario, name="run")
app.command(predict, name="perf")
app.command(sweep_all, name="sweep")
app.command(simulate_goodput, name="goodput")
app.command(play_faults, name="faults")
app.command(plan_designs, name="plan")
app.command(diff_results, name="diff")
app.command(compare_log, name="compare")
_calibrate = App(name="calibrate", help=calibrate_logs.__doc__)
_calibrate.default(calibrate_logs)
_calibrate.command(calibrate_steps, name="step")
app.command(_calibrate)
app.command(show_accuracy, name="accuracy")
app.command(time_step, name="step")
app.command(ask_job, name="job")
app.command(verify_file, name="verify")
app.command(show_schedule, name="show")
app.command(convert_file, name="convert")
app.command(tune_library, name="tune")
app.command(read_flight, name="flight")
app.command(check_graph, name="graph")
app.command(list_names, name="list")
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
    return run_app(app, sys.argv[1:] if argv is None else argv)
