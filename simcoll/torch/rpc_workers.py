"""The workers of RPC in a run, and their messages.

A call is a message to another rank, the function in a thread of that rank, and a message back. Both
messages carry the pickled call and the bytes of its tensors through the emulated network, so they
take the time of a send and its receive.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.rpc import WorkerInfo
from torch.futures import Future

from simcoll.distributed.runtime.calls import End
from simcoll.distributed.runtime.collective_calls import begin
from simcoll.distributed.runtime.tasks import Waitable, wait_until
from simcoll.distributed.runtime.world import Communicator, GroupHandle, Rank, World
from simcoll.torch.rank_threads import Process, RankThread
from simcoll.torch.rpc_gradients import GradientTrail

__all__ = ["Content", "Limit", "RpcNetwork", "RpcWorker", "pack", "unpack"]

NO_TIMEOUT_FS = 10**18 * 60 * 30
_NAME = "rpc"


class Content(NamedTuple):
    """A pickled object, the tensors that it refers to by number, and its context of gradients."""

    pickled: bytes
    tensors: list[torch.Tensor]
    trail: GradientTrail | None = None


class Limit(NamedTuple):
    """The longest time of a call; ``explicit``: the program has given it."""

    time_fs: int
    explicit: bool


def pack(content: Content) -> bytes:
    """The bytes of a message."""
    tensors = [_tensor_bytes(tensor) for tensor in content.tensors]
    trail = None if content.trail is None else tuple(content.trail)
    return pickle.dumps((content.pickled, tensors, trail))


def _tensor_bytes(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        return (buffer.getvalue(),)
    values = tensor.detach().resolve_conj().resolve_neg().contiguous()
    content = values.reshape(-1).view(torch.uint8).numpy().tobytes()
    return content, tensor.dtype, tuple(tensor.shape), tensor.requires_grad


def unpack(message: bytes) -> Content:
    """The content of a message."""
    pickled, packed, trail = pickle.loads(message)  # noqa: S301  # of a rank of this run
    tensors = [_tensor_of(*parts) for parts in packed]
    return Content(pickled, tensors, None if trail is None else GradientTrail(*trail))


def _tensor_of(
    content: bytes,
    dtype: torch.dtype | None = None,
    shape: tuple[int, ...] = (),
    requires_grad: bool = False,
) -> torch.Tensor:
    if dtype is None:
        tensor: torch.Tensor = torch.load(io.BytesIO(content), weights_only=False)
        return tensor
    if not content:
        return torch.empty(shape, dtype=dtype, requires_grad=requires_grad)
    values = torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)
    return values.requires_grad_(requires_grad)


@dataclass(slots=True, eq=False)
class RpcWorker:
    """A rank that has called ``init_rpc``.

    Attributes
    ----------
    info
        Its name and number.
    timeout_s
        The timeout of its calls; ``explicit``: its program has given it.
    device_maps
        Devices of tensors that it sends, by the worker that gets them.
    values
        What it owns, by the numbers of the references; a Future where a call is still to set it.
    references
        How many references it has created.
    contexts, context_count
        Its parts of contexts of distributed autograd, and how many it has begun.
    """

    network: RpcNetwork
    info: WorkerInfo
    process: Process
    rank: Rank
    timeout_s: float
    explicit: bool = False
    device_maps: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    values: dict[tuple[int, int], Future[Any]] = field(default_factory=dict)
    references: int = 0
    contexts: dict[int, Any] = field(default_factory=dict)
    context_count: int = 0

    def value(self, reference: tuple[int, int]) -> Future[Any]:
        """What it owns under a number, now or later."""
        return self.values.setdefault(reference, Future())

    def next_reference(self) -> tuple[int, int]:
        """The number of a new reference, unique in the run."""
        self.references += 1
        return self.info.id, self.references

    def start(self, body: Callable[[], None]) -> None:
        """Run a function in a new thread of the rank. Called in the clock's thread."""
        self.network.running += 1
        child = RankThread(
            self.process, threading.Thread(name=f"RPC of {self.info.name}", daemon=True)
        )
        child.thread.run = child.run  # type: ignore[method-assign]
        child.thread.start()

        def run() -> None:
            try:
                body()
            except Exception as error:  # noqa: BLE001  # else the caller would wait for ever
                self.rank.world.history.failures.append(error)
            finally:
                child.call(self.network.stop_thread)

        child.begin(run, self.rank)


