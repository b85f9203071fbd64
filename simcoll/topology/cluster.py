"""Clusters of equal nodes: one node as a small graph, its copies, and tiers of switches that join
them by rail.

GPU g of every node sends to other nodes through its own NIC (its rail). A tier is one layer of
switches: the leaf tier of a rail-optimised network has a switch for each rail and group of nodes,
and the spine joins all of them. A switch in the model stands for as many real ones as necessary,
perfectly balanced (aggregated uplinks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from simcoll.arrays import Ints, Shorts
from simcoll.core.vocabulary import NodeKind
from simcoll.errors import ConfigError
from simcoll.topology.graph import Topology
from simcoll.topology.links import LinkTable, assemble, room_for_links
from simcoll.topology.routing import BoxRouter, Level, ShortestPathRouter, shortest_path_router
from simcoll.topology.values import (
    Quantity,
    checked_capacity,
    count,
    duration_fs,
    factor,
    halves_fs,
)

__all__ = ["Box", "Tier", "cluster"]


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """One node: vertices by local name, links between them, its GPUs and NICs, and the NIC of each
    GPU.
    """

    names: tuple[str, ...]
    kinds: tuple[NodeKind, ...]
    links: LinkTable
    gpus: tuple[int, ...]
    nics: tuple[int, ...] = ()
    nic_capacity: tuple[int, ...] = ()
    nic_of_gpu: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier of switches between nodes.

    Attributes
    ----------
    name
        ``"leaf"``, ``"spine"``, ``"core"``.
    boxes
        Number of nodes that share a switch; None for all of them.
    rail_only
        Whether each rail has separate switches.
    latency
        For the first tier, the one-way latency from GPU to GPU through it; for the others, the
        addition for crossing it.
    oversubscription
        Capacity into the tier below over capacity up into this tier; 1 is non-blocking. Unused for
        the first tier.
    """

    name: str
    boxes: int | None = None
    rail_only: bool = False
    latency: Quantity = 0
    oversubscription: str | float | Fraction = 1


def cluster(name: str, box: Box, nodes: int, tiers: Sequence[Tier]) -> Topology:
    """Copies of a node, joined by tiers of switches; a single node has no network.

    Raises
    ------
    ConfigError
        When several nodes have no NICs or no tier that joins them all, or a link exceeds the
        model's capacity.
    """
    nodes = count(nodes, "nodes", maximum=2**17)
    g, size = len(box.gpus), len(box.names)
    networked = nodes > 1
    if networked and not box.nics:
        raise ConfigError(f"topology {name!r}: {nodes} nodes, but a node has no NICs to join them")
    if not networked:
        box = _without_nics(box)
        size = len(box.names)
    router_inside = _inside_router(box)
    pairs = _paths(name, box, router_inside, *np.divmod(np.arange(g * g), g)).reshape(g, g, -1)
    box_columns = box.links.columns()
    per_box = box_columns.shape[1]
    room_for_links(nodes * (per_box + 2 * len(box.nics)), f"topology {name!r}")
    columns = np.tile(box_columns, (1, nodes))
    shift = np.repeat(np.arange(nodes) * size, per_box)
    columns[:2] += shift
    names = [f"box{b}.{local}" for b in range(nodes) for local in box.names]
    kinds = list(box.kinds) * nodes
    groups = {"box": np.repeat(np.arange(nodes), g)}
    levels: list[Level] = []
    if networked:
        network = _network(name, box, router_inside, nodes, tuple(tiers), per_box)
        columns = np.concatenate([columns, network.links.columns()], axis=1)
        names += network.names
        kinds += ["switch"] * len(network.names)
        groups |= network.groups
        levels = network.levels
    gpus = (np.arange(nodes)[:, None] * size + np.array(box.gpus)).ravel()
    router = BoxRouter(pair_links=pairs, links_per_box=per_box, levels=tuple(levels))
    return assemble(name, names, kinds, gpus, columns, router, groups)


def _without_nics(box: Box) -> Box:
    """The node without its NICs, which a single node does not use."""
    remaining = [v for v in range(len(box.names)) if v not in set(box.nics)]
    new = {v: i for i, v in enumerate(remaining)}
    links = LinkTable(
        [
            (new[row[0]], new[row[1]], *row[2:])
            for row in box.links.rows
            if row[0] in new and row[1] in new
        ]
    )
    names = tuple(box.names[v] for v in remaining)
    kinds = tuple(box.kinds[v] for v in remaining)
    return Box(names, kinds, links, tuple(new[v] for v in box.gpus))


def _inside_router(box: Box) -> ShortestPathRouter:
    """Routes between the GPUs and NICs of one node; neither forwards traffic of others."""
    columns = box.links.columns()
    endpoints = np.array(box.gpus + box.nics, dtype=np.int64)
    forwards = np.ones(len(box.names), dtype=bool)
    forwards[endpoints] = False
    return shortest_path_router(
        len(box.names), columns[0], columns[1], columns[3], endpoints, forwards
    )


def _paths(name: str, box: Box, router: ShortestPathRouter, src: Ints, dst: Ints) -> Shorts:
    """Routes inside a node between endpoints (GPUs, then NICs), all of which must exist."""
    paths = router.links(src, dst)
    missing = np.flatnonzero((src != dst) & ~(paths >= 0).any(axis=1))
    if missing.size:
        ends = box.gpus + box.nics
        a, b = (box.names[ends[end[missing[0]]]] for end in (src, dst))
        raise ConfigError(
            f"topology {name!r} is disconnected: inside a node there is no route from {a} to {b}"
        )
    return paths


@dataclass(frozen=True, slots=True)
class _Network:
    """Vertices and links that the tiers add to the nodes."""

    names: list[str]
    links: LinkTable
    levels: list[Level]
    groups: dict[str, Ints]


