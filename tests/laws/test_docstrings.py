"""Docstrings describe the code as it is: their parameters and attributes exist, their errors are
exceptions, and no line repeats.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import re

import pytest

from tests.laws.test_tidy import MODULES, name, tree

DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def entries(lines, section):
    """The unindented lines below a heading, up to the next heading."""
    if section not in lines:
        return
    for line, after in zip(
        lines[lines.index(section) + 2 :], [*lines[lines.index(section) + 3 :], ""], strict=True
    ):
        if re.fullmatch("-{3,}", after):
            return
        if line and not line.startswith(" "):
            yield line


def parameters(node):
    return [each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)]


def known(node):
    """The parameters of a function; the names that a class gives its instances."""
    if not isinstance(node, ast.ClassDef):
        return set(parameters(node))
    found = set()
    for each in ast.walk(node):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.update([each.name, *parameters(each)])
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            found.add(each.attr)
    return found


def wrong(node, lines, errors):
    """The lines of a docstring that do not describe the code."""
    names_of_code = None
    for section in ("Parameters", "Attributes"):
        for line in entries(lines, section):
            names_of_code = names_of_code or known(node)
            names = [each.strip(" *") for each in line.split(" : ")[0].split(",")]
            yield from (line for each in names if each not in names_of_code)
    for line in entries(lines, "Raises"):
        yield from (line for each in line.split(", ") if each.split(".")[-1] not in errors)
    yield from (
        line for line, after in itertools.pairwise(lines) if line == after and len(line) > 20
    )


@pytest.mark.slow
def test_docstrings_describe_the_code():
    nodes = [
        (name(path), node)
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, DOCUMENTED)
    ]
    classes = {node.name for _, node in nodes if isinstance(node, ast.ClassDef)}
    errors = classes | set(dir(builtins)) | {"PicklingError", "OutOfMemoryError"}
    found = [
        (path, node.name, line)
        for path, node in nodes
        if (said := ast.get_docstring(node)) is not None
        for line in wrong(node, said.splitlines(), errors)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("Parameters", "The first number."),
        ("Raises", "For a large number."),
        ("Parameters", "a, c"),
    ],
)
def test_what_it_would_find(section, line):
    text = (
        f'def add(a, b):\n    """Add.\n\n    {section}\n    ------\n    {line}\n'
        '        A word.\n    """\n'
    )
    (node,) = ast.parse(text).body
    assert list(wrong(node, ast.get_docstring(node).splitlines(), {"ValueError"})) == [line]
