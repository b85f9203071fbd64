"""One prefill and one decode step of a model that is served: roofline with floors, the collectives
of tensor and expert parallelism, and memory.

A batch is what is in flight at one moment; with ``output``, prompts of new requests take the
places of finished ones evenly, and nothing queues. Collectives are those of the library model; the
exchange of tokens may be that of DeepEP's kernels instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from math import ceil, log2
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from simcoll.errors import ConfigError, blamed_on, shown
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import convert_table, read_file
from simcoll.files.text import parse_toml
from simcoll.libraries.prediction import predict
from simcoll.topology import LINK_KINDS, Topology
from simcoll.training.design import Cluster, find_gpu, load_cluster, read_model
from simcoll.training.gpu import DTYPE_BYTES, Gpu, check_dtype
from simcoll.training.operators import SMALLEST_WAVE, Roofline
from simcoll.training.step_calibration import UNCALIBRATED
from simcoll.training.transformer import Linear, Model, linears
from simcoll.units import FS_PER_SECOND, UBPS_PER_BPS, parse_size

__all__ = [
    "ServedModel",
    "Serving",
    "ServingStep",
    "exchange_seconds",
    "is_serving",
    "load_serving",
    "prefill_key",
    "serving_cases",
    "serving_front",
    "serving_step",
]

MAX_BYTES = 2**20
MAX_CASES = 10_000
Phase: TypeAlias = Literal["prefill", "decode"]
KERNEL_US: Mapping[Phase, float] = {"decode": 2.5, "prefill": 12.0}
"""Least time of a kernel: launch, load and drain in a CUDA graph, and launched by the host.
``decode`` is assumed; ``prefill`` is chosen on all LLaMA rows of TensorRT-LLM
(measurements/serving)."""
KERNELS = {"attention": 5, "mlp": 4, "experts": 7}
"""Kernels of a layer's attention (norm, product, rotation and cache, attention, product), of a
dense MLP (norm, product, activation, product), and of experts besides (router, sort, gather,
products, activation, sum)."""
SKINNY_ROWS = 64
"""Rows up to which a product streams its weights with tiles as low as its rows."""
SPLIT_ROWS = 256
"""Rows up to which a product of a decode step is split along its depth too, so that few tiles
occupy all multiprocessors (split-K)."""
PRODUCT_US = {2: 3.3, 1: 5.5, 0.5: 7.0}
"""Start and drain of a skinny product in a CUDA graph, by bytes of an element, the kernel that
quantises its input included: least squares over products of up to 64 rows that
ai-dynamo/aiconfigurator (095f58a) measured, with TensorRT-LLM 1.2 and vLLM 0.19 on H100, H200 and
B200 (16 bits: 2.8 to 3.7 us, 8 bits in vLLM: 4.8 to 5.7, NVFP4: 6.4 to 8.9)."""
STREAM_SHARE = {2: 1.0, 1: 0.95, 0.5: 0.6}
"""Rate at which narrower weights are streamed, relative to those of 16 bits, from the same fits
(medians; 8 bits: 0.66 to 1, NVFP4: 0.55 to 0.75)."""
BLOCK_US, BLOCK_SHARE = 8.0, 0.8
"""The same with scales for blocks of 128 (DeepGEMM and its like): 5 to 12 us, 0.6 to 0.96."""
ATTENTION_US = 7.5
"""Start and drain of attention to a cache, with the sum over its parts: 7 to 14 us there, of which
the rotation takes one kernel."""
SKINNY_SHARE = 0.73
"""Share of the memory bandwidth at which skinny products of a GPU without ``skinny.share`` stream
their weights: the lowest of the three that were measured."""
UNPACKED_SHARE = 0.5
"""The same of experts whose kernels unpack weights to the type of the products: MXFP4 on Hopper, 16
to 64 rows, there 0.31 to 0.52."""
START_SHARE = 0.8
"""Share of such starts that shows when kernels follow each other in a graph, where the next one is
set up while the last drains. This and the next two are chosen together on the rows of
measurements/serving/2026.csv of half of the pairs of GPU and model (docs/accuracy-serving.md)."""
WAIT_US = 4.0
"""Time that ranks wait for each other in a one-shot all_reduce within a model, for each doubling of
their number: those of a kernel alone in a loop arrive together."""
EXPERT_SKEW = 0.7
"""Exponent of the popularity of experts over their rank (Zipf), which decides how many some token
chooses."""
SCALES = {0.5: 0.0625}
"""Bytes of the scales of an element: NVFP4's, one byte for 16."""
CACHE_SHARE = 0.7
"""Share of the memory bandwidth that attention to a cache reaches: the best of five on the A100
batches of LLaMA, and applied unchanged to all others."""
ONE_SHOT_SHARE = 0.5
"""Share of NVLink's rate at which a one-shot kernel reads from its peers: 0.34 to 0.55 of
TensorRT-LLM 1.2's on H200 at 0.5 to 2 MB (aiconfigurator)."""
DISPATCH_US = 10.0
"""Least time of a DeepEP kernel; assumed."""
DISPATCH_SHARE = (0.62, 0.85)
"""Shares of NVLink's and of a NIC's rate that DeepEP's low-latency kernels reach on H800: 98 to 127
of 200 GB/s, and 39 to 48 of 50 (its README)."""
EXCHANGE_UNITS = 20
"""Multiprocessors that forward tokens of prompts (DeepSeek-V3, arXiv 2412.19437, section 3.2.2);
the exchange of single tokens needs none while it waits."""
RESERVED_SHARE = 0.1
"""Share of the memory that servers leave to activations and workspaces (vLLM's default)."""


