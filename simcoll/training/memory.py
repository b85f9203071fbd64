"""Memory of a training step on the GPUs of each stage, by part.

Activations generalise Korthikanti et al., *Reducing activation recomputation in large transformer
models* (2022): for their model the parts add up to their formulas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from simcoll.training.gpu import DTYPE_BYTES
from simcoll.training.parallel import Parallel, Recomputation, layers_of_chunks
from simcoll.training.transformer import Model, linears
from simcoll.workload.mesh import Mesh

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = [
    "StageMemory",
    "activation_bytes",
    "chunks_in_flight",
    "layer_parameters",
    "memory_by_stage",
    "offloaded_bytes",
    "offloaded_share",
    "stage_parameters",
]

ACTIVATION_BYTES = 2
OPTIMIZER_BYTES = 12
"""Adam: master weight and two moments, 4 bytes each."""
LOSS_BYTES = {"fused": 4, "plain": 2 + 4 + 4 + 4}
"""Bytes for each logit: in 32 bits; PyTorch's operators keep more of them."""
WEIGHT_BYTES = 2
"""Weights are stored in 16 bits, even with 8-bit matrix products."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one GPU of a stage.

    Attributes
    ----------
    weights, gradients, optimizer
        Of this GPU's share of the parameters.
    activations
        Stored by the forward passes in flight for their backward passes.
    buffers
        Gathered parameters of two layers under ZeRO-3, the activations of one layer during
        recomputation, inputs that sequence parallelism gathers, and messages between stages; or, if
        that is more, what an optimizer's copies take beyond the activations.
    host
        Bytes offloaded to host memory; not part of the total.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    host: int = 0

    @property
    def total(self) -> int:
        """All parts on the GPU."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


@dataclass(frozen=True, slots=True)
class _StoredStep:
    """What the memory of a design depends on."""

    model: Model
    parallel: Parallel
    sequence: int
    dtype: str
    micro_batches: int
    mesh: Mesh


class _LayerBytes(NamedTuple):
    """Activations of a layer on a GPU, each without and with experts: what its forward pass stores,
    and what it computes.
    """

    stored: tuple[int, ...]
    computed: tuple[int, ...]


_Step: TypeAlias = "Design | _StoredStep"


def stage_parameters(design: _Step, stage: int) -> tuple[int, int]:
    """Parameters on one GPU of a stage before sharding: dense ones, replicated over data-parallel
    ranks, and experts'.
    """
    return _stage_parameters(design.model, design.parallel, stage)


@lru_cache(maxsize=4096)
def layer_parameters(model: Model, parallel: Parallel, *, moe: bool) -> tuple[int, int]:
    """Parameters of a layer on one GPU: dense ones and experts'."""
    dense, experts = 2 * model.hidden, 0
    for linear in linears(model, moe=moe):
        count = linear.inputs * linear.outputs
        if linear.part == "expert":
            experts += count * model.experts // (parallel.ep * parallel.expert_tp)
        else:
            dense += count // (parallel.tp if linear.split else 1)
    return dense, experts


@lru_cache(maxsize=4096)
def _stage_parameters(model: Model, parallel: Parallel, stage: int) -> tuple[int, int]:
    dense = experts = 0
    layers = chain.from_iterable(layers_of_chunks(model, parallel)[stage])
    for moe, count in Counter(map(model.is_moe, layers)).items():
        ordinary, of_experts = layer_parameters(model, parallel, moe=moe)
        dense += count * ordinary
        experts += count * of_experts
    last = stage == parallel.pp - 1
    if stage == 0 or (model.tied and last):
        dense += model.vocabulary * model.hidden // parallel.tp
    if stage == 0:
        dense += model.positions * model.hidden
    if last:
        dense += model.head_parameters // parallel.tp + model.hidden
    return dense, experts


