"""Plays a plan on a transport."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from realcoll.process_errors import FaultError
from realcoll.transports.interface import Memory, Transport, View, Wire
from realcoll.transports.local import LocalTransport
from realcoll.turns import STAGING, Afterwards, Span, Turn, part
from simcoll.arrays import Array
from simcoll.core.memory_limits import check_room
from simcoll.core.plan import INPUT, OUTPUT, Plan
from simcoll.errors import ConfigError

__all__ = ["Prepared", "checked_hosts", "execute", "fingerprint", "prepare"]


_BoundMove: TypeAlias = tuple[Callable[[View, View], object], View, View]
"""A function of a target and a source, and both."""


@dataclass(frozen=True, slots=True)
class _BoundTurn:
    """A turn with its spans looked up."""

    step: int
    waits: tuple[tuple[int, int], ...]
    beforehand: tuple[_BoundMove, ...]
    begin: Callable[[], Any] | None
    afterwards: tuple[_BoundMove, ...]


@dataclass(slots=True, eq=False)
class _TurnLane:
    """The turns of a lane, executed in order, and their progress."""

    moves: Sequence[_BoundTurn]
    transport: Transport
    finished_turns: int = 0
    under_way: Any = None

    def advance(self, lanes: Sequence[_TurnLane]) -> bool:
        """Execute turns until one must wait for messages or another lane; returns whether there was
        progress.
        """
        transport, begun = self.transport, False
        while self.finished_turns < len(self.moves):
            move = self.moves[self.finished_turns]
            if self.under_way is None:
                if move.waits and any(
                    lanes[lane].finished_turns <= turn for lane, turn in move.waits
                ):
                    break
                begun = True
                for do, target, source in move.beforehand:
                    do(target, source)
                if move.begin is not None:
                    self.under_way = move.begin()
            if self.under_way is not None:
                if not transport.is_over(self.under_way):
                    break
                self.under_way = None
                begun = True
            for do, target, source in move.afterwards:
                do(target, source)
            self.finished_turns += 1
        return begun


def _play_alone(moves: Sequence[_BoundTurn], transport: Transport) -> None:
    """Execute the turns of a single lane, where each wait may block."""
    wait, step = transport.wait, 0
    try:
        for move in moves:
            step = move.step
            for do, target, source in move.beforehand:
                do(target, source)
            if move.begin is not None and (group := move.begin()) is not None:
                wait((group,))
            for do, target, source in move.afterwards:
                do(target, source)
    except FaultError as error:
        raise FaultError(f"step {step}: {error.message}", error.ranks) from None


def _play(plays: Sequence[tuple[Sequence[_BoundTurn], Transport]]) -> None:
    """Execute the turns of all lanes, which progress independently except where a turn names
    another lane's.
    """
    if len(plays) == 1:
        _play_alone(*plays[0])
        return
    lanes = [_TurnLane(moves, transport) for moves, transport in plays]
    try:
        while any(lane.finished_turns < len(lane.moves) for lane in lanes):
            moved = [lane.advance(lanes) for lane in lanes]  # each has its turn
            if not any(moved):
                lanes[0].transport.wait(
                    [lane.under_way for lane in lanes if lane.under_way is not None]
                )
    except FaultError as error:
        step = min(
            lane.moves[lane.finished_turns].step
            for lane in lanes
            if lane.finished_turns < len(lane.moves)
        )
        raise FaultError(f"step {step}: {error.message}", error.ranks) from None


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A plan with memory on a transport, ready for repeated runs. Made by :func:`prepare`.

    Attributes
    ----------
    plan, transport
        The plan, and the transport it runs on.
    inputs, outputs
        Input and output memory of the local ranks, as arrays of the transport. Fill, run, read:
        nothing is copied in between. In place they overlap.
    """

    plan: Plan
    transport: Transport
    inputs: Mapping[int, View]
    outputs: Mapping[int, View]
    _play: Callable[[], None]

    def __repr__(self) -> str:
        ranks = ", ".join(map(str, {**self.inputs, **self.outputs}))
        return f"<Prepared: {self.plan}, on {self.transport.name}, ranks {ranks or 'none'} here>"

    def load(self, arrays: Mapping[int, Any] | Sequence[Any]) -> None:
        """Copy the local ranks' inputs from arrays by rank, scaling them for premul_sum.

        Raises
        ------
        ConfigError
            When an array is missing or does not fit.
        """
        for rank, view in self.inputs.items():
            array = _input_of(arrays, rank, self.plan)
            length = self.plan.view(rank, INPUT)[2]
            if array is None or array.dtype != self.plan.dtype or array.size != length:
                actual = "nothing" if array is None else f"{array.size} of {array.dtype}"
                raise ConfigError(
                    f"rank {rank} needs {length} elements of {self.plan.dtype.name} as input; got "
                    f"{actual}"
                )
            scaled = self.plan.collective.spec.reduces and self.plan.reduction.factor is not None
            values = self.plan.reduction.prepared(np.asarray(array)) if scaled else array
            self.transport.load(view, values.reshape(-1))

    def run(self) -> None:
        """Run the collective once.

        Raises
        ------
        FaultError
            When another rank fails, or exceeds the transport's timeout. The transport is unusable
            afterwards.
        """
        try:
            self._play()
            self.transport.synchronize()
        except FaultError as error:
            message = f"{self.plan.schedule}: {error.message}"
            self.transport.abort(message)
            raise FaultError(message, error.ranks) from None

    def fetch(self) -> dict[int, Array]:
        """The local ranks' outputs as numpy arrays, which may share memory with ``outputs``."""
        dtype = self.plan.dtype  # a device may keep it under another name
        return {rank: self.transport.fetch(view).view(dtype) for rank, view in self.outputs.items()}


