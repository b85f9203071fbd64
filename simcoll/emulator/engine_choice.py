"""What decides between the engines: their names, and each threshold beside its branch, with the
measurement that chose it.

All thresholds compare numbers of a plan or program. None asks what the process has loaded or
remembers, so equal requests are played in the same way. The measurements are of a core of an AMD
EPYC, warm, in CPU time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from simcoll.emulator.fast.compiled import COMPILED, REMEDY
from simcoll.errors import ConfigError, InternalError, nearest

__all__ = [
    "ASKED",
    "DEEPEST_FIFO",
    "FEW_MESSAGES",
    "LITTLE",
    "MOST_HASHED",
    "MOST_SLOTS",
    "PACED",
    "PATIENCE",
    "WATCHED",
    "EngineWay",
    "check_engine",
    "choose_way",
    "deep_fifo",
    "engine_names",
    "few",
    "few_classes_pay",
    "is_little",
    "is_short",
]

ASKED = "asked for"
"""The reason for an engine that the caller named."""
WATCHED = "an observer follows every transfer"
PACED = "switches work with ranks that slow down or stop"

MOST_SLOTS = 1 << 17
"""Most messages of a run, or of its classes, that are loaded at a time: they take some 600 bytes
each, so 79 MB.
"""
FEW_MESSAGES = 20_000
"""Up to this number of messages, all told, a process that has nothing else to play is through with
SimPy (17 us a message) before the compiled loops are loaded (0.35 s): for a table, all runs of
which are known; and for runs without a compiler.
"""
LITTLE = 256
"""The same for a single run, which must not ask whether the process has loaded the loops: two equal
requests would differ. Array operations play it in lock-step, if no two flows meet, and else SimPy.
SimPy plays so many messages in 4 ms, the loops in 2 ms (ring all_reduce of 8
to 96 ranks on DGX H100: 5 ms and 2 ms for 120 messages, 43 and 2 for 2,016, 327 and 4 for 18,336).
So a loop over small runs loses 2 ms a run at most, and a process whose only run is larger loses the
0.35 s of loading, once. With a limit of 1,000, the first would lose 15 ms a run.

