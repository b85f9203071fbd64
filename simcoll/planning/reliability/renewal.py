"""Formulas for jobs with failures: checkpoint interval and goodput."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcoll.planning.reliability.failures import TrainingJob

__all__ = ["renewal", "young_daly"]

MOST_EXPONENT = 700.0
"""Failures expected between two checkpoints beyond which nothing is ever kept: exp of more exceeds
floating point.
"""


def young_daly(cost_us: int, mtbf_us: int, *, higher_order: bool = False) -> int:
    """The optimal checkpoint interval: Young's square root, or Daly's higher-order estimate.

    Both are in whole microseconds: sqrt(2 C M), and sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) -
    C for C < 2M, else M (J. T. Daly, *A higher order estimate of the optimum checkpoint interval
    for restart dumps*, 2006, equation 37).

    >>> young_daly(50, 10_000), young_daly(50, 10_000, higher_order=True)
    (1000, 966)
    """
    root = math.isqrt(2 * cost_us * mtbf_us)
    if not higher_order:
        return root
    if cost_us >= 2 * mtbf_us:
        return mtbf_us
    return root + cost_us // 3 + root * cost_us // (18 * mtbf_us) - cost_us


def renewal(job: TrainingJob) -> float | None:
    """Long-run goodput of a job, where a closed form exists; otherwise ``None``.

    Exponential failures of mean M that cost only a restart, or a node with a spare, are renewal
    points: detection (D, without failures), loading (R), and checkpoints every T + B, durable W
    later. So the training retained per failure is exp(-(R + W) / M) T / (exp((T + B) / M) - 1), and
    the time per failure M + D.
    """
    exponential = all(cause.shape == 1 for cause in job.causes)
    always_placed = all(not cause.nodes or not cause.repair_us for cause in job.causes)
    if not (exponential and always_placed) or job.slowness is not None:
        return None
    if not job.causes:
        return job.interval_us / (job.interval_us + job.blocking_us)
    failing = float(1 / sum(Fraction(1, cause.mean_us) for cause in job.causes))
    cycle, unsafe = job.interval_us + job.blocking_us, job.saving_us - job.blocking_us
    if cycle / failing > MOST_EXPONENT:
        return 0.0
    useful_us = (
        math.exp(-(job.load_us + unsafe) / failing) * job.interval_us / math.expm1(cycle / failing)
    )
    return useful_us / (failing + job.detect_us)
