"""Rank programs in processes of their own: this process runs one rank, and a backend reaches the others."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import greenlet  # type: ignore[import-untyped]

from simcoll.core.protocol import Protocol
from simcoll.core.protocol import protocol as find_protocol
from simcoll.distributed.api.backends import Backend
from simcoll.distributed.api.initialization import set_default_group
from simcoll.distributed.linked.linked import END, LinkedWaiter, LinkedWorld
from simcoll.distributed.linked.links import Post
from simcoll.distributed.runtime.flight import Flight
from simcoll.distributed.runtime.objects import decode, encode
from simcoll.distributed.runtime.own_store import close_store
from simcoll.distributed.runtime.plans import check_choice
from simcoll.distributed.runtime.world import World, wait_until
from simcoll.distributed.start.results import Result, flight_of, leftovers, warn
from simcoll.distributed.stores import use_waiter
from simcoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simcoll.distributed.linked.links import Link
    from simcoll.distributed.runtime.plans import Choice
    from simcoll.distributed.runtime.world import Task
    from simcoll.topology import Topology

__all__ = ["run_linked", "run_rank"]

KEPT_RECORDS = 100_000
START_FS = 60 * 10**15
"""How long ranks wait for each other before the programs start."""
AFTER_FAILURE_FS = 5 * 10**15
"""How long a rank whose program has failed waits for the others to end theirs."""


def _shared(algorithm: Choice, max_records: int) -> dict[str, Any]:
    return {"records": [], "max_records": max_records, "algorithm": algorithm, "findings": [], "failed": []}


def _run(world: LinkedWorld, program: Callable[[], Any], backend: str, *, init: bool) -> Mapping[int, list[Any]]:
    """Run this rank's program, and the rank until all others have ended theirs; returns what each rank said at its end."""
    me = world.me
    me.flight = Flight()
    if init:
        set_default_group(me, backend, implicit=True)

    def body() -> None:
        use_waiter(LinkedWaiter(world))
        start = world.gather("start", "the start of the programs", [""], world.everyone)
        wait_until(start, START_FS, explicit=True)
        world.start_clock()
        try:
            me.value = program()
        except greenlet.GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001  # also sys.exit(): raised again when the others know
            me.failure = error
        me.finish_fs = world.now
        over = _end(world, me.failure)
        try:
            wait_until(over, None if me.failure is None else AFTER_FAILURE_FS, explicit=True)
        except RuntimeError:
            if me.failure is None:
                raise

    def closed(task: Task) -> None:
        me.failure = me.failure or task.failure

    world.launch(me, body, closed)
    try:
        world.run()
    finally:
        close_store(me)
    return world.outcomes()


def _end(world: LinkedWorld, failure: BaseException | None) -> Any:
    """Tell all that this rank's program is over, and how."""
    me, kind, said = world.me, "", ""
    value: bytes | None = None
    text = f"rank {me.number} has ended its program"
    if failure is not None:
        kind, said = type(failure).__name__, str(failure)
        text = f"Connection closed by peer: rank {me.number} ended with {kind}: {said}"
    else:
        try:
            value = encode(me.value)
        except Exception:  # noqa: BLE001  # pickle may raise anything; the others are told that it could not be sent
            said = type(me.value).__name__
    notice = ["", text, kind, said, max(0, me.finish_fs), value, world.failed]
    return world.gather(END, "the end of the programs", notice, world.everyone)


def _failure(world: LinkedWorld, outcomes: Mapping[int, list[Any]]) -> BaseException | None:
    """The first failure of a program, as far as clocks can tell; the rank's own as it is, another's by its name and text."""
    failed = sorted((came[6], came[4], rank) for rank, came in outcomes.items() if came[2])
    first = failed[0][2] if failed else world.me.number
    if first == world.me.number:
        own = world.me.failure
        if own is not None:
            own.add_note(f"[rank{first}]: raised by the program of rank {first} at {max(0, world.me.finish_fs)} fs")
        return own
    _, _, kind, said, finish_fs, *_ = outcomes[first]
    found = getattr(builtins, kind, RuntimeError)
    known = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, (OSError, UnicodeError))
    error: BaseException = found(said) if known else RuntimeError(f"{kind}: {said}")
    error.add_note(f"[rank{first}]: raised by the program of rank {first}, in another process, at {finish_fs} fs")
    return error


