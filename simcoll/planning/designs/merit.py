"""The figures of merit of a design: from its speed, its bill, and what it loses to failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcoll.errors import ConfigError
from simcoll.planning.costs import (
    ClusterCost,
    ClusterPower,
    hardware,
    hourly_cost,
    power_kw,
)
from simcoll.planning.reliability.failures import Cause, TrainingJob
from simcoll.planning.reliability.goodput import HOUR_US
from simcoll.planning.reliability.renewal import renewal, young_daly
from simcoll.units import parse_span

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = ["Bill", "bill_of", "figures_of"]


@dataclass(frozen=True, slots=True)
class Bill:
    """What a design costs, in dollars for an hour by part, and draws."""

    kilowatts: float
    parts: dict[str, float]

    @property
    def usd_per_hour(self) -> float:
        """All parts."""
        return sum(self.parts.values())


def bill_of(design: Design, terms: Mapping[str, Any]) -> Bill:
    """The cost and the power of a design, with its spares."""
    cost, power = ClusterCost(**terms["cost"]), ClusterPower(**terms["power"])
    parts = hardware(design, power, (terms["failures"] or {}).get("spares", 0))
    kilowatts = power_kw(design, power, parts)
    amounts = hourly_cost(cost, power, parts, kilowatts)
    return Bill(kilowatts, {amount.part: amount.usd_per_hour for amount in amounts})


def figures_of(
    speed: Mapping[str, float], bill: Bill, terms: Mapping[str, Any]
) -> dict[str, float]:
    """All figures that a plan file has the numbers for.

    Parameters
    ----------
    speed
        Of the step: ``tokens_per_second``, ``step_s``, ``mfu``, ``memory_gib``, ``gpus``.
    bill
        What the design costs and draws.
    terms
        Limits, prices, failures and tokens of the plan.

    Examples
    --------
    >>> speed = {"tokens_per_second": 5e5, "step_s": 2, "mfu": 0.4, "memory_gib": 60, "gpus": 64}
    >>> bill = Bill(90.0, {"rent": 128.0})
    >>> figures = figures_of(speed, bill, {"failures": None, "tokens": 10**12})
    >>> round(figures["days"], 2), round(figures["usd"])
    (23.15, 71111)
    """
    rate, price = speed["tokens_per_second"], bill.usd_per_hour
    gpus = speed["gpus"]
    figures = {
        **speed,
        "tokens_per_second_per_gpu": rate / gpus,
        "kilowatts": bill.kilowatts,
    }
    useful_rate = rate
    if terms["failures"] is not None:
        share = _goodput(terms["failures"], int(gpus))
        useful_rate = rate * share
        figures |= {"goodput": share, "goodput_tokens_per_second": useful_rate}
    if price:
        figures |= {
            "usd_per_hour": price,
            "usd_per_mtoken": price / 3600 / rate * 1e6,
            "tokens_per_dollar": rate * 3600 / price,
        }
        if terms["failures"] is not None:
            figures["goodput_tokens_per_dollar"] = useful_rate * 3600 / price
    if terms["tokens"]:
        hours = terms["tokens"] / useful_rate / 3600
        figures["days"] = hours / 24
        if price:
            figures["usd"] = hours * price
    return figures


def _goodput(failures: Mapping[str, Any], gpus: int) -> float:
    """The renewal formula with Daly's checkpoint interval."""
    mean_us = max(1, int(failures["gpu_hours"] / gpus * HOUR_US))
    saving = parse_span(failures["checkpoint"])
    blocking = parse_span(failures["blocking"]) if failures.get("blocking") else saving
    interval = max(1, young_daly(blocking, mean_us, higher_order=True), saving - blocking)
    detect, load = parse_span(failures.get("detect", "0")), parse_span(failures["restart"])
    share = renewal(
        TrainingJob(1, interval, blocking, saving, detect, load, (Cause("all", mean_us),))
    )
    if not share:
        raise ConfigError(
            f"a failure every {mean_us / 1e6:,.3g} s on {gpus:,} GPUs: no training survives",
            path="$.failures.gpu_hours",
        )
    return share
