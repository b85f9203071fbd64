"""Training programs have gloo's numbers; the whole table is a command (:mod:`tests.conformance.torch_programs`)."""

from __future__ import annotations

import pytest

from tests.support.deferred import needs_torch

pytestmark = [needs_torch, pytest.mark.slow]

CLOSE = 1e-6


def test_programs_have_the_numbers_of_gloo():
    from tests.conformance.torch_programs import PROGRAMS, difference, run

    ours, theirs = (run(player, PROGRAMS, 4) for player in ("simcoll", "gloo"))
    differences = {script.stem: difference(*pair) for script, *pair in zip(PROGRAMS, ours, theirs, strict=True)}
    assert {name: each for name, each in differences.items() if each > CLOSE} == {}
    assert all(
        any(abs(value) > 1 for value in numbers) for program in theirs for numbers in program
    )  # they say something


def test_in_gloos_order_gradients_of_16_bits_are_gloos_to_the_last_bit():
    from tests.conformance.torch_programs import PROGRAMS, run

    hooks = [PROGRAMS[0].with_name("hooks.py")]
    ours = run("simcoll", hooks, 4, "tests.conformance.gloo_order:all_reduce")
    assert ours == run("gloo", hooks, 4)
    assert all(len(numbers) == 3 * (8 + 6) for numbers in ours[0])
