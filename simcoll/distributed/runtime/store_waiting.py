"""The waiter of stores inside a rank program: the rank is suspended, the others run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.distributed.runtime.tasks import Waitable, current_task, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RankWaiter"]


class RankWaiter:
    """The :class:`simcoll.distributed.stores.Waiter` of emulated ranks; timeouts count on the emulated clock."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Waitable] = []

    def wait(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Try again after every change of a store; False after the timeout."""
        task = current_task()
        if task is None:
            return ready()
        begin_fs, limit_fs = task.owner.world.now, round(timeout_s * 1e15)
        while not ready():
            left = limit_fs - (task.owner.world.now - begin_fs)
            if left <= 0:
                return False
            change = Waitable("a key of a store that no rank has set")
            self._waiting.append(change)
            try:
                wait_until(change, left, explicit=True)
            except RuntimeError:
                return ready()
        return True

    def notify(self) -> None:
        """Wake the ranks that wait: a store has changed."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.finish()
