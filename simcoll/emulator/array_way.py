"""The way of array operations, for runs that are too small for the compiled loops, or where
there are none: runs in lock-step, and many messages of one step.
"""

from __future__ import annotations

from dataclasses import replace

from simcoll.core.facts import FactStore
from simcoll.emulator.engine_choice import LITTLE
from simcoll.emulator.fast_way import FastWay, beyond_loops, play_concurrently, play_together
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result
from simcoll.errors import InternalError

__all__ = ["ArrayWay"]

AT_ONCE = "all messages at once, in numpy"
IN_STEPS = "step by step, in numpy"


def _play(request: Request) -> tuple[Result | None]:
    result, how = play_together(request), IN_STEPS
    if result is None and request.summary.messages > LITTLE:
        result, how = play_concurrently(request), AT_ONCE
    return (None if result is None else replace(result, path=how),)


_result_of: FactStore[Request, tuple[Result | None]] = FactStore(_play)


class ArrayWay:
    """Runs in lock-step, and those of one step, in numpy."""

    name = "fast"

    def refuses(self, request: Request) -> str | None:
        """What the loops refuse, for runs that are neither in lock-step nor of one step."""
        refusal = FastWay().refuses(request)
        if beyond_loops(request) or request.timeline is not None:
            return refusal
        return refusal if _result_of(request)[0] is None else None

    def play(self, request: Request) -> Result:
        """Play every message; data is moved afterwards, step by step."""
        (result,) = _result_of(request)
        if result is None:
            raise InternalError("a run was chosen that cannot be played at once")
        if request.storage is not None:
            request.storage.play()
        return result
