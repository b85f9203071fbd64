"""Sweeps: a collective over sizes, algorithms and protocols on one topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simcoll.algorithms import ALGORITHMS, find_algorithm
from simcoll.algorithms import schedule as make_schedule
from simcoll.binding import bind
from simcoll.core.collective import KINDS, Collective
from simcoll.core.protocol import PROTOCOL_NAMES, nccl, protocol
from simcoll.core.reduction import parse_dtype
from simcoll.emulator import emulate
from simcoll.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simcoll.core.protocol import Protocol
    from simcoll.core.schedule import Schedule
    from simcoll.emulator import Result
    from simcoll.emulator.engine import Observer
    from simcoll.topology import Topology

__all__ = [
    "Choice",
    "Row",
    "Sweep",
    "best_rows",
    "bound_rows",
    "build",
    "costs",
    "counts_for",
    "parse_choice",
    "prepare",
    "run_one",
    "run_sweep",
    "size_ladder",
]

GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
"""GPUs whose constants :func:`simcoll.core.protocol.nccl` knows."""

MAX_CHANNELS = 8
"""Channels that an algorithm gets on a machine with boxes when none are asked for: enough for every NIC of an eight-GPU
box.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm with parameters, such as ``ring:channels=4``."""

    algorithm: str
    params: tuple[tuple[str, int | tuple[int, ...]], ...] = ()

    def __str__(self) -> str:
        shown = [(name, value if isinstance(value, tuple) else (value,)) for name, value in self.params]
        return ":".join([self.algorithm, *(f"{name}={'x'.join(map(str, value))}" for name, value in shown)])


def parse_choice(text: str) -> Choice:
    """An algorithm and its parameters from text.

    Raises
    ------
    ConfigError
        When a parameter is not a name and a whole number, or several joined by ``x``.

    Examples
    --------
    >>> parse_choice("ring:channels=4:pieces=2")
    Choice(algorithm='ring', params=(('channels', 4), ('pieces', 2)))
    >>> parse_choice("torus:dims=4x4").params
    (('dims', (4, 4)),)
    """
    name, *parts = text.strip().split(":")
    params: list[tuple[str, int | tuple[int, ...]]] = []
    for part in parts:
        key, _, value = part.partition("=")
        numbers = value.split("x")
        if not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers):
            example = "write for example 'ring:channels=4' or 'torus:dims=4x4'"
            raise ConfigError(f"cannot read {part!r} in algorithm {text!r}; {example}")
        if any(key == known for known, _ in params):
            raise ConfigError(f"parameter {key!r} is given twice in algorithm {text!r}")
        whole = tuple(int(number) for number in numbers)
        params.append((key, whole if len(whole) > 1 or key == "dims" else whole[0]))
    return Choice(name, tuple(params))


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to run.

    Attributes
    ----------
    collective, root, dtype, op
        The collective; ``root`` only where there is one.
    sizes
        Bytes, as nccl-tests counts them: the larger of a rank's input and output.
    choices, protocols
        Every algorithm is run with every protocol.
    check_up_to
        Largest size in bytes for which real data moves and is compared with the definition.
    """

    collective: str
    sizes: tuple[int, ...]
    choices: tuple[Choice, ...]
    protocols: tuple[str, ...] = ("ideal",)
    dtype: str = "float32"
    op: str = "sum"
    root: int | None = None
    check_up_to: int = 2**16

    def __post_init__(self) -> None:
        for name in ("choices", "protocols"):  # what is named twice runs once
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))


@dataclass(frozen=True, slots=True)
class Row:
    """One run: an algorithm and protocol at one size. ``wall_s``, the seconds that it took here, goes into no file."""

    size_bytes: int
    count: int
    choice: str
    schedule: str
    protocol: str
    proof: str
    time_fs: int
    algbw: float
    busbw: float
    wrong: int | None
    bound_fs: int
    bound_kind: str
    bottleneck: str
    messages: int
    trace_hash: str
    engine: str
    path: str
    classes: int | None
    wall_s: float

    @property
    def headroom(self) -> float | None:
        """Time over the lower bound of its own protocol; None when the bound is 0."""
        return self.time_fs / self.bound_fs if self.bound_fs else None


