"""Random programs on which all engines must agree, each made from one number."""

from dataclasses import replace

import networkx as nx
import numpy as np

import simcoll
from simcoll.binding import bind
from simcoll.core.protocol import IDEAL, nccl
from simcoll.emulator import emulate
from simcoll.emulator.programs import Call, Compute, Program, Send
from simcoll.emulator.programs.compiled_programs import play_all
from simcoll.emulator.programs.resources import calls_of
from simcoll.emulator.programs.step_lowering import lower
from simcoll.emulator.steps.pruning import without_links
from simcoll.emulator.steps.timed import StepStream
from simcoll.errors import ConfigError
from simcoll.topology import boxes, from_networkx, place
from tests.support.agreement_cases import _by_hand, random_protocol, table_topology

KINDS = ("program", "step", "tree")
STREAMS = ("compute", "comm", "other")


def random_groups(rng, nranks, size):
    """Disjoint groups of ranks."""
    most = nranks // size
    return rng.permutation(nranks)[: size * int(rng.integers(1, most + 1))].reshape(-1, size)


def random_call(rng, nranks, protocols):
    """A plan, random steps or a registered collective, by random groups."""
    size = int(rng.integers(1, nranks + 1))
    protocol = protocols[int(rng.integers(0, len(protocols)))]
    if rng.random() < 0.5 and size > 1:
        schedule = _by_hand(rng, size, np.zeros((1, size, size), np.int64))
        return bind(
            schedule, int(rng.integers(0, 9999)), "uint8", protocol=protocol, unproved=True
        ), size
    kind = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")[
        int(rng.integers(0, 5))
    ]
    name = {"all_to_all": "direct", "broadcast": "tree"}.get(kind, "ring")
    return simcoll.bind(
        simcoll.schedule(kind, name, nranks=size), int(rng.integers(0, 9999)), protocol=protocol
    ), size


def random_operation(rng, nranks, protocols, number):
    """Work, a collective, or messages."""
    after = tuple(np.flatnonzero(rng.random(number) < min(0.5, 2 / max(number, 1))).tolist())
    stream = STREAMS[int(rng.integers(0, 3))]
    what = rng.random()
    if what < 0.4:
        ranks = rng.permutation(nranks)[: int(rng.integers(1, nranks + 1))]
        each = rng.choice([0, 1, 10**6, 10**9, 1_234_567], len(ranks))
        return Compute(ranks, each if rng.random() < 0.5 else int(each[0]), stream, after)
    if what < 0.75:
        plan, size = random_call(rng, nranks, protocols)
        return Call(plan, random_groups(rng, nranks, size), stream, after)
    count = int(rng.integers(1, nranks))
    src, dst = rng.permutation(nranks)[:count], rng.permutation(nranks)[:count]
    apart = src != dst
    if not apart.any():
        return Compute([0], 5, stream, after)
    pairs = np.stack([src, dst], axis=1)[apart]
    return Send(
        pairs,
        int(rng.integers(0, 99999)),
        stream,
        after,
        protocols[int(rng.integers(0, len(protocols)))],
    )


def program_case(rng):
    """Random operations on random links."""
    nranks = int(rng.integers(2, 8))
    _, topology = table_topology(rng, nranks, int(rng.integers(1, 9)), int(rng.integers(1, 5)))
    jitter = rng.random() < 0.3  # with which nothing folds
    protocols = [random_protocol(rng, jitter=jitter) for _ in range(int(rng.integers(1, 4)))]
    operations = [
        random_operation(rng, nranks, protocols, number)
        for number in range(int(rng.integers(1, 16)))
    ]
    starts = rng.choice([0, 0, 7, 10**9], nranks) if rng.random() < 0.5 else 0
    return Program(nranks, operations, starts), topology


def machine(rng, nodes, box):
    """Nodes on a fat tree with some of: oversubscription, degraded links, odd placement."""
    gbps = f"{int(rng.integers(1, 90))} GB/s"
    topology = boxes(
        nodes,
        box,
        "400 GB/s",
        "1 us",
        nics=box,
        nic_bandwidth=gbps,
        nic_latency="3 us",
        spine_latency="1 us",
        boxes_per_leaf=int(rng.integers(1, nodes + 1)),
        oversubscription=int(rng.choice([1, 1, 2, 4])),
    )
    if rng.random() < 0.3:
        link = int(rng.integers(0, topology.nlinks))
        topology = topology.degrade(link, float(rng.choice([0.1, 0.5, 0.9])))
    if rng.random() < 0.4:
        topology = place(
            topology, str(rng.choice(["random", "round_robin"])), seed=int(rng.integers(0, 99))
        )
    return topology


