"""Sweeps: what is checked once, and the table as an object."""

import os
import platform
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from simcoll.core import memory_limits as memory
from simcoll.planning.sweeps import running
from simcoll.planning.sweeps.running import SweepTable, check_data, runs
from simcoll.planning.sweeps.sweep import Sweep, best_rows, prepare
from simcoll.topology import load_topology
from simcoll.tuning import parse_choice

MACHINE = load_topology("dgx-h100")


def sweep(*algorithms, sizes=(1 << 10, 1 << 20), **more):
    return Sweep(
        "all_reduce", sizes, tuple(map(parse_choice, algorithms)), ("LL", "Simple"), **more
    )


def table_of(wanted, schedules):
    rows = [row for of_size in runs(wanted, schedules, MACHINE) for row in of_size]
    return SweepTable(wanted, MACHINE.name, tuple(rows))


@pytest.mark.slow
def test_data_is_checked_once_for_an_algorithm():
    wanted = sweep("ring:channels=4:pieces=3", "tree")
    table = table_of(wanted, prepare(wanted, MACHINE))
    ring, tree = table[0].data_check, table[2].data_check
    # Uneven: ranks x channels x pieces chunks of one element or two.
    assert ring.count == 8 * 4 * 3 * 5 // 4 + 1
    assert tree.count >= 8
    assert {row.data_check for row in table} == {ring, tree}
    assert {row.wrong for row in table} == {0}
    assert {row.result.wrong for row in table} == {None}


@pytest.mark.slow
def test_the_first_size_waits_for_the_check_of_its_best_run_alone(monkeypatch):
    events = []

    def wrong_elements(plan):
        events.append(plan.schedule.name)
        return 0

    monkeypatch.setattr(running, "data_errors", wrong_elements)
    wanted = sweep("ring", "tree", "recursive_doubling")
    for of_size in runs(wanted, prepare(wanted, MACHINE), MACHINE):
        events += [row.choice.algorithm for row in best_rows(of_size)]
    checked, best, *rest = events
    assert checked == best == "recursive_doubling"
    assert rest == ["ring", "tree", "ring"]


def test_a_check_without_memory_says_so(monkeypatch):
    def refuse(_plan):
        raise MemoryError

    monkeypatch.setattr(running, "data_errors", refuse)
    wanted = sweep("ring", sizes=(1 << 10,))
    table = table_of(wanted, prepare(wanted, MACHINE))
    assert {row.wrong for row in table} == {None}
    assert "ring(channels=8, pieces=1): not enough memory to check its data" in str(table)


def test_what_takes_too_much_memory_is_not_checked_and_says_so(monkeypatch):
    monkeypatch.setattr(running, "CHECKED_BYTES", 1000)
    wanted = sweep("ring", sizes=(1 << 10,))
    table = table_of(wanted, prepare(wanted, MACHINE))
    assert {row.wrong for row in table} == {None}
    assert "'-' under #wrong: ring(channels=8, pieces=1): its data would take" in str(table)


def test_wrong_data_is_counted(monkeypatch):
    monkeypatch.setattr(running, "data_errors", lambda _plan: 7)
    wanted = sweep("ring", sizes=(1 << 10,), check_up_to=1 << 20)
    table = table_of(wanted, prepare(wanted, MACHINE))
    assert {row.wrong for row in table} == {7}


def test_a_barrier_has_no_data():
    wanted = Sweep("barrier", (8,), (parse_choice("dissemination"),))
    (schedule,) = prepare(wanted, MACHINE)
    assert check_data(wanted, schedule).reason == "a barrier moves no data"
    assert str(table_of(wanted, [schedule])).splitlines()[2].split()[8] == "-"


@pytest.fixture(scope="module")
def table():
    wanted = sweep("ring", "tree")
    return table_of(wanted, prepare(wanted, MACHINE))


@pytest.mark.slow
def test_a_table_is_a_sequence(table):
    assert len(table) == 8
    assert [row.size_bytes for row in table] == [1 << 10] * 4 + [1 << 20] * 4
    assert table[-1] is table.rows[-1]
    assert table[:2] == table.rows[:2]
    assert repr(table) == "<SweepTable: all_reduce on dgx-h100, 8 runs of 2 sizes>"


@pytest.mark.slow
def test_a_table_prints_and_shows_the_best_of_each_size(table):
    lines = [line.split() for line in str(table).splitlines() if line.lstrip()[:1].isdigit()]
    rows = ET.fromstring(table._repr_html_()).findall("tr")
    assert [cell.text for cell in rows[0]][:2] == ["size (B)", "count (elements)"]
    for line, row, size in zip(lines, rows[1:], (1 << 10, 1 << 20), strict=True):
        best = min(
            (each for each in table if each.size_bytes == size), key=lambda each: each.time_fs
        )
        shown = [cell.text for cell in row]
        assert " ".join(shown).split() == line
        assert shown[9] == str(best)


def test_rows_keep_nothing_that_was_derived_from_their_plans(table):
    for row in table:
        facts = row.result.plan.known
        assert (facts.positions, facts.starts, facts.steps, facts.wait_pairs) == (None,) * 4


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
def test_freed_memory_goes_back_to_the_system(monkeypatch):
    monkeypatch.setattr(memory, "KEPT", 0)
    # 96 MB in pieces that are too small for a mapping of their own.
    arrays = [np.ones(12_000) for _ in range(1000)]
    kept = arrays[::100]
    full = resident()
    del arrays
    memory.give_back()
    assert full - resident() > 48 << 20
    assert [float(each.sum()) for each in kept] == [12_000.0] * 10


def resident():
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


ON_64 = load_topology("dgx-h100", nodes=8)
LARGE = Sweep("all_reduce", (1 << 10,), (parse_choice("two_shot"), parse_choice("tree")), ("LL",))


def test_an_algorithm_that_nobody_named_is_left_out_if_its_proof_is_large(monkeypatch):
    monkeypatch.setattr(memory, "UNQUESTIONED", 0)
    monkeypatch.setattr("simcoll.planning.sweeps.sweep.UNNAMED_BYTES", 1 << 18)
    refused = {}
    (tree,) = prepare(LARGE, ON_64, refused=refused)
    assert tree.name == "tree"
    ((choice, reason),) = refused.items()
    assert str(choice) == "two_shot"
    assert "more than the 256 KiB for an algorithm that is not named; name it (-a)" in reason
    assert [schedule.name for schedule in prepare(LARGE, ON_64)] == ["two_shot", "tree"]


def test_a_large_proof_is_better_than_no_table(monkeypatch):
    monkeypatch.setattr(memory, "UNQUESTIONED", 0)
    monkeypatch.setattr("simcoll.planning.sweeps.sweep.UNNAMED_BYTES", 0)
    refused = {}
    proved = prepare(LARGE, ON_64, refused=refused)
    assert [schedule.name for schedule in proved] == ["two_shot", "tree"]
    assert not refused
