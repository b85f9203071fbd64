"""Calls that take a record, or its fields."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields

import pytest

import simcoll.topology as topologies
from simcoll.call_records import record_of, takes
from simcoll.topology import (
    BoxesParameters,
    ClosParameters,
    DragonflyParameters,
    boxes,
    clos,
    dragonfly,
)


@dataclass(frozen=True)
class Span:
    """A span.

    Attributes
    ----------
    begin, end
        Its ends.
    """

    begin: int
    end: int = 10


@takes(Span)
def length(*arguments, **keywords) -> int:
    """The length.

    Raises
    ------
    TypeError
        For arguments that are no fields.
    """
    span = record_of(Span, arguments, keywords)
    return span.end - span.begin


def test_arguments_and_the_record_are_the_same_call():
    assert length(4) == length(begin=4) == length(4, end=10) == length(Span(4)) == 6


def test_the_call_shows_the_fields_of_its_record():
    assert str(inspect.signature(length)).replace("'", "") == "(begin: int, end: int = 10) -> int"
    assert length.__doc__.splitlines()[2:7] == [
        "Parameters",
        "----------",
        "begin, end",
        "    Its ends.",
        "",
    ]
    assert length.__doc__.index("Parameters") < length.__doc__.index("Raises")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (length, "length() missing 1 required positional argument: 'begin'"),
        (lambda: length(1, ende=2), "length() got an unexpected keyword argument 'ende'"),
        (
            lambda: length(Span(1), end=2),
            "length() takes a Span alone, or its fields; got also end",
        ),
        (
            lambda: boxes(2, 8, bandwith="1 GB/s"),
            "boxes() got an unexpected keyword argument 'bandwith'",
        ),
    ],
)
def test_an_error_is_of_the_call(call, message):
    with pytest.raises(TypeError) as error:
        call()
    # Python adds the nearest name from 3.13 on.
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("call", "record", "arguments"),
    [
        (
            boxes,
            BoxesParameters,
            {
                "nodes": 2,
                "gpus_per_node": 4,
                "gpu_bandwidth": "450 GB/s",
                "nics": 4,
                "nic_bandwidth": "50 GB/s",
            },
        ),
        (
            clos,
            ClosParameters,
            {"leaves": 4, "hosts_per_leaf": 2, "spines": 2, "bandwidth": "50 GB/s"},
        ),
        (
            dragonfly,
            DragonflyParameters,
            {
                "hosts_per_switch": 2,
                "switches_per_group": 4,
                "global_links": 2,
                "bandwidth": "50 GB/s",
            },
        ),
    ],
)
def test_families_take_their_parameters_as_a_record(call, record, arguments):
    by_keywords, by_record = call(**arguments), call(record(**arguments))
    last = by_keywords.nranks - 1
    assert last > 0
    assert by_keywords.path(0, last) == by_record.path(0, last)
    assert by_keywords.link_src.tolist() == by_record.link_src.tolist()
    assert list(inspect.signature(call).parameters) == [field.name for field in fields(record)]
    assert record.__name__ in topologies.__all__
