"""Start rank programs, and query the run from inside them."""

from __future__ import annotations

import builtins
import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import greenlet  # type: ignore[import-untyped]

from simcoll.call_records import record_of, takes
from simcoll.distributed.api.backends import Backend
from simcoll.distributed.api.making_groups import close_store, set_default_group
from simcoll.distributed.linked.linked_world import LinkedWorld
from simcoll.distributed.linked.process_links import (
    EMULATOR,
    ControlMessages,
    Link,
    connect_processes,
    place_of,
)
from simcoll.distributed.runtime.emulated import EmulatedWorld, RankWaiter
from simcoll.distributed.runtime.fake import fake_array
from simcoll.distributed.runtime.history import History
from simcoll.distributed.runtime.objects import decode
from simcoll.distributed.runtime.rank_classes import read_classes
from simcoll.distributed.runtime.recording import Recording
from simcoll.distributed.runtime.records import document, program_starts
from simcoll.distributed.runtime.run_timeline import RunTimeline
from simcoll.distributed.runtime.tasks import (
    Arrival,
    Task,
    current_task,
    offer_turn,
    wait_until,
)
from simcoll.distributed.runtime.turn_order import TurnOrder
from simcoll.distributed.runtime.world import Rank, World, current_rank
from simcoll.distributed.start.interleavings import check_interleavings, play_orders
from simcoll.distributed.start.recording_files import write_recording
from simcoll.distributed.start.results import (
    RunResult,
    flight_of,
    leftovers,
    note_findings,
    raise_first,
    result_of,
)
from simcoll.distributed.start.run_parameters import SpawnParameters
from simcoll.distributed.start.timeline_file import write_timeline
from simcoll.distributed.stores import PollingWaiter, use_waiter
from simcoll.emulator.events import timeline_of
from simcoll.errors import ConfigError, RaceError, nearest, shown
from simcoll.libraries.choices import Choice, Plans, check_choice
from simcoll.libraries.library import load_library
from simcoll.topology import Topology, crossbar, load_topology
from simcoll.units import FS_PER_SECOND, MAX_TIME_FS, format_time, parse_time

__all__ = [
    "RaceError",
    "RunResult",
    "SpawnParameters",
    "compute",
    "emulated_time",
    "fake_array",
    "flight_record",
    "note_failure",
    "run_rank",
    "spawn",
]

MAX_RANKS = 1 << 16
DATA = ("exact", "none")


