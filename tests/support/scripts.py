"""Scripts of the repository as modules: they are in no package, and their names may be others'."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def script(path: str) -> ModuleType:
    """The module of a script, by its path in the repository."""
    name = "script_" + path.removesuffix(".py").replace("/", "_")
    spec = spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
