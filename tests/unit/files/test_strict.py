"""Strict decoding of tables into structs and dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from simcoll.errors import ConfigError
from simcoll.files.strict import convert_table, decode_toml


class Inner(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A table in a table."""

    size: int = 1


@dataclass(frozen=True, kw_only=True)
class General:
    """Keys of several files."""

    policy: str = "stall"
    ranks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A table that is a dataclass."""

    left: int = 0


class PairStruct(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The same table as a struct."""

    left: int = 0


@dataclass(frozen=True, kw_only=True)
class Whole(General):
    """A file."""

    title: str
    pair: Pair = Pair()
    inner: Inner = field(default_factory=Inner)
    names: list[str] = field(default_factory=list)


class WholeStruct(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The same file as a struct."""

    title: str
    pair: PairStruct = PairStruct()
    inner: Inner = Inner()
    names: list[str] = []
    policy: str = "stall"
    ranks: tuple[str, ...] = ()


def test_a_dataclass_takes_the_keys_of_its_bases():
    text = b'title = "x"\npolicy = "abort"\nranks = ["0", "1"]\n[inner]\nsize = 3'
    assert decode_toml(text, Whole) == Whole(
        title="x", policy="abort", ranks=("0", "1"), inner=Inner(3)
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"title": "x", "polciy": "abort"}, "$.polciy: unknown key; did you mean 'policy'?"),
        (
            {"title": "x", "colour": 1},
            "$.colour: unknown key; valid: inner, names, pair, policy, ranks, title",
        ),
        ({}, "missing key 'title'"),
        ({"title": 1}, "$.title: expected text, got a whole number"),
        ({"title": "x", "ranks": [1]}, "$.ranks[0]: expected text, got a whole number"),
        ({"title": "x", "inner": {"sise": 1}}, "$.inner.sise: unknown key; did you mean 'size'?"),
        ({"title": "x", "pair": {"lift": 1}}, "$.pair.lift: unknown key; did you mean 'left'?"),
        ({"title": "x", "pair": {"left": "1"}}, "$.pair.left: expected a whole number, got text"),
        ({"title": "x", "pair": 1}, "$.pair: expected a table of keys, got a whole number"),
        ({"title": "x", "inner": {"size": "1"}}, "$.inner.size: expected a whole number, got text"),
        ([], "expected a table of keys, got a list"),
    ],
)
def test_a_dataclass_is_as_strict_as_a_struct(table, message):
    errors = []
    for record in (Whole, WholeStruct):
        with pytest.raises(ConfigError) as error:
            convert_table(table, record, "f.toml")
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert message in errors[0]
