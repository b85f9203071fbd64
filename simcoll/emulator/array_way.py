"""The way of array operations, where no compiler is installed: runs in lock-step, and many messages
of one step.
"""

from __future__ import annotations

from dataclasses import replace

from simcoll.core.facts import FactStore
from simcoll.emulator.engine_choice import LITTLE
from simcoll.emulator.fast.compiled import COMPILED, UNCOMPILED
from simcoll.emulator.fast_way import FastWay, play_concurrently, play_together
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result
from simcoll.errors import InternalError

__all__ = ["ArrayWay"]

AT_ONCE = "all messages at once, in numpy"
IN_STEPS = "step by step, in numpy"


def _play(request: Request) -> tuple[Result | None]:
    result, how = play_together(request), IN_STEPS
    if result is None:
        result, how = play_concurrently(request), AT_ONCE
    return (None if result is None else replace(result, path=f"{UNCOMPILED}; {how}"),)


_result_of: FactStore[Request, tuple[Result | None]] = FactStore(_play)


class ArrayWay:
    """Runs in lock-step, and those of one step, in numpy."""

    name = "fast"

    def refuses(self, request: Request) -> str | None:
        """What the loops refuse, where they are compiled, and for other and for little runs."""
        refusal = FastWay().refuses(request)
        if COMPILED or request.observer is not None or request.summary.messages <= LITTLE:
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