def activation_bytes(design: _Step, *, moe: bool, recompute: Recomputation | None = None) -> int:
    """Bytes that the forward pass of one layer stores on one GPU for one micro-batch.

    Parameters
    ----------
    recompute
        Recomputation. Default: the design's.
    """
    model, parallel = design.model, design.parallel
    how = parallel.recompute if recompute is None else recompute
    t, b, s = parallel.tp, parallel.micro_batch, design.sequence // parallel.cp
    rows = b * s
    # What tensor parallelism alone repeats on every rank.
    repeats = t if parallel.sequence_parallel else 1
    x = rows * model.hidden
    if how == "full":
        return ACTIVATION_BYTES * x // repeats
    two, saved = ACTIVATION_BYTES, _saved_bytes(design)
    modules = parallel.recompute_modules if recompute is None else ()
    # Inputs of both norms, of the projections, of the MLP.
    repeated = 2 * two * x + (0 if "layernorm" in modules else 2 * saved * x)
    if model.dropout:
        repeated += 2 * x  # masks of the two residuals, a byte an element
    queries, keys = rows * model.heads * model.key_width, rows * model.groups * model.key_width
    values, context = (
        rows * model.groups * model.value_width,
        rows * model.heads * model.value_width,
    )
    if how == "operators":
        # Input, attention, and half of the outputs of products: two of hidden size, queries to
        # values, inner ones.
        ways = 3 if model.gated else 2
        inner = _inner_elements(design, rows, moe=moe)
        stored_bytes = (queries + keys + values + inner * (ways - 1) // ways) // 2 + context
        return 2 * two * x // repeats + (two * stored_bytes + 4 * rows * model.heads) // t
    split = two * context + (saved * context if saved < two else 0)  # also cast to 8 bits
    if "mla_up_proj" in modules:
        repeated += two * rows * (model.q_rank + model.kv_rank + model.rope_size)
    else:
        split += two * (queries + keys + values)
    if parallel.attention == "plain" and how == "none":
        scores = b * model.heads * s * design.sequence
        split += scores * (two + (1 + two if model.dropout else 0))
    elif parallel.attention != "plain":
        split += 4 * rows * model.heads  # the logarithms of the sums of each row
    split += _inner_bytes(design, rows, moe=moe, modules=modules)
    inputs = 1 if moe and not model.shared_experts else 2  # experts gather nothing
    return repeated // repeats + inputs * _gathered_bytes(design, x, modules) + split // t


def _gathered_bytes(design: _Step, x: int, modules: Collection[str]) -> int:
    """Bytes of a gathered input of attention or MLP that is saved, beyond the part of a rank
    itself; ``x``: its elements.
    """
    parallel = design.parallel
    if parallel.gathers == "again" or not parallel.sequence_parallel or "layernorm" in modules:
        return 0
    return _saved_bytes(design) * (x - x // parallel.tp)


def _saved_bytes(design: _Step) -> int:
    """Bytes of an element that is saved as the input of a product."""
    if design.parallel.saved == "bf16" or DTYPE_BYTES[design.dtype] > 1:
        return ACTIVATION_BYTES
    return 1


def _inner_bytes(design: _Step, rows: int, *, moe: bool, modules: Collection[str]) -> int:
    """Bytes inside the MLP or the experts over all tensor-parallel ranks: inputs of the activation
    function in 16 bits, its output as the input of a product, and tokens of routed experts.
    """
    model, parallel = design.model, design.parallel
    saved = _saved_bytes(design)
    eager = model.gated and parallel.kernels == "eager"  # the activation before its gate
    inputs = ACTIVATION_BYTES * ((2 if model.gated else 1) + eager)
    if not moe:
        return 0 if "mlp" in modules else rows * model.inner * (inputs + saved)
    routed = ceil(rows * model.top_k * parallel.imbalance)  # tokens of the experts of one rank
    shared = rows * model.shared_experts * model.expert_inner * (inputs + saved)
    output = 0 if "moe_act" in modules else saved
    if model.expert_clamp and "moe_act" not in modules:  # both before and after they are clamped
        output += 2 * ACTIVATION_BYTES
    # Each rank of a split expert saves the tokens of all of them.
    tokens = saved * model.hidden * parallel.expert_tp
    return shared + routed * (model.expert_inner * (inputs + output) + tokens)


def _inner_elements(design: _Step, rows: int, *, moe: bool) -> int:
    """Elements inside the MLP or the experts over all tensor-parallel ranks: input and output of
    the activation function.
    """
    model, parallel = design.model, design.parallel
    ways = 3 if model.gated else 2
    if not moe:
        return rows * ways * model.inner
    routed = ceil(rows * model.top_k * parallel.imbalance)  # tokens of the experts of one rank
    return rows * ways * model.shared_experts * model.expert_inner + routed * (
        ways * model.expert_inner + model.hidden * parallel.expert_tp
    )


def chunks_in_flight(design: _Step, stage: int) -> int:
    """The maximum number of a stage's chunks in flight, between forward and backward pass."""
    parallel, m = design.parallel, design.micro_batches
    p, v = parallel.pp, parallel.virtual
    if v > 1:
        return min((p - stage - 1) * 2 + (v - 1) * p + 1, m * v)
    return min(m, p if parallel.schedule == "zero-bubble" else p - stage)


def memory_by_stage(design: Design) -> tuple[StageMemory, ...]:
    """Memory of one GPU of each stage, in order."""
    return _memory_of(
        _StoredStep(
            design.model,
            design.parallel,
            design.sequence,
            design.dtype,
            design.micro_batches,
            design.mesh,
        )
    )


@lru_cache(maxsize=4096)
def _memory_of(step: _StoredStep) -> tuple[StageMemory, ...]:
    """The same for all machines of a search: they have the same mappings."""
    layers = _LayerBytes(
        tuple(activation_bytes(step, moe=moe) for moe in (False, True)),
        tuple(activation_bytes(step, moe=moe, recompute="none") for moe in (False, True)),
    )
    return tuple(_stage(step, stage, layers) for stage in range(step.parallel.pp))


def _stage(design: _StoredStep, stage: int, layer_bytes: _LayerBytes) -> StageMemory:
    parallel, model = design.parallel, design.model
    dense, experts = stage_parameters(design, stage)
    copies = design.mesh.size("dp") * design.mesh.size("cp")
    shard = parallel.shard_group or copies
    # Ranks with the same parameters of experts.
    across = max(1, parallel.tp // parallel.expert_tp * copies // parallel.ep)

    def stored_bytes(count: int, level: str) -> int:
        levels = ("none", "optimizer", "gradients", "parameters")
        if levels.index(parallel.shard_in_step) < levels.index(level):
            return dense * count + experts * count
        return ceil(dense * count / shard) + ceil(experts * count / min(shard, across))

    weights, optimizer = (
        stored_bytes(WEIGHT_BYTES, "parameters"),
        stored_bytes(OPTIMIZER_BYTES, "optimizer"),
    )
    gradients = stored_bytes(int(DTYPE_BYTES[parallel.gradients]), "gradients")
    copied = 0
    if parallel.bf16_optimizer:
        gradients += WEIGHT_BYTES * (dense + experts)
        copied = WEIGHT_BYTES * (dense + experts)
    chunks = layers_of_chunks(model, parallel)[stage]
    sizes = [sum(layer_bytes.stored[model.is_moe(layer)] for layer in chunk) for chunk in chunks]
    offloaded = _offloaded_layers(design, chunks, layer_bytes)
    in_flight = _bytes_in_flight(design, stage, sizes)
    activations = in_flight + _ends(design, stage)
    # The copy is made after the last backward pass, when no activations are stored.
    buffers = _buffers(design, stage, dense + experts, layer_bytes)
    buffers = max(buffers, copied - activations)
    moved = {"optimizer": optimizer} if "optimizer" in parallel.offload else {}
    if "activations" in parallel.offload:  # all but the chunk that is computed
        moved["activations"] = max(0, in_flight - max(sizes))
    elif offloaded:
        share = sum(map(sum, offloaded)) / max(1, sum(sizes))
        moved["activations"] = int(share * in_flight)
    if "weights" in parallel.offload:
        moved["weights"] = _all_but_two(weights, chunks)
    return StageMemory(
        weights - moved.get("weights", 0),
        gradients,
        optimizer - moved.get("optimizer", 0),
        activations - moved.get("activations", 0),
        buffers,
        sum(moved.values()),
    )


def _bytes_in_flight(design: _Step, stage: int, sizes: Sequence[int]) -> int:
    """The most bytes of chunks between their forward and backward passes.

    Interleaved chunks of a stage differ in size where embedding and head count as layers, so that
    it matters which are in flight: passes go through the chunks in groups of as many micro-batches
    as there are stages, forward from the first, backward from the last.
    """
    parallel = design.parallel
    warm_up = chunks_in_flight(design, stage)
    if len(set(sizes)) == 1:
        return sizes[0] * warm_up
    p, v = parallel.pp, parallel.virtual
    passes = min(design.micro_batches * v, warm_up + 2 * p * v)
    numbers = np.arange(passes) // p % v
    of_chunk = np.array(sizes, np.int64)
    begun, ended = np.cumsum(of_chunk[numbers]), np.cumsum(of_chunk[v - 1 - numbers])
    steady = begun[warm_up:] - ended[: passes - warm_up]
    return int(max(begun[warm_up - 1], steady.max(initial=0)))


def _offloaded_layers(
    design: _Step, chunks: Sequence[tuple[int, ...]], layer_bytes: _LayerBytes
) -> list[list[int]]:
    """Bytes of the layers of each chunk that are offloaded, the first ones of the stage."""
    remaining, offloaded = design.parallel.offload_layers, []
    for chunk in chunks:
        layers = chunk[:remaining]
        remaining -= len(layers)
        offloaded.append([layer_bytes.stored[design.model.is_moe(layer)] for layer in layers])
    return offloaded if any(offloaded) else []


def _all_but_two(weights: int, chunks: tuple[tuple[int, ...], ...]) -> int:
    """Weights of a stage except two layers, which are on the GPU."""
    layers = max(1, sum(len(chunk) for chunk in chunks))
    return max(0, weights - 2 * weights // layers)


def offloaded_bytes(design: Design, stage: int, chunk: int) -> tuple[int, int]:
    """Bytes of a chunk's weights, and of its activations per micro-batch, that move to and from
    host memory.
    """
    parallel, model = design.parallel, design.model
    chunks = layers_of_chunks(model, parallel)[stage]
    weights = activations = 0
    if "weights" in parallel.offload:
        dense, experts = stage_parameters(design, stage)
        count = dense + experts
        if parallel.shard_in_step == "parameters":
            count = ceil(
                count / (parallel.shard_group or design.mesh.size("dp") * design.mesh.size("cp"))
            )
        weights = _all_but_two(WEIGHT_BYTES * count, chunks) // len(chunks)
    if "activations" in parallel.offload:
        activations = sum(
            activation_bytes(design, moe=model.is_moe(layer)) for layer in chunks[chunk]
        )
    return weights, activations


def offloaded_share(design: Design, stage: int) -> float:
    """The share of a stage's layers whose activations are offloaded layer by layer."""
    layers = sum(map(len, layers_of_chunks(design.model, design.parallel)[stage]))
    return min(1.0, design.parallel.offload_layers / max(1, layers))


def _ends(design: _Step, stage: int) -> int:
    """Activations of embedding and head: dropout masks of all micro-batches in flight; input and
    logits of the loss.
    """
    model, parallel = design.model, design.parallel
    rows = parallel.micro_batch * (design.sequence // parallel.cp)
    split = parallel.tp if parallel.sequence_parallel else 1
    nbytes = 0
    if stage == 0 and model.dropout:
        nbytes += rows * model.hidden * min(design.micro_batches, parallel.pp) // split
    if stage == parallel.pp - 1:
        # Input of the last norm and of the head.
        nbytes += 2 * ACTIVATION_BYTES * rows * model.hidden // split
        nbytes += LOSS_BYTES[parallel.loss] * rows * model.vocabulary // parallel.tp
    return nbytes


def _buffers(design: _Step, stage: int, parameters: int, layer_bytes: _LayerBytes) -> int:
    """Gathered parameters and inputs, a layer being recomputed, messages between stages;
    ``parameters``: those of the stage.
    """
    parallel, model = design.parallel, design.model
    chunks = layers_of_chunks(model, parallel)[stage]
    layers = max(1, sum(len(chunk) for chunk in chunks))
    nbytes = 0
    if parallel.shard_in_step == "parameters":
        nbytes += 2 * WEIGHT_BYTES * parameters // layers
    if parallel.recompute != "none" or parallel.recompute_modules:
        moe = any(model.is_moe(layer) for chunk in chunks for layer in chunk)
        nbytes += layer_bytes.computed[moe] - layer_bytes.stored[moe]
    rows = parallel.micro_batch * (design.sequence // parallel.cp)
    if parallel.tp > 1 and parallel.sequence_parallel:  # gathered: an input and its gradient
        nbytes += 2 * ACTIVATION_BYTES * rows * model.hidden
    if parallel.pp > 1:
        nbytes += (
            4
            * ACTIVATION_BYTES
            * rows
            * model.hidden
            // (parallel.tp if parallel.sequence_parallel else 1)
        )
    return nbytes
