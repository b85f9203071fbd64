"""What a run of a schedule leaves for the next one: the one memory of the emulator.

The first run of a schedule derives steps, routes, classes and waits. All of these hold for every
protocol and, with equal chunks, for every size, so they are stored beside the schedule, and the
next run computes only costs. :class:`Remembered` has, by :class:`RunKey`, the classes
(:class:`simcoll.emulator.folding.unpriced.Folding`) and the steps loaded into the compiled loops
(:class:`simcoll.emulator.folding.loaded_run.LoadedRun`).

Invariant: memory never decides what a user reads. A request is played in the same way, and has the
same result, whatever was played before; memory decides how long that takes. So a remembered answer
is that which the request would find alone: a key has all that classes depend on, a limit (of
classes, of rounds) is checked against a remembered answer too, and a result does not name classes
with which a run is only played faster.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from simcoll.arrays import Array
from simcoll.core.facts import FactStore
from simcoll.core.plan import Plan
from simcoll.core.schedule import Schedule
from simcoll.emulator.engine_choice import MOST_HASHED, MOST_SLOTS
from simcoll.emulator.fast.compiled import COMPILED
from simcoll.emulator.request import Request
from simcoll.emulator.steps.run_links import check_switches
from simcoll.emulator.steps.step_columns import EVEN, cache_key, drop_groups, forget_unequal
from simcoll.errors import InternalError
from simcoll.topology import Topology

if TYPE_CHECKING:
    from simcoll.emulator.folding.loaded_run import LoadedRun
    from simcoll.emulator.folding.unpriced import Folding

__all__ = [
    "FEWEST_FOLDED",
    "LEAST_A_STEP",
    "TOO_MANY_CLASSES",
    "Remembered",
    "RunKey",
    "classes_first",
    "classes_of",
    "classes_with_caps",
    "count_run",
    "folded_rows",
    "forget_sizes",
    "has_folded_rows",
    "loadable",
    "memory_of",
    "run_of_all",
    "run_of_classes",
    "runs_of",
]

EVERY, CLASSES, CLASSES_OF_ALL_CAPS = "every message", "classes", "classes for all caps"
"""Kinds of loaded runs. Classes for all caps were found as if the protocol capped channels, so that
protocols with caps and without share them.
"""
TOO_MANY_CLASSES = f"more than {MOST_SLOTS} classes"
MOST_KEYS = 16
"""Runs of one schedule that are remembered, the latest: a table needs up to six at a time (three
kinds of caps, equal chunks and the current others), and a user who tries a thousand machines on one
schedule needs none of them again.
"""
FEWEST_FOLDED = 1 << 12
"""Up to this number of messages, classes are not worth finding: at 4,096 to 5,120, a loaded run of
all messages takes 0.8 to 1.0 ms, one of classes 0.2 to 0.3 ms, and finding them 2 to 11 ms, which
ten runs must win back.
"""
LEAST_A_STEP = 64
"""Least average number of messages a step for the same: each step has its own cost, folded or not
(ring of 48 ranks, 48 a step: 0.8 ms for all messages, 0.3 ms for a sixth of them).
"""
MANY_UNEVEN = 1 << 15
"""Up to this number, messages of unequal chunks are played one by one, because their classes hold
for one size only. The same holds for switch operations in a run that may be the only one; beyond,
the links of all operations cost more than finding classes (switch of 128 ranks, 32,640 messages:
103 ms and 13 ms; nvls_tree of 32 ranks, 33,792: 18 and 18; of 128 ranks, 138,240: 110 and 68).
"""


MOST_IN_ARRAYS = 8
"""Runs of a schedule by array operations, none of which has needed numba, before it is loaded for
the next one: that takes 200 ms, and saves 1 to 4 ms a run (recursive doubling of 64 to 1,024
ranks).
"""


class RunKey(NamedTuple):
    """What classes and loaded steps of a schedule hold for.

    Attributes
    ----------
    sizes
        The sizes, unless all chunks are equal
        (:func:`simcoll.emulator.steps.step_columns.cache_key`).
    topology, ranks
        The machine, and the endpoints of all ranks.
    caps
        Whether the protocol caps the rates of channels, and of ranks.
    fifo_depth
        That of the protocol.
    shares
        The shares of link kinds that the protocol leaves to data.
    """

    sizes: tuple[int, int]
    topology: Topology
    ranks: bytes
    caps: tuple[bool, bool]
    fifo_depth: int
    shares: tuple[tuple[str, object], ...]


def key_of(plan: Plan, topology: Topology) -> RunKey | None:
    """The key of a run; ``None`` if block sizes differ, which nothing is remembered for."""
    sizes, protocol = cache_key(plan)[0], plan.protocol
    if sizes is None:
        return None
    shares = (dict(topology.efficiency) if protocol.use_efficiency else {}) | dict(
        protocol.link_shares
    )
    caps = bool(protocol.channel_rate_uBps), bool(protocol.rank_rate_uBps)
    return RunKey(
        sizes,
        topology,
        plan.ranks.tobytes(),
        caps,
        protocol.fifo_depth,
        tuple(sorted(shares.items())),
    )


@dataclass(slots=True, eq=False)
class Remembered:
    """What the runs of one schedule with one :class:`RunKey` leave for the next.

    Attributes
    ----------
    runs
        Number of runs so far.
    folding
        The classes, or why there are none.
    loaded
        Loaded steps that no thread plays now: of all messages, or of one of each class.
    lent
        Number of threads that play loaded steps now, by kind.
    in_lockstep
        Whether the run is one for lock-step, by the caps of channels and of ranks.
    """

    runs: int = 0
    folding: Folding | str | None = None
    loaded: dict[str, LoadedRun] = field(default_factory=dict)
    lent: dict[str, int] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    in_lockstep: dict[tuple[int, int], bool] = field(default_factory=dict)


class Runs:
    """The memory of one schedule."""

    def __init__(self, _schedule: Schedule) -> None:
        self.by_key: dict[RunKey, Remembered] = {}
        self.lock = Lock()

    def at(self, key: RunKey) -> Remembered:
        """What is remembered for a key; other uneven sizes, and the oldest of many keys, are
        forgotten.
        """
        with self.lock:
            if key not in self.by_key:
                some = {
                    older: run
                    for older, run in self.by_key.items()
                    if older.sizes in {EVEN, key.sizes}
                }
                self.by_key = dict(list(some.items())[1 - MOST_KEYS :])
                self.by_key[key] = Remembered()
            return self.by_key[key]


runs_of: FactStore[Schedule, Runs] = FactStore(Runs)
"""The memory of a schedule."""


def recall(plan: Plan, topology: Topology) -> Remembered:
    """What earlier runs left for this one; nothing, and nothing for a later one, if block sizes
    differ.
    """
    key = key_of(plan, topology)
    return Remembered() if key is None else runs_of(plan.schedule).at(key)


memory_of: FactStore[Request, Remembered] = FactStore(
    lambda request: recall(request.plan, request.topology)
)
"""What earlier runs left for a request."""


def forget_sizes(schedule: Schedule) -> None:
    """Forget what holds only for sizes with unequal chunks."""
    runs = runs_of(schedule)
    with runs.lock:
        runs.by_key = {key: run for key, run in runs.by_key.items() if key.sizes == EVEN}
    forget_unequal(schedule)


def loadable(request: Request) -> bool:
    """Whether a run could be loaded: timing only, compiled, without state beyond lanes and
    links.
    """
    watched = request.storage or request.observer or request.timeline or request.keep
    if watched or request.quotient is not None or not COMPILED:
        return False
    protocol = request.plan.protocol
    return not protocol.jitter_fs and not protocol.fifo_depth and request.sizes is not None


def is_one_of_many(request: Request) -> bool:
    """Whether the request says that what this run derives serves another: with equal chunks any,
    else one of the same sizes.
    """
    return request.protocols - (not request.even) > 0


def classes_first(request: Request) -> bool:
    """Whether classes are worth finding because the run repeats, or has many switch operations,
    whose links are many.
    """
    if not loadable(request) or not is_many(request):
        return False
    counts = request.summary
    return is_one_of_many(request) or (counts.switched and counts.messages > MANY_UNEVEN)


def is_many(request: Request) -> bool:
    """Whether playing known classes is faster than playing every message."""
    counts = request.summary
    return counts.messages > max(
        FEWEST_FOLDED if request.even else MANY_UNEVEN, LEAST_A_STEP * counts.steps
    )


def hash_limit(request: Request) -> int:
    """Up to how many messages a quotient has a trace hash by default.

    Twice as many if messages are tied to each other: such runs had one before they could be folded.
    """
    return MOST_HASHED << (request.summary.switched or len(request.plan.wait_pairs[0]) > 0)


def classes_of(
    request: Request,
    plan: Plan,
    *,
    worth_it: bool,
    expanded: bool = False,
    hashed: bool = False,
    patience: int | None = None,
    waits: tuple[Array, Array] | None = None,
) -> Folding | str:
    """The classes of a run, from memory if they are there; or the reason why there are none.

    The answer does not depend on the memory. ``plan``: that of the request, maybe with further
    caps. ``expanded``: the times of all messages will be needed, ``hashed``: their trace hash.
    Other parameters as in :func:`simcoll.emulator.folding.quotient.fold`.
    """
    # Most runs have no classes, and do without these modules.
    from simcoll.emulator.folding.partition import TOO_LITTLE, out_of_patience
    from simcoll.emulator.folding.quotient import most_lane_classes
    from simcoll.emulator.folding.unpriced import Folding, find_classes

    counts = request.summary
    entry = recall(plan, request.topology)
    remembered = entry.folding
    if isinstance(remembered, str) and worth_it:
        return remembered
    if isinstance(remembered, Folding) and remembered.has(expanded=expanded, hashed=hashed):
        quotient = remembered.quotient
        if worth_it and len(quotient.lane_steps) > most_lane_classes(counts.lane_steps):
            return TOO_LITTLE
        return (
            remembered
            if patience is None or quotient.rounds <= patience
            else out_of_patience(patience)
        )
    classes = find_classes(
        plan,
        request.topology,
        counts,
        expanded=expanded or hashed,
        worth_it=worth_it,
        patience=patience,
        waits=waits,
    )
    if isinstance(classes, Folding) or (patience is None and worth_it):
        entry.folding = classes
    return classes


def classes_with_caps(request: Request) -> Folding | str:
    """The classes of a run as if its protocol capped channels, so that protocols with caps and
    without share them; or why there are none.
    """
    plan = request.plan
    if request.summary.switched:
        check_switches(plan, request.topology)
    hashed = request.summary.messages <= hash_limit(request)
    return classes_of(
        request, _with_caps(plan), worth_it=True, hashed=hashed, waits=plan.wait_pairs
    )


def _with_caps(plan: Plan) -> Plan:
    """The plan under a protocol that caps channels."""
    if plan.protocol.channel_rate_uBps:
        return plan
    return replace(plan, protocol=replace(plan.protocol, channel_rate_uBps=1))


def folded_rows(request: Request) -> Folding | str:
    """The classes of :func:`classes_with_caps`, if they are few enough to be loaded; or why there
    are none.
    """
    classes = classes_with_caps(request)
    if isinstance(classes, str):
        return classes
    if classes.quotient.messages > MOST_SLOTS:
        return TOO_MANY_CLASSES
    from simcoll.emulator.folding.loaded_run import slim

    hashed = request.summary.messages <= hash_limit(request)
    classes = slim(classes, hashed=hashed)
    recall(_with_caps(request.plan), request.topology).folding = classes
    return classes


def has_folded_rows(request: Request) -> bool:
    """Whether the classes of :func:`folded_rows` are loaded, so that they need not be found."""
    entry = memory_of(request)
    return CLASSES_OF_ALL_CAPS in entry.loaded or CLASSES_OF_ALL_CAPS in entry.lent


def run_of_classes(request: Request, classes: Folding | None) -> AbstractContextManager[LoadedRun]:
    """The loaded run of some classes of this very run; ``None``: of :func:`folded_rows`."""

    def load() -> LoadedRun:
        from simcoll.emulator.folding.loaded_run import classes_run, slim

        found = folded_rows(request) if classes is None else slim(classes, hashed=hashed)
        if isinstance(found, str):
            raise InternalError(f"{request.plan} had classes, and now has none: {found}")
        drop_groups(request.plan.schedule)  # further protocols need only the classes
        return classes_run(request, found, all_caps=classes is None)

    hashed = request.summary.messages <= hash_limit(request)
    return _lent(request, CLASSES_OF_ALL_CAPS if classes is None else CLASSES, load)


def run_of_all(request: Request) -> AbstractContextManager[LoadedRun | None]:
    """The loaded run of all messages, or of classes that yield the trace hash of all.

    ``None`` if this run may be the only one, is too large, or is one of few that array operations
    play, and while another thread plays it.
    """
    if not count_run(request):
        return nullcontext(None)
    entry, counts = memory_of(request), request.summary
    few = not request.protocols and entry.runs <= MOST_IN_ARRAYS
    if entry.lent or (few and "numba" not in sys.modules):
        return nullcontext(None)
    from simcoll.emulator.folding.loaded_run import fits, whole_run

    loaded = entry.loaded.get(CLASSES_OF_ALL_CAPS)
    if loaded is not None and loaded.ends is not None:
        return run_of_classes(request, None)
    if EVERY not in entry.loaded:
        if (
            is_many(request)
            and counts.messages <= hash_limit(request)
            and not isinstance(folded_rows(request), str)
        ):
            return run_of_classes(request, None)
        if not fits(request):
            return nullcontext(None)
    return _lent(request, EVERY, lambda: whole_run(request))


@contextmanager
def _lent(request: Request, kind: str, load: Callable[[], LoadedRun]) -> Iterator[LoadedRun]:
    """A loaded run of a kind, from memory if no other thread plays it, and back there unless the
    run fails.
    """
    entry = memory_of(request)
    with entry.lock:  # of several threads one gets it, and the others load their own
        run = entry.loaded.pop(kind, None)
        entry.lent[kind] = entry.lent.get(kind, 0) + 1
    ended = False
    try:
        run = load() if run is None else run
        yield run
        ended = True
    finally:
        with entry.lock:
            entry.lent[kind] -= 1
            if not entry.lent[kind]:
                del entry.lent[kind]
            if run is not None and ended:
                entry.loaded[kind] = run


def count_run(request: Request) -> bool:
    """Count a run; return whether what it derives serves another one, since one like it came before
    or is going to come.

    False for runs that cannot be loaded.
    """
    if not loadable(request):
        return False
    entry = memory_of(request)
    entry.runs += 1
    return entry.runs - 1 + request.protocols - (not request.even) > 0
