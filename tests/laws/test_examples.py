"""Every public method of the schedule language, and of topologies, plans and results, has an example
(which ``tests/docs/test_doctests.py`` runs).
"""

import inspect

import pytest

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
    # Properties are shown by the example of their class.
    methods = {
        name: getattr(method, "__func__", method)
        for name, method in vars(record).items()
        if not name.startswith("_") and not isinstance(method, property)
    }
    documented = {record.__name__: record} | {
        name: method for name, method in methods.items() if inspect.isfunction(method)
    }
    assert [name for name, subject in documented.items() if ">>>" not in subject.__doc__] == []


def test_combinators_have_examples():
    functions = [getattr(compose, name) for name in compose.__all__]
    assert [f.__name__ for f in (*functions, transfers) if ">>>" not in f.__doc__] == []
