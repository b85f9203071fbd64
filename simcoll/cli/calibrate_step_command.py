"""``simcoll calibrate step``: fit constants of a GPU and its software to measured training
steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simcoll.errors import blamed_on
from simcoll.terminal import say

__all__ = ["calibrate_steps"]


def calibrate_steps(
    design: Path,
    rows: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    parameters: str | None = None,
) -> None:
    """Fit a few constants to measured training steps, for [gpu] calibration.

    Parameters
    ----------
    design
        A design file with the values common to all steps.
    rows
        A CSV file with a row per step: time_ms, and values of the design by path, such as
        model.global_batch; rows with the same fold are left out together in the cross-validation.
    output
        The file, such as h100.toml.
    parameters
        Constants to fit, such as rate,hbm,step_ms, among rate, hbm, attention, unfused,
        host_layer_us, host_tp_us, host_expert_us, step_ms and overlap. Default: as many as the rows
        allow.
    """
    import numpy as np

    from simcoll.files.output import refuse_places, write_file
    from simcoll.planning.measured.step_fitting import PARAMETERS, default_parameters, fit_steps
    from simcoll.planning.measured.step_rows import read_steps
    from simcoll.training.step_calibration import calibration_toml

    refuse_places([output], [design, rows])
    table = read_steps(design, rows)
    names = tuple(name.strip() for name in parameters.split(",")) if parameters else ()
    with blamed_on(str(rows)):
        fit = fit_steps(table.rows, names, source=f"{rows.name} on {design.name}")
    say(f"# {table.title}: {fit.calibration.state}")
    say(f"{'measured s':>12} {'off':>7} {'unseen':>7}  step")
    for row, error, unseen in zip(
        table.rows, fit.errors.tolist(), fit.unseen_errors.tolist(), strict=True
    ):
        unseen_text = "" if np.isnan(unseen) else f"{100 * unseen:+.1f} %"
        say(f"{row.seconds:>12.4g} {100 * error:>+5.1f} % {unseen_text:>7}  {row.label}")
    for name in names or default_parameters(len(table.rows)):
        value, limits = getattr(fit.calibration, name), PARAMETERS[name]
        if limits.low < value < limits.high or value == 0:
            continue
        say(
            f"# note: {name} is at its limit, {value}: something else is wrong, in the design or "
            "in the model"
        )
    write_file(output, calibration_toml(fit.calibration).encode())
    say(f"# wrote {output}")