class Serving(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[serving]``: the batch, and how a replica of the model is split.

    Attributes
    ----------
    batch
        Sequences in flight in a replica, for a decode step.
    prompt, context
        Tokens of a sequence in a prefill step, and in the cache in a decode step; default of
        ``context``: the prompt.
    prefill_batch
        Sequences of a prefill step of a replica.
    tp, pp, dp, ep
        Ranks that split attention and dense matrices, stages, replicas of attention (each with its
        part of the batch and its own cache), and ranks over which experts are spread: 1 (split by
        ``tp``) or ``tp * dp``.
    output
        Tokens that each request gets. With it, a finished request is replaced by another, whose
        prompt delays all others (``token_seconds``).
    chunk
        Tokens of prompts that one step takes at most, with ``output``.
    kv_dtype
        Type of the cache; default: that of 16 bits.
    attention_dtype
        Type of weights and products of attention; default: that of the model.
    expert_dtype
        Type in which experts are stored; default: that of the model. Products stay in the model's.
    scales
        Scales of 8-bit weights and inputs: of a ``tensor``, or of every ``block`` of 128.
    cache_reads
        Whether a decode step reads the cache once for a ``group`` of heads that share it, or once
        for every ``head``, as kernels do that know no groups.
    all_reduce, all_reduce_us
        ``library``, or ``one_shot``: every rank reads all others' vectors (custom all_reduce,
        symmetric memory), where faster; and the least time of that kernel: 3.5 to 4.9 us measured
        on H100 and H200, 4.8 to 7.5 us on B200.
    step_us
        Time of the host between two steps that nothing hides.
    dispatch
        Exchange of tokens: ``deepep``, or ``library`` (all_to_all).
    overlap
        Two half batches in turn: the communication of one hides behind the computation of the
        other, and every kernel runs twice, on half of the rows.
    imbalance
        Load of the most loaded rank of experts over the mean.
    """

    batch: int = 1
    prompt: int = 2048
    context: int = 0
    prefill_batch: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    output: int = 0
    chunk: int = 8192
    kv_dtype: str = ""
    attention_dtype: str = ""
    expert_dtype: str = ""
    scales: Literal["tensor", "block"] = "tensor"
    cache_reads: Literal["group", "head"] = "group"
    all_reduce: Literal["library", "one_shot"] = "library"
    all_reduce_us: float = 4.5
    step_us: float = 0.0
    dispatch: Literal["deepep", "library"] = "deepep"
    overlap: bool = False
    imbalance: float = 1.0


class _ServingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    title: str = ""
    model: dict[str, Any]
    topology: Cluster
    gpu: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    serving: Serving = Serving()


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A model on a machine, and one way to serve it.

    Attributes
    ----------
    title, model, dtype
        For tables; the model; the type of weights and products.
    gpu, topology, memory_limit
        The GPU, the machine, and usable bytes of a GPU.
    serving, case
        The batch and the mapping, and the values that tell it from others of its file.
    """

    title: str
    model: Model
    dtype: str
    gpu: Gpu
    topology: Topology
    memory_limit: int
    serving: Serving
    case: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.serving.tp * self.serving.dp * self.serving.pp


