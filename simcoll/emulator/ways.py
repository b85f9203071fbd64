"""All ways to play a plan, and the choice: the first that does not refuse the request.

A way is an object with a name, reasons for refusal, and a way of playing; a new engine is a file
with one, and a line in :data:`WAYS` (``docs/howto/contribute.md``); those of programs are in
``programs/program_ways.py``, and the same loop chooses among them. All ways have the same times,
hashes and counts, to the femtosecond, so refusals are about what a way cannot do, and about what
another does faster. They are functions of the request: equal requests are played in the same way.
"""

from __future__ import annotations

from dataclasses import replace

from simcoll.emulator.array_way import ArrayWay
from simcoll.emulator.engine_choice import (
    ASKED,
    EngineWay,
    check_engine,
    choose_way,
    engine_names,
)
from simcoll.emulator.fast_way import FastWay
from simcoll.emulator.quotient_way import QuotientWay
from simcoll.emulator.reference_way import ReferenceWay
from simcoll.emulator.request import Request
from simcoll.emulator.result import Result

__all__ = ["WAYS", "engines", "play"]


WAYS: tuple[EngineWay[Request, Result], ...] = (
    QuotientWay(),
    FastWay(),
    ArrayWay(),
    ReferenceWay(),
)
"""In the order in which they are asked; the last one refuses nothing."""


def engines() -> tuple[str, ...]:
    """What a caller may ask for.

    >>> engines()
    ('auto', 'fast', 'simpy')
    """
    return engine_names(WAYS)


def play(request: Request) -> Result:
    """Play a request by the first way that does not refuse it, those of the engine that was asked
    for before the others.

    Raises
    ------
    ConfigError
        When the engine does not exist, is not installed, or cannot play a requested quotient.
    """
    check_engine(request.engine, request.quotient, engines())
    player, path = choose_way(WAYS, request, request.engine)
    result = player.play(request)
    how = [] if result.path and path == ASKED else [path]
    return replace(result, path="; ".join([*how, *filter(None, [result.path])]))
