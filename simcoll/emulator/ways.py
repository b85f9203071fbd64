"""All ways to play a plan, and the choice: the first that does not refuse the request.

A way is an object with a name, reasons for refusal, and a way of playing; a new engine is a file
with one, and a line in :data:`WAYS` (``docs/howto/contribute.md``). All ways have the same times,
hashes and counts, to the femtosecond, so refusals are about what a way cannot do, and about what
another does faster. They are functions of the request: equal requests are played in the same way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from simcoll.emulator.engine_choice import ASKED, check_engine
from simcoll.emulator.fast_way import FastWay
from simcoll.emulator.quotient_way import QuotientWay
from simcoll.emulator.reference_way import ReferenceWay
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result
from simcoll.errors import InternalError

__all__ = ["WAYS", "PlanWay", "engines", "play"]


class PlanWay(Protocol):
    """A way to play a plan."""

    @property
    def name(self) -> str:
        """The engine: what callers ask for with ``engine=``, and what ``Result.engine`` says."""

    def refuses(self, request: Request) -> str | None:
        """Why it does not play a request, in a few words for ``Result.path``; ``None`` if it does.

        The answer may depend on the request alone.
        """

    def play(self, request: Request) -> Result:
        """Play a request that it does not refuse; its ``path``, if it has one, says more than the
        refusals.
        """


WAYS: tuple[PlanWay, ...] = (QuotientWay(), FastWay(), ReferenceWay())
"""In the order in which they are asked; the last one refuses nothing."""


def engines() -> tuple[str, ...]:
    """What a caller may ask for.

    >>> engines()
    ('auto', 'fast', 'simpy')
    """
    return tuple(dict.fromkeys(["auto", *(way.name for way in WAYS)]))


def play(request: Request) -> Result:
    """Play a request by the first way that does not refuse it, those of the engine that was asked
    for before the others.

    Raises
    ------
    ConfigError
        When the engine does not exist, is not installed, or cannot play a requested quotient.
    """
    check_engine(request.engine, request.quotient, engines())
    refusals: dict[str, None] = {}
    for way in sorted(WAYS, key=lambda way: way.name != request.engine):
        refusal = way.refuses(request)
        if refusal is None:
            result = way.play(request)
            return replace(result, path=result.path or "; ".join(refusals) or ASKED)
        refusals[refusal] = None
    raise InternalError(f"no way plays {request.plan}: {'; '.join(refusals)}")
