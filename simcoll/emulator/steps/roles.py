"""The roles of a step, as compiled code reads them, too:
:data:`simcoll.emulator.fast.sources.SOURCES` covers this file.
"""

from __future__ import annotations

__all__ = ["LAUNCHES", "MOVES", "RECORDS", "SILENT", "WAITS"]

# Transfers and work, which are numbered and hashed; a launch, which counts for the time of the run;
# forks and joins of lanes; records, and waits for them: the n-th wait of a connection ends when its
# n-th record is made.
MOVES, LAUNCHES, SILENT, RECORDS, WAITS = range(5)
