"""Modules that are imported when a test first uses them: importing PyTorch takes longer than
collecting all tests.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="PyTorch is not installed: pip install 'simcoll[torch]'"
)


class Deferred:
    """A module by name; the first attribute imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        # Asked of every global at collection.
        if attribute.startswith(("__", "_mock")) or "pytest" in attribute:
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