def mesh_of(rng, nranks):
    """All ranks by (stage, data, expert or context, tensor), with sizes and an order of the axes at
    random.
    """
    sizes = [1, 1, 1, 1]
    for prime in (2, 3, 5):
        while nranks % (prime * np.prod(sizes)) == 0:
            sizes[int(rng.integers(0, 4))] *= prime
    order = rng.permutation(4)
    return np.arange(nranks).reshape([sizes[axis] for axis in order]).transpose(np.argsort(order))


def fixed(array):
    """Read-only, so that operations share it."""
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


class Step:
    """Puts together a training step: pipeline, tensor, expert or context, and data parallelism."""

    def __init__(self, rng, nranks):
        self.rng, self.mesh = rng, mesh_of(rng, nranks)
        stages = range(len(self.mesh))
        self.ranks = [fixed(self.mesh[stage].reshape(-1)) for stage in stages]
        self.groups = {
            axis: [
                fixed(np.moveaxis(self.mesh[stage], at, -1).reshape(-1, self.mesh.shape[at + 1]))
                for stage in stages
            ]
            for at, axis in enumerate(("data", "middle", "tensor"))
        }
        self.protocols = [
            (nccl("Simple"), nccl("LL128"), IDEAL, random_protocol(rng))[i]
            for i in rng.permutation(4)
        ]
        slow = np.ones(nranks)
        slow[rng.integers(0, nranks)] = rng.choice([1, 1, 1.1])
        self.times = [
            fixed((10**9 * int(rng.integers(1, 3000)) * slow[ranks]).astype(np.int64))
            for ranks in self.ranks
        ]
        self.plans = {axis: self._plan(axis) for axis in ("tensor", "middle", "data", "gather")}
        self.operations = []

    def _plan(self, axis):
        """What an axis does."""
        rng = self.rng
        n = self.groups["data" if axis == "gather" else axis][0].shape[1]
        protocol, count = self.protocols[int(rng.integers(0, 2))], int(rng.integers(1, 1 << 20))
        if axis == "middle" and rng.random() < 0.7:
            counts = rng.integers(0, count, (n, n)).tolist() if rng.random() < 0.5 else count
            return simcoll.bind(
                simcoll.schedule("all_to_all", "direct", nranks=n),
                counts,
                "uint8",
                protocol=protocol,
            )
        kind = {
            "tensor": "all_reduce",
            "middle": "all_gather",
            "data": "reduce_scatter",
            "gather": "all_gather",
        }[axis]
        channels = {"channels": 2} if rng.random() < 0.3 else {}
        return simcoll.bind(
            simcoll.schedule(kind, "ring", nranks=n, **channels), count, "uint8", protocol=protocol
        )

    def put(self, operation):
        """Its number."""
        self.operations.append(operation)
        return len(self.operations) - 1

    def half(self, stage, after):
        """Forward or backward of a stage: work, and what it needs of its neighbours."""
        work = self.put(Compute(self.ranks[stage], self.times[stage], "compute", after))
        for axis in ("middle", "tensor"):
            if self.groups[axis][stage].shape[1] > 1:
                stream = "compute" if self.rng.random() < 0.5 else axis
                work = self.put(Call(self.plans[axis], self.groups[axis][stage], stream, work))
        return work

    def through(self, stages, direction):
        """One micro-batch through the pipeline; the last work of every stage."""
        came, done = (), {}
        for stage in stages:
            done[stage] = self.half(stage, came)
            if stage != stages[-1]:
                pairs = fixed(np.stack([self.ranks[stage], self.ranks[stage + direction]], axis=1))
                stream = f"{direction} {min(stage, stage + direction) % 2}"
                came = (self.put(Send(pairs, 1 << 18, stream, done[stage], self.protocols[0])),)
        return done

    def made(self):
        """The operations of a whole step."""
        stages = list(range(len(self.mesh)))
        batches = int(self.rng.integers(1, 4))
        last = {}
        for _ in range(batches):
            self.through(stages, 1)
            last = self.through(stages[::-1], -1)
        if self.groups["data"][0].shape[1] > 1:
            for stage in stages:
                for _ in range(int(self.rng.integers(1, 3))):
                    reduced = self.put(
                        Call(self.plans["data"], self.groups["data"][stage], "data", last[stage])
                    )
                self.put(Call(self.plans["gather"], self.groups["data"][stage], "data", reduced))
        return self.operations


def step_case(rng):
    """A training step on a machine."""
    nodes, box = int(rng.integers(1, 5)), int(rng.choice([1, 2, 4]))
    if nodes * box == 1:
        nodes = 2
    topology = machine(rng, nodes, box)
    starts = rng.integers(0, 10**9, nodes * box) if rng.random() < 0.1 else 0
    return Program(nodes * box, Step(rng, nodes * box).made(), starts), topology


