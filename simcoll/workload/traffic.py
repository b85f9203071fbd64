"""Bytes of operations on each link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.plan import Plan
from simcoll.workload.workload import (
    CallOperation,
    ComputeOperation,
    Operation,
    SendOperation,
    Workload,
    call_inside,
)

if TYPE_CHECKING:
    from simcoll.workload.lower import WorkloadPlans


__all__ = ["Traffic", "alike"]


@dataclass(eq=False)
class Traffic:
    """Link loads of a workload's operations on a topology."""

    workload: Workload
    plans: WorkloadPlans
    _pairs: dict[int, tuple[Plan, Ints, Ints, Ints]] = field(default_factory=dict)
    _loads: dict[tuple[object, ...], Ints] = field(default_factory=dict)

    def of(self, operation: Operation) -> Ints:
        """Bytes of an operation on each link: ``[nlinks]``."""
        load = np.zeros(self.plans.topology.nlinks, np.int64)
        if isinstance(operation, SendOperation):
            if operation.size_bytes:
                classes = self.workload.classes
                load += operation.size_bytes * self._routes(
                    classes[operation.source], classes[operation.target]
                )
        elif isinstance(operation, CallOperation):
            load += self._call(operation)
        else:
            for inner in operation.inside:
                load += inner.count * self._call(call_inside(operation, inner))
        return load

    def _call(self, call: CallOperation) -> Ints:
        key = (call.group, call.on, *call.plan_key)
        if key not in self._loads:
            groups = self.workload.groups_of(call)
            load = np.zeros(self.plans.topology.nlinks, np.int64)
            if call.moves and groups.shape[1] > 1:
                plan = self.plans.plan(call, groups[0])
                source, target, size = self._pair_bytes(plan)
                for sender, receiver, nbytes in zip(
                    source.tolist(), target.tolist(), size.tolist(), strict=True
                ):
                    load += nbytes * self._routes(groups[:, sender], groups[:, receiver])
            self._loads[key] = load
        return self._loads[key]

    def _pair_bytes(self, plan: Plan) -> tuple[Ints, Ints, Ints]:
        """Source, destination and bytes of each pair of ranks of a plan."""
        if id(plan) not in self._pairs:
            matrix = np.zeros((plan.nranks, plan.nranks), np.int64)
            for step in plan.steps():
                np.add.at(matrix, (step.src_rank, step.dst_rank), step.size_bytes)
            np.fill_diagonal(matrix, 0)
            source, target = np.nonzero(matrix)
            self._pairs[id(plan)] = (plan, source, target, matrix[source, target])
        return self._pairs[id(plan)][1:]

    def _routes(self, source: Ints, target: Ints) -> Ints:
        """The number of routes that use each link."""
        links = self.plans.topology.route(source, target).links
        return np.bincount(links[links >= 0], minlength=self.plans.topology.nlinks)


def alike(operation: Operation) -> tuple[object, ...]:
    """The properties that determine an operation's traffic."""
    if isinstance(operation, ComputeOperation):
        return ("inside", operation.on, operation.inside)
    if isinstance(operation, SendOperation):
        return ("send", operation.source, operation.target, operation.size_bytes)
    return ("call", operation.group, operation.on, operation.service_fs, *operation.plan_key)