@dataclass(frozen=True, slots=True)
class ServingStep:
    """A step of a served model.

    Attributes
    ----------
    phase, case
        ``prefill`` or ``decode``, and the values that tell the mapping from others.
    seconds
        From the first layer to the last, through all stages.
    token_seconds
        Mean time between two tokens of a sequence while prompts of new requests take the places of
        finished ones; 0 without ``output``, and in a prefill step.
    steady_rate
        Tokens a second for each GPU of such requests, prompts included in their time.
    tokens
        Tokens that enter or leave in it, over all replicas of attention.
    gpus
        GPUs of a replica.
    compute, communication, exposed
        Seconds of kernels, of collectives alone, and of collectives that nothing hides.
    floors
        Seconds in which kernels start and drain, or take their least time.
    weights, cache, memory_limit
        Bytes of a GPU: weights, cache of keys and values, and what may be used.
    """

    phase: Phase
    case: Mapping[str, Any]
    seconds: float
    token_seconds: float
    steady_rate: float
    tokens: int
    gpus: int
    compute: float
    communication: float
    exposed: float
    floors: float
    weights: int
    cache: int
    memory_limit: int

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Tokens a second of all sequences, for each GPU."""
        return self.tokens / self.seconds / self.gpus

    @property
    def latency(self) -> float:
        """Seconds that a sequence waits: for a token of steady traffic, or for the step."""
        return self.token_seconds or self.seconds

    @property
    def throughput(self) -> float:
        """Tokens a second for each GPU, of steady traffic if there is any."""
        return self.steady_rate or self.tokens_per_second_per_gpu

    @property
    def fits(self) -> bool:
        """Whether weights, cache and a tenth for workspaces fit."""
        return self.weights + self.cache <= self.memory_limit * (1 - RESERVED_SHARE)


def is_serving(path: str | Path) -> bool:
    """Whether a TOML file has a ``[serving]`` table."""
    return "serving" in parse_toml(read_file(path, MAX_BYTES), str(path))


def load_serving(path: FilePath) -> list[ServedModel]:
    """Load a design file with a ``[serving]`` table; every combination of its lists.

    Raises
    ------
    ConfigError
        With the file, the place in it, and the nearest valid choice.
    """
    file = path_of(path, "load_serving")
    with blamed_on(file):
        return serving_cases(parse_toml(read_file(file, MAX_BYTES), file), Path(file).parent)


def serving_cases(document: Mapping[str, Any], folder: Path = Path()) -> list[ServedModel]:
    """As :func:`load_serving`, from the tables of a file.

    Examples
    --------
    >>> tables = {
    ...     "model": {"name": "llama-3.1-8b", "dtype": "fp8"},
    ...     "topology": {"name": "dgx-h100"}, "serving": {"tp": [1, 2], "batch": 64},
    ... }
    >>> [served.case for served in serving_cases(tables)]
    [{'tp': 1}, {'tp': 2}]
    """
    table = document.get("serving", {})
    axes = {key: value for key, value in table.items() if isinstance(value, list)}
    for key, values in axes.items():
        if not values:
            raise ConfigError("an empty list; give at least one value", path=f"$.serving.{key}")
        twice = next((value for place, value in enumerate(values) if value in values[:place]), None)
        if twice is not None:
            raise ConfigError(f"a value twice: {shown(twice)}", path=f"$.serving.{key}")
    cases = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    if len(cases) > MAX_CASES:
        raise ConfigError(f"more than {MAX_CASES:,} cases; leave values out", path="$.serving")
    return [
        _model_of_case({**document, "serving": {**table, **case}}, case, folder) for case in cases
    ]


def _model_of_case(
    document: Mapping[str, Any], case: Mapping[str, Any], folder: Path
) -> ServedModel:
    record = convert_table(dict(document), _ServingFile)
    topology = load_cluster(record.topology, folder)
    training_keys = {"sequence": 1, "global_batch": 1}
    model, batch = read_model({**record.model, **training_keys}, folder)
    gpu = find_gpu(str(record.gpu.get("name", "")), topology, folder)
    check_dtype(gpu, batch.dtype)
    limit = gpu.memory_bytes
    if "memory" in record.limits:
        limit = min(limit, parse_size(record.limits["memory"], path="$.limits.memory"))
    served = ServedModel(
        record.title or model.name, model, batch.dtype, gpu, topology, limit, record.serving, case
    )
    _check(served)
    serving = served.serving
    if {"prompt", "context"} <= set(document["serving"]) and serving.context < serving.prompt:
        raise ConfigError(
            f"a context of {serving.context:,} tokens is shorter than the prompt of "
            f"{serving.prompt:,}, which it includes",
            path="$.serving.context",
        )
    return served


def _check(served: ServedModel) -> None:
    """Refuse numbers out of range, and splits that do not divide."""
    serving, model = served.serving, served.model
    for name in ("batch", "prompt", "prefill_batch", "chunk", "tp", "pp", "dp", "ep"):
        if not 1 <= getattr(serving, name) < 2**31:
            raise ConfigError(
                f"expected a whole number from 1 to {2**31 - 1}, got {getattr(serving, name)}",
                path=f"$.serving.{name}",
            )
    if not 0 <= serving.output < 2**31:
        raise ConfigError(
            f"expected a whole number from 0 to {2**31 - 1}, got {serving.output}",
            path="$.serving.output",
        )
    if serving.context < 0 or not 1 <= serving.imbalance < 1e6:
        raise ConfigError(
            f"expected a context of at least 0 and an imbalance of at least 1, got "
            f"{serving.context} and {serving.imbalance}",
            path="$.serving",
        )
    for name in ("kv_dtype", "attention_dtype", "expert_dtype"):
        dtype = getattr(serving, name)
        if dtype and dtype not in DTYPE_BYTES:
            raise ConfigError(
                f"unknown type {dtype!r}; expected one of {', '.join(DTYPE_BYTES)}",
                path=f"$.serving.{name}",
            )
    if serving.attention_dtype:
        check_dtype(served.gpu, serving.attention_dtype, path="$.serving.attention_dtype")
    if serving.expert_dtype and not model.experts:
        raise ConfigError("the model has no experts", path="$.serving.expert_dtype")
    for name in ("all_reduce_us", "step_us"):
        if not 0 <= getattr(serving, name) < 1e6:
            raise ConfigError(
                f"expected microseconds from 0 to 1,000,000, got {getattr(serving, name)}",
                path=f"$.serving.{name}",
            )
    if served.gpus > served.topology.nranks:
        raise ConfigError(
            f"tp {serving.tp} x dp {serving.dp} x pp {serving.pp} are {served.gpus} GPUs; the "
            f"machine has {served.topology.nranks}",
            path="$.serving",
        )
    spread = serving.tp * serving.dp
    if serving.ep > 1 and not model.experts:
        raise ConfigError("the model has no experts", path="$.serving.ep")
    if serving.ep not in {1, spread} or (serving.ep == 1 and serving.dp > 1 and model.experts):
        raise ConfigError(
            f"expected experts over all tp x dp = {spread} ranks, got ep = {serving.ep}",
            path="$.serving.ep",
        )
    for name, total, parts in (
        ("heads", model.heads, serving.tp),
        ("layers", model.layers, serving.pp),
    ):
        if total % parts:
            raise ConfigError(
                f"{total} {name} do not divide by {parts}",
                path=f"$.serving.{'tp' if name == 'heads' else 'pp'}",
            )


def serving_step(served: ServedModel, phase: Phase) -> ServingStep:
    """Time one step, and count its memory.

    Examples
    --------
    A decode step of one sequence reads all weights once: 7 GB of layers at 2.6 TB/s and 1 GB of the
    output head at 2.8 TB/s are 3 ms, to which starts of kernels add one.

    >>> (served,) = serving_cases({
    ...     "model": {"name": "llama-3.1-8b", "dtype": "fp8"}, "topology": {"name": "dgx-h100"},
    ...     "serving": {"context": 128},
    ... })
    >>> step = serving_step(served, "decode")
    >>> round(step.seconds * 1e3, 1), round(step.floors * 1e3, 1)
    (4.0, 1.0)
    """
    serving = served.serving
    sequences = serving.batch if phase == "decode" else serving.prefill_batch
    # Stages work on parts of the batch in turn; every part passes all stages.
    of_rank = max(1, ceil(sequences / serving.dp / serving.pp))
    context = serving.context or serving.prompt
    if phase == "prefill":
        work = _StepTokens(served, 0, 0, of_rank, serving.prompt)
    else:
        work = _StepTokens(served, of_rank, context, 0, 0)
    cost = _pass(work)
    token, rate = _steady(served, of_rank, context) if phase == "decode" else (0.0, 0.0)
    weights, cache = _memory(served, phase)
    irrelevant = {"batch", "context", "output"} if phase == "prefill" else {"prefill_batch"}
    return ServingStep(
        phase,
        {name: value for name, value in served.case.items() if name not in irrelevant},
        cost.seconds,
        token,
        rate / served.gpus,
        sequences * (serving.prompt if phase == "prefill" else 1),
        served.gpus,
        cost.compute,
        cost.communication,
        cost.exposed,
        cost.floors,
        weights,
        cache,
        served.memory_limit,
    )


def prefill_key(served: ServedModel) -> str:
    """What a prefill step depends on: all of ``[serving]`` but the batch of the decode step."""
    return repr(msgspec.structs.replace(served.serving, batch=1, context=0))


def serving_front(steps: Sequence[ServingStep]) -> list[ServingStep]:
    """The steps that fit and that no other beats in both tokens a second for each GPU and time, of
    steady traffic if there is any.
    """
    candidates = sorted(
        (step for step in steps if step.fits),
        key=lambda step: (step.latency, -step.throughput),
    )
    front: list[ServingStep] = []
    for step in candidates:
        best = front[-1].throughput if front else 0.0
        if step.throughput > best:
            front.append(step)
    return front


@dataclass(frozen=True, slots=True)
class _StepTokens:
    """What one rank computes in a step: tokens of sequences in flight, and prompts.

    Attributes
    ----------
    served
        The model and its mapping.
    decodes, context
        Sequences that get a token, and the length of each in the cache.
    prompts, prompt
        Prompts, which may be a fraction of one, and the length of each.
    """

    served: ServedModel
    decodes: int
    context: int
    prompts: float
    prompt: int

    @property
    def rows(self) -> float:
        """Tokens that pass the layers."""
        return self.decodes + self.prompts * self.prompt

    @property
    def phase(self) -> Phase:
        """How kernels are launched: steps without prompts by CUDA graphs."""
        return "prefill" if self.prompts else "decode"

    @property
    def least(self) -> float:
        """Least seconds of a kernel."""
        return KERNEL_US[self.phase] * 1e-6 * (1 if self.prompts else START_SHARE)


@dataclass(frozen=True, slots=True)
class _LayerTime:
    """Seconds of kernels and of collectives, and those in which kernels only start."""

    compute: float
    communication: float
    floors: float
    exposed: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of kernels, and of collectives that nothing hides."""
        return self.compute + self.exposed


