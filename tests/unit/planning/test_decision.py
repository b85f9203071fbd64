"""The decision of a plan: cards, ties, turning points and sensitivities, by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from simcoll.planning.designs.decision import (
    alternatives_of,
    interval_lines,
    list_lines,
    turning_points,
    typical_best,
    typical_sentence,
    verdict,
)
from simcoll.planning.designs.design_search import design_of, time_design
from simcoll.planning.designs.nearest_fit import MissingAlternative
from simcoll.planning.designs.sensitivity import sensitivities
from simcoll.planning.designs.space import load_space
from simcoll.training.steps import TrainingStep
from tests.unit.planning.test_space import PLAN


def row_of(name, usd, cost, **result):
    values = {"usd": usd, "tokens_per_second": 100.0, "tier": 1, "cost": cost, **result}
    return {"key": name, "point": {"case": {"alternative": name}}, "result": values}


def cheap_and_dear():
    return alternatives_of(
        [
            row_of("A", 100.0, {"rent": 8.0, "energy": 2.0}),
            row_of("B", 120.0, {"rent": 6.0, "energy": 6.0}),
        ]
    )


def test_the_best_of_each_alternative_comes_in_its_order():
    rows = [row_of("B", 1, {}), row_of("A", 2, {}), row_of("B", 3, {})]
    assert [(option.name, option.result["usd"]) for option in alternatives_of(rows)] == [
        ("B", 1),
        ("A", 2),
    ]


def test_without_alternatives_there_is_a_card_for_each_machine():
    cases = [
        {"degraded": "none", "nic.bandwidth": "400 Gbps", "tp": 1},
        {"degraded": "none", "nic.bandwidth": "400 Gbps", "tp": 2},
        {"degraded": "nic0=0", "nic.bandwidth": "400 Gbps", "tp": 1},
    ]
    rows = [{"point": {"case": case}, "result": {}} for case in cases]
    assert [option.name for option in alternatives_of(rows)] == [
        "degraded none, nic.bandwidth 400 Gbps",
        "degraded nic0=0, nic.bandwidth 400 Gbps",
    ]
    (only,) = alternatives_of([{"point": {"case": {"tp": 1}}, "result": {}}])
    assert only.name == "the best design"


def test_the_verdict_names_everyone():
    missing = [MissingAlternative("C", "no design fits; nearest 80.0 of 74.5 GiB")]
    assert verdict("usd", cheap_and_dear(), missing) == [
        "Best by cost to train: A, 100 $.",
        "B: 20.0 % more.",
        "C: no design fits; nearest 80.0 of 74.5 GiB.",
    ]
    wide = {"90": [0.85, 1.2]}
    tied = alternatives_of(
        [row_of("A", 100.0, {}, interval=wide), row_of("B", 120.0, {}, interval=wide)]
    )
    assert verdict("usd", tied, ())[1] == (
        "B: a tie (20.0 % more; such differences are off by up to 27.6 % in nine cases of ten)."
    )
    close = alternatives_of([row_of("A", 1000.0, {}), row_of("B", 1004.0, {})])
    assert "a tie (0.4 % more; they differ by less than 0.5 %)" in verdict("usd", close, ())[1]


def test_at_a_turning_point_both_cost_the_same():
    best, rival = cheap_and_dear()
    changes = {point.name: point.change for point in turning_points("usd", [best, rival], {})}
    assert changes["step of A"] == pytest.approx(0.2)
    assert changes["cost of an hour of B"] == pytest.approx(100 / 120 - 1)
    # Rent of A: 8 of 10 $; 25 % more rent are 20 % more cost.
    assert changes["rent of A"] == pytest.approx(0.25)
    assert changes["energy of A"] == pytest.approx(1.0)
    # Energy of B: 6 of 12 $, a third less.
    assert changes["energy of B"] == pytest.approx(-1 / 3)
    order = [abs(point.change) for point in turning_points("usd", [best, rival], {})]
    assert order == sorted(order)


def test_a_speed_is_not_turned_by_prices():
    options = [
        replace(option, best=row_of(option.name, 1, {"rent": 1.0}, tokens_per_second=speed))
        for option, speed in zip(cheap_and_dear(), (100.0, 80.0), strict=True)
    ]
    changes = {
        point.name: point.change for point in turning_points("tokens_per_second", options, {})
    }
    assert changes == pytest.approx({"step of A": 0.25, "step of B": -0.2})


@pytest.mark.slow
def test_sensitivities_are_what_the_changed_input_gives(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    point = load_space(tmp_path / "plan.toml").points(1)[0]
    row = {"point": point, "result": time_design(point)}
    design = design_of(row)
    effects = {effect.name: effect for effect in sensitivities(row, design, "usd")}
    # All the cost is rent, so a fifth more of it is a fifth more.
    assert effects["cost.gpu_hour"].changes == pytest.approx((-0.2, 0.2))
    # Twice as many GPU-hours between failures: as if the file said so.
    calm = {**point["terms"], "failures": {**point["terms"]["failures"], "gpu_hours": 100_000}}
    again = time_design({**point, "terms": calm})
    assert effects["failures.gpu_hours"].values[1] == pytest.approx(again["usd"])
    # Faster products: as if the calibration said so.
    calibration = msgspec.structs.replace(design.calibration, rate=design.calibration.rate * 1.1)
    faster = TrainingStep(replace(design, calibration=calibration)).time_fs(tier=1)
    share = faster / row["result"]["time_fs"]
    assert effects["rate of matrix products"].changes[1] == pytest.approx(share - 1)
    largest = [max(map(abs, effect.changes)) for effect in effects.values()]
    assert largest == sorted(largest, reverse=True)


@pytest.mark.parametrize(
    ("factors", "sentences"),
    [
        ([1.08, 1.3], ["best: half of such steps took 8 to 30 % longer than predicted"]),
        ([0.95, 1.3], []),
    ],
)
def test_an_interval_beside_its_figure_says_which_side_is_likely(factors, sentences):
    interval = {"90": [0.9, 1.6], "50": factors, "of": "left-out errors on 4 series (a class)"}
    (line, *remainder) = interval_lines("days", [row_of("A", 1, {}, days=10, interval=interval)])
    assert line.startswith("best: 90 % within 9 to 16 days")
    assert remainder == sentences


def test_each_value_of_a_list_has_its_best_design():
    def design(ep, imbalance, days):
        row = row_of("", 1, {}, days=days)
        return {**row, "point": {"case": {"ep": ep, "imbalance": imbalance, "tp": days}}}

    best = [design(16, 1.0, 10), design(16, 1.2, 11), design(8, 1.0, 10.01), design(8, 1.2, 12)]
    assert list(list_lines("days", best, ["ep", "imbalance"])) == [
        "best has ep 16; 8: 0.1 % more (a tie)",
        "best has imbalance 1.0; 1.2: 10.0 % more",
    ]
    alternatives = [row_of("A", 1, {}, days=1), row_of("B", 1, {}, days=2)]
    assert not list(list_lines("days", alternatives, ["ep"]))


def test_the_best_by_typical_errors_is_named():
    """Steps of the leader's class take 1.2 times as long as predicted, those of B's 1.05 times."""
    slow, fair = ({"typical": factor} for factor in (1.2, 1.05))
    best = [
        {
            "key": name,
            "point": {"case": {"tp": tp, "shard": shard}},
            "result": {"days": days, "interval": interval, "tier": 1},
        }
        for name, tp, shard, days, interval in (
            ("A", 1, "parameters", 10.0, slow),
            ("B", 2, "optimizer", 11.0, fair),
            ("C", 1, "optimizer", 11.02, fair),  # within half a percent of B, and nearer to A
        )
    ]
    assert typical_best(best, "days")["key"] == "C"
    assert typical_sentence(best, "days") == (
        "with the typical error of steps of each class, the best has shard optimizer: "
        "11.6 days against 12 days"
    )
    assert typical_sentence(best[1:], "days") == ""
    assert typical_sentence(best, "days") in list(interval_lines("days", best))