def size_ladder(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Sizes from ``begin`` up to ``end``, each ``factor`` times the one before.

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
    """Element counts, as passed to the collective, that come closest to the sizes from below; at least 1, each once.

    >>> counts_for("all_gather", [8, 1024], nranks=16, itemsize=4)
    [1, 16]
    """
    if kind == "barrier":
        return [0]
    slots = max(KINDS[kind].input_slots(nranks), KINDS[kind].output_slots(nranks))
    return list(dict.fromkeys(max(size // (slots * itemsize), 1) for size in sizes))


def _box(topology: Topology) -> int | None:
    """Ranks per box where all boxes are alike and consecutive, else None."""
    member = topology.groups.get("box")
    if member is None:
        return None
    size = int((member == member[0]).sum())
    regular = len(member) % size == 0 and np.array_equal(member, np.arange(len(member)) // size)
    return size if regular else None


def build(sweep: Sweep, choice: Choice, topology: Topology) -> Schedule:
    """The schedule of a choice; ``box``, ``channels`` and ``topology`` follow the topology where they are not given."""
    found = find_algorithm(sweep.collective, choice.algorithm)
    if found.topologies == "switch" and "switch_reduce" not in topology.traits:
        raise ConfigError(f"{choice.algorithm} needs switches that reduce; those of {topology.name} do not")
    params: dict[str, Any] = dict(choice.params)
    box = _box(topology)
    if box is not None and box > 1:
        if "box" in found.params and (box < topology.nranks or choice.algorithm == "hierarchical"):
            params.setdefault("box", box)
        if "channels" in found.params:
            params.setdefault("channels", min(box, MAX_CHANNELS))
    if "topology" in found.params:
        params.setdefault("topology", topology)
    n = topology.nranks
    # A send_recv is the shift by one rank that nccl-tests measures.
    pairs = tuple((rank, (rank + 1) % n) for rank in range(n)) if sweep.collective == "send_recv" else ()
    return make_schedule(Collective(sweep.collective, n, sweep.root, pairs), choice.algorithm, **params)


def prepare(sweep: Sweep, topology: Topology, built: Sequence[Schedule] | None = None) -> list[Schedule]:
    """The proved schedule of every choice, once it is certain that the whole sweep can run; ``built``: the schedules, if they are
    there already.

    Raises
    ------
    ConfigError
        For choices, sizes, protocols, types or reductions that are unknown or do not fit the collective or topology.
    ScheduleError
        For a schedule that does not implement the collective.
    """
    Collective(sweep.collective, topology.nranks, root=sweep.root)
    if not sweep.choices:
        served = sorted({found.collective for found in ALGORITHMS})
        raise ConfigError(f"no algorithm to run {sweep.collective} with; there are some for {', '.join(served)}")
    schedules = list(built or (build(sweep, choice, topology) for choice in sweep.choices))
    for schedule in schedules:
        for name in sweep.protocols:
            costs(sweep, schedule, name, topology)
    largest = counts_for(sweep.collective, sweep.sizes[-1:], topology.nranks, parse_dtype(sweep.dtype).itemsize)[0]
    for schedule in schedules:
        bind(schedule, largest, sweep.dtype, sweep.op)
    return schedules


def costs(sweep: Sweep, schedule: Schedule, name: str, topology: Topology) -> Protocol:
    """The constants of a protocol for a schedule on the GPUs of a topology.

    Raises
    ------
    ConfigError
        For an unknown protocol, or NCCL's on GPUs that NCCL has no constants for.
    """
    if name not in PROTOCOL_NAMES:
        raise ConfigError(f"unknown protocol {name!r}; {nearest(name, PROTOCOL_NAMES)}")
    if name == "ideal":
        return protocol(name)
    generation = topology.traits.get("generation", "hopper")
    if generation not in GENERATIONS:
        raise ConfigError(
            f"protocol {name!r} is NCCL's, which knows {', '.join(GENERATIONS)}; "
            f"topology {topology.name!r} has GPUs of generation {generation!r}. Use 'ideal'"
        )
    return nccl(name, pattern=find_algorithm(sweep.collective, schedule.name).pattern, generation=generation)


def run_one(
    sweep: Sweep, schedule: Schedule, name: str, count: int, topology: Topology, observer: Observer | None = None
) -> Result:
    """Emulate one schedule at one size under one protocol."""
    plan = bind(schedule, count, sweep.dtype, sweep.op, protocol=costs(sweep, schedule, name, topology))
    data = "exact" if plan.total_bytes <= sweep.check_up_to else "none"
    return emulate(plan, topology, data=data, observer=observer)


def run_sweep(
    sweep: Sweep,
    schedules: Sequence[Schedule],
    topology: Topology,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Row]:
    """Run what was prepared, sizes outermost. ``progress`` is told (runs done, runs in all, what comes next)."""
    counts = counts_for(sweep.collective, sweep.sizes, topology.nranks, parse_dtype(sweep.dtype).itemsize)
    total = len(counts) * len(schedules) * len(sweep.protocols)
    rows: list[Row] = []
    for count in counts:
        for choice, schedule in zip(sweep.choices, schedules, strict=True):
            for name in sweep.protocols:
                if progress is not None:
                    progress(len(rows), total, f"{choice} {name}")
                rows.append(_row(choice, count, run_one(sweep, schedule, name, count, topology)))
    return rows


def _row(choice: Choice, count: int, result: Result) -> Row:
    bound = result.bound
    return Row(
        size_bytes=result.total_bytes,
        count=count,
        choice=str(choice),
        schedule=result.schedule,
        protocol=result.protocol,
        proof=result.proof,
        time_fs=result.time_fs,
        algbw=result.algbw if result.time_fs else 0.0,  # one rank takes no time: no bandwidth to speak of
        busbw=result.busbw if result.time_fs else 0.0,
        wrong=result.wrong,
        bound_fs=bound.time_fs if bound else 0,
        bound_kind=bound.kind if bound else "",
        bottleneck=result.bottleneck,
        messages=result.messages,
        trace_hash=result.trace_hash,
        engine=result.engine,
        path=result.path,
        classes=result.classes,
        wall_s=result.wall_s,
    )


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """The quickest run of every size, in order of size; of equals the first given."""
    best: dict[int, Row] = {}
    for row in rows:
        if row.count not in best or row.time_fs < best[row.count].time_fs:
            best[row.count] = row
    return list(best.values())


def bound_rows(rows: Sequence[Row]) -> list[Row]:
    """For every size the run with the least lower bound.

    Protocols have different latencies, and a bound must hold for all of them.
    """
    least: dict[int, Row] = {}
    for row in rows:
        if row.count not in least or row.bound_fs < least[row.count].bound_fs:
            least[row.count] = row
    return list(least.values())
