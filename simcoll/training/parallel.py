"""Parallelisation of a model: degrees of parallelism, pipeline schedule, sharding,
recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from simcoll.core.vocabulary import PipelineSchedule, Sharding
from simcoll.errors import ConfigError, nearest

if TYPE_CHECKING:
    from simcoll.training.transformer import Model

__all__ = ["CHOICES", "Parallel", "layers_of_chunks"]

Recomputation: TypeAlias = Literal["none", "selective", "operators", "full"]
ContextExchange: TypeAlias = Literal["ring", "all_gather", "ulysses"]
AttentionKernel: TypeAlias = Literal["fused", "fp8", "flash2", "plain"]
GradientType: TypeAlias = Literal["fp32", "bf16", "fp16"]
GatheredType: TypeAlias = Literal["bf16", "fp8"]
Dispatch: TypeAlias = Literal["copies", "once"]
CapturedGraphs: TypeAlias = Literal["none", "layer", "step"]
SendOverlap: TypeAlias = Literal["always", "never", "alternate"]
GradientBuckets: TypeAlias = Literal["layer", "chunk", "aligned"]
Offload: TypeAlias = Literal["weights", "activations", "optimizer"]
LossKernel: TypeAlias = Literal["fused", "plain"]
SavedType: TypeAlias = Literal["products", "bf16"]
Gathers: TypeAlias = Literal["again", "saved"]
ElementwiseKernels: TypeAlias = Literal["fused", "eager"]
RecomputedModule: TypeAlias = Literal["layernorm", "mla_up_proj", "mlp", "moe_act"]

CHOICES: Mapping[str, tuple[str, ...]] = {
    "schedule": get_args(PipelineSchedule),
    "shard": get_args(Sharding),
    "recompute": get_args(Recomputation),
    "context": get_args(ContextExchange),
    "attention": get_args(AttentionKernel),
    "gradients": get_args(GradientType),
    "gathered": get_args(GatheredType),
    "dispatch": get_args(Dispatch),
    "graphs": get_args(CapturedGraphs),
    "buckets": get_args(GradientBuckets),
    "saved": get_args(SavedType),
    "loss": get_args(LossKernel),
    "gathers": get_args(Gathers),
    "kernels": get_args(ElementwiseKernels),
    "head": get_args(GatheredType),
}
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
MODULES: tuple[RecomputedModule, ...] = get_args(RecomputedModule)


class Parallel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parallelism of a training step.

    Attributes
    ----------
    tp, cp, pp, ep, dp
        Degrees of tensor, context, pipeline, expert and data parallelism; ``dp`` 0: the degree that
        fills the cluster. Experts are distributed over ``ep`` of the ranks of tensor, context and
        data parallelism. A design file without any of these (or ``order``) splits sequences of
        32,768 tokens or more by ``cp``, 8,192 tokens or more a GPU.
    order
        The axes, fastest first.
    virtual
        Chunks of layers per stage: more than 1 interleaves. A design file without it has the most
        that are legal, up to 8.
    micro_batch
        Sequences per micro-batch.
    schedule
        ``"1f1b"`` (interleaved where ``virtual`` is above 1) or ``"zero-bubble"`` (ZB-H1: the
        backward pass of weights fills bubbles).
    shard
        Sharding over data parallelism: none (DDP), optimizer state (ZeRO-1, the distributed
        optimizer; the default), gradients too (ZeRO-2), parameters too (ZeRO-3, FSDP).
    shard_group
        Ranks that share one sharded copy; 0: all of data and context parallelism. Fewer: hybrid
        sharding (HSDP).
    sequence_parallel
        Whether norms, dropout and residuals are split along the sequence over the tensor-parallel
        ranks.
    recompute
        Activations recomputed in the backward pass: none; ``"selective"``, the attention core, as
        fused attention does by itself; ``"operators"``,
        every second matrix product of weights and all that is neither a product nor attention, as
        in torchtitan; or whole layers.
    context
        Exchange of context parallelism: keys and values around a ring, gathered, or sequence traded
        for heads (Ulysses).
    attention
        ``"fused"``, the fastest of the GPU (FlashAttention-3 or cuDNN on H100); ``"fp8"``, with
        products of 8 bits (Transformer Engine's ``fp8_dpa``), where the GPU's file has its rate,
        whose backward kernels compute all keys of a window's sequence; ``"flash2"``,
        FlashAttention-2, which PyTorch's ``scaled_dot_product_attention`` runs, where the GPU's
        file has its rate; or ``"plain"``: matrix products with a softmax between.
    gradients
        Type of accumulated and reduced gradients.
    gathered
        Type of the parameters that sharding gathers: ``"fp8"`` with 8-bit matrix products whose
        weights are cast before. Embedding and head stay in 16 bits.
    split_experts
        Whether experts are split over the tensor-parallel ranks too, each of which then computes
        with the tokens of all of them; expert parallelism is then over ranks of context and data
        parallelism alone. Megatron-LM does so unless ``expert_tensor_parallel_size`` is 1. Needs
        ``sequence_parallel``.
    dispatch
        Dispatch of tokens to experts: ``"copies"``, one per expert (an all_to_all), or ``"once"``
        to each node with any of the token's experts, which forwards it, and within a node once to
        each rank (DeepEP, HybridEP).
    node_limit
        Most nodes (ranks, on a single node) that the experts of a token are on: 4 in DeepSeek-V3,
        whose router chooses nodes first; 0: no limit. It matters where tokens are sent ``"once"``.
    exchange_units
        Multiprocessors that exchanges of tokens take from concurrent computation: 20 as in
        DeepSeek-V3 (arXiv 2412.19437).
    graphs
        Use of CUDA graphs, which avoid host launch time: none; ``"layer"``, layers without their
        experts; or the whole ``"step"``.
    imbalance
        Load of the most loaded expert rank, over the mean.
    buckets
        Gradient collectives that overlap computation: ``"layer"`` by layer; a whole ``"chunk"`` of
        layers once its stage has finished it (NeMo 2 with a pipeline); or ``"aligned"``, whole
        chunks at the same time on all stages (Megatron-LM's ``--align-grad-reduce``).
    overlap_dp, overlap_pp, overlap_ep, overlap_tp
        Whether collectives of data parallelism, sends between stages, exchanges of tokens, and
        collectives of tensor parallelism with ``sequence_parallel`` (part by part beside the
        products) overlap computation. Default: data parallelism; and sends, when interleaved, while
        forward and backward passes alternate, as in Megatron-LM; ``overlap_pp`` true includes the
        pipeline's fill and drain.
    scatter_gather
        Whether each tensor-parallel rank sends its part of the activations to the next stage, which
        gathers them (Megatron-LM); with sequence parallelism they are split anyway.
    split
        Layers of each stage and chunk: ``"even"``; ``"embeddings"``, where embedding and head count
        as a layer each; or a list.
    offload
        Offloaded to host memory: any of ``"weights"``, ``"activations"``, ``"optimizer"``.
    offload_layers
        Layers of a stage whose activations are offloaded in the forward pass and fetched in the
        backward pass (Megatron-LM's ``--cpu-offloading-num-layers``).
    reshard
        Whether parameters that ZeRO-3 gathers are freed after each pass. Default: without a
        pipeline. With one, PyTorch's FSDP2 keeps them, and whole gradients, to the end of the step,
        instead of gathering for each micro-batch.
    loss
        Whether the loss is one kernel, which needs 4 bytes for each logit; or ``"plain"`` PyTorch,
        which needs 14: in 16 bits, in 32 bits, their logarithms, and their gradients.
    saved
        Type in which inputs of products are saved for the backward pass: that of the
        ``"products"``, as Transformer Engine does with 8 bits; or ``"bf16"`` (torchao).
    gathers
        Whether inputs that sequence parallelism gathers are gathered ``"again"`` in the backward
        pass (Megatron-LM), or ``"saved"`` (PyTorch's tensor parallelism, nanotron). Memory only.
    kernels
        Whether activation functions are ``"fused"`` with the product by their gate, or ``"eager"``
        operators of PyTorch, which save their outputs too. Memory only; their time is ``unfused``
        in a calibration.
    bf16_optimizer
        Whether gradients take the memory of DeepSpeed's ``BF16_Optimizer`` of 2022: those of 16
        bits stay beside those of 32, which are reduced in a copy of 16 bits. Memory only.
    fused_experts
        Whether one kernel computes a product of experts with the activation function, biases,
        clamps and casts after it (Transformer Engine's grouped MLP of CuTe DSL). Time only.
    head
        Type of the products of the output head: ``"fp8"`` with 8-bit matrix products (Megatron-LM's
        ``fp8_output_proj``).
    recompute_modules
        Parts of a layer that are recomputed besides ``recompute``, with Megatron-LM's names: any of
        ``"layernorm"``, ``"mla_up_proj"`` (queries, keys and values of latent attention),
        ``"mlp"`` (of layers without experts), ``"moe_act"`` (the activation function of experts).

    Raises
    ------
    ConfigError
        For an invalid choice, or a value out of range.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 0
    pp: int = 1
    ep: int = 1
    order: str = "tp-cp-dp-pp"
    virtual: int = 1
    micro_batch: int = 1
    schedule: PipelineSchedule = "1f1b"
    shard: Sharding = "optimizer"
    shard_group: int = 0
    sequence_parallel: bool = True
    recompute: Recomputation = "selective"
    context: ContextExchange = "ring"
    attention: AttentionKernel = "fused"
    gradients: GradientType = "fp32"
    gathered: GatheredType = "bf16"
    split_experts: bool = False
    dispatch: Dispatch = "copies"
    node_limit: int = 0
    exchange_units: int = 20
    graphs: CapturedGraphs = "none"
    imbalance: float = 1.0
    overlap_dp: bool = True
    overlap_pp: bool | None = None
    overlap_ep: bool = False
    overlap_tp: bool = False
    buckets: GradientBuckets = "layer"
    scatter_gather: bool = False
    split: str | tuple[int, ...] = "even"
    offload: tuple[Offload, ...] = ()
    offload_layers: int = 0
    reshard: bool | None = None
    loss: LossKernel = "fused"
    saved: SavedType = "products"
    gathers: Gathers = "again"
    kernels: ElementwiseKernels = "fused"
    bf16_optimizer: bool = False
    fused_experts: bool = False
    head: GatheredType = "bf16"
    recompute_modules: tuple[RecomputedModule, ...] = ()

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name}: unknown {getattr(self, name)!r}; "
                    f"{nearest(getattr(self, name), choices)}"
                )
        none = ("dp", "shard_group", "node_limit", "exchange_units", "offload_layers")
        at_least_none = dict.fromkeys(none, 0)
        at_least_one = dict.fromkeys(("tp", "cp", "pp", "ep", "virtual", "micro_batch"), 1)
        for name, low in {**at_least_one, **at_least_none}.items():
            if not low <= getattr(self, name) < 2**31:
                raise ConfigError(
                    f"{name}: expected a whole number, at least {low}, got {getattr(self, name)}"
                )
        for part in self.offload:
            if part not in OFFLOADS:
                raise ConfigError(f"offload: unknown {part!r}; {nearest(part, OFFLOADS)}")
        for module in self.recompute_modules:
            if module not in MODULES:
                raise ConfigError(
                    f"recompute_modules: unknown {module!r}; {nearest(module, MODULES)}"
                )
        if self.recompute_modules and self.recompute in {"operators", "full"}:
            raise ConfigError(
                f"recompute_modules: recompute = {self.recompute!r} recomputes them already"
            )
        if not 1 <= self.imbalance < 1e6:
            raise ConfigError(f"imbalance: expected a number, at least 1, got {self.imbalance}")
        if self.virtual > 1 and (self.pp == 1 or self.schedule != "1f1b"):
            raise ConfigError(
                f"virtual {self.virtual}: interleaving needs schedule '1f1b' and pp above 1"
            )
        if self.overlap_tp and self.tp > 1 and not self.sequence_parallel:
            raise ConfigError(
                "overlap_tp needs sequence_parallel: a product cannot run beside an all_reduce of "
                "its own output"
            )
        if self.split_experts and self.tp > 1 and not self.sequence_parallel:
            raise ConfigError(
                "split_experts needs sequence_parallel: ranks that all have the same tokens would "
                "compute them several times"
            )
        if isinstance(self.split, str) and self.split not in ("even", "embeddings"):
            raise ConfigError(
                f"split: unknown {self.split!r}; {nearest(self.split, ['even', 'embeddings'])}, or "
                "a list"
            )

    @property
    def expert_tp(self) -> int:
        """Ranks over which an expert is split."""
        return self.tp if self.split_experts else 1

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """The axes over whose ranks experts are distributed."""
        return ("cp", "dp") if self.expert_tp > 1 else ("tp", "cp", "dp")

    @property
    def shard_in_step(self) -> Sharding:
        """What is sharded during a step: ZeRO-3 that keeps what it gathered holds parameters and
        gradients whole.
        """
        keeps = self.pp > 1 if self.reshard is None else not self.reshard
        return "optimizer" if self.shard == "parameters" and keeps else self.shard

    @property
    def sends_overlap(self) -> SendOverlap:
        """When sends between stages overlap computation: ``"always"``, ``"never"``, or while passes
        ``"alternate"``.
        """
        if self.overlap_pp is None:
            return "alternate" if self.virtual > 1 else "never"
        return "always" if self.overlap_pp else "never"


def layers_of_chunks(model: Model, parallel: Parallel) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Layer numbers of each stage's chunks: ``[stage][chunk]``; chunk c of stage s is part
    ``c * pp + s`` of the model.

    Raises
    ------
    ConfigError
        When the layers cannot be split accordingly.

    Examples
    --------
    >>> from simcoll.training.transformer import Model
    >>> small = Model(layers=4, hidden=8, heads=2, vocabulary=8)
    >>> layers_of_chunks(small, Parallel(pp=2, virtual=2))
    (((0,), (2,)), ((1,), (3,)))
    """
    return _chunks(model.layers, parallel.pp, parallel.virtual, parallel.split)


