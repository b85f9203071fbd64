"""Fit a few constants of a GPU and its software to measured training steps.

Minimises the mean of |predicted / measured - 1| over named constants, each within physical limits.
A step is nearly linear in them, so each iteration solves a linear program on the derivatives. Rows
of a fold are judged by constants fitted without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from simcoll.arrays import Floats
from simcoll.errors import ConfigError, nearest
from simcoll.training.step_calibration import StepCalibration
from simcoll.training.steps import TrainingStep

if TYPE_CHECKING:
    from simcoll.planning.measured.step_rows import StepRow


__all__ = ["PARAMETERS", "StepFit", "default_parameters", "fit_steps", "predict_seconds"]


@dataclass(frozen=True, slots=True)
class _Range:
    """Limits of a constant, the step of its derivative, and the trust region of an iteration."""

    low: float
    high: float
    step: float
    reach: float


PARAMETERS = {
    "rate": _Range(0.5, 1.1, 0.03, 0.15),
    "hbm": _Range(0.3, 1.0, 0.05, 0.2),
    "attention": _Range(0.1, 1.2, 0.05, 0.2),
    "unfused": _Range(0.5, 5, 0.1, 0.5),
    "host_layer_us": _Range(0, 5000, 60, 300),
    "host_tp_us": _Range(0, 2000, 40, 200),
    "host_expert_us": _Range(0, 2000, 20, 100),
    "step_ms": _Range(0, 500, 8, 60),
    "overlap": _Range(0, 10, 0.2, 2),
}
"""The constants that can be fitted."""
ROUNDS = 4
MOST_OFF = 0.5
"""Median error from which on a fit means nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class StepFit:
    """Fitted constants, with errors on fitted and left-out rows.

    Attributes
    ----------
    calibration
        Fitted to all rows.
    errors, unseen_errors
        Predicted over measured time, minus 1, by row: with the constants of all rows, and with
        those of the other folds.
    """

    calibration: StepCalibration
    errors: Floats
    unseen_errors: Floats


def default_parameters(rows: int) -> tuple[str, ...]:
    """The constants that a number of rows can determine.

    >>> default_parameters(1), default_parameters(12)
    (('rate',), ('rate', 'hbm', 'host_layer_us', 'step_ms'))
    """
    return (
        ("rate",)
        if rows < 3
        else ("rate", "step_ms")
        if rows < 8
        else ("rate", "hbm", "host_layer_us", "step_ms")
    )


def predict_seconds(rows: Sequence[StepRow], calibration: StepCalibration) -> Floats:
    """Seconds of every row in tier 1."""
    times = [
        TrainingStep(replace(row.design, calibration=calibration)).time_fs(tier=1) for row in rows
    ]
    return np.array(times, np.float64) / 1e15


def fit_steps(
    rows: Sequence[StepRow],
    parameters: Sequence[str] = (),
    *,
    start: StepCalibration | None = None,
    weights: Sequence[float] | None = None,
    source: str = "",
) -> StepFit:
    """Fit constants to measured steps.

    Parameters
    ----------
    parameters
        Names in :data:`PARAMETERS`. Default: as many as the rows can determine.
    start
        Initial values, and values of constants that are not fitted.
    weights
        Weights of rows. Default: equal.

    Raises
    ------
    ConfigError
        For an unknown parameter, or more of them than rows.
    """
    names = tuple(parameters) or default_parameters(len(rows))
    for name in names:
        if name not in PARAMETERS:
            raise ConfigError(f"unknown parameter {name!r}; {nearest(name, PARAMETERS)}")
    if len(names) > len(rows):
        raise ConfigError(
            f"{len(rows)} rows cannot tell {len(names)} parameters: {', '.join(names)}"
        )
    row_weights = (
        np.full(len(rows), 1 / len(rows)) if weights is None else np.array(weights, np.float64)
    )
    problem = _Problem(rows, names, start or rows[0].design.calibration, row_weights)
    best, slopes, times = problem.solve()
    off = np.abs(times / problem.measured - 1)
    if not np.median(off) < MOST_OFF:
        raise ConfigError(
            "no constants within their limits explain these steps: half are off by "
            f"{100 * np.median(off):,.0f} % or more; are times in "
            "milliseconds, and of this design?"
        )
    unseen = problem.left_out(best, slopes, times)
    error = float(np.abs(unseen).mean()) if np.isfinite(unseen).all() else None
    calibration = problem.at(best)
    gpus = {row.design.gpu.name for row in rows}
    gpu = gpus.pop() if len(gpus) == 1 else ""
    final = msgspec.structs.replace(
        calibration, rows=len(rows), error=error, source=source, gpu=gpu
    )
    return StepFit(final, times / problem.measured - 1, unseen)


