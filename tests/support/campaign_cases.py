"""Random rank programs with random faults on random machines, each a value made from one seed, and
the fate of each rank by a model.

The model knows only which steps need which ranks: a rank that is missing from a step takes those
down that wait for it there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

import numpy as np

from simcoll.core.protocol import IDEAL
from simcoll.errors import ConfigError
from simcoll.topology import boxes, clos, crossbar, fat_tree, torus
from tests.support.agreement_cases import random_protocol
from tests.support.collective_model import KINDS as COLLECTIVES
from tests.support.collective_model import OPS

KINDS = (*COLLECTIVES, "send", "store", "reinit")
FAULTS = ("dies", "ends", "late", "mismatch", "slow")
MACHINES = ("crossbar", "boxes", "fat_tree", "torus", "clos")
ALGORITHMS = (None, "ring", "recursive_doubling", "tree", "direct", "pairwise")
TIMEOUT_S = 1.0
"""Of operations that meet a fault; far more than all steps together take."""


@dataclass(frozen=True)
class Step:
    """One step: what, on which group (0: all ranks), and after which pause of each member;
    ``later`` leaves the wait to a later step.
    """

    kind: str
    group: int = 0
    count: int = 1
    op: str = "SUM"
    root: int = 0
    later: bool = False
    pause: int = 0


@dataclass(frozen=True)
class Fault:
    """What happens to a rank as it comes to a step."""

    kind: str
    rank: int
    step: int


@dataclass(frozen=True)
class Case:
    """A program, its faults, and where it runs.

    ``lost`` are links by number, with the share that is left; ``costs`` is a seed, or none;
    ``timed`` gives operations a timeout that a fault exceeds; ``events`` is the seed of those that
    happen while it runs, and while the engines play its collectives, or none.
    """

    n: int
    machine: str = "crossbar"
    lost: tuple[tuple[int, str], ...] = ()
    costs: int | None = None
    algorithm: str | None = None
    timed: bool = True
    events: int | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    steps: tuple[Step, ...] = ()
    faults: tuple[Fault, ...] = ()

    def members(self, step):
        """The ranks of a step."""
        everyone = tuple(range(self.n))
        return everyone if step.group == 0 or step.kind == "reinit" else self.groups[step.group - 1]

    def takers(self, step):
        """The ranks that take part in a step: of a message only its two ends."""
        members = self.members(step)
        if step.kind != "send":
            return members
        return tuple(
            dict.fromkeys(
                (members[step.root % len(members)], members[(step.root + 1) % len(members)])
            )
        )

    @property
    def broken(self):
        """The steps in which a rank's call differs from those of others, and this rank: of kinds
        and groups in which this can be told.
        """
        found = {}
        for fault in self.faults:
            step, takers = self.steps[fault.step], self.takers(self.steps[fault.step])
            told = step.kind in ("all_reduce", "broadcast", "reduce") and len(takers) > 1
            if fault.kind == "mismatch" and told and fault.rank in takers:
                found[fault.step] = fault.rank
        return found

    def text(self):
        """As one line that :func:`from_text` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))


def from_text(text):
    """The case of a line."""
    found = json.loads(text)
    return Case(
        **found
        | {
            "lost": tuple((link, share) for link, share in found["lost"]),
            "groups": tuple(map(tuple, found["groups"])),
            "steps": tuple(Step(**each) for each in found["steps"]),
            "faults": tuple(Fault(**each) for each in found["faults"]),
        }
    )


def drawn(seed):
    """The case of a seed."""
    rng = np.random.default_rng([seed, 0xCA3])
    n = int(rng.integers(2, 7))
    groups = tuple(
        tuple(sorted(rng.permutation(n)[: int(rng.integers(1, n + 1))].tolist()))
        for _ in range(int(rng.integers(0, 3)))
    )

    def step():
        kind = KINDS[int(rng.integers(0, len(KINDS)))]
        later = bool(rng.random() < 0.4) and kind not in ("send", "store", "reinit")
        group, count = int(rng.integers(0, len(groups) + 1)), int(rng.choice([0, 1, 2, 5, 9, 1000]))
        op = sorted(OPS)[int(rng.integers(0, len(OPS)))]
        return Step(kind, group, count, op, int(rng.integers(0, n)), later, int(rng.integers(0, 4)))

    steps = tuple(step() for _ in range(int(rng.integers(1, 9))))
    case = Case(
        n,
        MACHINES[int(rng.integers(0, len(MACHINES)))],
        costs=int(rng.integers(0, 2**32)) if rng.random() < 0.5 else None,
        algorithm=ALGORITHMS[int(rng.integers(0, len(ALGORITHMS)))],
        timed=bool(rng.random() < 0.7),
        events=seed if seed % 2 else None,
        groups=groups,
        steps=steps,
    )
    links = whole_machine(case).nlinks
    lost = tuple(
        (int(rng.integers(0, links)), str(rng.choice(["0", "1/3", "9/10"])))
        for _ in range(int(rng.integers(0, 3)))
    )
    return replace(case, lost=lost, faults=_faults(rng, n, len(steps)))


def _faults(rng, n, steps):
    def fault(kind):
        return Fault(kind, int(rng.integers(0, n)), int(rng.integers(0, steps)))

    kind = str(
        rng.choice(
            ["none", "slow", "late", "mismatch", "dies", "ends", "two"],
            p=[0.2, 0.1, 0.15, 0.15, 0.15, 0.1, 0.15],
        )
    )
    if kind == "none":
        return ()
    if kind == "two":
        pair = tuple(fault(str(each)) for each in rng.choice(["dies", "ends", "slow"], 2))
        return pair if pair[0].rank != pair[1].rank else pair[:1]
    return (fault(kind),)