def _pass(work: _StepTokens) -> _LayerTime:
    """All layers, the output head, and what stages send."""
    served, model, serving = work.served, work.served.model, work.served.serving
    host = serving.step_us * 1e-6
    parts = 2 if serving.overlap and max(work.decodes, work.prompts) > 1 else 1
    if parts == 2:
        work = replace(work, decodes=ceil(work.decodes / 2), prompts=work.prompts / 2)
    counts = {True: sum(model.is_moe(layer) for layer in range(model.layers))}
    counts[False] = model.layers - counts[True]
    costs = [(counts[moe], _layer(work, moe=moe)) for moe in (False, True) if counts[moe]]
    costs.append((1, _head(work)))
    compute = parts * sum(count * cost.compute for count, cost in costs)
    communication = parts * sum(count * cost.communication for count, cost in costs)
    floors = parts * sum(count * cost.floors for count, cost in costs)
    if serving.pp > 1:
        sent = ceil(work.rows) * model.hidden * 2
        communication += parts * _send_seconds(served, sent) * serving.pp
    if parts == 2 and work.prompts and _exchanges(served):
        # The exchange of prompts occupies multiprocessors of the half that computes.
        units = served.gpu.number("units.count", SMALLEST_WAVE)
        compute *= units / max(1.0, units - EXCHANGE_UNITS)
    exposed = max(0.0, communication - compute) if parts == 2 else communication
    return _LayerTime(compute + host, communication, floors, exposed)


