"""Python's collector of reference cycles, paused where many objects are made that hold none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cycle collector: it would scan all new objects repeatedly, in vain.

    >>> with collector_paused():
    ...     gc.isenabled()
    False
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
