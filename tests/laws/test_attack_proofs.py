"""One round of every directed attack: false variants are refused, true twins proved.
``tests/laws/attack_proofs.py`` plays on.
"""

from __future__ import annotations

import random

import pytest

from tests.laws.attack_proofs import ATTACKS, attempts, table
from tests.support.exact_player import LEVELS, Expressions
from tests.support.lattice import collision, short_basis


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_false_variants_are_refused_and_true_twins_proved(attack):
    results = list(attempts(attack, seed=1, number=0, quick=True))
    assert [result for result in results if result[-1].startswith("failure")] == []
    # Every attack has both, or it would show nothing.
    assert {bool(right is True) for right, *_ in results} == {True, False}


def test_attacks_have_names_of_their_own():
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names) > 30


def test_a_reduced_basis_has_short_vectors_of_the_same_lattice():
    # Rows (1, 0, 5000) and (0, 1, 7001): 5 * 7001 = 7 * 5000 + 5, and no combination of smaller
    # numbers comes as near to 0.
    short, other = short_basis([[1, 0, 5000], [0, 1, 7001]])
    assert short in ([-7, 5, 5], [7, -5, -5])
    assert all(row[2] == 5000 * row[0] + 7001 * row[1] for row in (short, other))


@pytest.mark.slow
def test_a_collision_is_one():
    rng = random.Random(5)
    numbers = [rng.randrange(2**64) for _ in range(70)]
    vector = collision(rng, numbers, 2**64, 9)
    assert vector is not None
    assert sum(vector) == 0 < max(vector)
    assert min(vector) == -1
    assert sum(x * number for x, number in zip(vector, numbers, strict=True)) % 2**64 == 0


def test_the_player_knows_brackets():
    made = Expressions()
    a, b, c = map(made.leaf, range(3))
    assert made.pair(made.pair(a, b), c) == made.pair(c, made.pair(b, a))
    assert made.pair(made.pair(a, b), c) != made.pair(a, made.pair(b, c))
    assert made.switch([a, b, c]) == made.switch([c, a, b]) != made.pair(made.pair(a, b), c)
    assert len(LEVELS) == 4


def test_the_table_counts():
    text = table(
        {"one": dict.fromkeys(("refused", "proved"), 3) | dict.fromkeys(("declined", "failure"), 0)}
    )
    assert "| one | 3 | 3 | 0 | 0 |" in text
    assert "| **all** | **3** | **3** | **0** | **0** |" in text
