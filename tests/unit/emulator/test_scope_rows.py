"""Rows of phases and modules in timelines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.emulator.traces.scope_rows import MODULES, PHASES, scope_slices

SCOPES = st.sampled_from(
    ["", "forward 1", "forward 1/M", "forward 1/M/a", "forward 1/M/a/b", "backward 1/M/a", "opt/S"]
)


def test_a_module_lasts_through_its_gaps_and_a_call_without_scope_ends_it():
    spans = [
        (0, 2, "forward 1/M/a"),
        (5, 6, "forward 1/M/a"),  # waited for a message in between
        (6, 7, "forward 1/M"),
        (7, 8, ""),
        (8, 9, "forward 1/M/a"),
    ]
    slices = scope_slices(spans)
    assert [(part.row, part.begin_fs, part.end_fs, part.name) for part in slices] == [
        (PHASES, 0, 7, "forward 1"),
        (MODULES, 0, 7, "M"),
        (MODULES, 0, 6, "a"),
        (PHASES, 8, 9, "forward 1"),
        (MODULES, 8, 9, "M"),
        (MODULES, 8, 9, "a"),
    ]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), SCOPES)))
def test_slices_of_a_row_nest_or_are_disjoint(pieces):
    """What viewers require of a track; and each computation lies in the slices of its levels."""
    spans, now = [], 0
    for gap, length, scope in pieces:
        spans.append((now + gap, now + gap + length, scope))
        now += gap + length
    slices = scope_slices(spans)
    for row in (PHASES, MODULES):
        parts = [part for part in slices if part.row == row]
        for one in parts:
            for other in parts:
                apart = one.end_fs <= other.begin_fs or other.end_fs <= one.begin_fs
                inside = one.begin_fs <= other.begin_fs and other.end_fs <= one.end_fs
                contains = other.begin_fs <= one.begin_fs and one.end_fs <= other.end_fs
                assert apart or inside or contains
    for begin, end, scope in spans:
        levels = scope.split("/") if scope else []
        for depth in range(1, len(levels) + 1):
            prefix = "/".join(levels[:depth])
            covering = [part for part in slices if part.begin_fs <= begin and end <= part.end_fs]
            assert prefix in [part.scope for part in covering]
