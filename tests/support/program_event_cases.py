"""Random programs with random events, on which both engines must agree to the last message and the
last word of a cut.
"""

from collections import Counter

import numpy as np

from simcoll.emulator import emulate
from simcoll.emulator.programs.resources import calls_of
from simcoll.errors import ConfigError
from tests.support import program_cases
from tests.support.event_cases import random_events, random_policy

KINDS = ("program-events",)


def case(seed):
    """Program, topology, events and policy of a case, and the run without events; no events where
    it cannot be played at all.
    """
    program, topology = program_cases.program_of(("program", "step")[seed % 2], seed)
    whole, healthy = program_cases.outcome(program, topology, engine="simpy")
    if healthy is None:
        return program, topology, (), "stall", whole
    rng = np.random.default_rng([seed, 31])
    times = np.unique(healthy.done_fs)
    policy = random_policy(rng, int(times.max(initial=1)))
    return program, topology, random_events(rng, program.nranks, topology, times), policy, whole


def outcome(program, topology, **how):
    """Times of everything and the cut, or the error."""
    try:
        result = emulate(program, topology, data="none", keep=True, **how)
    except ConfigError as error:
        return str(error), None
    told = [
        result.time_fs,
        result.messages,
        result.bytes_moved,
        result.trace_hash,
        result.done_fs.tolist(),
        result.cut,
    ]
    if result.cut is None:
        numbers = range(len(program.operations))
        told += [
            (result.begin_fs(number).tolist(), result.end_fs(number).tolist()) for number in numbers
        ]
    return told, result


def compare(kind, seed):
    """Run a case on both engines; returns what happened, or raises AssertionError with a line that
    repeats it.
    """
    program, topology, events, policy, whole = case(seed)
    if not events:
        return ["refused"]
    replay = f"replay: python tests/support/run_agreement.py --kind {kind} --first {seed} --cases 1"
    how = {"events": events, "policy": policy}
    expected, one = outcome(program, topology, engine="simpy", **how)
    got, two = outcome(program, topology, engine="fast", quotient=False, **how)
    assert got == expected, f"fast differs from simpy\n{replay}"
    if one is None:
        return ["error"]
    if two.engine != "fast":
        return ["simpy alone"]
    unseen = emulate(program, topology, data="none", engine="fast", quotient=False, **how)
    told = [unseen.time_fs, unseen.messages, unseen.bytes_moved, unseen.trace_hash]
    assert [*told, unseen.cut] == [*expected[:4], expected[5]], (
        f"fast differs when nobody asks for single times\n{replay}"
    )
    jittered = any(call.plan.protocol.jitter_fs for _, call in calls_of(program))
    ways = [
        "fast",
        *["jitter"] * jittered,
        policy.kind,
        *Counter(type(event).__name__ for event in events),
    ]
    return [
        *ways,
        one.cut.kind
        if one.cut is not None
        else "changed"
        if one.trace_hash != whole[3]
        else "same",
    ]
