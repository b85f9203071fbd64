"""The constructor that type checkers see of a record that accepts more than it stores takes the
fields of the record.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def declared():
    """``(module, class, signature)`` of every constructor below ``if TYPE_CHECKING``."""
    for package in ("simcoll", "realcoll"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "\n    if TYPE_CHECKING:\n" not in text:  # parsing takes long
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for record in (
                node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
            ):
                for branch in record.body:
                    if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING":
                        for each in branch.body:
                            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                                yield pytest.param(module, record.name, each.args, id=record.name)


DECLARED = list(declared())


def test_the_public_records_that_convert_declare_what_they_take():
    assert {
        "Background",
        "Collective",
        "Layout",
        "LinkShare",
        "Plan",
        "Protocol",
        "Repeat",
        "Schedule",
        "Slow",
        "Step",
    } <= {each.id for each in DECLARED}


@pytest.mark.parametrize(("module", "name", "arguments"), DECLARED)
def test_it_takes_the_fields(module, name, arguments):
    record = getattr(importlib.import_module(module), name)
    fields = [field for field in dataclasses.fields(record) if field.init]
    names = [argument.arg for argument in [*arguments.args[1:], *arguments.kwonlyargs]]
    assert names == [field.name for field in fields]
    optional = [
        field.name
        for field in fields
        if field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    ]
    assert names[len(names) - len(arguments.defaults) :] == optional
    for field, default in zip(
        fields[len(fields) - len(optional) :], arguments.defaults, strict=True
    ):
        if field.default is not dataclasses.MISSING:
            assert (
                eval(ast.unparse(default), vars(importlib.import_module(module))) == field.default
            )
