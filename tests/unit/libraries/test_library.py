"""Library files: what is shipped, and what is refused."""

import pytest

from simcoll.errors import ConfigError
from simcoll.libraries.library import load_library, parse_library, shipped_libraries

HEAD = 'name = "x"\nversion = "1"\ndescription = "d"\n'


@pytest.mark.parametrize("name", shipped_libraries())
def test_shipped_libraries_say_where_every_number_is_from(name):
    library = load_library(name)
    assert library.missing
    assert all(library.sources[place].strip() for place in library.values)
    assert set(library.sources) == set(library.values)


def test_a_name_without_version_is_the_newest():
    assert str(load_library("nccl")) == "nccl 2.27"
    assert load_library("nccl 2.27") is load_library("nccl-2.27")


def test_a_file_that_extends_another_has_its_values():
    rccl, nccl = load_library("rccl"), load_library("nccl")
    assert rccl.numbers("base.nvls") == nccl.numbers("base.nvls")
    assert rccl.tables("class")[-2:] == ("mi300", "mi355")
    assert rccl.digest != nccl.digest
    assert rccl.borrowed["base.nvls"] == "nccl 2.27"
    assert "base.ring" not in rccl.borrowed
    stated = {place for place in rccl.values if place not in rccl.borrowed}
    assert {place.split(".")[1] for place in stated if place.startswith("class.")} == {
        "mi300",
        "mi355",
    }
    assert {place for place in stated if place.startswith("launcher.")} == {
        "launcher.one_process",
        "launcher.graph_saved",
    }


def test_a_version_that_extends_its_own_library_borrows_nothing():
    newer = parse_library(
        b'extends = "nccl-2.27"\nname = "nccl"\nversion = "2.32"\ndescription = "d"\n', "x.toml"
    )
    assert (newer.number("fabric.ib.latency"), newer.borrowed) == (
        load_library("nccl").number("fabric.ib.latency"),
        {},
    )
    other = parse_library(
        b'extends = "rccl-2.22"\nname = "rccl"\nversion = "2.27"\ndescription = "d"\n', "x.toml"
    )
    assert other.borrowed == load_library("rccl").borrowed


def test_changed_values_change_the_digest():
    library = load_library()
    changed = library.with_values({"fabric.ib.latency": 1.5})
    assert changed.number("fabric.ib.latency") == 1.5
    assert changed.digest != library.digest


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ('[fabric.ib]\nlatency = { value = "1", source = "s" }', "$.fabric.ib.latency", "no unit"),
        ('[fabric.ib]\nlatency = { value = "1 us" }', "$.fabric.ib.latency", "source"),
        ('[fabric.ib]\nlatency = { source = "s" }', "$.fabric.ib.latency", "value"),
        ('[fabric.ib]\nlatency = "1 us"', "$.fabric.ib.latency", r"expected \{ value = "),
        (
            '[fabric.ib]\nlatencies = { value = "1 us", source = "s" }',
            "$.fabric.ib.latencies",
            "unknown key",
        ),
        ('[base]\nring = { value = ["1 us"], source = "s" }', "$.base.ring", "three values"),
        (
            '[class.x]\nring_share = { value = "a", source = "s" }',
            "$.class.x.ring_share",
            "a number",
        ),
        (
            '[class.x]\nring_share = { value = nan, source = "s" }',
            "$.class.x.ring_share",
            "a number",
        ),
        ("[class.x", None, "not a TOML file"),
        ("missing = [1]", "$.missing", "expected text"),
        ('extends = "nope"', None, "unknown library"),
    ],
)
def test_broken_files_are_refused_with_the_place(text, place, what):
    top = text.startswith(("missing", "extends"))
    content = f"{text}\n{HEAD}" if top else f"{HEAD}{text}\n"
    with pytest.raises(ConfigError, match=what) as error:
        parse_library(content.encode(), "x.toml")
    assert place is None or error.value.path == place


def test_an_unknown_library_is_named():
    with pytest.raises(ConfigError, match="did you mean 'nccl'"):
        load_library("ncll")
    with pytest.raises(ConfigError, match="cannot read"):
        load_library("nowhere/x.toml")
