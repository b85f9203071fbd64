"""Topologies: vertices, directed links with capacity and latency, ranks on some vertices, and
routes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simcoll.arrays import Ints, Shorts
from simcoll.core.immutable import by_constructor, freeze, immutable
from simcoll.core.numbers import NUMBER, whole_numbers
from simcoll.core.step import distinct
from simcoll.core.vocabulary import LinkKind, NodeKind
from simcoll.errors import ConfigError, nearest, shown
from simcoll.notebook_forms import facts_table
from simcoll.terminal import printable
from simcoll.topology.routing import Router, graph_router
from simcoll.topology.values import checked_capacity, factor, whole
from simcoll.units import format_rate

if TYPE_CHECKING:
    import networkx as nx

    from simcoll.topology.detours import DetourRouter
    from simcoll.topology.host_tree import HostTree


__all__ = ["LINK_KINDS", "NODE_KINDS", "Routes", "Topology"]

MAX_WIDTH = 120
_MAPPINGS = ("groups", "efficiency", "traits", "sources")
NODE_KINDS: tuple[NodeKind, ...] = ("gpu", "nic", "switch", "cpu", "pcie")
LINK_KINDS: tuple[LinkKind, ...] = ("nvlink", "link", "pcie", "cpu", "net")
"""Kinds of links from the fastest to the slowest; arrays hold the index. ``nvlink`` is any scale-up
link (NVLink, xGMI), ``cpu`` a link between sockets, ``link`` one of no special kind.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Routes of M (source, destination) pairs.

    Attributes
    ----------
    links
        Link indices in order of travel ``[M, H]``, padded at the end with -1. The route of a rank
        to itself has no links.
    latency_fs
        Latency of the whole path ``[M]``.
    kind
        Kind of the slowest link of the path ``[M]``, an index into :data:`LINK_KINDS`; -1 without
        links.

    Examples
    --------
    >>> from simcoll.topology import crossbar
    >>> switch = crossbar(4, "50 GB/s", "1 us")
    >>> routes = switch.route([0], [3])
    >>> routes.links.tolist(), routes.latency_fs.tolist(), routes.kinds[routes.kind[0]]
    ([[0, 7]], [1000000000], 'link')
    """

    links: Shorts
    latency_fs: Ints
    kind: NDArray[np.int8]

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    @property
    def kinds(self) -> tuple[LinkKind, ...]:
        """Names of the kinds that ``kind`` indexes."""
        return LINK_KINDS


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Topology:
    """A frozen cluster: nobody can change its arrays and mappings.

    Attributes
    ----------
    node_names, node_kinds
        All vertices (``"box0.gpu3"``, ``"leaf2"``) and their kinds, from :data:`NODE_KINDS`.
    rank_nodes
        Vertex of each rank.
    link_src, link_dst, link_capacity_uBps, link_latency_fs, link_kind
        One entry per directed link; ``link_kind`` indexes :data:`LINK_KINDS`.
    router, rank_endpoints
        The router of the topology, and its endpoint of each rank.
    gpus_forward
        Whether routes may pass through a GPU (torus, mesh of direct links).
    groups
        Level (``"box"``, ``"leaf"``, ...), finest first, to the group of each rank, numbered from
        0.
    efficiency
        Measured share of the raw capacity per kind of link; default 1. Only NCCL's protocols use
        it.
    traits
        Facts that protocol models need:
        ``{"gpu": "H100", "generation": "hopper", "cpu": "intel"}``.
    sources
        Source of each number, by its place in the file.
    host
        The PCIe devices of one node, by which libraries decide; None if unknown.

    Examples
    --------
    >>> from simcoll.topology import crossbar
    >>> switch = crossbar(4, "50 GB/s", "1 us")
    >>> switch.nranks, switch.nlinks, switch.node_kinds[-1]
    (4, 8, 'switch')
    >>> print(switch)
    crossbar
    ranks     4
    vertices  4 gpu, 1 switch
    links     8 link at 50 GB/s
    """

    name: str
    node_names: tuple[str, ...]
    node_kinds: tuple[NodeKind, ...]
    rank_nodes: Ints
    link_src: Ints
    link_dst: Ints
    link_capacity_uBps: Ints
    link_latency_fs: Ints
    link_kind: NDArray[np.int8]
    router: Router
    rank_endpoints: Ints
    gpus_forward: bool = False
    groups: Mapping[str, Ints] = field(default_factory=dict)
    efficiency: Mapping[str, Fraction] = field(default_factory=dict)
    traits: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    host: HostTree | None = None

    def __post_init__(self) -> None:
        freeze(self)
        groups = {level: immutable(ids, NUMBER) for level, ids in self.groups.items()}
        for name in _MAPPINGS:
            mapping = groups if name == "groups" else getattr(self, name)
            object.__setattr__(self, name, MappingProxyType(dict(mapping)))
        if self.nranks == 0:
            raise ConfigError(f"topology {self.name!r} has no ranks; expected at least one GPU")

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        kind, values = by_constructor(self)
        return kind, tuple(
            dict(value) if isinstance(value, MappingProxyType) else value for value in values
        )

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "simcoll.Topology", *self.__reduce__()[1]

    @property
    def nranks(self) -> int:
        """World size: ranks are numbered 0..nranks-1.

        >>> from simcoll.topology import crossbar
        >>> crossbar(4, "50 GB/s", "1 us").nranks
        4
        """
        return len(self.rank_nodes)

    @property
    def nlinks(self) -> int:
        """Number of directed links.

        >>> from simcoll.topology import crossbar
        >>> crossbar(4, "50 GB/s", "1 us").nlinks  # one to the switch and one back for each GPU
        8
        """
        return len(self.link_src)

    def __repr__(self) -> str:
        return printable(f"<Topology {self.name!r}: {self.nranks} ranks, {self.nlinks} links>")

    def _repr_html_(self) -> str:
        lines = [line.split("  ", 1) for line in str(self).splitlines()[1:]]
        facts = [(name.strip(), text.strip()) for name, text in lines]
        return facts_table([("topology", str(self).splitlines()[0]), *facts])

    def __str__(self) -> str:
        groups = "".join(f", {len(np.unique(ids))} {level}" for level, ids in self.groups.items())
        kinds = Counter(self.node_kinds)
        return "\n".join(
            printable(line)
            for line in (
                f"{self.name}{self.description and ': '}{self.description}"[:MAX_WIDTH],
                f"ranks     {self.nranks}{groups and ' in groups: '}{groups[2:]}",
                (
                    "vertices  "
                    f"{', '.join(f'{kinds[kind]} {kind}' for kind in NODE_KINDS if kinds[kind])}"
                ),
                f"links     {', '.join(self._links_in_words())}",
            )
        )

    def _links_in_words(self) -> Iterator[str]:
        """The number of links of each kind, with their rates."""
        for number, kind in enumerate(LINK_KINDS):
            rates = self.link_capacity_uBps[self.link_kind == number]
            if rates.size:
                lowest, highest = format_rate(int(rates.min())), format_rate(int(rates.max()))
                span = lowest if lowest == highest else f"{lowest} to {highest}"
                yield f"{rates.size} {kind} at {span}"

    @property
    def passes_gpus(self) -> bool:
        """Whether routes may pass through a GPU: all GPUs forward, or some relay for others that
        have lost their NIC.

        >>> from simcoll.topology import crossbar
        >>> crossbar(4, "50 GB/s", "1 us").passes_gpus
        False
        """
        if self.gpus_forward:
            return True
        from simcoll.topology.detours import DetourRouter

        return isinstance(self.router, DetourRouter) and self.router.relays is not None

    @property
    def ranks_per_node(self) -> int | None:
        """Consecutive ranks per node or NVLink domain; None if uneven or unordered.

        >>> from simcoll.topology import crossbar, load_topology
        >>> load_topology("dgx-h100", nodes=2).ranks_per_node
        8
        >>> crossbar(4, "50 GB/s", "1 us").ranks_per_node is None
        True
        """
        node = self.groups.get("box")
        if node is None:
            return None
        size = int((node == node[0]).sum())
        even = len(node) % size == 0 and np.array_equal(node, node[::size].repeat(size))
        return size if even else None

    def link_name(self, link: int) -> str:
        """``"box0.gpu3 -> box0.nvswitch"``.

        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> switch.link_name(0)
        'gpu0 -> switch'
        """
        return f"{self.node_names[self.link_src[link]]} -> {self.node_names[self.link_dst[link]]}"

    def path(self, src: int, dst: int) -> list[str]:
        """Names of the links from one rank to another, in order of travel.

        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> switch.path(0, 3)
        ['gpu0 -> switch', 'switch -> gpu3']
        """
        return [self.link_name(link) for link in self.route([src], [dst]).links[0] if link >= 0]

    def route(self, src: ArrayLike, dst: ArrayLike) -> Routes:
        """Routes from rank ``src[m]`` to rank ``dst[m]`` for all m.

        Raises
        ------
        ConfigError
            When a rank is not in 0..nranks-1 or the two arrays differ in length.

        Examples
        --------
        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> switch.route([0, 1], [3, 1]).latency_fs.tolist()
        [1000000000, 0]
        """
        a, b = (
            np.atleast_1d(np.asarray(src, dtype=np.int64)),
            np.atleast_1d(np.asarray(dst, dtype=np.int64)),
        )
        if a.shape != b.shape or a.ndim != 1:
            raise ConfigError(
                f"routes need as many sources as destinations, got shapes {a.shape} and {b.shape}"
            )
        for ranks in (a, b):
            if ranks.size and not (ranks.min() >= 0 and ranks.max() < self.nranks):
                bad = int(ranks[(ranks < 0) | (ranks >= self.nranks)][0])
                raise ConfigError(
                    f"rank {bad} is not in topology {self.name!r}; expected 0 to {self.nranks - 1}"
                )
        return self.routes_over(self.router.links(self.rank_endpoints[a], self.rank_endpoints[b]))

    def routes_over(self, links: Shorts) -> Routes:
        """The routes over these links, ``[M, H]`` in order of travel, padded at the end with -1.

        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> switch.routes_over(np.array([[0, 7, -1]], np.int32)).latency_fs.tolist()
        [1000000000]
        """
        # Hop by hop, where -1 picks the neutral last entry: several times as fast as a sum over
        # rows of a few hops.
        latencies, kinds = (
            np.append(self.link_latency_fs, 0),
            np.append(self.link_kind, np.int8(-1)),
        )
        latency, kind = np.zeros(len(links), np.int64), np.full(len(links), -1, np.int8)
        for column in links.T:
            hop = column.astype(np.intp)
            latency += latencies.take(hop, mode="wrap")
            np.maximum(kind, kinds.take(hop, mode="wrap"), out=kind)
        return Routes(links=links, latency_fs=latency, kind=kind)

    def with_ranks(self, endpoints: Sequence[int] | Ints) -> Topology:
        """The same cluster with rank r at the position of rank ``endpoints[r]``; other positions
        hold no rank.

        Raises
        ------
        ConfigError
            When the selection is empty, repeats a rank, or names one that does not exist.

        Examples
        --------
        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> switch.with_ranks([3, 1]).path(0, 1)
        ['gpu3 -> switch', 'switch -> gpu1']
        """
        chosen = whole_numbers("a placement", endpoints, "iu")
        if chosen.ndim != 1 or chosen.size == 0:
            raise ConfigError("a placement needs at least one rank")
        beyond = chosen[(chosen < 0) | (chosen >= self.nranks)]
        if beyond.size:
            raise ConfigError(
                f"a placement may use ranks 0 to {self.nranks - 1} of topology {self.name!r}, not "
                f"{beyond[0]}"
            )
        if distinct(chosen).size != chosen.size:
            raise ConfigError("a placement puts two ranks on one GPU; expected distinct numbers")
        if np.array_equal(chosen, np.arange(self.nranks)):
            return self
        return replace(
            self,
            rank_nodes=self.rank_nodes[chosen],
            rank_endpoints=self.rank_endpoints[chosen],
            groups={
                level: np.unique(ids[chosen], return_inverse=True)[1]
                for level, ids in self.groups.items()
            },
        )

    def take(self, nranks: int) -> Topology:
        """The same cluster with ranks only on its first ``nranks`` GPUs.

        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> switch.take(2).nranks
        2
        """
        if not 1 <= nranks <= self.nranks:
            raise ConfigError(
                f"topology {self.name!r} has {self.nranks} GPUs; {nranks} ranks were requested"
            )
        return self if nranks == self.nranks else self.with_ranks(range(nranks))

    def link(self, name: str) -> int:
        """Index of a link by name, such as ``"box0.gpu3 -> box0.nvswitch"``.

        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> switch.link("gpu1 -> switch")
        2
        """
        tail, arrow, head = (part.strip() for part in name.partition("->"))
        if not (tail and arrow and head):
            like = f", such as {self.link_name(0)!r}" if self.nlinks else ""
            raise ConfigError(
                f"link {name!r}: expected two vertices with an arrow between them{like}"
            )
        for end in (tail, head):
            if end not in self.node_names:
                raise ConfigError(
                    f"link {name!r}: no vertex {end!r}; {_near(end, self.node_names)}"
                )
        a, b = self.node_names.index(tail), self.node_names.index(head)
        links = np.flatnonzero((self.link_src == a) & (self.link_dst == b))
        if not links.size:
            heads = [self.node_names[v] for v in self.link_dst[self.link_src == a]]
            raise ConfigError(f"no link {name!r}; from {tail!r} {_near(head, heads)}")
        return int(links[0])

    def degrade(self, link: str | int, share: str | float | Fraction) -> Topology:
        """The same cluster with a link (``a -> b``), both of a pair (``a <-> b``), or all at a
        vertex (``a``) at a share of capacity.

        At a share of 0 the link is lost, and routes that used it take a detour: another of the
        equal routes of a Clos network, chosen by the same rule, else a shortest path, else a route
        over another GPU of the node, such as to the NIC of a neighbour (PXN in NCCL). Links after a
        lost one move down by one number. The name of the result ends in ``degraded``.

        Raises
        ------
        ConfigError
            When the link does not exist, the share is not between 0 and 1, or a dead link
            disconnects two ranks.

        Examples
        --------
        >>> from simcoll.topology import torus
        >>> torus([4], "25 GB/s").degrade("gpu0 <-> gpu1", 0).path(0, 1)
        ['gpu0 -> gpu3', 'gpu3 -> gpu2', 'gpu2 -> gpu1']
        """
        chosen = self.find_links(link)
        remaining = factor(share, f"share of capacity of {shown(link)}", zero=True)
        if remaining > 1:
            raise ConfigError(f"share of capacity of {shown(link)}: expected 0 to 1, got {share}")
        name = f"{self.name.removesuffix(' degraded')} degraded"
        if remaining:
            capacity = self.link_capacity_uBps.copy()
            for index in chosen:
                capacity[index] = checked_capacity(
                    int(capacity[index]) * remaining, "degraded link"
                )
            return replace(self, name=name, link_capacity_uBps=capacity)
        present = ~np.isin(np.arange(self.nlinks), chosen)
        lost = (
            link
            if isinstance(link, str) and "->" not in link
            else " and ".join(map(self.link_name, chosen))
        )
        parts = {
            name: getattr(self, name)[present]
            for name in (
                "link_src",
                "link_dst",
                "link_capacity_uBps",
                "link_latency_fs",
                "link_kind",
            )
        }
        router = self.detours(present, lost)
        return replace(
            self, name=name, **parts, router=router, rank_endpoints=np.arange(self.nranks)
        )

    def detours(self, present: NDArray[np.bool_], lost: str | None = None) -> DetourRouter:
        """The router over some of the links, renumbered, as in :meth:`degrade`; its endpoints are
        the ranks.

        Two ranks without a path have a route without links, unless ``lost`` names the removed
        links.

        Raises
        ------
        ConfigError
            When ``lost`` is given and two ranks have no path.

        Examples
        --------
        >>> from simcoll.topology import torus
        >>> circle = torus([4], "25 GB/s")
        >>> present = np.ones(circle.nlinks, np.bool_)
        >>> present[circle.link("gpu0 -> gpu1")] = False
        >>> router = circle.detours(present)
        >>> int((router.links(np.array([0]), np.array([1])) >= 0).sum())  # the long way round
        3
        """
        from simcoll.topology.detours import detour_router  # only degraded machines need them
        from simcoll.topology.relays import relays_of

        src, dst, latency_fs = (
            self.link_src[present],
            self.link_dst[present],
            self.link_latency_fs[present],
        )
        relays = None
        if "box" in self.groups and not self.gpus_forward:
            cpu = np.array([kind == "cpu" for kind in self.node_kinds])
            net = self.link_kind[present] == LINK_KINDS.index("net")
            relays = relays_of(self.groups["box"], net, cpu[src] | cpu[dst], latency_fs)
        needed = relays is not None and bool(relays.host.any())

        def has_route(remainder: Router, src: Ints, dst: Ints) -> NDArray[np.bool_]:
            nonlocal needed
            needed = True
            links = detour_router(
                self.router, self.rank_endpoints, present, remainder, relays
            ).links(src, dst)
            return np.asarray((links >= 0).any(axis=1) | (lost is None))

        remainder = graph_router(
            f"{self.name} without {lost}",
            self.node_names,
            self.node_kinds,
            self.rank_nodes,
            src,
            dst,
            latency_fs,
            gpus_forward=self.gpus_forward,
            otherwise=None if relays is None and lost is not None else has_route,
        )
        return detour_router(
            self.router, self.rank_endpoints, present, remainder, relays if needed else None
        )

    def find_links(self, link: str | int) -> list[int]:
        """The numbers of a link (``a -> b``, or its number), of both links of a pair (``a <-> b``),
        or of all at a vertex (``a``).

        Raises
        ------
        ConfigError
            When there is no such link; states the nearest one.

        Examples
        --------
        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> len(switch.find_links("gpu1 <-> switch")), len(switch.find_links("switch"))
        (2, 8)
        """
        if not isinstance(link, str):
            number = whole(link, "a link, if not a name such as 'gpu0 -> gpu1'")
            if not 0 <= number < self.nlinks:
                raise ConfigError(
                    f"link {number} is not in topology {self.name!r}; expected 0 to "
                    f"{self.nlinks - 1}"
                )
            return [number]
        if "->" not in link:
            if link.strip() not in self.node_names:
                like = f", such as {self.link_name(0)!r}" if self.nlinks else ""
                raise ConfigError(
                    f"link {link!r}: expected two vertices with an arrow between them{like}, or "
                    "one vertex for all its links; "
                    f"{_near(link, self.node_names)}"
                )
            vertex = self.node_names.index(link.strip())
            return np.flatnonzero((self.link_src == vertex) | (self.link_dst == vertex)).tolist()
        if "<->" not in link:
            return [self.link(link)]
        a, _, b = link.partition("<->")
        return [self.link(f"{a.strip()} -> {b.strip()}"), self.link(f"{b.strip()} -> {a.strip()}")]

    def to_networkx(self) -> nx.DiGraph:
        """A ``networkx.DiGraph`` over vertex names: nodes with ``kind`` and ``rank``, edges with
        ``capacity_uBps``, ``latency_fs``, ``kind``.

        >>> from simcoll.topology import crossbar
        >>> switch = crossbar(4, "50 GB/s", "1 us")
        >>> switch.to_networkx().nodes["gpu2"]
        {'kind': 'gpu', 'rank': 2}
        """
        import networkx as nx

        graph = nx.DiGraph(name=self.name)
        rank_of = {int(node): rank for rank, node in enumerate(self.rank_nodes)}
        for index, (name, kind) in enumerate(zip(self.node_names, self.node_kinds, strict=True)):
            graph.add_node(
                name, kind=kind, **({"rank": rank_of[index]} if index in rank_of else {})
            )
        for link in range(self.nlinks):
            graph.add_edge(
                self.node_names[self.link_src[link]],
                self.node_names[self.link_dst[link]],
                capacity_uBps=int(self.link_capacity_uBps[link]),
                latency_fs=int(self.link_latency_fs[link]),
                kind=LINK_KINDS[self.link_kind[link]],
            )
        return graph


def _near(name: str, valid: Sequence[str]) -> str:
    from difflib import get_close_matches

    return nearest(name, get_close_matches(name, valid, n=5, cutoff=0.0))