def prepare(
    plan: Plan,
    transport: Transport | None = None,
    *,
    placement: Sequence[int] | None = None,
    check: bool = True,
) -> Prepared:
    """Allocate a plan's memory on a transport, after all its processes agree on the plan.

    Parameters
    ----------
    plan
        The same plan in every process that hosts a rank of it.
    transport
        Default: all ranks in this process.
    placement
        Process that hosts each rank. Default: ``plan.ranks``; with fewer processes, consecutive
        ranks share one.
    check
        Whether the processes compare their plans first.

    Raises
    ------
    FaultError
        With the ranks whose algorithm, size, dtype or reduction differs, or that do not arrive.
    ConfigError
        When the transport cannot do the reduction, or the placement does not fit.
    """
    carrier: Transport = LocalTransport() if transport is None else transport
    control = carrier.control
    control.check_usable()
    hosts = checked_hosts(plan, placement, control.size)
    members = tuple(sorted(set(hosts)))
    local_ranks = [rank for rank in range(plan.nranks) if hosts[rank] == control.process]
    if not local_ranks:
        return Prepared(plan, carrier, {}, {}, lambda: None)
    if check:
        try:
            control.agree(fingerprint(plan, hosts), members)
        except FaultError as error:
            carrier.abort(error.message)
            raise
    return _allocate(plan, carrier, hosts, local_ranks)


def fingerprint(plan: Plan, hosts: Sequence[int]) -> dict[str, str]:
    """The properties that all processes must agree on before a plan runs, as readable text."""
    sizes = (
        str(plan.sizes) if isinstance(plan.sizes, int) else ", ".join(map(str, plan.sizes.tolist()))
    )
    return {
        "collective": str(plan.collective),
        "algorithm": plan.schedule.title,
        "count": sizes
        if len(sizes) < 500
        else f"{sizes[:400]}... {hashlib.sha256(sizes.encode()).hexdigest()}",
        "dtype": plan.dtype.name,
        "op": str(plan.reduction) if plan.collective.spec.reduces else "none",
        "ranks": str(plan.ranks.tolist()),
        "placement": str(list(hosts)),
        "schedule": plan.schedule.content_hash(),
    }