@lru_cache(maxsize=256)
def _chunks(
    layers: int, stages: int, virtual: int, split: str | tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    parts = stages * virtual
    if not isinstance(split, str):
        counts = list(split)
        if min(counts, default=0) < 0:
            raise ConfigError(f"split: expected numbers of layers of at least 0, got {min(counts)}")
        if len(counts) != parts or sum(counts) != layers:
            raise ConfigError(
                f"split: {len(counts)} parts with {sum(counts)} layers; expected {parts} parts (pp "
                f"x virtual) with {layers}"
            )
    else:
        extra = 2 if split == "embeddings" else 0
        per_part, remainder = divmod(layers + extra, parts)
        if remainder or (extra and per_part < 1):
            raise ConfigError(_uneven_error(layers, extra, parts))
        counts = [per_part] * parts
        if extra:
            counts[0] -= 1
            counts[-1] -= 1
    starts = [sum(counts[:place]) for place in range(parts)]
    chunks = [
        tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True)
    ]
    return tuple(tuple(chunks[c * stages + s] for c in range(virtual)) for s in range(stages))


def _uneven_error(layers: int, extra: int, parts: int) -> str:
    """The error for layers that cannot be split evenly, with valid alternatives.

    ``extra`` are embedding and head, where they count as a layer each.
    """
    total = layers + extra
    subject = f"{layers} layers" + (", embedding and head" if extra else "")
    problem = f"{subject} do not divide into {parts} parts (pp x virtual)"
    split, split_total = ("even", layers) if extra else ("embeddings", layers + 2)
    if split_total % parts == 0:
        return f"{problem}; they do with split = '{split}'"
    divisors = [count for count in range(1, total + 1) if total % count == 0]
    best = min(divisors, key=lambda count: (abs(count - parts), count))
    return f"{problem}; the nearest number that does is {best}, or give split as a list"