def tree_topology(rng):
    """Switches in two or three levels; links as wide as all below them, but for a micro-byte per
    second or a factor.
    """
    graph, parents = nx.DiGraph(), {}

    def join(name, parent, up, down):
        parents[name] = parent
        graph.add_node(name, kind="switch")
        for edge, rate in (((name, parent), up), ((parent, name), down)):
            graph.add_edge(*edge, capacity_uBps=max(int(rate), 10**5))

    def about(width):
        return width * rng.choice([1, 1, 1, 1, 2, 0.5]) + rng.choice([0, 0, 0, 1, -1])

    pods = int(rng.integers(1, 3))
    for pod in range(pods):
        wide = 0
        for leaf in range(int(rng.integers(1, 4))):
            rates = rng.integers(10**5, 10**6, int(rng.integers(1, 4)))
            for host, rate in enumerate(rates.tolist()):
                join(f"h{pod}.{leaf}.{host}", f"leaf{pod}.{leaf}", rate, rate)
                graph.nodes[f"h{pod}.{leaf}.{host}"]["kind"] = "gpu"
            up = about(rates.sum())
            join(f"leaf{pod}.{leaf}", f"pod{pod}", up, about(rates.sum()))
            wide += up
        join(f"pod{pod}", "top", about(wide), about(wide))
    graph.nodes["top"]["kind"] = "switch"
    return from_networkx(graph)


def tree_case(rng):
    """Several collectives at once on a tree of odd widths."""
    topology = tree_topology(rng)
    n = topology.nranks
    protocols = [IDEAL, random_protocol(rng, jitter=False)]
    operations = []
    for number in range(int(rng.integers(1, 5))):
        size = int(rng.integers(1, n + 1))
        kind, name = (("all_to_all", "direct"), ("all_reduce", "ring"), ("all_gather", "ring"))[
            int(rng.integers(0, 3))
        ]
        count = int(rng.integers(1, 200))
        protocol = protocols[int(rng.random() < 0.2)]
        plan = simcoll.bind(
            simcoll.schedule(kind, name, nranks=size), count, "uint8", protocol=protocol
        )
        operations.append(Call(plan, random_groups(rng, n, size), str(number)))
    return Program(n, operations), topology


def program_of(kind, seed):
    """Program and topology of a case."""
    rng = np.random.default_rng([seed, KINDS.index(kind), 77])
    return {"program": program_case, "step": step_case, "tree": tree_case}[kind](rng)


def outcome(program, topology, **how):
    """Times of everything, or the error."""
    try:
        result = emulate(program, topology, data="none", keep=True, **how)
    except ConfigError as error:
        return str(error), None
    spans = [
        (result.begin_fs(number).tolist(), result.end_fs(number).tolist())
        for number in range(len(program.operations))
    ]
    told = (
        result.time_fs,
        result.messages,
        result.bytes_moved,
        result.trace_hash,
        result.done_fs.tolist(),
        spans,
    )
    return told, result


def compare(kind, seed):
    """Run a case on every engine; returns what took part, or raises AssertionError with a line that
    repeats it.
    """
    program, topology = program_of(kind, seed)
    if kind == "tree":
        return compare_links(program, topology, seed)
    replay = f"replay: python tests/support/run_agreement.py --kind {kind} --first {seed} --cases 1"
    expected, _ = outcome(program, topology, engine="simpy")
    jittered = any(call.plan.protocol.jitter_fs for _, call in calls_of(program))
    ways = ["simpy", *["jitter"] * jittered]
    got, result = outcome(program, topology, engine="fast", quotient=False)
    assert got == expected, f"fast differs from simpy\n{replay}"
    if result is not None and result.engine == "fast":
        ways.append("fast")
        unseen = emulate(program, topology, data="none", engine="fast", quotient=False)
        told = (unseen.time_fs, unseen.messages, unseen.bytes_moved, unseen.trace_hash)
        assert told == expected[:4], f"fast differs when nobody asks for single times\n{replay}"
    got, result = outcome(program, topology, quotient=True)
    assert isinstance(expected, str) or got == expected, (
        f"the quotient differs from simpy\n{replay}"
    )
    if result is not None and result.classes is not None:
        ways.append(
            "quotient"
            if result.path.split()[1] != result.path.split()[-2]
            else "quotient without gain"
        )
    return ways


def compare_links(program, topology, seed):
    """Play every message with all links, and without those that never bind."""
    lowered = lower(program, topology)
    groups = without_links(lowered.stream.groups, lowered.dropped)
    without = replace(lowered, stream=StepStream(groups, lowered.stream.order))
    try:
        whole, fewer = (play_all(each, keep=True) for each in (lowered, without))
    except ConfigError:  # no share, or no time
        return ["refused"]
    replay = f"replay: python tests/support/run_agreement.py --kind tree --first {seed} --cases 1"
    assert (whole.time_fs, whole.done_fs.tolist()) == (fewer.time_fs, fewer.done_fs.tolist()), (
        replay
    )
    return ["fewer links" if lowered.dropped.any() else "all links"]
