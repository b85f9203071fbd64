"""NCCL's search for the graphs of its algorithms: the speeds, paths and NICs that it tries, in its
order.

The rules are those of ``src/graph/search.cc`` and ``src/init.cc`` of NCCL 2.27 to 2.30.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simcoll.libraries.nccl.attempts import AttemptMemory
from simcoll.libraries.nccl.channel_search import ChannelSearch, Draft
from simcoll.libraries.nccl.device_graph import DeviceGraph, Vertex, VertexKind, device_graph
from simcoll.libraries.nccl.device_paths import (
    DISCONNECTED,
    LOC,
    NVL,
    PIX,
    PXN,
    SYS,
    PathRules,
    compute_paths,
    nearest_cpu,
    without_unreachable,
)
from simcoll.libraries.nccl.graphs import Pattern
from simcoll.topology.host_tree import HostTree

MOST_CHANNELS = 64
_STEPS = 1 << 14
_STEPS_SAME_CHANNELS = 1 << 8
_ALL_STEPS = 1 << 19
_MOST_NVLS_HEADS = 32

_SPEEDS_INSIDE = {
    60: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    90: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    100: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
_SPEEDS_BETWEEN = {
    60: (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    90: (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    100: (
        *(96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2),
        *(0.24, 0.12),
    ),
}
"""Speeds of a channel in GB/s that NCCL tries, by the least compute capability."""
_ADDED_SPEEDS = {(100, 45): (2, 29), (100, 80): (2, 29), (100, 86): (2, 30)}
"""Version in which a speed came in; 80 between nodes only."""


_RULES = PathRules()
_Attempt = tuple[object, ...]
"""Everything on which an attempt of the search depends."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of NCCL that decide on graphs.

    ``cross_nic`` is ``NCCL_CROSS_NIC``; ``ports`` are the numbers of the ports that NCCL may use
    (``NCCL_IB_HCA``), None for all; ``port_mbps`` is the rate of each in Mbit/s, 0 for its own;
    ``nvls`` is False for ``NCCL_NVLS_ENABLE=0``.
    """

    rules: PathRules = _RULES
    cross_nic: int = 2
    ports: tuple[int, ...] | None = None
    nvls: bool = True
    port_mbps: int = 0


@dataclass(frozen=True, slots=True)
class DomainGraphs:
    """What one rank finds: the devices that it sees, its graphs, and whether other ranks are beyond
    the network.
    """

    devices: DeviceGraph
    ring: Draft
    tree: Draft
    nvls: Draft | None
    between: bool


def search_domain(
    hosts: Sequence[tuple[HostTree, int]],
    ranks: int,
    rank: int,
    settings: Settings,
    *,
    multicast: bool,
) -> DomainGraphs:
    """Graphs that one rank finds in the hosts of its NVLink domain.

    Parameters
    ----------
    hosts
        The hosts and the number of ranks on each.
    ranks
        Number of ranks of the whole communicator.
    multicast
        Whether the NVSwitches multicast and reduce.
    """
    devices = device_graph(hosts, settings.ports, settings.port_mbps)
    compute_paths(devices, settings.rules)
    without_unreachable(devices, rank)
    between = len(devices.gpus) != ranks
    compute_paths(devices, settings.rules)
    if not between and settings.rules.version < (2, 28):
        devices.of_kind["net"] = []
    search = _GraphSearch(devices, between, settings)
    ring = search.graph("ring", 1, MOST_CHANNELS // 2)
    tree = search.graph("balanced_tree", ring.channels, ring.channels)
    shortest = 3 if settings.rules.version < (2, 28) else 2
    nvls = None
    if multicast and settings.nvls and len(devices.gpus) >= shortest:
        nvls = search.graph("nvls", 1, MOST_CHANNELS)
    return DomainGraphs(devices, ring, tree, nvls if nvls and nvls.channels else None, between)


class _GraphSearch:
    """The search for graphs of one rank."""

    def __init__(self, devices: DeviceGraph, between: bool, settings: Settings) -> None:
        self.devices = devices
        self.between = between
        self.settings = settings
        self.version = settings.rules.version
        self.capability = devices.capability
        self.channels = ChannelSearch(devices, between=between, rules=settings.rules)
        self.attempts = AttemptMemory(self.channels)
        generation = max(g for g in _SPEEDS_INSIDE if g <= max(self.capability, 60))
        table = _SPEEDS_BETWEEN if between else _SPEEDS_INSIDE
        self.speeds = [
            round(1000 * speed)
            for speed in table[generation]
            if self.version >= self._since(generation, speed)
        ]
        self.max_MBps, self.total_MBps = self._rates()
        self.inflows = [_inflow(devices, gpu, ()) for gpu in devices.gpus]
        self.outer_inflows = [_inflow(devices, gpu, ("NVL",)) for gpu in devices.gpus]
        self.socket_inflows = _socket_inflows(devices)
        self.least_hops = (self._least_hops(closes=False), self._least_hops(closes=True))
        self.types = {kind: self._types(kind) for kind in ("gpu", "net")}
        self.vain: dict[_Attempt, int] = {}
        self.through_cpus: dict[tuple[Pattern, int, int], int | None] = {}

    def _since(self, generation: int, speed: float) -> tuple[int, int]:
        if speed == 80 and not self.between:
            return (0, 0)
        return _ADDED_SPEEDS.get((generation, int(speed)), (0, 0)) if speed != 45.1 else (0, 0)

    def _rates(self) -> tuple[int, int]:
        """The fastest path of a GPU, and the total rate of its links."""
        gpus = self.devices.gpus
        if not self.between and len(gpus) == 1:
            return 5_000_000, 5_000_000
        kind: VertexKind = "net" if self.between else "gpu"
        fastest = max(
            (path.rate_MBps for gpu in gpus for path in gpu.paths.get(kind, ()) if path.links),
            default=0,
        )
        total = 0
        for gpu in gpus:
            nvlinks = sum(link.free_MBps for link in gpu.links if link.kind == "NVL")
            pcie = [link.free_MBps for link in gpu.links if link.kind == "PCI"]
            total = max(total, nvlinks, pcie[-1] if pcie else 0)
        return fastest, total

    def _types(self, kind: VertexKind) -> tuple[int, ...]:
        """The types of paths between GPUs and vertices of a kind, both ways, the best first."""
        types = set()
        for index, gpu in enumerate(self.devices.gpus):
            for number, vertex in enumerate(self.devices.of_kind[kind]):
                if vertex is not gpu and kind in gpu.paths and "gpu" in vertex.paths:
                    types |= {gpu.paths[kind][number].type, vertex.paths["gpu"][index].type}
        return tuple(sorted(types))

    def _path_types(self, kind: VertexKind) -> tuple[int, int]:
        """The best and the worst path from GPUs to vertices of a kind."""
        types = [
            path.type
            for index, gpu in enumerate(self.devices.gpus)
            for peer, path in enumerate(gpu.paths.get(kind, ()))
            if kind != "gpu" or peer != index
        ]
        return min([SYS, *types]), max([LOC, *types])

    def graph(self, pattern: Pattern, min_channels: int, max_channels: int) -> Draft:
        """The best channels of a pattern."""
        gpus = len(self.devices.gpus)
        crosses = pattern in {"ring", "balanced_tree"} and len(self.devices.nets) > 1
        cross_nic = self.settings.cross_nic if crosses else 0
        best_inside, worst_inside, best_nic, worst_nic = LOC, SYS, PIX, SYS
        if gpus > 1:
            best_inside, worst_inside = self._path_types("gpu")
        if self.between:
            best_nic, worst_nic = self._path_types("net")
            worst_inside = worst_nic
        if self.capability < 90 and self.version >= (2, 29):
            worst_nic = SYS
        if pattern == "nvls":
            max_channels = min(_MOST_NVLS_HEADS, gpus)
            if not self.between:
                min_channels = max_channels
        if gpus == 1 and pattern != "ring":
            pattern = "tree"
        if pattern == "ring" and self._is_split() and min_channels == 1 and max_channels >= 2:
            min_channels = 2
        best = Draft(
            pattern,
            min_channels,
            max_channels,
            cross_nic=int(cross_nic == 1),
            type_inside=best_inside,
            type_to_nic=best_nic,
            same_channels=pattern != "nvls",
        )
        if pattern == "nvls" and (not self.devices.of_kind["nvs"] or self.capability < 90):
            return best
        limits = _PathBounds(cross_nic, best_inside, worst_inside, best_nic, worst_nic)
        best = self._first_pass(best, limits)
        best = self._second_pass(self._split_channels(best))
        if best.channels == 0 and pattern != "nvls":
            best = self._fallback(best)
        return best

    def _start_of_speeds(self, pattern: Pattern, min_channels: int) -> int:
        """The first speed that one path carries, and that channels together may reach."""
        total, gpus = self.total_MBps, len(self.devices.gpus)
        if gpus > 1 and pattern != "ring":
            total = total * gpus // (gpus - 1)
        place = 0
        while place < len(self.speeds) - 1 and (
            self.speeds[place] > self.max_MBps or self.speeds[place] * min_channels > total
        ):
            place += 1
        return place

    def _attempt(
        self, draft: Draft, best: Draft, optimum: tuple[int, int] | None = None
    ) -> tuple[Draft, int, int]:
        """Search once; an attempt that was in vain is not repeated.

        NCCL repeats it with every type of path, though worse types change nothing where there is
        no path of these types.
        """
        steps = _STEPS_SAME_CHANNELS if draft.same_channels else _STEPS
        to_gpu = [index for index in self.types["gpu"] if index <= draft.type_inside]
        to_nic = [index for index in self.types["net"] if index <= draft.type_to_nic]
        shape = (draft.pattern, draft.min_channels, draft.max_channels, draft.same_channels)
        speeds = (draft.speed_inside, draft.speed_between)
        attempt = (best, *shape, *speeds, draft.cross_nic, tuple(to_gpu), tuple(to_nic))
        if attempt in self.vain:
            return best, self.vain[attempt], steps
        better, remaining = self.attempts.run(draft, best, steps, optimum)
        if better is best:
            self.vain[attempt] = remaining
        return better, remaining, steps

    def _first_pass(self, best: Draft, limits: _PathBounds) -> Draft:
        """Relax one demand after the other until channels fit."""
        draft = best.copy()
        place = self._start_of_speeds(best.pattern, best.min_channels)
        draft.speed_inside = draft.speed_between = self.speeds[place]
        same_channels = best.same_channels
        budget = _ALL_STEPS
        through_amd = self.devices.cpu_vendor == "amd"
        while True:
            steps = remaining = 0
            if self._has_chance(draft):
                optimum = self._optimum(draft, place) if draft.pattern != "nvls" else None
                best, remaining, steps = self._attempt(draft, best, optimum)
            budget -= steps
            if remaining == -1 or best.channels * best.speed_between >= self.total_MBps:
                return best
            if self._is_final(best, place):
                return best
            if draft.same_channels and not (through_amd and draft.type_inside == SYS):
                draft.same_channels = False
                continue
            draft.same_channels = same_channels
            budget += remaining
            if budget < 0 and best.channels:
                return best
            if self.capability >= 90 and draft.pattern == "balanced_tree":
                draft.pattern = "tree"
                continue
            draft.pattern = best.pattern
            worst = draft.type_to_nic if self.between else limits.worst_inside
            if draft.type_inside < worst and (
                best.channels == 0 or draft.type_inside < best.type_inside
            ):
                draft.type_inside += 1
                if draft.type_inside < DISCONNECTED:
                    continue
            draft.type_inside = limits.best_inside
            if (
                self.between
                and draft.type_to_nic < limits.worst_nic
                and (
                    best.channels == 0
                    or draft.type_to_nic < best.type_to_nic
                    or draft.type_to_nic < PXN
                )
            ):
                draft.type_to_nic += 1
                if draft.type_to_nic < DISCONNECTED:
                    continue
            draft.type_to_nic = limits.best_nic
            crosses = best.pattern in {"ring", "balanced_tree"}
            if limits.cross_nic == 2 and draft.cross_nic == 0 and crosses:
                draft.cross_nic = 2
                continue
            draft.cross_nic = int(limits.cross_nic == 1)
            if place < len(self.speeds) - 1 and (
                best.channels == 0 or self.speeds[place + 1] * 100 > 49 * best.speed_between
            ):
                place += 1
                draft.speed_inside = draft.speed_between = self.speeds[place]
                continue
            return best

    def _is_final(self, best: Draft, place: int) -> bool:
        """Whether no channels of this or a lower speed can be better than the best.

        NCCL goes on until its steps are spent.
        """
        if best.channels == 0 or best.pattern == "nvls":
            return False
        total = best.channels * best.speed_inside
        limit_rate, least_hops = self._optimum(best, place)
        return total > limit_rate or (total == limit_rate and best.hops <= least_hops)

    def _optimum(self, draft: Draft, place: int) -> tuple[int, int]:
        """A limit on the total rate of channels of this or a lower speed that may follow the draft,
        and the least number of links of channels that reach it.
        """
        least_speed = min(self.speeds[place], draft.speed_between * 49 // 100 + 1)
        hops = self.least_hops[draft.pattern == "ring"]
        limits = []
        for speed in self.speeds[place:]:
            if speed < least_speed:
                break
            slower = replace(draft, speed_inside=speed, speed_between=speed, orders=[], nics=[])
            limit = self._most_channels(slower)
            limits.append((limit * speed, limit * hops))
        limit_rate = max(rate for rate, _ in limits)
        return limit_rate, min(links for rate, links in limits if rate == limit_rate)

    def _has_chance(self, draft: Draft) -> bool:
        """Whether an attempt can find enough channels; NCCL spends its steps on others in vain."""
        if self._most_channels(draft) < draft.min_channels:
            return False
        return not self.between or draft.pattern == "nvls" or self.channels.can_leave(draft)

    def _most_channels(self, draft: Draft) -> int:
        """A limit on the number of channels, from the links into GPUs and the speed of NICs."""
        gpus, speed = len(self.devices.gpus), draft.speed_inside
        limit = draft.max_channels
        if draft.pattern == "nvls":
            return limit
        if gpus > 1:
            if draft.pattern == "ring" and not self.between:
                limit = min(limit, min(self.inflows) // speed)
            limit = min(limit, sum(self.inflows) // ((gpus - 1) * speed))
            if self.socket_inflows:
                # A closed channel enters every socket, an open one all but that of its start.
                entries = [inflow // speed for inflow in self.socket_inflows]
                closes = draft.pattern == "ring" and not self.between
                limit = min(limit, min(entries) if closes else sum(entries) // (len(entries) - 1))
        whole_speed = draft.speed_between // 1000 * 1000
        if self.between and whole_speed:
            cards: dict[tuple[str, int], int] = {}
            for net in self.devices.nets:
                card = (net.port.card, net.port.port)
                cards[card] = max(cards.get(card, 0), net.links[0].free_MBps // whole_speed)
            limit = min(limit, sum(cards.values()))
            # Every channel enters the node by some GPU, without NVLink.
            limit = min(limit, sum(inflow // draft.speed_between for inflow in self.outer_inflows))
            key = (draft.pattern, draft.speed_between, draft.type_to_nic)
            if key not in self.through_cpus:
                self.through_cpus[key] = self.channels.most_through_cpus(draft)
            through_cpus = self.through_cpus[key]
            limit = limit if through_cpus is None else min(limit, through_cpus)
        return limit

    def _least_hops(self, *, closes: bool) -> int:
        """The least number of links of a channel."""
        gpus = self.devices.gpus

        def shortest(vertices: Sequence[Vertex], kind: VertexKind) -> int:
            lengths = [
                len(path.links)
                for vertex in vertices
                for path in vertex.paths.get(kind, ())
                if path.links
            ]
            return min(lengths, default=0)

        hops = shortest(gpus, "gpu") * (len(gpus) - 1 + (closes and not self.between))
        if self.between:
            hops += shortest(self.devices.nets, "gpu") + shortest(gpus, "net")
        return hops

    def _split_channels(self, best: Draft) -> Draft:
        """Split few fast channels in two."""
        if best.channels == 0 or best.pattern == "nvls" or best.speed_inside < 25_000:
            return best
        if self.capability > 80 and best.speed_inside < 50_000 and best.channels > 4:
            return best
        channels = min(2 * best.channels, best.max_channels)
        extra = channels - best.channels
        parts = -(-channels // best.channels)
        best = best.copy()
        best.orders[best.channels : channels] = [list(order) for order in best.orders[:extra]]
        best.nics[best.channels : channels] = [list(pair) for pair in best.nics[:extra]]
        best.speed_inside = round(best.speed_inside / parts)
        best.speed_between = round(best.speed_between / parts)
        best.channels = channels
        return best

    def _second_pass(self, best: Draft) -> Draft:
        """Raise the speed with the channels found."""
        draft = best.copy()
        place = next(
            (i for i, speed in enumerate(self.speeds) if speed <= best.speed_between),
            len(self.speeds) - 1,
        )
        draft.speed_inside = draft.speed_between = self.speeds[place]
        draft.min_channels = best.channels
        remaining = -1
        while remaining != 0 and place > 0:
            if best.pattern == "ring":
                place -= 1
                draft.speed_inside = draft.speed_between = self.speeds[place]
            elif (
                best.pattern == "nvls"
                and draft.speed_between == best.speed_between
                and draft.speed_between < 2 * draft.speed_inside
            ):
                draft.min_channels = draft.max_channels = best.channels
                place -= 1
                draft.speed_between = self.speeds[place]
            elif (
                draft.speed_inside == best.speed_inside
                and draft.speed_inside < 2 * draft.speed_between
            ):
                place -= 1
                draft.speed_inside = self.speeds[place]
            else:
                break
            if self._most_channels(draft) < best.channels:
                break
            best, remaining, _ = self._attempt(draft, best)
        return best

    def _fallback(self, best: Draft) -> Draft:
        best = best.copy()
        best.orders = [[gpu.rank for gpu in self.devices.gpus]]
        best.nics = [[-1, -1]]
        best.speed_inside = 100
        best.type_inside = SYS
        best.speed_between = 100 if self.version < (2, 29) or self.devices.nets else 0
        best.type_to_nic = SYS if best.speed_between else DISCONNECTED
        best.channels = 1
        return best

    def _is_split(self) -> bool:
        """Whether there are two groups of GPUs joined by NVLink, with slower links between them."""
        gpus = self.devices.gpus
        group = list(range(len(gpus)))
        for g, gpu in enumerate(gpus):
            for peer in range(g + 1, len(gpus)):
                if gpu.paths["gpu"][peer].type == NVL:
                    group[peer] = group[g]
        return sum(group.count(g) > 1 for g in set(group)) == 2


def _inflow(devices: DeviceGraph, gpu: Vertex, without: tuple[str, ...]) -> int:
    """Total rate of the links into a GPU, without some kinds."""
    links = (link for vertex in devices.everything for link in vertex.links)
    return sum(link.free_MBps for link in links if link.head is gpu and link.kind not in without)


def _socket_inflows(devices: DeviceGraph) -> list[int]:
    """Rates into the sockets with GPUs from other sockets; empty with one socket or NVLinks."""
    links = [link for vertex in devices.everything for link in vertex.links]
    if any(link.kind in {"NVL", "C2C"} for link in links):
        return []
    sockets = {nearest_cpu(gpu) for gpu in devices.gpus}
    if len(sockets) == 1:
        return []
    return [
        sum(link.free_MBps for link in links if link.head is cpu and link.kind == "SYS")
        for cpu in (devices.of_kind["cpu"][number] for number in sorted(sockets))
    ]


@dataclass(frozen=True, slots=True)
class _PathBounds:
    cross_nic: int
    best_inside: int
    worst_inside: int
    best_nic: int
    worst_nic: int
