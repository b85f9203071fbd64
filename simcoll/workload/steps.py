"""One training step, timed: in tier 2 everything on the emulator together, in tier 1 collectives once each and the pipeline played.

What an axis exposes is found by playing again without its bytes: an operation without bytes takes no time and only orders.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from simcoll.emulator.programs import emulate_program
from simcoll.errors import ConfigError
from simcoll.workload.lower import lower
from simcoll.workload.memory import memory_by_stage
from simcoll.workload.result import AxisTime, StepResult
from simcoll.workload.timeline import Clock, Span, play_classes
from simcoll.workload.timing import Alone, WorkloadTimes
from simcoll.workload.traffic import Traffic, alike
from simcoll.workload.training import FLOPS_FORMULA, training_step
from simcoll.workload.workload import Call, Compute, Send

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from simcoll.topology import Topology
    from simcoll.workload.design import Design
    from simcoll.workload.workload import Inside, Operation, Workload

__all__ = ["Step", "play_workload", "step"]

NEARLY_FULL = 0.85
"""Share of the memory beyond which allocators start to defragment, and times are longer than computed."""


def step(design: Design, *, tier: int = 2, exposed: bool = True) -> StepResult:
    """Time one training step.

    Parameters
    ----------
    tier
        1: collectives are timed once each, with all groups of the axis, and the pipeline is played with these times. 2: everything is
        emulated together, so that operations that share links slow each other down.
    exposed
        Whether the exposed time of every axis is found, by playing again without it.

    Raises
    ------
    ConfigError
        For an unknown tier.
    """
    return Step(design).result(tier=tier, exposed=exposed)


@dataclass(eq=False)
class Step:
    """A design with its workload, and what has been found about them."""

    design: Design
    workload: Workload = field(init=False)
    alone: Alone = field(init=False)

    def __post_init__(self) -> None:
        self.workload = training_step(self.design)
        self.alone = alone_on(self.design.topology, alike=not self.design.cluster.degraded)

    def clock(self, *, tier: int, without: Collection[str] = (), spans: bool = True) -> Played:
        """The step on a clock; ``without``: axes that move no bytes."""
        return play_workload(
            _without(self.workload, without), self.alone, tier=tier, slow=self.design.slow, spans=spans
        )

    def result(self, *, tier: int = 2, exposed: bool = True) -> StepResult:
        """The result of the step."""
        design, workload = self.design, self.workload
        played = self.clock(tier=tier, spans=False)
        times = WorkloadTimes(workload, self.alone)
        axes = _axes(workload)
        free = self.clock(tier=1, without=axes).clock.time_fs
        computed = _computed(workload)
        found = {
            axis: AxisTime(
                _busy(workload, times, axis),
                played.clock.time_fs - self.clock(tier=tier, without=(axis,), spans=False).clock.time_fs
                if exposed
                else 0,
                _given(workload, axis),
            )
            for axis in axes
        }
        use, bound = self._links(played.clock.time_fs)
        memory = memory_by_stage(design)
        limit = "computation and the order of the pipeline" if free >= bound[0] else f"link {bound[1]}"
        return StepResult(
            title=design.title,
            design_hash=design.hash,
            calibration=design.calibration.state,
            tier=tier,
            time_fs=played.clock.time_fs,
            tokens=design.tokens,
            nranks=design.mesh.nranks,
            compute_fs=computed,
            bubble_fs=max(0, free - computed),
            axes=found,
            memory=memory,
            memory_limit=design.memory_limit,
            model_flops=workload.model_flops,
            hardware_flops=workload.hardware_flops,
            peak_flops=design.gpu.peak(design.dtype) * design.mesh.nranks,
            flops_formula=FLOPS_FORMULA,
            bound_fs=max(free, bound[0]),
            limit=limit,
            link_use=use,
            classes=played.classes,
            path=played.path,
            trace_hash=played.trace_hash,
            notes=_notes(design, tier),
        )

    def _links(self, time_fs: int) -> tuple[tuple[tuple[str, float], ...], tuple[int, str]]:
        """The busiest links, and the time that the busiest needs for its bytes alone."""
        topology = self.design.topology
        carried = Traffic(self.workload, self.alone.plans).total()
        needs = carried * 1e21 / topology.link_capacity_uBps
        order = np.argsort(-needs, kind="stable")
        kinds: dict[int, int] = {}
        for link in order.tolist():
            kinds.setdefault(int(topology.link_kind[link]), link)
        use = tuple(
            (topology.link_name(link), float(needs[link] / time_fs)) for link in kinds.values() if carried[link]
        )
        most = int(order[0]) if len(order) else 0
        if not carried.any():
            return (), (0, "")
        return use, (int(carried[most]) * 10**21 // int(topology.link_capacity_uBps[most]), topology.link_name(most))


@lru_cache(maxsize=64)
def alone_on(topology: Topology, *, alike: bool) -> Alone:
    """Times of operations alone on a topology, shared by all steps on it."""
    return Alone(topology, alike)


@dataclass(frozen=True, slots=True)
class Played:
    """A workload on a clock, and how that was found."""

    clock: Clock
    classes: int = 0
    path: str = "classes with memoised collectives"
    trace_hash: str = ""


def play_workload(
    workload: Workload, alone: Alone, *, tier: int = 2, slow: dict[int, float] | None = None, spans: bool = True
) -> Played:
    """Play any workload on a topology.

    Raises
    ------
    ConfigError
        For an unknown tier.
    """
    if tier not in {1, 2}:
        raise ConfigError(
            f"tier {tier!r}: expected 1 (collectives timed once each) or 2 (everything emulated together)"
        )
    times = WorkloadTimes(workload, alone)
    if tier == 1:
        clock = play_classes(_slowed(workload, slow or {}), times)
        text = repr([(span.operation, span.on, span.begin_fs, span.end_fs) for span in clock.spans])
        return Played(clock, trace_hash=hashlib.sha256(text.encode()).hexdigest()[:16])
    program, places = lower(workload, alone.plans, _waits(workload, times), slow=slow)
    result = emulate_program(program, alone.topology, data="none", keep=spans)
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for number, operation in enumerate(program.operations) if spans else ():
        place = places[number]
        begins, ends = result.begin_fs(number), result.end_fs(number)
        ranks = operation.ranks
        for name in workload.involved(workload.operations[place]):
            here = np.isin(ranks, workload.classes[name])
            if here.any():
                begin, end = int(begins[here].min()), int(ends[here].max())
                before = found.get((place, name), (begin, end))
                found[place, name] = (min(begin, before[0]), max(end, before[1]))
    made = []
    for place, name in sorted(found, key=lambda key: (key[0], list(workload.classes).index(key[1]))):
        asked = workload.operations[place]
        begin, end = found[place, name]
        if isinstance(asked, Send):  # it begins when both ends are there
            begin = max(found[place, each][0] for each in (asked.source, asked.target))
        made.append(Span(place, name, asked.stream, begin, end))
    return Played(Clock(result.time_fs, tuple(made)), result.classes or 0, result.path, result.trace_hash)


def _waits(workload: Workload, times: WorkloadTimes) -> dict[tuple[str, Inside], int]:
    """Collectives inside computations whose times can be taken from playing them alone.

    That is so where their links carry nothing else, and all ranks of each are done at once: then ranks that meet in lock step stay so.
    """
    traffic = Traffic(workload, times.alone.plans)
    inside: dict[str, dict[Inside, Compute]] = {}
    for operation in workload.operations:
        if isinstance(operation, Compute):
            for inner in operation.inside:
                inside.setdefault(operation.on, {}).setdefault(inner, operation)
    loads = {
        on: sum((traffic.of(_only(operation, inner)) > 0) * 1 for inner, operation in each.items())
        for on, each in inside.items()
    }
    beside = _beside(workload, traffic, list(inside))
    waits: dict[tuple[str, Inside], int] = {}
    for on, each in inside.items():
        elsewhere = beside[on] + sum((load > 0) * 1 for other, load in loads.items() if other != on)
        for inner, operation in each.items():
            used = traffic.of(_only(operation, inner)) > 0
            if not (elsewhere[used] > 0).any() and times.together(operation, inner):
                waits[on, inner] = times.inside(operation, inner)
    return waits


def _beside(workload: Workload, traffic: Traffic, classes: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """For every class, how many kinds of calls and sends use each link while a computation of it may wait for collectives.

    A call of the class itself does not, when it begins after one of its computations and the next one begins after it.
    """
    places: dict[str, list[int]] = {name: [] for name in classes}
    needs: dict[tuple[str, str], int] = {}
    number: dict[str, int] = {}
    for place, operation in enumerate(workload.operations):
        number[operation.id] = place
        if isinstance(operation, Compute) and operation.on in places:
            if operation.inside:
                places[operation.on].append(place)
            for other in operation.after:
                needs.setdefault((operation.on, other), place)
    found = {name: np.zeros(traffic.plans.topology.nlinks, np.int64) for name in classes}
    seen: set[tuple[object, ...]] = set()
    for operation in workload.operations:
        if isinstance(operation, Compute) or not operation.size_bytes:
            continue
        involved = workload.involved(operation)
        for name in classes:
            key = (name, alike(operation))
            if key in seen:
                continue
            if name in involved:
                own = [number[other] for other in operation.after if other in number]
                first = max((at for at in own if _is_of(workload.operations[at], name)), default=-1)
                last = needs.get((name, operation.id), len(workload.operations))
                if bisect_right(places[name], first) == bisect_left(places[name], last):
                    continue
            seen.add(key)
            found[name] += traffic.of(operation) > 0
    return found


def _is_of(operation: Operation, name: str) -> bool:
    return isinstance(operation, Compute) and operation.on == name


def _only(operation: Compute, inner: Inside) -> Compute:
    return msgspec.structs.replace(operation, inside=(inner,))


def _slowed(workload: Workload, slow: dict[int, float]) -> Workload:
    """With the computation of every class that has slow ranks as slow as the slowest of them."""
    if not slow:
        return workload
    factor: dict[str, float] = {}
    for rank, by in slow.items():
        name = workload.classes_of[rank]
        factor[name] = max(factor.get(name, by), by)
    changed = tuple(
        msgspec.structs.replace(each, time_fs=int(each.time_fs * factor[each.on]))
        if isinstance(each, Compute) and each.on in factor
        else each
        for each in workload.operations
    )
    return _with_operations(workload, changed)


def _with_operations(workload: Workload, operations: tuple[Operation, ...]) -> Workload:
    return replace(workload, operations=operations)


def _axes(workload: Workload) -> tuple[str, ...]:
    """Axes that move bytes, in order of their first operation."""
    found: dict[str, None] = {}
    for operation in workload.operations:
        if isinstance(operation, Compute):
            found.update(dict.fromkeys(inner.group for inner in operation.inside if inner.size_bytes))
        elif operation.size_bytes:
            found[operation.group] = None
    return tuple(found)


def _without(workload: Workload, axes: Collection[str]) -> Workload:
    """The same workload when some axes move no bytes."""
    if not axes:
        return workload
    changed: list[Operation] = []
    for operation in workload.operations:
        if isinstance(operation, Compute):
            inside = tuple(inner for inner in operation.inside if inner.group not in axes)
            changed.append(
                msgspec.structs.replace(operation, inside=inside) if inside != operation.inside else operation
            )
        elif operation.group in axes:
            changed.append(msgspec.structs.replace(operation, size_bytes=0))
        else:
            changed.append(operation)
    return _with_operations(workload, tuple(changed))


def _computed(workload: Workload) -> int:
    """Computation of the busiest class."""
    sums: dict[str, int] = {}
    for operation in workload.operations:
        if isinstance(operation, Compute):
            sums[operation.on] = sums.get(operation.on, 0) + max(operation.time_fs, operation.least_fs)
    return max(sums.values(), default=0)


def _busy(workload: Workload, times: WorkloadTimes, axis: str) -> int:
    """What the operations of an axis take on the busiest class, each alone."""
    sums: dict[str, int] = {}
    for operation in workload.operations:
        if isinstance(operation, Compute):
            took = sum(
                inner.count * times.inside(operation, inner) for inner in operation.inside if inner.group == axis
            )
        elif operation.group != axis:
            continue
        else:
            took = times.call(operation) if isinstance(operation, Call) else times.send(operation)
        for name in workload.involved(operation) if took else ():
            sums[name] = sums.get(name, 0) + took
    return max(sums.values(), default=0)


def _given(workload: Workload, axis: str) -> int:
    """Bytes that a rank of the busiest class gives to the operations of an axis."""
    sums: dict[str, int] = {}
    for operation in workload.operations:
        if isinstance(operation, Compute):
            size = sum(inner.count * inner.size_bytes for inner in operation.inside if inner.group == axis)
        else:
            size = operation.size_bytes if operation.group == axis else 0
        source = (operation.source,) if isinstance(operation, Send) else workload.involved(operation)
        for name in source if size else ():
            sums[name] = sums.get(name, 0) + size
    return max(sums.values(), default=0)


def _notes(design: Design, tier: int) -> tuple[str, ...]:
    """What to know before the time is trusted."""
    found = []
    memory = memory_by_stage(design)
    worst = max(range(len(memory)), key=lambda stage: memory[stage].total)
    share = memory[worst].total / design.memory_limit
    if share > 1:
        found.append(
            f"does not fit: stage {worst} needs {memory[worst].total / 2**30:.1f} GiB of {design.memory_limit / 2**30:.1f}"
        )
    elif share > NEARLY_FULL:
        found.append(
            f"stage {worst} fills {100 * share:.0f} % of its memory: allocators slow such steps down, which is not modelled"
        )
    if design.slow and tier == 1:
        found.append("tier 1 slows all ranks of a stage down as much as the slowest of them")
    if design.calibration.overlap == 0 and design.parallel.overlap_dp:
        found.append(
            "computation is as fast beside collectives as without; measurements show 30 to 40 % less on A100 (NCCL issue 1428)"
        )
    return tuple(found)
