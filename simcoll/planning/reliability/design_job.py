"""The job of a goodput file from a design: its speed, checkpoints, parts that fail, and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from simcoll.errors import ConfigError
from simcoll.files.strict import convert_table, read_file
from simcoll.files.text import parse_toml
from simcoll.planning.costs import (
    ClusterCost,
    ClusterPower,
    gpus_per_node,
    hardware,
    hourly_cost,
    power_kw,
)
from simcoll.training.design import Design, load_design
from simcoll.training.step_intervals import StepInterval
from simcoll.training.steps import step

__all__ = ["CHECKPOINT_BYTES", "DesignJob", "time_design_job"]

MAX_BYTES = 2**20
CHECKPOINT_BYTES = 14
"""Of a parameter: 2 for the weight, 12 for Adam's master weight and two moments."""


@dataclass(frozen=True, slots=True)
class DesignJob:
    """A design as a job that can fail.

    Attributes
    ----------
    design, tokens_per_second
        The design, and its speed in tier 2.
    gpus_per_node
        GPUs that leave together: those of a node of the machine.
    cost, power
        Prices of its file; all 0 without any.
    interval
        How far predictions of steps of its class were from published ones.
    """

    design: Design
    tokens_per_second: float
    gpus_per_node: int
    cost: ClusterCost
    power: ClusterPower
    interval: StepInterval | None

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.design.mesh.nranks

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint, written once for all replicas."""
        return self.design.model.parameters * CHECKPOINT_BYTES

    @property
    def copy_us(self) -> int:
        """Microseconds to copy a checkpoint to the memory of the hosts, each GPU its share."""
        rate = self.design.gpu.number("host.bandwidth")
        return max(1, round(self.checkpoint_bytes / self.gpus / rate * 1e6))

    def parts(self, kind: str, nodes: int) -> int:
        """How many parts of a kind the job has; ``nodes`` are its nodes."""
        counts = hardware(self.design, self.power)
        return {
            "gpu": self.gpus,
            "node": nodes,
            "nic": counts.nics,
            "switch": counts.switches,
            "cable": counts.cables,
        }[kind]

    def usd_per_hour(self, spare_gpus: int) -> float:
        """Dollars for an hour, spares included."""
        domain = gpus_per_node(self.design.topology)
        counts = hardware(self.design, self.power, -(-spare_gpus // domain))
        kilowatts = power_kw(self.design, self.power, counts)
        bill = hourly_cost(self.cost, self.power, counts, kilowatts)
        return sum(amount.usd_per_hour for amount in bill)


@cache
def time_design_job(path: Path) -> DesignJob:
    """Load a design, such as the ``best.toml`` of a plan, and time its step.

    Raises
    ------
    ConfigError
        When the design cannot be read, does not fit the memory, or has wrong prices.
    """
    design = load_design(path)
    result = step(design, tier=2, exposed=False)
    if not result.fits:
        need = max(stage.total for stage in result.memory)
        raise ConfigError(
            f"the design needs {need / 2**30:.1f} of {design.memory_limit / 2**30:.1f} GiB; it "
            "does not run",
            file=str(path),
        )
    tables = parse_toml(read_file(path, MAX_BYTES), str(path))
    return DesignJob(
        design,
        result.tokens_per_second,
        _node_size(design),
        _table(tables, "cost", ClusterCost, path),
        _table(tables, "power", ClusterPower, path),
        result.interval,
    )


def _node_size(design: Design) -> int:
    """GPUs of a node: those of the topology over its nodes; of a rack of NVL72, a tray's."""
    domain, nodes = gpus_per_node(design.topology), design.cluster.nodes
    total = design.topology.node_kinds.count("gpu")
    return total // nodes if nodes and total % nodes == 0 else domain


def _table(tables: Mapping[str, Any], name: str, record: Any, path: Path) -> Any:
    try:
        return convert_table(tables.get(name, {}), record)
    except ConfigError as error:
        place = f"$.{name}{(error.path or '$')[1:]}"
        raise ConfigError(error.message, file=str(path), path=place) from None
    except msgspec.ValidationError as error:
        raise ConfigError(str(error), file=str(path), path=f"$.{name}") from None
