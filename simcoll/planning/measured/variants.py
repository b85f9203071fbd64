"""A setting with one physical change: fewer NICs, slower links, sockets, no peer access."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from simcoll.core.vocabulary import LinkKind
from simcoll.libraries.environment import Environment
from simcoll.libraries.path_types import PATH_TYPES
from simcoll.libraries.transports import Transports
from simcoll.planning.measured.comparison import Setting
from simcoll.topology.graph import LINK_KINDS
from simcoll.topology.host_tree import nics_of as nics_of_host
from simcoll.topology.machine import machine as machine_of

__all__ = [
    "SLOW_HOST_GBPS",
    "SOCKET_RATES",
    "host_memory",
    "in_environment",
    "nics_of",
    "no_gpudirect",
    "over_interface",
    "slow_host_memory",
    "slower_links",
    "through_network",
    "uses_host_memory",
    "with_nics",
]


def nics_of(setting: Setting) -> int:
    """Number of NICs of a node, as the library lists them; 0 where no network is passed."""
    topology = setting.topology
    domains = machine_of(topology).domains
    if domains == 1:
        return 0
    if topology.host is not None:
        return len(list(nics_of_host(topology.host)))
    return sum(kind == "nic" for kind in topology.node_kinds) // domains


def with_nics(setting: Setting, count: int) -> Setting:
    """The first NICs of each node only, as ``NCCL_IB_HCA`` names them."""
    names = ",".join(f"mlx5_{number}" for number in range(count))
    return _over(setting, devices=f"={names}")


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
    (25, "25 Gb/s"),
    (100, "50 Gb/s or more, at the rate that CPUs give to sockets"),
)
"""Rates of Ethernet interfaces in Gb/s; above 40 Gb/s the CPU is the limit."""


def over_interface(setting: Setting, rate_Gbps: int) -> Setting:
    """TCP sockets through host memory, over interfaces of this rate: as many as the log lists,
    else one in each node.
    """
    listed = setting.environment.transports.interfaces
    names = [
        name for text in setting.table.facts.values("socket interface") for name in text.split()
    ]
    interfaces = listed or ",".join(dict.fromkeys(names)) or "eth0"
    return _over(setting, network="socket", interfaces=interfaces, socket_Gbps=rate_Gbps)


def host_memory(setting: Setting) -> Setting:
    """GPUs of a node without access to each other: data passes through host memory."""
    return _over(setting, peer_level=PATH_TYPES.index("LOC"))


def no_gpudirect(setting: Setting) -> Setting:
    """NICs without access to the memory of GPUs: data passes through host memory."""
    return _over(setting, nic_level=PATH_TYPES.index("LOC"))


def uses_host_memory(setting: Setting) -> bool:
    """Whether NICs have no access to the memory of GPUs."""
    return setting.environment.transports.nic_level == PATH_TYPES.index("LOC")


SLOW_HOST_GBPS = 1.2
"""Rate in GB/s at which the memory of a slow host feeds a NIC: github.com/NVIDIA/nccl-tests issue
293 has 1.1 on AMD CPUs with one NUMA node per socket, and 9 with four; nccl issue 1676 has 1.25 on
eight NICs.
"""


def slow_host_memory(setting: Setting) -> Setting:
    """The machine whose NICs get no more from host memory than :data:`SLOW_HOST_GBPS` each."""
    facts = machine_of(setting.topology)
    rate_uBps = round(SLOW_HOST_GBPS * 10**15) * facts.nics
    share = Fraction(rate_uBps, facts.nic_uBps).limit_denominator(1000)
    slow = slower_links(setting, "net", min(share, Fraction(1)))
    return _over(slow, nic_level=None)  # the rate contains the detour


def through_network(setting: Setting) -> Setting:
    """GPUs of a node without access to each other and without shared memory."""
    return _over(setting, peer_level=PATH_TYPES.index("LOC"), shared_memory=False)


def _over(setting: Setting, **changes: object) -> Setting:
    """The setting with other transports."""
    transports: Transports = replace(
        setting.environment.transports,
        **changes,  # type: ignore[arg-type]
    )
    return in_environment(setting, transports=transports)


def in_environment(setting: Setting, **changes: object) -> Setting:
    """The setting with other fields of its environment."""
    environment: Environment = replace(setting.environment, **changes)  # type: ignore[arg-type]
    return replace(setting, environment=environment)
