"""The rank programs of the campaign: how a rank plays a case, what it may be told, and how it comes
to a right result again.
"""

from __future__ import annotations

import re
import signal
import warnings
from contextlib import contextmanager
from datetime import timedelta

import numpy as np

import simcoll.distributed as dist
from simcoll.emulator.events import Stop
from simcoll.errors import ConfigError, InternalError
from tests.support.campaign_cases import TIMEOUT_S, machine, protocol
from tests.support.collective_model import data, expected, issue

PATIENCE_S = 120
LATE_S = 100 * TIMEOUT_S
T = timedelta(seconds=TIMEOUT_S)
LONG = timedelta(days=1)
PLANNED = "planned by the campaign"

# What a rank may be told, each with the ranks that it names.
DOCUMENTED = {
    "peer raised": r"Connection closed by peer: rank (\d+) ended with ",
    "peer stopped": r"Connection closed by peer: rank (\d+) stopped at ",
    "message given up": r"the message of (rank \d+ to rank \d+) was given up at .*: down: ",
    "link is down": r"Timed out waiting \d+ms for .* waits for data;.* a message of (rank \d+ to "
    r"rank \d+) waits",
    "data of a rank that stopped": r"Timed out waiting \d+ms for .* waits for data; rank (\d+) "
    r"stopped at ",
    "data of a rank that called last": r"Timed out waiting \d+ms for .* waits for data; rank ([\d, "
    r"and]+) called last, ",
    "operation timed out": r"Timed out waiting \d+ms for .* waits for ranks? ([\d, and]+)",
    "message timed out": r"Timed out waiting \d+ms for .*(?:recv from|send to) rank (\d+)",
    "meeting timed out": r"Timed out waiting \d+ms for init_process_group waits for ranks? ([\d, "
    r"and]+)",
    "store timed out": r"wait timeout after \d+ms, keys: /campaign/\d+/of rank (\d+)",
    "told of a mismatch": r"Detected mismatch between collectives on ranks: .*",
    "hang": r"Hang at [^:]+: no event is left, ",
}


EACH = {
    "told of a mismatch": r"rank (\d+):",
    "hang": r"(?:send to|recv from|waits for) ranks? [\d, and]+|rank \d+(?= stopped at)",
}
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

    def __init__(self, case, rank, seen, backend):
        self.case, self.rank, self.seen, self.backend = case, rank, seen, backend
        self.open, self.last_s = [], 0.0

    def clock(self):
        now = dist.emulated_time()
        if now < self.last_s:
            raise BrokenPromiseError(
                f"rank {self.rank}: the clock went from {self.last_s} to {now}"
            )
        self.last_s = now

    def begin(self):
        dist.init_process_group(self.backend, timeout=T if self.case.timed else None)
        self.groups = [None, *(dist.new_group(members) for members in self.case.groups)]
        return self

    def check(self):
        while self.open:
            works, result, want, number = self.open.pop()
            for work in works:
                work.wait()
            self.clock()
            if not np.array_equal(result, want):
                raise BrokenPromiseError(
                    f"rank {self.rank}, step {number}: got {result[:8]}, expected {want[:8]}"
                )

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
                raise BrokenPromiseError(
                    f"rank {self.rank}, step {number}: the store has another value"
                )
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
            works, result = issue(
                step.kind, number, members, here, step.count, step.op, root, self.groups[step.group]
            )
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
            raise BrokenPromiseError(
                f"rank {self.rank}, step {number}: received {got[:8]}, expected {sent[:8]}"
            )

    def differs(self, step, members, root):
        """The call of the rank at fault: an element more than those of the others."""
        x, group = np.zeros(step.count * len(members) + 1, np.int64), self.groups[step.group]
        if step.kind == "broadcast":
            dist.broadcast(x, group_src=root, group=group)
        elif step.kind == "reduce":
            dist.reduce(x, group_dst=root, group=group)
        else:
            dist.all_reduce(x, group=group)


def _healed(rank, left, spare, calm_s):
    """Come to a right result again when all events are over: all ranks anew, or those that are left
    in a group of their own.
    """
    dist.compute(max(0.0, calm_s - dist.emulated_time()))
    if spare is None:
        dist.destroy_process_group()
        dist.init_process_group(timeout=LONG)
    x = np.full(3, rank + 1)
    dist.all_reduce(x, group=spare)
    if x.tolist() != [sum(each + 1 for each in left)] * 3:
        raise BrokenPromiseError(f"rank {rank}: after healing, {x.tolist()} of ranks {left}")


def spawned(case, seen, *, heals=True, backend=None, events=(), policy="stall"):
    """Run the program once: what each rank came to, its error if any, and the result of the run or
    None.
    """
    told, place = {}, machine(case)[0]
    gone = {fault.rank for fault in case.faults if fault.kind in ("dies", "ends")}
    gone |= {event.rank for event in events if isinstance(event, Stop)}
    left = [rank for rank in range(case.n) if rank not in gone]
    calm_s = 1e-15 * max(
        (event.at_fs + (getattr(event, "for_fs", 0) or 0) for event in events), default=0
    )
    heals = (
        heals
        and bool(case.faults or events)
        and not any(step.kind == "reinit" for step in case.steps)
    )

    def program(rank, _world_size):
        course = _Rank(case, rank, seen, backend)
        spare = began = None
        try:
            began = course.begin()
            spare = dist.new_group(left, timeout=LONG) if heals and gone and left else None
            told[rank] = "done" if course.play() else "left"
        except BrokenPromiseError:
            raise
        except Exception as error:
            told[rank] = f"{type(error).__name__}: {error}"
            if not heals or rank in gone or began is None or (gone and spare is None):
                raise
        if heals and rank not in gone:
            _healed(rank, left, spare, calm_s)
            seen["healed"] += told[rank] not in ("done", "left")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # works that a rank at fault left open
            result = dist.spawn(
                program,
                case.n,
                topology=place,
                protocol=protocol(case),
                algorithm=case.algorithm,
                init=False,
                events=events,
                policy=policy,
            )
    except (BrokenPromiseError, ConfigError, InternalError):
        raise
    except Exception as error:  # noqa: BLE001
        return told, f"{type(error).__name__}: {error}", None
    return told, "", result


def named(text):
    """The kind of documented error, and the ranks that it names; None for an error that is not
    documented.
    """
    for kind, pattern in DOCUMENTED.items():
        found = re.search(pattern, text, re.DOTALL)
        if found:
            ranks = found[1] if found.groups() else " ".join(re.findall(EACH[kind], text))
            return kind, {int(each) for each in re.findall(r"\d+", ranks)}
    return None
