"""The page on accuracy: figures from errors that were made by hand."""

import accuracy_page

from simcoll.libraries.library import load_library
from simcoll.planning.measured.accuracy import METHODS, Error
from simcoll.planning.measured.measurements import published_tables

TABLES = {table.name: table for table in published_tables()}
ONE, TWO = TABLES["all_reduce-h100-16-issue309"], TABLES["all_reduce-gb200-8-oci"]


def errors(table, way, *rows):
    return [
        Error(table, way, size, measured, predicted, "events") for size, measured, predicted in rows
    ]


def test_figures_are_medians_over_tables_and_over_rows():
    made = []
    for way in METHODS:
        made += errors(
            ONE, way, (8, 100, 110), (16, 100, 120), (2**20, 100, 100), (2**30, 100, 100)
        )
        made += errors(TWO, way, (8, 100, 145), (2**20, 100, 150), (2**30, 100, 95))
    line = next(line for line in accuracy_page._figures(made) if line.startswith("| uncalibrated"))
    # 15 and 45 % in the tables; 10, 20 and 45 % in the rows.
    assert line.startswith("| uncalibrated | **30** / **25** / **2.5** | 20 / 25 / 2.5 |")


def test_groups_have_the_same_figures_and_gaps_where_there_are_no_rows():
    made = errors(ONE, METHODS[0], (8, 100, 110), (16, 100, 120), (2**30, 100, 80))
    made += errors(ONE, METHODS[1], (2**20, 100, 150))
    lines = list(accuracy_page._groups(made, "collective", lambda table: table.collective))
    assert lines[1:] == [
        (
            "| all_reduce | 1 | uncalibrated | 15 / - / 20 | 15 / - / 20 | 19 / - / 20 | 1.15 / - / "
            "0.80 |\n"
        ),
        "| all_reduce | 1 | two points | - / 50 / - | - / 50 / - | - / 50 / - | - / 1.50 / - |\n",
    ]


def test_what_is_left_without_offset_and_rate():
    late = errors(ONE, METHODS[0], (8, 100_000, 50_000), (1024, 100_000, 50_000))
    slow = errors(TWO, METHODS[0], (8, 100_000, 100_000), (2**30, 2_000_000, 1_000_000))
    lines = list(accuracy_page._furthest(late + slow))
    assert ["launch" in line for line in lines if "small" in line and "| 50 |" in line] == [True]
    assert [line.split("|")[-2].strip() for line in lines if "large" in line] == [
        "the rate of its links"
    ]


def test_numbers_are_taken_away_where_they_are():
    library = load_library("nccl")
    bare = accuracy_page._neutral(
        library, {"tree_power_factor": 1.0, ".latency": 0.0, "launcher.torch": 0.0}
    )
    assert bare.numbers("correction.tree_power_factor") == (1.0, 1.0, 1.0)
    assert bare.number("fabric.efa-p4.latency") == bare.number("launcher.torch") == 0.0
    assert bare.number("class.ampere.ring_share") == library.number("class.ampere.ring_share")
    for name, taken in accuracy_page._TAKEN.items():
        assert (taken(library).values == library.values) == (name == "nothing"), name
    steps = accuracy_page._TAKEN["further steps of LL's latency on Alps"](library)
    assert steps.numbers("fabric.slingshot-alps.steps") == (0.0,) * 7


def test_systems_of_one_kind_are_compared_once():
    pairs = [TABLES["all_reduce-b200-16-google"], TABLES["all_reduce-b200-16-dstack"], ONE]
    assert accuracy_page._noise(pairs)["pairs"] == 1
