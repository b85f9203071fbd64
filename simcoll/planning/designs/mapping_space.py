"""The legal mappings of a model onto a cluster: everything that ``[parallel]`` does not state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcoll.errors import ConfigError
from simcoll.topology import Topology
from simcoll.training.parallel import Parallel, layers_of_chunks
from simcoll.training.transformer import Model

__all__ = ["NOT_SEARCHED", "MappingInputs", "mappings"]

MOST_CHUNKS = 8
MOST_SEQUENCES = 8
"""Sequences of a micro-batch: more only add memory once the products fill the GPU."""
FEWEST_TOKENS = 2048
"""Tokens of a sequence on a GPU below which context parallelism only adds exchanges."""
NOT_SEARCHED = (
    "tensor parallelism beyond a node or rack, more than 8 chunks a stage, micro-batches of more "
    "than 8 sequences, less than 2,048 tokens of a sequence on a GPU, uneven stages but for one "
    "layer, other orders of the axes, zero-bubble schedules, ZeRO-2 and hybrid sharding, "
    "offloading, Ulysses, types of gradients, partial recomputation of operators, experts split "
    "over tensor-parallel ranks"
)
"""What a search leaves out, unless ``[parallel]`` states it."""


@dataclass(frozen=True, slots=True)
class MappingInputs:
    """What a mapping must divide: a model, its batch, and a cluster.

    Attributes
    ----------
    model, sequence, global_batch
        As in a design.
    gpus
        Size of the cluster.
    domain
        GPUs of the smallest node or rack, over which tensor parallelism may spread.
    """

    model: Model
    sequence: int
    global_batch: int
    gpus: int
    domain: int

    @staticmethod
    def domain_of(topology: Topology) -> int:
        """GPUs of the largest node of a topology; all of them where it names none."""
        boxes = topology.groups.get("box")
        return topology.nranks if boxes is None else int(np.bincount(boxes).max())


def mappings(inputs: MappingInputs, stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The keys of ``[parallel]`` of every legal mapping, without those for recomputation.

    Parameters
    ----------
    stated
        Keys that are held: only mappings with these values.

    Examples
    --------
    >>> from simcoll.training.transformer import shipped_model
    >>> inputs = MappingInputs(shipped_model("llama-3.1-8b"), 8192, 32, 16, 8)
    >>> found = list(mappings(inputs, {"shard": "optimizer", "micro_batch": 1}))
    >>> sorted({(one["tp"], one["cp"], one["pp"]) for one in found})[:4]
    [(1, 1, 1), (1, 1, 2), (1, 1, 4), (1, 1, 8)]
    """
    for degrees in _degrees(inputs, stated):
        ranks = degrees["tp"] * degrees["cp"] * degrees["pp"]
        dp = inputs.gpus // ranks
        for micro_batch in _values(stated, "micro_batch", _micro_batches(inputs, dp)):
            if inputs.global_batch % (dp * micro_batch):
                continue
            micro_batches = inputs.global_batch // (dp * micro_batch)
            mesh = {**degrees, "micro_batch": micro_batch}
            for layers in _layer_splits(inputs.model, degrees["pp"], micro_batches, stated):
                for exchanges in _exchanges(degrees, stated):
                    for shard in _shards(dp * degrees["cp"], stated):
                        yield {**stated, **mesh, **layers, **exchanges, "shard": shard}


def _values(stated: Mapping[str, Any], key: str, choices: Sequence[Any]) -> Sequence[Any]:
    """The stated value of a key, or its choices."""
    return [stated[key]] if key in stated else choices


def _divisors(number: int, limit: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


def _degrees(inputs: MappingInputs, stated: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Legal degrees of tensor, context, pipeline and expert parallelism."""
    model, gpus = inputs.model, inputs.gpus
    tensor = [
        degree
        for degree in _divisors(model.heads, inputs.domain)
        if not (model.inner % degree or gpus % degree)
    ]
    longest = max(1, inputs.sequence // FEWEST_TOKENS)
    context = [degree for degree in _divisors(inputs.sequence, longest) if gpus % degree == 0]
    stages = _divisors(gpus, model.layers)
    for tp in _values(stated, "tp", tensor):
        for cp in _values(stated, "cp", context):
            for pp in _values(stated, "pp", stages):
                dp, remainder = divmod(gpus, tp * cp * pp)
                if remainder or not dp or inputs.sequence % (tp * cp):
                    continue
                if stated.get("dp") not in (None, 0, dp):
                    continue
                experts = _divisors(model.experts, tp * cp * dp) if model.experts else [1]
                for ep in _values(stated, "ep", experts):
                    if tp * cp * dp % ep == 0:
                        yield {"tp": tp, "cp": cp, "pp": pp, "ep": ep}


def _micro_batches(inputs: MappingInputs, dp: int) -> list[int]:
    """Powers of 2 that divide the sequences of a data-parallel rank."""
    sequences, remainder = divmod(inputs.global_batch, dp)
    if remainder:
        return []
    sizes = [2**power for power in range(MOST_SEQUENCES.bit_length())]
    return [size for size in sizes if size <= sequences and sequences % size == 0]


def _layer_splits(
    model: Model, stages: int, micro_batches: int, stated: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Legal numbers of chunks, with the split of layers that each needs."""
    counts = [1]
    if stages > 1 and stated.get("schedule", "1f1b") == "1f1b" and micro_batches % stages == 0:
        counts += range(2, MOST_CHUNKS + 1)
    for count in _values(stated, "virtual", counts):
        for split in _values(stated, "split", ["even", "embeddings"]):
            if _is_legal(model, stages, count, split):
                yield {"virtual": count, "split": split}
                break
        else:
            if count == 1 and "split" not in stated and stages <= model.layers:
                yield {"virtual": 1, "split": _balanced_split(model.layers, stages)}


def _is_legal(model: Model, stages: int, count: int, split: Any) -> bool:
    parts = tuple(split) if isinstance(split, list) else split
    try:
        layers_of_chunks(model, Parallel(pp=stages, virtual=count, split=parts))
    except ConfigError:
        return False
    return True


def _balanced_split(layers: int, stages: int) -> list[int]:
    """Layers of each stage that differ by at most one; first and last stage have fewer."""
    share, remainder = divmod(layers, stages)
    order = sorted(range(stages), key=lambda stage: (stage == 0) + 2 * (stage == stages - 1))
    longer = set(order[:remainder])
    return [share + (stage in longer) for stage in range(stages)]


def _exchanges(degrees: Mapping[str, int], stated: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Ways to overlap tensor parallelism, and to send tokens to experts."""
    spreads = degrees["ep"] > 1
    by_parts = degrees["tp"] > 1 and stated.get("sequence_parallel", True)
    for overlap_tp in _values(stated, "overlap_tp", [by_parts]):
        for overlap_ep in _values(stated, "overlap_ep", [False, True] if spreads else [False]):
            ways = ["copies", "once"] if spreads else ["copies"]
            for dispatch in _values(stated, "dispatch", ways):
                yield {
                    "overlap_tp": overlap_tp,
                    "overlap_ep": overlap_ep,
                    "dispatch": dispatch,
                }


def _shards(copies: int, stated: Mapping[str, Any]) -> Sequence[str]:
    return _values(stated, "shard", ["optimizer", "parameters"] if copies > 1 else ["optimizer"])
