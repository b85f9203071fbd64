"""Sensitivities of a design: its objective with one input at a time changed down and up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from simcoll.planning.designs.merit import bill_of, figures_of
from simcoll.topology import LINK_KINDS, Topology
from simcoll.training.steps import TrainingStep
from simcoll.units import parse_span

if TYPE_CHECKING:
    from simcoll.planning.grids.grid import Row
    from simcoll.training.design import Design

__all__ = ["Sensitivity", "sensitivities"]

LINKS = (0.5, 2.0)
"""Factors of links: what one generation has over another."""
RATES = (0.9, 1.1)
"""Factors of rates of kernels: the error of most predictions of steps."""
PRICES = (0.8, 1.2)
SPANS = (0.5, 2.0)
"""Factors of failures and of the times of checkpoints and restarts, which are known least."""
SPEED = ("tokens_per_second", "step_s", "mfu", "memory_gib", "gpus")


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """An input, and the objective with less and with more of it.

    Attributes
    ----------
    name, factors
        Name of the input, and the two factors.
    values
        The objective with each.
    changes
        Relative changes of the objective.
    """

    name: str
    factors: tuple[float, float]
    values: tuple[float, float]
    changes: tuple[float, float]


def sensitivities(row: Row, design: Design, figure: str) -> list[Sensitivity]:
    """Change each input of a design down and up, those with most effect first.

    The step is timed in tier 1 for each change of the machine, and changes of it are applied to the
    row's time, whatever its tier. Inputs without any effect are left out.

    Parameters
    ----------
    row
        The design with its result and the terms of its plan.
    design
        The design.
    figure
        The objective.
    """
    speed = {name: row["result"][name] for name in SPEED}
    terms = row["point"]["terms"]
    base = figures_of(speed, bill_of(design, terms), terms)[figure]
    values_by_input: dict[str, list[tuple[float, float]]] = {}
    base_fs = TrainingStep(design).time_fs(tier=1)
    for name, factor, changed in _machines(design):
        slower = TrainingStep(changed).time_fs(tier=1) / base_fs
        figures = figures_of(_at_length(speed, slower), bill_of(design, terms), terms)
        values_by_input.setdefault(name, []).append((factor, figures[figure]))
    for name, factor, changed_terms in _terms(terms):
        figures = figures_of(speed, bill_of(design, changed_terms), changed_terms)
        values_by_input.setdefault(name, []).append((factor, figures[figure]))
    effects = []
    for name, ((low, low_value), (high, high_value)) in values_by_input.items():
        values = (low_value, high_value)
        changes = (low_value / base - 1, high_value / base - 1)
        if max(map(abs, changes)) > 1e-6:
            effects.append(Sensitivity(name, (low, high), values, changes))
    return sorted(effects, key=lambda effect: -max(map(abs, effect.changes)))


def _at_length(speed: Mapping[str, float], slower: float) -> dict[str, float]:
    """The speed of a step that takes so many times as long."""
    return {
        **speed,
        "tokens_per_second": speed["tokens_per_second"] / slower,
        "step_s": speed["step_s"] * slower,
        "mfu": speed["mfu"] / slower,
    }


def _machines(design: Design) -> Iterator[tuple[str, float, Design]]:
    """The design on machines that differ in one component."""
    topology = design.topology
    for kind, links in _link_kinds(topology).items():
        if links.any():
            for factor in LINKS:
                yield (
                    kind,
                    factor,
                    replace(design, topology=_with_capacity(topology, links, factor)),
                )
    calibration = design.calibration
    change = partial(msgspec.structs.replace, calibration)
    for factor in RATES:
        faster = change(rate=calibration.rate * factor)
        yield "rate of matrix products", factor, replace(design, calibration=faster)
    for factor in RATES:
        faster = change(hbm=min(1.0, calibration.hbm * factor))
        yield "memory bandwidth that kernels reach", factor, replace(design, calibration=faster)


def _with_capacity(topology: Topology, links: NDArray[np.bool_], factor: float) -> Topology:
    """A topology whose marked links have another capacity."""
    capacity = topology.link_capacity_uBps
    largest = float(np.iinfo(np.int64).max - 2**11)
    capacities = np.minimum(capacity.astype(np.float64) * factor, largest).astype(np.int64)
    return replace(topology, link_capacity_uBps=np.where(links, capacities, capacity))


def _link_kinds(topology: Topology) -> dict[str, NDArray[np.bool_]]:
    """Links by purchasable component: NICs include their PCIe links."""
    kind = {name: topology.link_kind == LINK_KINDS.index(name) for name in LINK_KINDS}
    cards = np.array([name == "nic" for name in topology.node_kinds])
    of_nics = cards[topology.link_src] | cards[topology.link_dst]
    return {
        "bandwidth of scale-up links": kind["nvlink"] | kind["link"],
        "bandwidth of NICs and their PCIe": of_nics | kind["pcie"] | kind["cpu"],
        "bandwidth between switches": kind["net"] & ~of_nics,
    }


def _terms(terms: Mapping[str, Any]) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """The terms of a plan with one price, or one assumption on failures, changed."""
    for table in ("cost", "power"):
        for key, value in terms[table].items():
            if isinstance(value, (int, float)) and value and key != "switch_ports":
                for factor in PRICES:
                    # No building draws less than what stands in it.
                    changed = max(value * factor, 1.0) if key == "pue" else value * factor
                    yield f"{table}.{key}", changed / value, _with(terms, table, key, changed)
    for key, value in (terms["failures"] or {}).items():
        for factor in SPANS:
            if isinstance(value, str) and (span_us := parse_span(value)):
                text = f"{max(1, round(span_us * factor)) / 1e6:.6f} s"
                yield f"failures.{key}", factor, _with(terms, "failures", key, text)
            elif key == "gpu_hours":
                yield f"failures.{key}", factor, _with(terms, "failures", key, value * factor)


def _with(terms: Mapping[str, Any], table: str, key: str, value: object) -> dict[str, Any]:
    return {**terms, table: {**terms[table], key: value}}