def checked_hosts(plan: Plan, placement: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """The process of each rank of a plan.

    By default endpoint e of the plan is process e; with fewer processes than endpoints, consecutive
    endpoints share one.
    """
    endpoints = plan.ranks.tolist()
    span = max(endpoints) + 1
    if placement is None:
        return tuple(
            endpoint if span <= size else endpoint * size // span for endpoint in endpoints
        )
    hosts = tuple(int(process) for process in placement)
    if len(hosts) != plan.nranks or any(not 0 <= process < size for process in hosts):
        raise ConfigError(
            f"placement must name one process 0..{size - 1} for each of {plan.nranks} ranks; got "
            f"{list(hosts)}"
        )
    return hosts


BYTES = np.dtype(np.uint8)
ON_HOST = ("local", "mpi")
"""Transports with host memory."""


def _allocate(
    plan: Plan, transport: Transport, hosts: Sequence[int], local_ranks: Sequence[int]
) -> Prepared:
    itemsize, sizes = plan.dtype.itemsize, plan.buffer_elements()
    if transport.name in ON_HOST:
        needed_bytes = itemsize * sum(sum(sizes[rank].tolist()) for rank in local_ranks)
        check_room(
            needed_bytes,
            f"the buffers of {len(local_ranks)} ranks",
            "use fewer elements, or fewer ranks in a process",
        )
    memory = {
        rank: [transport.alloc(int(count) * itemsize) for count in sizes[rank]]
        for rank in local_ranks
    }
    lanes = transport.lanes(plan, len(set(hosts)))
    program = part(plan, hosts, transport.control.process, apart=len(lanes) > 1)
    memory[STAGING] = [
        lane.alloc(size) for lane, size in zip(lanes, program.staging_bytes, strict=True)
    ]
    plays = [
        ([_bind_spans(turn, memory, lane, plan) for turn in turns], lane)
        for lane, turns in zip(lanes, program.lanes, strict=True)
    ]

    def whole_view(rank: int, side: int) -> View:
        buffer, offset, elements = plan.view(rank, side)
        return transport.view(memory[rank][buffer], offset * itemsize, elements, plan.dtype)

    views = [
        {rank: whole_view(rank, side) for rank in local_ranks if plan.has(rank, side)}
        for side in (INPUT, OUTPUT)
    ]
    finish = transport.finisher(plan) if plan.collective.spec.reduces else None

    def play() -> None:
        _play(plays)
        if finish is not None:
            for view in views[OUTPUT].values():
                finish(view)

    # To enter a context in which numpy is silent costs a tenth of making it so each time.
    quiet = copy_context()
    quiet.run(np.seterr, all="ignore")
    return Prepared(
        plan,
        transport,
        views[INPUT],
        views[OUTPUT],
        partial(quiet.run, transport.record_calls(play)),
    )


def _bind_spans(
    turn: Turn, memory: Mapping[int, Sequence[Memory]], transport: Transport, plan: Plan
) -> _BoundTurn:
    """Resolve a turn's spans to memory."""
    dtype = plan.dtype
    reduce = (
        transport.reducer(plan.op, dtype)
        if any(move.combines for move in turn.afterwards)
        else transport.copy
    )

    def view(span: Span) -> View:
        return transport.view(memory[span[0]][span[1]], span[2], span[3] // dtype.itemsize, dtype)

    def message(span: Span) -> View:
        return transport.view(memory[span[0]][span[1]], span[2], span[3], BYTES)

    def last(move: Afterwards) -> _BoundMove:
        do = reduce if move.combines else transport.copy
        if move.wire is None:
            return do, view(move.target), view(move.source)
        return transport.decoder(move.wire, dtype, do), view(move.target), message(move.source)

    def wire(span: Span) -> Wire:
        return transport.wire(memory[span[0]][span[1]], span[2], span[3])

    recvs, sends = (
        [(wire(span), process, channel) for span, process, channel in messages]
        for messages in (turn.recvs, turn.sends)
    )
    return _BoundTurn(
        turn.step,
        turn.waits,
        (
            *((transport.copy, view(target), view(source)) for target, source in turn.aside),
            *(
                (transport.encoder(wire), message(target), view(source))
                for target, source, wire in turn.encodings
            ),
        ),
        transport.group(recvs, sends) if recvs or sends else None,
        tuple(last(move) for move in turn.afterwards),
    )


def _input_of(arrays: Mapping[int, Any] | Sequence[Any], rank: int, plan: Plan) -> Any:
    if isinstance(arrays, Mapping):
        values = arrays.get(rank)
    else:
        if len(arrays) != plan.nranks:
            raise ConfigError(f"data for {len(arrays)} ranks was given; the plan has {plan.nranks}")
        values = arrays[rank]
    return values if values is None or hasattr(values, "dtype") else np.asarray(values)


def execute(
    plan: Plan,
    arrays: Mapping[int, Any] | Sequence[Any],
    transport: Transport | None = None,
    *,
    placement: Sequence[int] | None = None,
) -> dict[int, Array]:
    """Run a plan once: :func:`prepare`, load, run, fetch.

    Parameters
    ----------
    plan
        A bound schedule; the same in every process that hosts a rank of it.
    arrays
        Inputs by rank: a mapping with the local ranks, or a sequence with an entry for every rank.
    transport
        Default: all ranks in this process.
    placement
        See :func:`prepare`.

    Returns
    -------
    dict
        Output by rank, for the local ranks that have one.

    Raises
    ------
    ConfigError
        When the arrays do not fit the plan.
    FaultError
        Naming ranks that differ, fail, or do not take part.

    Examples
    --------
    >>> import numpy as np
    >>> import simcoll, realcoll
    >>> ring = simcoll.schedule("all_gather", "ring", nranks=2)
    >>> plan = simcoll.bind(ring, count=1, dtype="int32")
    >>> outputs = realcoll.execute(plan, [np.array([5], "int32"), np.array([7], "int32")])
    >>> outputs[0].tolist(), outputs[1].tolist()
    ([5, 7], [5, 7])
    """
    prepared = prepare(plan, transport, placement=placement)
    prepared.load(arrays)
    prepared.run()
    return prepared.fetch()
