"""PyTorch programs and ``simcoll step`` time the same designs alike."""

from __future__ import annotations

import pytest

from tests.support.deferred import needs_torch
from tests.support.scripts import script

pytestmark = [needs_torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ALIKE = (
    "fsdp 8",
    "fsdp 64",
    "fsdp 8, 2 micro-batches",
    "tp 8",
    "fsdp 2, tp 4",
    "pp 2, 8 micro-batches",
    "ep 8 of 8 experts",
)


@pytest.mark.parametrize("name", ALIKE)
def test_both_routes_agree_within_three_percent(name):
    programmed, designed, _ = script("benchmarks/two_routes.py").compare(name)
    assert programmed == pytest.approx(designed, rel=0.03)


def test_sequence_parallelism_differs_by_named_operators():
    """DTensor gathers along the sequence, and copies the parts into place with ``aten::cat``; the
    gradients of norms are summed by collectives of their own.
    """
    routes = script("benchmarks/two_routes.py")
    programmed, designed, run = routes.compare("tp 8, sequence parallel")
    steps = 2
    copies = [span for span in run.timeline.computed if span.rank == 0 and span.name == "aten::cat"]
    copied = sum(span.end_fs - span.begin_fs for span in copies) / 1e15 / steps
    sums = [record for record in run.records if record.name == "all_reduce"]
    summed = sum(record.end_fs - record.begin_fs for record in sums) / 1e15 / steps
    assert 0.03 < programmed / designed - 1 < 0.12
    assert copied + summed > 0.4 * (programmed - designed)
