"""One training step, timed: in tier 2 everything on the emulator together, in tier 1 collectives once each and the pipeline played.

What an axis exposes is found by playing again without its bytes: an operation without bytes takes no time and only orders.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from simcoll.errors import ConfigError
from simcoll.workload.memory import memory_by_stage
from simcoll.workload.playing import Played, alone_on, play_workload, slowed
from simcoll.workload.result import AxisTime, StepResult
from simcoll.workload.timeline import operation_fs, play_script
from simcoll.workload.timing import WorkloadTimes
from simcoll.workload.traffic import Traffic
from simcoll.workload.training import FLOPS_FORMULA, Parts
from simcoll.workload.workload import Compute, Send

if TYPE_CHECKING:
    from collections.abc import Collection

    from simcoll.workload.design import Design
    from simcoll.workload.timing import Alone
    from simcoll.workload.workload import Operation, Workload

__all__ = ["Step", "step"]

Counted: TypeAlias = "tuple[tuple[Operation, int], ...]"
"""Operations that cost the same, and how many there are."""
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
        Whether the exposed time of every axis is found, by playing again without it, and the use of links. Without, the bound is that
        of computation only.

    Raises
    ------
    ConfigError
        For an unknown tier.
    """
    return Step(design).result(tier=tier, exposed=exposed)


class Step:
    """A design with its workload, and what has been found about them.

    Attributes
    ----------
    design, parts, alone
        What is timed, as slots and their operations, with the times of collectives alone.
    """

    def __init__(self, design: Design) -> None:
        self.design = design
        self.parts = Parts(design)
        self.alone: Alone = alone_on(design.topology, alike=not design.cluster.degraded)
        self.slots = tuple(self.parts.operation(slot) for slot in self.parts.script.slots)

    @cached_property
    def workload(self) -> Workload:
        """The workload of the step."""
        return self.parts.workload()

    @cached_property
    def _ground(self) -> Workload:
        """Classes and groups of the workload, without its operations."""
        return self.parts.ground()

    @cached_property
    def _counted(self) -> Counted:
        rows = Counter(row.slot for row in self.parts.script.rows)
        return tuple((operation, rows[number]) for number, operation in enumerate(self.slots))

    @cached_property
    def _times(self) -> WorkloadTimes:
        return WorkloadTimes(self._ground, self.alone)

    def clock(self, *, tier: int, without: Collection[str] = (), spans: bool = True) -> Played:
        """The step on a clock, with its spans; ``without``: axes that move no bytes."""
        operations = tuple(_without(operation, without) for operation in self.workload.operations)
        workload = replace(self.workload, operations=operations) if without else self.workload
        return play_workload(workload, self.alone, tier=tier, slow=self.design.slow, spans=spans)

    def time_fs(self, *, tier: int, without: Collection[str] = ()) -> int:
        """How long the step takes; ``without``: axes that move no bytes."""
        if tier != 1:
            return self.clock(tier=tier, without=without, spans=False).clock.time_fs
        return play_script(self.parts.script, self._takes(without))

    def _takes(self, without: Collection[str] = ()) -> list[int]:
        """How long each slot takes."""
        made = (slowed(self._ground, _without(operation, without), self.design.slow) for operation in self.slots)
        return [operation_fs(operation, self._times) for operation in made]

    def _played(self, tier: int) -> Played:
        if tier not in {1, 2}:
            raise ConfigError(
                f"tier {tier!r}: expected 1 (collectives timed once each) or 2 (everything emulated together)"
            )
        if tier == 2:
            return self.clock(tier=2, spans=False)
        takes = self._takes()
        made = hashlib.sha256(repr(takes).encode()).hexdigest()[:16]
        return Played.at(play_script(self.parts.script, takes), made)

    def result(self, *, tier: int = 2, exposed: bool = True) -> StepResult:
        """The result of the step."""
        design = self.design
        played = self._played(tier)
        time_fs = played.clock.time_fs
        axes = _axes(self._counted)
        free = self.time_fs(tier=1, without=axes)
        computed = _busiest([(each, _work_fs(each) * count) for each, count in self._counted], self._ground)
        use, bound = self._links(time_fs) if exposed else ((), (0, ""))
        flops = self.parts.costs.flops()
        return StepResult(
            title=design.title,
            design_hash=design.hash,
            calibration=design.calibration.state,
            tier=tier,
            time_fs=time_fs,
            tokens=design.tokens,
            nranks=design.mesh.nranks,
            compute_fs=computed,
            bubble_fs=max(0, free - computed),
            axes={axis: self._axis(axis, tier, time_fs if exposed else None) for axis in axes},
            memory=memory_by_stage(design),
            memory_limit=design.memory_limit,
            model_flops=flops[0],
            hardware_flops=flops[1],
            peak_flops=design.gpu.peak(design.dtype) * design.mesh.nranks,
            flops_formula=FLOPS_FORMULA,
            bound_fs=max(free, bound[0]),
            limit="computation and the order of the pipeline" if free >= bound[0] else f"link {bound[1]}",
            link_use=use,
            classes=played.classes,
            path=played.path,
            trace_hash=played.trace_hash,
            notes=_notes(design, tier),
        )

    def _axis(self, axis: str, tier: int, time_fs: int | None) -> AxisTime:
        """Communication of an axis; exposed where the time of the step is given."""
        times, sizes = [], []
        for operation, count in self._counted:
            inside = operation.inside if isinstance(operation, Compute) else ()
            took = (
                sum(inner.count * self._times.inside(operation, inner) for inner in inside if inner.group == axis)
                if isinstance(operation, Compute)
                else 0
            )
            size = sum(inner.count * inner.size_bytes for inner in inside if inner.group == axis)
            if not isinstance(operation, Compute) and operation.group == axis:
                took, size = operation_fs(operation, self._times), operation.size_bytes
            times.append((operation, took * count))
            sizes.append((operation, size * count))
        exposed = 0 if time_fs is None else time_fs - self.time_fs(tier=tier, without=(axis,))
        return AxisTime(_busiest(times, self._ground), exposed, _busiest(sizes, self._ground, given=True))

    def _links(self, time_fs: int) -> tuple[tuple[tuple[str, float], ...], tuple[int, str]]:
        """The busiest link of each kind, and the time that the busiest of all needs for its bytes alone."""
        topology = self.design.topology
        traffic = Traffic(self._ground, self.alone.plans)
        carried = np.zeros(topology.nlinks, np.int64)
        for operation, count in self._counted:
            carried += count * traffic.of(operation)
        if not carried.any():
            return (), (0, "")
        needs = carried * 1e21 / topology.link_capacity_uBps
        order = np.argsort(-needs, kind="stable").tolist()
        kinds: dict[int, int] = {}
        for link in order:
            kinds.setdefault(int(topology.link_kind[link]), link)
        use = tuple(
            (topology.link_name(link), float(needs[link] / time_fs)) for link in kinds.values() if carried[link]
        )
        most = order[0]
        bound = int(carried[most]) * 10**21 // int(topology.link_capacity_uBps[most])
        return use, (bound, topology.link_name(most))


