"""What a rank of an implementation under test is asked for, and what it has done."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from simcoll.arrays import Array
from simcoll.errors import ConfigError
from simcoll.testing.collective_cases import Case, CaseOperation, output_size

__all__ = ["Implementation", "RankCall", "RankOutcome", "RankTask", "RankWorld", "callers"]

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
    """

    rank: int
    nranks: int
    folder: str
    shared: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RankCall:
    """One operation as one rank of its group sees it.

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
        of an operation in place shares its memory with the input, as in NCCL.
    """

    world: RankWorld
    operation: CaseOperation
    index: int
    rank: int
    input: Array | None
    output: Array | None

    @property
    def kind(self) -> str:
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
        return self.operation.collective.root or 0

    @property
    def op(self) -> str:
        """Name of the reduction."""
        return self.operation.op

    @property
    def asynchronous(self) -> bool:
        """Whether to return an object with a method ``wait()`` at once."""
        return self.operation.asynchronous

    @property
    def destination(self) -> int | None:
        """Group rank that this rank of a send_recv sends to."""
        return dict(self.operation.collective.pairs).get(self.rank)

    @property
    def source(self) -> int | None:
        """Group rank that this rank of a send_recv receives from."""
        return {dst: src for src, dst in self.operation.collective.pairs}.get(self.rank)

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
    ``error`` is the exception that ended the rank, and ``unsupported`` the text of a
    NotImplementedError.
    """

    outputs: tuple[Array | None, ...] = ()
    faults: tuple[str, ...] = ()
    error: str | None = None
    unsupported: str | None = None


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

    def teardown(self) -> None:
        """Leave the world."""


Target = Callable[..., Any]


def callers(case: Case) -> set[int]:
    """The ranks that have something to do in a case; others cannot know that they must refuse."""
    return {
        rank
        for operation in case.operations
        for position, rank in enumerate(operation.ranks)
        if operation.collective.kind == "barrier"
        or operation.has_buffer(position, 0)
        or operation.has_buffer(position, 1)
    }


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

    def __init__(self, size: int, dtype: np.dtype[Any], memory: str) -> None:
        step = 2 if memory == "strided" else 1
        begin = 1 if memory == "offset" else 4  # elements: whole lines of 16 bytes, or not
        span = slice(begin, begin + size * step, step)
        pattern = np.arange(begin + size * step + GUARD) * 37 + 101
        self.allocation = (pattern % 251).astype(np.uint8).astype(dtype)
        view = self.allocation[span]
        self.values = view[::-1] if memory == "reversed" else view
        self.guards = np.ones(self.allocation.size, np.bool_)
        self.guards[span] = False
        self.before = self.allocation[self.guards].tobytes()

    def intact(self) -> bool:
        """Whether all memory around the elements is as it was."""
        return self.allocation[self.guards].tobytes() == self.before


class Buffers:
    """The memory of one operation on one rank."""

    def __init__(self, operation: CaseOperation, rank: int) -> None:
        plan, collective = operation.plan, operation.collective
        values = operation.inputs()[rank]
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
            self.input = self._buffer(values.size, plan.dtype, operation.memory)
            self.input[...] = values
            self.original = values
        if outputs:
            self.output = self._buffer(size, plan.dtype, operation.memory)

    def _buffer(self, size: int, dtype: np.dtype[Any], memory: str) -> Array:
        buffer = GuardedBuffer(size, dtype, memory)
        self.guarded.append(buffer)
        return buffer.values

    def _share(self, operation: CaseOperation, rank: int, values: Array, size: int) -> None:
        """One buffer: the smaller of input and output is a slot of the larger."""
        longer = operation.collective.input_slots < operation.collective.output_slots
        counts = operation.slot_counts(rank, 1 if longer else 0)
        memory = self._buffer(max(size, values.size), operation.plan.dtype, operation.memory)
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
        if self.input.tobytes() != self.original.tobytes():
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
    buffers: dict[int, Buffers] = {}
    pending: list[Any] = []
    try:
        if hasattr(instance, "prepare"):
            instance.prepare(case)
        for index, operation in enumerate(case.operations):
            if world.rank not in operation.ranks:
                continue
            rank = operation.ranks.index(world.rank)
            memory = buffers[index] = Buffers(operation, rank)
            work = run(RankCall(world, operation, index, rank, memory.input, memory.output))
            if hasattr(work, "wait"):
                if operation.asynchronous:
                    pending.append(work)
                else:
                    work.wait()
        for work in reversed(pending) if case.reverse_waits else pending:
            work.wait()
    except NotImplementedError as error:
        return RankOutcome(unsupported=str(error) or "NotImplementedError")
    except Exception as error:  # noqa: BLE001  # whatever an implementation raises is its result
        frames = traceback.extract_tb(error.__traceback__)[1:]
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        return RankOutcome(error=f"{type(error).__name__}: {error}{place}")
    outputs = [
        buffers[index].output if index in buffers else None for index in range(len(case.operations))
    ]
    faults = [
        f"operation {index}: {fault}"
        for index, memory in buffers.items()
        for fault in memory.faults()
    ]
    results = tuple(None if output is None else np.array(output) for output in outputs)
    return RankOutcome(results, tuple(faults))
