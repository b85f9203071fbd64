"""Clusters with several kinds of GPU: how many times longer the computation of each rank takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simcoll.errors import ConfigError
from simcoll.training.design import Design
from simcoll.training.evidence import rate_lines, rates_of
from simcoll.training.gpu import Gpu
from simcoll.training.layers import layer_of

__all__ = ["mixed_notes", "rank_factors"]


def rank_factors(design: Design) -> dict[int, float]:
    """Factors of the computation of ranks that are slow or have another GPU than the design's.

    The factor of another GPU is the ratio of the times of a layer, forward and backward.

    Raises
    ------
    ConfigError
        When another GPU is faster than that of the design, or lacks the type of its products.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> design = design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 16},
    ...     "topology": {"name": "dgx-h100", "nodes": 2}, "parallel": {"tp": 8},
    ...     "gpu": {"name": "h100", "mixed": {"8-15": "a100-80"}},
    ... })
    >>> factors = rank_factors(design)
    >>> sorted(factors) == list(range(8, 16)), 2 < factors[8] < 3
    (True, True)
    """
    factors = design.slow
    for ranks, gpu in design.other_gpus:
        factor = _ratio(design, gpu)
        if factor < 1:
            raise ConfigError(
                f"{gpu.name} takes {factor:.2f} times as long as {design.gpu.name}; name the "
                "fastest GPU as gpu.name, and the slower ones here",
                path="$.gpu.mixed",
            )
        for rank in ranks:
            factors[rank] = factors.get(rank, 1.0) * factor
    return factors


def mixed_notes(design: Design) -> Iterator[str]:
    """A note for each other kind of GPU, and what its rates rest on."""
    for ranks, gpu in design.other_gpus:
        yield (
            f"ranks {ranks.start} to {ranks.stop - 1} are {gpu.name}: their layers take "
            f"{_ratio(design, gpu):.2f} times as long; links are those of the topology"
        )
        for line in rate_lines(gpu.name, rates_of(replace(design, gpu=gpu))):
            yield f"rates: {line}"


def _ratio(design: Design, gpu: Gpu) -> float:
    """How many times longer a layer takes on another GPU."""
    moe = design.model.is_moe(design.model.layers - 1)
    seconds = []
    for machine in (replace(design, gpu=gpu), design):
        layer = layer_of(machine, moe=moe)
        passes = (layer.forward, layer.to_input, layer.to_weights)
        seconds.append(sum(part.seconds for part in passes))
    return seconds[0] / seconds[1]
