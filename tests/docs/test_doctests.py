"""Every example in a docstring."""

from __future__ import annotations

import doctest
import importlib
import linecache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("simcoll", "realcoll")
    for path in (ROOT / package).rglob("*.py")
    if path.stem != "__main__"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name, monkeypatch):
    # Before each docstring doctest resets a debugger, which looks at every file that the process
    # has read lines of.
    monkeypatch.setattr(linecache, "checkcache", lambda *_: None)
    # What drives hardware, or PyTorch, needs packages that not every machine has.
    if name.startswith("simcoll.torch"):
        pytest.importorskip(
            "torch", reason="PyTorch is not installed: pip install 'simcoll[torch]'"
        )
    module = (
        importlib.import_module(name) if name.startswith("simcoll") else pytest.importorskip(name)
    )
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.slow
def test_there_are_examples():
    finder = doctest.DocTestFinder()
    examples = sum(
        len(test.examples)
        for name in MODULES
        if name.startswith("simcoll") and not name.startswith("simcoll.torch")
        for test in finder.find(importlib.import_module(name))
    )
    assert examples > 30
