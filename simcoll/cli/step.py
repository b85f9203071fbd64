"""``simcoll step``: one training step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["time_step"]

FILES = ("step.json", "step.svg", "trace.json.gz", "workload.json")


def time_step(
    design: Path, /, *, tier: int = 2, output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None
) -> None:
    """Time a training step: print where its time goes, write the result, a picture and a timeline.

    Parameters
    ----------
    design
        A design file.
    tier
        2: everything emulated together. 1: collectives timed once each and the pipeline played with these times; quicker, and the
        same where no two axes share links.
    output
        Folder for step.json, step.svg, trace.json.gz (Perfetto) and workload.json; default out/<design>.
    """
    from simcoll.formats.output import open_folder, write_files
    from simcoll.planning.step_report import step_json, step_lines, step_svg, step_trace
    from simcoll.workload.design import load_design
    from simcoll.workload.steps import Step
    from simcoll.workload.workload import write_workload

    asked = Step(load_design(design))
    folder = output or Path("out") / design.stem
    open_folder(folder, FILES)
    result = asked.result(tier=tier)
    for line in step_lines(result):
        print(line)
    clock = asked.clock(tier=tier).clock
    contents = (
        step_json(result),
        step_svg(asked.workload, clock, result.title),
        step_trace(asked.workload, clock, result.title),
        write_workload(asked.workload),
    )
    write_files(folder, dict(zip(FILES, contents, strict=True)))
    print(f"# wrote {', '.join(str(folder / name) for name in FILES)}")
