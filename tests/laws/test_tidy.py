"""The style of the package beyond what ruff, mypy and import-linter check: sizes, names, no state
of modules.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.support.names import BASELINE, count_names, grown

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path for package in ("simcoll", "realcoll") for path in (ROOT / package).rglob("*.py")
)

MAX_FUNCTION_LINES = 90
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "base", "common", "misc", "manager"}


def name(path):
    return str(path.relative_to(ROOT))


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def test_there_is_something_to_check():
    assert len(MODULES) > 20


@pytest.mark.slow
def test_names_that_say_nothing_and_dense_files_become_fewer():
    # After a renaming, ``python -m tests.support.names`` writes the smaller counts.
    assert grown(count_names(), json.loads(BASELINE.read_text(encoding="utf-8"))) == []


def test_a_count_that_grows_is_told():
    before = {
        "filler": {"found": 1},
        "participles": 2,
        "classes": ["Table"],
        "modules": [],
        "dense": [],
    }
    after = {
        "filler": {"found": 2, "each": 1},
        "participles": 3,
        "classes": ["Row"],
        "modules": ["memory"],
        "dense": ["a.py"],
    }
    assert grown(before, before) == []
    assert grown(after, before) == [
        "found: 2 bindings, 1 before",
        "each: 1 bindings, 0 before",
        "functions named by a participle: 3, 2 before",
        "classes: Row",
        "modules: memory",
        "dense: a.py",
    ]


@pytest.mark.slow
def test_functions_are_short():
    long = [
        (name(path), node.name, lines)
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        # The docstring is not the function's length.
        and (
            lines := (node.end_lineno or 0)
            - (node.body[0].end_lineno if ast.get_docstring(node) else node.lineno)
            + 1
        )
        > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_modules_have_names_that_say_something():
    assert [
        name(p) for p in MODULES if p.stem in FORBIDDEN_NAMES or p.parent.name in FORBIDDEN_NAMES
    ] == []


@pytest.mark.slow
def test_nothing_global_changes():
    # A module-level empty list, dict or set is there to be filled.
    found = []
    for path in MODULES:
        for node in tree(path).body:
            value = getattr(node, "value", None)
            empty = (isinstance(value, ast.List) and not value.elts) or (
                isinstance(value, ast.Dict) and not value.values
            )
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and empty:
                found.append((name(path), node.lineno))
    assert found == []
