"""Defaults of a design that depend on its other values: those of a well-run job.

Constant defaults (distributed optimizer, selective recomputation, overlap of data parallelism,
sequence parallelism) stand in :class:`~simcoll.training.parallel.Parallel`; these need the model,
its batch and the cluster.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from simcoll.errors import ConfigError
from simcoll.training.parallel import Parallel, layers_of_chunks

if TYPE_CHECKING:
    from simcoll.training.transformer import Model

__all__ = ["LONG_SEQUENCE", "MESH_KEYS", "complete_parallel", "default_chunks"]

LONG_SEQUENCE = 32_768
"""Tokens of a sequence from which on it is split over GPUs by default."""
RANK_TOKENS = 8192
"""Tokens of such a sequence on a GPU: Llama 3 trains 131,072 on 16 GPUs (arXiv 2407.21783)."""
MOST_CHUNKS = 8
"""Most chunks of a stage by default: NVIDIA's submission of Llama 3.1 405B to MLPerf v5.0."""
MESH_KEYS = frozenset({"tp", "cp", "dp", "pp", "ep", "order"})
"""Keys that fix the mesh of a design."""


def complete_parallel(
    parallel: Parallel,
    stated: Collection[str],
    model: Model,
    *,
    sequence: int,
    global_batch: int,
    gpus: int,
) -> Parallel:
    """Complete a parallelisation by what its file does not state.

    Context parallelism splits sequences of :data:`LONG_SEQUENCE` tokens or more, if the file states
    no key of the mesh; a pipeline is interleaved as finely as is legal, up to eight chunks a stage.

    Parameters
    ----------
    stated
        The keys of ``[parallel]`` that the file states.
    sequence, global_batch, gpus
        Tokens of a sequence, sequences of a step, and the size of the cluster.

    Examples
    --------
    >>> from simcoll.training.transformer import shipped_model
    >>> sizes = {"sequence": 8192, "global_batch": 1152, "gpus": 512}
    >>> mesh = {"tp": 8, "cp": 2, "pp": 8, "split": "embeddings"}
    >>> complete_parallel(Parallel(**mesh), mesh, shipped_model("llama-3.1-405b"), **sizes).virtual
    8
    """
    if not MESH_KEYS.intersection(stated) and sequence >= LONG_SEQUENCE:
        degree = _context_degree(sequence, global_batch, gpus, parallel.micro_batch)
        parallel = msgspec.structs.replace(parallel, cp=degree)
    if "virtual" not in stated:
        ranks = parallel.tp * parallel.cp * parallel.pp
        dp = parallel.dp or max(1, gpus // ranks)
        micro_batches = global_batch // (dp * parallel.micro_batch)
        chunks = default_chunks(model, parallel, micro_batches)
        parallel = msgspec.structs.replace(parallel, virtual=chunks)
    return parallel


def default_chunks(model: Model, parallel: Parallel, micro_batches: int) -> int:
    """The most chunks per stage that are legal, up to eight; 1: no interleaving."""
    if parallel.pp == 1 or parallel.schedule != "1f1b" or micro_batches % parallel.pp:
        return 1
    for chunks in range(MOST_CHUNKS, 1, -1):
        try:
            layers_of_chunks(model, msgspec.structs.replace(parallel, virtual=chunks))
        except ConfigError:
            continue
        return chunks
    return 1


def _context_degree(sequence: int, global_batch: int, gpus: int, micro_batch: int) -> int:
    """The greatest power of 2 that leaves a GPU at least :data:`RANK_TOKENS` and divides."""
    degree = 1
    for power in range(1, (sequence // RANK_TOKENS).bit_length()):
        ranks = 2**power
        divides = not (sequence % ranks or gpus % ranks)
        if divides and not global_batch % (gpus // ranks * micro_batch):
            degree = ranks
    return degree