class _Problem:
    """The fitting problem: rows, and free constants."""

    def __init__(
        self,
        rows: Sequence[StepRow],
        names: tuple[str, ...],
        start: StepCalibration,
        weights: Floats,
    ) -> None:
        self.rows = rows
        self.names = names
        self.start = start
        self.weights = weights
        self.ranges = [PARAMETERS[name] for name in names]
        self.measured = np.array([row.seconds for row in rows])

    def at(self, values: Floats) -> StepCalibration:
        """The calibration of some values, rounded as written to files."""
        return msgspec.structs.replace(
            self.start,
            **{name: float(f"{value:.4g}") for name, value in zip(self.names, values, strict=True)},
        )

    def times(self, values: Floats) -> Floats:
        return predict_seconds(self.rows, self.at(values))

    def solve(self) -> tuple[Floats, Floats, Floats]:
        """The best values, with derivatives and times there."""
        values = np.array([getattr(self.start, name) for name in self.names], np.float64)
        values = np.clip(
            values, [limits.low for limits in self.ranges], [limits.high for limits in self.ranges]
        )
        best, least_error, reach = (
            values,
            np.inf,
            np.array([limits.reach for limits in self.ranges]),
        )
        best_times = start_times = self.times(values)
        slopes = np.zeros((len(self.rows), len(self.names)))
        for turn in range(ROUNDS):
            times = self.times(values) if turn else start_times
            error = float((self.weights * np.abs(times / self.measured - 1)).sum())
            if error < least_error:
                best, least_error, best_times = values, error, times
            else:
                reach = reach / 2
            slopes = self._slopes(best, best_times)
            values = self._next(best, slopes, best_times, reach, self.weights)
        times = self.times(values)
        if float((self.weights * np.abs(times / self.measured - 1)).sum()) < least_error:
            best, best_times = values, times
        return best, slopes, best_times

    def _slopes(self, values: Floats, times: Floats) -> Floats:
        """Derivatives of all times: ``[rows, parameters]``."""
        columns = []
        for place, limits in enumerate(self.ranges):
            moved = values.copy()
            moved[place] += (
                limits.step if values[place] + limits.step <= limits.high else -limits.step
            )
            columns.append((self.times(moved) - times) / (moved[place] - values[place]))
        return np.stack(columns, axis=1)

    def _next(
        self, values: Floats, slopes: Floats, times: Floats, reach: Floats, weights: Floats
    ) -> Floats:
        """The values with the least weighted error in the linear model."""
        from scipy.optimize import linprog

        slope, error = slopes / self.measured[:, None], times / self.measured - 1
        n, p = slope.shape
        above = np.hstack([slope, -np.eye(n)])
        below = np.hstack([-slope, -np.eye(n)])
        bounds = [
            (max(limits.low - value, -far), min(limits.high - value, far))
            for limits, value, far in zip(self.ranges, values, reach.tolist(), strict=True)
        ]
        solution = linprog(
            np.concatenate([np.zeros(p), weights]),
            A_ub=np.vstack([above, below]),
            b_ub=np.concatenate([-error, error]),
            bounds=[*bounds, *[(0, None)] * n],
            method="highs",
        )
        moved: Floats = values + solution.x[:p]
        return moved

    def left_out(self, best: Floats, slopes: Floats, times: Floats) -> Floats:
        """Errors of each fold with constants fitted to the others."""
        folds = dict.fromkeys(row.fold for row in self.rows)
        errors = np.full(len(self.rows), np.nan)
        for fold in folds if len(folds) > 1 else ():
            in_fold = np.array([row.fold == fold for row in self.rows])
            reach = np.array([limits.reach for limits in self.ranges])
            values = self._next(best, slopes, times, reach, np.where(in_fold, 0.0, self.weights))
            rows = [row for row, out in zip(self.rows, in_fold.tolist(), strict=True) if out]
            errors[in_fold] = predict_seconds(rows, self.at(values)) / self.measured[in_fold] - 1
        return errors
