"""Facts with units and sources: what a file may hold, and where its mistakes are."""

import pytest

from simcoll.errors import ConfigError
from simcoll.files.sourced import FactRows, FactSchema, text
from simcoll.files.text import parse_toml


def number(value, what):
    if not isinstance(value, int):
        raise ConfigError(f"{what}: expected a number, got {value!r}")
    return value


FACTS = FactSchema(
    {
        "rate": number,
        "fabric.*.latency": number,
        "fabric.*.*_start": number,
        "peak.bf16": number,
        "network.tiers": FactRows(
            {"name": text, "latency": number},
            required=("name",),
            labels=("a tier", "tables [[network.tiers]]"),
            make=dict,
        ),
    },
    ignored=("title",),
    nouns={"peak": "data type"},
)
BARE = FactSchema(FACTS.kinds, FACTS.ignored, FACTS.nouns, bare=True)
FILE = """
title = "not a fact"
rate = { value = 1, source = "a" }
[fabric.ib]
latency = { value = 2, source = "b" }
first_start = { value = 3, source = "c" }
[fabric.roce]
latency = { value = 4, source = "d" }
"""


def test_values_and_sources_are_by_place():
    values, sources = FACTS.read(parse_toml(FILE.encode()))
    assert values == {
        "rate": 1,
        "fabric.ib.latency": 2,
        "fabric.ib.first_start": 3,
        "fabric.roce.latency": 4,
    }
    assert sources == {
        "rate": "a",
        "fabric.ib.latency": "b",
        "fabric.ib.first_start": "c",
        "fabric.roce.latency": "d",
    }


def test_a_pattern_stands_for_one_part_of_a_place():
    assert FACTS.kind("fabric.ib.latency") is number
    assert FACTS.kind("fabric.latency") is None
    assert FACTS.kind("fabric.ib.more.latency") is None


def test_rows_become_records_with_their_sources():
    rows = (
        '[[network.tiers]]\nname = "leaf"\n[[network.tiers]]\nname = "spine"\n'
        'latency = { value = 1, source = "s" }'
    )
    values, sources = BARE.read(parse_toml(rows.encode()))
    assert values == {"network.tiers": [{"name": "leaf"}, {"name": "spine", "latency": 1}]}
    assert sources == {"network.tiers[1].latency": "s"}


def test_a_source_may_be_absent_only_where_values_may_be_bare():
    for entry in ("1", "{ value = 1 }"):
        assert BARE.read(parse_toml(f"rate = {entry}".encode())) == ({"rate": 1}, {})
        with pytest.raises(
            ConfigError,
            match=r"\$\.rate: expected \{ value = \.\.\., source = '\.\.\.' \}, got (1|no source)",
        ):
            FACTS.read(parse_toml(f"rate = {entry}".encode()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "ratio = 1",
            (
                "f: $.ratio: unknown key; did you mean 'rate'? (valid: fabric, network, peak, rate, "
                "title)"
            ),
        ),
        (
            "[fabric.ib]\nlatencies = 1",
            "f: $.fabric.ib.latencies: unknown key; did you mean 'latency'?",
        ),
        ("[peak]\nbf17 = 1", "f: $.peak.bf17: unknown data type; did you mean 'bf16'?"),
        ("[peak]\ntitle = 1", "f: $.peak.title: unknown data type"),
        ("fabric = 3", "f: $.fabric: expected a table [fabric], got 3"),
        ("fabric.ib = 3", "f: $.fabric.ib: expected a table [fabric.ib], got 3"),
        ("rate = { value = 'x' }", "f: $.rate: rate: expected a number, got 'x'"),
        (
            "rate = { valeu = 1 }",
            "f: $.rate: expected { value = ..., source = '...' }, got 'valeu'",
        ),
        (
            "rate = { source = 'a' }",
            "f: $.rate: expected { value = ..., source = '...' }, got no value",
        ),
        ("rate = { value = 1, source = ' ' }", "f: $.rate: source: expected text, got ' '"),
        (
            "[network]\ntiers = 1",
            "f: $.network.tiers: tiers: expected tables [[network.tiers]], got 1",
        ),
        ("[network]\ntiers = [1]", "f: $.network.tiers[0]: expected a table, got 1"),
        (
            "[[network.tiers]]\nlatency = 1",
            "f: $.network.tiers[0].name: missing; a tier needs a name",
        ),
        (
            "[[network.tiers]]\nnam = 1",
            "f: $.network.tiers[0].nam: unknown key; did you mean 'name'?",
        ),
        ("[[network.tiers]]\nname = 1", "f: $.network.tiers[0].name: name: expected text, got 1"),
    ],
)
def test_mistakes_have_their_place(content, message):
    with pytest.raises(ConfigError) as error:
        BARE.read(parse_toml(content.encode()), "f")
    assert str(error.value).startswith(message)
