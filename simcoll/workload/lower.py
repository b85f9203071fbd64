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
from simcoll.core.collective import KINDS, Collective
from simcoll.core.plan import Plan
from simcoll.core.protocol import Protocol
from simcoll.core.reduction import parse_dtype
from simcoll.emulator import programs
from simcoll.errors import ConfigError
from simcoll.libraries import choices
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.plans import library_plan, library_play
from simcoll.topology import Topology
from simcoll.topology.graph import LINK_KINDS
from simcoll.tuning import schedule_on
from simcoll.workload.class_clock import waited_fs
from simcoll.workload.workload import Call, Compute, Inside, Operation, Rules, Send, Workload, call_inside

__all__ = ["NOTHING", "Plans", "lower"]

NOTHING = Protocol("nothing", hop_latency_fs=tuple((kind, 0) for kind in LINK_KINDS))
"""Of messages whose traffic is left out: they only order."""


@dataclass(eq=False)
class Plans:
    """Plans and protocols of collectives and sends on a topology, each chosen once.

    Without rules, the first group of an axis chooses for all. Groups with the same placement on a cluster's nodes play the same plan
    if all nodes are alike.

    Attributes
    ----------
    topology
        The machine.
    alike
        Whether no link of the cluster is degraded.
    rules
        Selection rules; None: as NCCL would.
    calibration
        A calibration of NCCL on this machine.
    """

    topology: Topology
    alike: bool = False
    rules: Rules | None = None
    calibration: Calibration | None = None
    _lies: dict[bytes, bytes] = field(default_factory=dict)
    _places: dict[bytes, Topology] = field(default_factory=dict)
    _plans: dict[tuple[object, ...], Plan] = field(default_factory=dict)
    _protocols: dict[tuple[object, ...], Protocol] = field(default_factory=dict)

    def lie(self, groups: NDArray[np.int64]) -> bytes:
        """The placement of groups: which of their ranks share nodes and leaves, and their positions in the nodes."""
        own = groups.tobytes()
        if own not in self._lies:
            box = self.topology.groups.get("box")
            if not self.alike or box is None:
                self._lies[own] = own
            else:
                levels = [np.unique(ids[groups], return_inverse=True)[1] for ids in self.topology.groups.values()]
                first = np.full(int(box.max()) + 1, self.topology.nranks)
                np.minimum.at(first, box, np.arange(self.topology.nranks))
                levels.append((np.arange(self.topology.nranks) - first[box])[groups])
                self._lies[own] = np.stack([level.reshape(-1) for level in levels]).astype(np.int32).tobytes()
        return self._lies[own]

    def place(self, ranks: NDArray[np.int64]) -> Topology:
        """The topology of some ranks alone, shared by equal placements so that its schedules are proved once."""
        key = self.lie(ranks)
        if key not in self._places:
            self._places[key] = self.topology.with_ranks(ranks)
        return self._places[key]

    def plan(self, call: Call, ranks: NDArray[np.int64]) -> Plan:
        """The plan of a call in one group."""
        placed = self.rules is None or self.rules.library or call.algorithm
        key = (call.asked, len(ranks), self.lie(ranks) if placed else b"")
        if key not in self._plans:
            make = self._by_library if self.rules is None else self._by_rules
            try:
                self._plans[key] = make(call, ranks)
            except ConfigError as error:
                named = f"operation {call.id!r}: " if call.id else ""
                raise ConfigError(named + error.message, file=error.file, path=error.path) from None
        return self._plans[key]

    def _by_library(self, call: Call, ranks: NDArray[np.int64]) -> Plan:
        """The plan that NCCL would choose; for uneven blocks, by the largest."""
        place = self.place(ranks)
        size, algorithm = call.size_bytes, call.algorithm
        if not (call.sizes or call.root):
            return library_plan(
                call.kind, size, place, calibration=self.calibration, imbalance=call.imbalance, algorithm=algorithm
            )
        found, protocol = library_play(call.kind, size, place, calibration=self.calibration, algorithm=algorithm)
        collective = _collective(call, len(ranks))
        if found.collective != collective:
            found = schedule_on(collective, found.name, place)
        blocks, dtype = _blocks(call, collective)
        return bind(found, blocks, dtype, protocol=protocol)

    def _by_rules(self, call: Call, ranks: NDArray[np.int64]) -> Plan:
        collective = _collective(call, len(ranks))
        blocks, dtype = _blocks(call, collective)
        rows = (
            blocks
            if isinstance(blocks, int)
            else tuple(tuple(each) if isinstance(each, list) else each for each in blocks)
        )
        return choices.plan_for(
            self._run, collective, rows, parse_dtype(dtype), "sum", tuple(ranks.tolist()), (call.algorithm or None,)
        )

    @cached_property
    def _run(self) -> choices.Plans:
        rules = self.rules
        protocol, library = ("ideal", None) if rules is None else (rules.protocol, rules.library or None)
        return choices.Plans(self.topology, protocol, None, library)

    def message(
        self, pairs: NDArray[np.int64], size_bytes: int, stream: str, after: tuple[int, ...]
    ) -> programs.Operation:
        """Messages of one size between pairs of ranks; the first pair determines the protocol."""
        pair = pairs[0]
        if self.rules is None:
            protocol = self.protocol(int(pair[0]), int(pair[1]), size_bytes)
            return programs.Send(pairs, size_bytes, stream, after, protocol)
        collective = Collective("send_recv", 2, pairs=((0, 1),))
        plan = choices.plan_for(
            self._run, collective, size_bytes, np.dtype(np.uint8), "sum", (int(pair[0]), int(pair[1])), (None,)
        )
        return programs.Call(plan, pairs, stream, after)

    def protocol(self, source: int, target: int, size_bytes: int) -> Protocol:
        """Costs of a message from one rank to another."""
        key = (self.lie(np.array([source, target])), size_bytes)
        if key not in self._protocols:
            pair = self.place(np.array([source, target]))
            self._protocols[key] = library_play("send_recv", size_bytes, pair, calibration=self.calibration)[1]
        return self._protocols[key]


