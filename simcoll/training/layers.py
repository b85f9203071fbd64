"""Computation and communication of one transformer layer on one GPU, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simcoll.core.vocabulary import CollectiveKind
from simcoll.training.gpu import DTYPE_BYTES
from simcoll.training.operators import SMALLEST_WAVE, Roofline
from simcoll.training.transformer import WINDOW_KEYS, Linear, linears
from simcoll.units import FS_PER_SECOND
from simcoll.workload.workload import Inside

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = ["EndPasses", "LayerPasses", "Pass", "ends_of", "in_fs", "layer_of", "optimizer_seconds"]

ELEMENT = 2
"""Bytes of an activation."""
BIAS_FORWARD = 4 + (2 + 4 + 4) + (4 + 4) + (4 + 2)
"""Bytes for each element of an expert's output with a bias: scaled in 32 bits, added, joined, cast
(`TEGroupedMLP` in Megatron-LM).
"""
BIAS_BACKWARD = (2 + 4) + (4 + 2) + (2 + 2) + 2 * (4 + 4 + 4)
"""Bytes for each element of its gradient: cast to 32 bits and back, joined, and two products with
their sums, for bias and scale.
"""
CLAMP_FORWARD = 2 * (2 + 2) + 2 * (2 + 2)
"""Bytes for each inner element of an expert whose two halves are clamped and joined again before
the activation function (`weighted_bias_quick_geglu_impl` in Megatron-LM).
"""
CLAMP_BACKWARD = 2 * (2 + 2 + 2) + 2 * (2 + 2)
"""The same for gradients: masked by what was clamped, and joined."""
ROTATED_FORWARD = 2 * (2 + 2) + (1 + 1) + (2 + 2) + (4 + 2) + (2 + 2)
"""Bytes for each element of queries and keys whose rotary embedding is scaled: products by cosine
and by sine, a half negated and joined, their sum, and joined with the rest
(`_apply_rotary_pos_emb_bshd` in Megatron-LM, whose fused kernel has no scale).
"""
ROTATED_BACKWARD = 2 * (2 + 2) + (1 + 1) + (2 + 2) + (4 + 2)
"""The same for gradients."""
KERNELS = 103
"""Kernels one after the other in both passes of a layer with experts, besides products of experts:
463,348 in a published profile of a step of 64 micro-batches and 48 layers (Qwen3 30B on 16 H100,
nemo-mbridge-perf-moe-comm-overlap of Megatron Bridge), less two products, three passes and 8
experts of each. Each begins and ends (``kernel.floor`` of the GPU).
"""
PRODUCT_KERNELS, PRODUCT_STREAMS = 6, 4
"""Products of an expert in both passes, and the streams on which Transformer Engine computes those
of several experts."""
CAST_KERNELS = 4
"""Casts of an expert to 8 bits in both passes, on one stream (``split_quantize`` of Transformer
Engine)."""
SCATTERED_PARTS = 4
"""Parts of an overlapped product, each summed over ranks while the next is computed: the default of
Transformer Engine (``num_splits``)."""
EXCHANGE_UNITS = 16
"""Multiprocessors that sum them meanwhile: the default of Transformer Engine (``num_sm``)."""


def in_fs(seconds: float) -> int:
    """Femtoseconds of a time in seconds."""
    return round(seconds * FS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class Pass:
    """One direction of a layer on one GPU for one micro-batch.

    Attributes
    ----------
    seconds
        Computation.
    flops
        FLOPs of matrix products.
    inside
        Collectives that it waits for.
    """

    seconds: float
    flops: float
    inside: tuple[Inside, ...] = ()


@dataclass(frozen=True, slots=True)
class _MatrixProducts:
    """A weight matrix with the seconds of its three products: forward, gradient of the input, and
    gradient of the weights; ``flops`` of one of them.
    """

    linear: Linear
    forward: float
    to_input: float
    to_weights: float
    flops: float


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """Collectives that a layer waits for in each pass, and what they add to products of the
    forward pass.
    """

    forward: tuple[Inside, ...] = ()
    to_input: tuple[Inside, ...] = ()
    to_weights: tuple[Inside, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerPasses:
    """A layer on one GPU: forward, input gradient, weight gradient, and recomputation."""

    forward: Pass
    to_input: Pass
    to_weights: Pass
    again: Pass


@dataclass(frozen=True, slots=True)
class EndPasses:
    """Embedding, and output head with the loss: forward and backward of each."""

    embedding: tuple[Pass, Pass]
    head: tuple[Pass, Pass]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of a micro-batch on one GPU: rows of activations, and the number of ranks that split
    norms and residuals.
    """

    rows: int
    hidden: int
    split: int


