"""Bytes of operations on each link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simcoll.arrays import Ints
from simcoll.core.plan import Plan
from simcoll.workload.workload import Call, Compute, Operation, Send, Workload, call_inside

if TYPE_CHECKING:
    from simcoll.workload.lower import Plans


__all__ = ["Traffic", "alike"]


@dataclass(eq=False)
class Traffic:
    """Link loads of a workload's operations on a topology."""

    workload: Workload
    plans: Plans
    _pairs: dict[int, tuple[Plan, Ints, Ints, Ints]] = field(default_factory=dict)
    _known: dict[tuple[object, ...], Ints] = field(default_factory=dict)

    def of(self, operation: Operation) -> Ints:
        """Bytes of an operation on each link: ``[nlinks]``."""
        found = np.zeros(self.plans.topology.nlinks, np.int64)
        if isinstance(operation, Send):
            if operation.size_bytes:
                classes = self.workload.classes
                found += operation.size_bytes * self._routes(classes[operation.source], classes[operation.target])
        elif isinstance(operation, Call):
            found += self._call(operation)
        else:
            for inner in operation.inside:
                found += inner.count * self._call(call_inside(operation, inner))
        return found

    def _call(self, call: Call) -> Ints:
        key = (call.group, call.on, *call.asked)
        if key not in self._known:
            groups = self.workload.groups_of(call)
            found = np.zeros(self.plans.topology.nlinks, np.int64)
            if call.moves and groups.shape[1] > 1:
                plan = self.plans.plan(call, groups[0])
                source, target, size = self._exchanged(plan)
                for one, other, each in zip(source.tolist(), target.tolist(), size.tolist(), strict=True):
                    found += each * self._routes(groups[:, one], groups[:, other])
            self._known[key] = found
        return self._known[key]

    def _exchanged(self, plan: Plan) -> tuple[Ints, Ints, Ints]:
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
    if isinstance(operation, Compute):
        return ("inside", operation.on, operation.inside)
    if isinstance(operation, Send):
        return ("send", operation.source, operation.target, operation.size_bytes)
    return ("call", operation.group, operation.on, *operation.asked)
