"""Rank programs in processes: this process runs one rank, and a backend connects it to the others."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import greenlet  # type: ignore[import-untyped]

from simcoll.distributed.api.backends import Backend
from simcoll.distributed.api.default_store import close_store
from simcoll.distributed.api.initialization import set_default_group
from simcoll.distributed.linked.links import ControlMessages
from simcoll.distributed.linked.world import LinkedWaiter, LinkedWorld
from simcoll.distributed.runtime.emulated import EmulatedWorld
from simcoll.distributed.runtime.meeting import Arrival
from simcoll.distributed.runtime.objects import decode
from simcoll.distributed.runtime.plans import Plans, check_choice
from simcoll.distributed.runtime.records import History
from simcoll.distributed.runtime.tasks import wait_until
from simcoll.distributed.start.results import RunResult, flight_of, leftovers, warn
from simcoll.distributed.stores import use_waiter
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simcoll.distributed.linked.links import Link
    from simcoll.distributed.runtime.plans import Choice
    from simcoll.distributed.runtime.tasks import Task

__all__ = ["run_linked", "run_rank"]

START_FS = 60 * 10**15
"""How long ranks wait for each other before the programs start."""
AFTER_FAILURE_FS = 5 * 10**15
"""How long a rank whose program has failed waits for the other programs to end."""


def _run(world: LinkedWorld, program: Callable[[], Any], backend: str, *, init: bool) -> None:
    """Run this rank's program, and wait until all others have ended.

    Raises
    ------
    Exception
        The error of the first rank that failed.
    """
    me = world.me
    if init:
        set_default_group(me, backend, implicit=True)

    def body() -> None:
        use_waiter(LinkedWaiter(world))
        wait_until(world.meet(me, Arrival("start", "the start of the programs", None)), START_FS, explicit=True)
        world.start_clock()
        try:
            me.value = program()
        except greenlet.GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001  # also sys.exit(): raised again when the others know
            me.failure = error
        me.finish_fs = world.now
        over = world.end()
        try:
            wait_until(over, None if me.failure is None else AFTER_FAILURE_FS, explicit=True)
        except RuntimeError:
            if me.failure is None:
                raise

    def closed(task: Task) -> None:
        me.failure = me.failure or task.failure

    world.tasks.launch(me, body, closed)
    try:
        world.run()
    finally:
        close_store(me)
    leftovers(world)
    failure = _failure(world)
    if failure is not None:
        raise failure


def _failure(world: LinkedWorld) -> BaseException | None:
    """The first failure of a program, as far as clocks show; another rank's is rebuilt from its name and text."""
    me, endings = world.me, world.endings
    failed = sorted((end.after_failure, end.finish_fs, rank) for rank, end in endings.items() if end.error_type)
    first = failed[0][2] if failed else me.number
    if first == me.number:
        if me.failure is not None:
            me.failure.add_note(f"[rank{first}]: raised by the program of rank {first} at {max(0, me.finish_fs)} fs")
        return me.failure
    end = endings[first]
    found = getattr(builtins, end.error_type, RuntimeError)
    known = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, (OSError, UnicodeError))
    error: BaseException = found(end.said) if known else RuntimeError(f"{end.error_type}: {end.said}")
    error.add_note(f"[rank{first}]: raised by the program of rank {first}, in another process, at {end.finish_fs} fs")
    return error


def run_linked(
    control: ControlMessages,
    program: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    plans: Plans,
    backend: str | None,
    init: bool,
    debug: bool,
) -> RunResult:
    """Run spawn where this process is one of the ranks.

    Raises
    ------
    Exception
        The error of the first rank that failed.
    """
    world = LinkedWorld(control, plans, debug=debug)
    me, history = world.me, world.history

    def body() -> Any:
        return program(me.number, len(world.everyone), *args, **kwargs)

    _run(world, body, backend or control.link.name, init=init)
    returns = []
    for rank in world.everyone:
        end = world.endings[rank]
        returns.append(me.value if rank == me.number else None if end.value is None else decode(end.value))
        if end.value is None:
            history.findings.append(
                f"rank {rank} returned a {end.said}, which cannot be sent: the other ranks see None"
            )
    warn(history.findings)
    finish = tuple(world.endings[rank].finish_fs for rank in world.everyone)
    return RunResult(
        time_fs=max(finish),
        finish_fs=finish,
        returns=tuple(returns),
        trace_hash="",
        operations=history.operations,
        messages=0,
        records=tuple(history.records),
        findings=tuple(history.findings),
        topology=world.plans.topology.name,
        _flights={me.number: flight_of(me)},
    )


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

    A program gives the same arrays as under :func:`simcoll.distributed.spawn`: collectives are the same plans.

    Parameters
    ----------
    program
        Called with the rank, the world size and ``args``.
    backend
        A registered backend, which plays the collectives; there are no point-to-point operations. With a link, only the name
        that get_backend returns.
    store
        The rank's default store.
    algorithm
        As for :func:`simcoll.distributed.spawn`.
    link
        A :class:`~simcoll.distributed.linked.links.Link` to the processes of the other ranks; everything works over it.

    Returns
    -------
    Any
        The program's return value.

    Raises
    ------
    ValueError
        For a backend that is not registered, or a rank out of range.
    """
    from simcoll.topology import crossbar

    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is out of range; expected 0..{world_size - 1}")
    check_choice(algorithm)
    plans = Plans(crossbar(world_size, "50 GB/s", "1 us"), "ideal", algorithm)
    if link is not None:
        if (link.rank, link.world_size) != (rank, world_size):
            raise ConfigError(f"rank {rank} of {world_size}: the link is that of rank {link.rank} of {link.world_size}")
        world = LinkedWorld(ControlMessages(link), plans, debug=True, history=History(0))
        world.me.store = store
        _run(world, lambda: program(rank, world_size, *args), backend, init=True)
        return world.me.value
    if Backend.maker(backend) is None:
        raise ValueError(
            f"backend {backend!r} is emulated: use spawn; run_rank takes backends that register_backend has registered"
        )
    alone = EmulatedWorld(world_size, plans, debug=False, history=History(0), alone=True)
    me = alone.ranks[rank]
    me.store = store
    set_default_group(me, backend, implicit=True)

    def over(task: Task) -> None:
        me.value, me.failure = task.value, task.failure

    alone.tasks.launch(me, lambda: program(rank, world_size, *args), over)
    alone.run()
    if me.failure is not None:
        raise me.failure
    return me.value
