"""One attempt of NCCL's search: channels of one pattern and speed through the devices of a node.

The search goes from device to device, takes the speed of a channel from every link, and goes back
where a link has too little left. Because it gives up after a number of steps, its order decides
what it finds, and is that of ``src/graph/search.cc`` of NCCL 2.27 to 2.30.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import product
from typing import Literal, TypeAlias

from simcoll.libraries.nccl.device_graph import DeviceGraph, DeviceLink, Path, Vertex, VertexKind
from simcoll.libraries.nccl.device_paths import (
    DISCONNECTED,
    PHB,
    PathRules,
    local_gpu,
    local_net,
    nearest,
)
from simcoll.libraries.nccl.graphs import Pattern

__all__ = ["ChannelSearch", "ChargedPath", "Draft", "route_along"]

PCIE_ORDER_STEPS = 1 << 10
_MOST_PORTS = 64

_Leg: TypeAlias = tuple[VertexKind, int, VertexKind, int, int]
"""Kind and index of the tail and of the head, and how many times the speed is taken."""
PeerOrder: TypeAlias = Literal["", "pcie", "replay"]
"""How the next GPU is picked: by its score, by address, or as in the channel before."""


@dataclass(slots=True, eq=False)
class Draft:
    """Channels under construction, or the best ones so far.

    Speeds are MB/s of a channel, types of paths indices into
    :data:`~simcoll.libraries.path_types.PATH_TYPES`. ``orders`` has the ranks of the GPUs of each
    channel, ``nics`` the ports, as indices, by which it enters and leaves.
    """

    pattern: Pattern
    min_channels: int
    max_channels: int
    cross_nic: int = 0
    speed_inside: int = 0
    speed_between: int = 0
    type_inside: int = 0
    type_to_nic: int = 0
    same_channels: bool = False
    channels: int = 0
    hops: int = 0
    net_latency_us: float = 0.0
    orders: list[list[int]] = field(default_factory=list)
    nics: list[list[int]] = field(default_factory=list)

    def copy(self) -> Draft:
        """The same channels, independent of later changes."""
        return replace(
            self,
            orders=[list(order) for order in self.orders],
            nics=[list(pair) for pair in self.nics],
        )


Step = Generator["Step", None, None]
"""A step of the search: it yields the steps that it contains, so that depth needs no recursion."""


@dataclass(slots=True, eq=False)
class _StepBudget:
    """The number of steps left; -1 once nothing better can be found."""

    steps: int


@dataclass(slots=True, eq=False)
class ChargedPath:
    """A path as the search charges it.

    PCIe links cost more through an Intel host bridge, and traffic to a GPU before Ampere takes an
    eighth of the opposite direction. ``charges`` has what was asked for, by the speed.
    """

    links: tuple[tuple[DeviceLink, bool, DeviceLink | None], ...]
    type: int
    costs_more: bool
    charges: dict[int, _Charge] = field(default_factory=dict)

    def charge(self, speed: int) -> _Charge:
        """What a channel of a speed takes from the links."""
        if speed not in self.charges:
            rates = []
            for link, pcie, reverse in self.links:
                cost = speed * 6 // 5 if pcie and self.costs_more else speed
                rates.append((link, cost, cost))
                if reverse is not None:
                    rates.append((reverse, -(-cost // 8), _eighth(cost)))
            state = sum(loss * link.weight for link, _, loss in rates)
            self.charges[speed] = _Charge(tuple(rates), state)
        return self.charges[speed]


@dataclass(frozen=True, slots=True, eq=False)
class _Charge:
    """What a channel takes from the links of a path: the rate that each must have left, and that it
    loses; and by how much the number of the state of all links falls.
    """

    rates: tuple[tuple[DeviceLink, int, int], ...]
    state: int


class ChannelSearch:
    """The search in the devices that one rank sees."""

    def __init__(self, graph: DeviceGraph, *, between: bool, rules: PathRules) -> None:
        self.graph = graph
        self.between = between
        self.rules = rules
        self.gpus = graph.gpus
        self.nets = graph.nets
        self.ranks = [gpu.rank for gpu in self.gpus]
        self.index_of_rank = {rank: index for index, rank in enumerate(self.ranks)}
        self.net_speeds = [net.links[0].free_MBps for net in self.nets]
        self.cards = [(net.port.card, net.port.port) for net in self.nets]
        self.sharing = [
            [port for port in range(len(self.nets)) if self.cards[port] == card]
            for card in self.cards
        ]
        self.nearest_gpus = [nearest(net, "gpu")[0] for net in self.nets]
        self.local_gpus = [local_gpu(graph, net, rules) for net in range(len(self.nets))]
        self.routes: dict[tuple[str, int, str, int], ChargedPath] = {}
        self.pcie_links = [_pcie_links(gpu) for gpu in self.gpus]
        self.orders_of_next: dict[_PeerKey, list[tuple[int, tuple[int, int]]]] = {}
        self.port_lists: dict[tuple[int, int], list[int]] = {}
        self.draft = Draft("ring", 1, 1)
        self.entered: list[tuple[_Charge, int]] = []  # with the links that it counts as
        self.optimum: tuple[int, int] | None = None
        self.best = self.draft
        self.visited = [0]  # for each channel, a bit for each GPU that it has visited
        self.state = 0
        self.improvements = 0
        self.fruitless: dict[_State, tuple[int, int]] = {}

    def run(
        self, draft: Draft, best: Draft, steps: int, optimum: tuple[int, int] | None
    ) -> tuple[Draft, int]:
        """Search for channels better than the best; return the best, and the number of steps left:
        0 if time ran out, -1 if nothing better is possible.

        The optimum is a limit on the rate of all channels with the least number of links at that
        rate. NCCL searches on behind it, in vain; here the time is then up.
        """
        self.draft, self.best, self.optimum = draft, best, optimum
        draft.channels = 0
        draft.orders = [[0] * len(self.gpus) for _ in range(draft.max_channels)]
        draft.nics = [[0, 0] for _ in range(draft.max_channels)]
        self.visited = [0] * draft.max_channels
        self.fruitless.clear()
        clock = _StepBudget(steps)
        pending = [self._next_channel(clock)]
        while pending:
            inner = next(pending[-1], None)
            if inner is None:
                pending.pop()
            else:
                pending.append(inner)
        return self.best, clock.steps

    def layout_digest(self) -> str:
        """A digest of all on which an attempt depends besides its drafts and steps: links by their
        first use, devices by their place.
        """
        links: dict[int, tuple[int, DeviceLink]] = {}

        def place(link: DeviceLink | None) -> int:
            return -1 if link is None else links.setdefault(id(link), (len(links), link))[0]

        routes: list[tuple[object, ...]] = []
        # Ports matter only to channels that leave the node.
        kinds: tuple[VertexKind, ...] = ("gpu", "nvs", "net") if self.between else ("gpu", "nvs")
        for tail_kind, head_kind in product(kinds, kinds):
            for tail, start in enumerate(self.graph.of_kind[tail_kind]):
                for head, path in enumerate(start.paths.get(head_kind, ())):
                    route = self._route(tail_kind, tail, head_kind, head)
                    passed = [
                        (place(link), pcie, place(reverse)) for link, pcie, reverse in route.links
                    ]
                    routes.append((tail, head, path.rate_MBps, path.type, route.costs_more, passed))
            routes.append(())
        pcie_links = [pair and (place(pair[0]), place(pair[1])) for pair in self.pcie_links]
        counts = [len(self.graph.of_kind[kind]) for kind in kinds]
        rates = [link.free_MBps for _, link in links.values()]
        layout: list[object] = [self.between, self.ranks, counts, routes, pcie_links, rates]
        if self.between:
            layout += [
                self.graph.hosts == 1,
                [self.cards.index(card) for card in self.cards],
                [net.port.latency_us for net in self.nets],
                self.net_speeds,
                self.local_gpus,
                [self._preferred_ports([gpu]) for gpu in range(len(self.gpus))],
            ]
        return blake2b(repr(layout).encode(), digest_size=32).hexdigest()

    def can_leave(self, draft: Draft) -> bool:
        """Whether one channel of this speed at least can leave the node, by some GPU and port."""
        divisor = 2 if draft.pattern == "balanced_tree" else 1
        speed = draft.speed_between // divisor
        for gpu in range(len(self.gpus)):
            for net in range(len(self.nets)):
                route = self._route("gpu", gpu, "net", net)
                charge = route.charge(speed)
                if route.type <= draft.type_to_nic and self._follow(charge):
                    self._release(charge)
                    return True
        return False

    def most_through_cpus(self, draft: Draft) -> int | None:
        """A limit on the number of channels by the links into CPUs, where every allowed path
        between a GPU and a NIC passes one; None elsewhere.

        A channel passes such a link on its way to the network and another on its way back. A
        balanced tree sends half of the data from each of two GPUs.
        """
        to_net = self._cost_into_cpu("gpu", "net", draft)
        from_net = self._cost_into_cpu("net", "gpu", draft)
        if not to_net or not from_net:
            return None
        sends_of_channel = 2 if draft.pattern == "balanced_tree" else 1
        links = (link for vertex in self.graph.everything for link in vertex.links)
        uplinks = [link for link in links if link.kind == "PCI" and link.head.kind == "cpu"]
        # The most receives beside a number of sends, of all links so far.
        receives = [0]
        for uplink in uplinks:
            rate = uplink.free_MBps
            alone = [(rate - to_net * sends) // from_net for sends in range(rate // to_net + 1)]
            receives = [
                max(
                    receives[total - sends] + alone[sends]
                    for sends in range(len(alone))
                    if 0 <= total - sends < len(receives)
                )
                for total in range(len(receives) + len(alone) - 1)
            ]
        channels = (min(sends // sends_of_channel, r) for sends, r in enumerate(receives))
        return max(channels)

    def _cost_into_cpu(self, tail_kind: VertexKind, head_kind: VertexKind, draft: Draft) -> int:
        """The least rate that a message of a channel takes from a link into a CPU; 0 if it can
        avoid them.
        """
        split = draft.pattern == "balanced_tree" and tail_kind == "gpu"
        speed = draft.speed_between // (2 if split else 1)
        costs = []
        for tail, start in enumerate(self.graph.of_kind[tail_kind]):
            for head in range(len(start.paths.get(head_kind, ()))):
                route = self._route(tail_kind, tail, head_kind, head)
                if route.type <= draft.type_to_nic:
                    passes = any(link.head.kind == "cpu" for link, _, _ in route.links)
                    cost = speed * 6 // 5 if route.costs_more else speed
                    costs.append(cost if passes else 0)
        return min(costs, default=0)

    # Paths

    def _route(
        self, tail_kind: VertexKind, tail: int, head_kind: VertexKind, head: int
    ) -> ChargedPath:
        key = (tail_kind, tail, head_kind, head)
        if key not in self.routes:
            start = self.graph.of_kind[tail_kind][tail]
            self.routes[key] = route_along(start, start.paths[head_kind][head])
        return self.routes[key]

    def _follow(self, charge: _Charge) -> bool:
        """Take the rates of all links of a path, or none if one has too little left."""
        for passed, (link, needed, loss) in enumerate(charge.rates):
            if link.free_MBps < needed:
                for earlier, _, earlier_loss in charge.rates[:passed]:
                    earlier.free_MBps += earlier_loss
                return False
            link.free_MBps -= loss
        self.state -= charge.state
        return True

    def _release(self, charge: _Charge) -> None:
        for link, _, loss in charge.rates:
            link.free_MBps += loss
        self.state += charge.state

    def _enter(
        self,
        tail_kind: VertexKind,
        tail: int,
        head_kind: VertexKind,
        head: int,
        factor: int = 1,
        divisor: int = 1,
    ) -> bool:
        """Go from one device to another, if the path is good enough and has the speed left."""
        draft = self.draft
        peer_path = tail_kind != "net" and head_kind != "net"
        speed = (draft.speed_inside if peer_path else draft.speed_between) * factor // divisor
        limit = draft.type_inside if peer_path else draft.type_to_nic
        route = self._route(tail_kind, tail, head_kind, head)
        if route.type >= DISCONNECTED or (route.type > limit and factor == 1):
            return False
        if factor == 1 and draft.pattern in {"balanced_tree", "tree", "split_tree"}:
            reverse = self.graph.of_kind[head_kind][head].paths[tail_kind][tail]
            if reverse.type > limit:
                return False
        charge = route.charge(speed)
        if not self._follow(charge):
            return False
        hops = len(route.links) * factor
        draft.hops += hops
        self.entered.append((charge, hops))
        return True

    def _leave(self) -> None:
        """Go back to where the search last entered a device from."""
        charge, hops = self.entered.pop()
        self._release(charge)
        self.draft.hops -= hops

    # Steps

    def _next_channel(self, clock: _StepBudget) -> Step:
        draft, last = self.draft, len(self.gpus) - 1
        if self.between:
            to_net = {"ring": last, "split_tree": 1}.get(draft.pattern, 0)
            yield self._from_nets(to_net, clock)
            return
        to_first = last if draft.pattern == "ring" else -1
        if draft.pattern == "nvls":
            yield self._try_gpu(0, -1, to_first, "", clock, draft.channels)
            return
        if draft.channels == 0:
            yield self._try_gpu(0, -1, to_first, "pcie", clock, 0)
        else:
            start = self.index_of_rank[draft.orders[draft.channels - 1][0]]
            yield self._try_gpu(0, -1, to_first, "replay", clock, start)
        if not draft.same_channels or draft.channels == 0:
            for gpu in range(len(self.gpus)):
                if clock.steps <= 0:
                    return
                yield self._try_gpu(0, -1, to_first, "", clock, gpu)

    def _from_nets(self, to_net: int, clock: _StepBudget) -> Step:
        """Begin a channel at each port in turn."""
        draft, channel = self.draft, self.draft.channels
        speed = draft.speed_between // 1000 * 1000
        candidates = self._ports(draft.type_to_nic, -1)
        switched_once = False
        # Trials in the order of the bus have steps of their own, even when all others are spent.
        has_trials = self._has_trial(channel) and draft.pattern != "nvls"
        for i in range(len(candidates)):
            if clock.steps <= 0 and not has_trials:
                return
            if draft.pattern == "nvls" and switched_once:
                return
            net = candidates[(channel + i) % len(candidates)]
            if self.net_speeds[net] < speed:
                continue
            alternates = draft.pattern == "ring" and draft.cross_nic == 2 and channel & 1
            if alternates and net != draft.nics[channel - 1][1]:
                continue
            draft.nics[channel][0] = net
            draft.net_latency_us = self.nets[net].port.latency_us
            for n in self.sharing[net]:
                self.net_speeds[n] -= speed
                self.state -= speed * self.nets[n].links[0].weight << 64
            if draft.pattern == "nvls":
                gpu = self.local_gpus[net]
                heads = [draft.orders[c][0] for c in range(channel)]
                if channel < len(candidates) and gpu is not None and self.ranks[gpu] not in heads:
                    yield from self._try_first(to_net, "", clock, net, gpu)
                    switched_once = True
            else:
                yield self._from_net(net, to_net, clock)
            for n in self.sharing[net]:
                self.net_speeds[n] += speed
                self.state += speed * self.nets[n].links[0].weight << 64

    def _has_trial(self, channel: int) -> bool:
        """Whether a channel that begins at a port first takes the GPUs in the order of the bus."""
        return channel == 0 and not self.graph.of_kind["nvs"]

    def _from_net(self, net: int, to_net: int, clock: _StepBudget) -> Step:
        draft, channel = self.draft, self.draft.channels
        if channel > 0 and draft.same_channels:
            start = self.index_of_rank[draft.orders[channel - 1][0]]
            yield from self._try_first(to_net, "replay", clock, net, start)
            return
        if self._has_trial(channel):
            trial = _StepBudget(PCIE_ORDER_STEPS)
            yield from self._try_first(to_net, "pcie", trial, net, 0)
            if trial.steps == -1:
                clock.steps = -1
        local = self.local_gpus[net]
        if local is not None:
            yield from self._try_first(to_net, "", clock, net, local)
        for gpu in self.nearest_gpus[net]:
            if gpu != local:
                yield from self._try_first(to_net, "", clock, net, gpu)

    def _try_first(
        self, to_net: int, order: PeerOrder, clock: _StepBudget, net: int, gpu: int
    ) -> Step:
        """Go from a port to the first GPU of a channel."""
        if clock.steps > 0 and self._enter("net", net, "gpu", gpu):
            yield self._try_gpu(0, to_net, -1, order, clock, gpu)
            self._leave()

    def _try_gpu(
        self,
        step: int,
        to_net: int,
        to_first: int,
        order: PeerOrder,
        clock: _StepBudget,
        gpu: int,
    ) -> Step:
        """Go on at a GPU, unless that was in vain before."""
        if clock.steps <= 0:
            return
        channel = self.draft.channels
        self.visited[channel] ^= 1 << gpu
        key = self._key(gpu, step, to_net, to_first, order)
        if not self._skips(key, clock):
            steps, improvements, hops = clock.steps, self.improvements, self.draft.hops
            yield self._at_gpu(gpu, step, to_net, to_first, order, clock)
            if clock.steps > 0 and improvements == self.improvements:
                self.fruitless[key] = steps - clock.steps, hops
        self.visited[channel] ^= 1 << gpu

    def _key(self, gpu: int, step: int, to_net: int, to_first: int, order: PeerOrder) -> _State:
        """Everything on which the rest of the search depends, but the number of links so far."""
        draft, channel = self.draft, self.draft.channels
        visited = self.visited[channel]
        nics: tuple[int, ...] = ()
        if self.between:
            nics = tuple(draft.nics[channel])
            if draft.cross_nic == 2 and channel:
                nics = (*draft.nics[channel - 1], *nics)
        preceding: tuple[int, ...] = ()
        if not self.between or draft.same_channels:
            preceding = tuple(draft.orders[channel][:step])
        if order == "replay":
            preceding += tuple(draft.orders[channel - 1])
        if draft.pattern == "nvls":
            preceding += tuple(draft.orders[c][0] for c in range(channel))
        return (self.state, channel, gpu, step, to_net, to_first, order, visited, nics, preceding)

    def _skips(self, key: _State, clock: _StepBudget) -> bool:
        """Whether the search has been here before, in vain; then the steps are spent at once."""
        steps, hops = self.fruitless.get(key, (0, 0))
        if not steps or self.draft.hops < hops:
            return False
        clock.steps = max(clock.steps - steps, 0)
        return True

    def _at_gpu(
        self, gpu: int, step: int, to_net: int, to_first: int, order: PeerOrder, clock: _StepBudget
    ) -> Step:
        if clock.steps <= 0:
            return
        clock.steps -= 1
        draft = self.draft
        if step == len(self.gpus):
            yield self._finish_channel(clock)
            return
        draft.orders[draft.channels][step] = self.ranks[gpu]
        if step == to_net:
            if self.between:
                yield self._to_net(gpu, step, to_first, order, clock)
        elif draft.pattern == "nvls":
            yield self._through_switch(gpu, clock)
        elif step < len(self.gpus) - 1:
            for peer in self._next_gpus(gpu, step, to_net, order):
                if clock.steps <= 0:
                    return
                if self._enter("gpu", gpu, "gpu", peer):
                    yield self._try_gpu(step + 1, to_net, to_first, order, clock, peer)
                    self._leave()
        elif step == to_first:
            start = self.index_of_rank[draft.orders[draft.channels][0]]
            if self._enter("gpu", gpu, "gpu", start):
                yield self._at_gpu(start, step + 1, to_net, -1, order, clock)
                self._leave()
        else:
            yield self._at_gpu(gpu, len(self.gpus), -1, -1, order, clock)

    def _finish_channel(self, clock: _StepBudget) -> Step:
        draft = self.draft
        draft.channels += 1
        if self._is_better():
            self.best = draft.copy()
            self.improvements += 1
            if draft.channels == draft.max_channels:
                clock.steps = -1
            elif self._is_optimal():
                clock.steps = 0
        if draft.channels < draft.max_channels:
            yield self._next_channel(clock)
        draft.channels -= 1

    def _is_optimal(self) -> bool:
        if self.optimum is None:
            return False
        rate, hops = self.optimum
        return self.draft.channels * self.draft.speed_inside == rate and self.draft.hops <= hops

    def _is_better(self) -> bool:
        """Whether the channels so far are faster than the best, or as fast on fewer links."""
        new, old = self.draft, self.best
        if new.channels < new.min_channels:
            return False
        if new.pattern == "nvls":
            adds_heads = old.channels < new.channels <= len(self.gpus)
            return adds_heads or new.channels * new.speed_between > old.channels * old.speed_between
        speed, best_speed = new.channels * new.speed_inside, old.channels * old.speed_inside
        if speed != best_speed:
            return speed > best_speed
        comparable = new.pattern == old.pattern and new.cross_nic == old.cross_nic
        return comparable and new.hops < old.hops

    def _to_net(
        self, gpu: int, step: int, to_first: int, order: PeerOrder, clock: _StepBudget
    ) -> Step:
        """Go back to the network; a balanced tree does so at its first two GPUs, half from each."""
        draft, channel = self.draft, self.draft.channels
        start = draft.nics[channel][0]
        balanced = draft.pattern == "balanced_tree"
        divisor = 2 if balanced else 1
        for net in self._ports(draft.type_to_nic, gpu):
            if clock.steps <= 0:
                return
            if not self._may_end(net, start, step):
                continue
            next_to_net = 1 if balanced and step == 0 else -1
            if self._enter("gpu", gpu, "net", net, 1, divisor):
                draft.nics[channel][1] = net
                yield self._at_gpu(gpu, step, next_to_net, to_first, order, clock)
                self._leave()

    def _may_end(self, net: int, start: int, step: int) -> bool:
        draft, channel = self.draft, self.draft.channels
        if draft.pattern == "tree" and net != start:
            return False
        if draft.pattern == "ring" and draft.cross_nic == 2:
            if channel & 1 and net != draft.nics[channel - 1][0]:
                return False
        elif draft.cross_nic == 0 and self.cards[net] != self.cards[start]:
            return False
        return draft.pattern != "balanced_tree" or step == 0 or net == draft.nics[channel][1]

    def _through_switch(self, head: int, clock: _StepBudget) -> Step:
        """Pull from all GPUs through the NVSwitches, and from the head twice."""
        gpus = range(len(self.gpus))
        legs: list[_Leg] = [
            *(("nvs", 0, "gpu", gpu, 2 if gpu == head else 1) for gpu in gpus),
            *(("gpu", gpu, "nvs", 0, 2 if gpu == head else 1) for gpu in gpus),
        ]
        depth = len(self.entered)
        if all(self._enter(*leg) for leg in legs):
            yield self._at_gpu(head, len(self.gpus), -1, -1, "", clock)
        while len(self.entered) > depth:
            self._leave()

    # Orders

    def _next_gpus(self, gpu: int, step: int, to_net: int, order: PeerOrder) -> list[int]:
        """The GPUs to try next, the most promising first."""
        draft = self.draft
        if order == "pcie":
            return [step + 1]
        if order == "replay":
            return [self.index_of_rank[draft.orders[draft.channels - 1][step + 1]]]
        visited = self.visited[draft.channels]
        if self.graph.of_kind["nvs"]:
            return [peer for peer in self._neighbours(gpu) if not visited >> peer & 1]
        sort_by_net = 0 if to_net == -1 else 1 if to_net == step + 1 else -1
        net = draft.nics[draft.channels][0] if sort_by_net else -1
        free = [
            (peer, score) for peer, score in self._sorted_peers(gpu, net) if not visited >> peer & 1
        ]
        peers = [peer for peer, _ in free]
        if sort_by_net == -1 and len({score for _, score in free}) <= 1:
            peers.reverse()
        return peers

    def _neighbours(self, gpu: int) -> list[int]:
        """The GPUs to try where switches make all equal: neighbours keep connections few."""
        count = len(self.gpus)
        following, preceding = (gpu + 1) % count, (gpu - 1) % count
        if self.draft.pattern == "ring":
            order = [preceding, following]
        elif self.draft.pattern == "balanced_tree":
            order = [following, preceding]
        else:
            order = [following]
        return [peer for peer in dict.fromkeys(order) if self.gpus[gpu].paths["gpu"][peer].links]

    def _sorted_peers(self, gpu: int, net: int) -> list[tuple[int, tuple[int, int]]]:
        """All other GPUs with the rate and number of links from the GPU; the best connected to the
        port (if not -1), and then to the GPU, first.
        """
        pcie = tuple(map(_free_rate, self.pcie_links)) if net >= 0 else ()
        if (gpu, net, pcie) not in self.orders_of_next:
            count = len(self.gpus)
            scores = []
            for distance in range(1, count):
                peer = (gpu + distance) % count
                peer_path = self.gpus[gpu].paths["gpu"][peer]
                if not peer_path.links:
                    continue
                net_score = (0, 0, 0)
                if net >= 0:
                    path = self.nets[net].paths["gpu"][peer]
                    net_score = (-(path.rate_MBps // 1000), -(pcie[peer] // 1000), len(path.links))
                score = (-(peer_path.rate_MBps // 1000), len(peer_path.links))
                scores.append(((net_score, score, distance), peer))
            self.orders_of_next[gpu, net, pcie] = [
                (peer, score) for (_, score, _), peer in sorted(scores)
            ]
        return self.orders_of_next[gpu, net, pcie]

    def _ports(self, type_to_nic: int, gpu: int) -> list[int]:
        """Ports to try for a GPU, or for all GPUs (-1): those that GPUs prefer, then others within
        the type of path.
        """
        if (type_to_nic, gpu) not in self.port_lists:
            gpus = range(len(self.gpus)) if gpu == -1 else [gpu]
            ports = dict.fromkeys(self._preferred_ports(gpus))
            for worst in range(type_to_nic + 1):
                for g in gpus:
                    for net, path in enumerate(self.gpus[g].paths.get("net", ())[:_MOST_PORTS]):
                        if path.type == worst:
                            ports[net] = None
            self.port_lists[type_to_nic, gpu] = list(ports)
        return self.port_lists[type_to_nic, gpu]

    def _preferred_ports(self, gpus: Sequence[int]) -> list[int]:
        """Ports of GPUs in all channels: GPU by GPU on one host, channel by channel on several."""
        lists = []
        for g in gpus:
            ports: list[int] = []
            for channel in range(_MOST_PORTS):
                net = local_net(self.graph, self.gpus[g], channel, self.rules)
                if net is None or (ports and net == ports[0]):
                    break
                ports.append(net)
            lists.append(ports)
        if self.graph.hosts == 1:
            return [net for ports in lists for net in ports]
        longest = max(map(len, lists), default=0)
        return [ports[c] for c in range(longest) for ports in lists if c < len(ports)]


def route_along(start: Vertex, path: Path) -> ChargedPath:
    """The path from a vertex, as the search charges it."""
    through_intel = any(
        link.head.kind == "cpu" and link.head.socket.vendor == "intel" for link in path.links
    )
    links: list[tuple[DeviceLink, bool, DeviceLink | None]] = []
    tail = start
    for link in path.links:
        head, reverse = link.head, None
        if head.kind == "gpu" and head.gpu.capability < 80 and start.kind != "gpu":
            reverse = next(
                route for route in head.links if route.head is tail and route.kind == link.kind
            )
        links.append((link, link.kind == "PCI", reverse))
        tail = head
    costs_more = path.type == PHB and start.kind == "gpu" and through_intel
    return ChargedPath(tuple(links), path.type, costs_more)


def _eighth(cost: int) -> int:
    """An eighth, rounded as NCCL rounds."""
    return (cost + 4) // 8


_State = tuple[int, int, int, int, int, int, str, int, tuple[int, ...], tuple[int, ...]]
_PeerKey = tuple[int, int, tuple[int, ...]]
"""GPU, port, and free rates of the PCIe links of all GPUs."""


def _pcie_links(gpu: Vertex) -> tuple[DeviceLink, DeviceLink] | None:
    """The PCIe link of a GPU, and the opposite one."""
    for link in gpu.links:
        if link.kind == "PCI":
            for reverse in link.head.links:
                if reverse.head is gpu:
                    return link, reverse
    return None


def _free_rate(pair: tuple[DeviceLink, DeviceLink] | None) -> int:
    return -1000 if pair is None else min(pair[0].free_MBps, pair[1].free_MBps)