@takes(SpawnParameters)
def spawn(*arguments: Any, **keywords: Any) -> RunResult:
    """Run ``program(rank, world_size, *args)`` on every rank, under one simulated clock, or for
    real.

    Takes a :class:`SpawnParameters`, or its fields as arguments.

    Raises
    ------
    ConfigError
        For a topology, protocol or algorithm that does not exist or is too small.
    RaceError
        With ``interleavings=``, where the order of turns changes what the program does.
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
    run = record_of(SpawnParameters, arguments, keywords)
    if type(run.nprocs) is not int or not 1 <= run.nprocs <= MAX_RANKS:
        raise ConfigError(
            f"nprocs {run.nprocs!r}: expected a whole number of ranks, 1 to {MAX_RANKS}"
        )
    turns = run.interleavings
    if turns is not None and not isinstance(turns, TurnOrder):
        check_interleavings(run, turns, emulated=place_of(run.backend) == EMULATOR)
        run = replace(run, topology=_topology(run.topology, run.nprocs))  # read once
        return play_orders(turns, lambda order: spawn(replace(run, interleavings=order)))
    nprocs, alike, trace, record = run.nprocs, run.alike, run.trace, run.record
    backend, data = run.backend, run.data
    check_choice(run.algorithm)
    if run.library is not None:
        load_library(run.library)  # an unknown name is an error here
    plans = Plans(_topology(run.topology, nprocs), run.protocol, run.algorithm, run.library)
    place = place_of(backend)
    if data not in DATA:
        raise ConfigError(f"data {data!r}; {nearest(data, DATA)}")
    happens = timeline_of(run.events, run.policy, plans.topology, nprocs)
    if place != EMULATOR and happens is not None:
        raise ConfigError(f"backend {place!r} runs for real: events= are for the emulator")
    if place != EMULATOR and (data != "exact" or trace or record or alike is not None):
        raise ConfigError(
            f"backend {place!r} runs for real: data='none', alike=, trace= and record= are for the "
            "emulator"
        )

    def body(rank: int) -> Any:
        return run.program(rank, nprocs, *run.args, **(run.kwargs or {}))

    program_starts.add(body.__code__)
    if place != EMULATOR and current_task() is None:
        linked = LinkedWorld(connect_processes(place, nprocs), plans, debug=run.debug)
        return _linked_run(linked, body, (backend or linked.home) if run.init else None)
    history = History(
        timeline=RunTimeline() if trace else None,
        recording=Recording(nprocs, plans) if record else None,
    )
    classes = None if alike is None else read_classes(alike, nprocs)
    timed = data == "none"
    world = EmulatedWorld(
        nprocs,
        plans,
        debug=run.debug,
        timed=timed,
        rank_classes=classes,
        history=history,
        events=happens,
    )
    world.tasks.turns = turns
    result = _emulated_run(world, body, (backend or EMULATOR) if run.init else None)
    if not isinstance(trace, bool):
        write_timeline(trace, result, plans.topology)
    if not isinstance(record, bool):
        write_recording(record, result)
    return result


def _play(
    world: World,
    ranks: Sequence[Rank],
    body: Callable[[Rank], Any],
    on_end: Callable[[Rank, Task], None],
    backend: str | None,
) -> None:
    """Run ranks of a world to completion, each with a default group unless ``backend`` is None."""
    for rank in ranks:
        if backend is not None:
            set_default_group(rank, backend, implicit=True)
        world.tasks.launch(rank, functools.partial(body, rank), functools.partial(on_end, rank))
    try:
        world.run()
    finally:
        for rank in ranks:
            close_store(rank)
    leftovers(world)


def _emulated_run(
    world: EmulatedWorld, program: Callable[[int], Any], backend: str | None
) -> RunResult:
    """Run all ranks here; raises the first failure of a program, if any."""
    waiter = RankWaiter(world.history.recording)

    def body(rank: Rank) -> Any:
        use_waiter(waiter, None if world.tasks.turns is None else offer_turn)
        return program(rank.number)

    leader = world.everyone if world.rank_classes is None else world.rank_classes.leader
    own_ranks = [world.ranks[number] for number in dict.fromkeys(leader)]
    _play(world, own_ranks, body, _note_end, backend)
    history, finish = world.history, tuple(world.ranks[number].finish_fs for number in leader)
    if history.failures:
        raise_first(history.failures, own_ranks, history.findings)
    digest = hashlib.sha256(f"{history.digest:032x} {finish}".encode()).hexdigest()[:32]
    returns = [world.ranks[number].value for number in leader]
    return result_of(world, own_ranks, finish, returns, last_fs=history.end_fs, trace_hash=digest)


def _linked_run(
    world: LinkedWorld, program: Callable[[int], Any], backend: str | None
) -> RunResult:
    """Run the rank of this process; raises the error of the first rank that failed."""
    me = world.me
    _run_until_all_end(world, lambda: program(me.number), backend)
    returns = []
    for rank in world.everyone:
        end = world.endings[rank]
        returns.append(
            me.value if rank == me.number else None if end.value is None else decode(end.value)
        )
        world.ranks[rank].memory.peak_bytes = end.peak_bytes
        if end.value is None:
            world.history.findings.append(
                f"rank {rank} returned a {end.message}, which cannot be sent: the other ranks see "
                "None"
            )
    return result_of(
        world, [me], [world.endings[rank].finish_fs for rank in world.everyone], returns
    )


START_FS = 60 * 10**15
"""Time limit for the ranks to meet before the programs start."""
AFTER_FAILURE_FS = 5 * 10**15
"""Time that a rank with a failed program waits for the other programs."""


def _run_until_all_end(world: LinkedWorld, program: Callable[[], Any], backend: str | None) -> None:
    """Run this rank's program, and wait until all others have ended; raises the error of the first
    rank that failed.
    """

    def body(me: Rank) -> None:
        # Operations in flight proceed while a store waits.
        use_waiter(PollingWaiter(sleep=lambda _: world.poll()))
        wait_until(
            world.meet(me, Arrival("start", "the start of the programs", None)),
            START_FS,
            explicit=True,
        )
        world.start_clock()
        try:
            me.value = program()
        except greenlet.GreenletExit:
            raise
        # Also sys.exit(): it is raised again when the others know.
        except BaseException as error:  # noqa: BLE001
            me.failure = error
        me.finish_fs = world.now
        farewell = world.end()
        try:
            wait_until(farewell, None if me.failure is None else AFTER_FAILURE_FS, explicit=True)
        except RuntimeError:
            if me.failure is None:
                raise

    def close(me: Rank, task: Task) -> None:
        me.failure = me.failure or task.failure

    _play(world, [world.me], body, close, backend)
    failure = _failure(world)
    if failure is not None:
        note_findings(failure, world.history.findings)
        raise failure


def _failure(world: LinkedWorld) -> BaseException | None:
    """The earliest failure by the ranks' clocks; another rank's is rebuilt from its name and
    text.
    """
    me, endings = world.me, world.endings
    failed = sorted(
        (end.after_failure, end.finish_fs, rank) for rank, end in endings.items() if end.error_type
    )
    culprit = failed[0][2] if failed else me.number
    if culprit == me.number:
        if me.failure is not None:
            me.failure.add_note(
                f"[rank{culprit}]: raised by the program of rank {culprit} at "
                f"{format_time(max(0, me.finish_fs))}"
            )
        return me.failure
    end = endings[culprit]
    error_class = getattr(builtins, end.error_type, RuntimeError)
    is_builtin = (
        isinstance(error_class, type)
        and issubclass(error_class, Exception)
        and not issubclass(error_class, (OSError, UnicodeError))
    )
    error: BaseException = (
        error_class(end.message) if is_builtin else RuntimeError(f"{end.error_type}: {end.message}")
    )
    error.add_note(
        f"[rank{culprit}]: raised by the program of rank {culprit}, in another process, at "
        f"{format_time(end.finish_fs)}"
    )
    return error


def run_rank(
    program: Callable[..., Any],
    rank: int,
    world_size: int,
    args: Sequence[Any] = (),
    *,
    backend: str,
    store: Any = None,
    algorithm: Choice = None,
    link: Link | None = None,
) -> Any:
    """Run the program of one rank in this process or thread.

    A program gives the same arrays as under :func:`simcoll.distributed.spawn`: collectives are the
    same plans.

    Parameters
    ----------
    program
        Called with the rank, the world size and ``args``.
    backend
        A registered backend, which plays the collectives; there are no point-to-point operations.
        With a link, only the name that get_backend returns.
    store
        The rank's default store.
    algorithm
        As for :func:`simcoll.distributed.spawn`.
    link
        A :class:`~simcoll.distributed.linked.process_links.Link` to the processes of the other
        ranks; everything works over it.

    Returns
    -------
    Any
        The program's return value.

    Raises
    ------
    ValueError
        For a backend that is not registered, or a rank out of range.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is out of range; expected 0..{world_size - 1}")
    check_choice(algorithm)
    plans = Plans(_topology(None, world_size), "ideal", algorithm)
    if link is not None:
        if (link.rank, link.world_size) != (rank, world_size):
            raise ConfigError(
                f"rank {rank} of {world_size}: the link is that of rank {link.rank} of "
                f"{link.world_size}"
            )
        world = LinkedWorld(ControlMessages(link), plans, debug=True, history=History(0))
        world.me.store = store
        _run_until_all_end(world, lambda: program(rank, world_size, *args), backend)
        return world.me.value
    if Backend.maker(backend) is None:
        raise ValueError(
            f"backend {backend!r} is emulated: use spawn; run_rank takes backends that "
            "register_backend has registered"
        )
    alone = EmulatedWorld(world_size, plans, debug=False, history=History(0), alone=True)
    me = alone.ranks[rank]
    me.store = store
    set_default_group(me, backend, implicit=True)
    alone.tasks.launch(
        me, lambda: program(rank, world_size, *args), functools.partial(_note_end, me)
    )
    alone.run()
    if me.failure is not None:
        raise me.failure
    return me.value


