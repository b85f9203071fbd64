"""A plan made ready to be played many times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.emulator.fast.timed import summary
from simcoll.emulator.messages import parts
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from simcoll.core.plan import Plan
    from simcoll.emulator.dataplane import Storage
    from simcoll.emulator.fabric import Fabric
    from simcoll.emulator.fast.timed import Summary
    from simcoll.emulator.messages import Part
    from simcoll.topology import Topology

__all__ = ["Score", "cap_links", "cap_name", "cap_rates", "check_switches"]


class Score:
    """A plan prepared to be played repeatedly on one fabric, with the same buffers."""

    __slots__ = ("parts", "summary")

    def __init__(self, plan: Plan, topology: Topology, fabric: Fabric, storage: Storage | None) -> None:
        self.summary: Summary = summary(plan)
        self.parts: tuple[Part, ...] = tuple(parts(plan, topology, storage, cap_links(plan, fabric)))


def cap_rates(plan: Plan) -> list[int]:
    """Rates of the links that only the protocol adds, out and in: two per lane where it caps channels, then two per rank."""
    protocol = plan.protocol
    rates = [protocol.channel_rate_uBps] * (2 * plan.nranks * plan.nchannels) if protocol.channel_rate_uBps else []
    return rates + ([protocol.rank_rate_uBps] * (2 * plan.nranks) if protocol.rank_rate_uBps else [])


def cap_links(plan: Plan, fabric: Fabric) -> int | None:
    """Give the fabric the links of :func:`cap_rates`, if there are any; returns the first."""
    rates = cap_rates(plan)
    return fabric.add_links(rates, lambda position: cap_name(plan, position)) if rates else None


def check_switches(plan: Plan, topology: Topology) -> None:
    """Refuse a plan with switch operations on a topology whose switches do none.

    Raises
    ------
    ConfigError
        When the topology has no trait ``switch_reduce``.
    """
    if "switch_reduce" not in topology.traits:
        raise ConfigError(
            f"{plan.schedule.title} needs switches that reduce and multicast, which topology {topology.name!r} does "
            "not have (trait switch_reduce)"
        )


def cap_name(plan: Plan, position: int) -> str:
    """Name of a link that caps the rate of a channel or of a rank."""
    number, inward = divmod(position, 2)
    lanes = plan.nranks * plan.nchannels if plan.protocol.channel_rate_uBps else 0
    rank, channel = divmod(number, plan.nchannels)
    name = f"rank {rank} channel {channel}" if number < lanes else f"rank {number - lanes}"
    return f"{name} {('out', 'in')[inward]}"
