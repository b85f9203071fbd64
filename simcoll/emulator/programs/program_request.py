"""The request for a run of a program: all that its result may depend on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Literal, Protocol, TypeAlias

from simcoll.emulator.events.timeline import Timeline
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.step_lowering import Lowered, lower
from simcoll.topology import Topology

__all__ = ["KeptTimes", "ProgramObserver", "ProgramRequest"]

KeptTimes: TypeAlias = bool | Literal["operations"]
"""The times that a run keeps: none, those of operations, or those of messages and operations. The
times of the messages of a large step would be half of its memory.
"""


class ProgramObserver(Protocol):
    """A callback for every transfer and computation of a program, in the order in which steps
    complete.
    """

    def __call__(
        self,
        operation: int,
        group: int,
        message: int,
        src: int,
        dst: int,
        size_bytes: int,
        ready_fs: int,
        start_fs: int,
        end_fs: int,
        done_fs: int,
        /,
    ) -> None:
        """Report that a transfer was ready, flowed from ``src`` to ``dst``, and was done; a
        computation has equal ranks.
        """


@dataclass(frozen=True, eq=False, repr=False)
class ProgramRequest:
    """One run of a program.

    Attributes
    ----------
    program, topology
        The program, and the machine that runs it.
    seed, moves_data
        Seed of the generated data, and whether it is moved and checked.
    observer
        Called for every transfer and computation.
    timeline
        Events during the run; ``None`` if there are none.
    keep
        The times that are needed.
    hashed
        Whether the trace hash is needed; if not, it is empty where it would cost time.
    engine
        Name of the engine that the caller asks for, or ``auto``.
    quotient
        Whether classes of messages stand for all; ``None``: if that saves a lot.
    began_s
        The clock of this machine when the request was made, from which ``wall_s`` of the result
        counts.
    """

    program: Program
    topology: Topology
    seed: int = 0
    moves_data: bool = False
    observer: ProgramObserver | None = None
    timeline: Timeline | None = None
    keep: KeptTimes = False
    hashed: bool = True
    engine: str = "auto"
    quotient: bool | None = None
    began_s: float = field(default_factory=perf_counter)

    @cached_property
    def timed_program(self) -> Lowered:
        """The timed steps of the program, which the compiled loops play."""
        # A rank may stop just when its last operation ends, which only a later row can detect.
        stops = self.timeline is not None and self.timeline.pace is not None
        return lower(self.program, self.topology, marked=bool(self.keep) or stops)

    @property
    def wall_s(self) -> float:
        """Seconds since the request was made."""
        return perf_counter() - self.began_s
