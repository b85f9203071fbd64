"""One call from a plan and a topology to a checked prediction."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from simcoll.core.plan import Plan
from simcoll.emulator.dataplane import Storage
from simcoll.emulator.engine import Player
from simcoll.emulator.fabric import Calendar, Fabric
from simcoll.emulator.floor import latency_floor_fs
from simcoll.emulator.model import effective_capacities
from simcoll.emulator.paths import Played, choose, play_fast, play_quotient
from simcoll.errors import ConfigError, InternalError, expect, nearest
from simcoll.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from simcoll.bounds import Bottleneck, Bound
    from simcoll.emulator.engine import Observer

    Array = NDArray[Any]

__all__ = ["Result", "bus_factor", "emulate"]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a run showed.

    Attributes
    ----------
    time_fs
        When the last transfer was done; every rank starts at 0.
    total_bytes
        Size of the collective as nccl-tests counts it: the larger of a rank's input and output.
    messages, bytes_moved
        Transfers of the plan (those inside a rank too) and their payload.
    trace_hash
        Hash of everything that happened (:mod:`simcoll.emulator.digest`). Empty for a quotient of more than a million messages
        whose times were not asked for.
    engine
        Which engine ran: ``simpy`` or ``fast``.
    path
        Why it did, or what stood in for all messages.
    classes
        Messages of the quotient that were played; ``None`` when all were.
    wall_s
        Seconds that the run took on this machine; in no hash.
    wrong
        Output elements that differ from the definition of the collective; ``None`` when that was not checked.
    outputs
        Output of every rank (``None`` where the collective gives nothing), when data was moved.
    bound
        Lower bound of the time for any schedule on this topology; ``None`` when not asked for.
    done_fs
        When each transfer was done, in schedule order, when asked for.
    proof
        Kind of the schedule's proof, or ``"unproved"``.
    """

    kind: str
    nranks: int
    schedule: str
    protocol: str
    topology: str
    proof: str
    engine: str
    time_fs: int
    total_bytes: int
    messages: int
    bytes_moved: int
    trace_hash: str
    wrong: int | None = None
    outputs: tuple[Array | None, ...] | None = None
    bound: Bound | None = None
    done_fs: NDArray[np.int64] | None = None
    path: str = ""
    classes: int | None = None
    wall_s: float = 0.0

    @property
    def time(self) -> float:
        """Seconds."""
        return self.time_fs / 1e15

    @property
    def time_us(self) -> float:
        """Microseconds."""
        return self.time_fs / 1e9

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth: size over time, in bytes per second; 0 for no bytes, infinite for bytes in no time."""
        if not self.total_bytes:
            return 0.0
        return self.total_bytes * 1e15 / self.time_fs if self.time_fs else float("inf")

    @property
    def busbw(self) -> float:
        """Bus bandwidth, in bytes per second: algbw times :func:`bus_factor`."""
        factor = bus_factor(self.kind, self.nranks)
        return self.algbw * factor if factor else 0.0

    @property
    def headroom(self) -> float | None:
        """Time over lower bound: 1 is optimal. ``None`` without a bound above 0."""
        return self.time_fs / self.bound.time_fs if self.bound is not None and self.bound.time_fs else None

    @property
    def bottleneck(self) -> str:
        """What the lower bound is made of; empty without a bound."""
        return self.bound.bottleneck if self.bound is not None else ""


def bus_factor(kind: str, nranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it (``doc/PERFORMANCE.md`` there).

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind == "all_reduce":
        return 2 * (nranks - 1) / nranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (nranks - 1) / nranks
    return 1.0


def emulate(
    plan: Plan,
    topology: Topology,
    *,
    data: str | Sequence[Array | None] = "exact",
    seed: int = 0,
    observer: Observer | None = None,
    bound: bool | Bottleneck = True,
    keep: bool = False,
    engine: str = "auto",
    quotient: bool | None = None,
) -> Result:
    """Play a plan on a topology, and check the run.

    Parameters
    ----------
    plan
        A bound schedule.
    topology
        The cluster; it must have every endpoint in ``plan.ranks``.
    data
        ``"exact"``: move generated data whose result does not depend on the order of reduction, and compare it with
        the definition of the collective. ``"none"``: timing only. Or one input array per rank.
    seed
        Of the generated data.
    observer
        Told of every transfer, for example a :class:`simcoll.emulator.trace.Trace`.
    bound
        Whether the lower bound is computed; a proved schedule that beats it is an error. The ``certificate`` of an
        earlier bound for the same collective and placement saves its time.
    keep
        Whether the result has the done time of every transfer.
    engine
        ``"simpy"``, the reference; ``"fast"``, compiled, with the same times to the last femtosecond; ``"auto"``, the fast one
        where it is installed and there is enough to do. What the fast engine does not know is played by the other, and
        ``Result.path`` says why.
    quotient
        Whether messages that provably behave alike are played once (timing only). Default: when that saves a lot; ``False``
        with ``engine="simpy"``.

    Raises
    ------
    ConfigError
        When the topology has too few ranks, a link has nothing to give, data does not fit, or time runs beyond the
        clock.
    InternalError
        When a check of the run fails.

    Examples
    --------
    >>> import simcoll
    >>> from simcoll.topology import crossbar
    >>> plan = simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=4), count=1 << 20)
    >>> result = emulate(plan, crossbar(4, "50 GB/s", "1 us"))
    >>> result.time_us, result.wrong
    (131.82912, 0)
    """
    expect(plan, Plan, "emulate takes a plan, made by bind(schedule, count)")
    expect(topology, Topology, "emulate takes a topology, made by load_topology(name)")
    inputs = _inputs(plan, data, seed)
    _check_placement(plan, topology)
    storage = None if inputs is None else Storage(plan, inputs)
    began = perf_counter()
    played = _run(plan, topology, storage, observer, keep=keep, engine=engine, quotient=quotient)
    wall = perf_counter() - began
    outputs = None if storage is None else storage.outputs()
    wrong = _wrong(plan, inputs, outputs) if isinstance(data, str) and inputs is not None else None
    return Result(
        kind=plan.collective.kind,
        nranks=plan.nranks,
        schedule=plan.schedule.title,
        protocol=plan.protocol.name,
        topology=topology.name,
        proof="unproved" if plan.proof is None else plan.proof.kind,
        engine=played.engine,
        time_fs=played.time_fs,
        total_bytes=plan.total_bytes,
        messages=played.messages,
        bytes_moved=played.bytes_moved,
        trace_hash=played.trace_hash,
        wrong=wrong,
        outputs=outputs,
        bound=_bound(plan, topology, played, bound) if bound else None,
        done_fs=played.done_fs,
        path=played.path,
        classes=played.classes,
        wall_s=wall,
    )


def _check_placement(plan: Plan, topology: Topology) -> None:
    last = int(plan.ranks.max())
    if last >= topology.nranks:
        raise ConfigError(
            f"the plan places a rank on endpoint {last}; topology {topology.name!r} has 0..{topology.nranks - 1} only"
        )


def _run(
    plan: Plan,
    topology: Topology,
    storage: Storage | None,
    observer: Observer | None,
    *,
    keep: bool,
    engine: str,
    quotient: bool | None,
) -> Played:
    way, why, seen = choose(plan, engine, quotient, watched=observer is not None, timing_only=storage is None)
    if way == "quotient" and seen is not None:
        played = play_quotient(plan, topology, seen, engine, keep=keep, worth_it=quotient is None)
        if isinstance(played, Played):
            return played
        way, _, seen = choose(plan, engine, False, watched=False, timing_only=True)
        why = f"no quotient: {played}"
    if way == "fast" and seen is not None:
        fast = play_fast(plan, topology, seen, why, keep=keep)
        if storage is not None:
            storage.play()
        return fast
    player = _by_simpy(plan, topology, storage, observer, keep=keep)
    return Played(
        "simpy",
        why,
        player.time_fs,
        player.steps,
        player.messages,
        sum(player.bytes_by_op),
        player.switched,
        player.hash.hexdigest(),
        player.done_fs,
    )


def _by_simpy(
    plan: Plan, topology: Topology, storage: Storage | None, observer: Observer | None, *, keep: bool
) -> Player:
    fabric = Fabric(Calendar(simpy.Environment()), effective_capacities(topology, plan.protocol), topology.link_name)
    player = Player(plan, topology, fabric, storage, observer, keep=keep)
    player.start()
    with _collector_paused():
        fabric.env.run()
    player.check()
    player.check_fabric()
    return player


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python's cycle collector out of a run: it looks at every message in flight again and again and finds nothing."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _inputs(plan: Plan, data: str | Sequence[Array | None], seed: int) -> Sequence[Array | None] | None:
    if not isinstance(data, str):
        return data
    if data not in ("exact", "none"):
        raise ConfigError(f"data {data!r} is not known; {nearest(data, ('exact', 'none'))}, or one array per rank")
    if data == "none":
        return None
    from simcoll.core.reference import exact_inputs

    return exact_inputs(plan, seed)


def _wrong(plan: Plan, inputs: Sequence[Array | None], outputs: Sequence[Array | None] | None) -> int:
    from simcoll.core.reference import count_wrong, expected_outputs

    given = [np.zeros(0, plan.dtype) if array is None else array for array in inputs]
    return count_wrong(outputs or (), expected_outputs(plan, given))


def _bound(plan: Plan, topology: Topology, played: Played, known: bool | Bottleneck) -> Bound:
    """The lower bound.

    When blocks differ it is that of equal blocks of the smallest size, since more bytes never take less time.
    """
    from simcoll.bounds import lower_bound

    collective = plan.collective
    total = plan.total_bytes
    if not isinstance(plan.sizes, int):
        sizes = plan.sizes
        if collective.kind == "all_to_all":  # what a rank keeps need not move
            sizes = sizes[[row for row in range(len(sizes)) if row % (plan.nranks + 1)]]
        smallest = int(sizes.min()) if len(sizes) else 0
        total = smallest * plan.dtype.itemsize * max(collective.input_slots, collective.output_slots)
    found = lower_bound(
        collective.kind,
        topology.with_ranks(plan.ranks),
        int(
            total * min(plan.protocol.wire_factor, Fraction(1))
        ),  # with less than a byte on the wire per byte, of what is there
        root=collective.root or 0,
        latency_fs=latency_floor_fs(plan, topology),
        certificate=None if isinstance(known, bool) else known,
        in_network=played.switched,
    )
    # The bound is exact; a message rounds its time by less than 1 fs, and float64 keeps 53 bits.
    slack = played.steps + found.time_fs // 2**50
    if plan.proof is not None and played.time_fs + slack < found.time_fs:
        raise InternalError(
            f"{plan} took {played.time_fs} fs on {topology.name}; "
            f"its lower bound is {found.time_fs} fs ({found.bottleneck})"
        )
    return found