def whole_machine(case):
    """The machine before it lost links."""
    n = case.n
    return {
        "crossbar": lambda: crossbar(n, "50 GB/s", "1 us"),
        "boxes": lambda: boxes(
            -(-n // 2), 2, "400 GB/s", "1 us", nics=2, nic_bandwidth="50 GB/s", nic_latency="3 us"
        ),
        "fat_tree": lambda: fat_tree(-(-n // 3), 3, "25 GB/s", "2 us", oversubscription=2),
        "torus": lambda: torus([2, -(-n // 2)], "25 GB/s", "500 ns"),
        "clos": lambda: clos(-(-n // 2), 2, 2, "50 GB/s", "1 us", seed=n),
    }[case.machine]()


def machine(case):
    """The machine of a case, and how many of its losses cut ranks off, which it then has not
    suffered.
    """
    found, refused = whole_machine(case), 0
    for link, share in case.lost:
        try:
            found = found.degrade(min(link, found.nlinks - 1), share)
        except ConfigError as error:
            if "disconnected" not in str(error):
                raise
            refused += 1
    return found, refused


def protocol(case):
    """The costs of messages of a case."""
    return IDEAL if case.costs is None else random_protocol(np.random.default_rng(case.costs))


def fates(case, *, patient):
    """For each rank the step at which it ends, by its own fault or because it waits there for one
    that has; ``len(steps)`` if it does not.

    A ``patient`` rank waits only for ranks whose data it must have, which gives the latest end;
    else for all that take part in a step, which gives the earliest. A rank issues a step before it
    waits. It waits in every step that is not ``later``, for that one and all that it has left open.
    """
    end = len(case.steps)
    own = dict.fromkeys(range(case.n), end)
    for fault in case.faults:
        if fault.kind in ("dies", "ends") or (fault.kind == "late" and case.timed):
            own[fault.rank] = min(own[fault.rank], fault.step)
    fate, before = dict(own), None
    while fate != before:
        before = dict(fate)
        for rank in range(case.n):
            fate[rank] = min(own[rank], _waits_in_vain(case, rank, own, before, patient=patient))
    return fate


def _waits_in_vain(case, rank, own, fate, *, patient):
    """The first step at which a rank waits for something that does not happen."""
    unmet, at = False, len(case.steps)
    for number, step in enumerate(case.steps):
        takers = case.takers(step)
        if rank not in takers:
            continue
        if unmet and step.kind == "reinit":
            return number - 0.5  # it waits for what is open before it begins anew
        waits_for = needed(step, takers, rank) if patient else takers
        odd = case.broken.get(number)
        # One whose own fault comes at a step does not issue it; one that waits in vain there does.
        # One whose call differs may be through before the others come, if it needs nothing of them.
        alone = all(other == rank for other in waits_for)
        unmet |= (
            (odd == rank and not alone)
            or (odd != rank and odd in waits_for)
            or any(number > fate[other] or number >= own[other] for other in waits_for)
        )
        if unmet and (odd is not None or not step.later):
            return number
        at = number
    return at if unmet else len(case.steps)


def needed(step, takers, rank):
    """The ranks whose part in a step a rank cannot do without, by what the step means."""
    root = takers[step.root % len(takers)]
    if not step.count and step.kind not in ("store", "barrier", "reinit", "send"):
        return ()  # nothing moves
    match step.kind:
        case "send":
            return takers[:1]
        case "store" | "broadcast" | "scatter":
            return (root,)
        case "gather" | "reduce":
            return takers if rank == root else ()
        case "ring":
            return (takers[takers.index(rank) - 1],)
    return takers


def shrunk(case, fails):
    """A smaller case that still fails: without steps, faults, lost links, groups, costs and ranks
    that do not matter.
    """
    smaller = True
    while smaller:
        smaller = False
        for one in _smaller(case):
            if fails(one):
                case, smaller = one, True
                break
    return case


def _smaller(case):
    for number in range(len(case.steps)):
        faults = tuple(
            replace(each, step=each.step - (each.step > number))
            for each in case.faults
            if each.step != number or number + 1 < len(case.steps)
        )
        if len(case.steps) > 1:
            yield replace(case, steps=case.steps[:number] + case.steps[number + 1 :], faults=faults)
    for name in ("faults", "lost"):
        given = getattr(case, name)
        for number in range(len(given)):
            yield replace(case, **{name: given[:number] + given[number + 1 :]})
    for number in range(len(case.groups), 0, -1):
        if all(step.group < number for step in case.steps) and number == len(case.groups):
            yield replace(case, groups=case.groups[:-1])
    last = case.n - 1
    if last > 1 and all(fault.rank < last for fault in case.faults):
        groups = tuple(tuple(rank for rank in group if rank < last) for group in case.groups)
        if all(groups):
            yield replace(case, n=last, groups=groups, lost=())
    for change in (
        {"costs": None},
        {"algorithm": None},
        {"machine": "crossbar"},
        {"timed": True},
        {"events": None},
    ):
        if any(getattr(case, key) != value for key, value in change.items()):
            yield replace(case, **change)
    for number, step in enumerate(case.steps):
        for change in ({"count": 1}, {"pause": 0}, {"later": False}, {"root": 0}, {"group": 0}):
            if any(getattr(step, key) != value for key, value in change.items()):
                yield replace(
                    case,
                    steps=(
                        *case.steps[:number],
                        replace(step, **change),
                        *case.steps[number + 1 :],
                    ),
                )
