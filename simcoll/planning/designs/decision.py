"""The decision of a plan: its alternatives, best first, and what would turn their order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcoll.planning.designs.figures import FIGURES
from simcoll.planning.designs.mapping_search import typical_of
from simcoll.planning.designs.nearest_fit import alternative_name
from simcoll.training.evidence import uneven_evidence
from simcoll.training.step_intervals import bias_sentence

if TYPE_CHECKING:
    from simcoll.planning.designs.nearest_fit import MissingAlternative
    from simcoll.planning.designs.sensitivity import Sensitivity
    from simcoll.planning.grids.grid import Row

__all__ = [
    "Alternative",
    "TurningPoint",
    "alternatives_of",
    "interval_lines",
    "interval_of",
    "is_tie",
    "list_lines",
    "smallest_difference",
    "turning_points",
    "typical_best",
    "typical_sentence",
    "verdict",
]

TIME_POWERS = {
    "tokens_per_second": -1,
    "tokens_per_second_per_gpu": -1,
    "step_s": 1,
    "mfu": -1,
    "usd_per_mtoken": 1,
    "tokens_per_dollar": -1,
    "goodput_tokens_per_second": -1,
    "goodput_tokens_per_dollar": -1,
    "days": 1,
    "usd": 1,
}
"""The power of the step's time in a figure; figures without an entry do not depend on it."""
PRICE_POWERS = {"usd_per_hour": 1, "usd_per_mtoken": 1, "usd": 1, "tokens_per_dollar": -1}
PRICE_POWERS["goodput_tokens_per_dollar"] = -1
"""The power of the cost of an hour in a figure."""
MOST_RIVALS = 8
"""Alternatives beside the best whose intervals are printed; the report has those of all."""
SMALL = 0.005
"""Relative difference below which two designs print as equal without an interval."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative of a plan and its best design."""

    name: str
    best: Row

    @property
    def result(self) -> Mapping[str, Any]:
        """The result of the best design."""
        result: Mapping[str, Any] = self.best["result"]
        return result


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """An input at which another alternative is as good as the best.

    Attributes
    ----------
    rival
        The other alternative.
    name
        The input, and whose it is.
    change
        Its relative change.
    """

    rival: str
    name: str
    change: float


def alternatives_of(best: Sequence[Row]) -> list[Alternative]:
    """The alternatives of a plan, best first.

    A plan without alternatives has one for each machine that its lists describe; one without these
    has a single one.

    Parameters
    ----------
    best
        The designs that ran, best first.
    """
    leaders: dict[str, Row] = {}
    for row in best:
        leaders.setdefault(alternative_name(row["point"]["case"]) or "the best design", row)
    return [Alternative(name, row) for name, row in leaders.items()]


def interval_of(
    result: Mapping[str, Any], figure: str, share: str = "90"
) -> tuple[float, float] | None:
    """The interval of a figure, low to high, or None without one.

    >>> interval_of({"days": 10.0, "interval": {"90": [0.9, 1.2]}}, "days")
    (9.0, 12.0)
    >>> interval_of({"mfu": 0.4, "interval": {"90": [0.8, 1.25]}}, "mfu")
    (0.32, 0.5)
    """
    factors = (result.get("interval") or {}).get(share)
    power = TIME_POWERS.get(figure, 0)
    if not factors or not power:
        return None
    low, high = sorted(result[figure] * factor**power for factor in factors)
    return round(low, 12), round(high, 12)


def is_tie(best: Mapping[str, Any], rival: Mapping[str, Any], figure: str) -> bool:
    """Whether two designs may be equal in truth.

    They are if they differ by no more than nine of ten differences of such predictions are off
    (:func:`smallest_difference`); without intervals, if they print as equal.

    >>> wide = {"90": [0.9, 1.2]}
    >>> results = [{"days": days, "interval": wide} for days in (10, 12, 14)]
    >>> is_tie(results[0], results[1], "days"), is_tie(results[0], results[2], "days")
    (True, False)
    """
    ratio = rival[figure] / best[figure]
    smallest = smallest_difference(best, rival, figure)
    if smallest is None:
        return bool(abs(ratio - 1) < SMALL)
    return abs(math.log(ratio)) <= math.log1p(smallest)


def smallest_difference(
    best: Mapping[str, Any], rival: Mapping[str, Any], figure: str
) -> float | None:
    """The relative difference of a figure from which on nine of ten such predictions name the
    better design; None without intervals.

    Designs of one class share most of their error, which leaves :func:`common_difference`. Errors
    of different classes are taken as independent: the 90 % interval of the difference of their
    logarithms is as long as the root of the sum of squares of both intervals, and lies as far to
    the side as their middles do.

    >>> wide = {"90": [0.9, 1 / 0.9]}
    >>> round(smallest_difference({"interval": wide}, {"interval": wide}, "days"), 3)
    0.161
    """
    power = abs(TIME_POWERS.get(figure, 0))
    shared = common_difference(best, rival)
    if power and shared is not None:
        return math.expm1(power * math.log1p(shared))
    spans = [(result.get("interval") or {}).get("90") for result in (best, rival)]
    ends = [span for span in spans if span]
    if not power or len(ends) < len(spans):
        return None
    middles = [math.log(low * high) / 2 for low, high in ends]
    halves = [math.log(high / low) / 2 for low, high in ends]
    # The rival is the slower or dearer one: it may be better by what its class is predicted too
    # slow, and the class of the best too fast.
    reach = math.hypot(*halves) + middles[0] - middles[1]
    return math.expm1(power * max(0.0, reach))


