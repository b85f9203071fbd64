"""Lower a workload to a program of the emulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcoll.algorithms import schedule as schedule_named
from simcoll.binding import bind
from simcoll.core.collective import KINDS, Collective, collective_kind
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.reduction import parse_dtype
from simcoll.emulator import programs
from simcoll.emulator.programs.operations import copy_after
from simcoll.errors import ConfigError
from simcoll.libraries import choices
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.plans import library_call
from simcoll.topology import Topology
from simcoll.topology.graph import LINK_KINDS
from simcoll.tuning import schedule_on
from simcoll.workload.class_clock import added_fs
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Inside,
    Operation,
    Rules,
    SendOperation,
    Workload,
    call_inside,
)

__all__ = ["NOTHING", "WorkloadPlans", "lower"]

NOTHING = Protocol("nothing", hop_latency_fs=tuple((kind, 0) for kind in LINK_KINDS))
"""Of messages whose traffic is left out: they only order."""


@dataclass(eq=False)
class WorkloadPlans:
    """Plans and protocols of collectives and sends on a topology, each chosen once.

    Without rules, the first group of an axis chooses for all. Groups with the same placement on a
    cluster's nodes play the same plan if all nodes are alike.

    Attributes
    ----------
    topology
        The machine.
    uniform
        Whether no link of the cluster is degraded.
    rules
        Selection rules; None: as the library of the machine's GPUs would, NCCL or RCCL.
    calibration
        A calibration of this library on this machine.
    """

    topology: Topology
    uniform: bool = False
    rules: Rules | None = None
    calibration: Calibration | None = None
    _placements: dict[bytes, bytes] = field(default_factory=dict)
    _places: dict[bytes, Topology] = field(default_factory=dict)
    _plans: dict[tuple[object, ...], Plan] = field(default_factory=dict)
    _protocols: dict[tuple[object, ...], Protocol] = field(default_factory=dict)

    def placement(self, groups: NDArray[np.int64]) -> bytes:
        """The placement of groups: which of their ranks share nodes and leaves, and their positions
        in the nodes.
        """
        key = groups.tobytes()
        if key not in self._placements:
            box = self.topology.groups.get("box")
            if not self.uniform or box is None:
                self._placements[key] = key
            else:
                self._placements[key] = self._relative_placement(groups, box)
        return self._placements[key]

    def _relative_placement(self, groups: NDArray[np.int64], box: NDArray[np.int64]) -> bytes:
        rank = np.arange(self.topology.nranks)
        first_rank = np.full(int(box.max()) + 1, self.topology.nranks)
        np.minimum.at(first_rank, box, rank)
        position = rank - first_rank[box]
        levels = [
            np.unique(ids[groups], return_inverse=True)[1] for ids in self.topology.groups.values()
        ]
        levels.append(position[groups])
        return np.stack([level.reshape(-1) for level in levels]).astype(np.int32).tobytes()

    def place(self, ranks: NDArray[np.int64]) -> Topology:
        """The topology of some ranks alone, shared by equal placements so that its schedules are
        proved once.
        """
        key = self.placement(ranks)
        if key not in self._places:
            self._places[key] = self.topology.with_ranks(ranks)
        return self._places[key]

    def plan(self, call: CallOperation, ranks: NDArray[np.int64]) -> Plan:
        """The plan of a call in one group."""
        by_placement = self.rules is None or self.rules.library or call.algorithm
        key = (call.plan_key, len(ranks), self.placement(ranks) if by_placement else b"")
        if key not in self._plans:
            make = self._by_library if self.rules is None else self._by_rules
            try:
                self._plans[key] = make(call, ranks)
            except ConfigError as error:
                prefix = f"operation {call.id!r}: " if call.id else ""
                raise ConfigError(
                    prefix + error.message, file=error.file, path=error.path
                ) from None
        return self._plans[key]

    def _by_library(self, call: CallOperation, ranks: NDArray[np.int64]) -> Plan:
        """The plan that the library would choose; for uneven blocks, by the largest."""
        place = self.place(ranks)
        size = call.size_bytes
        algorithm = call.algorithm
        chosen = library_call(
            call.kind, size, place, calibration=self.calibration, algorithm=algorithm
        )
        if not (call.sizes or call.root or call.pairs):
            return chosen.plan(call.imbalance)
        schedule = chosen.schedule
        collective = _collective(call, len(ranks))
        if schedule.collective != collective:
            schedule = schedule_on(collective, schedule.name, place)
        blocks, dtype = _blocks(call, collective)
        return chosen.bind(schedule, blocks, dtype, "sum")

    def _by_rules(self, call: CallOperation, ranks: NDArray[np.int64]) -> Plan:
        collective = _collective(call, len(ranks))
        blocks, dtype = _blocks(call, collective)
        if not isinstance(blocks, int):
            blocks = tuple(tuple(row) if isinstance(row, list) else row for row in blocks)
        return choices.plan_for(
            self._run,
            collective,
            blocks,
            parse_dtype(dtype),
            "sum",
            tuple(ranks.tolist()),
            (call.algorithm or None,),
        )

    @cached_property
    def _run(self) -> choices.Plans:
        rules = self.rules
        if rules is None:
            return choices.Plans(self.topology, "ideal", None, None)
        return choices.Plans(self.topology, rules.protocol, None, rules.library or None)

    def message(
        self, pairs: NDArray[np.int64], size_bytes: int, stream: str, waits_for: tuple[int, ...]
    ) -> programs.Operation:
        """Messages of one size between pairs of ranks; the first pair determines the protocol."""
        pair = pairs[0]
        if self.rules is None:
            protocol = self.protocol(int(pair[0]), int(pair[1]), size_bytes)
            return programs.Send(pairs, size_bytes, stream, waits_for, protocol)
        collective = Collective("send_recv", 2, pairs=((0, 1),))
        plan = choices.plan_for(
            self._run,
            collective,
            size_bytes,
            np.dtype(np.uint8),
            "sum",
            (int(pair[0]), int(pair[1])),
            (None,),
        )
        return programs.Call(plan, pairs, stream, waits_for)

    def protocol(self, source: int, target: int, size_bytes: int) -> Protocol:
        """Costs of a message from one rank to another."""
        key = (self.placement(np.array([source, target])), size_bytes)
        if key not in self._protocols:
            pair = self.place(np.array([source, target]))
            call = library_call("send_recv", size_bytes, pair, calibration=self.calibration)
            self._protocols[key] = call.protocol
        return self._protocols[key]


def lower(
    workload: Workload,
    plans: WorkloadPlans,
    waits: Mapping[tuple[str, Inside], int] | None = None,
    *,
    slow: Mapping[int, float] | None = None,
    lost: Mapping[tuple[str, Inside], int] | None = None,
) -> tuple[programs.Program, tuple[int, ...]]:
    """Lower a workload to a program.

    Parameters
    ----------
    waits
        Known times of collectives inside computations, by class; all others are played.
    slow
        Slow-down factors by rank.
    lost
        By how much played collectives lengthen the computation beside them.

    Returns
    -------
    :
        The program, and for each of its operations the index of the workload's operation among
        those of :meth:`~simcoll.workload.workload.Workload.unroll`.
    """
    return _WorkloadLowering(workload, plans, waits or {}, slow or {}, lost or {}).program()


class _WorkloadLowering:
    """Turns the operations of a workload, in order, into those of a program.

    Invariant: ``ends[id]`` holds the numbers of the program's operations after which a workload's
    operation is over on all its classes. Dependencies pass through it alone, so every operation
    adds at least one to the program, even if it neither computes nor sends: an idle call becomes a
    computation of no time, a message of no bytes a meeting.

    Collectives inside a computation are the reason for this pass. There is one for every layer,
    pass and micro-batch, so their messages are avoided where that changes nothing: if ranks stay in
    lock step and nothing else is on the links, the time of one played alone is exact (``waits``),
    and becomes a part of the computation. All others are played: the computation is cut into
    ``pieces``, over which time and collectives are spread, to the femtosecond.

    A collective that computation hides runs on a stream of its own. The work that hides it leaves
    the pieces and is put beside it, lengthened by ``lost``: the collective's share of the
    multiprocessors. If it stayed in the pieces it would run before or after the collective, and
    hide nothing.
    """

    def __init__(
        self,
        workload: Workload,
        plans: WorkloadPlans,
        waits: Mapping[tuple[str, Inside], int],
        slow: Mapping[int, float],
        lost: Mapping[tuple[str, Inside], int],
    ) -> None:
        self.workload, self.plans = workload, plans
        self.waits, self.lost = waits, lost
        self.operations: list[programs.Operation] = []
        self.places: list[int] = []
        self.ends: dict[str, tuple[int, ...]] = {}
        self.ranks = {name: _frozen_array(ranks) for name, ranks in workload.classes.items()}
        self.groups: dict[tuple[str, tuple[str, ...]], NDArray[np.int64]] = {}
        self.inner_calls: dict[tuple[str, str, Inside], programs.Call] = {}
        self.computations: dict[tuple[str, int, str, int, int], programs.Compute] = {}
        self.pairs: dict[tuple[str, str], NDArray[np.int64]] = {}
        self.slow = self._factors(slow)
        self.durations: dict[tuple[str, int, int, int], NDArray[np.int64]] = {}

    def _factors(self, slow: Mapping[int, float]) -> dict[str, list[Fraction]]:
        """The slow-down of each rank of a class with slow ranks; ranks that meet inside a
        computation take the slowest's.
        """
        # Where waits stand for messages, nothing makes the others wait for a slow rank: so its
        # whole group gets its factor.
        factor = [Fraction(str(slow.get(rank, 1))) for rank in range(self.workload.nranks)]
        for group in {inner.group for _, inner in self.waits} if slow else ():
            for ranks in self.workload.groups[group].tolist():
                slowest = max(factor[rank] for rank in ranks)
                for rank in ranks:
                    factor[rank] = slowest
        factors_of = {
            name: [factor[rank] for rank in ranks.tolist()] for name, ranks in self.ranks.items()
        }
        return {
            name: factors for name, factors in factors_of.items() if any(by != 1 for by in factors)
        }

    def program(self) -> tuple[programs.Program, tuple[int, ...]]:
        for place, operation in enumerate(self.workload.unroll()):
            count = len(self.operations)
            waits_for = tuple(
                dict.fromkeys(number for name in operation.after for number in self.ends[name])
            )
            self.ends[operation.id] = self._operation(operation, waits_for)
            self.places += [place] * (len(self.operations) - count)
        return programs.Program(self.workload.nranks, self.operations), tuple(self.places)

    def _add(self, operation: programs.Operation) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1

    def _operation(self, operation: Operation, waits_for: tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(operation, ComputeOperation):
            return self._computation(operation, waits_for)
        if isinstance(operation, CallOperation):
            return self._call(operation, waits_for)
        return self._send(operation, waits_for)

    def _compute(
        self,
        on: str,
        time_fs: int,
        stream: str,
        waits_for: Iterable[int],
        waited: int = 0,
        least_fs: int = 0,
    ) -> int:
        """Add a computation of a class and its waits, with per-rank times if some ranks are
        slow.
        """
        key = (on, time_fs, stream, waited, least_fs)
        example = self.computations.get(key)
        if example is None:
            duration: int | NDArray[np.int64] = max(time_fs + waited, least_fs)
            if on in self.slow:
                duration = self._durations(on, time_fs, waited, least_fs)
            example = programs.Compute(self.ranks[on], duration, stream)
            self.computations[key] = example
        return self._add(copy_after(example, tuple(waits_for)))

    def _durations(self, on: str, time_fs: int, waited: int, least_fs: int) -> NDArray[np.int64]:
        """The times of a computation on the ranks of a class with slow ranks, on all streams."""
        key = (on, time_fs, waited, least_fs)
        if key not in self.durations:
            times = [max(int(time_fs * factor) + waited, least_fs) for factor in self.slow[on]]
            self.durations[key] = _frozen_array(np.array(times, np.int64))
        return self.durations[key]

    def _computation(
        self, operation: ComputeOperation, waits_for: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Add a computation; its collectives are part of its time where known, and otherwise played
        piece by piece.
        """
        timed = [
            inner
            for inner in operation.inside
            if (operation.on, inner) in self.waits or not inner.size_bytes
        ]
        played = [inner for inner in operation.inside if inner not in timed and inner.count]
        waits = {inner: self.waits[operation.on, inner] for inner in timed if inner.size_bytes}
        waited = sum(inner.count * added_fs(inner, wait) for inner, wait in waits.items())
        if not played:
            least_fs = operation.least_fs
            return (
                self._compute(
                    operation.on, operation.time_fs, operation.stream, waits_for, waited, least_fs
                ),
            )
        total_fs = max(operation.time_fs + waited, operation.least_fs)
        number = operation.pieces
        hidden_fs = sum(inner.hidden_fs * inner.count for inner in played)
        open_fs = max(0, total_fs - hidden_fs)
        for piece in range(number):
            time_fs = _part(open_fs, piece, number)
            waits_for = (self._compute(operation.on, time_fs, operation.stream, waits_for),)
            for inner in played:
                for _ in range(_part(inner.count, piece, number)):
                    waits_for = self._inside(operation, inner, waits_for)
        return waits_for

    def _inside(
        self, operation: ComputeOperation, inner: Inside, waits_for: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Add one collective, beside the computation that hides it."""
        key = operation.on, operation.stream, inner
        example = self.inner_calls.get(key)
        if example is None:
            groups = self._groups_in(inner.group, (operation.on,))
            plan = self.plans.plan(call_inside(operation, inner), groups[0])
            hidden = f" {inner.group}" if inner.hidden_fs else ""
            example = programs.Call(plan, groups, f"{operation.stream}{hidden}")
            self.inner_calls[key] = example
        call = self._add(copy_after(example, waits_for))
        if not inner.hidden_fs:
            return (call,)
        lost_fs = self.lost.get((operation.on, inner), 0)
        work = self._compute(operation.on, inner.hidden_fs, operation.stream, waits_for, lost_fs)
        return call, work

    def _groups_in(self, group: str, classes: tuple[str, ...]) -> NDArray[np.int64]:
        if (group, classes) not in self.groups:
            call = CallOperation(id="", kind="all_reduce", group=group, size_bytes=1, on=classes)
            groups = self.workload.groups_of(call)
            self.groups[group, classes] = _frozen_array(groups)
        return self.groups[group, classes]

    def _call(self, call: CallOperation, waits_for: tuple[int, ...]) -> tuple[int, ...]:
        if call.service_fs is not None:
            return self._service(call, call.service_fs, waits_for)
        alone = self.plans.rules is None and self.workload.groups[call.group].shape[1] == 1
        if (alone or not call.moves) and call.kind != "meeting":
            return tuple(
                self._compute(name, 0, call.stream, waits_for)
                for name in self.workload.classes_of(call)
            )
        groups = self._groups_in(call.group, call.on)
        if call.kind == "meeting":
            return (
                self._add(programs.Call(_meeting(groups.shape[1]), groups, call.stream, waits_for)),
            )
        if self.plans.rules is None:
            return (
                self._add(
                    programs.Call(self.plans.plan(call, groups[0]), groups, call.stream, waits_for)
                ),
            )
        by_plan: dict[int, tuple[Plan, list[NDArray[np.int64]]]] = {}
        for ranks in groups:
            plan = self.plans.plan(call, ranks)
            _, rows = by_plan.setdefault(id(plan), (plan, []))
            rows.append(ranks)
        if len(by_plan) == 1:
            return (self._add(programs.Call(plan, groups, call.stream, waits_for)),)
        return tuple(
            self._add(programs.Call(plan, _frozen_array(np.stack(rows)), call.stream, waits_for))
            for plan, rows in by_plan.values()
        )

    def _service(
        self, call: CallOperation, service_fs: int, waits_for: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Add a call with a given time: its ranks meet, then all are busy for as long."""
        groups = self._groups_in(call.group, call.on)
        met = waits_for
        if groups.shape[1] > 1:
            meeting = _meeting(groups.shape[1])
            met = (self._add(programs.Call(meeting, groups, call.stream, waits_for)),)
        ranks = _frozen_array(np.sort(groups.reshape(-1)))
        return (self._add(programs.Compute(ranks, service_fs, call.stream, met)),)

    def _send(self, send: SendOperation, waits_for: tuple[int, ...]) -> tuple[int, ...]:
        key = (send.source, send.target)
        if key not in self.pairs:
            ends = (self.ranks[send.source], self.ranks[send.target])
            self.pairs[key] = _frozen_array(np.stack(ends, axis=1))
        pairs = self.pairs[key]
        if not send.size_bytes:
            return (self._add(programs.Call(_meeting(2), pairs, send.stream, waits_for)),)
        return (self._add(self.plans.message(pairs, send.size_bytes, send.stream, waits_for)),)


def _part(total: int, piece: int, pieces: int) -> int:
    """A piece's part of a total; the parts differ by at most one and add up to it exactly."""
    end = total * (piece + 1) // pieces
    return end - total * piece // pieces


@cache
def _meeting(nranks: int) -> Plan:
    """Ranks meet in no time: the remainder of a message without bytes."""
    return bind(
        schedule_named("barrier", "dissemination", nranks=nranks), 1, "uint8", protocol=NOTHING
    )


def _collective(call: CallOperation, nranks: int) -> Collective:
    root = call.root if KINDS[collective_kind(call.kind)].rooted else None
    return Collective(call.kind, nranks, root=root, pairs=call.pairs)


def _blocks(call: CallOperation, collective: Collective) -> tuple[Any, str]:
    """Elements of blocks, and their dtype, as :func:`simcoll.bind` takes them."""
    if call.sizes:
        rows = [list(row) for row in call.sizes]
        flat = rows[0] if len(rows) == 1 else rows
        return (flat[0] if len(flat) == 1 else flat), call.dtype or "uint8"
    dtype = parse_dtype(call.dtype or "uint8")
    slots = max(collective.input_slots, collective.output_slots, 1)
    return call.size_bytes // (slots * dtype.itemsize), call.dtype or "uint8"


def _frozen_array(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Make an array read-only, for sharing between programs."""
    array = np.ascontiguousarray(values, np.int64).copy()
    array.setflags(write=False)
    return array
