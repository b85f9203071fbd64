"""The record of a run, made by the engine that played it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from simcoll.arrays import Array, Ints, MaybeNone
from simcoll.core.collective import bus_factor
from simcoll.core.plan import Plan
from simcoll.emulator.steps.step_columns import PlanSummary
from simcoll.notebook_forms import facts_table
from simcoll.terminal import printable
from simcoll.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from simcoll.bounds import Bound
    from simcoll.emulator.events.cut import Cut


__all__ = ["Result", "compiled_result"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """The record of a run.

    Its arrays (``done_fs``, ``outputs``) belong to the caller, who may change them: nothing reads
    them again. All others that it leads to, such as those of the plan, cannot be changed.

    Attributes
    ----------
    plan
        The plan that ran.
    topology
        Name of the topology.
    engine
        The engine that ran: ``simpy`` or ``fast``.
    path
        Why that engine ran: the reasons for which the ways before it refuse the run, or the
        quotient that stands for all messages. Like everything here but ``wall_s``, it depends on
        the request alone, not on what ran before.
    time_fs
        Completion time of the last transfer; every rank starts at 0.
    steps, messages, bytes_moved
        Steps and transfers of the plan that move anything (including those within a rank), and
        their payload.
    switched
        Whether switches multicast or reduce in the plan.
    trace_hash
        Hash of everything that happened (:mod:`simcoll.emulator.digest`). Empty for a quotient of
        more than a million messages without ``keep``.
    done_fs
        Completion time of each transfer, in schedule order; ``None`` without ``keep``.
    classes
        Number of messages of the quotient that stands for all; ``None`` without one.
    wall_s
        Wall-clock seconds of the run on this machine; part of no hash.
    data
        ``"exact"`` (generated and checked), ``"converted"`` (generated, and converted on its way),
        ``"given"`` (by the caller), or ``"none"``: timing only.
    no_data
        Why ``data="auto"`` moved no data; empty otherwise.
    wrong
        Output elements that differ from the definition of the collective; ``None`` if not checked.
    conversion_error
        For generated data of a schedule that converts on the way: the largest difference of an
        output from the definition, as a share of the largest magnitude there; else ``None``.
    outputs
        Output of every rank (``None`` for a rank without one), if data was moved.
    bound
        Lower bound on the time of any schedule on this topology; ``None`` without ``bound``.
    cut
        Where and why events ended the run early; ``None`` if they did not. ``messages``,
        ``bytes_moved`` and ``trace_hash`` then cover completed transfers only, and ``done_fs`` is
        -1 for the rest.

    Examples
    --------
    >>> import simcoll
    >>> from simcoll.topology import crossbar
    >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=1 << 20)
    >>> result = simcoll.emulate(plan, crossbar(4, "50 GB/s", "1 us"))
    >>> result.kind, result.nranks, result.schedule, result.protocol, result.proof
    ('all_reduce', 4, 'ring(channels=1, pieces=1)', 'ideal', 'full')
    >>> result.total_bytes, result.time_us, result.time, result.messages, result.wrong
    (4194304, 131.82912, 0.00013182912, 28, 0)
    >>> f"{result.algbw:.3g} {result.busbw:.3g} {result.headroom:.3f} {result.bottleneck}"
    '3.18e+10 4.77e+10 1.048 the links of all 4 ranks'
    """

    plan: Plan
    topology: str
    engine: str
    path: str
    time_fs: int
    steps: int
    messages: int
    bytes_moved: int
    switched: bool
    trace_hash: str
    done_fs: Ints | MaybeNone = None
    classes: int | None = None
    wall_s: float = 0.0
    data: Literal["given", "exact", "converted", "none"] = "none"
    no_data: str = ""
    wrong: int | None = None
    conversion_error: float | None = None
    outputs: tuple[Array | MaybeNone, ...] | MaybeNone = None
    bound: Bound | MaybeNone = None
    cut: Cut | None = None

    @property
    def kind(self) -> str:
        """Kind of the collective."""
        return self.plan.collective.kind

    @property
    def nranks(self) -> int:
        """World size."""
        return self.plan.nranks

    @property
    def schedule(self) -> str:
        """Title of the schedule: its name and parameters."""
        return self.plan.schedule.title

    @property
    def protocol(self) -> str:
        """The protocol's name."""
        return self.plan.protocol.name

    @property
    def proof(self) -> str:
        """Kind of the schedule's proof, or ``"unproved"``."""
        return "unproved" if self.plan.proof is None else self.plan.proof.kind

    @property
    def total_bytes(self) -> int:
        """Size of the collective as in nccl-tests: the larger of a rank's input and output."""
        return self.plan.total_bytes

    @property
    def time(self) -> float:
        """Seconds."""
        return self.time_fs / 1e15

    @property
    def time_us(self) -> float:
        """Microseconds."""
        return self.time_fs / 1e9

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth (size over time) in bytes per second.

        0 for no bytes or a cut run, infinite for bytes in no time.
        """
        if not self.total_bytes or self.cut is not None:
            return 0.0
        return self.total_bytes * 1e15 / self.time_fs if self.time_fs else float("inf")

    @property
    def busbw(self) -> float:
        """Bus bandwidth, in bytes per second: algbw times :func:`bus_factor`."""
        factor = bus_factor(self.kind, self.nranks)
        return self.algbw * factor if factor else 0.0

    @property
    def headroom(self) -> float | MaybeNone:
        """Time over lower bound: 1 is optimal. ``None`` without a bound above 0, and for a cut
        run.
        """
        return (
            self.time_fs / self.bound.time_fs
            if self.bound and self.bound.time_fs and not self.cut
            else None
        )

    @property
    def bottleneck(self) -> str:
        """The links that bound the time; empty without a bound."""
        return self.bound.bottleneck if self.bound is not None else ""

    def __repr__(self) -> str:
        return printable(f"<Result: {self.plan}, {format_time(self.time_fs)} on {self.topology}>")

    def __str__(self) -> str:
        return "\n".join(f"{name:<10} {value}" for name, value in self._lines())

    def _repr_html_(self) -> str:
        return facts_table(self._lines())

    def to_dict(self) -> dict[str, Any]:
        """The run as plain values, a row of a table: ``pandas.DataFrame([result.to_dict()])``.

        >>> import simcoll
        >>> from simcoll.topology import crossbar
        >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=1 << 20)
        >>> row = simcoll.emulate(plan, crossbar(4, "50 GB/s", "1 us")).to_dict()
        >>> row["collective"], row["total_bytes"], row["wrong"]
        ('all_reduce', 4194304, 0)
        """
        return {
            "collective": self.plan.collective.name,
            "nranks": self.nranks,
            "schedule": self.schedule,
            "protocol": self.protocol,
            "topology": self.topology,
            "count": self.plan.count,
            "dtype": self.plan.dtype.name,
            "total_bytes": self.total_bytes,
            "time_us": self.time_us,
            "algbw": self.algbw,
            "busbw": self.busbw,
            "bound_us": None if self.bound is None else self.bound.time_fs / 1e9,
            "headroom": self.headroom,
            "bottleneck": self.bottleneck,
            "proof": self.proof,
            "wrong": self.wrong,
            "conversion_error": self.conversion_error,
            "messages": self.messages,
            "bytes_moved": self.bytes_moved,
            "engine": self.engine,
            "trace_hash": self.trace_hash,
            "cut": "" if self.cut is None else str(self.cut),
        }

    def _lines(self) -> list[tuple[str, str]]:
        """The printed lines, as name and value."""
        near = (
            ""
            if self.headroom is None
            else f", {self.headroom:.2f} x the lower bound ({self.bottleneck})"
        )
        fold = "" if self.classes is None else f", {self.classes} of them played for all"
        lines = [
            ("run", f"{self.plan} on {self.topology}"),
            ("time", format_time(self.time_fs) + near if self.cut is None else str(self.cut)),
            (
                "bandwidth",
                (
                    f"{format_size(self.total_bytes)}: algbw {_rate(self.algbw)}, busbw "
                    f"{_rate(self.busbw)}"
                ),
            ),
            ("data", self._data()),
            (
                "messages",
                (
                    f"{self.messages} by engine {self.engine}{fold}; trace "
                    f"{self.trace_hash[:16] or 'not kept'}"
                ),
            ),
        ]
        return [(name, printable(value)) for name, value in lines]

    def _data(self) -> str:
        if self.conversion_error is not None:
            formats = " and ".join(self.plan.schedule.wire_formats)
            share = f"{self.conversion_error:.2%}"
            return f"converted to {formats}; outputs differ by at most {share} of the largest one"
        if self.wrong is None:
            return {"given": "the caller's own"}.get(
                self.data, f"none, timing only{self.no_data and ': '}{self.no_data}"
            )
        return f"exact, {self.wrong} wrong elements"


def compiled_result(
    plan: Plan,
    topology: str,
    seen: PlanSummary,
    time_fs: int,
    trace_hash: str,
    done: Ints | None = None,
    classes: int | None = None,
    *,
    path: str = "",
) -> Result:
    """The record of a run of the compiled loops, by the counts of its plan."""
    moved = sum(seen.bytes_by_op)
    counts = seen.steps, seen.messages, moved, seen.switched
    return Result(plan, topology, "fast", path, time_fs, *counts, trace_hash, done, classes)


def _rate(rate: float) -> str:
    return "unlimited" if rate == float("inf") else format_rate(round(rate * 1e6))
