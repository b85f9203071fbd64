"""The lines of a step: collectives that take longest."""

from __future__ import annotations

from simcoll.planning.designs.step_report import call_lines
from simcoll.workload.accounting import CallTime


def call(count, size_bytes, time_fs=10**12):
    return CallTime("dp", "reduce_scatter", 2, size_bytes, count, time_fs)


def test_collectives_that_print_alike_are_one_line():
    # Two sizes that are both 501 MiB as printed, and a third that takes longer than each alone.
    lines = list(call_lines([call(3, 2**20), call(2, 501 * 2**20 + 1), call(2, 501 * 2**20 + 2)]))
    assert [line.split()[1:5] for line in lines] == [
        ["dp:", "4", "reduce_scatter", "of"],
        ["dp:", "3", "reduce_scatter", "of"],
    ]


def test_collectives_beyond_those_shown_are_counted():
    lines = list(call_lines([call(1, 2**20 * size) for size in range(1, 9)]))
    assert len(lines) == 7
    assert lines[-1].split() == ["and", "2", "that", "take", "less", "time"]
