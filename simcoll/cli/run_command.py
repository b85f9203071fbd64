"""``simcoll run``: run a scenario file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simcoll.cli.disturbance_options import Disturbed
from simcoll.command_line import VERBOSE
from simcoll.errors import blamed_on
from simcoll.terminal import say

__all__ = ["run_scenario"]


def run_scenario(
    scenario: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    group: str | None = None,
    verbose: Annotated[bool, VERBOSE] = False,
    disturbed: Disturbed = Disturbed(),  # noqa: B008
) -> None:
    """Run a scenario: prove and emulate every algorithm, print the table, write the results, a
    picture and a timeline.

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one (simcoll list scenarios).
    output
        Folder for results.json, results.csv, busbw.svg and trace.json.gz; default out/<scenario>.
    group
        Axes of a mesh of all ranks, fastest first, such as tp=8,dp=64: a table for one group of
        each axis, in a folder of that name.
    verbose
        Print also every proof, what played the runs, and the hash of their traces.
    """
    from simcoll.cli.sweeping import print_sweep, prove_all
    from simcoll.files.output import open_folder
    from simcoll.planning.sweeps import scenario as scenarios
    from simcoll.planning.sweeps.chart import NO_PICTURE
    from simcoll.planning.sweeps.goal_programs import split_programs

    content, path = scenarios.load_scenario(scenario)
    keys = disturbed.keys(content.jitter)
    keys |= {"group": group} if group else {}
    content = replace(content, **keys)
    sweep = scenarios.sweep_of(content, str(path))
    with blamed_on(str(path)):
        machines = scenarios.scenario_machines(content, path)
        choices, programs = split_programs(sweep.choices)
        sweep = replace(sweep, choices=choices)
        axis_schedules = []
        for axis, machine in machines.items():
            with blamed_on(f"{path}: --group, axis {axis}" if axis else str(path)):
                sweep.disturbed.check(machine)
                axis_schedules.append([] if programs and not choices else prove_all(sweep, machine))
    folders = [(output or Path("out") / path.stem) / axis for axis in machines]
    for folder in folders:
        open_folder(folder, scenarios.RESULT_FILES)
    for folder, (axis, machine), schedules in zip(
        folders, machines.items(), axis_schedules, strict=True
    ):
        title = f"{content.title}; one group along {axis}" if axis else content.title
        table, proofs, stopped = print_sweep(
            title, sweep, schedules, machine, programs, verbose=verbose
        )
        if table or table.programs:
            names = scenarios.write_results(
                folder, replace(content, title=title), machine, table, proofs
            )
            say(f"# wrote {', '.join(str(folder / name) for name in names)}")
            if table.rows and "busbw.svg" not in names:
                say(f"# {NO_PICTURE}")
        if stopped:
            raise KeyboardInterrupt