def _steady(served: ServedModel, decodes: int, context: int) -> tuple[float, float]:
    """Mean seconds between tokens of a sequence while prompts take the places of finished ones, and
    tokens a second of a replica.

    A sequence lasts ``output`` steps, so that ``decodes / output`` prompts come in each. A step
    with prompts takes whole ones, up to ``chunk`` tokens; if more come than fit, fewer sequences
    are in flight. Replicas of attention wait for the one that has prompts.
    """
    serving = served.serving
    if not serving.output:
        return 0.0, 0.0
    capacity = max(1.0, serving.output * serving.chunk / serving.prompt)
    decodes = max(1, min(decodes, int(capacity)))
    alone = _pass(_StepTokens(served, decodes, context, 0, 0)).seconds
    # Its own prompt delays no token of a sequence, but all others' do.
    arriving = serving.prompt * decodes / serving.output
    tokens = min(float(serving.chunk), max(float(serving.prompt), arriving))
    mixed = _pass(
        _StepTokens(served, decodes, context, tokens / serving.prompt, serving.prompt)
    ).seconds
    often = min(1.0, arriving / tokens)
    gaps = [1 - (1 - often * part) ** serving.dp for part in ((decodes - 1) / decodes, 1)]
    seconds = [(1 - share) * alone + share * mixed for share in gaps]
    in_flight = min(serving.batch, decodes * serving.dp * serving.pp)
    return seconds[0], in_flight / seconds[1]


