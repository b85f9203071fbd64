"""Start rank programs, and query the run from inside them."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from simcoll.distributed.api.default_store import close_store
from simcoll.distributed.api.initialization import set_default_group
from simcoll.distributed.linked.links import EMULATOR, connected, place_of
from simcoll.distributed.runtime.emulated import EmulatedWorld
from simcoll.distributed.runtime.flight import document
from simcoll.distributed.runtime.plans import Plans, check_choice
from simcoll.distributed.runtime.store_waiting import RankWaiter
from simcoll.distributed.runtime.tasks import Task, Waitable, current_task, wait_until
from simcoll.distributed.runtime.world import current_rank
from simcoll.distributed.start.results import RunResult, collect, emulated_result, flight_of
from simcoll.distributed.stores import use_waiter
from simcoll.errors import ConfigError
from simcoll.units import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from simcoll.core.protocol import Protocol
    from simcoll.distributed.runtime.plans import Choice
    from simcoll.distributed.runtime.world import Rank
    from simcoll.topology import Topology

__all__ = ["RunResult", "compute", "emulated_time", "flight_record", "spawn"]

MAX_RANKS = 1 << 16


def spawn(
    program: Callable[..., Any],
    nprocs: int,
    args: Sequence[Any] = (),
    *,
    topology: str | Path | Topology | None = None,
    protocol: str | Protocol = "ideal",
    algorithm: Choice = None,
    backend: str | None = None,
    init: bool = True,
    debug: bool = True,
    kwargs: Mapping[str, Any] | None = None,
) -> RunResult:
    """Run ``program(rank, world_size, *args)`` on every rank, under one simulated clock, or for real.

    Parameters
    ----------
    program
        An ordinary blocking function. All ranks run in this process, one at a time, in an order that depends only on the
        program. With a real backend this process runs one rank, and every process of the job calls spawn.
    nprocs
        World size; with a real backend, the number of processes.
    args, kwargs
        Further arguments of the program.
    topology
        Name, file or Topology with at least ``nprocs`` ranks; nodes are added as needed. None: a crossbar with 50 GB/s per
        rank and 1 us. With a real backend it only guides the algorithms.
    protocol
        Costs of a message: ``ideal``, ``LL``, ``LL128``, ``Simple``, or a :class:`simcoll.types.Protocol`.
    algorithm
        What collectives run: an algorithm's name (where it serves), a schedule, a mapping from collective to one of these, or
        a function of (collective, ranks, bytes). None: few steps for small sizes, few bytes for large ones.
    backend
        ``"mpi"``: ranks are the processes that ``mpiexec`` started. None: the environment variable ``SIMCOLL_BACKEND``,
        else the emulator. Other names run on the emulator, and get_backend returns them; a registered backend plays the
        collectives of every rank.
    init
        Give every rank a default group. A program that calls init_process_group itself replaces it.
    debug
        Watch the buffers of asynchronous operations, and refuse receives that are too long.

    Raises
    ------
    ConfigError
        For a topology, protocol or algorithm that does not exist or is too small.
    Exception
        The error of the first rank that failed; a note says which.

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
    plans = Plans(_topology(topology, nprocs), protocol, algorithm)
    where = place_of(backend)
    if where != EMULATOR and current_task() is None:
        from simcoll.distributed.start.launched import run_linked

        control, named = connected(where, nprocs), kwargs or {}
        return collect(run_linked(control, program, args, named, plans=plans, backend=backend, init=init, debug=debug))
    name = EMULATOR if backend is None else backend
    world = EmulatedWorld(nprocs, plans, debug=debug)
    named = dict(kwargs or {})
    waiter = RankWaiter()

    def body(rank: Rank) -> Any:
        use_waiter(waiter)
        return program(rank.number, nprocs, *args, **named)

    for rank in world.ranks:
        if init:
            set_default_group(rank, name, implicit=True)
        world.tasks.launch(rank, functools.partial(body, rank), functools.partial(_ended, rank))
    try:
        world.run()
    finally:
        for rank in world.ranks:
            close_store(rank)
    return collect(emulated_result(world))


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
    """The topology with as many nodes as the ranks need, or hosts of a crossbar."""
    from simcoll.topology import load_topology

    boxes = place.groups.get("box")
    each = place.nranks if boxes is None else int((boxes == boxes[0]).sum())
    try:
        return load_topology(name, nodes=math.ceil(nprocs / each))
    except ConfigError:
        raise ConfigError(
            f"topology {place.name!r} has {place.nranks} ranks and no nodes to add; {nprocs} were asked for"
        ) from None


def _ended(rank: Rank, task: Task) -> None:
    """Note a program's end, with its result or exception."""
    rank.finish_fs, rank.value, rank.failure = rank.world.now, task.value, task.failure
    if rank.failure is not None:
        rank.world.history.failures.append(rank.failure)
        rank.failure.add_note(
            f"[rank{rank.number}]: raised by the program of rank {rank.number} at {rank.world.now} fs"
        )


def flight_record() -> dict[str, Any]:
    """The last operations of the calling rank, in the fields of PyTorch's Flight Recorder."""
    return document(*flight_of(current_rank()))


def emulated_time() -> float:
    """Seconds on the simulated clock; for ranks in processes, on the local clock since the common start."""
    return current_rank().world.now / 1e15


def compute(seconds: float | str) -> None:
    """Model computation on this rank: a number of seconds, or text such as ``"20 us"``.

    Where ranks are processes it takes as long on the real clock, and operations in flight proceed meanwhile.

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
    pause = Waitable("compute")
    current_rank().world.after(duration, pause.finish)
    wait_until(pause)