def lower(
    workload: Workload,
    plans: Plans,
    waits: Mapping[tuple[str, Inside], int] | None = None,
    *,
    slow: Mapping[int, float] | None = None,
    taken: Mapping[tuple[str, Inside], int] | None = None,
) -> tuple[programs.Program, tuple[int, ...]]:
    """Lower a workload to a program.

    Parameters
    ----------
    waits
        Known times of collectives inside computations, by class; all others are played.
    slow
        Slow-down factors by rank.
    taken
        By how much played collectives lengthen the computation beside them.

    Returns
    -------
    :
        The program, and for each of its operations the index of the workload's operation.
    """
    return _Lowering(workload, plans, waits or {}, slow or {}, taken or {}).program()


class _Lowering:
    def __init__(
        self,
        workload: Workload,
        plans: Plans,
        waits: Mapping[tuple[str, Inside], int],
        slow: Mapping[int, float],
        taken: Mapping[tuple[str, Inside], int],
    ) -> None:
        self.workload, self.plans, self.waits, self.taken = workload, plans, waits, taken
        self.made: list[programs.Operation] = []
        self.places: list[int] = []
        self.ends: dict[str, tuple[int, ...]] = {}
        self.ranks = {name: _kept(ranks) for name, ranks in workload.classes.items()}
        self.groups: dict[tuple[str, tuple[str, ...]], NDArray[np.int64]] = {}
        self.pairs: dict[tuple[str, str], NDArray[np.int64]] = {}
        self.slow = self._factors(slow)
        self.durations: dict[tuple[str, int, int, int], NDArray[np.int64]] = {}

    def _factors(self, slow: Mapping[int, float]) -> dict[str, list[Fraction]]:
        """The slow-down of each rank of a class with slow ranks; ranks that meet inside a computation take the slowest's."""
        factor = [Fraction(str(slow.get(rank, 1))) for rank in range(self.workload.nranks)]
        for group in {inner.group for _, inner in self.waits} if slow else ():
            for ranks in self.workload.groups[group].tolist():
                most = max(factor[rank] for rank in ranks)
                for rank in ranks:
                    factor[rank] = most
        found = {name: [factor[rank] for rank in ranks.tolist()] for name, ranks in self.ranks.items()}
        return {name: factors for name, factors in found.items() if max(factors) != min(factors) or factors[0] != 1}

    def program(self) -> tuple[programs.Program, tuple[int, ...]]:
        for place, operation in enumerate(self.workload.operations):
            before = len(self.made)
            after = tuple(dict.fromkeys(number for name in operation.after for number in self.ends[name]))
            self.ends[operation.id] = self._operation(operation, after)
            self.places += [place] * (len(self.made) - before)
        return programs.Program(self.workload.nranks, self.made), tuple(self.places)

    def _add(self, operation: programs.Operation) -> int:
        self.made.append(operation)
        return len(self.made) - 1

    def _operation(self, operation: Operation, after: tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(operation, Compute):
            return self._computation(operation, after)
        if isinstance(operation, Call):
            return self._call(operation, after)
        return self._send(operation, after)

    def _compute(
        self, on: str, time_fs: int, stream: str, after: Iterable[int], waited: int = 0, least: int = 0
    ) -> int:
        """Add a computation of a class and its waits, with per-rank times if some ranks are slow."""
        duration: int | NDArray[np.int64] = max(time_fs + waited, least)
        if on in self.slow:
            key = (on, time_fs, waited, least)
            if key not in self.durations:
                times = [max(int(time_fs * factor) + waited, least) for factor in self.slow[on]]
                self.durations[key] = _kept(np.array(times, np.int64))
            duration = self.durations[key]
        return self._add(programs.Compute(self.ranks[on], duration, stream, tuple(after)))

    def _computation(self, operation: Compute, after: tuple[int, ...]) -> tuple[int, ...]:
        """Add a computation; its collectives are part of its time where known, and otherwise played piece by piece."""
        known = [inner for inner in operation.inside if (operation.on, inner) in self.waits or not inner.size_bytes]
        played = [inner for inner in operation.inside if inner not in known and inner.count]
        waits = {inner: self.waits[operation.on, inner] for inner in known if inner.size_bytes}
        waited = sum(inner.count * waited_fs(inner, wait) for inner, wait in waits.items())
        if not played:
            least = operation.least_fs
            return (self._compute(operation.on, operation.time_fs, operation.stream, after, waited, least),)
        whole = max(operation.time_fs + waited, operation.least_fs)
        number = operation.pieces
        beside = sum(inner.hidden_fs * inner.count for inner in played)
        rest = max(0, whole - beside)
        for piece in range(number):
            time_fs = rest * (piece + 1) // number - rest * piece // number
            after = (self._compute(operation.on, time_fs, operation.stream, after),)
            for inner in played:
                count = inner.count * (piece + 1) // number - inner.count * piece // number
                for _ in range(count):
                    after = self._inside(operation, inner, after)
        return after

    def _inside(self, operation: Compute, inner: Inside, after: tuple[int, ...]) -> tuple[int, ...]:
        """Add one collective, beside the computation that hides it."""
        groups = self._groups_in(inner.group, (operation.on,))
        plan = self.plans.plan(call_inside(operation, inner), groups[0])
        if not inner.hidden_fs:
            return (self._add(programs.Call(plan, groups, operation.stream, after)),)
        call = self._add(programs.Call(plan, groups, f"{operation.stream} {inner.group}", after))
        taken = self.taken.get((operation.on, inner), 0)
        work = self._compute(operation.on, inner.hidden_fs, operation.stream, after, taken)
        return call, work

    def _groups_in(self, group: str, classes: tuple[str, ...]) -> NDArray[np.int64]:
        if (group, classes) not in self.groups:
            call = Call(id="", kind="all_reduce", group=group, size_bytes=1, on=classes)
            self.groups[group, classes] = _kept(self.workload.groups_of(call))
        return self.groups[group, classes]

    def _call(self, call: Call, after: tuple[int, ...]) -> tuple[int, ...]:
        alone = self.plans.rules is None and self.workload.groups[call.group].shape[1] == 1
        if (alone or not call.moves) and call.kind != "meeting":
            return tuple(self._compute(name, 0, call.stream, after) for name in self.workload.involved(call))
        groups = self._groups_in(call.group, call.on)
        if call.kind == "meeting":
            return (self._add(programs.Call(_meeting(groups.shape[1]), groups, call.stream, after)),)
        if self.plans.rules is None:
            return (self._add(programs.Call(self.plans.plan(call, groups[0]), groups, call.stream, after)),)
        alike: dict[int, tuple[Plan, list[NDArray[np.int64]]]] = {}
        for ranks in groups:
            plan = self.plans.plan(call, ranks)
            alike.setdefault(id(plan), (plan, []))[1].append(ranks)
        return tuple(
            self._add(programs.Call(plan, groups if len(alike) == 1 else _kept(np.stack(rows)), call.stream, after))
            for plan, rows in alike.values()
        )

    def _send(self, send: Send, after: tuple[int, ...]) -> tuple[int, ...]:
        key = (send.source, send.target)
        if key not in self.pairs:
            self.pairs[key] = _kept(np.stack([self.ranks[send.source], self.ranks[send.target]], axis=1))
        pairs = self.pairs[key]
        if not send.size_bytes:
            return (self._add(programs.Call(_meeting(2), pairs, send.stream, after)),)
        return (self._add(self.plans.message(pairs, send.size_bytes, send.stream, after)),)


@cache
def _meeting(nranks: int) -> Plan:
    """Ranks meet in no time: the remainder of a message without bytes."""
    return bind(schedule_named("barrier", "dissemination", nranks=nranks), 1, "uint8", protocol=NOTHING)


def _collective(call: Call, nranks: int) -> Collective:
    return Collective(call.kind, nranks, root=call.root if KINDS[call.kind].rooted else None)


def _blocks(call: Call, collective: Collective) -> tuple[Any, str]:
    """Elements of blocks, and their dtype, as :func:`simcoll.bind` takes them."""
    if call.sizes:
        rows = [list(row) for row in call.sizes]
        flat = rows[0] if len(rows) == 1 else rows
        return (flat[0] if len(flat) == 1 else flat), call.dtype or "uint8"
    dtype = parse_dtype(call.dtype or "uint8")
    slots = max(collective.input_slots, collective.output_slots, 1)
    return call.size_bytes // (slots * dtype.itemsize), call.dtype or "uint8"


def _kept(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Make an array read-only, for sharing between programs."""
    array = np.ascontiguousarray(values, np.int64).copy()
    array.setflags(write=False)
    return array
