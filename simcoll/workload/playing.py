"""Play a workload: tier 2 emulates everything together, tier 1 plays classes with collectives timed
once each.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict, cast, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from simcoll.core.collector import collector_paused
from simcoll.emulator.engine_choice import MOST_HASHED, few_classes_pay
from simcoll.emulator.programs.operations import rank_array
from simcoll.emulator.programs.program import Program
from simcoll.emulator.programs.program_request import KeptTimes, ProgramRequest
from simcoll.emulator.programs.resources import call_of
from simcoll.emulator.programs.run import play_request
from simcoll.emulator.steps.step_columns import summary
from simcoll.errors import ConfigError
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.prediction_cache import SPANS, recall, remember
from simcoll.notebook_forms import data_frame, shows_facts
from simcoll.topology import Topology
from simcoll.units import format_time
from simcoll.workload.accounting import (
    AxisTime,
    CallTime,
    OperationCounts,
    axes_of,
    breakdown,
    without_axes,
)
from simcoll.workload.class_clock import Clock, Span, lost_fs, play_classes
from simcoll.workload.cycle_times import time_with_all_turns
from simcoll.workload.lower import WorkloadPlans, lower
from simcoll.workload.repetitions import Shortened, leave_out_turns
from simcoll.workload.run_content import contents_of, run_key
from simcoll.workload.stream_names import LAUNCHES
from simcoll.workload.timing import IsolatedTimes, WorkloadTimes
from simcoll.workload.traffic import Traffic, alike
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    Operation,
    Rules,
    SendOperation,
    Workload,
    call_inside,
    map_operations,
    operations_with_counts,
    unrolled_count,
)

__all__ = [
    "WorkloadResult",
    "WorkloadRun",
    "alone_on",
    "message_count",
    "play_workload",
    "run_workload",
    "slow_down",
    "tier_for",
]


MOST_SPANS = 200_000
"""Limit of a workload of which all operations are recorded: a timeline of 20 MB."""


MOST_MESSAGES = 20_000
"""Limit of a workload that is emulated together unless asked: up to 4 CPU s at 40,000, and as much
again for each group of which the exposed time is found.
"""

FEW_OPERATIONS = 1_000
"""Below this number of operations, a workload is emulated with all turns of its cycles: it takes
0.1 s, as long as to find them and to emulate some.
"""
LEAST_GAIN = 3
"""Turns of cycles are left out where at most one operation of so many remains: to find them, and to
keep the times of operations, takes as long as to play some hundred operations more.
"""


def message_count(workload: Workload) -> int:
    """Messages of a workload if every rank sends one to each other rank of its groups."""
    total = 0
    for operation, count in operations_with_counts(workload.operations):
        if isinstance(operation, SendOperation):
            total += count * len(workload.classes[operation.source])
        elif isinstance(operation, CallOperation):
            total += count * _messages_of(workload, operation)
        else:
            for inner in operation.inside:
                call = call_inside(operation, inner)
                total += count * inner.count * _messages_of(workload, call)
    return total


def _messages_of(workload: Workload, call: CallOperation) -> int:
    if not call.moves:
        return 0
    groups, members = map(int, workload.groups_of(call).shape)
    return groups * (len(call.pairs) or members * (members - 1))


def tier_for(workload: Workload) -> int:
    """The tier in which a workload is played unless asked: 2, or 1 if that takes long.

    >>> workload = Workload(2, {"all": np.arange(2)}, {"dp": np.array([[0, 1]])}, ())
    >>> tier_for(workload)
    2
    """
    return 1 if message_count(workload) > MOST_MESSAGES else 2


@lru_cache(maxsize=64)
def alone_on(
    topology: Topology,
    *,
    uniform: bool,
    rules: Rules | None = None,
    calibration: Calibration | None = None,
) -> IsolatedTimes:
    """Times of single operations on a topology, shared by all steps on it."""
    return IsolatedTimes(WorkloadPlans(topology, uniform, rules, calibration))


class _CachedTotals(TypedDict):
    """What a cached run has beside its clock."""

    classes: int
    path: str
    trace_hash: str
    messages: int


_TOTALS = get_type_hints(_CachedTotals)
_FORM = {"time_fs": int, **_TOTALS}
_FORM_WITH_SPANS = {**_FORM, "spans": list}
MOST_CACHED_SPANS = 1 << 14
"""Up to 1 MB of a run is cached."""


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """The clock of a played workload, the engine used, and the messages that it played."""

    clock: Clock
    classes: int = 0
    path: str = "classes with memoised collectives"
    trace_hash: str = ""
    messages: int = 0


def play_workload(
    workload: Workload,
    alone: IsolatedTimes,
    *,
    tier: int = 2,
    slow: Mapping[int, float] | None = None,
    spans: bool = True,
    hashed: bool = True,
) -> WorkloadRun:
    """Play any workload on a topology; ``hashed=False``: its trace hash is not needed.

    Raises
    ------
    ConfigError
        For an unknown tier.
    """
    if tier not in {1, 2}:
        raise ConfigError(
            f"tier {tier!r}: expected 1 (collectives timed once each) or 2 (everything emulated "
            "together)"
        )
    for rank, factor in (slow or {}).items():
        if not 1 <= factor < math.inf:
            raise ConfigError(f"slow: rank {rank}: expected a factor of at least 1, got {factor}")
    times = WorkloadTimes(workload, alone)
    if tier == 1:
        changed = map_operations(
            workload.operations, lambda operation: slow_down(workload, operation, slow or {})
        )
        clock = play_classes(replace(workload, operations=changed), times, spans=spans)
        text = repr([(span.operation, span.on, span.begin_fs, span.end_fs) for span in clock.spans])
        return WorkloadRun(clock, trace_hash=hashlib.sha256(text.encode()).hexdigest()[:16])
    key = run_key(workload, alone.plans, slow or {})
    cached = _recall_run(key, workload, spans=spans)
    if cached is not None and (cached.trace_hash or not hashed or cached.messages > MOST_HASHED):
        return cached
    run = _play_together(workload, times, slow, spans=spans, hashed=hashed)
    _remember_run(key, run, spans=spans)
    return run


class _SpanRow(NamedTuple):
    """A span of a cached run; its stream is that of its operation."""

    operation: int
    on: str
    begin_fs: int
    end_fs: int


def _recall_run(key: str, workload: Workload, *, spans: bool) -> WorkloadRun | None:
    """The run that is cached under a key."""
    stored = recall(key, _FORM_WITH_SPANS, SPANS) if spans else recall(key, _FORM)
    if stored is None:
        return None
    time_fs, operations = cast("int", stored.pop("time_fs")), workload.unroll()
    rows = msgspec.convert(stored.pop("spans", []), list[_SpanRow])
    stretches = [
        Span(row.operation, row.on, operations[row.operation].stream, row.begin_fs, row.end_fs)
        for row in rows
    ]
    clock = Clock(time_fs, tuple(_in_order(workload, stretches)))
    return WorkloadRun(clock, **cast("_CachedTotals", stored))


def _remember_run(key: str, run: WorkloadRun, *, spans: bool) -> None:
    """Cache a run, unless it has many spans."""
    fields = {"time_fs": run.clock.time_fs, **{name: getattr(run, name) for name in _TOTALS}}
    if not spans:
        remember(key, fields)
    elif len(run.clock.spans) <= MOST_CACHED_SPANS:
        rows = [
            _SpanRow(span.operation, span.on, span.begin_fs, span.end_fs)
            for span in run.clock.spans
        ]
        remember(key, {**fields, "spans": rows}, SPANS)


def _in_order(workload: Workload, spans: Sequence[Span]) -> list[Span]:
    """Spans in the order of operations and classes, which a run with the same key may have in
    another order.
    """
    place = {name: number for number, name in enumerate(workload.classes)}
    return sorted(spans, key=lambda span: (span.operation, place[span.on]))


def _play_together(
    workload: Workload,
    times: WorkloadTimes,
    slow: Mapping[int, float] | None,
    *,
    spans: bool,
    hashed: bool,
) -> WorkloadRun:
    """Emulate everything together."""
    alone = times.alone
    keep: KeptTimes = "operations" if spans else False
    with collector_paused():  # which takes a fifth of the time
        waits, lost = _waits(workload, times), _lost_times(workload, times)
        if not spans:
            run = _play_few_turns(workload, times, waits, lost, slow, hashed=hashed)
            if run is not None:
                return run
        program, places = lower(workload, alone.plans, waits, slow=slow, lost=lost)
        result = play_request(ProgramRequest(program, alone.topology, keep=keep, hashed=hashed))
    operations = workload.unroll()
    times_of: dict[tuple[int, str], tuple[int, int]] = {}
    members_of: dict[tuple[int, str], NDArray[np.int64]] = {}
    for number, operation in enumerate(program.operations) if spans else ():
        place = places[number]
        begins, ends = result.begin_fs(number), result.end_fs(number)
        ranks = rank_array(operation)  # the same object for many operations
        for name in workload.classes_of(operations[place]):
            members = members_of.get((id(ranks), name))
            if members is None:
                members = np.flatnonzero(np.isin(ranks.reshape(-1), workload.classes[name]))
                members_of[id(ranks), name] = members
            if members.size:
                begin, end = int(begins[members].min()), int(ends[members].max())
                earlier = times_of.get((place, name), (begin, end))
                times_of[place, name] = (min(begin, earlier[0]), max(end, earlier[1]))
    stretches = []
    for (place, name), (first_fs, end_fs) in times_of.items():
        origin, begin_fs = operations[place], first_fs
        if isinstance(origin, SendOperation):  # it begins when both ends are there
            begin_fs = max(
                times_of[place, end_class][0] for end_class in (origin.source, origin.target)
            )
        stretches.append(Span(place, name, origin.stream, begin_fs, end_fs))
    return WorkloadRun(
        Clock(result.time_fs, tuple(_in_order(workload, stretches))),
        result.classes or 0,
        result.path,
        result.trace_hash,
        result.messages,
    )


def _play_few_turns(
    workload: Workload,
    times: WorkloadTimes,
    waits: Mapping[tuple[str, Inside], int],
    lost: Mapping[tuple[str, Inside], int],
    slow: Mapping[int, float] | None,
    *,
    hashed: bool,
) -> WorkloadRun | None:
    """Emulate a few turns of the cycles of a workload; ``None`` where it has few of them, where the
    state of one does not recur, and where the trace hash is needed, which has all messages.
    """
    operations, plans = workload.unroll(), times.alone.plans
    # Beside a slow rank, the others are in a collective at almost all times.
    if len(operations) < FEW_OPERATIONS or slow:
        return None
    order = _by_begin(workload, times) if len(workload.classes) > 1 else range(len(operations))
    operations = tuple(operations[number] for number in order)
    place = dict(zip(order, range(len(operations)), strict=True))
    contents = contents_of(workload)
    short = leave_out_turns(
        [
            contents[number]._replace(needs=[place[earlier] for earlier in contents[number].needs])
            for number in order
        ]
    )
    if LEAST_GAIN * len(short.operations) > len(operations):
        return None
    remaining = tuple(
        msgspec.structs.replace(
            operations[number], after=tuple(operations[earlier].id for earlier in needed)
        )
        for number, needed in zip(short.operations.tolist(), short.needs, strict=True)
    )
    part = workload.with_operations(remaining)
    program, places = lower(part, plans, waits, slow=slow, lost=lost)
    messages = _messages_of_all(program, short, places)
    if hashed and messages <= MOST_HASHED:
        return None
    classes = None if hashed else True
    request = ProgramRequest(
        program, plans.topology, keep="operations", hashed=False, quotient=classes
    )
    rows = request.timed_program
    # A run whose classes do not pay has a hash of all messages.
    if rows.jittered or (hashed and not few_classes_pay(rows.distinct, rows.rows)):
        return None
    result = play_request(request)
    if hashed and result.classes is None:
        return None
    time_fs = time_with_all_turns(short, places, result)
    if time_fs is None:
        return None
    path = f"{result.path}; {len(remaining)} of {len(operations)} operations, which recur"
    return WorkloadRun(Clock(time_fs, ()), result.classes or 0, path, "", messages)


def _by_begin(workload: Workload, times: WorkloadTimes) -> list[int]:
    """The numbers of operations by when they begin in tier 1, so that what the stages of a pipeline
    do at a time recurs together. Streams and dependencies keep their order.
    """
    operations, contents = workload.unroll(), contents_of(workload)
    begins = [0] * len(operations)
    for span in play_classes(workload, times).spans:
        begins[span.operation] = max(begins[span.operation], span.begin_fs)
    latest: dict[tuple[str, str], int] = {}
    for number, operation in enumerate(operations):
        streams = [(name, operation.stream) for name in workload.classes_of(operation)]
        earlier = [begins[needed] for needed in contents[number].needs]
        earlier += [latest.get(stream, 0) for stream in streams]
        begins[number] = max(begins[number], *earlier)
        latest |= dict.fromkeys(streams, begins[number])
    return sorted(range(len(begins)), key=begins.__getitem__)


def _messages_of_all(program: Program, short: Shortened, places: Sequence[int]) -> int:
    """The messages of a workload, by those of the program of a shortened one: operations with the
    same content have as many.
    """
    counts = [
        operation.ranks.size
        if (call := call_of(operation)) is None
        else len(call.groups) * summary(call.plan).messages
        for operation in program.operations
    ]
    contents = short.content[short.operations]
    messages = np.bincount(contents[list(places)], counts, len(contents)).astype(np.int64)
    times, remaining = np.bincount(short.content), np.bincount(contents)
    return int((messages[: len(times)] // remaining * times).sum())


def _waits(workload: Workload, times: WorkloadTimes) -> dict[tuple[str, Inside], int]:
    """Collectives inside computations whose times can be taken from isolated runs.

    This holds if their links carry nothing else and all their ranks finish at once, so that ranks
    stay in lock step.
    """
    traffic = Traffic(workload, times.alone.plans)
    inners: dict[str, dict[Inside, ComputeOperation]] = {}
    for operation, _ in operations_with_counts(workload.operations):
        if isinstance(operation, ComputeOperation):
            for inner in operation.inside:
                inners.setdefault(operation.on, {}).setdefault(inner, operation)
    loads = {
        on: sum((traffic.of(_only(operation, inner)) > 0) * 1 for inner, operation in hosts.items())
        for on, hosts in inners.items()
    }
    concurrent = _concurrent_loads(workload, traffic, list(inners))
    waits: dict[tuple[str, Inside], int] = {}
    for on, inners_of in inners.items():
        elsewhere = concurrent[on] + sum(
            (load > 0) * 1 for class_name, load in loads.items() if class_name != on
        )
        for inner, operation in inners_of.items():
            used = traffic.of(_only(operation, inner)) > 0
            if not (elsewhere[used] > 0).any() and times.together(operation, inner):
                waits[on, inner] = times.inside(operation, inner)
    return waits


def _lost_times(workload: Workload, times: WorkloadTimes) -> dict[tuple[str, Inside], int]:
    """The time that overlapping computations lose to collectives inside them, each lasting as long
    as alone.
    """
    hosts = {
        (operation.on, inner): operation
        for operation, _ in operations_with_counts(workload.operations)
        if isinstance(operation, ComputeOperation)
        for inner in operation.inside
    }
    return {
        key: lost_fs(key[1], times.inside(operation, key[1]))
        for key, operation in hosts.items()
        if key[1].share
    }


def _concurrent_loads(
    workload: Workload, traffic: Traffic, classes: Sequence[str]
) -> dict[str, NDArray[np.int64]]:
    """For each class, the number of calls and sends per link that may run while its computations
    wait for collectives.

    A call of the class itself is excluded if it starts after one of its computations and the next
    one starts after the call.
    """
    places: dict[str, list[int]] = {name: [] for name in classes}
    needs: dict[tuple[str, str], int] = {}
    number: dict[str, int] = {}
    operations = workload.unroll()
    for place, operation in enumerate(operations):
        number[operation.id] = place
        if isinstance(operation, ComputeOperation) and operation.on in places:
            if operation.inside:
                places[operation.on].append(place)
            for needed in operation.after:
                needs.setdefault((operation.on, needed), place)
    loads = {name: np.zeros(traffic.plans.topology.nlinks, np.int64) for name in classes}
    loads_added: set[tuple[object, ...]] = set()
    for operation in operations:
        if isinstance(operation, ComputeOperation) or not operation.size_bytes:
            continue
        involved = workload.classes_of(operation)
        for name in classes:
            key = (name, alike(operation))
            if key in loads_added:
                continue
            if name in involved:
                needed_places = [number[needed] for needed in operation.after if needed in number]
                latest = max(
                    (position for position in needed_places if _is_of(operations[position], name)),
                    default=-1,
                )
                last = needs.get((name, operation.id), len(operations))
                if bisect_right(places[name], latest) == bisect_left(places[name], last):
                    continue
            loads_added.add(key)
            loads[name] += traffic.of(operation) > 0
    return loads


def _is_of(operation: Operation, name: str) -> bool:
    return isinstance(operation, ComputeOperation) and operation.on == name


def _only(operation: ComputeOperation, inner: Inside) -> ComputeOperation:
    return msgspec.structs.replace(operation, inside=(inner,))


def slow_down(workload: Workload, operation: Operation, slow: Mapping[int, float]) -> Operation:
    """Slow a computation down to the slowest rank of its class."""
    if not slow or not isinstance(operation, ComputeOperation):
        return operation
    ranks = workload.classes[operation.on]
    factors = [by for rank, by in slow.items() if rank in ranks]
    factor = max(factors if len(factors) == len(ranks) else [*factors, 1.0])
    return msgspec.structs.replace(
        operation, time_fs=int(operation.time_fs * Fraction(str(factor)))
    )


@shows_facts
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WorkloadResult:
    """The time of a workload, and its breakdown.

    Attributes
    ----------
    title, nranks, topology
        Title, number of ranks, and machine.
    tier
        1: collectives timed once each; 2: everything emulated together.
    time_fs
        When the last operation ended.
    compute_fs
        Computation of the busiest class.
    axes
        Communication by group.
    bound_fs, limit
        Lower bound of the time, and what sets it.
    link_use
        Busiest links, with the share of their capacity that is used.
    calls
        Its collectives, each kind and size once, alone, the longest in all first.
    clock
        Start and end of each operation, by class, in the numbers of ``Workload.unroll()``; none
        for more than 200,000 operations.
    path, trace_hash
        Engine, and hash of all times.
    classes
        Classes of messages played; 0 in tier 1.
    """

    title: str
    nranks: int
    topology: str
    tier: int
    time_fs: int
    compute_fs: int
    axes: Mapping[str, AxisTime]
    bound_fs: int
    limit: str
    link_use: tuple[tuple[str, float], ...] = ()
    calls: tuple[CallTime, ...] = ()
    clock: Clock
    path: str = ""
    trace_hash: str = ""
    classes: int = 0

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return self.time_fs / 1e15

    def facts(self) -> list[tuple[str, object]]:
        """Name and value of what a reader sees."""
        title = f"{self.title}: " if self.title else ""
        lines: list[tuple[str, object]] = [
            (
                "run",
                f"{title}{self.nranks} ranks on {self.topology}, {format_time(self.time_fs)}",
            ),
            ("computation", format_time(self.compute_fs)),
        ]
        lines += [
            (
                axis,
                f"{format_time(spent.total_fs)}, {format_time(spent.exposed_fs)} of it exposed",
            )
            for axis, spent in self.axes.items()
        ]
        return [*lines, ("bound", f"{format_time(self.bound_fs)}: {self.limit}")]

    def to_dict(self) -> dict[str, list[Any]]:
        """A row for each group of ranks that communicates, as columns."""
        rows = self.axes.items()
        return {
            "axis": [axis for axis, _ in rows],
            "total_us": [spent.total_fs / 1e9 for _, spent in rows],
            "exposed_us": [spent.exposed_fs / 1e9 for _, spent in rows],
            "bytes": [spent.bytes for _, spent in rows],
        }

    def to_frame(self) -> Any:
        """The same as a ``pandas.DataFrame``; a ConfigError without pandas."""
        return data_frame(self.to_dict())


def run_workload(
    workload: Workload,
    topology: Topology,
    *,
    tier: int = 2,
    exposed: bool = True,
    slow: Mapping[int, float] | None = None,
) -> WorkloadResult:
    """Time a workload.

    Parameters
    ----------
    workload
        The workload, which runs on the first ranks of the topology.
    tier
        1: collectives are timed once each, and the order of operations is played with these times.
        2: everything is emulated together.
    exposed
        Whether to find the exposed time of each group, by playing again without its bytes.
    slow
        Slow-down factors by rank.

    Raises
    ------
    ConfigError
        When the topology has too few ranks, and for an unknown tier.

    Examples
    --------
    >>> import numpy as np
    >>> from simcoll.topology import crossbar
    >>> from simcoll.workload.workload import CallOperation, ComputeOperation, Workload
    >>> workload = Workload(2, {"all": np.arange(2)}, {"dp": np.array([[0, 1]])}, (
    ...     ComputeOperation(id="backward", on="all", time_fs=10**12),
    ...     CallOperation(
    ...         id="gradients", kind="all_reduce", group="dp", size_bytes=2**20,
    ...         after=("backward",),
    ...     ),
    ... ))
    >>> result = run_workload(workload, crossbar(2, "50 GB/s", "1 us"))
    >>> result.time_fs - result.axes["dp"].exposed_fs
    1000000000000
    """
    if workload.nranks > topology.nranks:
        raise ConfigError(
            f"the workload has {workload.nranks} ranks; topology {topology.name!r} has "
            f"{topology.nranks}: ask for more nodes"
        )
    alone = alone_on(topology, uniform=False, rules=workload.rules)

    def play_without(*without: str, spans: bool = False) -> WorkloadRun:
        changed = replace(
            workload,
            operations=map_operations(
                workload.operations, lambda operation: without_axes(operation, without)
            ),
        )
        return play_workload(
            changed if without else workload, alone, tier=tier, spans=spans, slow=slow
        )

    costs = _operation_counts(workload)
    full = play_without(spans=unrolled_count(workload.operations) <= MOST_SPANS)
    time_fs, axes = full.clock.time_fs, axes_of(costs)
    times = WorkloadTimes(workload, alone)
    exposures = {
        axis: time_fs - play_without(axis).clock.time_fs if exposed else 0 for axis in axes
    }
    free = play_without(*axes).clock.time_fs if axes else time_fs
    return WorkloadResult(
        title=workload.title,
        nranks=workload.nranks,
        topology=topology.name,
        tier=tier,
        time_fs=time_fs,
        clock=full.clock,
        path=full.path,
        trace_hash=full.trace_hash,
        classes=full.classes,
        **breakdown(
            costs,
            times,
            exposed_fs=exposures,
            free_fs=free,
            time_fs=max(time_fs, 1),
            order="operations",
        ),
    )


def _operation_counts(workload: Workload) -> OperationCounts:
    """Operations with equal costs, and their counts."""
    examples: dict[tuple[object, ...], Operation] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for operation, count in operations_with_counts(workload.operations):
        key = (
            *alike(operation),
            getattr(operation, "time_fs", 0),
            getattr(operation, "least_fs", 0),
            operation.stream == LAUNCHES,
        )
        examples.setdefault(key, operation)
        counts[key] += count
    return tuple((operation, counts[key]) for key, operation in examples.items())
