"""Everything on which NCCL's choice depends: its version, graphs, GPUs, CPUs and variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from simcoll.libraries.environment import DEFAULT, Environment
from simcoll.libraries.library import Library
from simcoll.libraries.nccl.graph_search import Settings
from simcoll.libraries.nccl.graphs import NcclGraphs, graphs_of
from simcoll.libraries.nccl.search import graphs_on, search
from simcoll.libraries.nccl.search_settings import search_settings
from simcoll.topology import Topology
from simcoll.topology.capability import compute_capability
from simcoll.topology.host_tree import nics_of
from simcoll.topology.machine import fabric_of

__all__ = [
    "MAX_CHANNELS",
    "CommunicatorFacts",
    "call_channels",
    "communicator_on",
    "generation_of",
    "nvls_channels",
    "settings_on",
    "version_of",
]

MAX_CHANNELS = 64
"""Highest number of channels of NCCL (MAXCHANNELS)."""
_LEAST_CAPABILITY = {"blackwell": 100, "hopper": 90, "ampere": 80, "volta": 0}
_SLOW_CHANNEL_GBps = 45.0
"""Rate within a node up to which twice the channels of the search are enough over nodes."""


@dataclass(frozen=True, slots=True)
class CommunicatorFacts:
    """A group of ranks as NCCL sees it.

    Attributes
    ----------
    library
        The version of NCCL, with its constants.
    graphs
        The result of its search.
    ranks
        Number of ranks.
    capability
        The lowest compute capability of the GPUs, such as 90.
    cpu
        Vendor of the CPUs: ``"intel"``, ``"amd"``, ``"arm"`` or another word.
    environment
        The settings of NCCL's variables.
    is_searched
        Whether the graphs of the machine without variables are found by the search, and not known
        from NCCL itself.
    """

    library: Library
    graphs: NcclGraphs
    ranks: int
    capability: int
    cpu: str
    environment: Environment = DEFAULT
    is_searched: bool = False

    @property
    def nodes(self) -> int:
        """Number of nodes as NCCL counts them."""
        return self.graphs.nodes

    @property
    def ranks_per_node(self) -> float:
        """Mean number of ranks of a node."""
        return self.ranks / self.nodes

    @property
    def generation(self) -> str:
        """The generation whose constants NCCL uses."""
        return generation_of(self.capability)

    @property
    def column(self) -> int:
        """Column of NCCL's tables by number of nodes: 0, 1, and 2 for more than two."""
        return min(self.nodes, 3) - 1

    @property
    def has_x86(self) -> bool:
        """Whether the CPUs are Intel's or AMD's."""
        return self.cpu in {"intel", "amd"}

    @property
    def has_nvls(self) -> bool:
        """Whether switches reduce for NCCL here."""
        least_gpus = self.library.number("rules.nvls_gpus")
        return (
            self.environment.nvls
            and self.graphs.nvls is not None
            and self.ranks_per_node >= least_gpus
        )


@lru_cache(maxsize=256)
def communicator_on(
    topology: Topology, library: Library, environment: Environment = DEFAULT
) -> CommunicatorFacts | None:
    """All ranks of a topology as NCCL sees them; None if its graphs on the topology are unknown, or
    the library states no rules.

    Examples
    --------
    >>> from simcoll.libraries.library import load_library
    >>> from simcoll.topology import load_topology
    >>> node = communicator_on(load_topology("dgx-h100"), load_library("nccl-2.30"))
    >>> call_channels(node), nvls_channels(node)
    (24, 16)
    """
    if "rules.choice" not in library.values:
        return None
    settings = settings_on(topology, environment)
    version = version_of(library)
    if settings == Settings():
        graphs = graphs_on(topology, version)
    else:
        graphs = search(topology, version, settings)
    if graphs is None:
        return None
    capability, cpu = compute_capability(topology.traits), topology.traits.get("cpu", "")
    is_searched = graphs_of(topology, version) is None
    return CommunicatorFacts(
        library, graphs, topology.nranks, capability, cpu, environment, is_searched
    )


def settings_on(topology: Topology, environment: Environment) -> Settings:
    """The settings of NCCL's search for graphs on a topology under its variables."""
    host, fabric = topology.host, fabric_of(topology.traits)
    ports = [port.number for nic in nics_of(host) for port in nic.ports] if host else []
    return search_settings(environment.transports, ports, fabric)


def version_of(library: Library) -> tuple[int, int]:
    """The version of a library's rules as numbers.

    >>> from simcoll.libraries.library import load_library
    >>> version_of(load_library("nccl-2.29"))
    (2, 29)
    """
    major, minor = library.version.split(".")[:2]
    return int(major), int(minor)


def generation_of(capability: int) -> str:
    """The generation whose constants NCCL uses for a compute capability.

    >>> [generation_of(capability) for capability in (75, 89, 90, 121)]
    ['volta', 'ampere', 'hopper', 'blackwell']
    """
    return next(name for name, lowest in _LEAST_CAPABILITY.items() if capability >= lowest)


def call_channels(communicator: CommunicatorFacts) -> int:
    """Number of channels of a communicator, of which a call uses all or fewer.

    It is twice what the search finds, because rings and trees run in both directions.
    """
    graphs, environment = communicator.graphs, communicator.environment
    channels = min(2 * min(graphs.ring.channels, graphs.tree.channels), MAX_CHANNELS)
    fast = graphs.ring.speed_inside > _SLOW_CHANNEL_GBps
    if communicator.capability >= 90 and graphs.nodes > 1 and fast and channels < 16:
        channels *= 2
    channels = min(channels, environment.max_nchannels or MAX_CHANNELS, _most_ctas(environment))
    channels = max(channels, min(environment.min_nchannels, MAX_CHANNELS), _least_ctas(environment))
    if communicator.library.number("rules.channels_cover_nvls") and communicator.has_nvls:
        channels = max(channels, nvls_channels(communicator))
    return channels


def nvls_channels(communicator: CommunicatorFacts) -> int:
    """Number of channels of reduction in switches; 0 without it."""
    if not communicator.has_nvls:
        return 0
    environment = communicator.environment
    channels = environment.nvls_channels or _tuned_nvls_channels(communicator)
    return max(_least_ctas(environment), min(_most_ctas(environment), channels))


def _tuned_nvls_channels(communicator: CommunicatorFacts) -> int:
    library, graphs = communicator.library, communicator.graphs
    if communicator.capability < 100:
        return 16
    if graphs.nodes == 1:
        return 24
    if not library.number("rules.nvls_channels_by_nic"):
        return 32
    if graphs.nodes == 2 or graphs.nic_GBps < 48:
        return 32
    return 32 if graphs.nic_GBps >= 96 and graphs.least_node_ranks > 8 else 24


def _most_ctas(environment: Environment) -> int:
    return min(environment.max_ctas or MAX_CHANNELS, MAX_CHANNELS)


def _least_ctas(environment: Environment) -> int:
    return min(max(environment.min_ctas, 1), _most_ctas(environment))
