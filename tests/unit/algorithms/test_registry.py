"""The table of algorithms is made from the files in its folder."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import simcoll.algorithms
from simcoll.algorithms import ALGORITHMS as TABLE
from simcoll.algorithms import registry

ALGORITHMS = tuple(TABLE)  # now, as a test adds a file

TEXT = """
from simcoll.algorithms.ring import all_reduce as imported
from simcoll.algorithms.registered import algorithm

@algorithm("all_reduce", "twice_around", cost="", source="a test", order="run-consistent")
def all_reduce(collective):
    return imported(collective)
"""


def test_a_file_in_the_folder_is_an_algorithm(tmp_path, monkeypatch):
    (tmp_path / "zz_added.py").write_text(TEXT)
    monkeypatch.setattr(
        simcoll.algorithms, "__path__", [*simcoll.algorithms.__path__, str(tmp_path)]
    )
    try:
        found = [(a.collective, a.name) for a in registry._algorithms_of(registry._families())]
    finally:
        sys.modules.pop("simcoll.algorithms.zz_added", None)
        vars(simcoll.algorithms).pop("zz_added", None)
    # It comes after those with a place, and what it imports does not count again.
    reductions = [name for kind, name in found if kind == "all_reduce"]
    assert reductions == [
        *(a.name for a in ALGORITHMS if a.collective == "all_reduce"),
        "twice_around",
    ]
    assert len(found) == len(ALGORITHMS) + 1


def test_listings_do_not_depend_on_the_order_of_the_files(monkeypatch):
    reverse = lambda path: reversed(list(iter_modules(path)))  # noqa: E731
    iter_modules = pkgutil.iter_modules
    monkeypatch.setattr(pkgutil, "iter_modules", reverse)
    assert tuple(registry._algorithms_of(registry._families())) == ALGORITHMS


def test_places_are_given_once():
    places = [module.PLACE for module in registry._families() if hasattr(module, "PLACE")]
    assert len(set(places)) == len(places) > 20


def test_every_name_finds_the_algorithm_of_the_table():
    for algorithm in ALGORITHMS:
        for find in (registry.find_algorithm, registry._algorithm_in_its_module):
            assert find(algorithm.collective, algorithm.name) is algorithm


LOADED = """
import sys
import simcoll
simcoll.schedule("all_reduce", "recursive_doubling", nranks=4)
print(*sorted(name for name in sys.modules if name.startswith("simcoll.algorithms.")))
"""


@pytest.mark.slow
def test_a_name_loads_its_own_module_only():
    argv = [sys.executable, "-c", LOADED]
    loaded = subprocess.run(argv, capture_output=True, check=True, text=True).stdout.split()
    assert "simcoll.algorithms.recursive" in loaded
    assert not {f"simcoll.algorithms.{home}" for home in ("ring", "swing", "torus")} & set(loaded)
