"""Play a case of the campaign and hold it to its promises.

No hang; every rank ends with the right data or a documented error that names a rank at fault; no
clock runs backwards; a second run tells and takes the same; all engines agree on a collective of
the case, message by message; and afterwards the same ranks, or those that are left, come to a right
result again, and the program without its faults, too. Programs under events:
:mod:`tests.support.campaign_events`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import simcoll
from simcoll.errors import ConfigError
from tests.support.agreement_cases import outcome
from tests.support.campaign_cases import COLLECTIVES, fates, machine, protocol, shrunk
from tests.support.campaign_events import disturbed, under_events
from tests.support.campaign_run import PLANNED, BrokenPromiseError, deadline, named, spawned


def judge(case, told, raised, seen):
    """Compare the ends of all ranks with the model."""
    first, last, end = fates(case, patient=False), fates(case, patient=True), len(case.steps)
    own = {fault.rank: fault.kind for fault in case.faults}
    at_fault = {rank for rank, kind in own.items() if kind in ("dies", "ends", "late", "mismatch")}
    affected = {rank for rank in range(case.n) if first[rank] < end} | at_fault
    for rank in range(case.n):
        said = told.get(rank, "nothing")
        kind = own.get(rank)
        if kind == "dies" and said == f"ValueError: {PLANNED}":
            continue
        if kind == "late" and case.timed:
            ok = said == "done" or named(said)
        elif said == "done":
            ok = last[rank] >= end
        elif said == "left":
            ok = kind == "ends"
        else:
            ok = first[rank] < end and named(said)
        if not ok:
            raise BrokenPromiseError(
                f"rank {rank}, which by the model ends between steps {first[rank]} and "
                f"{last[rank]} of {end}: {said}"
            )
        if isinstance(ok, tuple):
            seen[ok[0]] += 1
            if not ok[1] & affected:
                raise BrokenPromiseError(
                    f"rank {rank} blames ranks {sorted(ok[1])}, none of {sorted(affected)}: {said}"
                )
    failed = [said for said in told.values() if said not in ("done", "left")]
    if raised and not failed and not any(kind == "ends" for kind in own.values()):
        raise BrokenPromiseError(f"the run raised, but no rank did: {raised}")


def engines(case, seen):
    """Play the collectives of the case's algorithm on its machine with all engines."""
    place, costs, shown = machine(case)[0], protocol(case), {step.kind for step in case.steps}
    for kind in sorted(shown & set(COLLECTIVES) - {"ring"}):
        try:
            made = simcoll.schedule(kind, case.algorithm or "direct", nranks=case.n)
        except ConfigError:
            continue  # the algorithm does not serve this collective, or not so many ranks
        plan = simcoll.bind(
            made, 0 if kind == "barrier" else 1000, "uint8", "max", protocol=costs, unproved=True
        )
        whole, result = outcome(plan, place, engine="simpy", quotient=False)
        for how in ({"engine": "fast", "quotient": False}, {"quotient": True}):
            got, played = outcome(plan, place, **how)
            if got != whole:
                raise BrokenPromiseError(f"{kind}: {how} gives {got[:4]}, SimPy {whole[:4]}")
            seen["folded"] += played is not None and played.classes is not None
        seen["engines compared"] += 1
        if case.events is not None and result is not None:
            disturbed(case, kind, plan, place, result.done_fs, seen)


def play(case, seen=None):
    """Hold one case to all promises; returns what was seen, or raises a
    :class:`BrokenPromiseError`.
    """
    seen = Counter() if seen is None else seen
    with deadline():
        refused = machine(case)[1]
        seen["cut off, refused"] += refused
        seen["lost link"] += any(share == "0" for _, share in case.lost) and not refused
        seen["slow link"] += any(share != "0" for _, share in case.lost)
        told, raised, result = spawned(case, seen)
        judge(case, told, raised, seen)
        again, _, repeated = spawned(case, Counter())
        if again != told:
            raise BrokenPromiseError(f"a second run tells {again}, the first {told}")
        if result is not None:
            if repeated is None or (repeated.trace_hash, repeated.finish_fs) != (
                result.trace_hash,
                result.finish_fs,
            ):
                raise BrokenPromiseError("a second run has another trace")
            if any(record.end_fs < record.begin_fs for record in result.records):
                raise BrokenPromiseError("an operation ended before it began")
            ends = Counter(record.end_fs for record in result.records)
            seen["tie"] += any(many > 1 for many in ends.values())
        seen["nothing failed"] += all(said == "done" for said in told.values())
        engines(case, seen)
        if case.faults:
            told, raised, result = spawned(replace(case, faults=()), Counter())
            if raised or set(told.values()) != {"done"}:
                raise BrokenPromiseError(
                    f"the program without its faults, afterwards: {told}; {raised}"
                )
        if case.events is not None:
            under_events(case, result, seen)
    return seen


def broken(case):
    """Whether a case breaks a promise, and which; any other exception that comes out is one,
    too.
    """
    try:
        play(case)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return ""


def report(seed, case):
    """The smallest case that breaks the same kind of promise, and the lines that play it again."""
    first = broken(case)
    kind = first.partition(":")[0]
    small = shrunk(case, lambda one: broken(one).partition(":")[0] == kind)
    return (
        f"seed {seed}: {first}\n"
        f"shrunk to {len(small.steps)} steps on {small.n} ranks: {broken(small)}\n"
        f"replay: python -m tests.laws.campaign --seed {seed}\n"
        f"replay: python -m tests.laws.campaign --case '{small.text()}'"
    )
