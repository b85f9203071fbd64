"""What a rank of an implementation under test is asked for, and what it has done."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np

from simcoll.arrays import Array
from simcoll.core.vocabulary import CollectiveKind
from simcoll.errors import ConfigError
from simcoll.testing.collective_cases import Case, CaseOperation, Memory, output_size
from simcoll.testing.object_values import OBJECT, image
from simcoll.testing.wrong_calls import MistakeName, RaisedError, other_dtype, undefined_reduction

__all__ = [
    "Implementation",
    "RankCall",
    "RankOutcome",
    "RankTask",
    "RankWorld",
    "callers",
    "refused_operations",
]

GUARD = 3
"""Elements before and behind each buffer, which no collective may touch."""


@dataclass(frozen=True)
class RankWorld:
    """A rank's place in the world.

    Attributes
    ----------
    rank, nranks
        Number of the rank, and of all ranks.
    folder
        A directory that all ranks of this world see, empty at first: a place to meet.
    shared
        A dictionary that the ranks share if they are threads of one process; else one for each.
    server
        What ``setup`` of the runner's server has returned, such as its address; else ``None``.
    """

    rank: int
    nranks: int
    folder: str
    shared: dict[Any, Any] = field(default_factory=dict)
    server: Any = None


@dataclass(frozen=True)
class RankCall:
    """One operation as one rank of its group sees it.

    Where ``mistake`` is not empty, one of the following is wrong, and the call must raise.

    Attributes
    ----------
    world
        The rank's place in the world, in which ``ranks`` are the members of the group.
    operation
        The operation that all members call.
    index
        Its number among the operations of the case.
    rank
        The rank's number in the group.
    input, output
        One-dimensional arrays, or ``None`` where the operation has none on this rank. The output
        of an operation in place shares its memory with the input, as in NCCL. Objects are in
        arrays of dtype ``object``.
    """

    world: RankWorld
    operation: CaseOperation
    index: int
    rank: int
    input: Array | None
    output: Array | None

    @property
    def kind(self) -> CollectiveKind:
        """Kind of the collective, such as ``all_reduce``."""
        return self.operation.collective.kind

    @property
    def ranks(self) -> tuple[int, ...]:
        """Members of the group, as ranks of the world."""
        return self.operation.ranks

    @property
    def nranks(self) -> int:
        """Number of members of the group."""
        return len(self.operation.ranks)

    @property
    def root(self) -> int:
        """Root, as a rank of the group; 0 where there is none."""
        if self.mistake == "root":
            return self.nranks
        return self.operation.collective.root or 0

    @property
    def op(self) -> str:
        """Name of the reduction."""
        if self.mistake == "reduction":
            return undefined_reduction(self.operation.dtype) or self.operation.op
        return self.operation.op

    @property
    def objects(self) -> bool:
        """Whether the data are Python objects."""
        return self.operation.dtype == OBJECT

    @property
    def mistake(self) -> MistakeName | Literal[""]:
        """What is wrong with the call, of :data:`~simcoll.testing.wrong_calls.MISTAKES`, or
        nothing.
        """
        return self.operation.mistake

    @property
    def asynchronous(self) -> bool:
        """Whether to return an object with a method ``wait()`` at once."""
        return self.operation.asynchronous

    @property
    def destination(self) -> int | None:
        """Group rank that this rank of a send_recv sends to."""
        return self._peer(dict(self.operation.collective.pairs))

    @property
    def source(self) -> int | None:
        """Group rank that this rank of a send_recv receives from."""
        return self._peer({dst: src for src, dst in self.operation.collective.pairs})

    def _peer(self, peers: dict[int, int]) -> int | None:
        if self.mistake == "peer" and self.rank in peers:
            return self.nranks
        return peers.get(self.rank)

    @property
    def input_counts(self) -> list[int]:
        """Elements of each block of the input."""
        return self.operation.slot_counts(self.rank, 0)

    @property
    def output_counts(self) -> list[int]:
        """Elements of each block of the output."""
        return self.operation.slot_counts(self.rank, 1)


@dataclass(frozen=True)
class RankOutcome:
    """What a rank holds after a case.

    ``outputs`` has an entry for each operation; ``faults`` tells of memory that must not change;
    ``error`` is the exception that ended the rank. By operation, ``refused`` has the texts of
    NotImplementedErrors, and ``raised`` the errors of wrong calls. ``unsupported`` is the text of
    a NotImplementedError of a :class:`RankTask`; ``joined`` is false if the error kept the rank
    from its world.
    """

    outputs: tuple[Array | None, ...] = ()
    faults: tuple[str, ...] = ()
    error: str | None = None
    unsupported: str | None = None
    joined: bool = True
    refused: dict[int, str] = field(default_factory=dict)
    raised: dict[int, RaisedError] = field(default_factory=dict)


@dataclass(frozen=True)
class RankTask:
    """A check that an implementation makes itself on every rank, by its method ``task(name)``."""

    nranks: int
    name: str


class Implementation(Protocol):
    """A class whose instances are ranks of an implementation; all methods but ``run`` may be
    missing.
    """

    def setup(self, world: RankWorld) -> None:
        """Join the world, once, before the first call."""

    def prepare(self, case: Case) -> None:
        """Get ready for a case, on every rank of the world; for groups that all ranks make."""

    def run(self, call: RankCall) -> Any:
        """Execute an operation; an asynchronous one returns an object with ``wait()``."""

    def run_coalesced(self, calls: Sequence[RankCall]) -> Any:
        """Execute operations of one group as one unit; may return an object with ``wait()``."""

    def teardown(self) -> None:
        """Leave the world."""


Target = Callable[..., Any]


def callers(operation: CaseOperation) -> list[int]:
    """The ranks of the world that have something to do in an operation; others cannot know that
    they must refuse it, or that it is wrong.
    """
    return [
        rank
        for position, rank in enumerate(operation.ranks)
        if operation.collective.kind == "barrier"
        or operation.has_buffer(position, 0)
        or operation.has_buffer(position, 1)
    ]


def refused_operations(case: Case, outcomes: Sequence[RankOutcome | None]) -> dict[int, str]:
    """The operations that all their callers have refused, with the reason of the first."""
    refused = {}
    for index, operation in enumerate(case.operations):
        ranks = callers(operation)
        reasons = [outcome.refused.get(index) for rank in ranks if (outcome := outcomes[rank])]
        texts = [text for text in reasons if text is not None]
        if texts and len(texts) == len(ranks):
            refused[index] = texts[0]
    return refused


def join(target: Target, world: RankWorld) -> tuple[Callable[[RankCall], Any], Any]:
    """The function that runs calls of a rank, and the instance that it belongs to, if any."""
    maker = target.func if isinstance(target, partial) else target
    if not isinstance(maker, type):
        return target, None
    instance = target()
    if not callable(getattr(instance, "run", None)):
        raise ConfigError(f"class {maker.__name__} has no method run(call)")
    if hasattr(instance, "setup"):
        instance.setup(world)
    return instance.run, instance


def leave(instance: Any) -> None:
    """Let an instance of a class with ``teardown`` leave its world."""
    if hasattr(instance, "teardown"):
        instance.teardown()


class GuardedBuffer:
    """Elements in memory of one of several layouts, with guards around and between them."""

    def __init__(self, size: int, dtype: np.dtype[Any], memory: Memory) -> None:
        step = 2 if memory == "strided" else 1
        begin = 1 if memory == "offset" else 4  # elements: whole lines of 16 bytes, or not
        span = slice(begin, begin + size * step, step)
        pattern = np.arange(begin + size * step + GUARD) * 37 + 101
        self.allocation = (pattern % 251).astype(np.uint8).astype(dtype)
        view = self.allocation[span]
        self.values = view[::-1] if memory == "reversed" else view
        self.guards = np.ones(self.allocation.size, np.bool_)
        self.guards[span] = False
        self.before = image(self.allocation[self.guards])

    def intact(self) -> bool:
        """Whether all memory around the elements is as it was."""
        return bool(image(self.allocation[self.guards]) == self.before)


class Buffers:
    """The memory of one operation on one rank."""

    def __init__(self, operation: CaseOperation, rank: int) -> None:
        collective = operation.collective
        values = operation.inputs()[rank]
        dtype = values.dtype
        size = output_size(operation, rank)
        inputs = operation.has_buffer(rank, 0)
        outputs = operation.has_buffer(rank, 1)
        shared = collective.in_place and collective.spec.alias is not None and inputs and outputs
        self.guarded: list[GuardedBuffer] = []
        self.input = self.output = None
        self.original: Array | None = None
        if shared:
            self._share(operation, rank, values, size)
            return
        if inputs:
            self.input = self._buffer(values.size, dtype, operation.memory)
            self.input[...] = values
            # An object that is changed in place would change here, too: made anew.
            self.original = operation.inputs()[rank] if dtype.kind == "O" else values
        if outputs:
            if operation.mistake == "dtype":
                dtype = np.dtype(other_dtype(dtype.name))
            self.output = self._buffer(size, dtype, operation.memory)
        if operation.mistake == "length":
            self._truncate(collective.kind)

    def _truncate(self, kind: CollectiveKind) -> None:
        """Take an element from the buffer that has a block for each rank."""
        if kind == "all_gather" and self.output is not None:
            self.output = self.output[:-1]
        elif self.input is not None and self.original is not None:
            self.input, self.original = self.input[:-1], self.original[:-1]

    def _buffer(self, size: int, dtype: np.dtype[Any], memory: Memory) -> Array:
        buffer = GuardedBuffer(size, dtype, memory)
        self.guarded.append(buffer)
        return buffer.values

    def _share(self, operation: CaseOperation, rank: int, values: Array, size: int) -> None:
        """One buffer: the smaller of input and output is a slot of the larger."""
        longer = operation.collective.input_slots < operation.collective.output_slots
        counts = operation.slot_counts(rank, 1 if longer else 0)
        memory = self._buffer(max(size, values.size), values.dtype, operation.memory)
        slots = (operation.collective.input_slots, operation.collective.output_slots)
        begin = sum(counts[:rank]) if slots[0] != slots[1] else 0
        self.input = memory[begin : begin + values.size] if longer else memory
        self.output = memory if longer else memory[begin : begin + size]
        self.input[...] = values

    def faults(self) -> Any:
        """What has changed that must not."""
        if not all(buffer.intact() for buffer in self.guarded):
            yield "wrote outside of its buffers"
        if self.original is None or self.input is None:
            return
        if image(self.input) != image(self.original):
            yield "changed its input"


def play_task(instance: Any, task: RankTask) -> RankOutcome:
    """Let an instance check something by name."""
    try:
        instance.task(task.name)
    except NotImplementedError as error:
        return RankOutcome(unsupported=str(error) or "NotImplementedError")
    except Exception as error:  # noqa: BLE001  # whatever an implementation raises is its result
        return RankOutcome(error=f"{type(error).__name__}: {error}")
    return RankOutcome()


def play_rank(
    run: Callable[[RankCall], Any], case: Case, world: RankWorld, instance: Any = None
) -> RankOutcome:
    """Call the operations of a case that a rank takes part in, and collect what it holds."""
    play = _RankPlay(run, *rank_calls(case, world))
    try:
        play.play(case, instance)
    except Exception as error:  # noqa: BLE001  # whatever an implementation raises is its result
        frames = traceback.extract_tb(error.__traceback__)[1:]
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        return RankOutcome(error=f"{type(error).__name__}: {error}{place}")
    memory = play.memory
    outputs = [
        memory[index].output if index in memory else None for index in range(len(case.operations))
    ]
    faults = [
        f"operation {index}: {fault}"
        for index, buffers in memory.items()
        for fault in buffers.faults()
    ]
    results = tuple(None if output is None else np.array(output) for output in outputs)
    return RankOutcome(results, tuple(faults), refused=play.refused, raised=play.raised)


def rank_calls(case: Case, world: RankWorld) -> tuple[dict[int, RankCall], dict[int, Buffers]]:
    """The calls of a rank and their memory, by the number of the operation."""
    calls: dict[int, RankCall] = {}
    memory: dict[int, Buffers] = {}
    for index, operation in enumerate(case.operations):
        if world.rank in operation.ranks:
            rank = operation.ranks.index(world.rank)
            buffers = memory[index] = Buffers(operation, rank)
            calls[index] = RankCall(world, operation, index, rank, buffers.input, buffers.output)
    return calls, memory


class _RankPlay:
    """The calls of one rank in a case, and what became of them."""

    def __init__(
        self,
        run: Callable[[RankCall], Any],
        calls: dict[int, RankCall],
        memory: dict[int, Buffers],
    ) -> None:
        self.run, self.calls, self.memory = run, calls, memory
        self.refused: dict[int, str] = {}
        self.raised: dict[int, RaisedError] = {}

    def play(self, case: Case, instance: Any) -> None:
        """Play all calls: those that are refused are left out, and the others go on."""
        with self._refusals(*self.calls):
            if hasattr(instance, "prepare"):
                instance.prepare(case)
        if self.refused:
            return
        if case.coalesced:
            with self._refusals(*self.calls):
                _run_together(instance, list(self.calls.values()))
            return
        # A refusal ends no operation that is in flight: it is waited for, because it still
        # writes to its buffers.
        pending = [(index, self._start(index, call)) for index, call in self.calls.items()]
        for index, work in reversed(pending) if case.reverse_waits else pending:
            if work is not None:
                with self._refusals(index):
                    work.wait()

    def _start(self, index: int, call: RankCall) -> Any:
        """Begin an operation; what is returned is still to be waited for."""
        with self._refusals(index):
            if call.mistake:
                error = _error_of(self.run, call)
                if error is not None:
                    self.raised[index] = error
                return None
            work = self.run(call)
            if hasattr(work, "wait"):
                if call.asynchronous:
                    return work
                work.wait()
        return None

    @contextlib.contextmanager
    def _refusals(self, *indices: int) -> Iterator[None]:
        """Note a NotImplementedError as the refusal of operations."""
        try:
            yield
        except NotImplementedError as error:
            self.refused.update(dict.fromkeys(indices, str(error) or "NotImplementedError"))


def _error_of(run: Callable[[RankCall], Any], call: RankCall) -> RaisedError | None:
    """The error that a wrong call raises, at once or when it is waited for."""
    try:
        work = run(call)
        if hasattr(work, "wait"):
            work.wait()
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001  # judged by its class
        return RaisedError.of(error)
    return None


def _run_together(instance: Any, calls: list[RankCall]) -> None:
    """Let an instance of a class execute operations as one unit."""
    if not callable(getattr(instance, "run_coalesced", None)):
        raise NotImplementedError("there is no method run_coalesced(calls)")
    if calls:
        work = instance.run_coalesced(calls)
        if hasattr(work, "wait"):
            work.wait()
