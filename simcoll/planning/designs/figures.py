"""The figures of merit of designs: title, unit, and direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FIGURES", "Figure", "better_of", "pareto_front"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of merit of designs.

    Attributes
    ----------
    title, unit
        For axes and table headers.
    more_is_better
        Its direction.
    text
        Formats its value.
    """

    title: str
    unit: str
    more_is_better: bool
    text: Callable[[float], str]

    def end_text(self, end: float) -> str:
        """An end of an interval, rounded to three digits: its errors leave no more.

        >>> FIGURES["usd"].text(407_988), FIGURES["usd"].end_text(407_988)
        ('407,988', '408,000')
        """
        return self.text(float(f"{end:.3g}"))


FIGURES: Mapping[str, Figure] = {
    "tokens_per_second": Figure("tokens per second", "tokens/s", True, "{:,.0f}".format),
    "tokens_per_second_per_gpu": Figure(
        "tokens per second and GPU", "tokens/s", True, "{:,.1f}".format
    ),
    "step_s": Figure("step", "s", False, "{:.4g}".format),
    "mfu": Figure("model FLOPs utilisation", "", True, "{:.1%}".format),
    "memory_gib": Figure("memory of a GPU", "GiB", False, "{:.1f}".format),
    "gpus": Figure("GPUs", "", False, "{:,.0f}".format),
    "kilowatts": Figure("power of nodes and network", "kW", False, "{:,.0f}".format),
    "usd_per_hour": Figure("cost of an hour", "$/h", False, "{:,.0f}".format),
    "usd_per_mtoken": Figure("cost of a million tokens", "$", False, "{:.4f}".format),
    "tokens_per_dollar": Figure("tokens per dollar", "tokens/$", True, "{:,.0f}".format),
    "goodput": Figure("goodput", "", True, "{:.1%}".format),
    "goodput_tokens_per_second": Figure(
        "tokens per second that are kept", "tokens/s", True, "{:,.0f}".format
    ),
    "goodput_tokens_per_dollar": Figure(
        "tokens per dollar that are kept", "tokens/$", True, "{:,.0f}".format
    ),
    "days": Figure("time to train", "days", False, "{:.3g}".format),
    "usd": Figure("cost to train", "$", False, "{:,.0f}".format),
}


def better_of(figure: str) -> Callable[[Mapping[str, Any]], float]:
    """A sort key for results by a figure, best first."""
    sign = -1 if FIGURES[figure].more_is_better else 1

    def key(result: Mapping[str, Any]) -> float:
        return sign * float(result[figure])

    return key


def pareto_front(results: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> list[int]:
    """Indices of the results that no other dominates (at least as good in every figure, and better
    in one); first of equals.

    >>> found = [{"gpus": 8, "mfu": 0.4}, {"gpus": 16, "mfu": 0.3}, {"gpus": 16, "mfu": 0.5}]
    >>> pareto_front(found, ["gpus", "mfu"])
    [0, 2]
    """
    keys = [better_of(name) for name in figures]
    rated = sorted(
        (tuple(key(result) for key in keys), place) for place, result in enumerate(results)
    )
    front: list[tuple[tuple[float, ...], int]] = []
    for values, place in rated:  # what comes later is nowhere better in the first figure
        if not any(
            all(a <= b for a, b in zip(dominator, values, strict=True)) for dominator, _ in front
        ):
            front.append((values, place))
    return sorted(place for _, place in front)
