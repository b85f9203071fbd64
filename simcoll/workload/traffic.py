"""Bytes of operations on each link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.plan import Plan
from simcoll.core.transit import chosen_transits
from simcoll.emulator.steps.step_columns import turns
from simcoll.topology.chosen_paths import chosen_routes
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


__all__ = ["LinkLoads", "Traffic", "alike"]

ROUTED = 1 << 20
"""Number of routes that are counted at a time, which bounds memory. A count for each pair of ranks
would cost a pass over all links (1,024 pairs on a million links: 10 s).
"""


class LinkLoads(NamedTuple):
    """Bytes on the links that carry any, in order of the links.

    With a number for each of 788,480 links, the operations of a step of 131,072 GPUs took 1 GB;
    each uses a few percent of the links.
    """

    links: Shorts
    size_bytes: Ints

    @classmethod
    def of(cls, load: Ints) -> LinkLoads:
        """Those of a load with a number for each link."""
        links = np.flatnonzero(load)
        return cls(links.astype(np.int32), load[links])

    def at(self, links: Sequence[int]) -> list[int]:
        """The bytes on some links."""
        if not len(self.links):
            return [0] * len(links)
        place = np.minimum(np.searchsorted(self.links, links), len(self.links) - 1)
        size_bytes: list[int] = np.where(
            self.links[place] == links, self.size_bytes[place], 0
        ).tolist()
        return size_bytes


@dataclass(eq=False)
class Traffic:
    """Link loads of a workload's operations on a topology."""

    workload: Workload
    plans: WorkloadPlans
    _pairs: dict[int, tuple[Plan, dict[tuple[int, str], tuple[Ints, Ints]]]] = field(
        default_factory=dict
    )
    _loads: dict[tuple[object, ...], LinkLoads] = field(default_factory=dict)

    def of(self, operation: Operation) -> Ints:
        """Bytes of an operation on each link, as its protocol carries them: ``[nlinks]``."""
        load = np.zeros(self.plans.topology.nlinks, np.int64)
        links, size_bytes = self.link_loads(operation)
        load[links] = size_bytes
        return load

    def link_loads(self, operation: Operation) -> LinkLoads:
        """The same, on the links that carry any."""
        if isinstance(operation, CallOperation):
            return self._call(operation)
        load = np.zeros(self.plans.topology.nlinks, np.int64)
        if isinstance(operation, SendOperation):
            if operation.size_bytes:
                classes = self.workload.classes
                load += operation.size_bytes * self._routes(
                    classes[operation.source], classes[operation.target]
                )
        else:
            for inner in operation.inside:
                links, size_bytes = self._call(call_inside(operation, inner))
                load[links] += inner.count * size_bytes
        return LinkLoads.of(load)

    def _call(self, call: CallOperation) -> LinkLoads:
        key = (call.group, call.on, *call.plan_key)
        if key not in self._loads:
            groups = self.workload.groups_of(call)
            load = np.zeros(self.plans.topology.nlinks, np.int64)
            if call.moves and groups.shape[1] > 1:
                plan = self.plans.plan(call, groups[0])
                factor = plan.protocol.wire_factor
                for (nbytes, via), (senders, receivers) in self._pairs_by_bytes(plan).items():
                    carried = -(-nbytes * factor.numerator // factor.denominator)
                    width = max(ROUTED // len(groups), 1)
                    for begin in range(0, len(senders), width):
                        rows = slice(begin, begin + width)
                        sources, targets = groups[:, senders[rows]], groups[:, receivers[rows]]
                        load += carried * self._routes(sources.ravel(), targets.ravel(), via)
            self._loads[key] = LinkLoads.of(load)
        return self._loads[key]

    def _pairs_by_bytes(self, plan: Plan) -> dict[tuple[int, str], tuple[Ints, Ints]]:
        """Senders and receivers of a plan, by the bytes that they exchange and the path that the
        schedule chooses.
        """
        if id(plan) not in self._pairs:
            vias = sorted({"", *(transit.via for transit in plan.schedule.transits)})
            matrix = np.zeros((plan.nranks, plan.nranks, len(vias)), np.int64)
            for steps, times in turns(plan):
                for step in steps:
                    path = np.zeros(step.rows, np.int64)
                    if step.paths is not None:
                        numbers = np.array([vias.index(entry.via) for entry in step.paths.table])
                        path = numbers[step.paths.number]
                    pairs_of_path = step.src_rank, step.dst_rank, path
                    np.add.at(matrix, pairs_of_path, times * step.size_bytes)
            matrix[np.arange(plan.nranks), np.arange(plan.nranks)] = 0
            senders, receivers, paths = np.nonzero(matrix)
            sizes = matrix[senders, receivers, paths]
            pairs = {}
            for nbytes, number in np.unique(np.stack([sizes, paths]), axis=1).T.tolist():
                rows = (sizes == nbytes) & (paths == number)
                pairs[nbytes, vias[number]] = senders[rows], receivers[rows]
            self._pairs[id(plan)] = plan, pairs
        return self._pairs[id(plan)][1]

    def _routes(self, source: Ints, target: Ints, via: str = "") -> Ints:
        """The number of routes that use each link."""
        topology = self.plans.topology
        if via:
            paths = chosen_transits(np.zeros(len(source), np.int64), [via], "")
            links = chosen_routes(topology, source, target, paths).links
        else:  # without the latencies, which take longer
            links = topology.router.links(
                *(topology.rank_endpoints[end] for end in (source, target))
            )
        return np.bincount(links[links >= 0], minlength=topology.nlinks)


def alike(operation: Operation) -> tuple[object, ...]:
    """The properties that determine an operation's traffic."""
    if isinstance(operation, ComputeOperation):
        return ("inside", operation.on, operation.inside)
    if isinstance(operation, SendOperation):
        return ("send", operation.source, operation.target, operation.size_bytes)
    return ("call", operation.group, operation.on, operation.service_fs, *operation.plan_key)
