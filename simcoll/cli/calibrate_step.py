"""``simcoll calibrate step``: few constants of a GPU and its software from measured training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["calibrate_steps"]


def calibrate_steps(
    design: Path,
    rows: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    parameters: str | None = None,
) -> None:
    """Fit few constants to measured training steps, and write them for [gpu] calibration.

    Parameters
    ----------
    design
        A design file: what all steps have in common.
    rows
        A CSV file with a row for each step: time_ms, and values of the design by place, such as model.global_batch; rows with the
        same fold are left out together when the error is told.
    output
        The file, such as h100.toml.
    parameters
        What to fit, such as rate,hbm,step_ms: of the constants rate, hbm, attention, unfused, host_layer_us, host_tp_us,
        host_expert_us, step_ms and overlap. Default: what so many rows can tell.
    """
    import numpy as np

    from simcoll.formats.output import refuse_places, write_file
    from simcoll.planning.step_fitting import fit_steps
    from simcoll.planning.step_rows import read_steps
    from simcoll.workload.calibration import calibration_toml

    refuse_places([output], [design, rows])
    table = read_steps(design, rows)
    names = tuple(name.strip() for name in parameters.split(",")) if parameters else ()
    found = fit_steps(table.rows, names, source=f"{rows.name} on {design.name}")
    print(f"# {table.title}: {found.calibration.state}")
    print(f"{'measured s':>12} {'off':>7} {'unseen':>7}  step")
    for row, seen, unseen in zip(table.rows, found.seen.tolist(), found.unseen.tolist(), strict=True):
        shown = "" if np.isnan(unseen) else f"{100 * unseen:+.1f} %"
        print(f"{row.seconds:>12.4g} {100 * seen:>+5.1f} % {shown:>7}  {row.label}")
    write_file(output, calibration_toml(found.calibration).encode())
    print(f"# wrote {output}")
