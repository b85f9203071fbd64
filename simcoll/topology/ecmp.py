"""Two-level fat trees with every switch modelled, in one or more planes, with routes chosen by hash
or spread ideally.

:func:`simcoll.topology.fat_tree` merges all spines into one, where flows never collide; here flows
can collide on an uplink, as in real networks with ECMP.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from simcoll.arrays import Ints, Shorts
from simcoll.call_records import record_of, takes
from simcoll.core.hashing import SALTS, mix
from simcoll.core.immutable import by_constructor, freeze
from simcoll.core.numbers import check_seed
from simcoll.errors import ConfigError, nearest
from simcoll.topology.detours import DetourRouter
from simcoll.topology.families import fat_tree
from simcoll.topology.graph import Topology
from simcoll.topology.links import LinkTable, room_for_links, switch_network
from simcoll.topology.routing import Router
from simcoll.topology.values import Quantity, count, duration_fs, halves_fs, parse_capacity

__all__ = ["ECMP", "ClosParameters", "ClosRouter", "clos", "hash_of", "reseed"]

EcmpMode: TypeAlias = Literal["hash", "modulo", "ideal"]
ECMP: tuple[EcmpMode, ...] = get_args(EcmpMode)
PLANE, SPINE, AGAIN = 1, 2, 3
"""Purposes that keep the hashes of choices independent; 3 is used by placements, those from 4 on by
repeated choices.
"""


def hash_of(seed: int, purpose: int, src: Ints, dst: Ints) -> Ints:
    """Non-negative pseudo-random numbers, as a function of (seed, purpose, source, destination)
    only.
    """
    word = np.full(src.shape, np.uint64(seed))
    for part in (np.uint64(purpose), src.astype(np.uint64), dst.astype(np.uint64)):
        with np.errstate(over="ignore"):
            word = mix((word + part) * SALTS[0] + np.uint64(1))
    return (word >> np.uint64(1)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ClosRouter:
    """Up to a leaf, over a spine if the leaves differ, and down.

    Plane and spine are chosen per pair.

    ``up`` and ``down`` are links of each endpoint in each plane ``[n, planes]``, ``rise`` and
    ``fall`` those between leaf and spine ``[planes, leaves, spines]``. ``seed`` None chooses by
    (source + destination), which spreads regular traffic evenly.
    """

    hosts: int
    up: Shorts
    down: Shorts
    rise: Shorts
    fall: Shorts
    seed: int | None

    def __post_init__(self) -> None:
        freeze(self)

    __reduce__ = by_constructor

    def links(self, src: Ints, dst: Ints) -> Shorts:
        """See :class:`simcoll.topology.routing.Router`."""
        return self._over(src, dst, self._choice(src, dst))

    def around(self, src: Ints, dst: Ints, lost: NDArray[np.bool_]) -> Shorts:
        """See :class:`simcoll.topology.detours.Multipath`.

        A pair chooses again, by the same rule, among the routes not yet tried, until one has no
        lost links.
        """
        choices = self.rise.shape[0] * self.rise.shape[2]
        choice, remainder = self._choice(src, dst), (src + dst) // choices
        routes, tried, pair = self._over(src, dst, choice), choice[None], np.arange(src.size)
        for remaining in range(choices - 1, 0, -1):
            broken = lost[routes[pair]].any(axis=1)
            if not broken.any():
                break
            pair, tried, remainder = pair[broken], tried[:, broken], remainder[broken]
            choice = (
                remainder
                if self.seed is None
                else hash_of(self.seed, AGAIN + remaining, src[pair], dst[pair])
            ) % remaining
            remainder = remainder // remaining
            for earlier in np.sort(tried, axis=0):
                choice += choice >= earlier
            tried = np.concatenate([tried, choice[None]])
            routes[pair] = self._over(src[pair], dst[pair], choice)
        return routes

    def _choice(self, src: Ints, dst: Ints) -> Ints:
        """Plane and spine of every pair as one number."""
        planes, _, spines = self.rise.shape
        if self.seed is None:
            plane, spine = (src + dst) % planes, (src + dst) // planes % spines
        else:
            plane, spine = (
                hash_of(self.seed, PLANE, src, dst) % planes,
                hash_of(self.seed, SPINE, src, dst) % spines,
            )
        choice: Ints = plane * spines + spine
        return choice

    def _over(self, src: Ints, dst: Ints, choice: Ints) -> Shorts:
        """Links of the routes over the chosen planes and spines."""
        plane, spine = np.divmod(choice, self.rise.shape[2])
        src_leaf, dst_leaf = src // self.hosts, dst // self.hosts
        far, away = src_leaf != dst_leaf, src != dst
        columns = (
            np.where(away, self.up[src, plane], -1),
            np.where(
                far, self.rise[plane, src_leaf, spine], np.where(away, self.down[dst, plane], -1)
            ),
            np.where(far, self.fall[plane, dst_leaf, spine], -1),
            np.where(far, self.down[dst, plane], -1),
        )
        routes: Shorts = np.stack(columns, axis=1).astype(np.int32)
        return routes


def reseed(topology: Topology, seed: int) -> Topology:
    """The same cluster with another seed for its switches' choices among equal routes.

    Raises
    ------
    ConfigError
        When its routes are not chosen by hash.

    Examples
    --------
    >>> tree = clos(4, 2, 4, "50 GB/s", "1 us")
    >>> [reseed(tree, seed).path(0, 7)[1] for seed in (0, 1)]
    ['leaf0 -> spine1', 'leaf0 -> spine0']
    """
    router = topology.router
    chooser = router.original if isinstance(router, DetourRouter) else router
    if not isinstance(chooser, ClosRouter) or chooser.seed is None:
        raise ConfigError(
            f"topology {topology.name!r}: no hash chooses its routes; expected family 'clos' with "
            "ecmp 'hash'"
        )
    reseeded: Router = replace(chooser, seed=check_seed(seed))
    return replace(
        topology,
        router=replace(router, original=reseeded) if isinstance(router, DetourRouter) else reseeded,
    )


@dataclass(frozen=True, slots=True)
class ClosParameters:
    """Parameters of :func:`clos`.

    Attributes
    ----------
    bandwidth
        Of a rank's link in one plane, per direction.
    latency
        Between two ranks at one leaf.
    uplink_bandwidth
        Of each link from a leaf to a spine of its plane; default: that of a rank's link.
    spine_latency
        Additional latency of crossing a spine.
    ecmp
        ``"hash"`` chooses plane and spine of a pair by a hash of (seed, source, destination);
        ``"modulo"`` by source plus destination; ``"ideal"`` spreads every message over all planes
        and spines, so that one plane and one spine stand for all.
    """

    leaves: int
    hosts_per_leaf: int
    spines: int
    bandwidth: Quantity
    latency: Quantity = 0
    _: KW_ONLY
    planes: int = 1
    uplink_bandwidth: Quantity | None = None
    spine_latency: Quantity = 0
    ecmp: EcmpMode = "hash"
    seed: int = 0
    name: str = "clos"
    link_kind: str = "net"


@takes(ClosParameters)
def clos(*arguments: Any, **keywords: Any) -> Topology:
    """A two-level fat tree with every leaf and spine, or several such planes with one link of every
    rank in each.

    Takes a :class:`ClosParameters`, or its fields as arguments.

    Examples
    --------
    >>> tree = clos(4, 2, 2, "50 GB/s", "1 us", ecmp="modulo")
    >>> tree.path(0, 7)
    ['gpu0 -> leaf0', 'leaf0 -> spine1', 'spine1 -> leaf3', 'leaf3 -> gpu7']
    """
    shape = record_of(ClosParameters, arguments, keywords)
    if shape.ecmp not in ECMP:
        raise ConfigError(f"ecmp: unknown {shape.ecmp!r}; {nearest(shape.ecmp, ECMP)}")
    seed = check_seed(shape.seed)
    p, roots = count(shape.planes, "planes"), count(shape.spines, "spines")
    hosts, below = count(shape.hosts_per_leaf, "hosts_per_leaf"), count(shape.leaves, "leaves")
    n = count(below * hosts, "number of ranks", maximum=2**20)
    capacity = parse_capacity(shape.bandwidth, "bandwidth")
    uplink = capacity if shape.uplink_bandwidth is None else shape.uplink_bandwidth
    trunk = parse_capacity(uplink, "uplink_bandwidth")
    if shape.ecmp == "ideal":
        share = f"{hosts * capacity}/{roots * trunk}"
        return fat_tree(
            below,
            hosts,
            capacity * p,
            shape.latency,
            oversubscription=share,
            spine_latency=shape.spine_latency,
            name=shape.name,
            link_kind=shape.link_kind,
        )
    room_for_links(2 * p * (n + below * roots), "this Clos network")
    links, halves = LinkTable([]), halves_fs(duration_fs(shape.latency, "latency"))
    rise, link_kind = halves_fs(duration_fs(shape.spine_latency, "spine_latency")), shape.link_kind
    names = [f"gpu{v}" for v in range(n)]
    ends = np.empty((p, n, 2), np.int32)
    trunks = np.empty((p, below, roots, 2), np.int32)
    for plane in range(p):
        title = f"plane{plane}." if p > 1 else ""
        leaf, spine = len(names), len(names) + below
        names += [f"{title}leaf{k}" for k in range(below)] + [
            f"{title}spine{k}" for k in range(roots)
        ]
        for v in range(n):
            ends[plane, v] = links.add_pair(v, leaf + v // hosts, capacity, halves, link_kind)
        for k in range(below):
            for s in range(roots):
                trunks[plane, k, s] = links.add_pair(leaf + k, spine + s, trunk, rise, link_kind)
    router = ClosRouter(
        hosts=hosts,
        up=ends[..., 0].T,
        down=ends[..., 1].T,
        rise=trunks[..., 0],
        fall=trunks[..., 1],
        seed=seed if shape.ecmp == "hash" else None,
    )
    return switch_network(shape.name, n, names, links, router, {"leaf": np.arange(n) // hosts})
