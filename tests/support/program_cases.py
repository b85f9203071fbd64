"""Random programs on which all engines must agree, each made from one number."""

import numpy as np

import simcoll
from simcoll.binding import bind
from simcoll.emulator import emulate
from simcoll.emulator.programs import Call, Compute, Program, Send
from simcoll.errors import ConfigError
from tests.support.agreement_cases import _by_hand, random_protocol, table_topology

KINDS = ("program",)
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
        return bind(schedule, int(rng.integers(0, 9999)), "uint8", protocol=protocol, unproved=True), size
    kind = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")[int(rng.integers(0, 5))]
    name = {"all_to_all": "direct", "broadcast": "tree"}.get(kind, "ring")
    return simcoll.bind(simcoll.schedule(kind, name, nranks=size), int(rng.integers(0, 9999)), protocol=protocol), size


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
    return Send(pairs, int(rng.integers(0, 99999)), stream, after, protocols[int(rng.integers(0, len(protocols)))])


def program_case(rng):
    """Random operations on random links."""
    nranks = int(rng.integers(2, 8))
    _, topology = table_topology(rng, nranks, int(rng.integers(1, 9)), int(rng.integers(1, 5)))
    protocols = [random_protocol(rng, jitter=False) for _ in range(int(rng.integers(1, 4)))]
    operations = [random_operation(rng, nranks, protocols, number) for number in range(int(rng.integers(1, 16)))]
    starts = rng.choice([0, 0, 7, 10**9], nranks) if rng.random() < 0.5 else 0
    return Program(nranks, operations, starts), topology


def program_of(kind, seed):
    """Program and topology of a case."""
    rng = np.random.default_rng([seed, KINDS.index(kind), 77])
    return {"program": program_case}[kind](rng)


def outcome(program, topology, **how):
    """Times of everything, or the error."""
    try:
        result = emulate(program, topology, data="none", keep=True, **how)
    except ConfigError as error:
        return str(error), None
    spans = [
        (result.begin_fs(number).tolist(), result.end_fs(number).tolist()) for number in range(len(program.operations))
    ]
    told = (result.time_fs, result.messages, result.bytes_moved, result.trace_hash, result.done_fs.tolist(), spans)
    return told, result


def compare(kind, seed):
    """Run a case on every engine; returns what took part, or raises AssertionError with a line that repeats it."""
    program, topology = program_of(kind, seed)
    replay = f"replay: python tests/support/run_agreement.py --kind {kind} --first {seed} --cases 1"
    expected, _ = outcome(program, topology, engine="simpy")
    ways = ["simpy"]
    got, result = outcome(program, topology, engine="fast", quotient=False)
    assert got == expected, f"fast differs from simpy\n{replay}"
    if result is not None and result.engine == "fast":
        ways.append("fast")
        unseen = emulate(program, topology, data="none", engine="fast", quotient=False)
        told = (unseen.time_fs, unseen.messages, unseen.bytes_moved, unseen.trace_hash)
        assert told == expected[:4], f"fast differs when nobody asks for single times\n{replay}"
    got, result = outcome(program, topology, quotient=True)
    assert isinstance(expected, str) or got == expected, f"the quotient differs from simpy\n{replay}"
    if result is not None and result.classes is not None:
        ways.append("quotient" if result.path.split()[1] != result.path.split()[-2] else "quotient without gain")
    return ways
