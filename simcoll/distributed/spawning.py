"""Start rank programs, and what a run tells."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simcoll.distributed.backends import Backend
from simcoll.distributed.flight import Flight, document
from simcoll.distributed.initialization import set_default_group
from simcoll.distributed.plans import check_choice
from simcoll.distributed.store_waiting import RankWaiter
from simcoll.distributed.stores import use_waiter
from simcoll.distributed.world import Rank, Task, Waitable, World, current, wait_until
from simcoll.errors import ConfigError
from simcoll.protocol import Protocol
from simcoll.protocol import protocol as find_protocol
from simcoll.units import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from simcoll.distributed.operations import Record
    from simcoll.distributed.plans import Choice
    from simcoll.topology import Topology

    Groups = list[tuple[str, str, tuple[int, ...]]]

__all__ = ["Result", "compute", "emulated_time", "flight_record", "run_rank", "spawn"]

MAX_RANKS = 1 << 16
KEPT_RECORDS = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a run of rank programs showed.

    Attributes
    ----------
    time_fs
        When the last program or transfer ended.
    finish_fs
        When each rank's program ended.
    returns
        What each program returned.
    trace_hash
        Hash of every operation with its transfers and times, and of the finish times.
    operations, messages
        How many collectives and messages were played.
    records
        The operations in the order in which they ended (the first 100,000).
    findings
        What was not wrong enough for an error: a Work never waited for.
    """

    time_fs: int
    finish_fs: tuple[int, ...]
    returns: tuple[Any, ...]
    trace_hash: str
    operations: int
    messages: int
    records: tuple[Record, ...]
    findings: tuple[str, ...]
    topology: str
    _flights: tuple[tuple[Flight, Groups], ...] = field(repr=False)

    @property
    def time(self) -> float:
        """Seconds."""
        return self.time_fs / 1e15

    def flight_record(self, rank: int) -> dict[str, Any]:
        """The last operations of a rank, in the fields of PyTorch's Flight Recorder."""
        return document(*self._flights[rank])

    def write_flight_record(self, rank: int, path: Path) -> None:
        """Write the flight record of a rank as JSON."""
        path.write_text(json.dumps(self.flight_record(rank), indent=1) + "\n", encoding="utf-8")


def spawn(
    program: Callable[..., Any],
    nprocs: int,
    args: Sequence[Any] = (),
    *,
    topology: str | Path | Topology | None = None,
    protocol: str | Protocol = "ideal",
    algorithm: Choice = None,
    backend: str = "emulator",
    init: bool = True,
    debug: bool = True,
    kwargs: Mapping[str, Any] | None = None,
) -> Result:
    """Run ``program(rank, world_size, *args)`` on every rank, under one simulated clock.

    Parameters
    ----------
    program
        An ordinary function that blocks; all ranks run in this process, one at a time, in an order that depends on
        nothing but the program.
    nprocs
        World size.
    args, kwargs
        Further arguments of the program.
    topology
        Name, file or Topology with at least ``nprocs`` ranks; boxes are added as needed. None: a crossbar with 50 GB/s per
        rank and 1 us.
    protocol
        Costs of a message: ``ideal``, ``LL``, ``LL128``, ``Simple``, or a :class:`simcoll.Protocol`.
    algorithm
        What collectives run: an algorithm's name (where it serves), a schedule, a mapping from collective to one of these, or
        a function of (collective, ranks, bytes). None: few steps for small sizes, few bytes for large ones.
    backend
        What get_backend says; a name that register_backend has made known is called for every rank.
    init
        Give every rank a default group. A program that calls init_process_group itself replaces it.
    debug
        Watch the buffers of asynchronous operations, and refuse receives that are too long.

    Raises
    ------
    ConfigError
        For a topology, protocol or algorithm that does not exist or is too small.
    Exception
        What a program raised, from the rank that failed first; a note says which.

    Examples
    --------
    >>> import numpy as np
    >>> import simcoll.distributed as dist
    >>> def program(rank, world_size):
    ...     x = np.arange(2.0) + rank
    ...     dist.all_reduce(x)
    ...     return x.tolist()
    >>> result = dist.spawn(program, nprocs=4)
    >>> result.returns[3], result.time
    ([6.0, 10.0], 2.00064e-06)
    """
    if type(nprocs) is not int or not 1 <= nprocs <= MAX_RANKS:
        raise ConfigError(f"nprocs {nprocs!r}: expected a whole number of ranks, 1 to {MAX_RANKS}")
    check_choice(algorithm)
    place = _topology(topology, nprocs)
    generation = place.traits.get("generation", "hopper")
    costs = protocol if isinstance(protocol, Protocol) else find_protocol(protocol, generation=generation)
    world = World(nprocs, place, protocol, costs, debug=debug)
    world.shared |= {
        "records": [],
        "max_records": KEPT_RECORDS,
        "algorithm": algorithm,
        "backend": backend,
        "findings": [],
        "failed": [],
    }
    named = dict(kwargs or {})
    waiter = RankWaiter()

    def body(rank: Rank) -> Any:
        use_waiter(waiter)
        return program(rank.number, nprocs, *args, **named)

    for rank in world.ranks:
        rank.flight = Flight()
        if init:
            set_default_group(rank, backend, implicit=True)
        world.launch(rank, functools.partial(body, rank), _ended)
    world.run()
    return _result(world)


