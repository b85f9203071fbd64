"""Training programs have gloo's numbers; the whole table is a command
(:mod:`tests.conformance.torch_programs`).
"""

from __future__ import annotations

import pytest

from tests.support.deferred import needs_torch

pytestmark = [needs_torch, pytest.mark.slow]

CLOSE = 1e-6


def test_programs_have_the_numbers_of_gloo():
    """The last one to the last bit, in gloo's order: its gradients have 16 bits. Both play all in
    one go, to import PyTorch once.
    """
    from tests.conformance.torch_programs import PROGRAMS, difference, run

    hooks = PROGRAMS[0].with_name("hooks.py")
    order = "tests.conformance.gloo_order:all_reduce"
    (*theirs, exact), (*ours, same) = run(
        ("gloo", "simcoll"), [*PROGRAMS, hooks], 4, order, [hooks]
    )
    differences = {
        script.stem: difference(*pair) for script, *pair in zip(PROGRAMS, ours, theirs, strict=True)
    }
    assert {name: each for name, each in differences.items() if each > CLOSE} == {}
    # They say something.
    assert all(
        any(abs(value) > 1 for value in numbers) for program in theirs for numbers in program
    )
    assert same == exact
    assert all(len(numbers) == 3 * (8 + 6) for numbers in exact)
