"""Published measurements, and how far predictions of unseen systems are from them."""

import csv

import pytest

from simcoll.files.paths import data_folder
from simcoll.libraries.library import load_library
from simcoll.planning.measured.accuracy import (
    BANDS,
    Error,
    band_of,
    errors_of,
    left_out_library,
    medians,
)
from simcoll.planning.measured.measurements import published_tables

TABLES = {table.name: table for table in published_tables()}


@pytest.mark.slow
def test_every_table_has_its_machine_and_readable_settings():
    assert len(TABLES) == 77
    for table in TABLES.values():
        assert table.machine().nranks == table.ranks, table.name
        assert table.settings().launcher
        assert table.source
        assert all(size > 0 and time > 0 for size, time in table.rows)
        assert len({size for size, _ in table.rows}) == len(table.rows)


@pytest.mark.slow
def test_added_tables_are_other_tables_with_a_machine():
    added = [table for table in published_tables(added=True) if table.part == "added"]
    assert len(added) == len(published_tables(added=True)) - len(TABLES)
    assert not {table.name for table in added} & TABLES.keys()
    for table in added:
        assert table.machine().nranks == table.ranks, table.name
        assert table.settings()
        assert table.source
        times = [time for _, time in table.rows]
        # RCCL takes another algorithm from 1 KiB on, with which a call takes 0.55 to 0.59 times as
        # long on 8 GPUs.
        most = 1.9 if table.library == "rccl" else 1.5
        falls = [time / min(times[place:]) for place, time in enumerate(times)]
        assert max(falls) <= most, table.name


def test_a_lab_that_states_launcher_version_and_element_type_keeps_them():
    lab = [table for table in published_tables(added=True) if "AIConfigurator" in table.system]
    assert len(lab) == 178
    assert {table.settings().launcher for table in lab} == {"thread"}
    assert {table.dtype for table in lab} == {"float16", "int8"}
    assert all(table.version for table in lab)


def test_rows_left_out_are_of_added_tables():
    with (data_folder("measurements") / "rows_left_out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    names = {table.name: dict(table.rows) for table in published_tables(added=True)}
    assert all(int(row["size_bytes"]) not in names[row["table"]] for row in rows)


def test_numbers_of_a_class_come_from_elsewhere_when_its_only_system_is_left_out():
    library, without = load_library("nccl"), left_out_library("nccl", "Anthony-Hoo, 2080")
    assert without.number("class.host.ring_share") == pytest.approx(0.5, rel=0.02)  # the prior
    assert library.number("class.host.ring_share") != without.number("class.host.ring_share")


def test_left_out_numbers_are_of_places_that_the_libraries_have():
    known = set(load_library("rccl").values) | set(load_library("nccl").values)
    with (data_folder("measurements") / "left_out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["system"] for row in rows} <= {
        table.system for table in published_tables(added=True)
    }
    assert {row["place"].partition(":")[0] for row in rows} <= known


def test_calibrated_rows_are_not_compared():
    errors = errors_of(TABLES["all_gather-b200-2-google"])  # from 64 MiB to 8 GiB
    count = {
        way: sum(error.method == way for error in errors)
        for way in ("uncalibrated", "two points", "six points")
    }
    assert count == {"uncalibrated": 8, "two points": 6, "six points": 6}


def test_few_rows_are_only_predicted():
    assert {error.method for error in errors_of(TABLES["send_recv-a100-8-notes"])} == {
        "uncalibrated"
    }


def test_medians_are_of_tables_not_of_rows():
    one, two = TABLES["all_reduce-h100-16-issue309"], TABLES["all_reduce-h100-32-issue309"]
    errors = [Error(one, "", 8, 100, 110)] * 9 + [Error(two, "", 8, 100, 130)]
    assert medians(errors) == {"small": pytest.approx(0.2)}
    assert [band_of(size) for size in (1, 2**16, 2**26)] == list(BANDS)


PUBLISHERS_DIFFER = {"small": 0.17, "middle": 0.08, "large": 0.01}
"""Median difference of two publishers of one kind of system, docs/validation.md."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # Tables that two points made worse than none when launch and rate counted whole.
        "all_reduce-mi350x-8-notes",
        "all_to_all-h100-1n8-aic-half-2.23",
        "all_reduce-h100-1n4-aic-half-2.29.2",
        "all_reduce-b200-8-google",
        "all_reduce-h100-kestrel-16n64",
        # A late host and a quick network, which count nearly whole.
        "all_reduce-v100-8-blog",
        "all_reduce-a100-80-azure-ndm-2n16",
    ],
)
def test_two_points_are_not_worse_than_none_by_more_than_publishers_differ(name):
    (table,) = (table for table in published_tables(added=True) if table.name == name)
    errors = errors_of(table, by_formula=True)
    two_points = [error for error in errors if error.method == "two points"]
    sizes = {error.size_bytes for error in two_points}
    plain = [
        error for error in errors if error.method == "uncalibrated" and error.size_bytes in sizes
    ]
    before, after = medians(plain), medians(two_points)
    for band, noise in PUBLISHERS_DIFFER.items():
        assert after.get(band, 0) <= before.get(band, 0) + noise
    assert min(after.values()) < 0.1
