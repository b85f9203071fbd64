"""Computation of a stage's chunk in each kind of pass, and its synchronised parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from simcoll.training.gpu import DTYPE_BYTES
from simcoll.training.layers import ELEMENT, EndPasses, LayerPasses, Pass, ends_of, in_fs, layer_of
from simcoll.training.memory import (
    activation_bytes,
    layer_parameters,
    offloaded_share,
    stage_parameters,
)
from simcoll.training.parallel import layers_of_chunks
from simcoll.workload.workload import Inside

if TYPE_CHECKING:
    from simcoll.training.design import Design
    from simcoll.training.script import TurnKind

__all__ = ["ChunkCosts", "ChunkWork", "host_seconds", "merge_collectives"]

EXPERTS_HOST_US = {"none": 2884.0, "layer": 2241.0}
"""Least host time for the forward pass of a layer with experts, in microseconds, by what CUDA
graphs launch.

A step of Qwen3 30B on 16 H100 took 623 ms, and 484 ms with graphs of layers (card.yaml of
nemo-mbridge-perf-cuda-graphs in Megatron Bridge): 2 stages of 24 layers with two micro-batches, so
three times a forward pass and a backward pass of twice its time, one after the other.
"""
CAST_HOST_US = 28.0
"""Host time for each expert of a rank in 8 bits, whose casts are launched one by one: what Qwen3
30B on 32 H100 in `measurements/steps/megatron-lm-2026` took beyond the time above.
"""


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """The computation of some layers in one direction, not yet placed in a workload.

    Attributes
    ----------
    time_fs, flops, inside, pieces, least_fs
        As in :class:`~simcoll.workload.workload.ComputeOperation`.
    """

    time_fs: int
    flops: float
    inside: tuple[Inside, ...]
    pieces: int
    least_fs: int


@dataclass(frozen=True)
class ChunkCosts:
    """Costs of all chunks of a design, memoised."""

    design: Design

    @cached_property
    def chunks(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Layers by stage and chunk."""
        return layers_of_chunks(self.design.model, self.design.parallel)

    @cached_property
    def _layers(self) -> dict[bool, LayerPasses]:
        kinds = {self.design.model.is_moe(layer) for layer in range(self.design.model.layers)}
        return {moe: layer_of(self.design, moe=moe) for moe in sorted(kinds)}

    @cached_property
    def _ends(self) -> EndPasses:
        return ends_of(self.design)

    @cached_property
    def parameters(self) -> list[tuple[int, int]]:
        """Parameters on one GPU of each stage: dense ones and experts'."""
        return [stage_parameters(self.design, stage) for stage in range(self.design.parallel.pp)]

    def layer_parameters(self, layer: int) -> tuple[int, int]:
        """Parameters of a layer on one GPU: dense ones and experts'."""
        return layer_parameters(
            self.design.model, self.design.parallel, moe=self.design.model.is_moe(layer)
        )

    def is_first(self, stage: int, chunk: int) -> bool:
        """Whether the chunk has the embedding."""
        return stage == 0 and chunk == 0

    def is_last(self, stage: int, chunk: int) -> bool:
        """Whether the chunk has the output head."""
        return stage == self.design.parallel.pp - 1 and chunk == self.design.parallel.virtual - 1

    @cached_property
    def turn(self) -> Callable[..., ChunkWork]:
        """A turn of a chunk, or of some of its layers: ``"F"``, ``"B"``, ``"W"``, or ``"BW"`` for
        both backward parts; ``alone``: without another pass that hides exchanges of tokens.
        """
        return cache(self._turn)

    def _turn(
        self,
        kind: TurnKind,
        stage: int,
        chunk: int,
        layers: tuple[int, ...] | None = None,
        *,
        alone: bool = False,
    ) -> ChunkWork:
        chunk_layers = self.chunks[stage][chunk]
        turn_layers = chunk_layers if layers is None else layers
        whole_chunk = turn_layers == chunk_layers
        has_first = whole_chunk or turn_layers[:1] == chunk_layers[:1]
        has_last = whole_chunk or turn_layers[-1:] == chunk_layers[-1:]
        starts, ends = self.is_first(stage, chunk), self.is_last(stage, chunk)
        arrives = {"F": not starts and has_first, "W": False}.get(kind, not ends and has_last)
        return self._work(
            kind,
            tuple(map(self.design.model.is_moe, turn_layers)),
            embeds=starts and has_first,
            heads=ends and has_last,
            arrives=arrives,
            offloaded=0.0 if kind == "W" else offloaded_share(self.design, stage),
            alone=alone,
        )

    @cached_property
    def _work(self) -> Callable[..., ChunkWork]:
        return cache(self._work_of)

    def _work_of(
        self,
        kind: TurnKind,
        experts: tuple[bool, ...],
        *,
        embeds: bool,
        heads: bool,
        arrives: bool,
        offloaded: float,
        alone: bool,
    ) -> ChunkWork:
        """The work of a turn of layers, with or without ``experts``. It is computed once for all
        equal layers, of which a step has a hundred.
        """
        passes = [part for moe in experts for part in self._of_layer(kind, moe=moe)]
        for applies, (forward, backward) in (
            (embeds, self._ends.embedding),
            (heads, self._ends.head),
        ):
            if applies and kind != "W":
                passes.append(forward if kind == "F" else backward)
        if arrives:
            passes += self._arrival()
        collectives = merge_collectives(
            [
                replace(inner, hidden_fs=0, share=0.0) if alone and inner.group == "ep" else inner
                for part in passes
                for inner in part.inside
            ]
        )
        seconds = max(
            sum(part.seconds for part in passes), self._offload_seconds(offloaded, experts)
        )
        return ChunkWork(
            in_fs(seconds),
            sum(part.flops for part in passes),
            collectives,
            max(1, len(experts)),
            in_fs(host_seconds(self.design, kind, experts)),
        )

    def _arrival(self) -> list[Pass]:
        """Gather activations that arrive in pieces from another stage, before the first layer that
        uses them.
        """
        design, parallel = self.design, self.design.parallel
        if not parallel.scatter_gather or parallel.sequence_parallel or parallel.tp == 1:
            return []
        size = (
            ELEMENT * parallel.micro_batch * (design.sequence // parallel.cp) * design.model.hidden
        )
        return [Pass(0.0, 0.0, (Inside("all_gather", "tp", size),))]

    def _offload_seconds(self, share: float, experts: tuple[bool, ...]) -> float:
        """Time to move the activations of layers that are offloaded one by one, beside the pass."""
        if not share:
            return 0.0
        nbytes = sum(activation_bytes(self.design, moe=moe) for moe in experts)
        return share * nbytes / self.design.gpu.number("host.bandwidth")

    def _of_layer(self, kind: TurnKind, *, moe: bool) -> tuple[Pass, ...]:
        layer = self._layers[moe]
        return {
            "F": (layer.forward,),
            "B": (layer.again, layer.to_input),
            "W": (layer.to_weights,),
            "BW": (layer.again, layer.to_input, layer.to_weights),
        }[kind]

    def flops(self) -> tuple[float, float]:
        """FLOPs of a step on all GPUs: those that the model needs, and those performed with
        recomputation.
        """
        design = self.design
        steps_per_gpu = design.micro_batches * design.mesh.nranks / design.parallel.pp
        needed = performed = 0.0
        for layer in range(design.model.layers):
            layer_passes = self._layers[design.model.is_moe(layer)]
            # Attention: its backward pass has twice the products.
            core = layer_passes.forward.flops - layer_passes.to_weights.flops
            if design.parallel.attention == "plain":
                core /= 2  # what a causal model needs
            needed += 3 * (layer_passes.to_weights.flops + core)
            performed += (
                layer_passes.forward.flops
                + layer_passes.to_input.flops
                + layer_passes.to_weights.flops
                + layer_passes.again.flops
            )
        head = sum(part.flops for part in self._ends.head)
        return steps_per_gpu * (needed + head), steps_per_gpu * (performed + head)


def host_seconds(design: Design, kind: TurnKind, experts: Sequence[bool]) -> float:
    """Host time to launch the kernels of layers, with or without ``experts``, in one kind of pass,
    without CUDA graphs: as often as in a forward pass, but twice in a backward pass, which has two
    products for each one.
    """
    again = 1 if design.parallel.recompute in {"operators", "full"} else 0
    launches = {"F": 1, "B": 1 + again, "W": 1, "BW": 2 + again}[kind]
    return launches * sum(_host_us(design, moe=moe) for moe in experts) * 1e-6


def _host_us(design: Design, *, moe: bool) -> float:
    """Host time of the forward pass of a layer."""
    parallel, host = design.parallel, design.calibration
    if parallel.graphs == "step":
        return 0.0
    layer_us = host.host_layer_us + (host.host_tp_us if parallel.tp > 1 else 0.0)
    if parallel.graphs == "layer":
        layer_us = 0.0
    if not moe:
        return layer_us
    experts = design.model.experts // parallel.ep
    floor_us = EXPERTS_HOST_US[parallel.graphs]
    if DTYPE_BYTES[design.dtype] <= 1 and not parallel.fused_experts:
        floor_us += CAST_HOST_US * experts
    return max(floor_us, layer_us + host.host_expert_us * experts)


def merge_collectives(collectives: Sequence[Inside]) -> tuple[Inside, ...]:
    """Merge equal collectives into entries with counts."""
    counts: Counter[Inside] = Counter()
    for inner in collectives:
        counts[replace(inner, count=1)] += inner.count
    return tuple(replace(inner, count=count) for inner, count in counts.items())
