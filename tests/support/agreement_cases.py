"""Random runs on which all engines must agree, each made from one number."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

import simcoll
from simcoll.algorithms import ALGORITHMS
from simcoll.binding import bind
from simcoll.core.collective import Collective
from simcoll.core.protocol import Protocol
from simcoll.core.schedule import (
    MULTICAST,
    REDUCE,
    SWITCH_REDUCE,
    Layout,
    Repeat,
    Schedule,
    transfers,
)
from simcoll.emulator import concurrent_run, emulate, fast_way
from simcoll.emulator.fast_way import (
    play_concurrently,
    play_every,
    play_together,
    plays_in_lockstep,
)
from simcoll.emulator.folding.remembered import loadable
from simcoll.emulator.quotient_way import no_quotient
from simcoll.emulator.request import Request
from simcoll.emulator.ways import engines, play
from simcoll.errors import ConfigError
from simcoll.testing.examples import needed_params
from simcoll.topology import LINK_KINDS, Topology, boxes, clos, crossbar, fat_tree, torus
from simcoll.topology.chosen_paths import chosen_routes
from tests.support.library_cases import library_case

KINDS = ("dag", "algorithm", "lift", "alone", "path", "concurrent", "library")


@dataclass(frozen=True)
class TableRouter:
    """Routes from a table of pairs."""

    table: np.ndarray

    def links(self, src, dst):
        return self.table[src, dst]


def table_topology(rng, nranks, nlinks, width, copies=1):
    """Random links, random routes (no link twice), ``copies`` of both, twisted: a cover of the
    topology of one copy.

    Rank r of copy i is number ``r + i * nranks``, links likewise. A route of copy i starts there
    and goes to the copy that a random permutation says, over copies of its links that random
    permutations say.
    """
    table = np.full((nranks * copies, nranks * copies, width), -1, np.int32)
    capacity = rng.integers(1, 40, nlinks) * rng.choice([10**12, 10**15, 3 * 10**14 + 7], nlinks)
    latency = rng.choice([0, 1, 10**6, 10**9, 1_234_567], nlinks)
    # Copy of the receiver, by copy of the sender.
    reach = np.zeros((copies, nranks, nranks), np.int64)
    for src in range(nranks):
        for dst in range(nranks):
            if src == dst:
                reach[:, src, dst] = np.arange(copies)
                continue
            hops = int(rng.integers(0, min(width, nlinks) + 1))
            route = rng.choice(nlinks, hops, replace=False)
            reach[:, src, dst] = rng.permutation(copies)
            for hop, link in enumerate(route):
                twist = rng.permutation(copies)
                for copy in range(copies):
                    table[src + copy * nranks, dst + reach[copy, src, dst] * nranks, hop] = (
                        link + twist[copy] * nlinks
                    )
    total, links = nranks * copies, nlinks * copies
    return reach, Topology(
        name="table",
        node_names=tuple(f"r{rank}" for rank in range(total)),
        node_kinds=("gpu",) * total,
        rank_nodes=np.arange(total),
        link_src=np.arange(links) % total,
        link_dst=(np.arange(links) + 1) % total,
        link_capacity_uBps=np.tile(capacity, copies).astype(np.int64),
        link_latency_fs=np.tile(latency, copies).astype(np.int64),
        link_kind=np.tile(rng.integers(0, 5, nlinks), copies).astype(np.int8),
        router=TableRouter(table),
        rank_endpoints=np.arange(total),
        traits={"switch_reduce": "yes"},
    )


def random_protocol(rng, jitter=True):
    """A protocol with some of all costs."""

    def maybe(*values):
        return int(rng.choice([0, *values]))

    def by_kind(*values):
        """A value for some kinds of links."""
        return tuple(
            (kind, values[int(rng.integers(0, len(values)))])
            for kind in LINK_KINDS
            if rng.random() < 0.5
        )

    return Protocol(
        "random",
        header_bytes=maybe(1, 48),
        wire_factor=Fraction(int(rng.integers(15, 31)), 15) if rng.random() < 0.3 else Fraction(1),
        launch_fs=maybe(5, 10**9),
        send_overhead_fs=maybe(3, 10**8),
        receive_overhead_fs=maybe(7, 10**8),
        occupancy_fs=by_kind(0, 5, 10**8, 2 * 10**9) if rng.random() < 0.5 else (),
        hop_latency_fs=by_kind(0, 11, 5 * 10**8) if rng.random() < 0.4 else (),
        add_path_latency=rng.random() < 0.5,
        reduce_as_per_byte=maybe(667),
        copy_as_per_byte=maybe(300),
        fifo_depth=int(rng.choice([0, 0, 0, 1, 1, 2, 3, 8])),
        channel_rate_uBps=maybe(7 * 10**15, 10**13),
        rank_rate_uBps=maybe(9 * 10**15, 10**13),
        link_shares=by_kind(Fraction(2, 3), Fraction(9, 10)) if rng.random() < 0.3 else (),
        jitter_fs=maybe(10, 10**9) if jitter and rng.random() < 0.5 else 0,
        seed=int(rng.integers(0, 2**40)),
    )


def random_rows(rng, nranks, channels):
    """Transfers of one step: each (destination, slot) once."""
    if rng.random() < 0.15:
        return switch_rows(rng, nranks, channels)
    count = int(rng.integers(1, 2 * nranks + 1))
    cell = rng.choice(nranks * nranks, min(count, nranks * nranks), replace=False)
    src, slot = rng.integers(0, nranks, len(cell)), rng.integers(0, nranks, len(cell))
    return (
        src,
        slot,
        cell // nranks,
        cell % nranks,
        rng.integers(0, 2, len(cell)) * REDUCE,
        rng.integers(0, channels, len(cell)),
    )


def switch_rows(rng, nranks, channels):
    """Transfers of one step by switches: a multicast and a reduction, on places of their own."""
    sources = rng.permutation(nranks)[: int(rng.integers(1, nranks + 1))]
    targets = rng.permutation(nranks)[: int(rng.integers(1, nranks + 1))]
    one, two = rng.permutation(nranks)[:2]
    up, down = np.full_like(sources, 1), np.full_like(targets, 1)
    return (
        np.concatenate([sources, down * rng.integers(0, nranks)]),
        np.concatenate([up * rng.integers(0, nranks), down * rng.integers(0, nranks)]),
        np.concatenate([up * rng.integers(0, nranks), targets]),
        np.concatenate([up * one, down * two]),
        np.concatenate([up * SWITCH_REDUCE, down * MULTICAST]),
        np.concatenate([up * rng.integers(0, channels), down * rng.integers(0, channels)]),
    )


def _by_hand(rng, nranks, reach):
    """A schedule of random steps, lifted to the copies that ``reach`` tells of, with some of them
    repeated.
    """
    copies, channels = len(reach), int(rng.integers(1, 4))
    total = nranks * copies
    layout = Layout(Collective("all_to_all", total))
    blocks = []
    for _ in range(int(rng.integers(1, 9))):
        src, slot, dst, place, op, channel = random_rows(rng, nranks, channels)
        copy = np.arange(copies)[:, None]
        step = transfers(
            src + copy * nranks,
            layout.input(slot),
            dst + reach[copy, src, dst] * nranks,
            layout.output(place),
            op=op,
            channel=channel,
        )
        blocks.append(
            Repeat((step,), int(rng.integers(1, 6)), 0, 0, layout.size)
            if rng.random() < 0.4
            else step
        )
    return Schedule("random", layout, lambda: blocks, channels)


def dag_case(rng):
    """Random steps on random links, each block of its own size, or all of one."""
    nranks = int(rng.integers(2, 8))
    reach, topology = table_topology(rng, nranks, int(rng.integers(1, 9)), int(rng.integers(1, 5)))
    schedule = _by_hand(rng, nranks, reach)
    sizes = (
        rng.choice([0, 1, 1000, 65536, 99991], (nranks, nranks)).tolist()
        if rng.random() < 0.6
        else int(rng.integers(1, 9999))
    )
    return bind(schedule, sizes, "uint8", protocol=random_protocol(rng), unproved=True), topology


def lift_case(rng):
    """A cover: copies of random steps on copies of random links."""
    nranks, copies = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    reach, topology = table_topology(
        rng, nranks, int(rng.integers(1, 7)), int(rng.integers(1, 4)), copies
    )
    schedule = _by_hand(rng, nranks, reach)
    return bind(
        schedule,
        int(rng.integers(1, 99999)),
        "uint8",
        protocol=random_protocol(rng, jitter=False),
        unproved=True,
    ), topology


def alone_case(rng):
    """Permutations, repeated with other chunks, on links of their own: mostly, flows do not
    meet.
    """
    nranks, pieces, channels = (int(rng.integers(*limits)) for limits in ((2, 8), (1, 8), (1, 3)))
    layout, rank = Layout(Collective("all_reduce", nranks), chunks=pieces), np.arange(nranks)
    ring = rng.random() < 0.5

    def step():
        src = rng.permutation(nranks)
        dst = (src + 1) % nranks if ring else rng.permutation(nranks)
        some = slice(int(rng.integers(1, nranks + 1)))
        if rng.random() < 0.05:
            dst = src
        chunk = layout.output(0, rng.integers(0, pieces, nranks))
        op, channel = int(rng.integers(0, 2)) * REDUCE, int(rng.integers(0, channels))
        other = (
            chunk if pieces == 1 else (chunk - layout.output_base + 1) % pieces + layout.output_base
        )
        return transfers(src[some], chunk[some], dst[some], other[some], op=op, channel=channel)

    blocks = [
        Repeat(
            tuple(step() for _ in range(rng.integers(1, 4))),
            int(rng.integers(1, 6)),
            int(rng.integers(-2, 3)),
            layout.output_base,
            pieces,
        )
        for _ in range(int(rng.integers(1, 5)))
    ]
    # A link in the middle, which never binds where it is wide.
    wide = 1000 if rng.random() < 0.3 else 1
    table = np.full((nranks, nranks, 3), -1, np.int32)
    table[..., 0], table[..., 1], table[..., 2] = rank[:, None], nranks + rank, 2 * nranks
    if rng.random() < 0.6:
        table = table[..., :2]
    table[rank, rank] = -1
    capacity = rng.integers(1, 40, 2 * nranks) * rng.choice(
        [10**12, 10**15, 3 * 10**14 + 7], 2 * nranks
    )
    _, topology = table_topology(rng, nranks, 2 * nranks + 1, 1)
    topology = replace(
        topology,
        link_capacity_uBps=np.append(capacity, 5 * 10**15 * wide),
        router=TableRouter(table),
    )
    plan = bind(
        Schedule("alone", layout, lambda: blocks, channels),
        int(rng.choice([pieces, 7 * pieces, 1000, 99991])),
        "uint8",
        "max",
        protocol=random_protocol(rng),
        unproved=True,
    )
    return plan, topology


def algorithm_case(rng):
    """A registered algorithm on a small machine."""
    while True:
        algorithm = ALGORITHMS[int(rng.integers(0, len(ALGORITHMS)))]
        n = int(rng.integers(1, 17))
        try:
            extra = needed_params(algorithm.collective, algorithm.name, n)
            schedule = simcoll.schedule(algorithm.collective, algorithm.name, nranks=n, **extra)
        except ConfigError:
            continue
        break
    gbps = f"{int(rng.integers(1, 400))} GB/s"
    machines = (
        crossbar(n, gbps, "1 us"),
        boxes(-(-n // 4), 4, "400 GB/s", "1 us", nics=4, nic_bandwidth=gbps, nic_latency="3 us"),
        fat_tree(-(-n // 3), 3, gbps, "2 us", oversubscription=2),
        torus([2, -(-n // 2)], gbps, "500 ns"),
    )
    topology = machines[int(rng.integers(0, len(machines)))]
    topology = replace(topology, traits={**topology.traits, "switch_reduce": "yes"})
    count = int(rng.choice([0, 1, n - 1, n, 1000, 65536, 99991]))
    return simcoll.bind(
        schedule, count, "uint8", "max", protocol=random_protocol(rng), unproved=True
    ), topology


def _machine(rng, n):
    """A small machine with several ways between its ranks."""
    gbps = f"{int(rng.integers(1, 400))} GB/s"
    machines = (
        boxes(-(-n // 4), 4, "400 GB/s", "1 us", nics=4, nic_bandwidth=gbps, nic_latency="3 us"),
        fat_tree(-(-n // 3), 3, gbps, "2 us", oversubscription=2),
        torus([2, -(-n // 2)], gbps, "500 ns"),
        torus([n + 1], gbps, "700 ns"),
    )
    return machines[int(rng.integers(0, len(machines)))]


def _has_path(topology, src, dst, via):
    paths = transfers(src, 0, dst, 0, via=via).transits
    try:
        chosen_routes(topology, np.array([src]), np.array([dst]), paths)
    except ConfigError:
        return False
    return True


def path_case(rng):
    """Random steps that choose paths and wire formats, on machines with several ways."""
    n, channels = int(rng.integers(2, 9)), int(rng.integers(1, 4))
    topology, layout = _machine(rng, n), Layout(Collective("all_to_all", n))
    kinds = sorted({LINK_KINDS[kind] for kind in topology.link_kind.tolist()})
    vertices = rng.choice(topology.node_names, 3).tolist()
    anything = rng.random() < 0.1  # also paths that do not exist
    blocks = []
    for _ in range(int(rng.integers(1, 9))):
        cell = rng.choice(n * n, int(rng.integers(1, 2 * n + 1)), replace=False)
        src = rng.integers(0, n, len(cell))
        wanted = rng.choice(["", "", *kinds, *vertices], len(cell)).tolist()
        vias = []
        for via, sender, receiver in zip(wanted, src.tolist(), (cell // n).tolist(), strict=True):
            exists = anything or _has_path(topology, sender, receiver, via)
            vias.append(via if exists and sender != receiver else "")
        step = transfers(
            src,
            layout.input(rng.integers(0, n, len(cell))),
            cell // n,
            layout.output(cell % n),
            op=rng.integers(0, 2, len(cell)) * REDUCE,
            channel=rng.integers(0, channels, len(cell)),
            via=vias,
            wire=str(rng.choice(["", "", "bfloat16", "int8/16", "int4/33"])),
        )
        blocks.append(Repeat((step,), int(rng.integers(2, 6)), 0, 0, layout.size))
        if rng.random() < 0.6:
            blocks[-1] = step
    sizes = (
        rng.choice([0, 1, 1000, 65536, 99991], (n, n)).tolist()
        if rng.random() < 0.5
        else int(rng.integers(1, 9999))
    )
    schedule = Schedule("paths", layout, lambda: blocks, channels)
    protocol = random_protocol(rng)
    return bind(schedule, sizes, "float32", protocol=protocol, unproved=True), topology


def concurrent_case(rng):
    """Many messages of one step: unequal, equal, jittered, over paths that hashes choose."""
    n = int(rng.integers(2, 30))
    gbps = f"{int(rng.integers(1, 400))} GB/s"
    seed = int(rng.integers(0, 99))
    machines = (
        crossbar(n, gbps, "1 us"),
        boxes(-(-n // 4), 4, "400 GB/s", "1 us", nics=4, nic_bandwidth=gbps, nic_latency="3 us"),
        boxes(-(-n // 4), 4, "90 GB/s", nics=2, nic_bandwidth=gbps, pcie_bandwidth="50 GB/s"),
        fat_tree(-(-n // 3), 3, gbps, "2 us", oversubscription=int(rng.integers(1, 4))),
        torus([2, -(-n // 2)], gbps, "500 ns"),
        clos(-(-n // 4), 4, 2, gbps, "1 us", ecmp="hash", seed=seed),
        table_topology(rng, n, int(rng.integers(1, 2 * n)), int(rng.integers(1, 6)))[1],
    )
    topology = machines[int(rng.integers(0, len(machines)))]
    layout, channels = Layout(Collective("all_to_all", n)), int(rng.integers(1, 4))
    some = rng.random((n, n)) < rng.choice([0.3, 1.0])
    src, dst = np.nonzero(some if some.any() else ~some)
    lane = rng.integers(0, channels, (2, n))
    channel = np.where(rng.random() < 0.5, 0, lane[0, src])
    blocks = [
        transfers(src, layout.input(dst), dst, layout.output(src), channel=channel),
    ]
    sizes = (
        (60_000 * rng.pareto(1.2, (n, n))).astype(np.int64).tolist()
        if rng.random() < 0.6
        else int(rng.integers(1, 99999))
    )
    schedule = Schedule("concurrent", layout, lambda: blocks, channels)
    protocol = random_protocol(rng)
    return bind(schedule, sizes, "uint8", protocol=protocol, unproved=True), topology


def case(kind, seed):
    """Plan and topology of a case."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    return {
        "dag": dag_case,
        "lift": lift_case,
        "algorithm": algorithm_case,
        "alone": alone_case,
        "path": path_case,
        "concurrent": concurrent_case,
        "library": library_case,
    }[kind](rng)


