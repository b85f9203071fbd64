"""A plan made ready to be played many times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.emulator.fast.timed import summary
from simcoll.emulator.messages import parts

if TYPE_CHECKING:
    from simcoll.core.plan import Plan
    from simcoll.emulator.dataplane import Storage
    from simcoll.emulator.fabric import Fabric
    from simcoll.emulator.fast.timed import Summary
    from simcoll.emulator.messages import Part
    from simcoll.topology import Topology

__all__ = ["Score", "cap_links", "cap_name"]


class Score:
    """A plan prepared to be played repeatedly on one fabric, with the same buffers."""

    __slots__ = ("parts", "summary")

    def __init__(self, plan: Plan, topology: Topology, fabric: Fabric, storage: Storage | None) -> None:
        self.summary: Summary = summary(plan)
        self.parts: tuple[Part, ...] = tuple(parts(plan, topology, storage, cap_links(plan, fabric)))


def cap_links(plan: Plan, fabric: Fabric) -> int | None:
    """Two more links per lane, out and in, where the protocol caps a channel's rate; returns the first."""
    rate = plan.protocol.channel_rate_uBps
    if not rate:
        return None

    return fabric.add_links([rate] * (2 * plan.nranks * plan.nchannels), lambda position: cap_name(plan, position))


def cap_name(plan: Plan, position: int) -> str:
    """Name of a link that caps the rate of a channel."""
    rank, channel = divmod(position // 2, plan.nchannels)
    return f"rank {rank} channel {channel} {('out', 'in')[position % 2]}"
