"""A lower bound of the time of a step, some hundred times faster than timing it.

Let stage s have the first micro-batch's forward pass of its first chunk behind the stages before
it, and its own last turn, a backward pass of its first chunk, before those of the same stages. Its
turns follow one another on one stream. So the step takes at least the forward passes of the first
chunks before s, all turns of s, and the backward passes of the first chunks before s. A turn takes
at least its computation and, for each collective that it waits for and does not hide, the bytes
that have to leave or enter a GPU over the capacity of all of its links, and no less than its
launch by the host. The bound holds in both tiers, because it counts nothing that either of them
shares or hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from simcoll.training.chunks import host_seconds
from simcoll.training.layers import LayerPasses, Pass, ends_of, in_fs, layer_of, optimizer_seconds
from simcoll.training.memory import stage_parameters
from simcoll.training.parallel import Parallel, layers_of_chunks
from simcoll.units import UBPS_PER_BPS
from simcoll.workload.class_clock import added_fs
from simcoll.workload.workload import Inside

if TYPE_CHECKING:
    from simcoll.topology import Topology
    from simcoll.training.design import Design

__all__ = ["TimeBounds", "gpu_rate"]

FS_PER_SECOND = 10**15
ROUNDING = 1e-9
"""Share left off for the rounding of operations to femtoseconds."""


def gpu_rate(topology: Topology) -> float:
    """Bytes per second into or out of the best-connected GPU, over all of its links.

    >>> from simcoll.topology import load_topology
    >>> gpu_rate(load_topology("dgx-h100", nodes=2)) / 1e9  # 450 of NVLink, 50 of its NIC
    500.0
    """
    rates = [
        np.bincount(ends, weights=topology.link_capacity_uBps, minlength=len(topology.node_kinds))
        for ends in (topology.link_src, topology.link_dst)
    ]
    return float(max(rate[topology.rank_nodes].max() for rate in rates)) / UBPS_PER_BPS


@dataclass(eq=False)
class TimeBounds:
    """Lower bounds of the steps of one model on one cluster; layers of equal cost are costed once.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> from simcoll.training.steps import TrainingStep
    >>> made = design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 32},
    ...     "topology": {"name": "dgx-h100"}, "parallel": {"tp": 2, "pp": 2},
    ... })
    >>> share = TimeBounds(made.topology).step_fs(made) / TrainingStep(made).time_fs(tier=1)
    >>> 0.8 < share <= 1
    True
    """

    topology: Topology
    _rate: float = field(init=False)
    _costs: dict[Parallel, _StageCosts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rate = gpu_rate(self.topology)

    def step_fs(self, design: Design) -> int:
        """A time that the step of a design on this cluster cannot undercut."""
        parallel = design.parallel
        costs = self._costs_of(design)
        chunks = layers_of_chunks(design.model, parallel)
        lead = longest = 0
        for stage, layers_by_chunk in enumerate(chunks):
            forward, backward = costs.passes(_all(layers_by_chunk))
            if stage == 0:
                forward, backward = forward + costs.embedding[0], backward + costs.embedding[1]
            if stage == parallel.pp - 1:
                forward, backward = forward + costs.head[0], backward + costs.head[1]
            forward, backward = costs.with_launch(design, _all(layers_by_chunk), forward, backward)
            turns = design.micro_batches * (forward + backward)
            longest = max(longest, lead + turns + self._update_fs(design, stage))
            first_forward, first_backward = costs.passes(layers_by_chunk[0])
            if stage == 0:
                first_forward += costs.embedding[0]
                first_backward += costs.embedding[1]
            first_forward, first_backward = costs.with_launch(
                design, layers_by_chunk[0], first_forward, first_backward
            )
            lead += first_forward
            if parallel.schedule == "1f1b":
                lead += first_backward
        return int(longest * (1 - ROUNDING))

    def _costs_of(self, design: Design) -> _StageCosts:
        """Costs of layers and ends, which depend neither on the pipeline nor on sharding."""
        accumulates = 1 if design.micro_batches > 1 else 0
        key = msgspec.structs.replace(
            design.parallel, pp=1, virtual=1, split="even", shard="none", dp=accumulates
        )
        if key not in self._costs:
            model = design.model
            kinds = sorted({model.is_moe(layer) for layer in range(model.layers)})
            layers = {moe: self._layer_fs(design, layer_of(design, moe=moe)) for moe in kinds}
            ends = ends_of(design)
            embedding, head = (
                (self._pass_fs(design, *end[:1]), self._pass_fs(design, *end[1:]))
                for end in (ends.embedding, ends.head)
            )
            moe_layers = tuple(model.is_moe(layer) for layer in range(model.layers))
            self._costs[key] = _StageCosts(layers, moe_layers, embedding, head)
        return self._costs[key]

    def _layer_fs(self, design: Design, passes: LayerPasses) -> tuple[int, int]:
        """Forward and backward pass of a layer."""
        backward = (passes.again, passes.to_input, passes.to_weights)
        return self._pass_fs(design, passes.forward), self._pass_fs(design, *backward)

    def _pass_fs(self, design: Design, *passes: Pass) -> int:
        waits = sum(
            inner.count * added_fs(inner, self._collective_fs(design, inner))
            for part in passes
            for inner in part.inside
        )
        return in_fs(sum(part.seconds for part in passes)) + waits

    def _collective_fs(self, design: Design, inner: Inside) -> int:
        """The bytes that a collective moves into or out of each GPU, over its links."""
        ranks = getattr(design.parallel, inner.group)
        moved = inner.size_bytes * (ranks - 1) / ranks
        return int(moved / self._rate * FS_PER_SECOND)

    def _update_fs(self, design: Design, stage: int) -> int:
        """The optimizer's update of a stage, sharded over all ranks that it could be."""
        if design.parallel.offload:
            return 0
        shards = 1 if design.parallel.shard == "none" else design.mesh.nranks
        return in_fs(optimizer_seconds(design, sum(stage_parameters(design, stage)) // shards))


@dataclass(frozen=True, slots=True)
class _StageCosts:
    """Femtoseconds of the forward and backward pass of a layer, with and without experts, of the
    embedding and of the head, and of the launches of layers with or without experts.
    """

    layers: dict[bool, tuple[int, int]]
    moe_layers: tuple[bool, ...]
    embedding: tuple[int, int]
    head: tuple[int, int]
    launches: dict[tuple[bool, ...], tuple[int, ...]] = field(default_factory=dict)

    def passes(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Forward and backward passes of some layers."""
        experts = sum(self.moe_layers[number] for number in numbers)
        counts = {True: experts, False: len(numbers) - experts}
        forward = sum(count * self.layers[moe][0] for moe, count in counts.items() if count)
        backward = sum(count * self.layers[moe][1] for moe, count in counts.items() if count)
        return forward, backward

    def with_launch(
        self, design: Design, numbers: Sequence[int], forward: int, backward: int
    ) -> tuple[int, int]:
        """Passes of layers, which take no less than their launch by the host: turns, of which each
        takes the longer of both, take no less than the longer of the sums.
        """
        experts = tuple(self.moe_layers[number] for number in numbers)
        if experts not in self.launches:
            seconds = (host_seconds(design, kind, experts) for kind in ("F", "BW"))
            self.launches[experts] = tuple(map(in_fs, seconds))
        launch_forward, launch_backward = self.launches[experts]
        return max(forward, launch_forward), max(backward, launch_backward)


def _all(layers_by_chunk: Sequence[Sequence[int]]) -> list[int]:
    return [layer for chunk in layers_by_chunk for layer in chunk]