def _work_fs(operation: Operation) -> int:
    return max(operation.time_fs, operation.least_fs) if isinstance(operation, Compute) else 0


def _busiest(amounts: list[tuple[Operation, int]], ground: Workload, *, given: bool = False) -> int:
    """The largest sum over operations of one class; ``given``: messages count for their source only."""
    sums: dict[str, int] = {}
    for operation, amount in amounts:
        classes = (operation.source,) if given and isinstance(operation, Send) else ground.involved(operation)
        for name in classes if amount else ():
            sums[name] = sums.get(name, 0) + amount
    return max(sums.values(), default=0)


def _axes(counted: Counted) -> tuple[str, ...]:
    """Axes that move bytes, in order of their first operation."""
    found: dict[str, None] = {}
    for operation, _ in counted:
        if isinstance(operation, Compute):
            found.update(dict.fromkeys(inner.group for inner in operation.inside if inner.size_bytes))
        elif operation.size_bytes:
            found[operation.group] = None
    return tuple(found)


def _without(operation: Operation, axes: Collection[str]) -> Operation:
    """The same operation when some axes move no bytes."""
    if isinstance(operation, Compute):
        inside = tuple(inner for inner in operation.inside if inner.group not in axes)
        return operation if len(inside) == len(operation.inside) else msgspec.structs.replace(operation, inside=inside)
    return msgspec.structs.replace(operation, size_bytes=0) if operation.group in axes else operation


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
