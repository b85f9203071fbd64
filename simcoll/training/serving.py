"""One prefill and one decode step of a model that is served: roofline with floors, the collectives
of tensor and expert parallelism, and memory.

No requests, queues or batching over time: a batch is what is in flight at one moment. Collectives
are those of the library model; the exchange of tokens may be that of DeepEP's kernels instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil
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
from simcoll.training.operators import Roofline
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
WEIGHT_SHARE = 0.8
"""Share of the memory bandwidth that skinny products reach; assumed."""
CACHE_SHARE = 0.7
"""Share of the memory bandwidth that attention to a cache reaches: the best of five on the A100
batches of LLaMA, and applied unchanged to all others."""
BARRIER_US = 3.0
"""Two crossings of a barrier over NVLink and the start of a one-shot kernel; assumed."""
DISPATCH_US = 10.0
"""Least time of a DeepEP kernel; assumed."""
DISPATCH_SHARE = (0.62, 0.85)
"""Shares of NVLink's and of a NIC's rate that DeepEP's low-latency kernels reach on H800: 98 to 127
of 200 GB/s, and 39 to 48 of 50 (its README)."""
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
    kv_dtype
        Type of the cache; default: that of 16 bits.
    cache_reads
        Whether a decode step reads the cache once for a ``group`` of heads that share it, or once
        for every ``head``, as kernels do that know no groups.
    all_reduce
        ``library``, or ``one_shot``: every rank reads all others' vectors (custom all_reduce,
        symmetric memory), where faster.
    dispatch
        Exchange of tokens: ``deepep``, or ``library`` (all_to_all).
    overlap
        Two half batches in turn: the communication of one hides behind the computation of the
        other.
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
    kv_dtype: str = ""
    cache_reads: Literal["group", "head"] = "group"
    all_reduce: Literal["library", "one_shot"] = "library"
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
    tokens
        Tokens that enter or leave in it, over all replicas of attention.
    gpus
        GPUs of a replica.
    compute, communication, exposed
        Seconds of kernels, of collectives alone, and of collectives that nothing hides.
    floors
        Seconds of kernels that are no longer than their floor.
    weights, cache, memory_limit
        Bytes of a GPU: weights, cache of keys and values, and what may be used.
    """

    phase: Phase
    case: Mapping[str, Any]
    seconds: float
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
    for name in ("batch", "prompt", "prefill_batch", "tp", "pp", "dp", "ep"):
        if not 1 <= getattr(serving, name) < 2**31:
            raise ConfigError(
                f"expected a whole number from 1 to {2**31 - 1}, got {getattr(serving, name)}",
                path=f"$.serving.{name}",
            )
    if serving.context < 0 or not 1 <= serving.imbalance < 1e6:
        raise ConfigError(
            f"expected a context of at least 0 and an imbalance of at least 1, got "
            f"{serving.context} and {serving.imbalance}",
            path="$.serving",
        )
    if serving.kv_dtype and serving.kv_dtype not in DTYPE_BYTES:
        raise ConfigError(
            f"unknown type {serving.kv_dtype!r}; expected one of {', '.join(DTYPE_BYTES)}",
            path="$.serving.kv_dtype",
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
    A decode step of one sequence reads all weights once: 7.5 GB at 80 % of 3.35 TB/s are 2.8 ms.

    >>> (served,) = serving_cases({
    ...     "model": {"name": "llama-3.1-8b", "dtype": "fp8"}, "topology": {"name": "dgx-h100"},
    ...     "serving": {"context": 128},
    ... })
    >>> step = serving_step(served, "decode")
    >>> 2.8 < step.seconds * 1e3 < 3.5
    True
    """
    serving, model = served.serving, served.model
    sequences = serving.batch if phase == "decode" else serving.prefill_batch
    # Stages work on parts of the batch in turn; every part passes all stages.
    of_rank = max(1, ceil(sequences / serving.dp / serving.pp))
    length = serving.prompt if phase == "prefill" else 1
    rows = of_rank * length
    context = serving.prompt if phase == "prefill" else (serving.context or serving.prompt)
    layer_costs = {
        moe: _layer(served, phase, of_rank, rows, context, moe=moe) for moe in (False, True)
    }
    counts = {True: sum(model.is_moe(layer) for layer in range(model.layers))}
    counts[False] = model.layers - counts[True]
    costs = [(counts[moe], layer_costs[moe]) for moe in (False, True) if counts[moe]]
    head = _head(served, phase, of_rank)
    compute = head.compute + sum(count * cost.compute for count, cost in costs)
    communication = head.communication + sum(count * cost.communication for count, cost in costs)
    floors = head.floors + sum(count * cost.floors for count, cost in costs)
    if serving.pp > 1:
        sends = _send_seconds(served, rows * model.hidden * 2) * serving.pp
        communication += sends
    exposed = max(0.0, communication - compute) if serving.overlap else communication
    weights, cache = _memory(served, phase)
    irrelevant = {"batch", "context"} if phase == "prefill" else {"prefill_batch"}
    return ServingStep(
        phase,
        {name: value for name, value in served.case.items() if name not in irrelevant},
        compute + exposed,
        sequences * length,
        served.gpus,
        compute,
        communication,
        exposed,
        floors,
        weights,
        cache,
        served.memory_limit,
    )


def prefill_key(served: ServedModel) -> str:
    """What a prefill step depends on: all of ``[serving]`` but the batch of the decode step."""
    return repr(msgspec.structs.replace(served.serving, batch=1, context=0))


def serving_front(steps: Sequence[ServingStep]) -> list[ServingStep]:
    """The steps that fit and that no other beats in both tokens a second for each GPU and time."""
    candidates = sorted(
        (step for step in steps if step.fits),
        key=lambda step: (step.seconds, -step.tokens_per_second_per_gpu),
    )
    front: list[ServingStep] = []
    for step in candidates:
        best = front[-1].tokens_per_second_per_gpu if front else 0.0
        if step.tokens_per_second_per_gpu > best:
            front.append(step)
    return front


@dataclass(frozen=True, slots=True)
class _LayerTime:
    """Seconds of kernels and of collectives, and those of kernels at their floor."""

    compute: float
    communication: float
    floors: float


def _layer(
    served: ServedModel, phase: Phase, sequences: int, rows: int, context: int, *, moe: bool
) -> _LayerTime:
    """One layer on one rank."""
    floor = KERNEL_US[phase] * 1e-6
    matrices = linears(served.model, moe=moe)
    kernels = [_linear_seconds(served, phase, linear, rows) for linear in matrices]
    kernels.append(_attention_seconds(served, phase, sequences, context))
    names = ("attention", "experts" if moe else "mlp")
    small = sum(KERNELS[name] for name in names) - len(kernels)
    roof = _roof(served)
    kernels += [roof.elementwise(rows * served.model.hidden * 2 * 3)] * max(0, small)
    seconds = [max(kernel, floor) for kernel in kernels]
    short = sum(floor for kernel in kernels if kernel <= floor)
    return _LayerTime(sum(seconds), _layer_communication(served, sequences, rows, moe=moe), short)


def _roof(served: ServedModel) -> Roofline:
    return Roofline(served.gpu, UNCALIBRATED, served.dtype)


def _linear_seconds(served: ServedModel, phase: Phase, linear: Linear, rows: float) -> float:
    """A weight matrix on one rank: products at their rate, or weights streamed from memory."""
    serving, model = served.serving, served.model
    inputs, outputs, batch = linear.inputs, linear.outputs, 1
    if linear.part == "expert":
        ranks = serving.ep
        copies = rows * serving.dp * model.top_k if ranks > 1 else rows * model.top_k
        resident = model.experts // ranks if ranks > 1 else model.experts
        copies = copies / ranks * serving.imbalance
        batch = max(1, min(resident, ceil(copies)))
        rows = copies / batch
        if ranks == 1 and linear.name == "expert up":
            outputs //= serving.tp
        elif ranks == 1:
            inputs //= serving.tp
    elif linear.split == "outputs":
        outputs //= serving.tp
    elif linear.split == "inputs":
        inputs //= serving.tp
    return _product_seconds(served, phase, rows, outputs, inputs, batch)


def _product_seconds(
    served: ServedModel, phase: Phase, rows: float, outputs: int, inputs: int, batch: int = 1
) -> float:
    moved = batch * (DTYPE_BYTES[served.dtype] * inputs * outputs + 2 * rows * (inputs + outputs))
    streamed = moved / served.gpu.number("memory.bandwidth") / WEIGHT_SHARE
    if rows > (SPLIT_ROWS if phase == "decode" else SKINNY_ROWS):
        return max(streamed, _roof(served).gemm(rows, outputs, inputs, batch=batch))
    height = 16 if rows <= SKINNY_ROWS else SKINNY_ROWS
    padded = height * ceil(rows / height)
    flops = 2 * padded * outputs * inputs * batch
    return max(streamed, flops / served.gpu.gemm(served.dtype))


def _attention_seconds(served: ServedModel, phase: Phase, sequences: int, context: int) -> float:
    """Attention of one rank's sequences to their caches, or among the tokens of a prompt."""
    model, serving = served.model, served.serving
    heads = model.heads / serving.tp
    share = model.attention_share(context)
    if phase == "prefill":
        width = model.key_width + model.value_width
        flops = sequences * heads * context**2 * width * share
        return _roof(served).attention(flops, width=width / 2)
    stored = sequences * context * share * _cache_bytes(served)
    if serving.cache_reads == "head" and not model.kv_rank:
        stored *= heads / max(1, model.groups / serving.tp)
    seconds = stored / served.gpu.number("memory.bandwidth") / CACHE_SHARE
    if model.kv_rank:  # all heads attend to one compressed cache, which makes products of it
        width = 2 * model.kv_rank + model.rope_size
        flops = 2 * sequences * context * heads * width
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


def _head(served: ServedModel, phase: Phase, sequences: int) -> _LayerTime:
    """The output head, of the last token of each sequence."""
    model, serving = served.model, served.serving
    seconds = _product_seconds(
        served, phase, sequences, model.vocabulary // serving.tp, model.hidden
    )
    floor = KERNEL_US[phase] * 1e-6
    gather = 0.0
    if serving.tp > 1:
        gather = _library_seconds(
            served.topology, "all_gather", sequences * model.vocabulary * 2, serving.tp
        )
    return _LayerTime(max(seconds, floor) + 2 * floor, gather, 2 * floor)


def _layer_communication(served: ServedModel, sequences: int, rows: int, *, moe: bool) -> float:
    """The collectives of a layer: two all_reduces of tensor parallelism, or one and the exchange
    of tokens with experts.
    """
    serving, model = served.serving, served.model
    reductions = 1 if moe and serving.ep > 1 else 2
    seconds = reductions * _all_reduce_seconds(served, rows * model.hidden * 2)
    if moe and serving.ep > 1:
        tokens = rows / serving.tp
        for element in (1 if DTYPE_BYTES[served.dtype] <= 1 else 2, 2):
            nbytes = tokens * model.top_k * model.hidden * element * serving.imbalance
            seconds += exchange_seconds(served, nbytes, once=rows > sequences)
    return seconds


def _all_reduce_seconds(served: ServedModel, nbytes: int) -> float:
    ranks = served.serving.tp
    if ranks == 1:
        return 0.0
    seconds = _library_seconds(served.topology, "all_reduce", nbytes, ranks)
    if served.serving.all_reduce == "one_shot":
        rate = _rates(served.topology)[0]
        one_shot = BARRIER_US * 1e-6 + (ranks - 1) * nbytes / rate
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
        * (model.experts if linear.part == "expert" else 1)
        / _split(serving, linear)
        for layer in range(model.layers)
        for linear in linears(model, moe=model.is_moe(layer))
    )
    layers = matrices * DTYPE_BYTES[served.dtype] / serving.pp
    # The first and the last stage have one of the two embeddings.
    ends = (model.embedding_parameters + model.head_parameters) * 2 / serving.tp
    in_flight = serving.batch if phase == "decode" else serving.prefill_batch
    length = serving.prompt if phase == "prefill" else (serving.context or serving.prompt)
    tokens = ceil(in_flight / serving.dp) * length
    cache = tokens * _cache_bytes(served) * model.layers / serving.pp
    return int(layers + ends / min(serving.pp, 2)), int(cache)


def _split(serving: Serving, linear: Linear) -> int:
    """Ranks that share a weight matrix."""
    if linear.part == "expert":
        return serving.ep if serving.ep > 1 else serving.tp
    return serving.tp if linear.split else 1
