"""``simcoll run``: a scenario file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simcoll.cli.disturbed import Disturbed

__all__ = ["run_scenario"]


def run_scenario(
    scenario: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    disturbed: Disturbed = Disturbed(),  # noqa: B008
) -> None:
    """Run a scenario: prove and emulate every algorithm, print the table, write the results, a picture and a timeline.

    Parameters
    ----------
    scenario
        A scenario file, or the name of a shipped one (simcoll list scenarios).
    output
        Folder for results.json, results.csv, busbw.svg and trace.json.gz; default out/<scenario>.
    """
    from dataclasses import replace

    from msgspec import structs

    from simcoll.cli.sweeping import print_sweep
    from simcoll.formats.output import open_folder
    from simcoll.planning import scenario as scenarios
    from simcoll.planning.programs import split_programs
    from simcoll.planning.sweep import prepare

    content, path = scenarios.load_scenario(scenario)
    content = structs.replace(content, **disturbed.keys(content.jitter))
    sweep = scenarios.sweep_of(content, str(path))
    with scenarios.blamed_on(str(path)):
        topology = scenarios.scenario_topology(content, path)
        choices, programs = split_programs(sweep.choices)
        sweep = replace(sweep, choices=choices)
        schedules = [] if programs and not choices else prepare(sweep, topology)
    folder = output or Path("out") / path.stem
    open_folder(folder, scenarios.RESULT_FILES)
    table, proofs, stopped = print_sweep(content.title, sweep, schedules, topology, programs)
    if table or table.programs:
        names = scenarios.write_results(folder, content, topology, table, proofs)
        print(f"# wrote {', '.join(str(folder / name) for name in names)}")
    if stopped:
        raise KeyboardInterrupt
