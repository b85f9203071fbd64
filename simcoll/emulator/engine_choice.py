"""What decides between the engines: their names, and each threshold beside its branch, with the
measurement that chose it.

All thresholds compare numbers of a plan or program. None asks what the process has loaded or
remembers, so equal requests are played in the same way. The measurements are of a core of an AMD
EPYC, warm, in CPU time.
"""

from __future__ import annotations

from collections.abc import Iterable

from simcoll.emulator.fast.compiled import COMPILED, REMEDY
from simcoll.errors import ConfigError, nearest

__all__ = [
    "ASKED",
    "DEEPEST_FIFO",
    "ENGINES",
    "FEW_MESSAGES",
    "MOST_HASHED",
    "PACED",
    "WATCHED",
    "check_engine",
    "deep_fifo",
    "few",
    "few_classes_pay",
    "is_little",
]

ENGINES = ("auto", "simpy", "fast")
ASKED = "asked for"
"""The reason for an engine that the caller named."""
WATCHED = "an observer follows every transfer"
PACED = "switches work with ranks that slow down or stop"

FEW_MESSAGES = 20_000
"""Up to this number of messages, all told, a process that has nothing else to play is through with
SimPy (17 us a message) before the compiled loops are loaded (0.35 s): for a table, all runs of
which are known; and for runs without a compiler.
"""
LITTLE = 256
"""The same for a single run, which must not ask whether the process has loaded the loops: two equal
requests would differ. SimPy plays so many messages in 4 ms, the loops in 2 ms (ring all_reduce of 8
to 96 ranks on DGX H100: 5 ms and 2 ms for 120 messages, 43 and 2 for 2,016, 327 and 4 for 18,336).
So a loop over small runs loses 2 ms a run at most, and a process whose only run is larger loses the
0.35 s of loading, once. With a limit of 1,000, the first would lose 15 ms a run.
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
DEEPEST_FIFO = 64
"""The deepest FIFO of the compiled loops: a connection holds as many times in its ring, and NCCL
has 8. Deeper ones are for SimPy.
"""


def check_engine(engine: str, quotient: bool | None, names: Iterable[str] = ENGINES) -> None:
    """Refuse an engine that does not exist, is not installed, or cannot play a requested quotient.

    Raises
    ------
    ConfigError
        States the valid choices.
    """
    names = tuple(names)
    if engine not in names:
        raise ConfigError(f"engine {engine!r} is not known; {nearest(str(engine), names)}")
    if engine == "fast" and not COMPILED:
        raise ConfigError(f"engine 'fast' needs numba: {REMEDY}")
    if engine == "simpy" and quotient:
        raise ConfigError(
            "engine 'simpy' plays every message; expected engine='auto' with quotient=True"
        )


def is_little(messages: int) -> bool:
    """Whether a single run is so small that SimPy plays it, and a compiler would not help it."""
    return messages <= (LITTLE if COMPILED else FEW_MESSAGES)


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
    classes takes.
    """
    return 4 * distinct <= messages and messages > (MANY_MESSAGES if COMPILED else FEW_MESSAGES)
