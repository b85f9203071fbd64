"""Waiters of stores: they sleep in this thread, or wait as a runtime wants it.

A runtime that plays many ranks in one thread must not sleep in one of them. It says `use_waiter` at the start of each
rank's greenlet, with a `Waiter` of its own that parks the rank and lets the others run; stores made and used in that greenlet
wait by it. (``store.waiter = ...`` does the same for one store, wherever it is used.)
"""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WAITER_HERE", "PollingWaiter", "ThreadWaiter", "Waiter", "use_waiter"]


class Waiter(Protocol):
    """The way a store waits.

    ``ready`` tries the operation; it is called again and again until it says True, and never after.
    """

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``ready()`` is True; False when it is not within ``timeout_s`` seconds (it is tried at least once)."""
        ...

    def notify(self) -> None:
        """Let the waiting ranks try again: a store has changed. Must not call into a store."""
        ...


# Each thread and each greenlet has a context, so this is no state that others could see.
WAITER_HERE: ContextVar[Waiter | None] = ContextVar("simcoll_store_waiter", default=None)


def use_waiter(waiter: Waiter | None) -> None:
    """Make stores used in this context (greenlet, thread) wait by ``waiter``; None: each in its own way again."""
    WAITER_HERE.set(waiter)


class ThreadWaiter:
    """For stores that threads of this process share: waits on a condition, wakes when something changes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Try under the condition's lock, so that no change is missed between a failed try and going to sleep."""
        with self._changed:
            return self._changed.wait_for(ready, min(timeout_s, threading.TIMEOUT_MAX))

    def notify(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._changed.notify_all()


class PollingWaiter:
    """For changes by others: tries again after pauses, by ``sleep``, that grow from half a millisecond to ``longest_s``."""

    def __init__(self, longest_s: float = 0.01, sleep: Callable[[float], None] = time.sleep) -> None:
        self._longest_s = longest_s
        self._sleep = sleep

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Try, pause, try again."""
        deadline = time.monotonic() + timeout_s
        pause_s = 0.0005
        while not ready():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._sleep(min(pause_s, left))
            pause_s = min(2 * pause_s, self._longest_s)
        return True

    def notify(self) -> None:
        """Do nothing: pauses are short."""
