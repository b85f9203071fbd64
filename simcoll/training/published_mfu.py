"""The utilisation that published steps reached, as a mark for a design of the same model."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from simcoll.files.paths import data_folder

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = ["PublishedMfu", "far_below", "published_mfu"]

FAR = 0.9
"""Share of the lowest published utilisation below which a result is far from it: predictions of
dense models on H100 are within 10 % for nine rows of ten.
"""


@dataclass(frozen=True, slots=True)
class PublishedMfu:
    """The number of published steps of a model on a GPU, and their lowest and highest MFU."""

    steps: int
    lowest: float
    highest: float


def published_mfu(design: Design) -> PublishedMfu | None:
    """What published steps of the design's model reached on its GPU with its data type, at the
    length of its sequences; None if there are none.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> made = design_from({
    ...     "model": {"name": "llama-3.1-70b", "sequence": 8192, "global_batch": 128},
    ...     "topology": {"name": "dgx-h100", "nodes": 8}, "parallel": {"tp": 8},
    ... })
    >>> published_mfu(made)
    PublishedMfu(steps=6, lowest=0.5006, highest=0.5092)
    """
    model = design.model
    sizes = (model.layers, model.hidden, model.experts, design.sequence)
    return _table().get((design.gpu.name, design.dtype, *sizes))


def far_below(design: Design, mfu: float) -> Iterator[str]:
    """A line if a result is far below what published steps of the same model reached.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> made = design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 8},
    ...     "topology": {"name": "dgx-h100"}, "parallel": {"tp": 8},
    ... })
    >>> list(far_below(made, 0.9))
    []
    """
    mark = published_mfu(design)
    if mark is None or mfu >= FAR * mark.lowest:
        return
    low, high = f"{100 * mark.lowest:.0f}", f"{100 * mark.highest:.0f}"
    reached = f"{low} %" if low == high else f"{low} to {high} %"
    yield (
        f"the speed of published steps: {100 * mfu:.0f} % MFU, where {mark.steps} of this model on "
        f"{design.gpu.name} reached {reached}"
    )


@cache
def _table() -> dict[tuple[str, str, int, int, int, int], PublishedMfu]:
    """The shipped table, by GPU, data type, layers, hidden size, experts and sequence."""
    file = data_folder("measurements") / "step_mfu.csv"
    with file.open(encoding="utf-8", newline="") as stream:
        return {
            (
                row["gpu"],
                row["dtype"],
                int(row["layers"]),
                int(row["hidden"]),
                int(row["experts"]),
                int(row["sequence"]),
            ): PublishedMfu(int(row["steps"]), float(row["lowest"]), float(row["highest"]))
            for row in csv.DictReader(stream)
        }
