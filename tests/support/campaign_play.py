"""Play a case of the campaign and hold it to its promises.

No hang; every rank ends with the right data or a documented error that names a rank at fault; no clock runs backwards; a second run tells
and takes the same; all engines agree on a collective of the case, message by message; and afterwards the same ranks, or those that are
left, come to a right result again, and the program without its faults, too.
"""

from __future__ import annotations

import re
import signal
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import numpy as np

import simcoll
import simcoll.distributed as dist
from simcoll.emulator.events import Stop
from simcoll.errors import ConfigError, InternalError
from tests.support.agreement_cases import outcome
from tests.support.campaign_cases import COLLECTIVES, TIMEOUT_S, fates, machine, protocol, shrunk
from tests.support.collective_model import data, expected, issue
from tests.support.event_cases import outcome as with_events
from tests.support.event_cases import random_events, random_policy

PATIENCE_S = 120
LATE_S = 100 * TIMEOUT_S
T = timedelta(seconds=TIMEOUT_S)
LONG = timedelta(days=1)
PLANNED = "planned by the campaign"

# What a rank may be told, each with the ranks that it names.
DOCUMENTED = {
    "peer raised": r"Connection closed by peer: rank (\d+) ended with ",
    "operation timed out": r"Timed out waiting \d+ms for .* waits for ranks? ([\d, and]+)",
    "message timed out": r"Timed out waiting \d+ms for .*(?:recv from|send to) rank (\d+)",
    "meeting timed out": r"Timed out waiting \d+ms for init_process_group waits for ranks? ([\d, and]+)",
    "store timed out": r"wait timeout after \d+ms, keys: /campaign/\d+/of rank (\d+)",
    "told of a mismatch": r"Detected mismatch between collectives on ranks: .*",
    "hang": r"Hang at [^:]+: no event is left, ",
}  # fmt: skip


EACH = {"told of a mismatch": r"rank (\d+):", "hang": r"(?:send to|recv from|waits for) ranks? ([\d, and]+)"}
"""How the ranks of a report in several lines are found."""


class BrokenPromiseError(AssertionError):
    """A promise that was broken."""