def _topology(source: str | Path | Topology | None, nprocs: int) -> Topology:
    """The topology, with enough nodes for the ranks; by default a crossbar."""
    if source is None:
        return crossbar(nprocs, "50 GB/s", "1 us")
    place = source if isinstance(source, Topology) else load_topology(source)
    nodes = ""
    if place.nranks < nprocs and not isinstance(source, Topology):
        boxes = place.groups.get("box")
        box_ranks = place.nranks if boxes is None else int((boxes == boxes[0]).sum())
        nodes = " and no nodes to add"
        with contextlib.suppress(ConfigError):
            place = load_topology(source, nodes=math.ceil(nprocs / box_ranks))
    if place.nranks < nprocs:
        raise ConfigError(
            f"topology {place.name!r} has {place.nranks} ranks{nodes}; {nprocs} were asked for"
        )
    return place


def _note_end(rank: Rank, task: Task) -> None:
    """Record a program's end, with its result or exception."""
    rank.finish_fs = rank.world.now
    rank.value = task.value
    rank.failure, task.failure = task.failure, None
    if rank.failure is not None:
        expired_fs, report = rank.world.history.stuck
        if expired_fs == rank.world.now:
            rank.failure.add_note(report)
        note_failure(rank, rank.failure)


def note_failure(rank: Rank, failure: BaseException) -> None:
    """Record an error that ends a rank's program, and so the run."""
    rank.world.history.failures.append(failure)
    failure.add_note(
        f"[rank{rank.number}]: raised by the program of rank {rank.number} at "
        f"{format_time(rank.world.now)}"
    )


def flight_record() -> dict[str, Any]:
    """The calling rank's flight record, with the fields of PyTorch's Flight Recorder."""
    return document(*flight_of(current_rank()))


def emulated_time() -> float:
    """Seconds on the simulated clock; for ranks in processes, on the local clock since the common
    start.
    """
    return current_rank().world.now / 1e15


def compute(seconds: float | str, name: str = "compute") -> None:
    """Model computation on this rank: a number of seconds, or text such as ``"20 us"``; ``name`` is
    for the timeline.

    Where ranks are processes it takes as long on the real clock, and operations in flight proceed
    meanwhile.

    Raises
    ------
    ConfigError
        For a time that is negative or not finite.
    """
    if isinstance(seconds, str):
        duration = parse_time(seconds)
    else:
        most_s = MAX_TIME_FS // FS_PER_SECOND
        if not 0 <= seconds <= most_s:  # not a number is not either
            raise ConfigError(
                f"compute: seconds={shown(seconds)}; expected 0 to {most_s}, which is 2.5 hours"
            )
        duration = round(seconds * 1e15)
    current_rank().world.pause(duration, name)