def _layer(work: _StepTokens, *, moe: bool) -> _LayerTime:
    """One layer on one rank."""
    model, rows, roof = work.served.model, work.rows, _roof(work.served)
    matrices = linears(model, moe=moe)
    kernels = [_linear_time(work, linear) for linear in matrices]
    kernels.append(_attention_time(work))
    small = [rows * model.hidden * 2 * 3] * max(0, KERNELS["attention"] - 3)
    if moe:
        copies = rows * model.top_k / (work.served.serving.tp if _exchanges(work.served) else 1)
        # Copies of tokens are gathered before and summed after the products of their experts.
        small += [rows * model.experts * 4, copies * model.hidden * 4, copies * model.hidden * 4]
        small += [copies * model.expert_inner * 6 / _split_experts(work.served.serving)]
    else:
        small += [rows * model.hidden * 2 * 3] * (KERNELS["mlp"] - 2)
    kernels += [_KernelTime(roof.elementwise(nbytes), 0.0) for nbytes in small]
    seconds = [max(kernel.start + kernel.seconds, work.least) for kernel in kernels]
    starts = [
        work.least if total <= work.least else kernel.start
        for kernel, total in zip(kernels, seconds, strict=True)
    ]
    return _LayerTime(sum(seconds), _layer_communication(work, moe=moe), sum(starts))


@dataclass(frozen=True, slots=True)
class _KernelTime:
    """Seconds of a kernel's work, and of its start and drain."""

    seconds: float
    start: float


def _roof(served: ServedModel, dtype: str = "") -> Roofline:
    return Roofline(served.gpu, UNCALIBRATED, dtype or served.dtype)


def _exchanges(served: ServedModel) -> bool:
    """Whether tokens travel to experts: ranks of ``tp`` alone all have them, and sum."""
    return served.serving.ep > 1 and served.serving.dp > 1


def _split_experts(serving: Serving) -> int:
    """Ranks that share one expert."""
    return serving.tp if serving.ep == 1 else 1


def _linear_time(work: _StepTokens, linear: Linear) -> _KernelTime:
    """A weight matrix on one rank: products at their rate, or weights streamed from memory."""
    served, serving, model = work.served, work.served.serving, work.served.model
    inputs, outputs, rows, batch = linear.inputs, linear.outputs, work.rows, 1
    stored = dtype = served.dtype
    if linear.part == "expert":
        stored = serving.expert_dtype or dtype
        tokens = rows * serving.dp if serving.ep > 1 else rows
        copies = tokens * model.top_k / serving.ep * serving.imbalance
        resident = model.experts / serving.ep
        batch = max(1, round(resident * _chosen_share(model.experts, model.top_k, tokens)))
        rows = copies / batch
        parts = _split_experts(serving)
        outputs //= parts if linear.name == "expert up" else 1
        inputs //= parts if linear.name != "expert up" else 1
    elif linear.part == "attention":
        stored = dtype = serving.attention_dtype or dtype
    elif linear.part == "router":
        stored = dtype = _roof(served).wide
    if linear.split == "outputs":
        outputs //= serving.tp
    elif linear.split == "inputs":
        inputs //= serving.tp
    shape = _ProductShape(rows, outputs, inputs, batch)
    return _product_time(work, shape, dtype, stored, grouped=linear.part == "expert")


@dataclass(frozen=True, slots=True)
class _ProductShape:
    """Rows, outputs and inputs of a product, and how many matrices it has."""

    rows: float
    outputs: int
    inputs: int
    batch: int = 1


@lru_cache(maxsize=4096)
def _chosen_share(experts: int, top_k: int, tokens: float) -> float:
    """Share of the experts that some token chooses."""
    ranks = np.arange(1, experts + 1, dtype=float)
    weights = ranks**-EXPERT_SKEW
    chosen = np.minimum(1.0, top_k * weights / weights.sum())
    return float(np.mean(1 - (1 - chosen) ** tokens))


def _product_time(
    work: _StepTokens,
    shape: _ProductShape,
    dtype: str,
    stored: str,
    *,
    grouped: bool = False,
) -> _KernelTime:
    """Products of a shape in a type, of weights in another."""
    rows, outputs, inputs, batch = shape.rows, shape.outputs, shape.inputs, shape.batch
    gpu, width = work.served.gpu, DTYPE_BYTES[stored]
    start = START_SHARE * PRODUCT_US.get(DTYPE_BYTES[dtype], PRODUCT_US[2]) * 1e-6
    share = gpu.number("skinny.share", SKINNY_SHARE)
    if width < DTYPE_BYTES[dtype] and f"peak.{stored}" not in gpu.values:
        share *= UNPACKED_SHARE
    elif width == 1 and work.served.serving.scales == "block":
        share, start = share * BLOCK_SHARE, START_SHARE * BLOCK_US * 1e-6
    elif not grouped:
        share *= STREAM_SHARE.get(width, 1.0)
    weights = (width + SCALES.get(width, 0.0)) * inputs * outputs
    moved = batch * (weights + 2 * rows * (inputs + outputs))
    streamed = moved / gpu.number("memory.bandwidth") / share
    if rows > (SPLIT_ROWS if work.phase == "decode" else SKINNY_ROWS):
        roof = _roof(work.served, dtype)
        return _KernelTime(max(streamed, roof.gemm(rows, outputs, inputs, batch=batch)), start)
    height = 16 if rows <= SKINNY_ROWS else SKINNY_ROWS
    padded = height * ceil(rows / height)
    flops = 2 * padded * outputs * inputs * batch
    return _KernelTime(max(streamed, flops / gpu.gemm(dtype)), start)


