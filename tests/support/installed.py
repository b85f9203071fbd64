"""Where processes that tests start find simcoll."""

from __future__ import annotations

from pathlib import Path

import simcoll

PACKAGES = Path(simcoll.__file__).parents[1]
"""The folder of the package that these tests import: its engine is compiled already."""
