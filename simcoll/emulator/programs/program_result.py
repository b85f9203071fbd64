"""The record of a program's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from simcoll.arrays import Floats, Ints
from simcoll.emulator.events.cut import Cut
from simcoll.emulator.programs.operations import Call
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.step_lowering import lower
from simcoll.errors import ConfigError
from simcoll.notebook_forms import facts_table
from simcoll.terminal import printable
from simcoll.topology import Topology
from simcoll.units import format_time

__all__ = ["OperationTimes", "ProgramResult"]


@dataclass(frozen=True, slots=True, eq=False)
class OperationTimes:
    """Begin and end of an operation on each of its ranks.

    With ``classes``, the times are those of classes, given per rank.
    """

    begin_fs: Ints
    end_fs: Ints
    classes: tuple[Ints, Ints] | None = None

    def of_ranks(self) -> tuple[Ints, Ints]:
        """Begin and end, by rank."""
        if self.classes is None:
            return self.begin_fs, self.end_fs
        return self.begin_fs[self.classes[0]], self.end_fs[self.classes[1]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProgramResult:
    """The record of a program's run.

    Attributes
    ----------
    program, topology
        The program that ran, and its topology.
    engine, path
        The engine that ran, and the reason, or the quotient that stood in for all messages.
    time_fs
        Completion time of the last transfer or computation.
    messages, bytes_moved
        Number of transfers and computations, and the payload of the transfers.
    trace_hash
        Hash of everything that happened (:mod:`simcoll.emulator.digest`); messages are numbered by
        operation, step and group. Empty for a quotient of more than a million messages without
        ``keep``.
    classes
        Number of rows of the quotient that were played; ``None`` if all were.
    done_fs
        Completion time of each transfer and computation, by number; ``None`` without ``keep``.
    data
        ``"exact"`` (generated and checked) or ``"none"``: timing only.
    wrong
        Output elements of all collectives that differ from their definition; ``None`` if not
        checked.
    wall_s
        Wall-clock seconds of the run on this machine; part of no hash.
    cut
        Where and why events ended the run early; ``messages`` and ``bytes_moved`` then cover the
        run until there, ``done_fs`` is -1 for the rest, and there are no times of operations.

    Examples
    --------
    >>> import simcoll
    >>> from simcoll.planning import Compute, Program, Send
    >>> from simcoll.topology import crossbar
    >>> program = Program(2, [Compute([0, 1], 10**9), Send([(0, 1)], 1000, after=[0])])
    >>> result = simcoll.emulate(program, crossbar(2, "1 GB/s", "1 us"), keep=True)
    >>> result.time_us, result.time, result.messages, result.bytes_moved, result.unproved
    (3.0, 3e-06, 3, 1000, False)
    """

    program: Program
    topology: Topology
    engine: str
    path: str
    time_fs: int
    messages: int
    bytes_moved: int
    trace_hash: str
    classes: int | None = None
    done_fs: Ints | None = None
    data: Literal["exact", "none"] = "none"
    wrong: int | None = None
    wall_s: float = 0.0
    cut: Cut | None = None
    _times: Mapping[int, OperationTimes] | None = field(default=None, kw_only=True)

    def _repr_html_(self) -> str:
        data = "none, timing only" if self.wrong is None else f"{self.wrong} wrong elements"
        facts = [
            ("program", str(self.program).strip("<>").removeprefix("Program: ")),
            ("topology", self.topology.name),
            ("time", format_time(self.time_fs) if self.cut is None else self.cut),
            ("messages", f"{self.messages} by engine {self.engine}"),
            ("data", data),
        ]
        return facts_table(facts)

    def to_dict(self) -> dict[str, Any]:
        """The run as plain values, a row of a table.

        >>> import simcoll
        >>> from simcoll.planning import Program, Send
        >>> from simcoll.topology import crossbar
        >>> program = Program(2, [Send([(0, 1)], 1000)])
        >>> row = simcoll.emulate(program, crossbar(2, "1 GB/s", "1 us")).to_dict()
        >>> row["time_us"], row["messages"], row["cut"]
        (2.0, 1, '')
        """
        return {
            "operations": len(self.program.operations),
            "nranks": self.program.nranks,
            "topology": self.topology.name,
            "time_us": self.time_us,
            "messages": self.messages,
            "bytes_moved": self.bytes_moved,
            "wrong": self.wrong,
            "engine": self.engine,
            "trace_hash": self.trace_hash,
            "cut": "" if self.cut is None else str(self.cut),
        }

    @property
    def time(self) -> float:
        """Seconds."""
        return self.time_fs / 1e15

    @property
    def time_us(self) -> float:
        """Microseconds."""
        return self.time_fs / 1e9

    @property
    def unproved(self) -> bool:
        """Whether a collective of the program has no proof."""
        return any(
            isinstance(operation, Call) and operation.plan.proof is None
            for operation in self.program.operations
        )

    def begin_fs(self, operation: int) -> Ints:
        """Start time of an operation on each of its ranks, in the order of its ``ranks``.

        Needs a run with ``keep``.

        >>> import simcoll
        >>> from simcoll.planning import Compute, Program, Send
        >>> from simcoll.topology import crossbar
        >>> program = Program(2, [Compute([0, 1], 10**9), Send([(0, 1)], 1000, after=[0])])
        >>> result = simcoll.emulate(program, crossbar(2, "1 GB/s", "1 us"), keep=True)
        >>> result.begin_fs(1).tolist()
        [1000000000, 1000000000]
        """
        return self._of(operation)[0]

    def end_fs(self, operation: int) -> Ints:
        """End time of an operation on each of its ranks, in the order of its ``ranks``.

        Needs a run with ``keep``.

        >>> import simcoll
        >>> from simcoll.planning import Compute, Program, Send
        >>> from simcoll.topology import crossbar
        >>> program = Program(2, [Compute([0, 1], 10**9), Send([(0, 1)], 1000, after=[0])])
        >>> result = simcoll.emulate(program, crossbar(2, "1 GB/s", "1 us"), keep=True)
        >>> result.end_fs(1).tolist()
        [3000000000, 3000000000]
        """
        return self._of(operation)[1]

    def _of(self, operation: int) -> tuple[Ints, Ints]:
        count = len(self.program.operations)
        if self.cut is not None:
            raise ConfigError(f"a run that ended early has no times of operations: {self.cut}")
        if self._times is None:
            raise ConfigError(
                "times of operations are kept by emulate(program, topology, keep=True)"
            )
        if not 0 <= operation < count:
            raise ConfigError(
                f"there is no operation {operation}; the program has 0 to {count - 1}"
            )
        none = np.zeros(0, np.int64)
        return self._times[operation].of_ranks() if operation in self._times else (none, none)

    def link_bytes(self) -> Ints:
        """Bytes that each link of the topology carried.

        >>> import simcoll
        >>> from simcoll.planning import Compute, Program, Send
        >>> from simcoll.topology import crossbar
        >>> program = Program(2, [Compute([0, 1], 10**9), Send([(0, 1)], 1000, after=[0])])
        >>> result = simcoll.emulate(program, crossbar(2, "1 GB/s", "1 us"), keep=True)
        >>> result.link_bytes().tolist()
        [1000, 0, 0, 1000]
        """
        carried = np.zeros(self.topology.nlinks, np.int64)
        comes: dict[int, int] = {}
        lowered = lower(self.program, self.topology)
        for group, times in lowered.stream:
            for step in group:
                comes[id(step)] = comes.get(id(step), 0) + times
        for group, _ in lowered.stream:
            for step in group:
                times, links = comes.pop(id(step), 0), step.shape.links
                used = (links >= 0) & (links < len(carried))
                if times and used.any():
                    wire = np.broadcast_to(step.wire[:, None], links.shape)
                    np.add.at(carried, links[used], times * wire[used])
        return carried

    def utilization(self) -> Floats:
        """Mean share of the capacity of each link of the topology that was used over the run.

        >>> import simcoll
        >>> from simcoll.planning import Compute, Program, Send
        >>> from simcoll.topology import crossbar
        >>> program = Program(2, [Compute([0, 1], 10**9), Send([(0, 1)], 1000, after=[0])])
        >>> result = simcoll.emulate(program, crossbar(2, "1 GB/s", "1 us"), keep=True)
        >>> result.utilization().round(3).tolist()
        [0.333, 0.0, 0.0, 0.333]
        """
        largest = self.topology.link_capacity_uBps.astype(np.float64) * self.time_fs
        return self.link_bytes() * 1e21 / np.maximum(largest, 1)

    def __repr__(self) -> str:
        title = f"{self.program}{', unproved' if self.unproved else ''}"
        return printable(
            f"<ProgramResult: {title}, {format_time(self.time_fs)} on {self.topology.name}>"
        )