@dataclass(slots=True, eq=False)
class RpcNetwork:
    """The workers that call each other.

    Attributes
    ----------
    size
        How many there will be.
    complete
        All workers have called ``init_rpc``.
    quiet
        All workers have called ``shutdown``, and no call is under way.
    running
        The number of messages, and of threads that answer them.
    """

    world: World
    size: int
    workers: dict[int, RpcWorker] = field(default_factory=dict)
    leaving: dict[int, None] = field(default_factory=dict)
    complete: Waitable = field(default_factory=Waitable)
    quiet: Waitable = field(default_factory=Waitable)
    running: int = 0
    _group: Communicator | None = None
    _messages: int = 0

    # In the clock's thread

    def join(self, worker: RpcWorker) -> None:
        """Add a worker, and wait for the others.

        Raises
        ------
        RuntimeError
            When its name or number is taken, or the workers expect different numbers of workers.
        """
        for peer in self.workers.values():
            if worker.info.name == peer.info.name or worker.info.id == peer.info.id:
                raise RuntimeError(
                    f"init_rpc: rank {worker.rank.number} is worker {worker.info.name!r} with "
                    f"number {worker.info.id}, and rank {peer.rank.number} is "
                    f"{peer.info.name!r} with number {peer.info.id}: names and numbers have to "
                    "differ"
                )
        self.workers[worker.info.id] = worker
        self.complete.label = (
            f"init_rpc, which {len(self.workers)} of {self.size} workers have called"
        )
        if len(self.workers) == self.size:
            self._group = self._communicator()
            self.complete.finish()
        wait_until(self.complete)

    def _communicator(self) -> Communicator:
        members = tuple(sorted(worker.rank.number for worker in self.workers.values()))
        return Communicator(
            self.world, _NAME, _NAME, "RPC", members, NO_TIMEOUT_FS, False, "simcoll"
        )

    def leave(self, worker: RpcWorker) -> None:
        """Wait until all workers leave and no call is under way."""
        self.leaving[worker.info.id] = None
        missing = [
            peer.info.name for peer in self.workers.values() if peer.info.id not in self.leaving
        ]
        self.quiet.label = f"rpc.shutdown of {', '.join(missing) or 'all workers'}"
        self._settle()
        wait_until(self.quiet)

    def stop_thread(self) -> None:
        """Note that a thread has answered."""
        self.running -= 1
        self._settle()

    def _settle(self) -> None:
        if len(self.leaving) == self.size and not self.running:
            self.quiet.finish()

    def send(
        self, sender: RpcWorker, receiver: RpcWorker, message: bytes, run: Callable[[Content], None]
    ) -> None:
        """Send a message, and run a function on its content in a new thread of the receiver.

        Raises
        ------
        RuntimeError
            When the receiver's program has ended.
        """
        if receiver.rank.finish_fs >= 0:
            raise RuntimeError(
                f"worker {receiver.info.name!r} (rank {receiver.rank.number}) has ended without "
                "rpc.shutdown(), which waits for the calls of the others"
            )
        source = np.frombuffer(message, np.uint8)
        target = np.empty_like(source)
        if (group := self._group) is None:
            raise RuntimeError("RPC has not been initialized on all workers")
        posted = begin(group, sender.rank, "send", ([source], []), p2p=True)
        received = begin(group, receiver.rank, "recv", ([], [target]), p2p=True)
        sending, receiving = (
            group.group_rank[sender.rank.number],
            group.group_rank[receiver.rank.number],
        )
        tag, self._messages = self._messages, self._messages + 1
        self.running += 1

        def deliver() -> None:
            receiver.start(lambda: run(unpack(target.tobytes())))
            self.stop_thread()  # the message; the thread is counted on its own

        received.when_done(deliver)
        mailbox = self.world.mailbox(GroupHandle(group, sender.rank.number, timedelta(0)))
        mailbox.post(End(True, sending, receiving, tag, source.size, "uint8", posted))
        mailbox.post(End(False, receiving, sending, tag, source.size, "uint8", received))

    def watch(self, worker: RpcWorker, answered: Waitable, limit: Limit, expire: Any) -> None:
        """Run a function in a new thread of a worker, unless an answer comes in time."""
        begin_fs = self.world.now

        def wait() -> None:
            try:
                wait_until(answered, limit.time_fs, explicit=limit.explicit)
            except RuntimeError:
                if self.world.now - begin_fs >= limit.time_fs:
                    worker.start(expire)

        answered.idle = True  # the program's own wait counts
        self.world.tasks.launch(worker.rank, wait, lambda _: None)