def common_difference(best: Mapping[str, Any], rival: Mapping[str, Any]) -> float | None:
    """The relative difference of steps of one class that nine of ten errors of differences do not
    exceed; None for two classes.

    Where both compute the same, on another network, say, their computation is off by the same, and
    only the rest of a step can differ.

    >>> interval = {"difference": 0.1, "class": ["dense"]}
    >>> step = {"interval": interval, "compute_fs": 80, "time_fs": 100}
    >>> round(common_difference(step, {**step, "time_fs": 90}), 3)
    0.02
    >>> common_difference(step, {**step, "compute_fs": 70})
    0.1
    """
    interval, rival_interval = best.get("interval") or {}, rival.get("interval") or {}
    if "difference" not in interval or interval.get("class") != rival_interval.get("class"):
        return None
    difference = float(interval["difference"])
    if "compute_fs" in best and best["compute_fs"] == rival.get("compute_fs"):
        difference *= max(1 - result["compute_fs"] / result["time_fs"] for result in (best, rival))
    return difference


def interval_lines(figure: str, best: Sequence[Row], *, verbose: bool = False) -> Iterator[str]:
    """The intervals of the best design, and how many designs are as good as it by the objective.

    Parameters
    ----------
    best
        The designs that ran, best first.
    verbose
        Add the class of designs whose errors the intervals are of.
    """
    leader = best[0]["result"]
    spans = _spans(leader, figure)
    if spans:
        errors = leader["interval"]["of"]
        if not verbose:
            errors = re.sub(r" \(.*\)", "", errors)
        yield f"best: {', '.join(spans)}, by {errors}"
        if sentence := bias_sentence(leader["interval"]["50"]):
            yield f"best: {sentence}"
    if sentence := typical_sentence(best, figure):
        yield sentence
    rivals = alternatives_of(best)[1:]
    for rival in rivals if len(rivals) <= MOST_RIVALS else ():
        if rival_spans := _spans(rival.result, figure):
            yield f"{rival.name}: {', '.join(rival_spans)}"
    ties = sum(is_tie(leader, row["result"], figure) for row in best[1:])
    if ties:
        designs = f"{ties:,} of the {len(best) - 1:,} other designs"
        if len(best) == 2:
            designs = "the other design"
        verb = "is" if ties == 1 else "are"
        yield (
            f"{designs} {verb} a tie with the best by {FIGURES[figure].title}: such differences "
            "are within their error"
        )


def typical_best(best: Sequence[Row], figure: str) -> Row:
    """The design that is best if every step takes what steps of its class typically took over their
    predictions; of equals, one in the higher tier, with the most values of the best as predicted.

    Parameters
    ----------
    best
        The designs that ran, best first.
    """
    values = [_typical(row["result"], figure) for row in best]
    top = (max if FIGURES[figure].more_is_better else min)(values)
    equals = [
        row for row, value in zip(best, values, strict=True) if abs(value - top) <= SMALL * abs(top)
    ]
    return min(equals, key=lambda row: (-row["result"]["tier"], len(_changes(best[0], row))))


def _typical(result: Mapping[str, Any], figure: str) -> float:
    """A figure of a step that takes what steps of its class typically took."""
    return float(result[figure] * typical_of(result) ** TIME_POWERS.get(figure, 0))


def _changes(row: Row, rival: Row) -> list[str]:
    """The values of a rival that a design does not have."""
    case = row["point"]["case"]
    return [
        f"{key} {value}" for key, value in rival["point"]["case"].items() if value != case.get(key)
    ]


def typical_sentence(best: Sequence[Row], figure: str) -> str:
    """Which design is best by typical errors; empty if that is the best as predicted."""
    typical = typical_best(best, figure)
    changes = _changes(best[0], typical)
    if not changes:
        return ""
    merit = FIGURES[figure]
    texts = [
        f"{merit.end_text(_typical(row['result'], figure))} {merit.unit}".rstrip()
        for row in (typical, best[0])
    ]
    return (
        f"with the typical error of steps of each class, the best has {', '.join(changes)}: "
        f"{texts[0]} against {texts[1]}"
    )


def list_lines(figure: str, best: Sequence[Row], axes: Sequence[str]) -> Iterator[str]:
    """For each list of a plan of one machine: the value of the best design, and how much less good
    the best design with each other value is.

    Parameters
    ----------
    best
        The designs that ran, best first.
    axes
        Names of the lists of the file, without those that a search adds.
    """
    if len(alternatives_of(best)) > 1:
        return
    for axis in axes:
        leaders: dict[str, Row] = {}
        for row in best:
            if axis in row["point"]["case"]:
                leaders.setdefault(str(row["point"]["case"][axis]), row)
        if 1 < len(leaders) <= MOST_RIVALS:
            (value, leader), *rivals = leaders.items()
            changes = [
                f"{rival_value}: {_change(leader['result'], rival['result'], figure)}"
                for rival_value, rival in rivals
            ]
            yield f"best has {axis} {value}; {', '.join(changes)}"


