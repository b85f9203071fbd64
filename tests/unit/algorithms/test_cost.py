"""Costs: the notation, and every algorithm's formula against its time on the machine to which it
refers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from simcoll.algorithms import ALGORITHMS, find_algorithm
from simcoll.algorithms.cost import CONDITIONS, SYMBOLS, parse_cost
from simcoll.algorithms.registered import MACHINES, algorithm
from simcoll.core.collective import KINDS
from simcoll.errors import ConfigError
from tests.support.cost_machines import SERVED, SITES, cases, complaints

VALUES = {
    "a": 1000,
    "b": 10,
    "g": 1,
    "s": 60,
    "n": 6,
    "pieces": 3,
    "links": 4,
    "dims": (2, 3),
    "box": 3,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 1000),
        ("2(n-1)a", 10_000),
        ("2(n-1)/n s b", 1000),
        ("s/pieces b", 200),
        ("s b/links", 150),
        ("(n-2+pieces)(a + s/pieces (b + g))", 7 * (1000 + 20 * 11)),
        ("ceil(lg n) a", 3000),
        ("floor(lg n) a", 2000),
        ("lg 8 a", 3000),
        ("lg 8 / lg 2 a", 3000),
        ("ceil((n-1)/pieces) a", 2000),
        ("max(s b, a)", 1000),
        ("min(s b, a)", 600),
        ("sum(dims-1) a", 3000),
        ("a - b - g", 989),
        ("2 box a", 6000),
        ("s/7 b", Fraction(600, 7)),
    ],
)
def test_formulas_are_read_as_in_a_paper(text, value):
    assert parse_cost(text).formula.value(VALUES) == value


def test_a_logarithm_that_is_not_whole_is_nearly_right():
    assert float(parse_cost("lg n").formula.value(VALUES)) == pytest.approx(
        2.584962500721156, rel=1e-15
    )


def test_the_parts_of_a_cost():
    cost = parse_cost("at most 2a + s b, n = radix^k, channels = box; many pieces: max(a, s b)")
    assert (cost.formula.text, cost.limit.text) == ("2a + s b", "max(a, s b)")
    assert cost.conditions == ("n = radix^k", "channels = box")
    assert cost.at_most
    assert cost.holds({"n": 9, "radix": 3, "channels": 4, "box": 4})
    assert not cost.holds({"n": 9, "radix": 2, "channels": 4, "box": 4})
    assert not cost.holds({"n": 9, "radix": 3, "channels": 1, "box": 4})
    limit = parse_cost("many pieces: bound")
    assert limit.formula is None
    assert limit.limit.symbols == {"bound"}
    assert not limit.at_most


@pytest.mark.parametrize(
    ("condition", "counts"),
    [
        ("n = 2^k", [1, 2, 4, 8, 16, 32]),
        ("n = 2^j - 2^k", [1, 2, 3, 4, 6, 7, 8, 12, 14, 15, 16, 24, 28, 30, 31, 32]),
        ("n = 3^k", [1, 3, 9, 27]),
        ("n = 10^k", [1, 10]),
    ],
)
def test_conditions(condition, counts):
    cost = parse_cost(f"2a, {condition}")
    assert [n for n in range(1, 34) if cost.holds({"n": n})] == counts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("7q", "unknown symbol 'q'; valid: a, b,"),
        ("2 piecs a", "unknown symbol 'piecs'; did you mean 'pieces'"),
        ("2a, n = 1^k", "unknown condition 'n = 1^k'; did you mean 'n = 2^k'"),
        ("2a, n = 3k", "unknown condition 'n = 3k'; did you mean 'n = 2^k'"),
        ("n^2 a", "unexpected '^' in"),
        ("1.5 a", "unexpected '.' in"),
        ("__import__", "unknown symbol '__import__'"),
        *(
            (text, "is no formula; expected one such as")
            for text in (
                " ",
                "2(n-1",
                "2 +",
                "-a",
                "lg",
                "ceil lg n",
                "max(a)",
                "ceil(a, b)",
                "a, b",
                "a b (",
                "many pieces: ",
                "()",
                "lg()",
            )
        ),
    ],
)
def test_what_is_no_formula_is_refused_where_it_is_registered(text, says):
    with pytest.raises(
        ConfigError, match=f"algorithm 'mine' of all_reduce: cost .*{re.escape(says)}"
    ):
        algorithm("all_reduce", "mine", cost=text, source="a test")(print)


def test_unknown_collectives_and_machines_are_refused():
    with pytest.raises(
        ConfigError, match="'mine': unknown collective 'all_reduse'; did you mean 'all_reduce'"
    ):
        algorithm("all_reduse", "mine", cost="a", source="a test")(print)
    with pytest.raises(ConfigError, match="'mine': unknown machine 'tours'; did you mean 'torus'"):
        algorithm("all_reduce", "mine", cost="a", source="a test", machine="tours")(print)


NAMED = pytest.mark.parametrize(
    "shipped", ALGORITHMS, ids=lambda shipped: f"{shipped.collective}-{shipped.name}"
)


@pytest.mark.slow
@NAMED
def test_algorithms_take_the_time_of_their_cost(shipped):
    assert complaints(shipped) == []


@NAMED
def test_algorithms_say_what_they_cost_and_where(shipped):
    cost = parse_cost(shipped.cost)
    assert shipped.machine in SITES
    assert shipped.ranks in SERVED
    assert shipped.source.strip(), f"{shipped.name}: a source, the paper or program that has it"
    # In-switch reductions cost ranks nothing; elsewhere a formula of a crossbar has to say what
    # reducing costs.
    if (
        KINDS[shipped.collective].reduces
        and shipped.machine == "crossbar"
        and shipped.topologies != "switch"
    ):
        assert "g" in cost.formula.symbols


def test_every_symbol_condition_and_machine_is_used():
    costs = [parse_cost(shipped.cost) for shipped in ALGORITHMS]
    assert set().union(
        *(formula.symbols for c in costs for formula in (c.formula, c.limit) if formula)
    ) == set(SYMBOLS)
    assert {condition for cost in costs for condition in cost.conditions} >= set(CONDITIONS)
    assert {shipped.machine for shipped in ALGORITHMS} == set(MACHINES) == set(SITES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "name", "wrong"),
    [
        ("all_reduce", "ring", "7a"),
        ("all_reduce", "ring", "2n a + 2(n-1)/n s b + (n-1)/n s g"),
        ("all_reduce", "ring", "2(n-1)a + 2 s b + (n-1)/n s g"),
        ("all_reduce", "ring", "2(n-1)a + 2(n-1)/n s b"),
        ("all_reduce", "ring", "at most 4(n-1)a + 4(n-1)/n s b + (n-1)/n s g"),
        ("all_reduce", "ring", "at most 2(n-1)a + (n-1)/n s b + (n-1)/n s g"),
        ("all_reduce", "recursive_doubling", "lg n (a + s b + s g)"),
        ("all_reduce", "tree", "2 ceil(lg n)(a + s b) + ceil(lg n) s g; many pieces: s b"),
        ("broadcast", "chain", "(n-1)(a + s/pieces b)"),
        ("gather", "grouped", "(n-1)/channels a + (n-1)/n s b"),
        ("all_gather", "torus", "sum(dims) a + (n-1)/n s b/links"),
        ("all_gather", "bidirectional_ring", "(n-1)a + (n-1)/n s b"),
        ("all_reduce", "nvls_tree", "at most 2 lg nodes a + 2 s b_box + 2 lg nodes/box s b_net"),
        ("all_gather", "packed", "many pieces: 2 bound"),
    ],
)
def test_a_wrong_cost_is_found(collective, name, wrong):
    assert complaints(replace(find_algorithm(collective, name), cost=wrong))


def test_parameters_that_a_cost_names_are_varied():
    assert {params["pieces"] for _, params in cases(find_algorithm("broadcast", "chain"), 1)} == {
        1,
        2,
        5,
    }
    assert {
        params["channels"] for _, params in cases(find_algorithm("all_to_all", "grouped"), 1)
    } == {1, 2, 5}
    radixes = cases(find_algorithm("all_reduce", "recursive_multiplying"), 1)
    assert {(site.symbols["n"], params["radix"]) for site, params in radixes} >= {
        (8, 2),
        (9, 3),
        (16, 2),
        (16, 4),
    }