def _network(
    name: str,
    box: Box,
    router: ShortestPathRouter,
    nodes: int,
    tiers: tuple[Tier, ...],
    links_per_box: int,
) -> _Network:
    """Switches and links of all tiers. Tables list NICs first, then GPUs."""
    tier_names = [tier.name for tier in tiers]
    if len(set(tier_names)) != len(tier_names) or {"box", "pod"} & set(tier_names):
        raise ConfigError(
            f"topology {name!r}: tiers {tier_names} need distinct names, other than 'box' and 'pod'"
        )
    size, g, cards = len(box.names), len(box.gpus), len(box.nics)
    first_vertex, first_link = nodes * size, nodes * links_per_box
    network = _Network([], LinkTable([]), [], {})
    box_of_card, rail = np.divmod(np.arange(nodes * cards), cards)
    # For each NIC, the vertex that its traffic has reached on the way up, and the capacity into
    # that vertex from below.
    reached = box_of_card * size + np.array(box.nics)[rail]
    inflow = {int(v): box.nic_capacity[r] for v, r in zip(reached, rail, strict=True)}
    ups, downs = _card_paths(name, box, router, nodes, links_per_box)
    card_of_gpu = (np.arange(nodes)[:, None] * cards + np.array(box.nic_of_gpu)).ravel()
    for depth, tier in enumerate(tiers):
        group = _tier_groups(name, tiers, depth, nodes, box_of_card, rail)
        switch = first_vertex + len(network.names) + group
        network.names.extend(_switch_names(tier, group, box_of_card, rail))
        latency = halves_fs(duration_fs(tier.latency, f"latency of the {tier.name} tier"))
        share = (
            factor(tier.oversubscription, f"oversubscription of the {tier.name} tier")
            if depth
            else Fraction(1)
        )
        rates: dict[int, int] = {}
        link_of: dict[int, tuple[int, int]] = {}
        arriving: dict[int, int] = {}
        for below, above in zip(reached.tolist(), switch.tolist(), strict=True):
            if below in link_of:
                continue
            if inflow[below] not in rates:
                uplink = f"uplink to the {tier.name} tier of topology {name!r}"
                rates[inflow[below]] = checked_capacity(inflow[below] / share, uplink)
            capacity = rates[inflow[below]]
            up, down = network.links.add_pair(below, above, capacity, latency, "net")
            link_of[below] = (first_link + up, first_link + down)
            arriving[above] = arriving.get(above, 0) + capacity
        hop = np.array([link_of[int(v)] for v in reached], dtype=np.int32)[card_of_gpu]
        ups = np.concatenate([ups, hop[:, :1]], axis=1)
        downs = np.concatenate([hop[:, 1:], downs], axis=1)
        network.levels.append(Level(group=group[card_of_gpu], up=ups, down=downs))
        if group.max() > 0:
            network.groups[tier.name] = group[card_of_gpu]
        if tier.rail_only and tier.boxes is not None and tier.boxes < nodes:
            network.groups["pod" if depth == 0 else f"{tier.name}_pod"] = (
                np.arange(nodes * g) // g // tier.boxes
            )
        reached, inflow = switch, arriving
    if not tiers or len(inflow) != 1:
        last = (
            f"the {tiers[-1].name} tier has {len(inflow)} separate switches"
            if tiers
            else "there are no tiers"
        )
        raise ConfigError(
            f"topology {name!r} is disconnected: {last}; expected a last tier that joins all nodes "
            "and rails"
        )
    return network


def _card_paths(
    name: str, box: Box, router: ShortestPathRouter, nodes: int, links_per_box: int
) -> tuple[Shorts, Shorts]:
    """Links from each GPU to its NIC and back, for all nodes."""
    gpus = np.arange(len(box.gpus))
    cards = len(box.gpus) + np.array(box.nic_of_gpu)
    shift = np.repeat(np.arange(nodes) * links_per_box, len(box.gpus))[:, None]

    def copies(paths: Shorts) -> Shorts:
        tiled = np.tile(paths, (nodes, 1))
        return np.where(tiled >= 0, tiled + shift, -1).astype(np.int32)

    return copies(_paths(name, box, router, gpus, cards)), copies(
        _paths(name, box, router, cards, gpus)
    )


def _tier_groups(
    name: str, tiers: tuple[Tier, ...], depth: int, nodes: int, box: Ints, rail: Ints
) -> Ints:
    """Switch of the tier above each NIC, numbered from 0."""
    tier = tiers[depth]
    span = count(nodes if tier.boxes is None else tier.boxes, f"boxes of the {tier.name} tier")
    if depth:
        below = tiers[depth - 1]
        inner = nodes if below.boxes is None else below.boxes
        if (span < nodes and span % inner) or (tier.rail_only and not below.rail_only):
            raise ConfigError(
                f"topology {name!r}: a switch of the {tier.name} tier must join whole switches of "
                f"the {below.name} "
                f"tier; expected boxes to be a multiple of {inner}, and rail_only only above "
                "rail_only"
            )
    rails = int(rail.max()) + 1
    key = (box // span) * rails + rail if tier.rail_only else box // span
    return np.asarray(np.unique(key, return_inverse=True)[1], dtype=np.int64)


def _switch_names(tier: Tier, group: Ints, box: Ints, rail: Ints) -> list[str]:
    """``spine`` for a single switch, ``leaf2`` by group of nodes, ``leaf0.rail3`` if rails have
    separate switches.
    """
    _, positions = np.unique(group, return_index=True)
    if len(positions) == 1:
        return [tier.name]
    return [
        f"{tier.name}{box[f] // tier.boxes if tier.boxes else 0}"
        + (f".rail{rail[f]}" if tier.rail_only else "")
        for f in positions
    ]