def occupied(kind, seed):
    """Whether a case has a FIFO, and senders that messages keep busy."""
    protocol = case(kind, seed)[0].protocol
    return protocol.fifo_depth > 0 and any(busy for _, busy in protocol.occupancy_fs)


def outcome(plan, topology, **how):
    """Times of everything, or the error."""
    try:
        result = emulate(plan, topology, data="none", bound=False, keep=True, **how)
    except ConfigError as error:
        return str(error), None
    return (
        result.time_fs,
        result.messages,
        result.bytes_moved,
        result.trace_hash,
        result.done_fs.tolist(),
    ), result


@contextmanager
def uncompiled():
    """Play in lock-step, and messages that wait for nothing, as where no compiler is installed."""
    modules, compiled = (concurrent_run, fast_way), fast_way.COMPILED
    for module in modules:
        module.COMPILED = False
    try:
        yield
    finally:
        for module in modules:
            module.COMPILED = compiled


def compare(kind, seed):
    """Run a case on every engine that this machine has; returns what took part, or raises
    AssertionError with a line that repeats it.
    """
    plan, topology = case(kind, seed)
    replay = f"replay: python tests/support/run_agreement.py --kind {kind} --first {seed} --cases 1"
    expected, _ = outcome(plan, topology, engine="simpy", quotient=False)
    ways = ["simpy"]
    asked = "fast" if fast_way.COMPILED else "auto"
    got, result = outcome(plan, topology, engine=asked, quotient=False)
    assert got == expected, f"fast differs from simpy\n{replay}"
    if result is not None and result.engine == "fast":
        ways.append("fast")
        unseen = emulate(plan, topology, data="none", bound=False, engine=asked, quotient=False)
        told = (unseen.time_fs, unseen.messages, unseen.bytes_moved, unseen.trace_hash)
        assert told == expected[:4], f"fast differs when nobody asks for single times\n{replay}"
        request = Request(plan, topology, keep=True)
        at_once = play_concurrently(request)
        if at_once is not None:
            ways.append("concurrent")
            assert at_once.done_fs.tolist() == expected[4], f"without a calendar\n{replay}"
        with uncompiled():
            in_numpy = play_concurrently(request)
        if in_numpy is not None:
            ways.append("in numpy")
            assert in_numpy.done_fs.tolist() == expected[4], f"in numpy\n{replay}"
            assert in_numpy.trace_hash == expected[3], f"in numpy\n{replay}"
        with uncompiled():
            in_steps = play_together(Request(plan, topology, keep=True))
        assert (in_steps is None) or plays_in_lockstep(request)
        if in_steps is not None:
            ways.append("in steps, in numpy")
            told = (
                in_steps.time_fs,
                in_steps.messages,
                in_steps.bytes_moved,
                in_steps.trace_hash,
                in_steps.done_fs.tolist(),
            )
            assert told == expected, f"lock-step in numpy\n{replay}"
        if plays_in_lockstep(request):
            ways.append("lock-step")
        if fast_way.COMPILED and (plays_in_lockstep(request) or at_once is not None):
            loops = play_every(request)
            told = (
                loops.time_fs,
                loops.messages,
                loops.bytes_moved,
                loops.trace_hash,
                loops.done_fs.tolist(),
            )
            assert told == expected, f"the loops differ from simpy\n{replay}"
    for engine in engines():
        if result is not None and engine not in {"auto", "fast", "simpy"}:
            added = emulate(plan, topology, data="none", bound=False, engine=engine)
            told = (added.time_fs, added.messages, added.bytes_moved, added.trace_hash)
            assert told == expected[:4], f"{engine} differs from simpy\n{replay}"
            ways.append(engine if added.engine == engine else f"no {engine}")
    got, result = outcome(plan, topology)
    assert got == expected, f"the engine that is chosen differs from simpy\n{replay}"
    if result is not None and result.path.endswith("in numpy"):
        ways.append("chosen in numpy")
    if result is not None:
        in_table = Request(plan, topology, protocols=3)
        repeated = play(in_table)
        told = (repeated.time_fs, repeated.messages, repeated.bytes_moved, repeated.trace_hash)
        assert told == expected[:4], f"as one of a table, it differs from simpy\n{replay}"
        if loadable(in_table):
            ways.append("loaded")
    if not no_quotient(plan):
        got, result = outcome(plan, topology, quotient=True)
        folds = result is not None and result.classes is not None
        assert isinstance(expected, str) or got == expected, (
            f"the quotient differs from simpy\n{replay}"
        )
        if folds:
            ways.append("quotient" if result.classes < result.messages else "quotient without gain")
    return ways
