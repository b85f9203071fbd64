"""Sweeps: a collective over sizes, algorithms and protocols on one topology."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from simcoll.algorithms import ALGORITHMS
from simcoll.binding import bind
from simcoll.core.collective import KINDS
from simcoll.core.memory_limits import give_back, unrequested_limit
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.reduction import parse_dtype
from simcoll.core.schedule import Schedule
from simcoll.emulator import Result
from simcoll.emulator.events import timeline_of
from simcoll.emulator.reference.ledger import Observer
from simcoll.emulator.request import Request
from simcoll.emulator.run import run_checked
from simcoll.errors import ConfigError
from simcoll.planning.sweeps.disturbance import CALM, RunDisturbance
from simcoll.planning.sweeps.run_conditions import DataKeys, TableKeys
from simcoll.topology import Topology
from simcoll.tuning import Choice, carries, collective_on, costs, schedule_on

__all__ = [
    "DataCheck",
    "PendingCheck",
    "Sweep",
    "SweepRow",
    "best_rows",
    "bound_rows",
    "build",
    "costs_of",
    "counts_for",
    "play",
    "prepare",
    "size_ladder",
]

UNNAMED_BYTES = 1 << 30
"""Limit of the memory of a proof in a table of all algorithms, which as a whole then stays below 2
GB; those that are named have no limit but the machine's.
"""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs of a sweep.

    Attributes
    ----------
    collective, root, dtype, op
        The collective; ``root`` only for rooted ones.
    sizes
        Bytes, as nccl-tests counts them: the larger of a rank's input and output.
    choices, protocols
        Every algorithm is run with every protocol that supports it.
    check_up_to
        Largest size in bytes at which every run moves real data. In any case data is checked once
        per algorithm.
    disturbed
        Disturbances of every run.
    """

    collective: str
    sizes: tuple[int, ...]
    choices: tuple[Choice, ...]
    protocols: tuple[str, ...] = TableKeys.protocols
    dtype: str = DataKeys.dtype
    op: str = DataKeys.op
    root: int | None = DataKeys.root
    check_up_to: int = 0
    disturbed: RunDisturbance = CALM

    def __post_init__(self) -> None:
        for name in ("choices", "protocols"):  # what is named twice runs once
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        object.__setattr__(self, "dtype", parse_dtype(self.dtype).name)

    def protocols_of(self, schedule: Schedule) -> tuple[str, ...]:
        """The protocols under which a schedule can run."""
        return tuple(name for name in self.protocols if carries(name, schedule))


@dataclass(frozen=True, slots=True)
class DataCheck:
    """A check with generated data: number of elements, and of outputs that differ from the
    definition.

    ``reason``: why no data was moved.
    """

    count: int = 0
    wrong: int | None = None
    reason: str = ""


class PendingCheck:
    """The check of a schedule's data, which is made when it is first asked for.

    The checks of a large table take as long as its first runs; its first line needs only that of
    the best one.

    Attributes
    ----------
    made
        The result; ``None`` before.
    """

    __slots__ = ("_make", "made")

    def __init__(self, make: Callable[[], DataCheck]) -> None:
        self._make = make
        self.made: DataCheck | None = None

    def __call__(self) -> DataCheck:
        """The result."""
        if self.made is None:
            self.made = self._make()
        return self.made


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One run of a sweep: the requested algorithm and protocol, the result, and the check of the
    schedule's data.
    """

    choice: Choice
    protocol: str
    result: Result
    check: PendingCheck | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.choice} {self.protocol}"

    @property
    def data_check(self) -> DataCheck | None:
        """The check of the schedule's data, if there is one; it is made if need be."""
        return None if self.check is None else self.check()

    @property
    def size_bytes(self) -> int:
        """Size as nccl-tests counts it."""
        return self.result.total_bytes

    @property
    def count(self) -> int:
        """Elements as passed to the collective."""
        return self.result.plan.count

    @property
    def time_fs(self) -> int:
        """Time of the run, in femtoseconds."""
        return self.result.time_fs

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in bytes per second; 0 where no time passes, as on one rank."""
        return self.result.algbw if self.time_fs else 0.0

    @property
    def busbw(self) -> float:
        """Bus bandwidth in bytes per second; 0 where no time passes."""
        return self.result.busbw if self.time_fs else 0.0

    @property
    def wrong(self) -> int | None:
        """Wrong elements of this run if it moved data, else of the check of its schedule; ``None``
        without either, or when cut off.
        """
        if self.result.cut:
            return None
        checked = self.data_check.wrong if self.data_check else None
        return checked if self.result.wrong is None else self.result.wrong + (checked or 0)

    @property
    def bound_fs(self) -> int:
        """Lower bound under this protocol's latencies, in femtoseconds; 0 without a bound."""
        return self.result.bound.time_fs if self.result.bound else 0