def run_rank(
    program: Callable[..., Any],
    rank: int,
    world_size: int,
    args: Sequence[Any] = (),
    *,
    backend: str,
    store: Any = None,
    algorithm: Choice = None,
) -> Any:
    """Run the program of one rank in this process or thread, on a registered backend that reaches the others.

    The same program as under :func:`spawn` gives the same arrays: collectives are the same plans, executed by the backend.
    Point-to-point operations belong to the emulator.

    Returns
    -------
    Any
        What the program returned.

    Raises
    ------
    ValueError
        For a backend that nobody registered, or a rank out of range.
    """
    from simcoll.topology import crossbar

    if Backend.maker(backend) is None:
        raise ValueError(
            f"backend {backend!r} is emulated: use spawn; run_rank takes what register_backend has made known"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is out of range; expected 0..{world_size - 1}")
    check_choice(algorithm)
    world = World(world_size, crossbar(world_size, "50 GB/s", "1 us"), "ideal", find_protocol("ideal"), debug=False)
    world.shared |= {
        "records": [],
        "max_records": 0,
        "algorithm": algorithm,
        "findings": [],
        "failed": [],
        "alone": True,
    }
    me = world.ranks[rank]
    me.flight = Flight()
    if store is not None:
        me.local["store"] = store
    set_default_group(me, backend, implicit=True)
    world.launch(me, lambda: program(rank, world_size, *args), _ended)
    world.run()
    if me.failure is not None:
        raise me.failure
    return me.value


def _topology(given: str | Path | Topology | None, nprocs: int) -> Topology:
    from simcoll.topology import Topology, crossbar, load_topology

    if given is None:
        return crossbar(nprocs, "50 GB/s", "1 us")
    if isinstance(given, Topology):
        place = given
    else:
        place = load_topology(given)
        if place.nranks < nprocs:
            place = _grown(given, place, nprocs)
    if place.nranks < nprocs:
        raise ConfigError(f"topology {place.name!r} has {place.nranks} ranks; {nprocs} were asked for")
    return place


def _grown(name: str | Path, place: Topology, nprocs: int) -> Topology:
    """The topology with as many boxes as the ranks need, or hosts of a crossbar."""
    from simcoll.topology import load_topology

    boxes = place.groups.get("box")
    each = place.nranks if boxes is None else int((boxes == boxes[0]).sum())
    try:
        return load_topology(name, nodes=math.ceil(nprocs / each))
    except ConfigError:
        raise ConfigError(
            f"topology {place.name!r} has {place.nranks} ranks and no boxes to add; {nprocs} were asked for"
        ) from None


def _ended(task: Task) -> None:
    """A program is over: note when, what it returned, and what it left behind."""
    rank = task.rank
    rank.finish_fs, rank.value, rank.failure = rank.world.now, task.value, task.failure
    if rank.failure is not None:
        rank.world.shared["failed"].append(rank.failure)
        rank.failure.add_note(
            f"[rank{rank.number}]: raised by the program of rank {rank.number} at {rank.world.now} fs"
        )


def _leftovers(world: World) -> None:
    """Works that nobody waited for: an error if they failed, else a finding."""
    for rank in world.ranks:
        for work in rank.open_works:
            if work.error is not None and rank.failure is None:
                rank.failure = RuntimeError(work.error)
                rank.failure.add_note(f"[rank{rank.number}]: of a Work that was never waited for")
                world.shared["failed"].append(rank.failure)
            state = "" if work.done else ", and it never ended"
            world.shared["findings"].append(
                f"rank {rank.number}: the Work of {work.name} issued at {work.entry.site} was never waited for{state}"
            )


def _result(world: World) -> Result:
    _leftovers(world)
    shared = world.shared
    if shared["failed"]:  # the first is the cause; others may only have waited for it
        raise shared["failed"][0]
    for finding in shared["findings"][:8]:
        warnings.warn(finding, UserWarning, stacklevel=3)
    finish = tuple(rank.finish_fs for rank in world.ranks)
    digest = hashlib.sha256(f"{shared.get('hash', 0):032x} {finish}".encode()).hexdigest()[:32]
    return Result(
        time_fs=max(world.now if math.isfinite(world.now) else 0, *finish, 0),
        finish_fs=finish,
        returns=tuple(rank.value for rank in world.ranks),
        trace_hash=digest,
        operations=shared.get("operations", 0),
        messages=shared.get("messages", 0),
        records=tuple(shared["records"]),
        findings=tuple(shared["findings"]),
        topology=world.topology.name,
        _flights=tuple(_flight(rank) for rank in world.ranks),
    )


def _flight(rank: Rank) -> tuple[Flight, Groups]:
    """What the flight record of a rank is made of."""
    groups: Groups = [("0", "default_pg", tuple(range(len(rank.world.ranks))))]
    groups += [
        (made.communicator.name, made.communicator.desc, made.communicator.members)
        for made in rank.local.get("groups", [])
    ]
    return rank.flight, groups


def flight_record() -> dict[str, Any]:
    """The last operations of the rank that asks, in the fields of PyTorch's Flight Recorder."""
    return document(*_flight(current().rank))


def emulated_time() -> float:
    """Seconds on the clock of the run."""
    return current().rank.world.now / 1e15


class _Pause(Waitable):
    """Modelled work."""

    __slots__ = ()

    def waits_for(self) -> str:
        """Nothing but time."""
        return "compute"


def compute(seconds: float | str) -> None:
    """Let this rank work for a time: a number of seconds, or text such as ``"20 us"``.

    Raises
    ------
    ConfigError
        For a time that is negative or not finite.
    """
    if isinstance(seconds, str):
        duration = parse_time(seconds)
    else:
        if not math.isfinite(seconds) or seconds < 0:
            raise ConfigError(f"compute: seconds={seconds!r}; expected 0 or more")
        duration = round(seconds * 1e15)
    world = current().rank.world
    pause = _Pause()
    world.calendar.at(world.now + duration, lambda _: pause.finish(), None)
    wait_until(pause)
