"""Sensitivities of a step: the same design with one component of the machine changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from simcoll.topology import LINK_KINDS, Topology
from simcoll.training.steps import TrainingStep

if TYPE_CHECKING:
    from simcoll.training.design import Design

__all__ = ["Price", "shadow_prices"]

FASTER = 1.1


@dataclass(frozen=True, slots=True)
class Price:
    """A change, the step time with it in femtoseconds, and its relative change."""

    change: str
    time_fs: int
    gain: float


def shadow_prices(design: Design) -> list[Price]:
    """Time a design in tier 1 with links twice as fast, kind by kind, and with faster computation.

    Examples
    --------
    >>> from simcoll.training.design import design_from
    >>> prices = shadow_prices(design_from({
    ...     "model": {"name": "llama-3.1-8b", "sequence": 8192, "global_batch": 8},
    ...     "topology": {"name": "dgx-h100"}, "parallel": {"tp": 8},
    ... }))
    >>> [price.change for price in prices]
    ['scale-up links twice as fast', 'matrix products 10 % faster', 'memory 10 % faster']
    >>> all(price.gain < 0 for price in prices)
    True
    """
    base_fs = TrainingStep(design).time_fs(tier=1)
    prices = []
    for change, changed in _changes(design):
        time_fs = TrainingStep(changed).time_fs(tier=1)
        prices.append(Price(change, time_fs, time_fs / base_fs - 1))
    return prices


def _changes(design: Design) -> Iterator[tuple[str, Design]]:
    topology = design.topology
    capacity = topology.link_capacity_uBps
    for kind, links in _kinds(topology).items():
        if links.any():
            faster = np.where(
                links, capacity + np.minimum(capacity, np.iinfo(np.int64).max - capacity), capacity
            )
            yield (
                f"{kind} twice as fast",
                replace(design, topology=replace(topology, link_capacity_uBps=faster)),
            )
    calibration = design.calibration
    yield (
        f"matrix products {FASTER - 1:.0%} faster".replace("%", " %"),
        replace(
            design, calibration=msgspec.structs.replace(calibration, rate=calibration.rate * FASTER)
        ),
    )
    yield (
        f"memory {FASTER - 1:.0%} faster".replace("%", " %"),
        replace(
            design,
            calibration=msgspec.structs.replace(
                calibration, hbm=min(1.0, calibration.hbm * FASTER)
            ),
        ),
    )


def _kinds(topology: Topology) -> dict[str, NDArray[np.bool_]]:
    """Links by purchasable component: NICs include their PCIe links."""
    kind = {name: topology.link_kind == LINK_KINDS.index(name) for name in LINK_KINDS}
    cards = np.array([name == "nic" for name in topology.node_kinds])
    of_nics = cards[topology.link_src] | cards[topology.link_dst]
    return {
        "scale-up links": kind["nvlink"] | kind["link"],
        "NICs and their PCIe": of_nics | kind["pcie"] | kind["cpu"],
        "the network between switches": kind["net"] & ~of_nics,
    }
