"""A setting with one physical change: fewer NICs, slower links, sockets, no peer access."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from simcoll.core.vocabulary import LinkKind
from simcoll.errors import ConfigError
from simcoll.libraries.environment import Environment
from simcoll.planning.measured.comparison import Setting, machine_of_job
from simcoll.topology.graph import LINK_KINDS
from simcoll.topology.machine import machine as machine_of

__all__ = [
    "SOCKET_RATES",
    "host_memory",
    "in_environment",
    "nics_of",
    "no_gpudirect",
    "over_interface",
    "slower_links",
    "with_nics",
]


def nics_of(setting: Setting) -> int:
    """Number of NICs that a node uses; 0 where no network is passed."""
    return machine_of(setting.topology).nics


def with_nics(setting: Setting, count: int) -> Setting:
    """The machine with fewer NICs in each node, which the library knows."""
    total = nics_of(setting)
    try:
        topology = machine_of_job(setting, f"nic.count={count}")
    except ConfigError:  # a file whose NICs cannot be counted anew, or unequal shares
        return slower_links(setting, "net", Fraction(count, total))
    if machine_of(topology).nics != count:
        return slower_links(setting, "net", Fraction(count, total))
    return replace(setting, topology=topology)


def slower_links(setting: Setting, kind: LinkKind, share: Fraction) -> Setting:
    """The machine with all links of a kind at a share of their rates, which the library does not
    know: it chooses as on a sound machine.
    """
    topology = setting.topology
    capacity = topology.link_capacity_uBps.copy()
    chosen = topology.link_kind == LINK_KINDS.index(kind)
    capacity[chosen] = np.maximum(1, capacity[chosen] // share.denominator * share.numerator)
    return replace(setting, topology=replace(topology, link_capacity_uBps=capacity))


SOCKET_RATES = (
    (1, "1 Gb/s"),
    (10, "10 Gb/s"),
    (25, "25 Gb/s, or a faster one that the CPU limits to as much"),
    (50, "50 Gb/s, or a faster one that the CPU limits to as much"),
    (100, "100 Gb/s"),
)
"""Rates of Ethernet interfaces in Gb/s."""
GOODPUT = Fraction(94, 100)
"""Share of the rate of Ethernet that is left by the headers of TCP/IP: 1448 of 1538 bytes."""


def over_interface(setting: Setting, rate_Gbps: int) -> Setting:
    """TCP sockets through host memory: one Ethernet interface of this rate in each node."""
    rate_uBps = GOODPUT * rate_Gbps * 10**15 / 8
    one_nic = with_nics(setting, 1) if nics_of(setting) > 1 else setting
    share = rate_uBps / machine_of(one_nic.topology).nic_uBps
    slow = slower_links(one_nic, "net", min(Fraction(1), share))
    return replace(slow, environment=_without(slow.environment, "LL128"))


def host_memory(setting: Setting) -> Setting:
    """GPUs of a node without access to each other: data passes through host memory."""
    traits = {**setting.topology.traits, "peer_access": "no"}
    traits.pop("switch_reduce", None)
    return replace(setting, topology=replace(setting.topology, traits=traits))


def no_gpudirect(setting: Setting) -> Setting:
    """Data of the network passes through host memory, which crosses PCIe twice in each direction:
    half of the rate.
    """
    return slower_links(setting, "net", Fraction(1, 2))


def in_environment(setting: Setting, **changes: object) -> Setting:
    """The setting with other fields of its environment."""
    environment: Environment = replace(setting.environment, **changes)  # type: ignore[arg-type]
    return replace(setting, environment=environment)


def _without(environment: Environment, protocol: str) -> Environment:
    """An environment that forbids a protocol, where it names none."""
    if environment.protocols:
        return environment
    names = tuple(name for name in ("LL", "LL128", "Simple") if name != protocol)
    return replace(environment, protocols=(("", names),))