@contextmanager
def deadline(seconds=PATIENCE_S):
    """End what hangs."""

    def over(_number, _frame):
        raise BrokenPromiseError(f"hangs: not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _Rank:
    """One rank's course through a case."""

    def __init__(self, case, rank, seen):
        self.case, self.rank, self.seen = case, rank, seen
        self.open, self.last_s = [], 0.0

    def clock(self):
        now = dist.emulated_time()
        if now < self.last_s:
            raise BrokenPromiseError(f"rank {self.rank}: the clock went from {self.last_s} to {now}")
        self.last_s = now

    def begin(self):
        dist.init_process_group(timeout=T if self.case.timed else None)
        self.groups = [None, *(dist.new_group(members) for members in self.case.groups)]

    def check(self):
        while self.open:
            works, result, want, number = self.open.pop()
            for work in works:
                work.wait()
            self.clock()
            if not np.array_equal(result, want):
                raise BrokenPromiseError(f"rank {self.rank}, step {number}: got {result[:8]}, expected {want[:8]}")

    def play(self):
        faults = {fault.step: fault for fault in self.case.faults if fault.rank == self.rank}
        for number, step in enumerate(self.case.steps):
            fault = faults.get(number)
            if fault is not None and fault.kind != "mismatch":
                self.seen[fault.kind] += 1
                if fault.kind == "dies":
                    raise ValueError(PLANNED)
                if fault.kind == "ends":
                    return False
                dist.compute(LATE_S if fault.kind == "late" else TIMEOUT_S / 10)
            if self.rank in self.case.takers(step):
                self.step(number, step, fault)
                self.clock()
        self.check()
        return True

    def step(self, number, step, fault):
        members, takers = self.case.members(step), self.case.takers(step)
        here, root = members.index(self.rank), step.root % len(members)
        dist.compute(seconds=1e-6 * ((self.rank * step.pause) % 3))
        self.seen[step.kind] += 1
        if step.kind == "reinit":
            self.check()
            dist.destroy_process_group()
            self.begin()
        elif step.kind == "store":
            store = dist.distributed_c10d._get_default_store()
            if self.case.timed:
                store.set_timeout(T)
            key, value = f"campaign/{number}/of rank {members[root]}", f"value {number}".encode()
            if here == root:
                store.set(key, value)
            elif store.get(key) != value:
                raise BrokenPromiseError(f"rank {self.rank}, step {number}: the store has another value")
        elif step.kind == "send":
            if len(takers) == 2:
                self.message(number, step, takers)
        else:
            extra = 1 if fault is not None and number in self.case.broken else 0
            self.seen["mismatch"] += extra
            self.seen["zero elements"] += not step.count
            self.seen["waits later"] += step.later
            if extra:
                self.differs(step, members, root)
            works, result = issue(step.kind, number, members, here, step.count, step.op, root, self.groups[step.group])
            want = expected(step.kind, number, members, here, step.count, step.op, root)
            self.open.append((works, result, want, number))
        if number in self.case.broken or not step.later:
            self.check()

    def message(self, number, step, takers):
        sent = data(number, takers[0], step.count)
        if self.rank == takers[0]:
            dist.send(sent, takers[1])
            return
        got = np.zeros(step.count, np.int64)
        dist.recv(got, takers[0])
        if not np.array_equal(got, sent):
            raise BrokenPromiseError(f"rank {self.rank}, step {number}: received {got[:8]}, expected {sent[:8]}")

    def differs(self, step, members, root):
        """The call of the rank at fault: an element more than those of the others."""
        x, group = np.zeros(step.count * len(members) + 1, np.int64), self.groups[step.group]
        if step.kind == "broadcast":
            dist.broadcast(x, group_src=root, group=group)
        elif step.kind == "reduce":
            dist.reduce(x, group_dst=root, group=group)
        else:
            dist.all_reduce(x, group=group)


def _healed(case, rank, spare):
    """Come to a right result again: all ranks anew, or those that are left in a group of their own."""
    gone = {fault.rank for fault in case.faults if fault.kind in ("dies", "ends")}
    left = [each for each in range(case.n) if each not in gone]
    if not gone:
        dist.destroy_process_group()
        dist.init_process_group(timeout=LONG)
    x = np.full(3, rank + 1)
    dist.all_reduce(x, group=spare if gone else None)
    if x.tolist() != [sum(each + 1 for each in left)] * 3:
        raise BrokenPromiseError(f"rank {rank}: after healing, {x.tolist()} of ranks {left}")


def spawned(case, seen, *, heals=True):
    """Run the program once: what each rank came to, its error if any, and the result of the run or None."""
    told, place = {}, machine(case)[0]
    gone = {fault.rank for fault in case.faults if fault.kind in ("dies", "ends")}
    left = [rank for rank in range(case.n) if rank not in gone]
    heals = heals and bool(case.faults) and not any(step.kind == "reinit" for step in case.steps)

    def program(rank, _world_size):
        course = _Rank(case, rank, seen)
        course.begin()
        spare = dist.new_group(left, timeout=LONG) if heals and gone and left else None
        try:
            told[rank] = "done" if course.play() else "left"
        except BrokenPromiseError:
            raise
        except Exception as error:
            told[rank] = f"{type(error).__name__}: {error}"
            if not heals or rank in gone:
                raise
        if heals and rank not in gone:
            _healed(case, rank, spare)
            seen["healed"] += told[rank] not in ("done", "left")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # works that a rank at fault left open
            result = dist.spawn(
                program, case.n, topology=place, protocol=protocol(case), algorithm=case.algorithm, init=False
            )
    except (BrokenPromiseError, ConfigError, InternalError):
        raise
    except Exception as error:  # noqa: BLE001
        return told, f"{type(error).__name__}: {error}", None
    return told, "", result


def named(text):
    """The kind of documented error, and the ranks that it names; None for an error that is not documented."""
    for kind, pattern in DOCUMENTED.items():
        found = re.search(pattern, text, re.DOTALL)
        if found:
            ranks = found[1] if found.groups() else " ".join(re.findall(EACH[kind], text))
            return kind, {int(each) for each in re.findall(r"\d+", ranks)}
    return None


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
                f"rank {rank}, which by the model ends between steps {first[rank]} and {last[rank]} of {end}: {said}"
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
        plan = simcoll.bind(made, 0 if kind == "barrier" else 1000, "uint8", "max", protocol=costs, unproved=True)
        whole, result = outcome(plan, place, engine="simpy", quotient=False)
        for how in ({"engine": "fast", "quotient": False}, {"quotient": True}):
            got, played = outcome(plan, place, **how)
            if got != whole:
                raise BrokenPromiseError(f"{kind}: {how} gives {got[:4]}, SimPy {whole[:4]}")
            seen["folded"] += played is not None and played.classes is not None
        seen["engines compared"] += 1
        if case.events is not None and result is not None:
            _disturbed(case, kind, plan, place, result.done_fs, seen)


def _disturbed(case, kind, plan, place, times, seen):
    """Play a collective while links fail and ranks are slow or stop; what heals must come to its end."""
    rng = np.random.default_rng([case.events, 7])
    events = random_events(rng, plan.nranks, place, times)
    policy = random_policy(rng, int(times.max(initial=1)))
    told, result = with_events(plan, place, events, policy, engine="simpy")
    again, _ = with_events(plan, place, events, policy, engine="fast")
    words = f"{kind} under {'; '.join(map(str, events))}; {policy}"
    if told != again:
        raise BrokenPromiseError(f"{words}: fast gives {again}, SimPy {told}")
    seen["event runs compared"] += 1
    if result is None:
        return
    seen.update(type(event).__name__ for event in events)
    seen[f"policy {policy.kind}"] += 1
    heals = all(
        not isinstance(event, Stop) and (event.for_fs is not None or getattr(event, "share", 1)) for event in events
    )
    if result.cut is not None:
        seen[f"cut: {result.cut.kind}"] += 1
        seen["gave up after retries"] += policy.retries > 0 and result.cut.kind == "aborted"
        if heals and policy.kind != "abort" and not policy.timeout_fs:
            raise BrokenPromiseError(f"{words}: all is healed, and yet {result.cut}")
    else:
        seen["came to its end under events"] += 1
        seen["retried and went on"] += policy.retries > 0 and result.time_fs > int(times.max(initial=0))


def play(case, seen=None):
    """Hold one case to all promises; returns what was seen, or raises a :class:`BrokenPromiseError`."""
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
            if repeated is None or (repeated.trace_hash, repeated.finish_fs) != (result.trace_hash, result.finish_fs):
                raise BrokenPromiseError("a second run has another trace")
            if any(record.end_fs < record.begin_fs for record in result.records):
                raise BrokenPromiseError("an operation ended before it began")
            ends = Counter(record.end_fs for record in result.records)
            seen["tie"] += any(many > 1 for many in ends.values())
        seen["nothing failed"] += all(said == "done" for said in told.values())
        engines(case, seen)
        if case.faults:
            after, raised, _ = spawned(replace(case, faults=()), Counter())
            if raised or set(after.values()) != {"done"}:
                raise BrokenPromiseError(f"the program without its faults, afterwards: {after}; {raised}")
    return seen


def broken(case):
    """Whether a case breaks a promise, and which; any other exception that comes out is one, too."""
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
        f"seed {seed}: {first}\nshrunk to {len(small.steps)} steps on {small.n} ranks: {broken(small)}\n"
        f"replay: python -m tests.laws.campaign --seed {seed}\nreplay: python -m tests.laws.campaign --case '{small.text()}'"
    )
