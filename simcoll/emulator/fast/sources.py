"""The checksum of all compiled code: reading it takes a millisecond, for which runs without the
compiled loops have no use.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from simcoll.emulator.steps import roles

__all__ = ["SOURCES"]

_FILES = [*sorted(Path(__file__).parent.glob("*.py")), Path(roles.__file__)]
SOURCES = crc32(b"".join(path.read_bytes() for path in _FILES))
"""Default of the last parameter of every entry point: a checksum of all files of compiled code,
which are those of this package and the constants that it shares with the other engines.

Numba invalidates a cached function when its own file changes, but not when the file of a function
that it calls does, so the cache must see all files in the signature. All functions share one value:
if their defaults differ, numba calls all but the first function at a hundred times the cost.
"""
