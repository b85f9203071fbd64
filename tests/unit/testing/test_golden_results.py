"""The oracle against results that gloo computed."""

from __future__ import annotations

import numpy as np
import pytest

from simcoll.testing.collective_cases import legal_outputs
from simcoll.testing.conformance.golden import golden_cases, golden_results, result_text
from simcoll.testing.implementation_checks import difference


def is_legal(text, choices):
    """Whether a recorded result is one that the oracle allows."""
    if choices is None:
        return text is None
    if text.startswith(("sha256:", "objects:")):
        return text in [result_text(choice) for choice in choices]
    return difference(np.frombuffer(bytes.fromhex(text), choices[0].dtype), choices) is None


def differences(case):
    """Ranks and operations whose recorded results the oracle calls wrong."""
    recorded = golden_results()[repr(case)]
    for index, operation in enumerate(case.operations):
        for rank, choices in zip(operation.ranks, legal_outputs(operation), strict=True):
            if not is_legal(recorded[rank][index], choices):
                yield str(case), rank, index


@pytest.mark.slow
def test_the_oracle_agrees_with_gloo():
    cases = {repr(case): case for case in golden_cases()}
    recorded = golden_results()
    assert set(recorded) <= set(cases), "cases have changed: record them anew"
    assert len(recorded) > 1100
    assert {len(results) for results in recorded.values()} == {2, 3, 4, 5, 8}
    assert [wrong for text in recorded for wrong in differences(cases[text])] == []


def test_a_wrong_result_would_be_seen(monkeypatch):
    case = next(
        case for case in golden_cases() if str(case).startswith("2 ranks: all_gather n=2, ranks")
    )
    recorded = golden_results()[repr(case)]
    assert list(differences(case)) == []
    text = recorded[1][0]
    changed = f"{text[:-1]}{(int(text[-1], 16) + 1) % 16:x}"
    monkeypatch.setitem(golden_results(), repr(case), [recorded[0], [changed]])
    assert list(differences(case)) == [(str(case), 1, 0)]