def _change(best: Mapping[str, Any], rival: Mapping[str, Any], figure: str) -> str:
    """How much more or less a rival has of a figure, and whether that is a tie."""
    change = rival[figure] / best[figure] - 1
    text = f"{abs(change):.1%} {'more' if change > 0 else 'less'}".replace("%", " %")
    return f"{text} (a tie)" if is_tie(best, rival, figure) else text


def _spans(result: Mapping[str, Any], figure: str) -> list[str]:
    """The 90 and 50 % intervals of a figure in words; none without errors of its class."""
    merit = FIGURES[figure]
    spans = []
    for share in ("90", "50"):
        if span := interval_of(result, figure, share):
            low, high = (merit.end_text(end) for end in span)
            spans.append(f"{share} % within {low} to {high} {merit.unit}".rstrip())
    return spans


def verdict(
    figure: str, alternatives: Sequence[Alternative], missing: Sequence[MissingAlternative]
) -> list[str]:
    """The decision in sentences, by a figure."""
    best, *rivals = alternatives
    merit = FIGURES[figure]
    value = f"{merit.text(best.result[figure])} {merit.unit}".rstrip()
    evidence = {option.name: option.result.get("rates", {}) for option in alternatives}
    uneven = uneven_evidence(evidence)
    sentences = [uneven] if uneven else []
    sentences += [f"Best by {merit.title}: {best.name}, {value}."]
    for rival in rivals:
        change = rival.result[figure] / best.result[figure] - 1
        text = f"{abs(change):.1%} {'more' if change > 0 else 'less'}".replace("%", " %")
        if is_tie(best.result, rival.result, figure):
            reason = _tie_reason(best.result, rival.result, figure)
            sentences.append(f"{rival.name}: a tie ({text}; {reason}).")
        else:
            sentences.append(f"{rival.name}: {text}.")
    return sentences + [f"{absent.name}: {absent.reason}." for absent in missing]


def _tie_reason(best: Mapping[str, Any], rival: Mapping[str, Any], figure: str) -> str:
    """Why two designs are a tie."""
    smallest = smallest_difference(best, rival, figure)
    if smallest is None:
        return "they differ by less than 0.5 %"
    share = f"{smallest:.1%}".replace("%", " %")
    return f"such differences are off by up to {share} in nine cases of ten"


def turning_points(
    figure: str,
    alternatives: Sequence[Alternative],
    effects: Mapping[str, Sequence[Sensitivity]],
) -> list[TurningPoint]:
    """What would make another alternative as good as the best, smallest change first.

    Parameters
    ----------
    effects
        Sensitivities of each alternative's best design, by its name.
    """
    best, *rivals = alternatives
    points: list[TurningPoint] = []
    for rival in rivals:
        points += _turns(best, rival, figure)
        points += _turning_effects(best, rival, figure, effects)
    return sorted(points, key=lambda point: abs(point.change))


def _turns(best: Alternative, rival: Alternative, figure: str) -> Iterator[TurningPoint]:
    """By the time of a step, and by the cost of an hour and its parts."""
    ratio = rival.result[figure] / best.result[figure]
    if power := TIME_POWERS.get(figure, 0):
        longer = ratio ** (1 / power)
        yield TurningPoint(rival.name, f"step of {best.name}", longer - 1)
        yield TurningPoint(rival.name, f"step of {rival.name}", 1 / longer - 1)
    if power := PRICE_POWERS.get(figure, 0):
        dearer = ratio ** (1 / power)
        for owner, factor in ((best, dearer), (rival, 1 / dearer)):
            costs = owner.result["cost"]
            total = sum(costs.values())
            yield TurningPoint(rival.name, f"cost of an hour of {owner.name}", factor - 1)
            for part, amount in costs.items():
                change = (factor - 1) * total / amount
                if change > -1 and len(costs) > 1:
                    yield TurningPoint(rival.name, f"{part} of {owner.name}", change)


def _turning_effects(
    best: Alternative,
    rival: Alternative,
    figure: str,
    effects: Mapping[str, Sequence[Sensitivity]],
) -> Iterator[TurningPoint]:
    """By an input of the machine, where one of the changes that were tried turns the order."""
    sign = 1 if FIGURES[figure].more_is_better else -1
    values = {alternative.name: alternative.result[figure] for alternative in (best, rival)}
    for owner in (best, rival):
        for effect in effects.get(owner.name, ()):
            if effect.name.startswith(("cost.", "power.")):
                continue
            for factor, value in zip(effect.factors, effect.values, strict=True):
                changed = {**values, owner.name: value}
                if sign * (changed[rival.name] - changed[best.name]) > 0:
                    yield TurningPoint(rival.name, f"{effect.name} of {owner.name}", factor - 1)