def run_linked(
    post: Post,
    program: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    topology: Topology,
    protocol: str | Protocol,
    algorithm: Choice,
    backend: str | None,
    init: bool,
    debug: bool,
) -> Result:
    """What spawn does where this process is one of the ranks.

    Raises
    ------
    Exception
        What a program raised, from the rank that failed first.
    """
    costs = protocol if isinstance(protocol, Protocol) else find_protocol(protocol)
    world = LinkedWorld(post, topology, protocol, costs, debug=debug)
    world.shared |= _shared(algorithm, KEPT_RECORDS)
    me = world.me

    def body() -> Any:
        return program(me.number, len(world.everyone), *args, **kwargs)

    outcomes = _run(world, body, backend or post.link.name, init=init)
    leftovers(world)
    failure = _failure(world, outcomes)
    if failure is not None:
        raise failure
    shared = world.shared
    returns = []
    for rank in world.everyone:
        _, _, _, said, _, value, _ = outcomes[rank]
        returns.append(me.value if rank == me.number else None if value is None else decode(value))
        if value is None:
            text = f"rank {rank} returned a {said}, which cannot be sent: the other ranks see None"
            shared["findings"].append(text)
    warn(shared["findings"])
    finish = tuple(outcomes[rank][4] for rank in world.everyone)
    return Result(
        time_fs=max(finish),
        finish_fs=finish,
        returns=tuple(returns),
        trace_hash="",
        operations=shared.get("operations", 0),
        messages=0,
        records=tuple(shared["records"]),
        findings=tuple(shared["findings"]),
        topology=topology.name,
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

    The same program as under :func:`simcoll.distributed.spawn` gives the same arrays: collectives are the same plans.

    Parameters
    ----------
    program
        Called with the rank, the world size and ``args``.
    backend
        One that register_backend has made known: it plays the collectives, and there are no point-to-point operations. With
        a link: what get_backend says.
    store
        Default store of the rank.
    algorithm
        See :func:`simcoll.distributed.spawn`.
    link
        A :class:`~simcoll.distributed.linked.links.Link` to the processes of the other ranks; everything works over it.

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

    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is out of range; expected 0..{world_size - 1}")
    check_choice(algorithm)
    place = crossbar(world_size, "50 GB/s", "1 us")
    if link is not None:
        if (link.rank, link.world_size) != (rank, world_size):
            raise ConfigError(f"rank {rank} of {world_size}: the link is that of rank {link.rank} of {link.world_size}")
        linked = LinkedWorld(Post(link), place, "ideal", find_protocol("ideal"), debug=True)
        linked.shared |= _shared(algorithm, 0)
        if store is not None:
            linked.me.local["store"] = store
        outcomes = _run(linked, lambda: program(rank, world_size, *args), backend, init=True)
        failure = _failure(linked, outcomes)
        if failure is not None:
            raise failure
        return linked.me.value
    if Backend.maker(backend) is None:
        raise ValueError(
            f"backend {backend!r} is emulated: use spawn; run_rank takes what register_backend has made known"
        )
    return _alone(program, rank, world_size, args, place, backend, store, algorithm)


def _alone(
    program: Callable[..., Any],
    rank: int,
    world_size: int,
    args: Sequence[Any],
    topology: Topology,
    backend: str,
    store: Any,
    algorithm: Choice,
) -> Any:
    """A rank that knows nothing of the others but what its backend plays."""
    world = World(world_size, topology, "ideal", find_protocol("ideal"), debug=False)
    world.shared |= _shared(algorithm, 0) | {"alone": True}
    me = world.ranks[rank]
    me.flight = Flight()
    if store is not None:
        me.local["store"] = store
    set_default_group(me, backend, implicit=True)

    def over(task: Task) -> None:
        me.value, me.failure = task.value, task.failure

    world.launch(me, lambda: program(rank, world_size, *args), over)
    world.run()
    if me.failure is not None:
        raise me.failure
    return me.value