def _attention_time(work: _StepTokens) -> _KernelTime:
    """Attention of one rank's sequences to their caches, and among the tokens of prompts."""
    served, model, serving = work.served, work.served.model, work.served.serving
    heads = model.heads / serving.tp
    seconds = 0.0
    if work.prompts:
        width = model.key_width + model.value_width
        share = model.attention_share(work.prompt)
        flops = work.prompts * heads * work.prompt**2 * width * share
        seconds += _roof(served).attention(flops, width=width / 2)
    if work.decodes:
        seconds += _cache_seconds(work, heads)
    return _KernelTime(seconds, START_SHARE * ATTENTION_US * 1e-6 if work.decodes else 0.0)


def _cache_seconds(work: _StepTokens, heads: float) -> float:
    """Attention of sequences in flight to their caches."""
    served, model = work.served, work.served.model
    lengths = work.context * model.layers
    if model.window:
        skipped = max(0, work.context - model.window)
        lengths -= skipped * (model.windowed or model.layers)
    stored = work.decodes * lengths / model.layers * _cache_bytes(served)
    if served.serving.cache_reads == "head" and not model.kv_rank:
        stored *= heads / max(1, model.groups / served.serving.tp)
    seconds = stored / served.gpu.number("memory.bandwidth") / CACHE_SHARE
    if model.kv_rank:  # all heads attend to one compressed cache, which makes products of it
        width = 2 * model.kv_rank + model.rope_size
        flops = 2 * work.decodes * work.context * heads * width
        seconds = max(seconds, flops / served.gpu.gemm(_roof(served).wide))
    return seconds


def _cache_bytes(served: ServedModel) -> float:
    """Bytes of the cache of a token in a layer on one rank."""
    model = served.model
    element = DTYPE_BYTES[served.serving.kv_dtype or _roof(served).wide]
    if model.kv_rank:
        return element * (model.kv_rank + model.rope_size)  # every rank of tp has it
    groups = max(1, model.groups / served.serving.tp)
    return element * groups * (model.key_width + model.value_width)


