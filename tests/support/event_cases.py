"""Random runs with random events, on which both engines must agree to the last message and the last
word of a cut.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np

from simcoll.emulator import emulate
from simcoll.emulator.events import Background, LinkShare, Policy, Slow, Stop
from simcoll.errors import ConfigError
from simcoll.topology import clos
from tests.support.agreement_cases import algorithm_case, dag_case, path_case

KINDS = ("events", "path-events")
HEALTHY = {"data": "none", "bound": False, "keep": True}


def links_of(rng, topology):
    """A link, both of a pair, or all at a vertex."""
    link = int(rng.integers(0, topology.nlinks))
    src, dst = int(topology.link_src[link]), int(topology.link_dst[link])
    back = ((topology.link_src == dst) & (topology.link_dst == src)).any()
    names = topology.node_names
    if rng.random() < 0.2 and back:
        return f"{names[src]} <-> {names[dst]}"
    return names[int(rng.choice([src, dst]))] if rng.random() < 0.1 else link


def random_events(rng, nranks, topology, times):
    """Events at and between the times of messages."""
    last = int(times.max(initial=10**9)) + 1

    def time():
        if rng.random() < 0.3 and len(times):
            return int(rng.choice(times))  # just when a message starts, ends or is done
        return int(rng.integers(0, max(2, int(last * 1.2))))

    def window():
        at_fs = 0 if rng.random() < 0.15 else time()
        if rng.random() < 0.25:
            return at_fs, None
        for_fs = abs(time() - at_fs) if rng.random() < 0.5 else int(rng.integers(1, last + 1))
        return at_fs, max(1, for_fs)

    # Mostly few kinds at once, so that most runs come to their end.
    kinds = rng.choice(
        ["down", "share", "background", "slow", "stop"],
        int(rng.integers(1, 4)),
        p=[0.35, 0.25, 0.2, 0.16, 0.04],
    )
    found = []
    for _ in range(int(rng.integers(1, 9))):
        kind, rank = rng.choice(kinds), int(rng.integers(0, nranks))
        link = links_of(rng, topology) if topology.nlinks else None
        if kind == "slow" or (link is None and kind != "stop"):
            found.append(
                Slow(rank, Fraction(int(rng.integers(7, 40)), int(rng.integers(1, 8))), *window())
            )
        elif kind == "stop":
            found.append(Stop(rank, time()))
        elif kind == "background":
            found.append(Background(link, Fraction(int(rng.integers(0, 4)), 33), *window()))
        else:
            share = Fraction(0) if kind == "down" else Fraction(int(rng.integers(1, 8)), 8)
            found.append(LinkShare(link, share, *window()))
    return found


def random_policy(rng, last):
    """Any of the policies."""
    kind = str(rng.choice(["stall", "re-route", "abort"], p=[0.45, 0.45, 0.1]))
    if kind == "abort" or rng.random() < 0.7:
        return Policy(kind)
    return Policy(kind, int(rng.integers(1, max(2, last))), int(rng.integers(0, 4)))


def case(kind, seed):
    """Plan, topology, events and policy of a case."""
    rng = np.random.default_rng([seed, 5 + KINDS.index(kind)])
    if kind == "path-events":
        plan, topology = path_case(rng)
    else:
        plan, topology = _machine_case(rng)
    times = []

    def watch(*row):
        times.extend(row[-3:])

    emulate(plan, topology, data="none", bound=False, observer=watch)
    times = np.array(times, np.int64)
    return (
        plan,
        topology,
        random_events(rng, plan.nranks, topology, times),
        random_policy(rng, int(times.max(initial=1))),
    )


def _machine_case(rng):
    """A plan on a machine that may have ways around."""
    plan, topology = (dag_case if rng.random() < 0.5 else algorithm_case)(rng)
    if rng.random() < 0.2 and topology.nranks > 1:
        topology = clos(
            -(-plan.nranks // 4),
            4,
            int(rng.integers(1, 4)),
            f"{int(rng.integers(1, 400))} GB/s",
            "1 us",
            planes=int(rng.integers(1, 3)),
        )
        topology = replace(topology, traits={**topology.traits, "switch_reduce": "yes"})
    elif rng.random() < 0.5:
        topology = replace(topology, gpus_forward=True)  # so that there are ways around
    return plan, topology


def outcome(plan, topology, events, policy, **how):
    """Times of everything and the cut, or the error."""
    try:
        result = emulate(plan, topology, **HEALTHY, events=events, policy=policy, **how)
    except ConfigError as error:
        return str(error), None
    told = (
        result.time_fs,
        result.messages,
        result.bytes_moved,
        result.trace_hash,
        result.done_fs.tolist(),
        result.cut,
    )
    return told, result


def compare(kind, seed):
    """Run a case on both engines; returns what happened, or raises AssertionError with a line that
    repeats it.
    """
    try:
        plan, topology, events, policy = case(kind, seed)
    except ConfigError:  # nothing to change: the plan cannot be played at all
        return ["refused"]
    replay = f"replay: python tests/support/run_agreement.py --kind {kind} --first {seed} --cases 1"
    expected, one = outcome(plan, topology, events, policy, engine="simpy")
    got, two = outcome(plan, topology, events, policy, engine="fast")
    assert got == expected, f"fast differs from simpy\n{replay}"
    if one is None:
        return ["error"]
    if two.engine != "fast":
        return ["simpy alone"]
    unseen = emulate(
        plan, topology, **HEALTHY | {"keep": False}, events=events, policy=policy, engine="fast"
    )
    told = (unseen.time_fs, unseen.messages, unseen.bytes_moved, unseen.trace_hash, unseen.cut)
    assert told == (*expected[:4], expected[5]), (
        f"fast differs when nobody asks for single times\n{replay}"
    )
    whole = emulate(plan, topology, **HEALTHY, engine="fast", quotient=False)
    ways = ["fast", policy.kind, *Counter(type(event).__name__ for event in events)]
    if policy.kind == "re-route":
        stalled, _ = outcome(plan, topology, events, replace(policy, kind="stall"), engine="fast")
        ways += ["another way"] if stalled != expected else []
    if one.cut is not None:
        ways.append(one.cut.kind)
    elif whole.trace_hash != one.trace_hash:
        ways.append("changed")
    return ways