def size_ladder(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Sizes from ``begin`` up to ``end``, each ``factor`` times the previous one.

    >>> size_ladder(8, 100, 2)
    (8, 16, 32, 64)
    """
    if begin < 1:
        raise ConfigError(f"sizes must start at 1 byte or more, got {begin}")
    if end < begin:
        raise ConfigError(f"the largest size, {end} bytes, is below the smallest, {begin}")
    if factor < 2:
        raise ConfigError(f"the factor between sizes must be at least 2, got {factor}")
    sizes = [begin]
    while sizes[-1] * factor <= end:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def counts_for(kind: str, sizes: Sequence[int], nranks: int, itemsize: int) -> list[int]:
    """Element counts, as passed to the collective, closest to the sizes from below; at least 1,
    without duplicates.

    >>> counts_for("all_gather", [8, 1024], nranks=16, itemsize=4)
    [1, 16]
    """
    if kind == "barrier":
        return [0]
    definition = KINDS[kind] if kind in KINDS else collective_on(kind, nranks).spec
    slots = max(definition.input_slots(nranks), definition.output_slots(nranks))
    return list(dict.fromkeys(max(size // (slots * itemsize), 1) for size in sizes))


def build(sweep: Sweep, choice: Choice, topology: Topology) -> Schedule:
    """Build the schedule of a choice on a topology."""
    collective = collective_on(sweep.collective, topology.nranks, sweep.root)
    return schedule_on(collective, choice.algorithm, topology, dict(choice.params))


def prepare(
    sweep: Sweep,
    topology: Topology,
    built: Sequence[Schedule] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    refused: dict[Choice, str] | None = None,
) -> list[Schedule]:
    """Check the whole sweep, then prove the schedule of every choice.

    ``built``: existing schedules. Calls ``progress(proofs done, total proofs, next proof)``. With
    ``refused``, a choice whose proof would need too much is entered there, with the reason, and its
    schedule is not returned: nobody named it, so its proof takes 1 GiB at most, unless no other
    choice is left.

    Raises
    ------
    ConfigError
        For choices, sizes, protocols, types or reductions that are unknown or do not fit the
        collective or topology.
    ScheduleError
        For a schedule that does not implement the collective.
    """
    collective_on(sweep.collective, topology.nranks, sweep.root)
    if not sweep.choices:
        served = sorted({algorithm.collective for algorithm in ALGORITHMS})
        raise ConfigError(
            f"no algorithm to run {sweep.collective} with; there are some for {', '.join(served)}"
        )
    schedules = list(built or (build(sweep, choice, topology) for choice in sweep.choices))
    for schedule in schedules:
        for name in sweep.protocols_of(schedule) or sweep.protocols:
            costs(name, topology, schedule)
    largest = counts_for(
        sweep.collective, sweep.sizes[-1:], topology.nranks, parse_dtype(sweep.dtype).itemsize
    )[0]
    most_bytes = None if refused is None else UNNAMED_BYTES
    proved = _prove(sweep, schedules, largest, progress, refused, most_bytes)
    if not proved and refused:  # better a large one than none
        refused.clear()
        proved = _prove(sweep, schedules, largest, progress, refused, None)
    return proved


def _prove(
    sweep: Sweep,
    schedules: Sequence[Schedule],
    count: int,
    progress: Callable[[int, int, str], None] | None,
    refused: dict[Choice, str] | None,
    most_bytes: int | None,
) -> list[Schedule]:
    """Prove the schedules of all choices, each within a limit of memory if there is one."""
    proved = []
    for number, (choice, schedule) in enumerate(zip(sweep.choices, schedules, strict=True)):
        if progress:
            progress(number, len(schedules), f"the proof of {schedule.title}")
        room = nullcontext() if most_bytes is None else unrequested_limit(most_bytes)
        with note_refusal(choice, refused), room:
            bind(schedule, count, sweep.dtype, sweep.op)
            proved.append(schedule)
        give_back()
    return proved


@contextmanager
def note_refusal(choice: Choice, refused: dict[Choice, str] | None) -> Iterator[None]:
    """Enter a choice that is refused within the block, with the reason; raise it without
    ``refused``.
    """
    try:
        yield
    except (ConfigError, MemoryError) as error:
        if refused is None:
            raise
        refused[choice] = str(error) or "not enough memory"


def costs_of(sweep: Sweep, name: str, topology: Topology, schedule: Schedule) -> Protocol:
    """The constants of a protocol, with the sweep's jitter."""
    protocol, disturbed = costs(name, topology, schedule), sweep.disturbed
    return (
        replace(protocol, jitter_fs=disturbed.jitter_fs, seed=disturbed.seed)
        if disturbed.jitter_fs
        else protocol
    )


def play(
    sweep: Sweep,
    plan: Plan,
    topology: Topology,
    observer: Observer | None = None,
    engine: str = "auto",
    protocols: int = 0,
) -> Result:
    """Emulate one plan, with real data up to the sweep's check size; ``protocols``: under which
    each of its sizes is going to run.
    """
    data = "exact" if 0 < plan.total_bytes <= sweep.check_up_to else "none"
    events = sweep.disturbed.events(topology)
    timeline = timeline_of(events, sweep.disturbed.policy, topology, plan.nranks)
    request = Request(
        plan, topology, observer=observer, timeline=timeline, engine=engine, protocols=protocols
    )
    return run_checked(request, data=data)


def best_rows(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """The fastest run of every size, in order of size; first of equals. Runs that were cut off rank
    last.
    """
    return _least(rows, lambda row: (bool(row.result.cut), row.time_fs))


def bound_rows(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """For each size, the run with the smallest lower bound.

    Protocols have different latencies, and a bound must hold for all of them.
    """
    return _least(rows, lambda row: (row.bound_fs,))


def _least(rows: Sequence[SweepRow], key: Callable[[SweepRow], tuple[int, ...]]) -> list[SweepRow]:
    rows_by_count: dict[int, SweepRow] = {}
    for row in rows:
        if row.count not in rows_by_count or key(row) < key(rows_by_count[row.count]):
            rows_by_count[row.count] = row
    return list(rows_by_count.values())