def _head(work: _StepTokens) -> _LayerTime:
    """The output head in 16 bits, of the last token of each sequence, and the choice of a token."""
    served, model, serving = work.served, work.served.model, work.served.serving
    sequences = max(1, work.decodes + ceil(work.prompts))
    wide = _roof(served).wide
    shape = _ProductShape(sequences, model.vocabulary // serving.tp, model.hidden)
    product = _product_time(work, shape, wide, wide)
    gather = 0.0
    if serving.tp > 1:
        gather = _library_seconds(
            served.topology, "all_gather", sequences * model.vocabulary * 2, serving.tp
        )
    floor = work.least
    seconds = max(product.start + product.seconds, floor)
    return _LayerTime(seconds + 2 * floor, gather, 2 * floor + product.start)


def _layer_communication(work: _StepTokens, *, moe: bool) -> float:
    """The collectives of a layer: two all_reduces of tensor parallelism, or one and the exchange
    of tokens with experts.
    """
    served, serving, model = work.served, work.served.serving, work.served.model
    exchanges = moe and _exchanges(served)
    reductions = 1 if exchanges else 2
    seconds = reductions * _all_reduce_seconds(served, ceil(work.rows) * model.hidden * 2)
    if exchanges:
        tokens = work.rows / serving.tp
        for element in (1 if DTYPE_BYTES[served.dtype] <= 1 else 2, 2):
            nbytes = tokens * model.top_k * model.hidden * element * serving.imbalance
            seconds += exchange_seconds(served, nbytes, once=work.phase == "prefill")
    return seconds


def _all_reduce_seconds(served: ServedModel, nbytes: int) -> float:
    ranks = served.serving.tp
    if ranks == 1:
        return 0.0
    seconds = _library_seconds(served.topology, "all_reduce", nbytes, ranks)
    if served.serving.all_reduce == "one_shot":
        rate = _rates(served.topology)[0]
        one_shot = served.serving.all_reduce_us * 1e-6 + WAIT_US * 1e-6 * log2(ranks)
        one_shot += (ranks - 1) * nbytes / (ONE_SHOT_SHARE * rate)
        seconds = min(seconds, one_shot)
    return seconds


def exchange_seconds(served: ServedModel, nbytes: float, *, once: bool = False) -> float:
    """Tokens to experts or back: bytes of a rank, evenly to all ranks.

    With ``once`` (DeepEP's kernels for long inputs) a token crosses the network once for each node
    with experts of its, and is forwarded there.
    """
    ranks = served.serving.ep
    if served.serving.dispatch == "library":
        size = max(ranks, int(nbytes))
        return _library_seconds(served.topology, "all_to_all", size, ranks)
    nvlink, nic = _rates(served.topology)
    local = min(1.0, _domain(served.topology) / ranks)
    seconds = DISPATCH_US * 1e-6
    if local == 1 or not once:
        seconds += local * nbytes / (DISPATCH_SHARE[0] * nvlink)
    if local < 1 and once:
        nodes, copies = 1 / local, served.model.top_k
        distinct = nodes * (1 - (1 - local) ** copies)
        across = nbytes / copies * distinct * (1 - local) / (DISPATCH_SHARE[1] * nic)
        seconds += max(across, nbytes / (DISPATCH_SHARE[0] * nvlink))
    elif local < 1:
        seconds += (1 - local) * nbytes / (DISPATCH_SHARE[1] * nic)
    return seconds


def _send_seconds(served: ServedModel, nbytes: int) -> float:
    """Activations to the next stage, over the slower of the links of the machine."""
    nvlink, nic = _rates(served.topology)
    rate = nvlink if served.gpus <= _domain(served.topology) else nic
    return DISPATCH_US * 1e-6 + nbytes / rate


@cache
def _library_seconds(topology: Topology, collective: str, nbytes: int, ranks: int) -> float:
    return predict(collective, nbytes, topology, ranks=ranks).time_fs / FS_PER_SECOND


@cache
def _rates(topology: Topology) -> tuple[float, float]:
    """Bytes per second of a GPU's scale-up links, and of its NIC; 0 without one."""
    fast = {"nvlink", "link"}
    gpu_links = [
        (LINK_KINDS[kind], int(rate), int(tail))
        for kind, rate, tail in zip(
            topology.link_kind.tolist(),
            topology.link_capacity_uBps.tolist(),
            topology.link_src.tolist(),
            strict=True,
        )
    ]
    gpu_node = int(topology.rank_nodes[0])
    nvlink = sum(rate for kind, rate, tail in gpu_links if kind in fast and tail == gpu_node)
    nic = max((rate for kind, rate, _ in gpu_links if kind == "net"), default=0)
    cards = [
        rate
        for kind, rate, tail in gpu_links
        if kind == "net" and topology.node_kinds[tail] in {"nic", "gpu"}
    ]
    return nvlink / UBPS_PER_BPS, (min(cards) if cards else nic) / UBPS_PER_BPS


@cache
def _domain(topology: Topology) -> int:
    """GPUs that scale-up links join."""
    if "box" not in topology.groups:
        return topology.nranks
    return int(np.bincount(topology.groups["box"]).max())


def _memory(served: ServedModel, phase: Phase) -> tuple[int, int]:
    """Bytes of weights and cache on one GPU."""
    model, serving = served.model, served.serving
    matrices = sum(
        linear.inputs
        * linear.outputs
        * _stored_bytes(served, linear)
        * (model.experts if linear.part == "expert" else 1)
        / _split(serving, linear)
        for layer in range(model.layers)
        for linear in linears(model, moe=model.is_moe(layer))
    )
    layers = matrices / serving.pp
    # The first and the last stage have one of the two embeddings.
    ends = (model.embedding_parameters + model.head_parameters) * 2 / serving.tp
    in_flight = serving.batch if phase == "decode" else serving.prefill_batch
    length = serving.prompt if phase == "prefill" else (serving.context or serving.prompt)
    tokens = ceil(in_flight / serving.dp) * length
    cache = tokens * _cache_bytes(served) * model.layers / serving.pp
    return int(layers + ends / min(serving.pp, 2)), int(cache)


def _stored_bytes(served: ServedModel, linear: Linear) -> float:
    """Bytes of an element of a weight matrix, with its scales."""
    serving = served.serving
    dtypes = {"attention": serving.attention_dtype, "expert": serving.expert_dtype}
    width = DTYPE_BYTES[dtypes.get(linear.part, "") or served.dtype]
    return width + SCALES.get(width, 0.0)


def _split(serving: Serving, linear: Linear) -> int:
    """Ranks that share a weight matrix."""
    if linear.part == "expert":
        return serving.ep if serving.ep > 1 else serving.tp
    return serving.tp if linear.split else 1