Where the loops have never been compiled, the first run compiles them: 1.5 s for those of lock-step
(ring of 17 ranks, 561 messages; 5 ms in the next run), 5 to 9 s for those with a calendar
(all_to_all of 24 ranks, 576 messages; 24 ms in the next process, after loading). SimPy would have
played either in 0.02 s. The branch does not ask for that, because what numba has on disk is no part
of a request: the same run would have another path on another machine, or tomorrow. It is paid once
for each version of simcoll, and won back by some 120 runs of 2,016 messages; only a limit of
300,000 messages would spare it, at which every process would lose seconds in SimPy.
``engine="simpy"`` avoids it.
"""
SHORT_MESSAGES = 1 << 14
"""Up to this number of messages, where a step counts as 256, array operations play a run in
lock-step that may be the only one: in 2 ms at most, 20 us a step and 0.1 us a message (recursive
doubling of 1,024 ranks, 10 steps and 10,240 messages: 1.3 ms, and 0.4 ms in the compiled loop). To
load the compiled loop takes 170 ms.
"""
MANY_MESSAGES = 1 << 17
"""Up to this number of messages, a run that may be the only one plays every message: at 115,000 to
131,000, the loops take 16 to 88 ms and finding classes 3 to 99 ms (rings, recursive doubling,
pairwise exchange), so that below neither choice loses a tenth of a second, and the trace hash need
not be expanded.
"""
MOST_HASHED = 1 << 20
"""Up to this number of messages, a quotient is expanded for the trace hash by default, at 5 ns a
message: 5 ms at most.
"""
PATIENCE = 32
"""Limit of refinement rounds: for each message of the distinct steps a round takes 0.4 us, and
lock-step 12 ns a message, so that ``messages / (PATIENCE * distinct)`` rounds take as long as
lock-step would (ring all_reduce of 1,024 ranks: 2.1 million messages, 25 ms in lock-step; 3,072
distinct ones, 5 rounds and the certificate 6 ms).
"""
DEEPEST_FIFO = 64
"""The deepest FIFO of the compiled loops: a connection holds as many times in its ring, and NCCL
has 8. Deeper ones are for SimPy.
"""


Run_contra = TypeVar("Run_contra", contravariant=True)
Record_co = TypeVar("Record_co", covariant=True)


class EngineWay(Protocol[Run_contra, Record_co]):
    """A way to play a request."""

    @property
    def name(self) -> str:
        """The engine: what callers ask for with ``engine=``, and what the result's ``engine``
        says.
        """

    def refuses(self, request: Run_contra, /) -> str | None:
        """Why it does not play a request, in a few words for the result's ``path``; ``None`` if it
        does.

        The answer may depend on the request alone.
        """

    def play(self, request: Run_contra, /) -> Record_co:
        """Play a request that it does not refuse; the result's ``path``, if it has one, is what it
        says after the refusals.
        """


def check_engine(engine: str, quotient: bool | None, names: Sequence[str]) -> None:
    """Refuse an engine that does not exist, is not installed, or cannot play a requested quotient.

    Raises
    ------
    ConfigError
        States the valid choices.
    """
    if engine not in names:
        raise ConfigError(f"engine {engine!r} is not known; {nearest(str(engine), names)}")
    if engine == "fast" and not COMPILED:
        raise ConfigError(f"engine 'fast' needs numba: {REMEDY}")
    if engine == "simpy" and quotient:
        raise ConfigError(
            "engine 'simpy' plays every message; expected engine='auto' with quotient=True"
        )


def engine_names(ways: Iterable[EngineWay[Run_contra, Record_co]]) -> tuple[str, ...]:
    """What a caller may ask for where there are these ways."""
    return tuple(dict.fromkeys(["auto", *(option.name for option in ways)]))


def choose_way(
    ways: Sequence[EngineWay[Run_contra, Record_co]], request: Run_contra, engine: str
) -> tuple[EngineWay[Run_contra, Record_co], str]:
    """The first way that does not refuse a request, and what the others refused.

    Those of the engine that was asked for come before the others.
    """
    refusals: dict[str, None] = {}
    for option in sorted(ways, key=lambda option: option.name != engine):
        refusal = option.refuses(request)
        if refusal is None:
            return option, "; ".join(refusals) or ASKED
        refusals[refusal] = None
    raise InternalError(f"no way plays a {type(request).__name__}: {'; '.join(refusals)}")


def is_little(messages: int) -> bool:
    """Whether a single run is so small that SimPy plays it, and a compiler would not help it.

    Not asked: whether the loops are compiled or loaded, see ``LITTLE``.
    """
    return messages <= (LITTLE if COMPILED else FEW_MESSAGES)


def is_short(steps: int, messages: int) -> bool:
    """Whether array operations play a run in lock-step faster than the compiled loop is loaded."""
    return 256 * steps + messages <= SHORT_MESSAGES


def few(messages: int, kind: str = "messages") -> str:
    """The reason for which SimPy plays a small run."""
    return f"only {messages} {kind}"


def deep_fifo(depth: int) -> str:
    """Why the loops do not play FIFOs of a depth; empty if they do."""
    return "" if 0 <= depth <= DEEPEST_FIFO else f"fifo_depth {depth} is more than {DEEPEST_FIFO}"


def few_classes_pay(distinct: int, messages: int) -> bool:
    """Whether finding classes pays in a run that may be the only one: its steps repeat, and it has
    many messages.

    ``distinct`` counts the messages of distinct steps, whose number decides how long finding
    classes takes. How often steps repeat decides little: in rings of 3 to 65 ranks with 32,768
    to 32 channels, whose steps repeat 2 to 64 times, classes take 0.2 to 0.7 of the time of the
    loops if blocks are equal or nearly so, 0.7 to 1.4 if they are not.
    """
    return 4 * distinct <= messages and messages > (MANY_MESSAGES if COMPILED else FEW_MESSAGES)
