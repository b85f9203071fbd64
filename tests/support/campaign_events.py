"""Cases of the campaign under events: links that go down, ranks that slow down or stop, in rank
programs and on both engines.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from simcoll.emulator.events import LinkShare, Slow, Stop
from tests.support.campaign_cases import fates, machine
from tests.support.campaign_run import PLANNED, BrokenPromiseError, named, spawned
from tests.support.event_cases import outcome, random_events, random_policy


def _heal(events):
    """Whether everything is as before in the end."""
    return all(
        not isinstance(event, Stop) and (event.for_fs is not None or getattr(event, "share", 1))
        for event in events
    )


def disturbed(case, kind, plan, place, times, seen):
    """Play a collective while links fail and ranks are slow or stop; what heals must come to its
    end.
    """
    rng = np.random.default_rng([case.events, 7])
    events = random_events(rng, plan.nranks, place, times)
    policy = random_policy(rng, int(times.max(initial=1)))
    told, result = outcome(plan, place, events, policy, engine="simpy")
    again, _ = outcome(plan, place, events, policy, engine="fast")
    words = f"{kind} under {'; '.join(map(str, events))}; {policy}"
    if told != again:
        raise BrokenPromiseError(f"{words}: fast gives {again}, SimPy {told}")
    seen["event runs compared"] += 1
    if result is None:
        return
    seen.update(type(event).__name__ for event in events)
    seen[f"policy {policy.kind}"] += 1
    if result.cut is not None:
        seen[f"cut: {result.cut.kind}"] += 1
        seen["gave up after retries"] += policy.retries > 0 and result.cut.kind == "aborted"
        if _heal(events) and policy.kind != "abort" and not policy.timeout_fs:
            raise BrokenPromiseError(f"{words}: all is healed, and yet {result.cut}")
    else:
        seen["came to its end under events"] += 1
        seen["retried and went on"] += policy.retries > 0 and result.time_fs > int(
            times.max(initial=0)
        )


def drawn_events(case, healthy):
    """Events at and between the times of what the program does when nothing happens, and the
    policy.
    """
    rng = np.random.default_rng([case.events, 11])
    ends = [time for record in healthy.records for time in (record.begin_fs, record.end_fs)]
    times = np.array([*ends, *healthy.finish_fs], np.int64)
    events = random_events(rng, case.n, machine(case)[0], times)
    if rng.random() < 0.25:
        events.append(Stop(int(rng.integers(0, case.n)), int(rng.integers(0, times.max() + 1))))
    return events, random_policy(rng, int(times.max(initial=1)))


def under_events(case, healthy, seen):
    """Play the program of a case, with or without its faults, while events happen; ``healthy`` is
    the run without either.
    """
    case = replace(case, faults=()) if case.events // 4 % 2 else case
    events, policy = drawn_events(case, healthy)
    how = {"backend": ("gloo", "nccl")[case.events // 2 % 2], "events": events, "policy": policy}
    calm = not any(isinstance(event, Stop) for event in events) or (
        policy.kind != "abort" and not policy.timeout_fs
    )
    lasting = any(
        isinstance(event, LinkShare) and not event.share and event.for_fs is None
        for event in events
    )
    heals = calm and not lasting
    words = f"{how['backend']} under {'; '.join(map(str, events))}; {policy}"
    told, raised, result = spawned(case, seen, heals=heals, **how)
    again, _, repeated = spawned(case, Counter(), heals=heals, **how)
    if again != told:
        raise BrokenPromiseError(f"{words}: a second run tells {again}, the first {told}")
    if result is not None and (repeated is None or repeated.trace_hash != result.trace_hash):
        raise BrokenPromiseError(f"{words}: a second run has another trace")
    judge_events(case, events, policy, told, raised, words, seen)
    seen["programs under events"] += 1
    seen["later under events"] += result is not None and result.time_fs > healthy.time_fs


def judge_events(case, events, policy, told, raised, words, seen):
    """Every rank has the right data, or a documented error with a cause that exists; without a
    lasting cause nobody fails.
    """
    own = {fault.rank: fault.kind for fault in case.faults}
    stops = {event.rank for event in events if isinstance(event, Stop)}
    slow = {event.rank for event in events if isinstance(event, Slow)} | {
        r for r, kind in own.items() if kind == "slow"
    }
    failed = {rank for rank, said in told.items() if said not in ("done", "left")}
    last, end = fates(case, patient=True), len(case.steps)
    for rank in range(case.n):
        said, kind = told.get(rank, "nothing"), own.get(rank)
        if said == "done":
            ok = last[rank] >= end or kind == "late"
        elif said == "left":
            ok = kind == "ends"
        elif said == "nothing":
            ok = rank in stops
            seen["stopped in its program"] += ok
        elif said == f"ValueError: {PLANNED}":
            ok = kind == "dies"
        else:
            ok = named(said)
            _blames(said, ok, {*own, *stops, *slow, *(failed - {rank})}, words)
            seen[f"under events: {ok[0]}"] += 1
        if not ok:
            raise BrokenPromiseError(
                f"{words}: rank {rank}, whose last step is {last[rank]} of {end}: {said}"
            )
    may_fail = case.faults or not _heal(events) or policy.kind == "abort" or policy.timeout_fs
    if not may_fail and (raised or set(told.values()) != {"done"}):
        raise BrokenPromiseError(f"{words}: all is healed, and yet {told}; {raised}")
    seen["healed events, all done"] += not may_fail


def _blames(said, found, culprits, words):
    """An error is documented, and names a rank at fault or a link that an event takes down."""
    if found is None:
        raise BrokenPromiseError(f"{words}: an error that is not documented: {said}")
    link = re.search(r"down: [^:\n]+", said)
    if not (found[1] & culprits or link):
        raise BrokenPromiseError(
            f"{words}: ranks {sorted(found[1])} are blamed, none of {sorted(culprits)}: {said}"
        )