def _sizes(design: Design) -> _Sizes:
    parallel = design.parallel
    rows = parallel.micro_batch * (design.sequence // parallel.cp)
    return _Sizes(rows, design.model.hidden, parallel.tp if parallel.sequence_parallel else 1)


def roofline_of(design: Design) -> Roofline:
    """The roofline of a design."""
    return Roofline(design.gpu, design.calibration, design.dtype, design.measured)


def layer_of(design: Design, *, moe: bool) -> LayerPasses:
    """One layer of a design."""
    roof = roofline_of(design)
    products = [_product(design, roof, linear) for linear in linears(design.model, moe=moe)]
    forward = sum(product.forward for product in products)
    to_input = sum(product.to_input for product in products)
    to_weights = sum(product.to_weights for product in products)
    flops = sum(product.flops for product in products)
    core = _attention(design, roof)
    starts = _starts(design) if moe else 0.0
    elementwise = _elementwise(design, roof, moe=moe)
    seconds = elementwise[0] + starts / 3, elementwise[1] + starts * 2 / 3
    exchanges = _exchanges(design, products, core[0].seconds, moe=moe)
    done_forward = Pass(
        forward + exchanges.seconds + core[0].seconds + seconds[0],
        flops + core[0].flops,
        exchanges.forward,
    )
    done_input = Pass(
        to_input + core[1].seconds + seconds[1], flops + core[1].flops, exchanges.to_input
    )
    gathers = tuple(inner for inner in exchanges.forward if inner.kind == "all_gather")
    again = {
        "none": Pass(0.0, 0.0),
        "selective": core[0],
        "operators": Pass(
            forward / 2 + seconds[0], flops / 2, gathers
        ),  # outputs of other collectives are kept
        "full": done_forward,
    }[design.parallel.recompute]
    if design.parallel.attention != "plain" and design.parallel.recompute == "selective":
        again = Pass(0.0, 0.0)  # fused attention does so by itself
    again = _with_modules(design, roof, again, products, moe=moe)
    weights = Pass(to_weights, flops, exchanges.to_weights)
    return LayerPasses(done_forward, done_input, weights, again)


def _with_modules(
    design: Design, roof: Roofline, again: Pass, products: Sequence[_MatrixProducts], *, moe: bool
) -> Pass:
    """What is recomputed, with the modules that a design names."""
    model, parallel, sizes = design.model, design.parallel, _sizes(design)
    modules = parallel.recompute_modules
    names: list[str] = []
    moved = separate = 0.0
    if "layernorm" in modules:
        moved += 2 * (2 * ELEMENT) * sizes.rows * sizes.hidden / sizes.split
    if "mla_up_proj" in modules and model.kv_rank:
        names += ["queries up", "keys and values up"]
        moved += 2 * ELEMENT * sizes.rows * model.heads * 2 * model.key_width / parallel.tp
    if "mlp" in modules and not moe:
        names += ["mlp up", "mlp down"]
        moved += (3 if model.gated else 2) * ELEMENT * sizes.rows * model.inner / parallel.tp
    if "moe_act" in modules and moe:
        routed = sizes.rows / sizes.split * model.top_k * parallel.imbalance
        moved += (3 if model.gated else 2) * ELEMENT * routed * model.expert_inner
        separate += CLAMP_FORWARD * routed * model.expert_inner if model.expert_clamp else 0.0
    redone = [product for product in products if product.linear.name in names]
    seconds = sum(product.forward for product in redone) + roof.elementwise(
        design.calibration.unfused * moved + separate
    )
    flops = sum(product.flops for product in redone)
    return Pass(again.seconds + seconds, again.flops + flops, again.inside)


def _product(design: Design, roof: Roofline, linear: Linear) -> _MatrixProducts:
    """Seconds on the busiest rank of the forward and both backward products of a weight matrix, and
    the FLOPs of one on the mean rank.
    """
    parallel, sizes = design.parallel, _sizes(design)
    rows, batch, busiest = float(sizes.rows), 1, 1.0
    inputs, outputs = linear.inputs, linear.outputs
    if linear.part == "expert":
        busiest = parallel.imbalance
        batch = design.model.experts // parallel.ep
        rows = (
            sizes.rows
            / sizes.split
            * design.model.top_k
            * parallel.ep
            * parallel.expert_tp
            * busiest
            / design.model.experts
        )
        if linear.name == "expert up":
            outputs //= parallel.expert_tp
        else:
            inputs //= parallel.expert_tp
        if parallel.ep == 1 and sizes.split == 1:
            rows /= parallel.tp  # every rank has the experts, and computes a part of the tokens
    elif linear.split == "outputs":
        outputs //= parallel.tp
    elif linear.split == "inputs":
        inputs //= parallel.tp
    if linear.part == "router":
        rows /= sizes.split
    short = linear.part == "expert"
    cast = _casts(
        design,
        roof,
        linear,
        batch * rows * inputs,
        batch * rows * outputs,
        batch * inputs * outputs,
    )
    return _MatrixProducts(
        linear,
        roof.gemm(rows, outputs, inputs, batch=batch, short=short) + cast[0],
        roof.gemm(rows, inputs, outputs, batch=batch, short=short) + cast[1],
        roof.gemm(inputs, outputs, rows, batch=batch, short=short)
        + _accumulation(design, roof, batch * inputs * outputs),
        2.0 * batch * rows / busiest * inputs * outputs,
    )


def _casts(
    design: Design, roof: Roofline, linear: Linear, inputs: float, outputs: float, weights: float
) -> tuple[float, float]:
    """Casts to 8 bits for a product's forward and backward pass: each reads 16 bits and writes two
    copies, one transposed.

    Norms write their output in 8 bits themselves. Weights are cast for every micro-batch, unless
    they are stored in 8 bits. Fused experts write what is inside them in 8 bits themselves.
    """
    if DTYPE_BYTES[design.dtype] > 1:
        return 0.0, 0.0
    if design.parallel.fused_experts and linear.part == "expert":
        inputs *= linear.name == "expert up"
        outputs *= linear.name == "expert down"
    in_8_bits = design.parallel.gathered == "fp8"
    forward = (0 if linear.split == "outputs" else inputs) + (0 if in_8_bits else weights)
    return roof.elementwise(2 * ELEMENT * forward), roof.elementwise(2 * ELEMENT * outputs)


def _accumulation(design: Design, roof: Roofline, parameters: float) -> float:
    """Gradient accumulation over micro-batches: 6 bytes per parameter, besides the product's
    output.

    For 16-bit gradients, both are read and the sum is written; for 32 bits, the product itself
    reads and writes the sum.
    """
    return roof.elementwise(6 * parameters) if design.micro_batches > 1 else 0.0


def _attention(design: Design, roof: Roofline) -> tuple[Pass, Pass]:
    """The attention core, forward and backward."""
    model, parallel = design.model, design.parallel
    heads, b = model.heads / parallel.tp, parallel.micro_batch
    s, every = design.sequence // parallel.cp, design.sequence
    if parallel.attention != "plain":  # causal: half of the products
        share, kernel = model.attention_share(every), parallel.attention
        causal = b * heads * s * every * (model.key_width + model.value_width)
        flops = share * causal
        timed = causal * model.attention_share(every, more_keys=WINDOW_KEYS)
        # On GB200 and GB300 the backward kernels of 8 bits take four times as long for twice the
        # sequence, with any window (NVIDIA/cudnn-frontend 3929da2, sdpa_benchmark_training).
        timed_backward = causal if kernel == "fp8" else timed
        shape = (b, heads, s, every, model.key_width, model.value_width) if share == 1 else ()
        width = (model.key_width + model.value_width) / 2
        return (
            Pass(roof.attention(timed, shape, width=width, kernel=kernel), flops),
            Pass(
                roof.attention(
                    2.5 * timed_backward, shape, width=width, backward=True, kernel=kernel
                ),
                2.5 * flops,
            ),
        )
    batch = max(1, round(b * heads))
    flops = 2.0 * batch * s * every * (model.key_width + model.value_width)
    products = roof.gemm(s, every, model.key_width, batch=batch, wide=True)
    products += roof.gemm(s, model.value_width, every, batch=batch, wide=True)
    backward_products = 2 * roof.gemm(s, every, model.value_width, batch=batch, wide=True)
    backward_products += 2 * roof.gemm(s, model.key_width, every, batch=batch, wide=True)
    scores = batch * s * every
    masks = (2 * ELEMENT + 1) if model.dropout else 0
    return (
        Pass(products + roof.elementwise(scores * (2 * ELEMENT + masks)), flops),
        Pass(backward_products + roof.elementwise(scores * (3 * ELEMENT + masks)), 2 * flops),
    )


def _elementwise(design: Design, roof: Roofline, *, moe: bool) -> tuple[float, float]:
    """Norms, dropout with residual, activation function, and transposing heads: forward and
    backward.

    Each counts the tensors that its fused kernel reads and writes.
    """
    model, parallel, sizes = design.model, design.parallel, _sizes(design)
    x = sizes.rows * sizes.hidden / sizes.split
    mask = 1 if model.dropout else 0
    heads = (
        sizes.rows
        * (model.heads * model.key_width + 2 * model.groups * model.key_width)
        / parallel.tp
    )
    wide = (3, 5) if model.gated else (2, 3)
    inner = sizes.rows * model.inner / parallel.tp
    turned = sizes.rows * (model.heads + model.groups) * model.key_width / parallel.tp
    rotated = turned if model.yarn else 0.0
    normed = turned if model.qk_norm else 0.0
    cast = (0.0, 0.0)
    if parallel.attention == "fp8":  # queries, keys and values; the gradient of the output
        cast = heads, sizes.rows * model.heads * model.value_width / parallel.tp
    biased = clamped = 0.0
    if moe:
        routed = sizes.rows / sizes.split * model.top_k * parallel.imbalance
        inner = sizes.rows * model.shared_experts * model.expert_inner / parallel.tp
        if not parallel.fused_experts:
            inner += routed * model.expert_inner
        x += routed * sizes.hidden / 2  # tokens are put in the order of experts, and back
        separate = 0.0 if parallel.fused_experts else routed
        biased = separate * sizes.hidden if model.expert_bias else 0.0
        clamped = separate * model.expert_inner if model.expert_clamp else 0.0
    forward = (
        2 * (2 * ELEMENT) * x
        + 2 * (3 * ELEMENT + mask) * x
        + wide[0] * ELEMENT * inner
        + 2 * ELEMENT * (heads + normed + cast[0])
    )
    backward = (
        2 * (3 * ELEMENT) * x
        + 2 * (5 * ELEMENT + mask) * x
        + wide[1] * ELEMENT * inner
        + ELEMENT * (2 * heads + 3 * normed + 2 * cast[1])
    )
    unfused_factor = design.calibration.unfused
    return (
        roof.elementwise(
            unfused_factor * forward
            + ROTATED_FORWARD * rotated
            + BIAS_FORWARD * biased
            + CLAMP_FORWARD * clamped
        ),
        roof.elementwise(
            unfused_factor * backward
            + ROTATED_BACKWARD * rotated
            + BIAS_BACKWARD * biased
            + CLAMP_BACKWARD * clamped
        ),
    )


def _starts(design: Design) -> float:
    """Time in which the kernels of a layer with experts begin and end, in both passes."""
    experts = design.model.experts // design.parallel.ep
    kernels = float(KERNELS)
    if not design.parallel.fused_experts:
        kernels += PRODUCT_KERNELS * experts / PRODUCT_STREAMS
        kernels += CAST_KERNELS * experts if DTYPE_BYTES[design.dtype] <= 1 else 0
    return kernels * design.gpu.number("kernel.floor", 0.0)


def _exchanges(
    design: Design, products: Sequence[_MatrixProducts], attention: float, *, moe: bool
) -> _Exchanges:
    """The collectives that a layer's passes wait for."""
    tensor = _tensor(design, products, moe=moe)
    context = _context(design, attention)
    computed = sum(product.forward for product in products) + attention
    experts = _experts(design, computed) if moe else ((), ())
    return _Exchanges(
        (*tensor.forward, *context[0], *experts[0]),
        (*tensor.to_input, *context[1], *experts[1]),
        tensor.to_weights,
        tensor.seconds,
    )


def _tensor(design: Design, products: Sequence[_MatrixProducts], *, moe: bool) -> _Exchanges:
    """Collectives of tensor parallelism: before and after attention, and before and after the MLP.

    Routed experts take the tokens of each rank's part of the sequence, without gathering them.
    """
    parallel, sizes = design.parallel, _sizes(design)
    if parallel.tp == 1:
        return _Exchanges()
    size = sizes.rows * sizes.hidden * ELEMENT
    if not parallel.sequence_parallel:
        reduce = (Inside("all_reduce", "tp", size, 2),)
        return _Exchanges(reduce, reduce)
    parts = ("attention",) if moe and not design.model.shared_experts else ("attention", "mlp")
    if not parallel.overlap_tp:
        count = len(parts)
        exchange = (
            Inside("all_gather", "tp", size, count),
            Inside("reduce_scatter", "tp", size, count),
        )
        return _Exchanges(exchange, exchange)
    halves = [
        _exchanges_beside_products(
            design, size, [product for product in products if product.linear.part == part]
        )
        for part in parts
    ]
    return _Exchanges(
        tuple(inner for half in halves for inner in half.forward),
        tuple(inner for half in halves for inner in half.to_input),
        tuple(inner for half in halves for inner in half.to_weights),
        sum(half.seconds for half in halves),
    )


def _exchanges_beside_products(
    design: Design, size: int, products: Sequence[_MatrixProducts]
) -> _Exchanges:
    """Collectives of attention or of the MLP, each beside a product of its own, as in Transformer
    Engine.

    A rank multiplies the rows that it has while the others' come around a ring. Where products are
    summed over ranks, they are computed in parts on the multiprocessors that are left, and the sum
    of the last part is beside nothing. In the backward pass gradients are summed beside the product
    for the weights. Experts have no such products: their collectives are waited for.
    """
    parallel = design.parallel
    columns = [product for product in products if product.linear.split == "outputs"]
    rows = [product for product in products if product.linear.split == "inputs"]
    units = design.gpu.number("units.count", SMALLEST_WAVE)
    share = EXCHANGE_UNITS / units
    summed = sum(product.forward for product in rows) / (1 - share)
    arriving = 1 - 1 / parallel.tp
    part, number = size // SCATTERED_PARTS, SCATTERED_PARTS - 1
    forward = (
        _gather_beside(size, arriving * sum(product.forward for product in columns)),
        Inside("reduce_scatter", "tp", part),
        Inside("reduce_scatter", "tp", part, number, 1.0, in_fs(summed / SCATTERED_PARTS)),
    )
    gathered = _gather_beside(size, arriving * sum(product.to_input for product in rows))
    weights = sum(product.to_weights for product in columns)
    if not weights or parallel.schedule == "zero-bubble":  # which delays the product for weights
        scattered = Inside("reduce_scatter", "tp", size)
        return _Exchanges(forward, (gathered, scattered), (), share * summed)
    scattered = Inside("reduce_scatter", "tp", size, 1, 1.0, in_fs(weights), share)
    return _Exchanges(forward, (gathered,), (scattered,), share * summed)


def _gather_beside(size: int, seconds: float) -> Inside:
    """An all_gather beside computation."""
    return Inside("all_gather", "tp", size, 1, 1.0, in_fs(seconds))


def _context(design: Design, attention: float) -> tuple[tuple[Inside, ...], tuple[Inside, ...]]:
    """Exchange of keys and values between context-parallel ranks; in a ring it overlaps the
    attention to the previous ones.
    """
    model, parallel = design.model, design.parallel
    if parallel.cp == 1:
        return (), ()
    tokens = parallel.micro_batch * design.sequence
    keys_values = (
        tokens * model.groups * (model.key_width + model.value_width) * ELEMENT // parallel.tp
    )
    if parallel.context == "ulysses":
        all_heads = (
            keys_values
            + tokens * model.heads * (model.key_width + model.value_width) * ELEMENT // parallel.tp
        )
        exchange = Inside("all_to_all", "cp", all_heads // parallel.cp // 4, 4)
        return (exchange,), (exchange,)
    hidden = in_fs(attention) if parallel.context == "ring" else 0
    forward = Inside("all_gather", "cp", keys_values, 1, 1.0, hidden)
    again = Inside("all_gather", "cp", keys_values, 1, 1.0, 2 * hidden)
    reduce = Inside("reduce_scatter", "cp", keys_values, 1, 1.0, hidden // 2)
    return (forward,), (again, reduce)


def _experts(design: Design, computed: float) -> tuple[tuple[Inside, ...], tuple[Inside, ...]]:
    """Dispatch of tokens to the ranks of their experts, and combine."""
    model, parallel, sizes = design.model, design.parallel, _sizes(design)
    tokens = sizes.rows // sizes.split
    gathered = _gathers_of_split_experts(design, tokens)
    if parallel.ep == 1:
        return gathered, gathered
    copies: float = model.top_k
    if parallel.dispatch == "once":
        places, copies = _sent_once(design)
        if places == parallel.ep:
            copies /= design.gpu.number("exchange.share", 1.0)
    size = round(tokens * copies * model.hidden * ELEMENT)
    hidden, share = 0, 0.0
    if parallel.overlap_ep:
        hidden = in_fs(computed) // 2
        share = parallel.exchange_units / design.gpu.number("units.count", SMALLEST_WAVE)
    exchange = Inside("all_to_all", "ep", size, 2, parallel.imbalance, hidden, share)
    return (exchange, *gathered), (exchange, *gathered)


def _gathers_of_split_experts(design: Design, tokens: int) -> tuple[Inside, ...]:
    """The collectives with which ranks that an expert is split over gather the tokens of all of
    them, and sum what it makes of them.
    """
    model, parallel = design.model, design.parallel
    if parallel.expert_tp == 1:
        return ()
    routed = tokens * model.top_k * parallel.imbalance
    size = round(routed * parallel.expert_tp * model.hidden * ELEMENT)
    return Inside("all_gather", "tp", size), Inside("reduce_scatter", "tp", size)


def _sent_once(design: Design) -> tuple[int, float]:
    """Number of nodes (ranks, on a single node), and the expected number of those with any of a
    token's experts, which are equally likely.

    Sent once to each, a token crosses the network that many times, minus the share that stays
    local, which equals that of its copies. A limit on nodes leaves the experts on so many of them,
    at least as many as hold the experts of a token.
    """
    model, parallel = design.model, design.parallel
    ranks = design.mesh.blocks(parallel.expert_axes, parallel.ep)[0][0]
    node = design.topology.groups.get("box", np.zeros(design.topology.nranks, np.int64))
    places = len(set(node[ranks].tolist()))
    places = parallel.ep if places == 1 else places
    on_one = model.experts // places
    reached = min(places, max(parallel.node_limit or places, -(-model.top_k // on_one)))
    experts = on_one * reached
    elsewhere = experts - on_one
    none = math.prod((elsewhere - choice) / (experts - choice) for choice in range(model.top_k))
    return places, reached * (1 - none)


def ends_of(design: Design) -> EndPasses:
    """Embedding and output head of a design."""
    model, parallel, sizes = design.model, design.parallel, _sizes(design)
    roof = roofline_of(design)
    x, columns = sizes.rows * sizes.hidden, model.vocabulary / parallel.tp
    look = roof.elementwise(2 * ELEMENT * x + (3 * ELEMENT * x if model.positions else 0))
    spread = roof.elementwise(3 * ELEMENT * x)
    flops = 2.0 * x * columns
    logits = sizes.rows * columns
    # In 32 bits: cast, maximum, difference, exponential, sum.
    loss = roof.elementwise(30 * logits + 2 * ELEMENT * x / sizes.split)
    loss_backward = roof.elementwise(14 * logits + 3 * ELEMENT * x / sizes.split)
    wide = parallel.head != "fp8" or DTYPE_BYTES[design.dtype] > 1
    forward = roof.gemm(sizes.rows, columns, sizes.hidden, wide=wide)
    backward = roof.gemm(sizes.rows, sizes.hidden, columns, wide=wide)
    backward += roof.gemm(sizes.hidden, columns, sizes.rows, wide=wide) + _accumulation(
        design, roof, sizes.hidden * columns
    )
    if not wide:
        forward += roof.elementwise(2 * ELEMENT * x)
        backward += roof.elementwise(2 * ELEMENT * logits)
    shared: tuple[Inside, ...] = ()
    if parallel.tp > 1:
        kind: CollectiveKind = "reduce_scatter" if parallel.sequence_parallel else "all_reduce"
        shared = (Inside(kind, "tp", round(x * ELEMENT)),)
    return EndPasses(
        (
            Pass(look, 0.0, shared),
            Pass(spread + _accumulation(design, roof, sizes.hidden * columns), 0.0),
        ),
        (Pass(forward + loss, flops), Pass(backward + loss_backward, 2 * flops, shared)),
    )


def optimizer_seconds(design: Design, parameters: int) -> float:
    """Time of the optimizer's update: Adam on 32-bit state, the gradient norm, and the scaling of
    16-bit gradients.

    Reads gradient, weight and two moments, and writes the latter three and the 16-bit weight: 30
    bytes; the norm reads gradients again.
    """
    gradient = DTYPE_BYTES[design.parallel.gradients]
    nbytes = 4 * 3 * 2 + 2 + 2 * gradient + (8 if gradient < 4 else 0)
    return roofline_of(design).elementwise(nbytes * parameters)
