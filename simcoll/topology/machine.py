"""The machine as a communication library sees it: domains of GPUs with fast links, and the NICs
between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints
from simcoll.core.vocabulary import Connection, Fabric, GpuGeneration
from simcoll.errors import ConfigError, nearest
from simcoll.topology.components import lowest_in_component
from simcoll.topology.graph import LINK_KINDS, Topology

__all__ = [
    "FABRICS",
    "GENERATIONS",
    "TRAIT_VALUES",
    "Machine",
    "beyond_pcie",
    "fabric_of",
    "machine",
]

FABRICS: dict[Fabric, str] = {
    "ib": "InfiniBand",
    "roce": "RDMA over Converged Ethernet, on ConnectX, Thor or Pollara NICs",
    "efa-p4": "AWS Elastic Fabric Adapter of the P4 instances",
    "efa-p5": "AWS Elastic Fabric Adapter from the P5 instances on",
    "slingshot": "HPE Slingshot through libfabric",
    "slingshot-alps": "HPE Slingshot as NCCL 2.23 with aws-ofi-nccl 1.9 to 1.13 drove it on CSCS "
    "Alps",
    "tcpx": "Google GPUDirect-TCPX (a3-highgpu)",
    "tcpxo": "Google GPUDirect-TCPXO (a3-megagpu)",
    "socket": "TCP sockets through host memory",
}
GENERATIONS: dict[GpuGeneration, str] = {
    "volta": "V100; NCCL counts Turing, such as RTX 2080 Ti, here too",
    "ampere": "A100; also Ada, such as L40S",
    "hopper": "H100, H200, GH200",
    "blackwell": "B200, B300, GB200, GB300, RTX PRO 6000, GB10",
    "mi300": "MI300X, MI325X",
    "mi355": "MI350X, MI355X",
}
TRAIT_VALUES = {
    "fabric": tuple(FABRICS),
    "generation": tuple(GENERATIONS),
    "peer_access": ("yes", "no"),
}
"""Traits with a fixed choice of values; all others are free text."""

NEARLY = 1.05
"""Ratio of rates below which a NIC fits its slot."""
Word = TypeVar("Word", bound=str)
_UNLIMITED = np.iinfo(np.int64).max
_NVLINK, _PCIE, _NET = (LINK_KINDS.index(kind) for kind in ("nvlink", "pcie", "net"))


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts that select and scale the costs of a communication library.

    A domain is a group of ranks that reach each other without a NIC: a node, or a rack joined by
    NVLink switches.

    Attributes
    ----------
    generation, gpu, cpu, fabric
        The traits of the topology; empty if it does not state them.
    switch_reduce
        Whether switches within a domain multicast and reduce.
    domain_ranks
        Number of ranks in each domain.
    inside
        Connection of the ranks of a domain: ``"nvlink"``, ``"xgmi"``, ``"pcie"``, ``"host"``
        (through host memory, without peer access), another kind of link, or empty if each domain
        has one rank. It is NVLink if NVLinks alone connect all GPUs of a domain.
    gpu_uBps
        Capacity of one GPU's links of that kind towards its domain, per direction; the minimum over
        all ranks.
    nics
        Number of NICs used by the ranks of a domain, each rank its own or nearest; the minimum over
        all domains. Several NICs of one GPU count as one.
    nic_uBps
        Their total capacity per direction if all carry the same share of the data, as in NCCL's
        channels: the slowest of a domain counts for each. The minimum over all domains. Both are 0
        if there is only one domain.
    network_reduces
        Whether switches between domains reduce as well (InfiniBand SHARP).
    peer_uBps
        Capacity of the NVLinks from one GPU to one other of its domain, behind switches of all its
        links; the least of all pairs, so 0 where two GPUs have no link to each other.
    through_cpu
        Whether a ring of the ranks of a domain over PCIe passes a CPU, because no switch joins
        them all.
    """

    generation: GpuGeneration | Literal[""]
    gpu: str
    cpu: str
    fabric: Fabric | Literal[""]
    switch_reduce: bool
    domain_ranks: tuple[int, ...]
    inside: Connection
    gpu_uBps: int
    nics: int
    nic_uBps: int
    network_reduces: bool = False
    peer_uBps: int = 0
    through_cpu: bool = False

    @property
    def domains(self) -> int:
        """Number of domains."""
        return len(self.domain_ranks)

    @property
    def ring_nics(self) -> int:
        """Number of NICs of a domain that rings can fill: a ring passes every GPU, so all rings
        together are limited by one GPU's links.

        >>> from simcoll.topology import load_topology
        >>> rack = machine(load_topology("gb300-nvl72", nodes=36))
        >>> rack.nics, rack.ring_nics
        (72, 9)
        """
        if not self.gpu_uBps or not self.nics:
            return self.nics
        return min(self.nics, -(-self.gpu_uBps * self.nics // self.nic_uBps))


def machine(topology: Topology) -> Machine:
    """Summarize a topology for the model of a library.

    Examples
    --------
    >>> from simcoll.topology import load_topology
    >>> two = machine(load_topology("dgx-h100", nodes=2))
    >>> two.domain_ranks, two.inside, two.gpu_uBps // 10**15, two.nics, two.nic_uBps // 10**15
    ((8, 8), 'nvlink', 450, 8, 400)
    """
    traits, domain = topology.traits, _domains(topology)
    reducing = traits.get("switch_reduce", "").split()
    link_name, gpu_uBps = _inside(topology, domain)
    nics, nic_uBps = _outside(topology, domain)
    return Machine(
        generation=_word(traits, "generation", GENERATIONS) or "",
        gpu=traits.get("gpu", ""),
        cpu=traits.get("cpu", ""),
        fabric=fabric_of(traits),
        switch_reduce=bool(set(reducing) - {"sharp"}),
        domain_ranks=tuple(np.bincount(domain).tolist()),
        inside=link_name,
        gpu_uBps=gpu_uBps,
        nics=nics,
        nic_uBps=nic_uBps,
        network_reduces="sharp" in reducing,
        peer_uBps=_peer_capacity(topology, domain, gpu_uBps)
        if link_name in {"nvlink", "xgmi"}
        else 0,
        through_cpu=link_name == "pcie" and _pass_cpu(topology, domain),
    )


def _word(traits: Mapping[str, str], name: str, words: Iterable[Word]) -> Word | None:
    """A trait with a fixed choice of values."""
    text = traits.get(name, "")
    for word in words:
        if word == text:
            return word
    if text:
        raise ConfigError(f"unknown {name} {text!r:.80}; {nearest(text, words)}")
    return None


def fabric_of(traits: Mapping[str, str]) -> Fabric | Literal[""]:
    """The network between the nodes of a topology, by its traits; empty if they state none.

    >>> fabric_of({"fabric": "roce"})
    'roce'
    """
    return _word(traits, "fabric", FABRICS) or ""


def _domains(topology: Topology) -> Ints:
    """The domain of each rank: its node, else the ranks that it reaches without crossing a
    network.
    """
    if "box" in topology.groups:
        return topology.groups["box"]
    domain = np.full(topology.nranks, -1, dtype=np.int64)
    for rank in range(topology.nranks):
        if domain[rank] < 0:
            kind = topology.route(np.full(topology.nranks, rank), np.arange(topology.nranks)).kind
            domain[(kind != _NET) & (domain < 0)] = domain.max() + 1
    return domain


def _inside(topology: Topology, domain: Ints) -> tuple[Connection, int]:
    """The kind of link that joins the ranks of a domain, and the capacity of one GPU's links of
    that kind.
    """
    ranks = np.arange(topology.nranks)
    first_rank = np.unique(domain, return_index=True)[1][domain]
    if np.array_equal(first_rank, ranks):
        return "", 0
    # Links to GPUs without a rank carry nothing.
    idle = np.array([kind == "gpu" for kind in topology.node_kinds])
    idle[topology.rank_nodes] = False
    useful = ~idle[topology.link_src] & ~idle[topology.link_dst]
    kind = _NVLINK
    if not _connects(topology, useful & (topology.link_kind == _NVLINK), first_rank):
        kind = min(int(topology.route(first_rank, ranks).kind.max()), _PCIE)
    useful &= topology.link_kind == kind
    capacity = np.zeros(len(topology.node_names), dtype=np.int64)
    np.add.at(capacity, topology.link_src[useful], topology.link_capacity_uBps[useful])
    name: Connection = LINK_KINDS[kind]
    if topology.traits.get("peer_access") == "no":
        name = "host"
    elif kind == _NVLINK and topology.traits.get("generation", "").startswith("mi"):
        name = "xgmi"
    return name, int(capacity[topology.rank_nodes].min())


def _pass_cpu(topology: Topology, domain: Ints) -> bool:
    """Whether a route from a rank to the next one of its domain passes a CPU."""
    ranks = np.flatnonzero(domain[:-1] == domain[1:])
    links = topology.route(ranks, ranks + 1).links
    ends = topology.link_dst[links[links >= 0]]
    return any(topology.node_kinds[end] == "cpu" for end in np.unique(ends).tolist())


def _peer_capacity(topology: Topology, domain: Ints, gpu_uBps: int) -> int:
    """Capacity of the NVLinks between two GPUs of a domain, the minimum over pairs; behind
    switches, of all links of a GPU.
    """
    rank = np.full(len(topology.node_names), -1, dtype=np.int64)
    rank[topology.rank_nodes] = np.arange(topology.nranks)
    src, dst = rank[topology.link_src], rank[topology.link_dst]
    direct = (topology.link_kind == _NVLINK) & (src >= 0) & (dst >= 0)
    if not direct.any():
        return gpu_uBps
    pairs, pair_of = np.unique(src[direct] * topology.nranks + dst[direct], return_inverse=True)
    sizes = np.bincount(domain)
    if len(pairs) < (sizes * (sizes - 1)).sum():
        return 0
    sums = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(sums, pair_of, topology.link_capacity_uBps[direct])
    return int(sums.min())


def _connects(topology: Topology, links: NDArray[np.bool_], first_rank: Ints) -> bool:
    """Whether these links connect every rank with the first of its domain."""
    part = lowest_in_component(
        len(topology.node_names), topology.link_src[links], topology.link_dst[links]
    )
    part = part[topology.rank_nodes]
    return bool((part == part[first_rank]).all())


def _outside(topology: Topology, domain: Ints) -> tuple[int, int]:
    """The least number of NICs of a domain, and the least capacity of NICs with equal shares, over
    the links into the network and those from a GPU to them.
    """
    domains = int(domain.max()) + 1
    if domains == 1:
        return 0, 0
    firsts = np.unique(domain, return_index=True)[1]
    links = topology.route(np.arange(topology.nranks), firsts[(domain + 1) % domains]).links
    entry = (topology.link_kind[links] == _NET) & (links >= 0)
    ranks = np.flatnonzero(entry.any(axis=1))
    place = entry[ranks].argmax(axis=1)
    nics, first_users = np.unique(links[ranks, place], return_index=True)
    owner = domain[ranks[first_users]]
    passed = np.arange(links.shape[1]) <= place[first_users, None]
    capacities = np.where(
        passed, topology.link_capacity_uBps[links[ranks[first_users]]], _UNLIMITED
    )
    way_uBps = capacities.min(axis=1)
    # PCIe may be a little slower than its NIC everywhere, which is part of the NIC's measured
    # share. A way that is slower than the best one, such as a degraded link, slows its NIC as much.
    rate = topology.link_capacity_uBps[nics]
    best = int((way_uBps / rate).argmax())
    rates = [int(part) * int(rate[best]) // int(way_uBps[best]) for part in way_uBps]
    counts = np.bincount(owner, minlength=domains)
    slowest = np.zeros(domains, dtype=np.int64)
    slowest[owner] = _UNLIMITED
    np.minimum.at(slowest, owner, np.array(rates))
    equal = (count * rate for count, rate in zip(counts.tolist(), slowest.tolist(), strict=True))
    return int(counts.min()), min(equal)


def beyond_pcie(topology: Topology) -> str:
    """A warning for NICs that are faster than their PCIe links; empty otherwise."""
    cards = np.array([kind == "nic" for kind in topology.node_kinds])
    network = (topology.link_kind == _NET) & cards[topology.link_src]
    slots = topology.link_kind == _PCIE
    nic, pcie = (
        int(topology.link_capacity_uBps[links].max(initial=0)) / 1e15 for links in (network, slots)
    )
    if not 0 < pcie * NEARLY < nic:
        return ""
    return f"NICs of {nic:,.0f} GB/s behind PCIe links of {pcie:,.0f} GB/s cannot be filled"
