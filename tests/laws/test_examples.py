"""Every public method of the schedule language, and of topologies, plans and results, has an example
(which ``tests/docs/test_doctests.py`` runs).
"""

import inspect
import re

import pytest

import simcoll
from simcoll.algorithms import compose
from simcoll.core.collective import Collective
from simcoll.core.layout import Layout
from simcoll.core.plan import Plan
from simcoll.core.schedule import Schedule
from simcoll.core.step import Repeat, Step, transfers
from simcoll.emulator.programs import Program, ProgramResult
from simcoll.emulator.result import Result
from simcoll.topology import Routes, Topology

RECORDS = (
    Collective,
    Layout,
    Plan,
    Program,
    ProgramResult,
    Repeat,
    Result,
    Routes,
    Schedule,
    Step,
    Topology,
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_and_its_methods_have_examples(record):
    methods = {
        name: getattr(method, "__func__", method)
        for name, method in vars(record).items()
        if not name.startswith("_")
    }
    documented = {record.__name__: record} | {
        name: method for name, method in methods.items() if inspect.isfunction(method)
    }
    assert [name for name, subject in documented.items() if ">>>" not in subject.__doc__] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_each_property_is_used_in_an_example(record):
    """Its own, or that of its class."""
    example = record.__doc__.partition(">>>")[2]
    properties = {
        name: member.__doc__
        for name, member in vars(record).items()
        if isinstance(member, property) and not name.startswith("_")
    }
    unused = [
        name
        for name, text in properties.items()
        if ">>>" not in text and not re.search(rf"\.{name}\b", example)
    ]
    assert unused == []


def test_the_front_door_has_examples():
    functions = [getattr(simcoll, name) for name in simcoll.__all__]
    documented = [member for member in functions if inspect.isfunction(member)]
    assert [f.__name__ for f in documented if ">>>" not in f.__doc__] == []


def test_combinators_have_examples():
    functions = [getattr(compose, name) for name in compose.__all__]
    assert [f.__name__ for f in (*functions, transfers) if ">>>" not in f.__doc__] == []
