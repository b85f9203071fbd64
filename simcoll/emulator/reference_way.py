"""The way that plays every run: all messages under the SimPy clock."""

from __future__ import annotations

from simcoll.emulator.request import Request
from simcoll.emulator.result import Result

__all__ = ["ReferenceWay"]


class ReferenceWay:
    """The reference engine, which refuses nothing."""

    name = "simpy"

    def refuses(self, _request: Request) -> str | None:
        """Nothing."""
        return None

    def play(self, request: Request) -> Result:
        """Play every message under the SimPy clock."""
        # SimPy takes a tenth of the time of a small run that the compiled loops play.
        from simcoll.emulator.reference_run import play_plan

        return play_plan(request)
