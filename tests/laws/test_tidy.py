"""The style of the package: sizes, names, directions of imports, docstrings."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path for package in ("simcoll", "realcoll") for path in (ROOT / package).rglob("*.py"))
OURS = [path for path in MODULES if path.relative_to(ROOT).parts[0] == "simcoll"]

# A module may import, at its top level, only what stands before it here (or in its own layer).
LAYERS = (
    "errors", "command_line", "units", "core", "topology", "bounds", "proving", "binding", "algorithms", "emulator", "tuning",
    "cuda_comm", "distributed", "torch", "formats", "planning", "cli", "testing",
)  # fmt: skip
# Faces of the package, which import from everywhere.
FACES = {"__init__", "__main__", "types"}
MAX_LINES = 410
MAX_FUNCTION_LINES = 70
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "base", "common", "misc", "manager"}
# The pieces that talk to a person on a terminal.
PRINTERS = ("simcoll/cli", "simcoll/command_line", "simcoll/planning/report")


def name(path):
    return str(path.relative_to(ROOT))


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def layer(path):
    return path.relative_to(ROOT / "simcoll").parts[0].removesuffix(".py")


def test_there_is_something_to_check():
    assert len(OURS) > 20


def test_modules_are_short():
    assert [(name(p), n) for p in MODULES if (n := len(p.read_text(encoding="utf-8").splitlines())) > MAX_LINES] == []


@pytest.mark.slow
def test_functions_are_short():
    long = [
        (name(path), node.name, lines)
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        # The docstring is not the function's length.
        and (
            lines := (node.end_lineno or 0) - (node.body[0].end_lineno if ast.get_docstring(node) else node.lineno) + 1
        )
        > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_modules_have_names_that_say_something():
    assert [name(p) for p in MODULES if p.stem in FORBIDDEN_NAMES or p.parent.name in FORBIDDEN_NAMES] == []


def top_level_imports(path):
    """Modules imported when this one is; imports for type checking and inside functions do not count."""
    for node in tree(path).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} has a relative import"
            yield node.module
            # ``from simcoll.algorithms import ring`` imports a module, too.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.slow
def test_imports_point_down():
    wrong = []
    for path in OURS:
        if layer(path) in FACES:
            continue
        assert layer(path) in LAYERS, f"{name(path)} belongs to no layer: add it to LAYERS"
        for target in top_level_imports(path):
            parts = target.split(".")
            if parts[0] != "simcoll" or len(parts) < 2 or parts[1] not in LAYERS:
                continue
            if LAYERS.index(parts[1]) > LAYERS.index(layer(path)):
                wrong.append((name(path), target))
    assert wrong == []


def test_simcoll_never_imports_realcoll():
    names = (
        (name(path), node)
        for path in OURS
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "realcoll" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "realcoll")
    )
    assert list(names) == []


@pytest.mark.slow
def test_every_module_says_what_it_is():
    assert [name(p) for p in MODULES if not ast.get_docstring(tree(p))] == []


def test_every_folder_says_what_lives_there():
    folders = {path.parent for path in MODULES}
    # One line can name a module; what lives in a folder and what may not takes more.
    short = [
        name(f)
        for f in sorted(folders)
        if not (f / "__init__.py").exists() or not ast.get_docstring(tree(f / "__init__.py"))
    ]
    assert short == []


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_public_names_exist_and_are_documented(path):
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if path.stem == "__main__":
        return
    if not dotted.startswith("simcoll"):
        pytest.importorskip(dotted)
    if dotted.startswith("simcoll.torch"):
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'simcoll[torch]'")
    module = importlib.import_module(dotted)
    missing = []
    for public in getattr(module, "__all__", ()):
        thing = getattr(module, public)
        if getattr(thing, "__module__", None) != dotted or not callable(thing):
            continue
        if not thing.__doc__:
            missing.append(public)
        if isinstance(thing, type):
            methods = [
                m
                for m in vars(thing)
                if not m.startswith("_") and (callable(vars(thing)[m]) or isinstance(vars(thing)[m], property))
            ]
            missing += [f"{public}.{m}" for m in methods if not vars(thing)[m].__doc__]
    assert missing == []


def test_modules_list_their_public_names_in_order():
    unsorted = []
    for path in OURS:
        for node in tree(path).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and node.targets[0].id == "__all__"
            ):
                names = ast.literal_eval(node.value)
                if len(set(names)) != len(names):
                    unsorted.append(name(path))
    assert unsorted == []


def calls(path, function):
    return [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    ]


@pytest.mark.slow
def test_only_the_command_line_prints():
    allowed = (*PRINTERS, "realcoll/")
    assert [
        (name(p), calls(p, "print")) for p in MODULES if calls(p, "print") and not name(p).startswith(allowed)
    ] == []


def test_no_assert_checks_input():
    asserts = [(name(p), node.lineno) for p in OURS for node in ast.walk(tree(p)) if isinstance(node, ast.Assert)]
    assert asserts == []


def test_nothing_is_left_to_do():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [name(p) for p in MODULES if marks.search(p.read_text(encoding="utf-8"))] == []


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
            if any(isinstance(inner, ast.Global) for inner in ast.walk(node)):
                found.append((name(path), node.lineno))
    assert found == []
