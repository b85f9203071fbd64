"""What a design lacks of a well-run job, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from simcoll.training.defaults import LONG_SEQUENCE, default_chunks
from simcoll.training.memory import memory_by_stage
from simcoll.units import format_time

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = ["shortfalls"]


def shortfalls(design: Design, exposed_fs: Mapping[str, int], bubble_fs: int) -> Iterator[str]:
    """A line for each default of a well-run job that the design does without.

    Parameters
    ----------
    exposed_fs
        Exposed time of each axis; empty if it was not found.
    bubble_fs
        The bubble of the pipeline.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> made = design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 16},
    ...     "topology": {"name": "dgx-h100"}, "parallel": {"tp": 2, "overlap_dp": False},
    ... })
    >>> list(shortfalls(made, {"dp": 10**12}, 0))
    ['no overlap of data parallelism (overlap_dp): 1 ms exposed']
    """
    parallel = design.parallel
    copies = design.mesh.size("dp") * design.mesh.size("cp")
    if copies > 1 and not parallel.overlap_dp:
        spent_fs = sum(exposed_fs.get(axis, 0) for axis in ("dp", "edp", "shard", "replica"))
        cost = f": {format_time(spent_fs)} exposed" if spent_fs > 0 else ""
        yield f"no overlap of data parallelism (overlap_dp){cost}"
    if copies > 1 and parallel.shard == "none":
        saved = _peak(design) - _peak(_with(design, shard="optimizer"))
        yield f"no distributed optimizer (shard): {saved / 2**30:.1f} GiB more on a GPU"
    chunks = default_chunks(design.model, parallel, design.micro_batches)
    if parallel.virtual == 1 < chunks and isinstance(parallel.split, str):
        yield (
            f"no interleaving (virtual = {chunks} is legal): a bubble of {format_time(bubble_fs)}"
        )
    spent_tp_fs = exposed_fs.get("tp", 0)
    if parallel.sequence_parallel and not parallel.overlap_tp and spent_tp_fs > 0:
        yield f"no overlap of tensor parallelism (overlap_tp): {format_time(spent_tp_fs)} exposed"
    if parallel.tp > 1 and not parallel.sequence_parallel:
        yield "no sequence parallelism (sequence_parallel): norms are repeated on all ranks of tp"
    if parallel.attention == "plain" and parallel.recompute == "none":
        saved = _peak(design) - _peak(_with(design, recompute="selective"))
        yield f"attention is not recomputed (recompute): {saved / 2**30:.1f} GiB more on a GPU"
    if parallel.recompute in {"operators", "full"}:
        peak = _peak(_with(design, recompute="selective"))
        if peak <= design.memory_limit:
            work = "whole layers" if parallel.recompute == "full" else "operators"
            yield (
                f"{work} are recomputed though {peak / 2**30:.1f} GiB without (recompute = "
                "'selective') fit"
            )
    if design.sequence >= LONG_SEQUENCE and parallel.cp == 1:
        yield f"no context parallelism (cp) of sequences of {design.sequence:,} tokens"


def _peak(design: Design) -> int:
    """Bytes on the GPU that needs most."""
    return max(stage.total for stage in memory_by_stage(design))


def _with(design: Design, **changes: str) -> Design:
    return replace(design, parallel=msgspec.structs.replace(design.parallel, **changes))
