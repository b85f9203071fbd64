"""Options that are declared with the keys of files."""

from __future__ import annotations

from dataclasses import fields

import pytest

from simcoll.cli import app
from simcoll.cli.disturbance_options import Disturbed
from simcoll.cli.perf_options import DataOptions
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.run_conditions import DataKeys, SeededConditions
from simcoll.planning.sweeps.scenario import CollectiveTable, Scenario
from simcoll.planning.sweeps.sweep_grid import SweepFile


def test_the_options_are_the_conditions_of_files():
    names = {field.name for field in fields(Disturbed)}
    assert names == {field.name for field in fields(SeededConditions)}
    assert names <= {field.name for field in fields(Scenario)}
    assert names - {"seed"} <= {field.name for field in fields(SweepFile)}
    assert Disturbed().choices == {}


@pytest.mark.parametrize("command", ["perf", "run", "sweep"])
def test_commands_describe_them_in_the_words_of_the_record(command):
    arguments = app[command].assemble_argument_collection(parse_docstring=True)
    descriptions = {argument.name: argument.parameter.help for argument in arguments}
    for option in ("--jitter", "--seed", "--straggler", "--background", "--fault", "--policy"):
        first_line = descriptions[option].splitlines()[0]
        documentation = f"{SeededConditions.__doc__}{SeededConditions.__base__.__doc__}"
        assert first_line in documentation


def test_data_has_the_defaults_of_files():
    options, keys = DataOptions(), DataKeys()
    assert [(field.name, field.default) for field in fields(options)] == [
        (field.name, field.default) for field in fields(keys)
    ]
    assert isinstance(options, DataKeys)
    assert issubclass(CollectiveTable, DataKeys)
    assert (options.dtype, options.op, options.root) == ("float32", "sum", None)


def test_only_what_is_present_overrides_a_file():
    options = Disturbed(stragglers=("rank 3: +10 %",), policy="abort", jitter="0")
    assert options.keys("1 us") == {
        "jitter": "0",
        "stragglers": ("rank 3: +10 %",),
        "policy": "abort",
    }
    with pytest.raises(ConfigError, match="--seed is for --jitter"):
        Disturbed(seed=3).keys("0")
    assert Disturbed(seed=3).keys("1 us") == {"seed": 3}
