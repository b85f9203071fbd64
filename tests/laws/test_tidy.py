"""The style of the package beyond what ruff, mypy and import-linter check: sizes, names, no state
of modules.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.support.names import BASELINE, count_names, grown, unpackings

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path for package in ("simcoll", "realcoll") for path in (ROOT / package).rglob("*.py")
)

MAX_FUNCTION_LINES = 90
MAX_PARAMETERS = 10
WIDE_CALLS = {
    # Documented calls, whose parameters are declared here and nowhere else.
    ("simcoll/core/protocol.py", "Protocol.__init__"),  # the fields of a record that users make
    ("simcoll/distributed/stores/tcp/tcp_store.py", "TCPStore.__init__"),  # torch's signature
    ("simcoll/emulator/run.py", "emulate"),  # its result has another type for a program
    ("simcoll/emulator/reference/ledger.py", "Observer.__call__"),  # what users' observers take
}
COMPILED = {"entry", "part"}
"""Decorators of compiled kernels, which take arrays, not records."""
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "base", "common", "misc", "manager"}


def name(path):
    return str(path.relative_to(ROOT))


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trees():
    """The tree of every module, for all tests here."""
    return {path: tree(path) for path in MODULES}


def test_there_is_something_to_check():
    assert len(MODULES) > 20


@pytest.mark.slow
def test_names_that_say_nothing_and_dense_files_become_fewer():
    # After a renaming, ``python -m tests.support.names`` writes the smaller counts.
    assert grown(count_names(), json.loads(BASELINE.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("a, b, c, d = record", 1),
        ("a, b, c = record", 0),
        ("a, b, c, d = 1, 2, 3, 4", 0),
        ("A, B, C, D = range(4)", 0),
        ("for a, (b, c, d, e) in records: pass", 1),
        ("x = [d for a, b, c, d in records]", 1),
    ],
)
def test_unpacking_by_position_is_counted(statement, count):
    assert sum(map(unpackings, ast.walk(ast.parse(statement)))) == count


def test_a_count_that_grows_is_told():
    before = {
        "filler": {"found": 1},
        "participles": 2,
        "unpacked": 1,
        "classes": ["Table"],
        "modules": [],
        "dense": [],
    }
    after = {
        "filler": {"found": 2, "each": 1},
        "participles": 3,
        "unpacked": 2,
        "classes": ["Row"],
        "modules": ["memory"],
        "dense": ["a.py"],
    }
    assert grown(before, before) == []
    assert grown(after, before) == [
        "found: 2 bindings, 1 before",
        "each: 1 bindings, 0 before",
        "functions named by a participle: 3, 2 before",
        "more than 3 values unpacked by position: 2, 1 before",
        "classes: Row",
        "modules: memory",
        "dense: a.py",
    ]


@pytest.mark.slow
def test_functions_are_short(trees):
    long = [
        (name(path), node.name, lines)
        for path, parsed in trees.items()
        for node in ast.walk(parsed)
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


def parameter_count(node):
    """The parameters of a function, without the object or class of a method."""
    arguments = node.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    several = [arguments.vararg, arguments.kwarg]
    return (
        len(positional)
        - (positional[:1] in (["self"], ["cls"]))
        + len(arguments.kwonlyargs)
        + sum(argument is not None for argument in several)
    )


def wide_functions(parent, owner=""):
    """``(name, parameters)`` of the functions with too many, in and below a node."""
    for node in ast.iter_child_nodes(parent):
        title = owner
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            title = f"{owner}.{node.name}".lstrip(".")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            compiled = COMPILED & {ast.unparse(decorator) for decorator in node.decorator_list}
            if not compiled and (count := parameter_count(node)) > MAX_PARAMETERS:
                yield title, count
        yield from wide_functions(node, title)


@pytest.mark.slow
def test_functions_take_few_parameters(trees):
    # Options that belong together are a record; a documented call that takes many declares them
    # as one, and takes it too (simcoll/call_records.py).
    wide = [
        (name(path), title, count)
        for path, parsed in trees.items()
        for title, count in wide_functions(parsed)
    ]
    assert [row for row in wide if row[:2] not in WIDE_CALLS] == []
    assert {row[:2] for row in wide} == WIDE_CALLS


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def f(a, b, /, c, *, d, e): ...", 5),
        ("def f(*args, **kwargs): ...", 2),
        ("async def f(self, a): ...", 1),
        ("def f(cls): ...", 0),
    ],
)
def test_the_count_of_parameters(text, count):
    (node,) = ast.parse(text).body
    assert parameter_count(node) == count


def test_a_wide_function_is_told_wherever_it_stands():
    letters = ", ".join("abcdefghijk")
    text = (
        f"class C:\n    def f(self):\n        def g({letters}): ...\n@entry\ndef h({letters}): ..."
    )
    assert list(wide_functions(ast.parse(text))) == [("C.f.g", 11)]


def test_modules_have_names_that_say_something():
    assert [
        name(p) for p in MODULES if p.stem in FORBIDDEN_NAMES or p.parent.name in FORBIDDEN_NAMES
    ] == []


@pytest.mark.slow
def test_nothing_global_changes(trees):
    # A module-level empty list, dict or set is there to be filled.
    found = []
    for path, parsed in trees.items():
        for node in parsed.body:
            value = getattr(node, "value", None)
            empty = (isinstance(value, ast.List) and not value.elts) or (
                isinstance(value, ast.Dict) and not value.values
            )
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and empty:
                found.append((name(path), node.lineno))
    assert found == []
